//! Converts the errors of the libraries into Python exceptions.
//!
//! Maps library errors to exception classes. The classes are Python code in `forebay/_errors.py`, so that they can be
//! pickled and have docstrings.

use std::fmt;
use std::io::ErrorKind;
use std::path::Path;

use forebay_cache::ReadError;
use forebay_wire::text::printable_lines;
use pyo3::exceptions::PyTypeError;
use pyo3::prelude::*;
use pyo3::types::PyDict;

/// The exception class of a failure: its name in the package without `Error`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Kind {
    Option,
    UnknownOption,
    Shard,
    CorruptRecord,
    Mismatch,
    Missing,
    Storage,
    Image,
    State,
    Closed,
    Fork,
    Server,
    Auth,
    Timeout,
    Checkpoint,
    CorruptCheckpoint,
    MissingCheckpoint,
    CheckpointExists,
    Write,
    Sample,
    DatasetExists,
    /// The base class, `Error`.
    Other,
}

impl Kind {
    fn class(self) -> String {
        match self {
            Kind::Other => "Error".to_owned(),
            kind => format!("{kind:?}Error"),
        }
    }
}

/// An exception that was not raised yet: its class, message and attributes. Needs no interpreter.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Failure {
    kind: Kind,
    message: String,
    texts: Vec<(&'static str, String)>,
    numbers: Vec<(&'static str, u64)>,
}

impl Failure {
    pub(crate) fn new(kind: Kind, message: impl fmt::Display) -> Failure {
        Failure {
            kind,
            // The message may contain keys, names and texts from other sources.
            message: printable_lines(&message.to_string()).into_owned(),
            texts: Vec::new(),
            numbers: Vec::new(),
        }
    }

    pub(crate) fn text(mut self, name: &'static str, value: impl fmt::Display) -> Failure {
        self.texts.push((name, value.to_string()));
        self
    }

    pub(crate) fn path(self, path: &Path) -> Failure {
        self.text("path", path.display())
    }

    pub(crate) fn number(mut self, name: &'static str, value: Option<u64>) -> Failure {
        self.numbers.extend(value.map(|value| (name, value)));
        self
    }

    /// Adds a hint that says what to do.
    pub(crate) fn hint(mut self, hint: Option<String>) -> Failure {
        if let Some(hint) = hint {
            self.message.push_str("; ");
            self.message.push_str(&hint);
        }
        self
    }

    fn raised(&self, py: Python<'_>) -> PyResult<PyErr> {
        let place = PyDict::new(py);
        for (name, value) in &self.texts {
            place.set_item(name, value)?;
        }
        for (name, value) in &self.numbers {
            place.set_item(name, value)?;
        }
        let class = py.import("forebay._errors")?.getattr(self.kind.class())?;
        let value = class.call((&self.message,), Some(&place))?;
        Ok(PyErr::from_value(value))
    }
}

/// Returns the hint of an error of a store, with options as they are called in Python.
pub(crate) fn store_hint(error: &forebay_store::Error) -> Option<String> {
    use forebay_store::Error;
    let hint = match error {
        Error::AreaNotWritable { .. } => {
            "name a directory that can be written to with stage=, or in FOREBAY_STAGING"
        }
        Error::AreaTooSmall { left_bytes: 0, .. } => {
            "give it more room, or another directory, with max_bytes= and stage= of forebay.checkpoint.configure"
        }
        Error::NotConditional { .. } => {
            "if there is no other writer, set storage_options={\"assume_conditional_put\": \"true\"}"
        }
        error => return error.hint(),
    };
    Some(hint.to_owned())
}

/// Returns whether the error is due to invalid options, not to the store.
fn is_option(error: &forebay_store::Error) -> bool {
    use forebay_store::Error;
    matches!(
        error,
        Error::BadLocation { .. } | Error::Unsupported { .. } | Error::Options { .. }
    )
}

impl From<forebay_shard::Error> for Failure {
    fn from(error: forebay_shard::Error) -> Failure {
        Failure::from(&error)
    }
}

impl From<&forebay_shard::Error> for Failure {
    fn from(error: &forebay_shard::Error) -> Failure {
        use forebay_shard::{Error, Records};
        let failure = |kind| Failure::new(kind, error);
        match error {
            Error::Io { path, source, .. } => {
                let missing = source.kind() == ErrorKind::NotFound;
                let store = ReadError::of(error);
                let kind = match store {
                    _ if missing => Kind::Missing,
                    Some(forebay_store::Error::Changed { .. }) => Kind::Mismatch,
                    // The message names what it is about, so no path is added.
                    Some(options) if is_option(options) => {
                        return Failure::new(Kind::Option, options).hint(store_hint(options));
                    }
                    Some(_) => Kind::Storage,
                    None => Kind::Shard,
                };
                let hint = store.and_then(forebay_store::Error::hint);
                failure(kind).hint(hint).path(path)
            }
            Error::Corrupt(damage) => failure(Kind::CorruptRecord)
                .path(&damage.shard)
                .number("record", damage.record)
                .number("offset", Some(damage.offset)),
            Error::Example { shard, record, .. } => failure(Kind::CorruptRecord)
                .path(shard)
                .number("record", Some(*record)),
            Error::Mismatch { path, .. } => failure(Kind::Mismatch).path(path),
            Error::Version { path, .. }
            | Error::Feature { path, .. }
            | Error::NotBuilt { path, .. }
            | Error::Manifest { path, .. }
            | Error::Unsupported { path, .. } => failure(Kind::Shard).path(path),
            Error::NoSuchSplit { dataset, .. } => failure(Kind::Shard).path(dataset),
            Error::OutOfRange {
                within: Records::Shard(path),
                ..
            } => failure(Kind::Shard).path(path),
            _ => failure(Kind::Shard),
        }
    }
}

impl From<forebay_loader::Error> for Failure {
    fn from(error: forebay_loader::Error) -> Failure {
        use forebay_loader::Error;
        let failure = |kind| Failure::new(kind, &error);
        let at = |kind, place: &forebay_loader::RecordLocation| {
            let key = place.key.as_deref().map(String::from_utf8_lossy);
            let placed = failure(kind)
                .path(&place.shard)
                .number("record", Some(place.record))
                .number("sample", Some(place.sample))
                .number("offset", Some(place.offset));
            match key {
                Some(key) => placed.text("key", key),
                None => placed,
            }
        };
        match &error {
            Error::Option { .. }
            | Error::Invalid { .. }
            | Error::Missing { .. }
            | Error::Transform(_)
            | Error::NoBatch { .. }
            | Error::Memory { .. } => failure(Kind::Option),
            Error::Position { .. } => failure(Kind::State),
            Error::Shard(inner) => Failure::from(&**inner),
            Error::Record { place, .. } => at(Kind::CorruptRecord, place),
            Error::Image { place, .. } => at(Kind::Image, place),
            Error::Timeout { .. } => failure(Kind::Timeout),
            Error::Interrupted => failure(Kind::Closed),
            _ => failure(Kind::Other),
        }
    }
}

impl From<forebay_client::Error> for Failure {
    fn from(error: forebay_client::Error) -> Failure {
        use forebay_client::Error;
        let failure = Failure::new(client_kind(&error), &error);
        let failure = match server_of(&error) {
            Some(server) => failure.text("server", server),
            None => failure,
        };
        match &error {
            Error::Remote { kind, .. } => {
                let name = kind.as_str_name().trim_start_matches("KIND_");
                failure.text("kind", name.to_lowercase())
            }
            Error::Busy { .. } => failure.text("kind", "busy"),
            _ => failure,
        }
    }
}

impl From<forebay_staging::checkpoint::Error> for Failure {
    fn from(error: forebay_staging::checkpoint::Error) -> Failure {
        Failure::from(&error)
    }
}

impl From<&forebay_staging::checkpoint::Error> for Failure {
    fn from(error: &forebay_staging::checkpoint::Error) -> Failure {
        use forebay_staging::checkpoint::Error;
        let failure = |kind| Failure::new(kind, error);
        match error {
            Error::Option { .. } => failure(Kind::Option),
            Error::Missing { place, .. } => {
                failure(Kind::MissingCheckpoint).text("location", place)
            }
            Error::Corrupt { place, file, .. } => failure(Kind::CorruptCheckpoint)
                .text("location", place)
                .text("file", file),
            Error::Manifest { place, .. } => failure(Kind::CorruptCheckpoint).text("file", place),
            Error::Exists { place } => failure(Kind::CheckpointExists).text("location", place),
            Error::Abandoned { place, .. } => failure(Kind::Checkpoint).text("location", place),
            Error::Cancelled { .. } => failure(Kind::Closed),
            Error::Store(error) => failure(match is_option(error) {
                true => Kind::Option,
                false => Kind::Checkpoint,
            })
            .hint(store_hint(error)),
            _ => failure(Kind::Checkpoint),
        }
    }
}

fn client_kind(error: &forebay_client::Error) -> Kind {
    use forebay_client::{Error, RemoteKind};
    match error {
        Error::Url { .. } | Error::Option { .. } | Error::Certificates(_) => Kind::Option,
        Error::Tls { .. } | Error::Token(_) | Error::TokenInClear { .. } => Kind::Auth,
        Error::Waited { .. } => Kind::Timeout,
        Error::Interrupted => Kind::Closed,
        Error::Remote { kind, .. } => match kind {
            RemoteKind::NotFound => Kind::Missing,
            RemoteKind::Invalid => Kind::Option,
            RemoteKind::Mismatch => Kind::Mismatch,
            RemoteKind::Data => Kind::CorruptRecord,
            RemoteKind::Image => Kind::Image,
            RemoteKind::Unauthorized => Kind::Auth,
            _ => Kind::Server,
        },
        Error::Memory { .. } | Error::Thread(_) => Kind::Other,
        Error::GaveUp { last, .. } | Error::Absent { last, .. } => match client_kind(last) {
            Kind::Timeout => Kind::Server,
            kind => kind,
        },
        _ => Kind::Server,
    }
}

fn server_of(error: &forebay_client::Error) -> Option<&str> {
    use forebay_client::Error;
    match error {
        Error::Connect { server, .. }
        | Error::NotLocal { server, .. }
        | Error::Waited { server, .. }
        | Error::Silent { server, .. }
        | Error::Lost { server, .. }
        | Error::Protocol { server, .. }
        | Error::Tls { server, .. }
        | Error::TokenInClear { server }
        | Error::Foreign { server, .. }
        | Error::Busy { server, .. }
        | Error::Away { server, .. }
        | Error::Remote { server, .. }
        | Error::Sequence { server, .. } => Some(server),
        Error::GaveUp { last, .. } | Error::Absent { last, .. } => server_of(last),
        _ => None,
    }
}

/// Returns the error for a value of an unsupported type. PyO3 adds the argument's name as a note.
pub(crate) fn unexpected(given: &Bound<'_, PyAny>, expected: &str) -> PyErr {
    let class = given.get_type();
    let class = class
        .name()
        .map_or_else(|_| "?".to_owned(), |name| name.to_string());
    PyTypeError::new_err(format!(
        "expected {expected}, found a value of type {class}"
    ))
}

impl From<Failure> for PyErr {
    fn from(failure: Failure) -> PyErr {
        Python::attach(|py| failure.raised(py).unwrap_or_else(|other| other))
    }
}
