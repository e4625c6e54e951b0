//! A damaged dataset as a source: its intact records, and what is known about it without an intact manifest.
//!
//! [`open`] finds the shards (`shard`) and their features (`features`). A conversion then takes the intact records of each
//! shard (`salvage`).

mod features;
mod salvage;
mod shard;

pub(super) use shard::DamagedShard;

use super::source::{Source, SourceSplit};
use crate::error::{Error, Result};
use crate::options::DatasetFormat;
use features::{features, find_features, first_records};
use forebay_cache::{ReadOptions, read_storage};
use forebay_formats::records::{RecordFormat, SourceFacts};
use forebay_shard::manifest::{EpochOrder, FILE_NAME, Manifest, block_records};
use forebay_shard::{Codec, ShardFormat, Storage};
use forebay_store::Location;
use shard::Entry;
use std::collections::BTreeMap;
use std::io::ErrorKind;
use std::path::Path;

/// An open damaged dataset.
pub(super) struct Damaged {
    pub(super) source: Source,
    pub(super) format: DatasetFormat,
    /// Descriptions of what is lost of the manifest.
    pub(super) notes: Vec<String>,
}

/// Known facts about a dataset.
struct Known {
    manifest: Manifest,
    splits: BTreeMap<String, Vec<Entry>>,
    is_whole: bool,
    notes: Vec<String>,
}

/// Opens a dataset that may be damaged anywhere. `label_base` is used if no manifest contains it.
pub(super) fn open(location: &Location, read: &ReadOptions, label_base: i64) -> Result<Damaged> {
    let (root, storage) = read_storage(location, read)?;
    let known = know(&root, &*storage, label_base)?;
    let Known {
        mut manifest,
        splits: entries,
        is_whole,
        mut notes,
    } = known;
    let mut hasher = blake3::Hasher::new();
    let (mut opened, mut order) = (Vec::new(), EpochOrder::default());
    for (name, entries) in entries {
        let mut shards = Vec::new();
        for entry in entries {
            let shard = DamagedShard::find(&root, &storage, manifest.shard_format, entry)?;
            shard.identify(&mut hasher);
            shards.push(shard);
        }
        let records = shards.iter().map(|shard| shard.records.unwrap_or(0)).sum();
        let bytes = shards.iter().map(|shard| shard.bytes).sum();
        let block = match manifest.block_records(&name) {
            Some(block) => block,
            None if records > 0 => block_records(records, bytes),
            None => block_of_open_shards(&shards)?,
        };
        order.block_records.insert(name.clone(), block);
        opened.push((name, shards));
    }
    if !is_whole {
        let shards = opened.iter().flat_map(|(_, shards)| shards);
        if let Some(record) = first_records(shards).next() {
            notes.extend(find_features(&mut manifest, &record));
        }
    }
    let splits = opened
        .into_iter()
        .map(|(name, shards)| SourceSplit::damaged(name, shards));
    let splits: Vec<SourceSplit> = splits.collect();
    let format = match manifest.shard_format {
        ShardFormat::TfRecord => DatasetFormat::TfRecord,
        ShardFormat::Indexed => indexed_format(&manifest, &splits),
        ShardFormat::Mapped => {
            let what = "its records are in files of another tool, which are not repaired here: bring those back, or index what is left of them";
            return Err(Error::source(root, what));
        }
    };
    let features = match is_whole {
        true => manifest.features.clone(),
        false => features(&splits),
    };
    let fingerprint = match manifest.fingerprint.as_str() {
        "" => "unknown".to_owned(),
        known => known.to_owned(),
    };
    let identity = [
        ("repaired_from", fingerprint),
        ("source_files", hasher.finalize().to_hex()[..32].to_owned()),
    ];
    let facts = SourceFacts {
        label_base: manifest.label_base,
        classes: manifest.classes,
        features,
        record_features: manifest.record_features,
        schema: manifest.columns,
        pack: manifest.pack,
        identity: identity
            .map(|(name, value)| (name.to_owned(), value))
            .into(),
        order,
        is_own: true,
        ..SourceFacts::default()
    };
    Ok(Damaged {
        source: Source {
            format: RecordFormat::DATASET.name(),
            splits,
            facts,
        },
        format,
        notes,
    })
}

/// Returns the block size that loaders would compute from the readable shards.
fn block_of_open_shards(shards: &[DamagedShard]) -> Result<u64> {
    let (mut records, mut bytes) = (0, 0);
    for shard in shards.iter().filter_map(DamagedShard::open) {
        let range = shard.byte_range(0..shard.len())?;
        records += shard.len();
        bytes += range.end - range.start;
    }
    Ok(block_records(records, bytes))
}

