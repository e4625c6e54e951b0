//! Batches of selected, failing and mixed samples, and of records whose features have other names.

use forebay_batch::FLAG_PADDING;

use super::*;

#[test]
fn labels_below_the_first_class_are_damaged_samples() {
    // TensorFlow's background class in a dataset that counts from 1, and a record without a label.
    let (_directory, split) = dataset::split(&Recipe {
        records: 16,
        shards: 1,
        label: |i| match i {
            7 => 0,
            9 => -1,
            i => i as i64 + 1,
        },
        ..Recipe::default()
    });
    let first = |base: LabelBase, on_error: OnError| {
        let mut options = options(16);
        options.shuffle = Shuffle::NONE;
        (options.label_base, options.on_error) = (base, on_error);
        let mut loader = Loader::new(split.clone(), options).unwrap();
        loader.next_batch()
    };
    for base in [LabelBase::Zero, LabelBase::One] {
        let error = first(base, OnError::Raise).unwrap_err().to_string();
        for part in ["label 0 is below 1", "record 7", "label_base \"stored\""] {
            assert!(error.contains(part), "{error}");
        }
        let batch = first(base, OnError::Zero).unwrap().unwrap();
        let failed: Vec<usize> = (0..16).filter(|&i| batch.flags[i] != 0).collect();
        assert_eq!((failed.as_slice(), batch.labels[7]), (&[7][..], -1));
        assert_eq!(batch.labels[9], -1);
        assert_eq!(batch.labels[8], 8 + base.first().unwrap());
        let batch = first(base, OnError::Skip).unwrap().unwrap();
        assert_eq!(batch.labels[7], batch.labels[8]);
    }
    let stored = first(LabelBase::Stored, OnError::Raise).unwrap().unwrap();
    assert_eq!(stored.labels[6..10], [7, 0, 9, -1]);
}

/// Epochs with selection, draws and repetition depend on the options alone.
#[test]
fn epochs_of_selected_samples_are_reproducible() {
    let (_directory, split) = dataset::split(&Recipe::default());
    let changes: [fn(&mut Sampling); 6] = [
        |s| s.limit = 61,
        |s| s.labels = vec![2, 3, 9],
        |s| s.indices = (0..100).filter(|i| i % 7 < 3).collect(),
        |s| s.repeats = 3,
        |s| {
            s.weights = Weights::Balanced;
            s.indices = (0..90).filter(|i| i % 11 != 0).collect();
            s.num_samples = 150;
        },
        |s| {
            s.weights = Weights::ByLabel(vec![(1, 9.0), (2, 0.0)]);
            s.repeats = 2;
        },
    ];
    let lengths = [61, 30, 44, 300, 150, 200];
    for (change, length) in changes.into_iter().zip(lengths) {
        for shuffle in shuffles() {
            let mut whole = options(24);
            (whole.shuffle, whole.drop_last) = (shuffle, false);
            change(&mut whole.sampling);
            let mut loader = Loader::new(split.clone(), whole.clone()).unwrap();
            assert_eq!(loader.epoch_samples(), length);
            let base = [epoch(&mut loader), epoch(&mut loader)].concat();
            assert_eq!(base.len() as u64, 2 * length.div_ceil(24));
            let (first, second) = base.split_at(base.len() / 2);
            let all = |batches: &[Seen]| -> Vec<u64> {
                let mut all: Vec<u64> = batches
                    .iter()
                    .flat_map(|batch| batch.samples.iter().zip(&batch.flags))
                    .filter_map(|(&sample, &flag)| (flag == 0).then_some(sample))
                    .collect();
                all.sort_unstable();
                all
            };
            assert_eq!(all(first).len() as u64, length);
            match whole.sampling.weights {
                Weights::None => assert_eq!(all(first), all(second)),
                _ => assert_ne!(all(first), all(second), "each epoch draws anew"),
            }
            // Random transforms differ between the repetitions of a sample.
            if whole.sampling.repeats == 3 {
                let mut looks: Vec<(u64, &[u8])> = first
                    .iter()
                    .flat_map(|batch| batch.samples.iter().copied().zip(batch.images.chunks(300)))
                    .take(300)
                    .collect();
                looks.sort_unstable();
                looks.dedup();
                assert!(
                    looks.len() > 260,
                    "{} different pictures of 300",
                    looks.len()
                );
            }
            // Another machine, several ranks, and a resumed run.
            let mut small = whole.clone();
            (small.threads, small.memory_bytes) = (1, 2 * 24 * 300 + 3000);
            assert!(
                epochs(&split, &small, 2) == base,
                "memory changed {small:?}"
            );
            for (rank, world) in (0..3)
                .map(|rank| (rank, 3))
                .chain((0..8).map(|rank| (rank, 8)))
            {
                let mut part = whole.clone();
                (part.rank, part.world_size, part.batch_size) = (rank, world, 24 / world);
                let loader = Loader::new(split.clone(), part.clone()).unwrap();
                let batches = loader.options().batches(loader.epoch_samples()).unwrap();
                for (mine, base) in epochs(&split, &part, 2).iter().zip(&base) {
                    let positions = batches.assignment().positions(mine.epoch, mine.position);
                    for (i, position) in positions.into_iter().enumerate() {
                        let at = (position - mine.position) as usize;
                        assert_eq!(mine.samples[i], base.samples[at]);
                        assert_eq!(mine.flags[i], base.flags[at]);
                        let (a, b) = (i * 300, at * 300);
                        assert!(mine.images[a..a + 300] == base.images[b..b + 300]);
                    }
                }
            }
            let spec = loader.schema();
            let again = Options::from_request(&spec, 1 << 20).unwrap();
            let mut again = Loader::resume(split.clone(), again, (1, 24), None).unwrap();
            assert_eq!(again.schema(), spec);
            assert_eq!(epoch(&mut again), second[1..]);
            assert!(loader.seek(0, length).is_ok() && loader.seek(0, length + 1).is_err());
        }
    }
}

