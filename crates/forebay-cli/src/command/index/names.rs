//! Derives the split of another tool's TFRecord file from its name, and checks that no file of a set is missing.

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};

use crate::failure::{Failure, io_hint};
use crate::input::show;
use crate::tfrecord_names::{is_shard, parse, split_of};

/// Returns the files of a directory that are named like TFRecord shards, sorted.
pub(crate) fn shards_in(root: &Path) -> Result<Vec<PathBuf>, Failure> {
    let failed = |error: std::io::Error| {
        Failure::new(format!("cannot list {}: {error}", show(root))).maybe_hint(io_hint(&error))
    };
    let mut files = Vec::new();
    for entry in fs::read_dir(root).map_err(failed)? {
        let path = entry.map_err(failed)?.path();
        let name = path
            .file_name()
            .and_then(|name| name.to_str())
            .unwrap_or_default();
        if is_shard(name) && path.is_file() {
            files.push(path);
        }
    }
    if files.is_empty() {
        return Err(Failure::new(format!(
            "the names in {} are those of no record format, and of no TFRecord shards",
            show(root)
        ))
        .hint("state the format, such as --from coco, or name TFRecord files themselves: DIR/*"));
    }
    files.sort();
    Ok(files)
}

/// Groups files by split, in their given order; `forced` names the split of all files. Returns an error if a shard `N-of-M` is
/// missing, or if two files have the same name.
pub(crate) fn by_split(
    files: &[PathBuf],
    forced: Option<&str>,
) -> Result<BTreeMap<String, Vec<PathBuf>>, Failure> {
    let mut splits: BTreeMap<String, Vec<PathBuf>> = BTreeMap::new();
    let mut sets: BTreeMap<(&str, u32), Vec<u32>> = BTreeMap::new();
    let mut names = BTreeMap::new();
    for path in files {
        let name = path
            .file_name()
            .and_then(|name| name.to_str())
            .ok_or_else(|| Failure::new(format!("{}: a shard's name must be UTF-8", show(path))))?;
        if let Some(other) = names.insert(name, path) {
            return Err(Failure::new(format!(
                "{} and {} have the same name",
                show(other),
                show(path)
            )));
        }
        let parsed = parse(name);
        if let Some((number, of)) = parsed.number {
            sets.entry((parsed.stem, of)).or_default().push(number);
        }
        let split = forced.map_or_else(|| split_of(&parsed), str::to_owned);
        splits.entry(split).or_default().push(path.clone());
    }
    for ((stem, of), mut numbers) in sets {
        numbers.sort_unstable();
        if let Some(missing) = (0..of).find(|number| numbers.binary_search(number).is_err()) {
            return Err(Failure::new(format!(
                "{stem}-{missing:05}-of-{of:05} is missing: {} of {of} files are here",
                numbers.len()
            ))
            .hint(
                "a dataset with a hole would pass for a whole one; bring the missing files first",
            ));
        }
    }
    Ok(splits)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn missing_shards_are_reported() {
        let files = |names: &[&str]| names.iter().map(PathBuf::from).collect::<Vec<_>>();
        let whole = files(&["train-00000-of-00002", "train-00001-of-00002"]);
        assert_eq!(by_split(&whole, None).unwrap()["train"], whole);
        assert_eq!(by_split(&whole, Some("x")).unwrap()["x"], whole);
        let hole = by_split(&files(&["train-00001-of-00002"]), None).unwrap_err();
        assert!(hole.message().contains("train-00000-of-00002"), "{hole}");
        let twice = by_split(&files(&["a/x.tfrecord", "b/x.tfrecord"]), None);
        assert!(twice.is_err());
    }
}
