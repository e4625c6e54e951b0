//! Values of labels: read from a column or a field of its JSON, and converted from integers, floats, lists or text.

use super::RecordInput;
use super::numbers::{float32s, int64s, integer, is_integer};
use crate::error::Error;
use crate::finding::escape;
use crate::option_names::{LABEL_FEATURE, NO_LABELS};
use forebay_shard::ExampleView;
use forebay_shard::schema::{Column, ColumnType, ColumnValue, NumberType};
use serde_json::Value;
use std::borrow::Cow;

/// How the values of a column are read as labels.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub enum LabelForm {
    /// Integers.
    Integer,
    /// Floats that are whole numbers.
    Float,
    /// One-hot lists: 1 at the index of the class, 0 elsewhere.
    OneHot,
    /// Class names, numbered in sorted order.
    Text,
}

impl LabelForm {
    /// Returns the name of the form.
    pub fn name(self) -> &'static str {
        match self {
            Self::Integer => "integer",
            Self::Float => "float",
            Self::OneHot => "one-hot",
            Self::Text => "text",
        }
    }
}

/// The source of labels.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct LabelRole {
    /// The column, by its name in the source.
    pub column: String,
    /// How its values are read.
    pub form: LabelForm,
}

/// A possible source of labels: a column, or a field of its JSON text.
#[derive(Debug, Clone)]
pub(super) struct Candidate {
    pub(super) column: Column,
    pub(super) field: Option<String>,
}

/// A value of a label.
#[derive(Debug, Clone, PartialEq)]
pub(super) enum LabelValue<'a> {
    Number(i64, LabelForm),
    Name(Cow<'a, str>),
}

impl Candidate {
    /// Returns the column or field as options name it.
    pub(super) fn name(&self) -> String {
        match &self.field {
            Some(field) => format!("{}.{field}", self.column.name),
            None => self.column.name.clone(),
        }
    }

    /// Reads the value of a record; `None` if it has none.
    pub(super) fn value<'a>(
        &self,
        example: ExampleView<'a>,
    ) -> Result<Option<LabelValue<'a>>, String> {
        let value = self
            .column
            .read(example)
            .map_err(|error| error.to_string())?;
        let Some(value) = value else {
            return Ok(None);
        };
        match (value, &self.field) {
            (ColumnValue::Bytes(json), Some(field)) => json_value(json, field),
            (ColumnValue::Bytes(text), None) => {
                let text = std::str::from_utf8(text)
                    .map_err(|_| format!("{} bytes that are no text", text.len()))?;
                let text = text.trim();
                Ok((!text.is_empty()).then_some(LabelValue::Name(text.into())))
            }
            (ColumnValue::Int(number), _) => {
                Ok(Some(LabelValue::Number(number, LabelForm::Integer)))
            }
            (ColumnValue::Float(number), _) => whole(f64::from(number)),
            (ColumnValue::Ints(list), _) => {
                list_value(list.into_iter().map(|number| number as f64).collect())
            }
            (ColumnValue::Floats(list), _) => list_value(list.into_iter().map(f64::from).collect()),
            (ColumnValue::Tensor { shape, bytes }, _) => {
                let ColumnType::Tensor { number, .. } = self.column.column_type else {
                    return Err("a tensor".to_owned());
                };
                let inner = shape.iter().filter(|len| **len != 1).count();
                match inner {
                    0 | 1 => list_value(doubles(number, bytes)?),
                    _ => Err(format!("a tensor of shape {shape:?}")),
                }
            }
            _ => Err("values that are no labels".to_owned()),
        }
    }
}

/// Returns the label of a record counted from 0; -1 is none.
pub(super) fn from_zero(stored: i64, base: i64) -> Result<i64, String> {
    match stored {
        -1 => Ok(-1),
        stored if stored < base => Err(format!(
            "its label is {stored}, and the first class has label {base}"
        )),
        stored => Ok(stored - base),
    }
}

