//! The decoded values of a column.

use super::fields::{Field, LeafType};
use parquet::data_type::{ByteArray, FixedLenByteArray};
use std::ops::Range;

pub(super) enum Values {
    Bool(Vec<bool>),
    Int32(Vec<i32>),
    Int64(Vec<i64>),
    Float(Vec<f32>),
    Double(Vec<f64>),
    Bytes(Vec<ByteArray>),
    FixedBytes(Vec<FixedLenByteArray>),
}

impl Values {
    pub(super) fn len(&self) -> usize {
        match self {
            Values::Bool(values) => values.len(),
            Values::Int32(values) => values.len(),
            Values::Int64(values) => values.len(),
            Values::Float(values) => values.len(),
            Values::Double(values) => values.len(),
            Values::Bytes(values) => values.len(),
            Values::FixedBytes(values) => values.len(),
        }
    }

    pub(super) fn clear(&mut self) {
        match self {
            Values::Bool(values) => values.clear(),
            Values::Int32(values) => values.clear(),
            Values::Int64(values) => values.clear(),
            Values::Float(values) => values.clear(),
            Values::Double(values) => values.clear(),
            Values::Bytes(values) => values.clear(),
            Values::FixedBytes(values) => values.clear(),
        }
    }

    pub(super) fn doubles(&self, row: Range<usize>) -> &[f64] {
        match self {
            Values::Double(values) => &values[row],
            _ => &[],
        }
    }

    pub(super) fn integers(&self, row: Range<usize>, field: &Field) -> Result<Vec<i64>, String> {
        let is_unsigned = field.leaf_type == LeafType::Unsigned;
        Ok(match self {
            Values::Bool(values) => values[row].iter().map(|&value| i64::from(value)).collect(),
            Values::Int32(values) if is_unsigned => values[row]
                .iter()
                .map(|&value| i64::from(value as u32))
                .collect(),
            Values::Int32(values) => values[row].iter().map(|&value| i64::from(value)).collect(),
            Values::Int64(values) => {
                let values = &values[row];
                if is_unsigned && let Some(value) = values.iter().find(|value| **value < 0) {
                    let value = *value as u64;
                    return Err(format!(
                        "the column {:?} is {value}: integers of records end at 2^63 - 1",
                        field.name
                    ));
                }
                values.to_vec()
            }
            _ => Vec::new(),
        })
    }

    pub(super) fn floats(&self, row: Range<usize>) -> &[f32] {
        match self {
            Values::Float(values) => &values[row],
            _ => &[],
        }
    }

    pub(super) fn bytes(&self, row: Range<usize>) -> Box<dyn Iterator<Item = &[u8]> + '_> {
        match self {
            Values::Bytes(values) => Box::new(values[row].iter().map(ByteArray::data)),
            Values::FixedBytes(values) => Box::new(values[row].iter().map(|value| value.data())),
            _ => Box::new(std::iter::empty()),
        }
    }
}
