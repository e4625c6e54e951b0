//! Maps the columns of a Parquet file to the features of records.
//!
//! A leaf of the Parquet schema becomes one feature: numbers, text, bytes, or a list of them. The names of a struct and its
//! member are joined by "/". A struct of `bytes` and `path`, the way Hugging Face's `datasets` stores images, becomes an image
//! and its key. Lists of lists become JSON. Maps, decimals, dates and times are not supported.

use crate::option_names::{DROP_FEATURE, IMAGE_FEATURE};
use crate::records::RecordInput;
use crate::records::conversion::Conversion;
use crate::records::foreign_records::{IMAGE_NAMES, KEY_NAMES, LABEL_NAMES};
use crate::records::samples::difference;
use forebay_shard::example::FeatureKind;
use forebay_shard::manifest::{ClassEntry, FeatureEntry};
use forebay_shard::schema::{self, Column, ColumnType, NumberType, Schema};
use forebay_shard::some_of;
use parquet::basic::{ConvertedType, LogicalType, Repetition, Type as PhysicalType};
use parquet::file::metadata::FileMetaData;
use parquet::schema::types::{ColumnDescPtr, Type};
use serde_json::Value;
use std::collections::BTreeSet;

/// The most lists that a leaf may be in.
const MAX_LISTS: usize = 8;
/// The metadata entry in which `datasets` describes the columns.
pub(super) const HUGGING_FACE: &str = "huggingface";
/// The metadata entry with the [`Schema`] of files that Forebay wrote.
pub(super) const COLUMNS_KEY: &str = "forebay.columns";

/// Advice for columns with the paths of images.
pub(super) const PATHS_ADVICE: &str = "images that are files beside it are read by a list: write its columns to metadata.csv or metadata.jsonl with the paths as file_name, and convert that: `forebay convert --from list`";

/// The type of a leaf's values.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum LeafType {
    Bool,
    Int,
    Unsigned,
    Float,
    Double,
    Text,
    Bytes,
}

/// Use of a leaf in a record.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Use {
    /// The key of the record, which is not stored as a feature.
    Key,
    /// The feature with this name.
    Feature(String),
}

/// A leaf of the Parquet schema.
#[derive(Debug, Clone)]
pub(super) struct Field {
    /// Index of the leaf in a row group.
    pub(super) leaf: usize,
    pub(super) name: String,
    pub(super) leaf_type: LeafType,
    pub(super) used_as: Use,
    /// The feature with the shape of a list that is stored as bytes.
    pub(super) shape_feature: Option<String>,
    /// Whether the leaf is a list.
    pub(super) is_list: bool,
    pub(super) max_definition: i16,
    /// The smallest definition level of an element of a list. An empty list has the level below.
    pub(super) list_definition: i16,
    /// The definition level of the elements of each list that the leaf is in, from outside.
    pub(super) lists: Vec<i16>,
    pub(super) descriptor: ColumnDescPtr,
}

impl Field {
    /// Whether the leaf is a list of lists.
    pub(super) fn is_nested(&self) -> bool {
        self.lists.len() > 1
    }
}

/// The features of the records of a file.
#[derive(Debug, Clone)]
pub(super) struct Fields {
    pub(super) fields: Vec<Field>,
    pub(super) columns: Schema,
    pub(super) classes: Vec<ClassEntry>,
    /// The label of the first class in records.
    pub(super) label_base: i64,
    /// Whether a row without an image is an invalid record.
    pub(super) needs_image: bool,
    /// The number that is added to labels of the file to get labels of records.
    pub(super) stored_base: i64,
}

