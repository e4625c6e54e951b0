//! A permutation of all samples: the best shuffle, and the worst reads.
//!
//! Nothing that is read together is used together, so each record is a run of
//! its own. For datasets that fit into memory or live on fast local disks.

use super::super::permutation::{Key, Permutation};
use super::{Order, Run};

#[derive(Debug)]
pub(super) struct Full {
    permutation: Permutation,
}

impl Full {
    pub(super) fn new(records: u64, key: Key) -> Self {
        Full {
            permutation: Permutation::new(records, key.child(KEY_FULL)),
        }
    }
}

/// Child of the epoch's key that belongs to this permutation.
const KEY_FULL: u64 = 4;

impl Order for Full {
    fn sample(&self, position: u64) -> u64 {
        self.permutation.at(position)
    }

    fn run(&self, position: u64) -> Run {
        let sample = self.sample(position);
        Run {
            sample,
            records: sample..sample + 1,
            lane: 0,
            group: position,
        }
    }
}
