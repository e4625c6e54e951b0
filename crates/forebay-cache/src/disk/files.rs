//! A small cache of open block files, so that the header of a block is not verified at each read.

use std::collections::HashMap;
use std::fs::File;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

use rustix::fs::{Timespec, Timestamps};

use super::super::block::Header;
use super::super::object_id::ObjectId;

/// Maximum number of open files: enough that reads of single records find their block open.
const MOST_FILES: usize = 64;
/// At most 1/16 of the process's limit of open files is used.
const PART_OF_LIMIT: u64 = 16;
/// The shortest time between two updates of a block's time of use. Evictions compare times of whole epochs.
pub(super) const NOTED_EVERY_NS: u64 = 1_000_000_000;

/// An open block file with its header.
#[derive(Debug)]
pub(super) struct OpenFile {
    pub(super) file: File,
    pub(super) header: Header,
    noted: AtomicU64,
}

impl OpenFile {
    pub(super) fn new(file: File, header: Header, used_at: u64) -> Self {
        Self {
            file,
            header,
            noted: AtomicU64::new(used_at),
        }
    }

    /// Sets the file's modification time to the time of use, for all processes.
    pub(super) fn note_use(&self, now: u64) {
        let noted = self.noted.load(Ordering::Relaxed);
        if now.abs_diff(noted) < NOTED_EVERY_NS {
            return;
        }
        self.noted.store(now, Ordering::Relaxed);
        let time = Timespec {
            tv_sec: (now / 1_000_000_000) as _,
            tv_nsec: (now % 1_000_000_000) as _,
        };
        let times = Timestamps {
            last_access: time,
            last_modification: time,
        };
        // The time is only a hint for evictions.
        let _ = rustix::fs::futimens(&self.file, &times);
    }
}

type Key = (ObjectId, u64);

/// The most recently used files.
#[derive(Debug)]
pub(super) struct OpenFiles {
    most: usize,
    open: Mutex<Open>,
}

#[derive(Debug, Default)]
struct Open {
    files: HashMap<Key, (Arc<OpenFile>, u64)>,
    clock: u64,
}

impl OpenFiles {
    pub(super) fn within_limits() -> Self {
        let limit = rustix::process::getrlimit(rustix::process::Resource::Nofile).current;
        let most = limit.map_or(MOST_FILES, |limit| (limit / PART_OF_LIMIT) as usize);
        Self {
            most: most.min(MOST_FILES),
            open: Mutex::default(),
        }
    }

    fn lock(&self) -> std::sync::MutexGuard<'_, Open> {
        // A panic cannot leave the map inconsistent.
        self.open.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(super) fn get(&self, key: Key) -> Option<Arc<OpenFile>> {
        let mut open = self.lock();
        open.clock += 1;
        let now = open.clock;
        let (file, used) = open.files.get_mut(&key)?;
        *used = now;
        Some(Arc::clone(file))
    }

    pub(super) fn put(&self, key: Key, file: Arc<OpenFile>) {
        let mut open = self.lock();
        if self.most == 0 {
            return;
        }
        if open.files.len() >= self.most && !open.files.contains_key(&key) {
            let oldest = open.files.iter().min_by_key(|(_, (_, used))| *used);
            if let Some(oldest) = oldest.map(|(key, _)| *key) {
                open.files.remove(&oldest);
            }
        }
        open.clock += 1;
        let now = open.clock;
        open.files.insert(key, (file, now));
    }

    pub(super) fn remove(&self, key: Key) {
        self.lock().files.remove(&key);
    }

    /// Closes all files that are not being read, because the process has too many files open.
    pub(super) fn clear(&self) {
        self.lock().files.clear();
    }
}
