//! Options of a client and of its streams.

use std::fmt;
use std::path::PathBuf;
use std::str::FromStr;
use std::sync::Arc;
use std::time::{Duration, Instant};

use forebay_options::LoaderOptions;
use forebay_wire::transport::tls::ClientTls;
use forebay_wire::{HostRegistry, Socket, Token};

use crate::error::Error;

/// Options of a [`Client`](crate::Client) and its streams. The defaults suit most uses.
#[derive(Debug, Clone)]
pub struct ClientOptions {
    /// Name and version of the program, for the server's log.
    pub name: String,
    /// Connect timeout, for each address.
    pub connect_timeout: Duration,
    /// Timeout for the handshake and for opening a stream.
    pub open_timeout: Duration,
    /// How long connecting and opening retry, with backoff, while servers are busy or do not run:
    /// they refuse connections, stop, or their name cannot be resolved for now. Zero: no retries.
    pub server_timeout: Duration,
    /// Callback that can cancel connecting and opening while they are retried.
    pub wanted: CancelCheck,
    /// Receives a line of text when connecting is retried.
    pub notice: Notice,
    /// Timeout of [`Stream::next_batch`](crate::Stream::next_batch). It applies while the server
    /// sends heartbeats, so it detects a server that is slow, not one that is down.
    pub batch_timeout: Duration,
    /// How long the server may be silent; `None`: three times the heartbeat that it announces.
    pub silence_timeout: Option<Duration>,
    /// How long the client tries to reconnect, to the lost server and to others of the URL, before
    /// the stream fails. Zero: no reconnects.
    pub reconnect_for: Duration,
    /// How often a stream checks whether it should migrate to the server that placement assigns to it. For each check, a
    /// list of servers that comes from a name or a file is read again. The migration leaves no gap. Zero: never.
    pub look_every: Duration,
    /// Limit of the bytes of batches in flight or queued here; `None`: three batches. With encoded
    /// images, whose batches vary in size, one batch may exceed it.
    pub credit_bytes: Option<u64>,
    /// Whether the server adds a checksum to each payload, for verification here. `None`: yes,
    /// except on this machine and over TLS, which verifies integrity itself.
    pub payload_checksum: Option<bool>,
    /// Maximum accepted batch size, in bytes.
    pub max_batch_bytes: u64,
    /// Registers the memory of batches for a device, which then copies them from there.
    pub registry: Option<HostRegistry>,
    /// How batches are transferred.
    pub transport: Transport,
    /// Number of TCP connections over which slices of each batch arrive in parallel, 1 to 16: for
    /// networks that one connection, or one core, cannot saturate. Each counts against the server's
    /// limit of connections.
    pub connections: usize,
    /// Token of this client, if servers require one.
    pub credential: Option<Credential>,
    /// Trusted certificates and the client's own; for URLs that begin with `forebays://`.
    pub tls: ClientTls,
}

/// A callback that is called about 20 times a second while the client waits, and may cancel the wait.
/// By default it does not.
#[derive(Clone)]
pub struct CancelCheck(Arc<dyn Fn() -> bool + Send + Sync>);

impl CancelCheck {
    /// Waits continue while `is_wanted` returns true.
    pub fn new(is_wanted: impl Fn() -> bool + Send + Sync + 'static) -> Self {
        CancelCheck(Arc::new(is_wanted))
    }

    /// Sleeps for `time`; returns an error as soon as the wait is cancelled.
    pub(crate) fn pause(&self, time: Duration) -> crate::Result<()> {
        const SLICE: Duration = Duration::from_millis(50);
        let end = Instant::now() + time;
        loop {
            if !(self.0)() {
                return Err(Error::Interrupted);
            }
            let left = end.saturating_duration_since(Instant::now());
            if left.is_zero() {
                return Ok(());
            }
            std::thread::sleep(left.min(SLICE));
        }
    }
}

impl Default for CancelCheck {
    fn default() -> Self {
        CancelCheck::new(|| true)
    }
}

impl fmt::Debug for CancelCheck {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Wanted").field(&(self.0)()).finish()
    }
}

/// A callback that receives messages for the user, one line each, without a line break. By default they go to stderr.
#[derive(Clone)]
pub struct Notice(Arc<dyn Fn(&str) + Send + Sync>);

impl Notice {
    /// Calls `say` with each line.
    pub fn new(say: impl Fn(&str) + Send + Sync + 'static) -> Self {
        Notice(Arc::new(say))
    }

    pub(crate) fn say(&self, line: &str) {
        (self.0)(line);
    }
}

impl Default for Notice {
    fn default() -> Self {
        Notice::new(|line| eprintln!("forebay: {line}"))
    }
}

