//! Reading datasets at any location: implements `forebay_shard::Storage` on a [`Store`].
//!
//! - [`RemoteStorage`] opens objects (this module) and reads ranges of them ([`file`]).
//! - [`ahead`] prefetches the ranges that readers announce, within a byte budget.
//! - [`open_dataset`] and [`open_shard`] take any location; local files are read directly.
//!
//! The version of an object is pinned when it is opened: if the object is replaced while it is being read, reads fail and never
//! return a mixture of two versions. [`Store`] handles retries.

mod ahead;
mod error;
mod file;
mod local;

use std::collections::HashMap;
use std::ffi::OsString;
use std::io;
use std::ops::Range;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use forebay_shard::{
    CacheHits, Dataset, Manifest, ReadAt, ReadProfile, Shard, Storage, StorageStats,
};

use crate::{Cache, Filled};
use ahead::ReadAhead;
pub use error::ReadError;
use file::{RemoteFile, Source};
use forebay_store::{Error, Location, Object, Result, Store, StoreOptions};
pub use local::LocalStorage;

/// Default readahead budget of all sequential readers together, in bytes.
const DEFAULT_READ_AHEAD_BYTES: u64 = 128 << 20;
/// Reads in flight at once: enough for a fast network, with 30 ms to the first byte and a few MiB per read.
const PARALLEL: usize = 32;
/// Two ranges with at most this gap between them are read with one request. At the usual bandwidth of a connection, reading
/// this many extra bytes takes a third of the latency of a request.
const GAP_BYTES: u64 = 512 << 10;
/// The largest readahead of one sequential reader, in bytes.
const REACH_BYTES: u64 = 32 << 20;
/// Bytes that are read from the end of a shard when it is opened. They contain the index of some thousand records; more would
/// be too much for a dataset of a thousand shards.
const TAIL_BYTES: u64 = 64 << 10;
/// If at least this many files of a directory are needed, one listing replaces a HEAD request for each.
const WORTH_LISTING: usize = 8;

/// How datasets are read.
#[derive(Debug, Clone)]
#[non_exhaustive]
pub struct ReadOptions {
    /// The options of the store.
    pub store: StoreOptions,
    /// The block cache, if any; local directories do not use it.
    pub cache: Option<Arc<Cache>>,
    /// The readahead budget of all sequential readers together, in bytes. 0 if the caller prefetches by itself, as
    /// loaders do.
    pub read_ahead_bytes: u64,
}

impl Default for ReadOptions {
    fn default() -> Self {
        Self {
            store: StoreOptions::default(),
            cache: None,
            read_ahead_bytes: DEFAULT_READ_AHEAD_BYTES,
        }
    }
}

impl ReadOptions {
    /// Default options, with these store options.
    pub fn new(store: StoreOptions) -> Self {
        Self {
            store,
            ..Self::default()
        }
    }

    /// Sets the cache.
    #[must_use]
    pub fn with_cache(mut self, cache: Option<Arc<Cache>>) -> Self {
        self.cache = cache;
        self
    }

    /// Disables readahead, for a loader that prefetches within its own budget.
    #[must_use]
    pub fn for_loader(mut self) -> Self {
        self.read_ahead_bytes = 0;
        self
    }
}

/// Opens the dataset at a location: a local directory, or one in a store.
///
/// # Errors
/// As [`Dataset::open`]. If a store caused the error, [`ReadError::of`] returns it.
pub fn open_dataset(location: &Location, options: &ReadOptions) -> forebay_shard::Result<Dataset> {
    let (root, storage) = read_storage(location, options)?;
    Dataset::options().storage(storage).open(root)
}

/// Whether reading a dataset needs a store: it is in one, or it is an index of files in one.
pub fn reads_store(location: &Location) -> bool {
    store_of(location).is_some()
}

/// Returns the location in a store of a dataset's records; `None` if they are in local files.
pub fn store_of(location: &Location) -> Option<Location> {
    if location.is_remote() {
        return Some(location.clone());
    }
    let source = Manifest::load(location.local_path().ok()?).ok()?.source?;
    Location::parse(source.location)
        .ok()
        .filter(Location::is_remote)
}

/// Opens the shard at a location: a local file, or an object in a store.
///
/// # Errors
/// As [`Shard::open`]. If a store caused the error, [`ReadError::of`] returns it.
pub fn open_shard(location: &Location, options: &ReadOptions) -> forebay_shard::Result<Shard> {
    let (path, storage) = shard_storage(location, options)?;
    Shard::options().storage(storage).open(path)
}

