//! The blocks of an indexed shard while it is written, in one pass from front to back.

use std::io::{self, Write};
use std::ops::Range;

use crate::checksum::Crc32c;
use crate::codec::{Codec, Compressor};
use crate::frame::{FrameBuffer, OVERHEAD_BYTES};
use crate::frames::{Frames, KEEP_BYTES};
use crate::index::layout::{BLOCK_ALIGN, BlockHeader, Header};
use crate::index::{Block, Features, FileKind, IndexBuilder};

/// A compressor, with the codec id for its blocks.
struct BlockCompressor {
    codec: Codec,
    compress: Compressor,
}

impl std::fmt::Debug for BlockCompressor {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "BlockCompressor({})", self.codec)
    }
}

/// The block under construction.
#[derive(Debug, Clone, Copy, Default)]
struct Open {
    first_record: u64,
    records: u64,
    /// Start of its frames in the concatenated frames of all blocks.
    logical: u64,
    /// Length of its frames.
    bytes: u64,
}

/// Writes blocks. Frames and index are those of the caller's [`ShardWriter`](crate::ShardWriter).
#[derive(Debug)]
pub(crate) struct Blocks<W: Write> {
    writer: W,
    features: Features,
    compressor: Option<BlockCompressor>,
    compressed: Vec<u8>,
    block_bytes: usize,
    /// Frames after those in the open block, each with the number of its first record to write.
    parts: Vec<(Frames, usize)>,
    /// Buffers whose frames have been written.
    spent: Vec<Frames>,
    open: Open,
    /// Checksum of all bytes written.
    sum: Crc32c,
}

impl<W: Write> Blocks<W> {
    pub(crate) fn new(
        writer: W,
        features: Features,
        compressor: Option<(Codec, Compressor)>,
        block_bytes: usize,
    ) -> Self {
        Self {
            writer,
            features,
            compressor: compressor.map(|(codec, compress)| BlockCompressor { codec, compress }),
            compressed: Vec::new(),
            block_bytes,
            parts: Vec::new(),
            spent: Vec::new(),
            open: Open::default(),
            sum: Crc32c::default(),
        }
    }

    /// Copies frames that were framed elsewhere to `built`, whose next record follows them.
    pub(crate) fn join_parts(&mut self, built: &mut FrameBuffer) {
        for (frames, from) in std::mem::take(&mut self.parts) {
            let (bytes, sum) = frames.part(from..frames.len());
            built.append(bytes, sum);
            self.spend(frames);
        }
    }

    /// Adds the last record of `built`, which has `len` bytes.
    pub(crate) fn add(
        &mut self,
        len: u64,
        built: &mut FrameBuffer,
        index: &mut IndexBuilder,
    ) -> io::Result<()> {
        self.open.records += 1;
        self.open.bytes += len + OVERHEAD_BYTES as u64;
        if self.open.bytes >= self.block_bytes as u64 {
            self.close_block(None, built, index)?;
        }
        Ok(())
    }

    /// Adds records that were framed elsewhere. Returns a buffer whose frames have been written.
    pub(crate) fn add_frames(
        &mut self,
        frames: Frames,
        built: &mut FrameBuffer,
        index: &mut IndexBuilder,
    ) -> io::Result<Option<Frames>> {
        let mut from = 0;
        for record in 0..frames.len() {
            self.open.records += 1;
            self.open.bytes += frames.record_len(record).unwrap_or(0) + OVERHEAD_BYTES as u64;
            if self.open.bytes >= self.block_bytes as u64 {
                self.close_block(Some((&frames, from..record + 1)), built, index)?;
                from = record + 1;
            }
        }
        if from < frames.len() {
            self.parts.push((frames, from));
        } else {
            self.spend(frames);
        }
        Ok(self.spent.pop())
    }

    fn spend(&mut self, mut frames: Frames) {
        frames.clear(KEEP_BYTES);
        self.spent.push(frames);
    }

