//! Collects an index while a shard is written.

use std::io::{self, Write};
use std::path::Path;

use super::column::{Labels, Offsets};
use super::keys::PageBuilder;
use super::layout::{
    BLOCK_ENTRY_BYTES, Features, FileKind, Header, IndexHead, PIECE_BYTES, Trailer,
};
use super::{Block, Index, MAX_KEY_BYTES};
use crate::checksum::Crc32c;
use crate::error::{Corruption, Error, Result};
use crate::frame::OVERHEAD_BYTES;
use crate::frames::Frames;
use crate::samples::{NO_LABEL, SampleDigest};

/// The label and the key of a record, which the index stores with its offset.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct RecordMeta<'a> {
    /// Its class label.
    pub label: Option<i64>,
    /// Its name in the dataset, such as `n01440764/n01440764_10026.JPEG`.
    pub key: &'a [u8],
}

impl<'a> RecordMeta<'a> {
    /// Creates metadata with a label and a key.
    pub fn new(label: i64, key: &'a [u8]) -> Self {
        Self {
            label: Some(label),
            key,
        }
    }

    /// Checks that an index can store the label and the key.
    ///
    /// # Errors
    /// If the key is longer than 65,535 bytes, or the label is the value reserved for "no label".
    pub fn check(&self) -> Result<()> {
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

/// Bytes of a column per write.
const COLUMN_BYTES: usize = 64 << 10;

/// An entry of the table of blocks.
pub(crate) type BlockEntry = [u8; BLOCK_ENTRY_BYTES as usize];

/// Writes bytes and updates their checksum.
pub(super) struct Summing<'w, W: Write> {
    inner: &'w mut W,
    pub(super) sum: Crc32c,
}

impl<'w, W: Write> Summing<'w, W> {
    pub(super) fn new(inner: &'w mut W) -> Self {
        Self {
            inner,
            sum: Crc32c::default(),
        }
    }

    pub(super) fn put(&mut self, bytes: &[u8]) -> io::Result<()> {
        self.sum.update(bytes);
        self.inner.write_all(bytes)
    }

    fn put_all<const N: usize>(&mut self, items: impl Iterator<Item = [u8; N]>) -> io::Result<()> {
        let mut bytes = Vec::with_capacity(COLUMN_BYTES);
        for item in items {
            if bytes.len() + N > COLUMN_BYTES {
                self.put(&bytes)?;
                bytes.clear();
            }
            bytes.extend_from_slice(&item);
        }
        self.put(&bytes)
    }
}

/// An index under construction.
#[derive(Debug, Clone)]
pub struct IndexBuilder {
    offsets: Vec<u64>,
    labels: Vec<i64>,
    keys: PageBuilder,
    blocks: Vec<Block>,
    samples: SampleDigest,
}

impl Default for IndexBuilder {
    fn default() -> Self {
        Self {
            offsets: vec![0],
            labels: Vec::new(),
            keys: PageBuilder::default(),
            blocks: Vec::new(),
            samples: SampleDigest::default(),
        }
    }
}

impl IndexBuilder {
    /// Creates an empty index.
    pub fn new() -> Self {
        Self::default()
    }

    /// Reserves memory for `records` records with `key_bytes` bytes of keys, which avoids
    /// reallocation. The numbers are not validated: they must not come from a file that may be
    /// damaged.
    pub fn reserve(&mut self, records: u64, key_bytes: u64) {
        let count = usize::try_from(records).unwrap_or(0);
        self.offsets.reserve_exact(count);
        self.labels.reserve_exact(count);
        self.keys.reserve(records, key_bytes);
    }

    /// Adds the next record, of `len` payload bytes.
    ///
    /// # Errors
    /// If the key is too long, or the label is the value reserved for "no label".
    pub fn push(&mut self, len: u64, meta: &RecordMeta<'_>) -> Result<()> {
        meta.check()?;
        let end = len.checked_add(OVERHEAD_BYTES as u64);
        let end = end.and_then(|frame| self.logical_len().checked_add(frame));
        let end = end.ok_or_else(|| Error::invalid("a shard of more than 2^64 bytes"))?;
        self.offsets.push(end);
        self.labels.push(meta.label.unwrap_or(NO_LABEL));
        self.keys.push(meta.key);
        self.samples.push(meta.label, meta.key);
        Ok(())
    }

