//! Atomic writes: a file appears complete or not at all, and survives a power cut.
//!
//! The order is: write under a temporary name in the same directory, fsync the file, rename, fsync the
//! directory. On ext4 a file without fsync is empty after a power cut, and a rename without fsync of the
//! directory leaves the temporary name. A failed fsync is final: the kernel may have dropped the dirty pages and
//! a second fsync would report success for bytes that are lost, so the file is removed and the error returned.

use crate::{Error, Result, advice};
use rustix::fd::{AsFd, BorrowedFd};
use rustix::fs::{AtFlags, CWD, Dir, FlockOperation, Mode, OFlags};
use rustix::io::Errno;
use std::borrow::Cow;
use std::ffi::{OsStr, OsString};
use std::fs::File;
use std::hash::{DefaultHasher, Hash, Hasher};
use std::io::{self, IoSlice, Write};
use std::num::NonZeroU64;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};

/// The suffix of temporary names, which start with a dot, so that no reader's glob finds them.
pub(crate) const TEMPORARY_SUFFIX: &str = ".forebay-tmp";

/// The longest name that is part of a temporary name. File systems have names of at most 255 bytes, and a process id, a number
/// and the suffix are added.
const STEM_MAX_BYTES: usize = 200;

/// The durability that a commit waits for.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Durability {
    /// The bytes and the name are on disk when the call returns, power cut or not.
    #[default]
    Synced,
    /// The file is complete for every process on this machine, but a power cut may lose it.
    Cached,
}

/// A file under construction, removed when dropped before [`commit`](AtomicFile::commit).
#[derive(Debug)]
pub struct AtomicFile {
    file: File,
    temporary: PathBuf,
    target: PathBuf,
    /// Cleared once the temporary name is gone.
    pending: bool,
    written: u64,
    /// The offset up to which the kernel was asked to start write-back.
    started: u64,
    writeback_bytes: u64,
}

/// Write-back starts after every this many new bytes, so that the final fsync has little left to write. The value is large
/// enough that the disk receives long sequential writes.
const WRITEBACK_BYTES: u64 = 16 << 20;

impl AtomicFile {
    /// Starts a file that will be published as `target`. An existing file of that name stays unchanged until the commit.
    ///
    /// A temporary file that a killed process left for the same target is replaced. Concurrent writers of one target each have
    /// their own temporary file, and the last one to commit wins.
    pub fn create(target: &Path) -> Result<Self> {
        let Some(name) = target.file_name() else {
            return Err(Error::io(
                target,
                "create",
                io::Error::from(io::ErrorKind::InvalidInput),
            ));
        };
        let temporary = target.with_file_name(temporary_name(&temporary_stem(name)));
        let fail = |errno| Error::io(target, "create", errno);
        remove_if_free(CWD, &temporary, false)
            .map_err(|errno| Error::io(&temporary, "remove", errno))?;
        let (file, temporary) = match create_locked(CWD, &temporary).map_err(fail)? {
            Some(file) => (file, temporary),
            None => create_apart(CWD, target, name).map_err(fail)?,
        };
        Ok(Self {
            file,
            temporary,
            target: target.to_path_buf(),
            pending: true,
            written: 0,
            started: 0,
            writeback_bytes: u64::MAX,
        })
    }

    /// Starts write-back while the file is still being written: for large files that will be synced.
    pub fn with_early_writeback(mut self) -> Self {
        self.writeback_bytes = WRITEBACK_BYTES;
        self
    }

    /// The name that the file will have.
    pub fn target(&self) -> &Path {
        &self.target
    }

    /// Bytes written so far.
    pub fn written(&self) -> u64 {
        self.written
    }

    /// Publishes the file under its name, replacing an existing file. If the fsync of the file or the rename fails, nothing is
    /// published and the temporary file is removed. If the fsync of the directory fails, the new file is in place, but may not
    /// survive a power cut.
    pub fn commit(mut self, durability: Durability) -> Result<()> {
        if durability == Durability::Synced {
            self.file
                .sync_all()
                .map_err(|source| Error::io(&self.target, "fsync", source))?;
        }
        std::fs::rename(&self.temporary, &self.target)
            .map_err(|source| Error::io(&self.target, "publish", source))?;
        self.pending = false;
        match (durability, self.target.parent()) {
            (Durability::Synced, Some(dir)) => sync_dir(dir),
            _ => Ok(()),
        }
    }

