//! What can go wrong with shards, and where.
//!
//! One enum for the crate. A variant exists where a caller would act on it;
//! damage is always a [`Corruption`], which names the shard, the record, the
//! byte and what was expected there.

use std::fmt;
use std::io;
use std::path::{Path, PathBuf};

use crate::example::ExampleError;

/// The result of everything fallible here.
pub type Result<T, E = Error> = std::result::Result<T, E>;

/// What can go wrong with a shard, an index, a manifest or a dataset.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// The system refused a read, a write or an open.
    #[error("{}: cannot {op}: {source}", path.display())]
    Io {
        /// The file.
        path: PathBuf,
        /// What was being done: "open", "read", "write".
        op: &'static str,
        /// The system's answer.
        source: io::Error,
    },
    /// Bytes are not what their checksum or their format says.
    #[error(transparent)]
    Corrupt(Box<Corruption>),
    /// A record is intact but is not a `tensorflow.Example`.
    #[error("shard {}: record {record}: not a tensorflow.Example: {source}", shard.display())]
    Example {
        /// The shard.
        shard: PathBuf,
        /// The record's number in the shard.
        record: u64,
        /// What the parser found.
        source: ExampleError,
    },
    /// The file is of a format version that this release does not know.
    #[error("{}: {what} version {found} is not known to this release, which reads version {supported}: a newer forebay wrote it", path.display())]
    Version {
        /// The file.
        path: PathBuf,
        /// "shard", "index" or "manifest".
        what: &'static str,
        /// The version in the file.
        found: u64,
        /// The newest version that can be read.
        supported: u64,
    },
    /// The file needs a feature that this release does not know.
    #[error("{}: the {what} needs {feature}, which this release does not know: a newer forebay wrote it", path.display())]
    Feature {
        /// The file.
        path: PathBuf,
        /// "shard", "index" or "manifest".
        what: &'static str,
        /// The feature's name, or its bits.
        feature: String,
    },
    /// Two files that should belong together do not: a stale index, a
    /// manifest of other shards.
    #[error("{}: {what}: expected {expected}, found {found}", path.display())]
    Mismatch {
        /// The file that does not fit.
        path: PathBuf,
        /// What was compared.
        what: String,
        /// What the other file says.
        expected: String,
        /// What this file says.
        found: String,
    },
    /// A manifest that cannot be understood.
    #[error("{}: {problem}", path.display())]
    Manifest {
        /// The manifest.
        path: PathBuf,
        /// What is wrong, with line and column for JSON.
        problem: String,
    },
    /// A record number beyond the last record.
    #[error("{}: there is no record {record}: it has {records}", path.display())]
    OutOfRange {
        /// The shard or dataset.
        path: PathBuf,
        /// The first record that was asked for and is not there.
        record: u64,
        /// How many there are.
        records: u64,
    },
    /// Something that the format, or this way of reading it, cannot do.
    #[error("{}: {problem}", path.display())]
    Unsupported {
        /// The file.
        path: PathBuf,
        /// What is not possible, and what is instead.
        problem: String,
    },
    /// An argument that cannot be: a record too long, an option out of range.
    #[error("{problem}")]
    Invalid {
        /// What is wrong with it.
        problem: String,
    },
}

impl Error {
    pub(crate) fn io(path: &Path, op: &'static str, source: io::Error) -> Self {
        Self::Io {
            path: path.to_owned(),
            op,
            source,
        }
    }

    pub(crate) fn invalid(problem: impl Into<String>) -> Self {
        Self::Invalid {
            problem: problem.into(),
        }
    }

    /// The damage that this error tells of, if it tells of damage.
    pub fn corruption(&self) -> Option<&Corruption> {
        match self {
            Self::Corrupt(corruption) => Some(corruption),
            _ => None,
        }
    }
}

/// Damage: what was expected at a place, and what was found.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct Corruption {
    /// The file.
    pub shard: PathBuf,
    /// The record's number in the shard, where the damage is in a record.
    pub record: Option<u64>,
    /// The byte of the file where the damaged piece starts.
    pub offset: u64,
    /// The damaged piece: "payload crc32c", "length", "padding".
    pub what: String,
    /// What should be there.
    pub expected: String,
    /// What is there.
    pub found: String,
}

impl Corruption {
    pub(crate) fn new(
        offset: u64,
        what: impl Into<String>,
        expected: impl fmt::Display,
        found: impl fmt::Display,
    ) -> Self {
        Self {
            shard: PathBuf::new(),
            record: None,
            offset,
            what: what.into(),
            expected: expected.to_string(),
            found: found.to_string(),
        }
    }

    /// A checksum that does not match.
    pub(crate) fn checksum(offset: u64, what: &str, expected: u32, found: u32) -> Self {
        Self::new(
            offset,
            what,
            format_args!("{expected:#010x}"),
            format_args!("{found:#010x}"),
        )
    }

    pub(crate) fn record(mut self, record: u64) -> Self {
        self.record = Some(record);
        self
    }

    pub(crate) fn shard(mut self, path: &Path) -> Self {
        self.shard = path.to_owned();
        self
    }
}

impl fmt::Display for Corruption {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "shard {}: ", self.shard.display())?;
        if let Some(record) = self.record {
            write!(f, "record {record} ")?;
        }
        write!(
            f,
            "at byte {}: {}: expected {}, found {}",
            self.offset, self.what, self.expected, self.found
        )
    }
}

impl std::error::Error for Corruption {}

impl From<Corruption> for Error {
    fn from(corruption: Corruption) -> Self {
        Self::Corrupt(Box::new(corruption))
    }
}
