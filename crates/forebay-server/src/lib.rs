//! The batch server: sessions, flow control by credit, limits.
//!
//! A [`Server`] serves named [`StreamSource`]s of batches to many clients at once. It has no state that a crash could lose: a
//! stream is a function of its options and of the position that the client requests. Each connection has a receiving thread
//! and, once a stream is open, a sending thread; the [`StreamSource`] makes the batches.

mod access;
mod admin;
mod connection;
pub mod counters;
mod dataset;
mod deadline_reader;
mod egress;
mod environment;
mod error;
mod history;
mod job;
mod journal;
mod link;
mod memory;
mod metrics;
mod observer;
mod options;
mod origin;
mod previews;
mod process;
mod reloadable;
pub mod report;
mod server;
mod session;
mod shared;
mod sharing;
mod snapshot;
mod source;
mod stats;
mod synthetic;
mod telemetry;
mod wire_options;

pub use access::Tokens;
pub use admin::{Admin, AdminOptions, Health};
pub use error::{Error, Result};
pub use forebay_options::{LoaderOptions, StreamInfo};
pub use forebay_wire::Token;
pub use forebay_wire::token::TokenError;
pub use forebay_wire::transport::tls::{ServerTls, key_is_readable_by_others};
pub use job::JobOptions;
pub use memory::of_this_machine as memory_of_this_machine;
pub use observer::{Event, ServerObserver};
pub use options::ServerOptions;
pub use server::{Reloader, Server, ServerHandle, ServerStatus};
pub use shared::Stopper;
pub use source::{BatchSource, Description, Failure, StreamMonitor, StreamRequest, StreamSource};
pub use stats::{ServerStats, ServerStreamStats};
pub use synthetic::{Pixels, Synthetic};
