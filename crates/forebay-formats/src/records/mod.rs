//! Records: datasets of Forebay, and the formats of other tools that are read and written.
//!
//! # Interface of a format
//!
//! A format is a row of [`RecordFormat::all`]: its name, the extensions of its files, how it is detected, and how a source in
//! this format is opened. Opening returns a [`RecordSource`]: the splits with their files, and the facts that a conversion
//! keeps. A format implements two traits: [`RecordFile`], a file with a known number of records that can be read from any
//! record on, and [`RecordReader`], which reads them in order. A record is an encoded `tensorflow.Example` with its key and
//! label.
//!
//! A format that can be written also has a `writer`, which returns a [`RecordSink`]. The sink names the files and creates a
//! [`RecordWriter`] for each. Callers write these files like shards: in parallel, resumable, and published at the end.
//! [`RecordWriter::finish`] returns what the format's index needs to know of the file. The caller stores this in its journal,
//! so that a later run can call [`RecordSink::index`].
//!
//! # Formats with columns
//!
//! The reader of a format with columns (WebDataset, MDS) encodes an `Example` for each row, and [`SourceFacts::schema`] has the
//! columns. Columns keep their names, except for `image`, `label` and `boxes`, which get TensorFlow's keys. Facts of a dataset
//! that a sink cannot store (classes, label base, order) are written to a [`Conversion`] beside its files, and read from there
//! when these files are a source.

mod annotation_files;
mod array_record;
mod arrays;
mod blosc;
#[cfg(all(test, feature = "formats"))]
mod bombs;
mod checked;
mod class_names;
mod coco;
mod conversion;
mod dataset;
mod datum;
mod extents;
mod first_records;
mod foreign_records;
mod hdf5;
mod image_list;
mod key_names;
mod label_role;
mod label_value;
mod listed_images;
mod litdata;
mod lmdb;
mod mds;
mod npy;
mod npz;
mod numbering;
mod numbers;
mod open_images;
mod owned;
mod parquet;
mod places;
mod safetensors;
mod samples;
mod shards;
mod sink;
mod tfrecord;
mod unlisted;
mod values;
mod voc;
mod webdataset;
mod zarr;

#[cfg(any(test, feature = "fuzzing"))]
pub(crate) use array_record::riegeli_hash;
#[cfg(any(test, feature = "fuzzing"))]
pub(crate) use blosc::decompress as decompress_blosc;
pub use conversion::Conversion;
pub use extents::find_again;
pub use foreign_records::{ForeignRecords, ForeignSchema, class_names};
pub use image_list::image_list;
pub use label_role::LabelRole;
pub use label_value::LabelForm;
pub use owned::OwnedRecord;
pub use places::{expand_braces, has_braces};
pub use sink::{Appended, RecordSink, RecordWriter, Scratch, SinkError, SinkOptions};

use crate::error::{Error, Result};
use crate::finding::{Action, Finding, Reason, escape};
use forebay_cache::ReadOptions;
use forebay_shard::example::RecordFeatures;
use forebay_shard::manifest::{ClassEntry, EpochOrder, FeatureEntry, block_records};
use forebay_shard::mapped::Extent;
use forebay_shard::schema::Schema;
use forebay_store::Location;
use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::ops::Range;
use std::path::{Component, Path, PathBuf};

/// The table of formats, in the order in which they are detected.
const FORMATS: &[&dyn Format] = &[
    &dataset::Dataset,
    // Before TFRecord, whose files are numbered in the same way.
    &array_record::ArrayRecord,
    &tfrecord::TfRecord,
    // Before MDS, whose index file has the same name.
    &litdata::LitData,
    &mds::Mds,
    &webdataset::WebDataset,
    &parquet::Parquet,
    &coco::Coco,
    &voc::Voc,
    &open_images::OpenImages,
    &image_list::ImageList,
    &safetensors::Safetensors,
    &npz::Npz,
    &hdf5::Hdf5,
    &lmdb::Lmdb,
    &zarr::Zarr,
];

/// Extensions of pickled files. These are never read, because unpickling executes code from the file.
pub(crate) const PICKLED: &[&str] = &[".pt", ".pth", ".pkl", ".pickle"];

