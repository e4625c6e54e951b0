//! Measures a store: throughput of uploads and downloads, and latency of small reads.

use std::cell::{Cell, RefCell};
use std::io::Write;
use std::num::NonZeroUsize;
use std::path::{Path, PathBuf};
use std::sync::Mutex;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Instant;

use clap::Args;
use forebay_cli::frontend::StoreArgs;
use forebay_cli::frontend::quantity::parse_size;
use forebay_store::{Cancel, Location, Store, Transfer, for_each_parallel_with};

use crate::cold::{Evictor, Footprint};
use crate::measure::{Alternative, BenchReport, Delivered, Measurement, side_by_side};
use crate::random::Random;
use crate::{Error, Result};

const MB: f64 = 1e6;

/// Options of [`store`].
#[derive(Debug, Args)]
pub struct StoreBenchOptions {
    /// A prefix of a bucket, or a directory, that can be written to
    pub(crate) location: PathBuf,
    /// Bytes of the object that is sent and fetched
    #[arg(long, value_name = "SIZE", value_parser = parse_size, default_value = "256MiB")]
    size: u64,
    /// Number of concurrent requests
    #[arg(short, long, value_name = "N", default_value = "8")]
    jobs: NonZeroUsize,
    /// Small reads in each run
    #[arg(long, value_name = "N", default_value_t = 200)]
    reads: u64,
    /// Bytes of a small read
    #[arg(long, value_name = "SIZE", value_parser = parse_size, default_value = "64KiB")]
    read_size: u64,
    /// Directory of the local file [default: the system's temporary directory]
    #[arg(long, value_name = "DIR")]
    scratch: Option<PathBuf>,
    #[command(flatten)]
    store: StoreArgs,
    /// Cancels the measurement, which then removes its objects
    #[arg(skip)]
    pub(crate) cancel: Cancel,
}

/// Uploads and downloads an object of random bytes, with checksums compared, and reads small ranges of it: one at a time for
/// their latency, and `jobs` at a time for the throughput. Removes the object at the end.
///
/// # Errors
/// The location cannot be written or read.
pub fn store(location: &Location, options: &StoreBenchOptions, runs: usize) -> Result<BenchReport> {
    if options.read_size == 0 || options.read_size > options.size {
        return Err("a small read has to fit into the object".into());
    }
    let store = Store::open(location, &options.store.options())?;
    let scratch = Scratch::new(&store, options)?;
    let transfer = || Transfer {
        parallel: options.jobs.get(),
        ..Transfer::new(&options.cancel)
    };
    let upload = || {
        Measurement::time(|| {
            let transfer = transfer();
            let sent = store.upload_file(&scratch.key, &scratch.file("source"), &transfer)?;
            Ok(sent.len as f64 / MB)
        })
    };
    // Bytes that the last run fetched.
    let fetched = &Cell::new(0);
    let counted = |work: &dyn Fn() -> Result<f64>| {
        let before = store.stats().fetched_bytes;
        let sample = Measurement::time(work)?;
        fetched.set(store.stats().fetched_bytes.saturating_sub(before));
        Ok(sample)
    };
    let download = || {
        counted(&|| {
            let transfer = transfer();
            let got = store.download_file(&scratch.key, &scratch.file("copy"), &transfer)?;
            Ok(got.len as f64 / MB)
        })
    };
    let offsets = Offsets::new(options);
    let times = RefCell::new(Vec::new());
    let one_by_one = || {
        let mut times = times.borrow_mut();
        *times = read_alone(&store, &scratch.key, &offsets, options)?;
        Ok(as_is(quantile(&times, 0.5)))
    };
    let slowest = || Ok(as_is(quantile(&times.borrow(), 0.99)));
    let together = || {
        counted(&|| {
            read_together(&store, &scratch.key, &offsets, options)?;
            Ok(options.reads.max(1) as f64)
        })
    };
    let footprint = || match location.local_path() {
        Ok(path) => Footprint::files([path.join(&scratch.key)]),
        Err(_) => Footprint::Store,
    };
    let delivered = |bytes| {
        move |_: &Measurement| Delivered {
            bytes,
            fetched: Some(fetched.get()),
        }
    };
    let as_they_are = Evictor::default();
    let kib = options.read_size as f64 / 1024.0;
    let parallel = options.jobs;
    let mut report = side_by_side(
        format!("Objects at {location}"),
        runs,
        vec![
            Alternative::here(
                format!("upload, {parallel} parts at a time"),
                "MB/s",
                upload,
            ),
            Alternative::here(
                format!("download, {parallel} parts at a time"),
                "MB/s",
                download,
            )
            .reading(footprint(), as_they_are, delivered(options.size)),
            Alternative::here(format!("read of {kib:.0} KiB, p50"), "ms", one_by_one),
            Alternative::here(format!("read of {kib:.0} KiB, p99"), "ms", slowest),
            Alternative::here(
                format!("reads of {kib:.0} KiB, {parallel} at a time"),
                "reads/s",
                together,
            )
            .reading(
                footprint(),
                as_they_are,
                delivered(options.reads.max(1) * options.read_size),
            ),
        ],
    )?;
    // In rows of times, the CPU seconds per unit would be CPU seconds per millisecond, which mean nothing.
    for row in report.rows.iter_mut().filter(|row| row.unit == "ms") {
        row.cpu_seconds_each = None;
    }
    report.notes.push(format!(
        "an object of {:.1} MB, {} reads a run; uploads and downloads compare its CRC-32C, downloads are fsynced",
        options.size as f64 / MB,
        options.reads.max(1),
    ));
    Ok(report)
}

