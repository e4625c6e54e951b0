//! Encoded records in memory, and the memory budget for them.
//!
//! An [`Extent`] is a range of consecutive records that is read at once. It is referenced by the
//! virtual rank whose window contains it, by each sample that waits to be decoded, and by encoded
//! images until they are in their batch. References are released with [`ExtentBuffer::release`] under the pipeline's lock, so
//! the last release is detected and the memory is accounted for immediately.

use std::collections::VecDeque;
use std::ops::Range;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, OnceLock};

use forebay_shard::RecordBlock;

use crate::error::{Error, Result};

/// Limit of the spare memory for later reads: the difference between peak and current use, or if that is larger
/// the budget divided by this number. The latter comes in addition to the budget.
const SPARE_PART: u64 = 12;

/// Consecutive records: to be read, being read, or in memory.
pub(super) struct Extent {
    pub(super) id: u64,
    pub(super) records: Range<u64>,
    /// Bytes counted in the budget: first the size of the read, later the size of the memory that holds
    /// the records.
    bytes: AtomicU64,
    data: OnceLock<Result<RecordBlock>>,
}

impl Extent {
    /// Returns record number `sample`; `None` before the extent was read.
    pub(super) fn record(&self, sample: u64) -> Option<Result<&[u8]>> {
        let (block, index) = match self.block(sample)? {
            Ok(found) => found,
            Err(error) => return Some(Err(error)),
        };
        Some(Ok(block.get(index)))
    }

    /// Returns the checksum of record number `sample`, if it was verified.
    pub(super) fn checksum(&self, sample: u64) -> Option<u32> {
        let (block, index) = self.block(sample)?.ok()?;
        block.checksum(index)
    }

    fn block(&self, sample: u64) -> Option<Result<(&RecordBlock, usize)>> {
        match self.data.get()? {
            Err(error) => Some(Err(error.clone())),
            Ok(block) => {
                let index = usize::try_from(sample.wrapping_sub(self.records.start)).ok()?;
                (index < block.len()).then_some(Ok((block, index)))
            }
        }
    }

    pub(super) fn is_of_one_record(&self) -> bool {
        self.records.end - self.records.start == 1
    }

    /// Returns whether the extent was read without an error.
    pub(super) fn has_records(&self) -> bool {
        matches!(self.data.get(), Some(Ok(_)))
    }

    pub(super) fn is_read(&self) -> bool {
        self.data.get().is_some()
    }
}

/// All extents: their memory, pending reads, and memory for further reads.
#[derive(Default)]
pub(super) struct ExtentBuffer {
    budget: u64,
    used: u64,
    /// The part of `used` that is in memory or being read, and the most of it so far.
    held: u64,
    most_held: u64,
    next_id: u64,
    reads: VecDeque<Arc<Extent>>,
    /// Number of entries at the front of `reads` that were announced to the system.
    announced: usize,
    /// Memory of released extents. Reusing it is several times faster than using fresh pages.
    /// Extents are released and read in bursts, the largest of them at the ends of epochs.
    spare: Vec<RecordBlock>,
    spare_bytes: u64,
    max_spare: usize,
}

impl ExtentBuffer {
    pub(super) fn new(budget: u64, max_spare: usize) -> Self {
        ExtentBuffer {
            budget,
            max_spare,
            ..ExtentBuffer::default()
        }
    }

    /// Returns the bytes held or about to be read.
    pub(super) fn used(&self) -> u64 {
        self.used
    }

    /// Returns whether `bytes` more bytes fit into the budget.
    pub(super) fn has_room(&self, bytes: u64) -> bool {
        self.used.saturating_add(bytes) <= self.budget
    }

    /// Adds an extent to be read. The caller checks the budget.
    pub(super) fn admit(&mut self, records: Range<u64>, bytes: u64) -> Arc<Extent> {
        let extent = self.extent(records, bytes, OnceLock::new());
        self.reads.push_back(Arc::clone(&extent));
        extent
    }

    /// Creates an extent that holds an error instead of records.
    pub(super) fn refuse(&mut self, records: Range<u64>, error: Error) -> Arc<Extent> {
        self.extent(records, 0, OnceLock::from(Err(error)))
    }

    fn extent(
        &mut self,
        records: Range<u64>,
        bytes: u64,
        data: OnceLock<Result<RecordBlock>>,
    ) -> Arc<Extent> {
        let id = self.next_id;
        self.next_id += 1;
        self.used += bytes;
        Arc::new(Extent {
            id,
            records,
            bytes: AtomicU64::new(bytes),
            data,
        })
    }

    pub(super) fn has_reads(&self) -> bool {
        !self.reads.is_empty()
    }

    /// Takes the next extent to read, with a memory block for its records.
    pub(super) fn next_read(&mut self) -> Option<(Arc<Extent>, RecordBlock)> {
        let extent = self.reads.pop_front()?;
        self.announced = self.announced.saturating_sub(1);
        // The block must be of similar size: excess memory would count in the budget without being used.
        let bytes = extent.bytes.load(Ordering::Relaxed);
        let sizes = self.spare.iter().map(|block| block.memory_bytes() as u64);
        let near = sizes.enumerate().filter(|&(_, size)| size / 2 <= bytes);
        // A block that is too small is freed and allocated again, so that a later read may fit.
        let spare = near
            .min_by_key(|&(_, size)| (size < bytes, size.abs_diff(bytes)))
            .map(|(at, _)| at);
        let block = spare.map(|at| self.take_spare(at));
        self.hold(bytes);
        self.trim();
        Some((extent, block.unwrap_or_default()))
    }

    fn hold(&mut self, bytes: u64) {
        self.held += bytes;
        self.most_held = self.most_held.max(self.held);
    }