/// Returns why a pickled file is not read and what to do instead; `None` for other names.
pub fn pickled_advice(name: &str) -> Option<&'static str> {
    let is_pickled = PICKLED.iter().any(|ending| name.ends_with(ending));
    is_pickled.then_some(
        "it is pickled, and reading it would execute what it says: load it yourself, and save its tensors with `safetensors.torch.save_file` or `numpy.savez`",
    )
}

/// Creates a sink for records with these facts. Returns an error for features that the format cannot hold.
pub(crate) type CreateSink =
    fn(&SourceFacts, &SinkOptions) -> std::result::Result<Box<dyn RecordSink>, String>;

/// A format that records are read from.
pub(crate) trait Format: Send + Sync {
    /// Returns the name in options and errors.
    fn name(&self) -> &'static str;

    /// Returns a description of a source in this format, with an article: `a Forebay dataset`.
    fn title(&self) -> &'static str;

    /// Returns the extensions of the format's files, with the dot.
    fn extensions(&self) -> &'static [&'static str] {
        &[]
    }

    /// Returns the name of the index file that every source in this format has, if the format has one.
    fn index_name(&self) -> Option<&'static str> {
        None
    }

    /// Returns the first of `names`, the names at the top of a source, that identifies this format.
    fn detect<'n>(&self, names: &[&'n str]) -> Option<&'n str>;

    /// Returns how a user of `pack` converts this format to shards.
    fn advice(&self) -> &'static str;

    /// Opens a source in this format.
    fn open(&self, input: &RecordInput) -> Result<RecordSource>;

    /// Returns the function that creates a sink of this format; `None` if the format is only read.
    fn writer(&self) -> Option<CreateSink> {
        None
    }
}

/// Returns the first name with an extension of the format. Text may follow the extension: a number, or the extension of a
/// compressor.
fn by_extension<'n>(format: &dyn Format, names: &[&'n str]) -> Option<&'n str> {
    let has = |name: &&str| format.extensions().iter().any(|end| name.contains(end));
    names.iter().copied().find(has)
}

