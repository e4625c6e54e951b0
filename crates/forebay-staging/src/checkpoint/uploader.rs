//! The burst buffer: a save returns once it is durable on the fast disk, and is uploaded in the background.
//!
//! A process has one uploader per staging area, with one [`TaskQueue`]. Large checkpoints are uploaded one at a time, so that
//! the oldest is complete as soon as possible; small ones, which are bound by latency, several at a time.

use super::catalog::{self, CheckpointStatus};
use super::draft::Draft;
use super::drain::{self, DrainContext, Drained, OpenStores};
use super::marker::Marker;
use super::name::CheckpointPath;
use super::request::{Request, UploaderOptions};
use super::{Error, Result, retention};
use crate::make_dirs;
use crate::room::reserved;
use crate::tasks::{TaskQueue, Tried, backoff};
use crate::unit::{self, Unit, UnitLock, UnitState};
use crate::{AreaLock, of_area};
use forebay_store::{BandwidthShare, Cancel, Limiter, Location, StoreOptions, free_bytes};
use std::collections::BTreeSet;
use std::path::Path;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard};
use std::time::{Duration, Instant};

/// Upload threads: one for large checkpoints, the others for small ones.
const DRAIN_THREADS: usize = 9;
/// Checkpoints up to this size are small: latency, not bandwidth, dominates their upload.
const SMALL_BYTES: u64 = 16 << 20;
/// The longest pause before checking again for other ranks' parts.
const LONGEST_LOOK: Duration = Duration::from_secs(5);
/// Interval at which a save that waits for room checks whether another process made some.
const ROOM_LOOK: Duration = Duration::from_millis(200);
/// Bytes of the disk that stay free, because file systems fail in untested ways when they are full.
const SPARE_BYTES: u64 = 16 << 20;

/// Saves checkpoints into a staging area, and uploads them. Clones share one queue.
#[derive(Debug, Clone)]
pub struct Uploader(Arc<Inner>);

#[derive(Debug)]
struct Inner {
    area: Arc<Area>,
    queue: TaskQueue<Job>,
}

/// The state of an area that all upload threads share.
#[derive(Debug)]
struct Area {
    options: UploaderOptions,
    limiter: Limiter,
    cancel: Cancel,
    stores: OpenStores,
    /// Held while local copies and older checkpoints are removed.
    removal: Mutex<()>,
}

#[derive(Debug)]
struct Job {
    entry: Unit,
    place: String,
    marker: Marker,
    store: StoreOptions,
    bytes: u64,
    moved: AtomicU64,
    done_files: Mutex<BTreeSet<String>>,
    progress: Mutex<Progress>,
    changed: Condvar,
}

#[derive(Debug, Default)]
struct Progress {
    owner: Option<UnitLock>,
    outcome: Option<std::result::Result<(), Arc<Error>>>,
    last_error: Option<Arc<Error>>,
    failing_since: Option<Instant>,
    tries: u32,
    missing_ranks: Vec<u32>,
    is_beside_complete: bool,
}

impl Job {
    fn progress(&self) -> MutexGuard<'_, Progress> {
        self.progress.lock().unwrap_or_else(|e| e.into_inner())
    }

    /// Whether it may be uploaded beside others. Parts of distributed checkpoints, and checkpoints with retention, keep their
    /// order: once a newer one is complete, older ones may be abandoned or removed.
    fn is_small(&self) -> bool {
        self.bytes <= SMALL_BYTES && self.marker.world_size == 1 && self.marker.keep.is_none()
    }

    fn conflicts(&self, other: &Self) -> bool {
        self.place == other.place || !(self.is_small() || other.is_small())
    }
}

/// A checkpoint that is durable on the fast disk, and its upload. Clones share one state.
#[derive(Debug, Clone)]
pub struct Saved(Arc<Job>);

impl Saved {
    /// The location of the checkpoint.
    pub fn location(&self) -> &str {
        &self.0.place
    }

    /// Returns its size in bytes.
    pub fn bytes(&self) -> u64 {
        self.0.bytes
    }

    /// Returns the number of bytes that are uploaded.
    pub fn moved(&self) -> u64 {
        self.0.moved.load(Ordering::Relaxed).min(self.0.bytes)
    }

    /// Whether it is complete at its destination.
    pub fn is_done(&self) -> bool {
        matches!(self.0.progress().outcome, Some(Ok(())))
    }

    /// Returns the final error, or that of the last try while uploading goes on.
    pub fn error(&self) -> Option<Arc<Error>> {
        let progress = self.0.progress();
        match &progress.outcome {
            Some(Ok(())) => None,
            Some(Err(error)) => Some(Arc::clone(error)),
            None => progress.last_error.clone(),
        }
    }

