//! Errors between a client and its servers.

use std::io;
use std::path::PathBuf;
use std::time::Duration;

use forebay_wire::Foreign;

use crate::RemoteKind;

/// A result of this crate.
pub type Result<T, E = Error> = std::result::Result<T, E>;

/// A server with a heartbeat is heard more often than this; a longer silence suggests that it is
/// down.
const LIVELY: Duration = Duration::from_secs(5);

/// An error of a client or stream.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// An invalid URL.
    #[error(
        "{url:?} is not a server URL: {what}; expected forebay://HOST:PORT/NAME, forebay+dns://HOST:PORT/NAME or \
         forebay+file:///PATH/NAME"
    )]
    Url {
        /// The URL, without user and password.
        url: String,
        /// The problem.
        what: String,
    },
    /// A list of servers that cannot be read or is empty.
    #[error("{path}: {what}; expected the servers, one HOST:PORT a line", path = path.display())]
    Servers {
        /// The file.
        path: PathBuf,
        /// The problem.
        what: String,
    },
    /// An option out of its range.
    #[error("option {name}: expected {expected}, found {found}")]
    Option {
        /// Which option.
        name: &'static str,
        /// The allowed values.
        expected: String,
        /// The given value.
        found: String,
    },
    /// The server cannot be reached.
    #[error("cannot connect to {server}: {source}{}", hint(source))]
    Connect {
        /// The server.
        server: String,
        /// The system's error.
        source: io::Error,
    },
    /// Shared memory is required, but not available with this server.
    #[error("no shared memory with {server}: {why}")]
    NotLocal {
        /// The server.
        server: String,
        /// The reason.
        why: String,
    },
    /// The TLS handshake failed, or the certificate is not trusted.
    #[error("{server}: {what}")]
    Tls {
        /// The server.
        server: String,
        /// The problem and a possible remedy.
        what: String,
    },
    /// Invalid certificates or keys of this client.
    #[error(transparent)]
    Certificates(#[from] forebay_wire::transport::tls::Error),
    /// An invalid or unreadable token.
    #[error(transparent)]
    Token(#[from] forebay_wire::token::TokenError),
    /// The token would be sent unencrypted.
    #[error(
        "refusing to send the token to {server} unencrypted: use forebays:// with a server that has a certificate"
    )]
    TokenInClear {
        /// The server.
        server: String,
    },
    /// A timeout passed.
    #[error(
        "waited {waited:.1?} for {what} from {server}{}",
        match last_sign {
            Some(ago) if *ago < LIVELY => {
                format!(", which is alive (last message {ago:.1?} ago) but not done")
            }
            Some(ago) => format!(", which sent no message for {ago:.1?}"),
            None => String::new(),
        }
    )]
    Waited {
        /// The server.
        server: String,
        /// The expected message.
        what: String,
        /// Time waited.
        waited: Duration,
        /// Time since the last message of the server, if connected.
        last_sign: Option<Duration>,
    },
    /// The server missed its heartbeats.
    #[error("{server} is silent: no message for {silence:.1?} while waiting for {what}")]
    Silent {
        /// The server.
        server: String,
        /// The expected message.
        what: String,
        /// Duration of the silence.
        silence: Duration,
    },
    /// The connection ended.
    #[error("lost {server} while waiting for {what}: {source}")]
    Lost {
        /// The server.
        server: String,
        /// The expected message.
        what: String,
        /// The cause.
        source: forebay_wire::Error,
    },
    /// An invalid or unexpected message.
    #[error("{server} broke the protocol: {source}")]
    Protocol {
        /// The server.
        server: String,
        /// The cause.
        source: forebay_wire::Error,
    },
    /// An error that the server sent, with shard, record and offset where they apply.
    #[error("{server}: {message}")]
    Remote {
        /// The server.
        server: String,
        /// The kind of error.
        kind: RemoteKind,
        /// The server's message.
        message: String,
    },
    /// The peer speaks another protocol.
    #[error("{server} is not a forebay server for trainers: {what}")]
    Foreign {
        /// The server.
        server: String,
        /// The protocol, and what to do.
        what: &'static str,
    },
    /// All servers were busy until the timeout.
    #[error(
        "{server} was busy for {waited:.1?}, in each of {attempts} attempts: {message}; use another server, or wait longer"
    )]
    Busy {
        /// The last server tried.
        server: String,
        /// Time since the first attempt.
        waited: Duration,
        /// Number of attempts.
        attempts: u32,
        /// The server's message.
        message: String,
    },
    /// No server ran until the timeout.
    #[error("{last}; {attempts} attempts failed in {waited:.1?}")]
    Absent {
        /// Time since the first attempt.
        waited: Duration,
        /// Number of attempts.
        attempts: u32,
        /// The last error.
        last: Box<Error>,
    },
    /// The connection is lost, and no server has continued the stream yet.
    #[error("waited {waited:.1?} for a server to continue the stream: {last}")]
    Away {
        /// The lost server.
        server: String,
        /// Time since the connection was lost.
        waited: Duration,
        /// The last error.
        last: String,
    },
    /// A batch out of order, or one that contradicts the stream's parameters.
    #[error(
        "{server} violated the order of the stream: {what}: expected {expected}, found {found}"
    )]
    Sequence {
        /// The server.
        server: String,
        /// The field.
        what: &'static str,
        /// Its expected value.
        expected: String,
        /// Its actual value.
        found: String,
    },
    /// Not enough memory for the next batch.
    #[error("no memory for a batch of {bytes} bytes: {source}")]
    Memory {
        /// Bytes of the batch.
        bytes: u64,
        /// The system's error.
        source: io::Error,
    },
    /// No server could continue the stream within `reconnect_for`.
    #[error(
        "{last}; {attempts} attempts to reconnect failed in {elapsed:.1?} while waiting for {waiting_for}"
    )]
    GaveUp {
        /// Attempts since the last batch.
        attempts: u32,
        /// Time since the connection was lost.
        elapsed: Duration,
        /// The expected message.
        waiting_for: String,
        /// The last error.
        last: Box<Error>,
    },
    /// [`Interrupter::interrupt`](crate::Interrupter::interrupt) was called.
    #[error("interrupted")]
    Interrupted,
    /// The stream failed earlier and has returned the error.
    #[error("the stream has ended: it failed before")]
    Over,
    /// The system cannot start a thread.
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

