//! What Python gives, read into values: with errors that name the option, and say what was expected.

use pyo3::exceptions::PyOverflowError;
use pyo3::prelude::*;

use super::refused;
use crate::failure::{Failure, unexpected};

/// A whole number, or what stood in its place; who knows the option's name refuses that.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Count {
    Fits(u64),
    Not(String),
}

impl<'a, 'py> FromPyObject<'a, 'py> for Count {
    type Error = PyErr;

    fn extract(given: Borrowed<'a, 'py, PyAny>) -> PyResult<Self> {
        match given.extract() {
            Ok(number) => Ok(Count::Fits(number)),
            Err(error) if error.is_instance_of::<PyOverflowError>(given.py()) => {
                // Python writes no number of thousands of digits.
                let found = given.str().map(|text| text.to_string());
                Ok(Count::Not(found.unwrap_or_else(|_| "too large".into())))
            }
            Err(error) => Err(error),
        }
    }
}

impl Count {
    pub(crate) fn number(self, option: &str) -> Result<u64, Failure> {
        match self {
            Count::Fits(number) => Ok(number),
            Count::Not(found) => Err(refused(option, found, "a whole number from 0 to 2^64 - 1")),
        }
    }

    /// For what is counted in memory.
    pub(crate) fn size(self, option: &str) -> Result<usize, Failure> {
        Ok(usize::try_from(self.number(option)?).unwrap_or(usize::MAX))
    }
}

/// The numbers of these options, as far as they are given.
pub(crate) fn counts<const N: usize>(
    given: [(&str, Option<Count>); N],
) -> Result<[Option<u64>; N], Failure> {
    let mut found = [None; N];
    for (number, (option, given)) in found.iter_mut().zip(given) {
        *number = given.map(|given| given.number(option)).transpose()?;
    }
    Ok(found)
}

/// Numbers of records.
pub(crate) struct Indices(pub(super) Vec<u64>);

impl<'a, 'py> FromPyObject<'a, 'py> for Indices {
    type Error = PyErr;

    fn extract(given: Borrowed<'a, 'py, PyAny>) -> PyResult<Self> {
        given.extract().map(Indices).map_err(|error| {
            if error.is_instance_of::<PyOverflowError>(given.py()) {
                let found = "a list with a number below 0, or above 2^64";
                return refused("indices", found, "numbers of records, from 0").into();
            }
            error
        })
    }
}

/// `shuffle`: a yes or no, or the name of a way.
pub(crate) enum ShuffleWish {
    Whether(bool),
    Named(String),
}

impl<'a, 'py> FromPyObject<'a, 'py> for ShuffleWish {
    type Error = PyErr;

    fn extract(given: Borrowed<'a, 'py, PyAny>) -> PyResult<Self> {
        if let Ok(whether) = given.extract() {
            return Ok(ShuffleWish::Whether(whether));
        }
        let named = given.extract().map(ShuffleWish::Named);
        named.map_err(|_| unexpected(&given, "True, False, 'blocks', 'full' or 'none'"))
    }
}

/// A class: its name, or its label as batches show it.
pub(crate) enum Class {
    Name(String),
    Label(i64),
}

impl<'a, 'py> FromPyObject<'a, 'py> for Class {
    type Error = PyErr;

    fn extract(given: Borrowed<'a, 'py, PyAny>) -> PyResult<Self> {
        if let Ok(name) = given.extract() {
            return Ok(Class::Name(name));
        }
        let label = given.extract().map(Class::Label);
        label.map_err(|_| unexpected(&given, "the name of a class, or its label"))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_number_that_cannot_be_is_refused_by_its_option() {
        let fits = || Some(Count::Fits(7));
        let found = counts([("a", fits()), ("b", None)]).unwrap();
        assert_eq!(found, [Some(7), None]);
        let error = counts([("a", fits()), ("seed", Some(Count::Not("-1".into())))]).unwrap_err();
        assert!(
            format!("{error:?}").contains("option seed is -1"),
            "{error:?}"
        );
        assert_eq!(Count::Fits(u64::MAX).size("threads").unwrap(), usize::MAX);
    }
}