#[test]
fn samples_that_fail_are_replaced_and_marked() {
    let bad = |i: u64| i % 9 == 4;
    let (_directory, split) = dataset::split(&Recipe {
        image: |i| match i % 18 {
            4 => None,
            13 => Some(b"GIF89a no picture".to_vec()),
            _ => Some(dataset::picture(i)),
        },
        // Shards with many records per block, so that several records are read together.
        block_bytes: 4000,
        ..Recipe::default()
    });
    let good = dataset::split(&Recipe::default());
    let mut asked = options(16);
    asked.drop_last = false;
    let base = epochs(&good.1, &asked, 1);
    for on_error in [OnError::Skip, OnError::Zero] {
        for threads in [1, 4] {
            let mut options = asked.clone();
            (options.on_error, options.threads) = (on_error, threads);
            let mut loader = Loader::new(split.clone(), options).unwrap();
            let found = epoch(&mut loader);
            assert_eq!(found.len(), base.len());
            let mut failed = 0;
            for (found, base) in found.iter().zip(&base) {
                for i in 0..16 {
                    let pixels = |seen: &Seen, i: usize| seen.images[i * 300..][..300].to_vec();
                    if !bad(base.samples[i]) {
                        assert_eq!(pixels(found, i), pixels(base, i));
                        assert_eq!(found.flags[i], base.flags[i]);
                        assert_eq!(found.samples[i], base.samples[i]);
                        continue;
                    }
                    failed += 1;
                    assert_eq!(found.flags[i], base.flags[i] | 2);
                    if on_error == OnError::Zero {
                        let is_padding = base.flags[i] & FLAG_PADDING != 0;
                        let label = if is_padding { PADDING_LABEL } else { -1 };
                        assert_eq!(
                            (found.labels[i], found.samples[i]),
                            (label, base.samples[i])
                        );
                        assert!(pixels(found, i).iter().all(|&byte| byte == 0));
                        continue;
                    }
                    let next = (i + 1..16)
                        .chain(0..i)
                        .find(|&j| !bad(base.samples[j]))
                        .unwrap();
                    assert_eq!(found.samples[i], base.samples[next]);
                    assert_eq!(found.labels[i], base.labels[next]);
                    assert_eq!(pixels(found, i), pixels(base, next));
                }
            }
            let stats = loader.stats();
            assert!(
                failed >= 11 && stats.failed >= failed,
                "{failed} {}",
                stats.failed
            );
            assert!(stats.failures.len() <= 16);
            for part in ["train-0000", "record", "class"] {
                assert!(
                    stats.failures.iter().all(|what| what.contains(part)),
                    "{stats:?}"
                );
            }
        }
    }
}

