//! The seam below [`Store`](super::Store): what a kind of store does.
//!
//! To add a kind, write its file in `cloud/` with a `connect` and add it to the table in `scheme.rs`; `forebay_store::conformance` tests it.

use super::{LeftOut, Listing, Object, Put, Transfer, Written};
use crate::Result;
use forebay_shard::StorageStats;
use std::fmt::Debug;
use std::path::Path;

/// A kind of store. Keys are relative, and were checked by [`Store`](super::Store), which documents the calls.
pub(crate) trait Backend: Debug + Send + Sync {
    fn list_all(&self, prefix: &str) -> Result<Listing>;
    fn list_dir(&self, prefix: &str) -> Result<Listing>;
    fn head(&self, key: &str) -> Result<Option<Object>>;
    fn get(&self, key: &str, limit: u64) -> Result<Vec<u8>>;
    /// Fails with [`Error::Changed`](crate::Error::Changed) if the object is not `expected` any more.
    fn read_at(
        &self,
        key: &str,
        expected: Option<&Object>,
        offset: u64,
        buf: &mut [u8],
    ) -> Result<()>;
    fn put(&self, key: &str, bytes: &[u8], put: &Put) -> Result<Written>;
    fn upload_file(&self, key: &str, file: &Path, transfer: &Transfer<'_>) -> Result<Object>;
    fn download_file(&self, key: &str, file: &Path, transfer: &Transfer<'_>) -> Result<Object>;
    fn delete(&self, key: &str) -> Result<()>;
    fn abort_uploads_of(&self, key: &str) -> Result<()>;

    fn stats(&self) -> StorageStats {
        StorageStats::default()
    }

    fn invalid_names(&self) -> Result<Vec<LeftOut>> {
        Ok(Vec::new())
    }
}
