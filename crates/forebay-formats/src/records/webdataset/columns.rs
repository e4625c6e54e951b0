//! Maps members of a sample to columns, for readers and writers.

use super::super::foreign_records::LABEL_NAMES;
use super::super::npy::NpyColumn;
use super::super::{Conversion, RecordInput};
use super::index::{TarIndex, dots_advice, refuses};
use super::names::{JSON_EXTENSION, LABEL_EXTENSION, is_image_extension, is_refused, last};
use crate::error::{Error, Result};
use crate::option_names::{ALLOW_NO_IMAGE, DROP_FEATURE, IMAGE_FEATURE};
use forebay_shard::example::RecordFeatures;
use forebay_shard::schema::{Column, ColumnType, FeatureEntry, IMAGE, LABEL, Schema};
use forebay_shard::some_of;
use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;

/// Suffix for columns of bytes whose name readers would decode as another type.
const BYTES_EXTENSION: &str = "bin";

/// How a column is stored in a written sample.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Placement {
    Image,
    Label,
    /// In a member with this extension.
    Member(String),
    /// In a member with this extension, followed by the extension of its image format.
    ImageMember(String),
    /// In the JSON member, by its features.
    Json,
}

impl Placement {
    pub(super) fn of(column: &Column, features: &RecordFeatures) -> Self {
        if column.feature == features.image {
            return Self::Image;
        }
        if column.feature == features.label {
            return Self::Label;
        }
        let name = column.name.to_lowercase();
        let fits = |c: char| c.is_ascii_alphanumeric() || matches!(c, '_' | '-' | '.');
        let is_extension = name.chars().all(fits) && name.split('.').all(|part| !part.is_empty());
        if !is_extension {
            return Self::Json;
        }
        let ending_in = |ending: &str| match last(&name) == ending {
            true => Self::Member(name.clone()),
            false => Self::Member(format!("{name}.{ending}")),
        };
        match column.column_type {
            ColumnType::Text => ending_in("txt"),
            ColumnType::Json => ending_in("json"),
            ColumnType::Tensor { .. } => ending_in("npy"),
            ColumnType::Mask => ending_in("png"),
            ColumnType::Image if name.contains('.') && is_image_extension(last(&name)) => {
                Self::Member(name)
            }
            ColumnType::Image => Self::ImageMember(name),
            ColumnType::Bytes => {
                let known = [LABEL_EXTENSION, "txt"];
                let is_other = known.contains(&last(&name))
                    || is_image_extension(last(&name))
                    || is_refused(&name);
                match is_other {
                    true => Self::Member(format!("{name}.{BYTES_EXTENSION}")),
                    false => Self::Member(name),
                }
            }
            _ => Self::Json,
        }
    }
}

/// Use of a member for a reader.
#[derive(Debug, Clone, PartialEq)]
pub(super) enum Slot {
    Image,
    Label,
    /// A JSON object with features by name.
    Json,
    Column(Box<Column>, Vec<FeatureEntry>),
    /// The member is ignored.
    Nothing,
}

/// The columns of a WebDataset.
#[derive(Debug)]
pub(super) struct Columns {
    slots: BTreeMap<String, Slot>,
    schema: Schema,
    /// Features of the JSON member, for a converted dataset.
    pub(super) json: BTreeMap<String, FeatureEntry>,
    features: Vec<FeatureEntry>,
    pub(super) record_features: RecordFeatures,
    pub(super) label_base: i64,
    pub(super) needs_image: bool,
}

