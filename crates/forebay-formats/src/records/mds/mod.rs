//! MDS, the shards of MosaicML's Streaming (version 2): a directory for each split, with `index.json` and files of samples
//! whose columns have types.

mod encoding;
mod index;
mod read;
mod write;

use super::conversion::Conversion;
use super::places::file_at;
use super::{
    ForeignSchema, Format, RecordFile, RecordInput, RecordSink, RecordSource, RecordSplit,
    SinkOptions, SourceFacts,
};
use crate::archive::Archive;
use crate::error::{Error, Result};
use encoding::Encoding;
use forebay_cache::read_storage;
use forebay_shard::Storage;
use forebay_shard::example::RecordFeatures;
use forebay_shard::manifest::{ClassEntry, EpochOrder, block_records};
use forebay_shard::schema::{Column, ColumnType, IMAGE, LABEL, Schema};
use forebay_store::Location;
use index::{INDEX, Index};
use read::{MdsColumn, MdsFile, Target};
use std::collections::BTreeMap;
use std::path::Path;
use std::sync::Arc;

/// The format.
pub(super) struct Mds;

/// The column with the key of a sample.
const KEY: &str = "key";
/// Split of a directory that has its files itself.
const DEFAULT_SPLIT: &str = "train";

impl Format for Mds {
    fn name(&self) -> &'static str {
        "mds"
    }

    fn title(&self) -> &'static str {
        "MosaicML shards (MDS)"
    }

    fn extensions(&self) -> &'static [&'static str] {
        &[".mds"]
    }

    fn detect<'n>(&self, names: &[&'n str]) -> Option<&'n str> {
        let is_index = |name: &str| name == INDEX || name.ends_with("/index.json");
        let mut all = names.iter().copied();
        super::by_extension(self, names).or_else(|| all.find(|name| is_index(name)))
    }

    fn advice(&self) -> &'static str {
        "`forebay convert SRC DST --to indexed` keeps the labels and all other columns of MDS"
    }

    fn open(&self, input: &RecordInput) -> Result<RecordSource> {
        let (root, storage) = read_storage(&input.location, &input.read)?;
        let conversion = Conversion::load(&root, &*storage)?;
        let conversion = conversion.filter(|conversion| conversion.to == self.name());
        let mut splits = Vec::new();
        let mut classes = Vec::new();
        for (split, dir) in split_dirs(input, &root, &*storage, conversion.as_ref())? {
            let location = input.location.join(&dir);
            let path = if dir.is_empty() {
                root.clone()
            } else {
                root.join(&dir)
            };
            let index = Index::load(&path, &*storage)?;
            classes.extend(index.classes.clone());
            splits.push((split, Split::open(index, &path, &location, input)?));
        }
        let first = splits.iter().flat_map(|(_, split)| &split.shards).next();
        let Some(first) = first else {
            return Err(Error::source(&root, "the indexes list no shards"));
        };
        let names = first
            .info
            .columns()
            .map(|(name, encoding, size)| (name.to_owned(), encoding.to_owned(), size));
        let names: Vec<_> = names.collect();
        for (_, split) in &splits {
            for shard in &split.shards {
                let same = shard.info.columns().zip(&names);
                let is_same = shard.info.columns().count() == names.len()
                    && same.into_iter().all(|((name, encoding, size), other)| {
                        (name, encoding, size) == (&other.0, &other.1, other.2)
                    });
                if !is_same {
                    let what = "its columns are others than those of the first shard: convert the shards of each kind by themselves";
                    return Err(Error::source(&shard.path, what));
                }
            }
        }
        let columns = columns(&names, &splits, input, conversion.as_ref(), &root)?;
        let order = match conversion.as_ref().and_then(|known| known.order.clone()) {
            Some(order) => order,
            None => order_of(&splits),
        };
        classes.dedup();
        let facts = SourceFacts {
            label_base: columns.label_base,
            classes: match &conversion {
                Some(known) => known.classes.clone(),
                None => classes,
            },
            features: match &conversion {
                Some(known) => known.features.clone(),
                None => columns.schema.features(),
            },
            record_features: columns.record_features.clone(),
            schema: columns.schema.clone(),
            foreign: columns.foreign.clone().map(|schema| (schema, root.clone())),
            pack: BTreeMap::from([("tool".to_owned(), "convert".into())]),
            identity: identity(&splits, &columns),
            order,
            findings: Vec::new(),
        };
        let columns = Arc::new(columns);
        let splits = splits.into_iter().map(|(name, split)| RecordSplit {
            name,
            files: split
                .shards
                .into_iter()
                .map(|shard| -> Box<dyn RecordFile> {
                    Box::new(MdsFile::new(shard, Arc::clone(&columns)))
                })
                .collect(),
        });
        Ok(RecordSource {
            splits: splits.collect(),
            facts,
        })
    }

    fn is_written(&self) -> bool {
        true
    }

    fn create(
        &self,
        facts: &SourceFacts,
        options: &SinkOptions,
    ) -> std::result::Result<Box<dyn RecordSink>, String> {
        write::Sink::new(facts, options).map(|sink| Box::new(sink) as _)
    }
}

