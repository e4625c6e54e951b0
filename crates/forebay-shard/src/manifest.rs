//! The manifest `forebay.json`: the list of a dataset's shards, with sizes and checksums.
//!
//! It is published last, so a dataset with a manifest is complete. Equal datasets have equal
//! manifests: fields are in a fixed order, maps are sorted, and no field depends on time or
//! machine.

mod account;
mod fingerprint;
mod salvage;

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;

use serde::{Deserialize, Serialize};

use crate::checksum::{Crc32c, crc32c};
use crate::error::{Error, Result};
use crate::example::RecordFeatures;
use crate::mapped;
use crate::samples::{self, SampleDigest};
use crate::schema::Schema;
use crate::shard::ShardFormat;
use crate::storage::{self, LocalFiles, Storage};
use crate::tfrecord::Compression;

pub use crate::key::{escape_key, unescape_key};
pub use crate::schema::FeatureEntry;
pub use account::{Account, RoleAccount, SplitAccount};

/// The file name of a manifest.
pub const FILE_NAME: &str = "forebay.json";
/// The value of the field `format`.
pub const FORMAT: &str = "forebay-dataset";
/// The version that is written and read.
pub const VERSION: u64 = 2;
/// The features that [`Manifest::requires`] may list.
const KNOWN_FEATURES: [&str; 3] = [RECORD_FEATURES, MAPPED, FAST_IMAGES];
/// The feature of a manifest whose records may have [fast images](crate::example::IMAGE_FAST).
pub const FAST_IMAGES: &str = "fast-1";
/// The feature of a manifest whose records have images and labels under other than the default
/// names.
const RECORD_FEATURES: &str = "record-features";
/// The feature of a manifest whose shards are mapped.
const MAPPED: &str = "mapped";
/// Upper bound of a block of consecutive records in an epoch, in stored bytes.
pub const EPOCH_BLOCK_BYTES: u64 = 4 << 20;
/// Size limit of a manifest, in bytes.
pub const MAX_BYTES: u64 = 64 << 20;

/// A dataset: its splits, their shards, and the structure of its records.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[non_exhaustive]
pub struct Manifest {
    /// Always [`FORMAT`].
    pub format: String,
    /// Format version.
    pub version: u64,
    /// Names of features that a reader must know to read the dataset correctly. A reader refuses a manifest that
    /// lists an unknown feature. `to_json` adds "record-features" if
    /// [`record_features`](Self::record_features) are not the default.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub requires: Vec<String>,
    /// Identity of the dataset: see [`Manifest::fingerprint`].
    pub fingerprint: String,
    /// Identity of the samples: their keys, labels and order, independent of their bytes, shards
    /// and format. Absent if a record has no key.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub sample_fingerprint: Option<String>,
    /// Format of all shards.
    pub shard_format: ShardFormat,
    /// Whole-file compression of TFRecord shards: "none", "gzip", "zlib".
    #[serde(default, skip_serializing_if = "is_plain")]
    pub compression: Compression,
    /// The location of the records, if the shards are mapped.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub source: Option<MappedFrom>,
    /// The label of the first class: 0 or 1.
    pub label_base: i64,
    /// Parameters of epochs that do not follow from the samples.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub order: Option<EpochOrder>,
    /// The splits, sorted by name.
    pub splits: Vec<SplitEntry>,
    /// The features that hold image and label; omitted in the file if they have the default names.
    #[serde(default, skip_serializing_if = "RecordFeatures::is_standard")]
    pub record_features: RecordFeatures,
    /// The features of a record, sorted by name.
    #[serde(default)]
    pub features: Vec<FeatureEntry>,
    /// The columns that the features form; if omitted, [`schema`](Self::schema) infers
    /// them.
    #[serde(default, skip_serializing_if = "Schema::is_empty")]
    pub columns: Schema,
    /// The classes in the order of their labels.
    #[serde(default)]
    pub classes: Vec<ClassEntry>,
    /// The options with which the dataset was packed: everything needed to pack it again.
    #[serde(default)]
    pub pack: BTreeMap<String, serde_json::Value>,
    /// The account of the pack. Neither fingerprint covers it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub account: Option<Account>,
}

