//! Why a copy was not made.

use crate::Error;

/// Why a copy was not made, or not finished.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum CopyError {
    /// A place could not be read or written.
    #[error(transparent)]
    Store(#[from] Error),
    /// A manifest of the source cannot be used.
    #[error(transparent)]
    Manifest(#[from] forebay_shard::Error),
    /// The source is not what it has to be.
    #[error("{place}: {problem}")]
    Source {
        /// The location.
        place: String,
        /// The problem.
        problem: String,
    },
    /// Nothing was done, because it could have destroyed something.
    #[error("{place}: {problem}")]
    Refused {
        /// The location.
        place: String,
        /// The possible damage.
        problem: String,
        /// The remedy.
        hint: &'static str,
    },
    /// Objects of the source are damaged. All others were copied; the manifests of their datasets were not published.
    #[error(
        "{count} of the source's objects are damaged and were not copied, the first is {first}: {problem}"
    )]
    Damaged {
        /// How many.
        count: u64,
        /// The first of them.
        first: String,
        /// The problem.
        problem: String,
    },
    /// Another process changed the destination meanwhile.
    #[error("{place}: {problem}")]
    Changed {
        /// The location.
        place: String,
        /// The finding.
        problem: String,
    },
    /// It was stopped. The same call again continues.
    #[error("{done} of {total} objects are done")]
    Interrupted {
        /// Objects that are at the destination.
        done: u64,
        /// Objects of the source.
        total: u64,
    },
}

impl CopyError {
    pub(super) fn source(place: impl ToString, problem: impl Into<String>) -> Self {
        Self::Source {
            place: place.to_string(),
            problem: problem.into(),
        }
    }

    /// Returns the remedy, if there is a known one.
    pub fn hint(&self) -> Option<&'static str> {
        match self {
            Self::Refused { hint, .. } => Some(hint),
            Self::Damaged { .. } => Some(
                "restore them from where they came (`forebay verify` lists the damage), then run the same command again",
            ),
            Self::Changed { .. } | Self::Interrupted { .. } => {
                Some("run the same command again: what is done stays")
            }
            _ => None,
        }
    }
}
