//! Metadata of objects, and conditions of writes.

use std::time::SystemTime;

/// An object as a store describes it.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct Object {
    /// Its name, relative to the store's location.
    pub key: String,
    /// Its size in bytes.
    pub len: u64,
    /// A tag that changes whenever the object does. A local file's is made of its inode, size and time of change.
    pub etag: Option<String>,
    /// The CRC-32C of its bytes, where it was stored with one. Listings do not tell it.
    pub crc32c: Option<u32>,
    /// When it was written.
    pub modified: Option<SystemTime>,
}

impl Object {
    /// An object of which only the name and the size are known.
    pub fn new(key: impl Into<String>, len: u64) -> Self {
        Self {
            key: key.into(),
            len,
            etag: None,
            crc32c: None,
            modified: None,
        }
    }

    /// Returns the etag without what some stores add to it in one answer and not in another.
    pub fn version(&self) -> Option<&str> {
        self.etag.as_deref().map(plain_etag)
    }

    /// The same object, known to have this etag.
    #[must_use]
    pub fn with_etag(mut self, etag: impl Into<String>) -> Self {
        self.etag = Some(etag.into());
        self
    }
}

/// Strips what some stores add to an etag in one answer and not in another.
pub(crate) fn plain_etag(etag: &str) -> &str {
    etag.trim_start_matches("W/").trim_matches('"')
}

/// One level of a store: the objects there, and the names that have more below them.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct Listing {
    /// The objects, sorted by key.
    pub objects: Vec<Object>,
    /// Keys of the directories, without a slash at the end, sorted.
    pub dirs: Vec<String>,
    /// An entry that is no object. Only local directories have such entries.
    pub left_out: Vec<LeftOut>,
}

/// Something in a directory that is no object.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
#[non_exhaustive]
pub struct LeftOut {
    /// Its path below the store's location; what is no UTF-8 is shown as U+FFFD.
    pub path: String,
    /// Why it is left out.
    pub why: &'static str,
}

/// On which condition a put replaces what exists.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub enum Put {
    /// Always.
    #[default]
    Always,
    /// Only if there is no object of that key. Of several who try at once exactly one succeeds.
    IfAbsent,
    /// Only if the object there has this etag.
    IfMatch(String),
}

/// The result of a put.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct Written {
    /// The new object's etag.
    pub etag: Option<String>,
    /// The CRC-32C of its bytes.
    pub crc32c: u32,
}
