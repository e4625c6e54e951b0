//! State shared by the threads of a pipeline, under one lock.
//!
//! All operations here are short: threads release the lock to read, decode and allocate. A sample
//! is first *planned* (its record may still be on disk), then a *task* (it has a slot in a batch
//! buffer), then *runnable* (its record is in memory), then *done*. Batches are returned in order, when
//! all their samples are done.

use std::collections::{BinaryHeap, HashMap, VecDeque};
use std::sync::Arc;
use std::time::Instant;

use forebay_batch::Buffer;
use forebay_batch::{FLAG_FAILED, FLAG_PADDING, FLAG_SAMPLE};

use super::batch_buffer::{BatchBuffer, Slot};
use super::extent::{Extent, ExtentBuffer};
use super::planner::{Planned, Planner, Reach};
use super::raw::{Gather, Gathered, RawImage};
use super::sizes::Sizes;
use super::task::Task;
use crate::columns::SampleColumns;
use crate::error::Error;
use crate::source::Source;
use crate::stats::{Activity, Queues};

/// Number of errors kept from replaced samples, for statistics.
const FAILURES_KEPT: usize = 16;
/// Maximum number of memory blocks kept for later reads, in addition to one per reader: enough for the windows
/// of 64 virtual ranks, and few enough to be searched at each read.
const SPARE_BLOCKS: usize = 512;
/// Minimum space in bytes reserved for columns after the pixels of a batch.
const MIN_ROOM: u64 = 4096;
/// Samples planned per call, so that the lock is not held for long.
const PLAN_AT_ONCE: usize = 512;

/// A batch in progress.
pub(super) struct PendingBatch {
    pub(super) epoch: u64,
    pub(super) start: u64,
    /// The pixels, until they are part of the payload.
    pub(super) buffer: Option<Arc<BatchBuffer>>,
    slots: std::vec::IntoIter<Slot>,
    pub(super) labels: Vec<i64>,
    pub(super) samples: Vec<u64>,
    pub(super) flags: Vec<u8>,
    /// Samples that are not done.
    pub(super) left: usize,
    /// Whether encoded images or columns are still to be concatenated.
    gathering: bool,
    /// Encoded images, until they are concatenated.
    images: Vec<RawImage>,
    /// Columns of each sample, until they are concatenated; `None` for a failed sample.
    columns: Vec<Option<SampleColumns>>,
    pub(super) gathered: Option<Gathered>,
    /// Size of encoded images and columns in bytes.
    varying_bytes: u64,
    /// The part of `varying_bytes` that is not in extents.
    own_bytes: u64,
}

impl PendingBatch {
    /// Returns whether it is complete.
    fn is_whole(&self) -> bool {
        self.left == 0 && !self.gathering
    }
}

/// Result of a sample.
pub(super) struct Done {
    pub(super) label: i64,
    /// The image, if images stay encoded.
    pub(super) image: Option<RawImage>,
    /// The columns, if there are any.
    pub(super) columns: Option<SampleColumns>,
}

/// The first error, in the order of samples.
#[derive(Clone)]
pub(super) struct Failure {
    batch: u64,
    index: usize,
    pub(super) error: Error,
}

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

/// A piece of work in progress, for the message of a timeout.
pub(super) struct Working {
    /// First sample, and number of samples.
    pub(super) sample: u64,
    pub(super) count: u64,
    pub(super) since: Instant,
}

