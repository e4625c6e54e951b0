//! Where a dataset is, how that is reached and what is kept of it: `storage_options`.

use std::collections::BTreeMap;
use std::ffi::OsStr;
use std::path::PathBuf;
use std::sync::{Arc, Mutex, PoisonError, Weak};
use std::time::Duration;

use forebay_store::cache::{Cache, CacheOptions};
use forebay_store::{Location, ReadOptions, StoreOptions};
use forebay_synthetic::{Recipe, is_synthetic};

use crate::failure::{Failure, Kind};

/// Options by their names: those of Forebay, and others as the field's tools have them.
pub(crate) type StorageOptions = BTreeMap<String, String>;

/// The place that a text names, if datasets can be read from there.
pub(crate) fn location(text: impl AsRef<OsStr>) -> Result<Location, Failure> {
    let location = Location::parse(text).map_err(|error| Failure::new(Kind::Option, error))?;
    if !location.is_remote() {
        location
            .local_path()
            .map_err(|error| Failure::new(Kind::Option, error))?;
    }
    Ok(location)
}

/// The synthetic dataset that a text names, if it names one.
pub(crate) fn synthetic(text: impl AsRef<OsStr>) -> Result<Option<Recipe>, Failure> {
    match text.as_ref().to_str() {
        Some(url) if is_synthetic(url) => Recipe::parse(url).map(Some).map_err(|error| {
            Failure::new(Kind::Option, format!("{}: {}", error.problem, error.hint))
        }),
        _ => Ok(None),
    }
}

/// Whether a place is read from a store.
pub(crate) fn is_far(place: impl AsRef<OsStr>) -> bool {
    Location::parse(place).is_ok_and(|place| place.is_remote())
}

/// How datasets are read with these options, through a cache if they are in a store and one is wanted.
pub(crate) fn read_options(is_far: bool, named: &StorageOptions) -> Result<ReadOptions, Failure> {
    let mut store = StoreOptions::default();
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
            "outage_timeout" => {
                store.retry = store.retry.with_give_up_after(seconds(name, value)?);
            }
            _ => drop(store.extra.insert(name.clone(), value.clone())),
        }
    }
    // Local places are read where they are.
    let cache = if is_far { keep.open()? } else { None };
    Ok(ReadOptions::new(store).with_cache(cache))
}

/// What is kept of what a store gave.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
struct Keep {
    dir: Option<PathBuf>,
    disk_bytes: Option<u64>,
    memory_bytes: u64,
}

/// The caches that are open. All loaders of a process share a cache.
static OPEN: Mutex<Vec<(u32, Keep, Weak<Cache>)>> = Mutex::new(Vec::new());

impl Keep {
    /// As the command line has it.
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

/// A number of bytes: "1048576", "256MiB", "1.5TiB".
fn bytes(name: &str, value: &str) -> Result<u64, Failure> {
    const UNITS: [(&str, u64); 5] = [
        ("KiB", 1 << 10),
        ("MiB", 1 << 20),
        ("GiB", 1 << 30),
        ("TiB", 1 << 40),
        ("", 1),
    ];
    let text = value.trim();
    let split = UNITS.into_iter().find_map(|(unit, size)| {
        let number = text.strip_suffix(unit)?.trim().parse::<f64>().ok()?;
        let bytes = number * size as f64;
        // Casting saturates; a fraction of a byte is none.
        (bytes.is_finite() && bytes >= 0.0).then_some(bytes as u64)
    });
    split.ok_or_else(|| refused(name, "bytes, such as '1048576' or '200GiB'"))
}

fn seconds(name: &str, value: &str) -> Result<Duration, Failure> {
    let seconds = value.parse().ok();
    let time = seconds.and_then(|seconds| Duration::try_from_secs_f64(seconds).ok());
    time.filter(|time| !time.is_zero())
        .ok_or_else(|| refused(name, "seconds, more than 0, as a string"))
}

/// The value is not shown: nobody knows what somebody put there.
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
            read_options(true, &named.collect())
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
            let error = options(&[(name, value)]).unwrap_err();
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
        let of = |place: &str| read_options(is_far(place), &named).unwrap().cache;
        let (one, two) = (of("s3://a/b").unwrap(), of("gs://c/d").unwrap());
        assert!(Arc::ptr_eq(&one, &two));
        assert!(of("/data/local").is_none());
        std::fs::write(dir.path().join("mine"), "x").unwrap();
        let other = [("cache_dir".to_owned(), dir.path().display().to_string())].into();
        let error = read_options(true, &other).err();
        assert!(error.is_some(), "not a cache");
    }

    #[test]
    fn sizes_have_units() {
        let of = |text| bytes("n", text).ok();
        assert_eq!(of("1024"), Some(1024));
        assert_eq!(of("1.5 KiB"), Some(1536));
        assert_eq!(of("2TiB"), Some(2 << 40));
        for text in ["", "x", "-1", "1 GB", "GiB", "NaN"] {
            assert_eq!(of(text), None, "{text}");
        }
    }

    #[test]
    fn places_are_known() {
        assert!(location("s3://bucket/x").unwrap().is_remote());
        assert!(!location("file:///x").unwrap().is_remote());
        assert!(location("ftp://x/y").is_err());
    }
}
