//! Encoding and decoding of frames, without IO. `docs/wire.md` has the table of fields.
//!
//! ```text
//! head (24 bytes) | header: one protobuf message | payload: raw pixels
//! ```
//!
//! This module handles the head, its checksum and the limits, which are checked before any allocation. [`crate::stream`] reads
//! and writes sockets.

use crate::error::{Error, Result};
use crate::kind::{Kind, Side};
use crate::message::Message;

/// The first four bytes of every frame.
pub const MAGIC: [u8; 4] = *b"FBRY";
/// Version of the frame layout, in the head's fifth byte. Messages have a separate version, which
/// `Hello` and `Welcome` negotiate.
pub const FRAME_LAYOUT: u8 = 1;
/// The protocol versions of this crate.
pub const PROTOCOL_VERSIONS: std::ops::RangeInclusive<u32> = 2..=2;
/// Length of a frame's head in bytes.
pub const HEAD_LEN: usize = 24;
/// Offset of the checksum in the head. It covers the preceding bytes and the header.
const CHECKSUM_AT: usize = 20;

/// Limits of a reader, and the expected sender.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct FrameLimits {
    /// The side that sends the frames.
    pub from: Side,
    /// Maximum length of an encoded message, in bytes.
    pub header_bytes: u32,
    /// Maximum length of a payload, in bytes.
    pub payload_bytes: u64,
}

impl FrameLimits {
    /// Limits of a server: messages of up to 1 MiB, no payload.
    #[must_use]
    pub const fn from_client() -> Self {
        FrameLimits {
            from: Side::Client,
            header_bytes: 1 << 20,
            payload_bytes: 0,
        }
    }

    /// Limits of a client: payloads of up to `payload_bytes`, and messages of up to 16 MiB, enough
    /// for half a million labels and sample numbers.
    #[must_use]
    pub const fn from_server(payload_bytes: u64) -> Self {
        FrameLimits {
            from: Side::Server,
            header_bytes: 16 << 20,
            payload_bytes,
        }
    }
}

/// A frame's head, checked against limits. Its checksum covers the header too, so [`Head::message`]
/// verifies it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Head {
    /// Kind of the message in the header.
    pub kind: Kind,
    /// Length of the header in bytes.
    pub header_len: u32,
    /// Length of the payload in bytes.
    pub payload_len: u64,
    checksum: u32,
    /// Checksum of the head up to its checksum field, to be continued over the header.
    partial: u32,
}

impl Head {
    /// Parses a head and checks it against `limits`.
    ///
    /// # Errors
    ///
    /// The first violation: not a frame, another layout, an unknown kind, a message that the side
    /// may not send, or a length above its limit.
    pub fn parse(bytes: &[u8; HEAD_LEN], limits: &FrameLimits) -> Result<Head> {
        let found = field::<4>(bytes, 0);
        if found != MAGIC {
            return Err(Error::Magic { found });
        }
        if bytes[4] != FRAME_LAYOUT {
            return Err(Error::Version {
                expected: FRAME_LAYOUT,
                found: bytes[4],
            });
        }
        let unknown = |what, found| Error::Unknown { what, found };
        let kind =
            Kind::from_number(bytes[5]).ok_or(unknown("kind of message", bytes[5].into()))?;
        if !kind.is_sent_by(limits.from) {
            return Err(Error::Unexpected {
                expected: match limits.from {
                    Side::Client => "a message that clients send",
                    Side::Server => "a message that servers send",
                },
                found: kind,
            });
        }
        let reserved = u16::from_le_bytes(field(bytes, 6));
        if reserved != 0 {
            return Err(unknown("feature flag", reserved.into()));
        }
        let header_len = u32::from_le_bytes(field(bytes, 8));
        let payload_len = u64::from_le_bytes(field(bytes, 12));
        let most = if kind == Kind::Batch {
            limits.payload_bytes
        } else {
            0
        };
        for (what, limit, found) in [
            ("a message", limits.header_bytes.into(), header_len.into()),
            ("a payload", most, payload_len),
        ] {
            if found > limit {
                return Err(Error::TooLarge { what, limit, found });
            }
        }
        Ok(Head {
            kind,
            header_len,
            payload_len,
            checksum: u32::from_le_bytes(field(bytes, CHECKSUM_AT)),
            partial: crc32c::crc32c(&bytes[..CHECKSUM_AT]),
        })
    }

    /// Verifies the checksum over head and header, and decodes the message.
    ///
    /// # Errors
    ///
    /// [`Error::Checksum`], or [`Error::Message`] if the header is not such a message.
    pub fn message(&self, header: &[u8]) -> Result<Message> {
        let found = crc32c::crc32c_append(self.partial, header);
        if found != self.checksum {
            return Err(Error::Checksum {
                what: "frame's head and message",
                expected: self.checksum,
                found,
            });
        }
        Message::decode(self.kind, header)
    }
}

/// Returns the `N` bytes at an offset, which must lie in the head.
fn field<const N: usize>(bytes: &[u8; HEAD_LEN], at: usize) -> [u8; N] {
    std::array::from_fn(|i| bytes[at + i])
}

/// Replaces `out` by head and header of a frame; the payload follows separately.
///
/// # Errors
///
/// [`Error::TooLarge`] for a message that does not fit the head's length field.
pub fn encode(message: &Message, payload_len: u64, out: &mut Vec<u8>) -> Result<()> {
    let len = message.encoded_len();
    let header_len = u32::try_from(len).map_err(|_| Error::TooLarge {
        what: "a message",
        limit: u32::MAX.into(),
        found: len as u64,
    })?;
    out.clear();
    out.reserve(HEAD_LEN + len);
    out.extend_from_slice(&MAGIC);
    out.push(FRAME_LAYOUT);
    out.push(message.kind() as u8);
    out.extend_from_slice(&[0; 2]);
    out.extend_from_slice(&header_len.to_le_bytes());
    out.extend_from_slice(&payload_len.to_le_bytes());
    out.extend_from_slice(&[0; 4]);
    message.encode(out);
    let own = crc32c::crc32c(&out[..CHECKSUM_AT]);
    let checksum = crc32c::crc32c_append(own, &out[HEAD_LEN..]);
    out[CHECKSUM_AT..HEAD_LEN].copy_from_slice(&checksum.to_le_bytes());
    Ok(())
}

/// Decodes the first frame of `bytes`: its message, its payload and the remaining bytes; `None` if
/// the frame is incomplete.
///
/// # Errors
///
/// As [`Head::parse`] and [`Head::message`].
#[expect(clippy::type_complexity)]
pub fn decode<'a>(
    bytes: &'a [u8],
    limits: &FrameLimits,
) -> Result<Option<(Message, &'a [u8], &'a [u8])>> {
    let Some((head, rest)) = bytes.split_first_chunk::<HEAD_LEN>() else {
        return Ok(None);
    };
    let head = Head::parse(head, limits)?;
    let Some((header, rest)) = rest.split_at_checked(head.header_len as usize) else {
        return Ok(None);
    };
    let message = head.message(header)?;
    let Ok(payload_len) = usize::try_from(head.payload_len) else {
        return Ok(None);
    };
    Ok(rest
        .split_at_checked(payload_len)
        .map(|(payload, rest)| (message, payload, rest)))
}