impl Fields {
    /// Decides the use of columns by the schema and the metadata of a file.
    pub(super) fn decide(
        file: &FileMetaData,
        input: &RecordInput,
        conversion: Option<&Conversion>,
    ) -> Result<Self, String> {
        let options = &input.features;
        let described = hugging_face_features(file);
        let mut fields = leaves(file, &input.drop_features)?;
        let image = choose_image(&fields, options.image_feature.as_deref())
            .map_err(|what| format!("image: {what}"))?;
        if image.is_none() && !options.without_images {
            return Err(format!(
                "no column holds images: the columns are {}; {IMAGE_FEATURE} chooses one of bytes; {PATHS_ADVICE}",
                some_of(fields.iter().map(|field| &field.name))
            ));
        }
        let is_number = |field: &Field| {
            !field.is_list && matches!(field.leaf_type, LeafType::Int | LeafType::Unsigned)
        };
        // `label_role.rs` handles labels of other types.
        let named = options.label_feature.as_deref();
        let named = named.filter(|name| fields.iter().any(|f| f.name == *name && is_number(f)));
        let label = match (named, &options.label_feature) {
            (None, Some(_)) => None,
            _ => usual_label(&fields, named, is_number),
        };
        let class_column = |field: &Field| is_number(field) && is_class(&described, &field.name);
        let label = label.or_else(|| {
            let is_open = options.label_feature.is_none();
            is_open
                .then(|| fields.iter().position(class_column))
                .flatten()
        });
        let mut key_names = vec!["key".to_owned(), "__key__".to_owned()];
        let path = image.and_then(|image| fields[image].name.strip_suffix("/bytes"));
        key_names.extend(path.map(|name| format!("{name}/path")));
        key_names.extend(KEY_NAMES.iter().map(|name| (*name).to_owned()));
        let key_names: Vec<&str> = key_names.iter().map(String::as_str).collect();
        let key = choose(
            options.key_feature.as_deref(),
            &key_names,
            &fields,
            |field| !field.is_list && matches!(field.leaf_type, LeafType::Text | LeafType::Bytes),
        );
        let key = key.map_err(|what| format!("key: {what}"))?;
        let mut columns = Vec::new();
        for (number, field) in fields.iter_mut().enumerate() {
            let column = match Some(number) {
                this if this == image => Some(Column::new(schema::IMAGE, ColumnType::Image)),
                this if this == label => Some(Column::new(schema::LABEL, ColumnType::Label)),
                this if this == key => continue,
                _ => column_type(field, is_class(&described, &field.name))
                    .map(|column_type| Column::new(&field.name, column_type)),
            };
            let own = || field.name.clone();
            let feature = column
                .as_ref()
                .map_or_else(own, |column| column.feature.clone());
            let is_stored_as_bytes =
                field.leaf_type == LeafType::Double && field.is_list && !field.is_nested();
            field.shape_feature = is_stored_as_bytes.then(|| format!("{feature}/shape"));
            field.used_as = Use::Feature(feature);
            columns.extend(column);
        }
        let classes = label.map(|label| class_names(&described, &fields[label].name));
        let mut decided = Self {
            columns: Schema::new(columns)?,
            classes: classes.unwrap_or_default(),
            fields,
            needs_image: image.is_some() && !options.without_images,
            stored_base: conversion.map_or(0, |known| known.label_base),
            label_base: match conversion {
                Some(known) => known.label_base,
                None => options.label_base.unwrap_or(0),
            },
        };
        if let Some(schema) = written_schema(file) {
            decided.restore(schema);
        }
        Ok(decided)
    }

    /// Restores the columns that Forebay wrote, if the file still has all of them.
    fn restore(&mut self, schema: Schema) {
        let mut fields = self.fields.clone();
        for name in [schema::IMAGE, schema::LABEL] {
            let (own, its) = (self.columns.column(name), schema.column(name));
            let (Some(own), Some(its)) = (own, its) else {
                continue;
            };
            for field in &mut fields {
                if field.used_as == Use::Feature(own.feature.clone()) {
                    field.used_as = Use::Feature(its.feature.clone());
                }
            }
        }
        let is_held = |name: &str| {
            let used = Use::Feature(name.to_owned());
            let shape = Some(name.to_owned());
            fields
                .iter()
                .any(|field| field.used_as == used || field.shape_feature == shape)
        };
        let features = schema.features();
        if !features.iter().all(|feature| is_held(&feature.name)) {
            return;
        }
        // The `path` member of an image exists only for `datasets`.
        fields.retain(|field| match &field.used_as {
            Use::Feature(name) => field.is_list || features.iter().any(|f| f.name == *name),
            Use::Key => true,
        });
        self.fields = fields;
        self.columns = schema;
    }

    /// Returns a copy that reads only the column with this name.
    pub(super) fn only(&self, name: &str) -> Self {
        let own = self
            .columns
            .column(name)
            .map(|column| Use::Feature(column.feature.clone()));
        let mut only = self.clone();
        only.fields
            .retain(|field| Some(&field.used_as) == own.as_ref());
        only
    }

