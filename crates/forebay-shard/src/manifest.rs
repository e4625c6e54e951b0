//! The manifest `forebay.json`: which shards make a dataset, and how to tell
//! that they are those.
//!
//! It is published last, so a dataset with a manifest is complete. Equal
//! datasets have equal manifests: fields come in a fixed order, maps sorted,
//! and nothing in it depends on time or machine.

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;

use serde::{Deserialize, Serialize};

use crate::error::{Error, Result};
use crate::example::FeatureKind;
use crate::shard::ShardFormat;
use crate::storage::{self, LocalFiles, Storage};
use crate::tfrecord::Compression;

pub use crate::key::{escape_key, unescape_key};

/// The file name of a manifest.
pub const FILE_NAME: &str = "forebay.json";
/// What its field `format` says.
pub const FORMAT: &str = "forebay-dataset";
/// The version that is written, and the newest that is read.
pub const VERSION: u64 = 1;
/// The longest manifest that is read.
pub const MAX_BYTES: u64 = 64 << 20;

/// A dataset: its splits, their shards, and what its records are.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Manifest {
    /// Always [`FORMAT`].
    pub format: String,
    /// Format version.
    pub version: u64,
    /// Names of features that a reader must know to read the dataset right;
    /// none so far.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub requires: Vec<String>,
    /// Identity of the dataset: see [`Manifest::fingerprint`].
    pub fingerprint: String,
    /// Format of all shards.
    pub shard_format: ShardFormat,
    /// Whole-file compression of TFRecord shards: "none", "gzip", "zlib".
    #[serde(default, with = "compression", skip_serializing_if = "is_plain")]
    pub compression: Compression,
    /// The label of the first class: 0 or 1.
    pub label_base: i64,
    /// The splits, in the order of their names.
    pub splits: Vec<SplitEntry>,
    /// The features of a record, in the order of their names.
    #[serde(default)]
    pub features: Vec<FeatureEntry>,
    /// The classes in the order of their labels.
    #[serde(default)]
    pub classes: Vec<ClassEntry>,
    /// How the dataset was packed: what is needed to pack it again.
    #[serde(default)]
    pub pack: BTreeMap<String, serde_json::Value>,
}

/// One split of a dataset.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct SplitEntry {
    /// Its name: "train", "validation".
    pub name: String,
    /// Records in all its shards.
    pub records: u64,
    /// Bytes of all its shards.
    pub bytes: u64,
    /// The shards in order.
    pub shards: Vec<ShardEntry>,
}

/// One shard.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct ShardEntry {
    /// File name in the dataset's directory.
    pub name: String,
    /// Records in it.
    pub records: u64,
    /// Bytes of the file.
    pub bytes: u64,
    /// CRC32C of the file, eight hexadecimal digits.
    #[serde(with = "hex32")]
    pub crc32c: u32,
    /// BLAKE3 of the file, if it was asked for, 64 hexadecimal digits.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub blake3: Option<String>,
}

/// One feature of the records.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct FeatureEntry {
    /// Its name: "image/encoded".
    pub name: String,
    /// "bytes", "float" or "int64".
    #[serde(with = "kind")]
    pub kind: FeatureKind,
    /// Dimensions: empty for one value, `[null]` for a list of any length.
    pub shape: Vec<Option<u64>>,
}

/// One class.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct ClassEntry {
    /// Its name: the synset or directory.
    pub name: String,
    /// What it is, in words.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub text: Option<String>,
}

impl Manifest {
    /// A manifest without classes, features and pack options, which are
    /// public fields to fill in. [`to_json`](Self::to_json) sees to the
    /// fingerprint.
    pub fn new(shard_format: ShardFormat, label_base: i64, splits: Vec<SplitEntry>) -> Self {
        let mut manifest = Self {
            format: FORMAT.to_owned(),
            version: VERSION,
            requires: Vec::new(),
            fingerprint: String::new(),
            shard_format,
            compression: Compression::None,
            label_base,
            splits,
            features: Vec::new(),
            classes: Vec::new(),
            pack: BTreeMap::new(),
        };
        manifest.splits.sort_by(|a, b| a.name.cmp(&b.name));
        manifest
    }

    /// Reads `forebay.json` of a dataset's directory.
    ///
    /// # Errors
    /// When it cannot be read, or is not a manifest that this release knows.
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

