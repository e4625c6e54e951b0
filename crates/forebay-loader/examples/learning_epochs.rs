//! CPU time of an image in each of three epochs: without seek points, with those that the loader
//! learns, and with stored ones.
//!
//! ```text
//! taskset -c 0 cargo run --release -p forebay-loader --example learning_epochs -- PLAIN STORED [ROUNDS]
//! ```
//!
//! PLAIN and STORED are datasets of the same images, packed with `--seek-points off` and `auto`. The ways
//! take turns in each of the rounds (9). Prints the medians, the lowest ones, and the medians of the ratios within a round.

use std::error::Error;
use std::hash::{DefaultHasher, Hasher};

use forebay_image::{TrainTransform, Transform};
use forebay_loader::{Loader, Options};
use forebay_shard::Dataset;

const EPOCHS: usize = 3;

/// Returns the CPU microseconds of an image in each epoch, and a hash of all pixels.
fn run(path: &str, learn_seek_points: u64) -> Result<([f64; EPOCHS], u64), Box<dyn Error>> {
    let dataset = Dataset::open(path)?;
    let first = dataset.splits().next().unwrap_or_default().to_owned();
    let split = dataset.split(&first)?;
    let transform = Transform::Train(TrainTransform::new(224));
    let mut options = Options::new(10.min(split.len()), transform);
    options.seed = 1;
    options.threads = 1;
    // Few samples of an epoch are decoded in the one before.
    options.batches_ahead = 2;
    options.learn_seek_points = learn_seek_points;
    // Seek points change the sizes of records, and so the default blocks.
    options.shuffle.block_records = 32;
    let mut loader = Loader::new(split, options)?;
    let (mut before, mut times) = (loader.stats(), [0.0; EPOCHS]);
    let mut pixels = DefaultHasher::new();
    for time in &mut times {
        while let Some(batch) = loader.next_batch()? {
            pixels.write(&batch.payload);
        }
        let now = loader.stats();
        let epoch = now.since(&before);
        *time = epoch.decode_cpu_s * 1e6 / epoch.images as f64;
        before = now;
    }
    Ok((times, pixels.finish()))
}

fn median(mut numbers: Vec<f64>) -> f64 {
    numbers.sort_by(f64::total_cmp);
    numbers[numbers.len() / 2]
}

fn main() -> Result<(), Box<dyn Error>> {
    let mut arguments = std::env::args().skip(1);
    let plain = arguments.next().ok_or("a dataset without seek points")?;
    let stored = arguments.next().ok_or("a dataset with seek points")?;
    let rounds = arguments.next().map_or(Ok(9), |rounds| rounds.parse())?;
    let ways = [
        ("without", &plain, 0),
        ("learning", &plain, u64::MAX),
        ("stored", &stored, 0),
    ];
    let mut times = [const { Vec::new() }; 3];
    let mut hashes = Vec::new();
    for round in 0..rounds {
        for turn in 0..ways.len() {
            let way = (turn + round) % ways.len();
            let (_, path, limit) = ways[way];
            let (of_round, hash) = run(path, limit)?;
            times[way].push(of_round);
            hashes.push(hash);
        }
    }
    hashes.dedup();
    println!("{} hash of the pixels of all ways and rounds", hashes.len());
    println!("| epoch | way | median us | least us | without / way |");
    println!("| --- | --- | --- | --- | --- |");
    for epoch in 0..EPOCHS {
        for (way, (name, ..)) in ways.iter().enumerate() {
            let of = |way: usize| times[way].iter().map(move |times| times[epoch]);
            let least = of(way).fold(f64::INFINITY, f64::min);
            let gain = of(0).zip(of(way)).map(|(without, with)| without / with);
            let (time, gain) = (median(of(way).collect()), median(gain.collect()));
            println!(
                "| {} | {name} | {time:.0} | {least:.0} | {gain:.2} |",
                epoch + 1
            );
        }
    }
    Ok(())
}
