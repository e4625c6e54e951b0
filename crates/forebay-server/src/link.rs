//! State of a connection that its two threads and the server share: the writing half, the credit,
//! and the reason to stop.

use std::collections::HashMap;
use std::net::Shutdown;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, OnceLock, PoisonError};
use std::thread;
use std::time::{Duration, Instant};

use forebay_wire::wire::{self, error::Kind};
use forebay_wire::{Buffer, FrameWriter, Message, Peer, Socket};

use crate::snapshot::{LiveStream, NameTotals, OpenStream};
use crate::source::StreamMonitor;
use crate::stats::ServerStreamStats;

/// Why a stream ends before its last batch.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Stop {
    /// The server stops: finish the batch that is being sent, then send the final message.
    Shutdown,
    /// The client has left or is being disconnected: send nothing more.
    Gone,
}

/// How a connection ended, for the observer.
#[derive(Debug, Clone)]
pub(crate) struct Ending {
    pub(crate) why: String,
    pub(crate) clean: bool,
}

impl Ending {
    pub(crate) fn clean(why: impl Into<String>) -> Self {
        Ending {
            why: why.into(),
            clean: true,
        }
    }

    pub(crate) fn failed(why: impl Into<String>) -> Self {
        Ending {
            why: why.into(),
            clean: false,
        }
    }
}

#[derive(Default)]
struct Flow {
    credit: u64,
    /// The waits of the trainer in microseconds, as the client first and last reported them: those before the first report
    /// were for another server.
    waited_us: Option<(u64, u64)>,
    /// Bytes sent beyond the credit, for batches whose size is not known in advance.
    debt: u64,
    stop: Option<Stop>,
    monitor: Option<Arc<dyn StreamMonitor>>,
    ending: Option<Ending>,
    /// Why a batch could not be sent.
    send_error: Option<forebay_wire::Error>,
    stats: ServerStreamStats,
    /// When the oldest unanswered ping was sent.
    unanswered: Option<Instant>,
    /// The stream, once it is open. The credit in it is not updated.
    live: Option<LiveStream>,
    /// Until when a stopping server continues to serve this client.
    leaves: Option<Instant>,
}

/// One connection.
pub(crate) struct Link {
    pub(crate) id: u64,
    pub(crate) peer: Peer,
    pub(crate) began: Instant,
    pub(crate) socket: Socket,
    /// Whether the handshake is complete.
    known: AtomicBool,
    /// Whether the client migrates to another server if notified in time.
    hands_over: AtomicBool,
    /// The client's process, if it gave one.
    process: OnceLock<u128>,
    writer: Mutex<Sender>,
    flow: Mutex<Flow>,
    changed: Condvar,
    /// Batches in shared memory that the client holds, by slot.
    lent: Mutex<HashMap<u32, Buffer>>,
    /// Additional connections that carry slices of this connection's batches.
    lanes: Mutex<Vec<Arc<Link>>>,
}

/// Maximum number of additional connections of a stream.
const MOST_LANES: usize = 15;
/// Smaller payloads are not split.
const MIN_SPLIT: usize = 1 << 20;
/// Slices are multiples of this size, a page.
const PART_UNIT: usize = 4096;

struct Sender {
    frames: FrameWriter<Socket>,
    last: Instant,
    /// Set after the last message, which nothing may follow.
    closed: bool,
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    // A panic is reported where it is caught. The numbers and flags here are valid individually.
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Drop for Link {
    /// The client may use the batches that it holds for as long as it likes, and other streams may
    /// go on filling the memory of this one.
    fn drop(&mut self) {
        let lent = self.lent.get_mut().unwrap_or_else(PoisonError::into_inner);
        lent.drain().for_each(|(_, buffer)| buffer.retire());
    }
}

impl Link {
    pub(crate) fn new(id: u64, peer: Peer, socket: Socket) -> Self {
        let now = Instant::now();
        Link {
            id,
            peer,
            began: now,
            known: AtomicBool::new(false),
            hands_over: AtomicBool::new(false),
            process: OnceLock::new(),
            writer: Mutex::new(Sender {
                frames: FrameWriter::new(socket.clone()),
                last: now,
                closed: false,
            }),
            socket,
            flow: Mutex::default(),
            changed: Condvar::new(),
            lent: Mutex::default(),
            lanes: Mutex::default(),
        }
    }

    /// Marks the handshake as complete.
    pub(crate) fn welcomed(&self) {
        self.known.store(true, Ordering::Release);
    }

    /// Returns whether the handshake is complete.
    pub(crate) fn is_known(&self) -> bool {
        self.known.load(Ordering::Acquire)
    }

    /// Sets the client's process from the first 16 bytes of its key. The handshake calls it once.
    pub(crate) fn set_process(&self, process: &[u8]) {
        let mut key = [0; 16];
        let len = process.len().min(key.len());
        key[..len].copy_from_slice(&process[..len]);
        let _ = self.process.set(u128::from_be_bytes(key));
    }

