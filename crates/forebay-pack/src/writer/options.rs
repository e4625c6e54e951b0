//! The options of a writer.

use crate::options::{DEFAULT_SHARD_BYTES, DatasetFormat, PackOptions, UploadOptions};
use forebay_formats::records::RecordFormat;
use forebay_image::SeekDensity;
use forebay_shard::example::{IMAGE_PROGRESSIVE, IMAGE_SEEK_POINTS};
use forebay_shard::manifest::ClassEntry;
use forebay_shard::schema::LABEL;
use forebay_shard::{BlockCompression, Column, ColumnType, Schema};
use forebay_store::{Durability, Location};
use std::collections::BTreeMap;
use std::path::Path;

/// Incremented when the same samples and options lead to different output.
const WRITER_VERSION: u32 = 2;

/// Encoding of images that are given as pixels.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
#[non_exhaustive]
pub enum ImageEncoding {
    /// PNG, without loss.
    #[default]
    Png,
    /// JPEG with this quality, 1 to 100.
    Jpeg {
        /// The quality.
        quality: u8,
    },
}

/// The options of a [`DatasetWriter`](crate::DatasetWriter). Start from [`WriterOptions::new`] and change fields.
#[derive(Debug, Clone)]
#[non_exhaustive]
pub struct WriterOptions {
    /// Destination: a directory, local or in a store, that is missing, is empty, or holds the unfinished work of the same
    /// writer.
    pub dst: Location,
    /// The format of the shards.
    pub format: DatasetFormat,
    /// Write files of this other tool's format instead of shards, with this compression of whole files.
    pub records_format: Option<(RecordFormat, BlockCompression)>,
    /// The columns of the samples.
    pub schema: Schema,
    /// Uncompressed size in bytes at which a shard ends.
    pub shard_bytes: u64,
    /// Maximum number of records of a shard.
    pub shard_records: Option<u64>,
    /// The classes in the order of their labels. If not empty, labels beyond them are refused.
    pub classes: Vec<ClassEntry>,
    /// Whether labels are class names, which `close` numbers in alphabetical order. The samples are then written twice: first
    /// to a directory next to the destination.
    pub number_classes: bool,
    /// The stored label of the first class: 0 or 1. Samples are given with labels from 0.
    pub label_base: u8,
    /// Seek points to store with each JPEG of the column `image`.
    pub seek_points: Option<SeekDensity>,
    /// Encoding of images that are given as pixels.
    pub image_encoding: ImageEncoding,
    /// Writes the text index (`.idx`) for TFRecord shards beside the binary one.
    pub index_text: bool,
    /// Adds a BLAKE3 hash of each shard to the manifest.
    pub blake3: bool,
    /// Number of encoding threads; `None`: as the machine and its cgroup allow. Never changes the output.
    pub jobs: Option<usize>,
    /// Whether finished files are synced to disk. Never changes the output.
    pub durability: Durability,
    /// Continues an unfinished dataset: the caller writes the same samples again, and the stored ones are skipped.
    pub resume: bool,
    /// Removes an existing dataset (or an unfinished one) from the destination first.
    pub overwrite: bool,
    /// Staging of shards before their upload to an object store, and access to the store.
    pub upload: UploadOptions,
}

impl WriterOptions {
    /// Creates the default options: TFRecord, shards of 256 MiB, labels from 0, automatic seek points, PNG.
    pub fn new(dst: impl Into<Location>, schema: Schema) -> Self {
        Self {
            dst: dst.into(),
            format: DatasetFormat::TfRecord,
            records_format: None,
            schema,
            shard_bytes: DEFAULT_SHARD_BYTES,
            shard_records: None,
            classes: Vec::new(),
            number_classes: false,
            label_base: 0,
            seek_points: Some(SeekDensity::Auto),
            image_encoding: ImageEncoding::default(),
            index_text: true,
            blake3: false,
            jobs: None,
            durability: Durability::Synced,
            resume: false,
            overwrite: false,
            upload: UploadOptions::default(),
        }
    }