impl fmt::Debug for Notice {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Notice")
    }
}

/// A token, or its location.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Credential {
    /// The token itself.
    Token(Token),
    /// A file, of which the first token is used. It is read for each connection, so the token can
    /// be rotated.
    File(PathBuf),
}

impl Credential {
    /// Returns the current token.
    ///
    /// # Errors
    ///
    /// [`Error::Token`](crate::Error::Token).
    pub fn token(&self) -> crate::Result<Token> {
        Ok(match self {
            Credential::Token(token) => token.clone(),
            Credential::File(path) => Token::from_file(path)?,
        })
    }
}

impl ClientOptions {
    /// Fills in unset options from the environment: the token from `FOREBAY_TOKEN` or the file `FOREBAY_TOKEN_FILE`,
    /// certificate authorities from `FOREBAY_TLS_CA`, and the client's own certificate from `FOREBAY_TLS_CLIENT_CERT` and
    /// `FOREBAY_TLS_CLIENT_KEY`.
    ///
    /// # Errors
    ///
    /// [`Error::Token`](crate::Error::Token) for an invalid token.
    pub fn with_environment(mut self) -> crate::Result<Self> {
        let path = |name: &str| {
            std::env::var_os(name)
                .filter(|value| !value.is_empty())
                .map(PathBuf::from)
        };
        if self.credential.is_none() {
            const NAME: &str = "FOREBAY_TOKEN";
            self.credential = match std::env::var_os(NAME).filter(|value| !value.is_empty()) {
                Some(text) => {
                    let text = text.to_string_lossy();
                    let from = format_args!("the environment variable {NAME}");
                    Some(Credential::Token(Token::new(text.trim(), from)?))
                }
                None => path("FOREBAY_TOKEN_FILE").map(Credential::File),
            };
        }
        self.tls.ca = self.tls.ca.or_else(|| path("FOREBAY_TLS_CA"));
        if self.tls.identity.is_none() {
            self.tls.identity = path("FOREBAY_TLS_CLIENT_CERT").zip(path("FOREBAY_TLS_CLIENT_KEY"));
        }
        Ok(self)
    }
}

impl Default for ClientOptions {
    fn default() -> Self {
        ClientOptions {
            name: concat!("forebay-client/", env!("CARGO_PKG_VERSION")).to_owned(),
            connect_timeout: Duration::from_secs(5),
            open_timeout: Duration::from_secs(60),
            server_timeout: Duration::from_secs(60),
            wanted: CancelCheck::default(),
            notice: Notice::default(),
            batch_timeout: Duration::from_secs(120),
            silence_timeout: None,
            reconnect_for: Duration::from_secs(30),
            look_every: Duration::from_secs(5),
            credit_bytes: None,
            payload_checksum: None,
            max_batch_bytes: 1 << 30,
            registry: None,
            transport: Transport::default(),
            connections: 1,
            credential: None,
            tls: ClientTls::default(),
        }
    }
}

/// How batches are transferred from a server. Written as `auto`, `shm` and `tcp`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Transport {
    /// Shared memory with a server on this host that offers it, otherwise TCP.
    #[default]
    Auto,
    /// Shared memory; an error if it is unavailable.
    Shm,
    /// TCP.
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

/// The transport that a stream uses. Written as `shm` and `tcp`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Via {
    /// Memory that the server shares with this process.
    Shm,
    /// TCP.
    Tcp,
}

impl Via {
    pub(crate) fn of(socket: &Socket) -> Via {
        match socket {
            Socket::Local(_) => Via::Shm,
            Socket::Tcp(_) => Via::Tcp,
        }
    }

    /// Returns `shm` or `tcp`.
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

/// Selects a stream and its start position.
///
/// ```
/// use forebay_client::{LoaderOptions, StreamOptions};
///
/// let from_the_start = StreamOptions::from(LoaderOptions::default());
/// let resumed = StreamOptions { epoch: 3, position: 5120, ..from_the_start };
/// ```
#[derive(Debug, Clone, Default, PartialEq)]
pub struct StreamOptions {
    /// The options that determine the batches. The server fills in the rest; if the URL names a job, these must agree with it.
    pub options: LoaderOptions,
    /// First epoch.
    pub epoch: u64,
    /// Start position in that epoch: the samples that were delivered before, to all ranks together.
    pub position: u64,
    /// Number of epochs to deliver, including a partial first one; 0 for no limit.
    pub epochs: u64,
    /// Required fingerprint of the dataset; `None`: any dataset.
    pub fingerprint: Option<String>,
}

impl From<LoaderOptions> for StreamOptions {
    fn from(options: LoaderOptions) -> Self {
        StreamOptions {
            options,
            ..StreamOptions::default()
        }
    }
}
