//! The features of a damaged dataset: those that its records have, and those that hold image, label and key.

use super::damaged::DamagedShard;
use super::source::SourceSplit;
use forebay_formats::records::ForeignRecords;
use forebay_shard::example::{FeatureKind, RecordFeatures, feature_kinds};
use forebay_shard::manifest::{FeatureEntry, Manifest};
use forebay_shard::{ExampleView, index::MAX_KEY_BYTES};
use std::collections::BTreeMap;

/// The option in a manifest's `pack` that names the feature that keys come from.
pub(super) const KEY_FEATURE: &str = "key_feature";
/// The bytes features that make a key where no index knows it: `image/class/synset`, a slash, and this one.
const FILENAME: &str = "image/filename";
const SYNSET: &str = "image/class/synset";

/// The first record of each shard of which it can be read.
pub(super) fn first_records<'a>(
    shards: impl Iterator<Item = &'a DamagedShard>,
) -> impl Iterator<Item = Vec<u8>> {
    shards.filter_map(DamagedShard::open).filter_map(|shard| {
        let mut record = Vec::new();
        let is_read = !shard.is_empty() && shard.read(0, &mut record).is_ok();
        is_read.then_some(record)
    })
}

/// Finds the features that hold image, label and key in a record, as far as the manifest does not name them. Returns a
/// note where they are not those that `pack` writes.
pub(super) fn find_features(manifest: &mut Manifest, record: &[u8]) -> Option<String> {
    let is_named = !manifest.fingerprint.is_empty();
    if is_named && manifest.record_features.is_standard() {
        return None;
    }
    let RecordFeatures { image, label, .. } = manifest.record_features.clone();
    let mut names = ForeignRecords::default();
    names.image_feature = is_named.then_some(image);
    names.label_feature = is_named.then_some(label);
    let schema = names.decide(Some(record)).ok()?;
    if schema.features.is_standard() {
        return None;
    }
    let RecordFeatures { image, label, .. } = &schema.features;
    let key = &schema.key;
    let note = format!(
        "images are taken from feature {image}, labels from feature {label}, keys that no index tells from feature {key}"
    );
    manifest
        .pack
        .insert(KEY_FEATURE.to_owned(), schema.key.into());
    manifest.record_features = schema.features;
    Some(note)
}

/// The features of the first records that can be read.
pub(super) fn features(splits: &[SourceSplit]) -> Vec<FeatureEntry> {
    let mut features: BTreeMap<String, (FeatureKind, bool)> = BTreeMap::new();
    for record in first_records(splits.iter().flat_map(|split| &split.damaged)) {
        for (name, (kind, is_one)) in feature_kinds(&record) {
            features.entry(name).or_insert((kind, is_one)).1 &= is_one;
        }
    }
    let entry = |(name, (kind, is_one))| FeatureEntry {
        name,
        kind,
        shape: if is_one { Vec::new() } else { vec![None] },
    };
    features.into_iter().map(entry).collect()
}

/// The key of a record of which no index tells it: what the feature says that keys come from or, as `pack` makes them,
/// class and file.
pub(super) fn recover_key(example: &ExampleView<'_>, feature: Option<&str>, key: &mut Vec<u8>) {
    let bytes = |name: &str| example.bytes(name).ok().flatten();
    match feature {
        Some(name) => key.extend_from_slice(bytes(name).unwrap_or_default()),
        None => {
            let Some(file) = bytes(FILENAME) else { return };
            if let Some(class) = bytes(SYNSET).filter(|class| !class.is_empty()) {
                key.extend_from_slice(class);
                key.push(b'/');
            }
            key.extend_from_slice(file);
        }
    }
    if key.len() > MAX_KEY_BYTES {
        key.clear();
    }
}
