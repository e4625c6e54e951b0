//! Temporary files for copies from one store to another.

use forebay_store::{DirLock, Error, Result, clean_stale};
use std::fs::DirBuilder;
use std::io;
use std::os::unix::fs::DirBuilderExt;
use std::path::{Path, PathBuf};
use std::sync::Mutex;
use std::sync::atomic::{AtomicU64, Ordering};

/// The prefix of the directory names; the process id and a number follow.
const PREFIX: &str = "forebay-copy-";

/// A private temporary directory, created for the first object and removed on drop. The next copy removes the directory of
/// a killed process.
#[derive(Debug)]
pub(super) struct Scratch {
    base: PathBuf,
    next: AtomicU64,
    made: Mutex<Option<(PathBuf, DirLock)>>,
}

impl Scratch {
    /// Uses a directory below `base`, or below the system's temporary directory.
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

/// Creates and locks a directory.
fn make(base: &Path) -> Result<(PathBuf, DirLock)> {
    static NUMBER: AtomicU64 = AtomicU64::new(0);
    std::fs::create_dir_all(base).map_err(|error| Error::io(base, "create", error))?;
    clear_leftovers(base);
    loop {
        let number = NUMBER.fetch_add(1, Ordering::Relaxed);
        let dir = base.join(format!("{PREFIX}{}-{number}", std::process::id()));
        match DirBuilder::new().mode(0o700).create(&dir) {
            Ok(()) => {}
            // The directory belongs to a process with the same id in another container.
            Err(error) if error.kind() == io::ErrorKind::AlreadyExists => continue,
            Err(error) => return Err(Error::io(&dir, "create", error)),
        }
        match DirLock::acquire(&dir) {
            Ok(lock) => return Ok((dir, lock)),
            // Before the lock, another process has locked or removed the directory as a stale one.
            Err(Error::Locked { .. }) => {}
            Err(error) if error.io_kind() == Some(io::ErrorKind::NotFound) => {}
            Err(error) => return Err(error),
        }
    }
}

/// The path of a temporary file for one transfer, removed on drop.
#[derive(Debug)]
pub(super) struct Resting(PathBuf);

impl Resting {
    pub(super) fn path(&self) -> &Path {
        &self.0
    }
}

impl Drop for Resting {
    fn drop(&mut self) {
        // The file does not exist if the download failed.
        let _ = std::fs::remove_file(&self.0);
    }
}

/// Removes the directories of killed processes. Directories that cannot be removed, such as other users', stay.
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

/// Removes a directory and the temporary files in it; if it contains other files, they and the directory stay.
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
    fn stale_directories_are_removed_and_others_stay() {
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
