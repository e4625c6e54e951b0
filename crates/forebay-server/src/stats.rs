//! Counters of sent batches and of time spent.

use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use forebay_wire::wire;

/// Counters of one stream.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct ServerStreamStats {
    /// Batches sent.
    pub batches: u64,
    /// Samples sent, padding included.
    pub images: u64,
    /// Payload bytes.
    pub payload_bytes: u64,
    /// Time spent sending.
    pub sending: Duration,
    /// Time spent waiting for a batch to be made.
    pub starved: Duration,
    /// Time spent waiting for the client's credit.
    pub blocked: Duration,
    /// Time that the trainer waited for batches, as the client reports it.
    pub trainer_starved: Duration,
}

impl ServerStreamStats {
    /// Returns these counters as those of the last pipeline stage, `send`.
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

/// Counters over all connections of a server.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct ServerStats {
    /// Connections open now.
    pub connections: u64,
    /// Connections accepted so far.
    pub accepted: u64,
    /// Connections rejected because of a limit.
    pub refused: u64,
    /// Failures of the system to accept a connection.
    pub accept_errors: u64,
    /// Clients rejected because their token is missing, unknown or for other names.
    pub unauthorized: u64,
    /// Connections that did not end by their client's choice.
    pub failed: u64,
    /// Streams that migrated to another server when this one stopped.
    pub handed_over: u64,
    /// Streams opened.
    pub streams: u64,
    /// Batches sent.
    pub batches: u64,
    /// Samples sent, padding included.
    pub images: u64,
    /// Payload bytes.
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
