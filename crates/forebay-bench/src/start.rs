//! From nothing to the first batch of a large dataset.

use std::fs::{self, File};
use std::io::BufWriter;
use std::path::{Path, PathBuf};

use forebay_image::{TrainTransform, Transform, encode_png};
use forebay_loader::{Loader, Options, Sampling, Weights};
use forebay_shard::manifest::{FILE_NAME, ShardEntry, SplitEntry};
use forebay_shard::{
    Dataset, ExampleBuilder, Manifest, RecordMeta, ShardFormat, ShardWriter, indexed,
};

use crate::Result;
use crate::measure::{Alternative, BenchReport, Measurement, side_by_side};

const SHARDS: u64 = 16;
const CLASSES: u64 = 1000;

/// Writes a dataset of `records` tiny images into `directory`, unless one of that size is
/// there, and times opening it and taking the first batch of 256.
///
/// # Errors
/// A directory that cannot be written.
pub fn start(directory: &Path, records: u64, runs: usize) -> Result<BenchReport> {
    let present = Manifest::load(directory)
        .is_ok_and(|manifest| manifest.splits.iter().any(|split| split.records == records));
    if !present {
        synthesise(directory, records)?;
    }
    let once = |work: &dyn Fn() -> Result<()>| {
        let sample = Measurement::time(|| work().map(|()| 1.0))?;
        // Reported as milliseconds: an amount over one second.
        Ok(Measurement {
            amount: sample.seconds * 1e3,
            seconds: 1.0,
        })
    };
    let open = || {
        once(&|| {
            Dataset::open(directory)?.split("train")?;
            Ok(())
        })
    };
    let first = |change: fn(&mut Sampling)| {
        move || {
            once(&|| {
                let split = Dataset::open(directory)?.split("train")?;
                let transform = Transform::Train(TrainTransform::new(224));
                let mut options = Options::new(256, transform);
                change(&mut options.sampling);
                Loader::new(split, options)?.next_batch()?;
                Ok(())
            })
        }
    };
    side_by_side(
        format!("Starting on {records} records in {SHARDS} shards, warm page cache"),
        runs,
        vec![
            Alternative::here("open the dataset and its split", "ms", open),
            Alternative::here("open, and take the first batch of 256", "ms", first(|_| ())),
            Alternative::here(
                "the same, of 100 classes",
                "ms",
                first(|sampling| sampling.labels = (0..100).collect()),
            ),
            Alternative::here(
                "the same, drawn from balanced classes",
                "ms",
                first(|sampling| sampling.weights = Weights::Balanced),
            ),
        ],
    )
}

/// A dataset of tiny images: an 8 x 8 picture in every record, which changes with the record.
fn synthesise(directory: &Path, records: u64) -> Result<()> {
    fs::create_dir_all(directory)?;
    let mut shards = Vec::new();
    for shard in 0..SHARDS {
        let name = format!("train-{shard:05}-of-{SHARDS:05}.fbs");
        let path: PathBuf = directory.join(&name);
        let file = BufWriter::with_capacity(1 << 20, File::create(&path)?);
        let mut writer: ShardWriter<_> = indexed::WriterBuilder::new()
            .from_writer(file, &path)?
            .into();
        let mut example = Vec::new();
        for record in records * shard / SHARDS..records * (shard + 1) / SHARDS {
            let shade = (record % 251) as u8;
            let png = encode_png(&[shade; 8 * 8 * 3], 8, 8);
            let key = format!("n{:08}/{record}.png", record % CLASSES);
            let label = (record % CLASSES) as i64 + 1;
            let mut builder = ExampleBuilder::new();
            builder.add_bytes("image/encoded", &png);
            builder.add_int64("image/class/label", label);
            example.clear();
            builder.encode_into(&mut example);
            writer.append(&example, &RecordMeta::new(label, key.as_bytes()))?;
        }
        let (file, summary) = writer.finish()?;
        drop(file.into_inner()?);
        shards.push(ShardEntry {
            name,
            records: summary.records,
            bytes: summary.bytes,
            crc32c: summary.crc32c,
            blake3: None,
        });
    }
    let manifest = Manifest::new(
        ShardFormat::Indexed,
        1,
        vec![SplitEntry::new("train", shards)],
    );
    fs::write(directory.join(FILE_NAME), manifest.to_json()?)?;
    Ok(())
}
