//! Lists of images: a CSV, TSV or JSON lines file with the path of each image, its label and further columns, such as
//! `metadata.jsonl` of Hugging Face's imagefolder.
//!
//! [`LabelTable`] reads the lists as for `pack --labels`, but here the lines decide which images are in the dataset.

#[cfg(test)]
mod tests;

use super::annotation_files::{digest_of, find_listed};
use super::listed_images::{ImageFile, ImageFiles, ListedImages, ReadImage};
use super::{Format, FormatInfo, OnBadRecord, RecordInput, RecordSource, RecordSplit};
use crate::error::{Error, Result};
use crate::finding::{Finding, Reason, escape};
use crate::key_path::split_name;
use crate::labels::{Columns, LabelTable, RowClass};
use crate::name_forms::FileForms;
use crate::option_names::DROP_FEATURE;
use forebay_shard::ExampleBuilder;
use forebay_shard::example::{FeatureKind, RecordFeatures};
use forebay_shard::manifest::{ClassEntry, FeatureEntry};
use forebay_shard::schema::{ColumnType, Schema};
use forebay_store::map_parallel;
use std::collections::{BTreeMap, BTreeSet};
use std::ffi::OsStr;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;

pub(super) struct ImageList;

/// Names of the list in a directory, as in Hugging Face's imagefolder.
const NAMES: [&str; 3] = ["metadata.csv", "metadata.jsonl", "metadata.tsv"];
const ENDINGS: [&str; 4] = ["csv", "jsonl", "ndjson", "tsv"];
const DEFAULT_SPLIT: &str = "train";
/// Number of threads that look up the sizes of images.
const THREADS: usize = 16;
/// The label of an image without a class.
const UNLABELLED: i64 = -1;

impl Format for ImageList {
    /// Never detected: a table beside images may have any content, and `pack` packs the images. Commands that read records call
    /// [`image_list`].
    fn info(&self) -> &'static FormatInfo {
        &FormatInfo {
            name: "list",
            title: "a list of images",
            names_in_split_dirs: &NAMES,
            advice: "`forebay convert` takes the images and columns of the list",
            ..FormatInfo::NONE
        }
    }

    fn open(&self, input: &RecordInput) -> Result<RecordSource> {
        let root = input.location.local_path()?;
        let mut lists = Vec::new();
        for (split, path) in find(root)? {
            // An invalid list is refused before its whole content is read.
            let table = LabelTable::read_list(&path)?;
            lists.push((split, table, digest_of(&path)?));
        }
        let classes = Classes::of(lists.iter().map(|(_, table, _)| table))?;
        let mut identity = blake3::Hasher::new();
        let mut splits: BTreeMap<String, Vec<Images>> = BTreeMap::new();
        let mut findings = Vec::new();
        for (dir_split, table, digest) in lists {
            identity.update(&digest);
            let found = images_of(
                &dir_split,
                table,
                &classes,
                input.on_bad_record,
                &mut findings,
            )?;
            for (split, images) in found {
                if input.split.as_ref().is_none_or(|wanted| *wanted == split) {
                    splits.entry(split).or_default().push(images);
                }
            }
        }
        if splits.is_empty() {
            let what = match &input.split {
                Some(split) => format!("no image is of the split {split:?}"),
                None => "it lists no image".to_owned(),
            };
            return Err(Error::source(root, what));
        }
        let all = || splits.values().flatten();
        for image in all().flat_map(|images| &images.entries) {
            identity.update(&image.bytes.to_le_bytes());
        }
        let (features, schema) = features(root, all(), &input.drop_features)?;
        let splits = splits
            .into_iter()
            .map(|(name, files)| RecordSplit::new(name, files.into_iter().map(ListedImages)));
        Ok(RecordSource::annotated(
            splits.collect(),
            classes.entries,
            features,
            &schema,
            &identity,
            findings,
        ))
    }
}

/// Returns the name of an image list among the names at the top of a source: the only name if it is a table, or one of
/// imagefolder's names, which may be in the directory of a split.
pub fn image_list<'n>(names: &[&'n str]) -> Option<&'n str> {
    let is_list = |name: &&&str| {
        let last = name.rsplit('/').next().unwrap_or_default();
        let ending = Path::new(last).extension().and_then(OsStr::to_str);
        let is_table = ending.is_some_and(|ending| ENDINGS.contains(&ending));
        NAMES.contains(&last) || (is_table && names.len() == 1)
    };
    names.iter().find(is_list).copied()
}

