//! What a server is told, and the limits it keeps.

use std::fmt;
use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::sync::Arc;
use std::time::Duration;

use forebay_image::Limits;
use forebay_wire::transport::tls::ServerTls;

use crate::access::Tokens;
use crate::error::{Error, Result};
use crate::observer::{Observer, Silent};

/// Options of a [`Server`](crate::Server). The defaults are meant for use.
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
    /// Where to listen; port 0 is any free port.
    pub listen: SocketAddr,
    /// Allows addresses that other machines can reach without encryption, or without anything that
    /// keeps strangers out. This is for networks that one trusts.
    pub allow_remote: bool,
    /// With what the server proves itself and encrypts; `None`: neither.
    pub tls: Option<ServerTls>,
    /// Who is let in.
    pub tokens: Tokens,
    /// Clients at once; the next one is told that the server is busy, unless it can have the place of one that has
    /// not said who it is.
    pub max_connections: usize,
    /// Clients at once from one address; 0: no limit but the one above. `None`: 256 from each other machine, and no limit
    /// for this one.
    pub max_connections_per_address: Option<usize>,
    /// How long a client may take to say who it is, the handshake of TLS included.
    pub handshake_timeout: Duration,
    /// The longest silence of the server towards a client, batches or not.
    pub heartbeat: Duration,
    /// How long a client may leave a ping unanswered.
    pub idle_timeout: Duration,
    /// How long a client may take no byte of what is being sent to it.
    pub stall_timeout: Duration,
    /// How long [`stop`](crate::Stopper::stop) lets batches that are being sent arrive.
    pub drain_timeout: Duration,
    /// Largest batch, in bytes of its payload.
    pub max_batch_bytes: u64,
    /// Largest image that is decoded; a client may ask for less, not for more.
    pub image_limits: Limits,
    /// Memory of one stream's pipeline, in bytes; `None` leaves it to the loader.
    pub stream_memory_bytes: Option<u64>,
    /// Memory of the pipelines of all streams together, in bytes; `None`: half of what this process may use. A stream that does not
    /// fit holds less, record by record, or is refused as by a server that is busy.
    pub total_memory_bytes: Option<u64>,
    /// Decoding threads of one stream, at most; `None`: one a core. Streams share the cores by weight in any case, see
    /// [`Server::set_weight`](crate::Server::set_weight).
    pub stream_threads: Option<usize>,
    /// Memory of one stream that is shared with a client on this host, in bytes; what does not fit travels over the
    /// socket. 0: none is shared.
    pub shared_memory_bytes: u64,
    /// Memory for batches that streams of the same options have in common, of all of them together, in bytes. 0: each stream
    /// decodes for itself.
    pub shared_batches_bytes: u64,
    /// Bytes a second that are sent to other machines, at most, shared by weight; 0: as many as go.
    pub bandwidth: u64,
    /// Hears what happens.
    pub observer: Arc<dyn Observer>,
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
            // A client gives up after three missed ones, so a server that hangs
            // is noticed within ten seconds.
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

/// Clients at once from another machine, when nothing is said: a node of many ranks has a few for each.
const MAX_FROM_ELSEWHERE: usize = 256;

impl ServerOptions {
    /// Bytes that the pipelines of all streams may hold.
    #[must_use]
    pub fn total_memory(&self) -> u64 {
        let half = || crate::memory::of_this_machine().map_or(u64::MAX, |bytes| bytes / 2);
        self.total_memory_bytes.unwrap_or_else(half)
    }

    /// Clients at once from this address; none for no limit.
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
                (true, false) => Some("tokens, so that anybody could read what is served"),
                (false, true) => Some("TLS, so that tokens and batches would travel unencrypted"),
                (false, false) => Some(
                    "TLS and tokens, so that batches would travel unencrypted to anybody who asks",
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
