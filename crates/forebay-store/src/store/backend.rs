//! The seam below [`Store`](super::Store): what a kind of store does, and the table of all kinds.
//!
//! To add a kind, write its file with a `SCHEME` and add it to [`SCHEMES`]; `forebay_store::conformance` tests it.

use super::cloud::{azure, google, s3, web};
use super::{LeftOut, Listing, Object, Put, StoreOptions, Transfer, Written};
use crate::{Location, Result};
use forebay_shard::StorageStats;
use std::fmt::Debug;
use std::path::Path;

/// All kinds of stores that are reached over the network; paths are directories.
static SCHEMES: [Scheme; 4] = [s3::SCHEME, google::SCHEME, azure::SCHEME, web::SCHEME];

/// A kind of store, by the schemes of its URLs.
pub(crate) struct Scheme {
    pub(crate) names: &'static [&'static str],
    /// Whether the authority is a bucket or container, so that `?` and `#` cannot follow the path.
    pub(crate) is_bucket: bool,
    /// Those of the names that may have `container@account` as authority.
    pub(crate) account_names: &'static [&'static str],
    pub(crate) open: fn(&Location, &StoreOptions) -> Result<Box<dyn Backend>>,
}

/// Returns the kind of store that a URL's scheme names.
pub(crate) fn find(scheme: &str) -> Option<&'static Scheme> {
    SCHEMES.iter().find(|kind| kind.names.contains(&scheme))
}

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
