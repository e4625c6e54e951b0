//! Errors of this crate.

use std::io;
use std::net::SocketAddr;

/// A result of this crate.
pub type Result<T, E = Error> = std::result::Result<T, E>;

/// An error that keeps a server from starting or continuing. Failures of single clients are not errors of the server; the
/// [`ServerObserver`](crate::ServerObserver) and the client receive them.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// Another program listens on this port.
    #[error(
        "cannot listen on {address}: the port is taken by another program; \
         choose another port, or 0 for any free one"
    )]
    PortTaken {
        /// The requested address.
        address: SocketAddr,
    },
    /// The system refuses the address.
    #[error("cannot listen on {address}: {source}")]
    Listen {
        /// The requested address.
        address: SocketAddr,
        /// The system's error.
        source: io::Error,
    },
    /// An address that other machines can reach, without the option that allows it.
    #[error(
        "refusing to listen on {address}, which other machines can reach, without {missing}; listen on a loopback \
         address, or allow it explicitly"
    )]
    NotLoopback {
        /// The requested address.
        address: SocketAddr,
        /// The missing option.
        missing: &'static str,
    },
    /// An invalid token file. The message does not reveal its content.
    #[error("{reason}")]
    Tokens {
        /// The file, and what is wrong.
        reason: String,
    },
    /// Invalid certificates or an invalid key.
    #[error("{reason}")]
    Certificates {
        /// The file, and what is wrong.
        reason: String,
    },
    /// A dataset name that is not valid in a URL.
    #[error(
        "dataset name {name:?}: expected 1 to 255 letters, digits, dots, dashes or underscores"
    )]
    Name {
        /// The name.
        name: String,
    },
    /// Invalid options of a job.
    #[error("job {name}: {reason}")]
    Job {
        /// Name of the job.
        name: String,
        /// The invalid option, and why.
        reason: String,
    },
    /// Two datasets or jobs have the same name.
    #[error("a dataset or job named {name:?} exists already")]
    Duplicate {
        /// The name.
        name: String,
    },
    /// A dataset whose shards cannot be opened.
    #[error("dataset {name}: {source}")]
    Dataset {
        /// The name under which it was to be served.
        name: String,
        /// The cause.
        source: forebay_shard::Error,
    },
    /// An option out of its range.
    #[error("option {name}: expected {expected}, found {found}")]
    Option {
        /// Which option.
        name: &'static str,
        /// The allowed values.
        expected: &'static str,
        /// The given value.
        found: String,
    },
    /// The system refuses a resource that every server needs, such as a thread or a socket pair.
    #[error("{doing}: {source}")]
    System {
        /// The operation that failed.
        doing: &'static str,
        /// The system's error.
        source: io::Error,
    },
}
