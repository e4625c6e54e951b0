//! Columns of records for formats that store one value, one text or one array of numbers for each column of a sample.

use super::sink::{Appended, SinkError};
use super::{SourceFacts, SourceRecord};
use crate::finding::escape;
use crate::option_names::{DROP_FEATURE, PROGRESSIVE};
use forebay_shard::ExampleView;
use forebay_shard::example::{FeatureKind, IMAGE_PROGRESSIVE};
use forebay_shard::schema::{Column, ColumnType, ColumnValue, FeatureEntry, NumberType, Schema};
use std::borrow::Cow;
use std::collections::BTreeSet;

/// The columns of records, with a column of its own for each feature of boxes and keypoints.
#[derive(Debug)]
pub(super) struct FlatColumns {
    pub(super) columns: Vec<Column>,
    /// Features that are in columns or silently dropped. Any other feature of a record is an error.
    pub(super) known: BTreeSet<String>,
}

/// The value of a column in a record.
pub(super) enum FlatValue<'a> {
    Bytes(&'a [u8]),
    /// One number or an array: its dimensions and little-endian numbers.
    Numbers(Vec<u64>, Cow<'a, [u8]>),
}

impl FlatColumns {
    /// Decides the columns of `title`, a file without the features `dropped`.
    pub(super) fn new(facts: &SourceFacts, title: &str, dropped: &[&str]) -> Result<Self, String> {
        let mut flat = Self {
            columns: Vec::new(),
            known: dropped.iter().map(|name| (*name).to_owned()).collect(),
        };
        facts
            .columns()
            .columns()
            .iter()
            .for_each(|column| flat.add(column));
        // Features that do not belong to a column.
        for feature in &facts.features {
            let name = &feature.name;
            if flat.known.contains(name) || feature.kind == FeatureKind::Unset {
                continue;
            }
            if feature.kind == FeatureKind::Bytes && !feature.shape.is_empty() {
                return Err(format!(
                    "feature {name:?} is a list of byte strings, which {title} cannot hold: {DROP_FEATURE} {name} leaves it out"
                ));
            }
            let one = Schema::infer(std::slice::from_ref(feature), &facts.record_features);
            one.columns().iter().for_each(|column| flat.add(column));
        }
        Ok(flat)
    }

    fn add(&mut self, column: &Column) {
        let features = column.features();
        let is_known = |feature: &FeatureEntry| self.known.contains(&feature.name);
        if features.iter().all(is_known) {
            return;
        }
        let names = features.iter().map(|feature| feature.name.clone());
        self.known.extend(names);
        match column.column_type {
            ColumnType::Boxes | ColumnType::Keypoints => {
                self.columns.extend(features.iter().map(list_column));
            }
            _ => self.columns.push(column.clone()),
        }
    }
}

/// Returns a column for one feature, a list of numbers, of a column that has several features.
fn list_column(feature: &FeatureEntry) -> Column {
    let number = match feature.kind {
        FeatureKind::Int64 => NumberType::Int64,
        _ => NumberType::Float32,
    };
    let mut column = Column::new(&feature.name, ColumnType::Vector { len: None, number });
    column.feature.clone_from(&feature.name);
    column
}

/// Parses a record whose features are all `known`.
pub(super) fn parse<'a>(
    record: &SourceRecord<'a>,
    known: &BTreeSet<String>,
) -> Result<ExampleView<'a>, SinkError> {
    let example = ExampleView::parse(record.bytes)
        .map_err(|error| SinkError::Record(format!("it is no tensorflow.Example: {error}")))?;
    let mut features = example.iter().map(|feature| feature.name());
    let what = match features.find(|name| !known.contains(*name)) {
        None => return Ok(example),
        Some(name @ IMAGE_PROGRESSIVE) => format!(
            "its image was made from a progressive JPEG, which only Forebay can make of it again: {PROGRESSIVE} original writes that, {DROP_FEATURE} {name} the image as it is"
        ),
        Some(name) => format!(
            "feature {name:?} is none of the columns, which all records have: {DROP_FEATURE} {name} leaves it out"
        ),
    };
    Err(SinkError::Record(what))
}

/// Returns what a writer says of a record whose key it stored with [`put_key`].
pub(super) fn appended(record: &SourceRecord<'_>) -> Appended {
    let is_text = std::str::from_utf8(record.key).is_ok();
    Appended {
        new_key: (!is_text).then(|| escape(record.key)),
    }
}

/// Appends a key as text.
pub(super) fn put_key(key: &[u8], out: &mut Vec<u8>) {
    match std::str::from_utf8(key) {
        Ok(key) => out.extend_from_slice(key.as_bytes()),
        Err(_) => out.extend_from_slice(escape(key).as_bytes()),
    }
}

/// Returns the value of a column; `None` if the record has none.
pub(super) fn value<'a>(
    column: &Column,
    example: ExampleView<'a>,
) -> Result<Option<FlatValue<'a>>, String> {
    let value = column.read(example).map_err(|error| error.to_string())?;
    let number = |bytes: &[u8]| (Vec::new(), bytes.to_vec().into());
    let (shape, bytes): (_, Cow<'a, [u8]>) = match value {
        Some(ColumnValue::Bytes(bytes)) => return Ok(Some(FlatValue::Bytes(bytes))),
        Some(ColumnValue::Int(value)) => number(&value.to_le_bytes()),
        Some(ColumnValue::Float(value)) => number(&value.to_le_bytes()),
        Some(ColumnValue::Ints(values)) => {
            let bytes = values.iter().flat_map(|value| value.to_le_bytes());
            (vec![values.len() as u64], bytes.collect())
        }
        Some(ColumnValue::Floats(values)) => {
            let bytes = values.iter().flat_map(|value| value.to_le_bytes());
            (vec![values.len() as u64], bytes.collect())
        }
        Some(ColumnValue::Tensor { shape, bytes }) => (shape, bytes.into()),
        _ => return Ok(None),
    };
    Ok(Some(FlatValue::Numbers(shape, bytes)))
}
