//! Access to the bytes of an archive: a local file, or an object in a store.

use crate::error::{Error, Result};
use forebay_store::{Object, Store};
use std::cell::Cell;
use std::fs::File;
use std::io;
use std::os::unix::fs::{FileExt, MetadataExt};
use std::path::{Path, PathBuf};
use std::sync::Arc;

/// Positioned reads, which do not move a file position.
pub(crate) trait ReadAt {
    /// Reads once into `out`. Returns the number of bytes, 0 at the end.
    fn read_at(&self, out: &mut [u8], at: u64) -> io::Result<usize>;

    /// Fills all of `out`.
    fn read_exact_at(&self, mut out: &mut [u8], mut at: u64) -> io::Result<()> {
        while !out.is_empty() {
            match self.read_at(out, at) {
                Ok(0) => return Err(io::ErrorKind::UnexpectedEof.into()),
                Ok(read) => {
                    at += read as u64;
                    out = out.get_mut(read..).unwrap_or_default();
                }
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) => return Err(error),
            }
        }
        Ok(())
    }
}

/// Location of an archive.
#[derive(Debug, Clone)]
pub enum Archive {
    /// A local file.
    Local(PathBuf),
    /// The object with this key.
    Object(Store, String),
}

impl Archive {
    /// Returns the path for messages, which the paths of members begin with.
    pub(crate) fn shown(&self) -> PathBuf {
        match self {
            Self::Local(path) => path.clone(),
            Self::Object(store, key) => PathBuf::from(store.location().join(key).to_string()),
        }
    }

    pub(crate) fn is_object(&self) -> bool {
        matches!(self, Self::Object(..))
    }

    /// Opens the archive. Returns its bytes, and a value that changes when the archive changes.
    pub(crate) fn open(&self) -> Result<(ArchiveFile, i128)> {
        let absent = "there is no such directory or archive";
        match self {
            Self::Local(path) => {
                let fail = |error: io::Error| match error.kind() {
                    io::ErrorKind::NotFound => Error::source(path, absent),
                    _ => Error::io(path, "open", error),
                };
                let file = forebay_shard::storage::open_file(path).map_err(fail)?;
                let meta = file.metadata().map_err(fail)?;
                let modified =
                    i128::from(meta.mtime()) * 1_000_000_000 + i128::from(meta.mtime_nsec());
                Ok((ArchiveFile::Local(Arc::new(file), meta.len()), modified))
            }
            Self::Object(store, key) => {
                let found = store.head(key)?;
                let object = found.ok_or_else(|| Error::source(self.shown(), absent))?;
                let identity = identity(&object);
                let file = ObjectFile {
                    store: store.clone(),
                    object: Arc::new(object),
                };
                Ok((ArchiveFile::Object(file), identity))
            }
        }
    }
}

impl From<&Path> for Archive {
    fn from(path: &Path) -> Self {
        Self::Local(path.to_path_buf())
    }
}

/// Returns a hash that identifies the version of an object.
pub(crate) fn identity(object: &Object) -> i128 {
    let mut hasher = blake3::Hasher::new();
    hasher.update(object.key.as_bytes()).update(b"\0");
    hasher.update(&object.len.to_le_bytes());
    match (&object.etag, object.modified) {
        (Some(etag), _) => {
            hasher.update(etag.as_bytes());
        }
        (None, Some(modified)) => {
            let since = modified.duration_since(std::time::UNIX_EPOCH);
            hasher.update(&since.unwrap_or_default().as_nanos().to_le_bytes());
        }
        (None, None) => {}
    }
    let mut bytes = [0; 16];
    hasher.finalize_xof().fill(&mut bytes);
    i128::from_le_bytes(bytes)
}

/// An open archive.
#[derive(Debug, Clone)]
pub(crate) enum ArchiveFile {
    /// A file and its length in bytes.
    Local(Arc<File>, u64),
    Object(ObjectFile),
}