impl Columns {
    /// Decides the use of members by their extensions, or restores it from the conversion.
    pub(super) fn of<'a>(
        indexes: impl Iterator<Item = &'a TarIndex> + Clone,
        conversion: Option<&Conversion>,
        input: &RecordInput,
        root: &Path,
    ) -> Result<Self> {
        let indexes: Vec<&TarIndex> = indexes.collect();
        let mut extensions: BTreeMap<String, NpyColumn> = BTreeMap::new();
        let mut first: BTreeMap<&str, &Path> = BTreeMap::new();
        for index in indexes.iter().copied() {
            if let Some(extension) = refuses(index)
                && !input.drop_features.contains(extension)
            {
                let what = format!(
                    "members {extension:?} are pickled Python objects, which are not read: reading them would execute what they say; {DROP_FEATURE} {extension} leaves them out"
                );
                return Err(Error::source(&index.version.path, what));
            }
            for (extension, arrays) in &index.extensions {
                let known = extensions.entry(extension.clone()).or_default();
                if known.differs_from(arrays) && !input.drop_features.contains(extension) {
                    let other = first.get(extension.as_str()).map(|path| path.display());
                    let what = format!(
                        "members {extension:?} are arrays of another type than those of {}: all tars of a source have the same columns; {DROP_FEATURE} {extension} leaves them out",
                        other.map_or_else(String::new, |path| path.to_string())
                    );
                    return Err(Error::source(&index.version.path, what));
                }
                first.entry(extension).or_insert(&index.version.path);
                known.merge(arrays.clone());
            }
        }
        let columns = match conversion {
            Some(conversion) => Self::converted(&extensions, conversion, input),
            None => {
                let label = label_member(&indexes, &extensions, input)?;
                Self::inferred(&extensions, label.as_deref(), input)
            }
        };
        let columns = columns.map_err(|what| Error::source(root, what))?;
        let has_image = columns.slots.values().any(|slot| *slot == Slot::Image);
        let without_images = input.features.without_images;
        if !has_image && !without_images && !extensions.is_empty() {
            let advice = dots_advice(indexes.iter().copied())
                .unwrap_or_else(|| format!("{IMAGE_FEATURE} names one of these"));
            let what = format!(
                "no sample has an image; members are {}: {advice}, {ALLOW_NO_IMAGE} converts them without",
                some_of(extensions.keys())
            );
            return Err(Error::source(root, what));
        }
        Ok(Self {
            needs_image: has_image && !without_images,
            ..columns
        })
    }

    fn inferred(
        extensions: &BTreeMap<String, NpyColumn>,
        label: Option<&str>,
        input: &RecordInput,
    ) -> std::result::Result<Self, String> {
        let chosen = &input.features;
        if let Some(name) = &chosen.image_feature
            && !extensions.contains_key(name)
        {
            return Err(format!(
                "{IMAGE_FEATURE} {name:?}: no sample has such a member"
            ));
        }
        let mut slots = BTreeMap::new();
        let mut columns = Vec::new();
        for (extension, arrays) in extensions {
            let is_image = match &chosen.image_feature {
                Some(name) => name == extension,
                None => is_image_extension(extension),
            };
            let slot = if input.drop_features.contains(extension) {
                Slot::Nothing
            } else if is_image {
                Slot::Image
            } else if Some(extension.as_str()) == label {
                Slot::Label
            } else {
                let column_type = match last(extension) {
                    "txt" | LABEL_EXTENSION => ColumnType::Text,
                    "npy" => arrays.column_type(),
                    end if is_image_extension(end) => ColumnType::Image,
                    _ => ColumnType::Bytes,
                };
                let mut column = Column::new(extension.clone(), column_type);
                column.feature.clone_from(extension);
                columns.push(column.clone());
                let features = column.features();
                Slot::Column(Box::new(column), features)
            };
            slots.insert(extension.clone(), slot);
        }
        for (slot, column) in [
            (Slot::Label, Column::new(LABEL, ColumnType::Label)),
            (Slot::Image, Column::new(IMAGE, ColumnType::Image)),
        ] {
            if slots.values().any(|known| *known == slot) {
                columns.insert(0, column);
            }
        }
        let schema = Schema::new(columns)?;
        Ok(Self {
            slots,
            features: schema.features(),
            schema,
            json: BTreeMap::new(),
            record_features: RecordFeatures::default(),
            label_base: 0,
            needs_image: false,
        })
    }

    fn converted(
        extensions: &BTreeMap<String, NpyColumn>,
        conversion: &Conversion,
        input: &RecordInput,
    ) -> std::result::Result<Self, String> {
        let record_features = conversion.record_features.clone();
        let mut members: BTreeMap<String, &Column> = BTreeMap::new();
        let mut images: BTreeMap<String, &Column> = BTreeMap::new();
        let mut own: BTreeSet<String> = BTreeSet::new();
        for column in conversion.columns.columns() {
            let placement = Placement::of(column, &record_features);
            if placement != Placement::Json {
                own.extend(column.features().into_iter().map(|feature| feature.name));
            }
            match placement {
                Placement::Member(extension) => drop(members.insert(extension, column)),
                Placement::ImageMember(name) => drop(images.insert(name, column)),
                Placement::Image | Placement::Label | Placement::Json => {}
            }
        }
        let mut slots = BTreeMap::new();
        for extension in extensions.keys() {
            let column = members.get(extension).or_else(|| {
                let (name, end) = extension.rsplit_once('.')?;
                images.get(name).filter(|_| is_image_extension(end))
            });
            let slot = match column {
                Some(column) if input.drop_features.contains(&column.feature) => Slot::Nothing,
                Some(column) => Slot::Column(Box::new((*column).clone()), column.features()),
                None if is_image_extension(extension) => Slot::Image,
                None if extension == LABEL_EXTENSION => Slot::Label,
                None if extension == JSON_EXTENSION => Slot::Json,
                None => {
                    return Err(format!(
                        "members {extension:?} are none of the columns that {} lists: remove that file to read the tars as they are",
                        Conversion::FILE_NAME
                    ));
                }
            };
            slots.insert(extension.clone(), slot);
        }
        let json = conversion.features.iter();
        let json = json.filter(|feature| !own.contains(&feature.name));
        Ok(Self {
            slots,
            schema: conversion.columns.clone(),
            json: json
                .map(|feature| (feature.name.clone(), feature.clone()))
                .collect(),
            features: conversion.features.clone(),
            record_features,
            label_base: conversion.label_base,
            needs_image: false,
        })
    }

    /// Returns the use of members with an extension.
    pub(super) fn slot(&self, extension: &str) -> &Slot {
        self.slots.get(extension).unwrap_or(&Slot::Nothing)
    }

    pub(super) fn is_image(&self, extension: &str) -> bool {
        *self.slot(extension) == Slot::Image
    }

    /// Returns a copy that reads only the column with this name.
    pub(super) fn only(&self, name: &str) -> Self {
        let is_it = |slot: &Slot| matches!(slot, Slot::Column(column, _) if column.name == name);
        let slots = self.slots.iter().map(|(extension, slot)| {
            let slot = if is_it(slot) {
                slot.clone()
            } else {
                Slot::Nothing
            };
            (extension.clone(), slot)
        });
        Self {
            slots: slots.collect(),
            schema: self.schema.clone(),
            json: BTreeMap::new(),
            features: self.features.clone(),
            record_features: self.record_features.clone(),
            label_base: self.label_base,
            needs_image: false,
        }
    }

    pub(super) fn schema(&self) -> Schema {
        self.schema.clone()
    }

    pub(super) fn features(&self) -> Vec<FeatureEntry> {
        self.features.clone()
    }
}

