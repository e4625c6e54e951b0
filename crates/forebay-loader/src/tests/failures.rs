//! Damage is reported in the order of the samples, after every good batch before it.

use std::os::unix::fs::FileExt;

use forebay_shard::ShardFormat;

use super::dataset::{self, Recipe, picture};
use super::{Gate, gated, options, plan};
use crate::{Error, Loader, Options};

/// Returns the position of a sample in epoch 0.
fn position_of(sample: u64, options: &Options) -> u64 {
    let plan = plan(options, 100);
    (0..100).find(|&p| plan.sample_at(p) == sample).unwrap()
}

/// Takes batches until an error; returns their number and the error. Later calls return the same
/// error.
fn run_into_error(loader: &mut Loader) -> (u64, Error) {
    let mut batches = 0;
    loop {
        match loader.next_batch() {
            Ok(Some(_)) => batches += 1,
            Ok(None) => panic!("the epoch ended"),
            Err(error) => {
                for _ in 0..3 {
                    let again = loader.next_batch().unwrap_err();
                    assert_eq!(again.to_string(), error.to_string());
                }
                return (batches, error);
            }
        }
    }
}

#[test]
fn a_bad_image_is_named_after_the_batches_before_it() {
    let (_directory, split) = dataset::split(&Recipe {
        image: |i| {
            let mut image = picture(i);
            if i == 57 {
                image.truncate(image.len() / 2);
            }
            Some(image)
        },
        ..Recipe::default()
    });
    for threads in [1, 2, 8] {
        let mut options = options();
        options.threads = threads;
        let position = position_of(57, &options);
        let mut loader = Loader::new(split.clone(), options).unwrap();
        let (batches, error) = run_into_error(&mut loader);
        assert_eq!(batches, position / 8);
        assert_eq!(loader.position(), batches * 8);
        let Error::Image { place, .. } = &error else {
            panic!("{error}");
        };
        assert_eq!((place.sample, place.record), (57, 57 - 33));
        assert_eq!(place.key.as_deref(), Some(&b"class7/57.png"[..]));
        let text = error.to_string();
        for part in [
            "train-00001-of-00003.fbs",
            "record 24",
            "at byte",
            "class7/57.png",
            "PNG",
        ] {
            assert!(text.contains(part), "{part} in {text}");
        }
        // A seek skips the damaged batch.
        loader.seek(0, (batches + 1) * 8).unwrap();
        assert!(loader.next_batch().unwrap().is_some());
    }
}

#[test]
fn the_first_of_several_bad_samples_is_reported() {
    let (_directory, split) = dataset::split(&Recipe {
        image: |i| (i % 3 != 0).then(|| picture(i)),
        ..Recipe::default()
    });
    let first = (0..100)
        .step_by(3)
        .min_by_key(|&i| position_of(i, &options()))
        .unwrap();
    for threads in [1, 2, 4, 8, 8, 8] {
        let mut options = options();
        options.threads = threads;
        let mut loader = Loader::new(split.clone(), options).unwrap();
        let (_, error) = run_into_error(&mut loader);
        let Error::Record { place, what } = &error else {
            panic!("{error}");
        };
        assert_eq!(place.sample, first);
        assert!(what.contains("not an Example"), "{error}");
    }
}

#[test]
fn a_damaged_record_is_found_by_its_checksum() {
    for format in [ShardFormat::TfRecord, ShardFormat::Indexed] {
        let (directory, split) = dataset::split(&Recipe {
            format,
            ..Recipe::default()
        });
        let shard = &split.shards()[1];
        let damaged = shard.byte_range(10..11).unwrap();
        let file = std::fs::File::options()
            .write(true)
            .open(shard.path())
            .unwrap();
        file.write_all_at(b"!", damaged.start + 40).unwrap();
        drop(file);
        let split = dataset::open(directory.path());
        let mut loader = Loader::new(split, options()).unwrap();
        let (batches, error) = run_into_error(&mut loader);
        // The read that contains the record detects the damage, at the latest for the batch of the record.
        assert!(batches <= position_of(43, &options()) / 8);
        let Error::Shard(source) = &error else {
            panic!("{error}");
        };
        let damage = source.corruption().unwrap();
        assert_eq!(damage.record, Some(10));
        assert_eq!(damage.offset, damaged.start);
        assert_eq!(damage.shard, shard.path());
    }
}

#[test]
fn a_vanished_shard_is_an_error_and_not_a_hang() {
    let (directory, split) = dataset::split(&Recipe::default());
    for shard in split.shards() {
        std::fs::File::options()
            .write(true)
            .open(shard.path())
            .unwrap()
            .set_len(100)
            .unwrap();
    }
    let mut loader = Loader::new(split, options()).unwrap();
    let (batches, error) = run_into_error(&mut loader);
    assert_eq!(batches, 0);
    assert!(error.to_string().contains("train-0000"), "{error}");
    drop(directory);
}

#[test]
fn a_panic_is_an_error_of_its_record() {
    let gate = Gate {
        broken: Some(57),
        ..Gate::default()
    };
    let (_directory, mut loader) = gated(&Recipe::default(), options(), &gate.into());
    let (batches, error) = run_into_error(&mut loader);
    assert!(batches <= position_of(57, &options()) / 8);
    assert!(error.to_string().contains("panicked"), "{error}");
}

#[test]
fn a_failed_read_is_reported_at_its_first_sample() {
    let (directory, split) = dataset::split(&Recipe::default());
    let shard = &split.shards()[0];
    let damaged = shard.byte_range(3..4).unwrap();
    let file = std::fs::File::options()
        .write(true)
        .open(shard.path())
        .unwrap();
    file.write_all_at(b"!", damaged.start + 40).unwrap();
    drop(file);
    let mut errors = Vec::new();
    for threads in [1, 2, 8] {
        let mut options = options();
        options.threads = threads;
        let mut loader = Loader::new(dataset::open(directory.path()), options).unwrap();
        let (batches, error) = run_into_error(&mut loader);
        errors.push((batches, error.to_string()));
    }
    assert!(
        errors.windows(2).all(|pair| pair[0] == pair[1]),
        "{errors:?}"
    );
}
