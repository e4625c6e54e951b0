//! Progress of reading a source.

use crate::finding::Finding;

/// Receives progress. Worker threads call the methods, so they must return quickly. The default methods do nothing.
pub trait Progress: Sync {
    /// This many more image files were listed, with this many bytes in total.
    fn counted(&self, _files: u64, _bytes: u64) {}
    /// An archive of `len` bytes has been read up to offset `bytes`.
    fn archive_read(&self, _bytes: u64, _len: u64) {}
    /// A file was left out, or has a remark.
    fn finding(&self, _finding: &Finding) {}
}

/// Reports nothing.
impl Progress for () {}