/// Returns whether a name could not be resolved because its name server did not answer, and not because
/// there is no such name. The standard library gives this error no kind of its own.
fn is_passing_lookup(e: &io::Error) -> bool {
    let text = e.to_string();
    // glibc and the BSDs use the first text, musl the second.
    text.starts_with("failed to lookup address information")
        && (text.contains("Temporary failure") || text.contains("Try again"))
}

impl Error {
    /// Converts errors of the system while connecting to `server`.
    pub(crate) fn connecting(server: &impl ToString) -> impl Fn(io::Error) -> Self {
        let server = server.to_string();
        move |source| Error::Connect {
            server: server.clone(),
            source,
        }
    }

    /// Converts what is wrong with options that `server` sent.
    pub(crate) fn unknown_options(server: &str, what: &'static str) -> impl FnOnce(String) -> Self {
        move |found| Error::Sequence {
            server: server.to_owned(),
            what,
            expected: "options that this release knows".to_owned(),
            found,
        }
    }

    /// The error for a peer that speaks another protocol.
    pub(crate) fn foreign(server: String, foreign: Foreign) -> Self {
        let what = match foreign {
            Foreign::Tls => {
                let what = "it speaks TLS: use forebays:// instead of forebay://".to_owned();
                return Error::Tls { server, what };
            }
            Foreign::HttpAnswer => {
                "it speaks HTTP; give the server's address for trainers, not that of its dashboard"
            }
            Foreign::HttpRequest => {
                "it asks something by HTTP; give the server's address for trainers"
            }
        };
        Error::Foreign { server, what }
    }

    /// Returns whether the error is transient: a retry, or another server, may deliver the same
    /// batches, since they depend on the position only.
    #[must_use]
    pub fn is_passing(&self) -> bool {
        match self {
            Error::Connect { .. }
            | Error::NotLocal { .. }
            | Error::Waited { .. }
            | Error::Silent { .. }
            | Error::Lost { .. } => true,
            Error::Remote { kind, .. } => {
                matches!(
                    kind,
                    RemoteKind::Busy | RemoteKind::Shutdown | RemoteKind::Timeout
                )
            }
            // Corrupted bytes will be correct when sent again.
            Error::Protocol { source, .. } => {
                matches!(source, forebay_wire::Error::Checksum { .. })
            }
            _ => false,
        }
    }

    /// Returns whether a server is at its limit of connections.
    pub(crate) fn is_busy(&self) -> bool {
        matches!(
            self,
            Error::Remote {
                kind: RemoteKind::Busy,
                ..
            }
        )
    }

    /// Returns whether no server runs there for now: it may be starting, or restarting.
    pub(crate) fn is_absent(&self) -> bool {
        use io::ErrorKind as Kinds;
        match self {
            Error::Connect { source, .. } => {
                matches!(
                    source.kind(),
                    Kinds::ConnectionRefused
                        | Kinds::ConnectionReset
                        | Kinds::ConnectionAborted
                        | Kinds::HostUnreachable
                        | Kinds::NetworkUnreachable
                        | Kinds::NetworkDown
                ) || is_passing_lookup(source)
            }
            Error::Remote { kind, .. } => *kind == RemoteKind::Shutdown,
            _ => false,
        }
    }

    /// Returns whether a server was too slow to answer.
    pub(crate) fn is_late(&self) -> bool {
        match self {
            Error::Waited { .. } | Error::Silent { .. } => true,
            Error::Connect { source, .. } => source.kind() == io::ErrorKind::TimedOut,
            _ => false,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_transient_lookup_errors_are_retried() {
        let absent = |source| {
            let server = "a:1".to_owned();
            Error::Connect { server, source }.is_absent()
        };
        let lookup = |why| io::Error::other(format!("failed to lookup address information: {why}"));
        assert!(absent(lookup("Temporary failure in name resolution")));
        assert!(absent(lookup("Try again")));
        assert!(!absent(lookup("Name or service not known")));
        assert!(absent(io::ErrorKind::ConnectionRefused.into()));
        assert!(!absent(io::ErrorKind::TimedOut.into()));
        assert!(!absent(io::Error::other(
            "Temporary failure of something else"
        )));
    }
}
