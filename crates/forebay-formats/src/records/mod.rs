//! Sources of records: datasets of Forebay, and TFRecord files of other tools.
//!
//! # The seam
//!
//! A format is a row of [`RecordFormat::all`]: a name, the extensions of its files, how it is detected, and how a place of it
//! is opened. What it opens is data, a [`RecordSource`]: the splits with their files, and everything that a conversion keeps.
//! The two traits that a format implements are [`RecordFile`], a file whose records are counted and can be read from any one
//! on, and [`RecordReader`], which reads them in order. A record is an encoded `tensorflow.Example` with its key and label.
//!
//! # Formats with columns
//!
//! A format that stores columns (Parquet, MDS, WebDataset) needs nothing else: its reader encodes an `Example` for each row,
//! [`SourceFacts::features`] has the name, kind and shape of each column, and a row group or a sample's size is its
//! [`record_bytes`](RecordFile::record_bytes). Columns keep their names, but for `image`, `label` and `boxes`, which become
//! TensorFlow's keys. Reading single columns without encoding records is for readers in place; they will get a method of
//! [`RecordFile`] when one exists.

mod dataset;
mod foreign_records;
mod shards;
mod tfrecord;

pub use foreign_records::{ForeignRecords, ForeignSchema, class_names};

use crate::error::Result;
use forebay_cache::ReadOptions;
use forebay_shard::example::RecordFeatures;
use forebay_shard::manifest::{ClassEntry, EpochOrder, FeatureEntry};
use forebay_store::Location;
use std::collections::BTreeMap;
use std::fmt;
use std::ops::Range;
use std::path::{Path, PathBuf};

/// The table of formats, in the order in which they are detected.
const FORMATS: &[&dyn Format] = &[&dataset::Dataset, &tfrecord::TfRecord];

/// A format that records are read from.
pub(crate) trait Format: Send + Sync {
    /// The name in options and errors.
    fn name(&self) -> &'static str;

    /// A place of this format in words, with an article.
    fn title(&self) -> &'static str;

    /// The extensions of its files, with the dot.
    fn extensions(&self) -> &'static [&'static str];

    /// Returns the name that shows this format among the names at the top of a place.
    fn detect<'n>(&self, names: &[&'n str]) -> Option<&'n str>;

    /// How a user of `pack` gets shards of it.
    fn advice(&self) -> &'static str;

    /// Opens a place.
    fn open(&self, input: &RecordInput) -> Result<RecordSource>;
}

/// The first name with an extension of the format. The names of compressed files and of numbered ones go on behind it.
fn by_extension<'n>(format: &dyn Format, names: &[&'n str]) -> Option<&'n str> {
    let has = |name: &&str| format.extensions().iter().any(|end| name.contains(end));
    names.iter().copied().find(has)
}

/// A row of the table of formats.
#[derive(Clone, Copy)]
pub struct RecordFormat(&'static dyn Format);

impl RecordFormat {
    /// A dataset with a manifest, of TFRecord or indexed shards.
    pub const DATASET: Self = Self(&dataset::Dataset);
    /// TFRecord files of another tool.
    pub const TFRECORD: Self = Self(&tfrecord::TfRecord);

    /// Returns all formats in the order in which they are detected.
    pub fn all() -> impl ExactSizeIterator<Item = Self> {
        FORMATS.iter().map(|format| Self(*format))
    }

    /// Returns the name in options and errors.
    pub fn name(self) -> &'static str {
        self.0.name()
    }

    /// Returns what a place of this format is, with an article: `a Forebay dataset`.
    pub fn title(self) -> &'static str {
        self.0.title()
    }

    /// Returns the extensions of its files, with the dot.
    pub fn extensions(self) -> &'static [&'static str] {
        self.0.extensions()
    }

    /// Returns how a user of `pack` gets shards of it.
    pub fn advice(self) -> &'static str {
        self.0.advice()
    }

    /// Returns the first format that the names at the top of a place show, and the name that shows it.
    pub fn detect<'n>(names: &[&'n str]) -> Option<(Self, &'n str)> {
        Self::all().find_map(|format| Some((format, format.0.detect(names)?)))
    }

    /// Opens a place of this format. Reads indexes and, without one, the headers of all records.
    ///
    /// # Errors
    /// [`Error::Record`](crate::Error::Record) if a first record does not tell its features, and those of the files.
    pub fn open(self, input: &RecordInput) -> Result<RecordSource> {
        self.0.open(input)
    }
}

