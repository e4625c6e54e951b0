//! The windows of virtual ranks: where they end, and the order within them.

use super::permutation::{Key, Permutation};
use super::virtual_ranks::VirtualRanks;

/// The windows of an epoch whose records are divided into blocks.
///
/// Windows end at block boundaries, and the first window of virtual rank `l` is shorter by `floor(W * l /
/// virtual_ranks)` blocks. So virtual ranks start their windows at different times: memory holds one window per
/// virtual rank, not two, and reads are spread evenly over time.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Windows {
    virtual_ranks: VirtualRanks,
    block_records: u64,
    window_blocks: u64,
    key: Key,
}

/// A window of a virtual rank, as a range in the sequence of blocks.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Window {
    /// The virtual rank.
    pub virtual_rank: u64,
    /// Number of the window within the virtual rank.
    pub number: u64,
    /// The first place of the window in the sequence.
    pub start: u64,
    /// Number of places.
    pub len: u64,
    /// The index of the position within the window.
    pub offset: u64,
}

impl Windows {
    /// Creates the windows of `window_blocks` blocks of `block_records` records; both must be at least 1. `key` is the
    /// key of the domain of windows.
    #[must_use]
    pub fn new(
        virtual_ranks: VirtualRanks,
        block_records: u64,
        window_blocks: u64,
        key: Key,
    ) -> Self {
        Windows {
            virtual_ranks,
            block_records,
            window_blocks,
            key,
        }
    }

    /// Returns the window of a position of the epoch.
    #[must_use]
    pub fn at(&self, position: u64) -> Window {
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

    /// Returns the place in the sequence of the position for which `window` was computed.
    #[must_use]
    pub fn place(&self, window: &Window) -> u64 {
        let key = self.key.child(window.virtual_rank).child(window.number);
        window.start + Permutation::new(window.len, key).at(window.offset)
    }
}
