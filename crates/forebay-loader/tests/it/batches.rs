//! Batches contain the plan's samples, decoded, and are the same on every machine.

use crate::dataset;

use dataset::Recipe;
use forebay_batch::Batch;
use forebay_batch::digest;
use forebay_image::ops::{CenterCrop, RandomErasing, Resize, ResizeTo, TrivialAugmentWide};
use forebay_image::{
    BatchTransform, Compose, Decoder, Dtype, EvalTransform, Layout, Limits, Mixing, Op, SampleSeed,
    TrainTransform, Transform,
};
use forebay_loader::plan::{EpochPlan, PlanOptions};
use forebay_loader::{
    Error, LabelBase, Loader, OnError, Options, PageCache, Sampling, Shuffle, Weights,
};
use forebay_shard::example::RecordFeatures;
use forebay_shard::manifest::{ShardEntry, SplitEntry};
use forebay_shard::{Dataset, Manifest, ShardFormat, Split, image_and_label};

const SIDE: u32 = 10;

fn options(batch_size: u64) -> Options {
    let mut options = Options::new(batch_size, Transform::Train(TrainTransform::new(SIDE)));
    options.seed = 5;
    options.virtual_ranks = 12;
    options.threads = 2;
    options.shuffle = Shuffle::blocks(7, 2);
    options
}

/// All shuffles.
fn shuffles() -> Vec<Shuffle> {
    let sizes = options(1).shuffle;
    let sized = |name| match Shuffle::named(name).unwrap() {
        shuffle if shuffle.has_blocks() => {
            shuffle.with_blocks(sizes.block_records, sizes.window_blocks)
        }
        shuffle => shuffle,
    };
    Shuffle::names().map(sized).collect()
}

/// Everything in a batch that can be compared.
#[derive(Debug, Clone, PartialEq)]
struct Seen {
    epoch: u64,
    step: u64,
    position: u64,
    shape: [usize; 4],
    images: Vec<u8>,
    labels: Vec<i64>,
    samples: Vec<u64>,
    flags: Vec<u8>,
    digest: u64,
}

impl From<Batch> for Seen {
    fn from(batch: Batch) -> Self {
        batch.check().unwrap();
        Seen {
            epoch: batch.epoch,
            step: batch.step,
            position: batch.position,
            shape: batch.shape,
            images: batch.payload.to_vec(),
            labels: batch.labels,
            samples: batch.samples,
            flags: batch.flags,
            digest: batch.digest,
        }
    }
}

/// Takes the batches up to the end of the epoch.
fn epoch(loader: &mut Loader) -> Vec<Seen> {
    std::iter::from_fn(|| loader.next_batch().unwrap().map(Seen::from)).collect()
}

fn epochs(split: &Split, options: &Options, count: usize) -> Vec<Seen> {
    let mut loader = Loader::new(split.clone(), options.clone()).unwrap();
    (0..count).flat_map(|_| epoch(&mut loader)).collect()
}

/// The expected epoch, from the plan, the records and the transform alone.
fn expected(split: &Split, options: &Options, epoch: u64) -> Vec<(Vec<u8>, i64, u64)> {
    let plan = EpochPlan::new(&PlanOptions {
        records: split.len(),
        seed: options.seed,
        epoch,
        virtual_ranks: options.virtual_ranks,
        shuffle: options.shuffle,
        run_records: 1,
    })
    .unwrap();
    let mut decoder = Decoder::new(Limits::default());
    let mut record = Vec::new();
    let mut sample = |sample: u64| {
        split.read(sample, &mut record).unwrap();
        let (image, label) = image_and_label(&record).unwrap();
        let mut pixels = vec![0; options.transform.output_values() * options.output.dtype.bytes()];
        let seed = SampleSeed {
            seed: options.seed,
            epoch,
            sample,
            occurrence: 0,
        };
        options
            .transform
            .apply(&mut decoder, image, seed, &options.output, &mut pixels)
            .unwrap();
        (pixels, label.unwrap() - split.label_base(), sample)
    };
    (0..split.len())
        .map(|p| sample(plan.sample_at(p)))
        .collect()
}

