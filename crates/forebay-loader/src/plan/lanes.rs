//! Lanes (virtual ranks): the epoch divided into equal parts that are read in parallel.
//!
//! Position `p` of the epoch belongs to lane `p % lanes` and is its position `p / lanes`. A lane
//! owns one contiguous segment of the shuffled sequence, so it reads large ranges on any rank; a
//! rank of any world size that divides the lanes owns whole lanes.

/// The division of `records` into `lanes`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Lanes {
    records: u64,
    lanes: u64,
}

impl Lanes {
    pub(crate) fn new(records: u64, lanes: u64) -> Self {
        Lanes {
            records,
            lanes: lanes.max(1),
        }
    }

    pub(crate) fn count(self) -> u64 {
        self.lanes
    }

    /// Returns lane and lane position of position `p`.
    pub(crate) fn of(self, p: u64) -> (u64, u64) {
        (p % self.lanes, p / self.lanes)
    }

    /// Returns the start of a lane's segment in the sequence.
    pub(crate) fn start(self, lane: u64) -> u64 {
        lane * (self.records / self.lanes) + lane.min(self.records % self.lanes)
    }

    /// Returns the number of positions of `lane`: equal for all, or one more for the first few.
    pub(crate) fn len(self, lane: u64) -> u64 {
        self.records / self.lanes + u64::from(lane < self.records % self.lanes)
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    proptest! {
        #[test]
        fn segments_tile_the_sequence(records in 0u64..5000, lanes in 1u64..300) {
            let dealt = Lanes::new(records, lanes);
            let mut next = 0;
            for lane in 0..lanes {
                prop_assert_eq!(dealt.start(lane), next);
                next += dealt.len(lane);
            }
            prop_assert_eq!(next, records);
        }

        #[test]
        fn each_position_is_within_its_lane(records in 1u64..5000, lanes in 1u64..300) {
            let dealt = Lanes::new(records, lanes);
            for p in 0..records {
                let (lane, j) = dealt.of(p);
                prop_assert!(j < dealt.len(lane));
            }
        }
    }
}
