//! Columns of samples with typed values, and the records that are encoded from them.

use super::encoding::{Encoding, array};
use crate::archive::{FileVersion, hash_text};
use crate::error::{Error, Result};
use crate::records::numbers::{self, float32s, int64s, is_integer};
use crate::records::{Conversion, ForeignSchema, RecordInput, SourceFacts};
use forebay_shard::ExampleBuilder;
use forebay_shard::example::RecordFeatures;
use forebay_shard::index::MAX_KEY_BYTES;
use forebay_shard::manifest::{ClassEntry, EpochOrder, block_records};
use forebay_shard::schema::{
    Column, ColumnType, ColumnValue, FeatureEntry, IMAGE, LABEL, NumberType, Schema,
};
use std::collections::BTreeMap;
use std::path::Path;

/// The column with the key of a sample.
pub(in crate::records) const KEY: &str = "key";

/// Use of a column in records.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(in crate::records) enum Target {
    /// A feature of the record.
    Feature,
    /// A feature that is also the label.
    Label,
    Key,
    Nothing,
}

/// A column of the samples.
#[derive(Debug, Clone)]
pub(in crate::records) struct SampleColumn {
    pub(in crate::records) name: String,
    pub(in crate::records) encoding: Encoding,
    pub(in crate::records) target: Target,
    /// Whether the feature is also the key.
    pub(in crate::records) is_key: bool,
    column: Column,
    features: Vec<FeatureEntry>,
    /// The encoding in the file. [`settle`] does not change it, so it tells what precedes each value.
    stored: Encoding,
}

impl SampleColumn {
    /// Returns whether the values are images according to the encoding.
    fn is_encoded_image(&self) -> bool {
        self.target != Target::Nothing && matches!(self.encoding, Encoding::Jpeg | Encoding::Png)
    }

    pub(in crate::records) fn new(name: &str, encoding: Encoding, target: Target) -> Self {
        Self {
            name: name.to_owned(),
            stored: encoding.clone(),
            encoding,
            target,
            is_key: false,
            column: Column::new(name, ColumnType::Bytes),
            features: Vec::new(),
        }
    }

    fn column_type(&self) -> ColumnType {
        self.encoding.column_type()
    }

    /// Creates the column of records with the name of this column.
    fn make_column(&mut self) {
        self.column = Column::new(self.name.clone(), self.column_type());
        self.column.feature.clone_from(&self.name);
        self.features = self.column.features();
    }

    /// Restores the column that this one was written from.
    fn restore(&mut self, conversion: &Conversion) {
        let features = &conversion.record_features;
        let feature = match self.name.as_str() {
            KEY => {
                self.target = Target::Key;
                return;
            }
            IMAGE => features.image.clone(),
            LABEL => {
                self.target = Target::Label;
                features.label.clone()
            }
            name => name.to_owned(),
        };
        let columns = conversion.columns.columns().iter();
        let known = columns.into_iter().find(|column| {
            let list = matches!(
                column.column_type,
                ColumnType::Boxes | ColumnType::Keypoints
            );
            !list && column.feature == feature
        });
        self.column = match known {
            Some(column) => column.clone(),
            // One of several features of a column, or a feature without a column.
            None => {
                let mut column = Column::new(feature.clone(), self.list_type());
                column.feature = feature;
                column
            }
        };
        self.features = self.column.features();
    }

    /// Returns the type of a list of numbers in a record.
    fn list_type(&self) -> ColumnType {
        match &self.encoding {
            Encoding::Array {
                number: Some(number @ (NumberType::Int64 | NumberType::Float32)),
                ..
            } => ColumnType::Vector {
                len: None,
                number: *number,
            },
            _ => self.column_type(),
        }
    }

    /// Returns the encoding in the file.
    pub(in crate::records) fn stored(&self) -> &Encoding {
        &self.stored
    }

