//! The number of bytes in use in the directory, shared by all processes.
//!
//! It is stored in a small file. A process holds the file's `flock`, for microseconds, to change it. Bytes are reserved before
//! they are used, and released after they are freed. If a process dies in between, the number is too large, never too small,
//! and the next recount of the files corrects it.

use std::fs::{File, OpenOptions};
use std::io;
use std::os::unix::fs::{FileExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use rustix::fs::{FlockOperation, OFlags};
use rustix::io::Errno;

use forebay_store::{Error, Result};

const MAGIC: [u8; 8] = *b"FBLEDGR1";
const RECORD_BYTES: usize = 20;

/// The longest wait for the lock. It is held for microseconds, or milliseconds for a recount of many files; a holder that
/// takes longer was stopped, or its disk hangs.
const PATIENCE: Duration = Duration::from_secs(20);
const FIRST_PAUSE: Duration = Duration::from_micros(50);
const LONGEST_PAUSE: Duration = Duration::from_millis(10);

#[derive(Debug)]
pub(super) struct Ledger {
    path: PathBuf,
    /// All threads share the open file and therefore its `flock`, so they also need this mutex.
    file: Mutex<File>,
}

/// The locked ledger.
pub(super) struct Entry<'a> {
    path: &'a Path,
    file: MutexGuard<'a, File>,
}

impl Ledger {
    pub(super) fn open(path: &Path) -> Result<Self> {
        let file = OpenOptions::new()
            .read(true)
            .write(true)
            .create(true)
            .truncate(false)
            .mode(0o600)
            .custom_flags(OFlags::NOFOLLOW.bits() as i32)
            .open(path)
            .map_err(|error| Error::io(path, "open", error))?;
        Ok(Self {
            path: path.to_owned(),
            file: Mutex::new(file),
        })
    }

    /// Waits for the lock. Fails after [`PATIENCE`], or if the file system has no locks.
    pub(super) fn lock(&self) -> Result<Entry<'_>> {
        // A panic can only leave a number that is too large.
        let file = self.file.lock().unwrap_or_else(PoisonError::into_inner);
        let started = Instant::now();
        let mut pause = FIRST_PAUSE;
        loop {
            match rustix::fs::flock(&*file, FlockOperation::NonBlockingLockExclusive) {
                Ok(()) => {
                    return Ok(Entry {
                        path: &self.path,
                        file,
                    });
                }
                Err(Errno::WOULDBLOCK | Errno::INTR) if started.elapsed() < PATIENCE => {
                    std::thread::sleep(pause);
                    pause = (pause * 2).min(LONGEST_PAUSE);
                }
                Err(Errno::WOULDBLOCK) => {
                    let waited = format!(
                        "another process has had it locked for {} s",
                        PATIENCE.as_secs()
                    );
                    return Err(Error::io(
                        &self.path,
                        "lock",
                        io::Error::new(io::ErrorKind::TimedOut, waited),
                    ));
                }
                Err(errno) => return Err(Error::io(&self.path, "lock", errno)),
            }
        }
    }

    /// Reads the number without the lock. `None` if it is not known, or is being changed.
    pub(super) fn glance(&self) -> Option<u64> {
        let file = self.file.lock().unwrap_or_else(PoisonError::into_inner);
        read(&file)
    }
}

impl Entry<'_> {
    /// Whether the file is still the one at its path.
    pub(super) fn is_current(&self) -> bool {
        super::is_at(&self.file, self.path)
    }

    /// Bytes in use; `None` if the file is damaged and the bytes have to be recounted.
    pub(super) fn used(&self) -> Option<u64> {
        read(&self.file)
    }

    pub(super) fn set_used(&self, used: u64) -> Result<()> {
        let mut record = [0; RECORD_BYTES];
        record[..8].copy_from_slice(&MAGIC);
        record[8..16].copy_from_slice(&used.to_le_bytes());
        let sum = crc32c::crc32c(&record[..16]);
        record[16..].copy_from_slice(&sum.to_le_bytes());
        self.file
            .write_all_at(&record, 0)
            .map_err(|error| Error::io(self.path, "write", error))
    }
}

impl Drop for Entry<'_> {
    fn drop(&mut self) {
        // This cannot fail for an open file; closing the file would release the lock as well.
        let _ = rustix::fs::flock(&*self.file, FlockOperation::Unlock);
    }
}

fn read(file: &File) -> Option<u64> {
    let mut record = [0; RECORD_BYTES];
    file.read_exact_at(&mut record, 0).ok()?;
    let (signed, sum) = record.split_at(16);
    let is_whole = signed[..8] == MAGIC && crc32c::crc32c(signed).to_le_bytes() == *sum;
    is_whole.then(|| u64::from_le_bytes(std::array::from_fn(|at| signed[8 + at])))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn two_ledgers_of_a_file_share_the_number() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("ledger");
        let (one, other) = (Ledger::open(&path).unwrap(), Ledger::open(&path).unwrap());
        assert_eq!(one.lock().unwrap().used(), None);
        one.lock().unwrap().set_used(77).unwrap();
        assert_eq!(other.lock().unwrap().used(), Some(77));
        assert_eq!(other.glance(), Some(77));
    }

    #[test]
    fn concurrent_additions_are_all_counted() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("ledger");
        Ledger::open(&path)
            .unwrap()
            .lock()
            .unwrap()
            .set_used(0)
            .unwrap();
        std::thread::scope(|scope| {
            for _ in 0..4 {
                scope.spawn(|| {
                    let ledger = Ledger::open(&path).unwrap();
                    for _ in 0..100 {
                        let entry = ledger.lock().unwrap();
                        entry.set_used(entry.used().unwrap() + 1).unwrap();
                    }
                });
            }
        });
        assert_eq!(Ledger::open(&path).unwrap().glance(), Some(400));
    }

    #[test]
    fn a_damaged_ledger_has_no_number() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("ledger");
        let ledger = Ledger::open(&path).unwrap();
        ledger.lock().unwrap().set_used(5).unwrap();
        let bytes = std::fs::read(&path).unwrap();
        for at in 0..bytes.len() {
            let mut flipped = bytes.clone();
            flipped[at] ^= 1;
            std::fs::write(&path, &flipped).unwrap();
            assert_eq!(ledger.glance(), None, "byte {at}");
            std::fs::write(&path, &bytes[..at]).unwrap();
            assert_eq!(ledger.glance(), None, "{at} bytes");
        }
    }

    #[test]
    fn a_symbolic_link_is_not_followed() {
        let dir = tempfile::tempdir().unwrap();
        let victim = dir.path().join("victim");
        std::fs::write(&victim, "precious").unwrap();
        std::os::unix::fs::symlink(&victim, dir.path().join("ledger")).unwrap();
        assert!(Ledger::open(&dir.path().join("ledger")).is_err());
        assert_eq!(std::fs::read(&victim).unwrap(), b"precious");
    }
}
