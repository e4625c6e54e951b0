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
//!
//! Windows end at block boundaries, and the first window of virtual rank `l` is shorter by `floor(W * l /
//! virtual_ranks)` blocks. So virtual ranks start their windows at different times: memory holds one window per
//! virtual rank, not two, and reads are spread evenly over time.

use super::super::virtual_ranks::VirtualRanks;
use super::super::permutation::{Domain, Key, Permutation};
use super::{Footprint, Kind, Make, Order, Reading, Run, Shuffle, windows};
use crate::error::Result;

pub(super) struct Blocks;

impl Kind for Blocks {
    fn name(&self) -> &'static str {
        "blocks"
    }

    fn has_blocks(&self) -> bool {
        true
    }

    fn footprint(&self, shuffle: &Shuffle, reading: &Reading) -> Footprint {
        windows(shuffle, reading)
    }

    fn order(&self, make: &Make) -> Result<Box<dyn Order>> {
        make.shuffle.check_blocks()?;
        let order = Permutation::new(
            make.records / make.shuffle.block_records,
            make.key.domain(Domain::Blocks),
        );
        Ok(Box::new(Windows::new(make, Some(order))))
    }
}

/// Windows over blocks in some order.
#[derive(Debug)]
pub(super) struct Windows {
    records: u64,
    block_records: u64,
    window_blocks: u64,
    full_blocks: u64,
    rotation: u64,
    /// The order of the full blocks; `None` for storage order.
    order: Option<Permutation>,
    windows: Key,
    virtual_ranks: VirtualRanks,
}

/// A window of a virtual rank, as a range in `Q`.
struct Window {
    virtual_rank: u64,
    number: u64,
    start: u64,
    len: u64,
    /// The index of the position within the window.
    offset: u64,
}

impl Windows {
    /// Creates the windows. The number of records and the block sizes must be at least 1.
    pub(super) fn new(make: &Make, order: Option<Permutation>) -> Self {
        let Shuffle {
            block_records,
            window_blocks,
            ..
        } = make.shuffle;
        let full_blocks = make.records / block_records;
        Windows {
            records: make.records,
            block_records,
            window_blocks,
            full_blocks,
            rotation: make.key.domain(Domain::Rotation).below(make.records),
            order,
            windows: make.key.domain(Domain::Windows),
            virtual_ranks: make.virtual_ranks,
        }
    }

    fn window(&self, position: u64) -> Window {
        let (virtual_rank, j) = self.virtual_ranks.of(position);
        let segment = self.virtual_ranks.start(virtual_rank);
        let records = self.window_blocks * self.block_records;
        // Smaller than the window size `records`, so window 0 is never empty.
        let skipped = segment % self.block_records
            + self.block_records * (self.window_blocks * virtual_rank / self.virtual_ranks.count());
        let number = (j + skipped) / records;
        let start = (number * records).saturating_sub(skipped);
        let end = ((number + 1) * records - skipped).min(self.virtual_ranks.len(virtual_rank));
        Window {
            virtual_rank,
            number,
            start: segment + start,
            len: end - start,
            offset: j - start,
        }
    }

    /// Returns the place in `Q` of the position for which `window` was computed.
    fn slot(&self, window: &Window) -> u64 {
        let key = self.windows.child(window.virtual_rank).child(window.number);
        window.start + Permutation::new(window.len, key).at(window.offset)
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

impl Order for Windows {
    fn sample(&self, position: u64) -> u64 {
        let slot = self.slot(&self.window(position));
        let (first, begin) = self.block(slot);
        self.rotate(first + (slot - begin))
    }

    fn run(&self, position: u64) -> Run {
        let window = self.window(position);
        let slot = self.slot(&window);
        let (first, begin) = self.block(slot);
        // The intersection of window and block, as places of Q.
        let from = begin.max(window.start);
        let to = (begin + self.block_records).min(window.start + window.len);
        let sample = self.rotate(first + (slot - begin));
        let (before, after) = (slot - from, to - slot);
        // The rotation may split the block in two at the last record.
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
