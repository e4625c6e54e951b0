//! `Loader`: batches by epochs, from a dataset in this process or from a server.
//!
//! This module has the class, which delivers batches; [`methods`] has its Python methods. [`source`] opens sources of
//! batches, and the thread of [`Pump`] fetches the batches.

mod arguments;
mod docs;
mod epoch;
mod methods;
mod ranks;
mod source;
mod state;
mod waits;

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use forebay_batch::digest::EpochDigest;
use forebay_loader::plan::Batches;
use forebay_store::Cancel;
use pyo3::prelude::*;

use crate::batch::PyBatch;
use crate::failure::{Failure, Kind};
use crate::patience::{Deadline, SLICE, patiently};
use crate::pump::{EpochPosition, Event, NoEvent, Pump};
pub(crate) use arguments::{_bytes, Keywords, options_of};
pub(crate) use epoch::Epoch;
use ranks::Ranks;
use source::{Opened, Opener};
use state::Identity;
use waits::Waits;

/// See [`docs`] for what Python shows.
#[pyclass(frozen, weakref, module = "forebay", name = "Loader")]
pub(crate) struct PyLoader {
    /// The process of the loader's threads.
    process: u32,
    name: String,
    /// Opens the streams of other ranks; `None` if options set the rank, and once the loader is closed.
    opener: Mutex<Option<Arc<dyn Opener>>>,
    /// World size of the server's job.
    job: Option<u64>,
    rank_is_fixed: bool,
    current: Mutex<Arc<Current>>,
    /// The last loaded state, as far as the digest needs it.
    resumed: Mutex<Option<Resumed>>,
    timeout: Option<Duration>,
    /// Whether the last batch of a single rank is padded, as it always is for several ranks.
    pad_last: bool,
    pump: Arc<Pump>,
    waited_ns: AtomicU64,
    waits: Waits,
    /// Time from the arrival of batches until Python has them, in nanoseconds.
    handover_ns: AtomicU64,
}

/// The open stream of one rank.
struct Current {
    opened: Opened,
    ranks: Ranks,
}

/// The digest of the batches before a position, and the rank that received them.
#[derive(Clone, Copy)]
struct Resumed {
    place: EpochPosition,
    digest: EpochDigest,
    /// Rank and world size.
    of: (u64, u64),
}

