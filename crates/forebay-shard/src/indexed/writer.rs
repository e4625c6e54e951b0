//! Writing an indexed shard, in one pass from front to back.

use std::io::{self, Write};
use std::path::{Path, PathBuf};

use crate::checksum::{Crc32c, crc32c};
use crate::codec::{BlockCodec, Codec};
use crate::error::{Error, Result};
use crate::frame::{FrameBuffer, MAX_RECORD_BYTES, Payload};
use crate::index::layout::{BLOCK_ALIGN, BlockHeader, FEATURE_ZSTD, Header, PIECE_BYTES};
use crate::index::{Block, Features, FileKind, IndexBuilder, RecordMeta};
use crate::tfrecord::RecordInfo;
use crate::writer::{ShardSummary, too_long};

/// The largest size at which a block can be told to close.
pub const MAX_BLOCK_BYTES: usize = 64 << 20;

/// Default size at which a raw block closes: the unit of one write.
const RAW_BLOCK_BYTES: usize = 1 << 20;
/// And a compressed one, which is expanded as a whole for any of its records.
const ZSTD_BLOCK_BYTES: usize = 256 << 10;

/// Options of a [`Writer`].
#[derive(Debug, Clone)]
pub struct WriterBuilder {
    codec: Codec,
    level: i32,
    block_bytes: Option<usize>,
}

impl Default for WriterBuilder {
    fn default() -> Self {
        Self {
            codec: Codec::None,
            level: 3,
            block_bytes: None,
        }
    }
}

impl WriterBuilder {
    /// Raw blocks of about 1 MiB.
    pub fn new() -> Self {
        Self::default()
    }

    /// How blocks are stored. A block that does not shrink is stored raw.
    pub fn codec(&mut self, codec: Codec) -> &mut Self {
        self.codec = codec;
        self
    }

    /// The codec's level; 3 by default.
    pub fn level(&mut self, level: i32) -> &mut Self {
        self.level = level;
        self
    }

    /// A block closes once its frames take this many bytes, 64 MiB at most;
    /// 1 MiB by default, 256 KiB with a codec.
    pub fn block_bytes(&mut self, bytes: usize) -> &mut Self {
        self.block_bytes = Some(bytes.min(MAX_BLOCK_BYTES));
        self
    }

    /// Writes to anything; `name` is what errors call it. The writer does its
    /// own buffering. The file is complete once [`Writer::finish`] returns.
    ///
    /// # Errors
    /// When the codec refuses the level or there is no memory for it.
    pub fn from_writer<W: Write>(&self, writer: W, name: impl AsRef<Path>) -> Result<Writer<W>> {
        let path = name.as_ref();
        let compressor = self.codec.compressor(self.level);
        let compressor = compressor.map_err(|error| Error::io(path, "compress", error))?;
        let default = if compressor.is_some() {
            ZSTD_BLOCK_BYTES
        } else {
            RAW_BLOCK_BYTES
        };
        let incompatible = if self.codec == Codec::Zstd {
            FEATURE_ZSTD
        } else {
            0
        };
        let features = Features {
            compatible: 0,
            incompatible,
        };
        let mut frames = FrameBuffer::default();
        frames.reset(PIECE_BYTES);
        Ok(Writer {
            path: path.to_owned(),
            writer,
            features,
            compressor: compressor.map(Compressor),
            compressed: Vec::new(),
            block_bytes: self.block_bytes.unwrap_or(default),
            frames,
            block_first: 0,
            block_logical: 0,
            index: IndexBuilder::new(),
            sum: Crc32c::default(),
        })
    }
}

/// A boxed codec that prints as nothing in particular.
struct Compressor(Box<dyn BlockCodec + Send>);

impl std::fmt::Debug for Compressor {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Compressor")
    }
}

/// Writes the records of an indexed shard.
///
/// A record is given whole to [`append`](Self::append), or put together in
/// the block's own buffer between [`begin`](Self::begin) and
/// [`commit`](Self::commit), so that its bytes are copied once at most.
#[derive(Debug)]
pub struct Writer<W: Write> {
    path: PathBuf,
    writer: W,
    features: Features,
    compressor: Option<Compressor>,
    compressed: Vec<u8>,
    block_bytes: usize,
    /// The open block: room for its header, then frames.
    frames: FrameBuffer,
    block_first: u64,
    block_logical: u64,
    index: IndexBuilder,
    /// Of everything written.
    sum: Crc32c,
}

impl<W: Write> Writer<W> {
    /// Writes a record.
    ///
    /// # Errors
    /// When it is longer than 256 MiB, its key cannot be indexed, or writing
    /// fails.
    pub fn append(&mut self, record: &[u8], meta: &RecordMeta<'_>) -> Result<RecordInfo> {
        if record.len() as u64 > MAX_RECORD_BYTES {
            return Err(too_long(record.len() as u64));
        }
        self.begin().push(record);
        self.commit(meta)
    }

