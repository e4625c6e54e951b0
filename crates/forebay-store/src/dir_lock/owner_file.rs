//! A lock for file systems without `flock`: a file that exists while another process holds the lock.
//!
//! It says who that is: host, process and when that process began. It does not die with its process, so a holder on
//! this host that is gone is recognized by its process number, and its file taken over. Of a holder on another host nothing
//! can be known: the error says which file to remove once that process is gone.

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
        // A second round follows a take-over; another process may win it.
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
        // A forked child leaves it to the process that made it. If it cannot be removed, the next process on this host
        // finds that its owner is gone.
        if self.process == std::process::id() {
            let _ = std::fs::remove_file(&self.path);
        }
    }
}

/// An error if a process that is still there, or may be, has the lock.
pub(super) fn refuse_owned(dir: &Path) -> Result<()> {
    let path = dir.join(NAME);
    if !path.exists() {
        return Ok(());
    }
    let found = read(&path)?;
    // Read as empty: it went away in this moment, or its owner is about to write.
    if is_gone(&found) || (found.is_empty() && !path.exists()) {
        return Ok(());
    }
    Err(locked(dir, &found))
}

/// The holder of the lock. `began` tells a process from a later one with the same number.
fn note(process: u32) -> String {
    format!(
        "process {process} on {}\nbegan {}\n",
        host_name(),
        began(process)
    )
}

/// When a process began, in the kernel's ticks; empty if there is no such process.
fn began(process: u32) -> String {
    let stat = std::fs::read_to_string(format!("/proc/{process}/stat")).unwrap_or_default();
    // The command's name, in parentheses, may hold anything; the 20th field after it is the time.
    let after_name = stat.rsplit_once(')').map_or("", |(_, rest)| rest);
    let field = after_name.split_ascii_whitespace().nth(19);
    field.unwrap_or_default().to_owned()
}

/// Whether the note is of a process on this host that no longer runs.
fn is_gone(found: &str) -> bool {
    let first = found.lines().next().unwrap_or_default();
    let Some(process) = first
        .strip_prefix("process ")
        .and_then(|rest| rest.strip_suffix(&format!(" on {}", host_name())))
        .and_then(|process| process.parse::<u32>().ok())
    else {
        return false;
    };
    // Without /proc nothing can be known of any process.
    !began(std::process::id()).is_empty() && found != note(process)
}

/// Removes the file of an owner that is gone, and only that one.
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
    // Another process was faster, and it was that one's file that was moved: it is back, or has a successor.
    debug_assert!(restored || path.exists());
    Err(locked(dir, &moved))
}

fn read(path: &Path) -> Result<String> {
    let mut bytes = Vec::new();
    let read = forebay_shard::open_file(path)
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
    fn a_dead_owner_on_this_host_is_succeeded() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join(NAME);
        // Our own number with another beginning: a process before us.
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
    fn others_are_left_alone() {
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
