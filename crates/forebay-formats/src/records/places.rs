//! Files at a location: a single file, the files of a directory or a prefix, or patterns such as `train-{000..128}.tar`.

use super::RecordInput;
use super::conversion::Conversion;
use crate::archive::Archive;
use crate::error::{Error, Result};
use crate::key_path::base;
use forebay_cache::ReadOptions;
use forebay_store::{Location, Store};
use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;

/// Most files that a location may have.
const FILES_MAX: usize = 1_000_000;
/// Split of files whose names contain no split.
const DEFAULT_SPLIT: &str = "train";
/// Names that are splits even if all files have the same name.
const SPLITS: [&str; 7] = [
    "train",
    "training",
    "val",
    "valid",
    "validation",
    "test",
    "testing",
];

/// Files of each split, with their names.
pub(super) type SplitFiles = BTreeMap<String, Vec<(String, Archive)>>;

/// Returns whether a text has a pattern that [`expand_braces`] expands.
pub fn has_braces(text: &str) -> bool {
    text.find('{').is_some_and(|at| {
        text[at..].contains('}') && (text[at..].contains("..") || text[at..].contains(','))
    })
}

/// Expands `{000..128}` and `{a,b}` in a text, as shells and WebDataset do.
///
/// # Errors
/// A pattern that is neither a list nor a range, or that expands to too many files.
pub fn expand_braces(text: &str) -> std::result::Result<Vec<String>, String> {
    let mut all = vec![String::new()];
    let mut rest = text;
    while let Some((before, after)) = rest.split_once('{') {
        let refused = |why: &str| format!("{text:?}: {why}");
        let (inside, behind) = after
            .split_once('}')
            .ok_or_else(|| refused("there is no } after {"))?;
        let items = match inside.split_once("..") {
            Some((from, to)) => range(from, to).map_err(|why| refused(&why))?,
            None => inside.split(',').map(str::to_owned).collect(),
        };
        if all.len().saturating_mul(items.len()) > FILES_MAX {
            return Err(refused(&format!("that is more than {FILES_MAX} files")));
        }
        all = all
            .iter()
            .flat_map(|start| {
                items
                    .iter()
                    .map(move |item| format!("{start}{before}{item}"))
            })
            .collect();
        rest = behind;
    }
    all.iter_mut().for_each(|one| one.push_str(rest));
    Ok(all)
}

/// Returns the numbers of a range, padded to the width of the wider bound if either has a leading zero.
fn range(from: &str, to: &str) -> std::result::Result<Vec<String>, String> {
    let number = |text: &str| {
        let is_number = !text.is_empty() && text.bytes().all(|byte| byte.is_ascii_digit());
        let number = is_number.then(|| text.parse::<u64>().ok()).flatten();
        number.ok_or_else(|| format!("{text:?} is no number of a range"))
    };
    let (first, last) = (number(from)?, number(to)?);
    if first > last {
        return Err(format!("the range {from}..{to} goes backward"));
    }
    if last - first >= FILES_MAX as u64 {
        return Err(format!(
            "the range {from}..{to} has more than {FILES_MAX} numbers"
        ));
    }
    let is_padded = |text: &str| text.len() > 1 && text.starts_with('0');
    let width = match is_padded(from) || is_padded(to) {
        true => from.len().max(to.len()),
        false => 0,
    };
    Ok((first..=last)
        .map(|number| format!("{number:0width$}"))
        .collect())
}

/// Returns the files at a location that `has_ending` accepts, with their names. The location may be a file itself.
pub(super) fn files_at(
    location: &Location,
    read: &ReadOptions,
    has_ending: &dyn Fn(&str) -> bool,
) -> Result<Vec<(String, Archive)>> {
    let mut found = Vec::new();
    if let Ok(path) = location.local_path() {
        if !path.is_dir() {
            return Ok(vec![(name_of(path)?, Archive::Local(path.to_path_buf()))]);
        }
        let entries = std::fs::read_dir(path).map_err(|error| Error::io(path, "list", error))?;
        for entry in entries {
            let entry = entry.map_err(|error| Error::io(path, "list", error))?;
            let name = entry.file_name();
            let name = name.to_str().unwrap_or_default();
            if has_ending(name) && !name.starts_with('.') && entry.path().is_file() {
                found.push((name.to_owned(), Archive::Local(entry.path())));
            }
        }
    } else if location.key().is_some_and(has_ending) {
        return Ok(vec![object(location, read)?]);
    } else {
        let store = Store::open(location, &read.store)?;
        for object in store.list_dir("")?.objects {
            if has_ending(&object.key) && !object.key.starts_with('.') {
                found.push((
                    object.key.clone(),
                    Archive::Object(store.clone(), object.key),
                ));
            }
        }
    }
    found.sort_by(|a, b| a.0.cmp(&b.0));
    Ok(found)
}

