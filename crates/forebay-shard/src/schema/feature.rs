//! The features of a record, as listed in a manifest.

use serde::{Deserialize, Serialize};

use crate::example::FeatureKind;

/// One feature of the records.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct FeatureEntry {
    /// Name: "image/encoded".
    pub name: String,
    /// "bytes", "float" or "int64".
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
