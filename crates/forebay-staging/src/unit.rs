//! Checkpoints in a staging area, as they are on its disk.
//!
//! An entry is a directory: the files as they were saved, two lock files, and a marker. The marker is written last and
//! is durable before a save is acknowledged; an entry without one was never acknowledged. Once the checkpoint is where it
//! belongs the marker has another name, and what is left is a local copy for fast loading.
//!
//! A process that builds or drains an entry holds its `owner` lock, a process that reads its files shares its `readers` lock. Both die
//! with their process, however that ends.

use crate::session::make_dirs;
use forebay_store::{AtomicFile, Durability, Error, FileLock, Result, sync_dir};
use rustix::fs::FlockOperation;
use rustix::io::Errno;
use std::fs::{DirBuilder, File};
use std::io::{self, Read, Write};
use std::os::unix::fs::{DirBuilderExt, MetadataExt};
use std::path::{Path, PathBuf};
use std::time::{Duration, SystemTime};

/// The directory of units in a staging area. Hidden, so that it is not taken for a session.
const ENTRIES: &str = ".forebay-checkpoints";
const FILES: &str = "files";
const OWNER: &str = "owner";
const READERS: &str = "readers";
/// Acknowledged, and not yet at its destination.
const STAGED: &str = "staged.json";
/// Uploaded; the files are a copy.
const STORED: &str = "stored.json";
/// How often a directory is removed that others still put lock files into.
const REMOVE_TRIES: u32 = 10;
/// Why the last try to drain it failed.
const ERROR: &str = "error";
/// Bytes that its writer said it will write.
const ROOM: &str = "room";
/// A lock on a file of an entry, held until it is dropped.
#[derive(Debug)]
pub struct UnitLock(#[expect(dead_code, reason = "held until it is dropped")] FileLock);

/// How far an entry is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum UnitState {
    /// Being written, or left by a process that never acknowledged it.
    Unfinished,
    /// Acknowledged, and not yet at its destination.
    Staged,
    /// The store has it; the files are a local copy.
    Stored,
}

/// The directory of an entry.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub struct Unit(PathBuf);

impl Unit {
    /// Makes a new entry behind all others, and takes it.
    pub fn create(area: &Path) -> Result<(Self, UnitLock)> {
        let entries = area.join(ENTRIES);
        make_dirs(&entries)?;
        let mut number = numbers(&entries)?
            .into_iter()
            .max()
            .map_or(0, |last| last.saturating_add(1));
        loop {
            let dir = entries.join(format!("{number:020}"));
            match DirBuilder::new().mode(0o700).create(&dir) {
                Ok(()) => {
                    let entry = Self(dir);
                    // A process that cleans up may have been faster: then this entry is gone, and the next one is tried.
                    match entry.lock(OWNER, FlockOperation::NonBlockingLockExclusive) {
                        Ok(Some(lock)) if entry.0.join(OWNER).exists() => {
                            make_dirs(&entry.files())?;
                            sync_dir(&entry.0)?;
                            sync_dir(&entries)?;
                            return Ok((entry, lock));
                        }
                        Ok(_) => {}
                        Err(error) if error.io_kind() == Some(io::ErrorKind::NotFound) => {}
                        Err(error) => return Err(error),
                    }
                }
                Err(error) if error.kind() == io::ErrorKind::AlreadyExists => {}
                Err(error) => return Err(Error::io(&dir, "create the directory", error)),
            }
            number += 1;
        }
    }

    /// All entries of an area, the oldest first.
    pub fn all(area: &Path) -> Result<Vec<Self>> {
        let entries = area.join(ENTRIES);
        let mut numbers = numbers(&entries)?;
        numbers.sort_unstable();
        Ok(numbers
            .into_iter()
            .map(|number| Self(entries.join(format!("{number:020}"))))
            .collect())
    }

    /// Returns the unit's directory.
    pub fn path(&self) -> &Path {
        &self.0
    }

