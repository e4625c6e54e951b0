//! Memory stays within its budget, whichever part is slow.

use std::sync::Arc;

use forebay_shard::{Codec, ShardFormat};

use super::dataset::Recipe;
use super::{BATCH_BYTES, Gate, gated, options, plan, until};
use crate::Shuffle;

/// More than the size of any record here, including its frame.
const RECORD_BYTES: u64 = 2000;

/// The batches of the next epoch are prepared before the current one ends.
#[test]
fn prefetch_continues_into_the_next_epoch() {
    let (_directory, mut loader) = gated(&Recipe::default(), options(), &Arc::default());
    for _ in 0..loader.batches_per_epoch() {
        loader.next_batch().unwrap().unwrap();
    }
    // The loader makes batches that were not requested, of an epoch that has not begun.
    let stats = until(&loader, "read beyond the epoch", |stats| {
        stats.images >= (12 + 4) * 8
    });
    assert_eq!(stats.batches, 12);
    assert_eq!(loader.current_epoch(), 0);
    assert!(loader.next_batch().unwrap().is_none());
    assert_eq!(loader.next_batch().unwrap().unwrap().epoch, 1);
}

#[test]
fn a_stalled_trainer_stops_the_pipeline_within_its_budget() {
    let recipe = Recipe {
        records: 2000,
        ..Recipe::default()
    };
    for (shuffle, records_budget, single) in [
        (options().shuffle, 100_000, false),
        (options().shuffle, 8_000, true),
        (Shuffle::FULL, 20_000, true),
        (Shuffle::NONE, 100_000, false),
        (Shuffle::NONE, 1, true),
    ] {
        let mut options = options();
        options.shuffle = shuffle;
        options.batches_ahead = 3;
        options.memory_bytes = 3 * BATCH_BYTES + records_budget;
        let budget = options.memory_bytes;
        let (_directory, mut loader) = gated(&recipe, options, &Arc::default());
        let full = |stats: &crate::Stats| stats.images == 24;
        let stats = until(&loader, "three batches", full);
        assert_eq!(stats.single_reads, single, "{shuffle:?} {records_budget}");
        for _ in 0..40 {
            loader.next_batch().unwrap().unwrap();
        }
        let stats = until(&loader, "three batches more", |stats| {
            stats.images == 43 * 8
        });
        // One record may exceed a budget that is smaller than a record, and reused memory may be
        // slightly larger than the bytes read into it.
        let most = budget + RECORD_BYTES + records_budget / 8;
        assert!(stats.memory_peak_bytes <= most, "{shuffle:?}: {stats:?}");
        assert!(stats.memory_bytes >= 3 * BATCH_BYTES);
        // The planned memory covers the memory held, and is within the limit.
        let planned = loader.memory_bytes();
        assert!(planned <= budget, "{planned}");
        let slack = RECORD_BYTES + records_budget / 8;
        assert!(
            stats.memory_peak_bytes <= planned + slack,
            "{planned}: {stats:?}"
        );
        assert_eq!(stats.images, 43 * 8, "nothing beyond");
    }
}

#[test]
fn batches_ahead_are_made_across_the_end_of_an_epoch() {
    let (_directory, mut loader) = gated(&Recipe::default(), options(), &Arc::default());
    for _ in 0..loader.batches_per_epoch() {
        loader.next_batch().unwrap().unwrap();
    }
    assert_eq!((loader.current_epoch(), loader.position()), (0, 96));
    until(&loader, "four batches of the next epoch", |stats| {
        stats.images == 96 + 32
    });
    assert!(loader.next_batch().unwrap().is_none());
    assert_eq!(loader.next_batch().unwrap().unwrap().epoch, 1);
}

#[test]
fn no_more_than_an_epoch_and_a_half_is_read_ahead() {
    let formats = [
        (ShardFormat::TfRecord, Codec::NONE),
        (ShardFormat::Indexed, Codec::ZSTD),
    ];
    for (format, codec) in formats {
        let recipe = Recipe {
            records: 500,
            format,
            codec,
            ..Recipe::default()
        };
        for shuffle in [options().shuffle, Shuffle::NONE, Shuffle::FULL] {
            let mut options = options();
            options.shuffle = shuffle;
            options.batch_size = 10;
            let (_directory, mut loader) = gated(&recipe, options, &Arc::default());
            let bytes = loader.dataset_bytes();
            while loader.next_batch().unwrap().is_some() {}
            let read = loader.stats().bytes_read;
            // The loader reads ahead into the next epoch, and compressed blocks contain unwanted neighbors.
            assert!(read >= bytes, "{shuffle:?} {codec:?}: {read} of {bytes}");
            if codec == Codec::NONE {
                assert!(read <= bytes * 5 / 2, "{shuffle:?}: {read} of {bytes}");
            }
        }
    }
}

/// A slow read of one block does not delay the decoding of samples from others.
#[test]
fn a_slow_read_stalls_only_the_samples_that_need_it() {
    let gate = Arc::new(Gate::default());
    let mut options = options();
    options.batches_ahead = 5;
    let slow = plan(&options, 100).sample_at(3);
    gate.close(slow..slow + 1);
    let (_directory, mut loader) = gated(&Recipe::default(), options, &gate);
    let stats = until(&loader, "most of five batches", |stats| stats.images >= 30);
    assert!(stats.images < 40);
    gate.open();
    until(&loader, "all of five batches", |stats| stats.images == 40);
    assert!(loader.next_batch().unwrap().is_some());
}

/// Batches of encoded images vary in size: if they are larger than expected, fewer are prepared.
#[test]
fn encoded_images_stay_within_the_budget() {
    let recipe = Recipe {
        records: 600,
        // The first half of the records are five times as large as the others.
        image: |i| {
            let mut image = super::dataset::picture(i);
            image.resize(if i < 300 { 5000 } else { 1000 }, 0);
            Some(image)
        },
        ..Recipe::default()
    };
    let mut options = crate::Options::new(8, forebay_image::Transform::KeepEncoded);
    options.threads = 2;
    options.virtual_ranks = 4;
    options.shuffle = Shuffle::NONE;
    options.batches_ahead = 8;
    // Ten batches of about 24,500 bytes, and some 200,000 for records.
    options.memory_bytes = 450_000;
    let (_directory, mut loader) = gated(&recipe, options, &Arc::default());
    // Five batches of 40,000 bytes fit; eight do not.
    let stats = until(&loader, "five batches", |stats| stats.images >= 5 * 8);
    assert!(stats.images <= 6 * 8, "{stats:?}");
    let mut bytes = 0;
    while let Some(batch) = loader.next_batch().unwrap() {
        bytes += batch.payload.len();
    }
    assert_eq!(bytes, 300 * 6000);
    let stats = loader.stats();
    // Incomplete batches count with the average of 24,500; the two in progress may exceed it by
    // this much.
    let larger = 2 * (40_000 - 24_500);
    assert!(stats.memory_peak_bytes <= 450_000 + larger, "{stats:?}");
}
