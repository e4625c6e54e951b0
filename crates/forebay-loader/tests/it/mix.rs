//! Several datasets read as one: samples, frequencies, and labels.

use crate::dataset;

use std::path::Path;

use dataset::Recipe;
use forebay_batch::Batch;
use forebay_image::{EvalTransform, Transform};
use forebay_loader::{
    LabelBase, Loader, Mix, MixLabels, Options, PageCache, Sampling, Shuffle, Weights,
};
use forebay_shard::manifest::{ClassEntry, Manifest};
use forebay_shard::{Codec, ShardFormat, Split};

const SIDE: u32 = 10;

fn options(batch_size: u64) -> Options {
    let mut options = Options::new(batch_size, Transform::Eval(EvalTransform::new(SIDE, SIDE)));
    options.seed = 3;
    options.virtual_ranks = 12;
    options.threads = 2;
    options.drop_last = false;
    options.shuffle = Shuffle::blocks(5, 2);
    options
}

/// Two datasets of 100 and 37 records, in different formats.
struct Pair {
    _directories: [tempfile::TempDir; 2],
    splits: Vec<Split>,
}

fn pair() -> Pair {
    let (first, a) = dataset::split(&Recipe::default());
    let (second, b) = dataset::split(&Recipe {
        records: 37,
        shards: 2,
        format: ShardFormat::TfRecord,
        image: |i| Some(dataset::picture(i + 1000)),
        ..Recipe::default()
    });
    Pair {
        _directories: [first, second],
        splits: vec![a, b],
    }
}

fn weighted(splits: &[Split], weights: &[f64]) -> Mix {
    let mut mix = Mix::new(splits.to_vec());
    mix.weights = vec![weights.to_vec()];
    mix
}

/// Pixels, label and number of each sample of an epoch without padding, in order.
type Samples = Vec<(Vec<u8>, i64, u64)>;

fn samples(batch: &Batch) -> Samples {
    let count = batch.samples.len();
    let pixels = batch.payload.chunks(batch.payload.len() / count);
    let all = pixels.zip(&batch.labels).zip(&batch.samples);
    let all = all.map(|((pixels, &label), &sample)| (pixels.to_vec(), label, sample));
    let good = all.zip(&batch.flags).filter(|(_, flags)| **flags == 0);
    good.map(|(sample, _)| sample).collect()
}

fn epoch(loader: &mut Loader) -> Samples {
    let batches = std::iter::from_fn(|| loader.next_batch().unwrap());
    batches.flat_map(|batch| samples(&batch)).collect()
}

fn mixed(mix: &Mix, options: Options) -> Loader {
    Loader::mixed(mix, options).unwrap()
}

fn refusal(mix: &Mix, change: impl FnOnce(&mut Sampling)) -> String {
    let mut options = options(8);
    change(&mut options.sampling);
    Loader::mixed(mix, options).unwrap_err().to_string()
}

#[test]
fn without_weights_each_record_comes_once() {
    let pair = pair();
    let mut each: Samples = Vec::new();
    for (split, start) in pair.splits.iter().zip([0, 100]) {
        let mut options = options(8);
        options.shuffle = Shuffle::NONE;
        let mut alone = Loader::new(split.clone(), options).unwrap();
        each.extend(
            epoch(&mut alone)
                .into_iter()
                .map(|(p, l, s)| (p, l, s + start)),
        );
    }
    let mix = Mix::new(pair.splits.clone());
    assert_eq!(mix.starts(), [0, 100]);
    for shuffle in [Shuffle::NONE, Shuffle::FULL, options(1).shuffle] {
        let mut options = options(8);
        options.shuffle = shuffle;
        let mut loader = mixed(&mix, options);
        assert_eq!((loader.records(), loader.epoch_samples()), (137, 137));
        let mut found = epoch(&mut loader);
        if shuffle != Shuffle::NONE {
            assert_ne!(found, each);
            found.sort_by_key(|sample| sample.2);
        }
        assert_eq!(found, each, "{shuffle:?}");
    }
}

