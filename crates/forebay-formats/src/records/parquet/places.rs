//! Finds the Parquet files of a source, by split.

use crate::error::{Error, Result};
use crate::records::RecordInput;
use crate::records::conversion::Conversion;
use crate::records::places::by_split;
use forebay_shard::Storage;
use std::collections::BTreeMap;
use std::io;
use std::path::{Path, PathBuf};

const EXTENSION: &str = ".parquet";
/// The directory of the files in a repository of Hugging Face.
const DATA: &str = "data";

/// Returns whether a path has the name of a Parquet file.
pub(super) fn is_file(path: &Path) -> bool {
    path.to_string_lossy().ends_with(EXTENSION)
}

/// Finds the files of a source. The first of these that applies is used: the files of the conversion, the files that the user
/// named, the source if it is a file, the files in it, the files in `data`, or those in a directory for each split.
pub(super) fn files(
    input: &RecordInput,
    conversion: Option<&Conversion>,
    root: &Path,
    storage: &dyn Storage,
) -> Result<BTreeMap<String, Vec<PathBuf>>> {
    if !input.splits.is_empty() {
        return Ok(input.splits.clone());
    }
    if let Some(conversion) = conversion {
        return listed(conversion, root, storage);
    }
    let mut found: Vec<(String, PathBuf)> = Vec::new();
    let add = |found: &mut Vec<(String, PathBuf)>, dir: &Path, names: &[String]| {
        let files = names.iter().filter(|name| name.ends_with(EXTENSION));
        found.extend(files.map(|name| (name.clone(), dir.join(name))));
    };
    if !input.files.is_empty() {
        for file in &input.files {
            let path = PathBuf::from(file.to_string());
            let name = path.file_name().unwrap_or_default().to_string_lossy();
            found.push((name.into_owned(), path));
        }
    } else if is_file(root) {
        let name = root.file_name().unwrap_or_default().to_string_lossy();
        found.push((name.into_owned(), root.to_path_buf()));
    } else {
        let names = list(root, storage)?;
        add(&mut found, root, &names);
        if found.is_empty() && names.iter().any(|name| name == DATA) {
            let dir = root.join(DATA);
            add(&mut found, &dir, &list(&dir, storage)?);
        }
        if found.is_empty() {
            return by_directory(input, root, &names, storage);
        }
    }
    let splits = by_split(found, input.split.as_deref()).into_iter();
    let paths = |files: Vec<(String, PathBuf)>| files.into_iter().map(|(_, path)| path).collect();
    Ok(splits.map(|(split, files)| (split, paths(files))).collect())
}

/// Returns the files of a conversion. A missing file is an error.
fn listed(
    conversion: &Conversion,
    root: &Path,
    storage: &dyn Storage,
) -> Result<BTreeMap<String, Vec<PathBuf>>> {
    let mut found = BTreeMap::new();
    for split in &conversion.splits {
        let mut paths = Vec::with_capacity(split.shards.len());
        for shard in &split.shards {
            let path = root.join(&shard.name);
            match storage.exists(&path) {
                Ok(true) => paths.push(path),
                Ok(false) => return Err(Conversion::is_missing(root, &shard.name)),
                Err(error) => return Err(Error::io(path, "open", error)),
            }
        }
        found.insert(split.name.clone(), paths);
    }
    Ok(found)
}

/// Returns the files in a directory for each split, as in conversions by Hugging Face: `train/0000.parquet`.
fn by_directory(
    input: &RecordInput,
    root: &Path,
    names: &[String],
    storage: &dyn Storage,
) -> Result<BTreeMap<String, Vec<PathBuf>>> {
    let mut splits: BTreeMap<String, Vec<PathBuf>> = BTreeMap::new();
    for name in names {
        let dir = root.join(name);
        let files = list(&dir, storage).unwrap_or_default();
        let files = files.iter().filter(|file| file.ends_with(EXTENSION));
        let files: Vec<PathBuf> = files.map(|file| dir.join(file)).collect();
        if !files.is_empty() {
            let split = input.split.as_ref().unwrap_or(name);
            splits.entry(split.clone()).or_default().extend(files);
        }
    }
    Ok(splits)
}

/// Returns the names in a directory, sorted, without hidden ones.
fn list(dir: &Path, storage: &dyn Storage) -> Result<Vec<String>> {
    let names = storage.list(dir).or_else(|error| match error.kind() {
        io::ErrorKind::NotADirectory => Ok(Vec::new()),
        _ => Err(Error::io(dir, "list", error)),
    })?;
    let names = names.into_iter().filter_map(|name| name.into_string().ok());
    let mut names: Vec<String> = names.filter(|name| !name.starts_with('.')).collect();
    names.sort();
    Ok(names)
}

#[cfg(test)]
mod tests {
    use super::*;
    use forebay_shard::LocalFiles;

    #[test]
    fn the_layouts_of_hugging_face_are_found() {
        for (files, expected) in [
            (
                &[
                    "data/test-00000-of-00001.parquet",
                    "data/train-00000-of-00001.parquet",
                    "README.md",
                ][..],
                &["test 1", "train 1"][..],
            ),
            (
                &[
                    "test/0000.parquet",
                    "train/0000.parquet",
                    "train/0001.parquet",
                ],
                &["test 1", "train 2"],
            ),
            (
                &["b-0.parquet", "a-0.parquet", "a-1.parquet"],
                &["a 2", "b 1"],
            ),
            (&["0001.parquet", "0000.parquet"], &["train 2"]),
            (&["README.md"], &[]),
        ] {
            let dir = tempfile::tempdir().unwrap();
            for file in files {
                let path = dir.path().join(file);
                std::fs::create_dir_all(path.parent().unwrap()).unwrap();
                std::fs::write(path, b"").unwrap();
            }
            let input = RecordInput::new(dir.path());
            let found = super::files(&input, None, dir.path(), &LocalFiles::new(1)).unwrap();
            let found: Vec<_> = found
                .iter()
                .map(|(name, files)| format!("{name} {}", files.len()))
                .collect();
            assert_eq!(found, expected);
        }
    }
}
