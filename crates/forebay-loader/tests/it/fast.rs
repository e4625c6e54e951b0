//! Fast images give the batches of their JPEGs, and damaged ones are handled by the `on_error` policy.

use crate::dataset::{self, Recipe};

use forebay_image::{
    FastCoding, FastEncoder, Limits, RgbImage, TrainTransform, Transform, encode_jpeg,
};
use forebay_loader::{Loader, OnError, Options, Shuffle, Stats};

const RECORDS: u64 = 24;
const BATCH: u64 = 6;

fn jpeg(i: u64) -> Vec<u8> {
    let (width, height) = (70 + i as u32, 90 + (i * 7 % 50) as u32);
    let data = (0..width * height * 3)
        .map(|at| ((at / 3 % width) * 2 + at / 3 / width + (at % 3) * 40 + i as u32) as u8)
        .collect();
    let picture = RgbImage {
        width,
        height,
        data,
    };
    encode_jpeg(&picture, 90, false).unwrap()
}

fn fast(i: u64, coding: FastCoding) -> Vec<u8> {
    let encoded = FastEncoder::default().encode(&jpeg(i), coding, &Limits::default());
    encoded.expect("a fast image")
}

fn is_damaged(i: u64) -> bool {
    i % 5 == 2
}

/// Returns a fast image that is truncated, has another header checksum, or has a tile length that is too large.
fn damaged(i: u64) -> Vec<u8> {
    let mut bytes = fast(i, FastCoding::Coded);
    match i % 3 {
        0 => bytes.truncate(bytes.len() - 5),
        1 => bytes[28] ^= 1,
        _ => bytes[24] ^= 1,
    }
    bytes
}

type Seen = (Vec<u8>, Vec<i64>, Vec<u8>);

fn epoch(recipe: &Recipe, on_error: OnError) -> (Vec<Seen>, Stats) {
    let (_directory, split) = dataset::split(recipe);
    let mut options = Options::new(BATCH, Transform::Train(TrainTransform::new(32)));
    (options.threads, options.on_error) = (2, on_error);
    // The other shuffles depend on the size of records, which differs here.
    options.shuffle = Shuffle::NONE;
    let mut loader = Loader::new(split, options).unwrap();
    let batches = std::iter::from_fn(|| loader.next_batch().unwrap())
        .map(|batch| (batch.payload.to_vec(), batch.labels, batch.flags))
        .collect();
    (batches, loader.stats())
}

fn recipe(image: fn(u64) -> Option<Vec<u8>>) -> Recipe {
    Recipe {
        records: RECORDS,
        image,
        ..Recipe::default()
    }
}

#[test]
fn fast_images_give_the_same_batches_and_are_counted() {
    let (base, stats) = epoch(&recipe(|i| Some(jpeg(i))), OnError::Raise);
    assert_eq!(base.len() as u64, RECORDS / BATCH);
    assert_eq!(stats.fast_images, 0);
    let half = |i: u64| match i % 2 {
        0 => Some(jpeg(i)),
        _ => Some(fast(i, FastCoding::Raw)),
    };
    let (found, stats) = epoch(&recipe(half), OnError::Raise);
    assert!(found == base);
    // The loader decodes ahead of the returned batches, in the same order.
    assert!(stats.images >= RECORDS && stats.fast_images.abs_diff(stats.images / 2) <= 2);
    let (found, stats) = epoch(
        &recipe(|i| Some(fast(i, FastCoding::Coded))),
        OnError::Raise,
    );
    assert!(found == base);
    assert_eq!(stats.fast_images, stats.images);
}

#[test]
fn damaged_fast_images_fail_alone() {
    let image = |i: u64| match is_damaged(i) {
        true => Some(damaged(i)),
        false => Some(fast(i, FastCoding::Coded)),
    };
    let (base, _) = epoch(&recipe(|i| Some(jpeg(i))), OnError::Raise);
    let pixels = 32 * 32 * 3;
    for on_error in [OnError::Skip, OnError::Zero] {
        let (found, stats) = epoch(&recipe(image), on_error);
        assert!(stats.failed >= 5, "{stats:?}");
        for part in ["FAST", "record"] {
            let has = |what: &String| what.contains(part);
            assert!(stats.failures.iter().all(has), "{:?}", stats.failures);
        }
        for (number, (found, base)) in found.iter().zip(&base).enumerate() {
            for i in 0..BATCH as usize {
                let [ours, theirs] = [found, base].map(|seen| &seen.0[i * pixels..][..pixels]);
                if !is_damaged(number as u64 * BATCH + i as u64) {
                    assert!(ours == theirs && found.1[i] == base.1[i] && found.2[i] == 0);
                    continue;
                }
                assert_ne!(found.2[i], 0);
                if on_error == OnError::Zero {
                    assert!(found.1[i] == -1 && ours.iter().all(|&byte| byte == 0));
                } else {
                    let next = (i + 1..BATCH as usize)
                        .chain(0..i)
                        .find(|&j| !is_damaged(number as u64 * BATCH + j as u64));
                    assert!(*ours == base.0[next.unwrap() * pixels..][..pixels]);
                }
            }
        }
    }
    let (_directory, split) = dataset::split(&recipe(image));
    let mut options = Options::new(BATCH, Transform::Train(TrainTransform::new(32)));
    options.shuffle = Shuffle::NONE;
    let mut loader = Loader::new(split, options).unwrap();
    let error = loader.next_batch().unwrap_err().to_string();
    assert!(
        error.contains("record 2") && error.contains("FAST"),
        "{error}"
    );
}
