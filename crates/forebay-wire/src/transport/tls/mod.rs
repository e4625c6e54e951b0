//! TLS 1.3 over [`TcpSocket`](super::tcp::TcpSocket): the same frames, encrypted.
//!
//! rustls does the protocol and aws-lc the ciphers, AES-128-GCM first: of those that everybody has
//! it is the fastest. Owns how certificates and keys are read, and what is wrong with them in words;
//! who trusts whom is the caller's choice.

mod config;
mod session;

pub use config::{ClientTls, Error, ServerTls, key_is_readable_by_others};
pub use rustls::pki_types::ServerName;
pub use rustls::{ClientConfig, ClientConnection, ServerConfig, ServerConnection};
pub(crate) use session::Session;
