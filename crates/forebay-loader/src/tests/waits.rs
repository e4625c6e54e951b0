//! No wait of a trainer or a thread is unbounded, not even at the end.

use std::sync::Arc;
use std::time::{Duration, Instant};

use super::dataset::Recipe;
use super::{Gate, SOON, gated, options, until};
use crate::Error;

#[test]
fn a_timeout_names_what_is_waited_for() {
    let gate = Arc::new(Gate::default());
    gate.close(0..100);
    let (_directory, mut loader) = gated(&Recipe::default(), options(), &gate);
    let error = loader
        .next_batch_within(Duration::from_millis(20))
        .unwrap_err();
    assert!(matches!(error, Error::Timeout { .. }));
    let text = error.to_string();
    for part in [
        "no batch after 0.0 s",
        "epoch 0",
        "thread fb-read-",
        "train-0000",
    ] {
        assert!(text.contains(part), "{part} in {text}");
    }
    // A timeout loses no batch.
    gate.open();
    assert_eq!(loader.next_batch().unwrap().unwrap().step, 0);
    let batch = loader.next_batch_within(SOON).unwrap().unwrap();
    assert_eq!(batch.step, 1);
}

#[test]
fn an_interrupt_from_another_thread_ends_the_wait() {
    let gate = Arc::new(Gate::default());
    gate.close(0..100);
    let (_directory, mut loader) = gated(&Recipe::default(), options(), &gate);
    let monitor = loader.monitor();
    std::thread::scope(|scope| {
        let waiting = scope.spawn(move || {
            let first = loader.next_batch().unwrap_err();
            let second = loader.next_batch().unwrap_err();
            assert!(matches!(first, Error::Interrupted) && matches!(second, Error::Interrupted));
            loader
        });
        monitor.interrupt();
        let loader = waiting.join().unwrap();
        assert_eq!(loader.position(), 0);
        gate.open();
        drop(loader);
    });
    assert_eq!(
        monitor.stats().memory_bytes,
        0,
        "a monitor holds no batches"
    );
}

#[test]
fn dropping_at_any_moment_is_quick() {
    let recipe = Recipe::default();
    for taken in 0..30 {
        let mut options = options();
        options.threads = 1 + taken % 4;
        let (_directory, mut loader) = gated(&recipe, options, &Arc::default());
        for _ in 0..taken {
            loader.next_batch().unwrap();
        }
        let begun = Instant::now();
        drop(loader);
        assert!(begun.elapsed() < Duration::from_secs(1));
    }
}

/// A blocked read cannot be interrupted. Dropping the loader leaves its thread behind.
#[test]
fn a_hanging_read_does_not_block_dropping() {
    let gate = Arc::new(Gate::default());
    gate.close(0..100);
    let (_directory, loader) = gated(&Recipe::default(), options(), &gate);
    let monitor = loader.monitor();
    let begun = Instant::now();
    drop(loader);
    assert!(begun.elapsed() < Duration::from_secs(10));
    drop(monitor);
    gate.open();
}

#[test]
fn seeking_works_while_reads_hang() {
    let gate = Arc::new(Gate::default());
    gate.close(0..100);
    let mut options = options();
    options.readers = 8;
    let (_directory, mut loader) = gated(&Recipe::default(), options, &gate);
    until(&loader, "reading", |stats| stats.memory_bytes > 0);
    loader.seek(3, 16).unwrap();
    gate.open();
    let batch = loader.next_batch().unwrap().unwrap();
    assert_eq!((batch.epoch, batch.step), (3, 2));
    let stats = until(&loader, "quiet", |stats| stats.images >= 40);
    assert!(stats.memory_peak_bytes < 1 << 20);
}
