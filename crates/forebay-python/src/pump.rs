//! The thread between a source of batches and the Python code that takes them.
//!
//! A source blocks: on decoders, or on a socket. Python must not, because Ctrl-C
//! has to be seen. So one thread asks the source, one finished batch waits ready,
//! and takers wait for it in slices. Owns that thread, its orders (go on, move to
//! another place, stop) and the place up to which batches were taken; knows
//! nothing of Python, and nothing of what a batch is made from.

use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use forebay_wire::Batch;
use forebay_wire::batch::digest::{Digests, EpochDigest};

use crate::failure::{Failure, Kind};

/// Where batches come from.
pub(crate) trait Source: Send + 'static {
    /// The next batch; `None` at the end of an epoch, after which the next
    /// epoch's batches follow.
    fn next_batch(&mut self) -> Result<Option<Batch>, Failure>;
    /// Continues at another place.
    fn seek(&mut self, place: Place) -> Result<(), Failure>;
}

/// A place in the stream: what follows the first `position` samples, of all ranks
/// together, of `epoch`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Place {
    pub(crate) epoch: u64,
    pub(crate) position: u64,
}

/// What a taker gets.
#[derive(Debug)]
pub(crate) enum Event {
    Batch(Batch),
    EpochEnd,
    /// The source failed. Taking again tries the same place again.
    Failed(Failure),
}

/// Why a taker gets nothing.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum NoEvent {
    /// Nothing came in the time given.
    NotYet,
    /// Another loop has begun, or the place was changed.
    Stale,
    /// The pump was closed.
    Closed,
}

/// One thread, its mailbox and the place of its takers.
pub(crate) struct Pump {
    shared: Arc<Shared>,
    /// Samples of a global batch.
    stride: u64,
}

struct Shared {
    state: Mutex<State>,
    changed: Condvar,
    /// Samples of an epoch.
    records: u64,
}

struct State {
    /// Until the thread starts.
    source: Option<Box<dyn Source>>,
    thread: Option<JoinHandle<()>>,
    /// Up to where batches were taken.
    place: Place,
    /// What they were.
    digests: Digests,
    /// Whether a batch was taken since the current loop began.
    under_way: bool,
    /// Counts loops and jumps: an older loop takes nothing any more.
    generation: u64,
    /// The loop that came to the end of its epoch last.
    ended: Option<u64>,
    ready: Option<Event>,
    /// Where the thread is to continue, if not behind what it made last.
    order: Option<Place>,
    /// The source failed; the thread waits for an order.
    halted: bool,
    closed: bool,
    /// The thread is gone, or never was.
    idle: bool,
}

impl Pump {
    /// Will take batches of `stride` samples from `source`, from the start of epoch
    /// 0 on. The thread starts when the first batch is wanted.
    pub(crate) fn new(source: Box<dyn Source>, records: u64, stride: u64) -> Pump {
        let place = Place {
            epoch: 0,
            position: 0,
        };
        Pump {
            shared: Arc::new(Shared {
                state: Mutex::new(State {
                    source: Some(source),
                    thread: None,
                    place,
                    digests: Digests::begin(place.epoch, place.position),
                    under_way: false,
                    generation: 0,
                    ended: None,
                    ready: None,
                    order: Some(place),
                    halted: false,
                    closed: false,
                    idle: true,
                }),
                changed: Condvar::new(),
                records,
            }),
            stride,
        }
    }

    /// Up to where batches were taken.
    pub(crate) fn place(&self) -> Place {
        self.shared.lock().place
    }

    /// Up to where batches were taken, and what they were.
    pub(crate) fn standing(&self) -> (Place, EpochDigest) {
        let state = self.shared.lock();
        (state.place, state.digests.latest())
    }

    /// Begins a loop over an epoch, and ends all others: over the rest of the epoch
    /// at which the pump stands, or over the next one if a loop left it part-way.
    /// Returns the loop's number.
    pub(crate) fn begin(&self) -> u64 {
        let mut state = self.shared.lock();
        if state.under_way {
            let epoch = state.place.epoch + 1;
            state.move_to(Place { epoch, position: 0 });
        }
        state.generation += 1;
        self.shared.changed.notify_all();
        state.generation
    }