/// A row of the table of formats.
#[derive(Clone, Copy)]
pub struct RecordFormat(&'static dyn Format);

impl RecordFormat {
    /// A dataset with a manifest and TFRecord or indexed shards.
    pub const DATASET: Self = Self(&dataset::Dataset);
    /// TFRecord files of another tool.
    pub const TFRECORD: Self = Self(&tfrecord::TfRecord);
    /// COCO's annotations and images.
    pub const COCO: Self = Self(&coco::Coco);
    /// Pascal VOC's annotations and images.
    pub const VOC: Self = Self(&voc::Voc);
    /// OpenImages' boxes and images.
    pub const OPEN_IMAGES: Self = Self(&open_images::OpenImages);
    /// Lists of images in CSV, TSV and JSON lines files.
    pub const IMAGE_LIST: Self = Self(&image_list::ImageList);
    /// HDF5 files.
    pub const HDF5: Self = Self(&hdf5::Hdf5);
    /// Chunks of LitData.
    pub const LITDATA: Self = Self(&litdata::LitData);
    /// LMDB databases.
    pub const LMDB: Self = Self(&lmdb::Lmdb);
    /// NumPy's arrays.
    pub const NPZ: Self = Self(&npz::Npz);
    /// ArrayRecord files, which Grain and TensorFlow Datasets read.
    pub const ARRAY_RECORD: Self = Self(&array_record::ArrayRecord);
    /// Zarr's arrays.
    pub const ZARR: Self = Self(&zarr::Zarr);
    /// Tensors of safetensors.
    pub const SAFETENSORS: Self = Self(&safetensors::Safetensors);
    /// Parquet files.
    pub const PARQUET: Self = Self(&parquet::Parquet);
    /// Shards of MosaicML's Streaming.
    pub const MDS: Self = Self(&mds::Mds);
    /// Tar files whose members are the columns of samples.
    pub const WEBDATASET: Self = Self(&webdataset::WebDataset);

    /// Returns all formats in the order in which they are detected.
    pub fn all() -> impl ExactSizeIterator<Item = Self> {
        FORMATS.iter().map(|format| Self(*format))
    }

    /// Returns the name in options and errors.
    pub fn name(self) -> &'static str {
        self.0.name()
    }

    /// Returns a description of a source in this format, with an article: `a Forebay dataset`.
    pub fn title(self) -> &'static str {
        self.0.title()
    }

    /// Returns the extensions of the format's files, with the dot.
    pub fn extensions(self) -> &'static [&'static str] {
        self.0.extensions()
    }

    /// Returns how a user of `pack` converts this format to shards.
    pub fn advice(self) -> &'static str {
        self.0.advice()
    }

    /// Returns the first format that the names at the top of a source identify, and the name that identifies it.
    pub fn detect<'n>(names: &[&'n str]) -> Option<(Self, &'n str)> {
        Self::all().find_map(|format| Some((format, format.0.detect(names)?)))
    }

    /// Opens a source in this format. Reads the indexes or, without an index, the headers of all records. Records of other
    /// tools are checked when they are read: each needs an image that loaders can decode, and a label in the range of the
    /// classes.
    ///
    /// # Errors
    /// [`Error::Record`] if the features cannot be determined from the first records, [`Error::Source`] if a column has the
    /// name of a label and does not hold labels, and the errors of reading the files.
    pub fn open(self, input: &RecordInput) -> Result<RecordSource> {
        input.check()?;
        let mut source = self.0.open(input)?;
        let unlisted = unlisted::find(self.0, input, &source)?;
        source.facts.findings.extend(unlisted);
        let missing = numbering::find(input, &source)?;
        source.facts.findings.extend(missing);
        checked::checked(source, input)
    }

    /// Returns the format of this name.
    pub fn named(name: &str) -> Option<Self> {
        Self::all().find(|format| format.name() == name)
    }

    /// Returns whether [`create`](Self::create) supports the format.
    pub fn is_written(self) -> bool {
        self.0.writer().is_some()
    }

    /// Creates a sink for records with these facts.
    ///
    /// # Errors
    /// Features that the format cannot hold, or an option that the format does not have.
    pub fn create(
        self,
        facts: &SourceFacts,
        options: &SinkOptions,
    ) -> std::result::Result<Box<dyn RecordSink>, String> {
        match self.0.writer() {
            Some(create) => create(facts, options),
            None => Err(format!("{} cannot be written", self.title())),
        }
    }
}

impl PartialEq for RecordFormat {
    fn eq(&self, other: &Self) -> bool {
        self.name() == other.name()
    }
}

impl Eq for RecordFormat {}

impl fmt::Debug for RecordFormat {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

/// The records to read, and how to read them.
#[derive(Debug, Clone)]
#[non_exhaustive]
pub struct RecordInput {
    /// The location of the source, which messages show and where class lists are searched.
    pub location: Location,
    /// The files of each split in order, for formats that have no list of their files.
    pub splits: BTreeMap<String, Vec<PathBuf>>,
    /// Files that the user named one by one, instead of all files at the location.
    pub files: Vec<Location>,
    /// Assigns all files to this split. By default the split follows from the file names.
    pub split: Option<String>,
    /// Names of features to leave out.
    pub drop_features: BTreeSet<String>,
    /// Policy for records that cannot be read.
    pub on_bad_record: OnBadRecord,
    /// Options for the features that hold image, label and key, for formats that do not name them.
    pub features: ForeignRecords,
    /// Options for reading from an object store.
    pub read: ReadOptions,
}

impl RecordInput {
    /// Returns the input of all records at a location.
    pub fn new(location: impl Into<Location>) -> Self {
        Self {
            location: location.into(),
            splits: BTreeMap::new(),
            files: Vec::new(),
            split: None,
            drop_features: BTreeSet::new(),
            on_bad_record: OnBadRecord::default(),
            features: ForeignRecords::default(),
            read: ReadOptions::default(),
        }
    }
}

impl RecordInput {
    /// Refuses a file that is named twice: its records would be read twice.
    fn check(&self) -> Result<()> {
        let named = self.files.iter().map(|file| file.to_string().into());
        let listed = self.splits.values().flatten().cloned();
        let mut known = BTreeSet::new();
        for path in named.chain(listed) {
            let parts = path.components();
            let plain: PathBuf = parts.filter(|part| *part != Component::CurDir).collect();
            if !known.insert(plain) {
                let what = "it is named twice: name each file once, since its records would be there twice";
                return Err(Error::source(path, what));
            }
        }
        Ok(())
    }
}

/// Policy for records that cannot be read.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum OnBadRecord {
    /// Return the first one as an error.
    #[default]
    Fail,
    /// Leave them out and list them as findings.
    Skip,
}

