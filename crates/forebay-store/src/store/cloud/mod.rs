//! Buckets and web servers as stores.
//!
//! `object_store` implements the protocols. This module adds retries that bridge an outage without a retry storm, timeouts
//! that depend on the size of a request, recovery from lost responses, and verification of checksums.

mod adaptive_limiter;
mod azure;
mod client;
mod content_hash;
mod environment;
mod exchange_log;
mod fault;
mod google;
mod hub;
mod list;
mod open;
mod read;
mod run;
mod runtime;
mod s3;
mod service;
mod task_tracker;
mod upload;
mod uploads;
mod watcher;
mod web;
mod webhdfs;
mod write;

#[cfg(any(test, feature = "fuzzing"))]
pub(crate) use uploads::fuzz as fuzz_page;

use super::backend::Backend;
use super::{LeftOut, Listing, Object, Put, Retry, StoreOptions, Transfer, Written};
use crate::scheme::{Kind, stores};
use crate::{Cancel, Error, ErrorKind, Limiter, Location, Result, Tariff};
use adaptive_limiter::AdaptiveLimiter;
use exchange_log::Billed;
use fault::{Fault, Outcome};
use forebay_shard::StorageStats;
use object_store::client::HttpClient;
use object_store::multipart::MultipartStore;
use object_store::path::Path as Name;
use object_store::{Attribute, AttributeValue, ObjectStore};
use open::Connect;
use read::Expected;
use service::Service;
use std::borrow::Cow;
use std::collections::BTreeSet;
use std::future::Future;
use std::path::Path;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, RwLock};
use std::time::Duration;
use task_tracker::TaskTracker;

/// The name of the user metadata with an object's CRC-32C in eight hex digits. One lower-case word, as Azure requires.
const CRC32C_NAME: &str = "forebaycrc32c";
/// The name of the user metadata by which a writer recognizes its own object after a lost response.
const TOKEN_NAME: &str = "forebaytoken";
/// The slowest accepted transfer, in bytes per second: a request may take its bytes divided by this, plus the timeout.
const SLOWEST: u64 = 64 << 10;

/// A bucket or web server, with the arguments to open it again in a forked process.
#[derive(Debug)]
pub(super) struct Cloud {
    location: Location,
    options: StoreOptions,
    connect: Connect,
    live: RwLock<Live>,
}

/// An open connection to a store, cheap to clone.
#[derive(Debug, Clone)]
struct Live(Arc<Open>);

struct Open {
    pid: u32,
    location: Location,
    service: Box<dyn Service>,
    /// For requests that `object_store` has no call for.
    client: HttpClient,
    /// The path of the location in the bucket.
    prefix: Name,
    pace: Arc<AdaptiveLimiter>,
    limiter: Option<Limiter>,
    timeout: Duration,
    retry: Retry,
    settings: Settings,
    counters: Counters,
    billed: Arc<Billed>,
    tariff: Arc<Tariff>,
    /// Invalid object names that listings contained.
    invalid_names: Mutex<BTreeSet<String>>,
}

/// Written by hand, because the `Debug` output of `object_store` contains credentials.
impl std::fmt::Debug for Open {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Open")
            .field("location", &self.location)
            .field("pid", &self.pid)
            .finish_non_exhaustive()
    }
}

/// Counters since the store was opened.
#[derive(Debug, Default)]
struct Counters {
    received_bytes: AtomicU64,
    retries: AtomicU64,
    hedges: AtomicU64,
}

/// Settings that are used here, not by `object_store`.
#[derive(Debug, Clone, Default)]
struct Settings {
    /// Whether the endpoint is plain HTTP, so that only a comparison of checksums detects damaged bytes.
    plain_http: bool,
    check_uploads: CheckUploads,
    assume_conditional_put: bool,
    /// The URL of Google Cloud Storage, for requests that are made without `object_store`.
    base_url: String,
    /// The Azure storage account.
    account: String,
}