    /// Returns the directory of the unit's files.
    pub fn files(&self) -> PathBuf {
        self.0.join(FILES)
    }

    /// Returns the path of the file of this name.
    pub fn file(&self, name: &str) -> PathBuf {
        self.0.join(FILES).join(name)
    }

    /// Whether this user made it. Others' entries are left alone.
    pub fn is_own(&self) -> bool {
        std::fs::symlink_metadata(&self.0)
            .is_ok_and(|meta| meta.is_dir() && meta.uid() == rustix::process::geteuid().as_raw())
    }

    /// Takes the entry, if it is still there and no process has it.
    pub fn own(&self) -> Result<Option<UnitLock>> {
        self.lock_while_there(OWNER, FlockOperation::NonBlockingLockExclusive)
    }

    /// Keeps the files from being removed while they are read; none if they are about to be.
    pub fn read(&self) -> Result<Option<UnitLock>> {
        let lock = self.lock_while_there(READERS, FlockOperation::NonBlockingLockShared)?;
        // Removal begins with this file's name: a lock on a file without one keeps nothing.
        Ok(lock.filter(|_| self.0.join(READERS).exists()))
    }

    /// None as well if another process has removed the entry.
    fn lock_while_there(&self, file: &str, operation: FlockOperation) -> Result<Option<UnitLock>> {
        match self.lock(file, operation) {
            Err(error) if error.io_kind() == Some(io::ErrorKind::NotFound) => Ok(None),
            other => other,
        }
    }

    fn lock(&self, file: &str, operation: FlockOperation) -> Result<Option<UnitLock>> {
        let path = self.0.join(file);
        let file = FileLock::open(&path).map_err(|error| Error::io(&path, "open", error))?;
        match FileLock::acquire(file, operation) {
            Ok(lock) => Ok(Some(UnitLock(lock))),
            Err(Errno::WOULDBLOCK) => Ok(None),
            Err(errno) => Err(Error::io(&path, "lock", errno)),
        }
    }

    /// Returns how far the unit is, by the name of its marker.
    pub fn stage(&self) -> UnitState {
        if self.0.join(STORED).exists() {
            UnitState::Stored
        } else if self.0.join(STAGED).exists() {
            UnitState::Staged
        } else {
            UnitState::Unfinished
        }
    }

    /// Returns the marker's path and bytes, at most `limit`; none if the unit was never acknowledged.
    pub fn marker(&self, limit: u64) -> Result<Option<(PathBuf, Vec<u8>)>> {
        for name in [STAGED, STORED] {
            let path = self.0.join(name);
            let mut bytes = Vec::new();
            match File::open(&path) {
                Ok(file) => {
                    file.take(limit)
                        .read_to_end(&mut bytes)
                        .map_err(|error| Error::io(&path, "read", error))?;
                }
                Err(error) if error.kind() == io::ErrorKind::NotFound => continue,
                Err(error) => return Err(Error::io(&path, "open", error)),
            }
            return Ok(Some((path, bytes)));
        }
        Ok(None)
    }

    /// Acknowledges the entry. Its files are on disk already.
    pub fn acknowledge(&self, marker: &[u8]) -> Result<()> {
        let path = self.0.join(STAGED);
        let mut file = AtomicFile::create(&path)?;
        file.write_all(marker)
            .map_err(|error| Error::io(&path, "write", error))?;
        file.commit(Durability::Synced)
    }

    /// Says that the checkpoint is at its destination. Saying it twice is no error.
    pub fn stored(&self) -> Result<()> {
        if self.stage() != UnitState::Staged {
            return Ok(());
        }
        let (from, to) = (self.0.join(STAGED), self.0.join(STORED));
        std::fs::rename(&from, &to).map_err(|error| Error::io(&from, "rename", error))?;
        sync_dir(&self.0)
    }