#[test]
fn batches_are_the_plan_decoded() {
    let shuffles = shuffles();
    let transforms = [
        Transform::Train(TrainTransform::new(SIDE)),
        Transform::Eval(EvalTransform::new(SIDE + 2, SIDE)),
        Transform::List(
            Compose::new(vec![
                Op::Resize(Resize {
                    size: ResizeTo::Short(SIDE + 2),
                }),
                Op::CenterCrop(CenterCrop { size: (SIDE, SIDE) }),
                Op::TrivialAugmentWide(TrivialAugmentWide {
                    num_magnitude_bins: 31,
                    ..Default::default()
                }),
                Op::RandomErasing(RandomErasing::new()),
            ])
            .unwrap(),
        ),
    ];
    let layouts = [Layout::Nhwc, Layout::Nchw, Layout::Nhwc];
    for (format, codec) in dataset::formats() {
        let (_directory, split) = dataset::split(&Recipe {
            format,
            codec,
            ..Recipe::default()
        });
        for shuffle in shuffles.iter().copied() {
            for (transform, layout) in transforms.iter().zip(layouts) {
                let mut options = options(16);
                (options.shuffle, options.transform) = (shuffle, transform.clone());
                (options.output.layout, options.drop_last) = (layout, false);
                if layout == Layout::Nchw {
                    options.output.dtype = Dtype::Bfloat16;
                }
                let found = epochs(&split, &options, 2);
                assert_eq!(found.len(), 14);
                for (e, batches) in found.chunks(7).enumerate() {
                    let expected = expected(&split, &options, e as u64);
                    for (step, batch) in batches.iter().enumerate() {
                        assert_eq!((batch.epoch, batch.step), (e as u64, step as u64));
                        assert_eq!(batch.position, step as u64 * 16);
                        for (i, pixels) in batch.images.chunks(options.sample_bytes()).enumerate() {
                            let p = step * 16 + i;
                            let found = (pixels.to_vec(), batch.labels[i], batch.samples[i]);
                            assert_eq!(found, expected[p % 100], "position {p}");
                            assert_eq!(batch.flags[i], u8::from(p >= 100));
                        }
                    }
                }
            }
        }
    }
}

#[test]
fn neither_threads_nor_memory_change_a_byte() {
    let (_directory, split) = dataset::split(&Recipe::default());
    let base = epochs(&split, &options(16), 2);
    assert_eq!(base.len(), 12, "the rest of 100 is dropped");
    for (threads, readers, ahead, memory) in [
        (1, 1, 2, 0),
        (2, 4, 3, 0),
        (8, 2, 0, 0),
        (3, 3, 2, 2 * 16 * 300 + 1),
        (1, 1, 2, 2 * 16 * 300 + 3000),
        (4, 8, 9, 1 << 30),
    ] {
        let mut options = options(16);
        (options.threads, options.readers) = (threads, readers);
        (options.batches_ahead, options.memory_bytes) = (ahead, memory);
        let found = epochs(&split, &options, 2);
        assert!(
            found == base,
            "{threads} threads, {readers} readers, {ahead} ahead, {memory} bytes"
        );
    }
    let mut options = options(16);
    options.page_cache = PageCache::Drop;
    assert!(epochs(&split, &options, 2) == base);
}

