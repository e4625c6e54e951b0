//! The thread between a source of batches and the Python code that takes them.
//!
//! A source blocks: on decoders, or on a socket. Python must not, because Ctrl-C
//! has to be seen. So one thread asks the source, one finished batch waits ready,
//! and takers wait for it in slices. Owns that thread and its orders (go on, move
//! to another place, stop); knows nothing of Python, and nothing of what a batch
//! is made from.

use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use forebay_wire::Batch;

use crate::failure::Failure;

/// Where batches come from.
pub(crate) trait Source: Send + 'static {
    /// The next batch; `None` at the end of an epoch, after which the next
    /// epoch's batches follow.
    fn next_batch(&mut self) -> Result<Option<Batch>, Failure>;
    /// Continues at another place.
    fn seek(&mut self, place: Place) -> Result<(), Failure>;
}

/// A place in the stream: the batches of `epoch` after the first `position`
/// samples of all ranks together.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Place {
    pub(crate) epoch: u64,
    pub(crate) position: u64,
}

/// What the thread hands over.
pub(crate) enum Event {
    Batch(Batch),
    EpochEnd,
    Failed(Failure),
}

/// Why there is no event.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum NoEvent {
    /// None came in the time given.
    NotYet,
    /// The pump was closed.
    Closed,
}

/// A running thread and its mailbox.
pub(crate) struct Pump {
    shared: Arc<Shared>,
    thread: Mutex<Option<JoinHandle<()>>>,
}

#[derive(Default)]
struct Shared {
    state: Mutex<State>,
    changed: Condvar,
}

#[derive(Default)]
struct State {
    ready: Option<Event>,
    order: Option<Place>,
    /// Nothing more is made until the next order: the source failed.
    halted: bool,
    closed: bool,
    /// The thread is gone.
    finished: bool,
}

impl Pump {
    /// Starts taking batches from `source`, at `place`.
    pub(crate) fn start(source: impl Source, place: Place) -> std::io::Result<Pump> {
        let shared = Arc::new(Shared::default());
        shared.lock().order = Some(place);
        let theirs = Arc::clone(&shared);
        let thread = std::thread::Builder::new()
            .name("forebay-batches".into())
            .spawn(move || {
                let _finish = Finish(&theirs);
                theirs.work(source);
            })?;
        Ok(Pump {
            shared,
            thread: Mutex::new(Some(thread)),
        })
    }

    /// The next event, waiting for it at most `patience`.
    pub(crate) fn take(&self, patience: Duration) -> Result<Event, NoEvent> {
        let deadline = Instant::now() + patience;
        let mut state = self.shared.lock();
        loop {
            if let Some(event) = state.ready.take() {
                self.shared.changed.notify_all();
                return Ok(event);
            }
            if state.closed || state.finished {
                return Err(NoEvent::Closed);
            }
            let left = deadline.saturating_duration_since(Instant::now());
            if left.is_zero() {
                return Err(NoEvent::NotYet);
            }
            state = self.shared.wait(state, Some(left));
        }
    }

    /// Forgets what is ready or under way and continues at `place`.
    pub(crate) fn seek(&self, place: Place) {
        let mut state = self.shared.lock();
        state.ready = None;
        state.order = Some(place);
        state.halted = false;
        self.shared.changed.notify_all();
    }

    /// Tells the thread to stop once its source answers; every taker returns at once.
    pub(crate) fn close(&self) {
        let mut state = self.shared.lock();
        state.closed = true;
        state.ready = None;
        self.shared.changed.notify_all();
    }

    /// Waits for a closed thread to end, at most `patience`; whether it did.
    pub(crate) fn join(&self, patience: Duration) -> bool {
        let deadline = Instant::now() + patience;
        let mut state = self.shared.lock();
        while !state.finished {
            let left = deadline.saturating_duration_since(Instant::now());
            if left.is_zero() {
                return false;
            }
            state = self.shared.wait(state, Some(left));
        }
        drop(state);
        let thread = self
            .thread
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .take();
        thread.is_none_or(|thread| thread.join().is_ok())
    }
}

