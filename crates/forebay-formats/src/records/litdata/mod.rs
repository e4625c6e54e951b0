//! LitData, the chunked format of Lightning: a directory for each split, with `index.json` and files of items with typed
//! leaves.

mod chunk;
mod index;
mod leaf;
mod parquet_rows;
mod read;
#[cfg(test)]
mod tests;

use super::places::file_at;
use super::samples::{Columns, INDEX, SampleColumn, SampleFile, Target, is_there, split_dirs};
use super::{Format, FormatInfo, RecordInput, RecordSource, RecordSplit};
use crate::error::{Error, Result};
use crate::option_names::DROP_FEATURE;
use chunk::Chunk;
use forebay_cache::read_storage;
use forebay_store::Location;
use index::Index;
use leaf::Leaf;
use read::LitDataFile;
use std::path::Path;
use std::sync::Arc;

/// A split: name, chunks, and the position of each leaf in its items.
type Split = (String, Vec<Chunk>, Arc<[usize]>);

pub(super) struct LitData;

impl Format for LitData {
    fn info(&self) -> &'static FormatInfo {
        &FormatInfo {
            name: "litdata",
            title: "a LitData dataset",
            extensions: &[".bin", ".parquet"],
            index_name: Some(INDEX),
            names_in_split_dirs: &[".bin", ".parquet"],
            advice: "`forebay convert SRC DST --format indexed` keeps the labels and all other leaves of LitData",
            ..FormatInfo::NONE
        }
    }

    fn detect<'n>(&self, names: &[&'n str]) -> Option<&'n str> {
        let is_chunk = |name: &&str| {
            let name = name.rsplit('/').next().unwrap_or_default();
            name.starts_with("chunk-") && name.ends_with(".bin")
        };
        let chunk = names.iter().copied().find(is_chunk);
        chunk.or_else(|| parquet_rows::index_among(names))
    }

    fn open(&self, input: &RecordInput) -> Result<RecordSource> {
        let (root, storage) = read_storage(&input.location, &input.read)?;
        let (mut splits, mut parquet) = (Vec::new(), Vec::new());
        let mut first: Option<Index> = None;
        for (split, dir) in split_dirs(input, &root, &*storage, None)? {
            let path = match dir.is_empty() {
                true => root.clone(),
                false => root.join(&dir),
            };
            let index = Index::load(&path, &*storage)?;
            if first.as_ref().is_none_or(|first| first.is_parquet) && index.is_parquet {
                parquet.push((split, path, index.chunks.clone()));
                first = Some(index);
                continue;
            }
            let chunks = open_chunks(&index, &path, &input.location.join(&dir), input)?;
            let places = first.as_ref().unwrap_or(&index).places_in(&index);
            let places = places.map_err(|what| {
                let what = format!("{what}: all splits of a source have the same leaves");
                Error::source(path.join(INDEX), what)
            })?;
            splits.push((split, chunks, Arc::<[usize]>::from(places)));
            first.get_or_insert(index);
        }
        let Some(index) = first else {
            return Err(Error::source(&root, "the indexes list no chunks"));
        };
        if index.is_parquet {
            return parquet_rows::open(&parquet, input, &*storage);
        }
        let (leaves, columns) = columns(&index, &splits, input, &root)?;
        let files = splits.iter().flat_map(|(split, chunks, _)| {
            chunks.iter().map(|chunk| SampleFile {
                split,
                version: &chunk.version,
                samples: chunk.len() as u64,
                sample_bytes: chunk.sample_bytes(),
            })
        });
        let files: Vec<_> = files.collect();
        let facts = columns.facts(&files, Vec::new(), None, &root);
        let (leaves, columns) = (Arc::<[Leaf]>::from(leaves), Arc::new(columns));
        let splits = splits.into_iter().map(|(name, chunks, places)| {
            let (leaves, columns) = (Arc::clone(&leaves), Arc::clone(&columns));
            let shape = read::ItemShape {
                leaves,
                columns,
                places,
            };
            let file = |chunk| LitDataFile::new(chunk, shape.clone());
            RecordSplit::new(name, chunks.into_iter().map(file))
        });
        Ok(RecordSource {
            splits: splits.collect(),
            facts,
        })
    }
}

/// Opens the chunks of a split. A missing chunk is an error.
fn open_chunks(
    index: &Index,
    path: &Path,
    location: &Location,
    input: &RecordInput,
) -> Result<Vec<Chunk>> {
    let mut chunks = Vec::new();
    for info in &index.chunks {
        let (_, archive) = file_at(&location.join(&info.filename), &input.read)?;
        if !is_there(&archive)? {
            let what = format!(
                "{INDEX} lists {} chunks, and {} is missing: bring all, since a dataset with a hole would pass for a whole one",
                index.chunks.len(),
                info.filename
            );
            return Err(Error::source(path, what));
        }
        chunks.push(Chunk::open(info, index.wrap, archive)?);
    }
    Ok(chunks)
}

/// Decides the columns by the names and types of the leaves and by the first item.
fn columns(
    index: &Index,
    splits: &[Split],
    input: &RecordInput,
    root: &Path,
) -> Result<(Vec<Leaf>, Columns)> {
    let refused = |what: String| Error::source(root, what);
    let (mut leaves, mut all) = (Vec::new(), Vec::new());
    for (name, format) in &index.leaves {
        let is_dropped = input.drop_features.contains(name);
        let (leaf, target) = match Leaf::parse(format) {
            _ if is_dropped => (Leaf::Bytes, Target::Nothing),
            Ok(leaf) => (leaf, Target::Feature),
            Err(why) => {
                return Err(refused(format!(
                    "leaf {name:?}: {why}; {DROP_FEATURE} {name} leaves it out"
                )));
            }
        };
        all.push(SampleColumn::new(name, leaf.encoding(), target));
        leaves.push(leaf);
    }
    let mut chunks = splits
        .iter()
        .flat_map(|(_, chunks, places)| chunks.iter().map(move |chunk| (chunk, places)));
    let Some((chunk, places)) = chunks.find(|(chunk, _)| chunk.len() > 0) else {
        return Ok((
            leaves,
            Columns::decide(all, None::<(&Path, &[&[u8]])>, input, None, root)?,
        ));
    };
    let mut item = Vec::new();
    chunk.reader()?.read(0, &mut item)?;
    let first = leaf::values(places, &item).and_then(|found| leaf::convert(&leaves, &all, found));
    let first =
        first.map_err(|what| Error::source(&chunk.version.path, format!("item 0: {what}")))?;
    let first = Some((chunk.version.path.as_path(), first.as_slice()));
    let columns = Columns::decide(all, first, input, None, root)?;
    Ok((leaves, columns))
}
