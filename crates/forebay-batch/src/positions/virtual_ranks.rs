//! Virtual ranks: equal parts of the epoch that are read in parallel.
//!
//! Position `p` of the epoch belongs to virtual rank `p % virtual_ranks`, at position `p / virtual_ranks` within it. A
//! virtual rank owns one contiguous segment of the shuffled sequence, so it reads large ranges on any rank. If
//! the world size divides the number of virtual ranks, each rank owns whole virtual ranks; otherwise see
//! [`Assignment`](super::Assignment).

/// The division of `records` into `virtual_ranks`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct VirtualRanks {
    records: u64,
    virtual_ranks: u64,
}

impl VirtualRanks {
    /// Divides `records`. A number of 0 virtual ranks counts as 1.
    #[must_use]
    pub fn new(records: u64, virtual_ranks: u64) -> Self {
        VirtualRanks {
            records,
            virtual_ranks: virtual_ranks.max(1),
        }
    }

    /// Returns the number of virtual ranks.
    #[must_use]
    pub fn count(self) -> u64 {
        self.virtual_ranks
    }

    /// Returns the virtual rank of position `p`, and the position within it.
    #[must_use]
    pub fn of(self, p: u64) -> (u64, u64) {
        (p % self.virtual_ranks, p / self.virtual_ranks)
    }

    /// Returns the start of a virtual rank's segment in the sequence.
    #[must_use]
    pub fn start(self, virtual_rank: u64) -> u64 {
        virtual_rank * (self.records / self.virtual_ranks)
            + virtual_rank.min(self.records % self.virtual_ranks)
    }

    /// Returns the number of positions of `virtual_rank`: equal for all, or one more for the first few.
    #[must_use]
    pub fn len(self, virtual_rank: u64) -> u64 {
        self.records / self.virtual_ranks
            + u64::from(virtual_rank < self.records % self.virtual_ranks)
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    proptest! {
        #[test]
        fn segments_tile_the_sequence(records in 0u64..5000, virtual_ranks in 1u64..300) {
            let assigned = VirtualRanks::new(records, virtual_ranks);
            let mut next = 0;
            for virtual_rank in 0..virtual_ranks {
                prop_assert_eq!(assigned.start(virtual_rank), next);
                next += assigned.len(virtual_rank);
            }
            prop_assert_eq!(next, records);
        }

        #[test]
        fn each_position_is_within_its_virtual_rank(records in 1u64..5000, virtual_ranks in 1u64..300) {
            let assigned = VirtualRanks::new(records, virtual_ranks);
            for p in 0..records {
                let (virtual_rank, j) = assigned.of(p);
                prop_assert!(j < assigned.len(virtual_rank));
            }
        }
    }
}
