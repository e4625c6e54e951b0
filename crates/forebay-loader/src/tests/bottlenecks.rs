//! The detected bottleneck is correct: storage, decoding and the trainer are slowed down in turn,
//! and the estimated throughput of the other stages matches the simulated one.

use std::sync::{Arc, Condvar, Mutex};
use std::time::Duration;

use super::dataset::Recipe;
use super::{Gate, gated, hold, options};
use crate::{Bound, Loader, Stats};

/// Other processes may use the cores of this machine, which would be reported as another bottleneck.
fn without_neighbors(mut stats: Stats) -> Stats {
    stats.decode_cpu_s = 0.0;
    stats
}

/// Checks that the activities of each thread add up to the wall time.
fn assert_accounted(stats: &Stats) {
    let spent = |stage: crate::StageStats| stage.busy_s + stage.starved_s + stage.blocked_s;
    let threads = |stage: crate::StageStats| stage.threads as f64 * stats.wall_s;
    let near = |found: f64, expected: f64| (found - expected).abs() <= 0.05 * expected + 0.02;
    assert!(near(spent(stats.fetch), threads(stats.fetch)), "{stats:?}");
    let decode = spent(stats.decode) + stats.transform.busy_s;
    assert!(near(decode, threads(stats.decode)), "{stats:?}");
    assert!(near(spent(stats.trainer), stats.wall_s), "{stats:?}");
}

#[test]
fn slow_storage_is_found() {
    let gate = Arc::new(Gate {
        delay: Duration::from_millis(4),
        ..Gate::default()
    });
    let mut options = options();
    options.readers = 1;
    let (_directory, mut loader) = gated(&Recipe::default(), options, &gate);
    while loader.next_batch().unwrap().is_some() {}
    let stats = loader.stats();
    let bottleneck = stats.bottleneck();
    assert_eq!(bottleneck.bound, Bound::Storage, "{bottleneck}");
    assert_accounted(&stats);
}

#[test]
fn slow_decoding_is_found() {
    // Larger images, one decode thread, and a trainer that does nothing.
    let recipe = Recipe {
        image: |i| {
            let pixels: Vec<u8> = (0..300 * 300 * 3u32)
                .map(|at| (at.wrapping_mul(i as u32 + 77) >> 7) as u8)
                .collect();
            Some(forebay_image::encode_png(&pixels, 300, 300))
        },
        ..Recipe::default()
    };
    let mut options = options();
    options.threads = 1;
    let (_directory, mut loader) = gated(&recipe, options, &Arc::default());
    loader.next_batch().unwrap();
    let begun = loader.stats();
    while loader.next_batch().unwrap().is_some() {}
    let stats = loader.stats();
    let decoding = without_neighbors(stats.since(&begun));
    let bottleneck = decoding.bottleneck();
    assert_eq!(bottleneck.bound, Bound::Decode, "{bottleneck}");
    assert_accounted(&stats);
}

#[test]
fn a_slow_trainer_is_found() {
    let (_directory, mut loader) = gated(&Recipe::default(), options(), &Arc::default());
    let (never, condition) = (Mutex::new(()), Condvar::new());
    loader.next_batch().unwrap();
    let begun = loader.stats();
    while loader.next_batch().unwrap().is_some() {
        // A training step.
        let _step = condition
            .wait_timeout(never.lock().unwrap(), Duration::from_millis(20))
            .unwrap();
    }
    let stats = loader.stats();
    let bottleneck = stats.since(&begun).bottleneck();
    assert_eq!(bottleneck.bound, Bound::Trainer, "{bottleneck}");
    assert_accounted(&stats);
}

fn milliseconds(time: u64) -> Duration {
    Duration::from_millis(time)
}

/// A loader with one decode thread, so that the number of cores does not matter, and four readers.
fn throttled(gate: &Arc<Gate>) -> (tempfile::TempDir, Loader) {
    let mut options = options();
    (options.threads, options.readers) = (1, 4);
    gated(&Recipe::default(), options, gate)
}

