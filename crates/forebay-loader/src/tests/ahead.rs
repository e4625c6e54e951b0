//! Announcement of upcoming reads to the source.

use std::sync::Arc;
use std::time::Instant;

use super::dataset::Recipe;
use super::{Gate, SOON, gated, options};
use crate::Shuffle;

/// During the first read, the following reads are announced in order, each once.
#[test]
fn upcoming_reads_are_announced_to_the_source() {
    for shuffle in [options().shuffle, Shuffle::NONE, Shuffle::FULL] {
        let gate = Arc::new(Gate::default());
        gate.close(0..100);
        let mut options = options();
        options.shuffle = shuffle;
        options.readers = 1;
        let (_directory, mut loader) = gated(&Recipe::default(), options, &gate);
        let begun = Instant::now();
        while gate.announced.lock().unwrap().len() < 8 {
            assert!(begun.elapsed() < SOON, "nothing was announced");
            std::thread::yield_now();
        }
        let announced = gate.announced.lock().unwrap().clone();
        assert_eq!(announced.len(), 8, "not everything at once");
        gate.open();
        while loader.next_batch().unwrap().is_some() {}
        let read = gate.read.lock().unwrap().clone();
        assert_eq!(read[1..9], announced[..], "{shuffle:?}");
        let announced = gate.announced.lock().unwrap().clone();
        let known = announced
            .iter()
            .filter(|piece| read.contains(piece))
            .count();
        assert!(
            known + 8 >= announced.len(),
            "{shuffle:?}: {announced:?}, {read:?}"
        );
    }
}
