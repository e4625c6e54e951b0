//! Loaders without an explicit number of threads share the cores of the process.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use super::dataset::Recipe;
use super::{Crowd, Gate, gated, options};
use crate::FairShare;
use crate::options::usable_cores;

/// Two loaders have a thread per core each, but decode no more samples concurrently than there are
/// cores.
#[test]
fn two_loaders_decode_no_more_concurrently_than_one() {
    let decoding = Crowd {
        patience: 20,
        ..Crowd::default()
    };
    let gate = Arc::new(Gate {
        decoding,
        ..Gate::default()
    });
    let mut options = options();
    options.threads = 0;
    let (_first_directory, mut first) = gated(&Recipe::default(), options.clone(), &gate);
    let (_second_directory, mut second) = gated(&Recipe::default(), options, &gate);
    for loader in [&first, &second] {
        assert_eq!(loader.stats().decode.threads, usable_cores());
    }
    for _ in 0..20 {
        // `None` at the end of an epoch.
        first.next_batch().unwrap();
        second.next_batch().unwrap();
    }
    let most = gate.decoding.most.load(Ordering::SeqCst);
    assert!((1..=usable_cores()).contains(&most), "{most} at once");
}

/// A loader with eight times the weight of another busy one decodes more, even on a busy machine.
#[test]
fn shares_of_the_cores_follow_weights() {
    let decoding = Crowd {
        work: 1_000_000,
        ..Crowd::default()
    };
    let gate = Arc::new(Gate {
        decoding,
        ..Gate::default()
    });
    let with = |weight| {
        let mut options = options();
        options.threads = 0;
        // More samples in progress than there are cores.
        options.batches_ahead = usable_cores().max(8);
        options.share = Some(FairShare::new(weight));
        gated(&Recipe::default(), options, &gate)
    };
    let (_light_directory, mut light) = with(1.0);
    let (_heavy_directory, mut heavy) = with(8.0);
    let over = AtomicBool::new(false);
    let (heavy, light) = std::thread::scope(|scope| {
        let light = scope.spawn(|| {
            while !over.load(Ordering::SeqCst) {
                light.next_batch().unwrap();
            }
            light.stats().images
        });
        // Counts images beyond those that were decoded before the other loader started.
        let begun = heavy.stats().images;
        while heavy.stats().images < begun + 400 {
            heavy.next_batch().unwrap();
        }
        over.store(true, Ordering::SeqCst);
        (heavy.stats().images - begun, light.join().unwrap())
    });
    assert!(
        light * 2 < heavy,
        "{light} of weight 1 beside {heavy} of weight 8"
    );
}
