//! Units: the checkpoints in a staging area, on disk.
//!
//! A unit is a directory with the files of one checkpoint, two lock files, and a marker. The marker is written last and is
//! durable before a save is acknowledged; a unit without a marker was never acknowledged. Once the checkpoint is uploaded, the
//! marker is renamed, and the files are a local copy for fast loading.
//!
//! A process that writes or uploads a unit holds its `owner` lock exclusively; a process that reads its files shares its
//! `readers` lock. The kernel releases both locks when the process ends.

use crate::session::make_dirs;
use forebay_store::{Durability, Error, FileLock, Result, sync_dir, write_file};
use rustix::fs::FlockOperation;
use rustix::io::Errno;
use std::fs::{DirBuilder, File};
use std::io::{self, Read};
use std::os::unix::fs::{DirBuilderExt, MetadataExt};
use std::path::{Path, PathBuf};
use std::time::{Duration, SystemTime};

/// The directory of units in a staging area. Hidden, so that it is not taken for a session.
const ENTRIES: &str = ".forebay-checkpoints";
const FILES: &str = "files";
const OWNER: &str = "owner";
const READERS: &str = "readers";
/// The name of the marker of an acknowledged checkpoint that is not at its destination yet.
const STAGED: &str = "staged.json";
/// The name of the marker of an uploaded checkpoint, whose files are a copy.
const STORED: &str = "stored.json";
/// How often the removal of a directory is tried in which other processes create lock files.
const REMOVE_TRIES: u32 = 10;
/// The file with the error of the last upload attempt.
const ERROR: &str = "error";
/// The file with the number of bytes that the writer has announced.
const ROOM: &str = "room";
/// A lock on a file of a unit, held until it is dropped.
#[derive(Debug)]
pub(crate) struct UnitLock(#[expect(dead_code, reason = "held until it is dropped")] FileLock);

/// The state of a unit.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum UnitState {
    /// It is being written, or was left by a process that ended before it acknowledged the save.
    Unfinished,
    /// The save was acknowledged, and the checkpoint is not at its destination yet.
    Staged,
    /// The checkpoint is at its destination; the files are a local copy.
    Stored,
}

/// A unit, identified by its directory.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Unit(PathBuf);

