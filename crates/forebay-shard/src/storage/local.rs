//! Local files: limits the number of open files, and gives prefetch hints when they help.
//!
//! A dataset has thousands of shards, and a process about a thousand descriptors. Each shard opens its file
//! through this cache, which closes the least recently used file when the limit is reached.

use std::collections::HashMap;
use std::ffi::OsString;
use std::fs::File;
use std::io::{self, IoSliceMut};
use std::num::NonZero;
use std::ops::Range;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, Mutex, OnceLock, PoisonError};

use super::{ReadAt, ReadProfile, Storage};

const PART_OF_LIMIT: u64 = 4;

/// Number of prefetch hints that are given after a read that had to wait. The next read then goes without a hint,
/// to test whether it still waits. A hint costs a third of a read from the page cache; disks need hints
/// to stay busy.
const TOLD: u32 = 256;

/// Local files, with a limit of open files.
#[derive(Debug)]
pub struct LocalFiles {
    most: usize,
    open: Mutex<Open>,
    hints: Arc<Hints>,
}

/// Decides whether the system is given prefetch hints.
#[derive(Debug, Default)]
struct Hints {
    /// Remaining hints. At 0, reads go without a hint and are observed.
    left: AtomicU32,
}

impl Hints {
    #[cfg(target_os = "linux")]
    fn take(&self) -> bool {
        let less = |left: u32| left.checked_sub(1);
        let took = self
            .left
            .fetch_update(Ordering::Relaxed, Ordering::Relaxed, less);
        took.is_ok()
    }

    #[cfg(target_os = "linux")]
    fn are_watching(&self) -> bool {
        self.left.load(Ordering::Relaxed) == 0
    }

    /// Notes that a read had to wait, or may have.
    #[cfg(target_os = "linux")]
    fn had_to_wait(&self) {
        self.left.store(TOLD, Ordering::Relaxed);
    }
}

#[derive(Debug, Default)]
struct Open {
    files: HashMap<PathBuf, (Arc<LocalFile>, u64)>,
    clock: u64,
}

impl LocalFiles {
    /// Maximum number of files that a dataset keeps open; the descriptor limit of the process may
    /// lower it.
    pub const MOST_FILES: usize = 256;

    /// Creates a storage that keeps up to `most` files open.
    pub fn new(most: usize) -> Self {
        Self {
            most: most.max(1),
            open: Mutex::default(),
            hints: Arc::default(),
        }
    }

    /// Creates a storage that keeps as many files open as the process's limit allows.
    pub fn within_limits() -> Self {
        let limit = rustix::process::getrlimit(rustix::process::Resource::Nofile).current;
        let most = limit.map_or(Self::MOST_FILES, |limit| (limit / PART_OF_LIMIT) as usize);
        Self::new(most.min(Self::MOST_FILES))
    }

    /// Returns the maximum number of files that it keeps open.
    pub fn most_files(&self) -> usize {
        self.most
    }
}

impl Storage for LocalFiles {
    fn open(&self, path: &Path) -> io::Result<Arc<dyn ReadAt>> {
        // The map of open files is valid even after a panic in another thread.
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
        let file = Arc::new(LocalFile::open(path, &self.hints)?);
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

    fn read_profile(&self) -> ReadProfile {
        // Cached, because the system call reads files.
        static CORES: OnceLock<usize> = OnceLock::new();
        let cores = || std::thread::available_parallelism().map_or(1, NonZero::get);
        ReadProfile {
            parallel: (*CORES.get_or_init(cores)).min(8),
            ..ReadProfile::default()
        }
    }
}

/// An open regular file.
#[derive(Debug)]
struct LocalFile {
    file: File,
    /// Length when it was opened.
    len: u64,
    hints: Arc<Hints>,
}

impl LocalFile {
    fn open(path: &Path, hints: &Arc<Hints>) -> io::Result<Self> {
        let file = crate::storage::open_file(path)?;
        let len = file.metadata()?.len();
        let hints = Arc::clone(hints);
        Ok(Self { file, len, hints })
    }

    /// If reads are observed, reads the bytes that are in the page cache without waiting, and returns their number.
    /// Reading the remaining bytes may have to wait, which is noted.
    #[cfg(target_os = "linux")]
    fn read_present(&self, parts: &mut [IoSliceMut<'_>], offset: u64) -> usize {
        if !self.hints.are_watching() {
            return 0;
        }
        let wanted: usize = parts.iter().map(|part| part.len()).sum();
        let flags = rustix::io::ReadWriteFlags::NOWAIT;
        // Without support by the file system, the read counts as one that has to wait.
        let read = rustix::io::preadv2(&self.file, parts, offset, flags).unwrap_or(0);
        let end = offset.saturating_add(read as u64);
        if read < wanted && end < self.len {
            self.hints.had_to_wait();
        }
        read
    }

    #[cfg(not(target_os = "linux"))]
    fn read_present(&self, _parts: &mut [IoSliceMut<'_>], _offset: u64) -> usize {
        0
    }

    #[cfg(target_os = "linux")]
    fn advise(&self, bytes: Range<u64>, advice: rustix::fs::Advice) {
        // A length of 0 would mean the whole file.
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
        let read = self.read_present(&mut [IoSliceMut::new(buf)], offset);
        let (_, rest) = buf.split_at_mut(read.min(buf.len()));
        if rest.is_empty() {
            return Ok(());
        }
        self.file.read_exact_at(rest, offset + read as u64)
    }

    fn read_parts_at(&self, mut parts: &mut [IoSliceMut<'_>], offset: u64) -> io::Result<usize> {
        let mut done = self.read_present(parts, offset);
        IoSliceMut::advance_slices(&mut parts, done);
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
        if self.hints.take() {
            self.advise(bytes, rustix::fs::Advice::WillNeed);
        }
    }

    #[cfg(target_os = "linux")]
    fn forget(&self, bytes: Range<u64>) {
        self.advise(bytes, rustix::fs::Advice::DontNeed);
    }
}

#[cfg(test)]
#[cfg(target_os = "linux")]
mod tests {
    use super::*;

    /// After a read that had to wait, a number of reads get a hint, and the next one gets none.
    #[test]
    fn hints_are_given_while_reads_have_to_wait() {
        let hints = Hints::default();
        assert!(hints.are_watching() && !hints.take());
        for _ in 0..2 {
            hints.had_to_wait();
            for _ in 0..TOLD {
                assert!(!hints.are_watching() && hints.take());
            }
            assert!(hints.are_watching() && !hints.take());
        }
    }

    /// In any state of the hints, and whatever the system returns, reads return the bytes of the
    /// file.
    #[test]
    fn reads_do_not_depend_on_hints() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("x");
        let bytes: Vec<u8> = (0..100_000u32).map(|i| ((i * 7) >> 3) as u8).collect();
        std::fs::write(&path, &bytes).unwrap();
        let files = LocalFiles::new(1);
        for left in [0, 5] {
            files.hints.left.store(left, Ordering::Relaxed);
            let file = files.open(&path).unwrap();
            for (offset, len) in [(0, 100_000), (99_999, 1), (5, 0), (1000, 50_000)] {
                let mut buf = vec![0; len];
                file.read_exact_at(&mut buf, offset as u64).unwrap();
                assert!(buf == bytes[offset..offset + len]);
            }
            let mut beyond = [0; 11];
            let error = file.read_exact_at(&mut beyond, 99_990).unwrap_err();
            assert_eq!(error.kind(), io::ErrorKind::UnexpectedEof);
            // Bytes that were just written are in the page cache, so no hints are needed.
            file.will_need(0..100_000);
        }
    }
}
