//! Batches contain the samples of the plan, decoded, and are the same on every machine.

use crate::dataset;

use dataset::Recipe;
use forebay_batch::{Batch, PADDING_LABEL, digest};
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

mod samples;

const SIDE: u32 = 10;

fn options(batch_size: u64) -> Options {
    let mut options = Options::new(batch_size, Transform::Train(TrainTransform::new(SIDE)));
    options.seed = 5;
    options.virtual_ranks = 12;
    options.threads = 2;
    options.shuffle = Shuffle::blocks(7, 2);
    options
}

/// Returns all shuffles.
fn shuffles() -> Vec<Shuffle> {
    let sizes = options(1).shuffle;
    let sized = |name| {
        let mut shuffle = Shuffle::named(name).unwrap();
        if shuffle.has_blocks() {
            shuffle.block_records = sizes.block_records;
            shuffle.window_blocks = sizes.window_blocks;
        }
        shuffle
    };
    Shuffle::names().map(sized).collect()
}

/// The comparable content of a batch.
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

/// Computes the expected epoch from the plan, the records and the transform alone.
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
                            let mut wanted = expected[p % 100].clone();
                            if p >= 100 {
                                wanted.1 = PADDING_LABEL;
                            }
                            assert_eq!(found, wanted, "position {p}");
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
        // 12 virtual ranks: those that divide them, and others.
        for world in [2, 3, 4, 6, 12, 8, 24] {
            let mut digests = vec![0; base.len()];
            for rank in 0..world {
                let mut options = whole.clone();
                options.batch_size = 24 / world;
                (options.rank, options.world_size) = (rank, world);
                let mine = epochs(&split, &options, 2);
                assert_eq!(mine.len(), base.len(), "equal steps on every rank");
                let resolved = Loader::new(split.clone(), options)
                    .unwrap()
                    .options()
                    .clone();
                let batches = resolved.batches(130).unwrap();
                for ((mine, base), digest) in mine.iter().zip(&base).zip(&mut digests) {
                    assert_eq!((mine.epoch, mine.step), (base.epoch, base.step));
                    *digest = digest::fold(*digest, mine.digest);
                    let positions = batches.assignment().positions(mine.epoch, mine.position);
                    assert_eq!(mine.samples.len(), positions.len());
                    for (i, position) in positions.into_iter().enumerate() {
                        let at = (position - mine.position) as usize;
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
        for world in [3, 5, 7] {
            let mut order = vec![0; 100];
            for rank in 0..world {
                let mut options = options(5);
                (options.rank, options.world_size, options.drop_last) = (rank, world, false);
                let mut part = Loader::resume(split.clone(), options, (0, position), None).unwrap();
                let batches = part.options().batches(100).unwrap();
                for batch in epoch(&mut part) {
                    let positions = batches.assignment().positions(0, batch.position);
                    for (i, (&sample, position)) in batch.samples.iter().zip(positions).enumerate()
                    {
                        if batch.flags[i] == 0 {
                            order[position as usize] = sample;
                        }
                    }
                }
            }
            assert_eq!(order[position as usize..96], all[position as usize..]);
        }
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
                let ignored = batch.labels.iter().filter(|&&label| label == PADDING_LABEL);
                assert_eq!(ignored.count(), 32 - real);
            }
        }
        options.drop_last = true;
        let error = Loader::new(split, options).unwrap_err();
        assert!(matches!(error, Error::NoBatch { .. }), "{error}");
    }
}

#[test]
fn crops_differ_between_epochs_with_the_same_order() {
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

/// The block size follows the manifest; sizes of records matter only if it has no entry.
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
