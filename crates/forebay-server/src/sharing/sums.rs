//! Sums and differences of the statistics of sources.

use forebay_loader::ReadTimes;
use forebay_wire::wire;

use crate::counters::{add_levels, take_levels};
use crate::source::StreamMonitor;

/// Work of a source, as counted in totals.
#[derive(Debug, Clone, Default)]
pub(super) struct Work {
    pub(super) stats: wire::Stats,
    pub(super) reads: ReadTimes,
}

impl Work {
    /// Work done so far.
    pub(super) fn of(monitor: &dyn StreamMonitor) -> Work {
        Work {
            stats: monitor.counted(),
            reads: monitor.reads(),
        }
    }

    pub(super) fn plus(self, other: &Work) -> Work {
        let mut reads = self.reads;
        reads.add(&other.reads);
        Work {
            stats: more(self.stats, &other.stats),
            reads,
        }
    }

    /// Work done since `before`.
    pub(super) fn minus(self, before: &Work) -> Work {
        let mut reads = self.reads;
        for (count, known) in reads.counts.iter_mut().zip(before.reads.counts) {
            *count = count.saturating_sub(known);
        }
        reads.sum_s -= before.reads.sum_s;
        Work {
            stats: less(self.stats, &before.stats),
            reads,
        }
    }
}

/// Sum of two statistics, with the last failures of both.
pub(super) fn more(mut one: wire::Stats, other: &wire::Stats) -> wire::Stats {
    for stage in &other.stages {
        match one.stages.iter_mut().find(|known| known.name == stage.name) {
            Some(known) => {
                known.busy_s += stage.busy_s;
                known.starved_s += stage.starved_s;
                known.blocked_s += stage.blocked_s;
                known.threads = known.threads.max(stage.threads);
            }
            None => one.stages.push(stage.clone()),
        }
    }
    one.images += other.images;
    one.decoded += other.decoded;
    one.fast_images += other.fast_images;
    one.batches += other.batches;
    one.bytes_read += other.bytes_read;
    one.failed += other.failed;
    if !other.failures.is_empty() {
        one.failures.clone_from(&other.failures);
    }
    add_levels(&mut one.reads, &other.reads);
    one.cores = one.cores.max(other.cores);
    one.decode_cpu_s += other.decode_cpu_s;
    one.decode_delay_s += other.decode_delay_s;
    // Both measure the same process and machine.
    one.process_cpu_s = one.process_cpu_s.max(other.process_cpu_s);
    one.machine_busy_s = one.machine_busy_s.max(other.machine_busy_s);
    one.machine_stolen_s = one.machine_stolen_s.max(other.machine_stolen_s);
    one.machine_throttled_s = one.machine_throttled_s.max(other.machine_throttled_s);
    // A store's counters cover all readers of a dataset: both are readings of the same counters,
    // one of them later.
    one.traffic = match (one.traffic, other.traffic) {
        (Some(one), Some(other)) => Some(later(one, other)),
        (one, other) => one.or(other),
    };
    one.learned = match (one.learned, other.learned) {
        (Some(one), Some(other)) => Some(wire::LearnedPoints {
            samples: one.samples + other.samples,
            images: one.images.max(other.images),
            bytes: one.bytes.max(other.bytes),
            full: one.full || other.full,
        }),
        (one, other) => one.or(other),
    };
    one
}

/// The later of two readings of a store's counters.
fn later(one: wire::Traffic, other: wire::Traffic) -> wire::Traffic {
    wire::Traffic {
        fetched_bytes: one.fetched_bytes.max(other.fetched_bytes),
        retries: one.retries.max(other.retries),
        hedges: one.hedges.max(other.hedges),
        requests: one.requests.max(other.requests),
        region_nanodollars: one.region_nanodollars.max(other.region_nanodollars),
        internet_nanodollars: one.internet_nanodollars.max(other.internet_nanodollars),
        prices_as_of: one.prices_as_of.max(other.prices_as_of),
        has_cache: one.has_cache || other.has_cache,
        cache_hits: one.cache_hits.max(other.cache_hits),
        cache_misses: one.cache_misses.max(other.cache_misses),
        cache_hit_bytes: one.cache_hit_bytes.max(other.cache_hit_bytes),
        cache_miss_bytes: one.cache_miss_bytes.max(other.cache_miss_bytes),
    }
}