/// How an upload is verified.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
enum CheckUploads {
    /// By the checksum that the store reports. If it reports none, TLS protects the bytes; without TLS the object is read back.
    #[default]
    Reported,
    /// By reading back every object.
    Read,
}

/// The number of a try; the first is 1.
#[derive(Debug, Clone, Copy)]
struct Try(u32);

/// An operation, for errors and timeouts.
#[derive(Debug, Clone)]
struct Operation {
    /// A verb: "read".
    op: &'static str,
    /// The object's URL.
    object: String,
    /// Bytes that are sent or received.
    bytes: u64,
}

macro_rules! open_each_kind {
    ($($module:ident => $scheme:expr,)*) => {
        /// Opens the store at `location`.
        pub(in crate::store) fn open_store(kind: Kind, location: &Location, options: &StoreOptions) -> Result<Box<dyn Backend>> {
            match kind {
                $(Kind::$module => Cloud::open(location, options, $module::connect),)*
            }
        }
    };
}

stores!(open_each_kind);

impl Cloud {
    fn open(
        location: &Location,
        options: &StoreOptions,
        connect: Connect,
    ) -> Result<Box<dyn Backend>> {
        let open = open::open(location, options, connect)?;
        Ok(Box::new(Self {
            location: location.clone(),
            options: options.clone(),
            connect,
            live: RwLock::new(Live(Arc::new(open))),
        }))
    }

    /// The connection of this process. A forked child opens a new one: parent and child would read from the same sockets.
    fn live(&self) -> Result<Live> {
        let pid = std::process::id();
        {
            let live = self.live.read().unwrap_or_else(|e| e.into_inner());
            if live.0.pid == pid {
                return Ok(live.clone());
            }
        }
        let fresh = Live(Arc::new(open::open(
            &self.location,
            &self.options,
            self.connect,
        )?));
        let mut live = self.live.write().unwrap_or_else(|e| e.into_inner());
        // Leaked, because dropping it would shut down the parent's TLS connections.
        std::mem::forget(std::mem::replace(&mut *live, fresh.clone()));
        Ok(fresh)
    }

    /// Whether the cancellation flag of the store's options is raised.
    fn is_stopped(&self) -> bool {
        let cancel = self.options.cancel.as_ref();
        cancel.is_some_and(Cancel::is_cancelled)
    }

    fn stopped(&self, op: &'static str, key: &str) -> Error {
        Error::Cancelled {
            object: self.location.join(key).to_string(),
            op,
        }
    }

    /// Runs requests to completion, or until the cancellation flag of the store's options is raised.
    fn wait<T>(
        &self,
        op: &'static str,
        key: &str,
        work: impl Future<Output = Result<T>>,
    ) -> Result<T> {
        if self.options.cancel.is_none() {
            return runtime::wait_for(work);
        }
        runtime::wait_unless(|| self.is_stopped(), work)?.ok_or_else(|| self.stopped(op, key))
    }

    /// The invalid names below a prefix that listings have contained so far.
    fn invalid_names_below(&self, prefix: &str) -> Result<Vec<LeftOut>> {
        let live = self.live()?;
        let known = live
            .0
            .invalid_names
            .lock()
            .unwrap_or_else(|e| e.into_inner());
        let root = live.0.prefix.as_ref();
        let below = |name: &String| {
            let path = match root {
                "" => name,
                root => name.strip_prefix(root)?.strip_prefix('/')?,
            };
            let rest = path.strip_prefix(prefix)?;
            let is_below = prefix.is_empty() || rest.starts_with('/');
            is_below.then(|| LeftOut {
                path: path.to_owned(),
                why: why_invalid(path),
            })
        };
        Ok(known.iter().filter_map(below).collect())
    }
}

impl Backend for Cloud {
    fn list_all(&self, prefix: &str) -> Result<Listing> {
        let listed = self.live()?.list(prefix.to_owned());
        Ok(Listing {
            objects: self.wait("list", prefix, listed)?,
            left_out: self.invalid_names_below(prefix)?,
            ..Listing::default()
        })
    }

