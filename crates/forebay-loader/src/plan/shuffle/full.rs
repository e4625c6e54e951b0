//! A permutation of all samples: the best shuffle, and the worst access pattern.
//!
//! Neighbors in storage are not used together, so each record is read on its own. Suits datasets that fit into memory
//! or are on fast local disks.

use forebay_batch::positions::{Domain, Permutation};

use super::{Make, Order, Run};

#[derive(Debug)]
pub(super) struct Permuted {
    permutation: Permutation,
}

impl Permuted {
    pub(super) fn new(make: &Make) -> Self {
        let key = make.key.domain(Domain::Full);
        Permuted {
            permutation: Permutation::new(make.records, key),
        }
    }
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
