//! What Python gives, read into values: with errors that name the option, and say what was expected.

use forebay_loader::LabelBase;
use pyo3::exceptions::PyOverflowError;
use pyo3::prelude::*;
use pyo3::types::{PyBool, PyList};

use super::keywords::named;
use super::{refused, shuffles};
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
        if given.is_instance_of::<PyBool>() {
            return Err(unexpected(&given, "a whole number"));
        }
        match given.extract() {
            Ok(number) => Ok(Count::Fits(number)),
            Err(error) if error.is_instance_of::<PyOverflowError>(given.py()) => {
                // Python writes no number of thousands of digits.
                let found = given.str().map(|text| text.to_string());
                Ok(Count::Not(found.unwrap_or_else(|_| "too large".into())))
            }
            Err(_) => Err(unexpected(&given, "a whole number")),
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
}

/// A number of bytes, or a text such as "256MiB".
pub(crate) enum Bytes {
    Number(Count),
    Text(String),
}

impl<'a, 'py> FromPyObject<'a, 'py> for Bytes {
    type Error = PyErr;

    fn extract(given: Borrowed<'a, 'py, PyAny>) -> PyResult<Self> {
        if let Ok(text) = given.extract() {
            return Ok(Bytes::Text(text));
        }
        let number = given.extract().map(Bytes::Number);
        number.map_err(|_| unexpected(&given, "a number of bytes, or a size such as '256MiB'"))
    }
}

impl Bytes {
    pub(crate) fn number(self, option: &str) -> Result<u64, Failure> {
        match self {
            Bytes::Number(count) => count.number(option),
            Bytes::Text(text) => forebay_cli::parse_size(&text).map_err(|why| {
                let expected = format!("a number of bytes, or a size such as '256MiB' ({why})");
                refused(option, format!("{text:?}"), &expected)
            }),
        }
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

/// The list that an array or a tensor holds; anything else as it is.
pub(super) fn listed<'py>(given: &Bound<'py, PyAny>) -> PyResult<Bound<'py, PyAny>> {
    match given.getattr_opt("tolist")? {
        Some(tolist) => tolist.call0(),
        None => Ok(given.clone()),
    }
}

/// Numbers of records.
pub(crate) struct Indices(pub(super) Vec<u64>);

impl<'a, 'py> FromPyObject<'a, 'py> for Indices {
    type Error = PyErr;

    fn extract(given: Borrowed<'a, 'py, PyAny>) -> PyResult<Self> {
        const EXPECTED: &str = "numbers of records, from 0";
        let list = listed(&given)?;
        if list
            .get_item(0)
            .is_ok_and(|first| first.is_instance_of::<PyBool>())
        {
            let expected = "numbers of records, from 0, and no mask: see numpy.flatnonzero";
            return Err(unexpected(&given, expected));
        }
        list.extract().map(Indices).map_err(|error| {
            if error.is_instance_of::<PyOverflowError>(given.py()) {
                let found = "a list with a number below 0, or above 2^64";
                return refused("indices", found, EXPECTED).into();
            }
            unexpected(&given, EXPECTED)
        })
    }
}

/// Classes that are chosen.
pub(crate) struct Classes(pub(super) Vec<Class>);

impl<'a, 'py> FromPyObject<'a, 'py> for Classes {
    type Error = PyErr;

    fn extract(given: Borrowed<'a, 'py, PyAny>) -> PyResult<Self> {
        let list = listed(&given)?;
        list.extract().map(Classes).map_err(|error| {
            // An error of an element says which kind it is.
            match list.is_instance_of::<PyList>() {
                true => error,
                false => unexpected(&given, "a list of classes, by their names or labels"),
            }
        })
    }
}

/// The name of a type of numbers, also of numpy's, torch's, JAX's and TensorFlow's types.
pub(crate) struct DtypeName(pub(super) String);

impl<'a, 'py> FromPyObject<'a, 'py> for DtypeName {
    type Error = PyErr;

    fn extract(given: Borrowed<'a, 'py, PyAny>) -> PyResult<Self> {
        if let Ok(name) = given.extract() {
            return Ok(DtypeName(name));
        }
        for attribute in ["name", "__name__"] {
            if let Some(name) = given.getattr_opt(attribute)?
                && let Ok(name) = name.extract()
            {
                return Ok(DtypeName(name));
            }
        }
        // torch has no other name for its types.
        let text = given.str()?.to_string();
        match text.strip_prefix("torch.") {
            Some(name) => Ok(DtypeName(name.to_owned())),
            None => {
                let expected = "'uint8', 'float32', 'float16' or 'bfloat16', or such a type";
                Err(unexpected(&given, expected))
            }
        }
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
        named.map_err(|_| unexpected(&given, &shuffles()))
    }
}

/// `label_base`: 0, 1 or "stored".
pub(crate) struct GivenBase(pub(crate) LabelBase);

impl<'a, 'py> FromPyObject<'a, 'py> for GivenBase {
    type Error = PyErr;

    fn extract(given: Borrowed<'a, 'py, PyAny>) -> PyResult<Self> {
        let number = given.extract::<i64>().ok();
        let base = match number.filter(|_| !given.is_instance_of::<PyBool>()) {
            Some(0) => LabelBase::Zero,
            Some(1) => LabelBase::One,
            _ if given.extract::<&str>().is_ok_and(|text| text == "stored") => LabelBase::Stored,
            _ => {
                let found = given.repr()?.to_string();
                return Err(refused("label_base", found, "0, 1 or 'stored'").into());
            }
        };
        Ok(GivenBase(base))
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
        assert_eq!(Count::Fits(7).number("seed").unwrap(), 7);
        let error = Count::Not("-1".into()).number("seed").unwrap_err();
        assert!(
            format!("{error:?}").contains("option seed is -1"),
            "{error:?}"
        );
        let size = |text: &str| Bytes::Text(text.to_owned()).number("memory");
        assert_eq!(size("1.5 KiB").unwrap(), 1536);
        let error = format!("{:?}", size("much").unwrap_err());
        assert!(
            error.contains("option memory is") && error.contains("256MiB"),
            "{error}"
        );
    }
}