    /// Starts a record in the block's buffer. One that was started and not
    /// committed is dropped.
    pub fn begin(&mut self) -> Payload<'_> {
        self.frames.begin()
    }

    /// Ends the record that was started last. Its offset is the one among the
    /// joined frames of all blocks.
    ///
    /// # Errors
    /// When none was started, it is longer than 256 MiB, its key cannot be
    /// indexed (it is dropped then), or writing fails.
    pub fn commit(&mut self, meta: &RecordMeta<'_>) -> Result<RecordInfo> {
        let len = self
            .frames
            .open_len()
            .ok_or_else(|| Error::invalid("no record was started"))?;
        let (index, offset) = (self.index.records(), self.index.logical_len());
        let fits = if len > MAX_RECORD_BYTES {
            Err(too_long(len))
        } else {
            Ok(())
        };
        if let Err(error) = fits.and_then(|()| self.index.push(len, meta)) {
            self.frames.rollback();
            return Err(error);
        }
        self.frames.commit();
        if self.frames.sum().len() >= self.block_bytes as u64 {
            self.close_block()?;
        }
        Ok(RecordInfo { index, offset, len })
    }

    /// Records written so far.
    pub fn records(&self) -> u64 {
        self.index.records()
    }

    /// Writes what is left, the index and the trailer. Gives the inner writer
    /// back, flushed, and what was written.
    ///
    /// # Errors
    /// When writing fails.
    pub fn finish(mut self) -> Result<(W, ShardSummary)> {
        self.close_block()?;
        self.start()
            .map_err(|error| Error::io(&self.path, "write", error))?;
        let binding = (
            FileKind::Shard,
            self.features,
            self.sum.len(),
            self.sum.value(),
        );
        let end = self.index.encode(self.sum.len(), binding);
        let written = self
            .put(&end, crc32c(&end))
            .and_then(|()| self.writer.flush());
        written.map_err(|error| Error::io(&self.path, "write", error))?;
        let summary = ShardSummary {
            records: self.index.records(),
            bytes: self.sum.len(),
            crc32c: self.sum.value(),
            index: Some(self.index),
        };
        Ok((self.writer, summary))
    }

    /// Writes the file header, if nothing was written yet.
    fn start(&mut self) -> io::Result<()> {
        if self.sum.is_empty() {
            let header = Header {
                kind: FileKind::Shard,
                features: self.features,
            }
            .encode();
            self.put(&header, crc32c(&header))?;
        }
        Ok(())
    }

    fn put(&mut self, bytes: &[u8], crc: u32) -> io::Result<()> {
        self.writer.write_all(bytes)?;
        self.sum.join(crc, bytes.len() as u64);
        Ok(())
    }

    fn close_block(&mut self) -> Result<()> {
        self.frames.rollback();
        if !self.frames.sum().is_empty() {
            self.write_block()
                .map_err(|error| Error::io(&self.path, "write", error))?;
        }
        Ok(())
    }

    fn write_block(&mut self) -> io::Result<()> {
        self.start()?;
        let frames = self.frames.sum();
        let mut codec = Codec::None;
        if let Some(compressor) = &mut self.compressor {
            self.compressed.clear();
            self.compressed.resize(PIECE_BYTES, 0);
            let raw = self.frames.bytes().get(PIECE_BYTES..).unwrap_or(&[]);
            compressor.0.compress(raw, &mut self.compressed)?;
            if self.compressed.len() < self.frames.bytes().len() {
                codec = Codec::Zstd;
            }
        }
        // The payload's sum is there already for raw blocks: of their frames.
        let payload = match codec {
            Codec::None => frames,
            Codec::Zstd => {
                let mut sum = Crc32c::default();
                sum.update(self.compressed.get(PIECE_BYTES..).unwrap_or(&[]));
                sum
            }
        };
        if codec == Codec::None {
            let gap = (self.sum.len().next_multiple_of(BLOCK_ALIGN) - self.sum.len()) as usize;
            let zeros = [0; BLOCK_ALIGN as usize];
            self.writer.write_all(&zeros[..gap])?;
            self.sum.update(&zeros[..gap]);
        }
        let block = Block {
            offset: self.sum.len(),
            stored_len: payload.len(),
            first_record: self.block_first,
            crc: payload.value(),
            codec,
        };
        let records = self.index.records() - self.block_first;
        let header = BlockHeader {
            codec,
            records: u32::try_from(records).map_err(|_| io::ErrorKind::InvalidInput)?,
            first_record: self.block_first,
            crc: block.crc,
            stored_len: block.stored_len,
            raw_len: frames.len(),
            logical: self.block_logical,
        }
        .encode();
        let bytes = match codec {
            Codec::None => self.frames.bytes_mut(),
            Codec::Zstd => &mut self.compressed,
        };
        bytes[..PIECE_BYTES].copy_from_slice(&header);
        self.writer.write_all(bytes)?;
        self.sum.update(&header);
        self.sum.join(payload.value(), payload.len());

        self.index.push_block(block);
        self.block_first = self.index.records();
        self.block_logical = self.index.logical_len();
        self.frames.reset(PIECE_BYTES);
        Ok(())
    }
}
