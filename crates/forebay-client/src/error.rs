//! What can go wrong between a client and its servers.

use std::io;
use std::path::PathBuf;
use std::time::Duration;

use forebay_wire::wire::error::Kind;

/// A result of this crate.
pub type Result<T, E = Error> = std::result::Result<T, E>;

/// Servers give a sign of life more often, batches or not: one that is silent for longer is perhaps not there.
const LIVELY: Duration = Duration::from_secs(5);

/// Why there is no batch.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// A URL that cannot be understood.
    #[error(
        "{url:?} is no URL of a server: {what}; expected forebay://HOST:PORT/NAME, forebay+dns://HOST:PORT/NAME or \
         forebay+file:///PATH/NAME"
    )]
    Url {
        /// The URL, without user and password.
        url: String,
        /// What is wrong with it.
        what: String,
    },
    /// A file of servers that cannot be read, or has none.
    #[error("{path}: {what}; expected the servers, one HOST:PORT a line", path = path.display())]
    Servers {
        /// The file.
        path: PathBuf,
        /// What is wrong with it.
        what: String,
    },
    /// An option out of its range.
    #[error("option {name}: expected {expected}, found {found}")]
    Option {
        /// Which option.
        name: &'static str,
        /// What is allowed.
        expected: String,
        /// What was given.
        found: String,
    },
    /// There is nobody there.
    #[error("cannot connect to {server}: {source}{}", hint(source))]
    Connect {
        /// The server.
        server: String,
        /// The system's answer.
        source: io::Error,
    },
    /// No shared memory with the server, where nothing else will do.
    #[error("no shared memory with {server}: {why}")]
    NotLocal {
        /// The server.
        server: String,
        /// Why.
        why: String,
    },
    /// There is no TLS with the server that can be trusted.
    #[error("{server}: {what}")]
    Tls {
        /// The server.
        server: String,
        /// What is wrong, and what would help.
        what: String,
    },
    /// Certificates or keys that this client was told to use cannot be.
    #[error(transparent)]
    Certificates(#[from] forebay_wire::transport::tls::Error),
    /// There is no token where one should be.
    #[error(transparent)]
    Token(#[from] forebay_wire::token::TokenError),
    /// A token would travel unencrypted.
    #[error(
        "refusing to send the token to {server} unencrypted: use forebays:// with a server that was started with \
         --tls-cert and --tls-key"
    )]
    TokenInClear {
        /// The server.
        server: String,
    },
    /// A deadline passed.
    #[error(
        "waited {waited:.1?} for {what} from {server}{}",
        match last_sign {
            Some(ago) if *ago < LIVELY => {
                format!(", which is there (last sign of life {ago:.1?} ago) but not done")
            }
            Some(ago) => format!(", of which nothing was heard for {ago:.1?}"),
            None => String::new(),
        }
    )]
    Waited {
        /// The server.
        server: String,
        /// What did not come.
        what: String,
        /// How long it was waited for.
        waited: Duration,
        /// How long ago the server was last heard of, when it is connected.
        last_sign: Option<Duration>,
    },
    /// The server was silent for longer than it promised never to be.
    #[error("{server} is silent: no sign of life for {silence:.1?} while waiting for {what}")]
    Silent {
        /// The server.
        server: String,
        /// What was waited for.
        what: String,
        /// For how long.
        silence: Duration,
    },
    /// The connection ended.
    #[error("lost {server} while waiting for {what}: {source}")]
    Lost {
        /// The server.
        server: String,
        /// What was waited for.
        what: String,
        /// How it ended.
        source: forebay_wire::Error,
    },
    /// Something came that is no proper message, or not the right one.
    #[error("{server} broke the protocol: {source}")]
    Protocol {
        /// The server.
        server: String,
        /// What is wrong.
        source: forebay_wire::Error,
    },
    /// The server says that it cannot, and why: shard, record and offset where
    /// there are any.
    #[error("{server}: {message}")]
    Remote {
        /// The server.
        server: String,
        /// What kind of failure.
        kind: Kind,
        /// The server's words.
        message: String,
    },
    /// Something else listens there.
    #[error("{server} is no forebay server for trainers: {what}")]
    Foreign {
        /// The server.
        server: String,
        /// The protocol that it speaks, and what to do.
        what: &'static str,
    },
    /// Servers had no place for as long as was allowed.
    #[error(
        "{server} was busy for {waited:.1?}, each of {attempts} times that it was asked: {message}; ask another server, or wait longer"
    )]
    Busy {
        /// The server that was asked last.
        server: String,
        /// Since when.
        waited: Duration,
        /// How often.
        attempts: u32,
        /// The server's words.
        message: String,
    },
    /// A batch that is not the next one, or not what was agreed on.
    #[error(
        "{server} sent something else than the stream's next: {what}: expected {expected}, found {found}"
    )]
    Disorder {
        /// The server.
        server: String,
        /// Which number.
        what: &'static str,
        /// What it should be.
        expected: String,
        /// What it is.
        found: String,
    },
    /// No memory for the next batch.
    #[error("no memory for a batch of {bytes} bytes: {source}")]
    Memory {
        /// Bytes of the batch.
        bytes: u64,
        /// The system's answer.
        source: io::Error,
    },
    /// No server could continue the stream in time.
    #[error(
        "{last}; connecting again was tried {attempts} times in {elapsed:.1?}, to wait for {waiting_for}"
    )]
    GaveUp {
        /// Attempts since the last batch.
        attempts: u32,
        /// How long that took.
        elapsed: Duration,
        /// What did not come.
        waiting_for: String,
        /// What went wrong the last time.
        last: Box<Error>,
    },
    /// [`Interrupter::interrupt`](crate::Interrupter::interrupt) was called.
    #[error("interrupted")]
    Interrupted,
    /// The stream failed before, and said so then.
    #[error("the stream is over: it failed before")]
    Over,
    /// The system gives no thread.
    #[error("cannot start the receiving thread: {0}")]
    Thread(io::Error),
}

fn hint(e: &io::Error) -> &'static str {
    match e.kind() {
        io::ErrorKind::ConnectionRefused => "; is `forebay serve` running there?",
        io::ErrorKind::TimedOut => "; is the address right, and does a firewall let it pass?",
        _ => "",
    }
}

impl Error {
    /// Whether another server, or the same one a little later, may give what
    /// this one did not: the batches are a function of the position, so nothing is lost.
    #[must_use]
    pub fn is_passing(&self) -> bool {
        match self {
            Error::Connect { .. }
            | Error::NotLocal { .. }
            | Error::Waited { .. }
            | Error::Silent { .. }
            | Error::Lost { .. } => true,
            Error::Remote { kind, .. } => {
                matches!(kind, Kind::Busy | Kind::Shutdown | Kind::Timeout)
            }
            // Bytes that changed on the way come again, unchanged.
            Error::Protocol { source, .. } => {
                matches!(source, forebay_wire::Error::Checksum { .. })
            }
            _ => false,
        }
    }

    /// Whether a server said that it has no place now.
    pub(crate) fn is_busy(&self) -> bool {
        matches!(
            self,
            Error::Remote {
                kind: Kind::Busy,
                ..
            }
        )
    }

    /// Whether it is about a server that took too long to be reached.
    pub(crate) fn is_late(&self) -> bool {
        match self {
            Error::Waited { .. } | Error::Silent { .. } => true,
            Error::Connect { source, .. } => source.kind() == io::ErrorKind::TimedOut,
            _ => false,
        }
    }
}
