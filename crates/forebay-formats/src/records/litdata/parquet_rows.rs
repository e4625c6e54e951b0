//! Reads rows of Parquet files that LitData's `index_parquet_dataset` listed in an `index.json` beside them.

use super::index::ChunkInfo;
use crate::error::{Error, Result};
use crate::option_names::FROM;
use crate::records::samples::INDEX;
use crate::records::{RecordFormat, RecordInput, RecordSource};
use forebay_shard::Storage;
use std::path::{Path, PathBuf};

/// Advice for an index that does not match its files.
const ADVICE: &str = "index the directory again, or convert the Parquet files by themselves: `forebay convert --from parquet`";

/// A split: name, directory of its files, and entries of the index.
pub(super) type ListedFiles = (String, PathBuf, Vec<ChunkInfo>);

/// Returns the name of an index that has Parquet files beside it.
pub(super) fn index_among<'n>(names: &[&'n str]) -> Option<&'n str> {
    let is_beside =
        |index: &str, name: &str| name.ends_with(".parquet") && dir_of(name) == dir_of(index);
    let is_index = |name: &str| {
        let dir = name.strip_suffix(INDEX);
        dir.is_some_and(|dir| dir.is_empty() || dir.ends_with('/'))
    };
    let mut indexes = names.iter().copied().filter(|name| is_index(name));
    indexes.find(|index| names.iter().any(|name| is_beside(index, name)))
}

fn dir_of(name: &str) -> &str {
    name.rsplit_once('/').map_or("", |(dir, _)| dir)
}

/// Opens the listed Parquet files, in the order of the indexes.
pub(super) fn open(
    splits: &[ListedFiles],
    input: &RecordInput,
    storage: &dyn Storage,
) -> Result<RecordSource> {
    let mut listed = input.clone();
    for (split, dir, chunks) in splits {
        let paths = chunks.iter().map(|info| {
            let path = dir.join(&info.filename);
            match storage.exists(&path) {
                Ok(true) => Ok(path),
                Ok(false) => Err(is_missing(dir, &info.filename, chunks.len())),
                Err(error) => Err(Error::io(path, "open", error)),
            }
        });
        listed
            .splits
            .insert(split.clone(), paths.collect::<Result<_>>()?);
    }
    let source = RecordFormat::PARQUET.open(&listed)?;
    for (split, dir, chunks) in splits {
        let opened = source.splits.iter().find(|opened| opened.name == *split);
        let files = opened
            .map(|opened| opened.files.as_slice())
            .unwrap_or_default();
        for (file, info) in files.iter().zip(chunks) {
            let found = (file.records(), file.bytes());
            if found != (info.items, info.bytes) {
                let what = format!(
                    "{} has {} rows in {} bytes, and {INDEX} says {} rows in {} bytes: {ADVICE}",
                    info.filename, found.0, found.1, info.items, info.bytes
                );
                return Err(Error::source(dir, what));
            }
        }
    }
    Ok(source)
}

fn is_missing(dir: &Path, name: &str, count: usize) -> Error {
    let what = format!(
        "{INDEX} lists {count} Parquet files, and {name} is not beside it: bring all, or convert the directory that has them by itself: {FROM} parquet"
    );
    Error::source(dir, what)
}
