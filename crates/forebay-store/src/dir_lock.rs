//! One writer per directory. The error of a second writer names the process that holds the lock.
//!
//! The lock is a `flock` on a file in the directory. It belongs to the open file, so the kernel releases it however the
//! process ends; a lock file that stays after a crash locks no process out. Where the file system has no `flock`
//! (some network file systems), a second file that only one process can create replaces it: see `owner_file`.
//!
//! The lock can also be shared by any number of processes; while it is shared, no process can hold it exclusively.

mod owner_file;

use crate::file_lock::FileLock;
use crate::{Error, Result};
use owner_file::OwnerFile;
use rustix::fs::FlockOperation;
use rustix::io::Errno;
use std::fs::{File, OpenOptions};
use std::io::{Read, Write};
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

/// The name of the lock file. Hidden, so that no reader's glob takes it for data.
const LOCK_NAME: &str = ".forebay-lock";
/// The largest number of bytes read from a lock file. The note of a holder is shorter (a host name has at most 255 bytes).
const NOTE_MAX_BYTES: u64 = 512;

/// A lock on a directory, held until it is dropped.
#[derive(Debug)]
pub struct DirLock {
    path: PathBuf,
    lock: FileLock,
    hold: Hold,
    has_flock: bool,
    // Set if this process holds the lock exclusively on a file system without `flock`.
    _owner: Option<OwnerFile>,
}

/// Whether others may hold the lock as well.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Hold {
    Alone,
    Shared,
}

impl DirLock {
    /// The name of the file that the lock is on.
    pub const FILE_NAME: &'static str = LOCK_NAME;
    /// The name of the additional file that is created where the file system has no `flock`.
    pub const OWNER_FILE_NAME: &'static str = owner_file::NAME;

    /// Locks `dir`, which must exist. Never waits: if another process holds the lock the error names its
    /// host and process id.
    pub fn acquire(dir: &Path) -> Result<Self> {
        Self::acquire_by(dir, Hold::Alone, |file, operation| {
            rustix::fs::flock(file, operation)
        })
    }

    /// Locks `dir` together with others that share it, so that no process can [`acquire`](Self::acquire) it. Never waits.
    ///
    /// On file systems without `flock` a shared lock does not stop [`acquire`](Self::acquire). There, take a second lock after
    /// this one, which a process that acquires `dir` checks, and then call [`confirm`](Self::confirm).
    pub fn share(dir: &Path) -> Result<Self> {
        Self::acquire_by(dir, Hold::Shared, |file, operation| {
            rustix::fs::flock(file, operation)
        })
    }

    /// Fails if another process has acquired a directory that is shared without `flock`; the error names that process.
    pub fn confirm(&self) -> Result<()> {
        match (self.has_flock, self.path.parent()) {
            (false, Some(dir)) if self.hold == Hold::Shared => owner_file::refuse_owned(dir),
            _ => Ok(()),
        }
    }

    fn acquire_by(
        dir: &Path,
        hold: Hold,
        flock: impl Fn(&File, FlockOperation) -> std::result::Result<(), Errno>,
    ) -> Result<Self> {
        let path = dir.join(LOCK_NAME);
        let operation = match hold {
            Hold::Alone => FlockOperation::NonBlockingLockExclusive,
            Hold::Shared => FlockOperation::NonBlockingLockShared,
        };
        loop {
            let mut file = OpenOptions::new()
                .read(true)
                .write(true)
                .create(true)
                .truncate(false)
                .open(&path)
                .map_err(|source| Error::io(&path, "create", source))?;
            let (mut owner, mut has_flock) = (None, true);
            match flock(&file, operation) {
                Ok(()) => {}
                Err(Errno::NOLCK | Errno::OPNOTSUPP | Errno::NOSYS) => {
                    has_flock = false;
                    match hold {
                        Hold::Alone => owner = Some(OwnerFile::create(dir)?),
                        Hold::Shared => owner_file::refuse_owned(dir)?,
                    }
                }
                Err(Errno::WOULDBLOCK) => {
                    return Err(Error::Locked {
                        dir: dir.to_path_buf(),
                        holder: holder(&mut file),
                    });
                }
                Err(errno) => return Err(Error::io(&path, "lock", errno)),
            }
            // The last holder may have removed the file between our open and our lock. Then no other process can find
            // the file that we locked, so open and lock the new one.
            if is_same_file(&file, &path) {
                let note = format!("process {} on {}\n", std::process::id(), host_name());
                file.set_len(0)
                    .and_then(|()| file.write_all(note.as_bytes()))
                    .map_err(|e| Error::io(&path, "write", e))?;
                return Ok(Self {
                    path,
                    lock: FileLock::held(file),
                    hold,
                    has_flock,
                    _owner: owner,
                });
            }
        }
    }
}

impl Drop for DirLock {
    fn drop(&mut self) {
        // The file is removed while it is still locked, so no other process can have locked the removed file. If it
        // cannot be removed, it stays as an unlocked file, which does no harm. Holders of a shared lock do not remove
        // it: the last holder could only be found with an exclusive lock, which would briefly refuse other processes.
        if self.hold == Hold::Alone && self.lock.is_of_this_process() {
            let _ = std::fs::remove_file(&self.path);
        }
    }
}

