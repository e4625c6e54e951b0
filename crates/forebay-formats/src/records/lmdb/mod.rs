//! LMDB: one file of keys and values. Values are encoded images, Caffe datums or `tensorflow.Example`s; Forebay writes the
//! latter.

mod pages;
#[cfg(test)]
mod tests;
mod write;

use super::CreateSink;
use super::conversion::Conversion;
use super::places::{
    Place, SplitFiles, by_split, files_at, named_files, split_of_array, written_files,
};
use super::values::{self, ValueFile, Values};
use super::{
    Format, FormatInfo, OwnedRecord, RecordFile, RecordInput, RecordReader, RecordSource,
    SourceRecord,
};
use crate::archive::{Archive, ArchiveFile, FileVersion};
use crate::error::{Error, Result};
use crate::option_names::CODEC;
use forebay_shard::BlockCompression;
use forebay_shard::index::MAX_KEY_BYTES;
use forebay_store::Location;
use pages::Tree;
use std::ops::Range;
use std::path::Path;
use std::sync::Arc;

pub(super) struct Lmdb;

const EXTENSION: &str = ".lmdb";
/// Names of the files in the directory of a database.
const DATA: &str = "data.mdb";
const LOCKS: &str = "lock.mdb";
const DATA_EXTENSION: &str = ".mdb";

impl Format for Lmdb {
    fn info(&self) -> &'static FormatInfo {
        &FormatInfo {
            name: "lmdb",
            title: "an LMDB database",
            extensions: &[EXTENSION, DATA_EXTENSION],
            names_in_split_dirs: &[DATA],
            advice: "`forebay convert SRC DST --format indexed` reads encoded images, datums of Caffe and tensorflow.Examples",
            ..FormatInfo::NONE
        }
    }

    fn detect<'n>(&self, names: &[&'n str]) -> Option<&'n str> {
        let has = |name: &&str| self.info().extensions.iter().any(|end| name.ends_with(end));
        let mut all = names.iter().copied().filter(|name| !name.ends_with(LOCKS));
        all.find(has)
    }

    fn open(&self, input: &RecordInput) -> Result<RecordSource> {
        let (root, conversion) = Conversion::of_source(input, self.info().name, |root| {
            self.detect(&[&root.to_string_lossy()]).is_some() && root.is_file()
        })?;
        let files = find(input, conversion.as_ref())?;
        if files.is_empty() {
            return Err(Error::source(&root, "there is no LMDB database here"));
        }
        let is_own = conversion.is_some();
        let source = values::open::<Database>(files, input, conversion, &root)?;
        let mut all = source.splits.iter().flat_map(|split| &split.files);
        match all.find(|file| !is_own && file.records() == 0) {
            Some(empty) => Err(Error::source(
                empty.path(),
                "it has no records: it is empty, or the page that says so is damaged",
            )),
            None => Ok(source),
        }
    }

    fn writer(&self) -> Option<CreateSink> {
        Some(
            |_, options| match options.compression == BlockCompression::NONE {
                true => Ok(Box::new(write::Sink)),
                false => Err(format!("LMDB has no compression: leave {CODEC} out")),
            },
        )
    }
}

/// Finds the databases of each split: files, or directories with `data.mdb`.
fn find(input: &RecordInput, conversion: Option<&Conversion>) -> Result<SplitFiles> {
    if let Some(conversion) = conversion {
        return written_files(input, conversion);
    }
    let is_data =
        |name: &str| name != LOCKS && (name.ends_with(EXTENSION) || name.ends_with(DATA_EXTENSION));
    let mut found = named_files(input)?;
    if found.is_empty() {
        found = files_at(&input.location, &input.read, &is_data)?;
    }
    if found.is_empty() {
        for dir in Place::open(&input.location, &input.read)?.dirs()? {
            let below = files_at(&input.location.join(&dir), &input.read, &|name| {
                name == DATA
            })?;
            found.extend(below.into_iter().map(|(_, archive)| (dir.clone(), archive)));
        }
    }
    for (name, _) in &mut found {
        *name = named(name, &input.location);
    }
    Ok(by_split(found, input.split.as_deref()))
}

/// Returns the part of a database's name that is its split: `train` for `ilsvrc12_train_lmdb`.
fn named(name: &str, location: &Location) -> String {
    let own = location.to_string();
    let own = own
        .trim_end_matches('/')
        .rsplit('/')
        .next()
        .unwrap_or_default();
    let name = if name == DATA { own } else { name };
    let stem = name.split('.').next().unwrap_or_default();
    let stem = stem.strip_suffix("_lmdb").unwrap_or(stem);
    match split_of_array(stem) {
        Some((split, _)) => split,
        None => stem.to_owned(),
    }
}