/// Difference to an earlier reading. Counters of a store are left as they are, since they do not
/// belong to one stream.
pub(super) fn less(mut now: wire::Stats, before: &wire::Stats) -> wire::Stats {
    for stage in &mut now.stages {
        if let Some(known) = before.stages.iter().find(|known| known.name == stage.name) {
            stage.busy_s -= known.busy_s;
            stage.starved_s -= known.starved_s;
            stage.blocked_s -= known.blocked_s;
        }
    }
    now.images = now.images.saturating_sub(before.images);
    now.decoded = now.decoded.saturating_sub(before.decoded);
    now.fast_images = now.fast_images.saturating_sub(before.fast_images);
    now.batches = now.batches.saturating_sub(before.batches);
    now.bytes_read = now.bytes_read.saturating_sub(before.bytes_read);
    now.failed = now.failed.saturating_sub(before.failed);
    now.decode_cpu_s = (now.decode_cpu_s - before.decode_cpu_s).max(0.0);
    now.decode_delay_s = (now.decode_delay_s - before.decode_delay_s).max(0.0);
    if let (Some(now), Some(before)) = (&mut now.learned, &before.learned) {
        now.samples = now.samples.saturating_sub(before.samples);
    }
    take_levels(&mut now.reads, &before.reads);
    now
}

#[cfg(test)]
mod tests {
    use super::*;

    fn stats(levels: &[(f64, f64)], cores: u32, fetched_bytes: u64) -> wire::Stats {
        let levels = levels
            .iter()
            .map(|&(seconds, bytes)| wire::ReadLevel { seconds, bytes });
        wire::Stats {
            reads: levels.collect(),
            cores,
            traffic: (fetched_bytes > 0).then(|| wire::Traffic {
                fetched_bytes,
                ..wire::Traffic::default()
            }),
            ..wire::Stats::default()
        }
    }

    #[test]
    fn read_levels_are_summed_and_store_counters_are_not() {
        let (one, two) = ([(1.0, 10.0)], [(2.0, 20.0), (3.0, 30.0)]);
        let both = more(stats(&one, 2, 100), &stats(&two, 2, 150));
        assert_eq!(both, stats(&[(3.0, 30.0), (3.0, 30.0)], 2, 150));
        assert_eq!(
            less(both, &stats(&one, 2, 100)),
            stats(&two, 2, 150),
            "the store's counts are those of all streams"
        );
        assert_eq!(more(stats(&one, 0, 0), &stats(&[], 4, 7)).cores, 4);
        let images = |decoded, fast_images| wire::Stats {
            decoded,
            fast_images,
            ..stats(&one, 0, 0)
        };
        let both = more(images(10, 7), &images(5, 2));
        assert_eq!((both.decoded, both.fast_images), (15, 9));
        let rest = less(both, &images(10, 7));
        assert_eq!((rest.decoded, rest.fast_images), (5, 2));
        let learned = |samples, images| wire::Stats {
            learned: Some(wire::LearnedPoints {
                samples,
                images,
                bytes: 100 * images,
                full: images > 4,
            }),
            ..stats(&one, 0, 0)
        };
        let both = more(learned(3, 4), &learned(2, 5));
        assert_eq!(both.learned, learned(5, 5).learned);
        assert_eq!(less(both, &learned(3, 4)).learned, learned(2, 5).learned);
        assert_eq!(
            more(stats(&one, 0, 9), &stats(&[], 0, 0)).traffic,
            stats(&[], 0, 9).traffic
        );
    }
}
