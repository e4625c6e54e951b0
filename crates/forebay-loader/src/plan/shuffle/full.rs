//! A permutation of all samples: the best shuffle, and the worst access pattern.
//!
//! Neighbors in storage are not used together, so each record is read on its own. Suits datasets that fit into memory
//! or are on fast local disks.

use forebay_batch::positions::{Domain, Permutation};

use super::{Footprint, Kind, Make, Order, Reading, Run, Shuffle};
use crate::error::Result;

pub(super) struct Full;

impl Kind for Full {
    fn name(&self) -> &'static str {
        "full"
    }

    fn footprint(&self, _: &Shuffle, _: &Reading) -> Footprint {
        Footprint {
            run_records: 1,
            window_records: None,
        }
    }

    fn order(&self, make: &Make) -> Result<Box<dyn Order>> {
        let key = make.key.domain(Domain::Full);
        Ok(Box::new(Permuted {
            permutation: Permutation::new(make.records, key),
        }))
    }
}

#[derive(Debug)]
struct Permuted {
    permutation: Permutation,
}

impl Order for Permuted {
    fn sample(&self, position: u64) -> u64 {
        self.permutation.at(position)
    }

    fn run(&self, position: u64) -> Run {
        let sample = self.sample(position);
        Run {
            sample,
            records: sample..sample + 1,
            virtual_rank: 0,
            group: position,
        }
    }
}
