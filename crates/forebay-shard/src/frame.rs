//! The frame around a record, which is TFRecord's in both formats.
//!
//! `u64 length | u32 masked crc32c of the length | payload | u32 masked crc32c of the payload`,
//! little-endian. This file encodes and verifies frames; the readers locate them.

use std::io::{self, Read};

use crate::checksum::{Crc32c, crc32c, mask};
use crate::error::{Corruption, Error};

/// The number, offset and length of a record.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub struct RecordInfo {
    /// Its number, counted from 0.
    pub index: u64,
    /// Offset of its frame; in the decompressed stream if the file is compressed.
    pub offset: u64,
    /// Payload length.
    pub len: u64,
}

/// Bytes before the payload: its length and the checksum of the length.
pub(crate) const HEAD_BYTES: usize = 12;
/// Bytes after the payload: its checksum.
pub(crate) const TAIL_BYTES: usize = 4;
/// Bytes that a frame adds to its payload.
pub const OVERHEAD_BYTES: usize = HEAD_BYTES + TAIL_BYTES;
/// Maximum length of a record when writing, and the default limit when reading.
pub const MAX_RECORD_BYTES: u64 = 256 << 20;

/// Returns the error for a record above [`MAX_RECORD_BYTES`].
pub(crate) fn too_long(len: u64) -> Error {
    Error::invalid(format!(
        "a record of {len} bytes: the longest is {MAX_RECORD_BYTES}"
    ))
}

/// Encodes the head of a frame with a payload of `len` bytes.
pub(crate) fn encode_head(len: u64) -> [u8; HEAD_BYTES] {
    let mut head = [0; HEAD_BYTES];
    head[..8].copy_from_slice(&len.to_le_bytes());
    let crc = mask(crc32c(&head[..8]));
    head[8..].copy_from_slice(&crc.to_le_bytes());
    head
}

/// Verifies a head and returns its payload length. `offset` is the offset of the head, for the error.
pub(crate) fn decode_head(head: &[u8; HEAD_BYTES], offset: u64) -> Result<u64, Corruption> {
    let (length, stored) = split_head(head);
    let found = mask(crc32c(&head[..8]));
    if stored != found {
        return Err(Corruption::checksum(offset, "length crc32c", stored, found));
    }
    Ok(length)
}

/// Returns the length and the checksum of a head, not verified.
pub(crate) fn split_head(head: &[u8; HEAD_BYTES]) -> (u64, u32) {
    let [a, b, c, d, e, f, g, h, i, j, k, l] = *head;
    (
        u64::from_le_bytes([a, b, c, d, e, f, g, h]),
        u32::from_le_bytes([i, j, k, l]),
    )
}

/// Verifies a payload against its checksum in the four bytes after it. `offset` is the offset of the frame, for
/// the error.
pub(crate) fn check_payload(
    payload: &[u8],
    tail: [u8; TAIL_BYTES],
    offset: u64,
) -> Result<(), Corruption> {
    let stored = u32::from_le_bytes(tail);
    let found = mask(crc32c(payload));
    if stored != found {
        return Err(Corruption::checksum(
            offset,
            "payload crc32c",
            stored,
            found,
        ));
    }
    Ok(())
}

/// Verifies a whole frame, whose length comes from the index, and returns its payload.
pub(crate) fn check(frame: &[u8], offset: u64, verify: bool) -> Result<&[u8], Corruption> {
    let (Some((head, rest)), true) = (frame.split_first_chunk(), frame.len() >= OVERHEAD_BYTES)
    else {
        return Err(Corruption::new(
            offset,
            "frame",
            "16 bytes or more",
            frame.len(),
        ));
    };
    let Some((payload, tail)) = rest.split_last_chunk() else {
        return Err(Corruption::new(
            offset,
            "frame",
            "16 bytes or more",
            frame.len(),
        ));
    };
    let len = if verify {
        decode_head(head, offset)?
    } else {
        split_head(head).0
    };
    if len != payload.len() as u64 {
        return Err(Corruption::new(
            offset,
            "record length",
            format_args!("{} as the index says", payload.len()),
            len,
        ));
    }
    if verify {
        check_payload(payload, *tail, offset)?;
    }
    Ok(payload)
}

/// A buffer in which frames are built, each payload in its final position.
///
/// Written data exists only here: space for the head is reserved, the payload is appended (or read directly from
/// a file), then head and tail are filled in. The checksum of all frames is updated by combining it with that of
/// the frame.
#[derive(Debug, Default)]
pub(crate) struct FrameBuffer {
    bytes: Vec<u8>,
    /// The start of the open frame.
    open: Option<usize>,
    /// Checksum of the finished frames since the last `reset`.
    sum: Crc32c,
}

impl FrameBuffer {
    /// Empties the buffer, leaving `reserve` zero bytes at its start for data that is not a frame
    /// and not covered by the checksum.
    pub(crate) fn reset(&mut self, reserve: usize) {
        self.bytes.clear();
        self.bytes.resize(reserve, 0);
        self.open = None;
        self.sum = Crc32c::default();
    }

