//! Checkpoints in a staging area, as they are on its disk.
//!
//! An entry is a directory: the files as they were saved, two lock files, and a marker. The marker is written last and
//! is durable before a save is acknowledged; an entry without one was never acknowledged. Once the checkpoint is where it
//! belongs the marker has another name, and what is left is a local copy for fast loading.
//!
//! Whoever builds or drains an entry holds its `owner` lock, whoever reads its files shares its `readers` lock. Both die
//! with their process, however that ends.

use super::manifest::MANIFEST_MAX_BYTES;
use super::marker::Marker;
use super::{Error, Result};
use crate::{AtomicFile, Durability, sync_dir};
use rustix::fs::FlockOperation;
use rustix::io::Errno;
use std::fs::{DirBuilder, File, OpenOptions};
use std::io::{self, Read, Write};
use std::os::unix::fs::{DirBuilderExt, MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::time::{Duration, SystemTime};

/// Where entries are in a staging area. Hidden, so that nothing else in the area takes it for its own.
const ENTRIES: &str = ".forebay-checkpoints";
const FILES: &str = "files";
const OWNER: &str = "owner";
const READERS: &str = "readers";
/// Acknowledged, and not yet where it belongs.
const STAGED: &str = "staged.json";
/// Where it belongs; the files are a copy.
const STORED: &str = "stored.json";
/// How often a directory is removed that others still put lock files into.
const REMOVE_TRIES: u32 = 10;
/// Why the last try to drain it failed.
const ERROR: &str = "error";
/// Bytes that its writer said it will write.
const ROOM: &str = "room";
/// A lock on a file of an entry, held until it is dropped.
#[derive(Debug)]
pub(super) struct EntryLock(#[expect(dead_code, reason = "held for its flock")] File);

/// How far an entry is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Stage {
    /// Being written, or left by a process that never acknowledged it.
    Unfinished,
    Staged,
    Stored,
}

/// The directory of an entry.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct EntryDir(PathBuf);

impl EntryDir {
    /// Makes a new entry behind all others, and takes it.
    pub(super) fn create(area: &Path) -> Result<(Self, EntryLock)> {
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
                    // Whoever cleans up may have been faster: then this entry is gone, and the next one is tried.
                    match entry.lock(OWNER, FlockOperation::NonBlockingLockExclusive) {
                        Ok(Some(lock)) if entry.0.join(OWNER).exists() => {
                            make_dirs(&entry.files())?;
                            sync(&entry.0)?;
                            sync(&entries)?;
                            return Ok((entry, lock));
                        }
                        Ok(_) => {}
                        Err(Error::Store(error))
                            if error.io_kind() == Some(io::ErrorKind::NotFound) => {}
                        Err(error) => return Err(error),
                    }
                }
                Err(error) if error.kind() == io::ErrorKind::AlreadyExists => {}
                Err(error) => return Err(io_error(&dir, "create the directory", error)),
            }
            number += 1;
        }
    }

    /// All entries of an area, the oldest first.
    pub(super) fn all(area: &Path) -> Result<Vec<Self>> {
        let entries = area.join(ENTRIES);
        let mut numbers = numbers(&entries)?;
        numbers.sort_unstable();
        Ok(numbers
            .into_iter()
            .map(|number| Self(entries.join(format!("{number:020}"))))
            .collect())
    }

    pub(super) fn path(&self) -> &Path {
        &self.0
    }

    pub(super) fn files(&self) -> PathBuf {
        self.0.join(FILES)
    }

    pub(super) fn file(&self, name: &str) -> PathBuf {
        self.0.join(FILES).join(name)
    }

    /// Whether this user made it. Others' entries are left alone.
    pub(super) fn is_own(&self) -> bool {
        std::fs::symlink_metadata(&self.0)
            .is_ok_and(|meta| meta.is_dir() && meta.uid() == rustix::process::geteuid().as_raw())
    }

    /// Takes the entry, if it is still there and nobody has it.
    pub(super) fn own(&self) -> Result<Option<EntryLock>> {
        self.lock_while_there(OWNER, FlockOperation::NonBlockingLockExclusive)
    }

    /// Keeps the files from being removed while they are read; none if they are about to be.
    pub(super) fn read(&self) -> Result<Option<EntryLock>> {
        let lock = self.lock_while_there(READERS, FlockOperation::NonBlockingLockShared)?;
        // Removal begins with this file's name: a lock on a file without one keeps nothing.
        Ok(lock.filter(|_| self.0.join(READERS).exists()))
    }

    /// None as well if somebody has removed the entry.
    fn lock_while_there(&self, file: &str, operation: FlockOperation) -> Result<Option<EntryLock>> {
        match self.lock(file, operation) {
            Err(Error::Store(error)) if error.io_kind() == Some(io::ErrorKind::NotFound) => {
                Ok(None)
            }
            other => other,
        }
    }

    fn lock(&self, file: &str, operation: FlockOperation) -> Result<Option<EntryLock>> {
        let path = self.0.join(file);
        let file = OpenOptions::new()
            .read(true)
            .write(true)
            .create(true)
            .truncate(false)
            .mode(0o600)
            .open(&path)
            .map_err(|error| io_error(&path, "open", error))?;
        loop {
            match rustix::fs::flock(&file, operation) {
                Ok(()) => return Ok(Some(EntryLock(file))),
                Err(Errno::WOULDBLOCK) => return Ok(None),
                Err(Errno::INTR) => {}
                Err(errno) => return Err(io_error(&path, "lock", errno.into())),
            }
        }
    }

    pub(super) fn stage(&self) -> Stage {
        if self.0.join(STORED).exists() {
            Stage::Stored
        } else if self.0.join(STAGED).exists() {
            Stage::Staged
        } else {
            Stage::Unfinished
        }
    }

    /// The marker, whatever it is called; none if the entry was never acknowledged.
    pub(super) fn marker(&self) -> Result<Option<Marker>> {
        for name in [STAGED, STORED] {
            let path = self.0.join(name);
            let mut bytes = Vec::new();
            match File::open(&path) {
                Ok(file) => {
                    file.take(MANIFEST_MAX_BYTES)
                        .read_to_end(&mut bytes)
                        .map_err(|error| io_error(&path, "read", error))?;
                }
                Err(error) if error.kind() == io::ErrorKind::NotFound => continue,
                Err(error) => return Err(io_error(&path, "open", error)),
            }
            let place = path.display().to_string();
            return Marker::parse(&bytes)
                .map(Some)
                .map_err(|why| Error::Manifest { place, why });
        }
        Ok(None)
    }

    /// Acknowledges the entry. Its files are on disk already.
    pub(super) fn acknowledge(&self, marker: &Marker) -> Result<()> {
        let path = self.0.join(STAGED);
        let mut file = AtomicFile::create(&path)?;
        file.write_all(&marker.to_bytes())
            .map_err(|error| io_error(&path, "write", error))?;
        Ok(file.commit(Durability::Synced)?)
    }

    /// Says that the checkpoint is where it belongs. Saying it twice is no error.
    pub(super) fn stored(&self) -> Result<()> {
        if self.stage() != Stage::Staged {
            return Ok(());
        }
        let (from, to) = (self.0.join(STAGED), self.0.join(STORED));
        std::fs::rename(&from, &to).map_err(|error| io_error(&from, "rename", error))?;
        sync(&self.0)
    }

    /// Removes the entry unless somebody reads it. Its owner's lock is held by the caller.
    pub(super) fn remove(&self) -> Result<bool> {
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
                // Somebody who looked whether it is taken made a lock file again.
                Err(error) if left > 0 && error.kind() == io::ErrorKind::DirectoryNotEmpty => {}
                Err(error) => return Err(io_error(&self.0, "remove", error)),
            }
        }
        Ok(true)
    }

    /// Removes the files alone; the marker stays.
    pub(super) fn remove_files(&self) -> Result<bool> {
        let Some(_alone) = self.lock(READERS, FlockOperation::NonBlockingLockExclusive)? else {
            return Ok(false);
        };
        match std::fs::remove_dir_all(self.files()) {
            Err(error) if error.kind() != io::ErrorKind::NotFound => {
                Err(io_error(&self.files(), "remove", error))
            }
            _ => Ok(true),
        }
    }

    /// Writes down why a try failed, for people who look at the area. What cannot be written is lost without harm.
    pub(super) fn note_error(&self, error: &str) {
        let _ = std::fs::write(self.0.join(ERROR), error);
    }

    /// Why the last try failed.
    pub(super) fn last_error(&self) -> Option<String> {
        let mut text = String::new();
        File::open(self.0.join(ERROR))
            .ok()?
            .take(4096)
            .read_to_string(&mut text)
            .ok()?;
        Some(text).filter(|text| !text.is_empty())
    }

    /// How long ago it was acknowledged, by the clock of this machine.
    pub(super) fn age(&self) -> Option<Duration> {
        let marker = [STAGED, STORED]
            .iter()
            .find_map(|name| std::fs::metadata(self.0.join(name)).ok())?;
        SystemTime::now()
            .duration_since(marker.modified().ok()?)
            .ok()
    }

    /// Bytes that its files take.
    pub(super) fn held_bytes(&self) -> u64 {
        held(&self.files(), 64)
    }

    /// Says how much will be written, so that others leave that room. What cannot be said is not reserved.
    pub(super) fn promise(&self, bytes: u64) {
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

/// What checkpoints have of a staging area.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct AreaHeld {
    /// Bytes of files.
    pub(crate) bytes: u64,
    /// Bytes of these that are copies of what is where it belongs.
    pub(crate) copies: u64,
    /// Bytes that will be written, of checkpoints that are being saved.
    pub(crate) promised: u64,
}

