//! Frames over a blocking stream.
//!
//! [`FrameReader`] keeps a partial frame when a timeout of the stream passes, so that a server can
//! do other work between two bytes of a slow client. Payloads are read directly into the caller's
//! buffer, and written directly from it together with their header.

use std::io::{ErrorKind, IoSlice, Read, Write};

use crate::error::{Error, Result};
use crate::frame::{self, FrameLimits, HEAD_LEN, Head};
use crate::message::Message;

/// Header buffers grow by this much as bytes arrive, so that a length alone does not cause a large
/// allocation.
const GROW: usize = 64 << 10;
/// Bytes requested at once if frames are [read ahead](FrameReader::read_ahead): enough for head and
/// message of a batch of some hundred samples, or for several small frames.
const AHEAD: usize = 4 << 10;
/// Payloads are read in pieces of this size. While a read goes on, the kernel puts arriving packets aside and acknowledges them
/// late: a sender to a reader of whole payloads sends some of them again. A piece is still in cache when it is summed.
const READ_PIECE: usize = 128 << 10;
/// Payloads are written in pieces of this size. With larger pieces, data leaves the CPU caches before the receiver reads it.
const SENT_PIECE: usize = 1 << 20;

/// Reads frames from a stream.
#[derive(Debug)]
pub struct FrameReader<R> {
    inner: R,
    limits: FrameLimits,
    /// Head and header of the current frame, and bytes read ahead.
    bytes: Vec<u8>,
    filled: usize,
    /// Minimum number of bytes to request at once.
    ahead: usize,
    head: Option<Head>,
    /// Unread bytes of the last message's payload.
    payload_left: u64,
}

impl<R: Read> FrameReader<R> {
    /// Creates a reader that enforces `limits`. If they allow no payload, frames are [read
    /// ahead](FrameReader::read_ahead).
    pub fn new(inner: R, limits: FrameLimits) -> Self {
        FrameReader {
            inner,
            limits,
            bytes: Vec::new(),
            filled: 0,
            ahead: if limits.payload_bytes == 0 { AHEAD } else { 0 },
            head: None,
            payload_left: 0,
        }
    }

    /// Requests bytes beyond the head together with it, which saves a system call per frame. With
    /// frequent payloads this costs more than it saves, because payload bytes that were read ahead
    /// have to be copied.
    #[must_use]
    pub fn read_ahead(mut self) -> Self {
        self.ahead = AHEAD;
        self
    }

    /// Sets the limits of subsequent frames.
    pub fn set_limits(&mut self, limits: FrameLimits) {
        self.limits = limits;
    }

    /// Returns the underlying stream.
    pub fn get_ref(&self) -> &R {
        &self.inner
    }

    /// Returns the underlying stream for changes. Reading from it loses frames.
    pub fn get_mut(&mut self) -> &mut R {
        &mut self.inner
    }

    /// Returns the underlying stream and discards buffered bytes.
    pub fn into_inner(self) -> R {
        self.inner
    }

    /// Returns whether the next frame has arrived in part or in full.
    #[must_use]
    pub fn is_mid_frame(&self) -> bool {
        self.filled > 0 || self.payload_left > 0
    }

    /// Reads the next message. Returns it with the length of its payload, which must be read with
    /// [`FrameReader::read_payload`] before the next call.
    ///
    /// # Errors
    ///
    /// [`Error::Closed`] at the end of the stream. After an error with [`Error::is_timeout`],
    /// another call continues; all other errors are final.
    pub fn read(&mut self) -> Result<(Message, u64)> {
        debug_assert_eq!(self.payload_left, 0, "the payload was not read");
        self.fill(HEAD_LEN, "head")?;
        let head = match self.head {
            Some(head) => head,
            None => {
                let bytes = self.bytes.first_chunk().expect("just filled");
                *self.head.insert(Head::parse(bytes, &self.limits)?)
            }
        };
        let end = HEAD_LEN + head.header_len as usize;
        self.fill(end, "message")?;
        let message = head.message(&self.bytes[HEAD_LEN..end])?;
        self.head = None;
        self.taken(end);
        if self.bytes.capacity() > GROW {
            self.bytes = self.bytes[..self.filled].to_vec();
        }
        self.payload_left = head.payload_len;
        Ok((message, head.payload_len))
    }

    /// Drops the first `n` buffered bytes.
    fn taken(&mut self, n: usize) {
        self.bytes.copy_within(n..self.filled, 0);
        self.filled -= n;
    }

