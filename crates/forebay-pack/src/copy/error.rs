//! Errors of copies.

use forebay_store::Error;

/// Why a copy was refused or not finished.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum CopyError {
    /// The source or the destination could not be read or written.
    #[error(transparent)]
    Store(#[from] Error),
    /// A manifest of the source is not valid.
    #[error(transparent)]
    Manifest(#[from] forebay_shard::Error),
    /// The source cannot be copied: it is missing, empty or incomplete.
    #[error("{place}: {problem}")]
    Source {
        /// The location.
        place: String,
        /// The problem.
        problem: String,
    },
    /// The copy was refused before any change, because it could destroy data or mix datasets.
    #[error("{place}: {problem}")]
    Refused {
        /// The location.
        place: String,
        /// The reason.
        problem: String,
        /// The remedy.
        hint: &'static str,
    },
    /// Objects of the source are damaged. All others were copied; the manifests of their datasets were not published.
    #[error(
        "{count} of the source's objects are damaged and were not copied, the first is {first}: {problem}"
    )]
    Damaged {
        /// The number of damaged objects.
        count: u64,
        /// The key of the first damaged object.
        first: String,
        /// The problem.
        problem: String,
    },
    /// Another process changed the destination meanwhile.
    #[error("{place}: {problem}")]
    Changed {
        /// The location.
        place: String,
        /// The value that was found.
        problem: String,
    },
    /// The copy was cancelled. Repeating it continues.
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
