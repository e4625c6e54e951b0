//! Converts lists of transforms, and batch transforms, from the classes of `forebay/_ops.py` and
//! `forebay/_transforms.py` to the engine's types.

use forebay_image::{BatchTransform, Compose, Mixing, Op, ops};
use pyo3::exceptions::PyTypeError;
use pyo3::prelude::*;
use pyo3::types::{PyDict, PyTuple};
use serde_json::{Number, Value};

use crate::failure::{Failure, Kind, unexpected};

fn invalid(what: impl std::fmt::Display) -> PyErr {
    Failure::new(Kind::Option, what).into()
}

/// Reads an attribute as a type of the engine.
fn field<'py, T>(item: &Bound<'py, PyAny>, name: &str) -> PyResult<T>
where
    T: for<'a> FromPyObject<'a, 'py, Error = PyErr>,
{
    item.getattr(name)?.extract()
}

/// Maximum nesting of sequences. Parameters need two levels; a list that contains itself would never end.
const MAX_DEPTH: usize = 8;

/// Converts a parameter to JSON: a number, a name, None, or a sequence of these at nesting `depth`. `what` names it in
/// errors.
fn json(value: &Bound<'_, PyAny>, what: &str, depth: usize) -> PyResult<Value> {
    if value.is_none() {
        return Ok(Value::Null);
    }
    if let Ok(name) = value.extract::<String>() {
        return Ok(name.into());
    }
    // A member of an enumeration, such as torchvision's InterpolationMode.
    if let Ok(member) = value.getattr("value")
        && let Ok(name) = member.extract::<String>()
    {
        return Ok(name.into());
    }
    if value.hasattr("__index__")? {
        // An integer beyond 64 bits is an invalid option, not an overflow.
        let number = value.extract::<i64>();
        return number
            .map(Value::from)
            .map_err(|_| invalid(format!("{what} is {value}: out of range")));
    }
    if let Ok(number) = value.extract::<f64>() {
        let number = Number::from_f64(number).map(Value::Number);
        return number
            .ok_or_else(|| invalid(format!("{what} is {value}: expected a finite number")));
    }
    if depth == MAX_DEPTH {
        return Err(invalid(format!(
            "{what} nests deeper than {MAX_DEPTH} levels"
        )));
    }
    value
        .try_iter()?
        .map(|each| json(&each?, what, depth + 1))
        .collect()
}

/// Converts a parameter to Python; a list becomes a tuple.
fn python<'py>(py: Python<'py>, value: &Value) -> PyResult<Bound<'py, PyAny>> {
    Ok(match value {
        Value::Bool(flag) => flag.into_pyobject(py)?.to_owned().into_any(),
        Value::Number(number) => match number.as_i64() {
            Some(whole) => whole.into_pyobject(py)?.into_any(),
            None => number.as_f64().into_pyobject(py)?,
        },
        Value::String(text) => text.into_pyobject(py)?.into_any(),
        Value::Array(items) => {
            let items: PyResult<Vec<_>> = items.iter().map(|item| python(py, item)).collect();
            PyTuple::new(py, items?)?.into_any()
        }
        Value::Null | Value::Object(_) => py.None().into_bound(py),
    })
}

/// Reads the op of a dataclass of `forebay/_ops.py`: its name and its fields.
fn read(item: &Bound<'_, PyAny>) -> PyResult<Op> {
    let class = item.get_type();
    let name = class.name()?.to_string();
    if ["TrainTransform", "EvalTransform", "KeepEncoded"].contains(&name.as_str()) {
        return Err(invalid(format!(
            "{item} in a list: give it alone, or write out what it does"
        )));
    }
    if !ops::NAMES.contains(&name.as_str()) {
        return Err(PyTypeError::new_err(format!("{name} is no transform")));
    }
    let mut params = serde_json::Map::new();
    for (field, value) in item.getattr("__dict__")?.cast_into::<PyDict>()? {
        let field: String = field.extract()?;
        let value = json(&value, &format!("{field} of {name}"), 0)?;
        params.insert(field, value);
    }
    ops::parse(&name, params.into()).map_err(invalid)
}

