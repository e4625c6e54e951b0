//! The facts of a dataset that was converted to the format of another tool: `forebay-conversion.json` beside its files.

use super::RecordInput;
use crate::error::{Error, Result};
use forebay_cache::read_storage;
use forebay_shard::example::RecordFeatures;
use forebay_shard::manifest::{
    Account, ClassEntry, EpochOrder, FeatureEntry, MAX_BYTES, Manifest, SplitEntry,
};
use forebay_shard::schema::Schema;
use forebay_shard::{ShardFormat, Storage};
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
use std::io;
use std::path::{Path, PathBuf};

/// Facts that the files of another tool's format do not hold. This file is written last, so a directory that has it is
/// complete.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Conversion {
    format: String,
    version: u64,
    /// The name of the format.
    pub to: String,
    /// Identity of the dataset: files, label base and classes.
    pub fingerprint: String,
    /// Identity of the samples.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub sample_fingerprint: Option<String>,
    /// The label of the first class, for records that are read from the files.
    pub label_base: i64,
    /// How epochs order the samples.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub order: Option<EpochOrder>,
    /// The splits with their files.
    pub splits: Vec<SplitEntry>,
    /// The features that hold image and label.
    #[serde(default)]
    pub record_features: RecordFeatures,
    /// The features of a record.
    #[serde(default)]
    pub features: Vec<FeatureEntry>,
    /// The columns of a record.
    #[serde(default)]
    pub columns: Schema,
    /// The classes in the order of their labels.
    #[serde(default)]
    pub classes: Vec<ClassEntry>,
    /// The options of the conversion.
    #[serde(default)]
    pub pack: BTreeMap<String, serde_json::Value>,
    /// The numbers of records that were written and left out.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub account: Option<Account>,
}

impl Conversion {
    /// The name of the file.
    pub const FILE_NAME: &str = "forebay-conversion.json";
    const FORMAT: &str = "forebay-conversion";
    const VERSION: u64 = 1;

    /// Returns the root of a source, and the conversion that wrote its files in format `to`. Returns no conversion for files of
    /// another tool, and for a single file; `is_file` tells whether the root is one.
    pub(super) fn of_source(
        input: &RecordInput,
        to: &str,
        is_file: impl FnOnce(&Path) -> bool,
    ) -> Result<(PathBuf, Option<Self>)> {
        let (root, storage) = read_storage(&input.location, &input.read)?;
        let conversion = match !input.files.is_empty() || is_file(&root) {
            true => None,
            false => Self::load(&root, &*storage)?.filter(|conversion| conversion.to == to),
        };
        Ok((root, conversion))
    }

    /// Returns the error of a file that is listed but missing.
    pub(super) fn is_missing(root: &Path, name: &str) -> Error {
        let what = format!(
            "{name} is missing, which {} lists: bring it, or remove that file to read the files that are here",
            Self::FILE_NAME
        );
        Error::source(root, what)
    }

    /// Returns the facts that a manifest of these files would have.
    pub fn new(to: &str, manifest: &Manifest) -> Self {
        Self {
            format: Self::FORMAT.to_owned(),
            version: Self::VERSION,
            to: to.to_owned(),
            fingerprint: manifest.fingerprint(),
            sample_fingerprint: manifest.sample_fingerprint.clone(),
            label_base: manifest.label_base,
            order: manifest.order.clone(),
            splits: manifest.splits.clone(),
            record_features: manifest.record_features.clone(),
            features: manifest.features.clone(),
            columns: manifest.stored_columns(),
            classes: manifest.classes.clone(),
            pack: manifest.pack.clone(),
            account: manifest.account.clone(),
        }
    }

    /// Returns the manifest of a dataset with the same records, for display only: its shards cannot be opened.
    pub fn to_manifest(&self) -> Manifest {
        let mut manifest =
            Manifest::new(ShardFormat::TfRecord, self.label_base, self.splits.clone());
        manifest.fingerprint.clone_from(&self.fingerprint);
        manifest
            .sample_fingerprint
            .clone_from(&self.sample_fingerprint);
        manifest.order.clone_from(&self.order);
        manifest.record_features = self.record_features.clone();
        manifest.features.clone_from(&self.features);
        manifest.columns = self.columns.clone();
        manifest.classes.clone_from(&self.classes);
        manifest.pack.clone_from(&self.pack);
        manifest.account.clone_from(&self.account);
        manifest
    }

    /// Returns the content of the file. It is deterministic.
    ///
    /// # Errors
    /// Those of the encoder.
    pub fn to_json(&self) -> io::Result<Vec<u8>> {
        let mut json = serde_json::to_vec_pretty(self)?;
        json.push(b'\n');
        Ok(json)
    }

    /// Parses the content of the file `path`.
    ///
    /// # Errors
    /// Other content, or a file that a newer release wrote.
    pub fn parse(path: &Path, bytes: &[u8]) -> Result<Self> {
        let refused = |what: String| Error::source(path, what);
        let read: Self = forebay_shard::json::from_slice(bytes)
            .map_err(|error| refused(format!("not the facts of a conversion: {error}")))?;
        if read.format != Self::FORMAT {
            return Err(refused(format!(
                "format: expected {:?}, found {:?}",
                Self::FORMAT,
                read.format
            )));
        }
        if read.version != Self::VERSION {
            return Err(refused(format!(
                "version {} is not read, only {}: a newer release wrote it",
                read.version,
                Self::VERSION
            )));
        }
        if !(0..=1).contains(&read.label_base) {
            return Err(refused(format!(
                "label_base: expected 0 or 1, found {}",
                read.label_base
            )));
        }
        Schema::new(read.columns.columns().to_vec()).map_err(refused)?;
        let order = read.order.iter().flat_map(|order| &order.block_records);
        for (split, records) in order {
            if !records.is_power_of_two() || !read.splits.iter().any(|known| known.name == *split) {
                return Err(refused(format!(
                    "order: {records} records of the split {split:?} are no block"
                )));
            }
        }
        Ok(read)
    }

    /// Reads the file in a directory, if it exists.
    ///
    /// # Errors
    /// As [`parse`](Self::parse), and errors of the storage.
    pub fn load(dir: &Path, storage: &dyn Storage) -> Result<Option<Self>> {
        let path = dir.join(Self::FILE_NAME);
        match storage.read(&path, MAX_BYTES) {
            Ok(bytes) => Self::parse(&path, &bytes).map(Some),
            Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
            Err(error) => Err(Error::io(path, "read", error)),
        }
    }
}