    /// As [`commit`](AtomicFile::commit), but never replaces a file: returns false, and publishes nothing, if the name
    /// exists already.
    pub fn commit_new(mut self, durability: Durability) -> Result<bool> {
        if durability == Durability::Synced {
            self.file
                .sync_all()
                .map_err(|source| Error::io(&self.target, "fsync", source))?;
        }
        // A hard link is the portable way to publish without replacing; dropping `self` removes the temporary name.
        match std::fs::hard_link(&self.temporary, &self.target) {
            Ok(()) => {}
            Err(error) if error.kind() == io::ErrorKind::AlreadyExists => return Ok(false),
            // The file system has no hard links. A file created between this check and the rename would be replaced.
            Err(_) => {
                if std::fs::symlink_metadata(&self.target).is_ok() {
                    return Ok(false);
                }
                std::fs::rename(&self.temporary, &self.target)
                    .map_err(|source| Error::io(&self.target, "publish", source))?;
                self.pending = false;
            }
        }
        if let (Durability::Synced, Some(dir)) = (durability, self.target.parent()) {
            sync_dir(dir)?;
        }
        Ok(true)
    }

    fn count(&mut self, written: usize) {
        self.written += written as u64;
        let fresh = self.written - self.started;
        if fresh >= self.writeback_bytes {
            advice::wont_need(&self.file, self.started, NonZeroU64::new(fresh));
            self.started = self.written;
        }
    }
}

impl Write for AtomicFile {
    fn write(&mut self, buf: &[u8]) -> io::Result<usize> {
        let written = self.file.write(buf)?;
        self.count(written);
        Ok(written)
    }