    fn take_spare(&mut self, at: usize) -> RecordBlock {
        let block = self.spare.swap_remove(at);
        self.spare_bytes -= block.memory_bytes() as u64;
        block
    }

    /// Frees spare memory beyond its limits.
    fn trim(&mut self) {
        let unused = self.most_held.saturating_sub(self.held);
        let most = unused.max(self.budget / SPARE_PART);
        while self.spare.len() > self.max_spare || self.spare_bytes > most {
            self.take_spare(0);
        }
    }

    /// Returns the records of those of the next `ahead` reads that were not announced before.
    pub(super) fn announce(&mut self, ahead: usize) -> Vec<Range<u64>> {
        let end = self.reads.len().min(ahead);
        let first = self.announced;
        self.announced = first.max(end);
        let next = self.reads.iter().take(end).skip(first);
        next.map(|extent| extent.records.clone()).collect()
    }

    /// Stores the result of reading an extent.
    pub(super) fn finish(&mut self, extent: &Extent, data: Result<RecordBlock>) {
        // Decompressed records take more memory than was read, and a reused block may be larger than
        // its contents.
        let held = data.as_ref().map_or(0, |block| block.memory_bytes() as u64);
        let more = held.saturating_sub(extent.bytes.fetch_max(held, Ordering::Relaxed));
        self.used += more;
        self.hold(more);
        // Each extent is read once, by one reader, so this never fails.
        let _ = extent.data.set(data);
    }

    /// Releases a reference.
    pub(super) fn release(&mut self, extent: Arc<Extent>) {
        let Some(extent) = Arc::into_inner(extent) else {
            return;
        };
        let bytes = extent.bytes.into_inner();
        self.used -= bytes;
        let Some(data) = extent.data.into_inner() else {
            return;
        };
        self.held = self.held.saturating_sub(bytes);
        if let Ok(block) = data {
            self.spare_bytes += block.memory_bytes() as u64;
            self.spare.push(block);
            self.trim();
        }
    }

    /// Cancels pending reads.
    pub(super) fn forget_reads(&mut self) {
        self.announced = 0;
        while let Some(extent) = self.reads.pop_front() {
            self.release(extent);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Reads an extent of `bytes` bytes.
    fn read(store: &mut ExtentBuffer, bytes: u64) -> Arc<Extent> {
        store.admit(0..1, bytes);
        let (extent, mut block) = store.next_read().unwrap();
        block.stored_mut(bytes as usize);
        store.finish(&extent, Ok(block));
        extent
    }

    #[test]
    fn spare_memory_is_limited_by_peak_use_or_budget() {
        const BLOCK: u64 = 1000;
        let budget = 3 * BLOCK * SPARE_PART;
        for (most, blocks, kept) in [(100, 8, 8), (2, 8, 2), (100, 2, 2)] {
            let mut store = ExtentBuffer::new(budget, most);
            let extents: Vec<_> = (0..blocks).map(|_| read(&mut store, BLOCK)).collect();
            for extent in extents {
                store.release(extent);
            }
            assert_eq!(store.spare.len(), kept);
            assert_eq!((store.used(), store.held), (0, 0));
            // Each large read replaces one small block. The rest is freed down to
            // the limit.
            let large: Vec<_> = (0..2).map(|_| read(&mut store, 3 * BLOCK)).collect();
            assert_eq!(store.spare.len(), kept.saturating_sub(2).min(3));
            assert_eq!(store.spare_bytes, store.spare.len() as u64 * BLOCK);
            for extent in large {
                store.release(extent);
            }
            let most = store.most_held.max(budget / SPARE_PART);
            assert!(store.spare_bytes <= most, "{}", store.spare_bytes);
        }
    }

    #[test]
    fn the_next_read_reuses_memory_of_similar_size() {
        let mut store = ExtentBuffer::new(1 << 20, 4);
        for bytes in [900, 1500, 1100] {
            let mut block = RecordBlock::default();
            block.stored_mut(bytes);
            store.spare_bytes += bytes as u64;
            store.spare.push(block);
        }
        // The nearest block is too small; a block of twice the size would count without being used.
        for (wanted, given) in [(1000, 1100), (1000, 1500), (1000, 900), (10, 0)] {
            let extent = store.admit(0..1, wanted);
            let (_, block) = store.next_read().unwrap();
            assert_eq!(block.memory_bytes(), given);
            store.release(extent);
        }
    }

    #[test]
    fn each_read_is_announced_once() {
        let mut store = ExtentBuffer::new(1000, 1);
        let mut extents: Vec<_> = (0..5)
            .map(|i| store.admit(i * 10..i * 10 + 10, 1))
            .collect();
        let starts = |ranges: Vec<Range<u64>>| ranges.iter().map(|r| r.start).collect::<Vec<_>>();
        extents.extend(store.next_read().map(|(extent, _)| extent));
        assert_eq!(starts(store.announce(2)), [10, 20]);
        assert!(store.announce(2).is_empty());
        extents.extend(store.next_read().map(|(extent, _)| extent));
        assert_eq!(starts(store.announce(2)), [30]);
        for _ in 0..2 {
            extents.extend(store.next_read().map(|(extent, _)| extent));
        }
        assert_eq!(starts(store.announce(2)), [40]);
        extents.push(store.admit(50..60, 1));
        assert_eq!(starts(store.announce(2)), [50]);
        // A canceled read is announced again when it is requested again.
        store.forget_reads();
        extents.push(store.admit(40..50, 1));
        assert_eq!(starts(store.announce(2)), [40]);
        store.forget_reads();
        assert!(store.announce(2).is_empty());
        for extent in extents {
            store.release(extent);
        }
        assert_eq!(store.used(), 0);
    }
}