    /// Returns the features of records, for the manifest.
    pub(super) fn features(&self) -> Vec<FeatureEntry> {
        let mut features = self.columns.features();
        let listed: BTreeSet<_> = features.iter().map(|f| f.name.clone()).collect();
        for field in &self.fields {
            if let Use::Feature(name) = &field.used_as
                && !listed.contains(name)
            {
                features.push(FeatureEntry::new(name, FeatureKind::Bytes, true));
            }
        }
        features.sort_by(|a, b| a.name.cmp(&b.name));
        features
    }

    /// Returns the leaf with the image, if rows need one.
    pub(super) fn image(&self) -> Option<&Field> {
        let column = self.columns.column(schema::IMAGE);
        let column = column.filter(|_| self.needs_image)?;
        let mut fields = self.fields.iter();
        fields.find(|field| matches!(&field.used_as, Use::Feature(name) if *name == column.feature))
    }

    /// Returns the use of each column, for the identity of a conversion.
    pub(super) fn uses(&self) -> Vec<(&str, &Use)> {
        let fields = self.fields.iter();
        fields
            .map(|field| (field.name.as_str(), &field.used_as))
            .collect()
    }

    /// Returns the name, type, depth of lists and use of each column, which must be the same in all files.
    fn kinds(&self) -> impl Iterator<Item = (&str, (LeafType, usize, &Use))> + Clone {
        let fields = self.fields.iter();
        fields.map(|field| {
            let kind = (field.leaf_type, field.lists.len(), &field.used_as);
            (field.name.as_str(), kind)
        })
    }

    /// Returns the first difference to another file of the same source.
    pub(super) fn difference(&self, other: &Self) -> Option<String> {
        if let Err(what) = difference(self.kinds(), other.kinds()) {
            return Some(what);
        }
        (self.classes != other.classes).then(|| "its classes have other names".to_owned())
    }
}

/// Returns the leaves of a file's schema in order, without those that are dropped.
fn leaves(file: &FileMetaData, dropped: &BTreeSet<String>) -> Result<Vec<Field>, String> {
    let mut names = Vec::new();
    for column in file.schema_descr().root_schema().get_fields() {
        leaf_names(column, column.name().to_owned(), (0, &[]), &mut names);
    }
    let mut fields = Vec::new();
    let leaves = file.schema_descr().columns().iter();
    for (leaf, (descriptor, (name, lists))) in leaves.zip(names).enumerate() {
        let name = name.as_str();
        let column = name.split('/').next().unwrap_or_default();
        if dropped.contains(name) || dropped.contains(column) {
            continue;
        }
        let unsupported = |what: String| {
            format!(
                "the column {name:?} is {what}, which no type of column holds: {DROP_FEATURE} {column} leaves it out"
            )
        };
        let leaf_type = leaf_type(descriptor).map_err(unsupported)?;
        if lists.len() > MAX_LISTS {
            return Err(unsupported(format!("in {} lists", lists.len())));
        }
        if lists.len() > 1 && leaf_type == LeafType::Bytes {
            return Err(unsupported("a list of lists of bytes".to_owned()));
        }
        fields.push(Field {
            leaf,
            leaf_type,
            name: name.to_owned(),
            used_as: Use::Key,
            shape_feature: None,
            is_list: descriptor.max_rep_level() > 0,
            max_definition: descriptor.max_def_level(),
            list_definition: descriptor.repeated_ancestor_def_level(),
            lists,
            descriptor: descriptor.clone(),
        });
    }
    Ok(fields)
}

/// Appends the names of the leaves below a type: the names of structs and members, without the groups in which Parquet wraps
/// lists. Each has the definition levels of the elements of its lists. `above` is the definition level of the type's parent,
/// and the lists that it is in.
fn leaf_names(
    column: &Type,
    name: String,
    above: (i16, &[i16]),
    names: &mut Vec<(String, Vec<i16>)>,
) {
    let (definition, lists) = below(column, above);
    if column.is_primitive() {
        names.push((name, lists));
        return;
    }
    let info = column.get_basic_info();
    let is_list = info.converted_type() == ConvertedType::LIST
        || matches!(info.logical_type_ref(), Some(LogicalType::List));
    let here = (definition, lists.as_slice());
    for member in column.get_fields() {
        let is_repeated = member.get_basic_info().has_repetition()
            && member.get_basic_info().repetition() == Repetition::REPEATED;
        match (is_list && is_repeated, member.is_group()) {
            (true, true) if member.get_fields().len() == 1 => {
                let (definition, lists) = below(member, here);
                let wrapped = &member.get_fields()[0];
                leaf_names(wrapped, name.clone(), (definition, &lists), names);
            }
            (true, _) => leaf_names(member, name.clone(), here, names),
            (false, _) => leaf_names(member, format!("{name}/{}", member.name()), here, names),
        }
    }
}

