//! The options of a conversion.

use crate::error::{Error, Result};
use crate::options::{
    DatasetFormat, IMAGES_KEY, ImageForm, MaxBad, OnBad, PackOptions, Sharding, UploadOptions,
    check_private, seek_points_argument,
};
use forebay_cache::ReadOptions;
use forebay_formats::records::{RecordFormat, RecordInput};
use forebay_image::SeekDensity;
use forebay_shard::{BlockCompression, ShardFormat};
use forebay_store::{Durability, Location};
use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;

/// Source of the conversion.
#[derive(Debug, Clone)]
pub enum ConvertSource {
    /// A dataset: a directory with a manifest, local or in a store.
    Dataset(Location),
    /// Records without a manifest, such as TFRecord files that another tool wrote.
    Records(RecordFormat, Box<RecordInput>),
}

impl ConvertSource {
    pub(super) fn root(&self) -> &Path {
        match self {
            Self::Dataset(location) => location.local_path().unwrap_or(Path::new("")),
            // Files that were named individually may be next to the destination.
            Self::Records(_, input) if !input.files.is_empty() => Path::new(""),
            Self::Records(_, input) => input.location.local_path().unwrap_or(Path::new("")),
        }
    }
}

/// Policy for seek points.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum SeekPointChange {
    /// Records keep their seek points, and no seek points are added.
    #[default]
    Keep,
    /// Seek points are removed.
    Remove,
    /// Seek points are computed for every JPEG.
    Make(SeekDensity),
}

/// Policy for progressive JPEGs.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum ProgressiveChange {
    /// Progressive JPEGs are unchanged.
    #[default]
    Keep,
    /// Progressive JPEGs are transcoded to baseline JPEGs with the same pixels, from which the original can be restored byte for
    /// byte. JPEGs for which this is impossible are unchanged.
    Baseline,
    /// The original progressive JPEGs are restored.
    Original,
}

/// Policy for the encoding of JPEGs.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum ImageChange {
    /// Images are unchanged, except that formats that cannot hold fast images get JPEGs.
    #[default]
    Keep,
    /// Images are stored in this encoding. If it is JPEG, fast images are restored to their original files, with seek points
    /// of the same density as before.
    To(ImageForm),
}

/// The format of the files that a conversion writes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub enum OutputFormat {
    /// Shards that Forebay reads.
    Shards(DatasetFormat),
    /// Files of another tool's format, with the compression of whole files.
    Records(RecordFormat, BlockCompression),
    /// Mapped shards: records stay in the files of the source, where loaders read them.
    Mapped,
}

impl From<DatasetFormat> for OutputFormat {
    fn from(format: DatasetFormat) -> Self {
        Self::Shards(format)
    }
}

impl OutputFormat {
    /// Returns the name of the format.
    pub fn name(self) -> &'static str {
        match self {
            Self::Shards(format) => format.shard_format().name(),
            Self::Records(format, _) => format.name(),
            Self::Mapped => ShardFormat::Mapped.name(),
        }
    }

    /// Returns the format of the shards in a manifest; an arbitrary one for files of another tool.
    pub(super) fn shard_format(self) -> ShardFormat {
        match self {
            Self::Shards(format) => format.shard_format(),
            Self::Records(..) => ShardFormat::Indexed,
            Self::Mapped => ShardFormat::Mapped,
        }
    }

    /// Returns the manifest entries with which the same files can be written again.
    pub(crate) fn arguments(self, index_text: bool) -> Vec<(&'static str, String)> {
        match self {
            Self::Shards(format) => format.arguments(index_text).into(),
            Self::Records(format, compression) => vec![
                ("format", format.name().to_owned()),
                ("codec", compression.to_string()),
            ],
            Self::Mapped => vec![("format", self.name().to_owned())],
        }
    }
}

/// The options of a conversion. Start from [`ConvertOptions::new`] and change fields.
#[derive(Debug, Clone)]
#[non_exhaustive]
pub struct ConvertOptions {
    /// Source of the conversion.
    pub src: ConvertSource,
    /// Destination: a directory that is missing, is empty, or holds the unfinished work of the same conversion.
    pub dst: Location,
    /// The format of the files.
    pub format: OutputFormat,
    /// Features to remove from the records.
    pub drop_features: BTreeSet<String>,
    /// Policy for records that cannot be read, or that loaders could not use.
    pub on_bad: OnBad,
    /// Number of bad records that ends the conversion.
    pub max_bad: MaxBad,
    /// Division into shards; `None` keeps the boundaries of the source files.
    pub sharding: Option<Sharding>,
    /// Policy for seek points.
    pub seek_points: SeekPointChange,
    /// Policy for progressive JPEGs.
    pub progressive: ProgressiveChange,
    /// Policy for the encoding of JPEGs. Fast images have no seek points.
    pub images: ImageChange,
    /// Writes the text index (`.idx`) for TFRecord shards beside the binary one.
    pub index_text: bool,
    /// Adds a BLAKE3 hash of each shard to the manifest.
    pub blake3: bool,
    /// Number of shards written in parallel; `None`: as the machine and its cgroup allow. Never changes the output.
    pub jobs: Option<usize>,
    /// Whether finished files are synced to disk. Never changes the output.
    pub durability: Durability,
    /// Refuses to start if the destination has too little free space.
    pub check_space: bool,
    /// Removes an existing dataset (or an unfinished one) from the destination first.
    pub overwrite: bool,
    /// Staging of shards before their upload to an object store, and access to the store.
    pub upload: UploadOptions,
    /// How to read a source that is not a local directory.
    pub read: ReadOptions,
}

