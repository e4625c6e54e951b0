//! Gives advice for a dataset on this machine, from its sizes, formats and counts, and from short measurements of storage and
//! decoding. Each piece of advice includes its arithmetic.

mod text;

use std::fs;
use std::path::{Path, PathBuf};
use std::time::Duration;

use forebay_cache::ReadOptions;
use forebay_image::Format;
use forebay_store::Location;
use forebay_synthetic::is_synthetic;
use serde::Serialize;

use super::cost::EpochCost;
use super::explain::{ExplainOptions, Source};
use super::model::{Cores, StageTimes};
use super::remedy::{Price, Situation};
use super::sample::{ImageSample, StoringCost};
use crate::cold::{Cold, Evictor, Footprint, Proof, Watch};
use crate::random::Random;
use crate::storage::{Medium, ReadJob, RunOptions, run};
use crate::{Error, Result};

/// Options of [`advise`].
#[derive(Debug, Clone)]
pub struct AdviseOptions {
    /// Split, the first one by default.
    pub split: Option<String>,
    /// Number of GPUs of all machines.
    pub gpus: u64,
    /// Images per second of one GPU; `None` if it is not known.
    pub gpu_images_per_s: Option<f64>,
    /// How the page cache is emptied before storage is measured.
    pub cold: Cold,
    /// Options for reading from stores.
    pub read: ReadOptions,
    /// Duration of a measurement.
    pub run_time: Duration,
}

/// A piece of advice.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Advice {
    /// Its subject: `packing`, `storage`, `cores`, `images`, `copy`, `memory`, `shards`, `cost`.
    pub topic: &'static str,
    /// The advice, with its arithmetic.
    pub text: String,
}

/// The advice, and the figures that it is based on.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct AdviceReport {
    /// Number of images.
    pub images: u64,
    /// Mean bytes read per image.
    pub image_bytes: f64,
    /// Images per second that the training takes; `None` if it is not known.
    pub demand: Option<f64>,
    /// Images per second that the storage gives.
    pub storage_images_per_s: f64,
    /// The state of the caches during the measurement of the storage.
    pub cache: String,
    /// How that state was measured.
    pub proof: String,
    /// Images per second that a core decodes.
    pub core_images_per_s: f64,
    /// Cores of this machine.
    pub cores: u64,
    /// The advice.
    pub advice: Vec<Advice>,
    /// The estimated cost of an epoch; `None` for local files.
    pub cost: Option<EpochCost>,
    /// Remedies with their gains on this machine, the largest first.
    pub prices: Vec<Price>,
}

/// Default size of the shards of `forebay pack`, in bytes.
const SHARD_BYTES: f64 = (256u64 << 20) as f64;
/// Shards per rank, so that all ranks can read at once and shards can be shuffled.
const SHARDS_PER_GPU: u64 = 8;
/// Concurrent reads of single files, as many as a loader with this number of threads has.
const FILES_DEPTH: usize = 16;
/// Maximum number of files that a run reads.
const MOST_FILES: usize = 4096;
/// Rounds over the images of a sample.
const SAMPLE_ROUNDS: usize = 3;
/// A resource with at least this factor of the demand is sufficient.
const ENOUGH: f64 = 1.2;

/// Results of the short measurements.
struct Found {
    images: u64,
    bytes: f64,
    is_packed: bool,
    is_local: bool,
    situation: Situation,
    proof: Proof,
    cost: Option<EpochCost>,
}

/// Gives advice for a dataset, or for a directory of images.
///
/// # Errors
/// The source cannot be read, or its images cannot be decoded.
pub fn advise(place: &Location, options: &AdviseOptions) -> Result<AdviceReport> {
    let is_directory_of_images = place
        .local_path()
        .is_ok_and(|path| path.is_dir() && !path.join("forebay.json").is_file());
    let found = match is_directory_of_images && !is_synthetic(&place.to_string()) {
        true => files(place, options)?,
        false => dataset(place, options)?,
    };
    Ok(found.report(options))
}

