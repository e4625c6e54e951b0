//! What goes wrong, on its way from a library's error to a Python exception.
//!
//! Owns the table from library errors to exception classes. The classes are in
//! `forebay/_errors.py`: plain Python, so that they pickle and document
//! themselves.

use std::fmt;

use pyo3::prelude::*;
use pyo3::types::PyDict;

/// The exception class of a failure, by its name in the package.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Kind {
    Option,
    Shard,
    Corrupt,
    Mismatch,
    Missing,
    Image,
    State,
    Closed,
    Fork,
    Server,
    Timeout,
    Other,
}

impl Kind {
    fn class(self) -> &'static str {
        match self {
            Kind::Option => "OptionError",
            Kind::Shard => "ShardError",
            Kind::Corrupt => "CorruptRecordError",
            Kind::Mismatch => "MismatchError",
            Kind::Missing => "MissingError",
            Kind::Image => "ImageError",
            Kind::State => "StateError",
            Kind::Closed => "ClosedError",
            Kind::Fork => "ForkError",
            Kind::Server => "ServerError",
            Kind::Timeout => "TimeoutError",
            Kind::Other => "Error",
        }
    }
}

/// A failure: the exception's class, its message and its attributes. Made and
/// sent around without the interpreter.
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
            message: message.to_string(),
            texts: Vec::new(),
            numbers: Vec::new(),
        }
    }

    pub(crate) fn text(mut self, name: &'static str, value: impl fmt::Display) -> Failure {
        self.texts.push((name, value.to_string()));
        self
    }

    pub(crate) fn number(mut self, name: &'static str, value: Option<u64>) -> Failure {
        self.numbers.extend(value.map(|value| (name, value)));
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

impl From<Failure> for PyErr {
    fn from(failure: Failure) -> PyErr {
        Python::attach(|py| failure.raised(py).unwrap_or_else(|other| other))
    }
}
