//! The queue between the receiving thread and the consumer of batches, with the credit and the
//! interruption flag.

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

/// An item of a stream.
// A box for each batch would be one more allocation, to save moving 200 bytes.
#[expect(clippy::large_enum_variant)]
pub(crate) enum Item {
    Batch(Batch),
    /// The number of the epoch that ended.
    EpochEnd(u64),
}

/// Counters of a stream on the client side.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct StreamStats {
    /// Batches received.
    pub batches: u64,
    /// Batches among these that came in shared memory without a copy.
    pub shared: u64,
    /// Payload bytes.
    pub payload_bytes: u64,
    /// Time spent reading payloads.
    pub receiving: Duration,
    /// CPU time of the receiving thread.
    pub receiving_cpu: Duration,
    /// Time the consumer waited for a batch.
    pub starved: Duration,
    /// Reconnects after a lost connection.
    pub reconnects: u64,
    /// Migrations to another server while the previous one still served the stream.
    pub handovers: u64,
    /// Failed attempts to connect or to open the stream.
    pub retries: u64,
    /// The longest time from a lost connection to the next batch.
    pub longest_gap: Duration,
}

/// Counters of one server of a stream.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ServerUse {
    /// The server, as the URL, the resolved name or the file gives it.
    pub server: String,
    /// Batches received from it.
    pub batches: u64,
    /// Payload bytes.
    pub payload_bytes: u64,
}

/// Maximum number of servers with counters; the oldest are dropped.
const MOST_USES: usize = 256;

pub(crate) struct State {
    items: VecDeque<Item>,
    /// Bytes of the batches in `items`.
    queued_bytes: u64,
    /// Limit of the bytes in `items` and in flight together.
    budget: u64,
    /// Bytes the server may still send; negative after a batch whose size was not known in advance.
    outstanding: i128,
    /// Bytes in `items` beyond the budget when the connection was made; no credit is granted for
    /// them when they are taken.
    withheld: u64,
    /// Number of the connection that `outstanding` refers to.
    connection: u64,
    socket: Option<Socket>,
    /// Sockets of the additional connections.
    more: Vec<Socket>,
    failed: Option<Error>,
    over: bool,
    finished: bool,
    interrupted: bool,
    pub(crate) dialling: bool,
    /// When the connection was lost, and the last error; `None` while connected.
    pub(crate) away: Option<(Instant, String)>,
    /// Position after the batches whose headers have arrived.
    pub(crate) next: Place,
    /// Socket of the connection that is being prepared as the next one.
    spare: Option<Socket>,
    /// Whether a thread is searching for another server.
    pub(crate) migrating: bool,
    /// Position at which the next connection takes over. Until then the current server keeps its
    /// credit and gets no more.
    switch_at: Option<Place>,
    /// The next connection, with its stream open at that position.
    offered: Option<Box<Connection>>,
    /// Bytes taken from the queue since the freeze, to be granted to the next connection.
    held_back: u64,
    /// Whether the current server stops and no other server can take over.
    pub(crate) nowhere: bool,
    /// The current server, and the time of its last message.
    pub(crate) server: String,
    /// The current transport.
    pub(crate) via: Via,
    pub(crate) last_sign: Option<Instant>,
    pub(crate) server_stats: Option<wire::Stats>,
    pub(crate) stats: StreamStats,
    pub(crate) uses: Vec<ServerUse>,
}

impl State {
    /// The error for a consumer that waits while the connection is lost.
    pub(crate) fn away(&self) -> Option<Error> {
        let (since, last) = self.away.as_ref()?;
        Some(Error::Away {
            server: self.server.clone(),
            waited: since.elapsed(),
            last: last.clone(),
        })
    }

    /// Counts a received batch.
    pub(crate) fn count(&mut self, bytes: u64, shared: bool, receiving: Duration, cpu: Duration) {
        self.stats.batches += 1;
        self.stats.shared += u64::from(shared);
        self.stats.payload_bytes += bytes;
        self.stats.receiving += receiving;
        self.stats.receiving_cpu += cpu;
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
    // Each field is updated by a single assignment, so the state is valid.
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Queue {
    /// Creates the queue of a stream whose first batch is at `next`.
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
                more: Vec::new(),
                failed: None,
                over: false,
                finished: false,
                interrupted: false,
                dialling: false,
                away: None,
                next,
                spare: None,
                migrating: false,
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

    /// Registers `socket`, so that an interruption shuts it down.
    pub(crate) fn adopt(&self, socket: &Socket) -> Result<()> {
        let mut state = self.state();
        if state.interrupted {
            return Err(Error::Interrupted);
        }
        state.socket = Some(socket.clone());
        Ok(())
    }

    /// Records that the server sent a message. Wakes no waiting thread.
    pub(crate) fn heard(&self) {
        self.state().last_sign = Some(Instant::now());
    }

    /// Applies `change`, adds an item and wakes the consumer.
    pub(crate) fn push(&self, item: Item, change: impl FnOnce(&mut State)) {
        let mut state = self.state();
        change(&mut state);
        if state.interrupted {
            // The stream was interrupted: the item is dropped, after the lock is released.
            drop(state);
            return;
        }
        if let Item::Batch(batch) = &item {
            state.queued_bytes += batch.payload.len() as u64;
        }
        state.items.push_back(item);
        drop(state);
        self.changed.notify_all();
    }

    /// Ends the queue after the queued items; `Err` is the reason.
    pub(crate) fn close(&self, end: Result<()>) {
        let mut state = self.state();
        match end {
            Ok(()) => state.finished = true,
            Err(e) => state.failed = Some(e),
        }
        drop(state);
        self.changed.notify_all();
    }

    /// Applies `change` and wakes the waiting threads.
    pub(crate) fn note(&self, change: impl FnOnce(&mut State)) {
        change(&mut self.state());
        self.changed.notify_all();
    }

    /// Takes the next item. `Ok(None)` after the last epoch, `Err(None)` after `wait`.
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
            let bytes = batch.payload.len() as u64;
            state.queued_bytes -= bytes;
            let connection = state.connection;
            drop(state);
            self.give_back(connection, bytes);
        }
        result
    }

    /// Requests the server's statistics.
    pub(crate) fn ask_stats(&self, wait: Duration) -> Option<wire::Stats> {
        self.note(|state| state.server_stats = None);
        self.send(&wire::StatsRequest {}.into());
        // The answer stays in place, for concurrent requests.
        self.wait_for(wait, |state| state.server_stats.clone())
    }

    /// Waits until `ready` returns a value; `None` after `wait`, or when the stream ends.
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

    /// Sleeps for `time`; returns true if interrupted.
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
        // Freed now, because handles to the stream may outlive its consumer.
        let given_up = std::mem::take(&mut state.items);
        state.queued_bytes = 0;
        let sockets = [state.socket.take(), state.spare.take()];
        for socket in sockets.iter().flatten().chain(&state.more) {
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
