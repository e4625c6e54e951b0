//! Buckets and web servers as stores.
//!
//! `object_store` speaks the protocols; here is what it leaves open: tries that go on through an outage without a
//! storm, timeouts that suit the size of a request, answers that were lost, and the proof that bytes are what they were.

mod endings;
mod fault;
mod fresh;
mod listed;
mod open;
mod pace;
mod profile;
mod read;
mod runtime;
mod upload;
mod uploads;
mod wire;
mod write;

#[cfg(any(test, feature = "fuzzing"))]
pub(crate) use uploads::fuzz as fuzz_page;

use super::{Listing, Object, Put, Retry, StoreOptions, Transfer, Written};
use crate::{Cancel, Error, Limiter, Location, Result, Trouble};
use endings::Endings;
use fault::{Again, Fault, Verdict, What, judge};
use forebay_shard::StorageStats;
use object_store::aws::AmazonS3;
use object_store::azure::MicrosoftAzure;
use object_store::client::HttpClient;
use object_store::gcp::GoogleCloudStorage;
use object_store::http::HttpStore;
use object_store::path::Path as Name;
use object_store::{Attribute, AttributeValue, ObjectStore};
use pace::Pace;
pub(super) use pace::traffic;
use std::borrow::Cow;
use std::future::Future;
use std::path::Path;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, RwLock};
use std::time::{Duration, Instant};
use wire::{NOTES, Notes};

/// The user's metadata that holds an object's CRC-32C as eight hex digits. One word in lower case, as Azure wants it.
const CRC32C_NAME: &str = "forebaycrc32c";
/// The user's metadata by which a writer recognises its own object after an answer was lost.
const TOKEN_NAME: &str = "forebaytoken";
/// Transfers may be this slow, in bytes a second, before a request of many bytes counts as standing still.
const SLOWEST: u64 = 64 << 10;

/// A bucket or web server, and what it takes to open it anew in a forked process.
#[derive(Debug)]
pub(super) struct Cloud {
    location: Location,
    options: StoreOptions,
    live: RwLock<Live>,
}

/// An open connection to a store, cheap to clone.
#[derive(Debug, Clone)]
struct Live(Arc<Open>);

struct Open {
    pid: u32,
    location: Location,
    service: Service,
    /// For the requests that `object_store` has no call for.
    client: HttpClient,
    /// The location's name in the bucket.
    prefix: Name,
    pace: Arc<Pace>,
    limiter: Option<Limiter>,
    timeout: Duration,
    retry: Retry,
    settings: Settings,
    counters: Counters,
}

/// `object_store` shows keys in its `Debug`.
impl std::fmt::Debug for Open {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Open")
            .field("location", &self.location)
            .field("pid", &self.pid)
            .finish_non_exhaustive()
    }
}

/// What was done since the store was opened, for those who ask.
#[derive(Debug, Default)]
struct Counters {
    received_bytes: AtomicU64,
    retries: AtomicU64,
    hedges: AtomicU64,
}

/// What users set of ours, beside what they set of `object_store`.
#[derive(Debug, Clone, Default)]
struct Settings {
    /// Whether bytes travel in the clear, so that only a comparison of checksums proves them.
    plain_http: bool,
    check_uploads: CheckUploads,
    assume_conditional_put: bool,
    /// Where Google's store is, for requests of our own.
    base_url: String,
    /// The account, for Azure.
    account: String,
}

/// How an upload is proved.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
enum CheckUploads {
    /// By the checksums that the store reports; where it reports none, by TLS and the request's signature, and where there
    /// is no TLS, by reading back.
    #[default]
    Reported,
    /// By reading back, always.
    Read,
}

enum Service {
    S3(Arc<AmazonS3>),
    Google(Arc<GoogleCloudStorage>),
    Azure(Arc<MicrosoftAzure>),
    Web(Arc<HttpStore>),
}

/// The try that is made: the first has the number 1.
#[derive(Debug, Clone, Copy)]
struct Try(u32);

/// An operation, for errors and timeouts.
#[derive(Debug, Clone)]
struct Operation {
    /// What is done, as a verb: "read".
    op: &'static str,
    /// The object's URL.
    object: String,
    /// Bytes that are sent or received.
    bytes: u64,
}

impl Cloud {
    pub(super) fn open(location: &Location, options: &StoreOptions) -> Result<Self> {
        let open = open::open(location, options)?;
        Ok(Self {
            location: location.clone(),
            options: options.clone(),
            live: RwLock::new(Live(Arc::new(open))),
        })
    }

    /// The connection of this process. Connections of a parent process are left to it: both would read from them.
    fn live(&self) -> Result<Live> {
        let pid = std::process::id();
        {
            let live = self.live.read().unwrap_or_else(|e| e.into_inner());
            if live.0.pid == pid {
                return Ok(live.clone());
            }
        }
        let fresh = Live(Arc::new(open::open(&self.location, &self.options)?));
        let mut live = self.live.write().unwrap_or_else(|e| e.into_inner());
        // To drop it would say goodbye on the parent's connections.
        std::mem::forget(std::mem::replace(&mut *live, fresh.clone()));
        Ok(fresh)
    }