    fn fill(&mut self, end: usize, what: &'static str) -> Result<()> {
        while self.filled < end {
            let room = end.max(self.ahead).min(self.filled + GROW);
            if self.bytes.len() < room {
                self.bytes.resize(room, 0);
            }
            match self.inner.read(&mut self.bytes[self.filled..room]) {
                Ok(0) if self.filled == 0 => return Err(Error::Closed),
                Ok(0) => {
                    return Err(Error::Truncated {
                        what,
                        expected: end as u64,
                        found: self.filled as u64,
                    });
                }
                Ok(n) => self.filled += n,
                Err(e) if e.kind() == ErrorKind::Interrupted => {}
                Err(e) => return Err(Error::io("reading a message")(e)),
            }
            // Checked as early as possible: a peer of another protocol may send nothing more and
            // wait for an answer.
            if self.head.is_none()
                && let Some(first) = self.bytes[..self.filled].first_chunk()
                && *first != frame::MAGIC
            {
                return Err(Error::Magic { found: *first });
            }
        }
        Ok(())
    }

    /// Fills `out`, whose length must be that of the payload, and verifies the checksum, if any.
    ///
    /// # Errors
    ///
    /// [`Error::Truncated`], [`Error::Checksum`], or [`Error::Io`]; timeouts are final here.
    pub fn read_payload(&mut self, out: &mut [u8], crc32c: Option<u32>) -> Result<()> {
        debug_assert_eq!(self.payload_left, out.len() as u64);
        let expected = out.len() as u64;
        // Bytes that arrived together with the message.
        let mut filled = out.len().min(self.filled);
        out[..filled].copy_from_slice(&self.bytes[..filled]);
        self.taken(filled);
        let (mut checksum, mut summed) = (0, 0);
        loop {
            if crc32c.is_some() {
                checksum = crc32c::crc32c_append(checksum, &out[summed..filled]);
                summed = filled;
            }
            self.payload_left = expected - filled as u64;
            if self.payload_left == 0 {
                break;
            }
            let end = out.len().min(filled + READ_PIECE);
            match self.inner.read(&mut out[filled..end]) {
                Ok(0) => {
                    return Err(Error::Truncated {
                        what: "payload",
                        expected,
                        found: filled as u64,
                    });
                }
                Ok(n) => filled += n,
                Err(e) if e.kind() == ErrorKind::Interrupted => {}
                Err(e) => return Err(Error::io("reading a payload")(e)),
            }
        }
        match crc32c {
            Some(expected) if expected != checksum => Err(Error::Checksum {
                what: "payload",
                expected,
                found: checksum,
            }),
            _ => Ok(()),
        }
    }
}

/// Verifies the checksum of a complete payload, if any.
///
/// # Errors
///
/// [`Error::Checksum`].
pub fn check_payload(payload: &[u8], crc32c: Option<u32>) -> Result<()> {
    let Some(expected) = crc32c else {
        return Ok(());
    };
    let found = crc32c::crc32c(payload);
    if found != expected {
        return Err(Error::Checksum {
            what: "payload",
            expected,
            found,
        });
    }
    Ok(())
}

/// Writes frames to a stream.
#[derive(Debug)]
pub struct FrameWriter<W> {
    inner: W,
    scratch: Vec<u8>,
}

impl<W: Write> FrameWriter<W> {
    /// Creates a writer. `inner` should not buffer: a small frame is one system call, a large one
    /// few.
    pub fn new(inner: W) -> Self {
        FrameWriter {
            inner,
            scratch: Vec::new(),
        }
    }

    /// Returns the underlying stream.
    pub fn get_ref(&self) -> &W {
        &self.inner
    }

    fn write_all(inner: &mut W, parts: [&[u8]; 2]) -> Result<()> {
        let mut slices = parts.map(IoSlice::new);
        let mut left = &mut slices[..];
        // Removes empty slices, which would look like a stream that accepts no more.
        IoSlice::advance_slices(&mut left, 0);
        while !left.is_empty() {
            match inner.write_vectored(left) {
                Ok(0) => return Err(Error::io("writing")(ErrorKind::WriteZero.into())),
                Ok(n) => IoSlice::advance_slices(&mut left, n),
                Err(e) if e.kind() == ErrorKind::Interrupted => {}
                Err(e) => return Err(Error::io("writing")(e)),
            }
        }
        Ok(())
    }

    /// Writes one frame.
    ///
    /// # Errors
    ///
    /// [`Error::Io`]. Part of the frame may have been written, so the stream cannot be used any
    /// more.
    pub fn write(&mut self, message: &Message, payload: &[u8]) -> Result<()> {
        frame::encode(message, payload.len() as u64, &mut self.scratch)?;
        let (first, rest) = payload.split_at(payload.len().min(SENT_PIECE));
        Self::write_all(&mut self.inner, [&self.scratch, first])?;
        for piece in rest.chunks(SENT_PIECE) {
            Self::write_all(&mut self.inner, [piece, &[]])?;
        }
        if self.scratch.capacity() > GROW {
            self.scratch = Vec::new();
        }
        Ok(())
    }
}