    /// Returns the key of the client's process, which all of its connections send; 0 if they sent none.
    pub(crate) fn process(&self) -> u128 {
        self.process.get().copied().unwrap_or_default()
    }

    /// Marks a client that migrates to another server if notified in time that this one stops.
    pub(crate) fn set_hands_over(&self) {
        self.hands_over.store(true, Ordering::Release);
    }

    /// Returns whether the client migrates.
    pub(crate) fn hands_over(&self) -> bool {
        self.hands_over.load(Ordering::Acquire)
    }

    /// Tells the client that this server stops and serves it until `until`.
    pub(crate) fn leave(&self, until: Instant) -> forebay_wire::Result<()> {
        lock(&self.flow).leaves = Some(until);
        // Sent after the batch in progress.
        self.send(&self.ping().into(), &[])
    }

    fn ping(&self) -> wire::Ping {
        let leaves = lock(&self.flow).leaves;
        let left = |until: Instant| {
            let left = until.saturating_duration_since(Instant::now());
            // 0 would mean that the server does not stop.
            u32::try_from(left.as_millis()).unwrap_or(u32::MAX).max(1)
        };
        wire::Ping {
            token: self.began.elapsed().as_millis() as u64,
            answer: false,
            leaving_ms: leaves.map_or(0, left),
        }
    }

    /// Sends one frame. Nothing is sent after [`Link::send_last`].
    pub(crate) fn send(&self, message: &Message, payload: &[u8]) -> forebay_wire::Result<()> {
        let mut writer = lock(&self.writer);
        if writer.closed {
            return Err(forebay_wire::Error::Closed);
        }
        let sent = writer.frames.write(message, payload);
        writer.last = Instant::now();
        if sent.is_err() {
            // A partial frame may have been sent; anything after it would be misread.
            writer.closed = true;
        }
        sent
    }

    /// Sends a batch whose payload stays in shared memory, which the client has mapped or maps with
    /// this message. The client owns the slot until it [releases](Link::release) it.
    pub(crate) fn send_shared(
        &self,
        mut header: wire::Batch,
        mut images: Buffer,
        gone: Vec<u32>,
    ) -> forebay_wire::Result<()> {
        let (Some((slot, capacity)), Some(local)) = (images.slot(), self.socket.local()) else {
            return self.send(&header.into(), &images);
        };
        let file = images.take_slot_file();
        header.shared = Some(wire::SharedPayload {
            slot,
            bytes: images.len() as u64,
            capacity: file.as_ref().map_or(0, |_| capacity as u64),
            gone,
        });
        // Recorded before sending, because the client may release the slot at once.
        lock(&self.lent).insert(slot, images);
        let mut writer = lock(&self.writer);
        if writer.closed {
            return Err(forebay_wire::Error::Closed);
        }
        if let Some(file) = file {
            local.attach(file);
        }
        let sent = writer.frames.write(&header.into(), &[]);
        writer.last = Instant::now();
        writer.closed |= sent.is_err();
        sent
    }

    /// Adds a connection that carries slices of this connection's batches; `false` if there are too
    /// many.
    pub(crate) fn add_lane(&self, lane: &Arc<Link>) -> bool {
        let mut lanes = lock(&self.lanes);
        let room = lanes.len() < MOST_LANES;
        if room {
            lanes.push(Arc::clone(lane));
        }
        room
    }

    /// Ends the additional connections.
    pub(crate) fn end_lanes(&self) {
        for lane in lock(&self.lanes).drain(..) {
            lane.socket.shutdown(Shutdown::Both);
        }
    }

    /// Sends a batch over this connection and the additional ones, one slice over each in parallel.
    /// `checksums` says whether each slice carries a checksum.
    pub(crate) fn send_parts(
        &self,
        mut header: wire::Batch,
        images: &[u8],
        checksums: bool,
    ) -> forebay_wire::Result<()> {
        let lanes = lock(&self.lanes).clone();
        let checksum = |part: &[u8]| checksums.then(|| crc32c::crc32c(part));
        if lanes.is_empty() || images.len() < MIN_SPLIT {
            header.payload_crc32c = checksum(images);
            return self.send(&header.into(), images);
        }
        let part = images.len().div_ceil(lanes.len() + 1);
        let mut parts = images.chunks(part.next_multiple_of(PART_UNIT));
        header.parts = parts.clone().map(|part| part.len() as u64).collect();
        let first = parts.next().unwrap_or_default();
        let place = wire::Batch {
            epoch: header.epoch,
            position: header.position,
            ..wire::Batch::default()
        };
        thread::scope(|scope| {
            let mut others = Vec::new();
            for (lane, part) in lanes.iter().zip(parts) {
                let header = place.clone();
                let sending = move || {
                    let header = wire::Batch {
                        payload_crc32c: checksum(part),
                        ..header
                    };
                    let sent = lane.send(&header.into(), part);
                    if sent.is_err() {
                        // The client misses a slice, so no later batch can be complete. Only
                        // writing is shut down: the client may still send a message, such as that
                        // it is finished.
                        self.socket.shutdown(Shutdown::Write);
                    }
                    sent
                };
                let builder = thread::Builder::new().name(format!("forebay-send-{}", lane.id));
                let sending = builder.spawn_scoped(scope, sending);
                others.push(sending.map_err(|source| forebay_wire::Error::Io {
                    doing: "starting a thread",
                    source,
                })?);
            }
            header.payload_crc32c = checksum(first);
            let own = self.send(&header.into(), first);
            others.into_iter().fold(own, |result, other| {
                result.and(other.join().unwrap_or(Err(forebay_wire::Error::Closed)))
            })
        })
    }