/// The shards of a split.
struct Split {
    shards: Vec<index::OpenShard>,
}

impl Split {
    fn open(index: Index, path: &Path, location: &Location, input: &RecordInput) -> Result<Self> {
        let mut found = Vec::new();
        let mut missing = Vec::new();
        for info in index.shards {
            let mut archive = None;
            for file in info.files() {
                let (_, candidate) = file_at(&location.join(&file.basename), &input.read)?;
                if is_there(&candidate)? {
                    archive = Some((candidate, file.basename == info.raw_data.basename));
                    break;
                }
            }
            match archive {
                Some((archive, is_raw)) => found.push((info, archive, is_raw)),
                None => missing.push(info.raw_data.basename),
            }
        }
        if let Some(first) = missing.first() {
            let what = format!(
                "{INDEX} lists {} shards, and {} of them are missing, the first one is {first}: bring them, since a dataset with a hole would pass for a whole one",
                found.len() + missing.len(),
                missing.len()
            );
            return Err(Error::source(path, what));
        }
        let open = found.into_iter();
        let shards =
            open.map(|(info, archive, is_raw)| index::OpenShard::open(info, archive, is_raw));
        Ok(Self {
            shards: shards.collect::<Result<_>>()?,
        })
    }
}

fn is_there(archive: &Archive) -> Result<bool> {
    match archive {
        Archive::Local(path) => Ok(path.is_file()),
        Archive::Object(store, key) => Ok(store.head(key)?.is_some()),
    }
}

/// The directories of the splits, relative to the source: those below it with an index, or the source itself.
fn split_dirs(
    input: &RecordInput,
    root: &Path,
    storage: &dyn Storage,
    conversion: Option<&Conversion>,
) -> Result<Vec<(String, String)>> {
    let has_index = |dir: &Path| {
        let path = dir.join(INDEX);
        let there = storage.exists(&path);
        there.map_err(|error| Error::io(path, "open", error))
    };
    if let Some(conversion) = conversion {
        let splits = conversion.splits.iter();
        return Ok(splits
            .map(|split| (split.name.clone(), split.name.clone()))
            .collect());
    }
    let own = input.split.clone();
    if has_index(root)? {
        let name = root.file_name().and_then(|name| name.to_str());
        let known = ["train", "val", "validation", "test"];
        let name = name
            .filter(|name| known.contains(name))
            .unwrap_or(DEFAULT_SPLIT);
        return Ok(vec![(
            own.unwrap_or_else(|| name.to_owned()),
            String::new(),
        )]);
    }
    let mut dirs = Vec::new();
    for name in names_below(root, storage, &input.location, input)? {
        if own.as_ref().is_none_or(|own| *own == name) && has_index(&root.join(&name))? {
            dirs.push((name.clone(), name));
        }
    }
    match dirs.is_empty() {
        true => Err(Error::source(
            root,
            format!("there is no {INDEX}, neither here nor in a directory of a split"),
        )),
        false => Ok(dirs),
    }
}

fn names_below(
    root: &Path,
    storage: &dyn Storage,
    location: &Location,
    input: &RecordInput,
) -> Result<Vec<String>> {
    let mut names: Vec<String> = match location.is_remote() {
        true => {
            forebay_store::Store::open(location, &input.read.store)?
                .list_dir("")?
                .dirs
        }
        false => {
            let listed = storage.list(root);
            let listed = listed.map_err(|error| Error::io(root, "list", error))?;
            listed
                .into_iter()
                .filter_map(|name| name.into_string().ok())
                .collect()
        }
    };
    names.retain(|name| !name.starts_with('.'));
    names.sort();
    Ok(names)
}

/// The columns of a source.
#[derive(Debug)]
pub(super) struct Columns {
    columns: Vec<MdsColumn>,
    schema: Schema,
    record_features: RecordFeatures,
    label_base: i64,
    foreign: Option<ForeignSchema>,
}

