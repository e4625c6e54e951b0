//! An event queue: events in the order of their times, and of their creation where times are equal.

use std::cmp::{Ordering, Reverse};
use std::collections::BinaryHeap;

/// Nanoseconds since the beginning.
pub(super) type Time = u64;

/// Seconds as time.
pub(super) fn seconds(s: f64) -> Time {
    // Casting saturates, and no plan lasts centuries.
    (s * 1e9).round() as Time
}

/// Events to come.
pub(super) struct Events<E> {
    heap: BinaryHeap<Reverse<Entry<E>>>,
    made: u64,
}

struct Entry<E> {
    at: Time,
    number: u64,
    event: E,
}

impl<E> PartialEq for Entry<E> {
    fn eq(&self, other: &Self) -> bool {
        self.cmp(other) == Ordering::Equal
    }
}

impl<E> Eq for Entry<E> {}

impl<E> PartialOrd for Entry<E> {
    fn partial_cmp(&self, other: &Self) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}

impl<E> Ord for Entry<E> {
    fn cmp(&self, other: &Self) -> Ordering {
        (self.at, self.number).cmp(&(other.at, other.number))
    }
}

impl<E> Events<E> {
    pub(super) fn new() -> Self {
        Events {
            heap: BinaryHeap::new(),
            made: 0,
        }
    }

    pub(super) fn push(&mut self, at: Time, event: E) {
        self.made += 1;
        self.heap.push(Reverse(Entry {
            at,
            number: self.made,
            event,
        }));
    }

    pub(super) fn pop(&mut self) -> Option<(Time, E)> {
        let Reverse(entry) = self.heap.pop()?;
        Some((entry.at, entry.event))
    }
}

/// Numbers that only look random (SplitMix64), the same for the same seed.
pub(super) struct Random(u64);

impl Random {
    pub(super) fn new(seed: u64) -> Self {
        Random(seed)
    }

    pub(super) fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }

    /// From 0 to 1.
    pub(super) fn unit(&mut self) -> f64 {
        (self.next() >> 11) as f64 / (1u64 << 53) as f64
    }

    /// Below `n`, which is not 0.
    pub(super) fn below(&mut self, n: usize) -> usize {
        (self.next() % n as u64) as usize
    }
}
