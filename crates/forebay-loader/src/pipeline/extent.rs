//! Encoded records in memory, and the budget they live in.
//!
//! An [`Extent`] is a piece of neighbouring records that is read in one go. Whoever may still need it holds a
//! reference: the lane whose window it is part of, and each sample that waits to be decoded. References are
//! given back through [`Store::release`] under the pipeline's lock, so the last one is known when it comes, and
//! the memory it frees is accounted for at once.

use std::collections::VecDeque;
use std::ops::Range;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, OnceLock};

use forebay_shard::RecordBlock;

use crate::error::{Error, Result};

/// Memory that is kept for the next reads takes at most this part of the budget, on top of it.
const SPARE_PART: u64 = 8;

/// Neighbouring records: wanted, being read, or here.
pub(super) struct Extent {
    pub(super) id: u64,
    pub(super) records: Range<u64>,
    /// What it counts in the budget: what is to be read, then what the memory it was read into takes.
    bytes: AtomicU64,
    data: OnceLock<Result<RecordBlock>>,
}

impl Extent {
    /// Record number `sample`, once the extent was read; `None` before.
    pub(super) fn record(&self, sample: u64) -> Option<Result<&[u8]>> {
        match self.data.get()? {
            Err(error) => Some(Err(error.clone())),
            Ok(block) => {
                let index = usize::try_from(sample.wrapping_sub(self.records.start)).ok()?;
                (index < block.len()).then(|| Ok(block.get(index)))
            }
        }
    }

    pub(super) fn is_of_one_record(&self) -> bool {
        self.records.end - self.records.start == 1
    }

    pub(super) fn is_read(&self) -> bool {
        self.data.get().is_some()
    }
}

/// All extents: what they take, which are to be read, and memory to read into.
#[derive(Default)]
pub(super) struct Store {
    budget: u64,
    used: u64,
    next_id: u64,
    reads: VecDeque<Arc<Extent>>,
    /// How many of the first of `reads` the system was told of.
    told: usize,
    /// Memory of extents that are gone: filling it again is several times faster than fresh pages. Extents go and come in bursts, of
    /// more than are read at once.
    spare: Vec<RecordBlock>,
    max_spare: usize,
}

impl Store {
    pub(super) fn new(budget: u64, max_spare: usize) -> Self {
        Store {
            budget,
            max_spare,
            ..Store::default()
        }
    }

    /// Bytes held or about to be read.
    pub(super) fn used(&self) -> u64 {
        self.used
    }

    /// Whether there is room for `bytes` more.
    pub(super) fn has_room(&self, bytes: u64) -> bool {
        self.used.saturating_add(bytes) <= self.budget
    }

    /// A new extent, which will be read. Whether there is room is the caller's question.
    pub(super) fn admit(&mut self, records: Range<u64>, bytes: u64) -> Arc<Extent> {
        let extent = self.extent(records, bytes, OnceLock::new());
        self.reads.push_back(Arc::clone(&extent));
        extent
    }

    /// An extent that cannot be read.
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

    /// The next extent to read, and memory for it.
    pub(super) fn next_read(&mut self) -> Option<(Arc<Extent>, RecordBlock)> {
        let extent = self.reads.pop_front()?;
        self.told = self.told.saturating_sub(1);
        // Of about its size: what is much too large would only be counted, not used.
        let bytes = extent.bytes.load(Ordering::Relaxed);
        let sizes = self.spare.iter().map(|block| block.memory_bytes() as u64);
        let near = sizes.enumerate().filter(|&(_, size)| size / 2 <= bytes);
        // What is too small is given back and taken anew: the next one may fit then.
        let spare = near
            .min_by_key(|&(_, size)| (size < bytes, size.abs_diff(bytes)))
            .map(|(at, _)| at);
        let block = spare.map(|at| self.spare.swap_remove(at));
        Some((extent, block.unwrap_or_default()))
    }

    /// Records that will be read soon and that nobody was told of, each once: of the next `ahead` reads.
    pub(super) fn coming(&mut self, ahead: usize) -> Vec<Range<u64>> {
        let end = self.reads.len().min(ahead);
        let first = self.told;
        self.told = first.max(end);
        let coming = self.reads.iter().take(end).skip(first);
        coming.map(|extent| extent.records.clone()).collect()
    }