    /// Adds the records of `frames` to the index.
    pub(crate) fn push_frames<'m>(
        &mut self,
        frames: &Frames,
        metas: impl IntoIterator<Item = RecordMeta<'m>>,
    ) -> Result<()> {
        let mut metas = metas.into_iter();
        for record in 0..frames.len() {
            let (Some(len), Some(meta)) = (frames.record_len(record), metas.next()) else {
                return Err(Error::invalid("fewer labels and keys than records"));
            };
            self.push(len, &meta)?;
        }
        match metas.next() {
            None => Ok(()),
            Some(_) => Err(Error::invalid("more labels and keys than records")),
        }
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

    /// Returns the number of records so far.
    pub fn records(&self) -> u64 {
        self.labels.len() as u64
    }

    /// Returns the digest of the labels and keys of the records so far.
    pub fn samples(&self) -> SampleDigest {
        self.samples
    }

    /// Returns the stored bytes of the records so far, equal to the length of
    /// [`Shard::byte_range`](crate::Shard::byte_range) of all of them.
    pub fn record_bytes(&self) -> u64 {
        match (self.blocks.first(), self.blocks.last()) {
            (Some(first), Some(last)) => last.payload().end - first.payload().start,
            _ => self.logical_len(),
        }
    }

    /// Returns the length of all frames so far: the size of a TFRecord file with these records.
    pub fn logical_len(&self) -> u64 {
        self.offsets.last().copied().unwrap_or(0)
    }

    /// Returns offset and length of each frame, including 16 framing bytes.
    pub fn frames(&self) -> impl Iterator<Item = (u64, u64)> + '_ {
        self.offsets
            .windows(2)
            .map(|pair| (pair[0], pair[1] - pair[0]))
    }

    /// Returns the sidecar `.fbi` of the TFRecord file with these records, whose checksum is
    /// `data_crc32c`.
    pub fn to_fbi(&self, data_crc32c: u32) -> Vec<u8> {
        let mut out = Vec::new();
        // Writing to a Vec cannot fail.
        let _ = self.write_fbi(data_crc32c, &mut out);
        out
    }

    /// Writes that sidecar without building it in memory. Returns the checksum of its bytes.
    ///
    /// # Errors
    /// Errors of the writer.
    pub fn write_fbi(&self, data_crc32c: u32, out: &mut impl Write) -> io::Result<Crc32c> {
        let features = Features::default();
        let header = Header {
            kind: FileKind::Sidecar,
            features,
        };
        let mut out = Summing::new(out);
        out.put(&header.encode())?;
        let binding = (FileKind::Sidecar, features, self.logical_len(), data_crc32c);
        let rest = self.write_to(PIECE_BYTES as u64, binding, out.inner)?;
        out.sum.combine(rest.value(), rest.len());
        Ok(out.sum)
    }

    /// Writes keys, index and trailer at offset `at` of a file. Returns their checksum.
    pub(crate) fn write_to(
        &self,
        at: u64,
        binding: (FileKind, Features, u64, u32),
        out: &mut impl Write,
    ) -> io::Result<Crc32c> {
        let blocks = self.blocks.iter().map(|block| {
            let mut entry: BlockEntry = [0; BLOCK_ENTRY_BYTES as usize];
            entry[..8].copy_from_slice(&block.offset.to_le_bytes());
            entry[8..16].copy_from_slice(&block.stored_len.to_le_bytes());
            entry[16..24].copy_from_slice(&block.first_record.to_le_bytes());
            entry[24..28].copy_from_slice(&block.crc.to_le_bytes());
            entry[28] = block.codec.id();
            entry
        });
        self.write_columns(at, binding, (blocks, &[]), out)
    }

    /// Writes what follows the pages of a mapped shard, whose length and checksum are `data`.
    /// Returns the checksum of what was written.
    pub(crate) fn write_map(
        &self,
        features: Features,
        data: Crc32c,
        blocks: &[BlockEntry],
        map: &[u8],
        out: &mut impl Write,
    ) -> io::Result<Crc32c> {
        let binding = (FileKind::Map, features, data.len(), data.value());
        let last = (blocks.iter().copied(), map);
        self.write_columns(data.len(), binding, last, out)
    }

    /// Writes keys, index and trailer. The index ends with blocks, the directory of keys and bytes
    /// of the caller.
    fn write_columns(
        &self,
        at: u64,
        (kind, features, data_len, data_crc): (FileKind, Features, u64, u32),
        (blocks, last): (impl ExactSizeIterator<Item = BlockEntry>, &[u8]),
        out: &mut impl Write,
    ) -> io::Result<Crc32c> {
        let mut out = Summing::new(out);
        let (pages, last_page, directory) = self.keys.finish();
        out.put(pages)?;
        out.put(&last_page)?;
        let keys = out.sum;
        let head = IndexHead {
            kind,
            records: self.records(),
            blocks: blocks.len() as u64,
            data_len,
            data_crc,
            keys_offset: at,
            keys_len: keys.len(),
            keys_crc: keys.value(),
            keys: self.keys.has_keys(),
        };
        // The trailer needs the checksum of the index alone.
        out.sum = Crc32c::default();
        out.put(&head.encode())?;
        out.put_all(self.offsets.iter().map(|offset| offset.to_le_bytes()))?;
        out.put_all(self.labels.iter().map(|label| label.to_le_bytes()))?;
        out.put_all(blocks)?;
        out.put_all(directory.iter().map(|page| page.to_le_bytes()))?;
        out.put(last)?;
        let index = out.sum;
        let trailer = Trailer {
            kind,
            features,
            index_offset: at + keys.len(),
            index_len: index.len(),
            index_crc: index.value(),
            file_len: at + keys.len() + index.len() + PIECE_BYTES as u64,
        };
        out.put(&trailer.encode())?;
        let mut sum = keys;
        sum.combine(out.sum.value(), out.sum.len());
        Ok(sum)
    }

    /// Converts to an open index of a TFRecord file without keys.
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
            map: None,
        }
    }
}