/// The definition level of a type that is there, and the lists that it is in.
fn below(column: &Type, (definition, lists): (i16, &[i16])) -> (i16, Vec<i16>) {
    let info = column.get_basic_info();
    let is_there = definition.saturating_add(1);
    match info.has_repetition().then(|| info.repetition()) {
        Some(Repetition::REPEATED) => (is_there, [lists, &[is_there]].concat()),
        Some(Repetition::OPTIONAL) => (is_there, lists.to_vec()),
        _ => (definition, lists.to_vec()),
    }
}

fn leaf_type(leaf: &ColumnDescPtr) -> Result<LeafType, String> {
    let converted = leaf.converted_type();
    let refused = || Err(format!("of the Parquet type {converted:?}"));
    match leaf.logical_type_ref() {
        None | Some(LogicalType::String | LogicalType::Json | LogicalType::Enum) => {}
        Some(LogicalType::Integer { .. } | LogicalType::Bson | LogicalType::Unknown) => {}
        Some(other) => return Err(format!("of the Parquet type {other:?}")),
    }
    match (leaf.physical_type(), converted) {
        (PhysicalType::BOOLEAN, _) => Ok(LeafType::Bool),
        (
            PhysicalType::INT32 | PhysicalType::INT64,
            ConvertedType::UINT_8
            | ConvertedType::UINT_16
            | ConvertedType::UINT_32
            | ConvertedType::UINT_64,
        ) => Ok(LeafType::Unsigned),
        (
            PhysicalType::INT32 | PhysicalType::INT64,
            ConvertedType::NONE
            | ConvertedType::INT_8
            | ConvertedType::INT_16
            | ConvertedType::INT_32
            | ConvertedType::INT_64,
        ) => Ok(LeafType::Int),
        (PhysicalType::FLOAT, _) => Ok(LeafType::Float),
        (PhysicalType::DOUBLE, _) => Ok(LeafType::Double),
        (
            PhysicalType::BYTE_ARRAY,
            ConvertedType::UTF8 | ConvertedType::JSON | ConvertedType::ENUM,
        ) => Ok(LeafType::Text),
        (
            PhysicalType::BYTE_ARRAY | PhysicalType::FIXED_LEN_BYTE_ARRAY,
            ConvertedType::NONE | ConvertedType::BSON,
        ) => Ok(LeafType::Bytes),
        _ => refused(),
    }
}

/// Returns the type of the column that a leaf becomes; `None` for lists of byte strings, which are features without a column.
fn column_type(field: &Field, is_class: bool) -> Option<ColumnType> {
    let vector = |number| ColumnType::Vector { len: None, number };
    let tensor = |shape| ColumnType::Tensor {
        shape,
        number: NumberType::Float64,
    };
    if field.is_nested() {
        return Some(ColumnType::Json);
    }
    match (field.leaf_type, field.is_list) {
        (LeafType::Bool | LeafType::Int | LeafType::Unsigned, false) => Some(ColumnType::Int),
        (LeafType::Bool | LeafType::Int | LeafType::Unsigned, true) if is_class => {
            Some(ColumnType::Labels)
        }
        (LeafType::Bool | LeafType::Int | LeafType::Unsigned, true) => {
            Some(vector(NumberType::Int64))
        }
        (LeafType::Float, false) => Some(ColumnType::Float),
        (LeafType::Float, true) => Some(vector(NumberType::Float32)),
        (LeafType::Double, false) => Some(tensor(Vec::new())),
        (LeafType::Double, true) => Some(tensor(vec![None])),
        (LeafType::Text, false) => Some(ColumnType::Text),
        (LeafType::Bytes, false) => Some(ColumnType::Bytes),
        (LeafType::Text | LeafType::Bytes, true) => None,
    }
}