    fn value<'a>(
        &self,
        bytes: &'a [u8],
        label_base: i64,
    ) -> std::result::Result<ColumnValue<'a>, String> {
        if self.target == Target::Label {
            let label = integer(&self.encoding, bytes)?;
            return stored_label(label, label_base).map(ColumnValue::Int);
        }
        match (&self.stored, &self.column.column_type) {
            (Encoding::Scalar(_, NumberType::Float32), ColumnType::Float) => {
                let word = bytes.try_into().unwrap_or_default();
                Ok(ColumnValue::Float(f32::from_le_bytes(word)))
            }
            (Encoding::Scalar(..), ColumnType::Tensor { .. }) => Ok(ColumnValue::Tensor {
                shape: Vec::new(),
                bytes,
            }),
            (Encoding::Scalar(..), _) => integer(&self.encoding, bytes).map(ColumnValue::Int),
            (Encoding::Array { .. }, column_type) => {
                let read = array(&self.stored, bytes)?;
                let words = read.bytes;
                match column_type {
                    ColumnType::Vector { number, .. } if *number == read.number => {
                        Ok(match number {
                            NumberType::Int64 => ColumnValue::Ints(int64s(words)),
                            _ => ColumnValue::Floats(float32s(words)),
                        })
                    }
                    ColumnType::Labels if read.number == NumberType::Int64 => {
                        Ok(ColumnValue::Ints(int64s(words)))
                    }
                    ColumnType::Tensor { number, .. } if *number == read.number => {
                        Ok(ColumnValue::Tensor {
                            shape: read.shape,
                            bytes: words,
                        })
                    }
                    other => Err(format!("an array of {} is no {other}", read.number.name())),
                }
            }
            _ => Ok(ColumnValue::Bytes(bytes)),
        }
    }
}

/// Returns the value of a number that fits into an i64.
fn integer(encoding: &Encoding, bytes: &[u8]) -> std::result::Result<i64, String> {
    let Encoding::Scalar(name, number) = encoding else {
        return Err("it is no integer".to_owned());
    };
    match is_integer(*number) {
        true => Ok(numbers::integer(*number, bytes)),
        false => Err(format!("{name} is no integer")),
    }
}

/// Returns a label as records store it: -1 means no label, other labels are shifted by `label_base`, which is 0 for labels of
/// other tools.
pub(in crate::records) fn stored_label(
    label: i64,
    label_base: i64,
) -> std::result::Result<i64, String> {
    match label {
        -1 => Ok(-1),
        label if label < 0 => Err(format!(
            "a label counts from 0, or is -1 for none, and this is {label}"
        )),
        label => label
            .checked_add(label_base)
            .ok_or_else(|| format!("the label {label} is too large")),
    }
}

/// Compares the columns of two files by name and type, in any order. Returns the position in the second file of each column of
/// the first one, or the first difference.
pub(in crate::records) fn difference<'c, T: PartialEq>(
    own: impl Iterator<Item = (&'c str, T)> + Clone,
    its: impl Iterator<Item = (&'c str, T)> + Clone,
) -> std::result::Result<Vec<usize>, String> {
    let known: BTreeMap<&str, T> = own.clone().collect();
    if let Some((name, _)) = its.clone().find(|(name, _)| !known.contains_key(name)) {
        return Err(format!("the column {name:?} is not in the first file"));
    }
    let numbers = its.enumerate().map(|(at, (name, kind))| (name, (at, kind)));
    let numbers: BTreeMap<&str, (usize, T)> = numbers.collect();
    let place = |(name, kind): (&'c str, T)| match numbers.get(name) {
        None => Err(format!("the column {name:?} is missing")),
        Some((_, other)) if *other != kind => Err(format!("the column {name:?} has another type")),
        Some((at, _)) => Ok(*at),
    };
    own.map(place).collect()
}

/// Splits a sample into its values, in the order of `places`. `sizes` has the size of each column; `None` if sizes vary.
pub(in crate::records) fn values_at<'a>(
    sizes: impl ExactSizeIterator<Item = Option<u64>>,
    places: &[usize],
    sample: &'a [u8],
) -> std::result::Result<Vec<&'a [u8]>, String> {
    let short = || "the sample is shorter than its columns".to_owned();
    let mut lens = Vec::with_capacity(sizes.len());
    let mut rest = sample;
    for size in sizes {
        lens.push(match size {
            Some(size) => usize::try_from(size).map_err(|_| short())?,
            None => {
                let (word, after) = rest.split_first_chunk::<4>().ok_or_else(short)?;
                rest = after;
                u32::from_le_bytes(*word) as usize
            }
        });
    }
    let mut values = Vec::with_capacity(lens.len());
    for len in lens {
        let (value, after) = rest.split_at_checked(len).ok_or_else(short)?;
        values.push(value);
        rest = after;
    }
    match rest.len() {
        0 => {
            let ordered = places.iter().map(|at| values.get(*at).copied());
            Ok(ordered.map(Option::unwrap_or_default).collect())
        }
        more => Err(format!(
            "the sample is {more} bytes longer than its columns"
        )),
    }
}

