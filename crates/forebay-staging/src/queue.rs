//! The upload queue: files, their order, and the outcome of each.

use super::Shared;
use super::journal::Submitted;
use super::session::Session;
use super::status::Progress;
use forebay_store::{Cancel, Error, Result};
use std::collections::BTreeMap;
use std::sync::{Arc, MutexGuard};
use std::time::Duration;

/// A waiting call checks for a stop this often.
pub(super) const LOOK: Duration = Duration::from_millis(100);

/// A file that was handed in.
#[derive(Debug, Clone)]
pub(super) struct Entry {
    pub(super) session: Arc<Session>,
    pub(super) submitted: Submitted,
    /// An earlier process handed it in, and may have uploaded some or all of it.
    pub(super) is_found: bool,
    phase: Phase,
}

#[derive(Debug, Clone)]
enum Phase {
    Waiting,
    Uploading,
    Failed(Arc<Error>),
}

impl Entry {
    pub(super) fn new(session: Arc<Session>, submitted: Submitted) -> Self {
        Self {
            session,
            submitted,
            is_found: false,
            phase: Phase::Waiting,
        }
    }
}

/// Everything that is not stored yet.
#[derive(Debug)]
pub(super) struct Queue {
    entries: BTreeMap<u64, Entry>,
    pub(super) is_paused: bool,
    pub(super) is_closing: bool,
    /// Files of which an earlier process may have left open uploads; these are ended before anything is uploaded.
    pub(super) unclean: Vec<Submitted>,
    /// One thread is at it.
    pub(super) is_cleaning: bool,
    /// An error that no caller has seen yet.
    pub(super) untold: Option<Error>,
    /// Why the last attempt did not succeed, while it is repeated.
    pub(super) trouble: Option<String>,
    submitted: (u64, u64),
    stored: (u64, u64),
}

impl Queue {
    pub(super) fn new(is_paused: bool) -> Self {
        Self {
            entries: BTreeMap::new(),
            is_paused,
            is_closing: false,
            unclean: Vec::new(),
            is_cleaning: false,
            untold: None,
            trouble: None,
            submitted: (0, 0),
            stored: (0, 0),
        }
    }

    pub(super) fn is_empty(&self) -> bool {
        self.entries.is_empty()
    }

    /// Adds what an earlier process left.
    pub(super) fn add_found(&mut self, entry: Entry) {
        self.unclean.push(entry.submitted.clone());
        self.add(Entry {
            is_found: true,
            ..entry
        });
    }

    pub(super) fn add(&mut self, entry: Entry) {
        self.submitted.0 += 1;
        self.submitted.1 += entry.submitted.len;
        self.entries.insert(entry.submitted.id, entry);
    }

    /// The files that are left.
    pub(super) fn left(&self) -> impl Iterator<Item = &Submitted> {
        self.entries.values().map(|entry| &entry.submitted)
    }

    /// Takes the oldest file that waits.
    pub(super) fn next(&mut self) -> Option<Entry> {
        if self.is_paused || self.is_cleaning {
            return None;
        }
        let is_waiting = |entry: &&mut Entry| matches!(entry.phase, Phase::Waiting);
        let entry = self.entries.values_mut().find(is_waiting)?;
        entry.phase = Phase::Uploading;
        Some(entry.clone())
    }

    /// A file is where it belongs.
    pub(super) fn stored(&mut self, id: u64) {
        if let Some(entry) = self.entries.remove(&id) {
            self.stored.0 += 1;
            self.stored.1 += entry.submitted.len;
            self.trouble = None;
        }
    }

    /// A file was not uploaded because the area is closed: it is as it was.
    pub(super) fn put_back(&mut self, id: u64) {
        if let Some(entry) = self.entries.get_mut(&id) {
            entry.phase = Phase::Waiting;
        }
    }

