//! A lock for file systems without `flock`: a file that exists while another process holds the lock.
//!
//! The file contains the holder's host name, process id and start time. It survives its process. If the holder ran on this
//! host and has ended, which its process id and start time show, the next process replaces the file. The state of a holder
//! on another host cannot be known: the error says which file to remove once that process is gone.

use super::host_name;
use crate::{Error, Result};
use std::fs::OpenOptions;
use std::io::{self, Read, Write};
use std::path::{Path, PathBuf};

/// Hidden, so that no reader's glob takes it for data.
pub(super) const NAME: &str = ".forebay-lock-owner";

/// The file, removed when dropped.
#[derive(Debug)]
pub(super) struct OwnerFile {
    path: PathBuf,
    process: u32,
}

impl OwnerFile {
    pub(super) fn create(dir: &Path) -> Result<Self> {
        let path = dir.join(NAME);
        let own = note(std::process::id());
        // After the file of a dead owner is removed, the creation is tried once more; another process may be faster.
        for _ in 0..2 {
            let created = OpenOptions::new().write(true).create_new(true).open(&path);
            match created {
                Ok(mut file) => {
                    let made = Self {
                        path: path.clone(),
                        process: std::process::id(),
                    };
                    file.write_all(own.as_bytes())
                        .and_then(|()| file.sync_all())
                        .map_err(|error| Error::io(&path, "write", error))?;
                    return Ok(made);
                }
                Err(error) if error.kind() == io::ErrorKind::AlreadyExists => {}
                Err(error) => return Err(Error::io(&path, "create", error)),
            }
            let found = read(&path)?;
            if !is_gone(&found) {
                return Err(locked(dir, &found));
            }
            take_over(dir, &path, &found)?;
        }
        Err(locked(dir, &read(&path)?))
    }
}

impl Drop for OwnerFile {
    fn drop(&mut self) {
        // A forked child leaves the file to the process that created it. If the file cannot be removed, the next process
        // on this host finds that its owner is gone.
        if self.process == std::process::id() {
            let _ = std::fs::remove_file(&self.path);
        }
    }
}

/// Fails if a process that runs, or may run, holds the lock.
pub(super) fn refuse_owned(dir: &Path) -> Result<()> {
    let path = dir.join(NAME);
    if !path.exists() {
        return Ok(());
    }
    let found = read(&path)?;
    // An empty note: the file was removed in between, or its owner has not written the note yet.
    if is_gone(&found) || (found.is_empty() && !path.exists()) {
        return Ok(());
    }
    Err(locked(dir, &found))
}

/// The content of the owner file. `began` distinguishes a process from a later one with the same id.
fn note(process: u32) -> String {
    format!(
        "process {process} on {}\nbegan {}\n",
        host_name(),
        began(process)
    )
}

/// The start time of a process in clock ticks since boot; empty if there is no such process.
fn began(process: u32) -> String {
    let stat = std::fs::read_to_string(format!("/proc/{process}/stat")).unwrap_or_default();
    // The command name, in parentheses, may contain any character; the 20th field after it is the start time.
    let after_name = stat.rsplit_once(')').map_or("", |(_, rest)| rest);
    let field = after_name.split_ascii_whitespace().nth(19);
    field.unwrap_or_default().to_owned()
}

/// Whether the note names a process on this host that no longer runs.
fn is_gone(found: &str) -> bool {
    let first = found.lines().next().unwrap_or_default();
    let Some(process) = first
        .strip_prefix("process ")
        .and_then(|rest| rest.strip_suffix(&format!(" on {}", host_name())))
        .and_then(|process| process.parse::<u32>().ok())
    else {
        return false;
    };
    // Without /proc the start time of a process is not known, so no owner counts as gone.
    !began(std::process::id()).is_empty() && found != note(process)
}

/// Removes the file of an owner that is gone. If another process has replaced the file meanwhile, that file is put back.
fn take_over(dir: &Path, path: &Path, found: &str) -> Result<()> {
    let aside = dir.join(format!("{NAME}.{}", std::process::id()));
    match std::fs::rename(path, &aside) {
        Ok(()) => {}
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(()),
        Err(error) => return Err(Error::io(path, "rename", error)),
    }
    let moved = read(&aside)?;
    let restored = moved == found || std::fs::hard_link(&aside, path).is_ok();
    std::fs::remove_file(&aside).map_err(|error| Error::io(&aside, "remove", error))?;
    if moved == found {
        return Ok(());
    }
    // Another process was faster, and its file was moved. The file is linked back, unless a newer one exists.
    debug_assert!(restored || path.exists());
    Err(locked(dir, &moved))
}

fn read(path: &Path) -> Result<String> {
    let mut bytes = Vec::new();
    let read = forebay_shard::storage::open_file(path)
        .and_then(|file| file.take(super::NOTE_MAX_BYTES).read_to_end(&mut bytes));
    match read {
        Ok(_) => Ok(String::from_utf8_lossy(&bytes).into_owned()),
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(String::new()),
        Err(error) => Err(Error::io(path, "read", error)),
    }
}

fn locked(dir: &Path, found: &str) -> Error {
    let first = found.lines().next().unwrap_or_default();
    let holder = if first.is_empty() || first.chars().any(char::is_control) {
        "another process"
    } else {
        first
    };
    Error::Locked {
        dir: dir.to_path_buf(),
        holder: format!(
            "{holder}, says {} (this file system has no flock: remove that file if that process is gone)",
            dir.join(NAME).display()
        ),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_file_of_a_dead_owner_on_this_host_is_replaced() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join(NAME);
        // Our own process id with another start time: an earlier process.
        let earlier = format!(
            "process {} on {}\nbegan 0\n",
            std::process::id(),
            host_name()
        );
        std::fs::write(&path, earlier).unwrap();
        let owner = OwnerFile::create(dir.path()).unwrap();
        assert_eq!(
            std::fs::read_to_string(&path).unwrap(),
            note(std::process::id())
        );
        drop(owner);
        assert_eq!(std::fs::read_dir(dir.path()).unwrap().count(), 0);
    }

    #[test]
    fn files_of_live_or_unknown_owners_stay() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join(NAME);
        let alive = note(std::process::id());
        for other in [
            "process 1 on a-host-elsewhere\nbegan 7\n",
            "",
            "\0\x1b[31m",
            &alive,
        ] {
            std::fs::write(&path, other).unwrap();
            let error = OwnerFile::create(dir.path()).unwrap_err().to_string();
            assert!(error.contains(NAME) && error.contains("remove"), "{error}");
            assert_eq!(std::fs::read_to_string(&path).unwrap(), other);
        }
    }
}
