//! Options of a pack, and their defaults.

mod part;

pub use part::Part;

use forebay_formats::ClassOrder;
use forebay_formats::images::{SourceLayout, SourceOptions};
use forebay_formats::key_path::is_split_name;
use forebay_formats::records::OnBadRecord;
use forebay_image::{FastCoding, SeekDensity};
use forebay_shard::{BlockCompression, Codec, ShardFormat};
use forebay_staging::AreaOptions;
use forebay_store::{Durability, Limiter, Location, StoreOptions};
use serde::{Deserialize, Serialize};
use std::path::PathBuf;
use std::str::FromStr;

/// Default size of a shard in image bytes: large enough for sequential reading from any storage, and small enough that
/// a retry is cheap.
pub(crate) const DEFAULT_SHARD_BYTES: u64 = 256 << 20;

/// Maximum number of shards in a split: the five digits of `train-00000-of-00004`.
pub(crate) const MAX_SHARDS: u32 = 99_999;

/// The format of the written shards.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub enum DatasetFormat {
    /// Plain TFRecord, with sidecar indexes in `index/`.
    TfRecord,
    /// Indexed shards (`.fbs`), with this compression of blocks.
    Indexed(BlockCompression),
}

impl DatasetFormat {
    /// Indexed shards with uncompressed blocks.
    pub const INDEXED: Self = Self::Indexed(BlockCompression::NONE);

    /// Returns every format, with each block codec at its default level.
    pub fn all() -> impl Iterator<Item = Self> {
        let indexed = Codec::all().map(|codec| Self::Indexed(codec.into()));
        std::iter::once(Self::TfRecord).chain(indexed)
    }

    /// Returns the format of the shards.
    pub fn shard_format(self) -> ShardFormat {
        match self {
            Self::TfRecord => ShardFormat::TfRecord,
            Self::Indexed(_) => ShardFormat::Indexed,
        }
    }

    /// Returns the manifest entries with which the same shards can be written again.
    pub(crate) fn arguments(self, index_text: bool) -> [(&'static str, String); 2] {
        let format = ("format", self.shard_format().name().to_owned());
        match self {
            Self::TfRecord => [format, ("index_text", index_text.to_string())],
            Self::Indexed(compression) => [format, ("codec", compression.to_string())],
        }
    }
}

/// Manifest entry with the requested encoding of JPEGs, if it is not `jpeg`.
pub(crate) const IMAGES_KEY: &str = "images";

/// The encoding in which JPEGs are stored.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum ImageForm {
    /// JPEGs are stored unchanged.
    #[default]
    Jpeg,
    /// [Fast images](forebay_image::FastEncoder), which decode faster and from which the JPEGs can be restored. JPEGs that
    /// cannot be restored exactly, or would grow too much, are stored unchanged.
    Fast(FastCoding),
}

impl ImageForm {
    /// Returns the name in options: `jpeg`, `fast`, `fast-raw`.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Jpeg => "jpeg",
            Self::Fast(FastCoding::Coded) => "fast",
            Self::Fast(FastCoding::Raw) => "fast-raw",
        }
    }

    /// Returns the maximum size of images in this encoding, whose files have `bytes` bytes in total.
    pub(crate) fn most_bytes(self, bytes: u64) -> u64 {
        match self {
            Self::Jpeg => bytes,
            Self::Fast(FastCoding::Coded) => bytes.saturating_add(bytes / 4),
            Self::Fast(FastCoding::Raw) => bytes.saturating_add(bytes / 2),
        }
    }
}

/// Returns an error if shards of this format cannot hold images in this encoding.
pub(crate) fn check_private(images: ImageForm, format: DatasetFormat) -> Result<(), String> {
    if images == ImageForm::Jpeg || format != DatasetFormat::TfRecord {
        return Ok(());
    }
    Err(
        "fast images in TFRecords: no other reader of TFRecords can decode them; write indexed shards (.fbs)"
            .into(),
    )
}

/// Division of a split into shards.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Sharding {
    /// This many shards per split, with equal numbers of records; never more shards than images.
    Count(u32),
    /// Shards of about this many bytes, all of equal size.
    Bytes(u64),
}

