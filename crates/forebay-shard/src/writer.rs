//! A writer of either format, for code that handles both.

use std::io::Write;

use crate::error::Result;
use crate::frame::Payload;
use crate::frames::Frames;
use crate::index::RecordMeta;
use crate::summary::ShardSummary;
use crate::tfrecord::RecordInfo;
use crate::{indexed, tfrecord};

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

    /// Reserves memory in the index; see [`IndexBuilder::reserve`](crate::IndexBuilder::reserve).
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
