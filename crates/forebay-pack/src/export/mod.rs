//! The way back: a dataset becomes a directory of images again, byte for byte.
//!
//! Keys come from shards that anybody may have written, so they are never trusted as paths: see [`tree`].

mod tree;

use crate::error::{Error, Result};
use crate::observer::{Cancel, Observer};
use crate::original::original_image;
use crate::report::SkippedRecord;
use forebay_cache::{ReadOptions, open_dataset};
use forebay_formats::escape;
use forebay_image::Format;
use forebay_shard::example::RecordFeatures;
use forebay_shard::parallel::for_each_parallel;
use forebay_shard::{ExampleView, Shard};
use forebay_store::{Durability, Location};
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
    /// The directory that the images go to; made if it is not there.
    pub dst: Location,
    /// Only this split. Its files go directly to the destination; those of several splits go to a directory each.
    pub split: Option<String>,
    /// Shards read at the same time; none: what the machine and its cgroup allow.
    pub jobs: Option<usize>,
    /// Whether the files are forced to disk at the end.
    pub durability: Durability,
    /// How a dataset that is in no local directory is read.
    pub read: ReadOptions,
}

impl ExportOptions {
    /// All splits, synced.
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
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct ExportSummary {
    /// The directory.
    pub root: PathBuf,
    /// Files written.
    pub files: u64,
    /// Their bytes.
    pub bytes: u64,
    /// Files that were there already with the same content.
    pub unchanged: u64,
    /// Records that could not become files and are intact: their keys are no paths here, or other files have them.
    pub skipped: u64,
    /// Records that are damaged, and shards whose keys are.
    pub damaged: u64,
    /// The first of both, as shards and records come.
    pub first_skipped: Option<SkippedRecord>,
}

/// Writes the images of a dataset to files named by their keys.
///
/// A file that is there with other content is never overwritten. A record that cannot become a file (its key is refused, its
/// file is there with other content, it is damaged or no image) is skipped and told to the observer; the others are
/// written. Run again after an interruption it writes what is missing. One process writes a directory at a time: another
/// is refused. Of the observer
/// [`advanced`](Observer::advanced) and [`record_skipped`](Observer::record_skipped) are called.
///
/// # Errors
/// See [`Error`]; [`Error::Export`] if not one record could become a file.
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
    let counts = Counts::default();
    let finished = AtomicU64::new(0);
    // A shard that fails ends the others in their middle.
    let failed = AtomicBool::new(false);
    let stopped = || failed.load(Ordering::Relaxed) || cancel.is_cancelled();
    for_each_parallel(
        &work,
        jobs,
        || tree.writer(),
        |writer, (prefix, shard)| {
            if !stopped() {
                let job = (shard, prefix.as_slice(), features);
                if let Err(error) = export_shard(job, writer, &counts, observer, &stopped) {
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
    let summary = ExportSummary {
        root: root.to_path_buf(),
        files: counts.files.into_inner(),
        bytes: counts.bytes.into_inner(),
        unchanged: counts.unchanged.into_inner(),
        skipped: counts.skipped.into_inner(),
        damaged: counts.damaged.into_inner(),
        first_skipped: counts.first.into_inner().unwrap_or_else(|e| e.into_inner()),
    };
    match &summary.first_skipped {
        // Nothing of it is here: that is no export.
        Some(first) if summary.files + summary.unchanged == 0 => Err(Error::Export {
            shard: first.shard.clone(),
            record: first.record,
            what: first.what.clone(),
        }),
        _ => Ok(summary),
    }
}

#[derive(Debug, Default)]
struct Counts {
    files: AtomicU64,
    bytes: AtomicU64,
    unchanged: AtomicU64,
    skipped: AtomicU64,
    damaged: AtomicU64,
    first: Mutex<Option<SkippedRecord>>,
}

impl Counts {
    fn skip(&self, skipped: SkippedRecord, observer: &dyn Observer) {
        observer.record_skipped(&skipped);
        let count = if skipped.damaged {
            &self.damaged
        } else {
            &self.skipped
        };
        count.fetch_add(1, Ordering::Relaxed);
        let mut first = self.first.lock().unwrap_or_else(|e| e.into_inner());
        // The same one whatever the order in which threads find them.
        if first.as_ref().is_none_or(|first| skipped < *first) {
            *first = Some(skipped);
        }
    }
}

/// Calls `each` with every record of a shard, or with the damage of one that cannot be read, until it gives false.
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
        // A run of records fails as one: read alone they show which one it is.
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
    counts: &Counts,
    observer: &dyn Observer,
    stopped: &dyn Fn() -> bool,
) -> Result<()> {
    let skip = |record: Option<u64>, what: String, damaged: bool| {
        let skipped = SkippedRecord {
            shard: shard.path().to_path_buf(),
            record,
            what,
            damaged,
        };
        counts.skip(skipped, observer);
    };
    // All keys at once: they are stored in pages, and a page is cheap to walk but not to find one key in.
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
                counts.files.fetch_add(1, Ordering::Relaxed);
                counts.bytes.fetch_add(len, Ordering::Relaxed);
                observer.advanced(1, len);
            }
            Ok((WriteOutcome::There, len)) => {
                counts.unchanged.fetch_add(1, Ordering::Relaxed);
                observer.advanced(1, len);
            }
            Err(what) => skip(Some(number), what, false),
        }
        Ok(true)
    })
}

/// Writes the image of a record, and gives its bytes; the inner error is why this record cannot become a file.
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

/// A key for a record without one, as those that other tools wrote: class and file name where they are known.
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
