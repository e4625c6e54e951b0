//! The protocol between server and client: messages, frames and transports.
//!
//! - [`batch`]: converts a batch to and from the header of its frame.
//! - [`frame`]: frames as bytes, with their limits and checksums, without IO.
//! - [`stream`]: frames through any blocking reader and writer.
//! - [`text`]: escapes untrusted text for terminals.
//! - [`transport`]: sockets and TLS.
//! - [`token`]: bearer tokens of clients.
//! - [`wire`]: the messages, as generated from `proto/wire.proto`.
//!
//! `docs/wire.md` describes the protocol, with examples as bytes.
//!
//! [`wire`], and with it [`Message`] and [`batch`], follow `proto/wire.proto`: they change with the
//! version of the protocol, not with that of this crate. `forebay-client` has types of its own.
//!
//! ```
//! use forebay_wire::frame::{self, FrameLimits};
//! use forebay_wire::{Message, wire};
//!
//! let mut bytes = Vec::new();
//! let credit = wire::Credit { bytes: 38_535_168, ..wire::Credit::default() };
//! frame::encode(&Message::from(credit.clone()), 0, &mut bytes)?;
//! let (message, payload, rest) = frame::decode(&bytes, &FrameLimits::from_client())?.unwrap();
//! assert_eq!(message, Message::Credit(credit));
//! assert!(payload.is_empty() && rest.is_empty());
//! # Ok::<(), forebay_wire::Error>(())
//! ```

pub mod batch;
mod error;
pub mod frame;
mod kind;
mod message;
mod open;
pub mod stream;
pub mod text;
pub mod token;
pub mod transport;
pub mod wire;

pub use error::{Error, Foreign, Result};
pub use forebay_batch::{
    Batch, Buffer, BufferPool, Dtype, EncodedImages, HostRegistry, Layout, Lender, Mixed,
    PoolStats, SharedMemory,
};
pub use frame::FrameLimits;
pub use kind::{Kind, Side};
pub use message::Message;
pub use open::open_input;
pub use stream::{FrameReader, FrameWriter};
pub use token::Token;
pub use transport::local::{LocalListener, LocalSocket};
pub use transport::tcp::TcpSocket;
pub use transport::{Peer, Socket};
