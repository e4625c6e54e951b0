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
    /// The source is listed, and file sizes are determined.
    Census,
    /// The shards that an interrupted run finished are read and compared with the journal.
    Checking,
    /// The images of compressed archives are decoded into a temporary file, from which they can be read in any order.
    Decoding,
    /// Shards are written.
    Writing,
    /// All shards are written, and the remaining ones are uploaded.
    Uploading,
    /// The manifest is published.
    Publishing,
}

impl Stage {
    /// Returns the name of the stage for display.
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

/// A shard that is finished and listed in the journal.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ShardDone {
    /// The file's name.
    pub name: String,
    /// Records in it.
    pub records: u64,
    /// Bytes of the file.
    pub bytes: u64,
    /// Whether an earlier, interrupted run wrote the shard.
    pub resumed: bool,
}

/// Receives progress. Every method may be called from any worker thread, so it must be quick; by default, methods do nothing.
pub trait Observer: Sync {
    /// A stage begins.
    fn stage(&self, _stage: Stage) {}
    /// The census has found `files` further image files with `bytes` bytes in total.
    fn counted(&self, _files: u64, _bytes: u64) {}
    /// An archive is being read by the census or for decoding: `bytes` of `len` bytes of its file were read so far.
    fn archive_read(&self, _bytes: u64, _len: u64) {}
    /// The plan is complete. Called before the first shard.
    fn planned(&self, _census: &Census, _plan: &Plan) {}
    /// The source has changed since an earlier, unfinished pack of it: the shards of that pack are removed, and everything
    /// is packed from the start. `differences` lists the changes.
    fn begins_anew(&self, _differences: &[String]) {}
    /// This run writes a part of the plan, with this many files and bytes (sizes as in the census). Called before the
    /// first shard.
    fn assigned(&self, _files: u64, _bytes: u64) {}
    /// `files` further files of the plan with `bytes` bytes (sizes as in the census) are done: packed,
    /// found bad, or found finished by an earlier run. The numbers add up to the plan's totals.
    fn advanced(&self, _files: u64, _bytes: u64) {}
    /// A shard is finished.
    fn shard_done(&self, _shard: &ShardDone) {}
    /// Progress of uploads, which run concurrently. Called a few times per second if there are uploads.
    fn uploaded(&self, _uploaded: &Uploaded) {}
    /// A file was left out, or was packed with a remark.
    fn finding(&self, _finding: &Finding) {}
    /// An export left a record out.
    fn record_skipped(&self, _skipped: &SkippedRecord) {}
}

/// An observer that ignores all calls.
impl Observer for () {}

/// Forwards the progress of reading a source to the observer of a pack.
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
