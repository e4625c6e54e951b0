//! The features of a record, as listed in a manifest.

use serde::{Deserialize, Deserializer, Serialize, Serializer, de};

use crate::example::FeatureKind;

/// One feature of the records.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct FeatureEntry {
    /// Name: "image/encoded".
    pub name: String,
    /// "bytes", "float" or "int64".
    #[serde(with = "kind")]
    pub kind: FeatureKind,
    /// Dimensions: empty for one value, `[null]` for a list of any length.
    pub shape: Vec<Option<u64>>,
}

impl FeatureEntry {
    /// Returns a feature with one value for each record, or with a list of any length.
    pub fn new(name: impl Into<String>, kind: FeatureKind, is_list: bool) -> Self {
        let name = name.into();
        let shape = if is_list { vec![None] } else { Vec::new() };
        Self { name, kind, shape }
    }
}

mod kind {
    use super::{Deserialize, Deserializer, FeatureKind, Serializer, de};

    pub(super) fn serialize<S: Serializer>(value: &FeatureKind, to: S) -> Result<S::Ok, S::Error> {
        to.collect_str(value)
    }

    pub(super) fn deserialize<'de, D: Deserializer<'de>>(from: D) -> Result<FeatureKind, D::Error> {
        let text = String::deserialize(from)?;
        let all = [FeatureKind::Bytes, FeatureKind::Float, FeatureKind::Int64];
        let known = all.into_iter().find(|value| value.to_string() == text);
        known.ok_or_else(|| de::Error::custom(format_args!("{text:?} is not known")))
    }
}
