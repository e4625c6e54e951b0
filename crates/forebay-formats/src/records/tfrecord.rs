//! TFRecord files of other tools, plain or compressed.

use super::foreign_records::refused;
use super::shards::{Names, order_of, split};
use super::{ForeignSchema, Format, RecordInput, RecordSource, SourceFacts, by_extension};
use crate::error::{Error, Result};
use forebay_shard::example::{FeatureKind, feature_kinds};
use forebay_shard::manifest::FeatureEntry;
use forebay_shard::schema::Schema;
use forebay_shard::tfrecord::ExpandedFiles;
use forebay_shard::{OpenOptions, Shard};
use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::UNIX_EPOCH;

pub(super) struct TfRecord;

impl Format for TfRecord {
    fn name(&self) -> &'static str {
        "tfrecord"
    }

    fn title(&self) -> &'static str {
        "TFRecords"
    }

    fn extensions(&self) -> &'static [&'static str] {
        &[".tfrecord"]
    }

    /// TensorFlow's own tools number their files and give them no extension: `train-00000-of-01024`.
    fn detect<'n>(&self, names: &[&'n str]) -> Option<&'n str> {
        let is_number = |text: &str| !text.is_empty() && text.bytes().all(|b| b.is_ascii_digit());
        let is_numbered = |name: &str| {
            name.rsplit_once("-of-").is_some_and(|(before, of)| {
                is_number(of) && is_number(before.rsplit('-').next().unwrap_or_default())
            })
        };
        let mut all = names.iter().copied();
        by_extension(self, names).or_else(|| all.find(|name| is_numbered(name)))
    }

    fn advice(&self) -> &'static str {
        "`forebay index` makes a dataset of TFRecords, `forebay convert` makes other shards of them"
    }

    fn open(&self, input: &RecordInput) -> Result<RecordSource> {
        let root = input.location.local_path()?;
        let mut features: BTreeMap<String, (FeatureKind, bool)> = BTreeMap::new();
        let mut hasher = blake3::Hasher::new();
        let mut schema = None;
        let mut splits = Vec::new();
        // Compressed files are read through from their beginnings, in order.
        let storage = Arc::new(ExpandedFiles::default());
        for (name, paths) in &input.splits {
            let mut shards = Vec::new();
            for path in paths {
                let storage = Arc::<ExpandedFiles>::clone(&storage);
                let shard = Shard::open_path_in(path, &OpenOptions::default(), storage)?;
                if let Some(record) = first_record(&shard)? {
                    if schema.is_none() {
                        schema = Some(decide(input, shard.path(), Some(&record))?);
                    }
                    // Records that are no Examples have no features: they are converted all the same.
                    for (name, (kind, is_one)) in feature_kinds(&record) {
                        features.entry(name).or_insert((kind, is_one)).1 &= is_one;
                    }
                }
                identify(&mut hasher, name, path, &shard)?;
                shards.push(shard);
            }
            splits.push((name.clone(), shards));
        }
        let schema = match schema {
            Some(schema) => schema,
            None => decide(input, root, None)?,
        };
        let features = features
            .into_iter()
            .map(|(name, (kind, is_one))| FeatureEntry {
                name,
                kind,
                shape: if is_one { Vec::new() } else { vec![None] },
            });
        let order = order_of(&splits)?;
        let names = Names::Foreign(schema.clone());
        Ok(RecordSource {
            splits: splits
                .into_iter()
                .map(|shards| split(shards, &names))
                .collect(),
            facts: SourceFacts {
                label_base: schema.label_base,
                classes: Vec::new(),
                features: features.collect(),
                record_features: schema.features.clone(),
                identity: identity(&schema, &hasher),
                schema: Schema::default(),
                foreign: Some((schema, directory(root))),
                pack: BTreeMap::from([("tool".to_owned(), "convert".into())]),
                order,
                findings: Vec::new(),
            },
        })
    }
}

/// The directory that the files are in.
fn directory(root: &Path) -> PathBuf {
    match root.is_dir() {
        true => root.to_path_buf(),
        false => root.parent().unwrap_or(Path::new("")).to_path_buf(),
    }
}

fn identity(schema: &ForeignSchema, files: &blake3::Hasher) -> BTreeMap<String, String> {
    let identity = [
        ("source_files", files.finalize().to_hex()[..32].to_owned()),
        ("image_feature", schema.features.image.clone()),
        ("label_feature", schema.features.label.clone()),
        (
            "first_of_several",
            schema.features.first_of_several.to_string(),
        ),
        ("key_feature", schema.key.clone()),
        ("label_base", schema.label_base.to_string()),
    ];
    identity
        .map(|(name, value)| (name.to_owned(), value))
        .into()
}

/// Hashes what identifies a file of a split.
fn identify(hasher: &mut blake3::Hasher, split: &str, path: &Path, shard: &Shard) -> Result<()> {
    let modified = std::fs::metadata(path).and_then(|meta| meta.modified());
    let modified = modified.map_err(|error| Error::io(path, "stat", error))?;
    let nanos = modified
        .duration_since(UNIX_EPOCH)
        .map_or(0, |d| d.as_nanos());
    for text in [path.as_os_str().as_encoded_bytes(), split.as_bytes()] {
        hasher
            .update(&(text.len() as u64).to_le_bytes())
            .update(text);
    }
    hasher.update(&shard.file_len().to_le_bytes());
    hasher.update(&shard.len().to_le_bytes());
    hasher.update(&nanos.to_le_bytes());
    Ok(())
}

/// The first record of a file; none if it is empty.
fn first_record(shard: &Shard) -> Result<Option<Vec<u8>>> {
    if shard.is_empty() {
        return Ok(None);
    }
    let mut record = Vec::new();
    shard.read(0, &mut record)?;
    Ok(Some(record))
}

/// The features that a record has.
fn decide(input: &RecordInput, path: &Path, record: Option<&[u8]>) -> Result<ForeignSchema> {
    let decided = input.features.decide(record);
    decided.map_err(|what| refused(path.to_path_buf(), 0, what))
}