/// Completes the encodings from the first sample: types and dimensions that only the values contain.
fn settle(
    columns: &mut [SampleColumn],
    values: &[impl AsRef<[u8]>],
) -> std::result::Result<(), String> {
    for (column, value) in columns.iter_mut().zip(values) {
        if column.target != Target::Nothing {
            let settled = column.encoding.settle(value.as_ref());
            settled.map_err(|what| format!("column {:?}: {what}", column.name))?;
        }
    }
    Ok(())
}

/// Label and key of a sample.
#[derive(Debug, Default)]
pub(in crate::records) struct SampleMeta {
    pub(in crate::records) label: Option<i64>,
    pub(in crate::records) key: Vec<u8>,
}

/// Appends the record of a sample with these values.
pub(in crate::records) fn encode(
    columns: &[SampleColumn],
    values: &[impl AsRef<[u8]>],
    label_base: i64,
    record: &mut Vec<u8>,
) -> std::result::Result<SampleMeta, String> {
    let mut meta = SampleMeta::default();
    let mut builder = ExampleBuilder::new();
    for (column, bytes) in columns.iter().zip(values) {
        let bytes = bytes.as_ref();
        let refused = |what: String| format!("column {:?}: {what}", column.name);
        if column.target == Target::Nothing {
            continue;
        }
        if column.target == Target::Key || column.is_key {
            if bytes.len() > MAX_KEY_BYTES {
                return Err(refused(format!(
                    "a key of {} bytes is too long",
                    bytes.len()
                )));
            }
            meta.key.extend_from_slice(bytes);
            if column.target == Target::Key {
                continue;
            }
        }
        let value = column.value(bytes, label_base).map_err(refused)?;
        if let (Target::Label, ColumnValue::Int(label)) = (column.target, &value) {
            meta.label = Some(*label);
        }
        let added = column.column.add(&column.features, &value, &mut builder);
        added.map_err(|error| refused(error.to_string()))?;
    }
    builder.encode_into(record);
    Ok(meta)
}

/// The columns of a source.
#[derive(Debug)]
pub(in crate::records) struct Columns {
    pub(in crate::records) columns: Vec<SampleColumn>,
    schema: Schema,
    record_features: RecordFeatures,
    label_base: i64,
    foreign: Option<ForeignSchema>,
}

impl Columns {
    /// Decides the use of the columns by their names, their encodings and the values of the first sample, whose path is given
    /// for errors.
    pub(in crate::records) fn decide(
        mut all: Vec<SampleColumn>,
        first: Option<(&Path, &[impl AsRef<[u8]>])>,
        input: &RecordInput,
        conversion: Option<&Conversion>,
        root: &Path,
    ) -> Result<Self> {
        let refused = |what: String| Error::source(root, what);
        // The first sample completes the encodings.
        if let Some((path, values)) = first {
            settle(&mut all, values).map_err(|what| Error::source(path, what))?;
        }
        if let Some(conversion) = conversion {
            for column in &mut all {
                column.restore(conversion);
            }
            return Ok(Self {
                columns: all,
                schema: conversion.columns.clone(),
                record_features: conversion.record_features.clone(),
                label_base: conversion.label_base,
                foreign: None,
            });
        }
        for column in &mut all {
            if column.name == KEY
                && column.encoding == Encoding::Str
                && column.target == Target::Feature
            {
                column.target = Target::Key;
            }
            column.make_column();
        }
        let record = match first {
            Some((path, values)) => {
                let mut record = Vec::new();
                let read = encode(&all, values, 0, &mut record);
                read.map_err(|what| Error::source(path, what))?;
                Some(record)
            }
            None => None,
        };
        let mut features = input.features.clone();
        let foreign = features.decide(record.as_deref()).or_else(|what| {
            // The first image may be damaged. If only one column has the encoding of images, it is the image.
            let mut images = all.iter().filter(|column| column.is_encoded_image());
            let image = images.next().filter(|_| images.next().is_none());
            features.image_feature = Some(image.ok_or(what)?.name.clone());
            features.decide(record.as_deref())
        });
        let foreign = foreign.map_err(refused)?;
        let mut listed = Vec::new();
        for column in &mut all {
            if column.name == foreign.features.label && column.target == Target::Feature {
                column.target = Target::Label;
            }
            if matches!(column.target, Target::Key | Target::Nothing) {
                continue;
            }
            let mut entry = Column::new(column.name.clone(), column.column_type());
            entry.feature.clone_from(&column.name);
            if column.name == foreign.features.image {
                (entry.name, entry.column_type) = (IMAGE.to_owned(), ColumnType::Image);
            } else if column.name == foreign.features.label {
                (entry.name, entry.column_type) = (LABEL.to_owned(), ColumnType::Label);
            }
            listed.push(entry);
        }
        let key = foreign.key.clone();
        let has_key = all.iter().any(|column| column.target == Target::Key);
        if let Some(column) = all.iter_mut().find(|column| column.name == key)
            && !has_key
        {
            column.is_key = true;
        }
        Ok(Self {
            columns: all,
            schema: Schema::new(listed).map_err(refused)?,
            record_features: foreign.features.clone(),
            label_base: foreign.label_base,
            foreign: Some(foreign),
        })
    }

