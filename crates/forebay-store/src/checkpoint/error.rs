//! What can go wrong with a checkpoint.

use std::path::PathBuf;

/// The result of this module's calls.
pub type Result<T> = std::result::Result<T, Error>;

/// An error of checkpoints; each variant is one that a caller would answer differently.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// An argument, or a combination of them, that cannot work.
    #[error("{what}")]
    Option {
        /// What is wrong.
        what: String,
    },
    /// There is no complete checkpoint.
    #[error("there is no complete checkpoint at {place}{}", hint.as_deref().unwrap_or(""))]
    Missing {
        /// Where it was looked for.
        place: String,
        /// What there is instead, if that is known.
        hint: Option<String>,
    },
    /// A file that is not what was saved.
    #[error("{place}: {file}: {why}")]
    Corrupt {
        /// The checkpoint.
        place: String,
        /// The file in it.
        file: String,
        /// What was expected and what was found.
        why: String,
    },
    /// A manifest that cannot be one.
    #[error("{place}: {why}")]
    Manifest {
        /// The manifest.
        place: String,
        /// What is wrong with it.
        why: String,
    },
    /// Somebody else's checkpoint is there, and it was not to be replaced.
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
        /// What is needed.
        need: u64,
        /// Which limit it is.
        why: String,
    },
    /// A rank's part that will never be joined by the others.
    #[error("{place} was left incomplete: {why}")]
    Abandoned {
        /// The checkpoint.
        place: String,
        /// Who is missing, and why nobody waits any more.
        why: String,
    },
    /// The work was stopped.
    #[error("stopped before {what}")]
    Cancelled {
        /// What was not reached.
        what: String,
    },
    /// A location, a file or a store.
    #[error(transparent)]
    Store(#[from] crate::Error),
}

impl Error {
    /// Whether trying again can never help.
    pub(super) fn is_final(&self) -> bool {
        matches!(
            self,
            Self::Option { .. }
                | Self::Corrupt { .. }
                | Self::Exists { .. }
                | Self::Abandoned { .. }
                | Self::Store(
                    crate::Error::NotConditional { .. }
                        | crate::Error::Unsupported { .. }
                        | crate::Error::Options { .. }
                        | crate::Error::BadKey { .. }
                )
        )
    }
}