    /// The extent was read, or could not be.
    pub(super) fn finish(&mut self, extent: &Extent, data: Result<RecordBlock>) {
        // Records that were compressed take more than was read; so does memory that was larger before.
        let held = data.as_ref().map_or(0, |block| block.memory_bytes() as u64);
        let more = held.saturating_sub(extent.bytes.fetch_max(held, Ordering::Relaxed));
        self.used += more;
        // Each extent is read by one reader, once, so it cannot be set before.
        let _ = extent.data.set(data);
    }

    /// Gives a reference back.
    pub(super) fn release(&mut self, extent: Arc<Extent>) {
        let Some(extent) = Arc::into_inner(extent) else {
            return;
        };
        self.used -= extent.bytes.into_inner();
        if let Some(Ok(block)) = extent.data.into_inner() {
            self.spare.push(block);
            while self.spare.len() > self.max_spare || self.spare_bytes() > self.budget / SPARE_PART
            {
                self.spare.swap_remove(0);
            }
        }
    }

    fn spare_bytes(&self) -> u64 {
        let sizes = self.spare.iter().map(|block| block.memory_bytes() as u64);
        sizes.sum()
    }

    /// Gives up what is not being read yet.
    pub(super) fn forget_reads(&mut self) {
        self.told = 0;
        while let Some(extent) = self.reads.pop_front() {
            self.release(extent);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn memory_for_the_next_reads_is_a_small_part_of_the_budget() {
        const BLOCK: u64 = 1000;
        let budget = 3 * BLOCK * SPARE_PART;
        for (most, kept) in [(100, 3), (2, 2)] {
            let mut store = Store::new(budget, most);
            let extents: Vec<_> = (0..8)
                .map(|i| {
                    store.admit(i..i + 1, BLOCK);
                    let (extent, mut block) = store.next_read().unwrap();
                    block.stored_mut(BLOCK as usize);
                    store.finish(&extent, Ok(block));
                    extent
                })
                .collect();
            for extent in extents {
                store.release(extent);
            }
            assert_eq!(store.spare.len(), kept);
            assert_eq!(store.used(), 0);
        }
    }

    #[test]
    fn the_next_read_gets_memory_that_it_fits_into() {
        let mut store = Store::new(1 << 20, 4);
        for bytes in [900, 1500, 1100] {
            let mut block = RecordBlock::default();
            block.stored_mut(bytes);
            store.spare.push(block);
        }
        // The nearest is too small; what is twice as large would only be counted.
        for (wanted, given) in [(1000, 1100), (1000, 1500), (1000, 900), (10, 0)] {
            let extent = store.admit(0..1, wanted);
            let (_, block) = store.next_read().unwrap();
            assert_eq!(block.memory_bytes(), given);
            store.release(extent);
        }
    }

    #[test]
    fn what_comes_is_told_once() {
        let mut store = Store::new(1000, 1);
        let mut extents: Vec<_> = (0..5)
            .map(|i| store.admit(i * 10..i * 10 + 10, 1))
            .collect();
        let starts = |ranges: Vec<Range<u64>>| ranges.iter().map(|r| r.start).collect::<Vec<_>>();
        extents.extend(store.next_read().map(|(extent, _)| extent));
        assert_eq!(starts(store.coming(2)), [10, 20]);
        assert!(store.coming(2).is_empty());
        extents.extend(store.next_read().map(|(extent, _)| extent));
        assert_eq!(starts(store.coming(2)), [30]);
        for _ in 0..2 {
            extents.extend(store.next_read().map(|(extent, _)| extent));
        }
        assert_eq!(starts(store.coming(2)), [40]);
        extents.push(store.admit(50..60, 1));
        assert_eq!(starts(store.coming(2)), [50]);
        // What is forgotten and wanted again is told again.
        store.forget_reads();
        extents.push(store.admit(40..50, 1));
        assert_eq!(starts(store.coming(2)), [40]);
        store.forget_reads();
        assert!(store.coming(2).is_empty());
        for extent in extents {
            store.release(extent);
        }
        assert_eq!(store.used(), 0);
    }
}
