//! Transforms real images on one thread, for use with a profiler.
//!
//! `cargo run --release -p forebay-image --example transform_images -- DIRECTORY [train|eval
//! [off|rows|fine [ROUNDS]]]`
//!
//! Reads all JPEGs under the directory into memory, builds their seek points if requested, and
//! applies the transform to each of them in turn. To count instructions per image and function, run
//! `valgrind --tool=callgrind --toggle-collect='*Transform*apply*'
//! target/release/examples/transform_images ...`, which measures `Transform::apply` alone.

use forebay_image::{
    Decoder, Encoded, EvalTransform, Layout, Limits, Output, SampleSeed, SeekDensity,
    SeekPointBuilder, TrainTransform, Transform,
};
use std::path::{Path, PathBuf};
use std::time::Instant;

fn main() {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let argument = |at: usize| arguments.get(at).map(String::as_str);
    let directory = Path::new(argument(0).expect("a directory of JPEGs"));
    let transform = match argument(1).unwrap_or("train") {
        "train" => Transform::Train(TrainTransform::new(224)),
        "eval" => Transform::Eval(EvalTransform::new(256, 224)),
        other => panic!("train or eval, not {other}"),
    };
    let density = match argument(2).unwrap_or("off") {
        "off" => None,
        "rows" => Some(SeekDensity::Rows),
        "fine" => Some(SeekDensity::Fine),
        other => panic!("off, rows or fine, not {other}"),
    };
    let rounds: u64 = argument(3).map_or(1, |n| n.parse().expect("a number of rounds"));

    let mut builder = SeekPointBuilder::default();
    let images: Vec<(Vec<u8>, Option<Vec<u8>>)> = jpegs(directory)
        .iter()
        .map(|path| std::fs::read(path).expect("a readable file"))
        .map(|bytes| {
            let points = density.and_then(|density| builder.build(&bytes, density));
            (bytes, points)
        })
        .collect();
    let mut decoder = Decoder::new(Limits::default());
    let mut out = vec![0; transform.output_values()];
    let output = Output::from(Layout::Nhwc);
    let begun = Instant::now();
    for epoch in 0..rounds {
        for (sample, (bytes, points)) in images.iter().enumerate() {
            let encoded = Encoded {
                bytes,
                seek_points: points.as_deref().into(),
            };
            let seed = SampleSeed {
                seed: 1,
                epoch,
                sample: sample as u64,
                occurrence: 0,
            };
            transform
                .apply(&mut decoder, encoded, seed, &output, &mut out)
                .expect("an image that can be decoded");
        }
    }
    let count = images.len() as f64 * rounds as f64;
    let seconds = begun.elapsed().as_secs_f64();
    println!(
        "{count} images, {:.0} us each, {:.0} images/s",
        seconds / count * 1e6,
        count / seconds
    );
}

fn jpegs(directory: &Path) -> Vec<PathBuf> {
    let mut pending = vec![directory.to_owned()];
    let mut found = Vec::new();
    while let Some(path) = pending.pop() {
        for entry in std::fs::read_dir(path).expect("a directory") {
            let path = entry.expect("an entry").path();
            let name = path.to_string_lossy().to_ascii_lowercase();
            if path.is_dir() {
                pending.push(path);
            } else if name.ends_with(".jpg") || name.ends_with(".jpeg") {
                found.push(path);
            }
        }
    }
    found.sort();
    found
}
