//! What happens in a server, told to whoever wants to print or count it.

use std::fmt;
use std::io;
use std::net::SocketAddr;
use std::time::Duration;

use forebay_options::StreamInfo;
use forebay_wire::Peer;

use crate::stats::StreamStats;

/// Hears of events, on the thread they happen on: it should be quick.
pub trait Observer: Send + Sync {
    /// Something happened. [`Event`] prints as one line.
    fn event(&self, event: &Event<'_>);
}

/// The observer that does nothing.
pub(crate) struct Silent;

impl Observer for Silent {
    fn event(&self, _: &Event<'_>) {}
}

impl<F: Fn(&Event<'_>) + Send + Sync> Observer for F {
    fn event(&self, event: &Event<'_>) {
        self(event);
    }
}

/// What happened. `connection` numbers the connections of a server from 1.
#[derive(Debug)]
#[non_exhaustive]
pub enum Event<'a> {
    /// The server takes clients from now on.
    Listening {
        /// Where.
        address: SocketAddr,
    },
    /// There is no shared memory with clients on this host; they get batches over TCP.
    NotLocal {
        /// The system's answer.
        error: &'a io::Error,
    },
    /// A client said who it is and was welcomed.
    Welcomed {
        /// Number of the connection.
        connection: u64,
        /// The client.
        peer: Peer,
        /// Name and version the client gives.
        client: &'a str,
        /// The dataset it wants.
        dataset: &'a str,
    },
    /// A stream begins.
    Opened {
        /// Number of the connection.
        connection: u64,
        /// The dataset.
        dataset: &'a str,
        /// The stream, defaults filled in.
        stream: &'a StreamInfo,
        /// First epoch.
        epoch: u64,
        /// Position in it.
        position: u64,
    },
    /// All batches of an epoch were sent.
    EpochEnd {
        /// Number of the connection.
        connection: u64,
        /// Which epoch.
        epoch: u64,
        /// How many batches of it were sent.
        batches: u64,
    },
    /// A connection is over.
    Closed {
        /// Number of the connection.
        connection: u64,
        /// The client.
        peer: Peer,
        /// Why, for people.
        why: &'a str,
        /// Whether this is how connections should end.
        clean: bool,
        /// What was sent.
        stats: &'a StreamStats,
    },
    /// A client was turned away because there are too many.
    Refused {
        /// The client.
        peer: Peer,
        /// The limit.
        max_connections: usize,
    },
    /// A client was turned away because of its address: too many are from there.
    RefusedAddress {
        /// Address of the client.
        peer: Peer,
        /// The limit.
        max_connections: usize,
    },
    /// Files that count while the server runs have changed, and were read again.
    Reloaded {
        /// Which: `tokens` or `certificates`.
        what: &'static str,
        /// Why what was in them before still counts; `None`: what is in them counts now.
        problem: Option<&'a str>,
    },
    /// The system gives no further connection at the moment.
    AcceptFailed {
        /// The system's answer.
        error: &'a io::Error,
        /// When the server tries again.
        retry_in: Duration,
    },
    /// The server takes no clients any more and lets the others finish.
    Stopping {
        /// Connections that are open.
        connections: usize,
    },
    /// The server is done.
    Stopped,
}

impl Event<'_> {
    /// Whether it should not have been: somebody was turned away or thrown out, or files could not be used.
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
                "new {what} cannot be used, those from before still count: {problem}"
            ),
            Event::AcceptFailed { error, retry_in } => write!(
                f,
                "cannot take another connection: {error}; trying again in {retry_in:?}"
            ),
            Event::Stopping { connections } => {
                write!(f, "stopping, {connections} connections are open")
            }
            Event::Stopped => f.write_str("stopped"),
        }
    }
}
