//! Objects that rest on this machine on their way from one store to another.

use crate::{DirLock, Error, Result, clean_stale};
use std::fs::DirBuilder;
use std::io;
use std::os::unix::fs::DirBuilderExt;
use std::path::{Path, PathBuf};
use std::sync::Mutex;
use std::sync::atomic::{AtomicU64, Ordering};

/// Begins the names of the directories; the process and a number follow.
const PREFIX: &str = "forebay-copy-";

/// A directory for objects that no other process has, made for the first of them and removed when dropped. The next copy
/// removes that of a killed process.
#[derive(Debug)]
pub(super) struct Scratch {
    base: PathBuf,
    next: AtomicU64,
    made: Mutex<Option<(PathBuf, DirLock)>>,
}

impl Scratch {
    /// Objects will rest below `base`, or below the directory of temporary files.
    pub(super) fn new(base: Option<&Path>) -> Self {
        Self {
            base: base.map_or_else(std::env::temp_dir, Path::to_path_buf),
            next: AtomicU64::new(0),
            made: Mutex::default(),
        }
    }

    /// A path for one object.
    pub(super) fn place(&self) -> Result<Resting> {
        let mut made = self.made.lock().unwrap_or_else(|e| e.into_inner());
        let (dir, _) = match &mut *made {
            Some(made) => made,
            none => none.insert(make(&self.base)?),
        };
        let number = self.next.fetch_add(1, Ordering::Relaxed);
        Ok(Resting(dir.join(number.to_string())))
    }
}

impl Drop for Scratch {
    fn drop(&mut self) {
        let made = self.made.get_mut().unwrap_or_else(|e| e.into_inner());
        if let Some((dir, lock)) = made.take() {
            remove(&dir, lock);
        }
    }
}

/// Makes and locks a directory.
fn make(base: &Path) -> Result<(PathBuf, DirLock)> {
    static NUMBER: AtomicU64 = AtomicU64::new(0);
    std::fs::create_dir_all(base).map_err(|error| Error::io(base, "create", error))?;
    clear_leftovers(base);
    loop {
        let number = NUMBER.fetch_add(1, Ordering::Relaxed);
        let dir = base.join(format!("{PREFIX}{}-{number}", std::process::id()));
        match DirBuilder::new().mode(0o700).create(&dir) {
            Ok(()) => {}
            // Of a process with the same number in another container.
            Err(error) if error.kind() == io::ErrorKind::AlreadyExists => continue,
            Err(error) => return Err(Error::io(&dir, "create", error)),
        }
        match DirLock::acquire(&dir) {
            Ok(lock) => return Ok((dir, lock)),
            // Another process took it for a leftover before it was locked.
            Err(Error::Locked { .. }) => {}
            Err(error) if error.io_kind() == Some(io::ErrorKind::NotFound) => {}
            Err(error) => return Err(error),
        }
    }
}

/// A file for the time of one transfer, removed at its end.
#[derive(Debug)]
pub(super) struct Resting(PathBuf);

impl Resting {
    pub(super) fn path(&self) -> &Path {
        &self.0
    }
}

impl Drop for Resting {
    fn drop(&mut self) {
        // It is not there where the download failed.
        let _ = std::fs::remove_file(&self.0);
    }
}

/// Removes the directories of killed processes. Those that cannot be removed, such as other users', stay.
fn clear_leftovers(base: &Path) {
    for entry in std::fs::read_dir(base).into_iter().flatten().flatten() {
        let is_own = entry.file_name().to_str().is_some_and(is_own_name);
        if is_own
            && entry.file_type().is_ok_and(|kind| kind.is_dir())
            && let Ok(lock) = DirLock::acquire(&entry.path())
        {
            remove(&entry.path(), lock);
        }
    }
}

fn is_own_name(name: &str) -> bool {
    let numbers = name.strip_prefix(PREFIX).and_then(|n| n.split_once('-'));
    numbers.is_some_and(|(process, number)| is_number(process) && is_number(number))
}

fn is_number(text: &str) -> bool {
    !text.is_empty() && text.bytes().all(|b| b.is_ascii_digit())
}

/// Removes a directory with the objects in it, and with nothing else.
fn remove(dir: &Path, lock: DirLock) {
    let _ = clean_stale(dir);
    for entry in std::fs::read_dir(dir).into_iter().flatten().flatten() {
        if entry.file_name().to_str().is_some_and(is_number) {
            let _ = std::fs::remove_file(entry.path());
        }
    }
    drop(lock);
    let _ = std::fs::remove_dir(dir);
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn leftovers_go_and_what_others_have_stays() {
        let base = tempfile::tempdir().unwrap();
        let first = Scratch::new(Some(base.path()));
        let resting = first.place().unwrap();
        std::fs::write(resting.path(), "mine").unwrap();
        for (dir, file) in [("forebay-copy-1-0", "7"), ("forebay-copy-photos", "7")] {
            let dir = base.path().join(dir);
            std::fs::create_dir(&dir).unwrap();
            std::fs::write(dir.join(file), "object").unwrap();
            std::fs::write(dir.join(".7.forebay-tmp"), "half").unwrap();
        }
        let second = Scratch::new(Some(base.path()));
        let other = second.place().unwrap();
        assert_ne!(resting.path().parent(), other.path().parent());
        assert_eq!(std::fs::read(resting.path()).unwrap(), b"mine");
        assert!(!base.path().join("forebay-copy-1-0").exists());
        assert!(base.path().join("forebay-copy-photos/7").exists());
        drop((resting, other, first, second));
        assert_eq!(std::fs::read_dir(base.path()).unwrap().count(), 1);
    }
}
