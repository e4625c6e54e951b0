//! Reads the blocks of an indexed shard in order by their headers, without the index: for verification, and
//! for recovery if the end of the file is missing.

use std::io::{self, Read};
use std::ops::Range;

use crate::codec::Codec;
use crate::error::Corruption;
use crate::index::layout::{BLOCK_ALIGN, BlockHeader, PIECE_BYTES};

/// A block header, with the offset of the block. The payload is in the buffer of the caller of `next`.
#[derive(Debug)]
pub(crate) struct BlockAt {
    pub(crate) offset: u64,
    pub(crate) header: BlockHeader,
}

/// Reads blocks in order from a stream.
pub(crate) struct Walk<R> {
    reader: R,
    position: u64,
    /// Offset at which the blocks end.
    end: u64,
    max_payload: u64,
}

impl<R: Read> Walk<R> {
    /// Starts at `position`, the reader's current offset; ends at `end`.
    pub(crate) fn new(reader: R, position: u64, end: u64, max_payload: u64) -> Self {
        Self {
            reader,
            position,
            end,
            max_payload,
        }
    }

    pub(crate) fn position(&self) -> u64 {
        self.position
    }

    /// Returns the next block's header, and reads its payload, which is not verified; `None` at the end.
    /// Padding must be zero.
    pub(crate) fn next(
        &mut self,
        payload: &mut Vec<u8>,
    ) -> io::Result<Result<Option<BlockAt>, Corruption>> {
        let mut piece = [0; PIECE_BYTES];
        let aligned = self.position.next_multiple_of(BLOCK_ALIGN);
        if self.position >= self.end {
            return Ok(Ok(None));
        }
        // Compressed blocks follow directly; raw ones start at the next multiple of the alignment.
        let room = (self.end - self.position).min(PIECE_BYTES as u64);
        if self.read(&mut piece, room as usize)? < PIECE_BYTES {
            return Ok(Err(self.cut(PIECE_BYTES as u64, room)));
        }
        let mut offset = self.position - PIECE_BYTES as u64;
        if offset != aligned && piece[0] == 0 {
            let gap = aligned - offset;
            let mut zeros = [0; BLOCK_ALIGN as usize];
            let known = gap.min(PIECE_BYTES as u64) as usize;
            zeros[..known].copy_from_slice(&piece[..known]);
            if (gap as usize) < PIECE_BYTES {
                piece.copy_within(known.., 0);
                let missing = known;
                let got = self.read_at_end(&mut piece[PIECE_BYTES - missing..])?;
                if got < missing {
                    return Ok(Err(self.cut(PIECE_BYTES as u64, got as u64)));
                }
            } else {
                let more = self.read_at_end(&mut zeros[known..gap as usize])?;
                let got = self.read_at_end(&mut piece)?;
                if more + known < gap as usize || got < PIECE_BYTES {
                    return Ok(Err(self.cut(PIECE_BYTES as u64, got as u64)));
                }
            }
            if let Some(at) = zeros[..gap as usize].iter().position(|&byte| byte != 0) {
                let found = format!("{:#04x}", zeros[at]);
                return Ok(Err(Corruption::new(
                    offset + at as u64,
                    "padding",
                    "0x00",
                    found,
                )));
            }
            offset = aligned;
        }
        let header = match BlockHeader::decode(&piece, offset) {
            Ok(header) => header,
            Err(damage) => return Ok(Err(damage)),
        };
        if header.codec == Codec::NONE && !offset.is_multiple_of(BLOCK_ALIGN) {
            let expected = format!("a multiple of {BLOCK_ALIGN}");
            return Ok(Err(Corruption::new(
                offset,
                "start of a raw block",
                expected,
                offset,
            )));
        }
        let room = self.end.saturating_sub(self.position);
        if header.stored_len > room || header.raw_len > self.max_payload {
            let most = format!("at most {} stored and {} raw", room, self.max_payload);
            let found = format!("{} and {}", header.stored_len, header.raw_len);
            return Ok(Err(Corruption::new(
                offset,
                "length of the block",
                most,
                found,
            )));
        }
        payload.clear();
        let read = (&mut self.reader)
            .take(header.stored_len)
            .read_to_end(payload)? as u64;
        self.position += read;
        if read < header.stored_len {
            return Ok(Err(self.cut(header.stored_len, read)));
        }
        Ok(Ok(Some(BlockAt { offset, header })))
    }

    fn read(&mut self, piece: &mut [u8], len: usize) -> io::Result<usize> {
        let mut read = 0;
        while read < len {
            match self.reader.read(&mut piece[read..len])? {
                0 => break,
                more => read += more,
            }
        }
        self.position += read as u64;
        Ok(read)
    }

    fn read_at_end(&mut self, piece: &mut [u8]) -> io::Result<usize> {
        let len = piece.len();
        self.read(piece, len)
    }

    fn cut(&self, expected: u64, found: u64) -> Corruption {
        let expected = format!("{expected} bytes");
        let found = format!("{found} before the end of the blocks");
        Corruption::truncated(self.position, "block is cut short", expected, found)
    }
}

/// The records of a block.
impl BlockAt {
    pub(crate) fn records(&self) -> Range<u64> {
        let first = self.header.first_record;
        first..first.saturating_add(u64::from(self.header.records))
    }
}
