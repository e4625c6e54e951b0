//! Types of option values.

use std::collections::BTreeMap;

use serde::de::{Deserializer, Error as _};
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};

/// The name of a shuffle; `true` is `"blocks"` and `false` is `"none"`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(from = "WrittenShuffle")]
pub struct ShuffleSpec(pub String);

#[derive(Deserialize)]
#[serde(untagged)]
enum WrittenShuffle {
    Whether(bool),
    Named(String),
}

impl From<bool> for ShuffleSpec {
    fn from(whether: bool) -> Self {
        ShuffleSpec(if whether { "blocks" } else { "none" }.to_owned())
    }
}

impl From<WrittenShuffle> for ShuffleSpec {
    fn from(written: WrittenShuffle) -> Self {
        match written {
            WrittenShuffle::Whether(whether) => whether.into(),
            WrittenShuffle::Named(name) => ShuffleSpec(name),
        }
    }
}

impl std::ops::Deref for ShuffleSpec {
    type Target = str;

    fn deref(&self) -> &str {
        &self.0
    }
}

/// A transform: its name, and parameters that the loader passes to the transform.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct TransformSpec {
    /// Name, as in Python.
    pub kind: String,
    /// Parameters by name.
    #[serde(flatten)]
    pub params: Map<String, Value>,
}

impl TransformSpec {
    /// Creates a transform with default parameters.
    #[must_use]
    pub fn new(kind: impl Into<String>) -> Self {
        TransformSpec {
            kind: kind.into(),
            params: Map::new(),
        }
    }
}

impl<'de> Deserialize<'de> for TransformSpec {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let table = match Value::deserialize(deserializer)? {
            Value::String(kind) => {
                return Ok(TransformSpec::new(kind));
            }
            Value::Object(table) => Some(table),
            _ => None,
        };
        let mut params = table.ok_or_else(|| D::Error::custom("expected a name or a table"))?;
        match params.remove("kind") {
            Some(Value::String(kind)) => Ok(TransformSpec { kind, params }),
            Some(_) => Err(D::Error::custom("kind: expected a name")),
            None => Err(D::Error::custom("missing field `kind`")),
        }
    }
}

/// One transform, or a list.
#[derive(Debug, Clone, PartialEq, Serialize)]
#[serde(untagged)]
pub enum Transforms {
    /// A transform on its own.
    One(TransformSpec),
    /// Several transforms, applied in order.
    List(Vec<TransformSpec>),
}

impl<'de> Deserialize<'de> for Transforms {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        match Value::deserialize(deserializer)? {
            Value::Array(list) => {
                let at = |(i, value)| {
                    TransformSpec::deserialize(value)
                        .map_err(|e| D::Error::custom(format!("number {} of the list: {e}", i + 1)))
                };
                let list: Result<Vec<_>, _> = list.into_iter().enumerate().map(at).collect();
                list.map(Transforms::List)
            }
            one => TransformSpec::deserialize(one)
                .map(Transforms::One)
                .map_err(D::Error::custom),
        }
    }
}

/// The numbers with which pixels are normalized: `(value - mean) / std`, for values from 0 to 1.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct NormalizeSpec {
    /// Means of red, green and blue.
    pub mean: [f32; 3],
    /// Standard deviations of red, green and blue.
    pub std: [f32; 3],
}

/// Handling of samples that cannot be read or decoded.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum OnError {
    /// The loader fails with the sample's error.
    #[default]
    Raise,
    /// The sample is replaced by the next good sample of the batch (the first one after the last): pixels, label
    /// and number; by zeros if the batch has none. Marked by [`FLAG_FAILED`](forebay_batch::FLAG_FAILED).
    Skip,
    /// The sample is replaced by zeros with the label -1. Marked by [`FLAG_FAILED`](forebay_batch::FLAG_FAILED).
    Zero,
}

/// The label that the first class of a dataset has in batches, and in the options that select records.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default, Serialize, Deserialize)]
#[serde(try_from = "Class", into = "Class")]
pub enum LabelBase {
    /// 0, as losses and metrics count classes.
    #[default]
    Zero,
    /// 1, as TensorFlow's ImageNet records count classes.
    One,
    /// Labels are those stored in the dataset, whatever the first one is.
    Stored,
}

impl LabelBase {
    /// Returns the label of the first class; `None` for stored labels.
    #[must_use]
    pub fn first(self) -> Option<i64> {
        match self {
            LabelBase::Zero => Some(0),
            LabelBase::One => Some(1),
            LabelBase::Stored => None,
        }
    }

    /// Returns the label of the first class, for a dataset in which it is stored as `stored`.
    #[must_use]
    pub fn or_stored(self, stored: i64) -> i64 {
        self.first().unwrap_or(stored)
    }
}

impl TryFrom<Class> for LabelBase {
    type Error = &'static str;

    fn try_from(class: Class) -> Result<Self, Self::Error> {
        match class {
            Class::Label(0) => Ok(LabelBase::Zero),
            Class::Label(1) => Ok(LabelBase::One),
            Class::Name(name) if name == "stored" => Ok(LabelBase::Stored),
            _ => Err("no base of labels"),
        }
    }
}

impl From<LabelBase> for Class {
    fn from(base: LabelBase) -> Self {
        match base.first() {
            Some(first) => Class::Label(first),
            None => Class::Name("stored".to_owned()),
        }
    }
}

/// A class, by label or by name.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(untagged)]
pub enum Class {
    /// The label of the class in batches.
    Label(i64),
    /// The name of the class in the manifest.
    Name(String),
}

/// Weights for draws with replacement.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(untagged)]
pub enum WeightsSpec {
    /// One weight for each record of the split.
    BySample(Vec<f32>),
    /// Weights of classes, by their label in batches.
    ByLabel(Vec<(i64, f64)>),
    /// Weights of classes, by name.
    ByClass(BTreeMap<String, f64>),
}

impl WeightsSpec {
    /// Returns the number of weights.
    #[must_use]
    pub fn len(&self) -> usize {
        match self {
            WeightsSpec::BySample(weights) => weights.len(),
            WeightsSpec::ByLabel(weights) => weights.len(),
            WeightsSpec::ByClass(weights) => weights.len(),
        }
    }

    /// Returns whether there are no weights.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }
}
