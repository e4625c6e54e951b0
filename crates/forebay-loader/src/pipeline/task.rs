//! A sample to decode, ordered by the batch that needs it.

use std::cmp::Ordering;
use std::sync::Arc;

use super::batch_buffer::Slot;
use super::extent::Extent;

/// A sample to decode, with its record and its destination.
pub(super) struct Task {
    pub(super) generation: u64,
    pub(super) batch: u64,
    pub(super) index: usize,
    pub(super) epoch: u64,
    pub(super) sample: u64,
    pub(super) occurrence: u64,
    pub(super) extent: Arc<Extent>,
    pub(super) slot: Slot,
}

impl Task {
    fn rank(&self) -> (u64, usize) {
        (self.batch, self.index)
    }
}

/// Reversed, so that the heap returns the sample first that is needed first.
impl Ord for Task {
    fn cmp(&self, other: &Self) -> Ordering {
        other.rank().cmp(&self.rank())
    }
}

impl PartialOrd for Task {
    fn partial_cmp(&self, other: &Self) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}

impl PartialEq for Task {
    fn eq(&self, other: &Self) -> bool {
        self.rank() == other.rank()
    }
}

impl Eq for Task {}
