//! Tests of the pipeline's state without threads: all reads are of records of equal size, and each job is done by hand.

use std::ops::Range;
use std::path::PathBuf;
use std::sync::Arc;

use forebay_batch::{Buffer, BufferPool, FLAG_FAILED, FLAG_PADDING};
use forebay_image::{TrainTransform, Transform};
use forebay_shard::RecordBlock;

use super::batch_buffer::{BatchBuffer, Slot};
use super::extent::Extent;
use super::finished_batch::FinishedBatch;
use super::pending_batch::Done;
use super::planner::{Planner, Planning, Reach};
use super::raw::Gather;
use super::sizes::{BatchSizes, Sizes};
use super::state::{Job, Outcome, State};
use super::task::Task;
use crate::error::{Error, RecordLocation, Result};
use crate::options::{Machine, Options};
use crate::plan::{Selection, Shuffle};
use crate::source::{Classes, Source};
use crate::stats::Activity;

/// Size of a record, as stored.
pub(super) const RECORD_BYTES: u64 = 100;
/// Samples per batch.
pub(super) const BATCH: usize = 4;

/// A source of records of [`RECORD_BYTES`].
pub(super) struct Records(pub(super) u64);

impl Source for Records {
    fn records(&self) -> u64 {
        self.0
    }

    fn bytes(&self) -> u64 {
        self.0 * RECORD_BYTES
    }

    fn piece(&self, run: &Range<u64>, _: u64) -> Range<u64> {
        run.clone()
    }

    fn stored_bytes(&self, piece: &Range<u64>) -> Result<u64> {
        Ok((piece.end - piece.start) * RECORD_BYTES)
    }

    fn read(&self, _: &Range<u64>, _: &mut RecordBlock) -> Result<()> {
        unreachable!("reads are done by hand")
    }

    fn locate(&self, record: u64) -> RecordLocation {
        RecordLocation {
            shard: PathBuf::from("records"),
            record,
            sample: record,
            key: None,
            offset: record * RECORD_BYTES,
        }
    }

    fn key(&self, _: u64) -> Option<Vec<u8>> {
        None
    }

    fn for_each_label(&self, _: &mut dyn FnMut(u64, Option<i64>)) {}

    fn class_label(&self, _: &str) -> Result<Option<i64>> {
        Ok(None)
    }

    fn classes(&self) -> Classes {
        Classes::default()
    }
}

/// Returns resolved options for batches of [`BATCH`] pixels in storage order, of `records` records.
pub(super) fn options(records: u64, drop_last: bool) -> Options {
    let mut options = Options::new(BATCH as u64, Transform::Train(TrainTransform::new(1)));
    options.shuffle = Shuffle::NONE;
    options.drop_last = drop_last;
    options.batches_ahead = 2;
    options.threads = 1;
    options.readers = 1;
    options
        .resolve(records, records * RECORD_BYTES)
        .expect("the options are valid")
}

/// Returns what epochs of `records` records are planned from, with a budget of `record_bytes`.
pub(super) fn planning(options: &Options, records: u64, record_bytes: u64) -> Planning {
    Planning {
        selection: Selection::first(records),
        options: options.clone(),
        batches: options.batches(records).expect("an epoch has batches"),
        reach: Reach::new(options, records, RECORD_BYTES, record_bytes, 0, 1),
    }
}

/// Returns the sizes of batches of decoded images; with a `varying_budget`, of encoded ones.
pub(super) fn batch_sizes(varying_budget: Option<u64>) -> BatchSizes {
    let is_raw = varying_budget.is_some();
    BatchSizes {
        ahead: 3,
        samples: BATCH,
        pixel_bytes: if is_raw { 0 } else { 3 * BATCH as u64 },
        varying_bytes: if is_raw { 50 } else { 0 },
        is_raw,
        has_columns: false,
        varying_budget,
    }
}

/// Returns a slot of a buffer of its own.
pub(super) fn slot() -> Slot {
    let (_, mut slots) = BatchBuffer::cut(buffer(3), 1, 3).expect("the buffer is large enough");
    slots.remove(0)
}

pub(super) fn buffer(bytes: usize) -> Buffer {
    BufferPool::new(0).take(bytes)
}

/// Returns a decoded sample.
pub(super) fn done(label: i64) -> Done {
    Done {
        label,
        image: None,
        columns: None,
    }
}

/// A state whose jobs are done by the test.
pub(super) struct Driven {
    pub(super) state: State,
    pub(super) source: Records,
    planning: Planning,
}

impl Driven {
    /// Creates a state for epochs of `records` records, with a budget of `record_bytes` for them.
    pub(super) fn new(options: &Options, records: u64, record_bytes: u64) -> Self {
        let machine = Machine {
            record_bytes,
            ..Machine::new(options).expect("the options are valid")
        };
        let bytes = options.batch_bytes().expect("a batch fits");
        let planning = planning(options, records, record_bytes);
        let planner = Planner::new(planning.clone(), (0, 0)).expect("epoch 0 can be planned");
        let sizes = Sizes::new(options, &machine, bytes, false);
        let mut state = State::new(&sizes, planner, planning.reach.ahead);
        let source = Records(records);
        state.advance(&source);
        Driven {
            state,
            source,
            planning,
        }
    }

