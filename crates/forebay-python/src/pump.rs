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

use forebay_batch::digest::{Digests, EpochDigest};
use forebay_loader::plan::Batches;
use forebay_wire::Batch;

use crate::failure::{Failure, Kind};

/// A source of batches.
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

/// The result of a wait.
#[derive(Debug)]
pub(crate) enum Event {
    /// A batch, and whether it is the last one of its epoch.
    Batch(Batch, bool),
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
}

struct Shared {
    state: Mutex<State>,
    changed: Condvar,
}

/// How far the newest loop is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Phase {
    /// There is none, or it has ended.
    Idle,
    /// It has begun, and no batch of it was taken.
    Begun,
    /// Batches of it were taken, and more are left.
    Running,
}

struct State {
    /// For the thread: to begin with, or in place of the one that it has.
    source: Option<Box<dyn Source>>,
    thread: Option<JoinHandle<()>>,
    /// The batches of an epoch of the source.
    batches: Batches,
    /// Up to where batches were taken.
    place: Place,
    /// Digests of the taken batches.
    digests: Digests,
    phase: Phase,
    /// The epoch of the next loop, where it was chosen while a loop was running.
    next_epoch: Option<u64>,
    /// Counts loops and jumps: an older loop takes nothing any more.
    generation: u64,
    /// The loop that came to the end of its epoch last.
    ended: Option<u64>,
    ready: Option<Event>,
    /// The position from which the thread continues, if not behind its last batch.
    order: Option<Place>,
    /// The source failed; the thread waits for an order.
    halted: bool,
    closed: bool,
    /// The thread is gone, or never was.
    idle: bool,
}

impl Pump {
    /// Takes the `batches` of `source`, from the start of epoch 0 on. The thread starts when the
    /// first batch is wanted.
    pub(crate) fn new(source: Box<dyn Source>, batches: Batches) -> Pump {
        let place = Place {
            epoch: 0,
            position: 0,
        };
        Pump {
            shared: Arc::new(Shared {
                state: Mutex::new(State {
                    source: Some(source),
                    thread: None,
                    batches,
                    place,
                    digests: Digests::begin(place.epoch, place.position),
                    phase: Phase::Idle,
                    next_epoch: None,
                    generation: 0,
                    ended: None,
                    ready: None,
                    order: Some(place),
                    halted: false,
                    closed: false,
                    idle: true,
                }),
                changed: Condvar::new(),
            }),
        }
    }

    /// Replaces the source, at the same place, and says whether it did: a loop that is running
    /// keeps its source. A loop that has begun takes its first batch from the new one.
    /// `resumed` is a place and what was delivered before it, if the source is of the rank that it
    /// was delivered to.
    pub(crate) fn supply(
        &self,
        source: Box<dyn Source>,
        batches: Batches,
        resumed: Option<(Place, EpochDigest)>,
    ) -> bool {
        let mut state = self.shared.lock();
        if state.phase == Phase::Running || state.closed {
            return false;
        }
        let unused = state.source.replace(source);
        state.batches = batches;
        let place = state.settled(state.place);
        state.move_to(place);
        match resumed {
            Some((at, digest)) if state.settled(at) == place => state.resume(at, Some(digest)),
            _ => state.resume(place, None),
        }
        self.shared.changed.notify_all();
        drop(state);
        drop(unused);
        true
    }

    /// Up to where batches were taken.
    pub(crate) fn place(&self) -> Place {
        self.shared.lock().place
    }

    /// Whether batches of the newest loop were taken, and more are left.
    pub(crate) fn is_running(&self) -> bool {
        self.shared.lock().phase == Phase::Running
    }

    /// Up to where batches were taken, and what they were.
    pub(crate) fn standing(&self) -> (Place, EpochDigest) {
        let state = self.shared.lock();
        (state.place, state.digests.latest())
    }

    /// Begins a loop over an epoch, and ends all others: over the rest of the epoch at which the
    /// pump stands or, if a loop left that part-way, over the epoch that was set meanwhile, else
    /// the next one. Returns the loop's number.
    pub(crate) fn begin(&self) -> u64 {
        let mut state = self.shared.lock();
        if state.phase == Phase::Running {
            let epoch = state.next_epoch.unwrap_or(state.place.epoch + 1);
            state.move_to(Place { epoch, position: 0 });
        }
        state.next_epoch = None;
        state.phase = Phase::Begun;
        state.generation += 1;
        self.shared.changed.notify_all();
        state.generation
    }

