//! Locks of checkpoints that are being read on this host, which retention leaves alone.
//!
//! A file a checkpoint in the staging area, on which readers share a lock. It dies with its process.

use super::Result;
use super::error::io_error;
use super::manifest::fingerprint;
use super::name::Place;
use forebay_staging::make_dirs;
use forebay_store::FileLock;
use rustix::fs::FlockOperation;
use rustix::io::Errno;
use std::fs::File;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

const READING: &str = ".forebay-checkpoints/reading";

/// A lock on a checkpoint wherever it is; its file goes with the last who holds it.
#[derive(Debug)]
pub(super) struct ReadingLock {
    file: File,
    path: PathBuf,
}

/// Says that the checkpoint is being read. None if it is being removed at this moment.
pub(super) fn share(area: &Path, place: &Place) -> Result<Option<ReadingLock>> {
    take(area, place, FlockOperation::NonBlockingLockShared)
}

/// Keeps readers out; none if there are any.
pub(super) fn alone(area: &Path, place: &Place) -> Result<Option<ReadingLock>> {
    take(area, place, FlockOperation::NonBlockingLockExclusive)
}

fn take(area: &Path, place: &Place, operation: FlockOperation) -> Result<Option<ReadingLock>> {
    let dir = area.join(READING);
    make_dirs(&dir)?;
    let path = dir.join(fingerprint(&place.location()));
    loop {
        let file = FileLock::open(&path).map_err(|error| io_error(&path, "open", error))?;
        match rustix::fs::flock(&file, operation) {
            Ok(()) if is_same(&file, &path) => return Ok(Some(ReadingLock { file, path })),
            // The last holder removed it between our open and our lock.
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
        // Removed while no other process can have it; the process that opened it before finds that it is gone.
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
    fn who_reads_keeps_out_who_removes() {
        let area = tempfile::tempdir().unwrap();
        let place = Place::of(&Location::parse("s3://b/run/step-1").unwrap()).unwrap();
        let other = Place::of(&Location::parse("s3://b/run/step-2").unwrap()).unwrap();
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