#[test]
fn a_schedule_has_weights_for_each_epoch() {
    let pair = pair();
    let mut mix = weighted(&pair.splits, &[1.0, 0.0]);
    mix.weights
        .extend([vec![1.0, 3.0], vec![0.0, 1.0], vec![0.0, 1.0]]);
    let mut options = options(8);
    options.sampling.num_samples = 40;
    let mut loader = mixed(&mix, options.clone());
    assert_eq!(loader.batches_per_epoch(), 5);
    let all: Vec<Samples> = (0..5).map(|_| epoch(&mut loader)).collect();
    let first = |samples: &Samples| samples.iter().filter(|sample| sample.2 < 100).count();
    let shares: Vec<(usize, usize)> = all.iter().map(|s| (first(s), s.len())).collect();
    assert_eq!(shares, [(40, 40), (10, 40), (0, 40), (0, 40), (0, 40)]);
    // Resuming is a number, in any epoch and for any world size.
    for (at, rest) in [(1, 16), (3, 8), (4, 0)] {
        let mut resumed = Loader::resume_mixed(&mix, options.clone(), (at, rest), None).unwrap();
        assert_eq!(epoch(&mut resumed), all[at as usize][rest as usize..]);
    }
    let mut parts = Vec::new();
    for rank in 0..2 {
        let mut options = options.clone();
        (options.rank, options.world_size) = (rank, 2);
        (options.batch_size, options.shuffle) = (4, options.shuffle);
        let mut part = mixed(&mix, options);
        epoch(&mut part);
        parts.extend(epoch(&mut part));
    }
    let sorted = |mut samples: Samples| {
        samples.sort();
        samples
    };
    assert_eq!(sorted(parts), sorted(all[1].clone()));
    // The identity has the weights of all epochs, and none that change nothing.
    let name = mix.fingerprint();
    assert!(
        name.starts_with("mix(1*") && name.contains("; weights of 3 epochs="),
        "{name}"
    );
    let mut other = mix.clone();
    other.weights.pop();
    assert_eq!(other.fingerprint(), name);
    other.weights.pop();
    assert_ne!(other.fingerprint(), name);
    other.weights.truncate(1);
    assert_eq!(
        other.fingerprint(),
        weighted(&pair.splits, &[1.0, 0.0]).fingerprint()
    );
    // Each epoch is checked.
    for (weights, said) in [
        (vec![1.0], "option weights is 1 numbers: expected 2"),
        (vec![0.0, 0.0], "option weights is a sum of 0"),
        (vec![1.0, -1.0], "option weights is -1"),
    ] {
        let mut wrong = mix.clone();
        wrong.weights[1] = weights;
        assert!(
            refusal(&wrong, |_| {}).contains(said),
            "{}",
            refusal(&wrong, |_| {})
        );
    }
    options.shuffle.reshuffle = false;
    let error = Loader::mixed(&mix, options).unwrap_err().to_string();
    assert!(
        error.starts_with("option reshuffle is false: expected true"),
        "{error}"
    );
}

#[test]
fn weights_are_shares_of_the_epoch() {
    let pair = pair();
    let mix = weighted(&pair.splits, &[1.0, 3.0]);
    let mut options = options(8);
    options.sampling.num_samples = 40;
    let mut loader = mixed(&mix, options.clone());
    let mut counts = vec![0; 137];
    for _ in 0..10 {
        let found = epoch(&mut loader);
        assert_eq!(found.len(), 40);
        assert_eq!(found.iter().filter(|sample| sample.2 < 100).count(), 10);
        for sample in found {
            counts[sample.2 as usize] += 1;
        }
    }
    // 100 samples are drawn from 100 records, and 300 from 37.
    assert!(counts[..100].iter().all(|&count| count == 1), "{counts:?}");
    assert!(
        counts[100..].iter().all(|count| [8, 9].contains(count)),
        "{counts:?}"
    );
    // The default is the number of records, or of selected records.
    options.sampling.num_samples = 0;
    assert_eq!(mixed(&mix, options.clone()).epoch_samples(), 137);
    options.sampling.labels = vec![1, 2];
    let mut some = mixed(&mix, options);
    let found = epoch(&mut some);
    assert_eq!(found.len(), 20 + 8);
    assert_eq!(found.iter().filter(|sample| sample.2 >= 100).count(), 21);
    assert!(found.iter().all(|sample| [1, 2].contains(&sample.1)));
}

