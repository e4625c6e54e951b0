//! Records that were read together, in buffers that are reused.

use std::ops::Range;

use crate::checksum::unmask;
use crate::memory::Memory;

/// A range of consecutive records. Reading the next range into the same block reuses its memory.
#[derive(Debug, Default)]
pub struct RecordBlock {
    /// Bytes as read from the file; may be longer than the last read.
    pub(crate) stored: Memory,
    pub(crate) stored_len: usize,
    /// Frames of compressed blocks, expanded.
    pub(crate) expanded: Vec<u8>,
    /// An expanded block whose records are then copied to `expanded`.
    pub(crate) scratch: Vec<u8>,
    pub(crate) records: Vec<PayloadRange>,
    pub(crate) first: u64,
    /// Whether the checksums of the records were verified.
    pub(crate) is_verified: bool,
}

/// Location of a payload in the buffers.
#[derive(Debug, Clone)]
pub(crate) struct PayloadRange {
    pub(crate) expanded: bool,
    pub(crate) bytes: Range<usize>,
}

impl RecordBlock {
    /// Returns the number of records.
    pub fn len(&self) -> usize {
        self.records.len()
    }

    /// Returns whether it has no records.
    pub fn is_empty(&self) -> bool {
        self.records.is_empty()
    }

    /// Returns the number of the first record in the shard.
    pub fn first(&self) -> u64 {
        self.first
    }

    /// Returns the payload of the `i`th record of this block.
    ///
    /// # Panics
    /// If `i` is not less than the number of records.
    pub fn get(&self, i: usize) -> &[u8] {
        let (buffer, bytes) = self.place(i);
        &buffer[bytes]
    }

    /// Returns the CRC-32C of the payload of the `i`th record, if reading verified it.
    ///
    /// # Panics
    /// If `i` is not less than the number of records.
    pub fn checksum(&self, i: usize) -> Option<u32> {
        let (buffer, bytes) = self.place(i);
        // It follows the payload.
        let masked = u32::from_le_bytes(*buffer.get(bytes.end..)?.first_chunk()?);
        self.is_verified.then(|| unmask(masked))
    }

    /// Returns the buffer that contains a payload, and the payload's range.
    fn place(&self, i: usize) -> (&[u8], Range<usize>) {
        let place = &self.records[i];
        let buffer: &[u8] = if place.expanded {
            &self.expanded
        } else {
            &self.stored
        };
        (buffer, place.bytes.clone())
    }

    /// Returns the payloads in order.
    pub fn iter(&self) -> impl Iterator<Item = &[u8]> {
        (0..self.len()).map(|i| self.get(i))
    }

    /// Returns the memory of the buffers in bytes.
    pub fn memory_bytes(&self) -> usize {
        let places = self.records.capacity() * std::mem::size_of::<PayloadRange>();
        self.stored.len() + self.expanded.capacity() + self.scratch.capacity() + places
    }

    /// Returns a buffer for `len` stored bytes. Fill it before
    /// [`Shard::decode`](crate::Shard::decode).
    pub fn stored_mut(&mut self, len: usize) -> &mut [u8] {
        self.stored.reserve(len);
        self.stored_len = len;
        &mut self.stored[..len]
    }

    pub(crate) fn clear(&mut self, first: u64) {
        self.records.clear();
        self.expanded.clear();
        self.first = first;
    }
}
