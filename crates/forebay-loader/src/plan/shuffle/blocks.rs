//! Blocks, then windows: random enough for training, sequential enough for reading.
//!
//! 1. Records are divided into blocks of `B` neighbors, starting at a random record `rot` (so that
//!    the boundaries, and the one short block, differ in each epoch).
//! 2. The `F = N / B` full blocks are permuted; the short one comes last. Blocks in that order are
//!    the sequence `Q`.
//! 3. Each virtual rank owns a segment of `Q` and permutes it in windows of `W` blocks.
//!
//! So a virtual rank holds `W` blocks at a time, and each block is read once and in one piece (two if a
//! virtual rank, the last record or a shard ends inside it).

use forebay_batch::positions::{Domain, Permutation, Windows};

use super::{Make, Order, Run, Shuffle};

/// Windows over blocks in some order.
#[derive(Debug)]
pub(super) struct Windowed {
    records: u64,
    block_records: u64,
    full_blocks: u64,
    rotation: u64,
    /// The order of the full blocks; `None` for storage order.
    order: Option<Permutation>,
    windows: Windows,
}

impl Windowed {
    /// Creates the windows. The number of records and the block sizes must be at least 1.
    pub(super) fn new(make: &Make, order: Option<Permutation>) -> Self {
        let Shuffle {
            block_records,
            window_blocks,
            ..
        } = make.shuffle;
        let windows = make.key.domain(Domain::Windows);
        Windowed {
            records: make.records,
            block_records,
            full_blocks: make.records / block_records,
            rotation: make.key.domain(Domain::Rotation).below(make.records),
            order,
            windows: Windows::new(make.virtual_ranks, block_records, window_blocks, windows),
        }
    }

    /// Returns the first record, before the rotation, of the block at place `slot` of `Q`, and the
    /// place at which it begins.
    fn block(&self, slot: u64) -> (u64, u64) {
        let place = slot / self.block_records;
        let number = match &self.order {
            Some(order) if place < self.full_blocks => order.at(place),
            _ => place,
        };
        (number * self.block_records, place * self.block_records)
    }

    fn rotate(&self, record: u64) -> u64 {
        let rotated = self.rotation + record;
        if rotated >= self.records {
            rotated - self.records
        } else {
            rotated
        }
    }
}

impl Order for Windowed {
    fn sample(&self, position: u64) -> u64 {
        let slot = self.windows.place(&self.windows.at(position));
        let (first, begin) = self.block(slot);
        self.rotate(first + (slot - begin))
    }

    fn run(&self, position: u64) -> Run {
        let window = self.windows.at(position);
        let slot = self.windows.place(&window);
        let (first, begin) = self.block(slot);
        // The intersection of window and block, as places of Q; in storage order all blocks of the window are neighbors.
        let (mut from, mut to) = (window.start, window.start + window.len);
        if self.order.is_some() {
            from = from.max(begin);
            to = to.min(begin + self.block_records);
        }
        let sample = self.rotate(first + (slot - begin));
        let (before, after) = (slot - from, to - slot);
        // The rotation may split them in two at the last record.
        let records = if sample < before {
            0..sample + after
        } else {
            sample - before..(sample + after).min(self.records)
        };
        Run {
            sample,
            records,
            virtual_rank: window.virtual_rank,
            group: window.number,
        }
    }
}
