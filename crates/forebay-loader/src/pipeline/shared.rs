//! What the threads of a pipeline share, and how they wake each other.

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use forebay_batch::BufferPool;
use forebay_options::OnError;

use super::batch_buffer::BatchBuffer;
use super::cores::CpuShares;
use super::finished_batch::FinishedBatch;
use super::planner::Reach;
use super::raw::{self, Gathered};
use super::state::{PendingBatch, State};
use super::waits;
use crate::columns::Columns;
use crate::error::{Error, Result};
use crate::options::Options;
use crate::plan::{Batches, Selection};
use crate::source::Source;
use crate::stats::{
    Activity, Clock, CpuTime, Levels, MachineCpu, Queues, ReadClock, StageStats, Stats,
    process_cpu_time,
};

/// State shared by the threads.
pub(crate) struct Shared {
    pub(super) source: Box<dyn Source>,
    /// Resolved options, with all defaults filled in.
    pub(super) options: Options,
    /// The columns of batches, if any.
    pub(super) columns: Option<Columns>,
    pub(super) selection: Selection,
    pub(super) batches: Batches,
    pub(super) reach: Reach,
    /// Planned maximum number of bytes in records and batches.
    pub(crate) planned_bytes: u64,
    pub(super) pool: BufferPool,
    /// Size of the pixels that samples are decoded into; 0 if images stay encoded.
    pub(super) pixel_bytes: usize,
    pub(super) state: Mutex<State>,
    pub(super) to_readers: Condvar,
    pub(super) to_workers: Condvar,
    pub(super) to_trainer: Condvar,
    pub(super) ended: Condvar,
    pub(super) readers: Vec<Clock>,
    pub(super) levels: Levels,
    pub(super) workers: Vec<Clock>,
    pub(super) workers_cpu: CpuTime,
    /// CPU time of the whole process when the pipeline started.
    pub(super) cpu_before: Duration,
    /// CPU time of the machine when the pipeline started.
    pub(super) machine_before: MachineCpu,
    pub(super) trainer: Clock,
    pub(super) began: Instant,
    /// The cores shared with other loaders of this process; `None` if the number of threads was given
    /// without a share.
    pub(super) cores: Option<CpuShares>,
    pub(super) usable_cores: usize,
    pub(super) transform_ns: AtomicU64,
    pub(super) images: AtomicU64,
    pub(super) fast_images: AtomicU64,
    pub(super) batches_out: AtomicU64,
    pub(super) bytes_read: AtomicU64,
    pub(crate) reads: ReadClock,
}