/// Parameters of epochs that do not follow from the samples. A conversion that keeps the samples
/// keeps these parameters, so that runs continue with the same order.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct EpochOrder {
    /// For each split, the maximum number of consecutive records that a shuffled epoch reads
    /// together: a power of two, see [`block_records`].
    pub block_records: BTreeMap<String, u64>,
}

/// The location of the records of mapped shards.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct MappedFrom {
    /// The absolute path of a directory, or the URL of a prefix in an object store.
    pub location: String,
    /// The format of the files there: "webdataset", "mds", "parquet", "tfrecord".
    pub format: String,
}

/// Returns the largest power of two of records whose average size fits into [`EPOCH_BLOCK_BYTES`].
pub fn block_records(records: u64, bytes: u64) -> u64 {
    let mean = (bytes / records.max(1)).max(1);
    match EPOCH_BLOCK_BYTES / mean {
        0 => 1,
        most => 1 << most.ilog2(),
    }
}

/// One split of a dataset.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[non_exhaustive]
pub struct SplitEntry {
    /// Name: "train", "validation".
    pub name: String,
    /// Number of records in all its shards.
    pub records: u64,
    /// Size of all its shards, in bytes.
    pub bytes: u64,
    /// The shards in order.
    pub shards: Vec<ShardEntry>,
}

/// One shard.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct ShardEntry {
    /// File name in the dataset's directory.
    pub name: String,
    /// Number of records.
    pub records: u64,
    /// Size of the file, in bytes.
    pub bytes: u64,
    /// CRC32C of the file, eight hexadecimal digits.
    #[serde(with = "hex32")]
    pub crc32c: u32,
    /// BLAKE3 of the file, if requested, 64 hexadecimal digits.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub blake3: Option<String>,
}

/// One class.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct ClassEntry {
    /// Name: the synset or directory.
    pub name: String,
    /// A description in words.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub text: Option<String>,
}

impl ClassEntry {
    /// Returns the display name of the class: the first term of its description, or else its name.
    #[must_use]
    pub fn title(&self) -> &str {
        let words = self.text.as_deref().unwrap_or_default();
        match words.split(',').next().unwrap_or_default().trim() {
            "" => &self.name,
            first => first,
        }
    }
}

impl Manifest {
    /// Creates a manifest without classes, features and pack options, which are public fields to
    /// fill in. [`to_json`](Self::to_json) computes the fingerprint.
    pub fn new(shard_format: ShardFormat, label_base: i64, splits: Vec<SplitEntry>) -> Self {
        let mut manifest = Self {
            format: FORMAT.to_owned(),
            version: VERSION,
            requires: Vec::new(),
            fingerprint: String::new(),
            sample_fingerprint: None,
            shard_format,
            compression: Compression::None,
            source: None,
            label_base,
            order: None,
            splits,
            record_features: RecordFeatures::default(),
            features: Vec::new(),
            columns: Schema::default(),
            classes: Vec::new(),
            pack: BTreeMap::new(),
            account: None,
        };
        manifest.splits.sort_by(|a, b| a.name.cmp(&b.name));
        manifest
    }

    /// Reads `forebay.json` from a dataset's directory.
    ///
    /// # Errors
    /// If it cannot be read, or this release does not support it.
    pub fn load(root: impl AsRef<Path>) -> Result<Self> {
        Self::load_in(root, &LocalFiles::new(1))
    }

    /// [`load`](Self::load) from any storage.
    ///
    /// # Errors
    /// As [`load`](Self::load).
    pub fn load_in(root: impl AsRef<Path>, storage: &dyn Storage) -> Result<Self> {
        let path = root.as_ref().join(FILE_NAME);
        let bytes = storage::read_whole(storage, &path, MAX_BYTES, "a manifest")?;
        Self::parse(&path, &bytes)
    }