    /// Parses and checks a manifest; `path` is what errors call it.
    ///
    /// # Errors
    /// [`Error::Version`] and [`Error::Feature`] when a newer release wrote
    /// it, [`Error::Manifest`] when it is broken or contradicts itself.
    pub fn parse(path: &Path, bytes: &[u8]) -> Result<Self> {
        let problem = |problem: String| Error::Manifest {
            path: path.to_owned(),
            problem,
        };
        let head: Head = serde_json::from_slice(bytes)
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
        if let Some(feature) = head.requires.into_iter().next() {
            let (path, what) = (path.to_owned(), "manifest");
            return Err(Error::Feature {
                path,
                what,
                feature,
            });
        }
        let manifest: Self = serde_json::from_slice(bytes)
            .map_err(|error| problem(format!("is not a manifest: {error}")))?;
        manifest.check().map_err(problem)?;
        let expected = manifest.fingerprint();
        if manifest.fingerprint != expected {
            return Err(Error::Mismatch {
                path: path.to_owned(),
                what: "fingerprint (the manifest was changed by hand or damaged)".to_owned(),
                expected,
                found: manifest.fingerprint,
            });
        }
        Ok(manifest)
    }

    /// The file's content: the same for the same dataset, with a newline at
    /// its end and the right fingerprint.
    ///
    /// # Errors
    /// [`Error::Invalid`] when the manifest contradicts itself, so that none
    /// is written that could not be read.
    pub fn to_json(&self) -> Result<String> {
        self.check().map_err(Error::invalid)?;
        let mut manifest = self.clone();
        manifest.fingerprint = self.fingerprint();
        let json = serde_json::to_string_pretty(&manifest);
        let mut json = json.map_err(|error| Error::invalid(format!("manifest: {error}")))?;
        json.push('\n');
        Ok(json)
    }

    /// Identity of the dataset: 32 hexadecimal digits of a BLAKE3 hash over
    /// the splits, the records, bytes and checksum of every shard, the label
    /// base and the classes. How it was packed does not count.
    pub fn fingerprint(&self) -> String {
        let mut hash = blake3::Hasher::new_derive_key("forebay dataset fingerprint v1");
        let mut text = |value: &str| {
            hash.update(&(value.len() as u64).to_le_bytes());
            hash.update(value.as_bytes());
        };
        text(self.shard_format.name());
        text(self.compression.name());
        text(&self.label_base.to_string());
        text(&self.splits.len().to_string());
        for split in &self.splits {
            text(&split.name);
            text(&split.shards.len().to_string());
            for shard in &split.shards {
                text(&shard.name);
                text(&format!(
                    "{} {} {:08x}",
                    shard.records, shard.bytes, shard.crc32c
                ));
            }
        }
        text(&self.classes.len().to_string());
        self.classes.iter().for_each(|class| text(&class.name));
        hash.finalize().to_hex()[..32].to_owned()
    }

    /// The split of this name.
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
        let mut features = BTreeSet::new();
        match self
            .features
            .iter()
            .find(|feature| !features.insert(&feature.name))
        {
            Some(twice) => Err(format!("feature {:?} is there twice", twice.name)),
            None => Ok(()),
        }
    }
}

impl SplitEntry {
    /// A split of these shards.
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

/// Names go into paths: they stay in the dataset's directory.
fn check_name(name: &str) -> Result<(), &'static str> {
    if name.is_empty() || name.len() > 200 {
        return Err("a name has 1 to 200 bytes");
    }
    if name.starts_with('.') || name.contains(|c: char| c == '/' || c == '\\' || c.is_control()) {
        return Err("a name is a plain file name without a leading dot");
    }
    Ok(())
}

/// What is looked at before anything else.
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

/// Eight hexadecimal digits.
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

macro_rules! by_name {
    ($module:ident, $type:ty, $all:expr) => {
        mod $module {
            use super::*;
            use serde::{Deserializer, Serializer, de};

            pub(super) fn serialize<S: Serializer>(
                value: &$type,
                to: S,
            ) -> Result<S::Ok, S::Error> {
                to.collect_str(value)
            }

            pub(super) fn deserialize<'de, D: Deserializer<'de>>(
                from: D,
            ) -> Result<$type, D::Error> {
                let text = String::deserialize(from)?;
                let known = $all.into_iter().find(|value| value.to_string() == text);
                known.ok_or_else(|| de::Error::custom(format_args!("{text:?} is not known")))
            }
        }
    };
}

by_name!(
    compression,
    Compression,
    [Compression::None, Compression::Gzip, Compression::Zlib]
);
by_name!(
    kind,
    FeatureKind,
    [FeatureKind::Bytes, FeatureKind::Float, FeatureKind::Int64]
);
