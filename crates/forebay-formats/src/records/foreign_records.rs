//! Chooses the features that hold image, label and key in the records of other tools.
//!
//! The features are named by options, or detected from the first record. The choice is printed and written to the manifest, so
//! that every reader of the dataset uses the same features.

use crate::class_order::ClassOrder;
use crate::error::Result;
use crate::option_names::{IMAGE_FEATURE, LABEL_BASE, LABEL_FEATURE};
use crate::sniff::check_image;
use forebay_shard::example::{FeatureKind, IMAGE_LABEL, RecordFeatures, feature_kinds};
use forebay_shard::manifest::ClassEntry;
use forebay_shard::{ExampleView, some_of};
use std::collections::BTreeSet;
use std::fmt::Write;
use std::path::{Path, PathBuf};

/// Names that tools use for features with images.
pub(super) const IMAGE_NAMES: &[&str] = &[
    "image/encoded",
    "image",
    "image_raw",
    "image_bytes",
    "image/data",
    "encoded_image",
    "jpeg",
    "jpg",
    "png",
    "img",
    "x",
];
/// Names that tools use for features with labels, in order of precedence.
pub(super) const LABEL_NAMES: &[&str] = &[
    IMAGE_LABEL,
    "label",
    "labels",
    "image/label",
    "class",
    "class_id",
    "cls",
    "category",
    "category_id",
    "target",
    "targets",
    "y",
];
pub(super) const KEY_NAMES: &[&str] = &[
    "image/filename",
    "file_name",
    "filename",
    "image/id",
    "id",
    "__key__",
];
/// Number of features that an error names.
const FEATURES_SHOWN: usize = 12;

/// The options for records of other tools.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct ForeignRecords {
    /// The bytes feature that holds the encoded image. Default: detected.
    pub image_feature: Option<String>,
    /// The feature that holds the label: integers, whole floats, one-hot lists or class names. Default: detected.
    pub label_feature: Option<String>,
    /// Treats records as unlabelled, even if features have the names of labels.
    pub without_labels: bool,
    /// Path of a list with the class names in the order of their labels.
    pub classes: Option<PathBuf>,
    /// The order in which class names are numbered if no list is given.
    pub class_order: ClassOrder,
    /// The bytes feature that holds the key. Default: detected.
    pub key_feature: Option<String>,
    /// The label of the first class, 0 or 1. Default: 1 for labels of TensorFlow's ImageNet tool, otherwise 0.
    pub label_base: Option<i64>,
    /// Accepts records without an image. Loaders cannot read these.
    pub without_images: bool,
}

/// The chosen features of the records.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ForeignSchema {
    /// The features that hold image and label.
    pub features: RecordFeatures,
    /// The feature that holds the key.
    pub key: String,
    /// The label of the first class.
    pub label_base: i64,
    /// Whether records without an image are accepted.
    pub without_images: bool,
    /// A feature that was named as the label, or has the name of one, but does not hold exactly one integer.
    pub other_label: Option<String>,
}

impl ForeignSchema {
    /// Describes the chosen features.
    pub fn in_words(&self) -> String {
        let RecordFeatures { image, label, .. } = &self.features;
        let base = self.label_base;
        format!(
            "image from feature {image}, label from feature {label}, the first class has label {base} ({IMAGE_FEATURE}, {LABEL_FEATURE} and {LABEL_BASE} choose others)"
        )
    }

    /// Checks that a loader can read a record.
    ///
    /// # Errors
    /// The problem, and the features that the record has.
    pub fn check(&self, record: &[u8]) -> std::result::Result<(), String> {
        let label = match self.features.image_record(record) {
            Ok(found) => {
                if !self.without_images {
                    check_image(found.image)?;
                }
                found.label
            }
            Err(_) if self.without_images => {
                let example = ExampleView::parse(record).ok();
                example.and_then(|example| self.features.label(example).ok().flatten())
            }
            Err(error) => return Err(format!("{error}; {}", describe(record))),
        };
        match label {
            Some(label) if label != -1 && label < self.label_base => Err(format!(
                "its label is {label}, and the first class has label {}: {LABEL_BASE} 0 says that labels begin with 0",
                self.label_base
            )),
            _ => Ok(()),
        }
    }
}