impl Shared {
    /// Locks the state. A panic in another thread does not make it unusable, and is reported by `crashed`.
    pub(super) fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(super) fn wait<'a>(on: &Condvar, state: MutexGuard<'a, State>) -> MutexGuard<'a, State> {
        on.wait(state).unwrap_or_else(PoisonError::into_inner)
    }

    /// Wakes one thread of each kind that has work; a thread that takes work wakes the next.
    pub(super) fn wake(&self, state: &State) {
        if state.idle_readers > 0 && state.store.has_reads() {
            self.to_readers.notify_one();
        }
        if state.idle_workers > 0 && state.has_job() {
            self.to_workers.notify_one();
        }
        if state.idle_trainers > 0 && state.has_front() {
            self.to_trainer.notify_all();
        }
    }

    /// Stops the pipeline: all threads end, and a waiting call of `next` returns.
    pub(crate) fn stop(&self) {
        self.lock().stopped = true;
        self.to_readers.notify_all();
        self.to_workers.notify_all();
        self.to_trainer.notify_all();
    }

    /// Returns the next batch in order, waiting at most until `until`.
    pub(crate) fn next(&self, until: Option<Instant>) -> Result<FinishedBatch> {
        self.trainer.switch(Activity::Starved);
        let begun = Instant::now();
        let result = self.wait_for_front(begun, until).and_then(|making| {
            self.batches_out.fetch_add(1, Ordering::Relaxed);
            let gathered = match making.gathered {
                Some(gathered) => gathered,
                None => Gathered {
                    payload: making
                        .buffer
                        .and_then(BatchBuffer::whole)
                        .ok_or_else(raw::unfinished)?,
                    encoded: None,
                    columns: Vec::new(),
                },
            };
            let mut made = FinishedBatch {
                epoch: making.epoch,
                start: making.start,
                payload: gathered.payload,
                encoded: gathered.encoded.map(Box::new),
                columns: gathered.columns,
                labels: making.labels,
                mixed: None,
                samples: making.samples,
                flags: making.flags,
            };
            if self.options.on_error == OnError::Skip {
                made.fill_gaps(self.pixel_bytes);
            }
            made.label_padding();
            made.mix(&self.options);
            Ok(made)
        });
        self.trainer.switch(Activity::Busy);
        result
    }

    fn wait_for_front(&self, begun: Instant, until: Option<Instant>) -> Result<PendingBatch> {
        let mut state = self.lock();
        loop {
            if state.stopped {
                return Err(Error::Interrupted);
            }
            if let Some(name) = &state.crashed {
                return Err(Error::System {
                    what: "go on",
                    source: Arc::new(std::io::Error::other(format!("thread {name} panicked"))),
                });
            }
            if let Some(front) = state.take_front() {
                state.advance(&*self.source);
                self.wake(&state);
                return front;
            }
            let left = until.map(|until| until.saturating_duration_since(Instant::now()));
            state.idle_trainers += 1;
            state = match left {
                None => Self::wait(&self.to_trainer, state),
                Some(Duration::ZERO) => {
                    state.idle_trainers -= 1;
                    return Err(Error::Timeout {
                        waited: begun.elapsed(),
                        waits_for: waits::describe(&state, &*self.source),
                    });
                }
                Some(left) => match self.to_trainer.wait_timeout(state, left) {
                    Ok((state, _)) => state,
                    Err(poisoned) => poisoned.into_inner().0,
                },
            };
            state.idle_trainers -= 1;
        }
    }

    pub(crate) fn queues(&self) -> Queues {
        self.lock().queues()
    }

    pub(crate) fn stats(&self) -> Stats {
        let (memory_bytes, memory_peak_bytes, single_reads, failed, failures) = {
            let state = self.lock();
            (
                state.bytes(),
                state.peak_bytes,
                state.single_reads(),
                state.failed,
                state.failures.iter().cloned().collect(),
            )
        };
        let mut decode = StageStats::new("decode", &self.workers);
        let transform = Duration::from_nanos(self.transform_ns.load(Ordering::Relaxed));
        let transform = decode.split("transform", transform);
        Stats {
            wall_s: self.began.elapsed().as_secs_f64(),
            fetch: StageStats::new("fetch", &self.readers),
            decode,
            transform,
            trainer: StageStats::new("trainer", std::slice::from_ref(&self.trainer)),
            images: self.images.load(Ordering::Relaxed),
            fast_images: self.fast_images.load(Ordering::Relaxed),
            batches: self.batches_out.load(Ordering::Relaxed),
            bytes_read: self.bytes_read.load(Ordering::Relaxed),
            memory_bytes,
            memory_peak_bytes,
            single_reads,
            failed,
            failures,
            network: None,
            device: None,
            storage: self.source.storage(),
            traffic: self.source.traffic(),
            reads: self.levels.read(),
            among_others: false,
            cores: self.usable_cores,
            decode_cpu_s: self.workers_cpu.read().as_secs_f64(),
            decode_delay_s: self.workers_cpu.delay().as_secs_f64(),
            process_cpu_s: process_cpu_time()
                .saturating_sub(self.cpu_before)
                .as_secs_f64(),
            machine: MachineCpu::read().since(&self.machine_before),
            handover_s: 0.0,
            receive_cpu_s: 0.0,
        }
    }
}
