//! Records that were read together, in buffers that are used again.

use std::ops::Range;

use crate::memory::Memory;

/// A run of neighbouring records. Reading the next run into the same block
/// reuses its memory.
#[derive(Debug, Default)]
pub struct RecordBlock {
    /// As read from the file; longer than what was read last.
    pub(crate) stored: Memory,
    pub(crate) stored_len: usize,
    /// Frames of compressed blocks, expanded.
    pub(crate) expanded: Vec<u8>,
    /// A block on its way to `expanded`.
    pub(crate) scratch: Vec<u8>,
    pub(crate) records: Vec<Place>,
    pub(crate) first: u64,
}

/// The buffer and the bytes of a payload.
#[derive(Debug, Clone)]
pub(crate) struct Place {
    pub(crate) expanded: bool,
    pub(crate) bytes: Range<usize>,
}

impl RecordBlock {
    /// Number of records.
    pub fn len(&self) -> usize {
        self.records.len()
    }

    /// Whether there are none.
    pub fn is_empty(&self) -> bool {
        self.records.is_empty()
    }

    /// Number, in the shard, of the first record.
    pub fn first(&self) -> u64 {
        self.first
    }

    /// Payload of the `i`th record of this block.
    ///
    /// # Panics
    /// When there are no more than `i` records.
    pub fn get(&self, i: usize) -> &[u8] {
        let place = &self.records[i];
        let buffer: &[u8] = if place.expanded {
            &self.expanded
        } else {
            &self.stored
        };
        &buffer[place.bytes.clone()]
    }

    /// The payloads in order.
    pub fn iter(&self) -> impl Iterator<Item = &[u8]> {
        (0..self.len()).map(|i| self.get(i))
    }

    /// Bytes of memory that the buffers hold.
    pub fn memory_bytes(&self) -> usize {
        let places = self.records.capacity() * std::mem::size_of::<Place>();
        self.stored.len() + self.expanded.capacity() + self.scratch.capacity() + places
    }

    /// Room for `len` stored bytes, to be filled before
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
