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
#[cfg(test)]
#[cfg(feature = "formats")]
mod bombs;
mod checked;
mod class_names;
mod coco;
mod conversion;
mod dataset;
mod datum;
mod extents;
mod first_records;
mod flat;
mod foreign_records;
mod format;
mod hdf5;
mod image_list;
mod input;
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
mod parquet;
mod places;
mod record;
mod safetensors;
mod samples;
mod shards;
mod sink;
mod source;
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
pub use input::{OnBadRecord, RecordInput};
pub use label_value::{LabelForm, LabelRole};
pub use places::{expand_braces, has_braces};
pub use record::{OwnedRecord, SourceRecord};
pub use sink::{Appended, RecordSink, RecordWriter, Scratch, SinkError, SinkOptions};
pub use source::{RecordFile, RecordReader, RecordSource, RecordSplit, SourceFacts};

use crate::error::Result;
use format::{CreateSink, Format, FormatInfo, by_extension};
use source::order_by_sizes;
use std::fmt;

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
        self.0.info().name
    }

    /// Returns a description of a source in this format, with an article: `a Forebay dataset`.
    pub fn title(self) -> &'static str {
        self.0.info().title
    }

    /// Returns the extensions of the format's files, with the dot.
    pub fn extensions(self) -> &'static [&'static str] {
        self.0.info().extensions
    }

    /// Returns ends of the names of files that identify the format in a directory for each split; none if a source in this
    /// format has no such directories, or has an index file in each.
    pub fn names_in_split_dirs(self) -> &'static [&'static str] {
        self.0.info().names_in_split_dirs
    }

    /// Returns whether loaders can read records of the format where they are, without a conversion.
    pub fn is_read_in_place(self) -> bool {
        self.0.info().is_read_in_place
    }

    /// Returns how a user of `pack` converts this format to shards.
    pub fn advice(self) -> &'static str {
        self.0.info().advice
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
    /// [`Error::Record`](crate::Error::Record) if the features cannot be determined from the first records, [`Error::Source`](crate::Error::Source) if a column has the
    /// name of a label and does not hold labels, and the errors of reading the files.
    pub fn open(self, input: &RecordInput) -> Result<RecordSource> {
        input.check()?;
        let mut source = self.0.open(input)?;
        let unlisted = unlisted::find(self.0.info(), input, &source)?;
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