#[test]
fn any_world_and_any_machine_give_the_same_batches() {
    let pair = pair();
    let mix = weighted(&pair.splits, &[0.7, 0.3]);
    let all = |rank, world, change: &dyn Fn(&mut Options)| {
        let mut options = options(24 / world);
        (options.rank, options.world_size) = (rank, world);
        change(&mut options);
        let mut loader = mixed(&mix, options);
        let batches = loader.options().batches(loader.epoch_samples()).unwrap();
        let placed = |batch: Batch| {
            let positions = batches.assignment().positions(batch.epoch, batch.position);
            let places = positions
                .into_iter()
                .map(move |p| (p - batch.position) as usize);
            places.zip(batch.samples).collect::<Vec<_>>()
        };
        let epochs = (0..2).flat_map(|_| {
            let epoch = std::iter::from_fn(|| loader.next_batch().unwrap());
            epoch.map(placed).collect::<Vec<_>>()
        });
        epochs.collect::<Vec<_>>()
    };
    let whole = all(0, 1, &|_| ());
    assert_eq!(whole.len(), 12);
    // 8 does not divide the 12 virtual ranks.
    for world in [2, 3, 4, 8] {
        let ranks: Vec<_> = (0..world).map(|rank| all(rank, world, &|_| ())).collect();
        for (step, batch) in whole.iter().enumerate() {
            let mut together: Vec<_> = ranks.iter().flat_map(|rank| rank[step].clone()).collect();
            together.sort_unstable();
            assert_eq!(&together, batch);
        }
    }
    let machines: [&dyn Fn(&mut Options); 3] = [
        &|options| (options.threads, options.readers) = (1, 1),
        &|options| options.page_cache = PageCache::Drop,
        &|options| options.memory_bytes = 4 * 24 * 300 + 20_000,
    ];
    for machine in machines {
        assert_eq!(all(0, 1, machine), whole);
    }
}

#[test]
fn a_mix_resumes_at_its_position() {
    let pair = pair();
    let mix = weighted(&pair.splits, &[0.2, 0.8]);
    let mut loader = mixed(&mix, options(8));
    let epochs: Vec<Samples> = (0..3).map(|_| epoch(&mut loader)).collect();
    let mut other = mixed(&mix, options(4));
    for (at, position) in [(2, 0), (1, 64), (0, 136)] {
        other.seek(at, position).unwrap();
        assert_eq!(epoch(&mut other), epochs[at as usize][position as usize..]);
    }
    assert!(other.seek(0, 138).is_err());
}

/// Opens a dataset and adds classes to its manifest.
fn with_classes(root: &Path, recipe: &Recipe, classes: &[&str], base: i64) -> Split {
    dataset::write(root, recipe);
    let path = root.join("forebay.json");
    let mut manifest = Manifest::parse(&path, &std::fs::read(&path).unwrap()).unwrap();
    manifest.label_base = base;
    manifest.classes = classes
        .iter()
        .map(|name| ClassEntry {
            name: (*name).to_owned(),
            text: None,
        })
        .collect();
    std::fs::write(&path, manifest.to_json().unwrap()).unwrap();
    dataset::open(root)
}

const LETTERS: [&str; 10] = ["a", "b", "c", "d", "e", "f", "g", "h", "i", "j"];
const OTHERS: [&str; 10] = ["j", "i", "x", "h", "y", "g", "f", "e", "d", "c"];

