//! TFRecord files of other tools, plain or compressed.

use super::places::{by_split, file_at, files_at};
use super::shards::{LabelKeySource, order_of, split};
use super::{
    ForeignSchema, Format, FormatInfo, OnBadRecord, RecordInput, RecordSource, SourceFacts,
    by_extension,
};
use crate::archive::{Archive, hash_text, read_head};
use crate::error::{Error, Result};
use forebay_cache::read_storage;
use forebay_shard::example::{FeatureKind, feature_kinds};
use forebay_shard::manifest::FeatureEntry;
use forebay_shard::schema::Schema;
use forebay_shard::tfrecord::ExpandedFiles;
use forebay_shard::{Shard, Storage};
use forebay_store::Location;
use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::sync::Arc;

pub(super) struct TfRecord;

/// Number of records at the beginning that are searched for an image and a label.
const FIRST_RECORDS: u64 = 16;

impl Format for TfRecord {
    fn info(&self) -> &'static FormatInfo {
        &FormatInfo {
            name: "tfrecord",
            title: "TFRecords",
            extensions: &[".tfrecord", ".tfrecords"],
            is_read_in_place: true,
            advice: "`forebay index` makes a dataset of TFRecords, `forebay convert` makes other shards of them",
            ..FormatInfo::NONE
        }
    }

    /// TensorFlow's tools number their files and give them no extension: `train-00000-of-01024`.
    fn detect<'n>(&self, names: &[&'n str]) -> Option<&'n str> {
        let is_number = |text: &str| !text.is_empty() && text.bytes().all(|b| b.is_ascii_digit());
        let is_numbered = |name: &str| {
            name.rsplit_once("-of-").is_some_and(|(before, of)| {
                is_number(of) && is_number(before.rsplit('-').next().unwrap_or_default())
            })
        };
        let mut all = names.iter().copied();
        by_extension(self.info(), names).or_else(|| all.find(|name| is_numbered(name)))
    }

    fn open(&self, input: &RecordInput) -> Result<RecordSource> {
        let Found {
            root,
            storage,
            files,
            is_remote,
        } = find(input)?;
        let root = root.as_path();
        let mut features: BTreeMap<String, (FeatureKind, bool)> = BTreeMap::new();
        let mut hasher = blake3::Hasher::new();
        let mut schema = None;
        let mut splits = Vec::new();
        for (name, files) in &files {
            let mut shards = Vec::new();
            for (path, archive) in files {
                let storage = Arc::clone(&storage);
                let shard = Shard::options().storage(storage).open(path)?;
                if let Some(record) = record_of(&shard, 0)? {
                    if schema.is_none() {
                        schema = Some(decide_by_first(input, &shard, &record)?);
                    }
                    // Records that are not Examples have no features. They are converted anyway.
                    for (name, (kind, is_one)) in feature_kinds(&record) {
                        features.entry(name).or_insert((kind, is_one)).1 &= is_one;
                    }
                }
                let modified = archive.open()?.1;
                identify(&mut hasher, name, path, &shard, modified);
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
            .map(|(name, (kind, is_one))| FeatureEntry::new(name, kind, !is_one));
        let order = order_of(&splits)?;
        let labels = LabelKeySource::Foreign(schema.clone());
        let identity = identity(&schema);
        Ok(RecordSource {
            splits: splits
                .into_iter()
                .map(|shards| split(shards, &labels, is_remote))
                .collect(),
            facts: SourceFacts {
                features: features.collect(),
                record_features: schema.features.clone(),
                foreign: Some((schema.clone(), directory(root, is_remote))),
                order,
                ..SourceFacts::new(schema.label_base, Schema::default(), &hasher, identity)
            },
        })
    }
}

/// The files of a source, by split.
struct Found {
    root: PathBuf,
    storage: Arc<dyn Storage>,
    files: BTreeMap<String, Vec<(PathBuf, Archive)>>,
    is_remote: bool,
}

/// Returns the files: local files by the caller's splits, or all files at a location in a store.
fn find(input: &RecordInput) -> Result<Found> {
    if let Ok(root) = input.location.local_path() {
        let archive = |path: &PathBuf| (path.clone(), Archive::Local(path.clone()));
        let files = input.splits.iter().map(|(split, paths)| {
            let files = paths.iter().map(archive).collect();
            (split.clone(), files)
        });
        return Ok(Found {
            root: root.to_path_buf(),
            // Compressed files can only be read sequentially from the beginning, so they are decompressed to local files.
            storage: Arc::new(ExpandedFiles::default()),
            files: files.collect(),
            is_remote: false,
        });
    }
    let is_named = |name: &str| {
        let is_index = name.ends_with(".idx") || name.ends_with(".fbi");
        !is_index && TfRecord.detect(&[name]).is_some()
    };
    let location = input.location.to_string();
    let place = location.trim_end_matches('/');
    let (mut dir, mut found) = (place, Vec::new());
    if input.files.is_empty() {
        found = files_at(&input.location, &input.read, &is_named)?;
        if input.location.key().is_some_and(is_named) {
            dir = place.rsplit_once('/').map_or(place, |(dir, _)| dir);
        }
    }
    for file in &input.files {
        let text = file.to_string();
        let name = text.strip_prefix(place).unwrap_or(&text);
        found.push((
            name.trim_start_matches('/').to_owned(),
            file_at(file, &input.read)?.1,
        ));
    }
    if found.is_empty() {
        return Err(Error::source(place, "there are no TFRecord files here"));
    }
    let (root, storage) = read_storage(&Location::parse(dir)?, &input.read)?;
    let mut files = BTreeMap::new();
    for (split, found) in by_split(found, input.split.as_deref()) {
        let mut paths = Vec::new();
        for (name, archive) in found {
            let path = root.join(name);
            refuse_compressed(&path, &archive)?;
            paths.push((path, archive));
        }
        files.insert(split, paths);
    }
    Ok(Found {
        root,
        storage,
        files,
        is_remote: true,
    })
}

/// Refuses a compressed file in a store: compressed files are decompressed to local files and have to be copied first.
fn refuse_compressed(path: &Path, archive: &Archive) -> Result<()> {
    let head = read_head(&archive.open()?.0, path)?;
    let what = "it is compressed as a whole (gzip), which is read from local files only: copy it, and convert the copy";
    match head.starts_with(&[0x1f, 0x8b]) {
        true => Err(Error::source(path, what)),
        false => Ok(()),
    }
}

/// Returns the directory of the files.
fn directory(root: &Path, is_remote: bool) -> PathBuf {
    match is_remote || root.is_dir() {
        true => root.to_path_buf(),
        false => root.parent().unwrap_or(Path::new("")).to_path_buf(),
    }
}

fn identity(schema: &ForeignSchema) -> [(&'static str, String); 4] {
    [
        ("image_feature", schema.features.image.clone()),
        ("label_feature", schema.features.label.clone()),
        ("key_feature", schema.key.clone()),
        ("label_base", schema.label_base.to_string()),
    ]
}

/// Hashes the values that identify a file of a split.
fn identify(hasher: &mut blake3::Hasher, split: &str, path: &Path, shard: &Shard, modified: i128) {
    for text in [path.as_os_str().as_encoded_bytes(), split.as_bytes()] {
        hash_text(text, hasher);
    }
    hasher.update(&shard.file_len().to_le_bytes());
    hasher.update(&shard.len().to_le_bytes());
    hasher.update(&modified.to_le_bytes());
}

/// Returns a record of a file; `None` if the file has fewer records.
fn record_of(shard: &Shard, number: u64) -> Result<Option<Vec<u8>>> {
    if number >= shard.len() {
        return Ok(None);
    }
    let mut record = Vec::new();
    shard.read(number, &mut record)?;
    Ok(Some(record))
}

/// Chooses features from the first records of a file. If the first record has no image, later ones are tried.
fn decide_by_first(input: &RecordInput, shard: &Shard, first: &[u8]) -> Result<ForeignSchema> {
    let decided = decide(input, shard.path(), Some(first));
    if decided.is_ok() || input.on_bad_record == OnBadRecord::Fail {
        return decided;
    }
    for number in 1..FIRST_RECORDS {
        let Some(record) = record_of(shard, number)? else {
            break;
        };
        if let Ok(schema) = decide(input, shard.path(), Some(&record)) {
            return Ok(schema);
        }
    }
    decided
}

/// Chooses features from one record.
fn decide(input: &RecordInput, path: &Path, record: Option<&[u8]>) -> Result<ForeignSchema> {
    let decided = input.features.decide(record);
    decided.map_err(|what| Error::record(path, 0, what))
}
