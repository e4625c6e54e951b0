//! `Store`: the objects below a location, wherever it is. One set of blocking calls for directories and buckets.
//!
//! This file owns the calls and what holds for all kinds of stores: what a key is, and the errors for it. `local` and
//! `cloud` do the work.

#[cfg(feature = "cloud")]
mod cloud;
mod local;
mod object;
mod options;
mod traffic;
mod transfer;

#[cfg(all(feature = "cloud", any(test, feature = "fuzzing")))]
pub(crate) use cloud::fuzz_page;
pub use object::{LeftOut, Listing, Object, Put, Written};
pub(crate) use options::without_secrets;
pub use options::{Retry, StoreOptions};
pub use traffic::Traffic;
pub use transfer::Transfer;

use crate::{Error, Location, Result, Share};
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
    kind: Kind,
}

#[derive(Debug)]
enum Kind {
    Local(local::Local),
    #[cfg(feature = "cloud")]
    Cloud(Box<cloud::Cloud>),
}

/// Calls the same method of whichever kind of store it is.
macro_rules! either {
    ($store:expr, $kind:ident => $call:expr) => {
        match &$store.0.kind {
            Kind::Local($kind) => $call,
            #[cfg(feature = "cloud")]
            Kind::Cloud($kind) => $call,
        }
    };
}

impl Store {
    /// Opens the place that `location` names. No request is made yet: whether it can be reached and what is there shows
    /// with the first call.
    pub fn open(location: &Location, options: &StoreOptions) -> Result<Self> {
        let kind = if location.is_remote() {
            #[cfg(feature = "cloud")]
            {
                Kind::Cloud(Box::new(cloud::Cloud::open(location, options)?))
            }
            #[cfg(not(feature = "cloud"))]
            return Err(Error::Unsupported {
                text: location.to_string(),
                why: "this build has no support for object stores".to_owned(),
                can_use: "a build with the feature \"cloud\", or a local path",
            });
        } else {
            Kind::Local(local::Local::new(location.local_path()?, options))
        };
        Ok(Self(Arc::new(Inner {
            location: location.clone(),
            kind,
        })))
    }

    /// What the store was opened as.
    pub fn location(&self) -> &Location {
        &self.0.location
    }

    /// All objects below `prefix`, which is empty or the key of a directory, sorted by key. A prefix without objects is
    /// no error. Web servers cannot list.
    pub fn list(&self, prefix: &str) -> Result<Vec<Object>> {
        either!(self, store => store.list(&check_key(prefix)?))
    }

    /// As [`list`](Self::list), with what could not be listed: linked directories, names that are no text, sockets and devices.
    /// It is asked in words that no request had before, so that no cache in front of a store has an older answer.
    pub fn list_all(&self, prefix: &str) -> Result<Listing> {
        either!(self, store => store.list_all(&check_key(prefix)?))
    }

    /// One level: the objects right below `prefix`, and the directories there.
    pub fn list_dir(&self, prefix: &str) -> Result<Listing> {
        either!(self, store => store.list_dir(&check_key(prefix)?))
    }

    /// What is known of an object; none if there is no such object.
    pub fn head(&self, key: &str) -> Result<Option<Object>> {
        either!(self, store => store.head(&check_key(key)?))
    }

    /// As [`head`](Self::head), of an object that a listing told of: an older answer is not taken. Where it is another one by now
    /// that is what is told.
    pub fn head_listed(&self, listed: &Object) -> Result<Option<Object>> {
        either!(self, store => store.head_listed(&checked(listed)?))
    }

    /// The bytes of a whole object of at most `limit` bytes, compared with its checksum where it has one.
    pub fn get(&self, key: &str, limit: u64) -> Result<Vec<u8>> {
        either!(self, store => store.get(&check_key(key)?, limit))
    }

    /// As [`get`](Self::get), of an object that a listing told of: an older answer is not taken.
    pub fn get_listed(&self, listed: &Object, limit: u64) -> Result<Vec<u8>> {
        either!(self, store => store.get_listed(&checked(listed)?, limit))
    }

    /// Fills `buf` with the bytes from `offset`. A range that reaches beyond the end is an error.
    pub fn read_at(&self, key: &str, offset: u64, buf: &mut [u8]) -> Result<()> {
        let reading = Share::process().reading();
        either!(self, store => store.read_at(&check_key(key)?, None, offset, buf))?;
        reading.moved(buf.len() as u64);
        Ok(())
    }

    /// As [`read_at`](Self::read_at), but [`Error::Changed`] if the object is another one than `object` by now.
    pub fn read_at_if(&self, object: &Object, offset: u64, buf: &mut [u8]) -> Result<()> {
        let reading = Share::process().reading();
        either!(self, store => store.read_at(&check_key(&object.key)?, Some(object), offset, buf))?;
        reading.moved(buf.len() as u64);
        Ok(())
    }

    /// Writes a small object whole or not at all. [`Error::AlreadyThere`] or [`Error::Changed`] if the condition does not
    /// hold. A put that had to be repeated because its answer was lost is recognised as our own.
    pub fn put(&self, key: &str, bytes: &[u8], put: Put) -> Result<Written> {
        either!(self, store => store.put(&check_key(key)?, bytes, &put))
    }

    /// Sends a file, replacing an object of that key: in parts and in parallel, compared with its checksum on the way and
    /// when it is there. Where it fails nothing is left behind.
    pub fn upload_file(&self, key: &str, file: &Path, transfer: &Transfer<'_>) -> Result<Object> {
        either!(self, store => store.upload_file(&check_key(key)?, file, transfer))
    }

    /// Fetches an object into a file: under a temporary name, compared with its checksum, fsynced, renamed.
    pub fn download_file(&self, key: &str, file: &Path, transfer: &Transfer<'_>) -> Result<Object> {
        either!(self, store => store.download_file(&check_key(key)?, file, transfer))
    }

    /// Deletes an object. That there is none is no error.
    pub fn delete(&self, key: &str) -> Result<()> {
        either!(self, store => store.delete(&check_key(key)?))
    }

    /// What reading took so far, where a network is in between.
    pub(crate) fn stats(&self) -> StorageStats {
        match &self.0.kind {
            Kind::Local(_) => StorageStats::default(),
            #[cfg(feature = "cloud")]
            Kind::Cloud(cloud) => cloud.stats(),
        }
    }

    /// Ends the unfinished uploads below `prefix`, whoever began them, and returns how many there were: what a killed
    /// process leaves costs as much as objects do, and no listing shows it. Azure removes its own after a week.
    pub fn abort_uploads(&self, prefix: &str) -> Result<u64> {
        either!(self, store => store.abort_uploads(&check_key(prefix)?))
    }
}

fn checked(listed: &Object) -> Result<Object> {
    Ok(Object {
        key: check_key(&listed.key)?,
        ..listed.clone()
    })
}

/// A key without slashes around it, if it names something below a location and nothing else.
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