/// Returns the lists of a source, each with the split from its own name or the name of its directory.
fn find(root: &Path) -> Result<Vec<(String, PathBuf)>> {
    let split_named = |path: &Path| {
        let name = path.file_stem().and_then(OsStr::to_str).unwrap_or_default();
        let split = split_name(name.as_bytes());
        split.unwrap_or(DEFAULT_SPLIT).to_owned()
    };
    if root.is_file() {
        return Ok(vec![(split_named(root), root.to_path_buf())]);
    }
    let mut found = Vec::new();
    let list_in = |dir: &Path| {
        NAMES
            .map(|name| dir.join(name))
            .into_iter()
            .find(|path| path.is_file())
    };
    found.extend(list_in(root).map(|path| (split_named(root), path)));
    if found.is_empty() {
        let entries = std::fs::read_dir(root).map_err(|error| Error::io(root, "list", error))?;
        for entry in entries {
            let dir = entry
                .map_err(|error| Error::io(root, "list", error))?
                .path();
            let name = dir.file_name().and_then(OsStr::to_str).unwrap_or_default();
            // A directory with a list is a split even if it does not have the name of one.
            let split = split_name(name.as_bytes()).unwrap_or(name);
            found.extend(list_in(&dir).map(|path| (split.to_owned(), path)));
        }
        found.sort_by(|a, b| a.1.cmp(&b.1));
    }
    match found.is_empty() {
        true => Err(Error::source(
            root,
            "there is no metadata.csv or metadata.jsonl, neither here nor in a directory of a split",
        )),
        false => Ok(found),
    }
}

/// The classes of all lists.
struct Classes {
    entries: Vec<ClassEntry>,
    labels: BTreeMap<Vec<u8>, i64>,
}

impl Classes {
    fn of<'a>(tables: impl Iterator<Item = &'a LabelTable> + Clone) -> Result<Self> {
        let mut names: BTreeSet<&Vec<u8>> = BTreeSet::new();
        let named = tables
            .clone()
            .filter(|table| table.names().is_some_and(|names| !names.is_empty()));
        names.extend(named.flat_map(|table| table.names().unwrap_or_default()));
        let by_number = tables
            .clone()
            .find(|table| table.names().is_none() && table.has_labels());
        if let (Some(table), false) = (by_number, names.is_empty()) {
            let what = "its labels are numbers, and another list has names of classes";
            return Err(Error::list(table.file(), what));
        }
        let mut entries = Vec::with_capacity(names.len());
        for name in &names {
            let name = std::str::from_utf8(name).map_err(|_| {
                let table = tables.clone().next();
                let file = table.map_or(Path::new(""), LabelTable::file);
                Error::list(file, format!("the class {:?} is not UTF-8", escape(name)))
            })?;
            entries.push(ClassEntry {
                name: name.to_owned(),
                text: None,
            });
        }
        let labels = names.into_iter().cloned().zip(0..).collect();
        Ok(Self { entries, labels })
    }

    fn label(&self, table: &LabelTable, line: u32, class: RowClass<'_>) -> Result<i64> {
        match class {
            RowClass::Unlabelled => Ok(UNLABELLED),
            RowClass::Number(number) if number >= UNLABELLED => Ok(number),
            RowClass::Number(number) => {
                let what = format!(
                    "line {line}: the label {number} is negative: labels count from 0, and -1 is none"
                );
                Err(Error::list(table.file(), what))
            }
            RowClass::Name(name) => Ok(self.labels.get(name).copied().unwrap_or(UNLABELLED)),
        }
    }
}

/// An image of a split.
#[derive(Debug)]
struct Entry {
    /// Its index in the [`LabelTable`].
    row: u32,
    /// Its line number in the list.
    line: u32,
    /// Path relative to the directory of the list, which is also the key.
    path: Vec<u8>,
    label: i64,
    bytes: u64,
}

/// The images of one list in a split, as one file of records.
#[derive(Debug)]
struct Images {
    /// The path of the list.
    path: PathBuf,
    entries: Vec<Entry>,
    columns: Arc<Columns>,
    has_labels: bool,
}