impl ForeignRecords {
    /// Chooses the features by looking at a record, if there is one.
    ///
    /// # Errors
    /// Why the choice is not clear, and the features that the record has.
    pub fn decide(&self, record: Option<&[u8]>) -> std::result::Result<ForeignSchema, String> {
        let kinds = record.map(feature_kinds).unwrap_or_default();
        let of_kind = |name: &str, kind| kinds.get(name).is_some_and(|(found, _)| *found == kind);
        let standard = RecordFeatures::standard();
        let image = match (&self.image_feature, record) {
            (Some(name), _) => name.clone(),
            (None, Some(record)) if !self.without_images => image_feature(record)?,
            (None, Some(record)) => {
                image_feature(record).unwrap_or_else(|_| standard.image.clone())
            }
            (None, None) => standard.image.clone(),
        };
        let known = |names: &[&str], kind| {
            let found = names.iter().find(|name| of_kind(name, kind));
            found.map(|name| (*name).to_owned())
        };
        // `label_role.rs` handles labels of other kinds.
        let is_integer = |name: &str| {
            let found = kinds.get(name);
            found.is_some_and(|(kind, is_one)| *kind == FeatureKind::Int64 && *is_one)
        };
        let mut other_label = None;
        let label = match (&self.label_feature, record) {
            (_, _) if self.without_labels => None,
            (Some(name), Some(record)) if !kinds.contains_key(name) => {
                return Err(format!(
                    "it has no feature {name} for {LABEL_FEATURE}; {}",
                    describe(record)
                ));
            }
            (Some(name), Some(_)) if is_integer(name) => Some(name.clone()),
            (Some(name), Some(_)) => {
                other_label = Some(name.clone());
                None
            }
            (Some(name), None) => Some(name.clone()),
            (None, _) => {
                let mut usual = LABEL_NAMES.iter();
                let found = usual.find(|name| kinds.contains_key(**name));
                match found {
                    Some(name) if is_integer(name) => Some((*name).to_owned()),
                    Some(name) => {
                        other_label = Some((*name).to_owned());
                        None
                    }
                    None => None,
                }
            }
        };
        let is_taken = kinds.contains_key(&standard.label);
        let label = label.unwrap_or_else(|| match is_taken {
            true => String::new(),
            false => standard.label.clone(),
        });
        let key = self.key_feature.clone();
        let key = key.or_else(|| known(KEY_NAMES, FeatureKind::Bytes));
        let base = i64::from(label == IMAGE_LABEL);
        Ok(ForeignSchema {
            features: RecordFeatures {
                image,
                label,
                first_of_several: false,
            },
            key: key.unwrap_or_else(|| KEY_NAMES[0].to_owned()),
            label_base: self.label_base.unwrap_or(base),
            without_images: self.without_images,
            other_label,
        })
    }
}

/// Returns the bytes feature that holds an image: a feature with a usual name, or the only feature that holds one.
fn image_feature(record: &[u8]) -> std::result::Result<String, String> {
    let nothing = || format!("it has no image; {}", describe(record));
    let example = ExampleView::parse(record).map_err(|_| nothing())?;
    let holds_image = |value: &&[u8]| forebay_image::sniff(value).is_some();
    let features = example.iter().filter(|feature| {
        let values = feature.bytes_list().unwrap_or_default();
        values.first().is_some_and(holds_image)
    });
    let found: BTreeSet<&str> = features.map(|feature| feature.name()).collect();
    let mut usual = IMAGE_NAMES.iter().filter(|name| found.contains(**name));
    match (usual.next(), usual.next(), found.len()) {
        (Some(name), None, _) => Ok((*name).to_owned()),
        (None, _, 1) => Ok(found.first().copied().unwrap_or_default().to_owned()),
        (None, _, 0) => Err(nothing()),
        _ => Err(format!(
            "several features hold an image, {}: {IMAGE_FEATURE} chooses one",
            some_of(found)
        )),
    }
}

/// Describes the features of a record in which no image was found.
fn describe(record: &[u8]) -> String {
    let Ok(example) = ExampleView::parse(record) else {
        return "it is no tensorflow.Example".into();
    };
    let mut text = String::new();
    for (number, feature) in example.iter().enumerate() {
        if number == FEATURES_SHOWN {
            text += ", ...";
            break;
        }
        let separator = if number == 0 { "" } else { ", " };
        let kind = feature
            .kind()
            .map_or("broken".into(), |kind| kind.to_string());
        let name = crate::finding::escape(feature.name().as_bytes());
        // Writing to a String cannot fail.
        let _ = write!(text, "{separator}{name} ({kind})");
    }
    match (example.has_feature_lists(), text.as_str()) {
        (true, _) => "it is a tensorflow.SequenceExample, which holds several images: write an Example for each".into(),
        (false, "") => "it is no tensorflow.Example, or one without features".into(),
        (false, names) => format!("its features are {names}"),
    }
}

/// Reads the class names from a list beside the files. Returns them with a message that names the list; or no names and the
/// reason why the list does not fit. `labels` are the smallest and the largest label; -1 (no label) does not count.
pub fn class_names(
    dir: &Path,
    schema: &ForeignSchema,
    labels: Option<(i64, i64)>,
) -> Result<Option<(Vec<ClassEntry>, String)>> {
    let Some((_, greatest)) = labels else {
        return Ok(None);
    };
    // TensorFlow Datasets writes this list for one feature, so it may have more classes than labels occur.
    let own = format!("{}.labels.txt", schema.features.label.replace('/', "-"));
    let names = [own.as_str(), "labels.txt", "classes.txt"];
    let found = names
        .iter()
        .map(|name| dir.join(name))
        .find(|path| path.is_file());
    let Some(path) = found else {
        return Ok(None);
    };
    let bytes = crate::class_list::read_list(&path)?;
    let text = String::from_utf8_lossy(&bytes);
    let lines: Vec<&str> = text
        .lines()
        .map(str::trim)
        .filter(|line| !line.is_empty())
        .collect();
    let (count, needed) = (lines.len() as i64, greatest - schema.label_base + 1);
    let fits = match path.ends_with(&own) {
        true => needed <= count,
        false => needed == count,
    };
    let distinct: BTreeSet<&&str> = lines.iter().collect();
    if !fits || distinct.len() != lines.len() {
        let what = format!(
            "{} has {count} different names of classes and labels need {needed}: it is not used",
            path.display()
        );
        return Ok(Some((Vec::new(), what)));
    }
    let entry = |name: &&str| ClassEntry {
        name: (*name).to_owned(),
        text: None,
    };
    let what = format!("names of classes are taken from {}", path.display());
    Ok(Some((lines.iter().map(entry).collect(), what)))
}
