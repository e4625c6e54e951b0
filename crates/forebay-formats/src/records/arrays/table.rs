//! Decides what the arrays of a file hold: images, labels, keys, and the columns of records.

use super::{ArrayInfo, Element, MAX_ROW_BYTES, OFFSETS};
use crate::option_names::{DROP_FEATURE, IMAGE_FEATURE, KEY_FEATURE};
use crate::records::conversion::Conversion;
use crate::records::foreign_records::{IMAGE_NAMES, KEY_NAMES, LABEL_NAMES};
use crate::records::numbers::is_integer;
use crate::records::{RecordInput, places};
use forebay_image::SampleFormat;
use forebay_shard::example::RecordFeatures;
use forebay_shard::manifest::FeatureEntry;
use forebay_shard::schema::{self, Column, ColumnType, NumberType, Schema};
use forebay_shard::some_of;
use std::collections::BTreeMap;

/// Names of the arrays to which records are written.
pub(super) const IMAGES: &str = "images";
pub(super) const LABELS: &str = "labels";
pub(super) const KEYS: &str = "keys";
/// Names of arrays with images or labels, in addition to the names of features.
const IMAGE_ARRAYS: &[&str] = &[IMAGES, "imgs", "pixels", "data"];
const LABEL_ARRAYS: &[&str] = &[LABELS, "targets", "classes"];
const KEY_ARRAYS: &[&str] = &[KEYS, "key", "__key__"];
/// Most dimensions of a tensor column.
const MAX_DIMENSIONS: usize = 8;

/// Location of the values of a column.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Values {
    /// Each record has one row of the array.
    Rows(usize),
    /// Each record has the rows of `values` between two consecutive offsets.
    Ragged { values: usize, offsets: usize },
}

impl Values {
    pub(super) fn array(self) -> usize {
        match self {
            Self::Rows(array) | Self::Ragged { values: array, .. } => array,
        }
    }
}

/// Describes images that are stored as rows of pixels.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Pixels {
    pub(super) width: u32,
    pub(super) height: u32,
    pub(super) format: SampleFormat,
    /// Whether the channels are stored as planes: all red values, then all green ones, then all blue ones.
    pub(super) is_planar: bool,
}

impl Pixels {
    /// Returns the description for rows of this shape: height and width, with channels last or first.
    fn of_shape(shape: &[u64]) -> Option<Self> {
        let (height, width, channels, is_planar) = match *shape {
            [height, width] => (height, width, 1, false),
            [height, width, channels @ (1 | 3)] => (height, width, channels, false),
            [channels @ (1 | 3), height, width] => (height, width, channels, true),
            _ => return None,
        };
        let side = |side: u64| u32::try_from(side).ok().filter(|side| *side > 0);
        Some(Self {
            width: side(width)?,
            height: side(height)?,
            format: match channels {
                1 => SampleFormat::Gray8,
                _ => SampleFormat::Rgb8,
            },
            is_planar,
        })
    }
}

/// Use of a column in records.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Target {
    Pixels(Pixels),
    Label,
    Key,
    /// A feature that is also the key.
    FeatureAndKey,
    Feature,
}

/// A column of the records.
#[derive(Debug, Clone)]
pub(super) struct TableColumn {
    pub(super) values: Values,
    pub(super) target: Target,
    pub(super) column: Column,
    pub(super) features: Vec<FeatureEntry>,
}

/// The columns of a split in a file.
#[derive(Debug, Clone)]
pub(super) struct Table {
    pub(super) columns: Vec<TableColumn>,
    pub(super) rows: u64,
    /// The number that is added to labels of the file to get labels of records.
    pub(super) stored_base: i64,
    /// The label of the first class in records.
    pub(super) label_base: i64,
}

/// Reads the values of the first record that has any.
pub(super) type FirstRow<'a> = &'a mut dyn FnMut(Values) -> Result<Vec<u8>, String>;

/// Groups the arrays of a file by the splits in their names, such as `x_train`. `None` if some name contains no split: then the
/// file is one split.
pub(super) fn by_split(
    arrays: &[ArrayInfo],
    input: &RecordInput,
) -> Option<BTreeMap<String, Vec<(String, usize)>>> {
    let mut splits: BTreeMap<String, Vec<(String, usize)>> = BTreeMap::new();
    for (number, array) in arrays.iter().enumerate() {
        if input.drop_features.contains(&array.name) {
            continue;
        }
        let (split, name) = places::split_of_array(&array.name)?;
        splits.entry(split).or_default().push((name, number));
    }
    (!splits.is_empty()).then_some(splits)
}

