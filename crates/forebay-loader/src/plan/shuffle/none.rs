//! Storage order: position `p` is record `p`.

use super::super::defaults;
use super::{Footprint, Make, Order, Reading, Run};

/// Reads one block at a time, if reading the records of other ranks in between is cheaper than separate reads.
pub(super) fn footprint(reading: &Reading) -> Footprint {
    let Reading {
        records,
        mean_bytes,
        ..
    } = *reading;
    let gap = (reading.world_size - 1).saturating_mul(mean_bytes);
    let fits = (reading.budget_bytes / mean_bytes / (reading.reads + 1)).max(1);
    let block = defaults::block_records(records, records.saturating_mul(mean_bytes), 1);
    let block = block.min(fits);
    match gap <= reading.gap_bytes {
        true => Footprint {
            run_records: block,
            window_records: Some(block),
        },
        false => Footprint {
            run_records: 1,
            window_records: None,
        },
    }
}

#[derive(Debug)]
pub(super) struct InStorage {
    records: u64,
    run_records: u64,
}

impl InStorage {
    pub(super) fn new(make: &Make) -> Self {
        InStorage {
            records: make.records,
            run_records: make.run_records.max(1),
        }
    }
}

impl Order for InStorage {
    fn sample(&self, position: u64) -> u64 {
        position
    }

    /// Returns aligned runs, each in its own group: a virtual rank in the next group no longer needs the last run.
    fn run(&self, position: u64) -> Run {
        let group = position / self.run_records;
        let start = group * self.run_records;
        Run {
            sample: position,
            records: start..(start + self.run_records).min(self.records),
            virtual_rank: 0,
            group,
        }
    }
}
