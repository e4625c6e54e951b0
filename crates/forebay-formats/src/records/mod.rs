//! Records: datasets of Forebay, and formats of other tools, which are read and written.
//!
//! # The seam
//!
//! A format is a row of [`RecordFormat::all`]: a name, the extensions of its files, how it is detected, and how a place of it
//! is opened. What it opens is data, a [`RecordSource`]: the splits with their files, and everything that a conversion keeps.
//! The two traits that a format implements are [`RecordFile`], a file whose records are counted and can be read from any one
//! on, and [`RecordReader`], which reads them in order. A record is an encoded `tensorflow.Example` with its key and label.
//!
//! A format that is written too has `writer`: it gives a [`RecordSink`], which names files and makes a
//! [`RecordWriter`] for each. A caller drives them as it drives shards: in parallel, resumable, published last. What an index
//! of the format needs of a file is [`RecordWriter::finish`]'s result, which a journal keeps, so that
//! [`RecordSink::index`] can be made by a later run.
//!
//! # Formats with columns
//!
//! A format that stores columns (WebDataset, MDS) needs nothing else: its reader encodes an `Example` for each row, and
//! [`SourceFacts::schema`] has the columns. Columns keep their names, but for `image`, `label` and `boxes`, which become
//! TensorFlow's keys. What a sink cannot store of a dataset (classes, label base, order) is in a
//! [`Conversion`] beside its files, from which a source has it again.

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
    // Before TFRecords, which are numbered in the same way.
    &array_record::ArrayRecord,
    &tfrecord::TfRecord,
    // Before MDS, whose list has the same name.
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

/// The endings of files that are pickled: reading one executes what it says, so none is read.
pub(crate) const PICKLED: &[&str] = &[".pt", ".pth", ".pkl", ".pickle"];

/// Returns why a file of this name is not read, if it is pickled, and what to do instead.
pub fn pickled_advice(name: &str) -> Option<&'static str> {
    let is_pickled = PICKLED.iter().any(|ending| name.ends_with(ending));
    is_pickled.then_some(
        "it is pickled, and reading it would execute what it says: load it yourself, and save its tensors with `safetensors.torch.save_file` or `numpy.savez`",
    )
}

/// Prepares to write records with these facts, or says which of their features cannot be written.
pub(crate) type CreateSink =
    fn(&SourceFacts, &SinkOptions) -> std::result::Result<Box<dyn RecordSink>, String>;

/// A format that records are read from.
pub(crate) trait Format: Send + Sync {
    /// The name in options and errors.
    fn name(&self) -> &'static str;

    /// A place of this format in words, with an article.
    fn title(&self) -> &'static str;

    /// The extensions of its files, with the dot.
    fn extensions(&self) -> &'static [&'static str] {
        &[]
    }

    /// The name of the index that every place of it has, if it has one.
    fn index_name(&self) -> Option<&'static str> {
        None
    }

    /// Returns the name that shows this format among the names at the top of a place.
    fn detect<'n>(&self, names: &[&'n str]) -> Option<&'n str>;

    /// How a user of `pack` gets shards of it.
    fn advice(&self) -> &'static str;

    /// Opens a place.
    fn open(&self, input: &RecordInput) -> Result<RecordSource>;

    /// The function that prepares to write records to this format; `None` if it is only read.
    fn writer(&self) -> Option<CreateSink> {
        None
    }
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
    /// ArrayRecord files, as Grain and TensorFlow Datasets read them.
    pub const ARRAY_RECORD: Self = Self(&array_record::ArrayRecord);
    /// Zarr's arrays.
    pub const ZARR: Self = Self(&zarr::Zarr);
    /// Tensors of safetensors.
    pub const SAFETENSORS: Self = Self(&safetensors::Safetensors);
    /// Parquet files.
    pub const PARQUET: Self = Self(&parquet::Parquet);
    /// Shards of MosaicML's Streaming.
    pub const MDS: Self = Self(&mds::Mds);
    /// Tars whose members are the columns of samples.
    pub const WEBDATASET: Self = Self(&webdataset::WebDataset);

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

    /// Opens a place of this format. Reads indexes and, without one, the headers of all records. Records of other tools
    /// are checked when they are read: each has an image that loaders read and a label that is a class.
    ///
    /// # Errors
    /// [`Error::Record`] if a first record does not tell its features, those of the files, and
    /// [`Error::Source`] if a column is called a label and holds none.
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

    /// Returns whether [`create`](Self::create) writes it.
    pub fn is_written(self) -> bool {
        self.0.writer().is_some()
    }

    /// Prepares to write records with these facts.
    ///
    /// # Errors
    /// The features that the format cannot hold, or an option that it does not have.
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