pub(super) struct State {
    pub(super) stopped: bool,
    /// Threads that have not ended.
    pub(super) alive: usize,
    /// Name of a thread that panicked.
    pub(super) crashed: Option<String>,
    /// Incremented by a seek; results of another generation are discarded.
    pub(super) generation: u64,
    pub(super) store: ExtentBuffer,
    planner: Planner,
    reach: Reach,
    planned: VecDeque<Planned>,
    waiting: HashMap<u64, Vec<Task>>,
    runnable: BinaryHeap<Task>,
    /// Tasks that are not done.
    unfinished: usize,
    making: VecDeque<PendingBatch>,
    /// Running number of the first batch in `making`.
    front: u64,
    batches_ahead: usize,
    batch_size: usize,
    pixel_bytes: u64,
    /// Minimum expected size of the encoded images and columns of a batch.
    varying_bytes: u64,
    is_raw: bool,
    has_columns: bool,
    /// Memory in bytes for all batches, if batches vary in size.
    varying_budget: Option<u64>,
    /// Expected size of the encoded images and columns of a batch: the largest recent one.
    varying_batch: u64,
    allocating: bool,
    failure: Option<Failure>,
    /// Number of failed samples, followed by the last errors.
    pub(super) failed: u64,
    pub(super) failures: VecDeque<String>,
    pub(super) peak_bytes: u64,
    /// Why decode threads last waited.
    pub(super) idle_reason: Activity,
    pub(super) reading: Vec<Option<Working>>,
    pub(super) decoding: Vec<Option<Working>>,
}

impl State {
    pub(super) fn new(sizes: &Sizes, planner: Planner, reach: Reach) -> Self {
        State {
            stopped: false,
            alive: 0,
            crashed: None,
            generation: 0,
            store: ExtentBuffer::new(
                sizes.record_bytes,
                sizes.readers.saturating_add(SPARE_BLOCKS),
            ),
            planner,
            reach,
            planned: VecDeque::new(),
            waiting: HashMap::new(),
            runnable: BinaryHeap::new(),
            unfinished: 0,
            making: VecDeque::new(),
            front: 0,
            batches_ahead: sizes.batches_ahead,
            batch_size: sizes.batch_size,
            pixel_bytes: sizes.pixel_bytes,
            varying_bytes: sizes.varying_bytes,
            is_raw: sizes.is_raw,
            has_columns: sizes.has_columns,
            varying_budget: sizes.varying_budget,
            varying_batch: sizes.varying_bytes,
            allocating: false,
            failure: None,
            failed: 0,
            failures: VecDeque::new(),
            peak_bytes: 0,
            idle_reason: Activity::Starved,
            reading: (0..sizes.readers).map(|_| None).collect(),
            decoding: (0..sizes.threads).map(|_| None).collect(),
        }
    }

    /// Clears the state, and continues at the planner's position.
    pub(super) fn restart(&mut self, planner: Planner) {
        self.clear();
        self.planner = planner;
    }

    /// Clears the state.
    pub(super) fn clear(&mut self) {
        self.generation += 1;
        self.planner.let_go(&mut self.store);
        for planned in self.planned.drain(..) {
            self.store.release(planned.extent);
        }
        let waiting = self.waiting.drain().flat_map(|(_, tasks)| tasks);
        for task in waiting.chain(self.runnable.drain()) {
            self.store.release(task.extent);
        }
        self.store.forget_reads();
        self.unfinished = 0;
        for making in self.making.drain(..) {
            RawImage::release(making.images, &mut self.store);
        }
        self.front = 0;
        self.allocating = false;
        self.failure = None;
    }

    /// Plans samples as far as memory and `ahead` allow, and assigns slots to them.
    pub(super) fn advance(&mut self, source: &dyn Source) {
        self.assign();
        for _ in 0..PLAN_AT_ONCE {
            if self.stopped || self.planned.len() >= self.reach.ahead {
                break;
            }
            // Batches up to the first failure are finished, since an earlier sample may still fail. Later batches
            // are not planned.
            if self.is_beyond_failure(self.planner.batch()) {
                break;
            }
            // Exceeds the budget only if no work in progress would free memory.
            let urgent = self.planned.is_empty() && self.unfinished == 0;
            match self.planner.next(source, &mut self.store, urgent) {
                Ok(Some(planned)) => self.planned.push_back(planned),
                Ok(None) => break,
                Err(error) => {
                    // Planning fails only if the plan cannot be created, which succeeded before
                    // with the same options.
                    let batch = self.front + self.making.len() as u64;
                    self.fail(batch, 0, error);
                    break;
                }
            }
            if self.planned.len() == 1 {
                self.assign();
            }
        }
        self.peak_bytes = self.peak_bytes.max(self.bytes());
    }