    /// Continues at `place`; ends all loops. `digest` is what was delivered before, if that is known.
    pub(crate) fn jump(&self, place: Place, digest: Option<EpochDigest>) {
        let mut state = self.shared.lock();
        if state.place != place || state.under_way {
            state.move_to(place);
        }
        let Place { epoch, position } = place;
        state.digests = match digest {
            Some(digest) => Digests::resume(digest, epoch, position),
            None => Digests::begin(epoch, position),
        };
        state.generation += 1;
        self.shared.changed.notify_all();
    }

    /// Continues at the start of `epoch`, unless the pump already stands in that
    /// epoch with no loop under way; ends all loops.
    pub(crate) fn set_epoch(&self, epoch: u64) {
        let mut state = self.shared.lock();
        if state.place.epoch != epoch || state.under_way {
            state.move_to(Place { epoch, position: 0 });
        }
        state.generation += 1;
        self.shared.changed.notify_all();
    }

    /// What follows for the loop `generation`, waiting for it at most `patience`.
    pub(crate) fn take(&self, generation: u64, patience: Duration) -> Result<Event, NoEvent> {
        let deadline = Instant::now().checked_add(patience);
        let mut state = self.shared.lock();
        loop {
            if state.closed {
                return Err(NoEvent::Closed);
            }
            if state.ended == Some(generation) {
                // For every thread that shares the loop.
                return Ok(Event::EpochEnd);
            }
            if state.generation != generation {
                return Err(NoEvent::Stale);
            }
            if let Some(event) = state.ready.take() {
                state.advance(&event, self.stride, self.shared.records);
                self.shared.changed.notify_all();
                return Ok(event);
            }
            if state.halted {
                state.halted = false;
                state.order = Some(state.place);
                self.shared.changed.notify_all();
            }
            if state.idle
                && let Err(failure) = self.start(&mut state)
            {
                return Ok(Event::Failed(failure));
            }
            match deadline.map(|at| at.saturating_duration_since(Instant::now())) {
                Some(Duration::ZERO) => return Err(NoEvent::NotYet),
                left => state = self.shared.wait(state, left),
            }
        }
    }

    fn start(&self, state: &mut State) -> Result<(), Failure> {
        let died = || Failure::new(Kind::Other, "the thread that takes batches died");
        let source = state.source.take().ok_or_else(died)?;
        let shared = Arc::clone(&self.shared);
        let thread = std::thread::Builder::new()
            .name("forebay-batches".into())
            .spawn(move || {
                let _finish = Finish(&shared);
                shared.work(source);
            })
            .map_err(|e| Failure::new(Kind::Other, format!("cannot start a thread: {e}")))?;
        state.thread = Some(thread);
        state.idle = false;
        Ok(())
    }

    /// Tells the thread to stop once its source answers; every taker returns at
    /// once. Frees a source that never ran.
    pub(crate) fn close(&self) {
        let (source, ready) = {
            let mut state = self.shared.lock();
            state.closed = true;
            self.shared.changed.notify_all();
            (state.source.take(), state.ready.take())
        };
        drop((source, ready));
    }

    pub(crate) fn is_closed(&self) -> bool {
        self.shared.lock().closed
    }

    /// Waits for a closed pump's thread to end, at most `patience`; whether it did.
    pub(crate) fn join(&self, patience: Duration) -> bool {
        let deadline = Instant::now() + patience;
        let mut state = self.shared.lock();
        while !state.idle {
            let left = deadline.saturating_duration_since(Instant::now());
            if left.is_zero() {
                return false;
            }
            state = self.shared.wait(state, Some(left));
        }
        let thread = state.thread.take();
        drop(state);
        thread.is_none_or(|thread| thread.join().is_ok())
    }
}

impl State {
    fn move_to(&mut self, place: Place) {
        self.place = place;
        self.digests.seek(place.epoch, place.position);
        self.under_way = false;
        self.ready = None;
        self.order = Some(place);
        self.halted = false;
    }

    /// Moves the place past what is being handed over.
    fn advance(&mut self, event: &Event, stride: u64, records: u64) {
        match event {
            Event::Batch(batch) => {
                self.place = Place {
                    epoch: batch.epoch,
                    // Past the last record there is padding only.
                    position: batch.position.saturating_add(stride).min(records),
                };
                self.digests.add(batch, self.place.position);
                self.under_way = true;
            }
            Event::EpochEnd => {
                self.place = Place {
                    epoch: self.place.epoch + 1,
                    position: 0,
                };
                self.digests.end();
                self.under_way = false;
                self.ended = Some(self.generation);
                self.generation += 1;
            }
            Event::Failed(_) => {}
        }
    }
}

