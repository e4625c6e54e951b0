//! Errors of a loader, with their location.
//!
//! Errors can be cloned: a loader that failed returns the same error on every later call, on any
//! thread.

use std::fmt;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

/// Result of this crate's functions.
pub type Result<T, E = Error> = std::result::Result<T, E>;

/// The reason why a loader returns no batch.
#[derive(Debug, Clone, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// An invalid option value.
    #[error("option {name} is {found}: expected {expected}")]
    Option {
        /// The option.
        name: &'static str,
        /// Its value.
        found: String,
        /// The allowed values.
        expected: String,
    },
    /// An option whose value has several parts, one of which is invalid.
    #[error("option {name}: {error}")]
    Invalid {
        /// The option.
        name: &'static str,
        /// The invalid part, and the allowed values.
        error: String,
    },
    /// An option that has no default and is not given.
    #[error("option {name} is not given: {expected}")]
    Missing {
        /// The option.
        name: &'static str,
        /// The allowed values.
        expected: &'static str,
    },
    /// An invalid transform or batch layout.
    #[error(transparent)]
    Transform(forebay_image::ImageError),
    /// An epoch too short for one batch.
    #[error(
        "an epoch has no batch: {records} samples, and a batch of all ranks takes {global_batch}; use smaller batches, fewer ranks, or drop_last=False, which pads the last one"
    )]
    NoBatch {
        /// Samples per epoch.
        records: u64,
        /// Samples per global batch.
        global_batch: u64,
    },
    /// The memory budget is too small for the batches in progress.
    #[error(
        "a memory budget of {budget} bytes is too small: batches of {batch_bytes} bytes need at least {needed}; raise it, or use smaller batches"
    )]
    Memory {
        /// The budget.
        budget: u64,
        /// Size of a batch in bytes.
        batch_bytes: u64,
        /// The smallest budget that works.
        needed: u64,
    },
    /// The system refused memory for a batch buffer, or a thread.
    #[error("cannot {what}: {source}")]
    System {
        /// The operation that failed.
        what: &'static str,
        /// The system's error.
        source: Arc<std::io::Error>,
    },
    /// A position beyond the end of the epoch.
    #[error("there is no position {position}: an epoch has {samples} samples")]
    Position {
        /// The requested position, in samples.
        position: u64,
        /// Samples per epoch.
        samples: u64,
    },
    /// Records that could not be read, or are damaged.
    #[error(transparent)]
    Shard(Arc<forebay_shard::Error>),
    /// A record that is intact but is not a valid sample.
    #[error("{place}: {what}")]
    Record {
        /// Location of the record.
        place: Box<RecordLocation>,
        /// The problem.
        what: String,
    },
    /// An image that cannot be decoded.
    #[error("{place}: {source}")]
    Image {
        /// Location of the record.
        place: Box<RecordLocation>,
        /// The error of the decoder.
        source: forebay_image::ImageError,
    },
    /// No batch within the timeout. The loader keeps working, so the call can be repeated.
    #[error("no batch after {:.1} s: {waits_for}", waited.as_secs_f64())]
    Timeout {
        /// Time waited.
        waited: Duration,
        /// Which part of the pipeline waits for which.
        waits_for: String,
    },
    /// The loader was stopped.
    #[error("the loader was interrupted")]
    Interrupted,
}

impl Error {
    pub(crate) fn option(
        name: &'static str,
        found: impl fmt::Display,
        expected: impl fmt::Display,
    ) -> Self {
        Error::Option {
            name,
            found: found.to_string(),
            expected: expected.to_string(),
        }
    }
}

impl Error {
    /// Returns whether another sample may replace the one with this error. Storage errors do not
    /// qualify: after the loss of a disk, the training would otherwise run to its end as if every
    /// image were damaged.
    pub(crate) fn is_of_one_sample(&self) -> bool {
        match self {
            Error::Record { .. } | Error::Image { .. } => true,
            Error::Shard(error) => !matches!(**error, forebay_shard::Error::Io { .. }),
            _ => false,
        }
    }
}

impl From<forebay_shard::Error> for Error {
    fn from(error: forebay_shard::Error) -> Self {
        Error::Shard(Arc::new(error))
    }
}

/// Location of a record.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct RecordLocation {
    /// The shard.
    pub shard: PathBuf,
    /// The record's number in the shard.
    pub record: u64,
    /// The record's number in the split.
    pub sample: u64,
    /// The record's key, if the index has one.
    pub key: Option<Vec<u8>>,
    /// Offset in the shard of the record, or of the compressed block that contains it.
    pub offset: u64,
}

impl fmt::Display for RecordLocation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "shard {}: record {} at byte {}",
            self.shard.display(),
            self.record,
            self.offset
        )?;
        if let Some(key) = &self.key {
            write!(f, " ({})", key.escape_ascii())?;
        }
        Ok(())
    }
}