/// Converts a float that must be a whole number; NaN means no label.
fn whole<'a>(number: f64) -> Result<Option<LabelValue<'a>>, String> {
    if number.is_nan() {
        return Ok(None);
    }
    // Above 2^53 a float64 cannot represent every integer.
    match number.fract() == 0.0 && number.abs() <= 9_007_199_254_740_992.0 {
        true => Ok(Some(LabelValue::Number(number as i64, LabelForm::Float))),
        false => Err(format!(
            "{number} is no whole number, as labels of classes are"
        )),
    }
}

/// Converts a list: of a single number, or a one-hot list.
fn list_value<'a>(list: Vec<f64>) -> Result<Option<LabelValue<'a>>, String> {
    match list.as_slice() {
        [] => return Ok(None),
        [one] => return whole(*one),
        _ => {}
    }
    let mut ones = list
        .iter()
        .enumerate()
        .filter(|(_, number)| **number != 0.0);
    match (ones.next(), ones.next()) {
        (Some((at, one)), None) if *one == 1.0 => {
            Ok(Some(LabelValue::Number(at as i64, LabelForm::OneHot)))
        }
        _ => {
            let shown: Vec<String> = list.iter().take(8).map(f64::to_string).collect();
            let more = if list.len() > shown.len() {
                ", ..."
            } else {
                ""
            };
            Err(format!("[{}{more}] is not one-hot", shown.join(", ")))
        }
    }
}

/// Decodes the numbers of a tensor.
fn doubles(number: NumberType, bytes: &[u8]) -> Result<Vec<f64>, String> {
    let width = number.bytes().max(1);
    let words = || bytes.chunks_exact(width);
    Ok(match number {
        NumberType::Int64 => int64s(bytes).into_iter().map(|n| n as f64).collect(),
        NumberType::Float32 => float32s(bytes).into_iter().map(f64::from).collect(),
        NumberType::Float64 => words()
            .map(|word| f64::from_le_bytes(word.try_into().unwrap_or_default()))
            .collect(),
        NumberType::Uint64 => words()
            .map(|word| u64::from_le_bytes(word.try_into().unwrap_or_default()) as f64)
            .collect(),
        number if is_integer(number) => words().map(|word| integer(number, word) as f64).collect(),
        other => return Err(format!("numbers of type {}", other.name())),
    })
}

/// Reads a field of a JSON object.
fn json_value<'a>(json: &[u8], field: &str) -> Result<Option<LabelValue<'a>>, String> {
    let value: Value =
        forebay_shard::json::from_slice(json).map_err(|error| format!("no JSON: {error}"))?;
    match value.get(field) {
        None | Some(Value::Null) => Ok(None),
        Some(Value::String(text)) => {
            let text = text.trim().to_owned();
            Ok((!text.is_empty()).then_some(LabelValue::Name(text.into())))
        }
        Some(Value::Number(number)) => match (number.as_i64(), number.as_f64()) {
            (Some(number), _) => Ok(Some(LabelValue::Number(number, LabelForm::Integer))),
            (None, Some(number)) => whole(number),
            (None, None) => Err(format!("{number} is no label")),
        },
        Some(Value::Array(list)) if list.iter().all(Value::is_number) => {
            list_value(list.iter().filter_map(Value::as_f64).collect())
        }
        Some(other) => Err(format!("{} is no label", shown(&other.to_string()))),
    }
}

pub(super) fn unusable(input: &RecordInput, name: &str, what: &str) -> Error {
    Error::source(
        input.location.to_string(),
        format!(
            "no label can be read from {name:?}, which has the name of one: {what}; {LABEL_FEATURE} NAME takes another column, {NO_LABELS} keeps it as a column"
        ),
    )
}

/// Returns the beginning of a text, for a message.
pub(super) fn shown(text: &str) -> String {
    let mut short: String = text.chars().take(40).collect();
    if short.len() < text.len() {
        short.push_str("...");
    }
    escape(short.as_bytes())
}
