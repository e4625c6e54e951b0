//! Errors of sources.

use crate::option_names::LAYOUT;
use std::io;
use std::path::{Path, PathBuf};

/// The result type of this crate.
pub type Result<T, E = Error> = std::result::Result<T, E>;

/// An error of a source. [`hint`](Error::hint) returns advice for the user, if there is any.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// The source is unusable: it is missing, is not a directory, has no images, is ambiguous, or has changed.
    #[error("{}: {what}", path.display())]
    Source {
        /// The path of the source, or a path inside it.
        path: PathBuf,
        /// Description of the error.
        what: String,
    },
    /// A list of labels or classes cannot be used.
    #[error("{}: {what}", path.display())]
    List {
        /// The list, or the class directory that is not in the list.
        path: PathBuf,
        /// The reason, with the line number.
        what: String,
    },
    /// The source is a dataset of another tool, which would be packed with the wrong labels.
    #[error("{}: this looks like {format} ({sign}), which pack does not read", path.display())]
    ForeignTree {
        /// The path in the source.
        path: PathBuf,
        /// The tool or format.
        format: &'static str,
        /// The file or directory by which the format was recognized.
        sign: String,
        /// How the images can be packed anyway.
        advice: &'static str,
    },
    /// A record lacks something that a reader needs: it is not an `Example`, has no image, or has an invalid label.
    #[error("{}: record {record}: {what}", path.display())]
    Record {
        /// The file with the record.
        path: PathBuf,
        /// Number of the record in the file, counted from 0.
        record: u64,
        /// Description of the error.
        what: String,
    },
    /// The caller cancelled the operation.
    #[error("interrupted")]
    Interrupted,
    /// The operating system refused an operation on a path.
    #[error("cannot {op} {}: {source}", path.display())]
    Io {
        /// The path of the operation.
        path: PathBuf,
        /// The operation, as a verb phrase: `read the labels`.
        op: &'static str,
        /// The error of the operating system.
        source: io::Error,
    },
    /// An error of the object store.
    #[error(transparent)]
    Store(#[from] forebay_store::Error),
    /// An error of a shard, an index or a manifest.
    #[error(transparent)]
    Shard(#[from] forebay_shard::Error),
}

impl Error {
    /// Returns the error of a failed system call on a path.
    pub fn io(path: impl AsRef<Path>, op: &'static str, source: impl Into<io::Error>) -> Self {
        Self::Io {
            path: path.as_ref().to_path_buf(),
            op,
            source: source.into(),
        }
    }

    /// Returns an error about a path in a source.
    pub fn source(path: impl AsRef<Path>, what: impl Into<String>) -> Self {
        Self::Source {
            path: path.as_ref().to_path_buf(),
            what: what.into(),
        }
    }

    /// Returns an error about a record of a file.
    pub(crate) fn record(path: impl AsRef<Path>, record: u64, what: impl Into<String>) -> Self {
        Self::Record {
            path: path.as_ref().to_path_buf(),
            record,
            what: what.into(),
        }
    }

    /// Returns an error about a list of labels or classes.
    pub fn list(path: impl AsRef<Path>, what: impl Into<String>) -> Self {
        Self::List {
            path: path.as_ref().to_path_buf(),
            what: what.into(),
        }
    }

    /// Returns advice for the user, in one line.
    pub fn hint(&self) -> Option<String> {
        match self {
            Self::ForeignTree { advice, .. } => Some(format!(
                "{advice}; {LAYOUT} classes or {LAYOUT} splits packs the tree by the names of its directories all the same"
            )),
            _ => None,
        }
    }
}
