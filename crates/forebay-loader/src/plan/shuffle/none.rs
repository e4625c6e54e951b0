//! Storage order: position `p` is record `p`.

use super::{Order, Run};

#[derive(Debug)]
pub(super) struct Storage {
    pub(super) records: u64,
    pub(super) run_records: u64,
}

impl Order for Storage {
    fn sample(&self, position: u64) -> u64 {
        position
    }

    /// Aligned runs, each a group of its own: whoever reads on has done with the last one.
    fn run(&self, position: u64) -> Run {
        let group = position / self.run_records;
        let start = group * self.run_records;
        Run {
            sample: position,
            records: start..(start + self.run_records).min(self.records),
            lane: 0,
            group,
        }
    }
}
