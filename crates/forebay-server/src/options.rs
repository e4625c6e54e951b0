//! Options of a server, with its limits.

use std::fmt;
use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::sync::Arc;
use std::time::Duration;

use forebay_image::Limits;
use forebay_wire::transport::tls::ServerTls;

use crate::access::Tokens;
use crate::error::{Error, Result};
use crate::observer::{ServerObserver, Silent};

/// Options of a [`Server`](crate::Server). The defaults suit most uses.
///
/// ```
/// use forebay_server::ServerOptions;
///
/// let options = ServerOptions {
///     listen: "127.0.0.1:0".parse().unwrap(),
///     ..ServerOptions::default()
/// };
/// assert_eq!(options.max_connections, 1024);
/// ```
#[derive(Clone)]
pub struct ServerOptions {
    /// The address to listen on; port 0 selects a free port.
    pub listen: SocketAddr,
    /// Allows addresses that other machines can reach without TLS or without tokens. Only for
    /// trusted networks.
    pub allow_remote: bool,
    /// Certificate and key; `None` disables TLS.
    pub tls: Option<ServerTls>,
    /// Tokens that clients authenticate with.
    pub tokens: Tokens,
    /// Maximum number of connections. At the limit, a new connection replaces one that has not
    /// completed its handshake; if there is none, the client gets a `Busy` error.
    pub max_connections: usize,
    /// Maximum number of connections from one address; 0 for no limit. `None`: 256 for each other
    /// machine, and no limit for this one.
    pub max_connections_per_address: Option<usize>,
    /// Handshake timeout, including TLS.
    pub handshake_timeout: Duration,
    /// Interval at which the server sends a ping if it sends nothing else.
    pub heartbeat: Duration,
    /// How long a client may leave a ping unanswered.
    pub idle_timeout: Duration,
    /// How long a client may read nothing of a batch that is being sent.
    pub stall_timeout: Duration,
    /// How long [`stop`](crate::Stopper::stop) waits for streams to drain.
    pub drain_timeout: Duration,
    /// Maximum batch payload, in bytes.
    pub max_batch_bytes: u64,
    /// Maximum image size to decode; a client can lower it, but not raise it.
    pub image_limits: Limits,
    /// Memory limit of one stream's pipeline, in bytes; `None` leaves it to the loader.
    pub stream_memory_bytes: Option<u64>,
    /// Memory limit of the pipelines of all streams, in bytes; `None` is half of the memory that
    /// this process may use. A stream that does not fit is opened with less memory, reading record
    /// by record, or rejected with a `Busy` error.
    pub total_memory_bytes: Option<u64>,
    /// Maximum number of decode threads per stream; `None` is one per core. Streams share the cores
    /// by weight in any case, see [`Server::set_weight`](crate::Server::set_weight).
    pub stream_threads: Option<usize>,
    /// Memory per stream that is shared with a client on this host, in bytes; batches beyond it go
    /// over the socket. 0 disables shared memory.
    pub shared_memory_bytes: u64,
    /// Memory for decoded batches that streams with the same options share, for all of them
    /// together, in bytes. With 0 each stream decodes separately.
    pub shared_batches_bytes: u64,
    /// Maximum bytes per second sent to other machines, shared by weight; 0 for no limit.
    pub bandwidth: u64,
    /// Receives events.
    pub observer: Arc<dyn ServerObserver>,
}

impl Default for ServerOptions {
    fn default() -> Self {
        ServerOptions {
            listen: SocketAddr::from((Ipv4Addr::LOCALHOST, 7070)),
            allow_remote: false,
            tls: None,
            tokens: Tokens::default(),
            max_connections: 1024,
            max_connections_per_address: None,
            handshake_timeout: Duration::from_secs(5),
            // A client gives up after three missed pings, so it notices a server that hangs within
            // ten seconds.
            heartbeat: Duration::from_secs(3),
            idle_timeout: Duration::from_secs(30),
            stall_timeout: Duration::from_secs(30),
            drain_timeout: Duration::from_secs(10),
            max_batch_bytes: 1 << 30,
            image_limits: Limits::default(),
            stream_memory_bytes: None,
            total_memory_bytes: None,
            stream_threads: None,
            shared_memory_bytes: 1 << 30,
            shared_batches_bytes: 1 << 30,
            bandwidth: 0,
            observer: Arc::new(Silent),
        }
    }
}

/// Default limit of connections from one other machine: a node with many ranks has a few for each.
const MAX_FROM_ELSEWHERE: usize = 256;

impl ServerOptions {
    /// Memory limit of the pipelines of all streams, with the default filled in.
    #[must_use]
    pub fn total_memory(&self) -> u64 {
        let half = || crate::memory::of_this_machine().map_or(u64::MAX, |bytes| bytes / 2);
        self.total_memory_bytes.unwrap_or_else(half)
    }

    /// Maximum number of connections from this address; `None` for no limit.
    pub(crate) fn most_from(&self, address: IpAddr) -> Option<usize> {
        match self.max_connections_per_address {
            None if address.is_loopback() => None,
            None => Some(MAX_FROM_ELSEWHERE),
            Some(most) => Some(most).filter(|&most| most > 0),
        }
    }

    pub(crate) fn check(&self) -> Result<()> {
        if !self.listen.ip().is_loopback() && !self.allow_remote {
            let knows_clients = !self.tokens.is_empty()
                || self.tls.as_ref().is_some_and(|tls| tls.client_ca.is_some());
            let missing = match (self.tls.is_some(), knows_clients) {
                (true, true) => None,
                (true, false) => Some("tokens, which would let anyone read the data"),
                (false, true) => Some("TLS, which would send tokens and batches unencrypted"),
                (false, false) => Some(
                    "TLS and tokens, which would let anyone read the data over unencrypted links",
                ),
            };
            if let Some(missing) = missing {
                return Err(Error::NotLoopback {
                    address: self.listen,
                    missing,
                });
            }
        }
        for (name, value) in [
            ("handshake_timeout", self.handshake_timeout),
            ("heartbeat", self.heartbeat),
            ("idle_timeout", self.idle_timeout),
            ("stall_timeout", self.stall_timeout),
        ] {
            if value < Duration::from_millis(2) {
                return Err(Error::Option {
                    name,
                    expected: "2 ms or more",
                    found: format!("{value:?}"),
                });
            }
        }
        Ok(())
    }
}

impl fmt::Debug for ServerOptions {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ServerOptions")
            .field("listen", &self.listen)
            .field("allow_remote", &self.allow_remote)
            .field("tls", &self.tls)
            .field("tokens", &self.tokens)
            .field("max_connections", &self.max_connections)
            .finish_non_exhaustive()
    }
}