impl Table {
    /// Decides the use of arrays by their names, types and shapes, and by the first record if these do not suffice.
    pub(super) fn decide(
        named: &[(String, usize)],
        arrays: &[ArrayInfo],
        input: &RecordInput,
        conversion: Option<&Conversion>,
        first: FirstRow<'_>,
    ) -> Result<Self, String> {
        let named = pairs(named, arrays, input);
        let mut table = match conversion {
            Some(conversion) => restored(&named, arrays, conversion)?,
            None => Self::of_foreign(&named, arrays, input, first)?,
        };
        let Some(first) = table.columns.first() else {
            return Err("it has no arrays".to_owned());
        };
        // The number of rows of the images is the number of records.
        let image = |column: &&TableColumn| column.column.name == schema::IMAGE;
        let counting = table.columns.iter().find(image).unwrap_or(first);
        let rows = |values: Values| match values {
            Values::Rows(array) => arrays[array].rows(),
            Values::Ragged { offsets, .. } => arrays[offsets].rows().saturating_sub(1),
        };
        table.rows = rows(counting.values);
        let counting = arrays[counting.values.array()].name.clone();
        for column in &table.columns {
            let array = &arrays[column.values.array()];
            let name = &array.name;
            if array.shape.is_empty() || rows(column.values) != table.rows {
                return Err(format!(
                    "the array {array} has not one row for each of the {} records of {counting:?}; {DROP_FEATURE} {name} leaves it out",
                    table.rows
                ));
            }
            if array.row_bytes().is_none_or(|bytes| bytes > MAX_ROW_BYTES) {
                return Err(format!(
                    "a row of the array {array} is larger than 256 MiB, the most that a record has"
                ));
            }
        }
        Ok(table)
    }

    fn of_foreign(
        named: &BTreeMap<String, Values>,
        arrays: &[ArrayInfo],
        input: &RecordInput,
        first: FirstRow<'_>,
    ) -> Result<Self, String> {
        let options = &input.features;
        let image = choose_image(named, arrays, options.image_feature.as_deref(), first)?;
        if image.is_none() && !options.without_images {
            let names = named.values().map(|values| match &arrays[values.array()] {
                array if let Element::Other(what) = &array.element => {
                    format!("{array}, which {what}")
                }
                array => array.to_string(),
            });
            if named.is_empty() {
                return Err("it has no arrays".to_owned());
            }
            return Err(format!(
                "no array holds images, which are uint8 of N x height x width x 1 or 3, or encoded: it has {}; {IMAGE_FEATURE} names one",
                some_of(names)
            ));
        }
        let is_label =
            |values: Values| matches!(values, Values::Rows(array) if is_label(&arrays[array]));
        // `label_role.rs` handles labels of other types.
        let chosen = options.label_feature.as_deref();
        let chosen = chosen.filter(|name| named.get(*name).copied().is_some_and(is_label));
        let label = match (chosen, &options.label_feature) {
            (None, Some(_)) => None,
            (Some(name), _) => Some(name.to_owned()),
            (None, None) => {
                let any = choose(named, None, &[LABEL_ARRAYS, LABEL_NAMES], |_| true)?;
                any.filter(|name| named.get(name).copied().is_some_and(is_label))
            }
        };
        let is_text = |values: Values| {
            let is_text = !matches!(
                arrays[values.array()].element,
                Element::Number(_) | Element::Other(_)
            );
            is_text && arrays[values.array()].row_shape().is_empty()
        };
        let key = choose(
            named,
            options.key_feature.as_deref(),
            &[KEY_ARRAYS, KEY_NAMES],
            is_text,
        )
        .map_err(|name| {
            format!("{KEY_FEATURE} {name}: there is no such array of one text a row")
        })?;
        let mut columns = Vec::new();
        for (name, values) in named {
            let is = |chosen: &Option<String>| chosen.as_deref() == Some(name.as_str());
            let (target, column) = match &image {
                Some((chosen, target)) if chosen == name => {
                    (*target, Column::new(schema::IMAGE, ColumnType::Image))
                }
                _ if is(&label) => (Target::Label, Column::new(schema::LABEL, ColumnType::Label)),
                _ if is(&key) && KEY_ARRAYS.contains(&name.as_str()) => {
                    (Target::Key, Column::new(name.clone(), ColumnType::Text))
                }
                _ => {
                    let target = match is(&key) {
                        true => Target::FeatureAndKey,
                        false => Target::Feature,
                    };
                    let column_type = column_type(*values, arrays)?;
                    let mut column = Column::new(name.clone(), column_type);
                    column.feature.clone_from(name);
                    (target, column)
                }
            };
            columns.push(TableColumn {
                values: *values,
                target,
                features: column.features(),
                column,
            });
        }
        Ok(Self {
            columns,
            rows: 0,
            stored_base: 0,
            label_base: options.label_base.unwrap_or(0),
        })
    }

    /// Returns the columns of records.
    pub(super) fn schema(&self) -> Result<Schema, String> {
        let columns = self.columns.iter();
        let kept = columns.filter(|column| column.target != Target::Key);
        Schema::new(kept.map(|column| column.column.clone()).collect())
    }

