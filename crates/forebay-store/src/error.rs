//! Errors of stores and files.

use std::fmt;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

/// The result of this crate's calls.
pub type Result<T> = std::result::Result<T, Error>;

/// An error of this crate. Each variant is a case that a caller may handle differently.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// The operating system refused an operation on a path.
    #[error("cannot {op} {}: {source}", path.display())]
    Io {
        /// The path of the failed operation.
        path: PathBuf,
        /// The operation: "open", "fsync" and so on.
        op: &'static str,
        /// The error of the operating system.
        source: io::Error,
    },
    /// The text is neither a path nor a well-formed URL.
    #[error("{text:?} is not a location: {why}")]
    BadLocation {
        /// The text as it was given, without user name, password and query.
        text: String,
        /// The problem.
        why: String,
    },
    /// The location is well-formed, but nothing in this build can open it.
    #[error("cannot open {text}: {why}; use {can_use}")]
    Unsupported {
        /// The location, without secrets.
        text: String,
        /// Why it cannot be opened.
        why: String,
        /// The alternative.
        can_use: &'static str,
    },
    /// Another process holds the lock.
    #[error("{} is in use by {holder}", dir.display())]
    Locked {
        /// The locked directory.
        dir: PathBuf,
        /// The holder, for example "process 4711 on node12".
        holder: String,
    },
    /// There is no such object.
    #[error("cannot {op} {object}: there is no such object")]
    NotFound {
        /// The object's URL or path.
        object: String,
        /// The operation: "read", "write" and so on.
        op: &'static str,
    },
    /// The object exists, though the put requires that it does not: another writer was first.
    #[error("{object} is there already")]
    AlreadyThere {
        /// The object's URL or path.
        object: String,
    },
    /// The object was replaced, overwritten or removed since the caller read its metadata.
    #[error("{object} was changed meanwhile: {why}")]
    Changed {
        /// The object's URL or path.
        object: String,
        /// The difference.
        why: String,
    },
    /// The received or stored bytes do not have the expected checksum.
    #[error("{object} is damaged: {what} has the CRC-32C {found:08x}, expected {expected:08x}")]
    Checksum {
        /// The object's URL or path.
        object: String,
        /// The bytes with the wrong checksum, for the message: "the file", "the object" and so on.
        what: &'static str,
        /// The checksum that the bytes must have.
        expected: u32,
        /// The checksum that they have.
        found: u32,
    },
    /// The object's bytes are not those that the store lists.
    #[error("{object} is damaged: {why}")]
    Damaged {
        /// The object's URL.
        object: String,
        /// Which size or hash it has, and which one is listed.
        why: String,
    },
    /// The object is larger than the limit that the caller gave.
    #[error("{object} has {len} bytes, more than the {limit} that are read")]
    TooLarge {
        /// The object's URL or path.
        object: String,
        /// Its size in bytes.
        len: u64,
        /// The caller's limit in bytes.
        limit: u64,
    },
    /// A range reaches beyond the end of an object.
    #[error("{object} has {len} bytes: {wanted} bytes from {offset} are not there")]
    BeyondEnd {
        /// The object's URL or path.
        object: String,
        /// Its size in bytes.
        len: u64,
        /// The offset of the range.
        offset: u64,
        /// The length of the range in bytes.
        wanted: u64,
    },
    /// The text is not a valid key of an object.
    #[error("{key:?} is not the name of an object: {why}")]
    BadKey {
        /// The text as it was given.
        key: String,
        /// The problem.
        why: &'static str,
    },
    /// A store option is unknown, or its value is not valid.
    #[error("cannot use {place}: {why}")]
    Options {
        /// The location, without secrets.
        place: String,
        /// The problem, without any value that may be secret.
        why: String,
        /// A remedy.
        hint: Option<String>,
    },
    /// The store accepts conditional puts and ignores the condition, so that two writers could overwrite each other.
    #[error("{object}: the store ignores the condition that no other object is replaced")]
    NotConditional {
        /// The object's URL.
        object: String,
    },
    /// The caller cancelled the operation.
    #[error("stopped before it could {op} {object}")]
    Cancelled {
        /// The object's URL or path.
        object: String,
        /// The operation.
        op: &'static str,
    },
    /// A staged file could not be uploaded to its destination. It stays in the staging area.
    #[error("{source}")]
    Undelivered {
        /// The object's URL or path.
        object: String,
        /// The error of the last attempt.
        source: Arc<Error>,
    },
    /// The byte limit of a staging area is smaller than the bytes that are needed at once.
    #[error("the staging area {} may hold {max_bytes} bytes{}, and {needed_bytes} are needed", dir.display(), left_behind(*left_bytes))]
    AreaTooSmall {
        /// The area.
        dir: PathBuf,
        /// The limit in bytes.
        max_bytes: u64,
        /// Bytes of the limit that are used by files of processes that have ended.
        left_bytes: u64,
        /// Bytes that are needed at once.
        needed_bytes: u64,
    },
    /// A staging area cannot be created or written at its path.
    #[error("cannot {op} {} for the staging area: {source}", path.display())]
    AreaNotWritable {
        /// The area, a directory above it, or a file in it.
        path: PathBuf,
        /// The operation.
        op: &'static str,
        /// The error of the operating system.
        source: io::Error,
    },
    /// An operation on a staging area failed.
    #[error("the staging area {}: {what}", dir.display())]
    Staging {
        /// The area, or a file in it.
        dir: PathBuf,
        /// The problem.
        what: String,
    },
    /// A request failed: the store refused it, had an error, or could not be reached.
    #[error("cannot {op} {object}: {why}{}", tried(*attempts, *elapsed))]
    Request {
        /// The object's URL.
        object: String,
        /// The operation: "read", "list" and so on.
        op: &'static str,
        /// The kind of the last failure.
        kind: ErrorKind,
        /// The reason of the last failure, without secrets.
        why: String,
        /// The number of tries.
        attempts: u32,
        /// The time from the first try to the last failure.
        elapsed: Duration,
        /// A remedy.
        hint: Option<String>,
    },
    /// The limit of a cache, or its free space, is below the minimum number of blocks.
    #[error(
        "a cache in {place} of {have_bytes} bytes ({why}) is too small: it needs {need_bytes} at least"
    )]
    CacheTooSmall {
        /// The directory, or "memory".
        place: String,
        /// The available bytes: the limit, or the free space.
        have_bytes: u64,
        /// The minimum in bytes.
        need_bytes: u64,
        /// The origin of `have_bytes`.
        why: &'static str,
    },
    /// The directory cannot be used as a cache: it contains other files, or its marker file is not valid. It stays unchanged.
    #[error("{} cannot be used as a cache: {why}", dir.display())]
    NotACache {
        /// The directory.
        dir: PathBuf,
        /// The reason.
        why: String,
    },
    /// The error of a fetch that several readers waited for.
    #[error(transparent)]
    Shared(Arc<Error>),
}

