//! A dataset: a manifest, its shards, and their indexes.

use std::collections::HashSet;
use std::ffi::OsString;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::{Arc, OnceLock};

use crate::error::{Error, Records, Result};
use crate::example::RecordFeatures;
use crate::manifest::{ClassEntry, Manifest, ShardEntry, SplitEntry};
use crate::mapped;
use crate::parallel::map_parallel;
use crate::schema::Schema;
use crate::shard::{Checks, Shard, ShardFormat, find_sidecar_in};
use crate::storage::{self, LocalFiles, Storage};

/// Subdirectory of a dataset for sidecar indexes. They are not beside the shards, because some
/// readers treat every `train-*` file as data.
pub const INDEX_DIRECTORY: &str = "index";

/// An open dataset.
#[derive(Debug, Clone)]
pub struct Dataset {
    inner: Arc<Inner>,
}

#[derive(Debug)]
struct Inner {
    root: PathBuf,
    manifest: Arc<Manifest>,
    checks: Checks,
    storage: Arc<dyn Storage>,
    /// The location of the records of mapped shards.
    source: Option<mapped::Source>,
    splits: Vec<OnceLock<Split>>,
}

/// Options for opening a [`Dataset`].
///
/// ```
/// use std::sync::Arc;
/// use forebay_shard::manifest::Manifest;
/// use forebay_shard::storage::MemoryStorage;
/// use forebay_shard::{Dataset, ShardFormat};
///
/// let manifest = Manifest::new(ShardFormat::Indexed, 0, Vec::new()).to_json()?;
/// let storage = Arc::new(MemoryStorage::from_iter([("set/forebay.json", manifest)]));
/// let dataset = Dataset::options().storage(storage).verify(false).open("set")?;
/// assert_eq!(dataset.splits().count(), 0);
/// # Ok::<(), forebay_shard::Error>(())
/// ```
#[derive(Debug, Clone, Default)]
pub struct DatasetOptions {
    checks: Checks,
    storage: Option<Arc<dyn Storage>>,
}

impl DatasetOptions {
    /// Reads from this storage, in which the dataset's path is looked up; local files by default.
    #[must_use]
    pub fn storage(mut self, storage: Arc<dyn Storage>) -> Self {
        self.storage = Some(storage);
        self
    }

    /// Refuses records of more than this many bytes; 256 MiB by default.
    #[must_use]
    pub fn max_record(mut self, bytes: u64) -> Self {
        self.checks.max_record = bytes;
        self
    }

    /// Sets whether payloads are verified against their checksums on every read; true by default.
    #[must_use]
    pub fn verify(mut self, verify: bool) -> Self {
        self.checks.verify = verify;
        self
    }

    /// Opens the dataset in this directory of the storage.
    ///
    /// # Errors
    /// As [`Dataset::open`].
    pub fn open(self, root: impl AsRef<Path>) -> Result<Dataset> {
        let root = root.as_ref().to_owned();
        let storage = self
            .storage
            .unwrap_or_else(|| Arc::new(LocalFiles::within_limits()));
        let manifest = Manifest::load_in(&root, &*storage)?;
        let source = manifest.open_source(&root, &*storage)?;
        let inner = Inner {
            root,
            source,
            checks: self.checks,
            storage,
            splits: manifest.splits.iter().map(|_| OnceLock::new()).collect(),
            manifest: Arc::new(manifest),
        };
        Ok(Dataset {
            inner: Arc::new(inner),
        })
    }
}

impl Dataset {
    /// Opens the dataset in a directory and reads its manifest. [`split`](Self::split) opens the
    /// shards of a split.
    ///
    /// # Errors
    /// If there is no manifest, or this release does not support it.
    pub fn open(root: impl AsRef<Path>) -> Result<Self> {
        Self::options().open(root)
    }

    /// Returns options for opening a dataset, such as another storage or another limit.
    pub fn options() -> DatasetOptions {
        DatasetOptions::default()
    }

