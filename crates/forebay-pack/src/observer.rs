//! Progress of a pack, and its cancellation.

use crate::census::Census;
use crate::plan::Plan;
use crate::report::{SkippedRecord, Uploaded};
use forebay_formats::Finding;
use forebay_formats::Progress;
pub use forebay_store::Cancel;

/// The stages of a pack, in order.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub enum Stage {
    /// The source is listed and measured.
    Census,
    /// Shards that an interrupted run finished are read and compared with the journal.
    Checking,
    /// The images of compressed archives are decoded into a file from which they can be read in any order.
    Decoding,
    /// Shards are written.
    Writing,
    /// All shards are written; what is left of them is uploaded.
    Uploading,
    /// The manifest is published.
    Publishing,
}

impl Stage {
    /// The stage in a word, for people.
    pub fn name(self) -> &'static str {
        match self {
            Self::Census => "census",
            Self::Checking => "checking",
            Self::Decoding => "decoding",
            Self::Writing => "writing",
            Self::Uploading => "uploading",
            Self::Publishing => "publishing",
        }
    }
}

/// A shard that is finished and in the journal.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ShardDone {
    /// The file's name.
    pub name: String,
    /// Records in it.
    pub records: u64,
    /// Bytes of the file.
    pub bytes: u64,
    /// Whether an earlier, interrupted run wrote it.
    pub resumed: bool,
}

/// Receives what happens. Every call may come from any worker thread, so keep them short; all do nothing by default.
pub trait Observer: Sync {
    /// A stage begins.
    fn stage(&self, _stage: Stage) {}
    /// The census has seen this many more image files of this many bytes together.
    fn counted(&self, _files: u64, _bytes: u64) {}
    /// An archive is read through, in the census or while its images are decoded: this far, of this many bytes of its file.
    fn archive_read(&self, _bytes: u64, _len: u64) {}
    /// The plan stands. Comes before the first shard.
    fn planned(&self, _census: &Census, _plan: &Plan) {}
    /// The source is not what it was when an earlier, unfinished pack of it began: its shards are removed, and everything
    /// is packed again from the start. `differences` lists the changes.
    fn begins_anew(&self, _differences: &[String]) {}
    /// This run writes a part of the plan, of this many files and bytes (sizes as in the census). Comes before the
    /// first shard.
    fn assigned(&self, _files: u64, _bytes: u64) {}
    /// This many more files of the plan are dealt with, of this many bytes (sizes as in the census): packed,
    /// found bad, or found finished by an earlier run. They add up to the plan's totals.
    fn advanced(&self, _files: u64, _bytes: u64) {}
    /// A shard is finished.
    fn shard_done(&self, _shard: &ShardDone) {}
    /// How far the upload is that runs behind. Comes a few times a second, where there is one.
    fn uploaded(&self, _uploaded: &Uploaded) {}
    /// A file was left out, or packed with a remark.
    fn finding(&self, _finding: &Finding) {}
    /// An export left a record out.
    fn record_skipped(&self, _skipped: &SkippedRecord) {}
}

/// An observer that looks away.
impl Observer for () {}

/// Tells an observer of a pack how far a source is read.
pub(crate) struct SourceProgress<'a>(pub(crate) &'a dyn Observer);

impl Progress for SourceProgress<'_> {
    fn counted(&self, files: u64, bytes: u64) {
        self.0.counted(files, bytes);
    }

    fn archive_read(&self, bytes: u64, len: u64) {
        self.0.archive_read(bytes, len);
    }

    fn finding(&self, finding: &Finding) {
        self.0.finding(finding);
    }
}
