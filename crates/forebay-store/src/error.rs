//! Errors of stores and files.

use std::fmt;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

/// The result of this crate's calls.
pub type Result<T> = std::result::Result<T, Error>;

/// An error of this crate; each variant is one that a caller would answer differently.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// The operating system refused an operation on a path.
    #[error("cannot {op} {}: {source}", path.display())]
    Io {
        /// The path that was worked on.
        path: PathBuf,
        /// The operation: "open", "fsync" and so on.
        op: &'static str,
        /// The system's answer.
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
    /// An object that must not be there is there: another writer was first.
    #[error("{object} is there already")]
    AlreadyThere {
        /// The object's URL or path.
        object: String,
    },
    /// An object is another one than it was.
    #[error("{object} was changed meanwhile: {why}")]
    Changed {
        /// The object's URL or path.
        object: String,
        /// The difference.
        why: String,
    },
    /// Bytes arrived, or were stored, other than they are.
    #[error("{object} is damaged: {what} has the CRC-32C {found:08x}, expected {expected:08x}")]
    Checksum {
        /// The object's URL or path.
        object: String,
        /// Which bytes.
        what: &'static str,
        /// The checksum that the bytes must have.
        expected: u32,
        /// The checksum that they have.
        found: u32,
    },
    /// An object is larger than the caller takes.
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
        /// The range's bytes.
        wanted: u64,
    },
    /// The text cannot name an object.
    #[error("{key:?} is not the name of an object: {why}")]
    BadKey {
        /// The text as it was given.
        key: String,
        /// The problem.
        why: &'static str,
    },
    /// An option of a store is unknown, or its value cannot be read.
    #[error("cannot use {place}: {why}")]
    Options {
        /// The location, without secrets.
        place: String,
        /// The problem, without any value that may be secret.
        why: String,
        /// A remedy.
        hint: Option<String>,
    },
    /// A store accepts conditional puts and ignores the condition, so that nothing keeps two writers apart.
    #[error("{object}: the store ignores the condition that no other object is replaced")]
    NotConditional {
        /// The object's URL.
        object: String,
    },
    /// The caller asked to stop.
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
        /// Why not.
        source: Arc<Error>,
    },
    /// A staging area could never have as much room as is needed.
    #[error("the staging area {} may hold {max_bytes} bytes{}, and {needed_bytes} are needed", dir.display(), left_behind(*left_bytes))]
    AreaTooSmall {
        /// The area.
        dir: PathBuf,
        /// Bytes that it may hold.
        max_bytes: u64,
        /// Bytes of these that processes left which are gone.
        left_bytes: u64,
        /// Bytes that are needed at once.
        needed_bytes: u64,
    },
    /// A staging area cannot be made or written where it would be.
    #[error("cannot {op} {} for the staging area: {source}", path.display())]
    AreaNotWritable {
        /// The area, a directory above it, or a file in it.
        path: PathBuf,
        /// The operation.
        op: &'static str,
        /// The system's answer.
        source: io::Error,
    },
    /// A staging area cannot do what it was asked.
    #[error("the staging area {}: {what}", dir.display())]
    Staging {
        /// The area, or a file in it.
        dir: PathBuf,
        /// The problem.
        what: String,
    },
    /// A store refused, failed or could not be reached.
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
        /// How often it was tried.
        attempts: u32,
        /// How long it was tried.
        elapsed: Duration,
        /// A remedy.
        hint: Option<String>,
    },
    /// A cache may not hold, or has no room for, what a reader works on at once.
    #[error(
        "a cache in {place} of {have_bytes} bytes ({why}) is too small: it needs {need_bytes} at least"
    )]
    CacheTooSmall {
        /// The directory, or "memory".
        place: String,
        /// Bytes that it has.
        have_bytes: u64,
        /// Bytes that it needs.
        need_bytes: u64,
        /// The origin of `have_bytes`.
        why: &'static str,
    },
    /// The directory is not a cache, and is not made one: it stays as it is.
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

/// Why a store did not do what it was asked.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum ErrorKind {
    /// It could not be reached: no such host, connection refused or cut.
    Unreachable,
    /// It did not answer in time.
    TimedOut,
    /// It asked to slow down, again and again.
    Throttled,
    /// It failed inside.
    Server,
    /// It refused the credentials, or there were none.
    Denied,
    /// It does not know how to do it.
    Unsupported,
    /// It refused the request.
    Refused,
    /// Its answer could not be understood, or was cut or damaged.
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
    /// Ties a system error to the path and the operation that met it.
    pub fn io(path: impl AsRef<Path>, op: &'static str, source: impl Into<io::Error>) -> Self {
        Self::Io {
            path: path.as_ref().to_path_buf(),
            op,
            source: source.into(),
        }
    }

    /// The system's error kind, where there was one.
    pub fn io_kind(&self) -> Option<io::ErrorKind> {
        match self {
            Self::Io { source, .. } => Some(source.kind()),
            Self::Shared(error) => error.io_kind(),
            _ => None,
        }
    }

    /// Whether the same may succeed a while later. A refusal of the store is final.
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
            } => Some("upload that first with `forebay stage drain`".to_owned()),
            Self::AreaNotWritable { .. } => Some(
                "name a directory that can be written to with --staging, or in FOREBAY_STAGING"
                    .to_owned(),
            ),
            Self::AreaTooSmall { .. } => Some(
                "give it more room, or another directory, with --staging-bytes and --staging"
                    .to_owned(),
            ),
            Self::NotConditional { .. } => Some(
                "if there is no other writer, set --storage-option assume_conditional_put=true"
                    .to_owned(),
            ),
            _ => None,
        }
    }
}

/// For readers and writers that speak of `io::Error` only. The error itself is inside.
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
            Error::Checksum { .. } => io::ErrorKind::InvalidData,
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
