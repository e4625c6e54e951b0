//! What the threads of a pipeline share, under one lock.
//!
//! Everything here is quick: threads leave the lock to read, to decode and to allocate. A sample's road is
//! planned (its record may still be on disk) -> task (it has a place in a batch buffer) -> runnable (its record is
//! here) -> done; batches are handed out in order when all their samples are done.

use std::cmp::Ordering;
use std::collections::{BinaryHeap, HashMap, VecDeque};
use std::sync::Arc;
use std::time::Instant;

use forebay_batch::Buffer;
use forebay_batch::{FLAG_FAILED, FLAG_PADDING, FLAG_SAMPLE};

use super::canvas::{Canvas, Slot};
use super::extent::{Extent, Store};
use super::planner::{Planned, Planner, Reach};
use super::raw::{Gather, Gathered, RawImage};
use crate::error::Error;
use crate::source::Source;
use crate::stats::{Activity, Queues};

/// Replaced samples whose errors are kept for those who ask.
const FAILURES_KEPT: usize = 16;
/// Blocks of memory kept for the next reads, besides one for each reader: about a burst of them.
const SPARE_BLOCKS: usize = 28;
/// Samples planned in one go, so that nobody holds the lock for long.
const PLAN_AT_ONCE: usize = 512;

/// A sample to decode: its record, and where it goes.
pub(super) struct Task {
    pub(super) generation: u64,
    pub(super) batch: u64,
    pub(super) index: usize,
    pub(super) epoch: u64,
    pub(super) sample: u64,
    pub(super) occurrence: u64,
    pub(super) extent: Arc<Extent>,
    pub(super) slot: Slot,
}

impl Task {
    fn rank(&self) -> (u64, usize) {
        (self.batch, self.index)
    }
}

/// The greatest in the heap is the one that is needed first.
impl Ord for Task {
    fn cmp(&self, other: &Self) -> Ordering {
        other.rank().cmp(&self.rank())
    }
}

impl PartialOrd for Task {
    fn partial_cmp(&self, other: &Self) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}

impl PartialEq for Task {
    fn eq(&self, other: &Self) -> bool {
        self.rank() == other.rank()
    }
}

impl Eq for Task {}

/// A batch in the making.
pub(super) struct Making {
    pub(super) epoch: u64,
    pub(super) start: u64,
    pub(super) canvas: Arc<Canvas>,
    slots: std::vec::IntoIter<Slot>,
    pub(super) labels: Vec<i64>,
    pub(super) samples: Vec<u64>,
    pub(super) flags: Vec<u8>,
    /// Samples that are not done.
    pub(super) left: usize,
    /// Whether images are still to be put together: those that stay encoded, until that is done or failed.
    gathering: bool,
    /// Images that stay encoded, until they are put together.
    images: Vec<RawImage>,
    pub(super) gathered: Option<Gathered>,
    /// Bytes of these.
    raw_bytes: u64,
}

impl Making {
    /// Whether it can be handed out.
    fn is_whole(&self) -> bool {
        self.left == 0 && !self.gathering
    }
}

/// What became of a sample.
pub(super) struct Done {
    pub(super) label: i64,
    /// Where images stay encoded.
    pub(super) image: Option<RawImage>,
}

/// The first thing that went wrong, in the order of samples.
#[derive(Clone)]
pub(super) struct Failure {
    batch: u64,
    index: usize,
    pub(super) error: Error,
}

/// What a decode thread is to do.
pub(super) enum Job {
    /// Decode a sample.
    Sample(Task),
    /// Get a buffer for the next batch.
    Buffer {
        /// Of the state that asked for it.
        generation: u64,
    },
}

/// What somebody works on right now, for those who ask why it takes long.
pub(super) struct Working {
    /// First sample, and how many.
    pub(super) sample: u64,
    pub(super) count: u64,
    pub(super) since: Instant,
}

pub(super) struct State {
    pub(super) stopped: bool,
    /// Threads that have not ended.
    pub(super) alive: usize,
    /// Name of a thread that ended by a panic.
    pub(super) crashed: Option<String>,
    /// Changes when the pipeline is sent elsewhere; work for another generation is thrown away.
    pub(super) generation: u64,
    pub(super) store: Store,
    planner: Planner,
    reach: Reach,
    planned: VecDeque<Planned>,
    waiting: HashMap<u64, Vec<Task>>,
    runnable: BinaryHeap<Task>,
    /// Tasks that are not done.
    unfinished: usize,
    making: VecDeque<Making>,
    /// Running number of the first batch in `making`.
    front: u64,
    batches_ahead: usize,
    batch_size: usize,
    batch_bytes: u64,
    /// For batches whose images stay encoded: bytes for all of them.
    raw_budget: Option<u64>,
    /// The largest of the last of these batches, or what they are on average.
    raw_batch: u64,
    allocating: bool,
    failure: Option<Failure>,
    /// Samples that were replaced, and what was wrong with the last of them.
    pub(super) failed: u64,
    pub(super) failures: VecDeque<String>,
    pub(super) peak_bytes: u64,
    pub(super) idle_readers: usize,
    pub(super) idle_workers: usize,
    /// Whoever waits for a batch.
    pub(super) idle_trainers: usize,
    /// Why decode threads last went to sleep.
    pub(super) idle_reason: Activity,
    pub(super) reading: Vec<Option<Working>>,
    pub(super) decoding: Vec<Option<Working>>,
}