/// Decides what the columns are, by their names and encodings and by the first sample.
fn columns(
    names: &[(String, String, Option<u64>)],
    splits: &[(String, Split)],
    input: &RecordInput,
    conversion: Option<&Conversion>,
    root: &Path,
) -> Result<Columns> {
    let refused = |what: String| Error::source(root, what);
    let mut all = Vec::new();
    for (name, text, size) in names {
        let is_dropped = input.drop_features.contains(name);
        let encoding = Encoding::parse(text);
        let (encoding, target) = match encoding {
            _ if is_dropped => (Encoding::Bytes, Target::Nothing),
            Ok(encoding) => (encoding, Target::Feature),
            Err(why) => {
                return Err(refused(format!(
                    "column {name:?}: {why}; --drop-feature {name} leaves it out"
                )));
            }
        };
        if target == Target::Feature && encoding.size() != *size {
            return Err(refused(format!(
                "column {name:?}: {text:?} values have {:?} bytes, and {INDEX} says {size:?}",
                encoding.size()
            )));
        }
        all.push(MdsColumn::new(name, encoding, *size, target));
    }
    // The first sample has what the types do not tell.
    let mut shards = splits.iter().flat_map(|(_, split)| &split.shards);
    let sample = match shards.find(|shard| shard.len() > 0) {
        Some(shard) => Some(read::first_sample(shard)?),
        None => None,
    };
    if let Some((path, sample)) = &sample {
        read::settle(&mut all, sample).map_err(|what| Error::source(path, what))?;
    }
    if let Some(conversion) = conversion {
        for column in &mut all {
            column.restore(conversion);
        }
        return Ok(Columns {
            columns: all,
            schema: conversion.columns.clone(),
            record_features: conversion.record_features.clone(),
            label_base: conversion.label_base,
            foreign: None,
        });
    }
    for column in &mut all {
        if column.name == KEY
            && column.encoding == Encoding::Str
            && column.target == Target::Feature
        {
            column.target = Target::Key;
        }
        column.make_column();
    }
    let record = match &sample {
        Some((path, sample)) => {
            let mut record = Vec::new();
            let read = read::encode(&all, sample, 0, &mut record);
            read.map_err(|what| Error::source(path, what))?;
            Some(record)
        }
        None => None,
    };
    let foreign = input.features.decide(record.as_deref()).map_err(refused)?;
    let mut listed = Vec::new();
    for column in &mut all {
        if column.name == foreign.features.label && column.target == Target::Feature {
            column.target = Target::Label;
        }
        if matches!(column.target, Target::Key | Target::Nothing) {
            continue;
        }
        let mut entry = Column::new(column.name.clone(), column.column_type());
        entry.feature.clone_from(&column.name);
        if column.name == foreign.features.image {
            (entry.name, entry.column_type) = (IMAGE.to_owned(), ColumnType::Image);
        } else if column.name == foreign.features.label {
            (entry.name, entry.column_type) = (LABEL.to_owned(), ColumnType::Label);
        }
        listed.push(entry);
    }
    let key = foreign.key.clone();
    let has_key = all.iter().any(|column| column.target == Target::Key);
    if let Some(column) = all.iter_mut().find(|column| column.name == key)
        && !has_key
    {
        column.is_key = true;
    }
    Ok(Columns {
        columns: all,
        schema: Schema::new(listed).map_err(refused)?,
        record_features: foreign.features.clone(),
        label_base: foreign.label_base,
        foreign: Some(foreign),
    })
}

fn order_of(splits: &[(String, Split)]) -> EpochOrder {
    let mut order = EpochOrder::default();
    for (name, split) in splits {
        let records = split.shards.iter().map(|shard| shard.len() as u64).sum();
        let bytes = split.shards.iter().map(index::OpenShard::raw_bytes).sum();
        let block = block_records(records, bytes);
        order.block_records.insert(name.clone(), block);
    }
    order
}

/// Returns the identity of the shards and of the options that they are read with.
fn identity(splits: &[(String, Split)], columns: &Columns) -> BTreeMap<String, String> {
    let mut hasher = blake3::Hasher::new();
    let mut item = |bytes: &[u8]| {
        hasher
            .update(&(bytes.len() as u64).to_le_bytes())
            .update(bytes);
    };
    for (name, split) in splits {
        item(name.as_bytes());
        for shard in &split.shards {
            item(shard.path.as_os_str().as_encoded_bytes());
            item(&shard.bytes.to_le_bytes());
            item(&shard.modified.to_le_bytes());
        }
    }
    let RecordFeatures { image, label, .. } = &columns.record_features;
    let identity = [
        ("source_files", hasher.finalize().to_hex()[..32].to_owned()),
        ("image_feature", image.clone()),
        ("label_feature", label.clone()),
        ("label_base", columns.label_base.to_string()),
    ];
    identity
        .map(|(name, value)| (name.to_owned(), value))
        .into()
}

/// A class as `index.json` has it: a name, or a name and a text.
#[derive(Debug, Clone, serde::Deserialize)]
#[serde(untagged)]
enum ClassName {
    Name(String),
    Entry(ClassEntry),
}

#[cfg(test)]
mod tests;
