//! Finds the features of the records of a damaged dataset, and those that hold image, label and key.

use super::shard::DamagedShard;
use crate::convert::source::SourceSplit;
use forebay_formats::records::ForeignRecords;
use forebay_shard::example::{FeatureKind, RecordFeatures, feature_kinds};
use forebay_shard::manifest::{FeatureEntry, Manifest};
use forebay_shard::{ExampleView, index::MAX_KEY_BYTES};
use std::collections::BTreeMap;

/// Name of the entry of `pack` in a manifest that names the feature with the keys.
pub(super) const KEY_FEATURE: &str = "key_feature";
/// Features from which a key is composed if no index contains it: `image/class/synset`, a slash, and `image/filename`.
const FILENAME: &str = "image/filename";
const SYNSET: &str = "image/class/synset";

/// Returns the first record of each shard, if it can be read.
pub(super) fn first_records<'a>(
    shards: impl Iterator<Item = &'a DamagedShard>,
) -> impl Iterator<Item = Vec<u8>> {
    shards.filter_map(DamagedShard::open).filter_map(|shard| {
        let mut record = Vec::new();
        let is_read = !shard.is_empty() && shard.read(0, &mut record).is_ok();
        is_read.then_some(record)
    })
}

/// Finds the features that hold image, label and key by a record, unless the manifest names them. Returns a
/// note if they differ from those that `pack` writes.
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

/// Returns the features that occur in the first readable record of each shard.
pub(super) fn features(splits: &[SourceSplit]) -> Vec<FeatureEntry> {
    let mut features: BTreeMap<String, (FeatureKind, bool)> = BTreeMap::new();
    for record in first_records(splits.iter().flat_map(|split| &split.damaged)) {
        for (name, (kind, is_one)) in feature_kinds(&record) {
            features.entry(name).or_insert((kind, is_one)).1 &= is_one;
        }
    }
    let entry = |(name, (kind, is_one)): (_, (_, bool))| FeatureEntry::new(name, kind, !is_one);
    features.into_iter().map(entry).collect()
}

/// Computes the key of a record whose index is lost: from the feature that holds keys, or composed of class and file
/// name, as `pack` does.
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