    /// Returns the directory of the dataset.
    pub fn root(&self) -> &Path {
        &self.inner.root
    }

    /// Returns the storage of the dataset.
    pub fn storage(&self) -> &Arc<dyn Storage> {
        &self.inner.storage
    }

    /// Returns the manifest.
    pub fn manifest(&self) -> &Manifest {
        &self.inner.manifest
    }

    /// Returns the identity of the dataset.
    pub fn fingerprint(&self) -> &str {
        &self.inner.manifest.fingerprint
    }

    /// Returns the identity of the samples, if the manifest has one. It does not change in a conversion that keeps
    /// the samples.
    pub fn sample_fingerprint(&self) -> Option<&str> {
        self.inner.manifest.sample_fingerprint.as_deref()
    }

    /// Returns the names of the splits.
    pub fn splits(&self) -> impl Iterator<Item = &str> {
        self.inner
            .manifest
            .splits
            .iter()
            .map(|split| split.name.as_str())
    }

    /// Opens a split, see [`find_split`]: reads the indexes of all its shards with several threads
    /// and compares them with the manifest. Repeated calls return the same split.
    ///
    /// # Errors
    /// If the split does not exist, or a shard cannot be opened or does not match the manifest.
    pub fn split(&self, name: &str) -> Result<Split> {
        let inner = &*self.inner;
        let found = find_split(name, self.splits());
        let mut slots = inner.manifest.splits.iter().zip(&inner.splits);
        let Some((entry, slot)) = slots.find(|(entry, _)| Some(entry.name.as_str()) == found)
        else {
            return Err(Error::NoSuchSplit {
                dataset: inner.root.clone(),
                split: name.to_owned(),
                splits: self.splits().map(str::to_owned).collect(),
            });
        };
        if let Some(split) = slot.get() {
            return Ok(split.clone());
        }
        let split = Split::open(inner, entry)?;
        Ok(slot.get_or_init(|| split).clone())
    }
}

/// Names that datasets use for the validation split.
const VALIDATION: [&str; 4] = ["val", "valid", "validation", "dev"];

/// Finds a split by name. "val", "valid", "validation" and "dev" are equivalent if only
/// one of them exists.
///
/// ```
/// use forebay_shard::find_split;
///
/// assert_eq!(find_split("val", ["train", "validation"]), Some("validation"));
/// assert_eq!(find_split("val", ["val", "validation"]), Some("val"));
/// assert_eq!(find_split("val", ["valid", "dev"]), None);
/// assert_eq!(find_split("test", ["train", "validation"]), None);
/// ```
#[must_use]
pub fn find_split<'a>(wanted: &str, names: impl IntoIterator<Item = &'a str>) -> Option<&'a str> {
    let mut others = Vec::new();
    for name in names {
        if name == wanted {
            return Some(name);
        }
        if VALIDATION.contains(&wanted) && VALIDATION.contains(&name) {
            others.push(name);
        }
    }
    match others[..] {
        [only] => Some(only),
        _ => None,
    }
}

/// An open split, with its records numbered consecutively over all shards. Cloning is cheap, and
/// threads may share it.
#[derive(Debug, Clone)]
pub struct Split {
    inner: Arc<SplitInner>,
}

#[derive(Debug)]
struct SplitInner {
    name: String,
    manifest: Arc<Manifest>,
    schema: Schema,
    shards: Vec<Shard>,
    /// Number of the first record of each shard, followed by the total number of records.
    starts: Vec<u64>,
}

impl Split {
    fn open(dataset: &Inner, entry: &SplitEntry) -> Result<Self> {
        let shards = open_all(dataset, &entry.shards)?;
        let mut starts = vec![0];
        let mut records = 0;
        for shard in &shards {
            records += shard.len();
            starts.push(records);
        }
        let inner = SplitInner {
            name: entry.name.clone(),
            manifest: Arc::clone(&dataset.manifest),
            schema: dataset.manifest.schema(),
            shards,
            starts,
        };
        Ok(Self {
            inner: Arc::new(inner),
        })
    }

