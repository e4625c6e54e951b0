//! Files of this machine, kept open a few at a time.
//!
//! A dataset has thousands of shards, a process a thousand descriptors. Each shard asks here for its file; the one that
//! was used longest ago is closed when there are too many.

use std::collections::HashMap;
use std::ffi::OsString;
use std::fs::File;
use std::io::{self, IoSliceMut};
use std::num::NonZero;
use std::ops::Range;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, OnceLock, PoisonError};

use super::{Pace, ReadAt, Storage};

/// How many files a dataset keeps open, and at most this part of what the
/// process may have.
const MOST_FILES: usize = 256;
const PART_OF_LIMIT: u64 = 4;

/// Local files, of which only so many are open at a time.
#[derive(Debug)]
pub struct LocalFiles {
    most: usize,
    open: Mutex<Open>,
}

#[derive(Debug, Default)]
struct Open {
    files: HashMap<PathBuf, (Arc<LocalFile>, u64)>,
    clock: u64,
}

impl LocalFiles {
    /// Keeps up to `most` files open.
    pub fn new(most: usize) -> Self {
        Self {
            most: most.max(1),
            open: Mutex::default(),
        }
    }

    /// Keeps as many open as the process's limit allows.
    pub fn within_limits() -> Self {
        let limit = rustix::process::getrlimit(rustix::process::Resource::Nofile).current;
        let most = limit.map_or(MOST_FILES, |limit| (limit / PART_OF_LIMIT) as usize);
        Self::new(most.min(MOST_FILES))
    }
}

impl Storage for LocalFiles {
    fn open(&self, path: &Path) -> io::Result<Arc<dyn ReadAt>> {
        // A panic elsewhere leaves a map of open files: still right.
        let mut open = self.open.lock().unwrap_or_else(PoisonError::into_inner);
        open.clock += 1;
        let now = open.clock;
        if let Some((file, used)) = open.files.get_mut(path) {
            *used = now;
            return Ok(Arc::<LocalFile>::clone(file));
        }
        if open.files.len() >= self.most {
            let oldest = open.files.iter().min_by_key(|(_, (_, used))| *used);
            if let Some(oldest) = oldest.map(|(path, _)| path.clone()) {
                open.files.remove(&oldest);
            }
        }
        let file = Arc::new(LocalFile::open(path)?);
        open.files.insert(path.to_owned(), (Arc::clone(&file), now));
        Ok(file)
    }

    fn exists(&self, path: &Path) -> io::Result<bool> {
        match std::fs::metadata(path) {
            Ok(metadata) => Ok(metadata.is_file()),
            Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(false),
            Err(error) => Err(error),
        }
    }

    fn list(&self, dir: &Path) -> io::Result<Vec<OsString>> {
        std::fs::read_dir(dir)?
            .map(|entry| Ok(entry?.file_name()))
            .collect()
    }

    fn pace(&self) -> Pace {
        // Asking the system means reading files.
        static CORES: OnceLock<usize> = OnceLock::new();
        let cores = || std::thread::available_parallelism().map_or(1, NonZero::get);
        Pace {
            parallel: (*CORES.get_or_init(cores)).min(8),
            ..Pace::default()
        }
    }
}

/// An open regular file.
#[derive(Debug)]
struct LocalFile {
    file: File,
    /// When it was opened.
    len: u64,
}

impl LocalFile {
    fn open(path: &Path) -> io::Result<Self> {
        let file = File::open(path)?;
        let metadata = file.metadata()?;
        if !metadata.is_file() {
            let what = "it is not a regular file";
            return Err(io::Error::new(io::ErrorKind::InvalidInput, what));
        }
        let len = metadata.len();
        Ok(Self { file, len })
    }

    #[cfg(target_os = "linux")]
    fn advise(&self, bytes: Range<u64>, advice: rustix::fs::Advice) {
        // A length of 0 would mean everything.
        if let Some(len) = std::num::NonZeroU64::new(bytes.end.saturating_sub(bytes.start)) {
            let _ = rustix::fs::fadvise(&self.file, bytes.start, Some(len), advice);
        }
    }
}

impl ReadAt for LocalFile {
    fn len(&self) -> u64 {
        self.file
            .metadata()
            .map_or(self.len, |metadata| metadata.len())
    }

    fn read_exact_at(&self, buf: &mut [u8], offset: u64) -> io::Result<()> {
        self.file.read_exact_at(buf, offset)
    }

    fn read_parts_at(&self, mut parts: &mut [IoSliceMut<'_>], offset: u64) -> io::Result<usize> {
        let mut done = 0;
        while !parts.is_empty() {
            match rustix::io::preadv(&self.file, parts, offset + done as u64) {
                Ok(0) => break,
                Ok(read) => {
                    done += read;
                    IoSliceMut::advance_slices(&mut parts, read);
                }
                Err(rustix::io::Errno::INTR) => {}
                Err(error) => return Err(error.into()),
            }
        }
        Ok(done)
    }

    #[cfg(target_os = "linux")]
    fn will_need(&self, bytes: Range<u64>) {
        self.advise(bytes, rustix::fs::Advice::WillNeed);
    }

    #[cfg(target_os = "linux")]
    fn forget(&self, bytes: Range<u64>) {
        self.advise(bytes, rustix::fs::Advice::DontNeed);
    }
}