    /// Returns the features of records.
    pub(super) fn features(&self) -> Vec<FeatureEntry> {
        let columns = self.columns.iter();
        let kept = columns.filter(|column| column.target != Target::Key);
        let mut features: Vec<_> = kept.flat_map(|column| column.features.clone()).collect();
        features.sort_by(|a, b| a.name.cmp(&b.name));
        features
    }

    /// Returns the features that hold image and label.
    pub(super) fn record_features(&self) -> RecordFeatures {
        let mut features = RecordFeatures::default();
        for column in &self.columns {
            match (column.target, column.column.name.as_str()) {
                (Target::Label, _) => features.label.clone_from(&column.column.feature),
                (_, schema::IMAGE) => features.image.clone_from(&column.column.feature),
                _ => {}
            }
        }
        features
    }

    /// Returns the first difference between this table and that of another file.
    pub(super) fn difference(&self, other: &Self) -> Option<String> {
        let told = |column: &TableColumn| {
            let ragged = matches!(column.values, Values::Ragged { .. });
            // Each file may have its own image size.
            let target = match column.target {
                Target::Pixels(_) => Target::Feature,
                target => target,
            };
            (column.column.clone(), target, ragged)
        };
        let names = |table: &Self| -> Vec<_> { table.columns.iter().map(told).collect() };
        let (own, its) = (names(self), names(other));
        let odd = its.iter().find(|column| !own.contains(column));
        let odd = odd.or_else(|| own.iter().find(|column| !its.contains(column)));
        odd.map(|(column, ..)| {
            format!(
                "the array {:?} is not in all files with the same type and shape of rows",
                column.name
            )
        })
    }
}

/// Returns the arrays by name, without dropped ones. An array of offsets is merged with that of its values.
fn pairs(
    named: &[(String, usize)],
    arrays: &[ArrayInfo],
    input: &RecordInput,
) -> BTreeMap<String, Values> {
    let numbers: BTreeMap<&str, usize> = named
        .iter()
        .map(|(name, at)| (name.as_str(), *at))
        .collect();
    let mut found = BTreeMap::new();
    for (name, array) in named {
        let owner = name.strip_suffix(OFFSETS);
        if owner.is_some_and(|owner| numbers.contains_key(owner)) {
            continue;
        }
        let dropped = &input.drop_features;
        if dropped.contains(name) || dropped.contains(&arrays[*array].name) {
            continue;
        }
        let offsets = numbers.get(format!("{name}{OFFSETS}").as_str());
        let offsets = offsets.filter(|at| {
            arrays[**at].holds(NumberType::Int64) && arrays[**at].row_shape().is_empty()
        });
        let values = match offsets {
            Some(offsets) => Values::Ragged {
                values: *array,
                offsets: *offsets,
            },
            None => Values::Rows(*array),
        };
        found.insert(name.clone(), values);
    }
    found
}

/// Restores the columns that the arrays were written from.
fn restored(
    named: &BTreeMap<String, Values>,
    arrays: &[ArrayInfo],
    conversion: &Conversion,
) -> Result<Table, String> {
    let known = &conversion.record_features;
    let mut columns = Vec::new();
    for (name, values) in named {
        let (target, feature) = match name.as_str() {
            KEYS => (Target::Key, KEYS),
            LABELS => (Target::Label, known.label.as_str()),
            IMAGES => match pixels(*values, arrays) {
                Some(pixels) => (Target::Pixels(pixels), known.image.as_str()),
                None => return Err(format!("{} holds no images", arrays[values.array()])),
            },
            name => (Target::Feature, name),
        };
        let is_list = |column: &&Column| {
            matches!(
                column.column_type,
                ColumnType::Boxes | ColumnType::Keypoints
            )
        };
        let mut all = conversion.columns.columns().iter();
        let found = all.find(|column| !is_list(column) && column.feature == feature);
        let column = match found {
            Some(column) => column.clone(),
            // One of several features of a column, or a feature without a column.
            None => {
                let column_type = column_type(*values, arrays)?;
                let mut column = Column::new(feature, column_type);
                feature.clone_into(&mut column.feature);
                column
            }
        };
        columns.push(TableColumn {
            values: *values,
            target,
            features: column.features(),
            column,
        });
    }
    Ok(Table {
        columns,
        rows: 0,
        stored_base: conversion.label_base,
        label_base: conversion.label_base,
    })
}

fn pixels(values: Values, arrays: &[ArrayInfo]) -> Option<Pixels> {
    let Values::Rows(array) = values else {
        return None;
    };
    let array = &arrays[array];
    Pixels::of_shape(array.row_shape()).filter(|_| array.holds(NumberType::Uint8))
}