    /// Returns the name of the split.
    pub fn name(&self) -> &str {
        &self.inner.name
    }

    /// Returns the number of records.
    pub fn len(&self) -> u64 {
        self.inner.starts.last().copied().unwrap_or(0)
    }

    /// Returns whether the split has no records.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Returns the identity of the dataset.
    pub fn fingerprint(&self) -> &str {
        &self.inner.manifest.fingerprint
    }

    /// Returns the columns of the dataset's records: see [`Manifest::schema`].
    pub fn schema(&self) -> &Schema {
        &self.inner.schema
    }

    /// Returns the identity of the dataset's samples, if the manifest has one.
    pub fn sample_fingerprint(&self) -> Option<&str> {
        self.inner.manifest.sample_fingerprint.as_deref()
    }

    /// Returns the maximum number of consecutive records per block in a shuffled epoch, if the
    /// manifest has one.
    pub fn block_records(&self) -> Option<u64> {
        self.inner.manifest.block_records(&self.inner.name)
    }

    /// Returns the label of the dataset's first class.
    pub fn label_base(&self) -> i64 {
        self.inner.manifest.label_base
    }

    /// Returns the dataset's classes in the order of their labels; empty if the manifest has none.
    pub fn classes(&self) -> &[ClassEntry] {
        &self.inner.manifest.classes
    }

    /// Returns the names of the features that hold image and label.
    pub fn record_features(&self) -> &RecordFeatures {
        &self.inner.manifest.record_features
    }

    /// Returns the shards in order.
    pub fn shards(&self) -> &[Shard] {
        &self.inner.shards
    }

    /// Returns the number of a shard's first record in the split; if `shard` is the number of shards, the total
    /// number of records.
    pub fn shard_start(&self, shard: usize) -> Option<u64> {
        self.inner.starts.get(shard).copied()
    }

    /// Returns the shard of a record, and the record's number in the shard; `None` beyond the last record.
    pub fn locate(&self, record: u64) -> Option<(usize, u64)> {
        let shard = self
            .inner
            .starts
            .partition_point(|&start| start <= record)
            .checked_sub(1)?;
        let start = self.inner.starts.get(shard)?;
        (shard < self.inner.shards.len()).then_some((shard, record - start))
    }

    fn find(&self, record: u64) -> Result<(&Shard, u64)> {
        let found = self.locate(record);
        let found = found.and_then(|(shard, at)| Some((self.inner.shards.get(shard)?, at)));
        found.ok_or_else(|| Error::OutOfRange {
            within: Records::Split(self.inner.name.clone()),
            record,
            records: self.len(),
        })
    }

    /// Returns the label of a record, if the index has one.
    pub fn label(&self, record: u64) -> Option<i64> {
        let (shard, at) = self.find(record).ok()?;
        shard.label(at)
    }

    /// Returns the key of a record, read from storage; empty if records have no keys.
    ///
    /// # Errors
    /// As [`Shard::key`].
    pub fn key(&self, record: u64) -> Result<Vec<u8>> {
        let (shard, at) = self.find(record)?;
        shard.key(at)
    }

    /// Returns the first record with this key.
    ///
    /// # Errors
    /// If a page of keys cannot be read.
    pub fn find_key(&self, key: &[u8]) -> Result<Option<u64>> {
        for (shard, start) in self.inner.shards.iter().zip(&self.inner.starts) {
            if let Some(at) = shard.find_key(key)? {
                return Ok(Some(start + at));
            }
        }
        Ok(None)
    }

    /// Reads one record, replacing `out`.
    ///
    /// # Errors
    /// As [`Shard::read`].
    pub fn read(&self, record: u64, out: &mut Vec<u8>) -> Result<()> {
        let (shard, at) = self.find(record)?;
        shard.read(at, out)
    }
}

