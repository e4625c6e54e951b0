//! The options of a call, taken by name, so that every error names the option that is wrong.
//!
//! PyO3 only adds a note to an error of an argument, which neither `str()` nor Python 3.10 shows.

use std::path::PathBuf;

use pyo3::exceptions::{PyOverflowError, PyTypeError};
use pyo3::prelude::*;
use pyo3::types::PyDict;

use super::given::{Bytes, Count};
use crate::failure::{Failure, Kind, unexpected};

/// Keyword arguments that were not taken yet.
pub(crate) struct Keywords<'py> {
    function: &'static str,
    left: Bound<'py, PyDict>,
}

/// Returns the error with the name of the option in its message.
pub(crate) fn named(py: Python<'_>, name: &str, error: PyErr) -> PyErr {
    let message = format!("option {name}: {}", error.value(py));
    if error.is_instance_of::<PyTypeError>(py) {
        PyTypeError::new_err(message)
    } else if error.is_instance_of::<PyOverflowError>(py) {
        Failure::new(Kind::Option, message).into()
    } else {
        error
    }
}

/// A number of bytes for an option of the package's Python part.
#[pyfunction]
#[pyo3(signature = (option, given, /))]
pub(crate) fn _bytes(option: &str, given: &Bound<'_, PyAny>) -> PyResult<Option<u64>> {
    if given.is_none() {
        return Ok(None);
    }
    let bytes = given.extract::<Bytes>();
    let bytes = bytes.map_err(|error| named(given.py(), option, error))?;
    Ok(Some(bytes.number(option)?))
}

impl<'py> Keywords<'py> {
    pub(crate) fn new(
        py: Python<'py>,
        function: &'static str,
        given: Option<&Bound<'py, PyDict>>,
    ) -> PyResult<Self> {
        let left = given.map_or_else(|| Ok(PyDict::new(py)), |given| given.copy())?;
        Ok(Keywords { function, left })
    }

    /// Takes the value of an option without converting it.
    pub(crate) fn raw(&mut self, name: &str) -> PyResult<Option<Bound<'py, PyAny>>> {
        let value = self.left.get_item(name)?;
        if value.is_some() {
            self.left.del_item(name)?;
        }
        Ok(value)
    }

    /// Takes the value of an option; `None` if it is None or left out.
    pub(crate) fn take<T>(&mut self, name: &str) -> PyResult<Option<T>>
    where
        T: for<'a> FromPyObject<'a, 'py, Error = PyErr>,
    {
        let Some(value) = self.raw(name)?.filter(|value| !value.is_none()) else {
            return Ok(None);
        };
        let taken = value.extract().map(Some);
        taken.map_err(|error| named(value.py(), name, error))
    }

    /// Takes an option like [`Keywords::take`], for types whose errors do not say what is expected.
    fn simple<T>(&mut self, name: &str, expected: &str) -> PyResult<Option<T>>
    where
        T: for<'a> FromPyObject<'a, 'py>,
    {
        let Some(value) = self.raw(name)?.filter(|value| !value.is_none()) else {
            return Ok(None);
        };
        let taken = value.extract().map(Some);
        taken.map_err(|_| named(value.py(), name, unexpected(&value, expected)))
    }

    pub(crate) fn number(&mut self, name: &str) -> PyResult<Option<u64>> {
        let count = self.take::<Count>(name)?;
        Ok(count.map(|count| count.number(name)).transpose()?)
    }

    /// Takes a number of bytes, or a text such as "256MiB".
    pub(crate) fn bytes(&mut self, name: &str) -> PyResult<Option<u64>> {
        let bytes = self.take::<Bytes>(name)?;
        Ok(bytes.map(|bytes| bytes.number(name)).transpose()?)
    }

    pub(crate) fn text(&mut self, name: &str) -> PyResult<Option<String>> {
        self.simple(name, "a str")
    }

    pub(crate) fn flag(&mut self, name: &str) -> PyResult<bool> {
        Ok(self.simple(name, "True or False")?.unwrap_or(false))
    }

    pub(crate) fn path(&mut self, name: &str) -> PyResult<Option<PathBuf>> {
        self.simple(name, "a path")
    }

    /// Takes a number of seconds, or None; `default` if the option is left out.
    pub(crate) fn seconds(&mut self, name: &str, default: f64) -> PyResult<Option<f64>> {
        match self.left.get_item(name)? {
            None => Ok(Some(default)),
            Some(_) => self.simple(name, "a number of seconds, or None"),
        }
    }

    /// Fails if an option is left that no other call took.
    pub(crate) fn end(self) -> PyResult<()> {
        let Some(name) = self.left.keys().iter().next() else {
            return Ok(());
        };
        let name = name.str()?.to_string();
        let hint = super::hint(&name).map_or_else(String::new, |hint| format!(": {hint}"));
        let function = self.function;
        let message = format!("{function}() got an unexpected keyword argument '{name}'{hint}");
        Err(Failure::new(Kind::UnknownOption, message).into())
    }
}