    /// Returns the time since the first failed try; `None` if no try failed.
    pub fn failing_for(&self) -> Option<Duration> {
        self.0.progress().failing_since.map(|since| since.elapsed())
    }

    /// Returns an error if waiting longer is of no use: the store refuses the upload, or tries have failed for `patience`. The
    /// checkpoint stays staged, and the upload is still retried.
    pub fn given_up_after(&self, patience: Duration) -> Option<Arc<Error>> {
        let error = self.error()?;
        let is_long = self.failing_for().is_some_and(|time| time >= patience);
        (is_long || error.is_refused()).then_some(error)
    }

    /// Returns the ranks whose parts are not uploaded yet; empty if the upload does not wait for any.
    pub fn missing_ranks(&self) -> Vec<u32> {
        self.0.progress().missing_ranks.clone()
    }

    /// Whether another attempt to save this checkpoint is complete at its destination, while this one waits for
    /// [`missing_ranks`](Self::missing_ranks).
    pub fn is_beside_complete(&self) -> bool {
        self.0.progress().is_beside_complete
    }

    /// Returns the result of the upload; `None` while it is in progress.
    pub fn outcome(&self) -> Option<std::result::Result<(), Arc<Error>>> {
        self.0.progress().outcome.clone()
    }

    /// Waits up to `time` for the result; `None` if the upload is still in progress.
    pub fn wait_for(&self, time: Duration) -> Option<std::result::Result<(), Arc<Error>>> {
        let progress = self.0.progress();
        let (progress, _) = self
            .0
            .changed
            .wait_timeout_while(progress, time, |progress| progress.outcome.is_none())
            .unwrap_or_else(|e| e.into_inner());
        progress.outcome.clone()
    }
}

impl Uploader {
    /// Opens a staging area, and creates its directory if necessary.
    pub fn open(options: UploaderOptions) -> Result<Self> {
        let dir = std::path::absolute(&options.dir)
            .map_err(|error| super::error::io_error(&options.dir, "find", error))?;
        make_dirs(&dir).map_err(of_area)?;
        let area = Arc::new(Area {
            limiter: Limiter::yielding(options.bandwidth, BandwidthShare::process()),
            options: UploaderOptions { dir, ..options },
            cancel: Cancel::new(),
            stores: OpenStores::default(),
            removal: Mutex::default(),
        });
        let drained = Arc::clone(&area);
        let step = move |job: &Arc<Job>| drained.step(job);
        let (threads, conflicts) = (DRAIN_THREADS, Job::conflicts);
        let queue = TaskQueue::with_conflicts("forebay-drain", threads, false, conflicts, step);
        Ok(Self(Arc::new(Inner { area, queue })))
    }

    /// Returns the directory of the area.
    pub fn dir(&self) -> &Path {
        &self.0.area.options.dir
    }

    /// Begins a checkpoint of about `bytes` bytes. Waits up to `wait` for room; `None` if there was none.
    pub fn begin(&self, bytes: u64, wait: Duration) -> Result<Option<Draft>> {
        let began = Instant::now();
        loop {
            if let Some(draft) = self.0.area.try_begin(bytes)? {
                return Ok(Some(draft));
            }
            let left = wait.saturating_sub(began.elapsed());
            if left.is_zero() {
                return Ok(None);
            }
            // Another process may make room without notifying this one.
            self.0.queue.wait_a_moment(left.min(ROOM_LOOK));
        }
    }

    /// Commits a draft. When this returns, the checkpoint survives a power cut. It is uploaded in the background, by this
    /// process or, after a crash, by the next one that recovers the area.
    pub fn save(&self, draft: Draft, request: &Request) -> Result<Saved> {
        request.check()?;
        let mut orders = request.orders()?;
        orders.superseded = Marker::earlier_attempts(self.dir(), &orders)?;
        let (entry, owner, marker) =
            draft.commit(&mut orders, &request.content, request.metadata.clone())?;
        let job = Job::new(
            entry,
            owner,
            marker,
            orders.place.location(),
            request.store.clone(),
        );
        Ok(self.take_up(job))
    }