fn dataset(place: &Location, options: &AdviseOptions) -> Result<Found> {
    let quick = ExplainOptions {
        split: options.split.clone(),
        batch_size: 64,
        threads: 0,
        consumer: None,
        run_time: options.run_time,
        runs: 1,
        cold: options.cold,
        read: options.read.clone(),
        command: String::new(),
    };
    let source = Source::new(place, &quick)?;
    let ways = source.sample()?.measure(SAMPLE_ROUNDS)?;
    let (rates, proof) = source.storage_rates(3)?;
    let images = source.records();
    let image_bytes = source.image_bytes;
    Ok(Found {
        cost: source.cost()?,
        images,
        bytes: images as f64 * image_bytes,
        is_packed: true,
        is_local: source.recorded.is_local,
        situation: situation(&rates, image_bytes, source.recorded.is_local, ways),
        proof,
    })
}

fn files(place: &Location, options: &AdviseOptions) -> Result<Found> {
    let root = place.local_path()?;
    let mut files = image_files(root)?;
    let bytes: u64 = files.iter().map(|(_, len)| len).sum();
    let count = files.len() as u64;
    Random::new(1).shuffle(&mut files);
    let images = files.iter().take(64).map(|(path, _)| fs::read(path));
    let images = images.collect::<std::io::Result<Vec<_>>>()?;
    let sample =
        ImageSample::of(images).map_err(|error| format!("\"{}\": {error}", root.display()))?;
    let ways = sample.measure(SAMPLE_ROUNDS)?;
    // Other files than those that were decoded, which are in the page cache.
    let rest = files.split_off(files.len().min(64).min(files.len() / 2));
    let job = ReadJob::whole_files(rest.into_iter().take(MOST_FILES))?;
    let evictor = Evictor::buffered(options.cold)?;
    let footprint = job.footprint();
    evictor.evict(&footprint)?;
    let watch = Watch::begin(&footprint, evictor.way());
    let mut how = RunOptions::at_depth(FILES_DEPTH);
    how.limit = Some(options.run_time.saturating_mul(4));
    let report = run(&job, &Medium::Local { direct: false }, &how)?;
    let proof = watch.end(report.bytes, None);
    let mean = bytes as f64 / count as f64;
    let rate = report.bytes as f64 / mean / report.seconds.max(1e-9);
    Ok(Found {
        cost: None,
        images: count,
        bytes: bytes as f64,
        is_packed: false,
        is_local: true,
        situation: situation(&[rate], mean, true, ways),
        proof,
    })
}

/// Returns the regular files below a directory whose names have the extension of an image, with their lengths, sorted.
fn image_files(root: &Path) -> Result<Vec<(PathBuf, u64)>> {
    let Footprint::Files(all) = Footprint::tree(root)? else {
        return Ok(Vec::new());
    };
    let mut found = Vec::new();
    for file in all {
        let extension = file.path.extension().unwrap_or_default();
        if Format::from_extension(extension.as_encoded_bytes()).is_some() {
            let len = file.path.metadata()?.len();
            if len > 0 {
                found.push((file.path, len));
            }
        }
    }
    match found.is_empty() {
        true => Err(Error::from(format!(
            "\"{}\": neither a dataset (there is no forebay.json) nor a directory with images; name one of them",
            root.display()
        ))),
        false => Ok(found),
    }
}

fn situation(rates: &[f64], image_bytes: f64, is_local: bool, ways: Vec<StoringCost>) -> Situation {
    let cores = std::thread::available_parallelism().map_or(1, usize::from) as f64;
    let cores = Cores {
        cores,
        threads: cores,
    };
    let mut rounds = Vec::new();
    for rate in rates {
        for (seconds, decode) in ways.iter().take(1).flat_map(|stored| {
            let both = stored.seconds.iter().zip(&stored.decode_seconds);
            both.map(|(&all, &decode)| (all, decode))
                .collect::<Vec<_>>()
        }) {
            rounds.push(StageTimes {
                storage_s: 1.0 / rate.max(f64::MIN_POSITIVE),
                decode_cpu_s: decode,
                transform_cpu_s: seconds - decode,
                ..StageTimes::default()
            });
        }
    }
    let images_per_s: Vec<f64> = rounds
        .iter()
        .map(|times| times.images_per_s(cores))
        .collect();
    Situation {
        memory_s: vec![0.0; rounds.len()],
        cores,
        image_bytes,
        is_remote: !is_local,
        ways,
        rates: images_per_s,
        rounds,
    }
}

#[cfg(test)]
mod tests;
