//! A stand-in for a page cache that holds fewer files than a dataset has.

use std::collections::{BTreeMap, HashMap};
use std::ffi::OsString;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

use forebay_shard::storage::{LocalFiles, ReadAt, Storage};

use crate::Result;
use crate::cold::{Cold, Evictor, Footprint};

/// Local files of which a limited number stays in the page cache: opening a file drops the least recently used one.
#[derive(Debug)]
pub(super) struct SmallMemory {
    files: LocalFiles,
    evictor: Evictor,
    recent: Mutex<Recent>,
    hits: AtomicU64,
}

/// Files by the time of their last use.
#[derive(Debug)]
struct Recent {
    limit: usize,
    /// Number of the last use; uses are counted from 1.
    last: u64,
    by_use: BTreeMap<u64, PathBuf>,
    uses: HashMap<PathBuf, u64>,
}

impl SmallMemory {
    /// Creates a memory that holds these files, ordered by their last use, and has room for no more.
    ///
    /// # Errors
    /// The system cannot drop the pages of a file.
    pub(super) fn holding<'f>(files: impl IntoIterator<Item = &'f Path>) -> Result<Self> {
        let mut recent = Recent {
            limit: usize::MAX,
            last: 0,
            by_use: BTreeMap::new(),
            uses: HashMap::new(),
        };
        for file in files {
            recent.touch(file);
        }
        recent.limit = recent.uses.len();
        Ok(Self {
            files: LocalFiles::within_limits(),
            evictor: Evictor::new(Cold::Advise)?,
            recent: Mutex::new(recent),
            hits: AtomicU64::new(0),
        })
    }

    /// Returns the number of opens that found their file in memory.
    pub(super) fn hits(&self) -> u64 {
        self.hits.load(Ordering::Relaxed)
    }
}

impl Recent {
    /// Marks a file as used. Returns whether it was held, and the file that is dropped for it.
    fn touch(&mut self, file: &Path) -> (bool, Option<PathBuf>) {
        self.last += 1;
        let before = self.uses.insert(file.to_owned(), self.last);
        if let Some(before) = before {
            self.by_use.remove(&before);
        }
        self.by_use.insert(self.last, file.to_owned());
        let leaves = match self.by_use.len() > self.limit {
            true => self.by_use.pop_first().map(|(_, file)| file),
            false => None,
        };
        if let Some(file) = &leaves {
            self.uses.remove(file);
        }
        (before.is_some(), leaves)
    }
}

impl Storage for SmallMemory {
    fn open(&self, path: &Path) -> io::Result<Arc<dyn ReadAt>> {
        let (is_held, leaves) = {
            let mut recent = self.recent.lock().unwrap_or_else(PoisonError::into_inner);
            recent.touch(path)
        };
        self.hits.fetch_add(u64::from(is_held), Ordering::Relaxed);
        if let Some(file) = leaves {
            let dropped = self.evictor.evict(&Footprint::files([file]));
            dropped.map_err(io::Error::other)?;
        }
        self.files.open(path)
    }

    fn exists(&self, path: &Path) -> io::Result<bool> {
        self.files.exists(path)
    }

    fn list(&self, dir: &Path) -> io::Result<Vec<OsString>> {
        self.files.list(dir)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_least_recently_used_file_is_dropped() {
        let path = Path::new;
        let memory = SmallMemory::holding([path("a"), path("b"), path("a"), path("c")]).unwrap();
        let mut recent = memory.recent.into_inner().unwrap();
        let left = |name: &str| Some(path(name).to_owned());
        assert_eq!(recent.touch(path("d")), (false, left("b")));
        assert_eq!(recent.touch(path("a")), (true, None));
        assert_eq!(recent.touch(path("b")), (false, left("c")));
        assert_eq!(recent.touch(path("e")), (false, left("d")));
        let empty = SmallMemory::holding([]).unwrap();
        let mut recent = empty.recent.into_inner().unwrap();
        assert_eq!(recent.touch(path("a")), (false, left("a")));
    }

    #[test]
    fn opens_count_hits_and_return_the_file() {
        let dir = tempfile::tempdir().unwrap();
        let files = ["a", "b"].map(|name| {
            let path = dir.path().join(name);
            std::fs::write(&path, name).unwrap();
            path
        });
        let memory = SmallMemory::holding([files[0].as_path()]).unwrap();
        for (path, hits) in [
            (&files[0], 1),
            (&files[1], 1),
            (&files[1], 2),
            (&files[0], 2),
        ] {
            let bytes = memory.read(path, 10).unwrap();
            assert_eq!(bytes, path.file_name().unwrap().as_encoded_bytes());
            assert_eq!(memory.hits(), hits, "{path:?}");
        }
        assert!(memory.open(&dir.path().join("c")).is_err());
    }
}
