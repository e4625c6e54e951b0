//! Indexes: the offsets, labels and keys of the records of a shard.
//!
//! One index serves both formats: it is the footer of an indexed shard, and the sidecar `.fbi` of a
//! TFRecord file. [`IndexBuilder`] collects it while a shard is written. [`Index`] is the open
//! index: it holds offsets and labels in at most 16 bytes per record, usually 6. Keys stay on disk.

mod builder;
mod column;
mod dali;
mod keys;
pub(crate) mod layout;
pub(crate) mod map;
mod parse;

use std::ops::Range;
use std::sync::Arc;

use crate::codec::Codec;
use crate::error::{Corruption, CorruptionKind, Error, Records, Result};

pub use builder::{IndexBuilder, RecordMeta};
pub use column::{Labels, Offsets};
pub use dali::{parse_idx, write_idx};
pub use keys::MAX_KEY_BYTES;
pub(crate) use keys::{Page, page_records, pages};
pub use layout::{BLOCK_ALIGN, FORMAT_VERSION, Features, FileKind, KEY_PAGE_RECORDS, PIECE_BYTES};
pub use map::SourceBlock;
pub(crate) use map::{Map, Segment};
pub use parse::{Found, parse_suffix};

/// The offsets, labels and blocks of the records of a shard.
#[derive(Debug, Clone)]
pub struct Index {
    pub(crate) kind: FileKind,
    pub(crate) features: Features,
    /// Start of each frame in the concatenated frames of all blocks, followed by the end of the
    /// last one.
    pub(crate) offsets: Offsets,
    pub(crate) labels: Labels,
    /// Blocks of an indexed shard; empty for a TFRecord file, whose frames are contiguous.
    pub(crate) blocks: Vec<Block>,
    pub(crate) keys: Option<KeyPlace>,
    pub(crate) data_len: u64,
    /// Checksum of the data; `None` if the index was built from frame heads or from a text file,
    /// which lack it.
    pub(crate) data_crc: Option<u32>,
    /// Checksum of the shard's whole file, including its index.
    pub(crate) shard_crc: Option<u32>,
    /// The locations of the frames of a mapped shard.
    pub(crate) map: Option<Arc<Map>>,
}

/// One block of an indexed shard.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Block {
    /// Offset of its header.
    pub(crate) offset: u64,
    pub(crate) stored_len: u64,
    pub(crate) first_record: u64,
    pub(crate) crc: u32,
    pub(crate) codec: Codec,
}

impl Block {
    /// Byte range of the payload in the file.
    pub(crate) fn payload(&self) -> Range<u64> {
        let start = self.offset + PIECE_BYTES as u64;
        start..start + self.stored_len
    }
}

/// Location of the pages of keys.
#[derive(Debug, Clone)]
pub(crate) struct KeyPlace {
    /// Offset of the first page in the file that contains the index.
    pub(crate) offset: u64,
    /// Start of each page relative to `offset`, followed by the end of the last page.
    pub(crate) directory: Vec<u64>,
}

impl Index {
    /// Returns the number of records.
    pub fn len(&self) -> u64 {
        self.offsets.records()
    }

    /// Returns whether it has no records.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Returns the label of a record, if it has one.
    pub fn label(&self, record: u64) -> Option<i64> {
        self.labels.get(record)
    }

    /// Returns the payload length of a record.
    pub fn record_len(&self, record: u64) -> Option<u64> {
        let frame = self.offsets.frame(record)?;
        (frame.end - frame.start).checked_sub(crate::frame::OVERHEAD_BYTES as u64)
    }

    /// Returns whether records have keys.
    pub fn has_keys(&self) -> bool {
        self.keys.is_some()
    }

    /// Returns the length of the indexed data: of a TFRecord file, or of the part before the keys
    /// of an indexed shard.
    pub fn data_len(&self) -> u64 {
        self.data_len
    }

    /// Returns the CRC32C of the indexed data, if known.
    pub fn data_crc32c(&self) -> Option<u32> {
        self.data_crc
    }

    /// Returns the CRC32C of the shard's whole file, if known. For an indexed shard it is combined
    /// from the checksums of the parts, so opening a shard shows whether it is the one in a manifest.
    pub fn shard_crc32c(&self) -> Option<u32> {
        self.shard_crc
    }

    /// Returns the number of blocks; 0 for a TFRecord file.
    pub fn blocks(&self) -> usize {
        self.blocks.len()
    }

    /// Returns the memory of the index in bytes.
    pub fn memory_bytes(&self) -> usize {
        let keys = self
            .keys
            .as_ref()
            .map_or(0, |keys| keys.directory.capacity() * 8);
        let blocks = self.blocks.capacity() * std::mem::size_of::<Block>();
        let map = self.map.as_ref().map_or(0, |map| map.memory_bytes());
        std::mem::size_of::<Self>() + self.column_bytes() + blocks + keys + map
    }

    /// Returns the memory of offsets and labels in bytes.
    pub fn column_bytes(&self) -> usize {
        self.offsets.memory_bytes() + self.labels.memory_bytes()
    }

    /// Returns the byte range of a frame in the file, for a record in a raw block or a TFRecord
    /// file.
    pub(crate) fn raw_frame(&self, record: u64) -> Option<Range<u64>> {
        let frame = self.offsets.frame(record)?;
        // The frames of a mapped shard are read as one file.
        if self.kind != FileKind::Shard {
            return Some(frame);
        }
        let block = self.blocks.get(self.block_of(record))?;
        if block.codec != Codec::NONE {
            return None;
        }
        // Compressed blocks make the file shorter than its frames, so the order of operations
        // avoids underflow.
        let (payload, first) = (
            block.payload().start,
            self.offsets.start(block.first_record)?,
        );
        Some(payload + (frame.start - first)..payload + (frame.end - first))
    }

    /// Returns the block that holds a record.
    pub(crate) fn block_of(&self, record: u64) -> usize {
        self.blocks
            .partition_point(|block| block.first_record <= record)
            .saturating_sub(1)
    }

    /// Returns the records of a block.
    pub(crate) fn block_records(&self, block: usize) -> Range<u64> {
        let first = |at: usize| {
            self.blocks
                .get(at)
                .map_or(self.len(), |block| block.first_record)
        };
        first(block)..first(block + 1)
    }

    /// Returns the stored bytes that are needed to decode `records`: their frames, or the whole
    /// blocks if these are compressed. Empty for no records.
    ///
    /// # Errors
    /// If the records do not exist.
    pub fn byte_range(&self, records: Range<u64>) -> Result<Range<u64>> {
        if records.is_empty() {
            return Ok(0..0);
        }
        let (first, last) = (records.start, records.end - 1);
        let bytes = |record| match self.raw_frame(record) {
            Some(frame) => Some(frame),
            None => self.blocks.get(self.block_of(record)).map(Block::payload),
        };
        match (self.offsets.frame(last), bytes(first), bytes(last)) {
            (Some(_), Some(first), Some(last)) => Ok(first.start..last.end),
            _ => Err(Error::OutOfRange {
                within: Records::Shard("index".into()),
                record: records.start.max(self.len()),
                records: self.len(),
            }),
        }
    }

    /// Creates the damage of an index that contradicts itself.
    pub(crate) fn inconsistent(
        offset: u64,
        what: &str,
        expected: impl std::fmt::Display,
        found: impl std::fmt::Display,
    ) -> Corruption {
        Corruption::new(offset, format!("index: {what}"), expected, found)
            .kind(CorruptionKind::Index)
    }
}