    /// Returns the whole buffer: the reserved bytes, followed by finished frames.
    pub(crate) fn bytes_mut(&mut self) -> &mut Vec<u8> {
        &mut self.bytes
    }

    pub(crate) fn bytes(&self) -> &[u8] {
        &self.bytes
    }

    pub(crate) fn sum(&self) -> Crc32c {
        self.sum
    }

    /// Starts a frame, and drops one that was not committed.
    pub(crate) fn begin(&mut self) -> Payload<'_> {
        self.rollback();
        let open = self.bytes.len();
        self.open = Some(open);
        self.bytes.extend_from_slice(&[0; HEAD_BYTES]);
        Payload {
            start: self.bytes.len(),
            bytes: &mut self.bytes,
        }
    }

    /// Drops the open frame, if there is one.
    pub(crate) fn rollback(&mut self) {
        if let Some(open) = self.open.take() {
            self.bytes.truncate(open);
        }
    }

    /// Appends finished frames; `sum` is their checksum.
    pub(crate) fn append(&mut self, frames: &[u8], sum: Crc32c) {
        self.rollback();
        self.bytes.extend_from_slice(frames);
        self.sum.combine(sum.value(), sum.len());
    }

    /// Returns the length of the open payload.
    pub(crate) fn open_len(&self) -> Option<u64> {
        self.open
            .map(|open| (self.bytes.len() - open - HEAD_BYTES) as u64)
    }

    /// Ends the open frame.
    pub(crate) fn commit(&mut self) {
        let Some(open) = self.open.take() else { return };
        let payload = &self.bytes[open + HEAD_BYTES..];
        let head = encode_head(payload.len() as u64);
        let crc = crc32c(payload);
        let tail = mask(crc).to_le_bytes();
        self.sum.update(&head);
        self.sum.join_bytes(crc, payload);
        self.sum.update(&tail);
        self.bytes[open..open + HEAD_BYTES].copy_from_slice(&head);
        self.bytes.extend_from_slice(&tail);
    }
}

/// The payload of a record under construction, in the buffer that will be written.
#[derive(Debug)]
pub struct Payload<'a> {
    bytes: &'a mut Vec<u8>,
    start: usize,
}

impl Payload<'_> {
    /// Appends bytes.
    pub fn push(&mut self, bytes: &[u8]) {
        self.bytes.extend_from_slice(bytes);
    }

    /// Appends exactly `len` bytes from a reader, without an intermediate copy.
    ///
    /// # Errors
    /// The reader's error, or `UnexpectedEof` if it ends before `len` bytes.
    pub fn read_from(&mut self, reader: impl Read, len: u64) -> io::Result<()> {
        // The buffer grows as data arrives, not by the claimed length.
        self.bytes
            .reserve(usize::try_from(len.min(MAX_RECORD_BYTES)).unwrap_or(0));
        let read = reader.take(len).read_to_end(self.bytes)? as u64;
        if read != len {
            return Err(io::Error::new(
                io::ErrorKind::UnexpectedEof,
                format!("expected {len} bytes, found {read}"),
            ));
        }
        Ok(())
    }

    /// Returns the buffer that contains the payload, for reads into spare capacity. The caller must
    /// only append: earlier bytes belong to other records.
    pub fn buffer_mut(&mut self) -> &mut Vec<u8> {
        self.bytes
    }

    /// Removes the bytes added so far, to start the payload again.
    pub fn clear(&mut self) {
        self.bytes.truncate(self.start);
    }

    /// Returns the number of bytes added so far.
    pub fn len(&self) -> usize {
        self.bytes.len() - self.start
    }

    /// Returns whether the payload is empty.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Returns the bytes added so far, to overwrite some of them in place.
    pub fn as_mut_slice(&mut self) -> &mut [u8] {
        &mut self.bytes[self.start..]
    }

    /// Returns the bytes added so far.
    pub fn as_slice(&self) -> &[u8] {
        &self.bytes[self.start..]
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_buffer_has_the_checksum_of_its_frames() {
        let mut buffer = FrameBuffer::default();
        buffer.reset(64);
        for len in [0usize, 1, 2047, 2048, 100_000] {
            let mut payload = buffer.begin();
            payload.push(&vec![7; len / 2]);
            payload
                .read_from(std::io::repeat(9), (len - len / 2) as u64)
                .unwrap();
            assert_eq!(payload.len(), len);
            buffer.commit();
            buffer.begin().push(b"given up");
        }
        buffer.rollback();
        assert_eq!(buffer.sum().value(), crc32c(&buffer.bytes()[64..]));
        assert_eq!(buffer.sum().len(), buffer.bytes().len() as u64 - 64);
        assert_eq!(check(&buffer.bytes()[64..80], 0, true).unwrap(), b"");
    }
}
