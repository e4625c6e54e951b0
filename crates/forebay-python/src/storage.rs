//! Location of a dataset, access to its store and its cache: `storage_options`.

use std::collections::BTreeMap;
use std::ffi::OsStr;
use std::io::ErrorKind;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError, Weak};
use std::time::Duration;

use forebay_cache::ReadOptions;
use forebay_cache::{Cache, CacheOptions};
use forebay_shard::Dataset;
use forebay_shard::manifest::FILE_NAME;
use forebay_store::{Cancel, Location, StoreOptions};
use forebay_synthetic::{Recipe, is_synthetic};
use pyo3::prelude::*;
use pyo3::types::PyMapping;

use crate::failure::{Failure, Kind, unexpected};

/// Storage options by name: those of Forebay, and others under the names that are usual in other tools.
pub(crate) type StorageOptions = BTreeMap<String, String>;

/// The argument `storage_options`.
#[derive(Default)]
pub(crate) struct GivenOptions(pub(crate) StorageOptions);

impl<'a, 'py> FromPyObject<'a, 'py> for GivenOptions {
    type Error = PyErr;

    fn extract(given: Borrowed<'a, 'py, PyAny>) -> PyResult<Self> {
        let Ok(named) = given.cast::<PyMapping>() else {
            return Err(unexpected(&given, "a dict of str to str"));
        };
        let mut options = StorageOptions::new();
        for pair in named.items()? {
            let (name, value): (Bound<'py, PyAny>, Bound<'py, PyAny>) = pair.extract()?;
            let Ok(name) = name.extract::<String>() else {
                return Err(unexpected(&name, "names as str"));
            };
            // The error does not show the value, which may be a secret.
            let Ok(value) = value.extract::<String>() else {
                let expected = format!("{name} as str, such as \"true\" or \"30\"");
                return Err(unexpected(&value, &expected));
            };
            options.insert(name, value);
        }
        Ok(GivenOptions(options))
    }
}

/// Parses a location that datasets can be read from.
pub(crate) fn location(text: impl AsRef<OsStr>) -> Result<Location, Failure> {
    let location = Location::parse(text).map_err(|error| Failure::new(Kind::Option, error))?;
    if location.is_remote() {
        return Ok(location);
    }
    let path = location
        .local_path()
        .map_err(|error| Failure::new(Kind::Option, error))?;
    // The path of a manifest stands for its dataset.
    match path.parent() {
        Some(root) if path.ends_with(FILE_NAME) && path.is_file() => {
            let root = Path::new(".").join(root);
            Location::parse(root).map_err(|error| Failure::new(Kind::Option, error))
        }
        _ => Ok(location),
    }
}

/// Opens the dataset at a location.
pub(crate) fn open_dataset(place: &Location, read: &ReadOptions) -> Result<Dataset, Failure> {
    forebay_cache::open_dataset(place, read).or_else(|error| {
        let Some(failure) = no_manifest(place, &error) else {
            return Err(error.into());
        };
        let named = place.to_string();
        match forebay_cli::cached_index(Path::new(&named), &read.store) {
            None => Err(failure),
            Some(Err(message)) => Err(Failure::new(Kind::Missing, message).path(Path::new(&named))),
            Some(Ok(index)) => {
                warn_of(&named, &index);
                let root = Location::from(index.root.as_path());
                Ok(forebay_cache::open_dataset(&root, read)?)
            }
        }
    })
}

/// Warns if files were read completely to index them.
fn warn_of(place: &str, index: &forebay_cli::CachedIndex) {
    if !index.is_new {
        return;
    }
    let text = format!(
        "{place} has no index: its {} bytes were read once to make one, in {}. `forebay index` makes one where you choose, with \
         seek points for faster decoding",
        index.bytes,
        index.root.display()
    );
    warn(text);
}

/// Warns from a thread that does not hold the interpreter.
pub(crate) fn warn(text: String) {
    Python::attach(|py| {
        let category = py.get_type::<pyo3::exceptions::PyUserWarning>();
        let text = std::ffi::CString::new(text).unwrap_or_default();
        // If a filter turns the warning into an error, the error is printed, and the work continues.
        if let Err(error) = PyErr::warn(py, &category, &text, 2) {
            error.write_unraisable(py, None);
        }
    });
}

