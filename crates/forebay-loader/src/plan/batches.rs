//! The positions of an epoch in the batches of one rank.
//!
//! A global batch is the next `batch_size * world_size` positions, which an [`Assignment`] divides between the ranks. So
//! every rank has the same number of steps, and any number of ranks has the same samples in each global batch.

use forebay_batch::positions::{Assignment, WindowedOrder};

use crate::error::{Error, Result};

/// Maximum batch size of a rank, and maximum world size: products stay far below 2^64.
const MAX_BATCH: u64 = 1 << 24;
const MAX_WORLD: u64 = 1 << 24;

/// The batches of one rank.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Batches {
    assignment: Assignment,
    drop_last: bool,
}

impl Batches {
    /// Creates batches of `batch_size` samples for `rank` of `world_size`, over an epoch of
    /// `records` in an order without windows.
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
        let assignment = Assignment {
            samples: records,
            batch_size,
            rank,
            world_size,
            order: None,
        };
        let batches = Batches {
            assignment,
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

    /// Returns the same batches of an epoch in this order.
    #[must_use]
    pub fn in_order(mut self, order: WindowedOrder) -> Self {
        self.assignment.order = Some(order);
        self
    }

    /// Returns the positions of this rank in a global batch.
    #[must_use]
    pub fn assignment(&self) -> &Assignment {
        &self.assignment
    }

    /// Returns the number of samples in one batch of all ranks together.
    #[must_use]
    pub fn global_size(&self) -> u64 {
        self.assignment.global_size()
    }

    /// Returns the position after the global batch that begins at `position`, without padding.
    #[must_use]
    pub fn after(&self, position: u64) -> u64 {
        position
            .saturating_add(self.global_size())
            .min(self.assignment.samples)
    }

    /// Returns the number of batches from `position` to the end of the epoch, the same on every
    /// rank.
    #[must_use]
    pub fn remaining(&self, position: u64) -> u64 {
        let left = self.assignment.samples.saturating_sub(position);
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
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn order(block_records: u64, repeats: u64) -> WindowedOrder {
        WindowedOrder {
            virtual_ranks: 64,
            block_records,
            window_blocks: 2,
            seed: 5,
            reshuffle: true,
            repeats,
        }
    }

    proptest! {
        /// A run that continues again and again on other numbers of ranks has each position once.
        #[test]
        fn a_run_continues_on_any_number_of_ranks(
            records in 1u64..3000, block in 1u64..9, repeats in 1u64..4,
            parts in prop::collection::vec((1u64..130, 1u64..12, 1u64..4), 1..12), drop_last: bool,
        ) {
            let samples = records * repeats;
            let (mut start, mut taken) = (0, Vec::new());
            let last = (1, 1, u64::MAX);
            for (world, size, steps) in parts.into_iter().chain([last]) {
                let Ok(batches) = Batches::new(samples, size, 0, world, drop_last) else { continue };
                for _ in 0..steps.min(batches.remaining(start)) {
                    let rank = |rank| Batches::new(samples, size, rank, world, drop_last).unwrap();
                    let ranks = (0..world).map(|number| rank(number).in_order(order(block, repeats)));
                    let mut together: Vec<u64> = ranks.flat_map(|rank| rank.assignment().positions(1, start)).collect();
                    // The set of a batch follows from its position and its size.
                    together.sort_unstable();
                    prop_assert!(together.iter().copied().eq(start..start + world * size));
                    taken.extend(together.into_iter().filter(|&p| p < samples));
                    start = batches.after(start);
                }
            }
            prop_assert!(taken.into_iter().eq(0..samples));
        }

        #[test]
        fn ranks_together_take_each_position_once(
            records in 1u64..2000, batch in 1u64..40, world in 1u64..90, start in 0u64..500, drop_last: bool, block in 1u64..9,
        ) {
            let order = order(block, 1);
            let start = start % records;
            let Ok(batches) = Batches::new(records, batch, 0, world, drop_last) else {
                prop_assert!(drop_last && records < batch * world);
                return Ok(());
            };
            let global = batches.global_size();
            let mut taken = Vec::new();
            let mut padding = 0;
            for rank in 0..world {
                let mine = Batches::new(records, batch, rank, world, drop_last).unwrap().in_order(order);
                prop_assert_eq!(mine.remaining(start), batches.remaining(start));
                for step in 0..mine.remaining(start) {
                    for p in mine.assignment().positions(0, start + step * global) {
                        if p < records { taken.push(p) } else { padding += 1 }
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
