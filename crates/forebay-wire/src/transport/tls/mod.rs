//! TLS 1.3 over [`TcpSocket`](super::tcp::TcpSocket): the same frames, encrypted.
//!
//! rustls implements the protocol and ring the ciphers. AES-128-GCM comes first: among the widely
//! supported ciphers it is the fastest. This module reads certificates and keys and explains
//! problems with them; the caller decides which ones to trust.

mod config;
mod session;

pub use config::{ClientTls, Error, ServerTls, key_is_readable_by_others};
pub use rustls::pki_types::ServerName;
pub use rustls::{ClientConfig, ClientConnection, ServerConfig, ServerConnection};
pub(crate) use session::Session;