    pub(super) fn seek(&mut self, epoch: u64, position: u64) {
        let planner = Planner::new(self.planning.clone(), (epoch, position));
        self.state
            .restart(planner.expect("the epoch can be planned"));
        self.state.advance(&self.source);
    }

    /// Takes the next read.
    pub(super) fn begin_read(&mut self) -> Option<Arc<Extent>> {
        self.state.next_read(0).map(|(extent, _, _)| extent)
    }

    pub(super) fn end_read(&mut self, extent: Arc<Extent>) {
        let mut block = RecordBlock::default();
        let records = extent.records.end - extent.records.start;
        block.stored_mut((records * RECORD_BYTES) as usize);
        self.state.finish_read(0, extent, Ok(block));
        self.state.advance(&self.source);
    }

    /// Does all reads and allocations that are due, and returns the samples that can be decoded.
    pub(super) fn tasks(&mut self) -> Vec<Task> {
        let mut tasks = Vec::new();
        loop {
            while let Some(extent) = self.begin_read() {
                self.end_read(extent);
            }
            match self.state.next_job(0) {
                Some(Job::Sample(task, _)) => tasks.push(task),
                Some(Job::Buffer { generation, room }) => {
                    assert_eq!(room, 0);
                    self.state.add_buffer(generation, Ok(buffer(3 * BATCH)));
                    self.state.advance(&self.source);
                }
                None => return tasks,
            }
        }
    }

    /// Finishes a sample; its label is its number.
    pub(super) fn finish(&mut self, task: Task) -> Option<Gather> {
        let outcome = Outcome::Done(done(task.sample as i64));
        self.finish_as(task, outcome)
    }

    pub(super) fn finish_as(&mut self, task: Task, outcome: Outcome) -> Option<Gather> {
        let place = (task.generation, task.batch, task.index);
        let Task { extent, slot, .. } = task;
        drop(slot);
        let gather = self.state.finish_sample(0, place, extent, outcome);
        self.state.advance(&self.source);
        gather
    }

    /// Takes the next batch; `None` if a trainer would wait.
    pub(super) fn next(&mut self) -> Option<Result<FinishedBatch>> {
        let has_front = self.state.has_front();
        let front = self.state.take_front();
        assert_eq!(has_front, front.is_some(), "a wake-up would be lost");
        self.state.advance(&self.source);
        front.map(|front| front.and_then(|batch| batch.into_finished()))
    }

    /// Decodes all samples that can be decoded, and returns the next batch.
    pub(super) fn batch(&mut self) -> FinishedBatch {
        for task in self.tasks() {
            self.finish(task);
        }
        let batch = self.next().expect("a batch is complete");
        batch.expect("no sample failed")
    }
}

/// Returns an error that names a sample.
pub(super) fn bad_sample(sample: u64) -> Error {
    Error::Record {
        place: Box::new(Records(0).locate(sample)),
        what: "bad".to_owned(),
    }
}

/// More than all records of these tests take.
const AMPLE: u64 = 1 << 20;

fn driven(records: u64) -> Driven {
    Driven::new(&options(records, true), records, AMPLE)
}

#[test]
fn batches_are_handed_out_in_order() {
    let mut driven = driven(40);
    let mut tasks = driven.tasks();
    assert_eq!(tasks.len(), 2 * BATCH, "two batches ahead");
    // The samples of the second batch are done first.
    let first = tasks.split_off(BATCH);
    let (first, second) = (tasks, first);
    for task in second.into_iter().rev() {
        driven.finish(task);
        assert!(driven.next().is_none());
    }
    for task in first {
        assert!(driven.next().is_none());
        driven.finish(task);
    }
    for start in [0, 4] {
        let batch = driven.next().unwrap().unwrap();
        let samples: Vec<u64> = (start..start + 4).collect();
        assert_eq!((batch.start, &batch.samples), (start, &samples));
        assert_eq!(
            batch.labels,
            samples.iter().map(|&s| s as i64).collect::<Vec<_>>()
        );
    }
    assert!(driven.next().is_none());
    assert!(driven.state.has_job(), "room for another batch");
}

#[test]
fn the_next_epoch_follows_the_last_whole_batch() {
    let mut driven = driven(10);
    let batches: Vec<_> = (0..4).map(|_| driven.batch()).collect();
    let starts: Vec<_> = batches
        .iter()
        .map(|batch| (batch.epoch, batch.start))
        .collect();
    assert_eq!(starts, [(0, 0), (0, 4), (1, 0), (1, 4)]);
    assert_eq!(batches[3].samples, [4, 5, 6, 7]);
}