impl OnBadRecord {
    /// Adds a finding about an image that is left out, or returns an error, by policy. `name` is relative to `place`.
    fn leave_out(
        self,
        reason: Reason,
        place: &Path,
        name: &[u8],
        what: String,
        findings: &mut Vec<Finding>,
    ) -> Result<()> {
        match self {
            Self::Skip => findings.push(Finding::new(Action::Skipped, reason, name, what)),
            Self::Fail => {
                let name = escape(name);
                let what = format!("{name}: {what}; --on-bad skip leaves it out");
                return Err(Error::source(place, what));
            }
        }
        Ok(())
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

impl RecordSource {
    /// Checks that every split has at least one record.
    ///
    /// # Errors
    /// The name of a split without records.
    pub fn check_splits(&self) -> std::result::Result<(), String> {
        let is_empty = |split: &&RecordSplit| split.files.iter().all(|file| file.records() == 0);
        if self.splits.iter().all(|split| is_empty(&split)) {
            return Err("there are no records in it".to_owned());
        }
        match self.splits.iter().find(is_empty) {
            None => Ok(()),
            Some(split) => Err(format!(
                "the split {:?} has no records: complete it, or leave its files out",
                split.name
            )),
        }
    }

    /// Returns a source of images with annotations. `digest` is the hash of the files, which identifies the source.
    pub(crate) fn annotated(
        splits: Vec<RecordSplit>,
        classes: Vec<ClassEntry>,
        features: Vec<FeatureEntry>,
        schema: Schema,
        digest: String,
    ) -> Self {
        let names: Vec<&str> = features.iter().map(|entry| entry.name.as_str()).collect();
        let identity = [("source_files", digest), ("columns", names.join(","))];
        let facts = SourceFacts {
            label_base: 0,
            classes,
            features,
            schema,
            record_features: RecordFeatures::default(),
            foreign: None,
            findings: Vec::new(),
            pack: BTreeMap::from([("tool".to_owned(), "convert".into())]),
            identity: identity
                .map(|(name, value)| (name.to_owned(), value))
                .into(),
            order: order_by_sizes(&splits),
            is_own: false,
            label: None,
            warnings: Vec::new(),
        };
        Self { splits, facts }
    }
}

/// Facts about all records of a source. Packing writes them to the manifest.
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
    /// The columns; empty if they follow from the features.
    pub schema: Schema,
    /// The features that were chosen for another tool's records, and the directory of its files.
    pub foreign: Option<(ForeignSchema, PathBuf)>,
    /// Options that the source was packed with.
    pub pack: BTreeMap<String, serde_json::Value>,
    /// Values that identify the source, by name. An interrupted conversion continues only if all of them are unchanged.
    pub identity: BTreeMap<String, String>,
    /// The order of samples in epochs: from the source, or by default computed from the sizes of its files.
    pub order: EpochOrder,
    /// Findings about records that were left out, and about files that are not records.
    pub findings: Vec<Finding>,
    /// Whether Forebay wrote the records, so that they need no checks and no detection of features.
    pub is_own: bool,
    /// The source of labels; `None` without labels, and for records that Forebay wrote.
    pub label: Option<LabelRole>,
    /// Automatic decisions that the user may want to change.
    pub warnings: Vec<String>,
}

impl SourceFacts {
    /// Returns the columns: those of the source, or columns inferred from the features.
    pub fn columns(&self) -> Schema {
        match self.schema.is_empty() {
            true => Schema::infer(&self.features, &self.record_features),
            false => self.schema.clone(),
        }
    }
}

/// Returns the default order of samples, from the numbers of records and bytes of each split.
fn order_by_sizes(splits: &[RecordSplit]) -> EpochOrder {
    let mut order = EpochOrder::default();
    for split in splits {
        let files = split.files.iter();
        let (bytes, records) = files.fold((0, 0), |(bytes, records), file| {
            let sizes = (0..file.records()).map(|record| file.record_bytes(record));
            (bytes + sizes.sum::<u64>(), records + file.records())
        });
        let block = block_records(records, bytes);
        order.block_records.insert(split.name.clone(), block);
    }
    order
}

/// The files of a split.
#[derive(Debug)]
pub struct RecordSplit {
    /// The split's name.
    pub name: String,
    /// Its files in order.
    pub files: Vec<Box<dyn RecordFile>>,
}

impl RecordSplit {
    pub(crate) fn new<F: RecordFile + 'static>(
        name: String,
        files: impl IntoIterator<Item = F>,
    ) -> Self {
        let files = files.into_iter().map(|file| Box::new(file) as _).collect();
        Self { name, files }
    }
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