    /// Removes the entry unless another process reads it. Its owner's lock is held by the caller.
    pub fn remove(&self) -> Result<bool> {
        let alone = self.lock_while_there(READERS, FlockOperation::NonBlockingLockExclusive)?;
        let Some(_alone) = alone else {
            return Ok(!self.0.exists());
        };
        // The markers first: a removal that a crash cuts short leaves an entry that was never acknowledged.
        for name in [STAGED, STORED, READERS] {
            remove_file(&self.0.join(name))?;
        }
        for left in (0..REMOVE_TRIES).rev() {
            match std::fs::remove_dir_all(&self.0) {
                Ok(()) => break,
                Err(error) if error.kind() == io::ErrorKind::NotFound => break,
                // A process that looked whether it is taken made a lock file again.
                Err(error) if left > 0 && error.kind() == io::ErrorKind::DirectoryNotEmpty => {}
                Err(error) => return Err(Error::io(&self.0, "remove", error)),
            }
        }
        Ok(true)
    }

    /// Removes the files alone; the marker stays.
    pub fn remove_files(&self) -> Result<bool> {
        let Some(_alone) = self.lock(READERS, FlockOperation::NonBlockingLockExclusive)? else {
            return Ok(false);
        };
        match std::fs::remove_dir_all(self.files()) {
            Err(error) if error.kind() != io::ErrorKind::NotFound => {
                Err(Error::io(self.files(), "remove", error))
            }
            _ => Ok(true),
        }
    }

    /// Writes down why a try failed, for people who look at the area. What cannot be written is lost without harm.
    pub fn note_error(&self, error: &str) {
        let _ = std::fs::write(self.0.join(ERROR), error);
    }

    /// Why the last try failed.
    pub fn last_error(&self) -> Option<String> {
        let mut text = String::new();
        File::open(self.0.join(ERROR))
            .ok()?
            .take(4096)
            .read_to_string(&mut text)
            .ok()?;
        Some(text).filter(|text| !text.is_empty())
    }

    /// How long ago it was acknowledged, by the clock of this machine.
    pub fn age(&self) -> Option<Duration> {
        let marker = [STAGED, STORED]
            .iter()
            .find_map(|name| std::fs::metadata(self.0.join(name)).ok())?;
        SystemTime::now()
            .duration_since(marker.modified().ok()?)
            .ok()
    }

    /// Bytes that its files take.
    pub fn held_bytes(&self) -> u64 {
        held(&self.files(), 64)
    }

    /// Says how much will be written, so that others leave that room. What cannot be said is not reserved.
    pub fn promise(&self, bytes: u64) {
        let _ = std::fs::write(self.0.join(ROOM), bytes.to_string());
    }

    /// Bytes that may still be written.
    fn promised(&self, held: u64) -> u64 {
        let mut text = String::new();
        // What cannot be read promises nothing; a number has at most twenty digits.
        let _ =
            File::open(self.0.join(ROOM)).and_then(|file| file.take(20).read_to_string(&mut text));
        text.parse::<u64>().unwrap_or(0).saturating_sub(held)
    }
}

/// Bytes of an area that units take.
#[derive(Debug, Clone, Copy, Default)]
pub struct UnitUsage {
    /// Bytes of files.
    pub bytes: u64,
    /// Bytes of these that are copies of what is at its destination.
    pub copies: u64,
    /// Bytes that will be written, of checkpoints that are being saved.
    pub promised: u64,
}

impl UnitUsage {
    /// Returns the bytes that are taken, now or soon.
    pub fn all(&self) -> u64 {
        self.bytes.saturating_add(self.promised)
    }
}

/// Returns the bytes that units take. Hold the [`AreaLock`](crate::AreaLock): units are locked for a moment, to see which are in use.
pub fn held_in(area: &Path) -> Result<UnitUsage> {
    let mut sum = UnitUsage::default();
    for entry in Unit::all(area)? {
        let bytes = entry.held_bytes();
        sum.bytes = sum.bytes.saturating_add(bytes);
        match entry.stage() {
            UnitState::Unfinished => {
                let promised = entry.promised(bytes);
                // What a process that is gone has promised will not be written.
                if promised > 0 && (!entry.is_own() || entry.own()?.is_none()) {
                    sum.promised = sum.promised.saturating_add(promised);
                }
            }
            UnitState::Stored => sum.copies = sum.copies.saturating_add(bytes),
            UnitState::Staged => {}
        }
    }
    Ok(sum)
}

