//! The interface between shards and the places where their bytes are stored.
//!
//! A [`Storage`] opens files by path, a [`ReadAt`] reads ranges of their bytes. All readers of this
//! crate use these two traits. [`LocalFiles`] and [`MemoryStorage`] are built in; implement both
//! traits for others, such as an object store or a cache. Reads block, and come from many threads
//! concurrently.

#[cfg(any(test, feature = "conformance"))]
pub mod conformance;
mod local;
mod memory;
mod open;
mod stats;
mod stream;

use std::ffi::OsString;
use std::fmt;
use std::io::{self, IoSliceMut};
use std::ops::Range;
use std::path::{Path, PathBuf};
use std::sync::Arc;

pub use local::LocalFiles;
pub use memory::MemoryStorage;
pub use open::{open_file, open_input, read_file};
pub use stats::{CacheHits, StorageStats};
pub(crate) use stream::Ahead;
pub use stream::FileStream;

use crate::error::{Corruption, Error, Result};

/// Bytes to read first from the end of a file: enough for the index of some ten thousand records, and
/// few enough to take hardly longer than reading one byte.
pub const SUFFIX_BYTES: u64 = 256 << 10;

/// A collection of files, identified by paths.
///
/// A path is composed of the dataset's root and a name, such as `/data/imagenet/forebay.json` or
/// `s3://bucket/imagenet/forebay.json`. Each storage interprets its own paths; errors contain them.
pub trait Storage: fmt::Debug + Send + Sync {
    /// Opens a file for reading. Called before every read: a second call for the same path must be
    /// cheap.
    ///
    /// # Errors
    /// [`NotFound`](io::ErrorKind::NotFound) if the file does not exist, otherwise the error of the
    /// storage.
    fn open(&self, path: &Path) -> io::Result<Arc<dyn ReadAt>>;

    /// Reads a whole small file.
    ///
    /// # Errors
    /// As [`open`](Self::open); [`FileTooLarge`](io::ErrorKind::FileTooLarge) for more than `limit` bytes.
    fn read(&self, path: &Path, limit: u64) -> io::Result<Vec<u8>> {
        let file = self.open(path)?;
        let len = file.len();
        let mut bytes = vec![0; checked_len(len, limit)?];
        file.read_exact_at(&mut bytes, 0)?;
        Ok(bytes)
    }

    /// Returns whether a file with this name exists.
    ///
    /// # Errors
    /// If the storage does not answer.
    fn exists(&self, path: &Path) -> io::Result<bool>;

    /// Returns the names in a directory, unsorted: of files, and possibly of directories.
    ///
    /// # Errors
    /// [`NotFound`](io::ErrorKind::NotFound) if there is no directory,
    /// [`Unsupported`](io::ErrorKind::Unsupported) if names cannot be listed.
    fn list(&self, dir: &Path) -> io::Result<Vec<OsString>>;

    /// Announces that `files` files of a directory will be opened, so that the storage may list the directory once
    /// instead of looking up each file. Advisory.
    fn expect(&self, _dir: &Path, _files: usize) {}

    /// Opens the storage of a location that a dataset refers to: a directory, or a URL that this
    /// storage supports. Returns the path of the location in that storage.
    ///
    /// # Errors
    /// [`Unsupported`](io::ErrorKind::Unsupported) for a URL of another storage.
    fn open_location(&self, location: &str) -> io::Result<(PathBuf, Arc<dyn Storage>)> {
        if location.contains("://") {
            let what = format!("{location} is in no storage that this reader knows");
            return Err(io::Error::new(io::ErrorKind::Unsupported, what));
        }
        Ok((location.into(), Arc::new(LocalFiles::within_limits())))
    }

    /// Returns counters of the reads since the start, if the storage is remote.
    fn stats(&self) -> Option<StorageStats> {
        None
    }

    /// Returns the access pattern that suits this storage.
    fn read_profile(&self) -> ReadProfile {
        ReadProfile::default()
    }
}

/// An open file.
pub trait ReadAt: fmt::Debug + Send + Sync {
    /// Returns the length in bytes.
    fn len(&self) -> u64;

    /// Returns whether the file is empty.
    fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Returns an identifier of this version of the file, such as the ETag of an object. `None` if a copy
    /// of the same bytes would have another identifier, as with the modification times of local files.
    fn version(&self) -> Option<&str> {
        None
    }

    /// Fills `buf` with the bytes from `offset` on.
    ///
    /// # Errors
    /// [`UnexpectedEof`](io::ErrorKind::UnexpectedEof) if the file ends before that, otherwise the
    /// error of the storage.
    fn read_exact_at(&self, buf: &mut [u8], offset: u64) -> io::Result<()>;