    /// Parses and validates a manifest; `path` is its name in errors.
    ///
    /// # Errors
    /// [`Error::Version`] and [`Error::Feature`] if a newer release wrote it, [`Error::Mismatch`]
    /// if its checksum is wrong, [`Error::Manifest`] if it is invalid or contradicts itself.
    pub fn parse(path: &Path, bytes: &[u8]) -> Result<Self> {
        let problem = |problem: String| Error::Manifest {
            path: path.to_owned(),
            problem,
        };
        let head: Head = crate::json::from_slice(bytes)
            .map_err(|error| problem(format!("is not a manifest: {error}")))?;
        if head.format != FORMAT {
            let found = head.format;
            return Err(problem(format!(
                "format: expected {FORMAT:?}, found {found:?}"
            )));
        }
        if head.version != VERSION {
            return Err(Error::Version {
                path: path.to_owned(),
                what: "manifest",
                found: head.version,
                supported: VERSION,
            });
        }
        check_sum(path, bytes)?;
        let mut required = head.requires.into_iter();
        if let Some(feature) = required.find(|name| !KNOWN_FEATURES.contains(&name.as_str())) {
            let (path, what) = (path.to_owned(), "manifest");
            return Err(Error::Feature {
                path,
                what,
                feature,
            });
        }
        let manifest: Self = crate::json::from_slice(bytes)
            .map_err(|error| problem(format!("is not a manifest: {error}")))?;
        manifest.check().map_err(problem)?;
        if let Some(expected) = manifest.computed_fingerprint()
            && manifest.fingerprint != expected
        {
            return Err(Error::Mismatch {
                path: path.to_owned(),
                what: "fingerprint (the manifest was changed by hand or damaged)".to_owned(),
                expected,
                found: manifest.fingerprint,
            });
        }
        Ok(manifest)
    }

    /// Returns the file's content: deterministic, with a newline at the end, the correct
    /// fingerprint and the correct checksum.
    ///
    /// # Errors
    /// [`Error::Invalid`] if the manifest contradicts itself, so that an unreadable one is never
    /// written. [`Error::NotBuilt`] without the feature `blake3`.
    pub fn to_json(&self) -> Result<String> {
        self.check().map_err(Error::invalid)?;
        let mut manifest = self.clone();
        let is_required = manifest.requires.iter().any(|name| name == RECORD_FEATURES);
        if !manifest.record_features.is_standard() && !is_required {
            manifest.requires.push(RECORD_FEATURES.to_owned());
        }
        let is_required = manifest.requires.iter().any(|name| name == MAPPED);
        if manifest.source.is_some() && !is_required {
            manifest.requires.push(MAPPED.to_owned());
        }
        manifest.fingerprint = self
            .computed_fingerprint()
            .ok_or_else(|| Error::not_built(Path::new(FILE_NAME), "blake3"))?;
        let json = serde_json::to_string_pretty(&manifest);
        let mut json = json.map_err(|error| Error::invalid(format!("manifest: {error}")))?;
        // The checksum is always the last field.
        json.truncate(json.len().saturating_sub("\n}".len()));
        json.push_str(",\n");
        let zeroed = format!("{json}{}", sum_field(0));
        let sum = sum_field(crc32c(zeroed.as_bytes()));
        Ok(json + &sum)
    }

    /// Computes the sample fingerprint from the digest of each shard, which `digest` returns for
    /// the shard's name; `None` if a digest is unknown or a sample has no key.
    pub fn sample_fingerprint_of(
        &self,
        digest: impl Fn(&str) -> Option<SampleDigest>,
    ) -> Option<String> {
        let mut splits = Vec::with_capacity(self.splits.len());
        for split in &self.splits {
            let mut samples = SampleDigest::default();
            for shard in &split.shards {
                samples.combine(&digest(&shard.name)?);
            }
            splits.push((split.name.as_str(), samples));
        }
        samples::fingerprint(self.label_base, splits.into_iter())
    }

    /// Sets whether records may have [fast images](crate::example::IMAGE_FAST), a feature that readers must
    /// support.
    pub fn set_fast_images(&mut self, may_have: bool) {
        self.requires.retain(|name| name != FAST_IMAGES);
        if may_have {
            self.requires.push(FAST_IMAGES.to_owned());
        }
    }

    /// Returns the maximum number of consecutive records per block in a shuffled epoch of this
    /// split, if the manifest has one.
    pub fn block_records(&self, split: &str) -> Option<u64> {
        self.order.as_ref()?.block_records.get(split).copied()
    }

