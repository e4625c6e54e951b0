//! Sessions: the files of one process in a staging area.
//!
//! An area is a directory of sessions. A session is a directory with a lock that the kernel releases when its process ends, a
//! journal, the files, and a file with the number of used bytes, which other processes add up. A process that creates or
//! removes a session, or reserves bytes, holds the area's lock meanwhile.

use super::journal::{self, Found, Journal, Submitted};
use forebay_store::{DirLock, Error, FileLock, Result, sync_dir};
use rustix::fs::FlockOperation;
use std::collections::BTreeSet;
use std::fs::{DirBuilder, File, OpenOptions};
use std::io::{self, Read, Write};
use std::os::unix::fs::{DirBuilderExt, FileExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::sync::{Mutex, MutexGuard};

/// The name of the area's lock file.
const BOOKS: &str = ".forebay-stage";
/// The files of a session.
const DATA: &str = "data";
const JOURNAL: &str = "journal";
/// The file with the usage of a session: two numbers of twenty digits.
const HELD: &str = "held";
const HELD_BYTES: usize = 42;
/// The prefix of the names of sessions that were opened without a name.
const UNNAMED: &str = "run-";
/// Maximum depth of directories in which a session's files are counted.
const DEPTH: u32 = 8;

/// The area's lock, which is held only briefly.
#[derive(Debug)]
pub(crate) struct AreaLock(#[expect(dead_code, reason = "held until it is dropped")] FileLock);

impl AreaLock {
    /// Creates the area's directory if necessary, with access for this user only, and waits for its lock.
    pub(crate) fn lock(area: &Path) -> Result<Self> {
        let path = area.join(BOOKS);
        let file = match FileLock::open(&path) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => {
                make_dirs(area)?;
                FileLock::open(&path)
            }
            other => other,
        };
        let file = file.map_err(|error| Error::io(&path, "create", error))?;
        FileLock::acquire(file, FlockOperation::LockExclusive)
            .map(Self)
            .map_err(|errno| Error::io(&path, "lock", errno))
    }
}

/// The usage of a session in bytes.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(super) struct Usage {
    /// Files and reservations.
    pub(super) bytes: u64,
    /// The part of `bytes` that is reserved and may still be written.
    pub(super) reserved: u64,
}

/// A session that this process has open.
#[derive(Debug)]
pub(super) struct Session {
    pub(super) name: String,
    dir: PathBuf,
    journal: Mutex<Journal>,
    held: Mutex<(Usage, File)>,
    _lock: DirLock,
}

impl Session {
    /// Opens the session of this name: creates it, or continues it if its process has ended. Without a name, creates a new one.
    pub(super) fn open(area: &Path, name: Option<&str>, title: &str) -> Result<(Self, Found)> {
        let _lock = AreaLock::lock(area)?;
        let name = match name {
            Some(name) => name.to_owned(),
            None => (0u64..)
                .map(|number| format!("{UNNAMED}{}-{number}", std::process::id()))
                .find(|name| !area.join(name).exists())
                .unwrap_or_default(),
        };
        if !is_name(&name) {
            return Err(Error::Staging {
                dir: area.to_path_buf(),
                what: format!(
                    "{name:?} is no name for a session: up to 64 letters, digits, dots and dashes"
                ),
            });
        }
        let dir = area.join(&name);
        make_dirs(&dir)?;
        let lock = DirLock::acquire(&dir)?;
        make_dirs(&dir.join(DATA))?;
        let found = journal::read(&dir.join(JOURNAL))?;
        let journal = Journal::begin(&dir.join(JOURNAL), title, &found)?;
        let held = Usage {
            bytes: size_of(&dir.join(DATA), DEPTH)?,
            reserved: 0,
        };
        let path = dir.join(HELD);
        let file = FileLock::open(&path).map_err(|error| Error::io(&path, "create", error))?;
        write_held(&path, &file, held)?;
        sync_dir(&dir)?;
        let session = Self {
            name,
            dir,
            journal: Mutex::new(journal),
            held: Mutex::new((held, file)),
            _lock: lock,
        };
        Ok((session, found))
    }

    /// The directory of its files.
    pub(super) fn data(&self) -> PathBuf {
        self.dir.join(DATA)
    }