/// Returns an item of a list as a value of Forebay, converted from torchvision if necessary. A class of another package is
/// not Forebay's, even with the same name.
fn own<'py>(item: &Bound<'py, PyAny>) -> PyResult<Bound<'py, PyAny>> {
    if is_own(item)? {
        return Ok(item.clone());
    }
    let torchvision = item.py().import("forebay._torchvision")?;
    torchvision.call_method1("convert", (item,))
}

fn is_own(item: &Bound<'_, PyAny>) -> PyResult<bool> {
    Ok(item.get_type().module()? == "forebay")
}

/// Checks the parameters of a transform of a list, and returns them in full: a size as two numbers, bounds as two.
#[pyfunction]
#[pyo3(signature = (transform, /))]
pub(crate) fn _check_transform<'py>(transform: &Bound<'py, PyAny>) -> PyResult<Bound<'py, PyDict>> {
    let py = transform.py();
    let found = PyDict::new(py);
    if let Value::Object(params) = read(transform)?.params() {
        for (name, value) in &params {
            found.set_item(name, python(py, value)?)?;
        }
    }
    Ok(found)
}

/// The transforms of lists and their parameters, as JSON; `forebay/_ops.py` is generated from it.
#[pyfunction]
pub(crate) fn _op_schemas() -> PyResult<String> {
    serde_json::to_string(&ops::schemas()).map_err(invalid)
}

fn not_for_batches(item: &Bound<'_, PyAny>) -> PyErr {
    let expected =
        "forebay.Mixup, forebay.CutMix or forebay.RandomChoice of them, as batch_transform";
    unexpected(item, expected)
}

/// Reads a batch transform: one way to mix, or a choice of several.
pub(crate) fn batch_transform(item: &Bound<'_, PyAny>) -> PyResult<BatchTransform> {
    let one = |item: &Bound<'_, PyAny>| -> PyResult<Mixing> {
        if item.is_none() {
            return Ok(Mixing::Nothing);
        }
        if !is_own(item)? {
            return Err(not_for_batches(item));
        }
        match item.get_type().name()?.to_str()? {
            "Mixup" => Ok(Mixing::Mixup {
                alpha: field(item, "alpha")?,
            }),
            "CutMix" => Ok(Mixing::CutMix {
                alpha: field(item, "alpha")?,
            }),
            _ => Err(not_for_batches(item)),
        }
    };
    let choices = if is_own(item)? && item.get_type().name()? == "RandomChoice" {
        let items: Vec<Bound<'_, PyAny>> = field(item, "transforms")?;
        let weights: Vec<f64> = field(item, "p")?;
        if items.len() != weights.len() {
            let (items, weights) = (items.len(), weights.len());
            return Err(invalid(format!(
                "RandomChoice of {items} with {weights} probabilities"
            )));
        }
        let mixings: PyResult<Vec<Mixing>> = items.iter().map(one).collect();
        mixings?.into_iter().zip(weights).collect()
    } else {
        vec![(one(item)?, 1.0)]
    };
    BatchTransform::new(choices).map_err(invalid)
}

/// Refuses invalid parameters of mixing.
#[pyfunction]
#[pyo3(signature = (transform, /))]
pub(crate) fn _check_batch_transform(transform: &Bound<'_, PyAny>) -> PyResult<()> {
    batch_transform(transform).map(|_| ())
}

/// Compiles a list of transforms.
pub(crate) fn compile(items: &[Bound<'_, PyAny>]) -> PyResult<Compose> {
    let ops: PyResult<Vec<Op>> = items.iter().map(|item| read(&own(item)?)).collect();
    Compose::new(ops?).map_err(invalid)
}