/// Which splits are shuffled before they are divided into shards.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum ShuffleWhen {
    /// Every split except `validation` and `test`, as in TensorFlow's tool.
    #[default]
    Training,
    /// All splits.
    Always,
    /// No split: records are in the byte order of their keys.
    Never,
}

/// Policy for an image that cannot be packed.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum OnBad {
    /// The image is left out, and listed in the summary and in the report.
    #[default]
    Skip,
    /// The pack stops at the first bad image.
    Fail,
    /// The image is left out, and copied to this directory under its path in the source. Existing files are never
    /// replaced. Files that cannot be read, or are too large for a record, are left out without a copy.
    Quarantine(PathBuf),
}

impl OnBad {
    /// Returns the policy for readers of records, which either leave records out or stop.
    pub(crate) fn of_records(&self) -> OnBadRecord {
        match self {
            Self::Fail => OnBadRecord::Fail,
            Self::Skip | Self::Quarantine(_) => OnBadRecord::Skip,
        }
    }
}

/// Maximum number of images or records that may be left out as bad before a run ends with an error.
#[derive(Debug, Clone, Copy, PartialEq, Default)]
pub enum MaxBad {
    /// One percent of all, but at least 100.
    #[default]
    Usual,
    /// This number.
    Count(u64),
    /// A fraction of all, from 0 to 1.
    Share(f64),
}

impl MaxBad {
    /// Minimum number that [`MaxBad::Usual`] allows.
    const USUAL: u64 = 100;

    /// Returns the number that may be left out of `all`.
    pub fn of(self, all: u64) -> u64 {
        match self {
            Self::Usual => (all / 100).max(Self::USUAL),
            Self::Count(count) => count,
            Self::Share(share) => (all as f64 * share.clamp(0.0, 1.0)) as u64,
        }
    }
}

impl FromStr for MaxBad {
    type Err = String;

    /// Parses `250`, `0.5%` or `0.005`.
    fn from_str(text: &str) -> Result<Self, String> {
        let refused =
            || format!("{text:?} is neither a number such as 250 nor a share such as 0.5%");
        if let Ok(count) = text.parse() {
            return Ok(Self::Count(count));
        }
        let (number, whole) = match text.strip_suffix('%') {
            Some(number) => (number.trim_end(), 100.0),
            None => (text, 1.0),
        };
        let share: f64 = number.parse().map_err(|_| refused())?;
        let share = share / whole;
        (0.0..=1.0)
            .contains(&share)
            .then_some(Self::Share(share))
            .ok_or_else(refused)
    }
}

