//! Metadata of objects, and conditions of puts.

use std::time::SystemTime;

/// An object as a store describes it.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct Object {
    /// The name of the object, relative to the store's location.
    pub key: String,
    /// Its size in bytes.
    pub len: u64,
    /// A tag that changes whenever the object does. For a local file it consists of inode, size and modification time.
    pub etag: Option<String>,
    /// The CRC-32C of the object, if it was stored with one. Listings do not contain it.
    pub crc32c: Option<u32>,
    /// When it was written.
    pub modified: Option<SystemTime>,
}

impl Object {
    /// An object with a key and a size, and without other metadata.
    pub fn new(key: impl Into<String>, len: u64) -> Self {
        Self {
            key: key.into(),
            len,
            etag: None,
            crc32c: None,
            modified: None,
        }
    }

    /// The etag without the `W/` prefix and the quotes, which some stores add in some responses only.
    pub fn version(&self) -> Option<&str> {
        self.etag.as_deref().map(plain_etag)
    }
}

/// Strips the `W/` prefix and the quotes, which some stores add in some responses only.
pub(crate) fn plain_etag(etag: &str) -> &str {
    etag.trim_start_matches("W/").trim_matches('"')
}

/// The result of a listing: objects, directories, and entries that are neither.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct Listing {
    /// The objects, sorted by key.
    pub objects: Vec<Object>,
    /// Keys of the directories, without a slash at the end, sorted.
    pub dirs: Vec<String>,
    /// Entries that are not usable objects, such as sockets, broken links and invalid names.
    pub left_out: Vec<LeftOut>,
}

/// An entry of a listing that is not a usable object.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub struct LeftOut {
    /// The path below the store's location; bytes that are not UTF-8 are shown as U+FFFD.
    pub path: String,
    /// Why it is left out.
    pub why: &'static str,
}

/// The condition of a put.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub enum Put {
    /// No condition: an existing object is replaced.
    #[default]
    Always,
    /// Only if no object has that key. Of several concurrent puts exactly one succeeds.
    IfAbsent,
    /// Only if the existing object has this etag.
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
