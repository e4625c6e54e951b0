//! Errors of shards, each with its location.
//!
//! There is one enum for the crate. It has a variant for each case that a caller may handle. Damage is always a
//! [`Corruption`], which names the shard, the record, the byte, and the expected value.

use std::fmt;
use std::io;
use std::path::{Path, PathBuf};

use crate::example::ExampleError;

/// The result of all fallible functions of this crate.
pub type Result<T, E = Error> = std::result::Result<T, E>;

/// An error of a shard, an index, a manifest or a dataset.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// The system refused to open, read or write a file.
    #[error("{}: cannot {op}: {source}", path.display())]
    Io {
        /// The file.
        path: PathBuf,
        /// The operation: "open", "read", "write".
        op: &'static str,
        /// The system's error.
        source: io::Error,
    },
    /// Bytes contradict their checksum or their format.
    #[error(transparent)]
    Corrupt(Box<Corruption>),
    /// A record is intact, but it is not a `tensorflow.Example`.
    #[error("shard {}: record {record}: not a tensorflow.Example: {source}", shard.display())]
    Example {
        /// The shard.
        shard: PathBuf,
        /// The record's number in the shard.
        record: u64,
        /// The error of the parser.
        source: ExampleError,
    },
    /// The file has a format version that this release does not know.
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
    /// The file needs a part of this crate that was left out of the build.
    #[error("{}: needs {feature}: forebay-shard was built without its feature `{feature}`", path.display())]
    NotBuilt {
        /// The file.
        path: PathBuf,
        /// The Cargo feature to enable.
        feature: &'static str,
    },
    /// Two files that should belong together do not: a stale index, or a manifest of other shards.
    #[error("{}: {what}: expected {expected}, found {found}", path.display())]
    Mismatch {
        /// The file that does not match.
        path: PathBuf,
        /// The property that was compared.
        what: String,
        /// The value in the other file.
        expected: String,
        /// The value in this file.
        found: String,
    },
    /// An invalid manifest.
    #[error("{}: {problem}", path.display())]
    Manifest {
        /// The manifest.
        path: PathBuf,
        /// The problem, with line and column for JSON.
        problem: String,
    },
    /// The dataset does not have the requested split.
    #[error("{}: there is no split {split:?}: it has {}", dataset.display(), crate::some_of(splits))]
    NoSuchSplit {
        /// The directory of the dataset.
        dataset: PathBuf,
        /// The requested split.
        split: String,
        /// The splits that the dataset has.
        splits: Vec<String>,
    },
    /// A record number beyond the last record.
    #[error("{within}: there is no record {record}: it has {records}")]
    OutOfRange {
        /// The set of records.
        within: Records,
        /// The first requested record that does not exist.
        record: u64,
        /// The number of records.
        records: u64,
    },
    /// An operation that the format, or this way of reading it, does not support.
    #[error("{}: {problem}", path.display())]
    Unsupported {
        /// The file.
        path: PathBuf,
        /// The unsupported operation, and the alternative.
        problem: String,
    },
    /// An invalid argument: a record that is too long, an option out of range.
    #[error("{problem}")]
    Invalid {
        /// The problem.
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

    pub(crate) fn not_built(path: &Path, feature: &'static str) -> Self {
        let path = path.to_owned();
        Self::NotBuilt { path, feature }
    }

    pub(crate) fn invalid(problem: impl Into<String>) -> Self {
        Self::Invalid {
            problem: problem.into(),
        }
    }

    /// Returns the damage, if this error is about damage.
    pub fn corruption(&self) -> Option<&Corruption> {
        match self {
            Self::Corrupt(corruption) => Some(corruption),
            _ => None,
        }
    }
}

/// A set of records, numbered from 0.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub enum Records {
    /// The records of a shard, or of its index.
    Shard(PathBuf),
    /// The records of a split, numbered over all its shards.
    Split(String),
}

impl fmt::Display for Records {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Shard(path) => write!(f, "{}", path.display()),
            Self::Split(name) => write!(f, "split {name:?}"),
        }
    }
}

/// The kinds of damage.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum CorruptionKind {
    /// Bytes do not match their checksum.
    Checksum,
    /// The file is truncated.
    Truncated,
    /// The index contradicts itself.
    Index,
    /// Bytes violate the format: a magic number, a length, padding, a compressed block.
    Format,
}

/// Damage: location, expected and found value.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct Corruption {
    /// The kind of damage.
    pub kind: CorruptionKind,
    /// The file.
    pub shard: PathBuf,
    /// The record's number in the shard, if the damage is in a record.
    pub record: Option<u64>,
    /// Offset in the file at which the damaged piece starts.
    pub offset: u64,
    /// The damaged piece: "payload crc32c", "length", "padding".
    pub what: String,
    /// The expected value.
    pub expected: Box<str>,
    /// The value in the file.
    pub found: Box<str>,
}

impl Corruption {
    pub(crate) fn new(
        offset: u64,
        what: impl Into<String>,
        expected: impl fmt::Display,
        found: impl fmt::Display,
    ) -> Self {
        Self {
            kind: CorruptionKind::Format,
            shard: PathBuf::new(),
            record: None,
            offset,
            what: what.into(),
            expected: expected.to_string().into(),
            found: found.to_string().into(),
        }
    }

    /// Creates the damage of a checksum that does not match.
    pub(crate) fn checksum(offset: u64, what: &str, expected: u32, found: u32) -> Self {
        Self::new(
            offset,
            what,
            format_args!("{expected:#010x}"),
            format_args!("{found:#010x}"),
        )
        .kind(CorruptionKind::Checksum)
    }

    /// Creates the damage of a file or a piece that ends too early.
    pub(crate) fn truncated(
        offset: u64,
        what: &str,
        expected: impl fmt::Display,
        found: impl fmt::Display,
    ) -> Self {
        Self::new(offset, what, expected, found).kind(CorruptionKind::Truncated)
    }

    pub(crate) fn kind(mut self, kind: CorruptionKind) -> Self {
        self.kind = kind;
        self
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