impl Current {
    fn identity(&self) -> Identity<'_> {
        let options = &self.opened.options;
        Identity {
            fingerprint: &self.opened.fingerprint,
            sample_fingerprint: self.opened.sample_fingerprint.as_deref(),
            split: &self.opened.split,
            records: self.opened.records,
            samples: self.opened.samples,
            sampling: options.sampling.identity(),
            label_base: self.opened.label_base,
            seed: options.seed,
            virtual_ranks: options.virtual_ranks,
            shuffle: options.shuffle,
            rank: options.rank,
            world_size: options.world_size,
        }
    }
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl PyLoader {
    fn check_process(&self) -> Result<(), Failure> {
        if self.process == std::process::id() {
            return Ok(());
        }
        let message = "this loader was made in the process that this one was forked from, and its \
             threads did not come along: make the Loader in the process that uses it, or start \
             processes with multiprocessing.get_context('spawn')";
        Err(Failure::new(Kind::Fork, message))
    }

    fn check_open(&self) -> Result<(), Failure> {
        self.check_process()?;
        if self.pump.is_closed() {
            return Err(closed());
        }
        Ok(())
    }

    /// Returns the position up to which batches were delivered.
    fn place(&self) -> Result<EpochPosition, Failure> {
        // In a forked child, the lock that this takes may never be released.
        self.check_process()?;
        Ok(self.pump.place())
    }

    fn current(&self) -> Arc<Current> {
        Arc::clone(&lock(&self.current))
    }

    /// Returns the stream of the rank that this process has now. A running loop keeps its stream.
    fn ranked(&self, py: Python<'_>) -> PyResult<Arc<Current>> {
        if self.is_settled() {
            return Ok(self.current());
        }
        let ranks = self.find_ranks(py)?;
        self.follow(py, ranks)
    }

    /// Returns the batches of an epoch, which depend on the world size but not on the rank.
    fn batches(&self, py: Python<'_>) -> PyResult<Batches> {
        if self.is_settled() || self.find_ranks(py).is_ok() {
            return Ok(self.ranked(py)?.opened.batches);
        }
        // Every rank has the same number of batches, so the rank need not be known.
        let current = self.current();
        let mut options = current.opened.options.clone();
        (options.rank, options.world_size) = (0, ranks::world_of_process(py, self.job)?);
        let batches = options.batches(current.opened.samples);
        Ok(batches.map_err(Failure::from)?)
    }

    /// Returns whether the rank is fixed: options set it, or a loop is running.
    fn is_settled(&self) -> bool {
        // In a forked child, the lock of the pump may never be released.
        self.rank_is_fixed || self.process != std::process::id() || self.pump.is_running()
    }

    /// Looks up the rank that this process has now.
    fn find_ranks(&self, py: Python<'_>) -> PyResult<Ranks> {
        if self.rank_is_fixed {
            return Ok(self.current().ranks);
        }
        ranks::of_process(py, self.job, true)?
    }

    /// Returns the stream of `ranks`. If that of another rank was open, opens this one at the same position.
    fn follow(&self, py: Python<'_>, ranks: Ranks) -> PyResult<Arc<Current>> {
        let before = self.current();
        if before.ranks == ranks {
            return Ok(before);
        }
        let Some(opener) = lock(&self.opener).clone() else {
            return Ok(before);
        };
        let waits_for = || format!("an answer from {}", self.name);
        let end = Deadline::after(self.timeout);
        let (opened, source) = patiently(py, end, waits_for, &Cancel::new(), move || {
            opener.open(&ranks)
        })?;
        let batches = opened.batches;
        let of = (opened.options.rank, opened.options.world_size);
        let resumed = lock(&self.resumed)
            .filter(|resumed| resumed.of == of)
            .map(|resumed| (resumed.place, resumed.digest));
        if !py.detach(|| self.pump.supply(source, batches, resumed)) {
            // A loop of another thread has started.
            return Ok(self.current());
        }
        let after = Arc::new(Current { opened, ranks });
        *lock(&self.current) = Arc::clone(&after);
        py.detach(|| before.opened.handle.interrupt());
        Ok(after)
    }

    /// Returns the next batch of a loop, and whether it is the last one; `None` at the end of its epoch.
    fn next(&self, py: Python<'_>, generation: u64) -> PyResult<Option<(PyBatch, bool)>> {
        self.check_process()?;
        let started = Instant::now();
        let mut arrived = started;
        let mut answer = self.pump.take(generation, Duration::ZERO);
        if matches!(answer, Err(NoEvent::NotYet)) {
            let deadline = Deadline::after(self.timeout);
            while matches!(answer, Err(NoEvent::NotYet)) {
                // The arrival is measured here, because `detach` may wait for the interpreter lock when it returns.
                (answer, arrived) =
                    py.detach(|| (self.pump.take(generation, SLICE), Instant::now()));
                if matches!(answer, Err(NoEvent::NotYet)) {
                    if deadline.is_over()
                        && let Some(away) = self.current().opened.handle.away()
                    {
                        return Err(away.into());
                    }
                    deadline.check(py, || self.waits_for())?;
                }
            }
            count(&self.waited_ns, arrived - started);
            self.current().opened.handle.waited(self.waited());
        }
        match answer {
            Ok(Event::Batch(batch, is_last)) => {
                self.waits.add(arrived - started);
                let current = self.current();
                let starts = current.opened.starts.as_deref();
                // Padding is removed here, because the streams of a job are the same for all clients.
                let trimmed = !self.pad_last && current.opened.options.world_size == 1;
                let batch = PyBatch::new(py, batch, starts, trimmed)?;
                count(&self.handover_ns, arrived.elapsed());
                Ok(Some((batch, is_last)))
            }
            Ok(Event::EpochEnd) => Ok(None),
            Ok(Event::Failed(failure)) => Err(failure.into()),
            Err(NoEvent::Closed) => Err(closed().into()),
            Err(NoEvent::Stale | NoEvent::NotYet) => Err(Failure::new(
                Kind::State,
                "this loop is over: a newer one or load_state_dict() moved the loader",
            )
            .into()),
        }
    }

    /// How long loops have waited for batches so far.
    fn waited(&self) -> Duration {
        Duration::from_nanos(self.waited_ns.load(Ordering::Relaxed))
    }

    /// Stops the threads. This does not wait: the thread of the pump frees its source when it ends.
    fn stop(&self) {
        self.pump.close();
        self.current().opened.handle.cancel();
    }

    /// Describes the batch that a loop waits for, for messages.
    fn waits_for(&self) -> String {
        let EpochPosition { epoch, position } = self.pump.place();
        let current = self.current();
        let options = &current.opened.options;
        format!(
            "the batch at position {position} of epoch {epoch} (rank {} of {}) from {}",
            options.rank, options.world_size, self.name
        )
    }
}

fn count(counter: &AtomicU64, time: Duration) {
    let nanoseconds = u64::try_from(time.as_nanos()).unwrap_or(u64::MAX);
    counter.fetch_add(nanoseconds, Ordering::Relaxed);
}

fn closed() -> Failure {
    Failure::new(
        Kind::Closed,
        "the loader is closed: make another one to go on, with load_state_dict(state) if its place is to be kept",
    )
}

impl Drop for PyLoader {
    fn drop(&mut self) {
        if self.process == std::process::id() {
            // Without the interpreter's lock: a thread of the pipeline may wait for it in a function of a device's driver, while it
            // has a lock that `stop` needs. There is no interpreter to release while it shuts down.
            if Python::try_attach(|py| py.detach(|| self.stop())).is_none() {
                self.stop();
            }
        } else {
            // The threads are in another process, and dropping what they hold would wait for them.
            std::mem::forget(Arc::clone(&self.pump));
            std::mem::forget(lock(&self.opener).take());
            std::mem::forget(self.current());
        }
    }
}