/// Returns the extension of the members with labels, if the first of them holds a number. `label_role.rs` handles labels of
/// other kinds.
fn label_member(
    indexes: &[&TarIndex],
    extensions: &BTreeMap<String, NpyColumn>,
    input: &RecordInput,
) -> Result<Option<String>> {
    let named = input.features.label_feature.as_deref();
    let mut usual = [LABEL_EXTENSION]
        .into_iter()
        .chain(LABEL_NAMES.iter().copied());
    let found = match named {
        Some(name) => extensions.contains_key(name).then_some(name),
        None => usual.find(|name| extensions.contains_key(*name)),
    };
    let Some(extension) = found else {
        return Ok(None);
    };
    for index in indexes {
        if let Some(bytes) = index.first_member(extension)? {
            let text = std::str::from_utf8(&bytes).unwrap_or_default();
            let is_number = text.trim().parse::<i64>().is_ok();
            return Ok(is_number.then(|| extension.to_owned()));
        }
    }
    Ok(None)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn columns_get_extensions_that_webdataset_decodes() {
        let features = RecordFeatures::default();
        for (name, column_type, expected) in [
            ("image", "image", Placement::Image),
            ("label", "label", Placement::Label),
            ("caption", "text", Placement::Member("caption.txt".into())),
            ("txt", "text", Placement::Member("txt".into())),
            (
                "emb",
                "tensor[4,float32]",
                Placement::Member("emb.npy".into()),
            ),
            ("mask", "mask", Placement::Member("mask.png".into())),
            ("depth", "image", Placement::ImageMember("depth".into())),
            ("seg.png", "image", Placement::Member("seg.png".into())),
            ("json", "bytes", Placement::Member("json".into())),
            ("x.pkl", "bytes", Placement::Member("x.pkl.bin".into())),
            ("age", "int", Placement::Json),
            ("image/height", "int", Placement::Json),
            ("image/class/text", "bytes", Placement::Json),
            ("a..b", "bytes", Placement::Json),
            ("boxes", "boxes", Placement::Json),
        ] {
            let column = Column::new(name, column_type.parse().unwrap());
            assert_eq!(Placement::of(&column, &features), expected, "{name}");
        }
    }
}
