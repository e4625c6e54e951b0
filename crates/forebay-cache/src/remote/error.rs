//! Converts store errors for shard readers: to an `io::Error` that does not name the object, since the reader names the path.

use std::fmt;
use std::io;

use super::ahead::Shown;
use forebay_store::Error;

/// Why a store could not be read. Inside the [`io::Error`] of a [`forebay_shard::Error::Io`].
#[derive(Debug)]
pub struct ReadError(Error);

impl ReadError {
    /// Returns the error of the store, if a store caused this error.
    pub fn of(error: &forebay_shard::Error) -> Option<&Error> {
        match error {
            forebay_shard::Error::Io { source, .. } => Self::in_io(source),
            _ => None,
        }
    }

    /// Returns the error of the store, if a store caused this error.
    pub fn in_io(error: &io::Error) -> Option<&Error> {
        let inner = error.get_ref()?;
        if let Some(Shown(error)) = inner.downcast_ref() {
            return Self::in_io(error);
        }
        match inner.downcast_ref::<Self>() {
            Some(error) => Some(error.shown()),
            None => inner.downcast_ref(),
        }
    }

    /// The inner error, without the wrapper for errors that several readers share.
    fn shown(&self) -> &Error {
        let mut shown = &self.0;
        while let Error::Shared(inner) = shown {
            shown = inner;
        }
        shown
    }

    /// Wraps a store error in an `io::Error`.
    pub(crate) fn io(error: Error) -> io::Error {
        let kind = match &error {
            Error::TooLarge { .. } => Some(io::ErrorKind::FileTooLarge),
            // `Interrupted` would make callers retry.
            Error::Cancelled { .. } => Some(io::ErrorKind::Other),
            _ => None,
        };
        let wrapped = io::Error::from(error);
        let kind = kind.unwrap_or(wrapped.kind());
        match wrapped.into_inner().map(|inner| inner.downcast::<Error>()) {
            Some(Ok(error)) => io::Error::new(kind, Self(*error)),
            Some(Err(other)) => io::Error::new(kind, other),
            None => kind.into(),
        }
    }
}

impl fmt::Display for ReadError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.shown() {
            Error::NotFound { .. } => f.write_str("there is no such object"),
            Error::Changed { why, .. } => write!(
                f,
                "it was replaced by another object since it was opened ({why})"
            ),
            Error::TooLarge { len, limit, .. } => {
                write!(f, "it has {len} bytes: at most {limit} are read")
            }
            Error::BeyondEnd { len, .. } => write!(f, "it has {len} bytes"),
            Error::Request {
                why,
                attempts,
                elapsed,
                ..
            } if *attempts > 1 => write!(
                f,
                "{why} (tried {attempts} times in {:.1} s)",
                elapsed.as_secs_f64()
            ),
            Error::Request { why, .. } => f.write_str(why),
            other => other.fmt(f),
        }
    }
}

// Without `source`, which would repeat the same message.
impl std::error::Error for ReadError {}