#[test]
fn the_last_batch_is_padded_with_first_samples() {
    let mut driven = Driven::new(&options(10, false), 10, AMPLE);
    let batches: Vec<_> = (0..4).map(|_| driven.batch()).collect();
    assert_eq!(batches[2].samples, [8, 9, 0, 1]);
    let padding = batches[2]
        .flags
        .iter()
        .map(|&flag| flag & FLAG_PADDING != 0);
    assert_eq!(padding.collect::<Vec<_>>(), [false, false, true, true]);
    assert_eq!((batches[3].epoch, batches[3].start), (1, 0));
}

#[test]
fn a_failed_sample_ends_the_stream_at_its_batch() {
    let mut driven = driven(40);
    let mut tasks = driven.tasks();
    let later = tasks.remove(5);
    driven.finish_as(later, Outcome::Failed(bad_sample(5)));
    assert!(driven.next().is_none(), "an earlier sample may still fail");
    for task in tasks {
        driven.finish(task);
    }
    assert_eq!(driven.next().unwrap().unwrap().start, 0);
    for _ in 0..2 {
        assert!(matches!(driven.next(), Some(Err(Error::Record { .. }))));
    }
    // Nothing behind the failure is made.
    assert!(driven.tasks().is_empty() && !driven.state.has_job());
    // A seek behind it continues.
    driven.seek(0, 8);
    assert_eq!(driven.batch().samples, [8, 9, 10, 11]);
}

#[test]
fn a_refused_buffer_ends_the_stream() {
    let mut driven = driven(40);
    let Some(Job::Buffer { generation, .. }) = driven.state.next_job(0) else {
        panic!("a buffer is needed");
    };
    assert!(!driven.state.has_job(), "one buffer at a time");
    assert!(driven.next().is_none());
    driven.state.add_buffer(generation, Err(Error::Interrupted));
    assert!(matches!(driven.next(), Some(Err(Error::Interrupted))));
    assert!(!driven.state.has_job(), "it is not asked for again");
}

#[test]
fn replaced_samples_are_flagged_and_counted() {
    let mut driven = driven(40);
    for task in driven.tasks() {
        match task.sample {
            2 => driven.finish_as(task, Outcome::Replaced("bad".to_owned())),
            _ => driven.finish(task),
        };
    }
    let flags = driven.next().unwrap().unwrap().flags;
    assert_eq!(
        flags.iter().position(|&flag| flag & FLAG_FAILED != 0),
        Some(2)
    );
    assert_eq!(
        driven.state.failures.replaced(),
        (1, vec!["bad".to_owned()])
    );
}

#[test]
fn results_from_before_a_seek_are_discarded() {
    let mut driven = driven(40);
    let old = driven.tasks();
    driven.seek(2, 20);
    let held = driven.state.bytes();
    for task in old {
        driven.finish_as(task, Outcome::Failed(bad_sample(0)));
    }
    assert!(driven.state.bytes() < held, "their records are released");
    let batch = driven.batch();
    assert_eq!(
        (batch.epoch, &batch.samples[..]),
        (2, &[20, 21, 22, 23][..])
    );
    driven.state.clear();
    assert_eq!(driven.state.bytes(), 0);
}

#[test]
fn records_stay_within_their_budget() {
    // Each record takes some memory for its place, too.
    let budget = 3 * (RECORD_BYTES + 48);
    let mut driven = Driven::new(&options(400, true), 400, budget);
    let pixels = |driven: &Driven| 3 * BATCH as u64 * driven.state.queues().making_batches;
    for _ in 0..20 {
        let tasks = driven.tasks();
        assert!((1..=3).contains(&tasks.len()), "{}", tasks.len());
        assert!(driven.state.bytes() <= budget + pixels(&driven));
        assert!(!driven.state.has_read(), "the budget is exhausted");
        for task in tasks {
            driven.finish(task);
        }
        while driven.next().is_some() {}
    }
    assert!(driven.state.peak_bytes <= budget + 2 * 3 * BATCH as u64);
}

#[test]
fn a_record_above_the_budget_is_read_alone() {
    let mut driven = Driven::new(&options(40, true), 40, 1);
    let extent = driven.begin_read().unwrap();
    assert_eq!(extent.records, 0..1);
    assert!(driven.begin_read().is_none());
    driven.end_read(extent);
    assert_eq!(driven.tasks().len(), 1);
}

#[test]
fn idle_decode_threads_say_what_they_wait_for() {
    let mut driven = driven(40);
    let extent = driven.begin_read().unwrap();
    assert_eq!(
        driven.state.idle().0,
        Activity::Blocked,
        "there is no buffer"
    );
    driven.end_read(extent);
    let tasks = driven.tasks();
    assert_eq!(
        driven.state.idle().0,
        Activity::Blocked,
        "all batches are full"
    );
    driven.seek(0, 0);
    let Some(Job::Buffer { generation, .. }) = driven.state.next_job(0) else {
        panic!("a buffer is needed");
    };
    driven.state.add_buffer(generation, Ok(buffer(3 * BATCH)));
    driven.state.advance(&driven.source);
    assert_eq!(
        driven.state.idle(),
        (Activity::Starved, true),
        "no record is read"
    );
    assert_eq!(driven.state.idle(), (Activity::Starved, false));
    drop(tasks);
}