    /// Appends the record of a sample with these values.
    pub(in crate::records) fn record(
        &self,
        values: &[impl AsRef<[u8]>],
        record: &mut Vec<u8>,
    ) -> std::result::Result<SampleMeta, String> {
        record.clear();
        // Labels of other tools are not shifted.
        let base = match self.foreign {
            Some(_) => 0,
            None => self.label_base,
        };
        let meta = encode(&self.columns, values, base, record)?;
        if let Some(schema) = &self.foreign {
            schema.check(record)?;
            for (column, value) in self.columns.iter().zip(values) {
                if column.is_encoded_image() {
                    let checked = crate::sniff::check_image(value.as_ref());
                    checked.map_err(|what| format!("column {:?}: {what}", column.name))?;
                }
            }
        }
        Ok(meta)
    }

    /// Returns the facts about a source of these files.
    pub(in crate::records) fn facts(
        &self,
        files: &[SampleFile<'_>],
        classes: Vec<ClassEntry>,
        conversion: Option<&Conversion>,
        root: &Path,
    ) -> SourceFacts {
        let mut hasher = blake3::Hasher::new();
        let mut item = |bytes: &[u8]| hash_text(bytes, &mut hasher);
        let mut split = None;
        for file in files {
            if split != Some(file.split) {
                split = Some(file.split);
                item(file.split.as_bytes());
            }
            item(file.version.path.as_os_str().as_encoded_bytes());
            item(&file.version.bytes.to_le_bytes());
            item(&file.version.modified.to_le_bytes());
        }
        let RecordFeatures { image, label, .. } = &self.record_features;
        let identity = [
            ("image_feature", image.clone()),
            ("label_feature", label.clone()),
            ("label_base", self.label_base.to_string()),
        ];
        let foreign = self.foreign.clone();
        let facts = SourceFacts {
            classes,
            record_features: self.record_features.clone(),
            foreign: foreign.map(|schema| (schema, root.to_path_buf())),
            ..SourceFacts::new(self.label_base, self.schema.clone(), &hasher, identity)
        };
        facts.with_conversion(conversion, || order_of(files))
    }
}

/// Identity and size of a file of samples.
pub(in crate::records) struct SampleFile<'a> {
    pub(in crate::records) split: &'a str,
    pub(in crate::records) version: &'a FileVersion,
    pub(in crate::records) samples: u64,
    /// Size of all samples in bytes, decompressed.
    pub(in crate::records) sample_bytes: u64,
}

fn order_of(files: &[SampleFile<'_>]) -> EpochOrder {
    let mut sizes: BTreeMap<&str, (u64, u64)> = BTreeMap::new();
    for file in files {
        let (samples, bytes) = sizes.entry(file.split).or_default();
        *samples += file.samples;
        *bytes += file.sample_bytes;
    }
    let mut order = EpochOrder::default();
    for (split, (samples, bytes)) in sizes {
        let block = block_records(samples, bytes);
        order.block_records.insert(split.to_owned(), block);
    }
    order
}