/// A damaged record fails alone, although it is read with its neighbors.
#[test]
fn a_damaged_record_does_not_fail_its_neighbours() {
    for format in [ShardFormat::TfRecord, ShardFormat::Indexed] {
        let (directory, split) = dataset::split(&Recipe {
            format,
            shards: 1,
            block_bytes: 1,
            ..Recipe::default()
        });
        let shard = split.shards()[0].path().to_owned();
        let range = split.shards()[0].byte_range(31..32).unwrap();
        let mut bytes = std::fs::read(&shard).unwrap();
        bytes[(range.start as usize + range.end as usize) / 2] ^= 0x20;
        std::fs::write(&shard, bytes).unwrap();
        let mut options = options(20);
        options.shuffle = Shuffle::NONE;
        let split = dataset::open(directory.path());
        options.on_error = OnError::Zero;
        let mut loader = Loader::new(split, options).unwrap();
        for batch in epoch(&mut loader) {
            for (sample, flag) in batch.samples.iter().zip(&batch.flags) {
                assert_eq!(*flag, if *sample == 31 { 2 } else { 0 }, "{sample}");
            }
        }
        let stats = loader.stats();
        assert!(stats.failures[0].contains("class1/31.png"), "{stats:?}");
    }
}

#[test]
fn mixing_is_applied_to_the_same_batches() {
    let (_directory, split) = dataset::split(&Recipe::default());
    let mut options = options(16);
    options.drop_last = false;
    let plain = epochs(&split, &options, 2);
    let choices = vec![
        (Mixing::Mixup { alpha: 0.4 }, 1.0),
        (Mixing::CutMix { alpha: 1.0 }, 1.0),
    ];
    let transform = BatchTransform::new(choices).unwrap();
    options.batch_transform = Some(transform.clone());
    for threads in [1, 4] {
        options.threads = threads;
        let mut loader = Loader::new(split.clone(), options.clone()).unwrap();
        let mut found = Vec::new();
        for _ in 0..2 {
            found.extend(std::iter::from_fn(|| loader.next_batch().unwrap()));
        }
        assert_eq!(found.len(), plain.len());
        for (mixed, plain) in found.iter().zip(&plain) {
            let members: Vec<usize> = (0..16).filter(|&i| plain.flags[i] == 0).collect();
            let size = options.transform.output_size();
            let mix = transform.draw(options.seed, plain.epoch, plain.position, size);
            let mut images = plain.images.clone();
            mix.apply(&options.output, &members, &mut images);
            assert!(mixed.payload[..] == images);
            let partners = mixed.mixed.as_ref().unwrap();
            for i in 0..16 {
                let member = members.iter().position(|&member| member == i);
                let (partner, lam) = match member {
                    Some(at) => {
                        let last = members.len() - 1;
                        (members[at.checked_sub(1).unwrap_or(last)], mix.lam())
                    }
                    None => (i, 1.0),
                };
                assert_eq!(partners.labels[i], plain.labels[partner]);
                assert_eq!(partners.lam[i], lam);
            }
            assert_eq!(mixed.labels, plain.labels);
        }
    }
}

/// TFRecords of TensorFlow Datasets name their image and label features differently from
/// `forebay pack`.
#[test]
fn batches_use_the_features_that_the_manifest_names() {
    let golden = std::path::Path::new(env!("CARGO_MANIFEST_DIR"))
        .join("../../testdata/tfrecord-foreign/tfds");
    let dir = tempfile::tempdir().unwrap();
    let shards = (0..2).map(|number| {
        let name = format!("pictures-train.tfrecord-{number:05}-of-00002");
        let bytes = std::fs::read(golden.join(&name)).unwrap();
        std::fs::write(dir.path().join(&name), &bytes).unwrap();
        ShardEntry {
            name,
            records: 3,
            bytes: bytes.len() as u64,
            crc32c: forebay_shard::checksum::crc32c(&bytes),
            blake3: None,
        }
    });
    let split = SplitEntry::new("train", shards.collect());
    let mut manifest = Manifest::new(ShardFormat::TfRecord, 0, vec![split]);
    let open = |manifest: &Manifest| {
        std::fs::write(dir.path().join("forebay.json"), manifest.to_json().unwrap()).unwrap();
        Dataset::open(dir.path()).unwrap().split("train").unwrap()
    };
    let mut loader = Loader::new(open(&manifest), options(2)).unwrap();
    let error = loader.next_batch().unwrap_err().to_string();
    assert!(error.contains("image/encoded is missing"), "{error}");
    manifest.record_features = RecordFeatures {
        image: "image".to_owned(),
        label: "label".to_owned(),
        ..RecordFeatures::default()
    };
    let batches = epochs(&open(&manifest), &options(2), 1);
    let mut labels: Vec<i64> = batches
        .iter()
        .flat_map(|batch| batch.labels.clone())
        .collect();
    labels.sort_unstable();
    assert_eq!(labels, [0, 0, 1, 1, 2, 2]);
}