    /// Assigns slots to planned samples, in the batches that have a buffer.
    fn assign(&mut self) {
        while let Some(planned) = self.planned.front() {
            let at = usize::try_from(planned.batch.wrapping_sub(self.front)).unwrap_or(usize::MAX);
            let Some(making) = self.making.get_mut(at) else {
                return;
            };
            let (Some(slot), Some(planned)) = (making.slots.next(), self.planned.pop_front())
            else {
                return;
            };
            let task = Task {
                generation: self.generation,
                batch: planned.batch,
                index: making.samples.len(),
                epoch: planned.epoch,
                sample: planned.sample,
                occurrence: planned.occurrence,
                extent: planned.extent,
                slot,
            };
            making.samples.push(planned.sample);
            making.flags.push(if planned.padding {
                FLAG_PADDING
            } else {
                FLAG_SAMPLE
            });
            self.unfinished += 1;
            if task.extent.is_read() {
                self.runnable.push(task);
            } else {
                self.waiting.entry(task.extent.id).or_default().push(task);
            }
        }
    }

    /// Takes a job for a decode thread.
    pub(super) fn next_job(&mut self) -> Option<Job> {
        // A buffer is requested before decode threads run out of slots.
        if self.wants_buffer() && self.runnable.len() < 2 * self.decoding.len() {
            self.allocating = true;
            let generation = self.generation;
            let room = self.room_for_columns();
            return Some(Job::Buffer { generation, room });
        }
        let first = self.runnable.peek()?;
        if self.is_beyond_failure(first.batch) {
            return None;
        }
        // Referencing records needs free memory for the records of later samples; otherwise reads would stall.
        let holds = self.is_raw && self.store.has_room(self.varying_batch.saturating_mul(2));
        self.runnable.pop().map(|task| Job::Sample(task, holds))
    }

    /// Returns whether [`State::next_job`] would return a job.
    pub(super) fn has_job(&self) -> bool {
        self.wants_buffer()
            || self
                .runnable
                .peek()
                .is_some_and(|task| !self.is_beyond_failure(task.batch))
    }

    fn wants_buffer(&self) -> bool {
        let next = self.front + self.making.len() as u64;
        !self.allocating
            && self.making.len() < self.batches_ahead
            && self.has_room_to_vary()
            && self
                .planned
                .front()
                .is_some_and(|planned| planned.batch == next)
            && !self.is_beyond_failure(next)
    }

    /// Returns the space for columns after the pixels. It is equal for similar batches, so that buffers are reused.
    fn room_for_columns(&self) -> u64 {
        if self.is_raw || !self.has_columns {
            return 0;
        }
        let aligned = self.varying_batch.saturating_add(MIN_ROOM);
        aligned.checked_next_power_of_two().unwrap_or(0)
    }

    /// Returns whether memory allows to start another batch. If batches are larger than expected, fewer are prepared.
    /// At least one is always in progress. The next one starts when the sizes of the earlier ones are mostly known, and
    /// there is memory to concatenate one.
    fn has_room_to_vary(&self) -> bool {
        let Some(budget) = self.varying_budget else {
            return true;
        };
        let next = self
            .varying_batch
            .saturating_mul(2)
            .saturating_add(self.pixel_bytes);
        let fits = self.making_bytes().saturating_add(next) <= budget;
        self.making.is_empty() || (fits && self.unfinished <= self.batch_size)
    }

    fn is_beyond_failure(&self, batch: u64) -> bool {
        self.failure
            .as_ref()
            .is_some_and(|failure| failure.batch < batch)
    }