    pub(super) fn path(&self, submitted: &Submitted) -> PathBuf {
        self.dir.join(DATA).join(&submitted.file)
    }

    pub(super) fn journal(&self) -> MutexGuard<'_, Journal> {
        self.journal.lock().unwrap_or_else(|e| e.into_inner())
    }

    /// Bytes of all files in it.
    pub(super) fn size(&self) -> Result<u64> {
        size_of(&self.data(), DEPTH)
    }

    pub(super) fn held(&self) -> Usage {
        self.held.lock().unwrap_or_else(|e| e.into_inner()).0
    }

    /// Changes the usage and writes it for other processes. A process that increases the usage must hold the area's lock; others
    /// may see a decrease late.
    pub(super) fn hold(&self, change: impl FnOnce(&mut Usage)) -> Result<()> {
        let mut held = self.held.lock().unwrap_or_else(|e| e.into_inner());
        change(&mut held.0);
        write_held(&self.dir.join(HELD), &held.1, held.0)
    }

    /// Removes the session's directory. A named session may be continued later, so it is removed only if `forgets` is set.
    pub(super) fn close(&self, area: &Path, forgets: bool) -> Result<()> {
        if !forgets && !self.name.starts_with(UNNAMED) {
            return Ok(());
        }
        let _lock = AreaLock::lock(area)?;
        match std::fs::remove_dir_all(&self.dir) {
            Err(error) if error.kind() != io::ErrorKind::NotFound => {
                Err(Error::io(&self.dir, "remove", error))
            }
            _ => Ok(()),
        }
    }
}

fn write_held(path: &Path, file: &File, held: Usage) -> Result<()> {
    // A single write of constant length: a concurrent reader sees the old or the new numbers.
    let text = format!("{:020} {:020}\n", held.bytes, held.reserved);
    file.write_all_at(text.as_bytes(), 0)
        .map_err(|error| Error::io(path, "write", error))
}

fn read_held(path: &Path) -> Option<Usage> {
    let mut text = Vec::new();
    File::open(path)
        .ok()?
        .take(HELD_BYTES as u64)
        .read_to_end(&mut text)
        .ok()?;
    let text = String::from_utf8(text).ok()?;
    let (bytes, reserved) = text.trim_end().split_once(' ')?;
    Some(Usage {
        bytes: bytes.parse().ok()?,
        reserved: reserved.parse().ok()?,
    })
}

/// A session as seen by other processes.
#[derive(Debug)]
pub(super) struct OtherSession {
    pub(super) name: String,
    pub(super) held: Usage,
    /// The process that has it open; `None` if that process has ended.
    pub(super) owner: Option<String>,
}

/// All sessions of an area except those in `own`, in order of their names. The caller must hold the area's lock.
pub(super) fn others(area: &Path, own: &BTreeSet<String>) -> Result<Vec<OtherSession>> {
    let mut seen = Vec::new();
    for name in names(area)? {
        if own.contains(&name) {
            continue;
        }
        let dir = area.join(&name);
        // The lock is released at once. No other process can fail because of it, since the area's lock is held.
        let owner = match DirLock::acquire(&dir) {
            Ok(_) => None,
            Err(Error::Locked { holder, .. }) => Some(holder),
            // The session was removed meanwhile.
            Err(error) if error.io_kind() == Some(io::ErrorKind::NotFound) => continue,
            Err(error) => return Err(error),
        };
        let held = match &owner {
            Some(_) => read_held(&dir.join(HELD)).unwrap_or_default(),
            None => Usage {
                bytes: size_of(&dir.join(DATA), DEPTH)?,
                reserved: 0,
            },
        };
        seen.push(OtherSession { name, held, owner });
    }
    Ok(seen)
}

/// Reads the journal of a session.
pub(super) fn left_of(area: &Path, name: &str) -> Result<Found> {
    journal::read(&area.join(name).join(JOURNAL))
}