    /// Returns why loaders cannot read the records of this file without a conversion; `None` if they can.
    fn in_place_refusal(&self) -> Option<String> {
        Some("this format is not read in place".to_owned())
    }

    /// Reads records in order.
    ///
    /// # Errors
    /// Those of the file, and damage.
    fn read(&self, records: Range<u64>) -> Result<Box<dyn RecordReader + '_>>;

    /// Returns whether encoding records takes longer than reading them, so that several threads should encode them.
    fn is_slow_to_encode(&self) -> bool {
        false
    }

    /// Encodes a record that was read by [`RecordReader::next_raw`].
    ///
    /// # Errors
    /// [`Error::Record`], as [`RecordReader::next_record`].
    fn encode(&self, _record: &mut OwnedRecord) -> Result<()> {
        Ok(())
    }

    /// Returns the inner file if this one only adds checks.
    fn unchecked(&self) -> Option<&dyn RecordFile> {
        None
    }

    /// Returns a view of the file whose records have only this column, if the format can read the column without the others.
    fn with_column(&self, _column: &str) -> Option<Box<dyn RecordFile + '_>> {
        None
    }
}

/// Reads records of a file in order.
pub trait RecordReader {
    /// Reads the next record; `None` at the end.
    ///
    /// # Errors
    /// Errors of reading the file, and damaged records. After [`Error::Record`] the next record can be read if the format knows
    /// its position.
    fn next_record(&mut self) -> Result<Option<SourceRecord<'_>>>;

    /// Reads the next record like [`next_record`](Self::next_record), but leaves work that another thread can do to
    /// [`RecordFile::encode`]. Returns false at the end.
    ///
    /// # Errors
    /// As [`next_record`](Self::next_record).
    fn next_raw(&mut self, record: &mut OwnedRecord) -> Result<bool> {
        let next = self.next_record()?;
        let is_one = next.is_some();
        if let Some(next) = next {
            record.set(&next);
        }
        Ok(is_one)
    }

    /// Reads the next record like [`next_record`](Self::next_record), and lists in `extents` the parts of it that are stored
    /// unchanged in the file.
    ///
    /// # Errors
    /// As [`next_record`](Self::next_record).
    fn next_mapped(&mut self, extents: &mut Vec<Extent>) -> Result<Option<SourceRecord<'_>>> {
        extents.clear();
        self.next_record()
    }

    /// Returns and clears the findings about records that were read and kept.
    fn take_remarks(&mut self) -> Vec<Finding> {
        Vec::new()
    }
}

/// A record with its number, key and label.
#[derive(Debug, Clone, Copy)]
pub struct SourceRecord<'a> {
    /// Its number in the file.
    pub number: u64,
    /// The encoded `tensorflow.Example`. Other bytes are copied unchanged.
    pub bytes: &'a [u8],
    /// Its label, as stored.
    pub label: Option<i64>,
    /// Its key; empty if it has none.
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
