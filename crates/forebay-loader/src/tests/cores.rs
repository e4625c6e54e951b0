//! Loaders that were left the number of threads share the cores of the process.

use std::sync::Arc;
use std::sync::atomic::Ordering;

use super::dataset::Recipe;
use super::{Crowd, Gate, gated, options};
use crate::options::usable_cores;

/// Two loaders have a thread for each core each, and decode no more samples at once than there are cores.
#[test]
fn two_loaders_decode_no_more_at_once_than_one() {
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
        // None at the end of an epoch.
        first.next_batch().unwrap();
        second.next_batch().unwrap();
    }
    let most = gate.decoding.most.load(Ordering::SeqCst);
    assert!((1..=usable_cores()).contains(&most), "{most} at once");
}
