//! Errors of checkpoints.

use std::path::{Path, PathBuf};

/// The result type of checkpoints.
pub type Result<T> = std::result::Result<T, Error>;

/// An error of checkpoints. Each variant is one that a caller would handle differently.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// An invalid argument or combination of arguments.
    #[error("{what}")]
    Option {
        /// The problem.
        what: String,
    },
    /// There is no complete checkpoint.
    #[error("there is no complete checkpoint at {place}{}", hint.as_deref().unwrap_or(""))]
    Missing {
        /// The location.
        place: String,
        /// A hint at what exists instead, if that is known.
        hint: Option<String>,
    },
    /// A file that is missing or differs from what was saved.
    #[error("{place}: {file}: {why}")]
    Corrupt {
        /// The checkpoint.
        place: String,
        /// The file in it.
        file: String,
        /// The expected and the found value.
        why: String,
    },
    /// A damaged or invalid manifest or marker.
    #[error("{place}: {why}")]
    Manifest {
        /// Its path or location.
        place: String,
        /// The problem.
        why: String,
    },
    /// Another checkpoint or attempt has this name and must not be replaced.
    #[error("there is another checkpoint at {place}; it is left as it is")]
    Exists {
        /// The checkpoint.
        place: String,
    },
    /// The staging area can never hold a checkpoint of this size.
    #[error("{} cannot hold {need} bytes: {why}", dir.display())]
    TooLarge {
        /// The staging area.
        dir: PathBuf,
        /// Bytes that are needed.
        need: u64,
        /// The limit that it exceeds.
        why: String,
    },
    /// A rank's part whose checkpoint will never be complete.
    #[error("{place} was left incomplete: {why}")]
    Abandoned {
        /// The checkpoint.
        place: String,
        /// The ranks whose parts are missing, and why this rank stops waiting for them.
        why: String,
    },
    /// The operation was canceled.
    #[error("stopped before {what}")]
    Cancelled {
        /// The step that was not reached.
        what: String,
    },
    /// An error of a location, a file or a store.
    #[error(transparent)]
    Store(#[from] forebay_store::Error),
}

/// Adds the path and the failed operation to a system error.
pub(super) fn io_error(path: &Path, op: &'static str, error: std::io::Error) -> Error {
    Error::Store(forebay_store::Error::io(path, op, error))
}

impl Error {
    /// Whether a store refused a request and would refuse it again: the credentials have expired, or the bucket does not exist.
    pub fn is_refused(&self) -> bool {
        matches!(self, Self::Store(error @ forebay_store::Error::Request { .. }) if !error.may_pass())
    }

    /// Whether a retry can never succeed.
    pub(super) fn is_final(&self) -> bool {
        matches!(
            self,
            Self::Option { .. }
                | Self::Corrupt { .. }
                | Self::Exists { .. }
                | Self::Abandoned { .. }
                | Self::Store(
                    forebay_store::Error::NotConditional { .. }
                        | forebay_store::Error::Unsupported { .. }
                        | forebay_store::Error::Options { .. }
                        | forebay_store::Error::BadKey { .. }
                )
        )
    }
}
