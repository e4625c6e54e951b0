//! What can be wrong with what a peer sent.

use std::io;

use forebay_batch::Uneven;
use forebay_proto::prost::DecodeError;

use crate::message::Kind;

/// A result of this crate.
pub type Result<T, E = Error> = std::result::Result<T, E>;

/// Why a frame could not be read or written.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// The connection itself failed, or a timeout set on it passed; see
    /// [`Error::is_timeout`].
    #[error("{doing}: {source}")]
    Io {
        /// What was being done.
        doing: &'static str,
        /// The system's answer.
        source: io::Error,
    },
    /// The peer closed the connection between two frames.
    #[error("the peer closed the connection")]
    Closed,
    /// The connection ended inside of a frame.
    #[error("the connection ended inside of a frame: {found} of {expected} bytes of its {what}")]
    Truncated {
        /// Part of the frame.
        what: &'static str,
        /// Bytes it should have.
        expected: u64,
        /// Bytes that came.
        found: u64,
    },
    /// The first bytes are not those of a frame: the peer speaks something else.
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
    /// A frame of another layout.
    #[error("expected frame layout {expected}, found {found}: the peer is of another time")]
    Version {
        /// The layout this crate reads.
        expected: u8,
        /// The frame's.
        found: u8,
    },
    /// A kind of message this version does not know, or reserved bits that are set.
    #[error("expected a known {what}, found {found}")]
    Unknown {
        /// Which field.
        what: &'static str,
        /// Its value.
        found: u32,
    },
    /// A message that this side never sends, or not now.
    #[error("unexpected message {found}: expected {expected}")]
    Unexpected {
        /// What may come.
        expected: &'static str,
        /// What came.
        found: Kind,
    },
    /// A length beyond the limit for it, refused before anything was allocated.
    #[error("{what} of {found} is more than the limit of {limit}")]
    TooLarge {
        /// What has the length.
        what: &'static str,
        /// The most that is accepted.
        limit: u64,
        /// What the frame says.
        found: u64,
    },
    /// Bytes changed on the way.
    #[error("the checksum of the {what} is wrong: expected {expected:08x}, found {found:08x}")]
    Checksum {
        /// What was checked.
        what: &'static str,
        /// The checksum that came along.
        expected: u32,
        /// The checksum of what came.
        found: u32,
    },
    /// A message that is no valid protobuf.
    #[error("message {kind} cannot be read: {source}")]
    Message {
        /// Kind of the message.
        kind: Kind,
        /// What protobuf says.
        source: DecodeError,
    },
    /// A message with a field that makes no sense.
    #[error("message {kind}: {what}")]
    Invalid {
        /// Kind of the message.
        kind: Kind,
        /// Which field, what was expected and found.
        what: String,
    },
    /// A batch whose parts disagree.
    #[error(transparent)]
    Uneven(#[from] Uneven),
}

impl Error {
    /// The protocol that the peer speaks instead, where that is known.
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

    /// Whether a timeout passed without a single byte: reading may go on.
    #[must_use]
    pub fn is_timeout(&self) -> bool {
        matches!(self, Error::Io { source, .. } if matches!(
            source.kind(),
            io::ErrorKind::WouldBlock | io::ErrorKind::TimedOut
        ))
    }

    /// Whether the connection failed or ended, rather than that something wrong
    /// came through it: connecting again may help.
    #[must_use]
    pub fn is_disconnect(&self) -> bool {
        matches!(
            self,
            Error::Io { .. } | Error::Closed | Error::Truncated { .. }
        )
    }
}

/// Another protocol, by the first bytes of what a peer sent.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Foreign {
    /// A request of HTTP.
    HttpRequest,
    /// An answer of HTTP, or the page that some servers send without one.
    HttpAnswer,
    /// A record of TLS.
    Tls,
}

impl Foreign {
    /// The protocol that begins so, if it is one that is known.
    #[must_use]
    pub fn of(first: [u8; 4]) -> Option<Foreign> {
        const METHODS: [&[u8; 4]; 9] = [
            b"GET ", b"HEAD", b"POST", b"PUT ", b"DELE", b"OPTI", b"PATC", b"CONN", b"PRI ",
        ];
        match &first {
            method if METHODS.contains(&method) => Some(Foreign::HttpRequest),
            b"HTTP" | b"<!DO" | b"<!do" | b"<htm" | b"<HTM" => Some(Foreign::HttpAnswer),
            // A handshake or an alert, of SSL 3 or TLS.
            [0x15 | 0x16, 3, 0..=4, _] => Some(Foreign::Tls),
            _ => None,
        }
    }

    /// Its name in a message.
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
