//! Errors of checkpoints.

use std::path::{Path, PathBuf};

/// The result of this module's calls.
pub type Result<T> = std::result::Result<T, Error>;

/// An error of checkpoints; each variant is one that a caller would answer differently.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// An argument, or a combination of them, that cannot work.
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
    /// A file that is not what was saved.
    #[error("{place}: {file}: {why}")]
    Corrupt {
        /// The checkpoint.
        place: String,
        /// The file in it.
        file: String,
        /// The expected and the found value.
        why: String,
    },
    /// A manifest that cannot be one.
    #[error("{place}: {why}")]
    Manifest {
        /// The manifest.
        place: String,
        /// The problem.
        why: String,
    },
    /// Another process's checkpoint is there, and it was not to be replaced.
    #[error("there is another checkpoint at {place}; it is left as it is")]
    Exists {
        /// The checkpoint.
        place: String,
    },
    /// The staging area can never hold this.
    #[error("{} cannot hold {need} bytes: {why}", dir.display())]
    TooLarge {
        /// The staging area.
        dir: PathBuf,
        /// Bytes that are needed.
        need: u64,
        /// Which limit it is.
        why: String,
    },
    /// A rank's part that will never be joined by the others.
    #[error("{place} was left incomplete: {why}")]
    Abandoned {
        /// The checkpoint.
        place: String,
        /// The missing ranks, and why waiting ended.
        why: String,
    },
    /// The work was stopped.
    #[error("stopped before {what}")]
    Cancelled {
        /// The step that was not reached.
        what: String,
    },
    /// A location, a file or a store.
    #[error(transparent)]
    Store(#[from] forebay_store::Error),
}

/// Ties a system error to the path and the operation that met it.
pub(super) fn io_error(path: &Path, op: &'static str, error: std::io::Error) -> Error {
    Error::Store(forebay_store::Error::io(path, op, error))
}

impl Error {
    /// Whether a store refused a request, and would refuse it again: the credentials have expired, or there is no such bucket.
    pub fn is_refused(&self) -> bool {
        matches!(self, Self::Store(error @ forebay_store::Error::Request { .. }) if !error.may_pass())
    }

    /// Whether trying again can never help.
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
