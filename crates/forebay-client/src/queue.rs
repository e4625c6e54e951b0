//! Between the receiving thread and whoever takes batches: the queue, the
//! credit, and the wish to stop.

mod credit;
mod handover;

use std::collections::VecDeque;
use std::net::Shutdown;
use std::sync::{Condvar, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use forebay_wire::{Batch, FrameWriter, Socket, wire};

use crate::connection::Connection;
use crate::error::{Error, Result};
use crate::options::Via;
use crate::sequence::Place;

/// What a stream hands out.
pub(crate) enum Item {
    Batch(Batch),
    /// Carries the number of the epoch that ended.
    EpochEnd(u64),
}

/// Counters of the receiving side.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct StreamStats {
    /// Batches received.
    pub batches: u64,
    /// Of those, how many came in shared memory, without a copy.
    pub shared: u64,
    /// Bytes of their pixels.
    pub payload_bytes: u64,
    /// Time spent reading payloads.
    pub receiving: Duration,
    /// Time the caller waited for a batch.
    pub starved: Duration,
    /// How often the stream went on over a new connection after it had lost one.
    pub reconnects: u64,
    /// How often it went over to another server while the one before still served it.
    pub handovers: u64,
    /// Attempts to reach a server, or to open the stream there, that came to nothing.
    pub retries: u64,
    /// The longest time from a loss to the next batch.
    pub longest_gap: Duration,
}

/// What a server sent to a stream.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ServerUse {
    /// The server, as the URL, its name's addresses or the file have it.
    pub server: String,
    /// Batches from there.
    pub batches: u64,
    /// Bytes of their pixels.
    pub payload_bytes: u64,
}

/// Servers of which it is known what they sent; those that were first go when there are more.
const MOST_USES: usize = 256;

pub(crate) struct State {
    items: VecDeque<Item>,
    /// Bytes of the batches in `items`.
    queued_bytes: u64,
    /// Bytes that may be in `items` and on their way, together.
    budget: u64,
    /// Bytes the server may still send; less than none after a batch whose size it did not know before.
    outstanding: i128,
    /// Bytes in `items` beyond the budget when the connection came: not granted again when they are taken.
    withheld: u64,
    /// Number of the connection that `outstanding` is about.
    connection: u64,
    socket: Option<Socket>,
    /// Those that carry parts of batches.
    lanes: Vec<Socket>,
    failed: Option<Error>,
    over: bool,
    finished: bool,
    interrupted: bool,
    pub(crate) dialling: bool,
    /// What follows the batches that were announced.
    pub(crate) next: Place,
    /// The connection that is to come after this one, while nobody waits for it yet.
    spare: Option<Socket>,
    /// A thread looks for another server.
    pub(crate) moving: bool,
    /// Where the next connection takes over. Until then the server has the credit that it needs and gets no more.
    switch_at: Option<Place>,
    /// That connection, its stream open at that place.
    offered: Option<Box<Connection>>,
    /// Bytes that were taken meanwhile.
    held_back: u64,
    /// There is no other server, and this one stops.
    pub(crate) nowhere: bool,
    /// Whom the stream is from, and when it was last heard of.
    pub(crate) server: String,
    /// How batches come.
    pub(crate) via: Via,
    pub(crate) last_sign: Option<Instant>,
    pub(crate) server_stats: Option<wire::Stats>,
    pub(crate) stats: StreamStats,
    pub(crate) uses: Vec<ServerUse>,
}

impl State {
    /// Counts a batch that arrived.
    pub(crate) fn count(&mut self, bytes: u64, shared: bool, receiving: Duration) {
        self.stats.batches += 1;
        self.stats.shared += u64::from(shared);
        self.stats.payload_bytes += bytes;
        self.stats.receiving += receiving;
        if let Some(i) = self.uses.iter().position(|used| used.server == self.server) {
            self.uses[i].batches += 1;
            self.uses[i].payload_bytes += bytes;
            return;
        }
        if self.uses.len() == MOST_USES {
            self.uses.remove(0);
        }
        self.uses.push(ServerUse {
            server: self.server.clone(),
            batches: 1,
            payload_bytes: bytes,
        });
    }
}

pub(crate) struct Queue {
    state: Mutex<State>,
    changed: Condvar,
    writer: Mutex<Option<(u64, FrameWriter<Socket>)>>,
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    // What is under these locks is changed by single assignments.
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Queue {
    /// For a stream whose first batch is at `next`.
    pub(crate) fn new(server: String, next: Place) -> Self {
        Queue {
            state: Mutex::new(State {
                items: VecDeque::new(),
                queued_bytes: 0,
                budget: 0,
                outstanding: 0,
                withheld: 0,
                connection: 0,
                socket: None,
                lanes: Vec::new(),
                failed: None,
                over: false,
                finished: false,
                interrupted: false,
                dialling: false,
                next,
                spare: None,
                moving: false,
                switch_at: None,
                offered: None,
                held_back: 0,
                nowhere: false,
                server,
                via: Via::Tcp,
                last_sign: None,
                server_stats: None,
                stats: StreamStats::default(),
                uses: Vec::new(),
            }),
            changed: Condvar::new(),
            writer: Mutex::new(None),
        }
    }

    pub(crate) fn state(&self) -> MutexGuard<'_, State> {
        lock(&self.state)
    }

