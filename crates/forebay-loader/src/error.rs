//! What can go wrong in a loader, and where.
//!
//! Errors are values that can be kept and given again: a loader that failed keeps
//! failing with the same error, on whatever thread asks.

use std::fmt;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

/// Result of this crate's functions.
pub type Result<T, E = Error> = std::result::Result<T, E>;

/// Why there is no batch.
#[derive(Debug, Clone, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// An option that cannot be.
    #[error("option {name} is {found}: expected {expected}")]
    Option {
        /// The option.
        name: &'static str,
        /// Its value.
        found: String,
        /// What is allowed.
        expected: String,
    },
    /// An option whose value has parts, one of which is wrong.
    #[error("option {name}: {error}")]
    Invalid {
        /// The option.
        name: &'static str,
        /// The part, and what is possible.
        error: String,
    },
    /// A transform, or a form of batches, that cannot be.
    #[error(transparent)]
    Transform(forebay_image::ImageError),
    /// Ranks that cannot share the epoch evenly.
    #[error(
        "a world of {world_size} ranks does not divide the {lanes} lanes of the epoch: possible are {possible} ranks, \
         or set lanes to a multiple of {world_size} (another number of lanes is another order of samples)"
    )]
    WorldSize {
        /// Ranks asked for.
        world_size: u64,
        /// Lanes of the epoch.
        lanes: u64,
        /// World sizes that divide the lanes.
        possible: String,
    },
    /// An epoch too short for one batch.
    #[error(
        "an epoch has no batch: {records} samples, and a batch of all ranks takes {global_batch}; use smaller batches, or have the last one filled up (keep_last, in Python drop_last=False)"
    )]
    NoBatch {
        /// Samples of an epoch.
        records: u64,
        /// Samples of a global batch.
        global_batch: u64,
    },
    /// The memory budget has no room for the batches that are being made.
    #[error(
        "a memory budget of {budget} bytes is too small: batches of {batch_bytes} bytes need at least {needed}; raise it, or use smaller batches"
    )]
    Memory {
        /// The budget.
        budget: u64,
        /// Bytes of one batch.
        batch_bytes: u64,
        /// The least that works.
        needed: u64,
    },
    /// No memory for a batch buffer, or no thread.
    #[error("cannot {what}: {source}")]
    System {
        /// What was attempted.
        what: &'static str,
        /// The system's answer.
        source: Arc<std::io::Error>,
    },
    /// A position beyond the end of the epoch.
    #[error("there is no position {position}: an epoch has {samples} samples")]
    Position {
        /// The position asked for.
        position: u64,
        /// Samples of an epoch.
        samples: u64,
    },
    /// Records could not be read, or are damaged.
    #[error(transparent)]
    Shard(Arc<forebay_shard::Error>),
    /// A record is intact but cannot become a sample.
    #[error("{place}: {what}")]
    Record {
        /// The record.
        place: Box<Place>,
        /// What is wrong with it.
        what: String,
    },
    /// A record's image cannot be decoded.
    #[error("{place}: {source}")]
    Image {
        /// The record.
        place: Box<Place>,
        /// What the decoder found.
        source: forebay_image::ImageError,
    },
    /// No batch within the time allowed. The loader works on; ask again.
    #[error("no batch after {:.1} s: {waits_for}", waited.as_secs_f64())]
    Timeout {
        /// How long the wait was.
        waited: Duration,
        /// Who waits for whom.
        waits_for: String,
    },
    /// The loader was told to stop.
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
    /// Whether another sample may stand in for the one that met this. Not where storage failed: a disk that is gone
    /// would otherwise be trained on to the end, as if every image were damaged.
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

/// Where a record is.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Place {
    /// The shard.
    pub shard: PathBuf,
    /// The record's number in the shard.
    pub record: u64,
    /// The record's number in the split.
    pub sample: u64,
    /// The record's key, where the index has one.
    pub key: Option<Vec<u8>>,
    /// Byte of the shard where the record, or the compressed block it is in, begins.
    pub offset: u64,
}

impl fmt::Display for Place {
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
