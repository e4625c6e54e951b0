//! State shared by the threads of a pipeline, under one lock.
//!
//! All operations here are short: threads release the lock to read, decode and allocate. A sample
//! is first *planned* (its record may still be on disk), then a *task* (it has a slot in a batch
//! buffer), then *runnable* (its record is in memory), then *done*: [`Schedule`] knows which samples
//! are where. [`Assembler`] returns batches in order, when all their samples are done, and [`Failures`]
//! ends the stream at a failed one.

use std::ops::Range;
use std::sync::Arc;

use forebay_batch::Buffer;
use forebay_shard::RecordBlock;

use super::assembler::Assembler;
use super::extent::{Extent, ExtentBuffer};
use super::failures::Failures;
use super::pending_batch::{Done, PendingBatch};
use super::planner::Planner;
use super::raw::{Gather, Gathered, RawImage};
use super::schedule::Schedule;
use super::sizes::Sizes;
use super::task::Task;
use super::waits::InProgress;
use crate::error::{Error, Result};
use crate::source::Source;
use crate::stats::{Activity, Queues};

/// Maximum number of memory blocks kept for later reads, in addition to one per reader: enough for the windows
/// of 64 virtual ranks, and few enough to be searched at each read.
const SPARE_BLOCKS: usize = 512;
/// Samples planned per call, so that the lock is not held for long.
const PLAN_AT_ONCE: usize = 512;
/// Number of reads announced to the system beyond those in progress: enough to fill the queue of a disk,
/// and few enough that prefetched bytes are still cached when they are read.
const TOLD_AHEAD: usize = 8;

/// A job for a reader: an extent, memory for its records, and the reads that follow it.
pub(super) type ReadJob = (Arc<Extent>, RecordBlock, Vec<Range<u64>>);

/// A job for a decode thread.
pub(super) enum Job {
    /// Decode a sample. The flag says whether an encoded image may reference its record until it is concatenated.
    Sample(Task, bool),
    /// Allocate a buffer for the next batch.
    Buffer {
        /// Generation of the state that requested it.
        generation: u64,
        /// Space in bytes after the pixels, for columns.
        room: u64,
    },
}

/// Result of a sample.
pub(super) enum Outcome {
    Done(Done),
    /// It failed with this error, and another sample of its batch replaces it.
    Replaced(String),
    /// It failed, which ends the stream at its batch.
    Failed(Error),
}

pub(super) struct State {
    store: ExtentBuffer,
    schedule: Schedule,
    assembler: Assembler,
    pub(super) failures: Failures,
    in_progress: InProgress,
    /// Threads that have not ended.
    pub(super) alive: usize,
    /// Why decode threads last waited.
    idle_reason: Activity,
    /// Maximum of [`State::bytes`].
    pub(super) peak_bytes: u64,
}

impl State {
    /// Creates a state that plans `ahead` samples beyond those with a slot.
    pub(super) fn new(sizes: &Sizes, planner: Planner, ahead: usize) -> Self {
        let spare_blocks = sizes.readers.saturating_add(SPARE_BLOCKS);
        State {
            store: ExtentBuffer::new(sizes.record_bytes, spare_blocks),
            schedule: Schedule::new(planner, ahead),
            assembler: Assembler::new(sizes.batches),
            failures: Failures::default(),
            in_progress: InProgress::new(sizes.readers, sizes.threads),
            alive: 0,
            idle_reason: Activity::Starved,
            peak_bytes: 0,
        }
    }

    /// Discards all records and batches, and continues at the planner's position.
    pub(super) fn restart(&mut self, planner: Planner) {
        self.clear();
        self.schedule.restart(planner);
    }

    /// Discards all records and batches.
    pub(super) fn clear(&mut self) {
        self.schedule.clear(&mut self.store);
        self.store.forget_reads();
        self.assembler.clear(&mut self.store);
        self.failures.clear();
    }

    /// Plans samples as far as memory and the schedule allow, and assigns slots to them.
    pub(super) fn advance(&mut self, source: &dyn Source) {
        self.assign();
        for _ in 0..PLAN_AT_ONCE {
            // Batches up to the first failure are finished, since an earlier sample may still fail. Later batches
            // are not planned.
            let batch = self.schedule.to_plan();
            if self.failures.is_stopped() || batch.is_none_or(|batch| self.failures.precede(batch))
            {
                break;
            }
            match self.schedule.plan(source, &mut self.store) {
                Ok(true) => self.assign(),
                Ok(false) => break,
                Err(error) => {
                    // Planning fails only if the plan cannot be created, which succeeded before
                    // with the same options.
                    self.failures.fail(self.assembler.next_number(), 0, error);
                    break;
                }
            }
        }
        self.peak_bytes = self.peak_bytes.max(self.bytes());
    }

    /// Assigns slots to planned samples, in the batches that have a buffer.
    fn assign(&mut self) {
        while let Some(first) = self.schedule.first() {
            let slot = self
                .assembler
                .place(first.batch, first.sample, first.padding);
            let Some(slot) = slot else { return };
            self.schedule.place(slot);
        }
    }

    /// Takes a job for reader `me`.
    pub(super) fn next_read(&mut self, me: usize) -> Option<ReadJob> {
        let (extent, block) = self.store.next_read()?;
        self.in_progress.read(me, Some(extent.records.clone()));
        Some((extent, block, self.store.announce(TOLD_AHEAD)))
    }

    /// Returns whether [`State::next_read`] would return a job.
    pub(super) fn has_read(&self) -> bool {
        self.store.has_reads()
    }

