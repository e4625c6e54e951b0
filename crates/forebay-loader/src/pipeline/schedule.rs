//! Which work is due: the samples that are planned, wait for their records, or can be decoded.

use std::collections::{BinaryHeap, HashMap, VecDeque};

use super::batch_buffer::Slot;
use super::extent::{Extent, ExtentBuffer};
use super::planner::{Planned, Planner};
use super::task::Task;
use crate::error::Result;
use crate::source::Source;
use crate::stats::Queues;

/// The samples of a pipeline that are not done.
pub(super) struct Schedule {
    planner: Planner,
    /// Maximum number of samples to plan beyond those with a slot.
    ahead: usize,
    /// Incremented by [`Schedule::clear`]; results of another generation are discarded.
    generation: u64,
    /// Samples without a slot, in order.
    planned: VecDeque<Planned>,
    /// Samples with a slot whose records are not in memory, by the extent of their records.
    waiting: HashMap<u64, Vec<Task>>,
    /// Samples with a slot and a record.
    runnable: BinaryHeap<Task>,
    /// Samples with a slot that are not done.
    unfinished: usize,
}

impl Schedule {
    /// Creates a schedule that plans `ahead` samples beyond those with a slot.
    pub(super) fn new(planner: Planner, ahead: usize) -> Self {
        Schedule {
            planner,
            ahead,
            generation: 0,
            planned: VecDeque::new(),
            waiting: HashMap::new(),
            runnable: BinaryHeap::new(),
            unfinished: 0,
        }
    }

    /// Discards all samples.
    pub(super) fn clear(&mut self, store: &mut ExtentBuffer) {
        self.generation += 1;
        self.planner.let_go(store);
        for planned in self.planned.drain(..) {
            store.release(planned.extent);
        }
        let waiting = self.waiting.drain().flat_map(|(_, tasks)| tasks);
        for task in waiting.chain(self.runnable.drain()) {
            store.release(task.extent);
        }
        self.unfinished = 0;
    }

    /// Plans from another position on. All samples were discarded before.
    pub(super) fn restart(&mut self, planner: Planner) {
        self.planner = planner;
    }

    pub(super) fn generation(&self) -> u64 {
        self.generation
    }

    /// Returns the number of the batch of the sample to plan next; `None` if enough samples are planned.
    pub(super) fn to_plan(&self) -> Option<u64> {
        (self.planned.len() < self.ahead).then(|| self.planner.batch())
    }

    /// Plans a sample. Returns whether its record fits into memory. It may exceed the budget if no work in progress would
    /// free memory.
    pub(super) fn plan(&mut self, source: &dyn Source, store: &mut ExtentBuffer) -> Result<bool> {
        let urgent = self.planned.is_empty() && self.unfinished == 0;
        let planned = self.planner.next(source, store, urgent)?;
        let fits = planned.is_some();
        self.planned.extend(planned);
        Ok(fits)
    }

    /// Returns the first planned sample without a slot.
    pub(super) fn first(&self) -> Option<&Planned> {
        self.planned.front()
    }

    /// Gives a slot, with the index of a sample, to the first planned sample.
    pub(super) fn place(&mut self, (index, slot): (usize, Slot)) {
        let Some(planned) = self.planned.pop_front() else {
            return;
        };
        self.unfinished += 1;
        let task = Task {
            generation: self.generation,
            batch: planned.batch,
            index,
            epoch: planned.epoch,
            sample: planned.sample,
            occurrence: planned.occurrence,
            extent: planned.extent,
            slot,
        };
        if task.extent.is_read() {
            self.runnable.push(task);
        } else {
            self.waiting.entry(task.extent.id).or_default().push(task);
        }
    }

    /// Records that an extent was read, so that the samples that waited for it can be decoded.
    pub(super) fn read(&mut self, extent: &Extent) {
        for task in self.waiting.remove(&extent.id).into_iter().flatten() {
            self.runnable.push(task);
        }
    }

    /// Returns whether a sample with a slot waits for its record.
    pub(super) fn awaits_reads(&self) -> bool {
        !self.waiting.is_empty()
    }

    /// Returns the number of samples that can be decoded.
    pub(super) fn runnable(&self) -> usize {
        self.runnable.len()
    }

    /// Returns the batch of the sample to decode next.
    pub(super) fn next_batch(&self) -> Option<u64> {
        self.runnable.peek().map(|task| task.batch)
    }

    /// Takes the sample to decode next: the one that is needed first.
    pub(super) fn take(&mut self) -> Option<Task> {
        self.runnable.pop()
    }

    /// Returns the number of samples with a slot that are not done.
    pub(super) fn unfinished(&self) -> usize {
        self.unfinished
    }

    /// Records that a sample is done. Returns whether it still counts: `false` if it was discarded.
    pub(super) fn finish(&mut self, generation: u64) -> bool {
        let is_current = generation == self.generation;
        self.unfinished -= usize::from(is_current);
        is_current
    }