impl AreaHeld {
    /// What is taken, now or soon.
    pub(crate) fn all(&self) -> u64 {
        self.bytes.saturating_add(self.promised)
    }
}

/// What checkpoints have of an area. Hold its books: entries are taken for a moment, to see whether somebody has them.
pub(crate) fn held_in(area: &Path) -> Result<AreaHeld> {
    let mut sum = AreaHeld::default();
    for entry in EntryDir::all(area)? {
        let bytes = entry.held_bytes();
        sum.bytes = sum.bytes.saturating_add(bytes);
        match entry.stage() {
            Stage::Unfinished => {
                let promised = entry.promised(bytes);
                // What a process that is gone has promised will not be written.
                if promised > 0 && (!entry.is_own() || entry.own()?.is_none()) {
                    sum.promised = sum.promised.saturating_add(promised);
                }
            }
            Stage::Stored => sum.copies = sum.copies.saturating_add(bytes),
            Stage::Staged => {}
        }
    }
    Ok(sum)
}

/// Removes copies of what is where it belongs, but for those that somebody has or reads.
pub(crate) fn drop_copies(area: &Path) -> Result<()> {
    for entry in EntryDir::all(area)?.into_iter().filter(EntryDir::is_own) {
        if entry.stage() == Stage::Stored
            && let Some(_owner) = entry.own()?
        {
            entry.remove()?;
        }
    }
    Ok(())
}

