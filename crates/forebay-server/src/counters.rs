//! Converts the counters of a loader to and from messages.

use std::time::Duration;

use forebay_loader::{LearnedStats, MachineCpu, Network, ReadLevel, StageStats, Stats};
use forebay_shard::{CacheHits, StorageStats};
use forebay_wire::wire;

/// Maximum number of read levels from a peer: more concurrent reads than any source makes.
const MOST_LEVELS: usize = 1024;

/// Converts a loader's counters for its client. The sender adds those of sent batches.
#[must_use]
pub fn to_wire(stats: &Stats) -> wire::Stats {
    let stage = |stage: StageStats| wire::Stage {
        name: stage.name.to_owned(),
        busy_s: stage.busy_s,
        starved_s: stage.starved_s,
        blocked_s: stage.blocked_s,
        threads: u32::try_from(stage.threads).unwrap_or(u32::MAX),
    };
    let level = |level: &ReadLevel| wire::ReadLevel {
        seconds: level.seconds,
        bytes: level.bytes,
    };
    wire::Stats {
        stages: stats.stages().into_iter().map(stage).collect(),
        images: stats.images,
        decoded: stats.images,
        fast_images: stats.fast_images,
        batches: stats.batches,
        bytes_read: stats.bytes_read,
        payload_bytes: 0,
        elapsed_s: stats.wall_s,
        failed: stats.failed,
        failures: stats.failures.clone(),
        reads: stats.reads.iter().map(level).collect(),
        cores: u32::try_from(stats.cores).unwrap_or(u32::MAX),
        traffic: stats.traffic.as_ref().map(traffic_to_wire),
        decode_cpu_s: stats.decode_cpu_s,
        process_cpu_s: stats.process_cpu_s,
        decode_delay_s: stats.decode_delay_s,
        machine_busy_s: stats.machine.busy_s,
        machine_stolen_s: stats.machine.stolen_s,
        machine_throttled_s: stats.machine.throttled_s,
        learned: stats.learned.map(|learned| wire::LearnedPoints {
            samples: learned.samples,
            images: learned.images,
            bytes: learned.bytes,
            full: learned.is_full,
        }),
    }
}

/// Computes the counters of a stream from those of its server, and from how long its client waited for batches (`starved`)
/// since the stream was opened (`elapsed`). `over_network` is false for batches in shared memory. The server's numbers are
/// untrusted: they may be negative, infinite or NaN.
#[must_use]
pub fn from_wire(
    server: &wire::Stats,
    starved: Duration,
    elapsed: Duration,
    over_network: bool,
) -> Stats {
    let stage = |name: &'static str| {
        let found = server.stages.iter().find(|stage| stage.name == name);
        found.map_or(
            StageStats {
                name,
                ..StageStats::default()
            },
            |found| StageStats {
                name,
                threads: usize::try_from(found.threads).unwrap_or(usize::MAX),
                busy_s: found.busy_s,
                starved_s: found.starved_s,
                blocked_s: found.blocked_s,
            },
        )
    };
    let send = stage("send");
    let all = send.busy_s + send.starved_s + send.blocked_s;
    let part = |some: f64| if all > 0.0 { some / all } else { 0.0 };
    let starved_s = starved.as_secs_f64();
    let mut stats = Stats::default();
    stats.wall_s = server.elapsed_s;
    stats.fetch = stage("fetch");
    stats.decode = stage("decode");
    stats.transform = stage("transform");
    stats.trainer = StageStats {
        name: "trainer",
        threads: 1,
        busy_s: (elapsed.as_secs_f64() - starved_s).max(0.0),
        starved_s,
        blocked_s: 0.0,
    };
    stats.images = server.images;
    stats.fast_images = server.fast_images;
    stats.batches = server.batches;
    stats.bytes_read = server.bytes_read;
    stats.failed = server.failed;
    stats.failures = server.failures.clone();
    stats.network = over_network.then(|| Network {
        sending: part(send.busy_s),
        waiting: part(send.starved_s),
        bytes_per_s: if server.elapsed_s > 0.0 {
            server.payload_bytes as f64 / server.elapsed_s
        } else {
            0.0
        },
    });
    stats.traffic = server.traffic.as_ref().map(traffic_from_wire);
    stats.reads = levels(&server.reads);
    stats.cores = usize::try_from(server.cores).unwrap_or(usize::MAX);
    stats.decode_cpu_s = server.decode_cpu_s;
    stats.process_cpu_s = server.process_cpu_s;
    stats.decode_delay_s = server.decode_delay_s;
    stats.machine = MachineCpu {
        busy_s: server.machine_busy_s,
        stolen_s: server.machine_stolen_s,
        throttled_s: server.machine_throttled_s,
    };
    stats.learned = server.learned.map(|learned| LearnedStats {
        samples: learned.samples,
        images: learned.images,
        bytes: learned.bytes,
        is_full: learned.full,
    });
    stats
}

fn levels(levels: &[wire::ReadLevel]) -> Vec<ReadLevel> {
    let number = |number: f64| match number.is_finite() {
        true => number.max(0.0),
        false => 0.0,
    };
    let levels = levels.iter().take(MOST_LEVELS).map(|level| ReadLevel {
        seconds: number(level.seconds),
        bytes: number(level.bytes),
    });
    levels.collect()
}

fn traffic_to_wire(traffic: &StorageStats) -> wire::Traffic {
    let cache = traffic.cache.unwrap_or_default();
    wire::Traffic {
        fetched_bytes: traffic.fetched_bytes,
        retries: traffic.retries,
        hedges: traffic.hedges,
        requests: traffic.requests,
        region_nanodollars: traffic.region_nanodollars,
        internet_nanodollars: traffic.internet_nanodollars,
        prices_as_of: traffic.prices_as_of,
        has_cache: traffic.cache.is_some(),
        cache_hits: cache.hits,
        cache_misses: cache.misses,
        cache_hit_bytes: cache.hit_bytes,
        cache_miss_bytes: cache.miss_bytes,
    }
}

