//! Between the receiving thread and whoever takes batches: the queue, the
//! credit, and the wish to stop.

mod handover;

use std::collections::VecDeque;
use std::net::Shutdown;
use std::sync::{Condvar, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use forebay_wire::{Batch, FrameWriter, Message, Socket, wire};

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

fn credit(bytes: u64) -> wire::Credit {
    wire::Credit {
        bytes,
        ..wire::Credit::default()
    }
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

    /// A connection on which a stream is open: grants it all the room there is. Tells its number.
    pub(crate) fn connected(
        &self,
        server: &str,
        mut writer: FrameWriter<Socket>,
        lanes: Vec<Socket>,
        budget: u64,
    ) -> forebay_wire::Result<u64> {
        // Whoever takes a batch meanwhile waits for the writer and then finds
        // that its credit belonged to an older connection.
        let mut slot = lock(&self.writer);
        let (connection, room) = {
            let mut state = self.state();
            state.connection += 1;
            state.budget = budget;
            let room = budget.saturating_sub(state.queued_bytes);
            state.outstanding = room.into();
            state.withheld = state.queued_bytes.saturating_sub(budget);
            state.server = server.to_owned();
            state.via = Via::of(writer.get_ref());
            state.lanes = lanes;
            state.switch_at = None;
            state.offered = None;
            state.held_back = 0;
            state.nowhere = false;
            state.last_sign = Some(Instant::now());
            (state.connection, room)
        };
        writer.write(&credit(room).into(), &[])?;
        *slot = Some((connection, writer));
        Ok(connection)
    }

    /// The connection is gone: credits have nowhere to go.
    pub(crate) fn disconnected(&self) {
        *lock(&self.writer) = None;
        let mut state = self.state();
        state.socket = None;
        state.lanes.clear();
    }

    /// Sends a message if there is a connection. A failure shows where the
    /// connection is read.
    pub(crate) fn send(&self, message: &Message) {
        if let Some((_, writer)) = &mut *lock(&self.writer) {
            let _ = writer.write(message, &[]);
        }
    }

    /// As [`Queue::send`], unless another thread is sending.
    pub(crate) fn try_send(&self, message: &Message) {
        if let Ok(mut slot) = self.writer.try_lock()
            && let Some((_, writer)) = &mut *slot
        {
            let _ = writer.write(message, &[]);
        }
    }

    /// Whether the server may send `bytes`; uses that up, and `next` follows. Where sizes vary it may if it may send
    /// anything.
    pub(crate) fn expect(&self, bytes: u64, varies: bool, next: Place) -> bool {
        let mut state = self.state();
        let needed = if varies { 1 } else { bytes };
        let may = state.outstanding >= needed.into();
        if may {
            state.outstanding -= i128::from(bytes);
            state.next = next;
        }
        may
    }

    pub(crate) fn push(&self, item: Item) {
        let mut state = self.state();
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

    /// Room for another batch, unless the connection it was taken from is gone.
    fn give_back(&self, connection: u64, bytes: u64) {
        let mut slot = lock(&self.writer);
        let Some((current, writer)) = &mut *slot else {
            return;
        };
        if *current != connection {
            return;
        }
        let bytes = {
            let mut state = self.state();
            if state.switch_at.is_some() {
                // The next server gets it.
                state.held_back += bytes;
                return;
            }
            let kept = state.withheld.min(bytes);
            state.withheld -= kept;
            state.outstanding += i128::from(bytes - kept);
            bytes - kept
        };
        if bytes > 0 {
            let _ = writer.write(&credit(bytes).into(), &[]);
        }
    }

    /// Tells the server that a batch in shared memory is needed no more, unless the connection it came over is gone.
    pub(crate) fn release(&self, connection: u64, slot: u32) {
        if let Some((current, writer)) = &mut *lock(&self.writer)
            && *current == connection
        {
            let released = wire::Credit {
                released: vec![slot],
                ..wire::Credit::default()
            };
            let _ = writer.write(&released.into(), &[]);
        }
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
mod tests {
    use std::net::{TcpListener, TcpStream};

    use forebay_wire::{BufferPool, Dtype, EncodedImages, FrameReader, Layout, Limits, TcpSocket};

    use super::*;

    fn batch(bytes: usize) -> Item {
        Item::Batch(Batch {
            epoch: 0,
            step: 0,
            position: 0,
            images: BufferPool::new(0).take(bytes),
            encoded: Some(Box::new(EncodedImages {
                offsets: vec![0, bytes as u64],
                widths: vec![1],
                heights: vec![1],
            })),
            dtype: Dtype::Uint8,
            mixed: None,
            shape: [1, 0, 0, 0],
            layout: Layout::Nhwc,
            labels: vec![0],
            samples: vec![0],
            flags: vec![0],
            digest: 0,
        })
    }

    /// A new connection of the queue, and what its other end reads.
    fn connect(queue: &Queue, budget: u64) -> FrameReader<TcpStream> {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let near = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
        let (far, _) = listener.accept().unwrap();
        let writer = FrameWriter::new(TcpSocket::new(near).unwrap().into());
        queue
            .connected("server", writer, Vec::new(), budget)
            .unwrap();
        FrameReader::new(far, Limits::from_client())
    }

    fn credit(reader: &mut FrameReader<TcpStream>) -> u64 {
        match reader.read().unwrap() {
            (Message::Credit(credit), 0) => credit.bytes,
            other => panic!("{other:?}"),
        }
    }

    fn pop(queue: &Queue) {
        assert!(matches!(
            queue.pop(Duration::ZERO),
            Ok(Some(Item::Batch(_)))
        ));
    }

    #[test]
    fn batches_of_any_size_overdraw_the_credit_once() {
        let queue = Queue::new("server".to_owned(), (0, 0));
        let mut far = connect(&queue, 100);
        assert_eq!(credit(&mut far), 100);
        assert!(!queue.expect(101, false, (0, 1)));
        assert!(queue.expect(60, true, (0, 1)));
        queue.push(batch(60));
        assert!(queue.expect(250, true, (0, 1)));
        queue.push(batch(250));
        assert!(!queue.expect(1, true, (0, 1)));
        assert!(!queue.expect(0, true, (0, 1)));
        pop(&queue);
        assert_eq!(credit(&mut far), 60);
        assert!(!queue.expect(1, true, (0, 1)), "150 are owed");
        pop(&queue);
        assert_eq!(credit(&mut far), 250);
        assert!(queue.expect(100, false, (0, 1)));
        assert!(!queue.expect(1, true, (0, 1)));
    }

    #[test]
    fn a_stream_that_was_interrupted_holds_no_memory() {
        let pool = BufferPool::new(0);
        let with_memory = || match batch(1) {
            Item::Batch(batch) => Item::Batch(Batch {
                images: pool.take(1),
                ..batch
            }),
            end => end,
        };
        let queue = Queue::new("server".to_owned(), (0, 0));
        queue.push(with_memory());
        assert!(pool.stats().used_bytes > 0);
        queue.interrupt();
        queue.push(with_memory());
        assert_eq!(pool.stats().used_bytes, 0);
        assert!(matches!(
            queue.pop(Duration::ZERO),
            Err(Some(Error::Interrupted))
        ));
    }

    #[test]
    fn what_is_queued_beyond_the_budget_is_not_granted_again() {
        let queue = Queue::new("server".to_owned(), (0, 0));
        let mut far = connect(&queue, 100);
        assert_eq!(credit(&mut far), 100);
        for bytes in [90, 250] {
            assert!(queue.expect(bytes, true, (0, 1)));
            queue.push(batch(bytes as usize));
        }
        // The next server knows nothing of the 240 that are owed.
        let mut far = connect(&queue, 100);
        assert_eq!(credit(&mut far), 0);
        assert!(!queue.expect(1, true, (0, 1)));
        pop(&queue);
        assert!(!queue.expect(1, true, (0, 1)));
        pop(&queue);
        assert_eq!(credit(&mut far), 100);
        assert!(queue.expect(100, false, (0, 1)));
    }

    #[test]
    fn what_is_taken_while_the_next_server_is_prepared_is_credit_of_that_one() {
        let opened = wire::Opened {
            spec: Some(wire::StreamSpec {
                batch_size: 2,
                world_size: 1,
                ..wire::StreamSpec::default()
            }),
            records: 9,
            batch_bytes: 30,
            ..wire::Opened::default()
        };
        let sequence = crate::sequence::Sequence::new(&opened, 0, 0).unwrap();
        let queue = Queue::new("server".to_owned(), (0, 0));
        let mut far = connect(&queue, 100);
        assert_eq!(credit(&mut far), 100);
        assert!(queue.expect(30, false, (0, 2)));
        queue.push(batch(30));
        // 70 bytes are two batches more.
        let first = queue.connection();
        assert_eq!(queue.freeze(first, &sequence), Some((0, 6)));
        assert!(matches!(far.read().unwrap(), (Message::Ping(_), 0)));
        assert!(queue.take_offer((0, 2), Duration::ZERO).is_none());
        pop(&queue);
        // Nobody else was found: the credit comes back.
        queue.thaw(first);
        assert_eq!(credit(&mut far), 30);
        assert_eq!(queue.freeze(first, &sequence), Some((0, 8)));
        // There are no more in the epoch.
        assert!(queue.expect(30, false, (0, 8)));
        queue.push(batch(30));
        queue.thaw(first);
        assert_eq!(queue.freeze(first, &sequence), Some((0, 8)));
        pop(&queue);
        let mut next = connect(&queue, 100);
        assert_eq!(credit(&mut next), 100);
        assert_eq!(queue.freeze(first, &sequence), None, "it is gone");
        queue.thaw(first);
        assert!(queue.expect(100, false, (1, 0)));
    }
}
