//! The seam between shards and the places where their bytes are.
//!
//! A [`Storage`] opens files by path, a [`ReadAt`] reads ranges of their bytes. All readers of this crate go through
//! these two. [`LocalFiles`] and [`MemoryStorage`] are built in; implement both traits for another place, such as an
//! object store or a cache. Reads are blocking and come from many threads at once.

#[cfg(any(test, feature = "conformance"))]
pub mod conformance;
mod local;
mod memory;
mod stats;
mod stream;

use std::ffi::OsString;
use std::fmt;
use std::io::{self, IoSliceMut};
use std::ops::Range;
use std::path::Path;
use std::sync::Arc;

pub use local::LocalFiles;
pub use memory::MemoryStorage;
pub use stats::{CacheHits, StorageStats};
pub(crate) use stream::Ahead;
pub use stream::Stream;

use crate::error::{Corruption, Error, Result};

/// A place that holds files.
///
/// A path is what the caller makes of the dataset's root and a name, such as `/data/imagenet/forebay.json`, or
/// `s3://bucket/imagenet/forebay.json`: it is what errors show, and each storage knows its own.
pub trait Storage: fmt::Debug + Send + Sync {
    /// Opens a file to be read. Called before every read: a second call for the same path must be cheap.
    ///
    /// # Errors
    /// [`NotFound`](io::ErrorKind::NotFound) where there is none, everything else that the storage answers.
    fn open(&self, path: &Path) -> io::Result<Arc<dyn ReadAt>>;

    /// Reads a small file whole.
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

    /// Whether there is a file of this name.
    ///
    /// # Errors
    /// When the storage does not answer.
    fn exists(&self, path: &Path) -> io::Result<bool>;

    /// The names in a directory, in no order: of files, and possibly of directories.
    ///
    /// # Errors
    /// [`NotFound`](io::ErrorKind::NotFound) for no directory, [`Unsupported`](io::ErrorKind::Unsupported) where names
    /// cannot be listed.
    fn list(&self, dir: &Path) -> io::Result<Vec<OsString>>;

    /// Tells that so many files of a directory are about to be opened, so that one question may do for all. Advice.
    fn expect(&self, _dir: &Path, _files: usize) {}

    /// Returns counts of the reads so far, for a storage behind a network.
    fn stats(&self) -> Option<StorageStats> {
        None
    }

    /// How reading goes well here.
    fn read_profile(&self) -> ReadProfile {
        ReadProfile::default()
    }
}

/// An open file.
pub trait ReadAt: fmt::Debug + Send + Sync {
    /// Its bytes.
    fn len(&self) -> u64;

    /// Whether there are none.
    fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Fills `buf` with what begins at byte `offset`.
    ///
    /// # Errors
    /// [`UnexpectedEof`](io::ErrorKind::UnexpectedEof) where the file ends before that; what the storage answers.
    fn read_exact_at(&self, buf: &mut [u8], offset: u64) -> io::Result<()>;

    /// Fills several buffers, one after the other, with what begins at byte `offset`, in one read. Gives how many bytes
    /// came: fewer than there is room for only at the end of the file. The slices may be advanced.
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

    /// Tells that these bytes will be read soon. Advice; returns at once.
    fn will_need(&self, _bytes: Range<u64>) {}

    /// Tells that these bytes will not be read again soon. Advice; returns at once.
    fn forget(&self, _bytes: Range<u64>) {}
}

/// How reading goes well somewhere: what readers above go by.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub struct ReadProfile {
    /// Reads at the same time that are worth it.
    pub parallel: usize,
    /// Bytes between two wanted ranges that cost less to read over than a read of its own.
    pub gap_bytes: u64,
    /// How far ahead a reader that goes on in order tells what it will need; 0 where the system sees that by itself.
    pub readahead_bytes: u64,
    /// How much of a file's end to read for its index, before it is known how long that is.
    pub tail_bytes: u64,
}

impl ReadProfile {
    /// Whether each read waits for a network: then many have to be on their way at once.
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
            tail_bytes: crate::index::SUFFIX_BYTES,
        }
    }
}

/// A length that may be read into memory.
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

/// Reads bytes at a place of a file; a file that ends before them is damage.
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

/// Reads a file whole, if it is no longer than `limit` bytes.
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

/// Whether there is a file; what cannot be looked at is not there, and says why when it is opened.
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