fn traffic_from_wire(traffic: &wire::Traffic) -> StorageStats {
    StorageStats {
        fetched_bytes: traffic.fetched_bytes,
        retries: traffic.retries,
        hedges: traffic.hedges,
        requests: traffic.requests,
        region_nanodollars: traffic.region_nanodollars,
        internet_nanodollars: traffic.internet_nanodollars,
        prices_as_of: traffic.prices_as_of,
        cache: traffic.has_cache.then_some(CacheHits {
            hits: traffic.cache_hits,
            misses: traffic.cache_misses,
            hit_bytes: traffic.cache_hit_bytes,
            miss_bytes: traffic.cache_miss_bytes,
        }),
    }
}

/// Adds the storage throughput of another stream, by number of concurrent reads.
pub fn add_levels(one: &mut Vec<wire::ReadLevel>, other: &[wire::ReadLevel]) {
    for (at, level) in other.iter().enumerate() {
        match one.get_mut(at) {
            Some(known) => {
                known.seconds += level.seconds;
                known.bytes += level.bytes;
            }
            None => one.push(*level),
        }
    }
}

/// Subtracts an earlier reading.
pub fn take_levels(now: &mut [wire::ReadLevel], before: &[wire::ReadLevel]) {
    for (level, known) in now.iter_mut().zip(before) {
        level.seconds = (level.seconds - known.seconds).max(0.0);
        level.bytes = (level.bytes - known.bytes).max(0.0);
    }
}

#[cfg(test)]
mod tests {
    use forebay_loader::Bound;

    use super::*;

    fn server(decode: [f64; 3], send: [f64; 3]) -> wire::Stats {
        let stage = |name: &str, threads, [busy_s, starved_s, blocked_s]: [f64; 3]| wire::Stage {
            name: name.to_owned(),
            busy_s,
            starved_s,
            blocked_s,
            threads,
        };
        wire::Stats {
            stages: vec![
                stage("fetch", 4, [4.0, 0.0, 36.0]),
                stage("decode", 2, decode),
                stage("transform", 2, [1.0, 0.0, 0.0]),
                stage("trainer", 1, [1.0, 9.0, 0.0]),
                stage("send", 1, send),
            ],
            images: 1000,
            batches: 10,
            payload_bytes: 150_000_000,
            elapsed_s: 10.0,
            ..wire::Stats::default()
        }
    }

    #[test]
    fn the_bottleneck_is_found_on_either_side() {
        let seconds = Duration::from_secs;
        let judge = |server: &wire::Stats, starved| {
            from_wire(server, seconds(starved), seconds(10), true).bottleneck()
        };
        let slow_network = server([4.0, 0.0, 15.0], [8.0, 1.0, 1.0]);
        let bottleneck = judge(&slow_network, 7);
        assert_eq!(bottleneck.bound, Bound::Network);
        let text = bottleneck.to_string();
        assert!(
            text.contains("15.0 MB/s") && text.contains("4.0x"),
            "{text}"
        );
        assert_eq!(judge(&slow_network, 0).bound, Bound::Trainer);
        // Over shared memory there is no network, whatever the counters look like.
        for starved in 0..10 {
            let shared = from_wire(&slow_network, seconds(starved), seconds(10), false);
            assert_ne!(shared.bottleneck().bound, Bound::Network);
        }
        let slow_decoding = server([18.5, 0.2, 0.3], [1.0, 9.0, 0.0]);
        assert_eq!(judge(&slow_decoding, 7).bound, Bound::Decode);
        let slow_storage = server([2.0, 17.0, 0.0], [1.0, 9.0, 0.0]);
        assert_eq!(judge(&slow_storage, 7).bound, Bound::Storage);
        // Invalid numbers from a server cause no panic.
        let odd = server([f64::NAN, f64::INFINITY, -1.0], [f64::NAN; 3]);
        let _ = judge(&odd, 5).to_string();
        let _ = judge(&wire::Stats::default(), 5).to_string();
    }

    #[test]
    fn counters_round_trip_and_invalid_ones_are_tolerated() {
        let reads = vec![
            ReadLevel {
                seconds: 1.5,
                bytes: 300.0
            };
            2
        ];
        let mut stats = Stats::default();
        stats.reads = reads;
        (stats.images, stats.fast_images, stats.cores) = (7, 5, 3);
        stats.decode_delay_s = 4.0;
        stats.learned = Some(LearnedStats {
            samples: 4,
            images: 3,
            bytes: 900,
            is_full: true,
        });
        stats.machine = MachineCpu {
            busy_s: 3.0,
            stolen_s: 2.0,
            throttled_s: 1.0,
        };
        let back = from_wire(&to_wire(&stats), Duration::ZERO, Duration::ZERO, true);
        assert_eq!((back.machine, back.decode_delay_s), (stats.machine, 4.0));
        assert_eq!((&back.reads, back.images, back.cores), (&stats.reads, 7, 3));
        assert_eq!((back.fast_images, back.learned), (5, stats.learned));
        let odd = [f64::NAN, f64::INFINITY, -1.0].map(|odd| wire::ReadLevel {
            seconds: odd,
            bytes: odd,
        });
        assert_eq!(levels(&odd), [ReadLevel::default(); 3]);
        assert_eq!(levels(&vec![odd[0]; 5000]).len(), MOST_LEVELS);
    }
}
