use std::sync::atomic::AtomicUsize;

use forebay_options::StreamInfo;
use forebay_wire::Batch;
use forebay_wire::wire::{self, error::Kind};

use super::hub::Steps;
use super::*;
use crate::{Pixels, StreamMonitor, Synthetic};

/// A source of synthetic batches that counts how many it made.
struct Counted {
    source: Synthetic,
    made: Arc<AtomicUsize>,
    open: Arc<AtomicUsize>,
    /// The position at which making a batch fails.
    bad: Option<(u64, u64)>,
}

struct CountedBatches {
    batches: Box<dyn BatchSource>,
    made: Arc<AtomicUsize>,
    open: Arc<AtomicUsize>,
    bad: Option<(u64, u64)>,
}

impl StreamSource for Counted {
    fn describe(&self) -> Description {
        self.source.describe()
    }

    fn open(&self, request: &StreamRequest<'_>) -> Result<Box<dyn BatchSource>, Failure> {
        self.open.fetch_add(1, Ordering::SeqCst);
        Ok(Box::new(CountedBatches {
            batches: self.source.open(request)?,
            made: Arc::clone(&self.made),
            open: Arc::clone(&self.open),
            bad: self.bad,
        }))
    }
}

impl BatchSource for CountedBatches {
    fn info(&self) -> StreamInfo {
        self.batches.info()
    }

    fn next_batch(&mut self) -> Result<Option<Batch>, Failure> {
        let batch = self.batches.next_batch()?;
        if let Some(batch) = &batch {
            self.made.fetch_add(1, Ordering::SeqCst);
            if self.bad == Some((batch.epoch, batch.position)) {
                return Err(Failure::new(Kind::Data, "damaged"));
            }
        }
        Ok(batch)
    }

    fn monitor(&self) -> Arc<dyn StreamMonitor> {
        Arc::new(CountedMonitor {
            monitor: self.batches.monitor(),
            made: Arc::clone(&self.made),
        })
    }
}

impl Drop for CountedBatches {
    fn drop(&mut self) {
        self.open.fetch_sub(1, Ordering::SeqCst);
    }
}

struct CountedMonitor {
    monitor: Arc<dyn StreamMonitor>,
    made: Arc<AtomicUsize>,
}

impl StreamMonitor for CountedMonitor {
    fn cancel(&self) {
        self.monitor.cancel();
    }

    fn stats(&self) -> wire::Stats {
        wire::Stats {
            bytes_read: self.made.load(Ordering::SeqCst) as u64,
            ..wire::Stats::default()
        }
    }
}

struct Rig {
    sharing: Sharing,
    made: Arc<AtomicUsize>,
    open: Arc<AtomicUsize>,
    budget: Arc<Budget>,
}

/// Bytes of one batch.
const BYTES: u64 = 4 * 8 * 8 * 3;
/// Batches per epoch; the last one is padded.
const EPOCH: u64 = 13;

fn rig_with(kept: u64, bad: Option<(u64, u64)>) -> Rig {
    let (made, open) = (Arc::<AtomicUsize>::default(), Arc::<AtomicUsize>::default());
    let source = Counted {
        source: Synthetic::new(50, Pixels::Pattern),
        made: Arc::clone(&made),
        open: Arc::clone(&open),
        bad,
    };
    let budget = Arc::new(Budget::new(kept * BYTES));
    Rig {
        sharing: Sharing::new(Arc::new(source), Arc::clone(&budget)),
        made,
        open,
        budget,
    }
}

fn rig(kept: u64) -> Rig {
    rig_with(kept, None)
}

fn given() -> LoaderOptions {
    let json =
        r#"{"batch_size": 4, "drop_last": false, "transform": {"kind": "train", "size": 8}}"#;
    serde_json::from_str(json).unwrap()
}

impl Rig {
    fn open_with(
        &self,
        options: &LoaderOptions,
        (epoch, position): (u64, u64),
        pool: Option<BufferPool>,
    ) -> Box<dyn BatchSource> {
        let request = StreamRequest {
            options,
            epoch,
            position,
            max_batch_bytes: 1 << 20,
            image_limits: Limits::default(),
            memory_bytes: None,
            threads: None,
            share: None,
            pool,
        };
        self.sharing.open(&request).unwrap()
    }

    fn open_at(&self, epoch: u64, position: u64) -> Box<dyn BatchSource> {
        self.open_with(&given(), (epoch, position), None)
    }