    /// Stores the records that reader `me` has read.
    pub(super) fn finish_read(
        &mut self,
        me: usize,
        extent: Arc<Extent>,
        data: Result<RecordBlock>,
    ) {
        self.in_progress.read(me, None);
        self.store.finish(&extent, data);
        self.schedule.read(&extent);
        self.store.release(extent);
    }

    /// Takes a job for decode thread `me`.
    pub(super) fn next_job(&mut self, me: usize) -> Option<Job> {
        // A buffer is requested before decode threads run out of slots.
        if self.schedule.runnable() < 2 * self.in_progress.decoders()
            && let Some(start) = self.next_start()
        {
            return Some(Job::Buffer {
                generation: self.schedule.generation(),
                room: self.assembler.allocate(start),
            });
        }
        if !self.has_sample() {
            return None;
        }
        let holds = self.assembler.may_hold_records(&self.store);
        let task = self.schedule.take()?;
        self.in_progress.decode(me, Some(task.sample));
        Some(Job::Sample(task, holds))
    }

    /// Returns whether [`State::next_job`] would return a job.
    pub(super) fn has_job(&self) -> bool {
        self.has_sample() || self.next_start().is_some()
    }

    fn has_sample(&self) -> bool {
        let batch = self.schedule.next_batch();
        batch.is_some_and(|batch| !self.failures.precede(batch))
    }

    /// Returns epoch and position of the batch to start next, if its buffer should be allocated now.
    fn next_start(&self) -> Option<(u64, u64)> {
        let next = self.assembler.next_number();
        let first = self.schedule.first()?;
        let is_due = first.batch == next
            && self.assembler.has_room(self.schedule.unfinished())
            && self.failures.error_at(next).is_none();
        is_due.then_some((first.epoch, first.start))
    }

    /// Returns why a decode thread has no job (no record was read yet, or memory is short), and whether that differs from
    /// the last time.
    pub(super) fn idle(&mut self) -> (Activity, bool) {
        let no_room = self.assembler.is_full() || self.schedule.first().is_some();
        let reason = match no_room && !self.schedule.awaits_reads() {
            true => Activity::Blocked,
            false => Activity::Starved,
        };
        let before = std::mem::replace(&mut self.idle_reason, reason);
        (reason, before != reason)
    }

    /// Adds the buffer that a [`Job::Buffer`] of this generation requested.
    pub(super) fn add_buffer(&mut self, generation: u64, buffer: Result<Buffer>) {
        if generation != self.schedule.generation() {
            return;
        }
        if let Err(error) = self.assembler.add_buffer(buffer) {
            self.failures.fail(self.assembler.next_number(), 0, error);
        }
    }

    /// Finishes a sample of decode thread `me`, which has dropped its slot before. Returns the batch to assemble if this was
    /// the last sample of a batch that varies in size.
    pub(super) fn finish_sample(
        &mut self,
        me: usize,
        (generation, batch, index): (u64, u64, usize),
        extent: Arc<Extent>,
        outcome: Outcome,
    ) -> Option<Gather> {
        self.in_progress.decode(me, None);
        self.store.release(extent);
        let is_current = self.schedule.finish(generation);
        let done = match outcome {
            Outcome::Done(done) => Some(done),
            Outcome::Replaced(error) => {
                self.failures.replace(error);
                None
            }
            Outcome::Failed(error) => {
                if is_current {
                    self.failures.fail(batch, index, error);
                }
                None
            }
        };
        if is_current {
            return self.assembler.finish((generation, batch, index), done);
        }
        RawImage::release(done.and_then(|done| done.image), &mut self.store);
        None
    }

    /// Stores the payload of a batch. The caller has dropped its samples before.
    pub(super) fn finish_gathering(
        &mut self,
        (generation, batch): (u64, u64),
        images: Vec<RawImage>,
        payload: Result<Gathered>,
    ) {
        RawImage::release(images, &mut self.store);
        if generation != self.schedule.generation() {
            return;
        }
        if let Err(error) = self.assembler.finish_gathering(batch, payload) {
            // After the failures of its samples.
            self.failures.fail(batch, usize::MAX, error);
        }
    }

    /// Takes the next batch, or returns the error that prevents it; `None` while its samples are in progress.
    pub(super) fn take_front(&mut self) -> Option<Result<PendingBatch>> {
        if self
            .assembler
            .front()
            .is_some_and(|front| !front.is_whole())
        {
            return None;
        }
        let error = self.failures.error_at(self.assembler.front_number());
        match error {
            Some(error) => Some(Err(error.clone())),
            None => self.assembler.take_front().map(Ok),
        }
    }

    /// Returns whether [`State::take_front`] would return a result.
    pub(super) fn has_front(&self) -> bool {
        match self.assembler.front() {
            Some(front) => front.is_whole(),
            None => {
                let error = self.failures.error_at(self.assembler.front_number());
                error.is_some()
            }
        }
    }

    /// Describes what the trainer waits for.
    pub(super) fn describe_wait(&self, source: &dyn Source) -> String {
        self.in_progress.describe(self.assembler.front(), source)
    }

    /// Returns the lengths of the queues.
    pub(super) fn queues(&self) -> Queues {
        let (making_batches, ready_batches) = self.assembler.counts();
        Queues {
            making_batches,
            ready_batches,
            memory_bytes: self.bytes(),
            ..self.schedule.queues()
        }
    }

    /// Returns the bytes in records and batches.
    pub(super) fn bytes(&self) -> u64 {
        self.store.used() + self.assembler.bytes()
    }
}