    /// Whether whoever opened the store wants to stop.
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

    /// Waits for requests, unless whoever opened the store wants to stop.
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

    pub(super) fn list(&self, prefix: &str) -> Result<Vec<Object>> {
        self.wait("list", prefix, self.live()?.list(prefix.to_owned(), false))
    }

    pub(super) fn list_all(&self, prefix: &str) -> Result<Listing> {
        let listed = self.live()?.list(prefix.to_owned(), true);
        Ok(Listing {
            objects: self.wait("list", prefix, listed)?,
            ..Listing::default()
        })
    }

    pub(super) fn list_dir(&self, prefix: &str) -> Result<Listing> {
        self.wait("list", prefix, self.live()?.list_dir(prefix.to_owned()))
    }

    pub(super) fn head(&self, key: &str) -> Result<Option<Object>> {
        self.wait("look at", key, self.live()?.head(key.to_owned()))
    }

    pub(super) fn head_listed(&self, listed: &Object) -> Result<Option<Object>> {
        let head = self.live()?.head_listed(listed.clone());
        self.wait("look at", &listed.key, head)
    }

    pub(super) fn get(&self, key: &str, limit: u64) -> Result<Vec<u8>> {
        self.wait("read", key, self.live()?.get(key.to_owned(), limit))
    }

    pub(super) fn get_listed(&self, listed: &Object, limit: u64) -> Result<Vec<u8>> {
        let got = self.live()?.get_listed(listed.clone(), limit);
        self.wait("read", &listed.key, got)
    }

    pub(super) fn read_at(
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
        let etag = expected.and_then(|object| object.etag.clone());
        let live = self.live()?;
        let pace = Arc::clone(&live.0.pace);
        let read = live.read_range(key.to_owned(), etag, offset, len);
        let chunks = self.wait("read", key, read)?;
        pace.read(len);
        let mut rest = buf;
        for chunk in chunks {
            // Their lengths were added up: they fill the buffer and no more.
            let (now, later) = rest.split_at_mut(chunk.len().min(rest.len()));
            now.copy_from_slice(chunk.get(..now.len()).unwrap_or_default());
            rest = later;
        }
        Ok(())
    }

    pub(super) fn put(&self, key: &str, bytes: &[u8], put: &Put) -> Result<Written> {
        let live = self.live()?;
        let bytes = bytes.to_vec().into();
        let endings = Endings::new();
        let writing = live
            .clone()
            .put(key.to_owned(), bytes, put.clone(), &endings);
        let written = self.wait("write", key, writing);
        if matches!(written, Err(Error::Cancelled { .. })) {
            live.await_endings(&endings);
        }
        written
    }

    pub(super) fn upload_file(
        &self,
        key: &str,
        file: &Path,
        transfer: &Transfer<'_>,
    ) -> Result<Object> {
        let live = self.live()?;
        let endings = Endings::new();
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

    pub(super) fn download_file(
        &self,
        key: &str,
        file: &Path,
        transfer: &Transfer<'_>,
    ) -> Result<Object> {
        let live = self.live()?;
        let fetched = runtime::wait_unless(
            || transfer.cancel.is_cancelled() || self.is_stopped(),
            live.download_file(key.to_owned(), file, transfer),
        )?;
        fetched.ok_or_else(|| self.stopped("read", key))
    }

    pub(super) fn delete(&self, key: &str) -> Result<()> {
        self.wait("delete", key, self.live()?.delete(key.to_owned()))
    }

    /// What reading took so far; what a parent process did is not counted.
    pub(super) fn stats(&self) -> StorageStats {
        let live = self.live.read().unwrap_or_else(|e| e.into_inner());
        let Counters {
            received_bytes,
            retries,
            hedges,
        } = &live.0.counters;
        let [fetched_bytes, retries, hedges] =
            [received_bytes, retries, hedges].map(|counter| counter.load(Ordering::Relaxed));
        StorageStats {
            fetched_bytes,
            retries,
            hedges,
            cache: None,
        }
    }

    pub(super) fn abort_uploads(&self, prefix: &str) -> Result<u64> {
        let live = self.live()?;
        let ended = live.abort_uploads(prefix.to_owned());
        self.wait("end the uploads of", prefix, ended)
    }
}

impl Live {
    fn store(&self) -> Arc<dyn ObjectStore> {
        match &self.0.service {
            Service::S3(store) => Arc::clone(store) as _,
            Service::Google(store) => Arc::clone(store) as _,
            Service::Azure(store) => Arc::clone(store) as _,
            Service::Web(store) => Arc::clone(store) as _,
        }
    }

    /// The name in the bucket of the object called `key`.
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

    /// The key of the object of that name; none if it is not below the location.
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
        if !matches!(self.0.service, Service::Web(_)) {
            return Ok(());
        }
        let (why, hint) = match op {
            "list" => (
                "web servers have no listings that a program can rely on",
                "name a dataset's own directory: its manifest says what is there",
            ),
            _ => (
                "web servers are read only",
                "write to a bucket or a local directory",
            ),
        };
        Err(Error::Request {
            object: self.object(key),
            op,
            kind: Trouble::Unsupported,
            why: why.to_owned(),
            attempts: 0,
            elapsed: Duration::ZERO,
            hint: Some(hint.to_owned()),
        })
    }