    fn open(&self) -> Box<dyn BatchSource> {
        self.open_at(0, 0)
    }

    fn made(&self) -> usize {
        self.made.load(Ordering::SeqCst)
    }
}

/// The parts of a batch that a trainer sees; `None` at the end of an epoch.
type Seen = Option<(u64, u64, u64, Vec<u64>, Vec<i64>, u32, u64)>;

fn next(stream: &mut Box<dyn BatchSource>) -> Seen {
    stream.next_batch().unwrap().map(|batch| {
        batch.check().unwrap();
        (
            batch.epoch,
            batch.step,
            batch.position,
            batch.samples.clone(),
            batch.labels.clone(),
            crc32c::crc32c(&batch.payload),
            batch.digest,
        )
    })
}

fn take(stream: &mut Box<dyn BatchSource>, count: usize) -> Vec<Seen> {
    (0..count).map(|_| next(stream)).collect()
}

/// The sequence of a stream that shares with no other, including ends of epochs.
fn alone(count: usize) -> Vec<Seen> {
    take(&mut rig(0).open(), count)
}

#[test]
fn joined_streams_make_each_batch_once() {
    let rig = rig(8);
    let mut streams = [rig.open(), rig.open(), rig.open()];
    let mut seen = [vec![], vec![], vec![]];
    for _ in 0..40 {
        for (stream, seen) in streams.iter_mut().zip(&mut seen) {
            seen.push(next(stream));
        }
    }
    // 40 items of epochs with 13 batches and an end each: all but two are batches.
    assert_eq!(rig.made(), 38);
    assert_eq!(rig.open.load(Ordering::SeqCst), 1, "one source is open");
    let expected = alone(40);
    assert!(seen.iter().all(|seen| *seen == expected));
    drop(streams);
    assert_eq!(rig.budget.used.load(Ordering::SeqCst), 0);
    assert_eq!(rig.open.load(Ordering::SeqCst), 0);
}

#[test]
fn a_stream_alone_keeps_and_copies_nothing() {
    let rig = rig(8);
    let pool = BufferPool::new(1 << 20);
    let mut stream = rig.open_with(&given(), (0, 0), Some(pool.clone()));
    for _ in 0..100 {
        next(&mut stream);
        assert_eq!(rig.budget.used.load(Ordering::SeqCst), 0);
    }
    assert_eq!(pool.stats().mapped, 1, "one buffer, again and again");
}

#[test]
fn a_late_stream_catches_up_and_then_shares() {
    let rig = rig(8);
    let mut first = rig.open();
    let mut early = take(&mut first, 5);
    let mut second = rig.open();
    let mut late = Vec::new();
    for _ in 0..30 {
        early.push(next(&mut first));
        late.push(next(&mut second));
    }
    // 35 by the first stream, and again the 5 that were dropped when the second one joined.
    let batches = |seen: &[Seen]| seen.iter().flatten().count();
    assert_eq!(rig.made(), batches(&early) + 5);
    assert_eq!(early, alone(35));
    assert_eq!(late, alone(30));
    // Further behind than the budget allows: decodes independently.
    let rig = self::rig(3);
    let mut first = rig.open();
    take(&mut first, 4);
    let mut second = rig.open();
    let made = rig.made();
    assert_eq!(take(&mut second, 20), alone(20));
    assert_eq!(rig.made(), made + 19);
}

#[test]
fn a_slow_stream_decodes_alone_and_delays_no_other() {
    let rig = rig(4);
    let (mut fast, mut slow) = (rig.open(), rig.open());
    let mut seen = vec![next(&mut slow)];
    // The slow stream stops. The fast one continues within the budget.
    let fast_seen = take(&mut fast, 30);
    assert!(rig.budget.used.load(Ordering::SeqCst) <= 4 * BYTES);
    seen.extend(take(&mut slow, 29));
    assert_eq!(fast_seen, alone(30));
    assert_eq!(seen, alone(30));
    let batches = fast_seen.iter().flatten().count();
    assert_eq!(
        rig.made(),
        batches + batches - 1,
        "the first one was shared"
    );
    // Two streams that left at the same position share again.
    drop(fast);
    let mut other = rig.open_at(2, 8);
    let made = rig.made();
    assert_eq!(next(&mut other), next(&mut slow));
    assert_eq!(rig.made(), made + 1);
}

