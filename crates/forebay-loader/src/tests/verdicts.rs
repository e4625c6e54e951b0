//! The verdict is right: storage, decoding and the trainer are slowed down in turn.

use std::sync::{Arc, Condvar, Mutex};
use std::time::Duration;

use super::dataset::Recipe;
use super::{Gate, gated, options};
use crate::{Bound, Stats};

/// Wall, and what each thread did, agree.
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
    let verdict = stats.verdict();
    assert_eq!(verdict.bound, Bound::Storage, "{verdict}");
    assert_accounted(&stats);
}

#[test]
fn slow_decoding_is_found() {
    // Larger pictures, one thread, and a trainer that takes no time.
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
    let verdict = stats.since(&begun).verdict();
    assert_eq!(verdict.bound, Bound::Decode, "{verdict}");
    assert_accounted(&stats);
}

#[test]
fn a_slow_trainer_is_found() {
    let (_directory, mut loader) = gated(&Recipe::default(), options(), &Arc::default());
    let (never, condition) = (Mutex::new(()), Condvar::new());
    loader.next_batch().unwrap();
    let begun = loader.stats();
    while loader.next_batch().unwrap().is_some() {
        // A step of training.
        let _step = condition
            .wait_timeout(never.lock().unwrap(), Duration::from_millis(20))
            .unwrap();
    }
    let stats = loader.stats();
    let verdict = stats.since(&begun).verdict();
    assert_eq!(verdict.bound, Bound::Trainer, "{verdict}");
    assert_accounted(&stats);
}
