//! The state of an area and its sessions.

use super::journal::Left;
use super::session::{self, AreaLock};
use forebay_store::Result;
use std::collections::BTreeSet;
use std::path::{Path, PathBuf};

/// The progress of a session. Files of an earlier process that it continues count as submitted.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct UploadProgress {
    /// Submitted files.
    pub submitted_files: u64,
    /// Their bytes.
    pub submitted_bytes: u64,
    /// Files that are at their destinations and removed from the area.
    pub stored_files: u64,
    /// Their bytes.
    pub stored_bytes: u64,
    /// Bytes that were sent, including those of unfinished uploads.
    pub sent_bytes: u64,
    /// The error of the last failed attempt, while it is retried.
    pub trouble: Option<String>,
}

impl UploadProgress {
    pub(super) fn plus(mut self, other: Self) -> Self {
        self.submitted_files += other.submitted_files;
        self.submitted_bytes += other.submitted_bytes;
        self.stored_files += other.stored_files;
        self.stored_bytes += other.stored_bytes;
        self.sent_bytes += other.sent_bytes;
        self.trouble = other.trouble.or(self.trouble);
        self
    }
}

/// An area and its sessions.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct AreaStatus {
    /// The directory.
    pub dir: PathBuf,
    /// Bytes that an unprivileged process may still write to its disk.
    pub free_bytes: u64,
    /// The sessions, in order of their names.
    pub sessions: Vec<SessionStatus>,
}

/// One session.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct SessionStatus {
    /// The name.
    pub name: String,
    /// The description.
    pub title: String,
    /// The process that has it open, for example "process 4711 on node12"; `None` if that process has ended.
    pub owner: Option<String>,
    /// Bytes of its files and reservations.
    pub held_bytes: u64,
    /// Files that are not at their destinations yet, in the order of their submission.
    pub left: Vec<LeftFile>,
}

/// A file that is not at its destination yet.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct LeftFile {
    /// The path, relative to the session's `data` directory.
    pub file: String,
    /// The length in bytes.
    pub len: u64,
    /// The destination.
    pub object: String,
    /// The error of the last failed upload, if there is one.
    pub error: Option<String>,
}

impl From<Left> for LeftFile {
    fn from(left: Left) -> Self {
        Self {
            object: left.submitted.object(),
            file: left.submitted.file,
            len: left.submitted.len,
            error: left.error,
        }
    }
}

/// Returns the sessions of an area; none if the directory does not exist.
pub(super) fn look(dir: &Path) -> Result<AreaStatus> {
    let mut sessions = Vec::new();
    if dir.is_dir() {
        let _lock = AreaLock::lock(dir)?;
        for seen in session::others(dir, &BTreeSet::new())? {
            let found = session::left_of(dir, &seen.name)?;
            sessions.push(SessionStatus {
                name: seen.name,
                title: found.title,
                owner: seen.owner,
                held_bytes: seen.held.bytes,
                left: found.left.into_values().map(LeftFile::from).collect(),
            });
        }
    }
    Ok(AreaStatus {
        dir: dir.to_path_buf(),
        free_bytes: forebay_store::free_bytes(dir)?,
        sessions,
    })
}
