//! The pipeline: fetch, decode, transform and batch, on threads that the loader owns.
//!
//! This module owns the threads and their wake-ups. `state` tracks the work, `planner` and `extent`
//! determine the reads, and `batch_buffer` gives threads access to batch buffers.
//!
//! Every wait ends when the pipeline is stopped. No thread holds the lock while it reads, decodes
//! or allocates.

mod batch_buffer;
mod cores;
mod extent;
mod fetch;
mod planner;
mod raw;
mod sizes;
mod state;
mod task;
mod waits;
mod work;

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use forebay_batch::{BatchColumn, BufferPool, EncodedImages, Mixed};
use forebay_batch::{FLAG_FAILED, FLAG_PADDING, FLAG_SAMPLE, PADDING_LABEL};
use forebay_image::BatchMix;

use forebay_options::OnError;

use crate::columns::Columns;
use crate::error::{Error, Result};
use crate::options::{Machine, Options, usable_cores};
use crate::plan::{Batches, Selection};
use crate::source::Source;
use crate::stats::{
    Activity, Clock, CpuTime, Levels, MachineCpu, Queues, ReadClock, StageStats, Stats,
    process_cpu_time,
};
use batch_buffer::BatchBuffer;
use cores::CpuShares;
use planner::{Planner, Reach, most_readers};
use raw::Gathered;
use sizes::Sizes;
use state::{PendingBatch, State};

/// Timeout for joining the threads when a loader is dropped. Only a blocked read takes longer. It
/// cannot be interrupted, so its thread is left behind and ends with the read.
const JOIN_TIMEOUT: Duration = Duration::from_secs(2);

/// State shared by the threads.
pub(crate) struct Shared {
    source: Box<dyn Source>,
    /// Resolved options, with all defaults filled in.
    options: Options,
    /// The columns of batches, if any.
    columns: Option<Columns>,
    selection: Selection,
    batches: Batches,
    reach: Reach,
    /// Planned maximum number of bytes in records and batches.
    pub(crate) planned_bytes: u64,
    pool: BufferPool,
    /// Size of the pixels that samples are decoded into; 0 if images stay encoded.
    pixel_bytes: usize,
    state: Mutex<State>,
    to_readers: Condvar,
    to_workers: Condvar,
    to_trainer: Condvar,
    ended: Condvar,
    readers: Vec<Clock>,
    levels: Levels,
    workers: Vec<Clock>,
    workers_cpu: CpuTime,
    /// CPU time of the whole process when the pipeline started.
    cpu_before: Duration,
    /// CPU time of the machine when the pipeline started.
    machine_before: MachineCpu,
    trainer: Clock,
    began: Instant,
    /// The cores shared with other loaders of this process; `None` if the number of threads was given
    /// without a share.
    cores: Option<CpuShares>,
    usable_cores: usize,
    transform_ns: AtomicU64,
    images: AtomicU64,
    fast_images: AtomicU64,
    batches_out: AtomicU64,
    bytes_read: AtomicU64,
    pub(crate) reads: ReadClock,
}

/// A batch with all of its samples.
pub(crate) struct FinishedBatch {
    pub(crate) epoch: u64,
    pub(crate) start: u64,
    pub(crate) payload: forebay_batch::Buffer,
    pub(crate) encoded: Option<Box<EncodedImages>>,
    pub(crate) labels: Vec<i64>,
    pub(crate) mixed: Option<Mixed>,
    pub(crate) samples: Vec<u64>,
    pub(crate) flags: Vec<u8>,
    pub(crate) columns: Vec<BatchColumn>,
}

impl FinishedBatch {
    /// Replaces each failed sample by the next good one, wrapping around at the end of the batch.
    fn fill_gaps(&mut self, pixel_bytes: usize) {
        let count = self.flags.len();
        let bytes = pixel_bytes / count.max(1);
        for i in 0..count {
            if self.flags[i] & FLAG_FAILED == 0 {
                continue;
            }
            let Some(good) = raw::stand_in(&self.flags, i) else {
                return;
            };
            // Encoded images and columns were already replaced when they were concatenated.
            if self.encoded.is_none() {
                self.payload
                    .copy_within(good * bytes..(good + 1) * bytes, i * bytes);
            }
            self.labels[i] = self.labels[good];
            self.samples[i] = self.samples[good];
        }
    }

    /// Sets the label of padding to the value that losses ignore.
    fn label_padding(&mut self) {
        for (label, flag) in self.labels.iter_mut().zip(&self.flags) {
            if flag & FLAG_PADDING != 0 {
                *label = PADDING_LABEL;
            }
        }
    }