/// An object that is read in ranges. All reads return the same version of the object.
#[derive(Debug, Clone)]
pub(crate) struct ObjectFile {
    store: Store,
    object: Arc<Object>,
}

impl ArchiveFile {
    pub(crate) fn len(&self) -> u64 {
        match self {
            Self::Local(_, len) => *len,
            Self::Object(object) => object.len(),
        }
    }

    pub(crate) fn is_object(&self) -> bool {
        matches!(self, Self::Object(_))
    }

    /// Returns the file, if the archive is local.
    pub(crate) fn local(&self) -> Option<&File> {
        match self {
            Self::Local(file, _) => Some(file),
            Self::Object(_) => None,
        }
    }
}

impl ReadAt for ArchiveFile {
    fn read_at(&self, out: &mut [u8], at: u64) -> io::Result<usize> {
        match self {
            Self::Local(file, _) => FileExt::read_at(&**file, out, at),
            Self::Object(object) => object.read_at(out, at),
        }
    }
}

impl ObjectFile {
    pub(crate) fn len(&self) -> u64 {
        self.object.len
    }
}

impl ReadAt for ObjectFile {
    fn read_at(&self, out: &mut [u8], at: u64) -> io::Result<usize> {
        let there = self.len().saturating_sub(at).min(out.len() as u64) as usize;
        if there == 0 {
            return Ok(0);
        }
        let out = out.get_mut(..there).unwrap_or_default();
        self.store.read_at_if(&self.object, at, out)?;
        Ok(there)
    }
}

/// A part of an archive that was fetched with one request. Reads inside the part need no further request.
#[derive(Debug)]
pub(crate) struct Fetched<'a> {
    file: &'a ArchiveFile,
    start: u64,
    bytes: Vec<u8>,
    failed: Cell<bool>,
}

impl<'a> Fetched<'a> {
    /// Fetches `len` bytes from `start`, or fewer at the end.
    pub(crate) fn new(file: &'a ArchiveFile, start: u64, len: u64) -> io::Result<Self> {
        let len = len.min(file.len().saturating_sub(start));
        let len = usize::try_from(len).map_err(|_| io::ErrorKind::OutOfMemory)?;
        let mut bytes = vec![0; len];
        file.read_exact_at(&mut bytes, start)?;
        Ok(Self {
            file,
            start,
            bytes,
            failed: Cell::new(false),
        })
    }

    /// Returns whether a read beyond the fetched part failed because the archive could not be read.
    pub(crate) fn failed(&self) -> bool {
        self.failed.get()
    }
}

impl ReadAt for Fetched<'_> {
    fn read_at(&self, out: &mut [u8], at: u64) -> io::Result<usize> {
        let from = at
            .checked_sub(self.start)
            .and_then(|from| usize::try_from(from).ok());
        let there = from
            .and_then(|from| self.bytes.get(from..))
            .unwrap_or_default();
        if there.is_empty() {
            let read = self.file.read_at(out, at);
            self.failed.set(self.failed.get() || read.is_err());
            return read;
        }
        let count = there.len().min(out.len());
        if let (Some(out), Some(there)) = (out.get_mut(..count), there.get(..count)) {
            out.copy_from_slice(there);
        }
        Ok(count)
    }
}

/// Returns the little-endian number at an offset; 0 beyond the end.
pub(crate) fn u16_at(bytes: &[u8], at: usize) -> u16 {
    let found = bytes.get(at..).and_then(|rest| rest.first_chunk());
    found.map_or(0, |found| u16::from_le_bytes(*found))
}

/// As [`u16_at`].
pub(crate) fn u32_at(bytes: &[u8], at: usize) -> u32 {
    let found = bytes.get(at..).and_then(|rest| rest.first_chunk());
    found.map_or(0, |found| u32::from_le_bytes(*found))
}

/// As [`u16_at`].
pub(crate) fn u64_at(bytes: &[u8], at: usize) -> u64 {
    let found = bytes.get(at..).and_then(|rest| rest.first_chunk());
    found.map_or(0, |found| u64::from_le_bytes(*found))
}