    fn write_vectored(&mut self, bufs: &[IoSlice<'_>]) -> io::Result<usize> {
        let written = self.file.write_vectored(bufs)?;
        self.count(written);
        Ok(written)
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

impl Drop for AtomicFile {
    fn drop(&mut self) {
        if self.pending {
            // The caller already has the error that aborted the write; the next run removes a temporary file that stays.
            let _ = std::fs::remove_file(&self.temporary);
        }
    }
}

/// Publishes a small file, replacing an existing one.
pub fn write_file(path: &Path, bytes: &[u8], durability: Durability) -> Result<()> {
    let mut file = AtomicFile::create(path)?;
    file.write_all(bytes)
        .map_err(|error| Error::io(path, "write", error))?;
    file.commit(durability)
}

/// Fsyncs the directory `dir`, so that names created or renamed in it survive a power cut.
pub fn sync_dir(dir: &Path) -> Result<()> {
    let dir = if dir.as_os_str().is_empty() {
        Path::new(".")
    } else {
        dir
    };
    let result = File::open(dir).and_then(|handle| handle.sync_all());
    match result {
        // Some network file systems cannot sync a directory and say so; their renames are durable on return.
        Err(error) if error.raw_os_error() == Some(rustix::io::Errno::INVAL.raw_os_error()) => {
            Ok(())
        }
        other => other.map_err(|source| Error::io(dir, "fsync the directory", source)),
    }
}

/// Whether `name` is a temporary name, as [`AtomicFile`] gives them to unfinished files.
pub fn is_temporary(name: &OsStr) -> bool {
    let name = name.as_bytes();
    name.starts_with(b".") && name.ends_with(TEMPORARY_SUFFIX.as_bytes())
}

/// Creates a temporary file in an open directory, for a writer that publishes it itself. Returns the file and its unique
/// name, which contains `name` unless that is long. [`clean_stale`] does not remove the file while it is open.
pub fn create_temporary_at(dir: impl AsFd, name: &OsStr) -> rustix::io::Result<(File, PathBuf)> {
    create_apart(dir.as_fd(), Path::new(name), name)
}

/// Creates a temporary file beside `target` with a name that no other writer has.
fn create_apart(
    dir: BorrowedFd<'_>,
    target: &Path,
    name: &OsStr,
) -> rustix::io::Result<(File, PathBuf)> {
    static NEXT: AtomicU64 = AtomicU64::new(0);
    loop {
        let turn = NEXT.fetch_add(1, Ordering::Relaxed);
        let mut apart = temporary_stem(name).into_owned();
        apart.push(format!(".{}-{turn}", std::process::id()));
        let temporary = target.with_file_name(temporary_name(&apart));
        if let Some(file) = create_locked(dir, &temporary)? {
            return Ok((file, temporary));
        }
    }
}

/// Creates a temporary file and locks it; the lock shows other processes that its writer is alive. Returns `None` if another
/// writer has a file of this name.
fn create_locked(dir: BorrowedFd<'_>, temporary: &Path) -> rustix::io::Result<Option<File>> {
    // EXCL: never opens a symbolic link that another process created under this name.
    let flags = OFlags::WRONLY | OFlags::CREATE | OFlags::EXCL | OFlags::CLOEXEC;
    let file = match rustix::fs::openat(dir, temporary, flags, Mode::from_raw_mode(0o666)) {
        Ok(fd) => File::from(fd),
        Err(Errno::EXIST) => return Ok(None),
        Err(errno) => return Err(errno),
    };
    // Between the creation and the lock, another process may have locked or removed the file as a stale one.
    let is_taken = try_lock(&file) == LockState::ByAnother
        || file.metadata().is_ok_and(|meta| meta.nlink() == 0);
    Ok((!is_taken).then_some(file))
}

/// The result of trying to lock a temporary file: whether a live process writes it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum LockState {
    /// No process writes it; this process has locked it now.
    Free,
    ByAnother,
    /// The file system does not support `flock`.
    Unknown,
}

fn try_lock(file: &File) -> LockState {
    match rustix::fs::flock(file, FlockOperation::NonBlockingLockExclusive) {
        Ok(()) => LockState::Free,
        Err(Errno::WOULDBLOCK) => LockState::ByAnother,
        Err(_) => LockState::Unknown,
    }
}

/// Removes a temporary file unless a process is writing it, and returns whether it was removed. On a file system without
/// `flock` the file is always removed, so hold the directory's [`DirLock`](crate::DirLock) there.
pub(crate) fn remove_stale(path: &Path) -> Result<bool> {
    remove_if_free(CWD, path, true).map_err(|errno| Error::io(path, "remove", errno))
}

fn remove_if_free(dir: BorrowedFd<'_>, path: &Path, if_unknown: bool) -> rustix::io::Result<bool> {
    let flags = OFlags::WRONLY | OFlags::NONBLOCK | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    // The lock is held until the file is removed, so that no other process starts to use the file.
    let _locked = match rustix::fs::openat(dir, path, flags, Mode::empty()) {
        Ok(fd) => {
            let file = File::from(fd);
            match try_lock(&file) {
                LockState::Free => Some(file),
                LockState::Unknown if if_unknown => None,
                _ => return Ok(false),
            }
        }
        // A symbolic link, which this module never creates: the link itself is removed.
        Err(Errno::LOOP) => None,
        // The file does not exist, or belongs to another user.
        Err(_) => return Ok(false),
    };
    match rustix::fs::unlinkat(dir, path, AtFlags::empty()) {
        Ok(()) => Ok(true),
        Err(Errno::NOENT) => Ok(false),
        Err(errno) => Err(errno),
    }
}

/// Removes the temporary files that killed processes left in `dir`, and returns their number; 0 if `dir` does not exist.
/// Files that a process is writing stay. On a file system without `flock`, hold the directory's [`DirLock`](crate::DirLock).
pub fn clean_stale(dir: &Path) -> Result<usize> {
    let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
    let opened = match rustix::fs::open(dir, flags, Mode::empty()) {
        Err(Errno::NOENT) => return Ok(0),
        other => other.map_err(|errno| Error::io(dir, "list", errno))?,
    };
    clean_stale_at(opened).map_err(|errno| Error::io(dir, "clear", errno))
}

/// As [`clean_stale`], for an open directory.
pub fn clean_stale_at(dir: impl AsFd) -> rustix::io::Result<usize> {
    let dir = dir.as_fd();
    let mut removed = 0;
    for entry in Dir::read_from(dir)? {
        let entry = entry?;
        let name = OsStr::from_bytes(entry.file_name().to_bytes());
        if is_temporary(name) {
            removed += usize::from(remove_if_free(dir, Path::new(name), true)?);
        }
    }
    Ok(removed)
}

/// As [`clean_stale`], for `dir` and all directories below it; symbolic links are not followed.
pub fn clean_stale_tree(dir: &Path) -> Result<usize> {
    let mut removed = 0;
    let mut open = vec![dir.to_path_buf()];
    while let Some(dir) = open.pop() {
        removed += clean_stale(&dir)?;
        let entries = match std::fs::read_dir(&dir) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => continue,
            other => other.map_err(|source| Error::io(&dir, "list", source))?,
        };
        for entry in entries {
            let entry = entry.map_err(|source| Error::io(&dir, "list", source))?;
            if entry.file_type().is_ok_and(|kind| kind.is_dir()) {
                open.push(entry.path());
            }
        }
    }
    Ok(removed)
}

pub(crate) fn temporary_name(stem: &OsStr) -> OsString {
    let mut temporary = OsString::from(".");
    temporary.push(stem);
    temporary.push(TEMPORARY_SUFFIX);
    temporary
}

/// The middle of the temporary names of files of this name: the name itself, or a hash of it if it is long.
pub(crate) fn temporary_stem(name: &OsStr) -> Cow<'_, OsStr> {
    if name.len() <= STEM_MAX_BYTES {
        return Cow::Borrowed(name);
    }
    let mut hasher = DefaultHasher::new();
    name.as_bytes().hash(&mut hasher);
    Cow::Owned(format!("{:016x}", hasher.finish()).into())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn names(dir: &Path) -> Vec<OsString> {
        let mut names: Vec<_> = std::fs::read_dir(dir)
            .unwrap()
            .map(|e| e.unwrap().file_name())
            .collect();
        names.sort();
        names
    }