/// Why a request to a store failed.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum ErrorKind {
    /// The store could not be reached: no such host, connection refused or reset.
    Unreachable,
    /// The store did not respond within the timeout.
    TimedOut,
    /// The store kept responding with requests to slow down.
    Throttled,
    /// An internal error of the store.
    Server,
    /// The store refused the credentials, or there were none.
    Denied,
    /// The store does not support the operation.
    Unsupported,
    /// The store refused the request.
    Refused,
    /// The response was malformed, truncated or damaged.
    BadAnswer,
}

impl fmt::Display for ErrorKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Unreachable => "unreachable",
            Self::TimedOut => "timed out",
            Self::Throttled => "throttled",
            Self::Server => "server error",
            Self::Denied => "denied",
            Self::Unsupported => "unsupported",
            Self::Refused => "refused",
            Self::BadAnswer => "bad answer",
        })
    }
}

fn left_behind(bytes: u64) -> String {
    match bytes {
        0 => String::new(),
        _ => format!(", {bytes} of which are what processes left that are gone"),
    }
}

fn tried(attempts: u32, elapsed: Duration) -> String {
    match attempts {
        0 | 1 => String::new(),
        _ => format!(
            " (tried {attempts} times in {:.1} s)",
            elapsed.as_secs_f64()
        ),
    }
}