/// The options of a pack. Start from [`PackOptions::new`] and change fields.
#[derive(Debug, Clone)]
#[non_exhaustive]
pub struct PackOptions {
    /// The directory of images, or an archive of them; local or in a store.
    pub src: Location,
    /// Access to the store of `src`, if it is in one.
    pub src_store: StoreOptions,
    /// Destination: a directory that is missing, is empty, or holds the unfinished work of the same pack.
    pub dst: Location,
    /// The format of the shards.
    pub format: DatasetFormat,
    /// The division into shards.
    pub sharding: Sharding,
    /// If the source has splits: pack only this one. Otherwise: the name of the split to write.
    pub split: Option<String>,
    /// The layout of the source; by default it is detected.
    pub layout: Option<SourceLayout>,
    /// The class list: one class per line in label order, optionally followed by a space and a description. By default
    /// `synset_labels.txt`, `LOC_synset_mapping.txt` or `classes.txt` in the source, or else the class directories.
    pub classes: Option<PathBuf>,
    /// The order of classes that no list numbers. `None` sorts them as text, with a warning if all names are numbers and
    /// would be sorted differently as numbers.
    pub class_order: Option<ClassOrder>,
    /// A file of labels (CSV, TSV or JSON lines) with a path, a label or class, and further columns that become features.
    /// Directories do not define classes then.
    pub labels: Option<PathBuf>,
    /// The label of the first class: 0 or 1.
    pub label_base: u8,
    /// Which splits are shuffled.
    pub shuffle: ShuffleWhen,
    /// The seed of the shuffle.
    pub seed: u64,
    /// Seek points to store with each JPEG, which let loaders reach a crop without decoding everything above it. `None`
    /// stores none, which saves about a third of the CPU time of decoding each image.
    pub seek_points: Option<SeekDensity>,
    /// Stores progressive JPEGs as baseline JPEGs with the same pixels, from which [`export`](crate::export()) restores the
    /// original files. Files that could not be restored byte for byte are stored unchanged.
    pub progressive_to_baseline: bool,
    /// The encoding for storing JPEGs. Fast images have no seek points.
    pub images: ImageForm,
    /// Policy for bad images.
    pub on_bad: OnBad,
    /// Number of bad images that ends the pack.
    pub max_bad: MaxBad,
    /// Transcodes images that some readers cannot handle to RGB JPEG, as TensorFlow's ImageNet tool does: PNG or WebP files
    /// named `.jpg`, CMYK and YCCK, truncated JPEGs.
    pub transcode_nonstandard: bool,
    /// Shrinks images whose short side has more pixels than this to this size.
    pub resize_short: Option<u32>,
    /// Shrinks images whose long side has more pixels than this to this size.
    pub max_side: Option<u32>,
    /// The JPEG quality of transcoded images, 1 to 100; by default 100 for nonstandard images and 95 for images that are
    /// shrunk.
    pub quality: Option<u8>,
    /// Writes the text index (`.idx`) for TFRecord shards beside the binary one.
    pub index_text: bool,
    /// Adds a BLAKE3 hash of each shard to the manifest, which takes CPU time.
    pub blake3: bool,
    /// Number of threads that read, build records and write; `None`: as the machine, the process's affinity and its
    /// cgroup's CPU quota (v1 or v2) allow. If files are slow to read, further threads only read, up to 32 in total. Never
    /// changes the output.
    pub jobs: Option<usize>,
    /// Whether finished files are synced to disk. Never changes the output.
    pub durability: Durability,
    /// Refuses to start if the destination has too little free space.
    pub check_space: bool,
    /// Removes an existing dataset (or an unfinished pack) from the destination first.
    pub overwrite: bool,
    /// Staging of shards before their upload to an object store, and access to the store.
    pub upload: UploadOptions,
}

impl PackOptions {
    /// Creates the default options: TFRecord, shards of 256 MiB, labels from 1, shuffled training split, bad images skipped.
    pub fn new(src: impl Into<Location>, dst: impl Into<Location>) -> Self {
        Self {
            src: src.into(),
            src_store: StoreOptions::default(),
            dst: dst.into(),
            format: DatasetFormat::TfRecord,
            sharding: Sharding::Bytes(DEFAULT_SHARD_BYTES),
            split: None,
            layout: None,
            classes: None,
            class_order: None,
            labels: None,
            label_base: 1,
            shuffle: ShuffleWhen::Training,
            seed: 0,
            seek_points: Some(SeekDensity::Auto),
            progressive_to_baseline: false,
            images: ImageForm::Jpeg,
            on_bad: OnBad::Skip,
            max_bad: MaxBad::default(),
            transcode_nonstandard: false,
            resize_short: None,
            max_side: None,
            quality: None,
            index_text: true,
            blake3: false,
            jobs: None,
            durability: Durability::Synced,
            check_space: true,
            overwrite: false,
            upload: UploadOptions::default(),
        }
    }

    /// Returns the source as a path. For a source in a store it is the URL, with which messages and paths of images begin.
    pub(crate) fn place(&self) -> PathBuf {
        self.source().root()
    }

    /// Returns the options for opening the source.
    pub(crate) fn source(&self) -> SourceOptions {
        let mut source = SourceOptions::new(self.src.clone());
        source.store = self.src_store.clone();
        source.layout = self.layout;
        source.split.clone_from(&self.split);
        source.class_order = self.class_order.unwrap_or_default();
        source.jobs = self.decided_jobs();
        source
    }

    /// Returns the number of threads to use.
    pub(crate) fn decided_jobs(&self) -> usize {
        // available_parallelism respects affinity and cgroup quotas.
        let machine = || std::thread::available_parallelism().map_or(1, |n| n.get());
        self.jobs.unwrap_or_else(machine).max(1)
    }

    /// Returns whether some images may be transcoded.
    pub(crate) fn remakes(&self) -> bool {
        self.transcode_nonstandard || self.resize_short.is_some() || self.max_side.is_some()
    }

