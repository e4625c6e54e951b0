//! What a server sent and where its time went.

use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use forebay_wire::wire;

/// One stream.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct StreamStats {
    /// Batches sent.
    pub batches: u64,
    /// Samples sent, padding included.
    pub images: u64,
    /// Bytes of their pixels.
    pub payload_bytes: u64,
    /// Time spent sending.
    pub sending: Duration,
    /// Time spent waiting for a batch to be made.
    pub starved: Duration,
    /// Time spent waiting for the client to take what it has.
    pub blocked: Duration,
    /// Part of the time spent sending and waiting for a batch: while the client had taken all that was sent before.
    pub hungry: Duration,
}

impl StreamStats {
    /// As a stage of the pipeline, the last one.
    pub(crate) fn stage(&self) -> wire::Stage {
        wire::Stage {
            name: "send".to_owned(),
            busy_s: self.sending.as_secs_f64(),
            starved_s: self.starved.as_secs_f64(),
            blocked_s: self.blocked.as_secs_f64(),
            threads: 1,
        }
    }
}

/// Adds what storage gave another stream, by how many reads were under way at once.
pub(crate) fn add_levels(one: &mut Vec<wire::ReadLevel>, other: &[wire::ReadLevel]) {
    for (at, level) in other.iter().enumerate() {
        match one.get_mut(at) {
            Some(known) => {
                known.seconds += level.seconds;
                known.bytes += level.bytes;
            }
            None => one.push(*level),
        }
    }
}

/// Takes away what was known before.
pub(crate) fn take_levels(now: &mut [wire::ReadLevel], before: &[wire::ReadLevel]) {
    for (level, known) in now.iter_mut().zip(before) {
        level.seconds = (level.seconds - known.seconds).max(0.0);
        level.bytes = (level.bytes - known.bytes).max(0.0);
    }
}

/// All connections of a server together.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct ServerStats {
    /// Connections open now.
    pub connections: u64,
    /// Connections taken so far.
    pub accepted: u64,
    /// Connections turned away because there were too many.
    pub refused: u64,
    /// Times the system gave no further connection.
    pub accept_errors: u64,
    /// Clients that had no token, or one that is not known or for other names.
    pub unauthorized: u64,
    /// Connections that ended otherwise than by their client's wish.
    pub failed: u64,
    /// Streams that went on elsewhere when the server was to stop.
    pub handed_over: u64,
    /// Streams opened.
    pub streams: u64,
    /// Batches sent.
    pub batches: u64,
    /// Samples sent, padding included.
    pub images: u64,
    /// Bytes of their pixels.
    pub payload_bytes: u64,
}

#[derive(Debug, Default)]
pub(crate) struct Counters {
    pub(crate) accepted: AtomicU64,
    pub(crate) refused: AtomicU64,
    pub(crate) unauthorized: AtomicU64,
    pub(crate) accept_errors: AtomicU64,
    pub(crate) failed: AtomicU64,
    pub(crate) handed_over: AtomicU64,
    pub(crate) streams: AtomicU64,
    pub(crate) batches: AtomicU64,
    pub(crate) images: AtomicU64,
    pub(crate) payload_bytes: AtomicU64,
}

impl Counters {
    pub(crate) fn add(counter: &AtomicU64, n: u64) {
        counter.fetch_add(n, Ordering::Relaxed);
    }

    pub(crate) fn snapshot(&self, connections: usize) -> ServerStats {
        let get = |counter: &AtomicU64| counter.load(Ordering::Relaxed);
        ServerStats {
            connections: connections as u64,
            accepted: get(&self.accepted),
            refused: get(&self.refused),
            unauthorized: get(&self.unauthorized),
            accept_errors: get(&self.accept_errors),
            failed: get(&self.failed),
            handed_over: get(&self.handed_over),
            streams: get(&self.streams),
            batches: get(&self.batches),
            images: get(&self.images),
            payload_bytes: get(&self.payload_bytes),
        }
    }
}
