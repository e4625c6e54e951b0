//! Locks on checkpoints that are being read on this host. Retention does not remove a locked checkpoint.
//!
//! Each checkpoint has a lock file in the staging area, on which readers hold a shared `flock`. The kernel releases it when a
//! process ends.

use super::Result;
use super::error::io_error;
use super::manifest::fingerprint;
use super::name::CheckpointPath;
use crate::make_dirs;
use forebay_store::FileLock;
use rustix::fs::FlockOperation;
use rustix::io::Errno;
use std::fs::File;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

const READING: &str = ".forebay-checkpoints/reading";

/// A lock on a checkpoint, staged or stored. The last holder removes the lock file.
#[derive(Debug)]
pub(super) struct ReadingLock {
    file: File,
    path: PathBuf,
}

/// Takes the shared lock of a reader; `None` if the checkpoint is being removed.
pub(super) fn share(area: &Path, place: &CheckpointPath) -> Result<Option<ReadingLock>> {
    take(area, place, FlockOperation::NonBlockingLockShared)
}

/// Takes the exclusive lock of a removal; `None` if the checkpoint is being read or removed.
pub(super) fn alone(area: &Path, place: &CheckpointPath) -> Result<Option<ReadingLock>> {
    take(area, place, FlockOperation::NonBlockingLockExclusive)
}

fn take(
    area: &Path,
    place: &CheckpointPath,
    operation: FlockOperation,
) -> Result<Option<ReadingLock>> {
    let dir = area.join(READING);
    make_dirs(&dir)?;
    let path = dir.join(fingerprint(&place.location()));
    loop {
        let file = FileLock::open(&path).map_err(|error| io_error(&path, "open", error))?;
        match rustix::fs::flock(&file, operation) {
            Ok(()) if is_same(&file, &path) => return Ok(Some(ReadingLock { file, path })),
            // The last holder removed the file between our open and our lock: open a new one.
            Ok(()) | Err(Errno::INTR) => {}
            Err(Errno::WOULDBLOCK) => return Ok(None),
            Err(errno) => return Err(io_error(&path, "lock", errno.into())),
        }
    }
}

fn is_same(file: &File, path: &Path) -> bool {
    match (file.metadata(), std::fs::metadata(path)) {
        (Ok(ours), Ok(there)) => ours.ino() == there.ino() && ours.dev() == there.dev(),
        _ => false,
    }
}

impl Drop for ReadingLock {
    fn drop(&mut self) {
        // The exclusive lock shows that there is no other holder. A process that has just opened the file finds it removed, and
        // retries.
        if rustix::fs::flock(&self.file, FlockOperation::NonBlockingLockExclusive).is_ok()
            && is_same(&self.file, &self.path)
        {
            let _ = std::fs::remove_file(&self.path);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use forebay_store::Location;

    #[test]
    fn readers_exclude_removal() {
        let area = tempfile::tempdir().unwrap();
        let place = CheckpointPath::of(&Location::parse("s3://b/run/step-1").unwrap()).unwrap();
        let other = CheckpointPath::of(&Location::parse("s3://b/run/step-2").unwrap()).unwrap();
        let one = share(area.path(), &place).unwrap().unwrap();
        let two = share(area.path(), &place).unwrap().unwrap();
        assert!(alone(area.path(), &place).unwrap().is_none());
        assert!(alone(area.path(), &other).unwrap().is_some());
        drop(one);
        assert!(alone(area.path(), &place).unwrap().is_none());
        drop(two);
        let alone = alone(area.path(), &place).unwrap().unwrap();
        assert!(share(area.path(), &place).unwrap().is_none());
        drop(alone);
        assert_eq!(
            std::fs::read_dir(area.path().join(READING))
                .unwrap()
                .count(),
            0
        );
    }
}