/// Groups the images of a list by split.
fn images_of(
    dir_split: &str,
    table: LabelTable,
    classes: &Classes,
    policy: OnBadRecord,
    findings: &mut Vec<Finding>,
) -> Result<BTreeMap<String, Images>> {
    let dir = table.file().parent().unwrap_or(Path::new("")).to_path_buf();
    let rows: Vec<u32> = (0..table.images()).collect();
    let forms = FileForms::default();
    let entry = |_: &mut (), row: &u32| {
        let (line, path) = (table.line(*row), table.path(*row));
        let label = classes.label(&table, line, table.class(*row))?;
        let found = find_listed(&dir, Path::new(OsStr::from_bytes(path)), &forms)?;
        let split = table.split(*row).unwrap_or(dir_split).to_owned();
        let entry = Entry {
            row: *row,
            line,
            path: match &found {
                Some((own, _)) => own.as_os_str().as_bytes().to_vec(),
                None => path.to_vec(),
            },
            label,
            bytes: 0,
        };
        Ok((split, found.map(|(_, bytes)| bytes), entry))
    };
    let mut splits: BTreeMap<String, Vec<Entry>> = BTreeMap::new();
    for found in map_parallel(&rows, THREADS, &|| false, || (), entry) {
        let (split, size, mut entry) = found.unwrap_or(Err(Error::Interrupted))?;
        let Some(bytes) = size else {
            let what = format!(
                "line {}: there is no such file: paths are relative to the list",
                entry.line
            );
            let (reason, list) = (Reason::NotThere, table.file());
            policy.leave_out(reason, list, &entry.path, what, findings)?;
            continue;
        };
        entry.bytes = bytes;
        splits.entry(split).or_default().push(entry);
    }
    let (path, has_labels) = (table.file().to_path_buf(), table.has_labels());
    findings.extend(Finding::other_forms(&path, forms.count()));
    let columns = table.into_columns(|table, line, class| classes.label(table, line, class))?;
    let columns = Arc::new(columns);
    let images = |entries| Images {
        path: path.clone(),
        entries,
        columns: Arc::clone(&columns),
        has_labels,
    };
    let splits = splits.into_iter();
    Ok(splits
        .map(|(split, entries)| (split, images(entries)))
        .collect())
}

/// Returns the features and columns of all records, which must be the same in all lists.
fn features<'a>(
    root: &Path,
    files: impl Iterator<Item = &'a Images>,
    dropped: &BTreeSet<String>,
) -> Result<(Vec<FeatureEntry>, Schema)> {
    let names = RecordFeatures::default();
    let mut all: BTreeMap<String, (FeatureKind, bool)> = BTreeMap::new();
    let mut texts: BTreeMap<String, bool> = BTreeMap::new();
    let mut first: Option<(&Path, BTreeMap<String, FeatureKind>)> = None;
    let mut has_labels = false;
    for images in files {
        has_labels |= images.has_labels;
        let own = images.columns.features();
        let kept = own.filter(|(name, ..)| !dropped.contains(*name));
        let mut kinds = BTreeMap::new();
        for (name, kind, is_list) in kept {
            kinds.insert(name.to_owned(), kind);
            let known = all.entry(name.to_owned()).or_insert((kind, is_list));
            known.1 |= is_list;
            let is_text = texts.entry(name.to_owned()).or_insert(true);
            *is_text &= images.columns.is_text(name);
        }
        match &first {
            None => first = Some((&images.path, kinds)),
            Some((path, known)) if *known != kinds => {
                let what = format!(
                    "its columns or their types differ from those of {}: make them alike, leave some out with {DROP_FEATURE}, or convert each list by itself",
                    path.display()
                );
                return Err(Error::list(&images.path, what));
            }
            Some(_) => {}
        }
    }
    let mut features = vec![FeatureEntry::new(&names.image, FeatureKind::Bytes, false)];
    let label = || FeatureEntry::new(&names.label, FeatureKind::Int64, false);
    features.extend(has_labels.then(label));
    let all = all.into_iter();
    features.extend(all.map(|(name, (kind, is_list))| FeatureEntry::new(name, kind, is_list)));
    features.sort_by(|a, b| a.name.cmp(&b.name));
    let mut columns = Schema::infer(&features, &names).columns().to_vec();
    for column in &mut columns {
        if column.column_type == ColumnType::Bytes && texts.get(&column.feature) == Some(&true) {
            column.column_type = ColumnType::Text;
        }
    }
    let schema = Schema::new(columns).map_err(|what| Error::source(root, what))?;
    Ok((features, schema))
}

impl ImageFiles for Images {
    fn path(&self) -> &Path {
        &self.path
    }

    fn count(&self) -> usize {
        self.entries.len()
    }

    fn image(&self, number: usize) -> ImageFile<'_> {
        let entry = &self.entries[number];
        ImageFile {
            dir: self.path.parent().unwrap_or(Path::new("")),
            name: Path::new(OsStr::from_bytes(&entry.path)),
            bytes: entry.bytes,
            more_bytes: 0,
            label: self.has_labels.then_some(entry.label),
            line: Some(entry.line),
            declared: None,
        }
    }

    fn encode(&self, number: usize, image: &ReadImage<'_>, out: &mut Vec<u8>) -> Result<()> {
        let (entry, names) = (&self.entries[number], RecordFeatures::default());
        let mut builder = ExampleBuilder::new();
        builder.add_bytes(&names.image, image.bytes);
        if self.has_labels {
            builder.add_int64(&names.label, entry.label);
        }
        self.columns.add_to(entry.row, &mut builder);
        builder.encode_into(out);
        Ok(())
    }
}