impl Shared {
    fn lock(&self) -> MutexGuard<'_, State> {
        // A panic of the source happens outside the lock.
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn wait<'a>(
        &self,
        state: MutexGuard<'a, State>,
        patience: Option<Duration>,
    ) -> MutexGuard<'a, State> {
        match patience {
            Some(patience) => {
                let waited = self.changed.wait_timeout(state, patience);
                waited.unwrap_or_else(PoisonError::into_inner).0
            }
            None => {
                let waited = self.changed.wait(state);
                waited.unwrap_or_else(PoisonError::into_inner)
            }
        }
    }

    /// The thread: makes one event at a time, and hands over none for an order that
    /// was replaced meanwhile.
    fn work(&self, mut source: Box<dyn Source>) {
        loop {
            let mut state = self.lock();
            while !state.closed
                && (state.ready.is_some() || (state.halted && state.order.is_none()))
            {
                state = self.wait(state, None);
            }
            if state.closed {
                return;
            }
            let order = state.order.take();
            drop(state);

            let mut then = None;
            let result = match order {
                // Everything of that epoch was taken: there is nothing to ask for.
                Some(place) if place.position >= self.records && self.records > 0 => {
                    then = Some(Place {
                        epoch: place.epoch + 1,
                        position: 0,
                    });
                    Ok(None)
                }
                Some(place) => source.seek(place).and_then(|()| source.next_batch()),
                None => source.next_batch(),
            };

            let mut state = self.lock();
            if state.closed {
                return;
            }
            if state.order.is_some() {
                continue;
            }
            state.order = then;
            state.halted = result.is_err();
            state.ready = Some(match result {
                Ok(Some(batch)) => Event::Batch(batch),
                Ok(None) => Event::EpochEnd,
                Err(failure) => Event::Failed(failure),
            });
            self.changed.notify_all();
        }
    }
}

/// Says that the thread is gone, however it went.
struct Finish<'a>(&'a Shared);

impl Drop for Finish<'_> {
    fn drop(&mut self) {
        self.0.lock().idle = true;
        self.0.changed.notify_all();
    }
}

#[cfg(test)]
mod tests {
    use std::sync::mpsc::{Receiver, Sender, channel};

    use forebay_wire::{BufferPool, Dtype, Layout};

    use super::*;

    const LONG: Duration = Duration::from_secs(60);

    /// Four records, two in a batch; the step says where it is. Fails in epoch 9,
    /// and asks for leave before each batch where there is somebody to ask.
    struct Script {
        at: Place,
        gate: Option<(Sender<()>, Receiver<()>)>,
        seeks: Sender<Place>,
    }

    impl Source for Script {
        fn next_batch(&mut self) -> Result<Option<Batch>, Failure> {
            if let Some((entered, leave)) = &self.gate {
                let _ = entered.send(());
                let _ = leave.recv();
            }
            if self.at.epoch == 9 {
                return Err(Failure::new(Kind::Image, "broken"));
            }
            if self.at.position == 4 {
                self.at = place(self.at.epoch + 1, 0);
                return Ok(None);
            }
            self.at.position += 2;
            Ok(Some(Batch {
                epoch: self.at.epoch,
                step: self.at.position / 2 - 1,
                position: self.at.position - 2,
                images: BufferPool::new(0).take(0),
                dtype: Dtype::Uint8,
                mixed: None,
                encoded: None,
                shape: [0, 1, 1, 3],
                layout: Layout::Nhwc,
                labels: Vec::new(),
                samples: Vec::new(),
                flags: Vec::new(),
                digest: 0,
            }))
        }

        fn seek(&mut self, place: Place) -> Result<(), Failure> {
            let _ = self.seeks.send(place);
            self.at = place;
            Ok(())
        }
    }

    fn place(epoch: u64, position: u64) -> Place {
        Place { epoch, position }
    }

    fn pump(gate: Option<(Sender<()>, Receiver<()>)>) -> (Pump, Receiver<Place>) {
        let (seeks, seen) = channel();
        let at = place(77, 0);
        (Pump::new(Box::new(Script { at, gate, seeks }), 4, 2), seen)
    }

