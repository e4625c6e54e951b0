//! MDS, the shard format of MosaicML's Streaming (version 2): a directory for each split, with `index.json` and files of
//! samples with typed columns.

mod index;
mod read;
mod write;

use super::conversion::Conversion;
use super::places::file_at;
use super::samples::{
    Columns, Encoding, INDEX, SampleColumn, SampleFile, Target, difference, is_there, split_dirs,
};
use super::{CreateSink, Format, FormatInfo, RecordInput, RecordSource, RecordSplit};
use crate::error::{Error, Result};
use crate::option_names::DROP_FEATURE;
use forebay_cache::read_storage;
use forebay_shard::manifest::ClassEntry;
use forebay_store::Location;
use index::Index;
use read::MdsFile;
use std::path::Path;
use std::sync::Arc;

pub(super) struct Mds;

impl Format for Mds {
    fn info(&self) -> &'static FormatInfo {
        &FormatInfo {
            name: "mds",
            title: "MosaicML shards (MDS)",
            extensions: &[".mds"],
            index_name: Some(INDEX),
            is_read_in_place: true,
            advice: "`forebay convert SRC DST --format indexed` keeps the labels and all other columns of MDS",
            ..FormatInfo::NONE
        }
    }

    fn detect<'n>(&self, names: &[&'n str]) -> Option<&'n str> {
        let is_index = |name: &str| name == INDEX || name.ends_with("/index.json");
        let mut all = names.iter().copied();
        super::by_extension(self.info(), names).or_else(|| all.find(|name| is_index(name)))
    }

    fn open(&self, input: &RecordInput) -> Result<RecordSource> {
        let (root, storage) = read_storage(&input.location, &input.read)?;
        let conversion = Conversion::load(&root, &*storage)?;
        let conversion = conversion.filter(|conversion| conversion.to == self.info().name);
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
            .map(|(name, (encoding, size))| (name.to_owned(), encoding.to_owned(), size));
        let names: Vec<_> = names.collect();
        for shard in splits.iter_mut().flat_map(|(_, split)| &mut split.shards) {
            let first = names
                .iter()
                .map(|(name, encoding, size)| (name.as_str(), (encoding.as_str(), *size)));
            let places = difference(first, shard.info.columns());
            shard.places = places.map_err(|what| {
                let what = format!("{what}: all shards of a source have the same columns");
                Error::source(&shard.version.path, what)
            })?;
        }
        let columns = columns(&names, &splits, input, conversion.as_ref(), &root)?;
        classes.dedup();
        let files = splits.iter().flat_map(|(split, shards)| {
            let shards = shards.shards.iter();
            shards.map(|shard| SampleFile {
                split,
                version: &shard.version,
                samples: shard.len() as u64,
                sample_bytes: shard.raw_bytes(),
            })
        });
        let files: Vec<_> = files.collect();
        let facts = columns.facts(&files, classes, conversion.as_ref(), &root);
        let columns = Arc::new(columns);
        let file = |shard| MdsFile::new(shard, Arc::clone(&columns));
        let splits = splits
            .into_iter()
            .map(|(name, split)| RecordSplit::new(name, split.shards.into_iter().map(file)));
        Ok(RecordSource {
            splits: splits.collect(),
            facts,
        })
    }

    fn writer(&self) -> Option<CreateSink> {
        Some(|facts, options| Ok(Box::new(write::Sink::new(facts, options)?)))
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

/// Decides the use of the columns.
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
                    "column {name:?}: {why}; {DROP_FEATURE} {name} leaves it out"
                )));
            }
        };
        if target == Target::Feature && encoding.size() != *size {
            return Err(refused(format!(
                "column {name:?}: {text:?} values have {:?} bytes, and {INDEX} says {size:?}",
                encoding.size()
            )));
        }
        all.push(SampleColumn::new(name, encoding, target));
    }
    let mut shards = splits.iter().flat_map(|(_, split)| &split.shards);
    let sample = match shards.find(|shard| shard.len() > 0) {
        Some(shard) => Some((shard, read::first_sample(shard)?)),
        None => None,
    };
    let first = match &sample {
        Some((shard, (path, sample))) => {
            let values = shard.values(sample);
            Some((path, values.map_err(|what| Error::source(path, what))?))
        }
        None => None,
    };
    let first = first
        .as_ref()
        .map(|(path, values)| (path.as_path(), values.as_slice()));
    Columns::decide(all, first, input, conversion, root)
}

/// A class in `index.json`: a name, or a name and a text.
#[derive(Debug, Clone, serde::Deserialize)]
#[serde(untagged)]
enum ClassName {
    Name(String),
    Entry(ClassEntry),
}

#[cfg(test)]
mod tests;