/// A database file.
#[derive(Debug)]
struct Database {
    archive: Archive,
    version: FileVersion,
    tree: Tree,
}

impl ValueFile for Database {
    fn open(archive: Archive) -> Result<Self> {
        let (version, file) = FileVersion::open(&archive)?;
        let tree = Tree::read(&file).map_err(|what| {
            let what = format!("it is not an LMDB database, or damaged: {what}");
            Error::source(&version.path, what)
        })?;
        Ok(Self {
            archive,
            version,
            tree,
        })
    }

    fn version(&self) -> &FileVersion {
        &self.version
    }

    fn first(&self) -> Result<Option<Vec<u8>>> {
        // An empty value is a damaged record, and does not show the kind of the others.
        let mut nodes = self.tree.nodes.iter().enumerate();
        let Some((number, node)) = nodes.find(|(_, node)| node.len > 0) else {
            return Ok(None);
        };
        let (mut key, mut value) = (Vec::new(), Vec::new());
        let file = self.version.reopen(&self.archive)?;
        let read = self.tree.value(&file, *node, &mut key, &mut value);
        read.map_err(|what| Error::source(&self.version.path, format!("record {number}: {what}")))?;
        Ok(Some(value))
    }

    fn into_records(self, values: Arc<Values>) -> Box<dyn RecordFile> {
        Box::new(Records {
            database: self,
            values,
        })
    }
}

/// A database whose values are read as records.
#[derive(Debug)]
struct Records {
    database: Database,
    values: Arc<Values>,
}

impl RecordFile for Records {
    fn path(&self) -> &Path {
        &self.database.version.path
    }

    fn bytes(&self) -> u64 {
        self.database.version.bytes
    }

    fn records(&self) -> u64 {
        self.database.tree.nodes.len() as u64
    }

    fn record_bytes(&self, record: u64) -> u64 {
        let node = self.database.tree.nodes.get(record as usize);
        node.map_or(0, |node| u64::from(node.len))
    }

    fn read(&self, records: Range<u64>) -> Result<Box<dyn RecordReader + '_>> {
        Ok(Box::new(Reader {
            records: self,
            file: self.database.version.reopen(&self.database.archive)?,
            next: records.start,
            end: records.end.min(self.records()),
            record: OwnedRecord::default(),
        }))
    }

    fn is_slow_to_encode(&self) -> bool {
        matches!(*self.values, Values::Datum { .. })
    }

    fn encode(&self, record: &mut OwnedRecord) -> Result<()> {
        let OwnedRecord { bytes, raw, .. } = record;
        if let Some(value) = raw.first_mut() {
            bytes.clear();
            let label = self.values.encode(value, bytes);
            record.label = label.map_err(|what| self.refused(record.number, what))?;
            if self.values.are_records() {
                std::mem::swap(value, bytes);
            }
        }
        Ok(())
    }
}

impl Records {
    fn refused(&self, record: u64, what: String) -> Error {
        Error::record(self.path(), record, what)
    }
}

struct Reader<'a> {
    records: &'a Records,
    file: ArchiveFile,
    next: u64,
    end: u64,
    record: OwnedRecord,
}

impl RecordReader for Reader<'_> {
    fn next_record(&mut self) -> Result<Option<SourceRecord<'_>>> {
        let mut record = std::mem::take(&mut self.record);
        let is_one = self.next_raw(&mut record)?;
        if is_one {
            self.records.encode(&mut record)?;
        }
        self.record = record;
        Ok(is_one.then(|| self.record.get()))
    }

    fn next_raw(&mut self, record: &mut OwnedRecord) -> Result<bool> {
        let number = self.next;
        if number >= self.end {
            return Ok(false);
        }
        self.next += 1;
        record.number = number;
        record.raw.resize_with(1, Vec::new);
        let Database { tree, .. } = &self.records.database;
        let (key, value) = (&mut record.key, &mut record.raw[0]);
        let node = tree.nodes[number as usize];
        let read = tree.value(&self.file, node, key, value);
        read.map_err(|what| self.records.refused(number, what))?;
        if key.len() > MAX_KEY_BYTES {
            let what = format!("a key of {} bytes is too long", key.len());
            return Err(self.records.refused(number, what));
        }
        if let Values::Own(_) = *self.records.values {
            key.drain(..write::PREFIX_BYTES.min(key.len()));
        }
        Ok(true)
    }
}
