//! What a client is told.

use std::fmt;
use std::path::PathBuf;
use std::str::FromStr;
use std::sync::Arc;
use std::time::{Duration, Instant};

use forebay_options::LoaderOptions;
use forebay_wire::transport::tls::ClientTls;
use forebay_wire::{BufferPool, Socket, Token};

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
    /// How long the client retries, with growing pauses, while servers are busy. Zero: no retries.
    pub busy_timeout: Duration,
    /// Whether connecting and opening go on while they wait for a busy server.
    pub wanted: Wanted,
    /// How long [`Stream::next_batch`](crate::Stream::next_batch) waits at most.
    /// The server is known to be there meanwhile; this is about slowness.
    pub batch_timeout: Duration,
    /// How long the server may be silent; `None`: three times what it promises.
    pub silence_timeout: Option<Duration>,
    /// How long a lost server is tried again, and others of the URL are tried,
    /// before the stream fails. Zero: not at all.
    pub reconnect_for: Duration,
    /// How often a stream looks whether its servers are others now, where a name or a file says which they are, and
    /// whether the one that it belongs to is back. It goes over to it without a gap. Zero: never.
    pub look_every: Duration,
    /// Bytes of batches that may be on their way or waiting here; `None`: three
    /// batches. With encoded images, whose batches vary in size, one may come beyond it.
    pub credit_bytes: Option<u64>,
    /// Whether the server adds a checksum to each payload, and it is checked
    /// here; `None`: unless the connection stays on this machine, or TLS checks as much already.
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
    /// From how many servers each batch comes, 1 to 64: for a rank that takes more than one of them makes. Each has a part of
    /// the rank's lanes, so `world_size` times this has to divide them; batches are the same, put together here, which
    /// costs a copy. Batches whose samples depend on each other, and encoded images, come from one.
    pub spread: usize,
    /// What lets this client in, where servers want it.
    pub credential: Option<Credential>,
    /// Whom to trust, and who this client is; for URLs that begin with `forebays://`.
    pub tls: ClientTls,
}

/// Asks the program, a few times a second, whether it still wants what is waited for. By default it does.
#[derive(Clone)]
pub struct Wanted(Arc<dyn Fn() -> bool + Send + Sync>);

impl Wanted {
    /// As long as this says so.
    pub fn new(is_wanted: impl Fn() -> bool + Send + Sync + 'static) -> Self {
        Wanted(Arc::new(is_wanted))
    }

    /// Waits for `time`; an error as soon as nothing is wanted any more.
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

impl Default for Wanted {
    fn default() -> Self {
        Wanted::new(|| true)
    }
}

impl fmt::Debug for Wanted {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Wanted").field(&(self.0)()).finish()
    }
}

/// A token, or where it is.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Credential {
    /// The token itself.
    Token(Token),
    /// The first token of a file, which is read again for each connection, so that it may be replaced.
    File(PathBuf),
}

impl Credential {
    /// The token that counts now.
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
    /// Fills in what is not set from the environment: the token from `FOREBAY_TOKEN` or the file that
    /// `FOREBAY_TOKEN_FILE` names, authorities from `FOREBAY_TLS_CA`, the client's own certificate from
    /// `FOREBAY_TLS_CLIENT_CERT` and `FOREBAY_TLS_CLIENT_KEY`.
    ///
    /// # Errors
    ///
    /// [`Error::Token`](crate::Error::Token) for what is no token.
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
            busy_timeout: Duration::from_secs(60),
            wanted: Wanted::default(),
            batch_timeout: Duration::from_secs(120),
            silence_timeout: None,
            reconnect_for: Duration::from_secs(30),
            look_every: Duration::from_secs(5),
            credit_bytes: None,
            payload_checksum: None,
            max_batch_bytes: 1 << 30,
            pool: None,
            transport: Transport::default(),
            connections: 1,
            spread: 1,
            credential: None,
            tls: ClientTls::default(),
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
/// use forebay_client::{LoaderOptions, OpenOptions};
///
/// let from_the_start = OpenOptions::from(LoaderOptions::default());
/// let resumed = OpenOptions { epoch: 3, position: 5120, ..from_the_start };
/// ```
#[derive(Debug, Clone, Default, PartialEq)]
pub struct OpenOptions {
    /// What the batches are a function of. The server fills in what is not given; where it has a job, what is given must agree.
    pub options: LoaderOptions,
    /// First epoch.
    pub epoch: u64,
    /// Samples of that epoch that were delivered already, to all ranks together.
    pub position: u64,
    /// Epochs to deliver, a part of one counts; 0: as many as are asked for.
    pub epochs: u64,
    /// The dataset it must be; `None`: any.
    pub fingerprint: Option<String>,
}

impl From<LoaderOptions> for OpenOptions {
    fn from(options: LoaderOptions) -> Self {
        OpenOptions {
            options,
            ..OpenOptions::default()
        }
    }
}