fn is_same_file(file: &File, path: &Path) -> bool {
    match (file.metadata(), std::fs::metadata(path)) {
        (Ok(ours), Ok(there)) => ours.ino() == there.ino() && ours.dev() == there.dev(),
        _ => false,
    }
}

fn holder(file: &mut File) -> String {
    let mut note = Vec::new();
    let read = file.take(NOTE_MAX_BYTES).read_to_end(&mut note);
    let note = String::from_utf8_lossy(&note);
    let note = note.trim_end();
    if read.is_err() || note.is_empty() || note.chars().any(char::is_control) {
        "another process".to_owned()
    } else {
        note.to_owned()
    }
}

fn host_name() -> String {
    rustix::system::uname()
        .nodename()
        .to_string_lossy()
        .into_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn second_writer_is_refused_and_told_the_holder() {
        let dir = tempfile::tempdir().unwrap();
        let first = DirLock::acquire(dir.path()).unwrap();
        let Err(Error::Locked { holder, .. }) = DirLock::acquire(dir.path()) else {
            panic!("locked twice")
        };
        assert!(holder.contains(&std::process::id().to_string()), "{holder}");
        assert!(holder.contains(&host_name()), "{holder}");
        drop(first);
        assert_eq!(
            std::fs::read_dir(dir.path()).unwrap().count(),
            0,
            "the lock leaves nothing behind"
        );
        DirLock::acquire(dir.path()).unwrap();
    }

    #[test]
    fn a_lock_file_left_by_a_crash_does_not_lock() {
        let dir = tempfile::tempdir().unwrap();
        std::fs::write(
            dir.path().join(LOCK_NAME),
            "process 1 on elsewhere, and a longer text than ours\n",
        )
        .unwrap();
        let lock = DirLock::acquire(dir.path()).unwrap();
        let note = std::fs::read_to_string(dir.path().join(LOCK_NAME)).unwrap();
        assert_eq!(note.lines().count(), 1);
        assert!(!note.contains("elsewhere"));
        drop(lock);
    }

    #[test]
    fn without_flock_there_is_only_one_holder() {
        let dir = tempfile::tempdir().unwrap();
        for errno in [Errno::NOLCK, Errno::OPNOTSUPP, Errno::NOSYS] {
            let acquire = || DirLock::acquire_by(dir.path(), Hold::Alone, |_, _| Err(errno));
            let first = acquire().unwrap();
            let Err(Error::Locked { holder, .. }) = acquire() else {
                panic!("locked twice")
            };
            assert!(holder.contains(&std::process::id().to_string()), "{holder}");
            assert!(holder.contains(owner_file::NAME), "{holder}");
            drop(first);
            assert_eq!(std::fs::read_dir(dir.path()).unwrap().count(), 0);
        }
    }

    #[test]
    fn a_shared_lock_excludes_an_exclusive_one() {
        let dir = tempfile::tempdir().unwrap();
        let one = DirLock::share(dir.path()).unwrap();
        let two = DirLock::share(dir.path()).unwrap();
        for lock in [one, two] {
            lock.confirm().unwrap();
            let Err(Error::Locked { holder, .. }) = DirLock::acquire(dir.path()) else {
                panic!("a shared lock was acquired")
            };
            assert!(holder.contains(&std::process::id().to_string()), "{holder}");
            drop(lock);
        }
        let alone = DirLock::acquire(dir.path()).unwrap();
        let shared = DirLock::share(dir.path());
        assert!(matches!(shared, Err(Error::Locked { .. })));
        drop(alone);
        assert_eq!(std::fs::read_dir(dir.path()).unwrap().count(), 0);
        DirLock::share(dir.path()).unwrap();
    }

    #[test]
    fn without_flock_confirm_finds_an_exclusive_holder() {
        let dir = tempfile::tempdir().unwrap();
        let acquire = |hold| DirLock::acquire_by(dir.path(), hold, |_, _| Err(Errno::NOLCK));
        let shared = acquire(Hold::Shared).unwrap();
        shared.confirm().unwrap();
        let alone = acquire(Hold::Alone).unwrap();
        assert!(matches!(shared.confirm(), Err(Error::Locked { .. })));
        assert!(matches!(acquire(Hold::Shared), Err(Error::Locked { .. })));
        drop(alone);
        shared.confirm().unwrap();
        acquire(Hold::Shared).unwrap();
    }

    #[test]
    fn other_failures_of_flock_are_errors() {
        let dir = tempfile::tempdir().unwrap();
        let failed = DirLock::acquire_by(dir.path(), Hold::Alone, |_, _| Err(Errno::IO));
        assert!(matches!(failed, Err(Error::Io { op: "lock", .. })));
    }

    #[test]
    fn only_one_of_several_threads_holds_the_lock() {
        let dir = tempfile::tempdir().unwrap();
        let inside = std::sync::atomic::AtomicUsize::new(0);
        std::thread::scope(|scope| {
            for _ in 0..4 {
                scope.spawn(|| {
                    for _ in 0..200 {
                        if let Ok(lock) = DirLock::acquire(dir.path()) {
                            assert_eq!(inside.fetch_add(1, std::sync::atomic::Ordering::SeqCst), 0);
                            inside.fetch_sub(1, std::sync::atomic::Ordering::SeqCst);
                            drop(lock);
                        }
                    }
                });
            }
        });
    }
}
