//! Errors of a source.

use std::io;
use std::path::{Path, PathBuf};

/// The result of this crate's calls.
pub type Result<T, E = Error> = std::result::Result<T, E>;

/// An error of a source. [`hint`](Error::hint) says what to do about it, where something can be done.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// The source is not what it has to be: missing, no directory, without images, ambiguous, or changed.
    #[error("{}: {what}", path.display())]
    Source {
        /// The place in the source.
        path: PathBuf,
        /// Description of the error.
        what: String,
    },
    /// A list of labels or classes cannot be used.
    #[error("{}: {what}", path.display())]
    List {
        /// The file, or the directory that it does not name.
        path: PathBuf,
        /// The reason, with the line.
        what: String,
    },
    /// The source is a dataset of another tool, which would be packed with the wrong labels.
    #[error("{}: this looks like {format} ({sign}), which pack does not read", path.display())]
    ForeignTree {
        /// The place in the source.
        path: PathBuf,
        /// The tool or format.
        format: &'static str,
        /// The file or directory that shows it.
        sign: String,
        /// How its images can be packed.
        advice: &'static str,
    },
    /// A record without what a reader needs: no Example, no image, or an impossible label.
    #[error("{}: record {record}: {what}", path.display())]
    Record {
        /// The file.
        path: PathBuf,
        /// Number of the record in the file.
        record: u64,
        /// Description of the error.
        what: String,
    },
    /// The caller cancelled.
    #[error("interrupted")]
    Interrupted,
    /// The system refused an operation on a path.
    #[error("cannot {op} {}: {source}", path.display())]
    Io {
        /// The path that was worked on.
        path: PathBuf,
        /// The operation.
        op: &'static str,
        /// The system's answer.
        source: io::Error,
    },
    /// A place in a store.
    #[error(transparent)]
    Store(#[from] forebay_store::Error),
    /// A shard, index or manifest.
    #[error(transparent)]
    Shard(#[from] forebay_shard::Error),
}

impl Error {
    /// Returns the error of an operation of the system on a path.
    pub fn io(path: impl AsRef<Path>, op: &'static str, source: impl Into<io::Error>) -> Self {
        Self::Io {
            path: path.as_ref().to_path_buf(),
            op,
            source: source.into(),
        }
    }

    /// Returns the error of a place in a source.
    pub fn source(path: impl AsRef<Path>, what: impl Into<String>) -> Self {
        Self::Source {
            path: path.as_ref().to_path_buf(),
            what: what.into(),
        }
    }

    /// Returns the error of a list of labels or classes.
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
                "{advice}; --layout classes or --layout splits packs the tree by the names of its directories all the same"
            )),
            _ => None,
        }
    }
}
