//! Collecting an index while a shard is written.

use std::path::Path;

use super::column::{Labels, NO_LABEL, Offsets};
use super::keys;
use super::layout::{Features, FileKind, Header, IndexHead, PIECE_BYTES, Trailer};
use super::{Block, Index, MAX_KEY_BYTES};
use crate::checksum::crc32c;
use crate::error::{Corruption, Error, Result};
use crate::frame::OVERHEAD_BYTES;

/// What the index keeps of a record besides its place.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct RecordMeta<'a> {
    /// Its class label.
    pub label: Option<i64>,
    /// Its name in the dataset, such as `n01440764/n01440764_10026.JPEG`.
    pub key: &'a [u8],
}

impl<'a> RecordMeta<'a> {
    /// A record with a label and a key.
    pub fn new(label: i64, key: &'a [u8]) -> Self {
        Self {
            label: Some(label),
            key,
        }
    }

    /// Refuses what an index cannot keep.
    pub(crate) fn check(&self) -> Result<()> {
        if self.key.len() > MAX_KEY_BYTES {
            return Err(Error::invalid(format!(
                "a key of {} bytes: the longest is {MAX_KEY_BYTES}",
                self.key.len()
            )));
        }
        if self.label == Some(NO_LABEL) {
            return Err(Error::invalid(format!(
                "label {NO_LABEL} stands for no label"
            )));
        }
        Ok(())
    }
}

/// An index that is being collected.
#[derive(Debug, Clone)]
pub struct IndexBuilder {
    offsets: Vec<u64>,
    labels: Vec<i64>,
    keys: Vec<u8>,
    key_ends: Vec<u64>,
    blocks: Vec<Block>,
}

impl Default for IndexBuilder {
    fn default() -> Self {
        Self {
            offsets: vec![0],
            labels: Vec::new(),
            keys: Vec::new(),
            key_ends: Vec::new(),
            blocks: Vec::new(),
        }
    }
}

impl IndexBuilder {
    /// An index of no records.
    pub fn new() -> Self {
        Self::default()
    }

    /// Adds the next record, of `len` payload bytes.
    ///
    /// # Errors
    /// When the key is too long, or the label is the one that stands for none.
    pub fn push(&mut self, len: u64, meta: &RecordMeta<'_>) -> Result<()> {
        meta.check()?;
        let end = len.checked_add(OVERHEAD_BYTES as u64);
        let end = end.and_then(|frame| self.logical_len().checked_add(frame));
        let end = end.ok_or_else(|| Error::invalid("a shard of more than 2^64 bytes"))?;
        self.offsets.push(end);
        self.labels.push(meta.label.unwrap_or(NO_LABEL));
        self.keys.extend_from_slice(meta.key);
        self.key_ends.push(self.keys.len() as u64);
        Ok(())
    }

    /// Refuses an index with records longer than `max_record`.
    pub(crate) fn check_lengths(&self, path: &Path, max_record: u64) -> Result<()> {
        let most = max_record.saturating_add(OVERHEAD_BYTES as u64);
        for (record, (offset, len)) in (0..).zip(self.frames()) {
            if len > most {
                let expected = format_args!("at most {most} bytes (max_record)");
                let long = Corruption::new(offset, "length of a frame", expected, len);
                return Err(long.record(record).shard(path).into());
            }
        }
        Ok(())
    }

    pub(crate) fn push_block(&mut self, block: Block) {
        self.blocks.push(block);
    }

    /// Records so far.
    pub fn records(&self) -> u64 {
        self.labels.len() as u64
    }

    /// Bytes of all frames so far: the size of a TFRecord file of them.
    pub fn logical_len(&self) -> u64 {
        self.offsets.last().copied().unwrap_or(0)
    }

    /// Offset and length of each frame, 16 framing bytes included.
    pub fn frames(&self) -> impl Iterator<Item = (u64, u64)> + '_ {
        self.offsets
            .windows(2)
            .map(|pair| (pair[0], pair[1] - pair[0]))
    }

    /// The sidecar `.fbi` of the TFRecord file that these records make, whose
    /// bytes sum to `data_crc32c`.
    pub fn to_fbi(&self, data_crc32c: u32) -> Vec<u8> {
        let features = Features::default();
        let mut out = Header {
            kind: FileKind::Sidecar,
            features,
        }
        .encode()
        .to_vec();
        let binding = (FileKind::Sidecar, features, self.logical_len(), data_crc32c);
        out.extend_from_slice(&self.encode(PIECE_BYTES as u64, binding));
        out
    }

    /// The text index of the TFRecord file that these records make, as
    /// NVIDIA DALI's tfrecord2idx writes it.
    pub fn to_idx(&self) -> String {
        super::write_idx(self.frames())
    }

    /// Keys, index and trailer, to be put at byte `at` of a file.
    pub(crate) fn encode(
        &self,
        at: u64,
        (kind, features, data_len, data_crc): (FileKind, Features, u64, u32),
    ) -> Vec<u8> {
        let mut out = Vec::new();
        let keys = !self.keys.is_empty();
        let directory = if keys {
            keys::encode(&self.keys, &self.key_ends, &mut out)
        } else {
            Vec::new()
        };
        let head = IndexHead {
            kind,
            records: self.records(),
            blocks: self.blocks.len() as u64,
            data_len,
            data_crc,
            keys_offset: at,
            keys_len: out.len() as u64,
            keys_crc: crc32c(&out),
            keys,
        };
        let start = out.len();
        out.extend_from_slice(&head.encode());
        self.offsets
            .iter()
            .for_each(|offset| out.extend_from_slice(&offset.to_le_bytes()));
        self.labels
            .iter()
            .for_each(|label| out.extend_from_slice(&label.to_le_bytes()));
        for block in &self.blocks {
            out.extend_from_slice(&block.offset.to_le_bytes());
            out.extend_from_slice(&block.stored_len.to_le_bytes());
            out.extend_from_slice(&block.first_record.to_le_bytes());
            out.extend_from_slice(&block.crc.to_le_bytes());
            out.extend_from_slice(&[block.codec.code(), 0, 0, 0]);
        }
        directory
            .iter()
            .for_each(|page| out.extend_from_slice(&page.to_le_bytes()));
        let trailer = Trailer {
            kind,
            features,
            index_offset: at + start as u64,
            index_len: (out.len() - start) as u64,
            index_crc: crc32c(&out[start..]),
            file_len: at + (out.len() + PIECE_BYTES) as u64,
        };
        out.extend_from_slice(&trailer.encode());
        out
    }

    /// The index as it is once open, of a TFRecord file and without keys.
    pub(crate) fn into_index(self, data_crc: Option<u32>) -> Index {
        let len = self.logical_len();
        Index {
            kind: FileKind::Sidecar,
            features: Features::default(),
            data_len: len,
            offsets: Offsets::new(self.offsets.len(), self.offsets.iter().copied()),
            labels: Labels::new(self.labels.len(), self.labels.iter().copied()),
            blocks: self.blocks,
            keys: None,
            data_crc,
            shard_crc: data_crc,
            shard_len: len,
        }
    }
}