    /// Takes over what dead processes left: uploads acknowledged checkpoints, and removes the others. `lend` returns the store
    /// options for a location; if it returns none, those of the checkpoint are used, with credentials from the environment.
    pub fn recover(&self, lend: &dyn Fn(&Location) -> Option<StoreOptions>) -> Result<Vec<Saved>> {
        let mut found = Vec::new();
        for entry in Unit::all(self.dir())? {
            if !entry.is_own() || entry.stage() == UnitState::Stored {
                continue;
            }
            let Some(owner) = entry.own()? else { continue };
            match Marker::of(&entry) {
                Ok(Some(marker)) => {
                    let place = marker.place()?;
                    let own = marker.store_options();
                    let store = match lend(&place.prefix) {
                        Some(mut lent) => {
                            lent.endpoint = lent.endpoint.or(own.endpoint);
                            lent.region = lent.region.or(own.region);
                            lent
                        }
                        None => own,
                    };
                    let job = Job::new(entry, owner, marker, place.location(), store);
                    found.push(self.take_up(job));
                }
                Ok(None) => {
                    entry.remove()?;
                }
                // A unit whose marker cannot be read is left for inspection; `status` reports it.
                Err(_) => {}
            }
        }
        Ok(found)
    }

    /// Returns the checkpoints that this process is uploading, the oldest first.
    pub fn pending(&self) -> Vec<Saved> {
        // A finished job leaves the queue a moment after its outcome is known.
        let jobs = self.0.queue.tasks();
        jobs.into_iter()
            .map(Saved)
            .filter(|saved| saved.outcome().is_none())
            .collect()
    }

    /// Returns the checkpoints in the area, including those of other processes.
    pub fn status(&self) -> Result<Vec<CheckpointStatus>> {
        catalog::status(self.dir())
    }

    /// Stops uploads, and waits until unfinished ones are cleaned up. Checkpoints that are not uploaded yet stay staged.
    pub fn close(&self) {
        self.0.area.cancel.cancel();
        self.0.queue.close();
    }

    fn take_up(&self, job: Arc<Job>) -> Saved {
        self.0.queue.add(Arc::clone(&job));
        Saved(job)
    }
}

impl Job {
    fn new(
        entry: Unit,
        owner: UnitLock,
        marker: Marker,
        place: String,
        store: StoreOptions,
    ) -> Arc<Self> {
        let bytes = marker.part.bytes();
        let progress = Progress {
            owner: Some(owner),
            ..Progress::default()
        };
        Arc::new(Self {
            entry,
            place,
            marker,
            store,
            bytes,
            moved: AtomicU64::new(0),
            done_files: Mutex::default(),
            progress: Mutex::new(progress),
            changed: Condvar::new(),
        })
    }
}

impl Area {
    /// Begins a draft of about this many bytes, if there is room for it.
    fn try_begin(&self, bytes: u64) -> Result<Option<Draft>> {
        // The lock covers the check and the reservation, so other processes always count the bytes of this draft.
        let _lock = AreaLock::lock(&self.options.dir).map_err(of_area)?;
        if !self.has_room(bytes)? {
            return Ok(None);
        }
        Draft::begin(&self.options.dir, bytes).map(Some)
    }

    fn has_room(&self, bytes: u64) -> Result<bool> {
        let dir = &self.options.dir;
        let fits = || -> Result<bool> {
            let coming = reserved(dir)?.saturating_add(unit::held_in(dir)?.promised);
            let free = free_bytes(dir)?.saturating_sub(SPARE_BYTES);
            let within = match self.options.max_bytes {
                Some(most) => {
                    let held = unit::held(dir, 64).saturating_add(coming);
                    held.saturating_add(bytes) <= most
                }
                None => true,
            };
            Ok(within && bytes <= free.saturating_sub(coming))
        };
        if let Some(most) = self.options.max_bytes
            && bytes > most
        {
            let why = format!("it may hold {most}");
            return Err(Error::TooLarge {
                dir: dir.clone(),
                need: bytes,
                why,
            });
        }
        if fits()? {
            return Ok(true);
        }
        // Local copies of uploaded checkpoints are removed to make room.
        let mut is_waiting = false;
        for entry in Unit::all(dir)?.into_iter().filter(Unit::is_own) {
            if entry.stage() != UnitState::Stored {
                is_waiting = true;
            } else if let Some(_owner) = entry.own()? {
                entry.remove()?;
                if fits()? {
                    return Ok(true);
                }
            }
        }
        if is_waiting {
            return Ok(false);
        }
        let why = match self.options.max_bytes {
            // Wait: reservations and files of others may be released.
            _ if reserved(dir)? > 0 || unit::held_in(dir)?.promised > 0 => {
                return Ok(false);
            }
            Some(most) if unit::held(dir, 64).saturating_add(bytes) > most => {
                return Ok(false);
            }
            _ => format!("its disk has {} free", free_bytes(dir)?),
        };
        Err(Error::TooLarge {
            dir: dir.clone(),
            need: bytes,
            why,
        })
    }

