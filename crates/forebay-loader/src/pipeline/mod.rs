//! The pipeline: fetch, decode, transform and batch, on threads that the loader owns.
//!
//! This module owns the threads. They run `fetch` and `work`, and share the data and the wake-ups of `shared`.
//! Below lies `state`, under one lock: `schedule` has the samples that are due, `assembler` the batches, and `failures`
//! the end of the stream. They use neither threads nor clocks. `planner` and `extent` determine the reads, and
//! `batch_buffer` gives threads access to batch buffers.
//!
//! Every wait ends when the pipeline is stopped. No thread holds the lock while it reads, decodes
//! or allocates.

mod assembler;
mod batch_buffer;
mod cores;
mod extent;
mod failures;
mod fetch;
mod finished_batch;
mod pending_batch;
mod planner;
mod raw;
mod schedule;
mod shared;
mod signal;
mod sizes;
mod state;
mod task;
mod telemetry;
#[cfg(test)]
mod tests;
mod waits;
mod work;

use std::sync::{Arc, Mutex};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use forebay_batch::BufferPool;

use crate::columns::Columns;
use crate::error::{Error, Result};
use crate::learned::LearnedSeekPoints;
use crate::options::{Machine, Options};
use crate::plan::Selection;
use crate::source::Source;
use cores::CpuShares;
pub(crate) use finished_batch::FinishedBatch;
use planner::{Planner, Planning, Reach, most_readers};
pub(crate) use shared::Shared;
use shared::Signals;
use sizes::Sizes;
use state::State;
use telemetry::Telemetry;

/// Timeout for joining the threads when a loader is dropped. Only a blocked read takes longer. It
/// cannot be interrupted, so its thread is left behind and ends with the read.
const JOIN_TIMEOUT: Duration = Duration::from_secs(2);

/// The threads of one loader.
pub(crate) struct Pipeline {
    shared: Arc<Shared>,
    threads: Vec<JoinHandle<()>>,
}

impl Pipeline {
    /// Starts threads that make batches from `at` on, an epoch and a position. `options` must be resolved, `selection` is
    /// made from them, and `mean_bytes` is the mean size of a sample.
    pub(crate) fn start(
        source: Box<dyn Source>,
        options: Options,
        (columns, learned): (Option<Columns>, Option<Arc<LearnedSeekPoints>>),
        (selection, mean_bytes): (Selection, u64),
        pool: Option<BufferPool>,
        at: (u64, u64),
    ) -> Result<Pipeline> {
        let machine = Machine::new(&options)?;
        let batches = options.batches(selection.len() * options.sampling.times())?;
        let (wanted, gap_bytes) = source.read_profile();
        let (num_samples, record_bytes) = (selection.len(), machine.record_bytes);
        let reach = |readers| {
            Reach::new(
                &options,
                num_samples,
                mean_bytes,
                record_bytes,
                gap_bytes,
                readers,
            )
        };
        let (readers, reach) = match options.readers {
            0 => most_readers(wanted, reach),
            _ => (machine.readers, reach(machine.readers)),
        };
        let machine = Machine { readers, ..machine };
        let planning = Planning {
            selection,
            options: options.clone(),
            batches,
            reach,
        };
        let planner = Planner::new(planning.clone(), at)?;
        let batch_bytes = options.batch_bytes()?;
        let sizes = Sizes::new(&options, &machine, batch_bytes, columns.is_some());
        let for_batches = (batch_bytes as u64).saturating_mul(machine.batches_ahead as u64);
        // If records are read one by one, each sample with a place in a batch may hold its own
        // record.
        let placed = (sizes.batches.samples as u64).saturating_mul(machine.batches_ahead as u64);
        let placed = placed.saturating_mul(if reach.single { mean_bytes } else { 0 });
        let for_records = reach.bytes.saturating_add(placed);
        let planned_bytes = for_batches.saturating_add(for_records.min(machine.record_bytes));
        // Buffers to keep: those in progress, and one or two that the trainer still uses.
        let kept = batch_bytes.saturating_mul(machine.batches_ahead + 2);
        let shares = options.threads == 0 || options.share.is_some();
        let cores = shares.then(|| CpuShares::new(options.share.as_ref()));
        let pool =
            pool.unwrap_or_else(|| BufferPool::new(kept).with_registry(options.registry.clone()));
        let shared = Arc::new(Shared {
            source,
            options,
            columns,
            learned,
            planning,
            planned_bytes,
            pool,
            cores,
            state: Mutex::new(State::new(&sizes, planner, reach.ahead)),
            signals: Signals::default(),
            telemetry: Telemetry::new(machine.readers, machine.threads),
        });
        let mut pipeline = Pipeline {
            shared,
            threads: Vec::new(),
        };
        // On an error the pipeline is dropped, which ends the threads started so far.
        for i in 0..machine.readers {
            pipeline.spawn(format!("fb-read-{i}"), move |shared| fetch::run(shared, i))?;
        }
        for i in 0..machine.threads {
            pipeline.spawn(format!("fb-decode-{i}"), move |shared| work::run(shared, i))?;
        }
        Ok(pipeline)
    }

    fn spawn(&mut self, name: String, run: impl FnOnce(&Shared) + Send + 'static) -> Result<()> {
        let shared = Arc::clone(&self.shared);
        shared.lock().alive += 1;
        let thread = std::thread::Builder::new().name(name).spawn(move || {
            let _ending = Ending(&shared);
            run(&shared);
        });
        match thread {
            Ok(thread) => {
                self.threads.push(thread);
                Ok(())
            }
            Err(error) => {
                self.shared.lock().alive -= 1;
                Err(Error::System {
                    what: "start a thread",
                    source: Arc::new(error),
                })
            }
        }
    }

    pub(crate) fn shared(&self) -> &Arc<Shared> {
        &self.shared
    }
}

impl Drop for Pipeline {
    fn drop(&mut self) {
        // Declared first, so that it is dropped last, after the memory was freed.
        let _trim = crate::trim::Soon;
        self.shared.stop();
        let until = Instant::now() + JOIN_TIMEOUT;
        let mut state = self.shared.lock();
        while state.alive > 0 {
            let Some(left) = until.checked_duration_since(Instant::now()) else {
                return;
            };
            state = self.shared.signals.ended.wait_for(state, left);
        }
        // `Arc`s of `Shared` may outlive the pipeline, but records and batches are freed here.
        state.clear();
        drop(state);
        for thread in self.threads.drain(..) {
            // `Ending` has reported a panic already.
            let _ = thread.join();
        }
    }
}

/// Reports the end of a thread when dropped, and whether it panicked.
struct Ending<'a>(&'a Shared);

impl Drop for Ending<'_> {
    fn drop(&mut self) {
        let mut state = self.0.lock();
        state.alive -= 1;
        if std::thread::panicking() {
            let thread = std::thread::current();
            let name = thread.name().unwrap_or("a thread").to_owned();
            state.failures.panic(name);
            self.0.signals.trainer.wake_all();
        }
        self.0.signals.ended.wake_all();
    }
}