    #[test]
    fn target_is_unchanged_until_commit() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("a");
        std::fs::write(&path, "old").unwrap();
        let mut file = AtomicFile::create(&path).unwrap();
        file.write_all(b"new").unwrap();
        assert_eq!(std::fs::read(&path).unwrap(), b"old");
        assert_eq!(file.written(), 3);
        file.commit(Durability::Synced).unwrap();
        assert_eq!(std::fs::read(&path).unwrap(), b"new");
        assert_eq!(names(dir.path()), ["a"]);
    }

    #[test]
    fn a_new_file_replaces_nothing() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("a");
        for (text, is_published) in [("one", true), ("two", false)] {
            let mut file = AtomicFile::create(&path).unwrap();
            file.write_all(text.as_bytes()).unwrap();
            assert_eq!(file.commit_new(Durability::Synced).unwrap(), is_published);
            assert_eq!(std::fs::read(&path).unwrap(), b"one");
            assert_eq!(names(dir.path()), ["a"]);
        }
    }

    #[test]
    fn a_dropped_file_leaves_nothing() {
        let dir = tempfile::tempdir().unwrap();
        let mut file = AtomicFile::create(&dir.path().join("a")).unwrap();
        file.write_all(b"half").unwrap();
        drop(file);
        assert!(names(dir.path()).is_empty());
    }

    #[test]
    fn names_may_be_as_long_as_the_file_system_permits() {
        let dir = tempfile::tempdir().unwrap();
        for length in [200, 201, 244, 255] {
            let path = dir.path().join("x".repeat(length));
            let mut first = AtomicFile::create(&path).unwrap();
            let second = AtomicFile::create(&path).unwrap();
            first.write_all(b"first").unwrap();
            first.commit(Durability::Cached).unwrap();
            second.commit(Durability::Cached).unwrap();
        }
        let kept = AtomicFile::create(&dir.path().join("y".repeat(255))).unwrap();
        assert_eq!(
            names(dir.path())
                .iter()
                .filter(|name| is_temporary(name))
                .count(),
            1
        );
        assert_eq!(clean_stale(dir.path()).unwrap(), 0);
        drop(kept);
        assert_eq!(names(dir.path()).len(), 4);
    }

    #[test]
    fn leftovers_are_cleaned_and_nothing_else() {
        let dir = tempfile::tempdir().unwrap();
        for name in [
            ".a.forebay-tmp",
            ".b.forebay-tmp",
            "c.forebay-tmp",
            ".d",
            "e",
        ] {
            std::fs::write(dir.path().join(name), "x").unwrap();
        }
        assert_eq!(clean_stale(dir.path()).unwrap(), 2);
        assert_eq!(names(dir.path()), [".d", "c.forebay-tmp", "e"]);
        assert_eq!(clean_stale(&dir.path().join("missing")).unwrap(), 0);
    }

    #[test]
    fn a_file_being_written_is_not_stale() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("a");
        let mut first = AtomicFile::create(&path).unwrap();
        first.write_all(b"first").unwrap();
        assert_eq!(clean_stale(dir.path()).unwrap(), 0);
        // A second writer of the same target takes another name.
        let mut second = AtomicFile::create(&path).unwrap();
        second.write_all(b"second").unwrap();
        assert_eq!(names(dir.path()).len(), 2);
        first.commit(Durability::Cached).unwrap();
        assert_eq!(std::fs::read(&path).unwrap(), b"first");
        second.commit(Durability::Cached).unwrap();
        assert_eq!(std::fs::read(&path).unwrap(), b"second");
        assert_eq!(names(dir.path()), ["a"]);
    }

    const CHILD_DIR: &str = "FOREBAY_TEST_ATOMIC_FILE_DIR";

    /// The process that `clean_stale_removes_files_of_dead_writers_only` starts and kills.
    #[test]
    fn child() {
        let Some(dir) = std::env::var_os(CHILD_DIR) else {
            return;
        };
        let path = Path::new(&dir).join("a");
        let mut file = AtomicFile::create(&path).unwrap();
        file.write_all(b"half").unwrap();
        // No later writer opens this target, so only `clean_stale` can remove its temporary file.
        let other = AtomicFile::create(&Path::new(&dir).join("b")).unwrap();
        std::fs::write(Path::new(&dir).join("ready"), "").unwrap();
        loop {
            std::thread::park();
            let _ = (&file, &other);
        }
    }

    #[test]
    fn clean_stale_removes_files_of_dead_writers_only() {
        let dir = tempfile::tempdir().unwrap();
        let mut child = std::process::Command::new(std::env::current_exe().unwrap())
            .args(["atomic_file::tests::child", "--exact", "--test-threads=1"])
            .env(CHILD_DIR, dir.path())
            .stdout(std::process::Stdio::null())
            .spawn()
            .unwrap();
        let ready = dir.path().join("ready");
        while !ready.exists() && child.try_wait().unwrap().is_none() {
            std::thread::yield_now();
        }
        std::fs::remove_file(ready).unwrap();
        assert_eq!(clean_stale(dir.path()).unwrap(), 0);
        assert_eq!(names(dir.path()), [".a.forebay-tmp", ".b.forebay-tmp"]);
        child.kill().unwrap();
        child.wait().unwrap();
        // The next writer of the same target replaces the stale file by itself.
        let mut file = AtomicFile::create(&dir.path().join("a")).unwrap();
        file.write_all(b"whole").unwrap();
        file.commit(Durability::Cached).unwrap();
        assert_eq!(names(dir.path()), [".b.forebay-tmp", "a"]);
        assert_eq!(clean_stale(dir.path()).unwrap(), 1);
        assert_eq!(names(dir.path()), ["a"]);
    }

    #[test]
    fn a_link_in_the_way_is_not_followed() {
        let dir = tempfile::tempdir().unwrap();
        let victim = dir.path().join("victim");
        std::fs::write(&victim, "keep").unwrap();
        std::os::unix::fs::symlink(&victim, dir.path().join(".a.forebay-tmp")).unwrap();
        let mut file = AtomicFile::create(&dir.path().join("a")).unwrap();
        file.write_all(b"new").unwrap();
        file.commit(Durability::Cached).unwrap();
        assert_eq!(std::fs::read(victim).unwrap(), b"keep");
    }

    #[test]
    fn errors_name_the_file_that_was_asked_for() {
        let dir = tempfile::tempdir().unwrap();
        let error = AtomicFile::create(&dir.path().join("missing/a")).unwrap_err();
        assert_eq!(error.io_kind(), Some(io::ErrorKind::NotFound));
        assert!(error.to_string().contains("missing/a"), "{error}");
        assert!(AtomicFile::create(Path::new("/")).is_err());
    }
}
