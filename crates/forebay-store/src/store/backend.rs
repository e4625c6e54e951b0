//! The trait below [`Store`](super::Store) that each kind of store implements.
//!
//! To add a kind, write a module in `cloud/` with a function `connect`, and add it to the table in `scheme.rs`. The suite in
//! `tests/it/conformance.rs` tests it.

use super::{LeftOut, Listing, Object, Put, Transfer, Written};
use crate::{Location, Result, Tariff};
use forebay_shard::StorageStats;
use std::fmt::Debug;
use std::path::Path;
use std::sync::Arc;

/// A kind of store. [`Store`](super::Store) documents the calls and has checked the keys, which are relative.
pub(crate) trait Backend: Debug + Send + Sync {
    fn list_all(&self, prefix: &str) -> Result<Listing>;
    fn list_dir(&self, prefix: &str) -> Result<Listing>;
    fn head(&self, key: &str) -> Result<Option<Object>>;
    fn get(&self, key: &str, limit: u64) -> Result<Vec<u8>>;
    /// Fails with [`Error::Changed`](crate::Error::Changed) if the object has been replaced since `expected` was read.
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

    fn pinned(&self) -> Result<Option<Location>> {
        Ok(None)
    }

    fn stats(&self) -> StorageStats {
        StorageStats::default()
    }

    fn tariff(&self) -> Option<Arc<Tariff>> {
        None
    }

    fn invalid_names(&self) -> Result<Vec<LeftOut>> {
        Ok(Vec::new())
    }
}
