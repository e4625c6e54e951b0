//! An advisory lock on an open file.

use rustix::fs::FlockOperation;
use rustix::io::Errno;
use std::fs::{File, OpenOptions};
use std::io;
use std::os::unix::fs::OpenOptionsExt;
use std::path::Path;

/// An open file with a `flock` on it, which is released on drop.
///
/// The kernel keeps a `flock` while any copy of the descriptor is open, and a process that forks copies all of them.
/// The process that took the lock therefore releases it explicitly: a child between `fork` and `exec`, or a forked
/// worker that never calls `exec`, neither keeps the lock nor releases it.
#[derive(Debug)]
pub struct FileLock {
    file: File,
    process: u32,
}

impl FileLock {
    /// Opens a file to lock; creates it, with access for this user only, if it does not exist.
    pub fn open(path: &Path) -> io::Result<File> {
        OpenOptions::new()
            .read(true)
            .write(true)
            .create(true)
            .truncate(false)
            .mode(0o600)
            .open(path)
    }

    /// Locks `file`, and tries again when a signal interrupts the call.
    pub fn acquire(file: File, operation: FlockOperation) -> Result<Self, Errno> {
        loop {
            match rustix::fs::flock(&file, operation) {
                Ok(()) => return Ok(Self::held(file)),
                Err(Errno::INTR) => {}
                Err(errno) => return Err(errno),
            }
        }
    }

    /// Wraps a file that this process has locked already.
    pub(crate) fn held(file: File) -> Self {
        Self {
            file,
            process: std::process::id(),
        }
    }

    /// Whether this process took the lock, rather than a process that it was forked from.
    pub(crate) fn is_of_this_process(&self) -> bool {
        self.process == std::process::id()
    }
}

impl Drop for FileLock {
    fn drop(&mut self) {
        if self.is_of_this_process() {
            // Closing the file releases the lock as well, unless another process has a copy of the descriptor.
            let _ = rustix::fs::flock(&self.file, FlockOperation::Unlock);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const EXCLUSIVE: FlockOperation = FlockOperation::NonBlockingLockExclusive;

    #[test]
    fn a_copy_of_the_descriptor_does_not_keep_the_lock() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("lock");
        let file = File::create(&path).unwrap();
        // As a forked child has it: another descriptor of the same open file.
        let _copy = file.try_clone().unwrap();
        let lock = FileLock::acquire(file, EXCLUSIVE).unwrap();
        let other = || FileLock::acquire(File::open(&path).unwrap(), EXCLUSIVE);
        assert_eq!(other().unwrap_err(), Errno::WOULDBLOCK);
        drop(lock);
        other().unwrap();
    }

    #[test]
    fn a_copy_in_another_process_does_not_release_the_lock() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("lock");
        let file = File::create(&path).unwrap();
        let copy = FileLock {
            file: file.try_clone().unwrap(),
            process: std::process::id() + 1,
        };
        let _lock = FileLock::acquire(file, EXCLUSIVE).unwrap();
        drop(copy);
        let other = FileLock::acquire(File::open(&path).unwrap(), EXCLUSIVE);
        assert_eq!(other.unwrap_err(), Errno::WOULDBLOCK);
    }
}