    /// Makes tries until one succeeds, no further one may help, or time is up.
    async fn run<T, Once>(
        &self,
        operation: &Operation,
        mut once: impl FnMut(Try) -> Once,
    ) -> std::result::Result<T, Failed>
    where
        Once: Future<Output = std::result::Result<T, Fault>>,
    {
        let open = &self.0;
        let started = Instant::now();
        let allowance = open.timeout + Duration::from_secs(operation.bytes / SLOWEST);
        let mut number = 0;
        loop {
            let turn = open.pace.enter().await;
            number += 1;
            let notes = Arc::new(Notes::of(open.pace.compares_payloads()));
            let one = NOTES.scope(Arc::clone(&notes), once(Try(number)));
            let outcome = match tokio::time::timeout(allowance, one).await {
                Ok(outcome) => outcome,
                Err(_) => Err(Fault::TimedOut(allowance)),
            };
            drop(turn);
            let seen = notes.seen();
            let fault = match outcome {
                Ok(_) if seen.refuted > 0 => {
                    Fault::BadBytes("the store received other bytes than were sent".to_owned())
                }
                Ok(value) => {
                    open.pace.succeeded();
                    return Ok(value);
                }
                Err(fault) => fault,
            };
            if seen.status.is_some() {
                open.pace.answered();
            } else {
                open.pace.unanswered();
            }
            let verdict = judge(fault, &seen);
            if verdict.again == Again::Slower {
                open.pace.slow_down(seen.retry_after);
            }
            let elapsed = started.elapsed();
            let patience = if open.pace.contacted() {
                open.retry.give_up_after
            } else {
                open.retry.give_up_after / 10
            };
            let more = match verdict.again {
                Again::Never => false,
                Again::Some(most) => number < most,
                Again::Yes | Again::Slower => true,
            };
            let wait = if more && number < open.retry.max_attempts {
                Some(self.wait_before(number + 1) + open.pace.retry())
            } else {
                None
            };
            match wait {
                Some(wait) if elapsed + wait <= patience => {
                    open.pace.repeats();
                    open.counters.retries.fetch_add(1, Ordering::Relaxed);
                    tokio::time::sleep(wait).await;
                }
                _ => {
                    if matches!(verdict.what, What::Trouble { .. } | What::Damaged { .. }) {
                        open.pace.gave_up();
                    }
                    return Err(Failed {
                        verdict,
                        attempts: number,
                        elapsed,
                    });
                }
            }
        }
    }

    /// A random time up to one that doubles with each try ("full jitter": those who failed together do not come back
    /// together).
    fn wait_before(&self, number: u32) -> Duration {
        let retry = &self.0.retry;
        let most = retry
            .first_wait
            .saturating_mul(1 << (number.saturating_sub(2)).min(16))
            .min(retry.max_wait);
        most.mul_f64(random_fraction())
    }
}

/// An operation that was given up.
#[derive(Debug)]
struct Failed {
    verdict: Verdict,
    attempts: u32,
    elapsed: Duration,
}

impl Failed {
    /// The error for the user.
    fn into_error(self, operation: &Operation) -> Error {
        let object = operation.object.clone();
        match self.verdict.what {
            What::Known(error) => error,
            What::Damaged {
                what,
                expected,
                found,
            } => Error::Checksum {
                object,
                what,
                expected,
                found,
            },
            What::BeyondEnd => Error::Changed {
                object,
                why: "it is shorter than it was".to_owned(),
            },
            What::NotFound => Error::NotFound {
                object,
                op: operation.op,
            },
            What::AlreadyThere => Error::AlreadyThere { object },
            What::Condition => Error::Changed {
                object,
                why: "it is another one by now".to_owned(),
            },
            What::Trouble { kind, why, hint } => Error::Request {
                object,
                op: operation.op,
                kind,
                why,
                attempts: self.attempts,
                elapsed: self.elapsed,
                hint,
            },
        }
    }
}

/// A random number from 0 to 1. Waiting times need no better randomness than that of a hash map's keys.
fn random_fraction() -> f64 {
    (random() >> 11) as f64 / (1u64 << 53) as f64
}

/// A random number that differs between processes, threads and calls.
fn random() -> u64 {
    use std::hash::{BuildHasher, Hasher, RandomState};
    static CALLS: AtomicU64 = AtomicU64::new(0);
    let mut hasher = RandomState::new().build_hasher();
    hasher.write_u64(CALLS.fetch_add(1, Ordering::Relaxed));
    hasher.write_u32(std::process::id());
    hasher.write_u128(
        std::time::SystemTime::now()
            .duration_since(std::time::UNIX_EPOCH)
            .map_or(0, |time| time.as_nanos()),
    );
    hasher.finish()
}

/// The metadata that objects of ours have.
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

/// A text by which a writer recognises what it wrote.
fn new_token() -> String {
    format!("{:016x}{:016x}", random(), random())
}
