//! A lightweight client of Forebay servers.
//!
//! [`Client::connect`] performs the handshake with a server and [`Client::open`] starts a
//! [`Stream`], whose batches equal those of the loader in process, byte for byte. The crate
//! contains no decoder and no storage.
//!
//! ```no_run
//! use forebay_client::{Client, ClientOptions, LoaderOptions};
//!
//! let client = Client::connect("forebay://127.0.0.1:7070/imagenet", ClientOptions::default())?;
//! let mut options = LoaderOptions::default();
//! options.split = Some("train".to_owned());
//! options.batch_size = Some(256);
//! let mut stream = client.open(options)?;
//! while let Some(batch) = stream.next_batch()? {
//!     println!("step {}: {} images", batch.step, batch.len());
//! }
//! # Ok::<(), forebay_client::Error>(())
//! ```

mod back_off;
mod client;
mod connection;
mod error;
mod migration;
mod options;
mod parallel;
mod payload;
mod placement;
mod queue;
mod receiver;
mod reconnect;
mod remote;
mod resolver;
mod sequence;
mod server_stream;
mod slots;
mod stream;
mod stream_config;
mod tls;
mod url;
mod wire_options;

pub use client::Client;
pub use error::{Error, Result};
pub use forebay_options::{LoaderOptions, StreamInfo};
pub use forebay_wire::transport::tls::ClientTls;
pub use forebay_wire::wire::{Stats as RemoteStats, error::Kind as RemoteKind};
pub use forebay_wire::{Batch, Buffer, BufferPool, Dtype, Layout, Token};
pub use options::{CancelCheck, ClientOptions, Credential, Notice, StreamOptions, Transport, Via};
pub use queue::{ServerUse, StreamStats};
pub use remote::RemoteSplit;
pub use stream::{Interrupter, Polled, Stream};
pub use url::{Authority, DEFAULT_PORT, Origin, Url};