/// A directory, local or in a store.
pub(super) enum Place<'a> {
    Local(&'a Path),
    Store(Store),
}

impl<'a> Place<'a> {
    pub(super) fn open(location: &'a Location, read: &ReadOptions) -> Result<Self> {
        Ok(match location.local_path() {
            Ok(path) => Self::Local(path),
            Err(_) => Self::Store(Store::open(location, &read.store)?),
        })
    }

    /// Returns the names of its subdirectories, sorted, without hidden ones.
    pub(super) fn dirs(&self) -> Result<Vec<String>> {
        Ok(shown(match self {
            Self::Local(path) => list(path, true)?,
            Self::Store(store) => store.list_dir("")?.dirs,
        }))
    }

    /// Returns the names of the files in a subdirectory, sorted, without hidden ones.
    pub(super) fn files(&self, dir: &str) -> Result<Vec<String>> {
        Ok(shown(match self {
            Self::Local(path) => list(&path.join(dir), false)?,
            Self::Store(store) => {
                let objects = store.list_dir(dir)?.objects.into_iter();
                let name = |key: String| key.rsplit('/').next().unwrap_or_default().to_owned();
                objects.map(|object| name(object.key)).collect()
            }
        }))
    }
}

/// Returns the names that are neither empty nor hidden, sorted.
fn shown(mut names: Vec<String>) -> Vec<String> {
    names.retain(|name| !name.is_empty() && !name.starts_with('.'));
    names.sort();
    names
}

/// Returns the names of the subdirectories or of the files in a directory.
fn list(dir: &Path, is_dir: bool) -> Result<Vec<String>> {
    let fail = |error| Error::io(dir, "list", error);
    let mut names = Vec::new();
    for entry in std::fs::read_dir(dir).map_err(fail)? {
        let entry = entry.map_err(fail)?;
        if entry.path().is_dir() == is_dir {
            names.extend(entry.file_name().into_string().ok());
        }
    }
    Ok(names)
}

/// Returns the file at a location.
pub(super) fn file_at(location: &Location, read: &ReadOptions) -> Result<(String, Archive)> {
    match location.local_path() {
        Ok(path) => Ok((name_of(path)?, Archive::Local(path.to_path_buf()))),
        Err(_) => object(location, read),
    }
}

fn object(location: &Location, read: &ReadOptions) -> Result<(String, Archive)> {
    let text = location.to_string();
    let (dir, name) = text
        .rsplit_once('/')
        .ok_or_else(|| Error::source(&text, "this names no object"))?;
    let store = Store::open(&Location::parse(dir)?, &read.store)?;
    Ok((name.to_owned(), Archive::Object(store, name.to_owned())))
}

fn name_of(path: &Path) -> Result<String> {
    let name = path.file_name().and_then(|name| name.to_str());
    let named = name.map(str::to_owned);
    named.ok_or_else(|| Error::source(path, "the name of a file must be UTF-8"))
}

/// Returns the files that the user named.
pub(super) fn named_files(input: &RecordInput) -> Result<Vec<(String, Archive)>> {
    let files = input.files.iter();
    files.map(|file| file_at(file, &input.read)).collect()
}

/// Returns the files of a conversion by split.
pub(super) fn written_files(input: &RecordInput, conversion: &Conversion) -> Result<SplitFiles> {
    let splits = conversion.splits.iter().map(|split| {
        let shards = split.shards.iter();
        let files = shards.map(|shard| file_at(&input.location.join(&shard.name), &input.read));
        Ok((split.name.clone(), files.collect::<Result<_>>()?))
    });
    splits.collect()
}

