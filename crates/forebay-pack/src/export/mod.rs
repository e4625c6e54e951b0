//! Exports a dataset to a directory of images, byte for byte.
//!
//! Each thread reads records, restores their files (`original`) and writes them below the destination (`tree`).
//! Keys come from shards that are not trusted, so they are never used as paths directly: see [`tree`].

mod original;
mod tree;

pub use original::original_image;

use crate::error::{Error, Result};
use crate::observer::{Cancel, Observer};
use crate::report::SkippedRecord;
use forebay_cache::{ReadOptions, open_dataset};
use forebay_formats::escape;
use forebay_image::Format;
use forebay_shard::example::RecordFeatures;
use forebay_shard::{ExampleView, Shard};
use forebay_store::{Durability, Location, for_each_parallel_with};
use std::path::PathBuf;
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use tree::{Tree, WriteOutcome};

/// Options of [`export`]. Start from [`ExportOptions::new`] and change fields.
#[derive(Debug, Clone)]
#[non_exhaustive]
pub struct ExportOptions {
    /// The dataset.
    pub dataset: Location,
    /// The directory for the images; created if necessary.
    pub dst: Location,
    /// Only this split, whose files go directly to the destination. With several splits, each gets a subdirectory.
    pub split: Option<String>,
    /// Number of shards read in parallel; `None`: as the machine and its cgroup allow.
    pub jobs: Option<usize>,
    /// Whether the files are synced to disk at the end.
    pub durability: Durability,
    /// How to read a dataset that is not in a local directory.
    pub read: ReadOptions,
}

impl ExportOptions {
    /// Creates options that export all splits, synced.
    pub fn new(dataset: impl Into<Location>, dst: impl Into<Location>) -> Self {
        Self {
            dataset: dataset.into(),
            dst: dst.into(),
            split: None,
            jobs: None,
            durability: Durability::Synced,
            read: ReadOptions::default(),
        }
    }
}

/// Summary of an export.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct ExportSummary {
    /// The destination directory.
    pub root: PathBuf,
    /// Number of files written.
    pub files: u64,
    /// Bytes of the files written.
    pub bytes: u64,
    /// Number of existing files with the same content.
    pub unchanged: u64,
    /// Intact records that could not become files: their keys are not usable as paths, or other files have these paths.
    pub skipped: u64,
    /// Damaged records, and shards with damaged keys.
    pub damaged: u64,
    /// The first skipped or damaged record, in the order of shards and records.
    pub first_skipped: Option<SkippedRecord>,
}

