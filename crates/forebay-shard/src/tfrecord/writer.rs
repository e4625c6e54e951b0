//! Writes frames, plain or compressed as a whole.

use std::io::Write;
use std::path::{Path, PathBuf};

use super::compress::{Compression, Encoder};
use super::reader::RecordInfo;
use crate::error::{Error, Result};
use crate::frame::{FrameBuffer, MAX_RECORD_BYTES, Payload, too_long};
use crate::frames::{Frames, KEEP_BYTES};
use crate::index::{IndexBuilder, RecordMeta};
use crate::summary::ShardSummary;

/// Size in bytes up to which frames are collected before they are written.
const WRITE_BYTES: usize = 1 << 20;

/// Options of a [`Writer`].
#[derive(Debug, Clone)]
pub struct WriterBuilder {
    compression: Compression,
    level: u32,
}

impl Default for WriterBuilder {
    fn default() -> Self {
        Self {
            compression: Compression::None,
            level: 6,
        }
    }
}

impl WriterBuilder {
    /// Creates options for an uncompressed file.
    pub fn new() -> Self {
        Self::default()
    }

    /// Compresses the file as a whole. Such a file can only be read from its start and has no
    /// index.
    pub fn compression(&mut self, compression: Compression) -> &mut Self {
        self.compression = compression;
        self
    }

    /// Sets the compression level, 0 to 9; 6 by default.
    pub fn level(&mut self, level: u32) -> &mut Self {
        self.level = level.min(9);
        self
    }

    /// Writes to any writer; `name` is its name in errors. Output is buffered here, so `writer` needs no buffer.
    pub fn from_writer<W: Write>(&self, writer: W, name: impl AsRef<Path>) -> Writer<W> {
        let mut frames = FrameBuffer::default();
        frames.reset(0);
        Writer {
            path: name.as_ref().to_owned(),
            compression: self.compression,
            encoder: Encoder::new(self.compression, self.level, writer),
            frames,
            index: IndexBuilder::new(),
        }
    }
}

/// Writes the records of a TFRecord file.
///
/// A record is passed whole to [`append`](Self::append), or built in the writer's own buffer
/// between [`begin`](Self::begin) and [`commit`](Self::commit), so its bytes are copied at most
/// once.
#[derive(Debug)]
pub struct Writer<W: Write> {
    path: PathBuf,
    compression: Compression,
    encoder: Encoder<W>,
    frames: FrameBuffer,
    index: IndexBuilder,
}

impl<W: Write> Writer<W> {
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
        self.frames.begin()
    }

    /// Ends the record that was started last, and writes it.
    ///
    /// # Errors
    /// If no record was started, it is longer than 256 MiB or its key cannot be indexed (then it is dropped), or
    /// writing fails.
    pub fn commit(&mut self, meta: &RecordMeta<'_>) -> Result<RecordInfo> {
        let len = self
            .frames
            .open_len()
            .ok_or_else(|| Error::invalid("no record was started"))?;
        let offset = self.index.logical_len();
        let index = self.index.records();
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
        if self.frames.bytes().len() >= WRITE_BYTES {
            self.flush()?;
        }
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
        self.flush()?;
        self.index.push_frames(&frames, metas)?;
        let (bytes, sum) = frames.part(0..frames.len());
        self.encoder
            .write_summed(bytes, sum)
            .map_err(|error| Error::io(&self.path, "write", error))?;
        frames.clear(KEEP_BYTES);
        Ok(Some(frames))
    }

    fn flush(&mut self) -> Result<()> {
        self.frames.rollback();
        if self.frames.bytes().is_empty() {
            return Ok(());
        }
        self.encoder
            .write_summed(self.frames.bytes(), self.frames.sum())
            .map_err(|error| Error::io(&self.path, "write", error))?;
        self.frames.reset(0);
        Ok(())
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
        self.flush()?;
        let finished = self.encoder.finish();
        let (inner, sum) = finished.map_err(|error| Error::io(&self.path, "write", error))?;
        let summary = ShardSummary {
            records: self.index.records(),
            bytes: sum.len(),
            crc32c: sum.value(),
            samples: self.index.samples(),
            record_bytes: self.index.record_bytes(),
            index: (self.compression == Compression::None).then_some(self.index),
        };
        Ok((inner, summary))
    }
}