#[test]
fn ranks_of_any_world_share_the_same_global_batches() {
    let (_directory, split) = dataset::split(&Recipe {
        records: 130,
        ..Recipe::default()
    });
    for shuffle in shuffles() {
        let mut whole = options(24);
        (whole.shuffle, whole.drop_last) = (shuffle, false);
        let base = epochs(&split, &whole, 2);
        assert_eq!(base.len(), 12);
        for world in [2, 3, 4, 6, 12] {
            let mut digests = vec![0; base.len()];
            for rank in 0..world {
                let mut options = whole.clone();
                options.batch_size = 24 / world;
                (options.rank, options.world_size) = (rank, world);
                let mine = epochs(&split, &options, 2);
                assert_eq!(mine.len(), base.len(), "equal steps on every rank");
                for ((mine, base), digest) in mine.iter().zip(&base).zip(&mut digests) {
                    assert_eq!((mine.epoch, mine.step), (base.epoch, base.step));
                    *digest = digest::fold(*digest, mine.digest);
                    for i in 0..mine.samples.len() {
                        let at = rank as usize + i * world as usize;
                        assert_eq!(mine.samples[i], base.samples[at]);
                        assert_eq!(mine.labels[i], base.labels[at]);
                        assert_eq!(mine.flags[i], base.flags[at]);
                        let (a, b) = (i * 300, at * 300);
                        assert!(mine.images[a..a + 300] == base.images[b..b + 300]);
                    }
                }
            }
            assert!(base.iter().map(|batch| batch.digest).eq(digests));
        }
    }
}

#[test]
fn resuming_anywhere_gives_the_rest() {
    let (_directory, split) = dataset::split(&Recipe::default());
    let mut loader = Loader::new(split.clone(), options(8)).unwrap();
    let base = [epoch(&mut loader), epoch(&mut loader)];
    let all: Vec<u64> = base[0]
        .iter()
        .flat_map(|batch| batch.samples.clone())
        .collect();
    for done in 0..=12 {
        // Resumes from a saved position.
        let position = done as u64 * 8;
        let mut again = Loader::resume(split.clone(), options(8), (0, position), None).unwrap();
        assert_eq!(again.batches_left(), 12 - done as u64);
        assert_eq!(epoch(&mut again), base[0][done..]);
        assert_eq!((again.current_epoch(), again.position()), (1, 0));
        assert_eq!(epoch(&mut again), base[1]);
        // With another world size and batch size: the same samples, in the same global order.
        let mut order = vec![0; 100];
        for rank in 0..3 {
            let mut options = options(5);
            (options.rank, options.world_size, options.drop_last) = (rank, 3, false);
            let mut part = Loader::resume(split.clone(), options, (0, position), None).unwrap();
            for batch in epoch(&mut part) {
                for (i, &sample) in batch.samples.iter().enumerate() {
                    if batch.flags[i] == 0 {
                        order[(batch.position + rank + i as u64 * 3) as usize] = sample;
                    }
                }
            }
        }
        assert_eq!(order[position as usize..96], all[position as usize..]);
    }
}

#[test]
fn seeking_goes_anywhere_at_any_time() {
    let (_directory, split) = dataset::split(&Recipe::default());
    let base: Vec<Vec<Seen>> = {
        let mut loader = Loader::new(split.clone(), options(8)).unwrap();
        (0..3).map(|_| epoch(&mut loader)).collect()
    };
    let mut loader = Loader::new(split, options(8)).unwrap();
    for k in 0..60u64 {
        let (e, step) = (k * 7 % 3, k * 5 % 12);
        loader.seek(e, step * 8).unwrap();
        for batch in &base[e as usize][step as usize..12.min(step as usize + 1 + k as usize % 3)] {
            assert_eq!(loader.position(), batch.position);
            assert_eq!(&Seen::from(loader.next_batch().unwrap().unwrap()), batch);
        }
    }
    loader.seek(2, 100).unwrap();
    assert!(loader.next_batch().unwrap().is_none());
    assert_eq!(loader.current_epoch(), 3);
    assert!(matches!(loader.seek(0, 101), Err(Error::Position { .. })));
}

#[test]
fn small_and_odd_datasets_work() {
    for records in [1, 2, 5, 13] {
        let (_directory, split) = dataset::split(&Recipe {
            records,
            shards: 2,
            ..Recipe::default()
        });
        // More virtual ranks than records, and batches larger than the dataset.
        let mut options = Options::new(32, Transform::Train(TrainTransform::new(SIDE)));
        options.drop_last = false;
        options.world_size = 2;
        for rank in 0..2 {
            options.rank = rank;
            let found = epochs(&split, &options, 3);
            assert_eq!(found.len(), 3);
            let real = (0..64).filter(|p| p % 2 == rank && *p < records).count();
            for batch in found {
                assert_eq!(batch.flags.iter().filter(|&&flag| flag == 0).count(), real);
            }
        }
        options.drop_last = true;
        let error = Loader::new(split, options).unwrap_err();
        assert!(matches!(error, Error::NoBatch { .. }), "{error}");
    }
}

