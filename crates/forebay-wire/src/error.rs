//! Errors in frames and messages from a peer.

use std::io;

use forebay_batch::InconsistentBatch;

use crate::kind::Kind;

/// A result of this crate.
pub type Result<T, E = Error> = std::result::Result<T, E>;

/// An error while reading or writing a frame.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// The connection failed, or its timeout passed; see [`Error::is_timeout`].
    #[error("{doing}: {source}")]
    Io {
        /// The operation that failed.
        doing: &'static str,
        /// The system's error.
        source: io::Error,
    },
    /// The peer closed the connection between two frames.
    #[error("the peer closed the connection")]
    Closed,
    /// The connection ended inside a frame.
    #[error("the connection ended inside of a frame: {found} of {expected} bytes of its {what}")]
    Truncated {
        /// Part of the frame.
        what: &'static str,
        /// Its expected length, in bytes.
        expected: u64,
        /// Bytes received.
        found: u64,
    },
    /// The first bytes are not those of a frame: the peer speaks another protocol.
    #[error(
        "expected a frame, which begins with 46 42 52 59 (FBRY), found {}{}",
        Hex(.found),
        match Foreign::of(*.found) {
            Some(foreign) => format!(" ({})", foreign.name()),
            None => String::new(),
        }
    )]
    Magic {
        /// The first four bytes.
        found: [u8; 4],
    },
    /// An unknown frame layout.
    #[error(
        "expected frame layout {expected}, found {found}: the peer runs another version of Forebay"
    )]
    Version {
        /// The layout of this version.
        expected: u8,
        /// The layout of the frame.
        found: u8,
    },
    /// A message kind that this version does not know, or reserved bits that are set.
    #[error("expected a known {what}, found {found}")]
    Unknown {
        /// The field.
        what: &'static str,
        /// Its value.
        found: u32,
    },
    /// A message that the peer may not send, or not at this point.
    #[error("unexpected message {found}: expected {expected}")]
    Unexpected {
        /// The messages that are allowed.
        expected: &'static str,
        /// The message received.
        found: Kind,
    },
    /// A length above its limit, refused before any allocation.
    #[error("{what} of {found} is more than the limit of {limit}")]
    TooLarge {
        /// The part with this length.
        what: &'static str,
        /// The limit.
        limit: u64,
        /// The length in the frame.
        found: u64,
    },
    /// A checksum does not match.
    #[error("the checksum of the {what} is wrong: expected {expected:08x}, found {found:08x}")]
    Checksum {
        /// The part that was verified.
        what: &'static str,
        /// The checksum in the frame.
        expected: u32,
        /// The checksum of the received bytes.
        found: u32,
    },
    /// A header that is not valid protobuf.
    #[error("message {kind} cannot be read: {source}")]
    Message {
        /// Kind of the message.
        kind: Kind,
        /// The error of the decoder.
        source: Box<dyn std::error::Error + Send + Sync>,
    },
    /// A message with an invalid field.
    #[error("message {kind}: {what}")]
    Invalid {
        /// Kind of the message.
        kind: Kind,
        /// The field, with expected and found values.
        what: String,
    },
    /// A batch whose fields disagree about the number of samples.
    #[error(transparent)]
    InconsistentBatch(#[from] InconsistentBatch),
}

impl Error {
    /// Returns the protocol that the peer speaks instead, if known.
    #[must_use]
    pub fn foreign(&self) -> Option<Foreign> {
        match self {
            Error::Magic { found } => Foreign::of(*found),
            _ => None,
        }
    }

    pub(crate) fn io(doing: &'static str) -> impl FnOnce(io::Error) -> Error {
        move |source| Error::Io { doing, source }
    }

    /// Returns whether a timeout passed before any byte arrived, so that reading can continue.
    #[must_use]
    pub fn is_timeout(&self) -> bool {
        matches!(self, Error::Io { source, .. } if matches!(
            source.kind(),
            io::ErrorKind::WouldBlock | io::ErrorKind::TimedOut
        ))
    }

    /// Returns whether the connection failed or ended, as opposed to invalid data: reconnecting may
    /// help.
    #[must_use]
    pub fn is_disconnect(&self) -> bool {
        matches!(
            self,
            Error::Io { .. } | Error::Closed | Error::Truncated { .. }
        )
    }
}

/// Another protocol, recognized by the first bytes from the peer.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Foreign {
    /// An HTTP request.
    HttpRequest,
    /// An HTTP response, or an HTML page that some servers send without a status line.
    HttpAnswer,
    /// A TLS record.
    Tls,
}

impl Foreign {
    /// Recognizes a protocol by its first four bytes.
    #[must_use]
    pub fn of(first: [u8; 4]) -> Option<Foreign> {
        const METHODS: [&[u8; 4]; 9] = [
            b"GET ", b"HEAD", b"POST", b"PUT ", b"DELE", b"OPTI", b"PATC", b"CONN", b"PRI ",
        ];
        match &first {
            method if METHODS.contains(&method) => Some(Foreign::HttpRequest),
            b"HTTP" | b"<!DO" | b"<!do" | b"<htm" | b"<HTM" => Some(Foreign::HttpAnswer),
            // A handshake or alert record, of SSL 3 or TLS.
            [0x15 | 0x16, 3, 0..=4, _] => Some(Foreign::Tls),
            _ => None,
        }
    }

    /// Name of the protocol in messages.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Foreign::HttpRequest => "an HTTP request",
            Foreign::HttpAnswer => "an HTTP answer",
            Foreign::Tls => "TLS",
        }
    }
}

struct Hex<'a>(&'a [u8]);

impl std::fmt::Display for Hex<'_> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        for (i, byte) in self.0.iter().enumerate() {
            let gap = if i == 0 { "" } else { " " };
            write!(f, "{gap}{byte:02x}")?;
        }
        Ok(())
    }
}
