//! `Store`: the objects below a location, wherever it is. One set of blocking calls for directories and buckets.
//!
//! This file owns the calls and what holds for all kinds of stores: what a key is, and the errors for it. The kinds, in
//! `local` and `cloud`, implement [`Backend`](backend::Backend).

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
use crate::{BandwidthShare, Error, Location, Result};
use backend::Backend;
use std::path::Path;
use std::sync::Arc;

use forebay_shard::StorageStats;

/// The objects below a [`Location`]: files of a directory, or objects of a bucket.
///
/// All calls block, and may be made from many threads at once; clones are the same store. Keys are relative to the
/// location and use `/`; the empty key names the location itself. Failures that may pass are tried again, as
/// [`StoreOptions::retry`] says, before they become an error.
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
    /// Opens the place that `location` names. No request is made yet: whether it can be reached and what exists shows
    /// with the first call.
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

    /// All objects below `prefix`, which is empty or the key of a directory, sorted by key. A prefix without objects is
    /// no error. Web servers cannot list.
    pub fn list(&self, prefix: &str) -> Result<Vec<Object>> {
        Ok(self.list_all(prefix)?.objects)
    }

    /// As [`list`](Self::list), with what could not be listed: linked directories, names that are no text, sockets and devices.
    pub fn list_all(&self, prefix: &str) -> Result<Listing> {
        self.0.backend.list_all(&check_key(prefix)?)
    }

    /// One level: the objects right below `prefix`, and the directories there.
    pub fn list_dir(&self, prefix: &str) -> Result<Listing> {
        self.0.backend.list_dir(&check_key(prefix)?)
    }

    /// Returns the objects that listings of this store showed so far and that have no usable names, such as `a//b`. Only
    /// object stores have such things.
    pub fn invalid_names(&self) -> Result<Vec<LeftOut>> {
        self.0.backend.invalid_names()
    }

    /// Returns the metadata of an object; none if there is no such object.
    pub fn head(&self, key: &str) -> Result<Option<Object>> {
        self.0.backend.head(&check_key(key)?)
    }

    /// The bytes of a whole object of at most `limit` bytes, compared with its checksum where it has one.
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

    /// As [`read_at`](Self::read_at), but [`Error::Changed`] if the object is another one than `object`.
    pub fn read_at_if(&self, object: &Object, offset: u64, buf: &mut [u8]) -> Result<()> {
        let reading = BandwidthShare::process().reading();
        self.0
            .backend
            .read_at(&check_key(&object.key)?, Some(object), offset, buf)?;
        reading.moved(buf.len() as u64);
        Ok(())
    }

    /// Writes a small object whole or not at all. [`Error::AlreadyThere`] or [`Error::Changed`] if the condition does not
    /// hold. A put that had to be repeated because its answer was lost is recognised as our own.
    pub fn put(&self, key: &str, bytes: &[u8], put: Put) -> Result<Written> {
        self.0.backend.put(&check_key(key)?, bytes, &put)
    }

    /// Sends a file, replacing an object of that key: in parts and in parallel, compared with its checksum on the way and
    /// when it is there. Where it fails nothing is left behind.
    pub fn upload_file(&self, key: &str, file: &Path, transfer: &Transfer<'_>) -> Result<Object> {
        self.0.backend.upload_file(&check_key(key)?, file, transfer)
    }

    /// Fetches an object into a file: under a temporary name, compared with its checksum, fsynced, renamed.
    pub fn download_file(&self, key: &str, file: &Path, transfer: &Transfer<'_>) -> Result<Object> {
        self.0
            .backend
            .download_file(&check_key(key)?, file, transfer)
    }

    /// Deletes an object. That there is none is no error.
    pub fn delete(&self, key: &str) -> Result<()> {
        self.0.backend.delete(&check_key(key)?)
    }

    /// Returns the counters of reads; zeros for a directory.
    pub fn stats(&self) -> StorageStats {
        self.0.backend.stats()
    }

    /// Ends the unfinished uploads of exactly this key: for its only writer, after an earlier process of it was killed.
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