/// Reads the manifest, or salvages it, or derives the shards from the names of the files.
fn know(root: &Path, storage: &dyn Storage, label_base: i64) -> Result<Known> {
    let problem = match Manifest::load_in(root, storage) {
        Ok(manifest) => {
            return Ok(Known {
                splits: entries(&manifest),
                manifest,
                is_whole: true,
                notes: Vec::new(),
            });
        }
        Err(forebay_shard::Error::Io { source, .. }) if source.kind() == ErrorKind::NotFound => {
            format!("{FILE_NAME} is missing")
        }
        Err(
            error @ (forebay_shard::Error::Manifest { .. } | forebay_shard::Error::Mismatch { .. }),
        ) => error.to_string(),
        Err(error) => return Err(error.into()),
    };
    if let Some(manifest) = Manifest::salvage_in(root, storage)? {
        let lost = "its shards and class names are right by its fingerprint; texts of classes, BLAKE3 hashes and the options of the pack are not recovered";
        return Ok(Known {
            splits: entries(&manifest),
            manifest,
            is_whole: false,
            notes: vec![problem, lost.to_owned()],
        });
    }
    let (format, splits) = by_names(root, storage)?;
    let mut manifest = Manifest::new(format, label_base, Vec::new());
    manifest.fingerprint.clear();
    let notes = vec![
        problem,
        "the shards are taken by their names: how many records they had, names and texts of classes, and the options of the pack are not recovered".to_owned(),
        format!("the label of the first class is taken to be {label_base}"),
    ];
    Ok(Known {
        manifest,
        splits,
        is_whole: false,
        notes,
    })
}

fn entries(manifest: &Manifest) -> BTreeMap<String, Vec<Entry>> {
    let splits = manifest.splits.iter().map(|split| {
        let shards = split.shards.iter().map(|shard| Entry {
            name: shard.name.clone(),
            records: Some(shard.records),
            bytes: shard.bytes,
            crc32c: Some(shard.crc32c),
        });
        (split.name.clone(), shards.collect())
    });
    splits.collect()
}

/// Finds the shards in a directory by name: `SPLIT-NNNNN-of-NNNNN`, followed by `.fbs` for indexed ones.
fn by_names(
    root: &Path,
    storage: &dyn Storage,
) -> Result<(ShardFormat, BTreeMap<String, Vec<Entry>>)> {
    let listed = storage.list(root);
    let listed = listed.map_err(|error| Error::io(root, "list", error))?;
    let mut sets: BTreeMap<(String, u32, bool), Vec<u32>> = BTreeMap::new();
    for name in listed.iter().filter_map(|name| name.to_str()) {
        if let Some((split, number, count)) = take_apart(name) {
            let set = (split.to_owned(), count, name.ends_with(".fbs"));
            sets.entry(set).or_default().push(number);
        }
    }
    let mut splits: BTreeMap<String, Vec<Entry>> = BTreeMap::new();
    let mut formats = Vec::new();
    for ((split, count, is_indexed), numbers) in sets {
        let ending = if is_indexed { ".fbs" } else { "" };
        if numbers.iter().any(|number| *number >= count) || splits.contains_key(&split) {
            let what = format!(
                "without a manifest it is not clear which files the split {split:?} is made of: move those away that are of another dataset"
            );
            return Err(Error::source(root, what));
        }
        let entry = |number| Entry {
            name: format!("{split}-{number:05}-of-{count:05}{ending}"),
            records: None,
            bytes: 0,
            crc32c: None,
        };
        let entries = (0..count).map(entry).collect();
        splits.insert(split, entries);
        formats.push(if is_indexed {
            ShardFormat::Indexed
        } else {
            ShardFormat::TfRecord
        });
    }
    formats.dedup();
    match formats[..] {
        [format] => Ok((format, splits)),
        [] => Err(Error::source(
            root,
            "it has neither a manifest that can be read nor files named as shards are: nothing can be repaired",
        )),
        _ => Err(Error::source(
            root,
            "without a manifest it is not clear whether its TFRecord or its indexed shards are the dataset: move the others away",
        )),
    }
}

/// Parses split, number and count from the name of a shard.
fn take_apart(name: &str) -> Option<(&str, u32, u32)> {
    if !crate::publish::destination::is_shard_name(name) {
        return None;
    }
    let stem = name.strip_suffix(".fbs").unwrap_or(name);
    let (rest, count) = stem.rsplit_once("-of-")?;
    let (split, number) = rest.rsplit_once('-')?;
    Some((split, number.parse().ok()?, count.parse().ok()?))
}

/// Returns the format with the codec of indexed shards, from the manifest or else from the header of a shard.
fn indexed_format(manifest: &Manifest, splits: &[SourceSplit]) -> DatasetFormat {
    if let Some(codec) = manifest.pack.get("codec").and_then(|codec| codec.as_str()) {
        return DatasetFormat::Indexed(codec.parse().unwrap_or_default());
    }
    let mut shards = splits.iter().flat_map(|split| &split.damaged);
    let codec = shards.find_map(|shard| shard.codec().filter(|&codec| codec != Codec::NONE));
    DatasetFormat::Indexed(codec.unwrap_or_default().into())
}
