//! Counters of sent batches and of time spent.

use std::sync::{Mutex, PoisonError};
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

/// Counters over all connections, without the number of those that are open.
#[derive(Debug, Default)]
pub(crate) struct Counters(Mutex<ServerStats>);

impl Counters {
    pub(crate) fn count(&self, change: impl FnOnce(&mut ServerStats)) {
        change(&mut self.0.lock().unwrap_or_else(PoisonError::into_inner));
    }

    pub(crate) fn snapshot(&self, connections: usize) -> ServerStats {
        let counted = *self.0.lock().unwrap_or_else(PoisonError::into_inner);
        ServerStats {
            connections: connections as u64,
            ..counted
        }
    }
}