    fn list_dir(&self, prefix: &str) -> Result<Listing> {
        let listed = self.live()?.list_dir(prefix.to_owned());
        let mut listing = self.wait("list", prefix, listed)?;
        listing.left_out = self.invalid_names_below(prefix)?;
        Ok(listing)
    }

    fn head(&self, key: &str) -> Result<Option<Object>> {
        self.wait("look at", key, self.live()?.head(key.to_owned()))
    }

    fn get(&self, key: &str, limit: u64) -> Result<Vec<u8>> {
        self.wait("read", key, self.live()?.get(key.to_owned(), limit))
    }

    fn read_at(
        &self,
        key: &str,
        expected: Option<&Object>,
        offset: u64,
        buf: &mut [u8],
    ) -> Result<()> {
        if buf.is_empty() {
            return Ok(());
        }
        let len = buf.len() as u64;
        let live = self.live()?;
        let expected = match expected {
            Some(object) => live.expected(object.etag.clone(), object.len),
            None => Expected::default(),
        };
        let pace = Arc::clone(&live.0.pace);
        let read = live.read_range(key.to_owned(), expected, offset, len);
        let chunks = self.wait("read", key, read)?;
        pace.read(len);
        let mut rest = buf;
        for chunk in chunks {
            // `body` has checked that the chunks add up to `len` bytes.
            let (now, later) = rest.split_at_mut(chunk.len().min(rest.len()));
            now.copy_from_slice(chunk.get(..now.len()).unwrap_or_default());
            rest = later;
        }
        Ok(())
    }

    fn put(&self, key: &str, bytes: &[u8], put: &Put) -> Result<Written> {
        let live = self.live()?;
        let bytes = bytes.to_vec().into();
        let endings = TaskTracker::new();
        let writing = live
            .clone()
            .put(key.to_owned(), bytes, put.clone(), &endings);
        let written = self.wait("write", key, writing);
        if matches!(written, Err(Error::Cancelled { .. })) {
            live.await_endings(&endings);
        }
        written
    }

    fn upload_file(&self, key: &str, file: &Path, transfer: &Transfer<'_>) -> Result<Object> {
        let live = self.live()?;
        let endings = TaskTracker::new();
        let sent = runtime::wait_unless(
            || transfer.cancel.is_cancelled() || self.is_stopped(),
            live.clone()
                .upload_file(key.to_owned(), file, transfer, &endings),
        )?;
        sent.ok_or_else(|| {
            live.await_endings(&endings);
            self.stopped("write", key)
        })
    }

    fn download_file(&self, key: &str, file: &Path, transfer: &Transfer<'_>) -> Result<Object> {
        let live = self.live()?;
        let fetched = runtime::wait_unless(
            || transfer.cancel.is_cancelled() || self.is_stopped(),
            live.download_file(key.to_owned(), file, transfer),
        )?;
        fetched.ok_or_else(|| self.stopped("read", key))
    }

    fn delete(&self, key: &str) -> Result<()> {
        self.wait("delete", key, self.live()?.delete(key.to_owned()))
    }

    fn pinned(&self) -> Result<Option<Location>> {
        self.wait("look at", "", self.live()?.pinned())
    }

    /// Returns the read counters of this process.
    fn stats(&self) -> StorageStats {
        let live = self.live.read().unwrap_or_else(|e| e.into_inner());
        let Counters {
            received_bytes,
            retries,
            hedges,
        } = &live.0.counters;
        let [fetched_bytes, retries, hedges] =
            [received_bytes, retries, hedges].map(|counter| counter.load(Ordering::Relaxed));
        let usage = live.0.billed.usage();
        let cost = live.0.tariff.cost(&usage);
        StorageStats {
            requests: usage.requests(),
            region_nanodollars: cost.in_region,
            internet_nanodollars: cost.over_internet,
            prices_as_of: live.0.tariff.as_of(),
            fetched_bytes,
            retries,
            hedges,
            cache: None,
        }
    }

