//! `Store`: the objects below a location. One set of blocking calls for directories, buckets and web servers.
//!
//! This module defines the calls and checks keys for all kinds of stores. The kinds, in `local` and `cloud`, implement
//! [`Backend`](backend::Backend).

pub(crate) mod backend;
mod cloud;
mod local;
mod object;
mod options;
mod traffic;
mod transfer;

#[cfg(any(test, feature = "fuzzing"))]
pub(crate) use cloud::fuzz_page;
pub use object::{LeftOut, Listing, Object, Put, Written};
pub use options::{Retry, StoreOptions};
pub use traffic::Traffic;
pub use transfer::Transfer;

use crate::scheme::find;
use crate::{BandwidthShare, Error, Location, Result, Tariff};
use backend::Backend;
use std::path::Path;
use std::sync::Arc;

use forebay_shard::StorageStats;

/// The objects below a [`Location`]: files of a directory, or objects of a bucket.
///
/// All calls block, and may be made from many threads at once; clones share the store. Keys are relative to the
/// location and use `/`; the empty key names the location itself. Transient failures are retried according to
/// [`StoreOptions::retry`] before they become an error.
///
/// ```
/// use forebay_store::{Location, Put, Store, StoreOptions};
///
/// let dir = tempfile::tempdir()?;
/// let store = Store::open(&Location::parse(dir.path())?, &StoreOptions::default())?;
/// store.put("a/b.txt", b"hello", Put::IfAbsent)?;
/// assert_eq!(store.get("a/b.txt", 100)?, b"hello");
/// assert_eq!(store.list("")?[0].key, "a/b.txt");
/// assert!(store.put("a/b.txt", b"again", Put::IfAbsent).is_err());
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Clone, Debug)]
pub struct Store(Arc<Inner>);

#[derive(Debug)]
struct Inner {
    location: Location,
    backend: Box<dyn Backend>,
}

impl Store {
    /// Opens the store at `location`. This makes no request: whether the store can be reached shows with the first call.
    pub fn open(location: &Location, options: &StoreOptions) -> Result<Self> {
        let backend = match location.scheme().and_then(find) {
            Some(kind) => cloud::open_store(kind.store, location, options)?,
            None => local::open(location.local_path()?, options),
        };
        Ok(Self(Arc::new(Inner {
            location: location.clone(),
            backend,
        })))
    }

    /// Returns the location that the store was opened with.
    pub fn location(&self) -> &Location {
        &self.0.location
    }

    /// Returns the location with the revision that it has now: the commit of a dataset of the Hugging Face Hub. Other
    /// locations are returned as they are, without a request.
    pub fn pinned(&self) -> Result<Location> {
        let pinned = self.0.backend.pinned()?;
        Ok(pinned.unwrap_or_else(|| self.0.location.clone()))
    }

    /// All objects below `prefix`, sorted by key. `prefix` is empty or the key of a directory; if it has no objects, the
    /// result is empty. Listing a web server is an error.
    pub fn list(&self, prefix: &str) -> Result<Vec<Object>> {
        Ok(self.list_all(prefix)?.objects)
    }

    /// As [`list`](Self::list), with the entries that are left out: linked directories, names that are not UTF-8, sockets.
    pub fn list_all(&self, prefix: &str) -> Result<Listing> {
        self.0.backend.list_all(&check_key(prefix)?)
    }

    /// One level: the objects right below `prefix`, and the directories there.
    pub fn list_dir(&self, prefix: &str) -> Result<Listing> {
        self.0.backend.list_dir(&check_key(prefix)?)
    }

    /// The objects with invalid names, such as `a//b`, that listings of this store have contained so far. Only object stores
    /// have such objects.
    pub fn invalid_names(&self) -> Result<Vec<LeftOut>> {
        self.0.backend.invalid_names()
    }

    /// Returns the metadata of an object; `None` if there is no such object.
    pub fn head(&self, key: &str) -> Result<Option<Object>> {
        self.0.backend.head(&check_key(key)?)
    }

