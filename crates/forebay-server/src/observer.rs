//! Events of a server, for logging and counting.

use std::fmt;
use std::io;
use std::net::SocketAddr;
use std::time::Duration;

use forebay_options::StreamInfo;
use forebay_wire::Peer;

use crate::stats::ServerStreamStats;

/// Receives events, on the thread on which they occur, so it should return quickly.
pub trait ServerObserver: Send + Sync {
    /// Called for each event. [`Event`] prints as one line.
    fn event(&self, event: &Event<'_>);
}

/// The observer that does nothing.
pub(crate) struct Silent;

impl ServerObserver for Silent {
    fn event(&self, _: &Event<'_>) {}
}

impl<F: Fn(&Event<'_>) + Send + Sync> ServerObserver for F {
    fn event(&self, event: &Event<'_>) {
        self(event);
    }
}

/// An event. `connection` counts the connections of a server from 1.
#[derive(Debug)]
#[non_exhaustive]
pub enum Event<'a> {
    /// The server accepts clients from now on.
    Listening {
        /// The bound address.
        address: SocketAddr,
    },
    /// Shared memory is unavailable on this host; local clients get batches over TCP.
    NotLocal {
        /// The system's error.
        error: &'a io::Error,
    },
    /// A client completed the handshake.
    Welcomed {
        /// Number of the connection.
        connection: u64,
        /// The client.
        peer: Peer,
        /// Name and version that the client sent.
        client: &'a str,
        /// The requested dataset or job.
        dataset: &'a str,
    },
    /// A stream begins.
    Opened {
        /// Number of the connection.
        connection: u64,
        /// The requested dataset or job.
        dataset: &'a str,
        /// The stream, with defaults filled in.
        stream: &'a StreamInfo,
        /// First epoch.
        epoch: u64,
        /// Position in it, in samples.
        position: u64,
    },
    /// All batches of an epoch were sent.
    EpochEnd {
        /// Number of the connection.
        connection: u64,
        /// Number of the epoch.
        epoch: u64,
        /// Batches of it that were sent.
        batches: u64,
    },
    /// A connection ended.
    Closed {
        /// Number of the connection.
        connection: u64,
        /// The client.
        peer: Peer,
        /// The reason, as text.
        why: &'a str,
        /// Whether the end was orderly.
        clean: bool,
        /// Counters of its stream.
        stats: &'a ServerStreamStats,
    },
    /// A client was rejected because of the limit on connections.
    Refused {
        /// The client.
        peer: Peer,
        /// The limit.
        max_connections: usize,
    },
    /// A client was rejected because of the limit on connections from one address.
    RefusedAddress {
        /// Address of the client.
        peer: Peer,
        /// The limit.
        max_connections: usize,
    },
    /// Token or certificate files changed and were read again.
    Reloaded {
        /// `tokens` or `certificates`.
        what: &'static str,
        /// Why the previous content stays in effect; `None` if the new content is in effect.
        problem: Option<&'a str>,
    },
    /// The system refused to accept a connection.
    AcceptFailed {
        /// The system's error.
        error: &'a io::Error,
        /// When the server tries again.
        retry_in: Duration,
    },
    /// The server stops accepting clients and drains the others.
    Stopping {
        /// Open connections.
        connections: usize,
    },
    /// The server has stopped.
    Stopped,
}

impl Event<'_> {
    /// Returns whether this is a problem: a client was rejected or disconnected, or files were
    /// invalid.
    #[must_use]
    pub fn is_trouble(&self) -> bool {
        matches!(
            self,
            Event::Closed { clean: false, .. }
                | Event::Refused { .. }
                | Event::RefusedAddress { .. }
                | Event::Reloaded {
                    problem: Some(_),
                    ..
                }
                | Event::AcceptFailed { .. }
        )
    }
}

impl fmt::Display for Event<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Event::Listening { address } => write!(f, "listening on {address}"),
            Event::NotLocal { error } => {
                write!(
                    f,
                    "no shared memory, trainers on this host use TCP as well: {error}"
                )
            }
            Event::Welcomed {
                connection,
                peer,
                client,
                dataset,
            } => write!(
                f,
                "connection {connection}: {} from {peer} wants {dataset}",
                client.escape_debug()
            ),
            Event::Opened {
                connection,
                dataset,
                stream,
                epoch,
                position,
            } => write!(
                f,
                "connection {connection}: streams {dataset}/{} to rank {} of {}, {} samples a \
                 batch, from epoch {epoch}, position {position}",
                stream
                    .options
                    .split
                    .as_deref()
                    .unwrap_or_default()
                    .escape_debug(),
                stream.rank(),
                stream.world_size(),
                stream.batch_size()
            ),
            Event::EpochEnd {
                connection,
                epoch,
                batches,
            } => write!(
                f,
                "connection {connection}: epoch {epoch} sent, {batches} batches"
            ),
            Event::Closed {
                connection,
                peer,
                why,
                clean: _,
                stats,
            } => write!(
                f,
                "connection {connection}: {peer} {why}; {} batches, {:.1} MB",
                stats.batches,
                stats.payload_bytes as f64 / 1e6
            ),
            Event::Refused {
                peer,
                max_connections,
            } => write!(
                f,
                "refused {peer}: there are {max_connections} connections already"
            ),
            Event::RefusedAddress {
                peer,
                max_connections,
            } => write!(
                f,
                "refused {peer}: there are {max_connections} connections from there already"
            ),
            Event::Reloaded {
                what,
                problem: None,
            } => write!(f, "{what} were read again"),
            Event::Reloaded {
                what,
                problem: Some(problem),
            } => write!(
                f,
                "new {what} cannot be used, the previous ones stay in effect: {problem}"
            ),
            Event::AcceptFailed { error, retry_in } => write!(
                f,
                "cannot accept a connection: {error}; trying again in {retry_in:?}"
            ),
            Event::Stopping { connections } => {
                write!(f, "stopping, {connections} connections are open")
            }
            Event::Stopped => f.write_str("stopped"),
        }
    }
}