/// Removes copies of what is at its destination, but for those that another process has or reads.
pub fn drop_copies(area: &Path) -> Result<()> {
    for entry in Unit::all(area)?.into_iter().filter(Unit::is_own) {
        if entry.stage() == UnitState::Stored
            && let Some(_owner) = entry.own()?
        {
            entry.remove()?;
        }
    }
    Ok(())
}

/// Bytes of checkpoints that processes left which are gone: they stay until another process takes them up.
pub fn left_behind(area: &Path) -> Result<u64> {
    let mut bytes = 0_u64;
    for entry in Unit::all(area)? {
        if entry.stage() == UnitState::Staged && entry.is_own() && entry.own()?.is_some() {
            bytes = bytes.saturating_add(entry.held_bytes());
        }
    }
    Ok(bytes)
}

/// Bytes of all files below a directory. What goes away meanwhile counts as gone.
pub fn held(dir: &Path, depth: u32) -> u64 {
    let Ok(entries) = std::fs::read_dir(dir) else {
        return 0;
    };
    entries.flatten().fold(0, |sum: u64, entry| {
        let bytes = match entry.metadata() {
            Ok(meta) if meta.is_file() => meta.len(),
            Ok(meta) if meta.is_dir() && depth > 0 => held(&entry.path(), depth - 1),
            _ => 0,
        };
        sum.saturating_add(bytes)
    })
}

fn numbers(entries: &Path) -> Result<Vec<u64>> {
    let found = match std::fs::read_dir(entries) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(Vec::new()),
        other => other.map_err(|error| Error::io(entries, "list", error))?,
    };
    let mut numbers = Vec::new();
    for entry in found {
        let entry = entry.map_err(|error| Error::io(entries, "list", error))?;
        let name = entry.file_name();
        numbers.extend(
            name.to_str()
                .filter(|name| name.len() == 20)
                .and_then(|name| name.parse::<u64>().ok()),
        );
    }
    Ok(numbers)
}

fn remove_file(path: &Path) -> Result<()> {
    match std::fs::remove_file(path) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => {
            Err(Error::io(path, "remove", error))
        }
        _ => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_entry_goes_through_its_stages() {
        let area = tempfile::tempdir().unwrap();
        assert!(Unit::all(area.path()).unwrap().is_empty());
        let (entry, lock) = Unit::create(area.path()).unwrap();
        let (second, _) = Unit::create(area.path()).unwrap();
        assert_eq!(
            Unit::all(area.path()).unwrap(),
            [entry.clone(), second.clone()]
        );
        assert!(entry.is_own() && entry.own().unwrap().is_none());
        assert_eq!(entry.stage(), UnitState::Unfinished);
        assert!(entry.marker(64).unwrap().is_none());
        std::fs::write(entry.file("a"), "abc").unwrap();
        assert_eq!(entry.held_bytes(), 3);
        entry.acknowledge(b"marker").unwrap();
        assert_eq!(entry.stage(), UnitState::Staged);
        assert_eq!(entry.marker(64).unwrap().unwrap().1, b"marker");
        entry.stored().unwrap();
        assert_eq!(entry.stage(), UnitState::Stored);
        let reader = entry.read().unwrap().unwrap();
        assert!(!entry.remove().unwrap(), "it is being read");
        assert_eq!(entry.marker(64).unwrap().unwrap().1, b"marker");
        drop(reader);
        assert!(entry.remove().unwrap());
        drop(lock);
        assert_eq!(Unit::all(area.path()).unwrap(), [second]);
    }
}