/// Checks for equality within a factor of two, because machines may be busy.
fn assert_near(found: Option<f64>, expected: f64, stats: &Stats) {
    let found = found.unwrap_or(0.0);
    let right = found > expected / 2.0 && found < expected * 2.0;
    assert!(
        right,
        "{found} is not near {expected}: {} {stats:?}",
        stats.bottleneck()
    );
}

fn seconds(held: &Mutex<Duration>) -> f64 {
    held.lock().unwrap().as_secs_f64()
}

/// A disk has a fixed throughput: it delivers no more to four waiting readers than
/// to one.
#[test]
fn storage_headroom_of_a_disk_ignores_waiting_readers() {
    let gate = Arc::new(Gate {
        delay: milliseconds(3),
        serial: Some(Mutex::default()),
        decode_delay: milliseconds(5),
        ..Gate::default()
    });
    let (_directory, mut loader) = throttled(&gate);
    while loader.next_batch().unwrap().is_some() {}
    let stats = without_neighbors(loader.stats());
    let bottleneck = stats.bottleneck();
    assert_eq!(bottleneck.bound, Bound::Decode, "{bottleneck}");
    let expected = stats.wall_s / seconds(&gate.read_held);
    assert_near(bottleneck.storage_headroom, expected, &stats);
    assert!(
        bottleneck.to_string().contains("storage could give"),
        "{bottleneck}"
    );
}

/// Over a network each read has its latency, and four concurrent reads take no longer than one.
#[test]
fn storage_headroom_of_a_network_counts_all_readers() {
    let gate = Arc::new(Gate {
        delay: milliseconds(20),
        decode_delay: milliseconds(5),
        ..Gate::default()
    });
    let (_directory, mut loader) = throttled(&gate);
    while loader.next_batch().unwrap().is_some() {}
    let stats = without_neighbors(loader.stats());
    let bottleneck = stats.bottleneck();
    assert_eq!(bottleneck.bound, Bound::Decode, "{bottleneck}");
    let expected = 4.0 * stats.wall_s / seconds(&gate.read_held);
    assert_near(bottleneck.storage_headroom, expected, &stats);
}

#[test]
fn decode_headroom_is_found_with_slow_storage() {
    let gate = Arc::new(Gate {
        delay: milliseconds(20),
        serial: Some(Mutex::default()),
        decode_delay: milliseconds(1),
        ..Gate::default()
    });
    let (_directory, mut loader) = throttled(&gate);
    while loader.next_batch().unwrap().is_some() {}
    let stats = without_neighbors(loader.stats());
    let bottleneck = stats.bottleneck();
    assert_eq!(bottleneck.bound, Bound::Storage, "{bottleneck}");
    let expected = stats.wall_s / seconds(&gate.decode_held);
    assert_near(Some(bottleneck.decode_headroom), expected, &stats);
}

#[test]
fn both_headrooms_are_found_with_a_slow_trainer() {
    let gate = Arc::new(Gate {
        delay: milliseconds(4),
        serial: Some(Mutex::default()),
        decode_delay: milliseconds(1),
        ..Gate::default()
    });
    let (_directory, mut loader) = throttled(&gate);
    // The start, in which the trainer waits for the first batch, takes longer on a busy machine.
    loader.next_batch().unwrap();
    let (begun, read, decoded) = (
        loader.stats(),
        seconds(&gate.read_held),
        seconds(&gate.decode_held),
    );
    while loader.next_batch().unwrap().is_some() {
        // A training step.
        hold(milliseconds(40), &Mutex::default());
    }
    let stats = without_neighbors(loader.stats().since(&begun));
    let bottleneck = stats.bottleneck();
    assert_eq!(bottleneck.bound, Bound::Trainer, "{bottleneck}");
    let decode = stats.wall_s / (seconds(&gate.decode_held) - decoded);
    assert_near(Some(bottleneck.decode_headroom), decode, &stats);
    let storage = stats.wall_s / (seconds(&gate.read_held) - read);
    assert_near(bottleneck.storage_headroom, storage, &stats);
}