    /// Writes the last block, the index and the trailer. Returns the inner writer, flushed, and the checksum of the file.
    pub(crate) fn finish(
        mut self,
        built: &mut FrameBuffer,
        index: &mut IndexBuilder,
    ) -> io::Result<(W, Crc32c)> {
        self.close_block(None, built, index)?;
        self.start()?;
        let (at, crc) = (self.sum.len(), self.sum.value());
        let binding = (FileKind::Shard, self.features, at, crc);
        let end = index.write_to(at, binding, &mut self.writer)?;
        self.sum.combine(end.value(), end.len());
        self.writer.flush()?;
        Ok((self.writer, self.sum))
    }

    /// Writes the file header, unless it was written before.
    fn start(&mut self) -> io::Result<()> {
        if self.sum.is_empty() {
            let header = Header {
                kind: FileKind::Shard,
                features: self.features,
            }
            .encode();
            self.writer.write_all(&header)?;
            self.sum.update(&header);
        }
        Ok(())
    }

    /// Writes the open block: the buffer, the parts, and the first records of the next part.
    fn close_block(
        &mut self,
        more: Option<(&Frames, Range<usize>)>,
        built: &mut FrameBuffer,
        index: &mut IndexBuilder,
    ) -> io::Result<()> {
        if self.open.records > 0 {
            index.push_block(self.write_block(more, built)?);
            self.open = Open {
                first_record: self.open.first_record + self.open.records,
                logical: self.open.logical + self.open.bytes,
                ..Open::default()
            };
            built.reset(0);
            for (frames, _) in std::mem::take(&mut self.parts) {
                self.spend(frames);
            }
        }
        Ok(())
    }

    fn write_block(
        &mut self,
        more: Option<(&Frames, Range<usize>)>,
        built: &FrameBuffer,
    ) -> io::Result<Block> {
        self.start()?;
        // The checksum of the frames is known already, and raw blocks need no other one.
        let mut frames = built.sum();
        let mut pieces: Vec<&[u8]> = Vec::with_capacity(self.parts.len() + 2);
        pieces.push(built.bytes());
        let parts = self
            .parts
            .iter()
            .map(|(part, from)| (part, *from..part.len()));
        for (part, records) in parts.chain(more) {
            let (bytes, sum) = part.part(records);
            frames.combine(sum.value(), sum.len());
            pieces.push(bytes);
        }
        pieces.retain(|piece| !piece.is_empty());
        let mut payload = frames;
        let mut codec = Codec::NONE;
        let joined: Vec<u8>;
        if let Some(compressor) = &mut self.compressor {
            let raw = match pieces.as_slice() {
                [whole] => *whole,
                pieces => {
                    joined = pieces.concat();
                    &joined
                }
            };
            self.compressed.clear();
            (compressor.compress)(raw, &mut self.compressed)?;
            if self.compressed.len() < raw.len() {
                codec = compressor.codec;
                payload = Crc32c::default();
                payload.update(&self.compressed);
                pieces = vec![&self.compressed];
            }
        }
        if codec == Codec::NONE {
            let gap = (self.sum.len().next_multiple_of(BLOCK_ALIGN) - self.sum.len()) as usize;
            let zeros = [0; BLOCK_ALIGN as usize];
            self.writer.write_all(&zeros[..gap])?;
            self.sum.update(&zeros[..gap]);
        }
        let block = Block {
            offset: self.sum.len(),
            stored_len: payload.len(),
            first_record: self.open.first_record,
            crc: payload.value(),
            codec,
        };
        let header = BlockHeader {
            codec,
            records: u32::try_from(self.open.records).map_err(|_| io::ErrorKind::InvalidInput)?,
            first_record: self.open.first_record,
            crc: block.crc,
            stored_len: block.stored_len,
            raw_len: frames.len(),
            logical: self.open.logical,
        }
        .encode();
        self.writer.write_all(&header)?;
        for piece in pieces {
            self.writer.write_all(piece)?;
        }
        self.sum.update(&header);
        self.sum.combine(payload.value(), payload.len());
        Ok(block)
    }
}