    /// Checks that the options are valid and consistent, before the source is read.
    pub(crate) fn validate(&self) -> Result<(), String> {
        if self.label_base > 1 {
            return Err(format!("the label base is 0 or 1, not {}", self.label_base));
        }
        match self.sharding {
            Sharding::Count(0) => return Err("the number of shards must be at least 1".into()),
            Sharding::Count(n) if n > MAX_SHARDS => {
                return Err(format!(
                    "{n} shards are more than the {MAX_SHARDS} that their names can number"
                ));
            }
            Sharding::Bytes(0) => return Err("the shard size must be at least 1 byte".into()),
            _ => {}
        }
        check_private(self.images, self.format)?;
        if self.resize_short == Some(0) || self.max_side == Some(0) {
            return Err("images cannot be made smaller than 1 pixel".into());
        }
        if let Some(quality) = self.quality {
            if !(1..=100).contains(&quality) {
                return Err(format!("a JPEG quality is 1 to 100, not {quality}"));
            }
            if !self.remakes() {
                return Err(
                    "a JPEG quality is only of use for images that are made smaller or converted"
                        .into(),
                );
            }
        }
        if let Some(name) = &self.split
            && !is_split_name(name)
        {
            return Err(format!(
                "{name:?} cannot name a split: use letters, digits, '_', '.' and '-', and start with a letter"
            ));
        }
        Ok(())
    }
}

/// Access to a destination in a store, and staging of shards until they are uploaded.
#[derive(Debug, Clone, Default)]
#[non_exhaustive]
pub struct UploadOptions {
    /// The staging area; `None`: [`AreaOptions::default_dir`]. If set for a local destination, it is used for that too.
    pub staging_dir: Option<PathBuf>,
    /// Maximum number of bytes in the area; `None`: half of the free space of its disk.
    pub staging_bytes: Option<u64>,
    /// Access to the store.
    pub store: StoreOptions,
    /// Limits the total bandwidth of all uploads.
    pub limiter: Option<Limiter>,
}

impl UploadOptions {
    /// Returns whether a destination is written through a staging area.
    pub(crate) fn are_for(&self, dst: &Location) -> bool {
        dst.is_remote() || self.staging_dir.is_some()
    }

    /// Returns the directory of the staging area.
    pub(crate) fn area_dir(&self) -> PathBuf {
        self.staging_dir
            .clone()
            .unwrap_or_else(AreaOptions::default_dir)
    }
}

/// Returns the name of a density of seek points in manifests.
pub(crate) fn seek_points_argument(density: Option<SeekDensity>) -> &'static str {
    match density {
        None => "off",
        Some(SeekDensity::Auto) => "auto",
        Some(SeekDensity::Rows) => "on",
        Some(SeekDensity::Fine) => "fine",
    }
}

/// Parses the name of a density of seek points in a manifest.
pub(crate) fn seek_points_named(name: &str) -> Option<SeekDensity> {
    [SeekDensity::Auto, SeekDensity::Rows, SeekDensity::Fine]
        .into_iter()
        .find(|density| seek_points_argument(Some(*density)) == name)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::path::Path;

    #[test]
    fn contradictory_options_are_refused() {
        let good = PackOptions::new(Path::new("a"), Path::new("b"));
        assert_eq!(good.validate(), Ok(()));
        assert!(good.decided_jobs() >= 1);
        let refused = |change: &dyn Fn(&mut PackOptions)| {
            let mut options = good.clone();
            change(&mut options);
            options.validate().is_err()
        };
        assert!(refused(&|o| o.label_base = 2));
        assert!(refused(&|o| o.sharding = Sharding::Count(0)));
        assert!(refused(&|o| o.sharding = Sharding::Count(100_000)));
        assert!(refused(&|o| o.sharding = Sharding::Bytes(0)));
        assert!(refused(&|o| o.resize_short = Some(0)));
        assert!(refused(&|o| o.max_side = Some(0)));
        assert!(
            refused(&|o| o.quality = Some(90)),
            "nothing is written anew"
        );
        for quality in [0, 101] {
            assert!(refused(&|o| {
                o.transcode_nonstandard = true;
                o.quality = Some(quality);
            }));
        }
        for name in [
            "", "a/b", "..", ".x", "a-", "a--b", "a-00000", "a b", "index", "ü",
        ] {
            assert!(refused(&|o| o.split = Some(name.into())), "{name:?}");
        }
    }
}
