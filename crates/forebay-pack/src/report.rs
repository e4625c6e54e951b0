//! The summary of a run.

use forebay_formats::{Action, Finding, Reason};
use forebay_shard::manifest::Account;
use serde::{Deserialize, Serialize};
use std::fmt;
use std::path::PathBuf;
use std::time::Duration;

/// Counts of the stored seek points.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
pub struct SeekPointCount {
    /// Number of images with seek points.
    pub images: u64,
    /// Size of all seek points in bytes.
    pub bytes: u64,
}

impl SeekPointCount {
    /// Counts an image. `bytes` is the size of its seek points, if it has any.
    pub(crate) fn add(&mut self, bytes: Option<u64>) {
        if let Some(bytes) = bytes {
            self.images += 1;
            self.bytes += bytes;
        }
    }
}

/// Counts of progressive JPEGs that should become baseline JPEGs.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
pub struct ProgressiveCount {
    /// Number of those that were transcoded, and can be restored.
    pub changed: u64,
    /// Number of those that are unchanged, because they could not have been restored.
    pub left: u64,
}

impl ProgressiveCount {
    /// Counts an image; `None` for an image that is not progressive.
    pub(crate) fn add(&mut self, is_baseline_now: Option<bool>) {
        match is_baseline_now {
            Some(true) => self.changed += 1,
            Some(false) => self.left += 1,
            None => {}
        }
    }
}

/// Counts of JPEGs that should become fast images.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
pub struct FastCount {
    /// Number of records with a fast image.
    pub images: u64,
    /// Number of JPEGs that are unchanged, because they could not have been restored exactly, or would have grown too
    /// much.
    pub left: u64,
    /// Number of fast images of progressive JPEGs.
    pub progressive: u64,
}

impl FastCount {
    /// Returns the counts of one image: whether it became a fast image; `None` if it should not.
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

/// Summary of one split.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SplitSummary {
    /// The name of the split.
    pub name: String,
    /// Number of records.
    pub records: u64,
    /// Number of shards.
    pub shards: u64,
    /// Size of the shards in bytes.
    pub bytes: u64,
}

/// Progress of uploads.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct Uploaded {
    /// Files that this run uploaded.
    pub files: u64,
    /// Size of these files in bytes.
    pub bytes: u64,
    /// Size of all files submitted for upload so far, in bytes.
    pub submitted_bytes: u64,
    /// The reason why uploads currently make no progress, if they do not.
    pub trouble: Option<String>,
}

/// Summary of a pack.
#[derive(Debug, Clone)]
#[non_exhaustive]
pub struct Summary {
    /// Root of the dataset.
    pub root: PathBuf,
    /// The dataset's fingerprint, as in the manifest.
    pub fingerprint: String,
    /// The splits in the order of the manifest.
    pub splits: Vec<SplitSummary>,
    /// Total size of the images in the records, in bytes.
    pub image_bytes: u64,
    /// Counts of seek points in all records.
    pub seek_points: SeekPointCount,
    /// Counts of progressive JPEGs that should become baseline JPEGs.
    pub progressive: ProgressiveCount,
    /// Counts of fast images in all records.
    pub fast: FastCount,
    /// Number of classes.
    pub classes: u64,
    /// The names of the classes in the order of their labels.
    pub class_names: Vec<String>,
    /// Number of shards that an earlier, interrupted run had finished.
    pub resumed_shards: u64,
    /// Image bytes that this run read and wrote, from which MB/s are computed.
    pub packed_bytes: u64,
    /// Number of files that this run read and wrote.
    pub packed_files: u64,
    /// Whether the dataset existed already, packed with the same arguments from the same source, so nothing was done.
    pub already_complete: bool,
    /// Number of files per kind of finding, in a fixed order.
    pub findings: Vec<((Action, Reason), u64)>,
    /// Uploads of this run, if the destination is written through a staging area.
    pub uploaded: Option<Uploaded>,
    /// The first files that were skipped or quarantined, up to [`Summary::EXAMPLES`].
    pub skipped_examples: Vec<Finding>,
    /// Path of the report with all findings, one JSON object per line; `None` if there are none.
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
    /// Maximum number of skipped files that a summary lists by name.
    pub const EXAMPLES: usize = 10;

    /// Returns the number of records of all splits.
    pub fn records(&self) -> u64 {
        self.splits.iter().map(|s| s.records).sum()
    }

    /// Returns the size of all shards in bytes.
    pub fn shard_bytes(&self) -> u64 {
        self.splits.iter().map(|s| s.bytes).sum()
    }

    /// Returns the number of files that should have been packed and could not be, including those in quarantine.
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
    /// Number of the record in the shard; `None` if the problem concerns the whole shard.
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