#[test]
fn only_the_same_batches_are_shared() {
    let rig = rig(8);
    let mut plain = rig.open();
    let mut others = Vec::new();
    for change in [
        (|given| given.seed = Some(1)) as fn(&mut LoaderOptions),
        |given| given.batch_size = Some(8),
        |given| (given.rank, given.world_size) = (Some(1), Some(2)),
        |given| given.layout = Some(forebay_wire::Layout::Nchw),
    ] {
        let mut given = given();
        change(&mut given);
        others.push(rig.open_with(&given, (0, 0), None));
    }
    next(&mut plain);
    for other in &mut others {
        next(other);
    }
    assert_eq!(rig.made(), 5);
    // A stream between two batch positions of the others shares nothing.
    let mut between = rig.open_at(0, 2);
    assert_eq!(next(&mut between).unwrap().2, 2);
    assert_eq!(rig.made(), 6);
}

#[test]
fn a_stream_that_ends_leaves_the_others_alone() {
    let rig = rig(8);
    let (mut first, mut second) = (rig.open(), rig.open());
    take(&mut first, 3);
    let monitor = first.monitor();
    monitor.cancel();
    assert_eq!(first.next_batch().unwrap_err().kind, Kind::Shutdown);
    drop(first);
    assert_eq!(take(&mut second, 20), alone(20));
    assert_eq!(rig.made(), 19, "nothing was made twice");
    // The last stream closes the source.
    second.monitor().cancel();
    assert_eq!(second.next_batch().unwrap_err().kind, Kind::Shutdown);
    let mut third = rig.open_at(1, 24);
    assert!(
        next(&mut third).is_some(),
        "a member that joins then starts a new stream"
    );
}

#[test]
fn a_failure_reaches_all_members_and_closes_the_hub() {
    let rig = rig_with(8, Some((0, 8)));
    let (mut first, mut second) = (rig.open(), rig.open());
    take(&mut first, 2);
    assert_eq!(first.next_batch().unwrap_err().message, "damaged");
    take(&mut second, 2);
    assert_eq!(second.next_batch().unwrap_err().message, "damaged");
    assert_eq!(second.next_batch().unwrap_err().message, "damaged");
    let mut behind = rig.open_at(0, 12);
    assert!(next(&mut behind).is_some());
}

#[test]
fn concurrent_members_get_the_same_batches() {
    let rig = rig(8);
    let count = 200;
    let expected = alone(count);
    let sums: Vec<Vec<Seen>> = std::thread::scope(|scope| {
        let threads: Vec<_> = (0..4)
            .map(|_| {
                let mut stream = rig.open();
                scope.spawn(move || take(&mut stream, count))
            })
            .collect();
        threads.into_iter().map(|t| t.join().unwrap()).collect()
    });
    assert!(sums.iter().all(|seen| *seen == expected));
    assert_eq!(rig.budget.used.load(Ordering::SeqCst), 0);
}

#[test]
fn shared_work_is_reported_once() {
    let rig = rig(8);
    let (mut first, mut second) = (rig.open(), rig.open());
    let (one, two) = (first.monitor(), second.monitor());
    take(&mut first, 5);
    take(&mut second, 5);
    let told = || (one.counted().bytes_read, two.counted().bytes_read);
    let seen = || (one.stats().bytes_read, two.stats().bytes_read);
    assert_eq!((told(), seen()), ((5, 0), (5, 5)));
    drop(first);
    take(&mut second, 3);
    assert_eq!((told(), seen()), ((5, 3), (5, 8)));
    drop(second);
    assert_eq!((told(), seen()), ((5, 3), (5, 8)));
}

#[test]
fn distances_are_whole_batches() {
    let steps = Steps {
        global: 4,
        samples: 50,
        per_epoch: EPOCH,
    };
    let between = |a: (u64, u64), b: (u64, u64)| {
        steps.between(StreamPosition(a.0, a.1), StreamPosition(b.0, b.1))
    };
    assert_eq!(between((0, 0), (0, 8)), Some(2));
    assert_eq!(between((0, 48), (1, 4)), Some(2));
    assert_eq!(between((0, 44), (0, 50)), Some(2));
    assert_eq!(between((0, 8), (0, 0)), None);
    assert_eq!(between((1, 0), (0, 0)), None);
    assert_eq!(between((0, 2), (0, 8)), None);
    assert_eq!(between((0, 0), (u64::MAX, 0)), None);
}
