//! The data that the threads of a pipeline share, and how they wake each other.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use forebay_batch::BufferPool;
use forebay_options::OnError;

use super::cores::CpuShares;
use super::finished_batch::FinishedBatch;
use super::pending_batch::PendingBatch;
use super::planner::{Planner, Planning};
use super::signal::Signal;
use super::state::State;
use super::telemetry::Telemetry;
use crate::columns::Columns;
use crate::error::{Error, Result};
use crate::learned::LearnedSeekPoints;
use crate::options::Options;
use crate::source::Source;
use crate::stats::{Activity, Queues, ReadTimes, Stats};

/// Data shared by the threads.
pub(crate) struct Shared {
    pub(super) source: Box<dyn Source>,
    /// Resolved options, with all defaults filled in.
    pub(super) options: Options,
    /// The columns of batches, if any.
    pub(super) columns: Option<Columns>,
    /// Seek points from earlier epochs, if the options allow to learn them.
    pub(super) learned: Option<Arc<LearnedSeekPoints>>,
    pub(super) planning: Planning,
    /// Planned maximum number of bytes in records and batches.
    pub(crate) planned_bytes: u64,
    pub(super) pool: BufferPool,
    /// The cores shared with other loaders of this process; `None` if the number of threads was given
    /// without a share.
    pub(super) cores: Option<CpuShares>,
    pub(super) state: Mutex<State>,
    pub(super) signals: Signals,
    pub(super) telemetry: Telemetry,
}

/// The wake-ups of each kind of thread.
#[derive(Default)]
pub(super) struct Signals {
    /// There is an extent to read.
    pub(super) readers: Signal,
    /// There is a job for a decode thread.
    pub(super) decoders: Signal,
    /// There is a batch, or an error instead of one.
    pub(super) trainer: Signal,
    /// A thread ended.
    pub(super) ended: Signal,
}

impl Shared {
    /// Locks the state. A panic in another thread does not make it unusable, and ends the stream.
    pub(super) fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Plans ahead after a change of the state, and wakes threads.
    pub(super) fn advance(&self, state: &mut State) {
        state.advance(&*self.source);
        self.wake(state);
    }

    /// Wakes one thread of each kind that has work; a thread that takes work wakes the next.
    pub(super) fn wake(&self, state: &State) {
        let signals = &self.signals;
        if signals.readers.has_waiting() && state.has_read() {
            signals.readers.wake_one();
        }
        if signals.decoders.has_waiting() && state.has_job() {
            signals.decoders.wake_one();
        }
        if signals.trainer.has_waiting() && state.has_front() {
            signals.trainer.wake_all();
        }
    }

    /// Stops the pipeline: all threads end, and a waiting call of `next` returns.
    pub(crate) fn stop(&self) {
        self.lock().failures.stop();
        self.signals.readers.wake_all();
        self.signals.decoders.wake_all();
        self.signals.trainer.wake_all();
    }

    /// Discards prepared batches, and continues at another epoch and position.
    pub(crate) fn seek(&self, at: (u64, u64)) -> Result<()> {
        let planner = Planner::new(self.planning.clone(), at)?;
        let mut state = self.lock();
        state.restart(planner);
        self.advance(&mut state);
        Ok(())
    }

    /// Returns the next batch in order, waiting at most until `until`.
    pub(crate) fn next(&self, until: Option<Instant>) -> Result<FinishedBatch> {
        let clock = &self.telemetry.trainer;
        clock.switch(Activity::Starved);
        let result = self.wait_for_front(until).and_then(|pending| {
            self.telemetry.handed_out();
            let mut finished = pending.into_finished()?;
            if self.options.on_error == OnError::Skip {
                finished.fill_gaps(self.options.pixel_bytes());
            }
            finished.label_padding();
            finished.mix(&self.options);
            Ok(finished)
        });
        clock.switch(Activity::Busy);
        result
    }

    fn wait_for_front(&self, until: Option<Instant>) -> Result<PendingBatch> {
        let begun = Instant::now();
        let mut state = self.lock();
        loop {
            if let Some(end) = state.failures.end() {
                return Err(end);
            }
            if let Some(front) = state.take_front() {
                self.advance(&mut state);
                return front;
            }
            let left = until.map(|until| until.saturating_duration_since(Instant::now()));
            state = match left {
                None => self.signals.trainer.wait(state),
                Some(Duration::ZERO) => {
                    return Err(Error::Timeout {
                        waited: begun.elapsed(),
                        waits_for: state.describe_wait(&*self.source),
                    });
                }
                Some(left) => self.signals.trainer.wait_for(state, left),
            };
        }
    }

    pub(crate) fn queues(&self) -> Queues {
        self.lock().queues()
    }

    /// Returns the times of all reads since the start.
    pub(crate) fn reads(&self) -> ReadTimes {
        self.telemetry.reads.read()
    }

    pub(crate) fn stats(&self) -> Stats {
        let (memory_bytes, memory_peak_bytes, (failed, failures)) = {
            let state = self.lock();
            (state.bytes(), state.peak_bytes, state.failures.replaced())
        };
        Stats {
            memory_bytes,
            memory_peak_bytes,
            single_reads: self.planning.reach.single,
            failed,
            failures,
            storage: self.source.storage(),
            traffic: self.source.traffic(),
            learned: self
                .learned
                .as_ref()
                .map(|learned| learned.stats(self.telemetry.learned())),
            ..self.telemetry.stats()
        }
    }
}
