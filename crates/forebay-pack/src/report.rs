//! The summary of a run.

use forebay_formats::{Action, Finding, Reason};
use forebay_shard::manifest::Account;
use serde::{Deserialize, Serialize};
use std::fmt;
use std::path::PathBuf;
use std::time::Duration;

/// The seek points that were stored.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
pub struct SeekPointCount {
    /// Images that have them.
    pub images: u64,
    /// Their bytes.
    pub bytes: u64,
}

impl SeekPointCount {
    /// Counts an image, whose seek points take this many bytes if it has any.
    pub(crate) fn add(&mut self, bytes: Option<u64>) {
        if let Some(bytes) = bytes {
            self.images += 1;
            self.bytes += bytes;
        }
    }
}

/// Outcome of progressive JPEGs that were to become baseline ones.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
pub struct ProgressiveCount {
    /// They are baseline now, and their originals can be restored.
    pub changed: u64,
    /// Left alone, because their originals could not be.
    pub left: u64,
}

impl ProgressiveCount {
    /// Counts an image; none is one that this is not about.
    pub(crate) fn add(&mut self, is_baseline_now: Option<bool>) {
        match is_baseline_now {
            Some(true) => self.changed += 1,
            Some(false) => self.left += 1,
            None => {}
        }
    }
}

/// JPEGs as fast images.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
pub struct FastCount {
    /// Records with a fast image.
    pub images: u64,
    /// JPEGs that were to become fast images and stay as they are: they could not be restored exactly, or would grow too
    /// much.
    pub left: u64,
    /// Fast images of progressive JPEGs.
    pub progressive: u64,
}

impl FastCount {
    /// Counts of one image: whether it is a fast one; none is one that this is not about.
    pub(crate) fn of_image(is_fast: Option<bool>, is_progressive: bool) -> Self {
        Self {
            images: u64::from(is_fast == Some(true)),
            left: u64::from(is_fast == Some(false)),
            progressive: u64::from(is_progressive),
        }
    }

    /// Adds the counts of further images.
    pub(crate) fn add(&mut self, other: Self) {
        *self = [*self, other].into_iter().sum();
    }
}

impl std::iter::Sum for FastCount {
    fn sum<I: Iterator<Item = Self>>(counts: I) -> Self {
        counts.fold(Self::default(), |a, b| Self {
            images: a.images.saturating_add(b.images),
            left: a.left.saturating_add(b.left),
            progressive: a.progressive.saturating_add(b.progressive),
        })
    }
}

impl std::iter::Sum for ProgressiveCount {
    fn sum<I: Iterator<Item = Self>>(counts: I) -> Self {
        counts.fold(Self::default(), |a, b| Self {
            changed: a.changed.saturating_add(b.changed),
            left: a.left.saturating_add(b.left),
        })
    }
}

impl std::iter::Sum for SeekPointCount {
    fn sum<I: Iterator<Item = Self>>(counts: I) -> Self {
        counts.fold(Self::default(), |a, b| Self {
            images: a.images.saturating_add(b.images),
            bytes: a.bytes.saturating_add(b.bytes),
        })
    }
}

/// Summary of one split.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SplitSummary {
    /// The split's name.
    pub name: String,
    /// Records in it.
    pub records: u64,
    /// Its shards.
    pub shards: u64,
    /// Bytes of its shards.
    pub bytes: u64,
}

/// Progress of uploads.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct Uploaded {
    /// Files that this run uploaded.
    pub files: u64,
    /// Their bytes.
    pub bytes: u64,
    /// Bytes handed in so far.
    pub submitted_bytes: u64,
    /// Why nothing moves, while that is so.
    pub trouble: Option<String>,
}

/// Summary of a pack.
#[derive(Debug, Clone)]
#[non_exhaustive]
pub struct Summary {
    /// Root of the dataset.
    pub root: PathBuf,
    /// The dataset's fingerprint, as the manifest has it.
    pub fingerprint: String,
    /// The splits in the order of the manifest.
    pub splits: Vec<SplitSummary>,
    /// Image bytes in all records.
    pub image_bytes: u64,
    /// Seek points in all records.
    pub seek_points: SeekPointCount,
    /// Outcome of progressive JPEGs that were to become baseline ones.
    pub progressive: ProgressiveCount,
    /// Fast images in all records.
    pub fast: FastCount,
    /// Classes that labels refer to.
    pub classes: u64,
    /// Their names in the order of their labels.
    pub class_names: Vec<String>,
    /// Shards that an earlier, interrupted run had finished.
    pub resumed_shards: u64,
    /// Image bytes that this run read and wrote: the base of its MB/s.
    pub packed_bytes: u64,
    /// Files that this run read and wrote.
    pub packed_files: u64,
    /// The dataset was there already, packed with the same arguments from the same source: nothing was done.
    pub already_complete: bool,
    /// How many files met which fate, in a fixed order.
    pub findings: Vec<((Action, Reason), u64)>,
    /// Uploads of this run, where the destination is written through a staging area.
    pub uploaded: Option<Uploaded>,
    /// The first files that were skipped or quarantined, up to [`Summary::EXAMPLES`].
    pub skipped_examples: Vec<Finding>,
    /// All findings, one JSON object a line; none if there was nothing to say.
    pub report: Option<PathBuf>,
    /// Warnings for the user.
    pub warnings: Vec<String>,
    /// The account of the files; `None` if the manifest has none.
    pub account: Option<Account>,
    /// Time for the census and the plan.
    pub census_time: Duration,
    /// Time from the plan to the last shard.
    pub write_time: Duration,
}

impl Summary {
    /// How many skipped files a summary lists by name.
    pub const EXAMPLES: usize = 10;

    /// Records of all splits.
    pub fn records(&self) -> u64 {
        self.splits.iter().map(|s| s.records).sum()
    }

    /// Bytes of all shards.
    pub fn shard_bytes(&self) -> u64 {
        self.splits.iter().map(|s| s.bytes).sum()
    }

    /// Files that should have been packed and could not be, those in quarantine included.
    pub fn skipped(&self) -> u64 {
        self.findings
            .iter()
            .filter(|((action, _), _)| action.leaves_out())
            .map(|(_, n)| n)
            .sum()
    }
}

/// A record that an export left out.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[non_exhaustive]
pub struct SkippedRecord {
    /// The shard.
    pub shard: PathBuf,
    /// Number of the record in the shard; none if it is about the whole shard.
    pub record: Option<u64>,
    /// The problem.
    pub what: String,
    /// Whether the record or the shard is damaged.
    pub damaged: bool,
}

impl fmt::Display for SkippedRecord {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: ", self.shard.display())?;
        if let Some(record) = self.record {
            write!(f, "record {record}: ")?;
        }
        f.write_str(&self.what)
    }
}