    /// Reads a whole object of at most `limit` bytes, and verifies its checksum if it has one.
    pub fn get(&self, key: &str, limit: u64) -> Result<Vec<u8>> {
        self.0.backend.get(&check_key(key)?, limit)
    }

    /// Fills `buf` with the bytes from `offset`. A range that reaches beyond the end is an error.
    pub fn read_at(&self, key: &str, offset: u64, buf: &mut [u8]) -> Result<()> {
        let reading = BandwidthShare::process().reading();
        self.0
            .backend
            .read_at(&check_key(key)?, None, offset, buf)?;
        reading.moved(buf.len() as u64);
        Ok(())
    }

    /// As [`read_at`](Self::read_at), but fails with [`Error::Changed`] if the object has been replaced since `object` was read.
    pub fn read_at_if(&self, object: &Object, offset: u64, buf: &mut [u8]) -> Result<()> {
        let reading = BandwidthShare::process().reading();
        self.0
            .backend
            .read_at(&check_key(&object.key)?, Some(object), offset, buf)?;
        reading.moved(buf.len() as u64);
        Ok(())
    }

    /// Writes a small object atomically. Fails with [`Error::AlreadyThere`] or [`Error::Changed`] if the condition does not
    /// hold. After a lost response, the retry recognizes an object that the earlier try has written.
    pub fn put(&self, key: &str, bytes: &[u8], put: Put) -> Result<Written> {
        self.0.backend.put(&check_key(key)?, bytes, &put)
    }

    /// Uploads a file, replacing an existing object: in parallel parts, with the checksum verified during and after the
    /// transfer. A multipart upload that fails is aborted, so that no parts stay in the store.
    pub fn upload_file(&self, key: &str, file: &Path, transfer: &Transfer<'_>) -> Result<Object> {
        self.0.backend.upload_file(&check_key(key)?, file, transfer)
    }

    /// Downloads an object to a temporary file, verifies its checksum, fsyncs the file and renames it to `file`.
    pub fn download_file(&self, key: &str, file: &Path, transfer: &Transfer<'_>) -> Result<Object> {
        self.0
            .backend
            .download_file(&check_key(key)?, file, transfer)
    }

    /// Deletes an object; succeeds if there is no such object.
    pub fn delete(&self, key: &str) -> Result<()> {
        self.0.backend.delete(&check_key(key)?)
    }

    /// Returns the read counters; zeros for a directory.
    pub fn stats(&self) -> StorageStats {
        self.0.backend.stats()
    }

    /// Returns the prices of the store's requests and transfers; `None` for a directory.
    pub fn tariff(&self) -> Option<Arc<Tariff>> {
        self.0.backend.tariff()
    }

    /// Aborts the unfinished uploads of exactly this key. Only the single writer of the key may call this, to clean up after
    /// an earlier process that was killed.
    pub fn abort_uploads_of(&self, key: &str) -> Result<()> {
        self.0.backend.abort_uploads_of(&check_key(key)?)
    }
}

fn check_key(key: &str) -> Result<String> {
    let bad = |why| {
        Err(Error::BadKey {
            key: key.to_owned(),
            why,
        })
    };
    let trimmed = key.trim_matches('/');
    if trimmed.is_empty() {
        return Ok(String::new());
    }
    for part in trimmed.split('/') {
        match part {
            "" => return bad("it has an empty part"),
            "." | ".." => return bad("it has . or .. in it"),
            _ => {}
        }
    }
    if trimmed.chars().any(|c| c.is_control()) {
        return bad("it has control characters in it");
    }
    if trimmed.len() > 1024 {
        return bad("it is longer than 1,024 bytes");
    }
    Ok(trimmed.to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn keys_stay_below_their_location() {
        for key in [
            "..",
            "a/../b",
            "a//b",
            "./a",
            "a\0",
            "a\nb",
            &"x".repeat(1025),
        ] {
            assert!(
                matches!(check_key(key), Err(Error::BadKey { .. })),
                "{key:?}"
            );
        }
        assert_eq!(check_key("/a/b/").unwrap(), "a/b");
        assert_eq!(check_key("").unwrap(), "");
        assert_eq!(check_key("ü #%?.txt").unwrap(), "ü #%?.txt");
    }
}
