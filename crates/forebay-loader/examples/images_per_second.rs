//! Images per second, in this process, with one and with two threads.
//!
//! ```text
//! FOREBAY_DATASET=/data/packed cargo run --release -p forebay-loader --example images_per_second
//! ```
//!
//! `FOREBAY_SPLIT` names the split (the first one by default), `FOREBAY_THREADS` the numbers of
//! threads ("1,2"), `FOREBAY_EPOCHS` the number of epochs measured after a warm-up epoch (1),
//! `FOREBAY_TRANSFORM` is `train`, `eval` or `encoded`, `FOREBAY_MEMORY` the budget in bytes.

use std::error::Error;
use std::time::Instant;

use forebay_image::{EvalTransform, TrainTransform, Transform};
use forebay_loader::{Loader, Options};
use forebay_shard::Dataset;

fn variable(name: &str, default: &str) -> String {
    std::env::var(name).unwrap_or_else(|_| default.to_owned())
}

fn main() -> Result<(), Box<dyn Error>> {
    let path = std::env::var("FOREBAY_DATASET")
        .map_err(|_| "FOREBAY_DATASET: a directory that forebay packed")?;
    let dataset = Dataset::open(&path)?;
    let first = dataset.splits().next().unwrap_or_default().to_owned();
    let split = dataset.split(&variable("FOREBAY_SPLIT", &first))?;
    let transform = match variable("FOREBAY_TRANSFORM", "train").as_str() {
        "eval" => Transform::Eval(EvalTransform::new(256, 224)),
        "encoded" => Transform::KeepEncoded,
        _ => Transform::Train(TrainTransform::new(224)),
    };
    let epochs: u64 = variable("FOREBAY_EPOCHS", "1").parse()?;
    for threads in variable("FOREBAY_THREADS", "1,2").split(',') {
        let mut options = Options::new(128.min(split.len()), transform.clone());
        options.threads = threads.parse()?;
        options.memory_bytes = variable("FOREBAY_MEMORY", "0").parse()?;
        let begun = Instant::now();
        let mut loader = Loader::new(split.clone(), options)?;
        loader.next_batch()?;
        let first_batch = begun.elapsed();
        while loader.next_batch()?.is_some() {}
        let (warm, begun) = (loader.stats(), Instant::now());
        let mut images = 0;
        for _ in 0..epochs {
            while let Some(batch) = loader.next_batch()? {
                images += batch.len();
            }
        }
        let seconds = begun.elapsed().as_secs_f64();
        let stats = loader.stats().since(&warm);
        println!(
            "{threads} threads: {:.0} images/s, {:.0} MB/s read, {:.0} CPU ms, first batch after {:.0} ms, at most {:.0} MB of records and batches",
            images as f64 / seconds,
            stats.bytes_read as f64 / 1e6 / seconds,
            stats.process_cpu_s * 1e3,
            first_batch.as_secs_f64() * 1e3,
            stats.memory_peak_bytes as f64 / 1e6,
        );
        for stage in stats.stages() {
            println!(
                "  {:9} busy {:6.2} s, starved {:6.2} s, blocked {:6.2} s",
                stage.name, stage.busy_s, stage.starved_s, stage.blocked_s
            );
        }
        println!("  {}", stats.bottleneck());
    }
    Ok(())
}