/// Objects and files of the measurement, removed on drop.
struct Scratch<'a> {
    store: &'a Store,
    key: String,
    dir: PathBuf,
}

impl<'a> Scratch<'a> {
    fn new(store: &'a Store, options: &StoreBenchOptions) -> Result<Self> {
        let name = scratch_name();
        let base = options.scratch.clone().unwrap_or_else(std::env::temp_dir);
        let dir = base.join(&name);
        std::fs::create_dir_all(&dir)
            .map_err(|error| format!("cannot create {}: {error}", dir.display()))?;
        let scratch = Self {
            store,
            key: name,
            dir,
        };
        write_random(&scratch.file("source"), options)?;
        Ok(scratch)
    }

    fn file(&self, name: &str) -> PathBuf {
        self.dir.join(name)
    }
}

/// Returns a unique name for objects of a measurement: several measurements may use the same location.
pub(crate) fn scratch_name() -> String {
    static NUMBER: AtomicU64 = AtomicU64::new(0);
    let nanos = std::time::SystemTime::now()
        .duration_since(std::time::UNIX_EPOCH)
        .map_or(0, |since| since.as_nanos());
    let number = NUMBER.fetch_add(1, Ordering::Relaxed);
    format!("forebay-bench-{}-{number}-{nanos:x}", std::process::id())
}

impl Drop for Scratch<'_> {
    fn drop(&mut self) {
        // The error of the measurement is reported, not that of the removal; a leftover file has a descriptive name.
        let _ = self.store.delete(&self.key);
        let _ = std::fs::remove_dir_all(&self.dir);
    }
}

/// Writes incompressible bytes.
fn write_random(path: &Path, options: &StoreBenchOptions) -> Result<()> {
    let fail = |error: std::io::Error| -> Error {
        format!("cannot write {}: {error}", path.display()).into()
    };
    let mut file = std::fs::File::create(path).map_err(fail)?;
    let mut random = Random::new(0);
    let mut piece = vec![0; 1 << 20];
    let mut left = options.size;
    while left > 0 {
        refuse_stop(&options.cancel)?;
        random.fill(&mut piece);
        let step = left.min(piece.len() as u64);
        file.write_all(&piece[..step as usize]).map_err(fail)?;
        left -= step;
    }
    file.sync_all().map_err(fail)
}

/// Offsets of small reads, spread over the whole object, the same in each measurement.
struct Offsets {
    random: Mutex<Random>,
    span: u64,
}