    /// Returns the columns of the dataset's records, lists of byte strings included.
    pub fn schema(&self) -> Schema {
        self.stored_columns().with_lists(&self.features)
    }

    /// Returns the columns as listed, or inferred from the features.
    pub fn stored_columns(&self) -> Schema {
        match self.columns.is_empty() {
            true => Schema::infer(&self.features, &self.record_features),
            false => self.columns.clone(),
        }
    }

    /// Opens the location of the records, if the shards are mapped.
    pub(crate) fn open_source(
        &self,
        root: &Path,
        storage: &dyn Storage,
    ) -> Result<Option<mapped::Source>> {
        let source = self.source.as_ref();
        let open = |source: &MappedFrom| mapped::Source::open(&source.location, root, storage);
        source.map(open).transpose()
    }

    /// Returns the split with this name.
    pub fn split(&self, name: &str) -> Option<&SplitEntry> {
        self.splits.iter().find(|split| split.name == name)
    }

    fn check(&self) -> Result<(), String> {
        if !(0..=1).contains(&self.label_base) {
            return Err(format!(
                "label_base: expected 0 or 1, found {}",
                self.label_base
            ));
        }
        if self.compression != Compression::None && self.shard_format != ShardFormat::TfRecord {
            return Err(format!(
                "compression {} of {} shards",
                self.compression, self.shard_format
            ));
        }
        let is_mapped = self.shard_format == ShardFormat::Mapped;
        match &self.source {
            None if is_mapped => return Err("mapped shards, and no source".to_owned()),
            Some(_) if !is_mapped => {
                return Err(format!("a source, and {} shards", self.shard_format));
            }
            Some(source) if source.location.is_empty() => {
                return Err("source: the location is empty".to_owned());
            }
            _ => {}
        }
        let mut names = BTreeSet::new();
        for split in &self.splits {
            check_name(&split.name).map_err(|why| format!("split {:?}: {why}", split.name))?;
            if !names.insert(&split.name) {
                return Err(format!("split {:?} is there twice", split.name));
            }
            split.check(&mut BTreeSet::new())?;
        }
        let mut shards = BTreeSet::new();
        for shard in self.splits.iter().flat_map(|split| &split.shards) {
            if !shards.insert(&shard.name) {
                return Err(format!("shard {:?} is there twice", shard.name));
            }
        }
        for (split, &records) in self.order.iter().flat_map(|order| &order.block_records) {
            if self.split(split).is_none() {
                return Err(format!("order: there is no split {split:?}"));
            }
            if !records.is_power_of_two() || records > EPOCH_BLOCK_BYTES {
                return Err(format!(
                    "order: block_records of {split:?}: expected a power of two up to {EPOCH_BLOCK_BYTES}, found {records}"
                ));
            }
        }
        let is_digits = |text: &String| {
            text.len() == 32 && text.bytes().all(|b| matches!(b, b'0'..=b'9' | b'a'..=b'f'))
        };
        if !self.sample_fingerprint.as_ref().is_none_or(is_digits) {
            return Err("sample_fingerprint is not 32 digits".to_owned());
        }
        let mut features = BTreeSet::new();
        let mut all = self.features.iter();
        if let Some(twice) = all.find(|feature| !features.insert(&feature.name)) {
            return Err(format!("feature {:?} is there twice", twice.name));
        }
        self.columns.check()
    }
}

impl SplitEntry {
    /// Creates a split of these shards.
    pub fn new(name: impl Into<String>, shards: Vec<ShardEntry>) -> Self {
        let records = shards.iter().map(|shard| shard.records).sum();
        let bytes = shards.iter().map(|shard| shard.bytes).sum();
        Self {
            name: name.into(),
            records,
            bytes,
            shards,
        }
    }