#[test]
fn labels_follow_the_option_of_the_mix() {
    let directories = [tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap()];
    let recipe = Recipe {
        records: 20,
        shards: 1,
        codec: Codec::ZSTD,
        ..Recipe::default()
    };
    let a = with_classes(directories[0].path(), &recipe, &LETTERS, 1);
    let b = with_classes(directories[1].path(), &recipe, &OTHERS, 1);
    let mut mix = Mix::new(vec![a.clone(), b]);
    let labels = |mix: &Mix, change: &dyn Fn(&mut Options)| {
        let mut options = options(8);
        options.shuffle = Shuffle::NONE;
        change(&mut options);
        let all = epoch(&mut mixed(mix, options));
        all.into_iter()
            .map(|(_, label, _)| label)
            .collect::<Vec<_>>()
    };
    let twice = |labels: &[i64]| [labels, labels].concat();
    let own: Vec<i64> = (0..10).collect();
    let shifted = |by: i64| own.iter().map(|label| label + by).collect::<Vec<_>>();
    let by_name = [9, 8, 10, 7, 11, 6, 5, 4, 3, 2];
    for (choice, second) in [
        (MixLabels::Stored, own.clone()),
        (MixLabels::Add(vec![0, 1000]), shifted(1000)),
        (MixLabels::Offset, shifted(10)),
        (MixLabels::ByName, by_name.to_vec()),
    ] {
        mix.labels = choice;
        let expected = [twice(&own), twice(&second)].concat();
        assert_eq!(labels(&mix, &|_| ()), expected, "{:?}", mix.labels);
    }
    // Names select classes if they have the same labels in all datasets.
    let of = |names: &[&str]| {
        names
            .iter()
            .map(|name| (*name).to_owned())
            .collect::<Vec<_>>()
    };
    let found = labels(&mix, &|options| options.sampling.classes = of(&["j", "x"]));
    assert_eq!(found, [9, 9, 9, 10, 9, 10]);
    mix.labels = MixLabels::Offset;
    let found = labels(&mix, &|options| options.sampling.classes = of(&["a", "y"]));
    assert_eq!(found, [0, 0, 14, 14]);
    assert!(refusal(&mix, |s| s.classes = of(&["j"])).contains("differ"));
    mix.labels = MixLabels::Stored;
    assert!(refusal(&mix, |s| s.classes = of(&["a"])).contains("differ"));
    assert!(refusal(&mix, |s| s.classes = of(&["z"])).contains("names"));
    let same = Mix::new(vec![a.clone(), a]);
    let found = labels(&same, &|options| options.sampling.classes = of(&["b"]));
    assert_eq!(found, [1; 4]);
    // Balanced over the 12 classes of the mix, by name.
    mix.labels = MixLabels::ByName;
    let balanced = labels(&mix, &|options| {
        options.sampling.weights = Weights::Balanced;
        options.sampling.num_samples = 1200;
    });
    let x = balanced.iter().filter(|&&label| label == 10).count();
    // Six standard deviations around 100.
    assert!((43..157).contains(&x), "{x}");
}

#[test]
fn datasets_of_a_mix_may_store_different_bases() {
    let directories = [tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap()];
    let recipe = Recipe {
        records: 20,
        shards: 1,
        ..Recipe::default()
    };
    // Each dataset stores labels from 1 on; the first class of one has label 1, of the other 0.
    let one = with_classes(directories[0].path(), &recipe, &LETTERS, 1);
    let names = ["z", "a", "b", "c", "d", "e", "f", "g", "h", "i", "j"];
    let zero = with_classes(directories[1].path(), &recipe, &names, 0);
    let labels = |mix: &Mix, base: LabelBase| {
        let mut options = options(8);
        options.shuffle = Shuffle::NONE;
        options.label_base = base;
        let mut loader = mixed(mix, options);
        let labels: Vec<i64> = epoch(&mut loader).iter().map(|found| found.1).collect();
        assert_eq!(labels[..10], labels[10..20]);
        (
            labels[0],
            labels[20],
            loader.label_base(),
            loader.classes().len(),
        )
    };
    let mut mix = Mix::new(vec![one, zero]);
    for (choice, base, expected) in [
        (MixLabels::Stored, LabelBase::Zero, (0, 1, Some(0), 0)),
        (MixLabels::Stored, LabelBase::One, (1, 2, Some(1), 0)),
        (MixLabels::Stored, LabelBase::Stored, (1, 1, None, 0)),
        (
            MixLabels::Add(vec![0, 10]),
            LabelBase::Zero,
            (0, 11, Some(0), 21),
        ),
        (MixLabels::Offset, LabelBase::Zero, (0, 11, Some(0), 21)),
        (MixLabels::Offset, LabelBase::Stored, (1, 12, Some(1), 21)),
        (MixLabels::ByName, LabelBase::Zero, (0, 0, Some(0), 11)),
        (MixLabels::ByName, LabelBase::One, (1, 1, Some(1), 11)),
    ] {
        mix.labels = choice;
        assert_eq!(labels(&mix, base), expected, "{:?} {base:?}", mix.labels);
    }
    // Options by label refer to the labels in batches.
    for (base, label) in [(LabelBase::Zero, 0), (LabelBase::One, 1)] {
        let mut options = options(2);
        options.label_base = base;
        options.sampling.labels = vec![label];
        let found = epoch(&mut mixed(&mix, options));
        assert_eq!(found.len(), 4);
        assert!(found.iter().all(|sample| sample.1 == label));
    }
}

