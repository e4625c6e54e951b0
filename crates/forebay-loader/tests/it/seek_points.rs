//! Seek points in records are used, and never change a batch.

use crate::dataset;

use dataset::Recipe;
use forebay_image::{EvalTransform, TrainTransform, Transform, build_seek_points};
use forebay_loader::{Loader, Options, Shuffle};
use forebay_shard::checksum::crc32c;
use forebay_shard::{ExampleBuilder, image_record};

const RECORDS: u64 = 24;

/// A JPEG of several rows of blocks, different for each record.
fn jpeg(i: u64) -> Vec<u8> {
    dataset::jpeg(48 + i as u32, 40 + (i * 7 % 50) as u32, i as u32)
}

fn batches(recipe: &Recipe, transform: Transform) -> Vec<(Vec<u8>, Vec<i64>)> {
    let (_directory, split) = dataset::split(recipe);
    let mut options = Options::new(6, transform);
    options.threads = 2;
    // The other shuffles depend on the size of records, which grows with seek points.
    options.shuffle = Shuffle::NONE;
    let mut loader = Loader::new(split, options).unwrap();
    std::iter::from_fn(|| loader.next_batch().unwrap())
        .map(|batch| (batch.payload.to_vec(), batch.labels))
        .collect()
}

fn recipe(seek_points: fn(u64, &[u8]) -> Option<Vec<u8>>) -> Recipe {
    Recipe {
        records: RECORDS,
        image: |i| Some(jpeg(i)),
        seek_points,
        ..Recipe::default()
    }
}

/// Returns correct points, none, truncated ones, damaged ones, those of another image, or garbage.
fn of_all_kinds(i: u64, jpeg_of_i: &[u8]) -> Option<Vec<u8>> {
    let mut points = build_seek_points(jpeg_of_i).unwrap();
    match i % 6 {
        0 => {}
        1 => return None,
        2 => points.truncate(points.len() - i as usize),
        3 => points[i as usize] ^= 0x10,
        4 => points = build_seek_points(&jpeg(i + 1)).unwrap(),
        _ => points = b"no points at all".to_vec(),
    }
    Some(points)
}

#[test]
fn seek_points_of_any_kind_give_the_same_batches() {
    for transform in [
        Transform::Train(TrainTransform::new(32)),
        Transform::Eval(EvalTransform::new(36, 32)),
    ] {
        let without = batches(&recipe(|_, _| None), transform.clone());
        assert_eq!(without.len() as u64, RECORDS / 6);
        assert_eq!(batches(&recipe(of_all_kinds), transform.clone()), without);
    }
}

/// Returns points with a valid checksum but a wrong first predictor. If a decoder uses them, pixels change, which
/// proves their use.
fn forged(_: u64, jpeg: &[u8]) -> Option<Vec<u8>> {
    let mut points = build_seek_points(jpeg).unwrap();
    let end = points.len() - 4;
    // The last byte of the last point is the last component's predictor.
    points[end - 1] ^= 0x20;
    let checksum = crc32c(&points[..end]);
    points[end..].copy_from_slice(&checksum.to_le_bytes());
    Some(points)
}

#[test]
fn seek_points_are_used() {
    let transform = Transform::Eval(EvalTransform::new(32, 32));
    let without = batches(&recipe(|_, _| None), transform.clone());
    assert_ne!(batches(&recipe(forged), transform), without);
}

#[test]
fn a_feature_of_the_same_name_and_another_type_is_ignored() {
    let mut example = ExampleBuilder::new();
    example
        .add_bytes("image/encoded", b"image")
        .add_int64("image/seek_points", 7);
    let bytes = example.to_vec();
    let record = image_record(&bytes).unwrap();
    assert_eq!((record.image, record.seek_points), (&b"image"[..], None));
}
