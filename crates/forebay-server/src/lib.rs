//! The batch server: sessions, flow control by credit, limits.
//!
//! A [`Server`] serves named [`StreamSource`]s of batches to many clients at once. It has no state that a crash could lose: a
//! stream is a function of its options and of the position that the client requests. Each connection has a receiving thread
//! and, once a stream is open, a sending thread; the [`StreamSource`] makes the batches. [`ServerStatus`] is what
//! `forebay-monitor` shows of it.

mod access;
mod connection;
pub mod counters;
mod dataset;
mod deadline_reader;
mod egress;
mod error;
mod job;
mod journal;
mod link;
mod memory;
mod observer;
mod options;
mod origin;
mod previews;
mod reloadable;
mod server;
mod session;
mod shared;
mod sharing;
pub mod snapshot;
mod source;
mod stats;
mod synthetic;
mod telemetry;
mod wire_options;

pub use access::Tokens;
pub use error::{Error, Result};
pub use forebay_options::{LoaderOptions, StreamInfo};
pub use forebay_wire::Token;
pub use forebay_wire::token::TokenError;
pub use forebay_wire::transport::tls::{ServerTls, key_is_readable_by_others};
pub use job::JobOptions;
pub use journal::JournalEntry;
pub use memory::of_this_machine as memory_of_this_machine;
pub use observer::{Event, ServerObserver};
pub use options::ServerOptions;
pub use origin::origin;
pub use previews::{Preview, PreviewSample, Thumbnail};
pub use server::{Reloader, Server, ServerHandle, ServerStatus};
pub use shared::Stopper;
pub use source::{BatchSource, Description, Failure, StreamMonitor, StreamRequest, StreamSource};
pub use stats::{ServerStats, ServerStreamStats};
pub use synthetic::{Pixels, Synthetic};