#[test]
fn a_label_without_a_class_is_an_error_of_its_sample() {
    let directory = tempfile::tempdir().unwrap();
    let recipe = Recipe {
        records: 20,
        shards: 1,
        ..Recipe::default()
    };
    // The stored labels are 1 to 10.
    let split = with_classes(directory.path(), &recipe, &LETTERS[..9], 1);
    let mut mix = Mix::new(vec![split]);
    assert_eq!(epoch(&mut mixed(&mix, options(4))).len(), 20);
    mix.labels = MixLabels::Offset;
    let mut options = options(20);
    options.shuffle = Shuffle::NONE;
    let error = mixed(&mix, options.clone())
        .next_batch()
        .unwrap_err()
        .to_string();
    assert!(
        error.contains("label 10") && error.contains("record 9"),
        "{error}"
    );
    options.on_error = forebay_loader::OnError::Zero;
    let batch = mixed(&mix, options).next_batch().unwrap().unwrap();
    let failed: Vec<usize> = (0..20).filter(|&i| batch.flags[i] != 0).collect();
    assert_eq!(failed, [9, 19]);
}

#[test]
fn different_mixes_have_different_fingerprints() {
    let pair = pair();
    let mut mixes = vec![
        Mix::new(pair.splits.clone()),
        Mix::new(pair.splits.iter().rev().cloned().collect()),
        weighted(&pair.splits, &[0.7, 0.3]),
        weighted(&pair.splits, &[0.3, 0.7]),
    ];
    for labels in [
        MixLabels::Add(vec![0, 10]),
        MixLabels::Offset,
        MixLabels::ByName,
    ] {
        let mut mix = weighted(&pair.splits, &[0.7, 0.3]);
        mix.labels = labels;
        mixes.push(mix);
    }
    let mut names: Vec<String> = mixes.iter().map(Mix::fingerprint).collect();
    for name in &names {
        for split in &pair.splits {
            assert!(name.contains(split.fingerprint()), "{name}");
        }
    }
    let loader = mixed(&mixes[2], options(8));
    assert_eq!(loader.fingerprint(), names[2]);
    assert!(names[2].starts_with("mix(0.7*"), "{}", names[2]);
    names.sort();
    names.dedup();
    assert_eq!(names.len(), mixes.len());
}

#[test]
fn invalid_mixes_are_refused() {
    let pair = pair();
    let plain = Mix::new(pair.splits.clone());
    let error = |mix: &Mix| refusal(mix, |_| ());
    assert!(error(&Mix::new(Vec::new())).contains("at least one"));
    for weights in [&[1.0][..], &[0.0, 0.0], &[-1.0, 2.0], &[f64::NAN, 1.0]] {
        let error = error(&weighted(&pair.splits, weights));
        assert!(error.contains("weights"), "{error}");
    }
    let mut labels = plain.clone();
    labels.labels = MixLabels::Add(vec![1]);
    assert!(error(&labels).contains("labels is 1 numbers"));
    labels.labels = MixLabels::ByName;
    assert!(error(&labels).contains("dataset 0 has no list"));
    let even = weighted(&pair.splits, &[1.0, 1.0]);
    let both = refusal(&even, |sampling| sampling.weights = Weights::Balanced);
    assert!(both.contains("one of the two"), "{both}");
    let empty = refusal(&even, |sampling| sampling.limit = 50);
    assert!(empty.contains("dataset 1, which weighs 1"), "{empty}");
    let num_samples = refusal(&plain, |sampling| sampling.num_samples = 50);
    assert!(num_samples.contains("only weights draw"), "{num_samples}");
    // A dataset may have the weight 0.
    let none = weighted(&pair.splits, &[1.0, 0.0]);
    let found = epoch(&mut mixed(&none, options(8)));
    assert!(found.len() == 137 && found.iter().all(|sample| sample.2 < 100));
}