    fn tariff(&self) -> Option<Arc<Tariff>> {
        let live = self.live.read().unwrap_or_else(|e| e.into_inner());
        Some(Arc::clone(&live.0.tariff))
    }

    fn abort_uploads_of(&self, key: &str) -> Result<()> {
        let ended = self.live()?.abort_uploads_of(key.to_owned());
        self.wait("end the uploads of", key, ended)
    }

    fn invalid_names(&self) -> Result<Vec<LeftOut>> {
        self.invalid_names_below("")
    }
}

impl Live {
    fn store(&self) -> Arc<dyn ObjectStore> {
        self.0.service.store()
    }

    fn multipart(&self) -> std::result::Result<&dyn MultipartStore, Fault> {
        let multipart = self.0.service.multipart();
        multipart.ok_or_else(Fault::read_only)
    }

    /// The full name in the bucket of the object `key`.
    fn name(&self, key: &str) -> Result<Name> {
        let prefix = self.0.prefix.as_ref();
        let full = match (prefix.is_empty(), key.is_empty()) {
            (true, _) => Cow::Borrowed(key),
            (_, true) => Cow::Borrowed(prefix),
            _ => Cow::Owned(format!("{prefix}/{key}")),
        };
        Name::parse(&full).map_err(|_| Error::BadKey {
            key: key.to_owned(),
            why: "object stores have no such names",
        })
    }

    /// The key of the object with this full name; `None` if it is not below the location.
    fn key(&self, name: &Name) -> Option<String> {
        let prefix = self.0.prefix.as_ref();
        let rest = name.as_ref().strip_prefix(prefix)?;
        if prefix.is_empty() {
            return Some(rest.to_owned());
        }
        Some(rest.strip_prefix('/')?.to_owned())
    }

    /// The object's URL, for errors.
    fn object(&self, key: &str) -> String {
        self.0.location.join(key).to_string()
    }

    fn operation(&self, op: &'static str, key: &str, bytes: u64) -> Operation {
        Operation {
            op,
            object: self.object(key),
            bytes,
        }
    }

    fn refuse_web(&self, op: &'static str, key: &str) -> Result<()> {
        let is_list = op == "list";
        if !self.0.service.is_read_only() || (is_list && self.0.service.lists()) {
            return Ok(());
        }
        let (why, hint) = match is_list {
            true => (
                "web servers have no listings that a program can rely on",
                "name a dataset's own directory: its manifest says what is there",
            ),
            false => (
                "web servers and the Hugging Face Hub are read only",
                "write to a bucket or a local directory",
            ),
        };
        Err(Error::Request {
            object: self.object(key),
            op,
            kind: ErrorKind::Unsupported,
            why: why.to_owned(),
            attempts: 0,
            elapsed: Duration::ZERO,
            hint: Some(hint.to_owned()),
        })
    }
}

/// Why no object can have this name here.
fn why_invalid(path: &str) -> &'static str {
    match path.chars().any(char::is_control) {
        true => {
            "its name has a tab, a line break or another control character, which requests cannot have"
        }
        false => "its name has an empty part, or one that is . or ..: no path can have it",
    }
}

/// A random number from the system.
fn random() -> u64 {
    getrandom::u64().expect("the system has random numbers")
}

/// The user metadata of objects that this crate writes.
fn attributes(crc32c: u32, token: &str) -> object_store::Attributes {
    let mut attributes = object_store::Attributes::new();
    for (name, value) in [
        (CRC32C_NAME, format!("{crc32c:08x}")),
        (TOKEN_NAME, token.to_owned()),
    ] {
        attributes.insert(
            Attribute::Metadata(name.into()),
            AttributeValue::from(value),
        );
    }
    attributes
}

fn metadata<'a>(attributes: &'a object_store::Attributes, name: &str) -> Option<&'a str> {
    attributes
        .get(&Attribute::Metadata(name.to_owned().into()))
        .map(|value| value.as_ref())
}

/// A unique token by which a writer recognizes its own object.
fn new_token() -> String {
    format!("{:016x}{:016x}", random(), random())
}
