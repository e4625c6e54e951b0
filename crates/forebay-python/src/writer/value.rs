//! Converts a Python value for a column of a given type.

use forebay_image::SampleFormat;
use forebay_pack::{DraftPixels, DraftValue};
use forebay_shard::ColumnType;
use forebay_shard::schema::NumberType;
use pyo3::prelude::*;
use pyo3::pybacked::PyBackedBytes;
use pyo3::types::PyBool;

/// Returns a placeholder for a column that the schema lacks; the writer refuses the column by its name.
pub(super) fn unknown() -> DraftValue {
    DraftValue::Int(0)
}

/// Converts a value.
///
/// # Errors
/// The error names the expected and the found type.
pub(super) fn value(
    column_type: &ColumnType,
    given: &Bound<'_, PyAny>,
) -> Result<DraftValue, String> {
    match column_type {
        ColumnType::Image | ColumnType::Mask => match given.extract::<Pixels>() {
            Ok((width, height, mode, data)) => pixels(width, height, &mode, &data),
            Err(_) => bytes(given, "the bytes of an image, or its pixels"),
        },
        ColumnType::Bytes => bytes(given, "bytes"),
        ColumnType::Text | ColumnType::Json => {
            let text = given.extract::<String>();
            text.map(DraftValue::from)
                .map_err(|_| unexpected("str", given))
        }
        ColumnType::Texts | ColumnType::Polygons => {
            let texts = given.extract::<Vec<String>>();
            let texts = texts.map_err(|_| unexpected("a list of str", given))?;
            Ok(DraftValue::List(
                texts.into_iter().map(String::into_bytes).collect(),
            ))
        }
        ColumnType::Label | ColumnType::Int => Ok(DraftValue::Int(int(given)?)),
        ColumnType::Float => Ok(DraftValue::Float(float(given)?)),
        ColumnType::Labels => ints(given),
        ColumnType::Vector {
            number: NumberType::Int64,
            ..
        } => ints(given),
        ColumnType::Vector { .. } => {
            let numbers = given.extract::<Vec<f64>>();
            let numbers = numbers.map_err(|_| unexpected("a list of numbers", given))?;
            let numbers: Result<Vec<f32>, String> = numbers.into_iter().map(to_f32).collect();
            Ok(DraftValue::Floats(numbers?))
        }
        ColumnType::Tensor { .. } => {
            let found = given.extract::<(Vec<u64>, PyBackedBytes)>();
            let (shape, bytes) = found.map_err(|_| unexpected("an array", given))?;
            Ok(DraftValue::Tensor {
                shape,
                bytes: bytes.to_vec(),
            })
        }
        ColumnType::Boxes => {
            let expected = "rows of xmin, ymin, xmax, ymax, and a label for each";
            let found = given.extract::<(Vec<[f64; 4]>, Option<Vec<i64>>)>();
            let (rows, labels) = found.map_err(|_| unexpected(expected, given))?;
            Ok(DraftValue::Boxes {
                labels: labels.unwrap_or_else(|| vec![-1; rows.len()]),
                boxes: rows
                    .into_iter()
                    .map(|row| row.map(|side| side as f32))
                    .collect(),
            })
        }
        ColumnType::Keypoints => {
            let found = given.extract::<(Vec<[f64; 2]>, Option<Vec<i64>>)>();
            let (rows, visibility) =
                found.map_err(|_| unexpected("rows of x, y, and a visibility for each", given))?;
            Ok(DraftValue::Keypoints {
                visibility: visibility.unwrap_or_else(|| vec![2; rows.len()]),
                points: rows
                    .into_iter()
                    .map(|row| row.map(|at| at as f32))
                    .collect(),
            })
        }
        other => Err(format!("columns of type {other} cannot be written")),
    }
}

/// Width, height, mode of PIL, and bytes of an image.
type Pixels = (u32, u32, String, PyBackedBytes);

fn pixels(width: u32, height: u32, mode: &str, data: &[u8]) -> Result<DraftValue, String> {
    let format = match mode {
        "L" => SampleFormat::Gray8,
        "I;16" => SampleFormat::Gray16,
        "RGB" => SampleFormat::Rgb8,
        other => {
            return Err(format!(
                "expected pixels of mode L, I;16 or RGB, found {other}"
            ));
        }
    };
    Ok(DraftPixels::new(width, height, format, data.to_vec())?.into())
}

fn bytes(given: &Bound<'_, PyAny>, expected: &str) -> Result<DraftValue, String> {
    let bytes = given.extract::<PyBackedBytes>();
    let bytes = bytes.map_err(|_| unexpected(expected, given))?;
    Ok(DraftValue::Bytes(bytes.to_vec()))
}

fn int(given: &Bound<'_, PyAny>) -> Result<i64, String> {
    // True is an integer in Python, but as a label it is a mistake.
    if given.is_instance_of::<PyBool>() {
        return Err(unexpected("an integer", given));
    }
    given
        .extract::<i64>()
        .map_err(|_| unexpected("an integer of 64 bits", given))
}

fn ints(given: &Bound<'_, PyAny>) -> Result<DraftValue, String> {
    let numbers = given.extract::<Vec<i64>>();
    numbers
        .map(DraftValue::Ints)
        .map_err(|_| unexpected("a list of integers", given))
}

fn float(given: &Bound<'_, PyAny>) -> Result<f32, String> {
    to_f32(
        given
            .extract::<f64>()
            .map_err(|_| unexpected("a number", given))?,
    )
}

fn to_f32(value: f64) -> Result<f32, String> {
    let near = value as f32;
    match near.is_infinite() && value.is_finite() {
        true => Err(format!("{value} is beyond what a float of 32 bits holds")),
        false => Ok(near),
    }
}

fn unexpected(expected: &str, given: &Bound<'_, PyAny>) -> String {
    let class = given.get_type();
    let class = class
        .name()
        .map_or_else(|_| "?".to_owned(), |name| name.to_string());
    format!("expected {expected}, found a value of type {class}")
}