/// Writes the images of a dataset to files named by their keys.
///
/// A file that exists with another content is never overwritten. A record that cannot become a file (its key is refused, its
/// file exists with another content, it is damaged or not an image) is skipped and reported to the observer; all others
/// are written. After an interruption, another run writes the missing files. Only one process may write to a directory at
/// a time; others are refused. Of the observer, only [`advanced`](Observer::advanced) and
/// [`record_skipped`](Observer::record_skipped) are called.
///
/// # Errors
/// See [`Error`]; [`Error::Export`] if not a single record could become a file.
pub fn export(
    options: &ExportOptions,
    observer: &dyn Observer,
    cancel: &Cancel,
) -> Result<ExportSummary> {
    let root = options.dst.local_path()?;
    let dataset = open_dataset(&options.dataset, &options.read)?;
    let names: Vec<String> = match &options.split {
        Some(split) => vec![split.clone()],
        None => dataset.splits().map(str::to_owned).collect(),
    };
    let mut work: Vec<(Vec<u8>, Shard)> = Vec::new();
    for name in &names {
        let prefix = if names.len() > 1 {
            name.as_bytes().to_vec()
        } else {
            Vec::new()
        };
        work.extend(
            dataset
                .split(name)?
                .shards()
                .iter()
                .map(|shard| (prefix.clone(), shard.clone())),
        );
    }
    let features = &dataset.manifest().record_features;
    let tree = Tree::open(root)?;
    let machine = || std::thread::available_parallelism().map_or(1, |n| n.get());
    let jobs = options.jobs.unwrap_or_else(machine);
    let summary = Mutex::new(ExportSummary {
        root: root.to_path_buf(),
        ..ExportSummary::default()
    });
    let finished = AtomicU64::new(0);
    // When one shard fails, the others stop too.
    let failed = AtomicBool::new(false);
    let stopped = || failed.load(Ordering::Relaxed) || cancel.is_cancelled();
    for_each_parallel_with(
        &work,
        jobs,
        || tree.writer(),
        |writer, (prefix, shard)| {
            if !stopped() {
                let job = (shard, prefix.as_slice(), features);
                if let Err(error) = export_shard(job, writer, &summary, observer, &stopped) {
                    failed.store(true, Ordering::Relaxed);
                    return Err(error);
                }
            }
            finished.fetch_add(u64::from(!stopped()), Ordering::Relaxed);
            Ok(())
        },
    )?;
    if cancel.is_cancelled() {
        return Err(Error::Interrupted {
            finished: finished.into_inner(),
            total: work.len() as u64,
        });
    }
    if options.durability == Durability::Synced {
        tree.sync()?;
    }
    let summary = summary.into_inner().unwrap_or_else(|e| e.into_inner());
    match &summary.first_skipped {
        // Not a single file was exported.
        Some(first) if summary.files + summary.unchanged == 0 => Err(Error::Export {
            shard: first.shard.clone(),
            record: first.record,
            what: first.what.clone(),
        }),
        _ => Ok(summary),
    }
}

impl ExportSummary {
    fn skip(&mut self, skipped: SkippedRecord) {
        if skipped.damaged {
            self.damaged += 1;
        } else {
            self.skipped += 1;
        }
        let first = &mut self.first_skipped;
        // The result does not depend on the order in which threads find skipped records.
        if first.as_ref().is_none_or(|first| skipped < *first) {
            *first = Some(skipped);
        }
    }
}

/// Calls `each` with every record of a shard, or with the error of a damaged record, until it returns false.
fn for_each_record(
    shard: &Shard,
    mut each: impl FnMut(u64, std::result::Result<&[u8], forebay_shard::Error>) -> Result<bool>,
) -> Result<()> {
    use forebay_shard::Error::Corrupt;
    let (mut next, mut alone) = (0, Vec::new());
    while next < shard.len() {
        let mut scan = shard.scan(next..shard.len());
        loop {
            match scan.next_record() {
                Ok(Some(record)) => {
                    next = record.info.index + 1;
                    if !each(record.info.index, Ok(record.bytes))? {
                        return Ok(());
                    }
                }
                Ok(None) => return Ok(()),
                Err(Corrupt(_)) => break,
                Err(error) => return Err(error.into()),
            }
        }
        // A read of several records fails as a whole, so they are read one by one to find the damaged one.
        let mut found = false;
        while next < shard.len() && !found {
            let number = next;
            next += 1;
            let read = match shard.read(number, &mut alone) {
                Ok(()) => Ok(alone.as_slice()),
                Err(error @ Corrupt(_)) => Err(error),
                Err(error) => return Err(error.into()),
            };
            found = read.is_err();
            if !each(number, read)? {
                return Ok(());
            }
        }
    }
    Ok(())
}