    fn check<'a>(&'a self, names: &mut BTreeSet<&'a str>) -> Result<(), String> {
        let (mut records, mut bytes) = (0u64, 0u64);
        for shard in &self.shards {
            check_name(&shard.name).map_err(|why| format!("shard {:?}: {why}", shard.name))?;
            names.insert(&shard.name);
            records = records
                .checked_add(shard.records)
                .ok_or("more than 2^64 records")?;
            bytes = bytes
                .checked_add(shard.bytes)
                .ok_or("more than 2^64 bytes")?;
            let is_hash = |hash: &String| {
                hash.len() == 64 && hash.bytes().all(|b| matches!(b, b'0'..=b'9' | b'a'..=b'f'))
            };
            if !shard.blake3.as_ref().is_none_or(is_hash) {
                return Err(format!("shard {:?}: blake3 is not 64 digits", shard.name));
            }
        }
        let split = &self.name;
        if records != self.records {
            return Err(format!(
                "split {split:?}: expected {} records, found {records} in its shards",
                self.records
            ));
        }
        if bytes != self.bytes {
            return Err(format!(
                "split {split:?}: expected {} bytes, found {bytes} in its shards",
                self.bytes
            ));
        }
        Ok(())
    }
}

/// Returns the last field of a manifest, and the end of the file.
fn sum_field(crc32c: u32) -> String {
    format!("{SUM_FIELD}{crc32c:08x}{SUM_END}")
}

const SUM_FIELD: &str = "  \"crc32c\": \"";
const SUM_END: &str = "\"\n}\n";

/// Verifies the checksum at the end of a manifest. It covers the whole file, with zeros for the eight digits of
/// the checksum itself.
fn check_sum(path: &Path, bytes: &[u8]) -> Result<()> {
    let digits = bytes
        .strip_suffix(SUM_END.as_bytes())
        .and_then(|rest| rest.split_last_chunk::<8>())
        .and_then(|(rest, digits)| rest.ends_with(SUM_FIELD.as_bytes()).then_some(digits))
        .filter(|digits| {
            digits
                .iter()
                .all(|b| matches!(b, b'0'..=b'9' | b'a'..=b'f'))
        });
    let Some(digits) = digits else {
        return Err(Error::Manifest {
            path: path.to_owned(),
            problem: "crc32c: expected as the last field with eight hexadecimal digits, not found (the manifest was changed by hand or damaged)".to_owned(),
        });
    };
    let at = bytes.len() - SUM_END.len() - digits.len();
    let mut sum = Crc32c::default();
    sum.update(&bytes[..at]);
    sum.update(&[b'0'; 8]);
    sum.update(SUM_END.as_bytes());
    let (expected, found) = (
        String::from_utf8_lossy(digits).into_owned(),
        format!("{:08x}", sum.value()),
    );
    if expected == found {
        return Ok(());
    }
    Err(Error::Mismatch {
        path: path.to_owned(),
        what: "crc32c of the manifest (it was changed by hand or damaged)".to_owned(),
        expected,
        found,
    })
}

/// Names become parts of paths, so they must stay in the dataset's directory.
fn check_name(name: &str) -> Result<(), &'static str> {
    if name.is_empty() || name.len() > 200 {
        return Err("a name has 1 to 200 bytes");
    }
    if name.starts_with('.') || name.contains(|c: char| c == '/' || c == '\\' || c.is_control()) {
        return Err("a name is a plain file name without a leading dot");
    }
    Ok(())
}

/// The fields that are checked before all others.
#[derive(Deserialize)]
struct Head {
    format: String,
    version: u64,
    #[serde(default)]
    requires: Vec<String>,
}

fn is_plain(compression: &Compression) -> bool {
    *compression == Compression::None
}

/// Serializes a checksum as eight hexadecimal digits.
mod hex32 {
    use serde::{Deserialize, Deserializer, Serializer, de};

    pub(super) fn serialize<S: Serializer>(value: &u32, to: S) -> Result<S::Ok, S::Error> {
        to.collect_str(&format_args!("{value:08x}"))
    }

    pub(super) fn deserialize<'de, D: Deserializer<'de>>(from: D) -> Result<u32, D::Error> {
        let text = String::deserialize(from)?;
        let digits = text.len() == 8 && text.bytes().all(|b| b.is_ascii_hexdigit());
        let value = u32::from_str_radix(&text, 16).ok().filter(|_| digits);
        value.ok_or_else(|| de::Error::custom(format_args!("eight digits, not {text:?}")))
    }
}