    /// Continues at `place`; ends all loops. `digest` is what was delivered before, if that is known.
    pub(crate) fn jump(&self, place: Place, digest: Option<EpochDigest>) {
        let mut state = self.shared.lock();
        let settled = state.settled(place);
        if state.place != settled || state.phase == Phase::Running {
            state.move_to(settled);
        }
        state.resume(place, digest);
        state.phase = Phase::Idle;
        state.next_epoch = None;
        state.generation += 1;
        self.shared.changed.notify_all();
    }

    /// Makes the next loop one over `epoch`. A loop that has begun and of which nothing was
    /// taken becomes that loop; one that is running goes on. In the epoch at which the pump
    /// stands already the position is kept.
    pub(crate) fn set_epoch(&self, epoch: u64) {
        let mut state = self.shared.lock();
        if state.phase == Phase::Running {
            state.next_epoch = Some(epoch);
        } else if state.place.epoch != epoch {
            state.move_to(Place { epoch, position: 0 });
            self.shared.changed.notify_all();
        }
    }

    /// Returns the next result for the loop `generation`, waiting for it at most `patience`.
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
                state.advance(&event);
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
        self.ready = None;
        self.order = Some(place);
        self.halted = false;
    }

    /// Counts from `place` on, and `digest` before it.
    fn resume(&mut self, place: Place, digest: Option<EpochDigest>) {
        let settled = self.settled(place);
        let Some(digest) = digest else {
            self.digests = Digests::begin(settled.epoch, settled.position);
            return;
        };
        self.digests = Digests::resume(digest, place.epoch, place.position);
        if settled != place {
            self.digests.end();
        }
    }

    /// The same place, where it has batches: after the last one of an epoch the next epoch begins.
    fn settled(&self, place: Place) -> Place {
        if self.batches.remaining(place.position) > 0 {
            return place;
        }
        Place {
            epoch: place.epoch + 1,
            position: 0,
        }
    }

    /// Moves the place past what is being handed over.
    fn advance(&mut self, event: &Event) {
        match event {
            Event::Batch(batch, is_last) => {
                let position = self.batches.after(batch.position);
                self.place = Place {
                    epoch: batch.epoch,
                    position,
                };
                self.digests.add(batch, position);
                self.phase = Phase::Running;
                if *is_last {
                    self.end();
                }
            }
            Event::EpochEnd => self.end(),
            Event::Failed(_) => {}
        }
    }

    /// The newest loop has everything of its epoch.
    fn end(&mut self) {
        self.place = Place {
            epoch: self.place.epoch + 1,
            position: 0,
        };
        self.digests.end();
        self.phase = Phase::Idle;
        self.ended = Some(self.generation);
        self.generation += 1;
        let next = self.next_epoch.take();
        if let Some(epoch) = next.filter(|&next| next != self.place.epoch) {
            self.move_to(Place { epoch, position: 0 });
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
        // Whether the last batch of an epoch was made; its end comes next, and is no news.
        let mut end_is_known = false;
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
            let replaced = match state.source.take() {
                Some(new) => Some(std::mem::replace(&mut source, new)),
                None => None,
            };
            drop(state);
            drop(replaced);

            let result = match order {
                Some(place) => {
                    end_is_known = false;
                    source.seek(place).and_then(|()| source.next_batch())
                }
                None => source.next_batch(),
            };

            let mut state = self.lock();
            if state.closed {
                return;
            }
            if state.order.is_some() {
                continue;
            }
            state.halted = result.is_err();
            state.ready = Some(match result {
                Ok(Some(batch)) => {
                    let after = state.batches.after(batch.position);
                    end_is_known = state.batches.remaining(after) == 0;
                    Event::Batch(batch, end_is_known)
                }
                Ok(None) if end_is_known => {
                    end_is_known = false;
                    continue;
                }
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
mod tests;
