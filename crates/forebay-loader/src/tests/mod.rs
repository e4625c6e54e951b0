//! Tests of the loader with slow, blocked or damaged sources.

use std::ops::Range;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Condvar, Mutex};
use std::time::{Duration, Instant};

use forebay_image::{TrainTransform, Transform};
use forebay_shard::RecordBlock;

use crate::error::{RecordLocation, Result};
use crate::loader::Identity;
use crate::plan::{EpochPlan, PlanOptions};
use crate::source::{Classes, Source, SplitSource};
use crate::{Loader, Options, Shuffle, Stats};
use dataset::Recipe;

#[path = "../../tests/it/dataset/mod.rs"]
mod dataset;

mod ahead;
mod bottlenecks;
mod cores;
mod failures;
mod memory;
mod waits;

const SIDE: u32 = 10;
const BATCH_BYTES: u64 = 8 * 300;

/// Timeout for events that must occur.
const SOON: Duration = Duration::from_secs(30);

/// A split whose reads can be blocked and delayed.
struct Gated {
    inner: SplitSource,
    gate: Arc<Gate>,
}

#[derive(Default)]
struct Gate {
    /// Reads of these records block until the gate is opened.
    closed: Mutex<Option<Range<u64>>>,
    opened: Condvar,
    /// Delay before each read.
    delay: Duration,
    /// Serializes reads, if set.
    serial: Option<Mutex<()>>,
    /// Delay before each sample is decoded.
    decode_delay: Duration,
    /// Total of the actual delays of reads, and of decoding samples.
    read_held: Mutex<Duration>,
    decode_held: Mutex<Duration>,
    /// A read of this record panics.
    broken: Option<u64>,
    /// Announced reads.
    announced: Mutex<Vec<Range<u64>>>,
    /// Completed reads.
    read: Mutex<Vec<Range<u64>>>,
    decoding: Crowd,
}

/// Number of samples being decoded, over all loaders with this gate.
#[derive(Default)]
struct Crowd {
    now: AtomicUsize,
    most: AtomicUsize,
    /// How often a decode thread yields while it counts as decoding.
    patience: usize,
    /// Number of additions that simulate the work of decoding.
    work: u64,
}

impl Crowd {
    fn pass(&self) {
        let now = self.now.fetch_add(1, Ordering::SeqCst) + 1;
        self.most.fetch_max(now, Ordering::SeqCst);
        for _ in 0..self.patience {
            std::thread::yield_now();
        }
        std::hint::black_box((0..self.work).fold(0, |sum: u64, i| std::hint::black_box(sum ^ i)));
        self.now.fetch_sub(1, Ordering::SeqCst);
    }
}

impl Gate {
    fn close(&self, records: Range<u64>) {
        *self.closed.lock().unwrap() = Some(records);
    }

    fn open(&self) {
        *self.closed.lock().unwrap() = None;
        self.opened.notify_all();
    }

    fn pass(&self, piece: &Range<u64>) {
        let turn = self.serial.as_ref().map(|turn| turn.lock().unwrap());
        hold(self.delay, &self.read_held);
        drop(turn);
        let mut closed = self.closed.lock().unwrap();
        while closed
            .as_ref()
            .is_some_and(|closed| piece.start < closed.end && closed.start < piece.end)
        {
            closed = self.opened.wait(closed).unwrap();
        }
    }
}

/// Sleeps, and records the actual duration, which is longer on a busy machine.
fn hold(delay: Duration, held: &Mutex<Duration>) {
    if delay > Duration::ZERO {
        let begun = Instant::now();
        std::thread::sleep(delay);
        *held.lock().unwrap() += begun.elapsed();
    }
}

impl Source for Gated {
    fn records(&self) -> u64 {
        self.inner.records()
    }

    fn bytes(&self) -> u64 {
        self.inner.bytes()
    }

    fn piece(&self, run: &Range<u64>, record: u64) -> Range<u64> {
        self.inner.piece(run, record)
    }

    fn stored_bytes(&self, piece: &Range<u64>) -> Result<u64> {
        self.inner.stored_bytes(piece)
    }

    fn read(&self, piece: &Range<u64>, block: &mut RecordBlock) -> Result<()> {
        self.gate.pass(piece);
        if self
            .gate
            .broken
            .is_some_and(|record| piece.contains(&record))
        {
            panic!("a reader that breaks on purpose");
        }
        self.gate.read.lock().unwrap().push(piece.clone());
        self.inner.read(piece, block)
    }

    fn will_need(&self, piece: &Range<u64>) {
        self.gate.announced.lock().unwrap().push(piece.clone());
        self.inner.will_need(piece);
    }

    fn label(&self, record: u64, stored: i64) -> Result<i64> {
        hold(self.gate.decode_delay, &self.gate.decode_held);
        self.gate.decoding.pass();
        self.inner.label(record, stored)
    }

    fn locate(&self, record: u64) -> RecordLocation {
        self.inner.locate(record)
    }

    fn key(&self, record: u64) -> Option<Vec<u8>> {
        self.inner.key(record)
    }

    fn for_each_label(&self, each: &mut dyn FnMut(u64, Option<i64>)) {
        self.inner.for_each_label(each);
    }

    fn class_label(&self, name: &str) -> Result<Option<i64>> {
        self.inner.class_label(name)
    }

    fn classes(&self) -> Classes {
        self.inner.classes()
    }
}

fn options() -> Options {
    let mut options = Options::new(8, Transform::Train(TrainTransform::new(SIDE)));
    options.virtual_ranks = 4;
    options.threads = 2;
    options.shuffle = Shuffle::blocks(5, 2);
    options
}

/// Returns the order of epoch 0.
fn plan(options: &Options, records: u64) -> EpochPlan {
    EpochPlan::new(&PlanOptions {
        records,
        seed: options.seed,
        epoch: 0,
        virtual_ranks: options.virtual_ranks,
        shuffle: options.shuffle,
        run_records: 0,
    })
    .unwrap()
}

/// Creates a loader whose reads pass a gate.
fn gated(recipe: &Recipe, options: Options, gate: &Arc<Gate>) -> (tempfile::TempDir, Loader) {
    let (directory, split) = dataset::split(recipe);
    let source = Box::new(Gated {
        inner: SplitSource::new(split).unwrap(),
        gate: Arc::clone(gate),
    });
    let name = "train".to_owned();
    let loader =
        Loader::from_source(source, name, Identity::default(), options, (0, 0), None).unwrap();
    (directory, loader)
}

/// Waits until the counters satisfy a condition.
fn until(loader: &Loader, what: &str, right: impl Fn(&Stats) -> bool) -> Stats {
    let begun = Instant::now();
    loop {
        let stats = loader.stats();
        if right(&stats) {
            return stats;
        }
        assert!(begun.elapsed() < SOON, "never {what}: {stats:?}");
        std::thread::yield_now();
    }
}