impl ConvertOptions {
    /// Creates options that write the same records in another format, without other changes.
    pub fn new(
        src: ConvertSource,
        dst: impl Into<Location>,
        format: impl Into<OutputFormat>,
    ) -> Self {
        Self {
            src,
            dst: dst.into(),
            format: format.into(),
            drop_features: BTreeSet::new(),
            on_bad: OnBad::default(),
            max_bad: MaxBad::default(),
            sharding: None,
            seek_points: SeekPointChange::Keep,
            progressive: ProgressiveChange::Keep,
            images: ImageChange::Keep,
            index_text: true,
            blake3: false,
            jobs: None,
            durability: Durability::Synced,
            check_space: true,
            overwrite: false,
            upload: UploadOptions::default(),
            read: ReadOptions::default(),
        }
    }

    /// Returns the encoding of the written images, if all of them get the same one.
    pub(super) fn image_form(&self) -> Result<Option<ImageForm>> {
        let holds_fast = match self.format {
            OutputFormat::Shards(DatasetFormat::Indexed(_)) => true,
            OutputFormat::Shards(DatasetFormat::TfRecord) | OutputFormat::Records(..) => false,
            // Mapped shards leave the records in the files of the source unchanged.
            OutputFormat::Mapped => true,
        };
        let form = match (self.images, self.format) {
            (ImageChange::Keep, _) if holds_fast => return Ok(None),
            (ImageChange::Keep, _) => ImageForm::Jpeg,
            (ImageChange::To(form), _) => form,
        };
        match self.format {
            OutputFormat::Shards(format) => check_private(form, format).map_err(Error::Options)?,
            OutputFormat::Records(format, _) if form != ImageForm::Jpeg => {
                return Err(Error::NoFastImages {
                    format: format.name(),
                });
            }
            OutputFormat::Mapped => {
                return Err(Error::Option {
                    option: "images",
                    value: None,
                    why: "records stay in their files, whose images cannot be changed".to_owned(),
                });
            }
            OutputFormat::Records(..) => {}
        }
        Ok(Some(form))
    }

    /// Returns the options for writing shards, as options of a pack.
    pub(super) fn of_shards(&self) -> PackOptions {
        let mut options = PackOptions::new(Path::new(""), self.dst.clone());
        // The format is used for sidecars only, which files of other formats do not have.
        options.format = match self.format {
            OutputFormat::Shards(format) => format,
            OutputFormat::Records(..) | OutputFormat::Mapped => DatasetFormat::INDEXED,
        };
        options.index_text = self.index_text;
        (options.blake3, options.durability) = (self.blake3, self.durability);
        options.jobs = self.jobs;
        // Seek points that may be added to records that had none.
        options.seek_points = match self.seek_points {
            SeekPointChange::Make(density) => Some(density),
            SeekPointChange::Keep | SeekPointChange::Remove => None,
        };
        if let ImageChange::To(form) = self.images {
            options.images = form;
        }
        if let Some(sharding) = self.sharding {
            options.sharding = sharding;
        }
        options
    }

    /// Returns the arguments that affect the output, by name, as recorded in the manifest.
    pub(super) fn arguments(&self) -> BTreeMap<String, String> {
        let mut arguments = BTreeMap::new();
        let mut set = |name: &str, value: String| arguments.insert(name.to_owned(), value);
        for (name, value) in self.format.arguments(self.index_text) {
            set(name, value);
        }
        match self.sharding {
            None => None,
            Some(Sharding::Count(count)) => set("shards", count.to_string()),
            Some(Sharding::Bytes(bytes)) => set("shard_size", bytes.to_string()),
        };
        match self.seek_points {
            SeekPointChange::Keep => None,
            SeekPointChange::Remove => set("seek_points", "off".into()),
            SeekPointChange::Make(density) => {
                set("seek_points", seek_points_argument(Some(density)).into())
            }
        };
        match self.progressive {
            ProgressiveChange::Keep => None,
            ProgressiveChange::Baseline => set("progressive", "baseline".into()),
            ProgressiveChange::Original => set("progressive", "original".into()),
        };
        if let ImageChange::To(form) = self.images {
            set(IMAGES_KEY, form.name().into());
        }
        if !self.drop_features.is_empty() {
            let names: Vec<&str> = self.drop_features.iter().map(String::as_str).collect();
            set("drop_features", names.join(","));
        }
        if self.blake3 {
            set("blake3", "true".into());
        }
        arguments
    }
}
