//! TLS with a server: trust, handshake, and errors that say what to do.

use std::io;
use std::sync::Arc;
use std::time::{Duration, Instant};

use forebay_wire::transport::tls::{ClientConfig, ClientConnection, ServerName};
use forebay_wire::{Error as WireError, Foreign, Socket, TcpSocket, frame};
use rustls::{AlertDescription, CertificateError, Error as TlsError};

use crate::error::{Error, Result};
use crate::options::ClientOptions;
use crate::url::{Authority, Url};

/// The certificates that servers are verified against.
pub(crate) struct Trust(Arc<ClientConfig>);

impl Trust {
    /// Loads the certificates; `None` for a URL without TLS.
    pub(crate) fn of(url: &Url, options: &ClientOptions) -> Result<Option<Trust>> {
        if url.is_secure() {
            return Ok(Some(Trust(options.tls.load()?)));
        }
        Ok(None)
    }

    /// Starts TLS on a socket; the handshake follows.
    pub(crate) fn begin(&self, socket: TcpSocket, server: &Authority) -> Result<TcpSocket> {
        let failed = |what: String| Error::Tls {
            server: server.to_string(),
            what,
        };
        let name = ServerName::try_from(server.host.clone())
            .map_err(|_| failed("no certificate can have this name".to_owned()))?;
        let tls = ClientConnection::new(Arc::clone(&self.0), name)
            .map_err(|e| failed(format!("TLS cannot begin: {e}")))?;
        Ok(socket.with_tls(tls))
    }
}

/// Performs the TLS handshake, if TLS is used, within `limit`.
pub(crate) fn shake_hands(socket: &Socket, server: &str, limit: Duration) -> Result<()> {
    let began = Instant::now();
    while socket.is_handshaking() {
        if began.elapsed() >= limit {
            return Err(waited(server, began));
        }
        let Err(source) = socket.advance() else {
            continue;
        };
        let first = socket.first_bytes();
        if let Some(foreign @ Foreign::HttpAnswer) = first.and_then(Foreign::of) {
            return Err(Error::foreign(server.to_owned(), foreign));
        }
        if first == Some(frame::MAGIC) {
            let what = "it speaks no TLS: use forebay://, or give the server a certificate";
            return Err(Error::Tls {
                server: server.to_owned(),
                what: what.to_owned(),
            });
        }
        let source = WireError::Io {
            doing: "the handshake of TLS",
            source,
        };
        return Err(match refusal(&source) {
            Some(what) => Error::Tls {
                server: server.to_owned(),
                what,
            },
            None if source.is_timeout() => waited(server, began),
            None => Error::Lost {
                server: server.to_owned(),
                what: "the handshake of TLS".to_owned(),
                source,
            },
        });
    }
    Ok(())
}

fn waited(server: &str, began: Instant) -> Error {
    Error::Waited {
        server: server.to_owned(),
        what: "the handshake of TLS".to_owned(),
        waited: began.elapsed(),
        last_sign: None,
    }
}

/// Describes an error that a retry cannot fix: one side does not trust the other.
pub(crate) fn refusal(error: &WireError) -> Option<String> {
    let WireError::Io { source, .. } = error else {
        return None;
    };
    let error = tls_error(source)?;
    Some(match error {
        TlsError::InvalidCertificate(why) => {
            let hint = match why {
                CertificateError::UnknownIssuer => {
                    "; name the file of its authority with tls_ca or FOREBAY_TLS_CA".to_owned()
                }
                CertificateError::Other(other)
                    if other.to_string().contains("CaUsedAsEndEntity") =>
                {
                    "; make a certificate that is no authority (CA:FALSE)".to_owned()
                }
                _ => String::new(),
            };
            format!("the server's certificate is not trusted: {error}{hint}")
        }
        TlsError::AlertReceived(
            AlertDescription::CertificateRequired
            | AlertDescription::BadCertificate
            | AlertDescription::UnsupportedCertificate
            | AlertDescription::CertificateRevoked
            | AlertDescription::CertificateExpired
            | AlertDescription::CertificateUnknown
            | AlertDescription::UnknownCA
            | AlertDescription::AccessDenied,
        ) => format!("the server does not accept this client's certificate, or wants one: {error}"),
        TlsError::AlertReceived(
            AlertDescription::ProtocolVersion | AlertDescription::HandshakeFailure,
        )
        | TlsError::PeerIncompatible(_) => {
            format!("no TLS that both sides speak, which is version 1.3 here: {error}")
        }
        _ => return None,
    })
}

fn tls_error(source: &io::Error) -> Option<&TlsError> {
    source.get_ref()?.downcast_ref()
}