    /// Takes back a slot from the client; `false` if the client does not hold it.
    pub(crate) fn release(&self, slot: u32) -> bool {
        // Dropped after the lock is released.
        let returned = lock(&self.lent).remove(&slot);
        returned.is_some()
    }

    /// Sends the reason for ending the connection, and closes the writing half.
    pub(crate) fn send_last(&self, kind: Kind, message: impl Into<String>) {
        let error = wire::Error {
            kind: kind.into(),
            message: message.into(),
        };
        // The client may be gone already; then the message is lost.
        let _ = self.send(&error.into(), &[]);
        lock(&self.writer).closed = true;
        self.socket.shutdown(Shutdown::Write);
    }

    /// Sends a ping if nothing was sent for `silence`. If another thread is sending, no ping is
    /// needed.
    pub(crate) fn heartbeat(&self, silence: Duration) -> forebay_wire::Result<()> {
        let Ok(mut writer) = self.writer.try_lock() else {
            return Ok(());
        };
        if writer.closed || writer.last.elapsed() < silence {
            return Ok(());
        }
        writer.frames.write(&self.ping().into(), &[])?;
        writer.last = Instant::now();
        drop(writer);
        lock(&self.flow).unanswered.get_or_insert_with(Instant::now);
        Ok(())
    }

    /// Clears the pending ping: any message counts as an answer.
    pub(crate) fn heard(&self) {
        lock(&self.flow).unanswered = None;
    }

    /// Returns how long a ping has been unanswered.
    pub(crate) fn unanswered_for(&self) -> Duration {
        lock(&self.flow)
            .unanswered
            .map_or(Duration::ZERO, |since| since.elapsed())
    }

    /// Takes note of how long the client's trainer has waited so far.
    pub(crate) fn waited(&self, total_us: u64) {
        let mut flow = lock(&self.flow);
        let (first, last) = flow.waited_us.unwrap_or((total_us, total_us));
        flow.waited_us = Some((first, last.max(total_us)));
    }

    /// Adds to the client's credit.
    pub(crate) fn grant(&self, bytes: u64) {
        if bytes == 0 {
            // A message that only returns shared memory does not wake the sender.
            return;
        }
        let mut flow = lock(&self.flow);
        let paid = flow.debt.min(bytes);
        flow.debt -= paid;
        flow.credit = flow.credit.saturating_add(bytes - paid);
        drop(flow);
        self.changed.notify_all();
    }

    /// Waits for credit of `bytes`, and consumes it.
    pub(crate) fn spend(&self, bytes: u64) -> Result<(), Stop> {
        let mut flow = lock(&self.flow);
        loop {
            if let Some(stop) = flow.stop {
                return Err(stop);
            }
            if flow.credit >= bytes {
                flow.credit -= bytes;
                return Ok(());
            }
            flow = self
                .changed
                .wait(flow)
                .unwrap_or_else(PoisonError::into_inner);
        }
    }

    /// Consumes credit of `bytes`, going into debt if it does not suffice; later grants pay the
    /// debt.
    pub(crate) fn charge(&self, bytes: u64) {
        let mut flow = lock(&self.flow);
        let paid = flow.credit.min(bytes);
        flow.credit -= paid;
        flow.debt = flow.debt.saturating_add(bytes - paid);
    }

    /// Ends the stream; the first reason is kept.
    pub(crate) fn stop(&self, stop: Stop) {
        let mut flow = lock(&self.flow);
        flow.stop.get_or_insert(stop);
        let monitor = flow.monitor.clone();
        drop(flow);
        self.changed.notify_all();
        if let Some(monitor) = monitor {
            monitor.cancel();
        }
    }

    /// Returns the reason why the stream should end, if any.
    pub(crate) fn stopped(&self) -> Option<Stop> {
        lock(&self.flow).stop
    }