#[test]
fn an_order_may_stay_while_crops_differ() {
    let (_directory, split) = dataset::split(&Recipe::default());
    let order = |batches: &[Seen]| {
        batches
            .iter()
            .flat_map(|b| b.samples.clone())
            .collect::<Vec<u64>>()
    };
    let mut options = Options::new(10, Transform::Train(TrainTransform::new(SIDE)));
    let first = Loader::new(split.clone(), options.clone())
        .map(|mut it| epoch(&mut it))
        .unwrap();
    options.shuffle.reshuffle = false;
    let mut loader = Loader::new(split, options).unwrap();
    assert!(loader.options().shuffle.to_string().ends_with(":fixed"));
    let epochs = [epoch(&mut loader), epoch(&mut loader)];
    assert_eq!(epochs[0], first, "epoch 0 is as ever");
    assert_eq!(order(&epochs[1]), order(&first));
    assert!(
        epochs[1]
            .iter()
            .zip(&first)
            .any(|(a, b)| a.images != b.images)
    );
    loader.seek(7, 0).unwrap();
    assert_eq!(order(&epoch(&mut loader)), order(&first));
}

#[test]
fn a_resolved_spec_gives_the_same_batches() {
    let (_directory, split) = dataset::split(&Recipe::default());
    let mut options = Options::new(10, Transform::Train(TrainTransform::new(SIDE)));
    options.seed = 77;
    let mut loader = Loader::new(split.clone(), options).unwrap();
    let spec = loader.schema();
    assert_eq!(spec.virtual_ranks, Some(64));
    let again = Options::from_request(&spec, 1 << 20).unwrap();
    assert_eq!(&again, loader.options());
    assert_eq!(epoch(&mut loader), epochs(&split, &again, 1));
}

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

/// Epochs with selection, draws and repetition: their content depends on the options alone.
#[test]
fn epochs_of_selected_samples_are_as_reproducible_as_others() {
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
            for rank in 0..3 {
                let mut part = whole.clone();
                (part.rank, part.world_size, part.batch_size) = (rank, 3, 8);
                for (mine, base) in epochs(&split, &part, 2).iter().zip(&base) {
                    for i in 0..8 {
                        let at = rank as usize + i * 3;
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
        // Shards with many records per block, which are read at once.
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
                        assert_eq!((found.labels[i], found.samples[i]), (-1, base.samples[i]));
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
fn mixing_is_done_to_the_batches_that_would_have_been() {
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

/// The sizes of records matter only without a manifest entry.
#[test]
fn blocks_are_those_of_the_manifest() {
    let directory = tempfile::tempdir().unwrap();
    let recipe = Recipe {
        records: 80,
        ..Recipe::default()
    };
    dataset::write(directory.path(), &recipe);
    let blocks = |virtual_ranks| {
        let mut options = options(4);
        (options.shuffle, options.virtual_ranks) = (Shuffle::default(), virtual_ranks);
        let loader = Loader::new(dataset::open(directory.path()), options).unwrap();
        assert_eq!(loader.options().shuffle.name(), "blocks");
        loader.options().shuffle.block_records
    };
    assert_eq!((blocks(1), blocks(4)), (32, 8));
    let mut manifest = forebay_shard::Manifest::load(directory.path()).unwrap();
    manifest.order = Some(forebay_shard::manifest::EpochOrder {
        block_records: [("train".to_owned(), 16)].into(),
    });
    let json = manifest.to_json().unwrap();
    std::fs::write(directory.path().join("forebay.json"), json).unwrap();
    assert_eq!((blocks(1), blocks(4)), (16, 8));
}

/// TFRecords of TensorFlow Datasets, whose features for images and labels have other names than
/// those of `forebay pack`.
#[test]
fn batches_take_the_features_that_the_manifest_names() {
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