impl Offsets {
    fn new(options: &StoreBenchOptions) -> Self {
        Self {
            random: Mutex::new(Random::new(1)),
            span: options.size - options.read_size + 1,
        }
    }

    fn next(&self) -> u64 {
        let mut random = self.random.lock().unwrap_or_else(|e| e.into_inner());
        random.below(self.span)
    }
}

/// Reads one range after the other. Returns the sorted times in milliseconds.
fn read_alone(
    store: &Store,
    key: &str,
    offsets: &Offsets,
    options: &StoreBenchOptions,
) -> Result<Vec<f64>> {
    let mut times = Vec::new();
    let mut buffer = vec![0; options.read_size as usize];
    for _ in 0..options.reads.max(1) {
        refuse_stop(&options.cancel)?;
        let begin = Instant::now();
        store.read_at(key, offsets.next(), &mut buffer)?;
        times.push(begin.elapsed().as_secs_f64() * 1e3);
    }
    times.sort_by(f64::total_cmp);
    Ok(times)
}

fn read_together(
    store: &Store,
    key: &str,
    offsets: &Offsets,
    options: &StoreBenchOptions,
) -> Result<()> {
    let buffer = || vec![0; options.read_size as usize];
    for_each_parallel_with(
        0..options.reads.max(1),
        options.jobs.get(),
        buffer,
        |buffer, _| {
            refuse_stop(&options.cancel)?;
            Ok(store.read_at(key, offsets.next(), buffer)?)
        },
    )
}

fn refuse_stop(cancel: &Cancel) -> Result<()> {
    match cancel.is_cancelled() {
        true => Err("it was stopped".into()),
        false => Ok(()),
    }
}

/// Returns a measurement whose rate is `value`.
fn as_is(value: f64) -> Measurement {
    Measurement {
        amount: value,
        seconds: 1.0,
    }
}

/// Returns the quantile `part` of the sorted values.
fn quantile(sorted: &[f64], part: f64) -> f64 {
    let last = sorted.len().saturating_sub(1);
    let at = (last as f64 * part).ceil() as usize;
    sorted.get(at.min(last)).copied().unwrap_or(0.0)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn options(bytes: u64) -> StoreBenchOptions {
        StoreBenchOptions {
            location: PathBuf::new(),
            size: bytes,
            jobs: NonZeroUsize::new(3).unwrap(),
            reads: 5,
            read_size: 1000,
            scratch: None,
            store: StoreArgs::default(),
            cancel: Cancel::new(),
        }
    }

    #[test]
    fn a_location_is_measured_and_left_unchanged() {
        let dir = tempfile::tempdir().unwrap();
        let (place, scratch) = (dir.path().join("place"), dir.path().join("scratch"));
        std::fs::create_dir_all(&place).unwrap();
        let location = Location::from(place.as_path());
        let mut options = options(100_001);
        options.scratch = Some(scratch.clone());
        let report = store(&location, &options, 1).unwrap();
        let units: Vec<_> = report.rows.iter().map(|row| row.unit).collect();
        assert_eq!(units, ["MB/s", "MB/s", "ms", "ms", "reads/s"]);
        assert!(report.rows.iter().all(|row| row.median > 0.0), "{report:?}");
        assert!(report.rows[3].median >= report.rows[2].median);
        options.cancel.cancel();
        assert!(store(&location, &options, 1).is_err());
        for dir in [place, scratch] {
            assert_eq!(std::fs::read_dir(dir).unwrap().count(), 0, "nothing stays");
        }
    }

    #[test]
    fn quantiles() {
        let values: Vec<f64> = (1..=100).map(f64::from).collect();
        assert_eq!(quantile(&values, 0.99), 100.0);
        assert_eq!(quantile(&values, 0.5), 51.0);
        assert_eq!(quantile(&[7.0], 0.99), 7.0);
        assert_eq!(quantile(&[], 0.5), 0.0);
        assert!(store(&Location::from(Path::new("x")), &options(10), 1).is_err());
    }
}