impl Unit {
    /// Creates a new unit with a higher number than all others, and locks it as its owner.
    pub(crate) fn create(area: &Path) -> Result<(Self, UnitLock)> {
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
                    // A process that cleans up may have removed the unit before the lock; then the next number is tried.
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

    /// All units of an area, the oldest first.
    pub(crate) fn all(area: &Path) -> Result<Vec<Self>> {
        let entries = area.join(ENTRIES);
        let mut numbers = numbers(&entries)?;
        numbers.sort_unstable();
        Ok(numbers
            .into_iter()
            .map(|number| Self(entries.join(format!("{number:020}"))))
            .collect())
    }

    /// Returns the unit's directory.
    pub(crate) fn path(&self) -> &Path {
        &self.0
    }

    /// Returns the directory of the unit's files.
    pub(crate) fn files(&self) -> PathBuf {
        self.0.join(FILES)
    }

    /// Returns the path of the file of this name.
    pub(crate) fn file(&self, name: &str) -> PathBuf {
        self.0.join(FILES).join(name)
    }

    /// Whether the unit belongs to this user. Units of other users are not touched.
    pub(crate) fn is_own(&self) -> bool {
        std::fs::symlink_metadata(&self.0)
            .is_ok_and(|meta| meta.is_dir() && meta.uid() == rustix::process::geteuid().as_raw())
    }

    /// Locks the unit as its owner; `None` if it was removed or another process owns it.
    pub(crate) fn own(&self) -> Result<Option<UnitLock>> {
        self.lock_while_there(OWNER, FlockOperation::NonBlockingLockExclusive)
    }

    /// Locks the files against removal while they are read; `None` if they are being removed.
    pub(crate) fn read(&self) -> Result<Option<UnitLock>> {
        let lock = self.lock_while_there(READERS, FlockOperation::NonBlockingLockShared)?;
        // Removal unlinks the lock file first: a lock on an unlinked file does not prevent the removal.
        Ok(lock.filter(|_| self.0.join(READERS).exists()))
    }

    /// As [`lock`](Self::lock), but also returns `None` if another process has removed the unit.
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

    /// Returns the unit's state, which follows from the name of its marker.
    pub(crate) fn stage(&self) -> UnitState {
        if self.0.join(STORED).exists() {
            UnitState::Stored
        } else if self.0.join(STAGED).exists() {
            UnitState::Staged
        } else {
            UnitState::Unfinished
        }
    }

    /// Returns the marker's path and at most `limit` of its bytes; `None` if the unit was never acknowledged.
    pub(crate) fn marker(&self, limit: u64) -> Result<Option<(PathBuf, Vec<u8>)>> {
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

    /// Writes the marker, which acknowledges the unit. The files must be on disk already.
    pub(crate) fn acknowledge(&self, marker: &[u8]) -> Result<()> {
        write_file(&self.0.join(STAGED), marker, Durability::Synced)
    }

    /// Marks the checkpoint as uploaded. A second call has no effect.
    pub(crate) fn stored(&self) -> Result<()> {
        if self.stage() != UnitState::Staged {
            return Ok(());
        }
        let (from, to) = (self.0.join(STAGED), self.0.join(STORED));
        std::fs::rename(&from, &to).map_err(|error| Error::io(&from, "rename", error))?;
        sync_dir(&self.0)
    }

    /// Removes the unit unless another process reads it, and returns whether it is gone. The caller must hold the owner lock.
    pub(crate) fn remove(&self) -> Result<bool> {
        let alone = self.lock_while_there(READERS, FlockOperation::NonBlockingLockExclusive)?;
        let Some(_alone) = alone else {
            return Ok(!self.0.exists());
        };
        // The markers first: after a crash in the middle, the rest looks like a unit that was never acknowledged.
        for name in [STAGED, STORED, READERS] {
            remove_file(&self.0.join(name))?;
        }
        for left in (0..REMOVE_TRIES).rev() {
            match std::fs::remove_dir_all(&self.0) {
                Ok(()) => break,
                Err(error) if error.kind() == io::ErrorKind::NotFound => break,
                // A process that checked the locks has created a lock file again.
                Err(error) if left > 0 && error.kind() == io::ErrorKind::DirectoryNotEmpty => {}
                Err(error) => return Err(Error::io(&self.0, "remove", error)),
            }
        }
        Ok(true)
    }

    /// Removes the files and keeps the marker. Returns false if another process reads them.
    pub(crate) fn remove_files(&self) -> Result<bool> {
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

    /// Stores the error of an upload attempt, for users who inspect the area. A failure to store it is ignored.
    pub(crate) fn note_error(&self, error: &str) {
        let _ = std::fs::write(self.0.join(ERROR), error);
    }

    /// The error of the last upload attempt.
    pub(crate) fn last_error(&self) -> Option<String> {
        let mut text = String::new();
        File::open(self.0.join(ERROR))
            .ok()?
            .take(4096)
            .read_to_string(&mut text)
            .ok()?;
        Some(text).filter(|text| !text.is_empty())
    }

    /// The time since the unit was acknowledged, by the clock of this machine.
    pub(crate) fn age(&self) -> Option<Duration> {
        let marker = [STAGED, STORED]
            .iter()
            .find_map(|name| std::fs::metadata(self.0.join(name)).ok())?;
        SystemTime::now()
            .duration_since(marker.modified().ok()?)
            .ok()
    }

    /// Bytes of the unit's files.
    pub(crate) fn held_bytes(&self) -> u64 {
        held(&self.files(), 64)
    }

    /// Announces how many bytes will be written, so that other processes reserve less. If the announcement cannot be stored, the
    /// bytes are not reserved.
    pub(crate) fn promise(&self, bytes: u64) {
        let _ = std::fs::write(self.0.join(ROOM), bytes.to_string());
    }

    /// The announced bytes that are not written yet.
    fn promised(&self, held: u64) -> u64 {
        let mut text = String::new();
        // A file that cannot be read counts as 0. A number has at most twenty digits.
        let _ =
            File::open(self.0.join(ROOM)).and_then(|file| file.take(20).read_to_string(&mut text));
        text.parse::<u64>().unwrap_or(0).saturating_sub(held)
    }
}

/// Bytes of an area that units use.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct UnitUsage {
    /// Bytes of files.
    pub bytes: u64,
    /// Bytes among `bytes` that are local copies of uploaded checkpoints.
    pub copies: u64,
    /// Announced bytes of checkpoints that are being saved.
    pub promised: u64,
}

impl UnitUsage {
    /// Returns the used and the announced bytes together.
    pub(crate) fn all(&self) -> u64 {
        self.bytes.saturating_add(self.promised)
    }
}

/// Returns the bytes that units use. The caller must hold the [`AreaLock`](crate::AreaLock): units are locked for a moment to
/// see which have an owner.
pub(crate) fn held_in(area: &Path) -> Result<UnitUsage> {
    let mut sum = UnitUsage::default();
    for entry in Unit::all(area)? {
        let bytes = entry.held_bytes();
        sum.bytes = sum.bytes.saturating_add(bytes);
        match entry.stage() {
            UnitState::Unfinished => {
                let promised = entry.promised(bytes);
                // The announcement of a process that has ended does not count.
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

/// Removes local copies of uploaded checkpoints, except those that another process owns or reads.
pub(crate) fn drop_copies(area: &Path) -> Result<()> {
    for entry in Unit::all(area)?.into_iter().filter(Unit::is_own) {
        if entry.stage() == UnitState::Stored
            && let Some(_owner) = entry.own()?
        {
            entry.remove()?;
        }
    }
    Ok(())
}

/// Bytes of staged checkpoints whose process has ended. They stay until another process uploads them.
pub(crate) fn left_behind(area: &Path) -> Result<u64> {
    let mut bytes = 0_u64;
    for entry in Unit::all(area)? {
        if entry.stage() == UnitState::Staged && entry.is_own() && entry.own()?.is_some() {
            bytes = bytes.saturating_add(entry.held_bytes());
        }
    }
    Ok(bytes)
}

/// Bytes of all files below a directory, down to `depth` levels. Files that are removed meanwhile do not count.
pub(crate) fn held(dir: &Path, depth: u32) -> u64 {
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
    fn a_unit_goes_through_its_states() {
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