    /// Returns the lengths of the queues of samples.
    pub(super) fn queues(&self) -> Queues {
        Queues {
            planned_samples: self.planned.len() as u64,
            unread_samples: self.waiting.values().map(|tasks| tasks.len() as u64).sum(),
            undecoded_samples: self.runnable.len() as u64,
            ..Queues::default()
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::tests::{RECORD_BYTES, Records, options, planning, slot};
    use super::*;

    const RECORDS: u64 = 40;

    /// A schedule with memory for its records.
    struct Stored {
        schedule: Schedule,
        store: ExtentBuffer,
    }

    impl Stored {
        fn new(ahead: usize, record_bytes: u64) -> Self {
            let planning = planning(&options(RECORDS, true), RECORDS, record_bytes);
            Stored {
                schedule: Schedule::new(Planner::new(planning, (0, 0)).unwrap(), ahead),
                store: ExtentBuffer::new(record_bytes, 1),
            }
        }

        fn plan(&mut self) -> bool {
            self.schedule
                .plan(&Records(RECORDS), &mut self.store)
                .unwrap()
        }

        /// Reads the next extent.
        fn read(&mut self) {
            let (extent, block) = self.store.next_read().unwrap();
            self.store.finish(&extent, Ok(block));
            self.schedule.read(&extent);
            self.store.release(extent);
        }
    }

    #[test]
    fn no_more_is_planned_than_asked_for() {
        let mut it = Stored::new(3, 1 << 20);
        assert_eq!(it.schedule.to_plan(), Some(0));
        for _ in 0..3 {
            assert!(it.plan());
        }
        assert_eq!(it.schedule.to_plan(), None);
        it.schedule.place((0, slot()));
        it.schedule.place((1, slot()));
        assert_eq!(it.schedule.to_plan(), Some(0));
        assert!(it.plan());
        assert_eq!(it.schedule.to_plan(), Some(1), "the first batch is planned");
        let queues = it.schedule.queues();
        assert_eq!((queues.planned_samples, queues.unread_samples), (2, 2));
    }

    #[test]
    fn the_sample_that_is_needed_first_comes_first() {
        let mut it = Stored::new(8, 1 << 20);
        for i in 0..6 {
            it.plan();
            it.schedule.place((i % 4, slot()));
        }
        assert!(it.schedule.awaits_reads() && it.schedule.next_batch().is_none());
        // The reads end in another order: those of the records 3, 2 and 0.
        let reads: Vec<_> = std::iter::from_fn(|| it.store.next_read()).collect();
        for at in [3, 2, 0] {
            let extent = &reads[at].0;
            it.store.finish(extent, Ok(Default::default()));
            it.schedule.read(extent);
        }
        assert_eq!(
            (it.schedule.runnable(), it.schedule.next_batch()),
            (3, Some(0))
        );
        let samples = std::iter::from_fn(|| it.schedule.take()).map(|task| task.sample);
        assert_eq!(samples.collect::<Vec<_>>(), [0, 2, 3]);
        assert!(it.schedule.awaits_reads());
    }

    #[test]
    fn a_sample_of_a_read_record_can_be_decoded_at_once() {
        let mut it = Stored::new(8, 1 << 20);
        it.plan();
        it.read();
        assert_eq!(it.schedule.runnable(), 0, "it has no slot");
        it.schedule.place((0, slot()));
        assert_eq!(
            (it.schedule.runnable(), it.schedule.awaits_reads()),
            (1, false)
        );
    }

    #[test]
    fn the_budget_is_exceeded_only_if_nothing_is_in_progress() {
        let mut it = Stored::new(8, 1);
        assert!(it.plan(), "otherwise nothing would ever be read");
        assert!(!it.plan());
        it.schedule.place((0, slot()));
        assert!(!it.plan(), "the first sample frees its memory");
        it.read();
        let task = it.schedule.take().unwrap();
        it.store.release(task.extent);
        assert_eq!(it.schedule.unfinished(), 1);
        assert!(it.schedule.finish(task.generation));
        assert!(it.plan());
    }

    #[test]
    fn discarded_samples_release_their_records() {
        let mut it = Stored::new(8, 1 << 20);
        for i in 0..3 {
            it.plan();
            it.schedule.place((i, slot()));
        }
        it.plan();
        it.read();
        let task = it.schedule.take().unwrap();
        assert!(it.store.used() >= 4 * RECORD_BYTES);
        it.schedule.clear(&mut it.store);
        it.store.forget_reads();
        assert_eq!(it.schedule.unfinished(), 0);
        it.store.release(task.extent);
        assert!(!it.schedule.finish(task.generation), "it was discarded");
        assert_eq!(it.store.used(), 0);
        assert!(it.schedule.first().is_none() && !it.schedule.awaits_reads());
    }
}