    /// From now on, stopping the stream also cancels the source.
    pub(crate) fn watch(&self, monitor: Arc<dyn StreamMonitor>) {
        let mut flow = lock(&self.flow);
        let stopped = flow.stop.is_some();
        flow.monitor = Some(Arc::clone(&monitor));
        drop(flow);
        if stopped {
            monitor.cancel();
        }
    }

    /// Records how the connection ended; the first call is kept.
    pub(crate) fn end(&self, ending: Ending) {
        lock(&self.flow).ending.get_or_insert(ending);
    }

    /// Records that the client does not receive any more. The thread that reads its last messages decides how the
    /// connection ended.
    pub(crate) fn send_failed(&self, error: forebay_wire::Error) {
        lock(&self.flow).send_error = Some(error);
        self.socket.shutdown(Shutdown::Both);
    }

    /// Takes the error of a batch that could not be sent.
    pub(crate) fn take_send_error(&self) -> Option<forebay_wire::Error> {
        lock(&self.flow).send_error.take()
    }

    /// Returns how the connection ended, if recorded.
    pub(crate) fn ending(&self) -> Option<Ending> {
        lock(&self.flow).ending.clone()
    }

    /// Returns the monitor of the stream's source, once the stream is open.
    pub(crate) fn monitor(&self) -> Option<Arc<dyn StreamMonitor>> {
        lock(&self.flow).monitor.clone()
    }

    /// Adds the stream of this connection to the totals of its name.
    pub(crate) fn add_to(&self, totals: &mut NameTotals) {
        let reads = self.monitor().map(|monitor| monitor.reads());
        totals.add(&self.counted_stats(), &reads.unwrap_or_default());
        totals.starved_s += self.stats().trainer_starved.as_secs_f64();
    }

    /// Returns the stream of this connection with its statistics, if it is open.
    pub(crate) fn stream(&self) -> Option<OpenStream> {
        let live = self.live()?;
        let monitor = self.monitor();
        Some(OpenStream {
            connection: self.id,
            peer: self.peer,
            transport: match (self.socket.local(), self.socket.is_tls()) {
                (Some(_), _) => "shm",
                (None, true) => "tls",
                (None, false) => "tcp",
            },
            connections: 1 + self.lanes() as u64,
            live,
            stats: self.stats_message(),
            counted: self.counted_stats(),
            starved_s: self.stats().trainer_starved.as_secs_f64(),
            queues: monitor.as_ref().map(|m| m.queues()).unwrap_or_default(),
            reads: monitor.map(|m| m.reads()).unwrap_or_default(),
        })
    }

    /// Number of additional connections.
    pub(crate) fn lanes(&self) -> usize {
        lock(&self.lanes).len()
    }

    /// Records that a stream is open.
    pub(crate) fn opened(&self, live: LiveStream) {
        lock(&self.flow).live = Some(live);
    }

    /// Records the number of the next batch, counted over all epochs.
    pub(crate) fn at_step(&self, step: u64) {
        if let Some(live) = &mut lock(&self.flow).live {
            live.step = step;
        }
    }

    /// Returns the stream, if it is open.
    pub(crate) fn live(&self) -> Option<LiveStream> {
        let flow = lock(&self.flow);
        let live = flow.live.clone()?;
        Some(LiveStream {
            credit_bytes: flow.credit,
            ..live
        })
    }

    pub(crate) fn stats(&self) -> ServerStreamStats {
        let flow = lock(&self.flow);
        let (first, last) = flow.waited_us.unwrap_or_default();
        ServerStreamStats {
            trainer_starved: Duration::from_micros(last - first),
            ..flow.stats
        }
    }

    pub(crate) fn set_stats(&self, stats: ServerStreamStats) {
        lock(&self.flow).stats = stats;
    }

    /// Statistics of the stream's stages, the source's first; only the `send` stage before a stream
    /// is open.
    pub(crate) fn stats_message(&self) -> wire::Stats {
        self.stats_of(|monitor| monitor.stats())
    }

    /// As [`Link::stats_message`], but work shared by several streams is counted in one of them
    /// only, for totals.
    pub(crate) fn counted_stats(&self) -> wire::Stats {
        self.stats_of(|monitor| monitor.counted())
    }

    fn stats_of(&self, work: impl FnOnce(Arc<dyn StreamMonitor>) -> wire::Stats) -> wire::Stats {
        let flow = lock(&self.flow);
        let (monitor, stats) = (flow.monitor.clone(), flow.stats);
        drop(flow);
        let mut message = monitor.map_or_else(wire::Stats::default, work);
        message.stages.push(stats.stage());
        message.images = stats.images;
        message.batches = stats.batches;
        message.payload_bytes = stats.payload_bytes;
        message.elapsed_s = self.began.elapsed().as_secs_f64();
        message
    }
}