/// Sizes a state is made for.
pub(super) struct Sizes {
    pub(super) readers: usize,
    pub(super) threads: usize,
    pub(super) batches_ahead: usize,
    pub(super) batch_size: usize,
    pub(super) batch_bytes: u64,
    pub(super) raw_budget: Option<u64>,
    pub(super) record_bytes: u64,
}

impl State {
    pub(super) fn new(sizes: &Sizes, planner: Planner, reach: Reach) -> Self {
        State {
            stopped: false,
            alive: 0,
            crashed: None,
            generation: 0,
            store: Store::new(
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
            batch_bytes: sizes.batch_bytes,
            raw_budget: sizes.raw_budget,
            raw_batch: sizes.batch_bytes,
            allocating: false,
            failure: None,
            failed: 0,
            failures: VecDeque::new(),
            peak_bytes: 0,
            idle_readers: 0,
            idle_workers: 0,
            idle_trainers: 0,
            idle_reason: Activity::Starved,
            reading: (0..sizes.readers).map(|_| None).collect(),
            decoding: (0..sizes.threads).map(|_| None).collect(),
        }
    }

    /// Forgets everything and goes on from where `planner` stands.
    pub(super) fn restart(&mut self, planner: Planner) {
        self.clear();
        self.planner = planner;
    }

    /// Forgets everything.
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
        self.making.clear();
        self.front = 0;
        self.allocating = false;
        self.failure = None;
    }

