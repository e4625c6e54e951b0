//! Options of a pack, and their defaults.

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

/// Default size of a shard, image bytes: large enough for sequential reading from any storage, small enough that
/// a retry is cheap.
pub(crate) const DEFAULT_SHARD_BYTES: u64 = 256 << 20;

/// More shards than this in one split do not fit the five digits of `train-00000-of-00004`.
pub(crate) const MAX_SHARDS: u32 = 99_999;

/// The kind of shard to write.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub enum DatasetFormat {
    /// Plain TFRecord, with sidecar indexes in `index/`.
    TfRecord,
    /// Indexed shards (`.fbs`) whose blocks are stored in this way.
    Indexed(BlockCompression),
}

impl DatasetFormat {
    /// Indexed shards whose blocks are stored as they are.
    pub const INDEXED: Self = Self::Indexed(BlockCompression::NONE);

    /// Returns every format, with each codec of blocks at its default level.
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

    /// Returns the entries of a manifest that tell how to write the same shards again.
    pub(crate) fn arguments(self, index_text: bool) -> [(&'static str, String); 2] {
        let format = ("format", self.shard_format().name().to_owned());
        match self {
            Self::TfRecord => [format, ("index_text", index_text.to_string())],
            Self::Indexed(compression) => [format, ("codec", compression.to_string())],
        }
    }
}

/// Under this name a manifest keeps the encoding in which JPEGs were to be stored, if it is not their own.
pub(crate) const IMAGES_KEY: &str = "images";

/// The encoding in which JPEGs are stored.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum ImageForm {
    /// Their own bytes.
    #[default]
    Jpeg,
    /// [Fast images](forebay_image::FastEncoder), which decode faster and from which the JPEGs are restored. Those that
    /// cannot be restored exactly, or would grow too much, stay JPEGs.
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

    /// Upper bound of the bytes of images that had so many before.
    pub(crate) fn most_bytes(self, bytes: u64) -> u64 {
        match self {
            Self::Jpeg => bytes,
            Self::Fast(FastCoding::Coded) => bytes.saturating_add(bytes / 4),
            Self::Fast(FastCoding::Raw) => bytes.saturating_add(bytes / 2),
        }
    }
}

/// The error of fast images in shards of this format, if they do not belong there.
pub(crate) fn check_private(images: ImageForm, format: DatasetFormat) -> Result<(), String> {
    if images == ImageForm::Jpeg || format != DatasetFormat::TfRecord {
        return Ok(());
    }
    Err(
        "fast images in TFRecords: no other reader of TFRecords can decode them; write indexed shards (.fbs)"
            .into(),
    )
}

/// How many shards a split gets.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Sharding {
    /// This many for each split, with equal numbers of records; never more than a split has images.
    Count(u32),
    /// As many as it takes for shards of about this many bytes, with equal numbers of bytes.
    Bytes(u64),
}

/// Which splits are shuffled as a whole before they are cut into shards.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum ShuffleWhen {
    /// Every split but `validation` and `test`, as TensorFlow's tool does.
    #[default]
    Training,
    /// All splits.
    Always,
    /// None: records are in the byte order of their keys.
    Never,
}

/// Policy for an image that cannot be packed.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum OnBad {
    /// Leave it out, and say so in the summary and in the report file.
    #[default]
    Skip,
    /// Stop at the first one.
    Fail,
    /// Leave it out, and copy it into this directory under the path that it has in the source. Existing files are never
    /// replaced. Files that cannot be read, or are too large for a record, are only left out.
    Quarantine(PathBuf),
}

impl OnBad {
    /// The policy of readers of records, which leave records out or stop.
    pub(crate) fn of_records(&self) -> OnBadRecord {
        match self {
            Self::Fail => OnBadRecord::Fail,
            Self::Skip | Self::Quarantine(_) => OnBadRecord::Skip,
        }
    }
}

/// How many images or records may be left out as bad before a run ends with an error.
#[derive(Debug, Clone, Copy, PartialEq, Default)]
pub enum MaxBad {
    /// One in a hundred of all, and at least a hundred.
    #[default]
    Usual,
    /// So many.
    Count(u64),
    /// A share of all, from 0 to 1.
    Share(f64),
}

impl MaxBad {
    /// The least number that is allowed of so many by [`MaxBad::Usual`].
    const USUAL: u64 = 100;

    /// Returns how many of `all` may be left out.
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

