//! Files in memory.

use std::collections::BTreeMap;
use std::ffi::OsString;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use super::{ReadAt, Storage};

/// Files in memory, by path: for tests, and for small datasets that are sent to a process.
///
/// ```
/// use std::path::Path;
/// use forebay_shard::storage::{MemoryStorage, Storage};
///
/// let storage = MemoryStorage::from_iter([("set/labels.txt", "cat\ndog\n")]);
/// assert_eq!(storage.read(Path::new("set/labels.txt"), 100)?, b"cat\ndog\n");
/// # Ok::<(), std::io::Error>(())
/// ```
#[derive(Debug, Clone, Default)]
pub struct MemoryStorage {
    files: BTreeMap<PathBuf, Arc<MemoryFile>>,
}

#[derive(Debug)]
struct MemoryFile(Vec<u8>);

impl MemoryStorage {
    /// Adds a file, or replaces it.
    pub fn insert(&mut self, path: impl Into<PathBuf>, bytes: impl Into<Vec<u8>>) {
        let file = Arc::new(MemoryFile(bytes.into()));
        self.files.insert(path.into(), file);
    }
}

impl<P: Into<PathBuf>, B: Into<Vec<u8>>> FromIterator<(P, B)> for MemoryStorage {
    fn from_iter<I: IntoIterator<Item = (P, B)>>(files: I) -> Self {
        let mut storage = Self::default();
        for (path, bytes) in files {
            storage.insert(path, bytes);
        }
        storage
    }
}

impl Storage for MemoryStorage {
    fn open(&self, path: &Path) -> io::Result<Arc<dyn ReadAt>> {
        let file = self.files.get(path).ok_or(io::ErrorKind::NotFound)?;
        Ok(Arc::<MemoryFile>::clone(file))
    }

    fn exists(&self, path: &Path) -> io::Result<bool> {
        Ok(self.files.contains_key(path))
    }

    fn list(&self, dir: &Path) -> io::Result<Vec<OsString>> {
        let below = self
            .files
            .keys()
            .filter_map(|path| path.strip_prefix(dir).ok());
        let mut names: Vec<OsString> = below
            .filter_map(|path| Some(path.components().next()?.as_os_str().to_owned()))
            .collect();
        names.dedup();
        if names.is_empty() {
            return Err(io::ErrorKind::NotFound.into());
        }
        Ok(names)
    }
}

impl ReadAt for MemoryFile {
    fn len(&self) -> u64 {
        self.0.len() as u64
    }

    fn read_exact_at(&self, buf: &mut [u8], offset: u64) -> io::Result<()> {
        let found = usize::try_from(offset)
            .ok()
            .and_then(|start| self.0.get(start..start.checked_add(buf.len())?));
        buf.copy_from_slice(found.ok_or(io::ErrorKind::UnexpectedEof)?);
        Ok(())
    }
}