/// Returns the leaf that an option names, or the first one with a usual name.
fn choose(
    option: Option<&str>,
    usual: &[&str],
    fields: &[Field],
    fits: impl Fn(&Field) -> bool,
) -> Result<Option<usize>, String> {
    let position = |name: &str| fields.iter().position(|f| f.name == name && fits(f));
    match option {
        Some(name) => match position(name) {
            Some(found) => Ok(Some(found)),
            None => Err(format!(
                "no column {name:?} of a fitting type; the columns are {}",
                some_of(fields.iter().map(|field| &field.name))
            )),
        },
        None => Ok(usual.iter().find_map(|name| position(name))),
    }
}

/// Returns the first leaf with the given name or a usual name of labels, if it holds integers.
fn usual_label(
    fields: &[Field],
    named: Option<&str>,
    fits: impl Fn(&Field) -> bool,
) -> Option<usize> {
    let mut names = named.into_iter().chain(LABEL_NAMES.iter().copied());
    let found = names.find_map(|name| fields.iter().position(|field| field.name == name))?;
    fits(&fields[found]).then_some(found)
}

/// Returns the leaf with the image: the given one, the only struct of bytes and path, or bytes with a usual name.
fn choose_image(fields: &[Field], option: Option<&str>) -> Result<Option<usize>, String> {
    let holds_bytes = |field: &Field| field.leaf_type == LeafType::Bytes && !field.is_list;
    let has_path = |field: &Field| {
        let path = field
            .name
            .strip_suffix("/bytes")
            .map(|name| format!("{name}/path"));
        path.is_some_and(|path| fields.iter().any(|f| f.name == path && !f.is_list))
    };
    if let Some(name) = option {
        let member = format!("{name}/bytes");
        let name = match fields.iter().any(|field| field.name == member) {
            true => &member,
            false => name,
        };
        return choose(Some(name), &[], fields, holds_bytes);
    }
    let structs = fields.iter().enumerate();
    let mut structs = structs.filter(|(_, field)| holds_bytes(field) && has_path(field));
    match (structs.next(), structs.next()) {
        (Some((image, _)), None) => return Ok(Some(image)),
        (Some((first, _)), Some((second, _))) => {
            let usual = choose(None, &["image/bytes"], fields, holds_bytes)?;
            let (first, second) = (&fields[first].name, &fields[second].name);
            return match usual {
                Some(image) => Ok(Some(image)),
                None => Err(format!(
                    "several columns hold images, {first} and {second}: {IMAGE_FEATURE} chooses one"
                )),
            };
        }
        _ => {}
    }
    choose(None, IMAGE_NAMES, fields, holds_bytes)
}

/// Returns the metadata of a file for a key.
fn metadata_text<'f>(file: &'f FileMetaData, key: &str) -> Option<&'f str> {
    let mut entries = file.key_value_metadata().into_iter().flatten();
    entries.find(|entry| entry.key == key)?.value.as_deref()
}

/// Returns the columns that Forebay wrote into the metadata, which have more types than Parquet; `None` for files of other
/// tools.
fn written_schema(file: &FileMetaData) -> Option<Schema> {
    let schema: Schema = forebay_shard::json::from_str(metadata_text(file, COLUMNS_KEY)?).ok()?;
    Schema::new(schema.columns().to_vec()).ok()
}

/// Returns the `datasets` features in the metadata of a file.
fn hugging_face_features(file: &FileMetaData) -> Value {
    let text = metadata_text(file, HUGGING_FACE);
    let all: Value = text
        .and_then(|text| forebay_shard::json::from_str(text).ok())
        .unwrap_or_default();
    all.pointer("/info/features").cloned().unwrap_or_default()
}

/// Returns the description of a column, or of the elements of a list.
fn described<'v>(features: &'v Value, name: &str) -> &'v Value {
    let mut value = features;
    for part in name.split('/') {
        value = &value[part];
    }
    match &value["feature"] {
        Value::Null => value,
        elements => elements,
    }
}

fn is_class(features: &Value, name: &str) -> bool {
    described(features, name)["_type"] == "ClassLabel"
}

/// Returns the class names of a column.
fn class_names(features: &Value, name: &str) -> Vec<ClassEntry> {
    let names = described(features, name)["names"].as_array();
    let names = names.into_iter().flatten().filter_map(Value::as_str);
    let entry = |name: &str| ClassEntry {
        name: name.to_owned(),
        text: None,
    };
    names.map(entry).collect()
}
