//! A loader from the builder equals a loader from [`Options`].

use forebay_loader::{
    EvalTransform, Loader, LoaderOptions, LoaderSource, Mix, Mixing, Options, Result, Transform,
};
use forebay_shard::Dataset;

use crate::dataset::{self, Recipe};

fn samples(loader: &mut Loader, epoch: u64) -> Vec<u64> {
    let batches: Result<Vec<_>> = loader.epoch(epoch).unwrap().collect();
    let samples = batches.unwrap().into_iter().map(|batch| batch.samples);
    samples.collect::<Vec<_>>().concat()
}

#[test]
fn a_builder_makes_the_batches_of_its_options() {
    let (directory, split) = dataset::split(&Recipe::default());
    let eval = Transform::Eval(EvalTransform::new(9, 8));
    let mut options = Options::new(16, eval.clone());
    (options.seed, options.drop_last) = (7, false);
    let mut expected = Loader::new(split.clone(), options).unwrap();
    let builder = |source: LoaderSource| {
        let builder = Loader::builder(source).batch_size(16).seed(7);
        builder.shuffle(true).transform(eval.clone())
    };
    let mut built = builder(directory.path().into())
        .split("train")
        .build()
        .unwrap();
    assert_eq!(built.options(), expected.options());
    let order = samples(&mut expected, 0);
    assert_eq!(order.len(), 112, "100 samples, padded to whole batches");
    assert_eq!(samples(&mut built, 0), order);
    // All kinds of sources give the same samples.
    let dataset = Dataset::open(directory.path()).unwrap();
    for source in [
        directory.path().to_str().unwrap().into(),
        dataset.into(),
        split.clone().into(),
        Mix::new(vec![split]).into(),
    ] {
        assert_eq!(samples(&mut builder(source).build().unwrap(), 0), order);
    }
}

#[test]
fn epochs_are_taken_in_any_order_and_from_their_middle() {
    let (_directory, split) = dataset::split(&Recipe::default());
    let builder = || {
        Loader::builder(split.clone())
            .batch_size(10)
            .transform("eval")
            .shuffle(true)
            .drop_last(true)
    };
    let mut loader = builder().build().unwrap();
    let epochs: Vec<_> = (0..3).map(|epoch| samples(&mut loader, epoch)).collect();
    assert_ne!(epochs[0], epochs[1]);
    assert_eq!(samples(&mut loader, 1), epochs[1]);
    // After an iterator was dropped, the rest of its epoch follows.
    let first = loader.epoch(2).unwrap().next().unwrap().unwrap();
    assert_eq!(first.samples, epochs[2][..10]);
    assert_eq!(samples(&mut loader, 2), epochs[2][10..]);
    assert_eq!(loader.current_epoch(), 3);
    let mut resumed = builder().start_at(1, 40).build().unwrap();
    assert_eq!(samples(&mut resumed, 1), epochs[1][40..]);
}

#[test]
fn setters_accept_convenient_types() {
    let (_directory, split) = dataset::split(&Recipe::default());
    let given: LoaderOptions = serde_json::from_str(
        r#"{"batch_size": 4, "seed": 3, "shuffle": "full", "transform": "train"}"#,
    )
    .unwrap();
    let mixup =
        forebay_loader::BatchTransform::new(vec![(Mixing::Mixup { alpha: 0.2 }, 1.0)]).unwrap();
    let loader = Loader::builder(split)
        .seed(5)
        .shuffle(false)
        .batch_transform(mixup.clone())
        .options(&given)
        .threads(1)
        .build()
        .unwrap();
    let options = loader.options();
    assert_eq!((options.seed, options.batch_size), (5, 4));
    assert_eq!(options.shuffle.name(), "none");
    assert_eq!(options.batch_transform, Some(mixup));
}

#[test]
fn invalid_sources_and_options_are_refused() {
    let (directory, split) = dataset::split(&Recipe::default());
    let refused = |builder: forebay_loader::LoaderBuilder| builder.build().unwrap_err().to_string();
    let nowhere = refused(Loader::builder("/nowhere/at/all").transform("eval"));
    assert!(nowhere.contains("/nowhere/at/all"), "{nowhere}");
    let other = refused(
        Loader::builder(split.clone())
            .transform("eval")
            .split("val"),
    );
    assert!(
        other.contains("split") && other.contains("\"train\""),
        "{other}"
    );
    let missing = refused(
        Loader::builder(directory.path())
            .transform("eval")
            .split("val"),
    );
    assert!(missing.contains("val"), "{missing}");
    let none = refused(Loader::builder(split.clone()));
    assert!(none.contains("option transform is not given"), "{none}");
    let wrong = refused(Loader::builder(split).transform("flip"));
    assert!(wrong.contains("\"flip\""), "{wrong}");
}
