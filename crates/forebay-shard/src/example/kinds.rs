//! The names and kinds of a record's features, without their values.

use super::{ExampleView, FeatureKind};
use std::collections::BTreeMap;

/// Returns the features of a record by name: the kind of each, and whether it has exactly one
/// value. Features without a kind are left out; a record that is not an Example has none.
#[must_use]
pub fn feature_kinds(record: &[u8]) -> BTreeMap<String, (FeatureKind, bool)> {
    let mut features = BTreeMap::new();
    let Ok(example) = ExampleView::parse(record) else {
        return features;
    };
    for feature in example.iter() {
        let Ok(kind) = feature.kind() else { continue };
        let values = match kind {
            FeatureKind::Bytes => feature.bytes_list().map(|list| list.len()),
            FeatureKind::Float => feature.floats().map(|list| list.len()),
            FeatureKind::Int64 => feature.int64s().map(|list| list.len()),
            FeatureKind::Unset => continue,
        };
        features.insert(feature.name().to_owned(), (kind, values == Ok(1)));
    }
    features
}
