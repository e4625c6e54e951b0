//! Open files, few at a time.
//!
//! A dataset has thousands of shards, a process a thousand descriptors. Each
//! shard asks here for its file; the one that was used longest ago is closed
//! when there are too many.

use std::collections::HashMap;
use std::fs::File;
use std::io;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError};

use crate::error::{Corruption, Error, Result};

/// How many files a dataset keeps open, and at most this part of what the
/// process may have.
const MOST_FILES: usize = 256;
const PART_OF_LIMIT: u64 = 4;

/// Files that are kept open.
#[derive(Debug)]
pub(crate) struct Files {
    most: usize,
    open: Mutex<Open>,
}

#[derive(Debug, Default)]
struct Open {
    files: HashMap<PathBuf, (Arc<File>, u64)>,
    clock: u64,
}

impl Files {
    /// Keeps up to `most` files open.
    pub(crate) fn new(most: usize) -> Self {
        Self {
            most: most.max(1),
            open: Mutex::default(),
        }
    }

    /// Keeps as many open as the process's limit allows.
    pub(crate) fn within_limits() -> Self {
        let limit = rustix::process::getrlimit(rustix::process::Resource::Nofile).current;
        let most = limit.map_or(MOST_FILES, |limit| (limit / PART_OF_LIMIT) as usize);
        Self::new(most.min(MOST_FILES))
    }

    /// The file at `path`, opened if it is not.
    pub(crate) fn get(&self, path: &Path) -> io::Result<Arc<File>> {
        // A panic elsewhere leaves a map of open files: still right.
        let mut open = self.open.lock().unwrap_or_else(PoisonError::into_inner);
        open.clock += 1;
        let now = open.clock;
        if let Some((file, used)) = open.files.get_mut(path) {
            *used = now;
            return Ok(Arc::clone(file));
        }
        if open.files.len() >= self.most {
            let oldest = open.files.iter().min_by_key(|(_, (_, used))| *used);
            if let Some(oldest) = oldest.map(|(path, _)| path.clone()) {
                open.files.remove(&oldest);
            }
        }
        let file = Arc::new(File::open(path)?);
        open.files.insert(path.to_owned(), (Arc::clone(&file), now));
        Ok(file)
    }
}

/// Reads bytes at a place of a file; a file that ends before them is damage.
pub(crate) fn read_exact_at(file: &File, path: &Path, buf: &mut [u8], offset: u64) -> Result<()> {
    match file.read_exact_at(buf, offset) {
        Ok(()) => Ok(()),
        Err(error) if error.kind() == io::ErrorKind::UnexpectedEof => {
            let len = file.metadata().map_or(0, |metadata| metadata.len());
            let needed = offset.saturating_add(buf.len() as u64);
            let short = format!("a file of {needed} bytes or more");
            Err(Corruption::new(offset, "file is cut short", short, len)
                .shard(path)
                .into())
        }
        Err(error) => Err(Error::io(path, "read", error)),
    }
}

/// Opens a regular file and tells its length.
pub(crate) fn open(files: &Files, path: &Path) -> Result<(Arc<File>, u64)> {
    let file = files
        .get(path)
        .map_err(|error| Error::io(path, "open", error))?;
    let metadata = file
        .metadata()
        .map_err(|error| Error::io(path, "open", error))?;
    if !metadata.is_file() {
        let problem = "is not a regular file".to_owned();
        return Err(Error::Unsupported {
            path: path.to_owned(),
            problem,
        });
    }
    Ok((file, metadata.len()))
}

/// Reads a file whole, if it is no longer than `limit` bytes.
pub(crate) fn read_whole(path: &Path, limit: u64, what: &str) -> Result<Vec<u8>> {
    let files = Files::new(1);
    let (file, len) = open(&files, path)?;
    if len > limit {
        let problem = format!("{what} of {len} bytes: at most {limit} are read");
        return Err(Error::Unsupported {
            path: path.to_owned(),
            problem,
        });
    }
    let mut bytes = vec![0; len as usize];
    read_exact_at(&file, path, &mut bytes, 0)?;
    Ok(bytes)
}
