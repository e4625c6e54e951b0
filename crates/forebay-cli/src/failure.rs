//! Errors as the user reads them: a line that says what failed and where, a hint that says what to do, and an exit code.

use std::error::Error;
use std::fmt;

use forebay_cache::ReadError;
use forebay_shard::some_of;

use crate::paint::printable;

/// The outcome of a command that did its work.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Outcome {
    /// Everything was done.
    Done,
    /// Everything was done, except for inputs that could not be read.
    SomeUnreadable,
}

impl Outcome {
    pub(crate) fn exit_code(self) -> i32 {
        match self {
            Self::Done => 0,
            Self::SomeUnreadable => 3,
        }
    }
}

/// Why a command stopped.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Kind {
    Failed,
    /// There is no dataset and no shard at a location.
    Missing,
    Usage,
    Interrupted,
}

/// The failure of a command.
#[derive(Debug)]
pub struct Failure {
    kind: Kind,
    message: String,
    hint: Option<String>,
}

impl Failure {
    /// Creates a failure from one line: what failed and where, expected and found.
    pub fn new(message: impl Into<String>) -> Self {
        Self {
            kind: Kind::Failed,
            message: message.into(),
            hint: None,
        }
    }

    /// Creates a failure for a location without a dataset or shard. It may hold something else.
    pub(crate) fn missing(message: impl Into<String>) -> Self {
        Self {
            kind: Kind::Missing,
            ..Self::new(message)
        }
    }

    /// Creates a failure for arguments that contradict each other, found after parsing.
    pub fn usage(message: impl Into<String>) -> Self {
        Self {
            kind: Kind::Usage,
            ..Self::new(message)
        }
    }

    /// Creates the failure of a clean stop after Ctrl-C.
    pub fn interrupted(message: impl Into<String>) -> Self {
        Self {
            kind: Kind::Interrupted,
            ..Self::new(message)
        }
    }

    /// Creates a failure from a library error with all its causes on one line; a clean stop if Ctrl-C caused the error.
    pub fn from_error(error: &(dyn Error + 'static)) -> Self {
        if was_stopped(error) {
            Self::interrupted(one_line(error))
        } else {
            Self::new(one_line(error))
        }
    }

    /// Adds a hint that says what to do.
    #[must_use]
    pub fn hint(mut self, hint: impl Into<String>) -> Self {
        self.hint = Some(hint.into());
        self
    }

    /// Adds a hint, if there is one.
    #[must_use]
    pub(crate) fn maybe_hint(mut self, hint: Option<String>) -> Self {
        self.hint = hint.or(self.hint);
        self
    }

    pub(crate) fn message(&self) -> &str {
        &self.message
    }

    pub(crate) fn hint_line(&self) -> Option<&str> {
        self.hint.as_deref()
    }

    /// Whether there is no dataset and no shard at the location.
    pub(crate) fn is_missing(&self) -> bool {
        self.kind == Kind::Missing
    }

    pub(crate) fn is_interruption(&self) -> bool {
        self.kind == Kind::Interrupted
    }

    pub(crate) fn exit_code(&self) -> i32 {
        match self.kind {
            Kind::Failed | Kind::Missing => 1,
            Kind::Usage => 2,
            Kind::Interrupted => 130,
        }
    }
}

impl fmt::Display for Failure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.message)
    }
}

/// Returns the exit code of a command's result.
pub(crate) fn exit_code(result: &Result<Outcome, Failure>) -> i32 {
    match result {
        Ok(outcome) => outcome.exit_code(),
        Err(failure) => failure.exit_code(),
    }
}

/// Returns an error and its causes on one line. Some libraries include causes in their messages, so a cause that the line
/// contains is not repeated.
pub(crate) fn one_line(error: &(dyn Error + 'static)) -> String {
    let mut line = error.to_string();
    let mut cause = error.source();
    while let Some(error) = cause {
        let text = error.to_string();
        if !line.contains(&text) {
            line.push_str(": ");
            line.push_str(&text);
        }
        cause = error.source();
    }
    line.replace('\n', " ")
}

/// Returns whether Ctrl-C ended a wait for a store.
fn was_stopped(error: &(dyn Error + 'static)) -> bool {
    let mut next = Some(error);
    while let Some(error) = next {
        let store = error
            .downcast_ref::<std::io::Error>()
            .and_then(ReadError::in_io)
            .or_else(|| error.downcast_ref());
        if matches!(store, Some(forebay_store::Error::Cancelled { .. })) {
            return true;
        }
        next = error.source();
    }
    false
}

/// Lists names for a message, but not too many: `a, b and 12 more`.
pub(crate) fn counted_choices(names: &[&str]) -> String {
    match names.is_empty() {
        true => "none".to_owned(),
        false => some_of(names.iter().map(|name| printable(name))),
    }
}

/// Returns the usual remedy for an error of the operating system, if there is one.
pub(crate) fn io_hint(error: &std::io::Error) -> Option<String> {
    use std::io::ErrorKind;
    let hint = match error.kind() {
        ErrorKind::NotFound => "check the path; relative paths start at the current directory",
        ErrorKind::PermissionDenied => {
            "check who owns it and its permissions, or choose a place you can write to"
        }
        ErrorKind::StorageFull | ErrorKind::QuotaExceeded => {
            "free some space or choose another destination, then run the same command again"
        }
        ErrorKind::ReadOnlyFilesystem => "the file system is read-only: choose another destination",
        ErrorKind::AddrInUse => "another process listens there: choose another port, or 0 for any",
        ErrorKind::ConnectionRefused => "nothing listens there: check host and port",
        _ if error.raw_os_error() == Some(24) => {
            "too many open files: raise the limit (`ulimit -n`) or lower --jobs"
        }
        _ => return None,
    };
    Some(hint.to_owned())
}

/// Returns the first error of the operating system in the chain of causes.
pub(crate) fn io_cause<'a>(error: &'a (dyn Error + 'static)) -> Option<&'a std::io::Error> {
    let mut next = Some(error);
    while let Some(error) = next {
        if let Some(io) = error.downcast_ref::<std::io::Error>() {
            return Some(io);
        }
        next = error.source();
    }
    None
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io;

    #[derive(Debug, thiserror::Error)]
    #[error("cannot read train-00000")]
    struct Outer(#[source] io::Error);

    #[test]
    fn causes_follow_on_the_same_line_once() {
        let error = Outer(io::Error::other("disk on fire"));
        assert_eq!(one_line(&error), "cannot read train-00000: disk on fire");
        let wrapped = io::Error::other(error);
        assert_eq!(one_line(&wrapped), "cannot read train-00000: disk on fire");
    }

    #[test]
    fn exit_codes_are_the_documented_ones() {
        assert_eq!(exit_code(&Ok(Outcome::Done)), 0);
        assert_eq!(exit_code(&Ok(Outcome::SomeUnreadable)), 3);
        assert_eq!(exit_code(&Err(Failure::new("x"))), 1);
        assert_eq!(exit_code(&Err(Failure::usage("x"))), 2);
        assert_eq!(exit_code(&Err(Failure::interrupted("x"))), 130);
    }
}