impl Shared {
    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn wait<'a>(
        &self,
        state: MutexGuard<'a, State>,
        patience: Option<Duration>,
    ) -> MutexGuard<'a, State> {
        match patience {
            Some(patience) => {
                self.changed
                    .wait_timeout(state, patience)
                    .unwrap_or_else(PoisonError::into_inner)
                    .0
            }
            None => self
                .changed
                .wait(state)
                .unwrap_or_else(PoisonError::into_inner),
        }
    }

    /// The thread: makes one event at a time, and never one for an order that was
    /// replaced meanwhile.
    fn work(&self, mut source: impl Source) {
        loop {
            let mut state = self.lock();
            while !state.closed && state.order.is_none() && (state.halted || state.ready.is_some())
            {
                state = self.wait(state, None);
            }
            if state.closed {
                return;
            }
            let order = state.order.take();
            drop(state);

            let result = match order {
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
        self.0.lock().finished = true;
        self.0.changed.notify_all();
    }
}

#[cfg(test)]
mod tests {
    use std::sync::mpsc::{Receiver, Sender, channel};

    use forebay_wire::{BufferPool, Layout};

    use super::*;
    use crate::failure::Kind;

    const LONG: Duration = Duration::from_secs(60);

    /// Two batches an epoch; the step says where it is. Fails in epoch 9, and asks
    /// for leave before each batch where there is somebody to ask.
    struct Script {
        at: Place,
        gate: Option<(Sender<()>, Receiver<()>)>,
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
            if self.at.position == 2 {
                self.at = Place {
                    epoch: self.at.epoch + 1,
                    position: 0,
                };
                return Ok(None);
            }
            self.at.position += 1;
            Ok(Some(Batch {
                epoch: self.at.epoch,
                step: self.at.position - 1,
                position: self.at.position - 1,
                images: BufferPool::new(0).take(0),
                shape: [0, 1, 1, 3],
                layout: Layout::Nhwc,
                labels: Vec::new(),
                samples: Vec::new(),
                flags: Vec::new(),
                digest: 0,
            }))
        }

        fn seek(&mut self, place: Place) -> Result<(), Failure> {
            self.at = place;
            Ok(())
        }
    }

    fn place(epoch: u64, position: u64) -> Place {
        Place { epoch, position }
    }

    fn pump(gate: Option<(Sender<()>, Receiver<()>)>) -> Pump {
        let at = place(77, 0);
        Pump::start(Script { at, gate }, place(0, 0)).unwrap()
    }

    fn told(pump: &Pump) -> String {
        match pump.take(LONG) {
            Ok(Event::Batch(batch)) => format!("{}.{}", batch.epoch, batch.step),
            Ok(Event::EpochEnd) => "end".into(),
            Ok(Event::Failed(failure)) => format!("{failure:?}"),
            Err(none) => format!("{none:?}"),
        }
    }

    #[test]
    fn epochs_follow_each_other_and_an_order_moves_them() {
        let pump = pump(None);
        let first: Vec<String> = (0..5).map(|_| told(&pump)).collect();
        assert_eq!(first, ["0.0", "0.1", "end", "1.0", "1.1"]);
        pump.seek(place(5, 1));
        let then: Vec<String> = (0..3).map(|_| told(&pump)).collect();
        assert_eq!(then, ["5.1", "end", "6.0"]);
        pump.close();
        assert!(pump.join(LONG));
        assert_eq!(told(&pump), "Closed");
    }

    #[test]
    fn a_failure_halts_until_the_next_order() {
        let pump = pump(None);
        pump.seek(place(9, 0));
        assert!(told(&pump).contains("broken"));
        assert_eq!(pump.take(Duration::ZERO).err(), Some(NoEvent::NotYet));
        pump.seek(place(2, 0));
        assert_eq!(told(&pump), "2.0");
    }

    #[test]
    fn what_was_under_way_for_an_old_order_is_never_seen() {
        let (go, leave) = channel();
        let (inside, entered) = channel();
        let pump = pump(Some((inside, leave)));
        entered.recv().unwrap();
        pump.seek(place(3, 0));
        go.send(()).unwrap();
        entered.recv().unwrap();
        go.send(()).unwrap();
        assert_eq!(told(&pump), "3.0");
        entered.recv().unwrap();
        pump.close();
        assert!(!pump.join(Duration::ZERO), "the source still blocks");
        drop(go);
        assert!(pump.join(LONG));
    }
}
