//! Reads arguments from Python into values: errors name the option and the expected value.

use forebay_loader::Shuffle;
use pyo3::exceptions::PyOverflowError;
use pyo3::prelude::*;
use pyo3::types::{PyBool, PyBytes, PyList};
use serde_json::Value;

use super::refused;
use crate::failure::{Failure, unexpected};

/// A whole number, or the text of one that is out of range. [`Count::number`] refuses the latter with the option's name.
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
                // Python does not convert numbers with thousands of digits to text.
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

/// Converts an array or a tensor to a list; returns other values unchanged.
pub(super) fn listed<'py>(given: &Bound<'py, PyAny>) -> PyResult<Bound<'py, PyAny>> {
    match given.getattr_opt("tolist")? {
        Some(tolist) => tolist.call0(),
        None => Ok(given.clone()),
    }
}

/// Returns the bytes of an array whose numpy kind is in `kinds`, converted to `dtype` without a Python object per number;
/// `None` for other values.
fn array(given: &Bound<'_, PyAny>, kinds: &str, dtype: &str) -> PyResult<Option<Vec<u8>>> {
    if given.getattr_opt("dtype")?.is_none() {
        return Ok(None);
    }
    let numpy = given.py().import("numpy")?;
    let Ok(array) = numpy.call_method1("asarray", (given,)) else {
        return Ok(None);
    };
    let kind: String = array.getattr("dtype")?.getattr("kind")?.extract()?;
    let sides: usize = array.getattr("ndim")?.extract()?;
    if sides != 1 || !kinds.contains(&kind) {
        return Ok(None);
    }
    let bytes = array
        .call_method1("astype", (dtype,))?
        .call_method0("tobytes")?;
    Ok(Some(bytes.cast::<PyBytes>()?.as_bytes().to_vec()))
}

/// Reads the numbers of an array or of any sequence.
pub(super) fn numbers(given: &Bound<'_, PyAny>) -> PyResult<Vec<f32>> {
    match array(given, "fiu", "<f4")? {
        Some(bytes) => Ok(bytes
            .as_chunks()
            .0
            .iter()
            .map(|&four| f32::from_le_bytes(four))
            .collect()),
        None => listed(given)?.extract(),
    }
}

/// Reads numbers of records.
pub(super) fn indices(given: &Bound<'_, PyAny>) -> PyResult<Vec<u64>> {
    const EXPECTED: &str = "numbers of records, from 0";
    let out_of_range = || {
        let found = "a list with a number below 0, or above 2^64";
        PyErr::from(refused("indices", found, EXPECTED))
    };
    if let Some(bytes) = array(given, "u", "<u8")? {
        let numbers = bytes.as_chunks().0.iter();
        return Ok(numbers.map(|&eight| u64::from_le_bytes(eight)).collect());
    }
    if let Some(bytes) = array(given, "i", "<i8")? {
        let numbers = bytes.as_chunks().0.iter();
        let numbers = numbers.map(|&eight| u64::try_from(i64::from_le_bytes(eight)));
        return numbers
            .collect::<Result<_, _>>()
            .map_err(|_| out_of_range());
    }
    let list = listed(given)?;
    let first = list.get_item(0);
    if first.is_ok_and(|first| first.is_instance_of::<PyBool>()) {
        let expected = "numbers of records, from 0, and no mask: see numpy.flatnonzero";
        return Err(unexpected(given, expected));
    }
    list.extract().map_err(|error: PyErr| {
        if error.is_instance_of::<PyOverflowError>(given.py()) {
            return out_of_range();
        }
        unexpected(given, EXPECTED)
    })
}

/// Reads the selected classes.
pub(super) fn classes(given: &Bound<'_, PyAny>) -> PyResult<Value> {
    let list = listed(given)?;
    let classes: PyResult<Vec<Class>> = list.extract();
    let classes = classes.map_err(|error| {
        // The error of an element already names the expected type.
        match list.is_instance_of::<PyList>() {
            true => error,
            false => unexpected(given, "a list of classes, by their names or labels"),
        }
    })?;
    let one = |class| match class {
        Class::Name(name) => Value::from(name),
        Class::Label(label) => Value::from(label),
    };
    Ok(classes.into_iter().map(one).collect())
}

/// Reads the name of a choice. A type of numpy, torch, JAX or TensorFlow stands for its name.
pub(super) fn choice(given: &Bound<'_, PyAny>) -> PyResult<String> {
    if let Ok(name) = given.extract() {
        return Ok(name);
    }
    for attribute in ["name", "__name__"] {
        if let Some(name) = given.getattr_opt(attribute)?
            && let Ok(name) = name.extract()
        {
            return Ok(name);
        }
    }
    // Types of torch have no attribute with their name.
    let text = given.str()?.to_string();
    match text.strip_prefix("torch.") {
        Some(name) => Ok(name.to_owned()),
        None => Err(unexpected(given, "a name")),
    }
}

/// Reads `shuffle`: a bool, or the name of a method.
pub(super) fn shuffle(given: &Bound<'_, PyAny>) -> PyResult<Value> {
    if let Ok(whether) = given.extract::<bool>() {
        return Ok(whether.into());
    }
    given.extract::<String>().map(Value::from).map_err(|_| {
        let names: Vec<String> = Shuffle::names().map(|name| format!("'{name}'")).collect();
        let expected = format!("True, False or one of {}", names.join(", "));
        unexpected(given, &expected)
    })
}

/// Reads `label_base`: a number or a word.
pub(super) fn label_base(given: &Bound<'_, PyAny>) -> PyResult<Value> {
    if let Ok(text) = given.extract::<String>() {
        return Ok(text.into());
    }
    let number = given.extract::<i64>().ok();
    match number.filter(|_| !given.is_instance_of::<PyBool>()) {
        Some(number) => Ok(number.into()),
        None => {
            let found = given.repr()?.to_string();
            Err(refused("label_base", found, "0, 1 or 'stored'").into())
        }
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
    fn out_of_range_numbers_are_refused_by_option_name() {
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
