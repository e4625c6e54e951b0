//! The thread between a source of batches and the Python code that takes them.
//!
//! A source blocks on decoders or on a socket. Python code must not block, because it has to handle Ctrl-C. So one thread
//! calls the source, one finished batch waits in a mailbox, and takers wait for it in slices. The pump owns that thread,
//! its orders (continue, seek, stop), and the position up to which batches were taken. It is independent of Python, and of
//! how batches are made.

use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use forebay_batch::digest::{Digests, EpochDigest};
use forebay_loader::plan::Batches;
use forebay_wire::Batch;

use crate::failure::{Failure, Kind};

/// A source of batches.
pub(crate) trait Source: Send + 'static {
    /// Returns the next batch; `None` at the end of an epoch, after which the batches of the next epoch follow.
    fn next_batch(&mut self) -> Result<Option<Batch>, Failure>;
    /// Continues at another position.
    fn seek(&mut self, place: EpochPosition) -> Result<(), Failure>;
}

/// A position in the stream: after the first `position` samples of `epoch`, of all ranks together.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct EpochPosition {
    pub(crate) epoch: u64,
    pub(crate) position: u64,
}

/// The result of a wait.
#[derive(Debug)]
pub(crate) enum Event {
    /// A batch, and whether it is the last one of its epoch.
    Batch(Batch, bool),
    EpochEnd,
    /// The source failed. The next take retries at the same position.
    Failed(Failure),
}

/// Why a take returns nothing.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum NoEvent {
    /// No event arrived in time.
    NotYet,
    /// Another loop has begun, or the position was changed.
    Stale,
    /// The pump was closed.
    Closed,
}

/// One thread, its mailbox, and the position of its takers.
pub(crate) struct Pump {
    shared: Arc<Shared>,
}

struct Shared {
    state: Mutex<State>,
    changed: Condvar,
}

/// Progress of the newest loop.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Phase {
    /// There is no loop, or it has ended.
    Idle,
    /// The loop has begun, and none of its batches was taken.
    Begun,
    /// Batches of the loop were taken, and more are left.
    Running,
}

struct State {
    producer: Producer,
    loops: Loops,
    /// The batches of an epoch of the source.
    batches: Batches,
    /// Position up to which batches were taken.
    place: EpochPosition,
    /// Digests of the taken batches.
    digests: Digests,
    closed: bool,
}

/// The thread, what it is to do next, and what it has done.
struct Producer {
    /// The source for the thread to start with, or to replace its current one.
    source: Option<Box<dyn Source>>,
    thread: Option<JoinHandle<()>>,
    ready: Option<Event>,
    /// The position at which the thread continues, if not after its last batch.
    order: Option<EpochPosition>,
    /// The source failed; the thread waits for an order.
    halted: bool,
    /// The thread has ended, or was never started.
    idle: bool,
}

/// The loops over epochs.
struct Loops {
    phase: Phase,
    /// The epoch of the next loop, if it was set while a loop was running.
    next_epoch: Option<u64>,
    /// Number of loops and jumps so far. An older loop gets no more batches.
    generation: u64,
    /// The loop that last reached the end of its epoch.
    ended: Option<u64>,
}

impl Producer {
    fn new(source: Box<dyn Source>, place: EpochPosition) -> Self {
        Producer {
            source: Some(source),
            thread: None,
            ready: None,
            order: Some(place),
            halted: false,
            idle: true,
        }
    }

    /// Discards what is ready, and continues at `place`.
    fn move_to(&mut self, place: EpochPosition) {
        self.ready = None;
        self.order = Some(place);
        self.halted = false;
    }

    /// Returns whether the thread has nothing to do.
    fn must_wait(&self) -> bool {
        self.ready.is_some() || (self.halted && self.order.is_none())
    }
}

impl Loops {
    fn new() -> Self {
        Loops {
            phase: Phase::Idle,
            next_epoch: None,
            generation: 0,
            ended: None,
        }
    }

    /// Ends all loops; the newest one is at `phase` from now on. Returns its number.
    fn renew(&mut self, phase: Phase) -> u64 {
        self.phase = phase;
        self.next_epoch = None;
        self.generation += 1;
        self.generation
    }

