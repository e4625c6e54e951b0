//! The positions of an epoch in the batches of one rank.
//!
//! A global batch is the next `batch_size * world_size` positions; rank `r` takes every
//! `world_size`-th of them, starting with the `r`-th. So every rank has the same number of steps,
//! and smaller world sizes have the same samples in the same global order.

use std::ops::Range;

use crate::error::{Error, Result};

/// Maximum batch size of a rank, and maximum world size: products stay far below 2^64.
const MAX_BATCH: u64 = 1 << 24;
const MAX_WORLD: u64 = 1 << 24;

/// The batches of one rank.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Batches {
    records: u64,
    batch_size: u64,
    rank: u64,
    world_size: u64,
    drop_last: bool,
}

impl Batches {
    /// Creates batches of `batch_size` samples for `rank` of `world_size`, over an epoch of
    /// `records`.
    ///
    /// With `drop_last`, the remainder of an epoch is left out; otherwise it becomes one more batch,
    /// filled up with padding.
    ///
    /// # Errors
    ///
    /// A size of 0 or out of range, a rank outside its world, an epoch without any batch.
    pub fn new(
        records: u64,
        batch_size: u64,
        rank: u64,
        world_size: u64,
        drop_last: bool,
    ) -> Result<Self> {
        if !(1..=MAX_BATCH).contains(&batch_size) {
            return Err(Error::option("batch_size", batch_size, "1 to 2^24"));
        }
        if !(1..=MAX_WORLD).contains(&world_size) {
            return Err(Error::option("world_size", world_size, "1 to 2^24"));
        }
        if rank >= world_size {
            let expected = match world_size {
                1 => "0, as world_size is 1; give both".to_owned(),
                _ => format!("0 to {}, in a world of {world_size}", world_size - 1),
            };
            return Err(Error::option("rank", rank, expected));
        }
        let batches = Batches {
            records,
            batch_size,
            rank,
            world_size,
            drop_last,
        };
        if records == 0 || (drop_last && records < batches.global_size()) {
            return Err(Error::NoBatch {
                records,
                global_batch: batches.global_size(),
            });
        }
        Ok(batches)
    }

    /// Returns the number of samples in one batch of all ranks together.
    #[must_use]
    pub fn global_size(&self) -> u64 {
        self.batch_size * self.world_size
    }

    /// Returns the position after the global batch that begins at `position`, without padding.
    #[must_use]
    pub fn after(&self, position: u64) -> u64 {
        position
            .saturating_add(self.global_size())
            .min(self.records)
    }

    /// Returns the number of batches from `position` to the end of the epoch, the same on every
    /// rank.
    #[must_use]
    pub fn remaining(&self, position: u64) -> u64 {
        let left = self.records.saturating_sub(position);
        if self.drop_last {
            left / self.global_size()
        } else {
            left.div_ceil(self.global_size())
        }
    }

    /// Returns the number of batches per epoch.
    #[must_use]
    pub fn per_epoch(&self) -> u64 {
        self.remaining(0)
    }

    /// Returns the position of sample `i` of this rank in the global batch that begins at `start`,
    /// and whether it is padding: past the end, the epoch's first samples repeat.
    #[must_use]
    pub fn position(&self, start: u64, i: u64) -> (u64, bool) {
        let p = start + self.rank + i * self.world_size;
        (p % self.records, p >= self.records)
    }

    /// Returns the indices within a batch of this rank.
    #[must_use]
    pub fn slots(&self) -> Range<u64> {
        0..self.batch_size
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    proptest! {
        #[test]
        fn ranks_together_take_each_position_once(
            records in 1u64..2000, batch in 1u64..40, world in 1u64..9, start in 0u64..500, drop_last: bool,
        ) {
            let start = start % records;
            let Ok(batches) = Batches::new(records, batch, 0, world, drop_last) else {
                prop_assert!(drop_last && records < batch * world);
                return Ok(());
            };
            let global = batches.global_size();
            let mut taken = Vec::new();
            let mut padding = 0;
            for rank in 0..world {
                let mine = Batches::new(records, batch, rank, world, drop_last).unwrap();
                prop_assert_eq!(mine.remaining(start), batches.remaining(start));
                for step in 0..mine.remaining(start) {
                    for i in mine.slots() {
                        let (p, padded) = mine.position(start + step * global, i);
                        if padded { padding += 1 } else { taken.push(p) }
                        prop_assert!(p < records);
                    }
                }
            }
            taken.sort_unstable();
            let end = if drop_last { start + (records - start) / global * global } else { records };
            prop_assert!(taken.into_iter().eq(start..end));
            prop_assert!(padding < global);
        }
    }

    #[test]
    fn invalid_sizes_are_refused() {
        assert!(Batches::new(10, 0, 0, 1, false).is_err());
        assert!(Batches::new(10, 1, 0, 0, false).is_err());
        assert!(Batches::new(10, 1, 4, 4, false).is_err());
        assert!(Batches::new(0, 1, 0, 1, false).is_err());
        assert!(Batches::new(10, u64::MAX, 0, u64::MAX, false).is_err());
        let error = Batches::new(10, 11, 0, 1, true).unwrap_err().to_string();
        assert!(
            error.contains("10 samples") && error.contains("drop_last"),
            "{error}"
        );
        assert_eq!(Batches::new(10, 11, 0, 1, false).unwrap().per_epoch(), 1);
    }
}
