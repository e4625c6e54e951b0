//! Counters of a stream on the client side.

use std::time::Duration;

use crate::RemoteStats;

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
    /// Batches received from it, also those that the consumer has not taken.
    pub batches: u64,
    /// Payload bytes.
    pub payload_bytes: u64,
}

/// Maximum number of servers with counters; the oldest are dropped.
const MOST_USES: usize = 256;

/// Facts about a batch that has arrived.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct Received {
    pub(crate) bytes: u64,
    pub(crate) shared: bool,
    /// Time spent reading the payload.
    pub(crate) receiving: Duration,
    /// CPU time of the receiving thread since the last batch.
    pub(crate) cpu: Duration,
    /// Time since the connection was lost, for the first batch after that.
    pub(crate) gap: Duration,
}

/// The counters of a stream. They continue when it starts again at another position.
#[derive(Debug, Clone, Default)]
pub(crate) struct Counters {
    pub(super) stream: StreamStats,
    pub(super) servers: Vec<ServerUse>,
    /// The latest answer of the server to a request for its statistics.
    pub(super) answer: Option<RemoteStats>,
    /// The waits of the trainer, if it is not the caller.
    pub(super) reported: Option<Duration>,
}

impl Counters {
    /// How long the trainer has waited for batches.
    pub(super) fn waited(&self) -> Duration {
        self.reported.unwrap_or(self.stream.starved)
    }

    /// Counts a batch from `server`.
    pub(super) fn batch(&mut self, server: &str, received: &Received) {
        let stats = &mut self.stream;
        stats.batches += 1;
        stats.shared += u64::from(received.shared);
        stats.payload_bytes += received.bytes;
        stats.receiving += received.receiving;
        stats.receiving_cpu += received.cpu;
        stats.longest_gap = stats.longest_gap.max(received.gap);
        if let Some(used) = self.servers.iter_mut().find(|used| used.server == server) {
            used.batches += 1;
            used.payload_bytes += received.bytes;
            return;
        }
        if self.servers.len() == MOST_USES {
            self.servers.remove(0);
        }
        self.servers.push(ServerUse {
            server: server.to_owned(),
            batches: 1,
            payload_bytes: received.bytes,
        });
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn batches_add_up_and_the_longest_gap_stays() {
        let mut counters = Counters::default();
        for (bytes, shared, gap) in [(10, false, 0), (20, true, 7), (30, true, 3)] {
            let received = Received {
                bytes,
                shared,
                receiving: Duration::from_secs(1),
                cpu: Duration::from_secs(2),
                gap: Duration::from_secs(gap),
            };
            counters.batch("a:1", &received);
        }
        let expected = StreamStats {
            batches: 3,
            shared: 2,
            payload_bytes: 60,
            receiving: Duration::from_secs(3),
            receiving_cpu: Duration::from_secs(6),
            longest_gap: Duration::from_secs(7),
            ..StreamStats::default()
        };
        assert_eq!(counters.stream, expected);
    }

    #[test]
    fn servers_are_listed_in_order_and_the_oldest_dropped() {
        let mut counters = Counters::default();
        let received = Received {
            bytes: 5,
            ..Received::default()
        };
        for server in ["b:1", "a:1", "b:1"] {
            counters.batch(server, &received);
        }
        let used: Vec<(&str, u64, u64)> = counters
            .servers
            .iter()
            .map(|used| (used.server.as_str(), used.batches, used.payload_bytes))
            .collect();
        assert_eq!(used, [("b:1", 2, 10), ("a:1", 1, 5)]);
        for i in 0..MOST_USES - 1 {
            counters.batch(&format!("c:{i}"), &received);
        }
        assert_eq!(counters.servers.len(), MOST_USES);
        assert_eq!(counters.servers[0].server, "a:1");
    }
}