/// Explains what a location without a manifest holds.
fn no_manifest(place: &Location, error: &forebay_shard::Error) -> Option<Failure> {
    let forebay_shard::Error::Io { path, source, .. } = error else {
        return None;
    };
    let is_missing = matches!(
        source.kind(),
        ErrorKind::NotFound | ErrorKind::NotADirectory
    );
    if !is_missing || !path.ends_with(FILE_NAME) {
        return None;
    }
    let message = match place.local_path() {
        Ok(root) if !root.exists() => format!(
            "there is no dataset at {}: no such file or directory; a dataset is a directory with {FILE_NAME} in it, as \
             `forebay pack` makes it",
            root.display()
        ),
        Ok(root) => forebay_cli::why_no_dataset(root)?,
        Err(_) => format!(
            "{place} is not a dataset: there is no {FILE_NAME} in it; name the place that `forebay pack` or `forebay cp` wrote to"
        ),
    };
    Some(Failure::new(Kind::Missing, message).path(path))
}

/// Parses the URL of a synthetic dataset; `None` for other sources.
pub(crate) fn synthetic(text: impl AsRef<OsStr>) -> Result<Option<Recipe>, Failure> {
    match text.as_ref().to_str() {
        Some(url) if is_synthetic(url) => Recipe::parse(url).map(Some).map_err(|error| {
            Failure::new(Kind::Option, format!("{}: {}", error.problem, error.hint))
        }),
        _ => Ok(None),
    }
}

/// Returns whether a dataset is read from a store.
pub(crate) fn is_far(place: impl AsRef<OsStr>) -> bool {
    Location::parse(place).is_ok_and(|place| forebay_cache::reads_store(&place))
}

/// Options for reading datasets.
pub(crate) struct Reading {
    pub(crate) store: StoreOptions,
    keep: Option<Keep>,
}

impl Reading {
    /// Opens the cache, if one is configured. Blocks: opening a large cache takes time.
    pub(crate) fn open(&self) -> Result<ReadOptions, Failure> {
        let cache = match self.keep.clone() {
            Some(keep) => keep.open()?,
            None => None,
        };
        Ok(ReadOptions::new(self.store.clone()).with_cache(cache))
    }
}

/// Returns the options for reading datasets, with a cache if they are in a store and a cache is configured. Waits for the
/// store end once `cancel` is raised.
pub(crate) fn reading(
    is_far: bool,
    named: &StorageOptions,
    cancel: &Cancel,
) -> Result<Reading, Failure> {
    let mut store = StoreOptions {
        cancel: Some(cancel.clone()),
        ..StoreOptions::default()
    };
    let mut keep = Keep::of_environment()?;
    for (name, value) in named {
        match name.as_str() {
            "cache_dir" => keep.dir = Some(value.into()),
            "cache_bytes" => keep.disk_bytes = Some(bytes(name, value)?),
            "cache_memory_bytes" => keep.memory_bytes = bytes(name, value)?,
            "endpoint" => store.endpoint = Some(value.clone()),
            "region" => store.region = Some(value.clone()),
            "anonymous" => {
                store.anonymous = match value.to_ascii_lowercase().as_str() {
                    "true" | "1" => true,
                    "false" | "0" => false,
                    _ => return Err(refused(name, "'true' or 'false'")),
                }
            }
            "timeout" => store.timeout = seconds(name, value)?,
            "outage_timeout" => store.retry.give_up_after = seconds(name, value)?,
            _ => drop(store.extra.insert(name.clone(), value.clone())),
        }
    }
    // Local datasets need no cache.
    let keep = is_far.then_some(keep);
    Ok(Reading { store, keep })
}

/// Options of the cache for a store.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
struct Keep {
    dir: Option<PathBuf>,
    disk_bytes: Option<u64>,
    memory_bytes: u64,
}

/// The open caches, each with its process and options. Loaders of a process with the same options share a cache.
static OPEN: Mutex<Vec<(u32, Keep, Weak<Cache>)>> = Mutex::new(Vec::new());

impl Keep {
    /// Reads the environment variables that the command line uses too.
    fn of_environment() -> Result<Self, Failure> {
        let size = |name: &str| match std::env::var(name) {
            Ok(value) => bytes(name, &value).map(Some),
            Err(_) => Ok(None),
        };
        Ok(Self {
            dir: std::env::var_os("FOREBAY_CACHE_DIR").map(PathBuf::from),
            disk_bytes: size("FOREBAY_CACHE_BYTES")?,
            memory_bytes: size("FOREBAY_CACHE_MEMORY")?.unwrap_or(0),
        })
    }