fn export_shard(
    (shard, prefix, features): (&Shard, &[u8], &RecordFeatures),
    writer: &mut tree::Writer<'_>,
    summary: &Mutex<ExportSummary>,
    observer: &dyn Observer,
    stopped: &dyn Fn() -> bool,
) -> Result<()> {
    let lock = || summary.lock().unwrap_or_else(|e| e.into_inner());
    let skip = |record: Option<u64>, what: String, damaged: bool| {
        let skipped = SkippedRecord {
            shard: shard.path().to_path_buf(),
            record,
            what,
            damaged,
        };
        observer.record_skipped(&skipped);
        lock().skip(skipped);
    };
    // All keys are read at once: they are stored in pages, in which finding a single key means reading the whole page.
    let mut keys = Vec::new();
    let mut ends = Vec::new();
    let read = shard.for_each_key(|_, key| {
        keys.extend_from_slice(key);
        ends.push(keys.len());
    });
    match read {
        Ok(()) => {}
        Err(error @ forebay_shard::Error::Corrupt(_)) => {
            skip(None, format!("its keys cannot be read: {error}"), true);
            return Ok(());
        }
        Err(error) => return Err(error.into()),
    }
    for_each_record(shard, |number, read| {
        if stopped() {
            return Ok(false);
        }
        let bytes = match read {
            Ok(bytes) => bytes,
            Err(error) => {
                skip(Some(number), error.to_string(), true);
                return Ok(true);
            }
        };
        let at = number as usize;
        let start = at.checked_sub(1).and_then(|at| ends.get(at)).copied();
        let end = ends.get(at).copied().unwrap_or(0);
        let key = keys.get(start.unwrap_or(0)..end).unwrap_or_default();
        let known = (key, shard.label(number), number);
        match export_record(bytes, known, features, prefix, writer)? {
            Ok((WriteOutcome::New, len)) => {
                let mut summary = lock();
                summary.files += 1;
                summary.bytes += len;
                drop(summary);
                observer.advanced(1, len);
            }
            Ok((WriteOutcome::There, len)) => {
                lock().unchanged += 1;
                observer.advanced(1, len);
            }
            Err(what) => skip(Some(number), what, false),
        }
        Ok(true)
    })
}

/// Writes the image of a record, and returns its size. The inner error is the reason why this record cannot become a file.
fn export_record(
    record: &[u8],
    (stored_key, label, number): (&[u8], Option<i64>, u64),
    features: &RecordFeatures,
    prefix: &[u8],
    writer: &mut tree::Writer<'_>,
) -> Result<std::result::Result<(WriteOutcome, u64), String>> {
    let example = match ExampleView::parse(record) {
        Ok(example) => example,
        Err(error) => return Ok(Err(error.to_string())),
    };
    let image = match original_image(&example, features) {
        Ok(Some(image)) => image,
        Ok(None) => return Ok(Err(format!("it has no {}", features.image))),
        Err(what) => return Ok(Err(what)),
    };
    let made_up;
    let key = if stored_key.is_empty() {
        made_up = match make_key(&example, features, label, number) {
            Ok(key) => key,
            Err(error) => return Ok(Err(error.to_string())),
        };
        made_up.as_slice()
    } else {
        stored_key
    };
    match writer.put(prefix, key, &image) {
        Ok(placed) => Ok(Ok((placed, image.len() as u64))),
        Err(tree::Failure::Key(why)) => Ok(Err(format!("its key {:?} {why}", escape(key)))),
        Err(tree::Failure::Error(error)) => Err(error),
    }
}

/// Returns a key for a record without one, as written by other tools: class and file name, if known.
fn make_key(
    example: &ExampleView<'_>,
    features: &RecordFeatures,
    label: Option<i64>,
    number: u64,
) -> std::result::Result<Vec<u8>, forebay_shard::ExampleError> {
    let class = match (
        example.bytes("image/class/synset")?,
        label.or(features.label(*example)?),
    ) {
        (Some(synset), _) if !synset.is_empty() => synset.to_vec(),
        (_, Some(label)) if label >= 0 => format!("label-{label}").into_bytes(),
        _ => b"unlabelled".to_vec(),
    };
    let name = match example.bytes("image/filename")? {
        Some(name) if !name.is_empty() => name.to_vec(),
        _ => {
            let format = example.bytes("image/format")?.and_then(Format::from_name);
            let extension = format.unwrap_or(Format::Jpeg).extension();
            format!("{number:08}.{extension}").into_bytes()
        }
    };
    Ok([class.as_slice(), b"/", &name].concat())
}
