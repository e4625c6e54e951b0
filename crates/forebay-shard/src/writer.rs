//! Writes shards of either format, in one pass from front to back.

use std::io::{self, Write};
use std::path::{Path, PathBuf};

use crate::blocks::Blocks;
use crate::compress::{Compression, Encoder};
use crate::error::{Error, Result};
use crate::frame::{FrameBuffer, MAX_RECORD_BYTES, Payload, RecordInfo, too_long};
use crate::frames::{Frames, KEEP_BYTES};
use crate::index::{IndexBuilder, RecordMeta};
use crate::summary::ShardSummary;

/// Size in bytes up to which the frames of a TFRecord file are collected before they are written.
const WRITE_BYTES: usize = 1 << 20;

/// Writes the records of a shard, whose format is that of its builder:
/// [`tfrecord::WriterBuilder`](crate::tfrecord::WriterBuilder) or
/// [`indexed::WriterBuilder`](crate::indexed::WriterBuilder).
///
/// A record is passed whole to [`append`](Self::append), or built in the writer's own buffer
/// between [`begin`](Self::begin) and [`commit`](Self::commit), so its bytes are copied at most
/// once.
#[derive(Debug)]
pub struct ShardWriter<W: Write> {
    path: PathBuf,
    /// Frames that were built by this writer and are not written yet.
    frames: FrameBuffer,
    index: IndexBuilder,
    body: Body<W>,
}

/// The bytes of a shard before its index.
#[derive(Debug)]
pub(crate) enum Body<W: Write> {
    /// The frames of a TFRecord file.
    Stream(Compression, Encoder<W>),
    /// The blocks of an indexed shard.
    Blocks(Blocks<W>),
}

impl<W: Write> ShardWriter<W> {
    pub(crate) fn new(path: &Path, body: Body<W>) -> Self {
        let mut frames = FrameBuffer::default();
        frames.reset(0);
        Self {
            path: path.to_owned(),
            frames,
            index: IndexBuilder::new(),
            body,
        }
    }

    /// Writes a record.
    ///
    /// # Errors
    /// If it is longer than 256 MiB, or writing fails.
    pub fn write(&mut self, record: &[u8]) -> Result<RecordInfo> {
        self.append(record, &RecordMeta::default())
    }

    /// Writes a record, with metadata for the index.
    ///
    /// # Errors
    /// If it is longer than 256 MiB, its key cannot be indexed, or writing fails.
    pub fn append(&mut self, record: &[u8], meta: &RecordMeta<'_>) -> Result<RecordInfo> {
        if record.len() as u64 > MAX_RECORD_BYTES {
            return Err(too_long(record.len() as u64));
        }
        self.begin().push(record);
        self.commit(meta)
    }

    /// Starts a record in the writer's buffer, and drops a record that was not committed.
    pub fn begin(&mut self) -> Payload<'_> {
        if let Body::Blocks(blocks) = &mut self.body {
            blocks.join_parts(&mut self.frames);
        }
        self.frames.begin()
    }

    /// Ends the record that was started last, and writes it. The returned offset is its position in the concatenated
    /// frames of the shard.
    ///
    /// # Errors
    /// If no record was started, it is longer than 256 MiB or its key cannot be indexed (then it is dropped), or
    /// writing fails.
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
        let written = match &mut self.body {
            Body::Stream(_, encoder) if self.frames.bytes().len() >= WRITE_BYTES => {
                flush(&mut self.frames, encoder)
            }
            Body::Stream(..) => Ok(()),
            Body::Blocks(blocks) => blocks.add(len, &mut self.frames, &mut self.index),
        };
        written.map_err(|error| Error::io(&self.path, "write", error))?;
        Ok(RecordInfo { index, offset, len })
    }

    /// Reserves memory in the index; see [`IndexBuilder::reserve`](crate::IndexBuilder::reserve).
    pub fn reserve(&mut self, records: u64, key_bytes: u64) {
        self.index.reserve(records, key_bytes);
    }

    /// Appends records that were framed elsewhere, with metadata for each. Their bytes are written
    /// without a copy. Returns `Frames` for reuse, emptied but with their buffer: these or earlier ones, whose bytes have
    /// been written. Returns `None` if the bytes are still needed.
    ///
    /// # Errors
    /// If the number of `metas` differs from the number of records, a key cannot be indexed, or
    /// writing fails. The shard is then unusable.
    pub fn append_frames<'m>(
        &mut self,
        mut frames: Frames,
        metas: impl IntoIterator<Item = RecordMeta<'m>>,
    ) -> Result<Option<Frames>> {
        self.frames.rollback();
        self.index.push_frames(&frames, metas)?;
        let written = match &mut self.body {
            Body::Stream(_, encoder) => flush(&mut self.frames, encoder).and_then(|()| {
                let (bytes, sum) = frames.part(0..frames.len());
                encoder.write_summed(bytes, sum)?;
                frames.clear(KEEP_BYTES);
                Ok(Some(frames))
            }),
            Body::Blocks(blocks) => blocks.add_frames(frames, &mut self.frames, &mut self.index),
        };
        written.map_err(|error| Error::io(&self.path, "write", error))
    }

    /// Returns the number of records written so far.
    pub fn records(&self) -> u64 {
        self.index.records()
    }

    /// Writes pending data. Returns the inner writer, flushed, and a summary.
    ///
    /// # Errors
    /// If writing fails.
    pub fn finish(mut self) -> Result<(W, ShardSummary)> {
        self.frames.rollback();
        let (is_indexed, finished) = match self.body {
            Body::Stream(compression, mut encoder) => (
                compression == Compression::None,
                flush(&mut self.frames, &mut encoder).and_then(|()| encoder.finish()),
            ),
            Body::Blocks(blocks) => (true, blocks.finish(&mut self.frames, &mut self.index)),
        };
        let (inner, sum) = finished.map_err(|error| Error::io(&self.path, "write", error))?;
        let summary = ShardSummary {
            records: self.index.records(),
            bytes: sum.len(),
            crc32c: sum.value(),
            samples: self.index.samples(),
            record_bytes: self.index.record_bytes(),
            index: is_indexed.then_some(self.index),
        };
        Ok((inner, summary))
    }
}

/// Writes the finished frames of a TFRecord file.
fn flush<W: Write>(frames: &mut FrameBuffer, encoder: &mut Encoder<W>) -> io::Result<()> {
    if !frames.bytes().is_empty() {
        encoder.write_summed(frames.bytes(), frames.sum())?;
        frames.reset(0);
    }
    Ok(())
}