    /// Returns why a decode thread has no job: no record was read yet, or memory is short.
    pub(super) fn reason_to_wait(&self) -> Activity {
        let no_room = self.making.len() >= self.batches_ahead || !self.planned.is_empty();
        if self.waiting.is_empty() && no_room {
            Activity::Blocked
        } else {
            Activity::Starved
        }
    }

    /// Adds the buffer that a [`Job::Buffer`] requested, divided into slots.
    pub(super) fn add_buffer(&mut self, buffer: Result<Buffer, Error>) {
        self.allocating = false;
        let next = self.front + self.making.len() as u64;
        let Some(planned) = self.planned.front() else {
            return;
        };
        let slots = self.batch_size;
        let cut = buffer.and_then(|buffer| {
            let length = usize::try_from(self.pixel_bytes).unwrap_or(usize::MAX);
            BatchBuffer::cut(buffer, slots, length / slots.max(1)).ok_or_else(|| {
                Error::option("batch_size", slots, "a divisor of the buffer's length")
            })
        });
        match cut {
            Ok((buffer, slots)) => self.making.push_back(PendingBatch {
                epoch: planned.epoch,
                start: planned.start,
                buffer: Some(buffer),
                left: slots.len(),
                gathering: self.is_raw || self.has_columns,
                images: match self.is_raw {
                    true => slots.iter().map(|_| RawImage::default()).collect(),
                    false => Vec::new(),
                },
                columns: match self.has_columns {
                    true => slots.iter().map(|_| None).collect(),
                    false => Vec::new(),
                },
                gathered: None,
                varying_bytes: 0,
                own_bytes: 0,
                labels: vec![-1; slots.len()],
                samples: Vec::with_capacity(slots.len()),
                flags: Vec::with_capacity(slots.len()),
                slots: slots.into_iter(),
            }),
            Err(error) => self.fail(next, 0, error),
        }
    }

    /// Makes the samples that waited for an extent runnable.
    pub(super) fn wake_waiting(&mut self, extent: &Extent) {
        for task in self.waiting.remove(&extent.id).into_iter().flatten() {
            self.runnable.push(task);
        }
    }

    /// Records that a sample failed; its slot is zeroed.
    pub(super) fn note_failure(&mut self, what: String) {
        self.failed += 1;
        if self.failures.len() >= FAILURES_KEPT {
            self.failures.pop_front();
        }
        self.failures.push_back(what);
    }

    /// Finishes a task. `result` is the sample, or the error that replaces it. The caller has dropped its slot
    /// before. Returns the batch to assemble if this was the last sample of a batch that varies in size.
    pub(super) fn finish(
        &mut self,
        (generation, batch, index): (u64, u64, usize),
        extent: Arc<Extent>,
        result: Result<Option<Done>, Error>,
    ) -> Option<Gather> {
        self.store.release(extent);
        let current = generation == self.generation;
        self.unfinished -= usize::from(current);
        let at = usize::try_from(batch.wrapping_sub(self.front)).unwrap_or(usize::MAX);
        let Some(making) = self.making.get_mut(at).filter(|_| current) else {
            let image = result.ok().flatten().and_then(|done| done.image);
            RawImage::release(image, &mut self.store);
            return None;
        };
        making.left -= 1;
        let failed = match result {
            Ok(Some(done)) => {
                making.labels[index] = done.label;
                if let Some(image) = done.image {
                    making.varying_bytes += image.len();
                    making.own_bytes += image.own_len();
                    making.images[index] = image;
                }
                if let Some(columns) = done.columns {
                    making.varying_bytes += columns.len();
                    making.own_bytes += columns.len();
                    making.columns[index] = Some(columns);
                }
                None
            }
            Ok(None) => {
                making.flags[index] |= FLAG_FAILED;
                None
            }
            Err(error) => Some(error),
        };
        let gather = (making.gathering && making.left == 0).then(|| {
            // The expectation rises at once, and falls slowly.
            let bytes = making.varying_bytes.max(self.varying_bytes);
            let fading = self.varying_batch - self.varying_batch / 8 + bytes / 8;
            self.varying_batch = bytes.max(fading);
            // Bytes outside of extents now exist twice: in the samples and in the payload.
            making.varying_bytes += making.own_bytes;
            Gather {
                generation,
                batch,
                buffer: making.buffer.take(),
                images: std::mem::take(&mut making.images),
                columns: std::mem::take(&mut making.columns),
                flags: making.flags.clone(),
            }
        });
        if let Some(error) = failed {
            self.fail(batch, index, error);
        }
        gather
    }

