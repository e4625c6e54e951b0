//! Seek points that are learned in the first epoch: batches stay the same, memory stays within the limit.

use crate::dataset;

use std::sync::Arc;

use dataset::Recipe;
use forebay_image::{
    FastCoding, FastEncoder, Limits, TrainTransform, Transform, build_seek_points, encode_png,
};
use forebay_loader::{LearnedSeekPoints, LearnedStats, Loader, Mix, OnError, Options, Shuffle};
use forebay_shard::{ShardFormat, Split};

const RECORDS: u64 = 60;
const EPOCHS: usize = 3;
const PROGRESSIVE: &[u8] = include_bytes!("../../../../testdata/formats/420-progressive.jpg");

/// A JPEG of many rows of blocks, different for each record and dataset.
fn jpeg(i: u64) -> Vec<u8> {
    dataset::jpeg(40 + i as u32, 300 + (i * 7 % 50) as u32, i as u32)
}

fn recipe(label: fn(u64) -> i64) -> Recipe {
    Recipe {
        records: RECORDS,
        image: |i| Some(jpeg(i)),
        // Points are shared by fingerprint, so each test needs a dataset of its own.
        label,
        ..Recipe::default()
    }
}

fn options(limit: u64, threads: usize) -> Options {
    let mut options = Options::new(6, Transform::Train(TrainTransform::new(32)));
    options.threads = threads;
    // The other shuffles depend on the size of records, which grows with stored points.
    options.shuffle = Shuffle::NONE;
    options.learn_seek_points = limit;
    options
}

/// Returns the pixels of all epochs, and what was learned.
fn epochs(split: &Split, options: Options) -> (Vec<Vec<u8>>, Option<LearnedStats>) {
    let mut loader = Loader::new(split.clone(), options).unwrap();
    let mut pixels = Vec::new();
    for _ in 0..EPOCHS {
        while let Some(batch) = loader.next_batch().unwrap() {
            pixels.push(batch.payload.to_vec());
        }
    }
    (pixels, loader.stats().learned)
}

#[test]
fn batches_are_the_same_in_every_state() {
    let (_plain, split) = dataset::split(&recipe(|i| i as i64 % 10 + 1));
    let (_stored, with_points) = dataset::split(&Recipe {
        seek_points: |_, image| build_seek_points(image),
        ..recipe(|i| i as i64 % 10 + 1)
    });
    let (_tfrecord, tfrecord) = dataset::split(&Recipe {
        format: ShardFormat::TfRecord,
        ..recipe(|i| i as i64 % 10 + 1)
    });
    let (expected, learned) = epochs(&split, options(0, 1));
    assert_eq!((expected.len(), learned), (30, None));
    let limit = 1 << 20;
    for threads in [1, 4] {
        let (pixels, learned) = epochs(&split, options(limit, threads));
        assert!(pixels == expected, "{threads} threads");
        let learned = learned.unwrap();
        assert_eq!((learned.images, learned.is_full), (RECORDS, false));
        assert!(
            learned.samples >= 2 * RECORDS && learned.bytes <= limit,
            "{learned:?}"
        );
    }
    // All points take 19,488 bytes.
    let tiny = 12_000;
    let (pixels, learned) = epochs(&tfrecord, options(tiny, 2));
    assert!(pixels == expected);
    let learned = learned.unwrap();
    assert!(learned.is_full && learned.images < RECORDS, "{learned:?}");
    assert!(learned.images > 0 && learned.bytes <= tiny, "{learned:?}");
    let (pixels, learned) = epochs(&with_points, options(limit, 2));
    assert!(pixels == expected);
    assert_eq!(learned, Some(LearnedStats::default()));
}

#[test]
fn loaders_of_a_split_share_what_they_learn() {
    let (directory, split) = dataset::split(&recipe(|i| i as i64 % 9 + 1));
    let limit = 1 << 20;
    let (first, _) = epochs(&split, options(limit, 2));
    // Without an owner, the points are gone.
    let begin = |split: &Split| Loader::new(split.clone(), options(limit, 2)).unwrap();
    assert_eq!(begin(&split).stats().learned.unwrap().images, 0);
    let kept = LearnedSeekPoints::of(&split);
    epochs(&split, options(limit, 2));
    // The same dataset, opened again.
    let again = dataset::open(directory.path());
    assert!(Arc::ptr_eq(&kept, &LearnedSeekPoints::of(&again)));
    assert_eq!(begin(&again).stats().learned.unwrap().images, RECORDS);
    let (pixels, learned) = epochs(&again, options(limit, 2));
    assert!(pixels == first);
    assert!(learned.unwrap().samples >= 3 * RECORDS);
    // One that learns nothing uses nothing.
    assert_eq!(epochs(&again, options(0, 2)), (first, None));
    // A mix has record numbers of its own.
    let mix = Mix::new(vec![again.clone(), again]);
    let loader = Loader::mixed(&mix, options(limit, 2)).unwrap();
    assert!(loader.stats().learned.unwrap().images <= 2 * RECORDS);
    let (_other, other) = dataset::split(&recipe(|i| i as i64 % 8 + 1));
    assert!(!Arc::ptr_eq(&kept, &LearnedSeekPoints::of(&other)));
}

/// JPEGs, damaged JPEGs, PNGs, fast images, and progressive JPEGs.
fn mixed(i: u64) -> Option<Vec<u8>> {
    let mut image = jpeg(i);
    match i % 5 {
        0 => {}
        1 => {
            let at = image.len() / 2;
            image[at..at + 40].fill(0xff);
        }
        2 => image = encode_png(&vec![9; 3 * 40 * 300], 40, 300),
        3 => {
            let limits = Limits::default();
            let fast = FastEncoder::default().encode(&image, FastCoding::Coded, &limits);
            image = fast.unwrap();
        }
        _ => image = PROGRESSIVE.to_vec(),
    }
    Some(image)
}

#[test]
fn only_plain_jpegs_are_learned_and_damage_is_reported_each_time() {
    let (_directory, split) = dataset::split(&Recipe {
        image: mixed,
        ..recipe(|i| i as i64 % 7 + 1)
    });
    let run = |limit| {
        let mut options = options(limit, 2);
        options.on_error = OnError::Zero;
        let mut loader = Loader::new(split.clone(), options).unwrap();
        let mut batches = Vec::new();
        for _ in 0..EPOCHS {
            while let Some(batch) = loader.next_batch().unwrap() {
                batches.push((batch.payload.to_vec(), batch.labels, batch.flags));
            }
        }
        (batches, loader.stats())
    };
    let (without, _) = run(0);
    let (with, stats) = run(1 << 20);
    assert!(with == without);
    assert!(stats.failed > 0);
    let images = stats.learned.unwrap().images;
    // Crops that end above the damage teach something, too.
    assert!(
        (RECORDS / 5..=RECORDS * 2 / 5).contains(&images),
        "{images}"
    );
}