    /// Fills several consecutive buffers with the bytes from `offset` on, in one read. Returns the
    /// number of bytes read, which is less than the total length only at the end of the file. The
    /// slices may be advanced.
    ///
    /// # Errors
    /// The error of the storage.
    fn read_parts_at(&self, parts: &mut [IoSliceMut<'_>], offset: u64) -> io::Result<usize> {
        let room: usize = parts.iter().map(|part| part.len()).sum();
        let there = self.len().saturating_sub(offset).min(room as u64) as usize;
        if there == 0 {
            return Ok(0);
        }
        let mut bytes = vec![0; there];
        self.read_exact_at(&mut bytes, offset)?;
        let mut rest = &bytes[..];
        for part in parts {
            let (now, later) = rest.split_at(part.len().min(rest.len()));
            part[..now.len()].copy_from_slice(now);
            rest = later;
        }
        Ok(there)
    }

    /// Announces that these bytes will be read soon. Advisory; returns at once.
    fn will_need(&self, _bytes: Range<u64>) {}

    /// Announces that these bytes will not be read again soon. Advisory; returns at once.
    fn forget(&self, _bytes: Range<u64>) {}
}

/// The access pattern that suits a storage, to which readers adapt.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub struct ReadProfile {
    /// Useful number of concurrent reads.
    pub parallel: usize,
    /// Gap between two requested ranges, in bytes, up to which reading the gap is cheaper than a
    /// separate read.
    pub gap_bytes: u64,
    /// Readahead that a sequential reader announces, in bytes; 0 if the system detects sequential
    /// reads itself.
    pub readahead_bytes: u64,
    /// Bytes to read first from the end of a file to find its index, when its length is unknown.
    pub tail_bytes: u64,
}

impl ReadProfile {
    /// Returns whether each read has network latency, so that many reads must be in flight.
    pub fn is_remote(&self) -> bool {
        self.gap_bytes > 0
    }
}

impl Default for ReadProfile {
    /// Returns the profile of local files.
    fn default() -> Self {
        Self {
            parallel: 8,
            gap_bytes: 0,
            readahead_bytes: 0,
            tail_bytes: SUFFIX_BYTES,
        }
    }
}

/// Returns the length as `usize`, if the file may be read into memory.
fn checked_len(len: u64, limit: u64) -> io::Result<usize> {
    let fits = usize::try_from(len).ok().filter(|_| len <= limit);
    fits.ok_or_else(|| {
        let what = format!("it has {len} bytes: at most {limit} are read");
        io::Error::new(io::ErrorKind::FileTooLarge, what)
    })
}

/// Opens a file.
pub(crate) fn open(storage: &dyn Storage, path: &Path) -> Result<Arc<dyn ReadAt>> {
    storage
        .open(path)
        .map_err(|error| Error::io(path, "open", error))
}

/// Reads bytes at an offset. A file that ends before them counts as truncated.
pub(crate) fn read_exact_at(
    file: &dyn ReadAt,
    path: &Path,
    buf: &mut [u8],
    offset: u64,
) -> Result<()> {
    match file.read_exact_at(buf, offset) {
        Ok(()) => Ok(()),
        Err(error) if error.kind() == io::ErrorKind::UnexpectedEof => {
            let needed = offset.saturating_add(buf.len() as u64);
            let short = format!("a file of {needed} bytes or more");
            Err(
                Corruption::truncated(offset, "file is cut short", short, file.len())
                    .shard(path)
                    .into(),
            )
        }
        Err(error) => Err(Error::io(path, "read", error)),
    }
}

/// Reads a whole file, if it is no longer than `limit` bytes.
pub(crate) fn read_whole(
    storage: &dyn Storage,
    path: &Path,
    limit: u64,
    what: &str,
) -> Result<Vec<u8>> {
    storage.read(path, limit).map_err(|error| {
        if error.kind() == io::ErrorKind::FileTooLarge {
            let problem = format!("too long for {what}: {error}");
            return Error::Unsupported {
                path: path.to_owned(),
                problem,
            };
        }
        Error::io(path, "open", error)
    })
}

/// Returns whether a file exists; errors count as absent, and are reported when the file is opened.
pub(crate) fn exists(storage: &dyn Storage, path: &Path) -> bool {
    storage.exists(path).unwrap_or(false)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn whole_files_have_a_limit() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("x");
        std::fs::write(&path, b"12345").unwrap();
        let files = LocalFiles::new(1);
        assert_eq!(read_whole(&files, &path, 5, "a text").unwrap(), b"12345");
        let error = read_whole(&files, &path, 4, "a text").unwrap_err();
        assert!(
            error.to_string().contains("too long for a text: it has 5"),
            "{error}"
        );
        let error = read_whole(&files, dir.path(), 4, "a text").unwrap_err();
        assert!(error.to_string().contains("it is a directory"), "{error}");
    }
}