    /// A file cannot be brought to its place.
    pub(super) fn failed(&mut self, id: u64, error: Error) {
        let Some(entry) = self.entries.get_mut(&id) else {
            return;
        };
        let error = Arc::new(error);
        entry.phase = Phase::Failed(Arc::clone(&error));
        self.untold
            .get_or_insert_with(|| undelivered(&entry.submitted, &error));
    }

    /// Takes out everything that is not being uploaded.
    pub(super) fn take_idle(&mut self) -> Vec<Entry> {
        let is_idle = |entry: &Entry| !matches!(entry.phase, Phase::Uploading);
        let idle: Vec<Entry> = self
            .entries
            .values()
            .filter(|entry| is_idle(entry))
            .cloned()
            .collect();
        self.entries.retain(|_, entry| !is_idle(entry));
        for entry in &idle {
            self.submitted.0 -= 1;
            self.submitted.1 -= entry.submitted.len;
        }
        idle
    }

    /// Names of the files that are handed in and not stored.
    pub(super) fn files(&self) -> impl Iterator<Item = &str> {
        self.entries
            .values()
            .map(|entry| entry.submitted.file.as_str())
    }

    /// Whether everything has ended, and how.
    pub(super) fn end(&self) -> Option<Result<()>> {
        let mut failed = None;
        for entry in self.entries.values() {
            match &entry.phase {
                Phase::Failed(error) => {
                    failed.get_or_insert_with(|| undelivered(&entry.submitted, error));
                }
                Phase::Waiting | Phase::Uploading => return None,
            }
        }
        Some(failed.map_or(Ok(()), Err))
    }

    fn end_of(&self, id: u64) -> Option<Result<()>> {
        match self.entries.get(&id) {
            None => Some(Ok(())),
            Some(Entry {
                phase: Phase::Failed(error),
                submitted,
                ..
            }) => Some(Err(undelivered(submitted, error))),
            Some(_) => None,
        }
    }

    pub(super) fn progress(&self) -> Progress {
        Progress {
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
    /// Waits until the queue says so, or a stop is requested.
    pub(super) fn wait_until<T>(
        &self,
        cancel: &Cancel,
        done: impl Fn(&Queue) -> Option<Result<T>>,
    ) -> Result<T> {
        let mut queue = self.queue();
        loop {
            if let Some(end) = done(&queue) {
                return end;
            }
            if cancel.is_cancelled() {
                return Err(Error::Cancelled {
                    object: format!("what is staged in {}", self.dir.display()),
                    op: "upload",
                });
            }
            queue = self.wait_a_moment(queue);
        }
    }

    pub(super) fn wait_a_moment<'a>(&self, queue: MutexGuard<'a, Queue>) -> MutexGuard<'a, Queue> {
        match self.changed.wait_timeout(queue, LOOK) {
            Ok((queue, _)) => queue,
            Err(poisoned) => poisoned.into_inner().0,
        }
    }
}

/// A file that was handed in, to be waited for.
#[derive(Debug, Clone)]
pub struct Ticket {
    shared: Arc<Shared>,
    id: u64,
    object: String,
}

impl Ticket {
    pub(super) fn new(shared: &Arc<Shared>, entry: &Entry) -> Self {
        Self {
            shared: Arc::clone(shared),
            id: entry.submitted.id,
            object: entry.submitted.object(),
        }
    }

    /// Returns the destination, for messages.
    pub fn object(&self) -> &str {
        &self.object
    }

    /// Whether the file is where it belongs; an error if it could not be brought there.
    pub fn is_stored(&self) -> Result<bool> {
        let end = self.shared.queue().end_of(self.id);
        end.map_or(Ok(false), |end| end.map(|()| true))
    }

    /// Waits until the file is where it belongs.
    ///
    /// # Errors
    /// Why it could not be brought there (it stays in the area for the next session); a stop that was requested.
    pub fn wait(&self, cancel: &Cancel) -> Result<()> {
        self.shared.check_process()?;
        self.shared
            .wait_until(cancel, |queue| queue.end_of(self.id))
    }
}