impl Error {
    /// Adds the path and the operation to a system error.
    pub fn io(path: impl AsRef<Path>, op: &'static str, source: impl Into<io::Error>) -> Self {
        Self::Io {
            path: path.as_ref().to_path_buf(),
            op,
            source: source.into(),
        }
    }

    /// The kind of the system error, if this is one.
    pub fn io_kind(&self) -> Option<io::ErrorKind> {
        match self {
            Self::Io { source, .. } => Some(source.kind()),
            Self::Shared(error) => error.io_kind(),
            _ => None,
        }
    }

    /// Whether the same operation may succeed later. A refusal of the store is final.
    pub fn may_pass(&self) -> bool {
        matches!(
            self,
            Self::Request {
                kind: ErrorKind::Unreachable
                    | ErrorKind::TimedOut
                    | ErrorKind::Throttled
                    | ErrorKind::Server
                    | ErrorKind::BadAnswer,
                ..
            }
        )
    }

    /// Returns a remedy, in a sentence, if there is one.
    pub fn hint(&self) -> Option<String> {
        match self {
            Self::Request { hint, .. } | Self::Options { hint, .. } => hint.clone(),
            Self::Shared(error) => error.hint(),
            Self::CacheTooSmall { .. } => {
                Some("allow it more, or choose a directory with more room".to_owned())
            }
            Self::NotACache { .. } => {
                Some("name an empty directory, or one that does not exist yet".to_owned())
            }
            Self::Undelivered { source, .. } => source.hint(),
            Self::AreaTooSmall {
                left_bytes: 1.., ..
            } => Some("upload that first with `forebay stage --drain`".to_owned()),
            Self::AreaNotWritable { .. } => Some(
                "name a directory that can be written to, or set FOREBAY_STAGING to one".to_owned(),
            ),
            Self::AreaTooSmall { .. } => {
                Some("give it more room, or choose another directory".to_owned())
            }
            Self::NotConditional { .. } => Some(
                "if there is no other writer, set the option assume_conditional_put to true"
                    .to_owned(),
            ),
            _ => None,
        }
    }
}

/// For readers and writers whose interface only has `io::Error`. The result wraps this error.
impl From<Error> for io::Error {
    fn from(error: Error) -> Self {
        let mut shown = &error;
        while let Error::Shared(inner) = shown {
            shown = inner;
        }
        let kind = match shown {
            Error::Io { source, .. } | Error::AreaNotWritable { source, .. } => source.kind(),
            Error::NotFound { .. } => io::ErrorKind::NotFound,
            Error::AlreadyThere { .. } => io::ErrorKind::AlreadyExists,
            Error::Checksum { .. } | Error::Damaged { .. } => io::ErrorKind::InvalidData,
            Error::BeyondEnd { .. } => io::ErrorKind::UnexpectedEof,
            Error::BadKey { .. } | Error::BadLocation { .. } | Error::Options { .. } => {
                io::ErrorKind::InvalidInput
            }
            Error::Cancelled { .. } => io::ErrorKind::Interrupted,
            Error::Unsupported { .. } => io::ErrorKind::Unsupported,
            Error::Request { kind, .. } => match kind {
                ErrorKind::TimedOut => io::ErrorKind::TimedOut,
                ErrorKind::Unreachable => io::ErrorKind::NotConnected,
                ErrorKind::Denied => io::ErrorKind::PermissionDenied,
                ErrorKind::Unsupported => io::ErrorKind::Unsupported,
                _ => io::ErrorKind::Other,
            },
            _ => io::ErrorKind::Other,
        };
        Self::new(kind, error)
    }
}
