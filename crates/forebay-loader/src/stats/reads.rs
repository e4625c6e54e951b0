//! Histogram of the duration of reads.

use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

/// Upper bounds in seconds of all buckets except the last, which has none: from page-cache hits to
/// a throttled store.
pub const READ_BOUNDS_S: [f64; 13] = [
    0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 10.0,
];

/// Durations of reads from any source: a disk, a cache, a store.
#[derive(Debug, Clone, Copy, PartialEq, Default)]
#[non_exhaustive]
pub struct ReadTimes {
    /// Number of reads in each bucket of [`READ_BOUNDS_S`], followed by longer ones.
    pub counts: [u64; READ_BOUNDS_S.len() + 1],
    /// Total duration in seconds.
    pub sum_s: f64,
}

impl ReadTimes {
    /// Adds the reads of another loader.
    pub fn add(&mut self, other: &ReadTimes) {
        for (count, more) in self.counts.iter_mut().zip(other.counts) {
            *count += more;
        }
        self.sum_s += other.sum_s;
    }
}

/// Counts reads; shared by threads.
#[derive(Debug, Default)]
pub(crate) struct ReadClock {
    counts: [AtomicU64; READ_BOUNDS_S.len() + 1],
    ns: AtomicU64,
}

impl ReadClock {
    /// Records the duration of a read.
    pub(crate) fn took(&self, time: Duration) {
        let seconds = time.as_secs_f64();
        let bucket = READ_BOUNDS_S.partition_point(|&bound| bound < seconds);
        self.counts[bucket].fetch_add(1, Ordering::Relaxed);
        let ns = u64::try_from(time.as_nanos()).unwrap_or(u64::MAX);
        self.ns.fetch_add(ns, Ordering::Relaxed);
    }

    pub(crate) fn read(&self) -> ReadTimes {
        let mut times = ReadTimes {
            sum_s: self.ns.load(Ordering::Relaxed) as f64 / 1e9,
            ..ReadTimes::default()
        };
        for (count, counted) in times.counts.iter_mut().zip(&self.counts) {
            *count = counted.load(Ordering::Relaxed);
        }
        times
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_bound_belongs_to_its_bucket() {
        let clock = ReadClock::default();
        for us in [0, 500, 501, 2_500, 9_999_999, 10_000_001] {
            clock.took(Duration::from_micros(us));
        }
        let times = clock.read();
        assert_eq!(times.counts[..3], [2, 1, 1]);
        assert_eq!(times.counts[12..], [1, 1]);
        assert!((times.sum_s - 20.003_501).abs() < 1e-6, "{}", times.sum_s);
        let mut twice = times;
        twice.add(&times);
        assert_eq!(twice.counts[0], 4);
    }
}
