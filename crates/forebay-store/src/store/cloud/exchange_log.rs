//! The log of the requests and responses between `object_store` and its HTTP client.
//!
//! `object_store` reports errors as text. The facts that decide on a retry (status, error code, `Retry-After`) and that prove
//! an upload (the checksum that the store reports of the received bytes) are recorded here, by `watcher`. The log is local to
//! the task that runs the operation.

use crate::Usage;
use object_store::client::HttpErrorKind;
use std::collections::HashSet;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::{Duration, SystemTime};

tokio::task_local! {
    /// The log of the current try of the running operation.
    pub(super) static EXCHANGE_LOG: Arc<ExchangeLog>;
}

/// The log of one try, which may consist of several requests.
#[derive(Debug, Default)]
pub(super) struct ExchangeLog {
    seen: Mutex<Observation>,
    /// The counters of the store and of its bucket.
    billed: [Arc<Billed>; 2],
}

/// Counts what stores charge for.
#[derive(Debug, Default)]
pub(super) struct Billed {
    gets: AtomicU64,
    puts: AtomicU64,
    received_bytes: AtomicU64,
    sent_bytes: AtomicU64,
}

impl Billed {
    pub(super) fn usage(&self) -> Usage {
        let get = |counter: &AtomicU64| counter.load(Ordering::Relaxed);
        Usage {
            gets: get(&self.gets),
            puts: get(&self.puts),
            received_bytes: get(&self.received_bytes),
            sent_bytes: get(&self.sent_bytes),
        }
    }

    pub(super) fn receive(&self, bytes: u64) {
        self.received_bytes.fetch_add(bytes, Ordering::Relaxed);
    }

    /// Counts a request with a body of `bytes` bytes. Deletions are free.
    fn request(&self, method: &str, is_listing: bool, bytes: u64) {
        let counter = match method {
            "DELETE" => return,
            "GET" | "HEAD" if !is_listing => &self.gets,
            _ => &self.puts,
        };
        counter.fetch_add(1, Ordering::Relaxed);
        self.sent_bytes.fetch_add(bytes, Ordering::Relaxed);
    }
}

/// Observations of the last request. The counters and `invalid_names` cover all requests of the try.
#[derive(Debug, Default, Clone)]
pub(super) struct Observation {
    pub(super) status: Option<u16>,
    /// The error code that the store gave, such as `SlowDown`.
    pub(super) code: Option<String>,
    /// The error message that the store gave.
    pub(super) message: Option<String>,
    pub(super) retry_after: Option<Duration>,
    /// The time of an error response by the store's clock and by this machine's.
    pub(super) clocks: Option<(SystemTime, SystemTime)>,
    pub(super) transport: Option<HttpErrorKind>,
    /// The last redirect that was not followed.
    pub(super) redirect: Option<Redirect>,
    /// Whether the Hub redirected the last request to a signed address, whose host answered.
    pub(super) is_signed: bool,
    /// The host of the last request, without its port.
    pub(super) host: String,
    /// The URL of the last request, without its query.
    pub(super) url: String,
    /// The CRC-32C of the whole object, as reported by the store.
    pub(super) crc32c: Option<u32>,
    /// The tokens of the pages that the listing continued with.
    pub(super) pages: HashSet<String>,
    /// Invalid object names that were removed from listing responses.
    pub(super) invalid_names: Vec<String>,
    /// Sent bodies that the store's response proves to have arrived intact.
    pub(super) proved: u32,
    /// Sent bodies about which the response has nothing to compare.
    pub(super) unproved: u32,
    /// Sent bodies for which the store reported a different checksum.
    pub(super) refuted: u32,
}

/// A redirect that was not followed.
#[derive(Debug, Default, Clone)]
pub(super) struct Redirect {
    /// The host of the target URL.
    pub(super) host: Option<String>,
    /// The region of the bucket, if S3 names it.
    pub(super) region: Option<String>,
    /// Why it was not followed, for clients that follow redirects (web servers).
    pub(super) why: Option<&'static str>,
}

impl ExchangeLog {
    pub(super) fn new(billed: [Arc<Billed>; 2]) -> Self {
        Self {
            billed,
            ..Self::default()
        }
    }

    /// Counts a request, see [`Billed::request`].
    pub(super) fn bill(&self, method: &str, is_listing: bool, bytes: u64) {
        for billed in &self.billed {
            billed.request(method, is_listing, bytes);
        }
    }

    /// Records the host of the next request, which follows a redirect.
    pub(super) fn asks(&self, host: &str) {
        host.clone_into(&mut self.lock().host);
    }

    pub(super) fn seen(&self) -> Observation {
        self.lock().clone()
    }

    /// Locks the observations, for writing.
    pub(super) fn lock(&self) -> MutexGuard<'_, Observation> {
        self.seen
            .lock()
            .unwrap_or_else(|poisoned| poisoned.into_inner())
    }
}