    /// From now on an interruption ends what happens on `socket`.
    pub(crate) fn adopt(&self, socket: &Socket) -> Result<()> {
        let mut state = self.state();
        if state.interrupted {
            return Err(Error::Interrupted);
        }
        state.socket = Some(socket.clone());
        Ok(())
    }

    /// The server gave a sign of life. Nobody waits for that.
    pub(crate) fn heard(&self) {
        self.state().last_sign = Some(Instant::now());
    }

    /// Hands an item to whoever waits for one, after `change`.
    pub(crate) fn push(&self, item: Item, change: impl FnOnce(&mut State)) {
        let mut state = self.state();
        change(&mut state);
        if state.interrupted {
            // Nobody will take it. It is dropped when the state is free again.
            drop(state);
            return;
        }
        if let Item::Batch(batch) = &item {
            state.queued_bytes += batch.images.len() as u64;
        }
        state.items.push_back(item);
        drop(state);
        self.changed.notify_all();
    }

    /// Nothing comes after what is queued; `Err` says why.
    pub(crate) fn close(&self, end: Result<()>) {
        let mut state = self.state();
        match end {
            Ok(()) => state.finished = true,
            Err(e) => state.failed = Some(e),
        }
        drop(state);
        self.changed.notify_all();
    }

    /// Notes something and wakes whoever waits.
    pub(crate) fn note(&self, change: impl FnOnce(&mut State)) {
        change(&mut self.state());
        self.changed.notify_all();
    }

    /// The next item, `Ok(None)` after the last epoch, `Err(None)` when `wait` is over.
    pub(crate) fn pop(&self, wait: Duration) -> Result<Option<Item>, Option<Error>> {
        let began = Instant::now();
        let mut state = self.state();
        let result = loop {
            if state.interrupted {
                break Err(Some(Error::Interrupted));
            }
            if let Some(item) = state.items.pop_front() {
                break Ok(Some(item));
            }
            if let Some(e) = state.failed.take() {
                state.over = true;
                break Err(Some(e));
            }
            if state.over {
                break Err(Some(Error::Over));
            }
            if state.finished {
                break Ok(None);
            }
            let left = wait.saturating_sub(began.elapsed());
            if left.is_zero() {
                break Err(None);
            }
            (state, _) = self
                .changed
                .wait_timeout(state, left)
                .unwrap_or_else(PoisonError::into_inner);
        };
        state.stats.starved += began.elapsed();
        if let Ok(Some(Item::Batch(batch))) = &result {
            let bytes = batch.images.len() as u64;
            state.queued_bytes -= bytes;
            let connection = state.connection;
            drop(state);
            self.give_back(connection, bytes);
        }
        result
    }

    /// Asks the server where its time went.
    pub(crate) fn ask_stats(&self, wait: Duration) -> Option<wire::Stats> {
        self.note(|state| state.server_stats = None);
        self.send(&wire::StatsRequest {}.into());
        // Left there for others who asked at the same time.
        self.wait_for(wait, |state| state.server_stats.clone())
    }

    /// Waits for `ready`, at most `wait`; none when it did not come or nothing comes any more.
    pub(crate) fn wait_for<T>(
        &self,
        wait: Duration,
        mut ready: impl FnMut(&mut State) -> Option<T>,
    ) -> Option<T> {
        let began = Instant::now();
        let mut state = self.state();
        loop {
            if let Some(value) = ready(&mut state) {
                return Some(value);
            }
            let left = wait.saturating_sub(began.elapsed());
            if left.is_zero() || state.interrupted || state.failed.is_some() || state.finished {
                return None;
            }
            (state, _) = self
                .changed
                .wait_timeout(state, left)
                .unwrap_or_else(PoisonError::into_inner);
        }
    }

    /// Waits for `time`, or until interrupted, which it tells.
    pub(crate) fn pause(&self, time: Duration) -> bool {
        let began = Instant::now();
        let mut state = self.state();
        while !state.interrupted {
            let left = time.saturating_sub(began.elapsed());
            if left.is_zero() {
                return false;
            }
            (state, _) = self
                .changed
                .wait_timeout(state, left)
                .unwrap_or_else(PoisonError::into_inner);
        }
        true
    }

    pub(crate) fn interrupt(&self) {
        let mut state = self.state();
        state.interrupted = true;
        // Nobody takes them any more, and whoever holds a handle to the stream must not hold their memory.
        let given_up = std::mem::take(&mut state.items);
        state.queued_bytes = 0;
        let sockets = [state.socket.take(), state.spare.take()];
        for socket in sockets.iter().flatten().chain(&state.lanes) {
            socket.shutdown(Shutdown::Both);
        }
        let offered = state.offered.take();
        drop(state);
        drop((given_up, offered));
        self.changed.notify_all();
    }

    pub(crate) fn is_interrupted(&self) -> bool {
        self.state().interrupted
    }
}

#[cfg(test)]
mod tests;