/// Bytes of checkpoints that processes left which are gone: they stay until somebody takes them up.
pub(crate) fn left_behind(area: &Path) -> Result<u64> {
    let mut bytes = 0_u64;
    for entry in EntryDir::all(area)? {
        if entry.stage() == Stage::Staged && entry.is_own() && entry.own()?.is_some() {
            bytes = bytes.saturating_add(entry.held_bytes());
        }
    }
    Ok(bytes)
}

/// Bytes of all files below a directory. What goes away meanwhile counts as gone.
pub(super) fn held(dir: &Path, depth: u32) -> u64 {
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
        other => other.map_err(|error| io_error(entries, "list", error))?,
    };
    let mut numbers = Vec::new();
    for entry in found {
        let entry = entry.map_err(|error| io_error(entries, "list", error))?;
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
            Err(io_error(path, "remove", error))
        }
        _ => Ok(()),
    }
}

/// Makes a directory and those above it, for this user alone, each durable.
pub(super) fn make_dirs(dir: &Path) -> Result<()> {
    match DirBuilder::new().mode(0o700).create(dir) {
        Ok(()) => {}
        Err(error) if error.kind() == io::ErrorKind::AlreadyExists && dir.is_dir() => return Ok(()),
        Err(error) if error.kind() == io::ErrorKind::NotFound => {
            let parent = dir
                .parent()
                .filter(|parent| !parent.as_os_str().is_empty() && !parent.is_dir());
            let Some(parent) = parent else {
                return Err(io_error(dir, "create the directory", error));
            };
            make_dirs(parent)?;
            return make_dirs(dir);
        }
        Err(error) => return Err(io_error(dir, "create the directory", error)),
    }
    dir.parent().map_or(Ok(()), sync)
}

pub(super) fn sync(dir: &Path) -> Result<()> {
    Ok(sync_dir(dir)?)
}

pub(super) fn io_error(path: &Path, op: &'static str, error: io::Error) -> Error {
    Error::Store(crate::Error::io(path, op, error))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::checkpoint::marker::tests::marker;

    #[test]
    fn an_entry_goes_through_its_stages() {
        let area = tempfile::tempdir().unwrap();
        assert!(EntryDir::all(area.path()).unwrap().is_empty());
        let (entry, lock) = EntryDir::create(area.path()).unwrap();
        let (second, _) = EntryDir::create(area.path()).unwrap();
        assert_eq!(
            EntryDir::all(area.path()).unwrap(),
            [entry.clone(), second.clone()]
        );
        assert!(entry.is_own() && entry.own().unwrap().is_none());
        assert_eq!(entry.stage(), Stage::Unfinished);
        assert!(entry.marker().unwrap().is_none());
        std::fs::write(entry.file("a"), "abc").unwrap();
        assert_eq!(entry.held_bytes(), 3);
        entry.acknowledge(&marker(None)).unwrap();
        assert_eq!(entry.stage(), Stage::Staged);
        assert_eq!(entry.marker().unwrap().unwrap(), marker(None));
        entry.stored().unwrap();
        assert_eq!(entry.stage(), Stage::Stored);
        let reader = entry.read().unwrap().unwrap();
        assert!(!entry.remove().unwrap(), "it is being read");
        assert_eq!(entry.marker().unwrap().unwrap(), marker(None));
        drop(reader);
        assert!(entry.remove().unwrap());
        drop(lock);
        assert_eq!(EntryDir::all(area.path()).unwrap(), [second]);
    }
}
