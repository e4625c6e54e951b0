//! The queue between the receiving thread and the consumer of batches.
//!
//! Its state consists of parts without locks and without waits, each with its own rules: what is
//! delivered and how it ends, the credit of the server, the connection, the switch to the next
//! connection, and the counters. [`Queue`] holds them behind one lock.

mod credit;
mod delivery;
mod handover;
mod link;
mod sending;
mod stats;
mod switching;

use std::sync::{Condvar, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use forebay_wire::{Batch, FrameWriter, Socket, wire};

use credit::Credit;
use delivery::Delivery;
use handover::Handover;
use link::Link;

use crate::RemoteStats;
use crate::error::{Error, Result};
use crate::options::Via;
use crate::sequence::Place;

pub(crate) use delivery::Item;
pub(crate) use stats::{Counters, Received};
pub use stats::{ServerUse, StreamStats};

/// How long an interruption waits for another thread that sends a message.
const CLOSING: Duration = Duration::from_secs(1);

struct State {
    delivery: Delivery,
    credit: Credit,
    link: Link,
    handover: Handover,
    counters: Counters,
}

pub(crate) struct Queue {
    state: Mutex<State>,
    changed: Condvar,
    /// The writing half of the connection, with its number.
    writer: Mutex<Option<(u64, FrameWriter<Socket>)>>,
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    // Each part is changed by one call, so the state is valid.
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Queue {
    /// Creates the queue of a stream whose first batch is at `next`, and which continues
    /// `counters`.
    pub(crate) fn new(server: String, next: Place, counters: Counters) -> Self {
        Queue {
            state: Mutex::new(State {
                delivery: Delivery::new(),
                credit: Credit::new(next),
                link: Link::new(server),
                handover: Handover::new(),
                counters,
            }),
            changed: Condvar::new(),
            writer: Mutex::new(None),
        }
    }

    fn state(&self) -> MutexGuard<'_, State> {
        lock(&self.state)
    }

    /// Locks the state of a stream that was not interrupted.
    fn unless_interrupted(&self) -> Result<MutexGuard<'_, State>> {
        let state = self.state();
        match state.delivery.is_interrupted() {
            true => Err(Error::Interrupted),
            false => Ok(state),
        }
    }

    /// Waits until `ready` returns a value; `None` after `limit`.
    fn wait<T>(
        &self,
        limit: Duration,
        mut ready: impl FnMut(&mut State) -> Option<T>,
    ) -> (MutexGuard<'_, State>, Option<T>) {
        let began = Instant::now();
        let mut state = self.state();
        loop {
            if let Some(value) = ready(&mut state) {
                return (state, Some(value));
            }
            let left = limit.saturating_sub(began.elapsed());
            if left.is_zero() {
                return (state, None);
            }
            (state, _) = self
                .changed
                .wait_timeout(state, left)
                .unwrap_or_else(PoisonError::into_inner);
        }
    }

    /// Registers `socket`, so that an interruption shuts it down.
    pub(crate) fn adopt(&self, socket: &Socket) -> Result<()> {
        self.unless_interrupted()?.link.adopt(socket.clone());
        Ok(())
    }

    /// Records that the server sent a message. Wakes no waiting thread.
    pub(crate) fn heard(&self) {
        self.state().link.heard(Instant::now());
    }

    /// Consumes credit for `bytes` and advances to `next`; false if the server has no such credit.
    /// If sizes vary, any remaining credit suffices.
    pub(crate) fn expect(&self, bytes: u64, varies: bool, next: Place) -> bool {
        self.state().credit.spend(bytes, varies, next)
    }

    /// Counts a batch, adds it and wakes the consumer, with one lock and one wake-up.
    pub(crate) fn push_batch(&self, batch: Batch, received: &Received) {
        let mut guard = self.state();
        let state = &mut *guard;
        state.counters.batch(state.link.server(), received);
        let bytes = batch.payload.len() as u64;
        let refused = state.delivery.push(Item::Batch(batch));
        if refused.is_none() {
            state.credit.queued(bytes);
        }
        drop(guard);
        drop(refused);
        self.changed.notify_all();
    }

    /// Adds the end of an epoch, after which the batch at `next` follows.
    pub(crate) fn push_end(&self, epoch: u64, next: Place) {
        let mut state = self.state();
        state.credit.advance(next);
        state.delivery.push(Item::EpochEnd(epoch));
        drop(state);
        self.changed.notify_all();
    }

    /// Ends the queue after the queued items; `Err` is the reason.
    pub(crate) fn close(&self, end: Result<()>) {
        self.state().delivery.close(end);
        self.changed.notify_all();
    }

    /// Takes the next item. `Ok(None)` after the last epoch, `Err(None)` after `limit`.
    pub(crate) fn pop(&self, limit: Duration) -> Result<Option<Item>, Option<Error>> {
        let began = Instant::now();
        let (mut state, next) = self.wait(limit, |state| state.delivery.pop());
        state.counters.stream.starved += began.elapsed();
        let item = next.ok_or(None)?.map_err(Some)?;
        if let Some(Item::Batch(batch)) = &item {
            let bytes = batch.payload.len() as u64;
            state.credit.taken(bytes);
            let connection = state.link.number();
            drop(state);
            self.give_back(connection, bytes);
        }
        Ok(item)
    }

    /// Requests the server's statistics; `None` after `limit`, or when the stream ends.
    pub(crate) fn ask_stats(&self, limit: Duration) -> Option<RemoteStats> {
        self.state().counters.answer = None;
        self.send(&wire::StatsRequest {}.into());
        // The answer stays in place, for concurrent requests.
        let answered = |state: &mut State| match &state.counters.answer {
            Some(answer) => Some(Some(answer.clone())),
            None => (!state.delivery.is_open()).then_some(None),
        };
        self.wait(limit, answered).1.flatten()
    }

    /// Stores the server's statistics for those who requested them.
    pub(crate) fn answer_stats(&self, stats: RemoteStats) {
        self.state().counters.answer = Some(stats);
        self.changed.notify_all();
    }

    /// Sleeps for `time`; returns true if interrupted.
    pub(crate) fn pause(&self, time: Duration) -> bool {
        let interrupted = |state: &mut State| state.delivery.is_interrupted().then_some(());
        self.wait(time, interrupted).1.is_some()
    }

    /// Drops the queued items, ends all waits and closes the connections. Close is sent first, so that the server does not
    /// count a lost client.
    pub(crate) fn interrupt(&self) {
        let mut state = self.state();
        // Freed now, because handles to the stream may outlive its consumer.
        let items = state.delivery.interrupt();
        state.credit.cleared();
        state.handover.abort_search();
        let offered = state.handover.clear();
        drop(state);
        drop((items, offered));
        self.changed.notify_all();
        // The server answers Close by closing, and the receiving thread must not take that for a failure.
        self.send_within(&wire::Close {}.into(), CLOSING);
        self.state().link.shut_down();
    }

    pub(crate) fn is_interrupted(&self) -> bool {
        self.state().delivery.is_interrupted()
    }

    /// Records that the connection was lost at `since`, or that an attempt to replace it failed.
    pub(crate) fn lost(&self, since: Instant, last: &Error) {
        self.state().link.lost(since, last.to_string());
    }

    /// Calls `dial`, during which [`Queue::is_dialling`] returns true.
    pub(crate) fn dialling<T>(&self, dial: impl FnOnce() -> T) -> T {
        self.state().link.dial(true);
        let dialled = dial();
        self.state().link.dial(false);
        dialled
    }

    /// Returns whether the receiving thread connects, which may take as long as its timeout.
    pub(crate) fn is_dialling(&self) -> bool {
        self.state().link.is_dialling()
    }

    /// Replaces the waits of the caller by those of its trainer.
    pub(crate) fn report_waits(&self, total: Duration) {
        self.state().counters.reported = Some(total);
    }

    /// Changes the counters.
    pub(crate) fn count(&self, change: impl FnOnce(&mut StreamStats)) {
        change(&mut self.state().counters.stream);
    }

    pub(crate) fn counters(&self) -> Counters {
        self.state().counters.clone()
    }

    pub(crate) fn stats(&self) -> StreamStats {
        self.state().counters.stream
    }

    pub(crate) fn servers(&self) -> Vec<ServerUse> {
        self.state().counters.servers.clone()
    }

    pub(crate) fn server(&self) -> String {
        self.state().link.server().to_owned()
    }

    pub(crate) fn via(&self) -> Via {
        self.state().link.via()
    }

    /// Returns the error for a consumer that waits while the connection is lost.
    pub(crate) fn away(&self) -> Option<Error> {
        self.state().link.away(Instant::now())
    }

    /// Returns the error for a consumer that has waited for `what` since `began`.
    pub(crate) fn waited(&self, what: String, began: Instant) -> Error {
        let state = self.state();
        state
            .link
            .away(Instant::now())
            .unwrap_or_else(|| Error::Waited {
                server: state.link.server().to_owned(),
                what,
                waited: began.elapsed(),
                last_sign: state.link.last_sign().map(|at| at.elapsed()),
            })
    }
}

#[cfg(test)]
mod tests;