    /// Checks that the options are valid and consistent.
    pub(super) fn validate(&self) -> Result<(), String> {
        if self.schema.is_empty() {
            return Err("a dataset has one column or more".into());
        }
        let own = [IMAGE_SEEK_POINTS, IMAGE_PROGRESSIVE];
        for column in self.schema.columns() {
            let features = column.features();
            if let Some(feature) = features.iter().find(|f| own.contains(&f.name.as_str())) {
                let (column, feature) = (&column.name, &feature.name);
                return Err(format!(
                    "column {column:?}: feature {feature:?} is forebay's own"
                ));
            }
        }
        let label = self.schema.column(LABEL).map(|column| &column.column_type);
        if self.number_classes && label != Some(&ColumnType::Label) {
            return Err(format!(
                "classes are numbered by the names in the column {LABEL:?} of type label, which the schema does not have"
            ));
        }
        if self.number_classes && !self.classes.is_empty() {
            return Err("classes are either listed or numbered by the names of labels".into());
        }
        if self.label_base > 1 {
            return Err(format!("the label base is 0 or 1, not {}", self.label_base));
        }
        if self.shard_bytes == 0 || self.shard_records == Some(0) {
            return Err("a shard has at least one byte and one record".into());
        }
        if let ImageEncoding::Jpeg { quality } = self.image_encoding
            && !(1..=100).contains(&quality)
        {
            return Err(format!("a JPEG quality is 1 to 100, not {quality}"));
        }
        if self.resume && self.overwrite {
            return Err("an unfinished dataset is either continued or replaced".into());
        }
        Ok(())
    }

    /// Returns the options for writing shards, as options of a pack.
    pub(super) fn of_shards(&self) -> PackOptions {
        let mut options = PackOptions::new(Path::new(""), self.dst.clone());
        (options.format, options.index_text) = (self.format, self.index_text);
        (options.blake3, options.durability) = (self.blake3, self.durability);
        (options.jobs, options.seek_points) = (self.jobs, self.seek_points);
        options
    }

    /// Returns whether the labels of this column are numbers of classes.
    pub(super) fn has_classes(&self, column: &Column) -> bool {
        match column.column_type {
            ColumnType::Label => true,
            ColumnType::Labels | ColumnType::Boxes => {
                let mut columns = self.schema.columns().iter();
                !columns.any(|column| column.column_type == ColumnType::Label)
            }
            _ => false,
        }
    }

    /// Returns the arguments that, with the samples, determine the output, as recorded in the manifest.
    pub(super) fn arguments(&self) -> BTreeMap<String, String> {
        let mut arguments = BTreeMap::new();
        let mut set = |name: &str, value: String| arguments.insert(name.to_owned(), value);
        for (name, value) in self.format.arguments(self.index_text) {
            set(name, value);
        }
        set("shard_size", self.shard_bytes.to_string());
        if let Some(records) = self.shard_records {
            set("shard_records", records.to_string());
        }
        set("label_base", self.label_base.to_string());
        let density = crate::options::seek_points_argument(self.seek_points);
        set("seek_points", density.into());
        match self.image_encoding {
            ImageEncoding::Png => set("image_format", "png".into()),
            ImageEncoding::Jpeg { quality } => {
                set("quality", quality.to_string());
                set("image_format", "jpeg".into())
            }
        };
        if self.blake3 {
            set("blake3", "true".into());
        }
        arguments
    }

    /// Returns the arguments together with options that the manifest records elsewhere, and a digest of all.
    pub(super) fn identity(&self) -> (BTreeMap<String, String>, String) {
        let mut arguments = self.arguments();
        let columns = self.schema.columns().iter();
        let columns: Vec<String> = columns
            .map(|column| format!("{}: {}", column.name, column.column_type))
            .collect();
        arguments.insert("columns".into(), columns.join(", "));
        let mut hasher = blake3::Hasher::new();
        let item = |hasher: &mut blake3::Hasher, text: &str| {
            hasher.update(&(text.len() as u64).to_le_bytes());
            hasher.update(text.as_bytes());
        };
        for class in &self.classes {
            item(&mut hasher, &class.name);
            item(&mut hasher, class.text.as_deref().unwrap_or_default());
        }
        let classes = &hasher.finalize().to_hex()[..16];
        arguments.insert(
            "classes".into(),
            format!("{} ({classes})", self.classes.len()),
        );
        let mut hasher = blake3::Hasher::new();
        item(&mut hasher, "forebay writer");
        hasher.update(&WRITER_VERSION.to_le_bytes());
        for (name, value) in &arguments {
            item(&mut hasher, name);
            item(&mut hasher, value);
        }
        let digest = hasher.finalize().to_hex()[..32].to_owned();
        (arguments, digest)
    }
}