/// Which records are read, and how.
#[derive(Debug, Clone)]
#[non_exhaustive]
pub struct RecordInput {
    /// The place, for messages and class lists too.
    pub location: Location,
    /// The files of each split in order, for formats without a list of their own.
    pub splits: BTreeMap<String, Vec<PathBuf>>,
    /// The files that were named one by one, instead of all at the place.
    pub files: Vec<Location>,
    /// All files belong to this split; by default their names say to which.
    pub split: Option<String>,
    /// Features that are left out.
    pub drop_features: BTreeSet<String>,
    /// Policy for samples that cannot be read.
    pub on_bad_record: OnBadRecord,
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
    /// Refuses a file that is named twice, whose records would count twice.
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
    /// The first one is an error.
    #[default]
    Fail,
    /// They are left out and listed.
    Skip,
}

impl OnBadRecord {
    /// Lists an image that is left out, by its name below a place, or returns its error.
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
    /// Checks that every split has records.
    ///
    /// # Errors
    /// The split that has none.
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

    /// Returns a source of images with annotations. `digest` identifies the files.
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
    /// The columns that the features make up; empty where they follow from the features.
    pub schema: Schema,
    /// How the features of another tool's records were found, and the directory of its files.
    pub foreign: Option<(ForeignSchema, PathBuf)>,
    /// Options that the source was packed with.
    pub pack: BTreeMap<String, serde_json::Value>,
    /// The identity of the source, by name: an interrupted conversion continues only if all of it is the same.
    pub identity: BTreeMap<String, String>,
    /// How epochs order its samples: what the source says or, without that, what loaders take from its files.
    pub order: EpochOrder,
    /// Records that were left out, and files that are no records.
    pub findings: Vec<Finding>,
    /// Whether Forebay wrote the records, so that nothing about them has to be found out.
    pub is_own: bool,
    /// The source of labels; `None` without labels, and for records that Forebay wrote.
    pub label: Option<LabelRole>,
    /// Decisions that a user may want otherwise.
    pub warnings: Vec<String>,
}

impl SourceFacts {
    /// Returns the columns: as the source has them, or inferred from the features.
    pub fn columns(&self) -> Schema {
        match self.schema.is_empty() {
            true => Schema::infer(&self.features, &self.record_features),
            false => self.schema.clone(),
        }
    }
}

/// How loaders order the samples of splits where nothing says.
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

    /// Returns why loaders cannot read the records of this file where they are; `None` if they can.
    fn in_place_refusal(&self) -> Option<String> {
        Some("this format is not read in place".to_owned())
    }

    /// Reads records in order.
    ///
    /// # Errors
    /// Those of the file, and damage.
    fn read(&self, records: Range<u64>) -> Result<Box<dyn RecordReader + '_>>;

    /// Returns whether records take longer to encode than to read, so that several threads should encode them.
    fn is_slow_to_encode(&self) -> bool {
        false
    }

    /// Encodes a record that [`RecordReader::next_raw`] read.
    ///
    /// # Errors
    /// [`Error::Record`], as [`RecordReader::next_record`].
    fn encode(&self, _record: &mut OwnedRecord) -> Result<()> {
        Ok(())
    }

    /// Returns the file without the checks that this one makes, if it makes any.
    fn unchecked(&self) -> Option<&dyn RecordFile> {
        None
    }

    /// Returns a view of the file whose records have this column alone, if the format can read it without the others.
    fn with_column(&self, _column: &str) -> Option<Box<dyn RecordFile + '_>> {
        None
    }
}

/// Reads records of a file in order.
pub trait RecordReader {
    /// Reads the next record; none at the end.
    ///
    /// # Errors
    /// Those of the file, and damage. After [`Error::Record`] the next record can be read, if the
    /// format knows where it is.
    fn next_record(&mut self) -> Result<Option<SourceRecord<'_>>>;

    /// As [`next_record`](Self::next_record), and leaves to [`RecordFile::encode`] what another thread can do. Returns false at the
    /// end.
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

    /// As [`next_record`](Self::next_record), and lists the parts of the record that the file has as they are.
    ///
    /// # Errors
    /// As [`next_record`](Self::next_record).
    fn next_mapped(&mut self, extents: &mut Vec<Extent>) -> Result<Option<SourceRecord<'_>>> {
        extents.clear();
        self.next_record()
    }

    /// Returns what there is to say about records that were read, which are kept, since the last call.
    fn take_remarks(&mut self) -> Vec<Finding> {
        Vec::new()
    }
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