fn names(area: &Path) -> Result<Vec<String>> {
    let entries = match std::fs::read_dir(area) {
        Ok(entries) => entries,
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(Vec::new()),
        Err(error) => return Err(Error::io(area, "list", error)),
    };
    let mut names = Vec::new();
    for entry in entries {
        let entry = entry.map_err(|error| Error::io(area, "list", error))?;
        let is_dir = entry.file_type().is_ok_and(|kind| kind.is_dir());
        names.extend(
            entry
                .file_name()
                .into_string()
                .ok()
                .filter(|name| is_dir && is_name(name)),
        );
    }
    names.sort();
    Ok(names)
}

fn is_name(name: &str) -> bool {
    (1..=64).contains(&name.len())
        && name.starts_with(|c: char| c.is_ascii_alphanumeric())
        && name
            .chars()
            .all(|c| c.is_ascii_alphanumeric() || "-.".contains(c))
}

/// Bytes of all files below a directory. Files that are removed meanwhile do not count.
fn size_of(dir: &Path, depth: u32) -> Result<u64> {
    let entries = match std::fs::read_dir(dir) {
        Ok(entries) => entries,
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(0),
        Err(error) => return Err(Error::io(dir, "list", error)),
    };
    let mut bytes = 0u64;
    for entry in entries {
        let entry = entry.map_err(|error| Error::io(dir, "list", error))?;
        let Ok(meta) = entry.metadata() else { continue };
        if meta.is_file() {
            bytes = bytes.saturating_add(meta.len());
        } else if meta.is_dir() && depth > 0 {
            bytes = bytes.saturating_add(size_of(&entry.path(), depth - 1)?);
        }
    }
    Ok(bytes)
}

/// Creates a directory and its parents, with access for this user only, and fsyncs the parent of each.
pub(crate) fn make_dirs(dir: &Path) -> Result<()> {
    match DirBuilder::new().mode(0o700).create(dir) {
        Ok(()) => {}
        Err(error) if error.kind() == io::ErrorKind::AlreadyExists && dir.is_dir() => return Ok(()),
        Err(error) if error.kind() == io::ErrorKind::NotFound => {
            let Some(parent) = dir
                .parent()
                .filter(|parent| !parent.as_os_str().is_empty() && !parent.is_dir())
            else {
                return Err(Error::io(dir, "create the directory", error));
            };
            make_dirs(parent)?;
            return make_dirs(dir);
        }
        Err(error) => return Err(Error::io(dir, "create the directory", error)),
    }
    dir.parent().map_or(Ok(()), sync_dir)
}

/// A file of a session that is being written; its checksum is computed during the writes.
#[derive(Debug)]
pub struct StagedFile {
    path: PathBuf,
    file: File,
    len: u64,
    crc32c: u32,
}

/// A complete file that is on disk.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Sealed {
    /// The location.
    pub path: PathBuf,
    /// The length in bytes.
    pub len: u64,
    /// The CRC32C of its bytes.
    pub crc32c: u32,
}

impl StagedFile {
    pub(super) fn create(data: &Path, name: &str) -> Result<Self> {
        let path = data.join(name);
        if !journal::is_inside(Path::new(name)) {
            return Err(Error::io(
                &path,
                "create",
                io::Error::from(io::ErrorKind::InvalidInput),
            ));
        }
        if let Some(parent) = path.parent() {
            make_dirs(parent)?;
        }
        let file = OpenOptions::new()
            .write(true)
            .create_new(true)
            .mode(0o600)
            .open(&path);
        let file = file.map_err(|error| Error::io(&path, "create", error))?;
        Ok(Self {
            path,
            file,
            len: 0,
            crc32c: 0,
        })
    }

    /// The location.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Bytes written so far.
    pub fn written(&self) -> u64 {
        self.len
    }

    /// Fsyncs the file.
    ///
    /// # Errors
    /// A failed fsync is final: write the file again under another name.
    pub fn seal(self) -> Result<Sealed> {
        self.file
            .sync_all()
            .map_err(|error| Error::io(&self.path, "fsync", error))?;
        Ok(Sealed {
            path: self.path,
            len: self.len,
            crc32c: self.crc32c,
        })
    }
}

impl Write for StagedFile {
    fn write(&mut self, buf: &[u8]) -> io::Result<usize> {
        let written = self.file.write(buf)?;
        self.crc32c = crc32c::crc32c_append(self.crc32c, buf.get(..written).unwrap_or_default());
        self.len += written as u64;
        Ok(written)
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}
