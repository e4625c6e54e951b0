//! The submitted files of an area that are not stored yet, and their outcomes.

use super::Shared;
use super::journal::Submitted;
use super::session::Session;
use super::status::UploadProgress;
use super::tasks::backoff;
use forebay_store::{Cancel, Error, Result};
use std::collections::BTreeMap;
use std::sync::atomic::AtomicBool;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

/// How often a waiting call checks for cancellation.
pub(super) const LOOK: Duration = Duration::from_millis(100);
/// How many attempts may end with a wrong checksum before the file counts as failed.
const DAMAGES: u32 = 3;

/// A submitted file that is uploaded.
#[derive(Debug)]
pub(super) struct Entry {
    pub(super) session: Arc<Session>,
    pub(super) submitted: Submitted,
    /// The journal has the line that the file is at its destination.
    pub(super) is_stored: AtomicBool,
    tries: Mutex<Tries>,
}

/// The earlier attempts to upload a file.
#[derive(Debug, Clone, Copy)]
pub(super) struct Tries {
    /// No attempt was made yet, so the object cannot be in the store.
    pub(super) is_new: bool,
    /// A killed process may have left unfinished uploads of this file.
    pub(super) is_unclean: bool,
    begin: Instant,
    count: u32,
    damages: u32,
}

impl Entry {
    /// A new file, or, if `is_found`, a file that an earlier process submitted and may have uploaded partly or completely.
    pub(super) fn new(session: Arc<Session>, submitted: Submitted, is_found: bool) -> Self {
        let tries = Tries {
            is_new: !is_found,
            is_unclean: is_found,
            begin: Instant::now(),
            count: 0,
            damages: 0,
        };
        Self {
            session,
            submitted,
            is_stored: AtomicBool::new(false),
            tries: Mutex::new(tries),
        }
    }

    pub(super) fn tries(&self) -> MutexGuard<'_, Tries> {
        self.tries.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Tries {
    /// Starts an attempt. The first attempt starts the time for the patience.
    pub(super) fn begin(&mut self) -> Self {
        if self.count == 0 {
            self.begin = Instant::now();
        }
        *self
    }

    /// The wait before the next attempt; `None` if the file counts as failed.
    pub(super) fn after(&mut self, error: &Error, patience: Duration) -> Option<Duration> {
        // The failed attempt may have stored the object.
        self.is_new = false;
        self.count += 1;
        // Bytes that were damaged in transit are sent again a few times. A damaged local file does not recover.
        let is_damage = matches!(error, Error::Checksum { .. });
        self.damages += u32::from(is_damage);
        let is_worth_it = error.may_pass() || (is_damage && self.damages <= DAMAGES);
        (is_worth_it && self.begin.elapsed() < patience).then(|| backoff(self.count))
    }
}

/// The outcomes of the files of an area.
#[derive(Debug, Default)]
pub(super) struct UploadOutcomes {
    /// Files that could not be uploaded, and their errors, by id.
    failed: BTreeMap<u64, (Arc<Entry>, Arc<Error>)>,
    /// An error that was not returned to any caller yet.
    pub(super) untold: Option<Error>,
    /// The error of the last failed attempt, while it is retried.
    pub(super) trouble: Option<String>,
    submitted: (u64, u64),
    stored: (u64, u64),
}

impl UploadOutcomes {
    pub(super) fn submitted(&mut self, submitted: &Submitted) {
        self.submitted.0 += 1;
        self.submitted.1 += submitted.len;
    }

    /// Records that a file is at its destination.
    pub(super) fn stored(&mut self, submitted: &Submitted) {
        self.stored.0 += 1;
        self.stored.1 += submitted.len;
        self.trouble = None;
    }

    /// Records that a file could not be uploaded.
    pub(super) fn failed(&mut self, entry: &Arc<Entry>, error: Error) {
        let error = Arc::new(error);
        self.untold
            .get_or_insert_with(|| undelivered(&entry.submitted, &error));
        let id = entry.submitted.id;
        self.failed.insert(id, (Arc::clone(entry), error));
    }

    pub(super) fn failures(&self) -> impl Iterator<Item = &Arc<Entry>> {
        self.failed.values().map(|(entry, _)| entry)
    }

    fn first_failure(&self) -> Result<()> {
        match self.failed.values().next() {
            Some((entry, error)) => Err(undelivered(&entry.submitted, error)),
            None => Ok(()),
        }
    }

    /// Removes the failed files and the given ones from the counts, and returns both.
    pub(super) fn discard(&mut self, idle: Vec<Arc<Entry>>) -> Vec<Arc<Entry>> {
        let failed = std::mem::take(&mut self.failed);
        let failed = failed.into_values().map(|(entry, _)| entry);
        let all: Vec<Arc<Entry>> = idle.into_iter().chain(failed).collect();
        for entry in &all {
            self.submitted.0 -= 1;
            self.submitted.1 -= entry.submitted.len;
        }
        all
    }

    pub(super) fn progress(&self) -> UploadProgress {
        UploadProgress {
            submitted_files: self.submitted.0,
            submitted_bytes: self.submitted.1,
            stored_files: self.stored.0,
            stored_bytes: self.stored.1,
            sent_bytes: 0,
            trouble: self.trouble.clone(),
        }
    }
}

fn undelivered(submitted: &Submitted, error: &Arc<Error>) -> Error {
    Error::Undelivered {
        object: submitted.object(),
        source: Arc::clone(error),
    }
}

impl Shared {
    /// The submitted files that are not stored, in order of their ids.
    pub(super) fn left(&self) -> Vec<Arc<Entry>> {
        let mut left = self.queue.tasks();
        // A failed file is added to the ledger before it leaves the queue, so no file is missing here.
        let ledger = self.ledger();
        left.extend(ledger.failures().map(Arc::clone));
        left.sort_by_key(|entry| entry.submitted.id);
        left.dedup_by_key(|entry| entry.submitted.id);
        left
    }

    /// The result for all files: `None` while files are queued, else the first failure.
    pub(super) fn end(&self) -> Option<Result<()>> {
        self.queue.is_empty().then(|| self.ledger().first_failure())
    }

    /// Waits until `done` returns a result, or `cancel` is raised.
    pub(super) fn wait_until<T>(
        &self,
        cancel: &Cancel,
        done: impl Fn() -> Option<Result<T>>,
    ) -> Result<T> {
        loop {
            if let Some(end) = done() {
                return end;
            }
            if cancel.is_cancelled() {
                return Err(Error::Cancelled {
                    object: format!("what is staged in {}", self.dir.display()),
                    op: "upload",
                });
            }
            self.queue.wait_a_moment(LOOK);
        }
    }
}
