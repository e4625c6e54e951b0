//! What a client is told.

use std::fmt;
use std::str::FromStr;
use std::time::Duration;

use forebay_wire::{BufferPool, Socket, wire};

use crate::error::Error;

/// Options of a [`Client`](crate::Client) and its streams. The defaults are
/// meant for use.
#[derive(Debug, Clone)]
pub struct ClientOptions {
    /// Name and version of the program, for the server's log.
    pub name: String,
    /// How long connecting may take, for each address.
    pub connect_timeout: Duration,
    /// How long the server may take to answer the handshake and to open a stream.
    pub open_timeout: Duration,
    /// How long [`Stream::next_batch`](crate::Stream::next_batch) waits at most.
    /// The server is known to be there meanwhile; this is about slowness.
    pub batch_timeout: Duration,
    /// How long the server may be silent; `None`: three times what it promises.
    pub silence_timeout: Option<Duration>,
    /// How long a lost server is tried again, and others of the URL are tried,
    /// before the stream fails. Zero: not at all.
    pub reconnect_for: Duration,
    /// Bytes of batches that may be on their way or waiting here; `None`: three
    /// batches. With encoded images, whose batches vary in size, one may come beyond it.
    pub credit_bytes: Option<u64>,
    /// Whether the server adds a checksum to each payload, and it is checked
    /// here; `None`: unless the connection stays on this machine.
    pub payload_checksum: Option<bool>,
    /// Largest batch that is accepted.
    pub max_batch_bytes: u64,
    /// Where the memory of batches comes from; `None`: a pool of the stream's own. Batches that come in shared memory
    /// need none.
    pub pool: Option<BufferPool>,
    /// How batches may come.
    pub transport: Transport,
    /// Over how many TCP connections each batch comes at once, 1 to 16: for networks that one of them, or one core, does
    /// not fill. Each counts as a client of the server.
    pub connections: usize,
}

impl Default for ClientOptions {
    fn default() -> Self {
        ClientOptions {
            name: concat!("forebay-client/", env!("CARGO_PKG_VERSION")).to_owned(),
            connect_timeout: Duration::from_secs(5),
            open_timeout: Duration::from_secs(60),
            batch_timeout: Duration::from_secs(120),
            silence_timeout: None,
            reconnect_for: Duration::from_secs(30),
            credit_bytes: None,
            payload_checksum: None,
            max_batch_bytes: 1 << 30,
            pool: None,
            transport: Transport::default(),
            connections: 1,
        }
    }
}

/// How batches may come from a server. Written as `auto`, `shm` and `tcp`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Transport {
    /// Through shared memory from a server on this host that offers it, over TCP from every other.
    #[default]
    Auto,
    /// Through shared memory, or not at all.
    Shm,
    /// Over TCP.
    Tcp,
}

impl FromStr for Transport {
    type Err = Error;

    fn from_str(text: &str) -> Result<Transport, Error> {
        Ok(match text {
            "auto" => Transport::Auto,
            "shm" => Transport::Shm,
            "tcp" => Transport::Tcp,
            other => {
                return Err(Error::Option {
                    name: "transport",
                    expected: "auto, shm or tcp".to_owned(),
                    found: other.to_owned(),
                });
            }
        })
    }
}

impl fmt::Display for Transport {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Transport::Auto => "auto",
            Transport::Shm => "shm",
            Transport::Tcp => "tcp",
        })
    }
}

/// How the batches of a stream come. Written as `shm` and `tcp`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Via {
    /// Through memory that the server shares with this process.
    Shm,
    /// Over TCP.
    Tcp,
}

impl Via {
    pub(crate) fn of(socket: &Socket) -> Via {
        match socket {
            Socket::Local(_) => Via::Shm,
            Socket::Tcp(_) => Via::Tcp,
        }
    }

    /// `shm` or `tcp`.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Via::Shm => "shm",
            Via::Tcp => "tcp",
        }
    }
}

impl fmt::Display for Via {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

/// Which stream, and from where on.
///
/// ```
/// use forebay_client::{OpenOptions, wire::StreamSpec};
///
/// let from_the_start = OpenOptions::from(StreamSpec::default());
/// let resumed = OpenOptions { epoch: 3, position: 5120, ..from_the_start };
/// ```
#[derive(Debug, Clone, Default, PartialEq)]
pub struct OpenOptions {
    /// What the batches are a function of. Zeroes are filled in by the server.
    pub spec: wire::StreamSpec,
    /// First epoch.
    pub epoch: u64,
    /// Samples of that epoch that were delivered already, to all ranks together.
    pub position: u64,
    /// Epochs to deliver, a part of one counts; 0: as many as are asked for.
    pub epochs: u64,
    /// The dataset it must be; `None`: any.
    pub fingerprint: Option<String>,
}

impl From<wire::StreamSpec> for OpenOptions {
    fn from(spec: wire::StreamSpec) -> Self {
        OpenOptions {
            spec,
            ..OpenOptions::default()
        }
    }
}
