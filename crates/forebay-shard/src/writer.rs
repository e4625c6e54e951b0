//! A writer of either format, for code that does not depend on it.

use std::io::{self, Write};

use crate::checksum::Crc32c;
use crate::error::{Error, Result};
use crate::frame::{MAX_RECORD_BYTES, Payload};
use crate::frames::Frames;
use crate::index::{IndexBuilder, RecordMeta};
use crate::samples::SampleDigest;
use crate::tfrecord::RecordInfo;
use crate::{indexed, tfrecord};

/// Summary of a written shard.
#[derive(Debug, Clone)]
#[non_exhaustive]
pub struct ShardSummary {
    /// Number of records.
    pub records: u64,
    /// Size of the file in bytes.
    pub bytes: u64,
    /// CRC32C of the whole file.
    pub crc32c: u32,
    /// The index; for a TFRecord file it can be written as a sidecar ([`IndexBuilder::to_fbi`],
    /// [`IndexBuilder::to_idx`]). `None` for a file that is compressed as a whole.
    pub index: Option<IndexBuilder>,
    /// Digest of the records' labels and keys.
    pub samples: SampleDigest,
    /// Stored bytes of the records.
    pub record_bytes: u64,
}

impl ShardSummary {
    /// Returns the summary of a file of another format, with the checksum of its bytes and the
    /// digest of its records.
    pub fn without_index(sum: Crc32c, samples: SampleDigest, record_bytes: u64) -> Self {
        Self {
            records: samples.records(),
            bytes: sum.len(),
            crc32c: sum.value(),
            index: None,
            samples,
            record_bytes,
        }
    }

    /// Returns the sidecar `.fbi` of a TFRecord file.
    pub fn to_fbi(&self) -> Option<Vec<u8>> {
        self.index.as_ref().map(|index| index.to_fbi(self.crc32c))
    }

    /// Writes that sidecar without building it in memory. Returns the checksum of its bytes; `None`
    /// without an index.
    ///
    /// # Errors
    /// Errors of the writer.
    pub fn write_fbi(&self, out: &mut impl Write) -> io::Result<Option<Crc32c>> {
        let index = self.index.as_ref();
        index
            .map(|index| index.write_fbi(self.crc32c, out))
            .transpose()
    }

    /// Writes the text index `.idx` of a TFRecord file, in the same way.
    ///
    /// # Errors
    /// Errors of the writer.
    pub fn write_idx(&self, out: &mut impl Write) -> io::Result<Option<Crc32c>> {
        let index = self.index.as_ref();
        index.map(|index| index.write_idx(out)).transpose()
    }

    /// Returns the text index `.idx` of a TFRecord file.
    pub fn to_idx(&self) -> Option<String> {
        self.index.as_ref().map(IndexBuilder::to_idx)
    }
}

pub(crate) fn too_long(len: u64) -> Error {
    Error::invalid(format!(
        "a record of {len} bytes: the longest is {MAX_RECORD_BYTES}"
    ))
}

/// Maximum capacity that a reused buffer keeps: one huge record must not hold its memory until the
/// end.
pub(crate) const KEEP_BYTES: usize = 4 << 20;

/// Adds the records of `frames` to an index.
pub(crate) fn index_frames<'m>(
    index: &mut IndexBuilder,
    frames: &Frames,
    metas: impl IntoIterator<Item = RecordMeta<'m>>,
) -> Result<()> {
    let mut metas = metas.into_iter();
    for record in 0..frames.len() {
        let (Some(len), Some(meta)) = (frames.record_len(record), metas.next()) else {
            return Err(Error::invalid("fewer labels and keys than records"));
        };
        index.push(len, &meta)?;
    }
    match metas.next() {
        None => Ok(()),
        Some(_) => Err(Error::invalid("more labels and keys than records")),
    }
}

/// A writer of either format.
#[derive(Debug)]
#[non_exhaustive]
pub enum ShardWriter<W: Write> {
    /// Writes a TFRecord file.
    TfRecord(tfrecord::Writer<W>),
    /// Writes an indexed shard.
    Indexed(indexed::Writer<W>),
}

impl<W: Write> From<tfrecord::Writer<W>> for ShardWriter<W> {
    fn from(writer: tfrecord::Writer<W>) -> Self {
        Self::TfRecord(writer)
    }
}

impl<W: Write> From<indexed::Writer<W>> for ShardWriter<W> {
    fn from(writer: indexed::Writer<W>) -> Self {
        Self::Indexed(writer)
    }
}

impl<W: Write> ShardWriter<W> {
    /// Writes a record.
    ///
    /// # Errors
    /// If it is longer than 256 MiB, its key cannot be indexed, or writing fails.
    pub fn append(&mut self, record: &[u8], meta: &RecordMeta<'_>) -> Result<RecordInfo> {
        match self {
            Self::TfRecord(writer) => writer.append(record, meta),
            Self::Indexed(writer) => writer.append(record, meta),
        }
    }

    /// Starts a record in the writer's buffer; see [`tfrecord::Writer::begin`].
    pub fn begin(&mut self) -> Payload<'_> {
        match self {
            Self::TfRecord(writer) => writer.begin(),
            Self::Indexed(writer) => writer.begin(),
        }
    }

    /// Ends the record that was started last.
    ///
    /// # Errors
    /// As [`tfrecord::Writer::commit`].
    pub fn commit(&mut self, meta: &RecordMeta<'_>) -> Result<RecordInfo> {
        match self {
            Self::TfRecord(writer) => writer.commit(meta),
            Self::Indexed(writer) => writer.commit(meta),
        }
    }

    /// Reserves memory in the index; see [`IndexBuilder::reserve`].
    pub fn reserve(&mut self, records: u64, key_bytes: u64) {
        match self {
            Self::TfRecord(writer) => writer.reserve(records, key_bytes),
            Self::Indexed(writer) => writer.reserve(records, key_bytes),
        }
    }

    /// Appends records that were framed elsewhere; see [`tfrecord::Writer::append_frames`].
    ///
    /// # Errors
    /// As in that function.
    pub fn append_frames<'m>(
        &mut self,
        frames: Frames,
        metas: impl IntoIterator<Item = RecordMeta<'m>>,
    ) -> Result<Option<Frames>> {
        match self {
            Self::TfRecord(writer) => writer.append_frames(frames, metas),
            Self::Indexed(writer) => writer.append_frames(frames, metas),
        }
    }

    /// Returns the number of records written so far.
    pub fn records(&self) -> u64 {
        match self {
            Self::TfRecord(writer) => writer.records(),
            Self::Indexed(writer) => writer.records(),
        }
    }

    /// Writes pending data. Returns the inner writer, flushed, and a summary.
    ///
    /// # Errors
    /// If writing fails.
    pub fn finish(self) -> Result<(W, ShardSummary)> {
        match self {
            Self::TfRecord(writer) => writer.finish(),
            Self::Indexed(writer) => writer.finish(),
        }
    }
}