impl fmt::Debug for RecordFormat {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

/// Which records are read, and how.
#[derive(Debug, Clone)]
#[non_exhaustive]
pub struct RecordInput {
    /// The place, for messages and class lists too.
    pub location: Location,
    /// The files of each split in order, for formats without a list of their own.
    pub splits: BTreeMap<String, Vec<PathBuf>>,
    /// Which features hold image, label and key, for formats that do not say.
    pub features: ForeignRecords,
    /// How a place that is no local directory is read.
    pub read: ReadOptions,
}

impl RecordInput {
    /// Returns the input of all records at a place.
    pub fn new(location: impl Into<Location>) -> Self {
        Self {
            location: location.into(),
            splits: BTreeMap::new(),
            features: ForeignRecords::default(),
            read: ReadOptions::default(),
        }
    }
}

/// An open source of records.
#[derive(Debug)]
pub struct RecordSource {
    /// The splits in the order of their names.
    pub splits: Vec<RecordSplit>,
    /// Facts about all splits.
    pub facts: SourceFacts,
}

/// Facts about all records of a source, which go into the manifest of a dataset that is made of it.
#[derive(Debug, Clone)]
pub struct SourceFacts {
    /// The label of the first class.
    pub label_base: i64,
    /// The classes in the order of their labels; empty where the source has no names.
    pub classes: Vec<ClassEntry>,
    /// The features (columns) of records: name, kind and shape.
    pub features: Vec<FeatureEntry>,
    /// The features that hold image and label.
    pub record_features: RecordFeatures,
    /// How the features of another tool's records were found, and the directory of its files.
    pub schema: Option<(ForeignSchema, PathBuf)>,
    /// Options that the source was packed with.
    pub pack: BTreeMap<String, serde_json::Value>,
    /// The identity of the source, by name: an interrupted conversion continues only if all of it is the same.
    pub identity: BTreeMap<String, String>,
    /// How epochs order its samples: what the source says or, without that, what loaders take from its files.
    pub order: EpochOrder,
}

/// The files of a split.
#[derive(Debug)]
pub struct RecordSplit {
    /// The split's name.
    pub name: String,
    /// Its files in order.
    pub files: Vec<Box<dyn RecordFile>>,
}

/// A file of records.
pub trait RecordFile: fmt::Debug + Send + Sync {
    /// Returns the path of the file.
    fn path(&self) -> &Path;

    /// Returns the size of the file in bytes.
    fn bytes(&self) -> u64;

    /// Returns the number of records.
    fn records(&self) -> u64;

    /// Returns the size of an encoded record in bytes; 0 beyond the end.
    fn record_bytes(&self, record: u64) -> u64;

    /// Reads records in order.
    ///
    /// # Errors
    /// Those of the file, and damage.
    fn read(&self, records: Range<u64>) -> Result<Box<dyn RecordReader + '_>>;
}

/// Reads records of a file in order.
pub trait RecordReader {
    /// Reads the next record; none at the end.
    ///
    /// # Errors
    /// Those of the file, and damage.
    fn next_record(&mut self) -> Result<Option<SourceRecord<'_>>>;
}

/// A record and what is known about it.
#[derive(Debug, Clone, Copy)]
pub struct SourceRecord<'a> {
    /// Its number in the file.
    pub number: u64,
    /// The encoded `tensorflow.Example`; other bytes are copied as they are.
    pub bytes: &'a [u8],
    /// Its label, as stored.
    pub label: Option<i64>,
    /// Its key; empty where it has none.
    pub key: &'a [u8],
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn formats_are_detected_by_the_names_at_the_top() {
        let detect = |names: &[&'static str]| {
            RecordFormat::detect(names).map(|(format, sign)| (format.name(), sign))
        };
        for (names, expected) in [
            (
                &["train-00000-of-00002", "forebay.json"][..],
                Some(("dataset", "forebay.json")),
            ),
            (
                &["train-00000-of-00002.fbs"],
                Some(("dataset", "train-00000-of-00002.fbs")),
            ),
            (
                &["x", "train-00000-of-01024"],
                Some(("tfrecord", "train-00000-of-01024")),
            ),
            (&["a.tfrecord.gz"], Some(("tfrecord", "a.tfrecord.gz"))),
            (
                &["a.tfrecord-00000-of-00001"],
                Some(("tfrecord", "a.tfrecord-00000-of-00001")),
            ),
            (&["best-of-all", "a.jpg", "-of-1"], None),
            (&[], None),
        ] {
            assert_eq!(detect(names), expected);
        }
        let names: std::collections::BTreeSet<_> = RecordFormat::all().map(|f| f.name()).collect();
        assert_eq!(names.len(), RecordFormat::all().len());
    }
}