    /// Reads `250`, `0.5%` or `0.005`.
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

/// Everything that a pack can be told. Start from [`PackOptions::new`] and change fields.
#[derive(Debug, Clone)]
#[non_exhaustive]
pub struct PackOptions {
    /// The directory of images, or an archive of them; also in a store.
    pub src: Location,
    /// How the store of `src` is reached, if it is in one.
    pub src_store: StoreOptions,
    /// Destination: a directory that is missing, empty, or holds the unfinished work of the same pack.
    pub dst: Location,
    /// The kind of shard.
    pub format: DatasetFormat,
    /// How many shards.
    pub sharding: Sharding,
    /// With splits in the source: pack only this one. Without: the name of the split that is written.
    pub split: Option<String>,
    /// Reads the source as this layout; by default it is recognised by looking.
    pub layout: Option<SourceLayout>,
    /// The class list: one class a line in label order, optionally followed by a space and its text. By default
    /// `synset_labels.txt`, `LOC_synset_mapping.txt` or `classes.txt` in the source, else the class directories.
    pub classes: Option<PathBuf>,
    /// The order of classes that no list numbers; none: as text, with a warning where all names are numbers that stand in
    /// another order then.
    pub class_order: Option<ClassOrder>,
    /// A file of labels, CSV, TSV or JSON lines: a path, a label or class, and further columns that become features.
    /// Directories are no classes then.
    pub labels: Option<PathBuf>,
    /// The label of the first class: 0 or 1.
    pub label_base: u8,
    /// Which splits are shuffled.
    pub shuffle: ShuffleWhen,
    /// The seed of the shuffle.
    pub seed: u64,
    /// Seek points that are stored with each JPEG: loaders then reach a crop without decoding all above it. None: no
    /// seek points, which spares about as much CPU time as a third of decoding each image.
    pub seek_points: Option<SeekDensity>,
    /// Stores progressive JPEGs as baseline ones of the same pixels, of which [`export`](crate::export()) makes the original
    /// files again; those that would not come back byte for byte stay as they are.
    pub progressive_to_baseline: bool,
    /// The encoding in which JPEGs are stored. Fast images have no seek points.
    pub images: ImageForm,
    /// Policy for bad images.
    pub on_bad: OnBad,
    /// How many bad images end the pack.
    pub max_bad: MaxBad,
    /// Transcodes to RGB JPEG the images that other readers stumble over: PNG or WebP under a JPEG's name, CMYK and YCCK, JPEGs
    /// without their end. As TensorFlow's ImageNet tool does.
    pub transcode_nonstandard: bool,
    /// Makes images smaller whose short side has more pixels than this, so that it has this many.
    pub resize_short: Option<u32>,
    /// Makes images smaller whose long side has more pixels than this, so that it has this many.
    pub max_side: Option<u32>,
    /// The JPEG quality, 1 to 100, of transcoded images; by default 100 for odd images and 95 for images that are made
    /// smaller.
    pub quality: Option<u8>,
    /// Writes the text index (`.idx`) for TFRecord shards beside the binary one.
    pub index_text: bool,
    /// Adds a BLAKE3 hash of each shard to the manifest. Costs CPU time, changes nothing else.
    pub blake3: bool,
    /// Threads that read, put records together and write; none: what the machine, the process's affinity and its
    /// cgroup's CPU quota (v1 or v2) allow. Where files are slow to come some more only read, up to 32 in all. Never
    /// changes the output.
    pub jobs: Option<usize>,
    /// Whether finished files are forced to disk. Never changes the output.
    pub durability: Durability,
    /// Refuses to start when the destination has too little room.
    pub check_space: bool,
    /// Removes the dataset (or the unfinished pack) that is in the destination first.
    pub overwrite: bool,
    /// Staging of shards on their way to an object store, and access to the store.
    pub upload: UploadOptions,
}

impl PackOptions {
    /// The defaults: TFRecord, shards of 256 MiB, labels from 1, shuffled training split, bad images skipped.
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

    /// The source as a path: of one in a store, its URL, which messages and the paths of images begin with.
    pub(crate) fn place(&self) -> PathBuf {
        self.source().root()
    }

    /// The source, as a reader of sources takes it.
    pub(crate) fn source(&self) -> SourceOptions {
        let mut source = SourceOptions::new(self.src.clone());
        source.store = self.src_store.clone();
        source.layout = self.layout;
        source.split.clone_from(&self.split);
        source.class_order = self.class_order.unwrap_or_default();
        source.jobs = self.decided_jobs();
        source
    }

    /// Threads that will be used.
    pub(crate) fn decided_jobs(&self) -> usize {
        // available_parallelism respects affinity and cgroup quotas.
        let machine = || std::thread::available_parallelism().map_or(1, |n| n.get());
        self.jobs.unwrap_or_else(machine).max(1)
    }

    /// Whether some images may be transcoded.
    pub(crate) fn remakes(&self) -> bool {
        self.transcode_nonstandard || self.resize_short.is_some() || self.max_side.is_some()
    }

    /// Says what is wrong with the options by themselves, before anything is looked at.
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

/// How a destination in a store is reached, and where shards lie until they are there.
#[derive(Debug, Clone, Default)]
#[non_exhaustive]
pub struct UploadOptions {
    /// The staging area; none: [`AreaOptions::default_dir`]. Given with a local destination, that is written through the area too.
    pub staging_dir: Option<PathBuf>,
    /// Bytes that the area may hold; none: half of what is free on its disk.
    pub staging_bytes: Option<u64>,
    /// How the store is reached.
    pub store: StoreOptions,
    /// The bandwidth of all uploads together.
    pub limiter: Option<Limiter>,
}

impl UploadOptions {
    /// Whether a destination is written through a staging area.
    pub(crate) fn are_for(&self, dst: &Location) -> bool {
        dst.is_remote() || self.staging_dir.is_some()
    }

    /// The area that is used.
    pub(crate) fn area_dir(&self) -> PathBuf {
        self.staging_dir
            .clone()
            .unwrap_or_else(AreaOptions::default_dir)
    }
}

/// Seek points as the manifest names them.
pub(crate) fn seek_points_argument(density: Option<SeekDensity>) -> &'static str {
    match density {
        None => "off",
        Some(SeekDensity::Auto) => "auto",
        Some(SeekDensity::Rows) => "on",
        Some(SeekDensity::Fine) => "fine",
    }
}

/// Seek points by their name in a manifest.
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
    fn senseless_options_are_refused() {
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