    /// Records that the newest loop had all batches of its epoch. Returns the epoch that was set for the next one.
    fn end(&mut self) -> Option<u64> {
        self.phase = Phase::Idle;
        self.ended = Some(self.generation);
        self.generation += 1;
        self.next_epoch.take()
    }
}

impl Pump {
    /// Takes the `batches` of `source`, from the start of epoch 0 on. The first take starts the thread.
    pub(crate) fn new(source: Box<dyn Source>, batches: Batches) -> Pump {
        let place = EpochPosition {
            epoch: 0,
            position: 0,
        };
        Pump {
            shared: Arc::new(Shared {
                state: Mutex::new(State {
                    producer: Producer::new(source, place),
                    loops: Loops::new(),
                    batches,
                    place,
                    digests: Digests::begin(place.epoch, place.position),
                    closed: false,
                }),
                changed: Condvar::new(),
            }),
        }
    }

    /// Replaces the source at the same position. Returns whether it did: a running loop keeps its source. A loop of which
    /// no batch was taken continues with the new one. `resumed` is a position and the digest of the batches before it, if
    /// they were delivered to the rank of the source.
    pub(crate) fn supply(
        &self,
        source: Box<dyn Source>,
        batches: Batches,
        resumed: Option<(EpochPosition, EpochDigest)>,
    ) -> bool {
        let mut state = self.shared.lock();
        if state.loops.phase == Phase::Running || state.closed {
            return false;
        }
        let unused = state.producer.source.replace(source);
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

    /// Returns the position up to which batches were taken.
    pub(crate) fn place(&self) -> EpochPosition {
        self.shared.lock().place
    }

    /// Returns whether batches of the newest loop were taken, and more are left.
    pub(crate) fn is_running(&self) -> bool {
        self.shared.lock().loops.phase == Phase::Running
    }

    /// Returns the position up to which batches were taken, and their digest.
    pub(crate) fn standing(&self) -> (EpochPosition, EpochDigest) {
        let state = self.shared.lock();
        (state.place, state.digests.latest())
    }

    /// Begins a loop over an epoch, and ends all others. The loop covers the rest of the current epoch. If another loop
    /// left that epoch part-way, it covers the epoch that was set meanwhile, or else the next one. Returns the number of
    /// the loop.
    pub(crate) fn begin(&self) -> u64 {
        let mut state = self.shared.lock();
        if state.loops.phase == Phase::Running {
            let epoch = state.loops.next_epoch.unwrap_or(state.place.epoch + 1);
            state.move_to(EpochPosition { epoch, position: 0 });
        }
        self.shared.changed.notify_all();
        state.loops.renew(Phase::Begun)
    }

    /// Continues at `place`, and ends all loops. `digest` is that of the batches delivered before, if it is known.
    pub(crate) fn jump(&self, place: EpochPosition, digest: Option<EpochDigest>) {
        let mut state = self.shared.lock();
        let settled = state.settled(place);
        if state.place != settled || state.loops.phase == Phase::Running {
            state.move_to(settled);
        }
        state.resume(place, digest);
        state.loops.renew(Phase::Idle);
        self.shared.changed.notify_all();
    }

    /// Sets the epoch of the next loop. A loop that has begun and of which no batch was taken becomes that loop; a running
    /// one continues. If `epoch` is the current epoch, the position stays.
    pub(crate) fn set_epoch(&self, epoch: u64) {
        let mut state = self.shared.lock();
        if state.loops.phase == Phase::Running {
            state.loops.next_epoch = Some(epoch);
        } else if state.place.epoch != epoch {
            state.move_to(EpochPosition { epoch, position: 0 });
            self.shared.changed.notify_all();
        }
    }

    /// Returns the next event for the loop `generation`, after a wait of at most `patience`.
    pub(crate) fn take(&self, generation: u64, patience: Duration) -> Result<Event, NoEvent> {
        let deadline = Instant::now().checked_add(patience);
        let mut state = self.shared.lock();
        loop {
            if state.closed {
                return Err(NoEvent::Closed);
            }
            if state.loops.ended == Some(generation) {
                // Every thread that shares the loop gets its end.
                return Ok(Event::EpochEnd);
            }
            if state.loops.generation != generation {
                return Err(NoEvent::Stale);
            }
            if let Some(event) = state.producer.ready.take() {
                state.advance(&event);
                self.shared.changed.notify_all();
                return Ok(event);
            }
            if state.producer.halted {
                state.producer.halted = false;
                state.producer.order = Some(state.place);
                self.shared.changed.notify_all();
            }
            if state.producer.idle
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
        let source = state.producer.source.take().ok_or_else(died)?;
        let shared = Arc::clone(&self.shared);
        let thread = std::thread::Builder::new()
            .name("forebay-batches".into())
            .spawn(move || {
                let _finish = Finish(&shared);
                shared.work(source);
            })
            .map_err(|e| Failure::new(Kind::Other, format!("cannot start a thread: {e}")))?;
        state.producer.thread = Some(thread);
        state.producer.idle = false;
        Ok(())
    }

    /// Tells the thread to stop once its source returns. Every taker returns at once. Drops a source that never ran.
    pub(crate) fn close(&self) {
        let (source, ready) = {
            let mut state = self.shared.lock();
            state.closed = true;
            self.shared.changed.notify_all();
            (state.producer.source.take(), state.producer.ready.take())
        };
        drop((source, ready));
    }

    pub(crate) fn is_closed(&self) -> bool {
        self.shared.lock().closed
    }

    /// Waits at most `patience` for a closed pump's thread to end. Returns whether it did.
    pub(crate) fn join(&self, patience: Duration) -> bool {
        let deadline = Instant::now() + patience;
        let mut state = self.shared.lock();
        while !state.producer.idle {
            let left = deadline.saturating_duration_since(Instant::now());
            if left.is_zero() {
                return false;
            }
            state = self.shared.wait(state, Some(left));
        }
        let thread = state.producer.thread.take();
        drop(state);
        thread.is_none_or(|thread| thread.join().is_ok())
    }
}

impl State {
    fn move_to(&mut self, place: EpochPosition) {
        self.place = place;
        self.digests.seek(place.epoch, place.position);
        self.producer.move_to(place);
    }

    /// Continues the digest `digest` of the batches before `place`, or starts a new one.
    fn resume(&mut self, place: EpochPosition, digest: Option<EpochDigest>) {
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

    /// Returns `place`, or the start of the next epoch if no batches are left after it.
    fn settled(&self, place: EpochPosition) -> EpochPosition {
        if self.batches.remaining(place.position) > 0 {
            return place;
        }
        EpochPosition {
            epoch: place.epoch + 1,
            position: 0,
        }
    }

    /// Moves the position past an event that is handed over.
    fn advance(&mut self, event: &Event) {
        match event {
            Event::Batch(batch, is_last) => {
                let position = self.batches.after(batch.position);
                self.place = EpochPosition {
                    epoch: batch.epoch,
                    position,
                };
                self.digests.add(batch, position);
                self.loops.phase = Phase::Running;
                if *is_last {
                    self.end();
                }
            }
            Event::EpochEnd => self.end(),
            Event::Failed(_) => {}
        }
    }

    /// Ends the newest loop, which has all batches of its epoch.
    fn end(&mut self) {
        self.place = EpochPosition {
            epoch: self.place.epoch + 1,
            position: 0,
        };
        self.digests.end();
        let next = self.loops.end();
        if let Some(epoch) = next.filter(|&next| next != self.place.epoch) {
            self.move_to(EpochPosition { epoch, position: 0 });
        }
    }
}

impl Shared {
    fn lock(&self) -> MutexGuard<'_, State> {
        // The source runs outside the lock, so a panic of it leaves the state consistent.
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

    /// Runs the thread. Makes one event at a time, and discards it if a new order arrived meanwhile.
    fn work(&self, mut source: Box<dyn Source>) {
        // Whether the last batch of the epoch was made. The end of the epoch then follows and is no event.
        let mut end_is_known = false;
        loop {
            let mut state = self.lock();
            while !state.closed && state.producer.must_wait() {
                state = self.wait(state, None);
            }
            if state.closed {
                return;
            }
            let order = state.producer.order.take();
            let replaced = match state.producer.source.take() {
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
            if state.producer.order.is_some() {
                continue;
            }
            state.producer.halted = result.is_err();
            state.producer.ready = Some(match result {
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

/// Marks the thread as ended, also after a panic.
struct Finish<'a>(&'a Shared);

impl Drop for Finish<'_> {
    fn drop(&mut self) {
        self.0.lock().producer.idle = true;
        self.0.changed.notify_all();
    }
}

#[cfg(test)]
mod tests;