/// Returns the path of a shard's sidecar.
pub fn sidecar_path(root: &Path, shard: &str) -> PathBuf {
    root.join(INDEX_DIRECTORY).join(format!("{shard}.fbi"))
}

/// Sidecar indexes of a dataset's shards.
#[derive(Debug, Default)]
pub(crate) struct Sidecars {
    /// File names; `None` if the directory cannot be listed, so that each file has to be looked up.
    names: Option<HashSet<OsString>>,
}

impl Sidecars {
    /// Finds the sidecars of a dataset with `shards` shards, with a single listing if possible.
    pub(crate) fn of(root: &Path, storage: &dyn Storage, shards: usize) -> Self {
        let dir = root.join(INDEX_DIRECTORY);
        let names = match storage.list(&dir) {
            Ok(names) => Some(names.into_iter().collect::<HashSet<_>>()),
            Err(error) if error.kind() == io::ErrorKind::NotFound => Some(HashSet::new()),
            Err(_) => None,
        };
        if names.as_ref().is_none_or(|names| !names.is_empty()) {
            storage.expect(&dir, shards);
        }
        Self { names }
    }

    /// Returns the sidecar of the shard at `path`.
    pub(crate) fn find(&self, path: &Path, storage: &dyn Storage) -> Option<PathBuf> {
        find_sidecar_in(path, &|sidecar| match (&self.names, sidecar.file_name()) {
            (Some(names), Some(name)) => names.contains(name),
            _ => storage::exists(storage, sidecar),
        })
    }
}

/// Opens shards with several threads, since most of the time is spent waiting for storage.
fn open_all(dataset: &Inner, entries: &[ShardEntry]) -> Result<Vec<Shard>> {
    dataset.storage.expect(&dataset.root, entries.len());
    let sidecars = match dataset.manifest.shard_format {
        ShardFormat::TfRecord => Sidecars::of(&dataset.root, &*dataset.storage, entries.len()),
        ShardFormat::Indexed | ShardFormat::Mapped => Sidecars::default(),
    };
    let threads = dataset.storage.read_profile().parallel;
    let open = |entry: &ShardEntry| open_one(dataset, entry, &sidecars);
    let opened = map_parallel(entries, threads, &|| false, open);
    opened.into_iter().flatten().collect()
}

fn open_one(dataset: &Inner, entry: &ShardEntry, sidecars: &Sidecars) -> Result<Shard> {
    let path = dataset.root.join(&entry.name);
    let format = dataset.manifest.shard_format;
    let sidecar = match format {
        ShardFormat::Indexed | ShardFormat::Mapped => None,
        ShardFormat::TfRecord => sidecars.find(&path, &*dataset.storage),
    };
    let storage = Arc::clone(&dataset.storage);
    let checks = dataset.checks;
    let shard = match &dataset.source {
        Some(source) => Shard::open_mapped(&path, checks, storage, source.clone())?,
        None => Shard::open_in(&path, format, sidecar.as_deref(), checks, storage)?,
    };
    let mismatch = |what: &str, expected: String, found: String| {
        Err(Error::Mismatch {
            path: path.clone(),
            what: what.to_owned(),
            expected,
            found,
        })
    };
    if shard.file_len() != entry.bytes {
        let (expected, found) = (entry.bytes.to_string(), shard.file_len().to_string());
        return mismatch("bytes of the shard, against the manifest", expected, found);
    }
    if shard.len() != entry.records {
        let (expected, found) = (entry.records.to_string(), shard.len().to_string());
        return mismatch(
            "records of the shard, against the manifest",
            expected,
            found,
        );
    }
    // If the index has the whole file's checksum, this detects an index of other data.
    match shard.index().shard_crc32c() {
        Some(crc) if crc != entry.crc32c => {
            let (expected, found) = (format!("{:08x}", entry.crc32c), format!("{crc:08x}"));
            mismatch(
                "crc32c in the shard's index, against the manifest",
                expected,
                found,
            )
        }
        _ => Ok(shard),
    }
}