    /// Tries once to upload a checkpoint.
    fn step(&self, job: &Job) -> Tried {
        job.moved.store(0, Ordering::Relaxed);
        let progress = |bytes| {
            job.moved.fetch_add(bytes, Ordering::Relaxed);
        };
        let way = DrainContext {
            options: &job.store,
            stores: &self.stores,
            limiter: &self.limiter,
            cancel: &self.cancel,
            progress: &progress,
            done: &job.done_files,
        };
        let tried = drain::drain(&job.entry, &job.marker, &way).and_then(|drained| {
            if drained == Drained::Complete {
                self.complete(job)?;
            }
            Ok(drained)
        });
        if tried.as_ref().is_err_and(Error::is_refused) {
            self.stores.forget();
        }
        let mut progress = job.progress();
        progress.missing_ranks.clear();
        let outcome = match tried {
            Ok(Drained::Complete) => {
                progress.last_error = None;
                Ok(())
            }
            Ok(Drained::Waiting {
                missing,
                is_beside_complete,
            }) => {
                progress.is_beside_complete = is_beside_complete;
                progress.failing_since = None;
                progress.last_error = None;
                progress.missing_ranks = missing;
                progress.tries += 1;
                let pause = Duration::from_millis(100 << progress.tries.min(8)).min(LONGEST_LOOK);
                job.changed.notify_all();
                return Tried::Again(pause);
            }
            Err(Error::Cancelled { .. }) => return Tried::Again(Duration::ZERO),
            Err(error) if error.is_final() => Err(Arc::new(error)),
            Err(error) => {
                job.entry.note_error(&error.to_string());
                progress.failing_since.get_or_insert_with(Instant::now);
                progress.last_error = Some(Arc::new(error));
                progress.tries += 1;
                job.changed.notify_all();
                return Tried::Again(backoff(progress.tries));
            }
        };
        if let Err(error) = &outcome {
            job.entry.note_error(&error.to_string());
            // The checkpoint will never be complete, and this rank's files are in the store.
            if matches!(**error, Error::Abandoned { .. }) {
                let _ = job.entry.remove();
            }
        } else {
            job.moved.store(job.bytes, Ordering::Relaxed);
        }
        // Release the lock: other processes may now read the unit as a local copy, or try the upload again.
        progress.owner = None;
        progress.outcome = Some(outcome);
        job.changed.notify_all();
        Tried::Over
    }

    /// Marks the unit of a complete checkpoint as stored, and removes surplus local copies and older checkpoints.
    fn complete(&self, job: &Job) -> Result<()> {
        let place = job.marker.place()?;
        job.entry.stored()?;
        let _alone = self.removal.lock().unwrap_or_else(|e| e.into_inner());
        // The checkpoint is at its destination, so an error is only noted; the next complete checkpoint tries again.
        if let Err(error) = self.remove_copies(job, &place) {
            job.entry
                .note_error(&format!("local copies could not be removed: {error}"));
        }
        if let (Some(keep), 0) = (job.marker.keep, job.marker.rank) {
            let store = self.stores.open(&place.prefix, &job.store)?;
            // As above, an error is only noted.
            if let Err(error) = retention::retire(&store, &place, keep, &self.options.dir) {
                job.entry
                    .note_error(&format!("older checkpoints could not be removed: {error}"));
            }
        }
        // Release the lock, so that the next complete checkpoint may remove this local copy.
        job.progress().owner = None;
        Ok(())
    }

    /// Removes the run's oldest local copies beyond `keep_local`. Parts of distributed checkpoints are not kept.
    fn remove_copies(&self, job: &Job, place: &CheckpointPath) -> Result<()> {
        if job.marker.world_size > 1 || self.options.keep_local == 0 {
            job.entry.remove()?;
        }
        let mut copies = Vec::new();
        for entry in Unit::all(&self.options.dir)?
            .into_iter()
            .filter(Unit::is_own)
        {
            if entry.stage() == UnitState::Stored
                && let Ok(Some(marker)) = Marker::of(&entry)
                && marker
                    .place()
                    .is_ok_and(|other| other.prefix == place.prefix)
            {
                copies.push(entry);
            }
        }
        let many = copies
            .len()
            .saturating_sub(self.options.keep_local as usize);
        for entry in copies.into_iter().take(many) {
            // A copy that is being read or removed is left to the next checkpoint. This job already holds the lock of its own
            // unit.
            let owner = if entry == job.entry {
                None
            } else {
                let Some(owner) = entry.own()? else { continue };
                Some(owner)
            };
            entry.remove()?;
            drop(owner);
        }
        Ok(())
    }
}