/// Groups files by split, sorted by name. The word before the number in the file name is the split. If all files have the same
/// word, they are the training split, unless the word is the usual name of a split.
pub(super) fn by_split<T>(
    files: Vec<(String, T)>,
    forced: Option<&str>,
) -> BTreeMap<String, Vec<(String, T)>> {
    let words: BTreeSet<&str> = files.iter().map(|(name, _)| word(name)).collect();
    let is_one = words.len() <= 1;
    let named = |name: &str| match (forced, word(name)) {
        (Some(split), _) => split.to_owned(),
        (None, word) if SPLITS.contains(&word) => word.to_owned(),
        (None, "") => DEFAULT_SPLIT.to_owned(),
        (None, _) if is_one => DEFAULT_SPLIT.to_owned(),
        (None, word) => word.to_owned(),
    };
    let splits: Vec<String> = files.iter().map(|(name, _)| named(name)).collect();
    let mut all: BTreeMap<String, Vec<(String, T)>> = BTreeMap::new();
    for (split, file) in splits.into_iter().zip(files) {
        all.entry(split).or_default().push(file);
    }
    all
}

/// Returns the split in the name of an array, and the rest of the name: `x_train`, `train/images`.
pub(super) fn split_of_array(name: &str) -> Option<(String, String)> {
    let is_separator = |c: char| c == '_' || c == '/' || c == '.';
    SPLITS.iter().find_map(|split| {
        let after = name
            .strip_prefix(split)
            .and_then(|rest| rest.strip_prefix(is_separator));
        let before = || {
            name.strip_suffix(split)
                .and_then(|rest| rest.strip_suffix(is_separator))
        };
        let rest = after.or_else(before).filter(|rest| !rest.is_empty())?;
        Some(((*split).to_owned(), rest.to_owned()))
    })
}

/// Returns whether a character is part of the numbering in a file name.
fn is_numbering(c: char) -> bool {
    c.is_ascii_digit() || c == '-' || c == '_'
}

/// Returns the last word before the number of a name: `train` of `imagenet-train-000000.tar`.
fn word(name: &str) -> &str {
    let stem = base(name.as_bytes());
    let stem = std::str::from_utf8(stem).unwrap_or_default();
    let stem = stem.split('.').next().unwrap_or_default();
    let stem = stem.trim_end_matches(is_numbering);
    // `train-00000-of-00128` has two numbers.
    let stem = stem.strip_suffix("-of").unwrap_or(stem);
    let stem = stem.trim_end_matches(is_numbering);
    let word = stem.rsplit('-').next().unwrap_or_default();
    let is_word = word.starts_with(|c: char| c.is_ascii_alphabetic())
        && word.chars().all(|c| c.is_ascii_alphanumeric() || c == '_');
    if is_word { word } else { "" }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn braces_are_expanded_as_by_webdataset() {
        for (text, expected) in [
            ("a.tar", &["a.tar"][..]),
            (
                "x-{08..11}.tar",
                &["x-08.tar", "x-09.tar", "x-10.tar", "x-11.tar"],
            ),
            ("{9..10}", &["9", "10"]),
            ("{a,b}-{0..1}", &["a-0", "a-1", "b-0", "b-1"]),
        ] {
            assert_eq!(expand_braces(text).unwrap(), expected);
        }
        for text in [
            "{1..",
            "{2..1}",
            "{a..b}",
            "{0..99999999}",
            "{0..999999}{0..9}",
        ] {
            assert!(expand_braces(text).is_err(), "{text}");
        }
        assert!(has_braces("s3://b/{00..11}.tar") && !has_braces("s3://b/{x}.tar"));
    }

    #[test]
    fn names_of_files_tell_splits() {
        let splits = |names: &[&str]| {
            let files = names.iter().map(|name| ((*name).to_owned(), ())).collect();
            by_split(files, None).into_keys().collect::<Vec<_>>()
        };
        assert_eq!(splits(&["laion-000.tar", "laion-001.tar"]), ["train"]);
        assert_eq!(splits(&["000.tar", "001.tar.gz"]), ["train"]);
        assert_eq!(splits(&["imagenet-val-000.tar"]), ["val"]);
        assert_eq!(splits(&["test-00001-of-00002.tar"]), ["test"]);
        assert_eq!(
            splits(&["extra-0.tar", "train-0.tar", "x-test-1.tar"]),
            ["extra", "test", "train"]
        );
    }
}