/// The storage of the directory that a shard is in, where its index may be too, and the shard's path in it.
///
/// # Errors
/// As [`read_storage`].
pub fn shard_storage(
    location: &Location,
    options: &ReadOptions,
) -> forebay_shard::Result<(PathBuf, Arc<dyn Storage>)> {
    let text = location.to_string();
    // The root of a repository of the Hub is in no other directory.
    let has_parent = location.is_remote() && matches!(location.parent_and_name(), Ok(Some(_)));
    let dir = match text.rsplit_once('/') {
        Some((dir, _)) if has_parent => Location::parse(dir).ok(),
        _ => None,
    };
    let (root, storage) = read_storage(dir.as_ref().unwrap_or(location), options)?;
    match dir {
        // Below the root of the storage, as `Path::join` would build it.
        Some(_) => Ok((PathBuf::from(text), storage)),
        None => Ok((root, storage)),
    }
}

/// The storage for a location, and the location's path in it.
///
/// # Errors
/// The error of [`Store::open`], as an error about that path.
pub fn read_storage(
    location: &Location,
    options: &ReadOptions,
) -> forebay_shard::Result<(PathBuf, Arc<dyn Storage>)> {
    if let Ok(path) = location.local_path() {
        let files = LocalStorage::new(options.clone());
        return Ok((path.to_owned(), Arc::new(files)));
    }
    let root = PathBuf::from(location.to_string());
    let storage =
        RemoteStorage::open(location, options).map_err(|error| forebay_shard::Error::Io {
            path: root.clone(),
            op: "open",
            source: ReadError::io(error),
        })?;
    Ok((root, Arc::new(storage)))
}

/// The objects below a location, for shard readers.
///
/// Paths begin with the location as text: `s3://bucket/imagenet/forebay.json`.
#[derive(Debug)]
pub struct RemoteStorage {
    store: Store,
    root: PathBuf,
    parallel: usize,
    ahead: Option<Arc<ReadAhead>>,
    cache: Option<Arc<Cache>>,
    /// Cache hits and misses of all readers.
    found: Arc<Mutex<CacheHits>>,
    known: Mutex<Known>,
    /// For locations that datasets refer to.
    options: ReadOptions,
}

/// Metadata of objects that was requested already.
#[derive(Debug, Default)]
struct Known {
    open: HashMap<PathBuf, Arc<RemoteFile>>,
    /// The objects of each directory that was listed, by key.
    listed: HashMap<String, Arc<HashMap<String, Object>>>,
}

impl RemoteStorage {
    /// Opens the store at a location. This makes no request.
    ///
    /// # Errors
    /// As [`Store::open`].
    pub fn open(location: &Location, options: &ReadOptions) -> Result<Self> {
        let store = Store::open(location, &options.store)?;
        Ok(Self::new(store, options))
    }

    /// Creates a storage on an open store.
    pub fn new(store: Store, options: &ReadOptions) -> Self {
        let parallel = PARALLEL.min(options.store.max_requests.max(1));
        let ahead = (options.read_ahead_bytes > 0)
            .then(|| Arc::new(ReadAhead::new(options.read_ahead_bytes, parallel)));
        Self {
            root: PathBuf::from(store.location().to_string()),
            store,
            parallel,
            ahead,
            cache: options.cache.clone(),
            found: Arc::default(),
            known: Mutex::default(),
            options: options.clone(),
        }
    }

    /// The path of the location itself.
    pub fn root(&self) -> &Path {
        &self.root
    }

    fn known(&self) -> MutexGuard<'_, Known> {
        // A panic cannot leave the maps inconsistent.
        self.known.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The key of a path below the root.
    fn key(&self, path: &Path) -> io::Result<String> {
        let refused = |why: &str| io::Error::new(io::ErrorKind::InvalidInput, why.to_owned());
        let below = path
            .strip_prefix(&self.root)
            .map_err(|_| refused("it is not below the location that was opened"))?;
        let mut key = String::new();
        for part in below.components() {
            let part = part.as_os_str().to_str();
            let part = part.ok_or_else(|| refused("an object's name must be UTF-8"))?;
            if !key.is_empty() {
                key.push('/');
            }
            key.push_str(part);
        }
        Ok(key)
    }

    /// Looks an object up in the listing of its directory. `None` if the directory was not listed, `Some(None)` if the listing
    /// does not contain the object.
    fn listed(&self, key: &str) -> Option<Option<Object>> {
        let dir = key.rsplit_once('/').map_or("", |(dir, _)| dir);
        let known = self.known();
        let listed = known.listed.get(dir)?;
        Some(listed.get(key).cloned())
    }

