//! Measures the time from opening a large dataset to its first batch.

use std::fs::{self, File};
use std::io::BufWriter;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use clap::Args;
use forebay_cache::ReadOptions;
use forebay_cli::frontend::ColdArgs;
use forebay_image::{TrainTransform, Transform, encode_png};
use forebay_loader::{Loader, Options, Sampling, Weights};
use forebay_shard::manifest::{FILE_NAME, ShardEntry, SplitEntry};
use forebay_shard::{
    Dataset, ExampleBuilder, Manifest, RecordMeta, ShardFormat, ShardWriter, indexed,
};

use forebay_store::{DirLock, Durability, Location, write_file};

use crate::Result;
use crate::cold::{Evictor, Way};
use crate::measure::{Alternative, BenchReport, Delivered, Measurement, side_by_side};
use crate::replay;
use crate::storage::{ReadJob, Recorder};

const SHARDS: u64 = 16;
const CLASSES: u64 = 1000;

/// Changes the sampling options before the batch is taken; `None` takes no batch.
type Change = Option<fn(&mut Sampling)>;

/// Options of [`start`].
#[derive(Debug, Args)]
pub struct StartOptions {
    /// Directory of the generated dataset, which later runs use again
    #[arg(long, value_name = "DIR")]
    scratch: PathBuf,
    /// Records of the dataset
    #[arg(long, value_name = "N", default_value_t = 1_000_000)]
    records: u64,
    #[command(flatten)]
    cold: ColdArgs,
}

/// Writes a dataset of tiny images, unless the directory has one of that size, and measures opening it and taking the first
/// batch of 256.
///
/// # Errors
/// The directory cannot be written.
pub fn start(options: &StartOptions, runs: usize) -> Result<BenchReport> {
    let (directory, records) = (options.scratch.as_path(), options.records);
    let evictor = Evictor::buffered(options.cold.cold)?;
    let present = Manifest::load(directory)
        .is_ok_and(|manifest| manifest.splits.iter().any(|split| split.records == records));
    if !present {
        fs::create_dir_all(directory)?;
        let _lock = DirLock::acquire(directory)?;
        synthesise(directory, records)?;
    }
    let changes: [(&str, Change); 4] = [
        ("open the dataset and its split", None),
        ("open, and take the first batch of 256", Some(|_| ())),
        (
            "the same, of 100 classes",
            Some(|sampling| sampling.labels = (0..100).collect()),
        ),
        (
            "the same, drawn from balanced classes",
            Some(|sampling| sampling.weights = Weights::Balanced),
        ),
    ];
    let alternatives = changes.map(|(name, change)| {
        let reads = recorded(directory, change)?;
        let run = move || {
            let sample = Measurement::time(|| {
                begin(&Dataset::open(directory)?, change)?;
                Ok(1.0)
            })?;
            // Reported in milliseconds: the rate is an amount of milliseconds over one second.
            Ok(Measurement {
                amount: sample.seconds * 1e3,
                seconds: 1.0,
            })
        };
        let (files, bytes) = (reads.footprint(), reads.bytes());
        let one = Alternative::here(name, "ms", run);
        Ok(one.reading(files, evictor, move |_| Delivered::local(bytes)))
    });
    let caches = match evictor.way() {
        Way::Off => ", caches as they are",
        _ => "",
    };
    side_by_side(
        format!("Starting on {records} records in {SHARDS} shards{caches}"),
        runs,
        alternatives.into_iter().collect::<Result<_>>()?,
    )
}

/// Opens the split of a dataset and, if there is a change of its sampling options, takes a batch.
fn begin(dataset: &Dataset, change: Change) -> Result<()> {
    let split = dataset.split("train")?;
    if let Some(change) = change {
        let transform = Transform::Train(TrainTransform::new(224));
        let mut options = Options::new(256, transform);
        change(&mut options.sampling);
        Loader::new(split, options)?.next_batch()?;
    }
    Ok(())
}

/// Returns the reads of opening the dataset and of [`begin`]. How far a loader reads ahead varies slightly from run to run.
fn recorded(directory: &Path, change: Change) -> Result<ReadJob> {
    let (root, storage) = replay::storage(&Location::from(directory), &ReadOptions::default())?;
    let recorder = Recorder::new(storage);
    begin(&replay::open(&root, Arc::new(recorder.clone()))?, change)?;
    Ok(recorder.recorded()?.job.without_repeats())
}

/// Writes a dataset of tiny images: each record has an 8 x 8 image in a shade that depends on its number.
fn synthesise(directory: &Path, records: u64) -> Result<()> {
    let mut shards = Vec::new();
    for shard in 0..SHARDS {
        let name = format!("train-{shard:05}-of-{SHARDS:05}.fbs");
        let path: PathBuf = directory.join(&name);
        let file = BufWriter::with_capacity(1 << 20, File::create(&path)?);
        let mut writer: ShardWriter<_> = indexed::WriterBuilder::new().from_writer(file, &path)?;
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
    let (path, json) = (directory.join(FILE_NAME), manifest.to_json()?);
    Ok(write_file(&path, json.as_ref(), Durability::Cached)?)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cold::Cold;

    #[test]
    fn each_start_reports_its_cache_state() {
        let dir = tempfile::tempdir().unwrap();
        let options = StartOptions {
            scratch: dir.path().to_owned(),
            records: 3000,
            cold: ColdArgs { cold: Cold::Off },
        };
        let report = start(&options, 1).unwrap();
        assert_eq!(report.rows.len(), 4);
        assert!(report.title.contains("caches as they are"));
        for row in &report.rows {
            let cache = row.cache.as_ref().expect("caches matter");
            // Other tests may drop the caches of this machine.
            let is_share = cache
                .cold_share
                .is_none_or(|share| (0.0..=1.0).contains(&share));
            assert!(is_share && !cache.proof.is_empty(), "{row:?}");
            assert!(row.median > 0.0, "{row:?}");
        }
    }
}