    /// Mixes samples with each other, if the options have a batch transform. Padding and failed samples are
    /// excluded.
    fn mix(&mut self, options: &Options) {
        let Some(transform) = &options.batch_transform else {
            return;
        };
        let size = options.transform.output_size();
        let mix = transform.draw(options.seed, self.epoch, self.start, size);
        let whole = |&i: &usize| self.flags[i] == FLAG_SAMPLE;
        let members: Vec<usize> = (0..self.flags.len()).filter(whole).collect();
        let mut mixed = Mixed {
            labels: self.labels.clone(),
            lam: vec![1.0; self.labels.len()],
        };
        if members.len() > 1 {
            let pixels = &mut self.payload[..options.pixel_bytes()];
            mix.apply(&options.output, &members, pixels);
            for (sample, partner) in BatchMix::partners(&members) {
                mixed.labels[sample] = self.labels[partner];
                mixed.lam[sample] = mix.lam();
            }
        }
        self.mixed = Some(mixed);
    }
}

/// The threads of one loader.
pub(crate) struct Pipeline {
    shared: Arc<Shared>,
    threads: Vec<JoinHandle<()>>,
}

impl Pipeline {
    /// Starts threads that make batches from `position` of `epoch` on. `options` must be resolved, `selection` is
    /// made from them, and `mean_bytes` is the mean size of a sample.
    pub(crate) fn start(
        source: Box<dyn Source>,
        options: Options,
        columns: Option<Columns>,
        (selection, mean_bytes): (Selection, u64),
        pool: Option<BufferPool>,
        (epoch, position): (u64, u64),
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
        let planner = Planner::new(
            selection.clone(),
            options.clone(),
            batches,
            reach,
            epoch,
            position,
        )?;
        let batch_bytes = options.batch_bytes()?;
        let sizes = Sizes::new(&options, &machine, batch_bytes, columns.is_some());
        let for_batches = (batch_bytes as u64).saturating_mul(machine.batches_ahead as u64);
        // If records are read one by one, each sample with a place in a batch may hold its own
        // record.
        let placed = (sizes.batch_size as u64).saturating_mul(machine.batches_ahead as u64);
        let placed = placed.saturating_mul(if reach.single { mean_bytes } else { 0 });
        let for_records = reach.bytes.saturating_add(placed);
        let planned_bytes = for_batches.saturating_add(for_records.min(machine.record_bytes));
        // Buffers to keep: those in progress, and one or two that the trainer still uses.
        let kept = batch_bytes.saturating_mul(machine.batches_ahead + 2);
        let shares = options.threads == 0 || options.share.is_some();
        let cores = shares.then(|| CpuShares::new(options.share.as_ref()));
        let shared = Arc::new(Shared {
            source,
            options,
            columns,
            selection,
            batches,
            reach,
            planned_bytes,
            pool: pool.unwrap_or_else(|| BufferPool::new(kept)),
            pixel_bytes: sizes.pixel_bytes as usize,
            state: Mutex::new(State::new(&sizes, planner, reach)),
            to_readers: Condvar::new(),
            to_workers: Condvar::new(),
            to_trainer: Condvar::new(),
            ended: Condvar::new(),
            readers: (0..machine.readers)
                .map(|_| Clock::new(Activity::Blocked))
                .collect(),
            levels: Levels::new(machine.readers),
            workers: (0..machine.threads)
                .map(|_| Clock::new(Activity::Starved))
                .collect(),
            trainer: Clock::new(Activity::Busy),
            began: Instant::now(),
            cores,
            usable_cores: usable_cores(),
            workers_cpu: CpuTime::default(),
            cpu_before: process_cpu_time(),
            machine_before: MachineCpu::read(),
            transform_ns: AtomicU64::new(0),
            images: AtomicU64::new(0),
            fast_images: AtomicU64::new(0),
            batches_out: AtomicU64::new(0),
            bytes_read: AtomicU64::new(0),
            reads: ReadClock::default(),
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

    /// Discards prepared batches and continues at another position.
    pub(crate) fn seek(&mut self, epoch: u64, position: u64) -> Result<()> {
        let shared = &*self.shared;
        let planner = Planner::new(
            shared.selection.clone(),
            shared.options.clone(),
            shared.batches,
            shared.reach,
            epoch,
            position,
        )?;
        let mut state = shared.lock();
        state.restart(planner);
        state.advance(&*shared.source);
        shared.wake(&state);
        Ok(())
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
            state = match self.shared.ended.wait_timeout(state, left) {
                Ok((state, _)) => state,
                Err(poisoned) => poisoned.into_inner().0,
            };
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
            let name = std::thread::current()
                .name()
                .unwrap_or("a thread")
                .to_owned();
            state.crashed.get_or_insert(name);
            self.0.to_trainer.notify_all();
        }
        self.0.ended.notify_all();
    }
}

impl Shared {
    /// Locks the state. A panic in another thread does not make it unusable, and is reported by `crashed`.
    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn wait<'a>(on: &Condvar, state: MutexGuard<'a, State>) -> MutexGuard<'a, State> {
        on.wait(state).unwrap_or_else(PoisonError::into_inner)
    }

    /// Wakes one thread of each kind that has work; a thread that takes work wakes the next.
    fn wake(&self, state: &State) {
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