/// Returns the array with images, and how they are stored.
fn choose_image(
    named: &BTreeMap<String, Values>,
    arrays: &[ArrayInfo],
    given: Option<&str>,
    first: FirstRow<'_>,
) -> Result<Option<(String, Target)>, String> {
    let mut target = |values: Values| -> Result<Option<Target>, String> {
        if let Some(pixels) = pixels(values, arrays) {
            return Ok(Some(Target::Pixels(pixels)));
        }
        let array = &arrays[values.array()];
        let is_bytes = match values {
            Values::Rows(_) => matches!(array.element, Element::Padded | Element::Bytes),
            Values::Ragged { .. } => array.holds(NumberType::Uint8),
        };
        if !is_bytes || !array.row_shape().is_empty() {
            return Ok(None);
        }
        let value = first(values)?;
        Ok(forebay_image::sniff(&value).map(|_| Target::Feature))
    };
    if let Some(name) = given {
        let found = match named.get(name) {
            Some(values) => target(*values)?,
            None => None,
        };
        return match found {
            Some(target) => Ok(Some((name.to_owned(), target))),
            None => Err(format!(
                "{IMAGE_FEATURE} {name}: there is no such array of uint8 of N x height x width x 1 or 3, or of encoded images"
            )),
        };
    }
    let mut found = BTreeMap::new();
    for (name, values) in named {
        if let Some(target) = target(*values)? {
            found.insert(name.clone(), target);
        }
    }
    let usual = IMAGE_ARRAYS.iter().chain(IMAGE_NAMES);
    for usual in usual {
        let named = found.keys().find(|name| name.eq_ignore_ascii_case(usual));
        if let Some(name) = named.cloned() {
            let target = found[&name];
            return Ok(Some((name, target)));
        }
    }
    match found.len() {
        0 | 1 => Ok(found.into_iter().next()),
        _ => Err(format!(
            "several arrays hold images, {}: {IMAGE_FEATURE} chooses one",
            some_of(found.keys())
        )),
    }
}

/// Returns the array with the given name or, without one, the first fitting array with a usual name. The error is the given
/// name if its array is missing or does not fit.
fn choose(
    named: &BTreeMap<String, Values>,
    given: Option<&str>,
    usual: &[&[&str]],
    fits: impl Fn(Values) -> bool,
) -> Result<Option<String>, String> {
    if let Some(name) = given {
        return match named.get(name).is_some_and(|values| fits(*values)) {
            true => Ok(Some(name.to_owned())),
            false => Err(name.to_owned()),
        };
    }
    let mut usual = usual.iter().copied().flatten();
    Ok(usual.find_map(|usual| {
        let mut all = named.iter();
        let found = all.find(|(name, values)| name.eq_ignore_ascii_case(usual) && fits(**values));
        found.map(|(name, _)| name.clone())
    }))
}

/// Returns whether each row is one integer, which can be a label.
fn is_label(array: &ArrayInfo) -> bool {
    let is_one = array.row_shape().iter().all(|dim| *dim == 1);
    let is_integer = match array.element {
        Element::Number(number) => is_integer(number),
        _ => false,
    };
    is_one && is_integer && !array.holds(NumberType::Bool)
}

/// Returns the type of a column with these values.
fn column_type(values: Values, arrays: &[ArrayInfo]) -> Result<ColumnType, String> {
    let array = &arrays[values.array()];
    let refused = |what: &str| {
        let name = &array.name;
        Err(format!(
            "the array {array} {what}; {DROP_FEATURE} {name} leaves it out"
        ))
    };
    let shape = array.row_shape();
    let number = match &array.element {
        Element::Number(number) => *number,
        Element::Other(what) => return refused(what),
        Element::Utf32 | Element::Text if shape.is_empty() => return Ok(ColumnType::Text),
        Element::Padded | Element::Bytes if shape.is_empty() => return Ok(ColumnType::Bytes),
        Element::Utf32 | Element::Padded | Element::Text | Element::Bytes => {
            return refused("has several texts a row, which no column holds");
        }
    };
    let mut dims: Vec<Option<u64>> = shape.iter().copied().map(Some).collect();
    if let Values::Ragged { .. } = values {
        dims.insert(0, None);
    }
    if dims.len() > MAX_DIMENSIONS {
        return refused("has more dimensions than a tensor");
    }
    let is_list = matches!(values, Values::Ragged { .. }) && shape.is_empty();
    Ok(match number {
        NumberType::Uint8 if is_list => ColumnType::Bytes,
        NumberType::Int64 | NumberType::Float32 if is_list => {
            ColumnType::Vector { len: None, number }
        }
        NumberType::Float32 if dims.is_empty() => ColumnType::Float,
        number if dims.is_empty() && is_integer(number) => ColumnType::Int,
        _ => ColumnType::Tensor {
            shape: dims,
            number,
        },
    })
}