    /// Stores the payload of a batch. The caller has dropped its samples before.
    pub(super) fn finish_gathering(
        &mut self,
        (generation, batch): (u64, u64),
        images: Vec<RawImage>,
        result: Result<Gathered, Error>,
    ) {
        RawImage::release(images, &mut self.store);
        if generation != self.generation {
            return;
        }
        let at = usize::try_from(batch.wrapping_sub(self.front)).unwrap_or(usize::MAX);
        let Some(making) = self.making.get_mut(at) else {
            return;
        };
        making.gathering = false;
        match result {
            Ok(gathered) => {
                let bytes = gathered.payload.len() as u64;
                making.varying_bytes = bytes.saturating_sub(self.pixel_bytes);
                making.gathered = Some(gathered);
            }
            Err(error) => self.fail(batch, self.batch_size, error),
        }
    }

    fn fail(&mut self, batch: u64, index: usize, error: Error) {
        let earlier = |failure: &Failure| (failure.batch, failure.index) <= (batch, index);
        if !self.failure.as_ref().is_some_and(earlier) {
            self.failure = Some(Failure {
                batch,
                index,
                error,
            });
        }
    }

    /// Takes the next batch, or returns the error that prevents it; `None` while its samples are in progress.
    pub(super) fn take_front(&mut self) -> Option<Result<PendingBatch, Error>> {
        if let Some(making) = self.making.front()
            && !making.is_whole()
        {
            return None;
        }
        if let Some(failure) = &self.failure
            && failure.batch <= self.front
        {
            return Some(Err(failure.error.clone()));
        }
        let making = self.making.pop_front()?;
        self.front += 1;
        Some(Ok(making))
    }

    /// Returns whether [`State::take_front`] would return a result.
    pub(super) fn has_front(&self) -> bool {
        match self.making.front() {
            Some(making) => making.is_whole(),
            None => self
                .failure
                .as_ref()
                .is_some_and(|failure| failure.batch <= self.front),
        }
    }

    /// Returns the next batch in order, if it was started.
    pub(super) fn front(&self) -> Option<&PendingBatch> {
        self.making.front()
    }

    /// Returns the lengths of the queues.
    pub(super) fn queues(&self) -> Queues {
        let ready = self.making.iter().filter(|making| making.is_whole());
        let ready_batches = ready.count() as u64;
        Queues {
            planned_samples: self.planned.len() as u64,
            unread_samples: self.waiting.values().map(|tasks| tasks.len() as u64).sum(),
            undecoded_samples: self.runnable.len() as u64,
            making_batches: self.making.len() as u64 - ready_batches,
            ready_batches,
            memory_bytes: self.bytes(),
        }
    }

    /// Returns the bytes in records and batches.
    pub(super) fn bytes(&self) -> u64 {
        self.store.used() + self.making_bytes()
    }

    /// Returns the bytes in batches. The encoded images and columns of an incomplete batch count with at least their
    /// expected size.
    fn making_bytes(&self) -> u64 {
        let pixels = self.pixel_bytes * self.making.len() as u64;
        if self.varying_budget.is_none() {
            return pixels;
        }
        let of = |making: &PendingBatch| {
            let least = if making.left == 0 {
                0
            } else {
                self.varying_batch
            };
            making.varying_bytes.max(least)
        };
        pixels + self.making.iter().map(of).sum::<u64>()
    }
}