    fn open(self) -> Result<Option<Arc<Cache>>, Failure> {
        if self.dir.is_none() && self.memory_bytes == 0 {
            return Ok(None);
        }
        let process = std::process::id();
        let mut open = OPEN.lock().unwrap_or_else(PoisonError::into_inner);
        open.retain(|(of, _, cache)| *of == process && cache.strong_count() > 0);
        let found = open.iter().find(|(_, keep, _)| *keep == self);
        if let Some(cache) = found.and_then(|(.., cache)| cache.upgrade()) {
            return Ok(Some(cache));
        }
        let options = CacheOptions {
            dir: self.dir.clone(),
            disk_bytes: self.disk_bytes,
            memory_bytes: self.memory_bytes,
            ..CacheOptions::default()
        };
        let cache = Cache::open(&options).map_err(|error| Failure::new(Kind::Option, error))?;
        let cache = Arc::new(cache);
        open.push((process, self, Arc::downgrade(&cache)));
        Ok(Some(cache))
    }
}

/// Parses a number of bytes, such as "1048576", "256MiB" or "1.5TiB"; 0 is allowed.
fn bytes(name: &str, value: &str) -> Result<u64, Failure> {
    match value.trim() {
        "0" => Ok(0),
        size => forebay_cli::parse_size(size)
            .map_err(|_| refused(name, "bytes, such as '1048576' or '200GiB'")),
    }
}

fn seconds(name: &str, value: &str) -> Result<Duration, Failure> {
    let seconds = value.parse().ok();
    let time = seconds.and_then(|seconds| Duration::try_from_secs_f64(seconds).ok());
    time.filter(|time| !time.is_zero())
        .ok_or_else(|| refused(name, "seconds, more than 0, as a string"))
}

/// Returns the failure for an invalid option. It does not show the value, which may be a secret.
fn refused(name: &str, expected: &str) -> Failure {
    let message = format!("storage_options: {name} is not what it can be: expected {expected}");
    Failure::new(Kind::Option, message)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn options_have_names() {
        let options = |pairs: &[(&str, &str)]| {
            let named = pairs
                .iter()
                .map(|(k, v)| ((*k).to_owned(), (*v).to_owned()));
            reading(true, &named.collect(), &Cancel::new())
        };
        let read = options(&[
            ("endpoint", "http://127.0.0.1:1"),
            ("anonymous", "True"),
            ("outage_timeout", "7.5"),
            ("aws_access_key_id", "k"),
        ])
        .unwrap();
        assert_eq!(read.store.endpoint.as_deref(), Some("http://127.0.0.1:1"));
        assert!(read.store.anonymous);
        assert_eq!(read.store.retry.give_up_after, Duration::from_millis(7500));
        assert_eq!(read.store.extra["aws_access_key_id"], "k");
        for (name, value) in [
            ("cache_bytes", "SECRET"),
            ("anonymous", "SECRET"),
            ("timeout", "SECRET"),
            ("timeout", "-1"),
        ] {
            let error = options(&[(name, value)]).err().unwrap();
            let shown = format!("{error:?}");
            assert!(shown.contains(name) && !shown.contains("SECRET"), "{shown}");
        }
    }

    #[test]
    fn a_process_shares_its_cache() {
        let dir = tempfile::tempdir().unwrap();
        let text = dir.path().join("cache").display().to_string();
        let named: StorageOptions = [("cache_dir", text.as_str()), ("cache_bytes", "1 GiB")]
            .map(|(name, value)| (name.to_owned(), value.to_owned()))
            .into();
        let open = |is_far, named| reading(is_far, named, &Cancel::new())?.open();
        let of = |place: &str| open(is_far(place), &named).unwrap().cache;
        let (one, two) = (of("s3://a/b").unwrap(), of("gs://c/d").unwrap());
        assert!(Arc::ptr_eq(&one, &two));
        assert!(of("/data/local").is_none());
        std::fs::write(dir.path().join("mine"), "x").unwrap();
        let other = [("cache_dir".to_owned(), dir.path().display().to_string())].into();
        let error = open(true, &other).err();
        assert!(error.is_some(), "not a cache");
    }

    #[test]
    fn sizes_have_units() {
        let of = |text| bytes("n", text).ok();
        assert_eq!(of("1024"), Some(1024));
        assert_eq!(of("1.5 KiB"), Some(1536));
        assert_eq!(of("2TiB"), Some(2 << 40));
        assert_eq!((of("1 GB"), of("0")), (Some(1_000_000_000), Some(0)));
        for text in ["", "x", "-1", "GiB", "NaN"] {
            assert_eq!(of(text), None, "{text}");
        }
    }

    #[test]
    fn local_and_remote_locations_are_recognized() {
        assert!(location("s3://bucket/x").unwrap().is_remote());
        assert!(!location("file:///x").unwrap().is_remote());
        assert!(location("ftp://x/y").is_err());
    }
}
