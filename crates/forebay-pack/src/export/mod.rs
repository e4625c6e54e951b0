//! The way back: a data set becomes a directory of images again, byte for byte.
//!
//! Keys come from shards that anybody may have written, so they are never trusted as paths: see [`tree`].

mod tree;

use crate::error::{Error, Result};
use crate::observer::{Cancel, Observer};
use crate::original::original_image;
use crate::report::escape;
use forebay_shard::{ExampleView, Shard};
use forebay_store::{Durability, Location, ReadOptions, open_dataset};
use std::path::PathBuf;
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use tree::{Placed, Tree};

/// What [`export`] can be told. Start from [`ExportOptions::new`] and change fields.
#[derive(Debug, Clone)]
#[non_exhaustive]
pub struct ExportOptions {
    /// The data set.
    pub dataset: Location,
    /// The directory that the images go to; made if it is not there.
    pub dst: Location,
    /// Only this split. Its files go directly to the destination; those of several splits go to a directory each.
    pub split: Option<String>,
    /// Shards read at the same time; none: what the machine and its cgroup allow.
    pub jobs: Option<usize>,
    /// Whether the files are forced to disk at the end.
    pub durability: Durability,
    /// How a data set that is in no local directory is read.
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

/// What an export did.
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
}

/// Writes the images of a data set to files named by their keys.
///
/// A file that is there with other content is never overwritten: the export stops with an error that names it. So it does at
/// a record that is damaged or no image. Run again after an interruption it writes what is missing. Of the
/// observer only [`advanced`](Observer::advanced) is told.
///
/// # Errors
/// See [`Error`]; [`Error::Export`] for a record that cannot become a file.
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
    let tree = Tree::open(root)?;
    let machine = || std::thread::available_parallelism().map_or(1, |n| n.get());
    let jobs = options
        .jobs
        .unwrap_or_else(machine)
        .clamp(1, work.len().max(1));
    let (next, stop) = (AtomicUsize::new(0), AtomicBool::new(false));
    let counts = Counts::default();
    let failure: Mutex<Option<Error>> = Mutex::new(None);
    let stopped = || stop.load(Ordering::Relaxed) || cancel.is_cancelled();
    std::thread::scope(|scope| {
        for worker in 0..jobs {
            let (tree, work, next, counts, stopped, stop, failure) =
                (&tree, &work, &next, &counts, &stopped, &stop, &failure);
            scope.spawn(move || {
                let result = tree.writer(worker).and_then(|mut writer| {
                    while let Some((prefix, shard)) = work.get(next.fetch_add(1, Ordering::Relaxed))
                    {
                        export_shard(shard, prefix, &mut writer, counts, observer, stopped)?;
                    }
                    Ok(())
                });
                if let Err(error) = result {
                    stop.store(true, Ordering::Relaxed);
                    failure
                        .lock()
                        .unwrap_or_else(|e| e.into_inner())
                        .get_or_insert(error);
                }
            });
        }
    });
    if let Some(error) = failure.into_inner().unwrap_or_else(|e| e.into_inner()) {
        return Err(error);
    }
    if cancel.is_cancelled() {
        let shards = next.into_inner().min(work.len()) as u64;
        return Err(Error::Interrupted {
            finished: shards.saturating_sub(jobs as u64),
            total: work.len() as u64,
        });
    }
    if options.durability == Durability::Synced {
        tree.sync()?;
    }
    Ok(ExportSummary {
        root: root.to_path_buf(),
        files: counts.files.into_inner(),
        bytes: counts.bytes.into_inner(),
        unchanged: counts.unchanged.into_inner(),
    })
}

#[derive(Debug, Default)]
struct Counts {
    files: AtomicU64,
    bytes: AtomicU64,
    unchanged: AtomicU64,
}

fn export_shard(
    shard: &Shard,
    prefix: &[u8],
    writer: &mut tree::Writer<'_>,
    counts: &Counts,
    observer: &dyn Observer,
    stopped: &dyn Fn() -> bool,
) -> Result<()> {
    // All keys at once: they are stored in pages, and a page is cheap to walk but not to find one key in.
    let mut keys = Vec::new();
    let mut ends = Vec::new();
    shard.for_each_key(|_, key| {
        keys.extend_from_slice(key);
        ends.push(keys.len());
    })?;
    let mut scan = shard.scan(0..shard.len());
    let mut start = 0;
    while let Some(record) = scan.next_record()? {
        if stopped() {
            return Ok(());
        }
        let number = record.info.index;
        let end = ends.get(number as usize).copied().unwrap_or(start);
        let stored_key = keys.get(start..end).unwrap_or_default();
        start = end;
        let fail = |what: String| Error::Export {
            shard: shard.path().to_path_buf(),
            record: number,
            what,
        };
        let example = ExampleView::parse(record.bytes).map_err(|e| fail(e.to_string()))?;
        let image = match original_image(&example) {
            Ok(Some(image)) => image,
            Ok(None) => return Err(fail("it has no image/encoded".into())),
            Err(what) => return Err(fail(what)),
        };
        let made_up;
        let key = if stored_key.is_empty() {
            made_up =
                make_key(&example, shard.label(number), number).map_err(|e| fail(e.to_string()))?;
            made_up.as_slice()
        } else {
            stored_key
        };
        match writer.put(prefix, key, &image) {
            Ok(Placed::New) => {
                counts.files.fetch_add(1, Ordering::Relaxed);
                counts
                    .bytes
                    .fetch_add(image.len() as u64, Ordering::Relaxed);
            }
            Ok(Placed::There) => {
                counts.unchanged.fetch_add(1, Ordering::Relaxed);
            }
            Err(tree::Failure::Key(why)) => {
                return Err(fail(format!("its key {:?} {why}", escape(key))));
            }
            Err(tree::Failure::Error(error)) => return Err(error),
        }
        observer.advanced(1, image.len() as u64);
    }
    Ok(())
}

/// A key for a record without one, as those that other tools wrote: class and file name where they are known.
fn make_key(
    example: &ExampleView<'_>,
    label: Option<i64>,
    number: u64,
) -> std::result::Result<Vec<u8>, forebay_shard::ExampleError> {
    let class = match (
        example.bytes("image/class/synset")?,
        label.or(example.int64("image/class/label")?),
    ) {
        (Some(synset), _) if !synset.is_empty() => synset.to_vec(),
        (_, Some(label)) if label >= 0 => format!("label-{label}").into_bytes(),
        _ => b"unlabelled".to_vec(),
    };
    let name = match example.bytes("image/filename")? {
        Some(name) if !name.is_empty() => name.to_vec(),
        _ => {
            let png = example
                .bytes("image/format")?
                .is_some_and(|format| format.eq_ignore_ascii_case(b"png"));
            format!("{number:08}.{}", if png { "png" } else { "jpg" }).into_bytes()
        }
    };
    Ok([class.as_slice(), b"/", &name].concat())
}
