//! Progress of reading a source.

use crate::finding::Finding;

/// Receives progress. Every call may come from any worker thread, so keep them short; all do nothing by default.
pub trait Progress: Sync {
    /// This many more image files of this many bytes together were listed.
    fn counted(&self, _files: u64, _bytes: u64) {}
    /// An archive is read through: this far, of this many bytes of its file.
    fn archive_read(&self, _bytes: u64, _len: u64) {}
    /// A file is left out, or needs a remark.
    fn finding(&self, _finding: &Finding) {}
}

/// Reports nothing.
impl Progress for () {}