    /// Plans as far as memory and reach allow, and gives samples their places.
    pub(super) fn advance(&mut self, source: &dyn Source) {
        self.assign();
        for _ in 0..PLAN_AT_ONCE {
            if self.stopped || self.planned.len() >= self.reach.ahead {
                break;
            }
            // A batch with a failure is finished, so that its first failure is known; nothing after it is.
            if self.is_beyond_failure(self.planner.batch()) {
                break;
            }
            // Over the budget only where nothing is under way that would make room.
            let urgent = self.planned.is_empty() && self.unfinished == 0;
            match self.planner.next(source, &mut self.store, urgent) {
                Ok(Some(planned)) => self.planned.push_back(planned),
                Ok(None) => break,
                Err(error) => {
                    // Only a plan can fail, which was made once from the same numbers.
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

    /// Gives planned samples their places in the batches that have a buffer.
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

    /// Work for a decode thread.
    pub(super) fn next_job(&mut self) -> Option<Job> {
        // A buffer is wanted before decode threads run out of places.
        if self.wants_buffer() && self.runnable.len() < 2 * self.decoding.len() {
            self.allocating = true;
            let generation = self.generation;
            return Some(Job::Buffer { generation });
        }
        let first = self.runnable.peek()?;
        if self.is_beyond_failure(first.batch) {
            return None;
        }
        self.runnable.pop().map(Job::Sample)
    }

    /// Whether [`State::next_job`] would give something.
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
            && self.has_room_for_raw()
            && self
                .planned
                .front()
                .is_some_and(|planned| planned.batch == next)
            && !self.is_beyond_failure(next)
    }

    /// Batches of encoded images may be larger than what was reckoned with: then there are fewer. One is always made;
    /// the next one is begun when of those before it most is known, and there is room to put one together.
    fn has_room_for_raw(&self) -> bool {
        let Some(budget) = self.raw_budget else {
            return true;
        };
        let next = self.raw_batch.saturating_mul(2);
        let fits = self.making_bytes().saturating_add(next) <= budget;
        self.making.is_empty() || (fits && self.unfinished <= self.batch_size)
    }

    fn is_beyond_failure(&self, batch: u64) -> bool {
        self.failure
            .as_ref()
            .is_some_and(|failure| failure.batch < batch)
    }

    /// Why a decode thread without a job has none: no records yet, or no room.
    pub(super) fn reason_to_wait(&self) -> Activity {
        let no_room = self.making.len() >= self.batches_ahead || !self.planned.is_empty();
        if self.waiting.is_empty() && no_room {
            Activity::Blocked
        } else {
            Activity::Starved
        }
    }

    /// The buffer that a [`Job::Buffer`] asked for, cut up.
    pub(super) fn add_buffer(&mut self, buffer: Result<Buffer, Error>) {
        self.allocating = false;
        let next = self.front + self.making.len() as u64;
        let Some(planned) = self.planned.front() else {
            return;
        };
        let slots = self.batch_size;
        let cut = buffer.and_then(|buffer| {
            let length = buffer.len();
            Canvas::cut(buffer, slots, length / slots.max(1)).ok_or_else(|| {
                Error::option("batch_size", slots, "a divisor of the buffer's length")
            })
        });
        match cut {
            Ok((canvas, slots)) => self.making.push_back(Making {
                epoch: planned.epoch,
                start: planned.start,
                canvas,
                left: slots.len(),
                gathering: self.raw_budget.is_some(),
                images: match self.raw_budget {
                    Some(_) => slots.iter().map(|_| RawImage::default()).collect(),
                    None => Vec::new(),
                },
                gathered: None,
                raw_bytes: 0,
                labels: vec![-1; slots.len()],
                samples: Vec::with_capacity(slots.len()),
                flags: Vec::with_capacity(slots.len()),
                slots: slots.into_iter(),
            }),
            Err(error) => self.fail(next, 0, error),
        }
    }

    /// An extent was read: samples that waited for it can be decoded.
    pub(super) fn wake_waiting(&mut self, extent: &Extent) {
        for task in self.waiting.remove(&extent.id).into_iter().flatten() {
            self.runnable.push(task);
        }
    }

    /// A sample could not be had, and zeros are in its slot.
    pub(super) fn note_failure(&mut self, what: String) {
        self.failed += 1;
        if self.failures.len() >= FAILURES_KEPT {
            self.failures.pop_front();
        }
        self.failures.push_back(what);
    }

    /// A task is done; `result` is what became of it, or that it was replaced. Its slot is gone already. Gives
    /// the images to put together, if this was the last one of them.
    pub(super) fn finish(
        &mut self,
        (generation, batch, index): (u64, u64, usize),
        extent: Arc<Extent>,
        result: Result<Option<Done>, Error>,
    ) -> Option<Gather> {
        self.store.release(extent);
        if generation != self.generation {
            return None;
        }
        self.unfinished -= 1;
        let at = usize::try_from(batch.wrapping_sub(self.front)).unwrap_or(usize::MAX);
        let making = self.making.get_mut(at)?;
        making.left -= 1;
        let failed = match result {
            Ok(Some(done)) => {
                making.labels[index] = done.label;
                if let Some(image) = done.image {
                    making.raw_bytes += image.len();
                    making.images[index] = image;
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
            // Reckons with large ones for a while.
            let bytes = making.raw_bytes.max(self.batch_bytes);
            let fading = self.raw_batch - self.raw_batch / 8 + bytes / 8;
            self.raw_batch = bytes.max(fading);
            // The images and the payload.
            making.raw_bytes *= 2;
            Gather {
                generation,
                batch,
                images: std::mem::take(&mut making.images),
                flags: making.flags.clone(),
            }
        });
        if let Some(error) = failed {
            self.fail(batch, index, error);
        }
        gather
    }

    /// The images of a batch were put together; they are gone already.
    pub(super) fn finish_gathering(
        &mut self,
        (generation, batch): (u64, u64),
        result: Result<Gathered, Error>,
    ) {
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
                making.raw_bytes = gathered.payload.len() as u64;
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

    /// The next batch, or why there will be none: `None` while neither is known.
    pub(super) fn take_front(&mut self) -> Option<Result<Making, Error>> {
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

    /// Whether [`State::take_front`] would give something.
    pub(super) fn has_front(&self) -> bool {
        match self.making.front() {
            Some(making) => making.is_whole(),
            None => self
                .failure
                .as_ref()
                .is_some_and(|failure| failure.batch <= self.front),
        }
    }

    /// Batch that is handed out next, if it was begun.
    pub(super) fn front(&self) -> Option<&Making> {
        self.making.front()
    }

    /// What waits where.
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

    /// Bytes of records and batches.
    pub(super) fn bytes(&self) -> u64 {
        self.store.used() + self.making_bytes()
    }

    /// Bytes of batches; of those whose images stay encoded, as far as they are there, but what is reckoned with at
    /// least while they are not whole.
    fn making_bytes(&self) -> u64 {
        if self.raw_budget.is_none() {
            return self.batch_bytes * self.making.len() as u64;
        }
        let of = |making: &Making| {
            let least = if making.left == 0 { 0 } else { self.raw_batch };
            making.raw_bytes.max(least)
        };
        self.making.iter().map(of).sum()
    }

    /// Whether records are read one by one.
    pub(super) fn single_reads(&self) -> bool {
        self.reach.single
    }
}
