//! Why a server cannot start or go on.

use std::io;
use std::net::SocketAddr;

/// A result of this crate.
pub type Result<T, E = Error> = std::result::Result<T, E>;

/// Why a server cannot start or go on. What goes wrong with a client is no error
/// of the server; it is told to the [`Observer`](crate::Observer) and to that client.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// Another program listens there.
    #[error(
        "cannot listen on {address}: the port is taken by another program; \
         choose another port, or 0 for any free one"
    )]
    PortTaken {
        /// Where the server was to listen.
        address: SocketAddr,
    },
    /// The system refuses the address.
    #[error("cannot listen on {address}: {source}")]
    Listen {
        /// Where the server was to listen.
        address: SocketAddr,
        /// The system's answer.
        source: io::Error,
    },
    /// An address that other machines reach, without the option that allows it.
    #[error(
        "refusing to listen on {address}, which other machines can reach, without {missing}; listen on a loopback \
         address, or allow it explicitly"
    )]
    NotLoopback {
        /// Where the server was to listen.
        address: SocketAddr,
        /// What would have to be there.
        missing: &'static str,
    },
    /// A file of tokens that cannot be used. Says nothing of what is in it.
    #[error("{reason}")]
    Tokens {
        /// Which file, and what is wrong.
        reason: String,
    },
    /// Certificates or a key that cannot be used.
    #[error("{reason}")]
    Certificates {
        /// Which file, and what is wrong.
        reason: String,
    },
    /// A dataset name that no URL can have.
    #[error(
        "dataset name {name:?}: expected 1 to 255 letters, digits, dots, dashes or underscores"
    )]
    Name {
        /// The name.
        name: String,
    },
    /// A job that cannot be.
    #[error("job {name}: {reason}")]
    Job {
        /// Its name.
        name: String,
        /// What is wrong with it.
        reason: String,
    },
    /// Two datasets or jobs of one name.
    #[error("there is a dataset or job {name:?} already")]
    Duplicate {
        /// The name.
        name: String,
    },
    /// A dataset whose shards cannot be opened.
    #[error("dataset {name}: {source}")]
    Dataset {
        /// The name it was to have.
        name: String,
        /// What is wrong with it.
        source: forebay_shard::Error,
    },
    /// An option out of its range.
    #[error("option {name}: expected {expected}, found {found}")]
    Option {
        /// Which option.
        name: &'static str,
        /// What is allowed.
        expected: &'static str,
        /// What was given.
        found: String,
    },
    /// The system refuses what every server needs: a thread, a socket pair.
    #[error("{doing}: {source}")]
    System {
        /// What was being done.
        doing: &'static str,
        /// The system's answer.
        source: io::Error,
    },
}
