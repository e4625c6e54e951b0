//! The server: sessions, credits, limits.
//!
//! A [`Server`] serves named [`Source`]s of batches to many clients at once. It
//! holds nothing that a crash could lose: a stream is a function of its spec and
//! of the position the client asks for. Each connection has a thread that listens and,
//! once a stream is open, one that sends; how batches are made is behind the
//! [`Source`] it serves.

mod connection;
mod dataset;
mod error;
mod link;
mod observer;
mod options;
mod patient;
mod server;
mod session;
mod source;
mod stats;
mod synthetic;

pub use error::{Error, Result};
pub use observer::{Event, Observer};
pub use options::ServerOptions;
pub use server::{Server, ServerHandle, Stopper};
pub use source::{BatchSource, Description, Failure, Monitor, Source, StreamRequest};
pub use stats::{ServerStats, StreamStats};
pub use synthetic::{Pixels, Synthetic};