    fn told(pump: &Pump, generation: u64) -> String {
        match pump.take(generation, LONG) {
            Ok(Event::Batch(batch)) => format!("{}.{}", batch.epoch, batch.step),
            Ok(Event::EpochEnd) => "end".into(),
            Ok(Event::Failed(failure)) => format!("{failure:?}"),
            Err(none) => format!("{none:?}"),
        }
    }

    fn epoch(pump: &Pump) -> Vec<String> {
        let generation = pump.begin();
        let mut all = vec![told(pump, generation)];
        while all.last().is_some_and(|last| last.contains('.')) {
            all.push(told(pump, generation));
        }
        all
    }

    #[test]
    fn epochs_follow_each_other_without_seeking() {
        let (pump, seeks) = pump(None);
        assert_eq!(epoch(&pump), ["0.0", "0.1", "end"]);
        assert_eq!(
            told(&pump, 1),
            "end",
            "for each thread that shares the loop"
        );
        assert_eq!(pump.place(), place(1, 0));
        assert_eq!(epoch(&pump), ["1.0", "1.1", "end"]);
        pump.close();
        assert!(pump.join(LONG));
        assert_eq!(epoch(&pump), ["Closed"]);
        assert_eq!(seeks.iter().collect::<Vec<_>>(), [place(0, 0)]);
    }

    #[test]
    fn a_loop_left_part_way_ends_its_epoch_and_older_loops_get_nothing() {
        let (pump, _seeks) = pump(None);
        let first = pump.begin();
        let second = pump.begin();
        assert_eq!(told(&pump, first), "Stale");
        assert_eq!(told(&pump, second), "0.0", "nothing was taken before");
        assert_eq!(pump.place(), place(0, 2));
        assert_eq!(epoch(&pump), ["1.0", "1.1", "end"]);
        assert_eq!(told(&pump, second), "Stale");
    }

    #[test]
    fn a_jump_continues_there_also_at_the_very_end_of_an_epoch() {
        let (pump, _seeks) = pump(None);
        let before = pump.begin();
        pump.jump(place(5, 2), None);
        assert_eq!(told(&pump, before), "Stale");
        assert_eq!(pump.place(), place(5, 2));
        assert_eq!(epoch(&pump), ["5.1", "end"]);
        pump.jump(place(3, 4), None);
        assert_eq!(epoch(&pump), ["end"]);
        assert_eq!(epoch(&pump), ["4.0", "4.1", "end"]);
    }

    #[test]
    fn an_epoch_may_be_chosen_and_a_restored_place_in_it_is_kept() {
        let (pump, _seeks) = pump(None);
        pump.jump(place(4, 2), None);
        pump.set_epoch(4);
        assert_eq!(epoch(&pump), ["4.1", "end"]);
        let generation = pump.begin();
        assert_eq!(told(&pump, generation), "5.0");
        pump.set_epoch(5);
        assert_eq!(epoch(&pump), ["5.0", "5.1", "end"]);
        pump.set_epoch(1);
        assert_eq!(epoch(&pump), ["1.0", "1.1", "end"]);
    }

    #[test]
    fn a_failure_is_tried_again_by_the_next_take() {
        let (pump, seeks) = pump(None);
        pump.jump(place(9, 0), None);
        let generation = pump.begin();
        assert!(told(&pump, generation).contains("broken"));
        assert!(told(&pump, generation).contains("broken"));
        pump.jump(place(2, 0), None);
        assert_eq!(epoch(&pump)[0], "2.0");
        pump.close();
        assert!(pump.join(LONG));
        let places = [place(9, 0), place(9, 0), place(2, 0)];
        assert_eq!(seeks.iter().collect::<Vec<_>>(), places);
    }

    #[test]
    fn what_was_under_way_for_an_old_order_is_never_seen() {
        let (go, leave) = channel();
        let (inside, entered) = channel();
        let (pump, _seeks) = pump(Some((inside, leave)));
        let generation = pump.begin();
        assert_eq!(
            pump.take(generation, Duration::ZERO).unwrap_err(),
            NoEvent::NotYet
        );
        entered.recv().unwrap();
        pump.jump(place(3, 0), None);
        let generation = pump.begin();
        go.send(()).unwrap();
        entered.recv().unwrap();
        go.send(()).unwrap();
        assert_eq!(told(&pump, generation), "3.0");
        entered.recv().unwrap();
        pump.close();
        assert!(!pump.join(Duration::ZERO), "the source still blocks");
        drop(go);
        assert!(pump.join(LONG));
    }
}