    fn find(&self, key: &str) -> io::Result<Object> {
        // An object that the listing does not contain may have been created since.
        if let Some(Some(object)) = self.listed(key)
            && object.etag.is_some()
        {
            return Ok(object);
        }
        let found = self.store.head(key).map_err(ReadError::io)?;
        found.ok_or_else(|| {
            ReadError::io(Error::NotFound {
                object: self.store.location().join(key).to_string(),
                op: "read",
            })
        })
    }

    fn file(&self, path: &Path) -> io::Result<Arc<RemoteFile>> {
        if let Some(file) = self.known().open.get(path) {
            return Ok(Arc::clone(file));
        }
        let object = self.find(&self.key(path)?)?;
        let source = Source::new(self.store.clone(), object, self.cache.as_ref(), &self.found);
        let file = RemoteFile::new(source, self.ahead.clone());
        let mut known = self.known();
        // If another reader was faster, its file is used, so that all readers have the same version.
        let file = known
            .open
            .entry(path.to_owned())
            .or_insert_with(|| Arc::new(file));
        Ok(Arc::clone(file))
    }

    /// Stores a part of a file in the cache, as far as there is room. `None` if it cannot be cached: there is no cache, or the
    /// store reports no version of the object.
    ///
    /// # Errors
    /// As [`Storage::open`], and if the bytes cannot be fetched.
    pub fn fill(&self, path: &Path, bytes: Range<u64>) -> io::Result<Option<Filled>> {
        let filled = self.file(path)?.fill(bytes).transpose();
        filled.map_err(ReadError::io)
    }
}

impl Storage for RemoteStorage {
    fn open(&self, path: &Path) -> io::Result<Arc<dyn ReadAt>> {
        let file: Arc<RemoteFile> = self.file(path)?;
        Ok(file)
    }

    fn read(&self, path: &Path, limit: u64) -> io::Result<Vec<u8>> {
        let key = self.key(path)?;
        self.store.get(&key, limit).map_err(ReadError::io)
    }

    fn exists(&self, path: &Path) -> io::Result<bool> {
        let key = self.key(path)?;
        if let Some(listed) = self.listed(&key) {
            return Ok(listed.is_some());
        }
        let found = self.store.head(&key).map_err(ReadError::io)?;
        Ok(found.is_some())
    }

    fn list(&self, dir: &Path) -> io::Result<Vec<OsString>> {
        let dir = self.key(dir)?;
        let listing = self.store.list_dir(&dir).map_err(ReadError::io)?;
        let name = |key: &str| {
            let name = key.rsplit_once('/').map_or(key, |(_, name)| name);
            OsString::from(name)
        };
        let objects = listing.objects.iter().map(|object| object.key.as_str());
        let dirs = listing.dirs.iter().map(String::as_str);
        let names = objects.chain(dirs).map(name).collect();
        let objects = listing.objects.into_iter();
        let by_key = objects.map(|object| (object.key.clone(), object));
        let by_key = Arc::new(by_key.collect());
        self.known().listed.insert(dir, by_key);
        Ok(names)
    }

    fn expect(&self, dir: &Path, files: usize) {
        let is_known = |key: &str| self.known().listed.contains_key(key);
        if files >= WORTH_LISTING && self.key(dir).is_ok_and(|key| !is_known(&key)) {
            // If listing is not possible or not allowed, each object costs one request.
            let _ = self.list(dir);
        }
    }

    fn open_location(&self, location: &str) -> io::Result<(PathBuf, Arc<dyn Storage>)> {
        let place = Location::parse(location).map_err(ReadError::io)?;
        if !place.is_remote() {
            let what = format!("a dataset in a store refers to {location}, a path of one machine");
            return Err(io::Error::new(io::ErrorKind::InvalidData, what));
        }
        read_storage(&place, &self.options).map_err(io::Error::other)
    }

    fn stats(&self) -> Option<StorageStats> {
        let found = || *self.found.lock().unwrap_or_else(PoisonError::into_inner);
        Some(StorageStats {
            cache: self.cache.as_ref().map(|_| found()),
            ..self.store.stats()
        })
    }

    fn read_profile(&self) -> ReadProfile {
        let reach = self.ahead.as_ref().map_or(0, |ahead| ahead.budget());
        let mut profile = ReadProfile::default();
        profile.parallel = self.parallel;
        profile.gap_bytes = GAP_BYTES;
        profile.readahead_bytes = reach.min(REACH_BYTES);
        profile.tail_bytes = TAIL_BYTES;
        profile
    }
}
