//! What can go wrong with a place or a file.

use std::io;
use std::path::{Path, PathBuf};

/// The result of this crate's calls.
pub type Result<T> = std::result::Result<T, Error>;

/// An error of this crate; each variant is one that a caller would answer differently.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// The operating system refused an operation on a path.
    #[error("cannot {op} {}: {source}", path.display())]
    Io {
        /// The path that was worked on.
        path: PathBuf,
        /// What was tried: "open", "fsync" and so on.
        op: &'static str,
        /// The system's answer.
        source: io::Error,
    },
    /// The text is neither a path nor a well-formed URL.
    #[error("{text:?} is not a location: {why}")]
    BadLocation {
        /// The text as it was given, without user name, password and query.
        text: String,
        /// What is wrong with it.
        why: String,
    },
    /// The location is well-formed, but nothing in this build can open it.
    #[error("cannot open {text}: {why}; use {can_use}")]
    Unsupported {
        /// The location, without secrets.
        text: String,
        /// Why it cannot be opened.
        why: String,
        /// What can be used in its place.
        can_use: &'static str,
    },
    /// Another process holds the lock.
    #[error("{} is in use by {holder}", dir.display())]
    Locked {
        /// The locked directory.
        dir: PathBuf,
        /// Who holds it, for example "process 4711 on node12".
        holder: String,
    },
}

impl Error {
    /// Ties a system error to the path and the operation that met it.
    pub fn io(path: impl AsRef<Path>, op: &'static str, source: impl Into<io::Error>) -> Self {
        Self::Io {
            path: path.as_ref().to_path_buf(),
            op,
            source: source.into(),
        }
    }

    /// The system's error kind, where there was one.
    pub fn io_kind(&self) -> Option<io::ErrorKind> {
        match self {
            Self::Io { source, .. } => Some(source.kind()),
            _ => None,
        }
    }
}
