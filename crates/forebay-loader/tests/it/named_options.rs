//! Options by name, epochs in any order, and sources that cannot be read.

use forebay_loader::{
    BatchTransform, EvalTransform, Loader, LoaderOptions, Mix, Mixing, Options, Result, Transform,
};
use forebay_shard::Dataset;

use crate::dataset::{self, Recipe};

fn samples(loader: &mut Loader, epoch: u64) -> Vec<u64> {
    let batches: Result<Vec<_>> = loader.epoch(epoch).unwrap().collect();
    let samples = batches.unwrap().into_iter().map(|batch| batch.samples);
    samples.collect::<Vec<_>>().concat()
}

fn given(json: &str) -> LoaderOptions {
    serde_json::from_str(json).unwrap()
}

fn named(json: &str) -> Result<Options> {
    Options::from_schema(&given(json))
}

#[test]
fn named_options_make_the_batches_of_their_fields() {
    let (directory, split) = dataset::split(&Recipe::default());
    let mut options = Options::new(16, Transform::Eval(EvalTransform::new(9, 8)));
    (options.seed, options.drop_last) = (7, false);
    let mut expected = Loader::new(split.clone(), options).unwrap();
    let named = named(
        r#"{"batch_size": 16, "seed": 7, "shuffle": true, "transform": {"kind": "eval", "resize": 9, "crop": 8}}"#,
    )
    .unwrap();
    let again = Dataset::open(directory.path()).unwrap();
    let mut loader = Loader::new(again.split("train").unwrap(), named.clone()).unwrap();
    assert_eq!(loader.options(), expected.options());
    let order = samples(&mut expected, 0);
    assert_eq!(order.len(), 112, "100 samples, padded to whole batches");
    assert_eq!(samples(&mut loader, 0), order);
    let mut mixed = Loader::mixed(&Mix::new(vec![split]), named).unwrap();
    assert_eq!(samples(&mut mixed, 0), order);
}

#[test]
fn epochs_are_taken_in_any_order_and_from_their_middle() {
    let (_directory, split) = dataset::split(&Recipe::default());
    let options =
        named(r#"{"batch_size": 10, "transform": "eval", "shuffle": true, "drop_last": true}"#)
            .unwrap();
    let mut loader = Loader::new(split.clone(), options.clone()).unwrap();
    let epochs: Vec<_> = (0..3).map(|epoch| samples(&mut loader, epoch)).collect();
    assert_ne!(epochs[0], epochs[1]);
    assert_eq!(samples(&mut loader, 1), epochs[1]);
    // After an iterator was dropped, the rest of its epoch follows.
    let first = loader.epoch(2).unwrap().next().unwrap().unwrap();
    assert_eq!(first.samples, epochs[2][..10]);
    assert_eq!(samples(&mut loader, 2), epochs[2][10..]);
    assert_eq!(loader.current_epoch(), 3);
    let mut resumed = Loader::resume(split, options, (1, 40), None).unwrap();
    assert_eq!(samples(&mut resumed, 1), epochs[1][40..]);
}

#[test]
fn options_that_are_set_take_precedence() {
    let mixup = r#"{"kind": "Mixup", "alpha": 0.2}"#;
    let own = given(&format!(
        r#"{{"seed": 5, "shuffle": false, "batch_transform": {mixup}}}"#
    ));
    let others = given(r#"{"batch_size": 4, "seed": 3, "shuffle": "full", "transform": "train"}"#);
    let options = Options::from_schema(&own.or(&others)).unwrap();
    assert_eq!((options.seed, options.batch_size), (5, 4));
    assert_eq!(options.shuffle.name(), "none");
    let mixup = BatchTransform::new(vec![(Mixing::Mixup { alpha: 0.2 }, 1.0)]).unwrap();
    assert_eq!(options.batch_transform, Some(mixup));
}

#[test]
fn invalid_sources_and_options_are_refused() {
    let (directory, _) = dataset::split(&Recipe::default());
    let nowhere = Dataset::open("/nowhere/at/all").unwrap_err().to_string();
    assert!(nowhere.contains("/nowhere/at/all"), "{nowhere}");
    let dataset = Dataset::open(directory.path()).unwrap();
    let missing = dataset.split("val").unwrap_err().to_string();
    assert!(
        missing.contains("\"val\"") && missing.contains("train"),
        "{missing}"
    );
    let none = named("{}").unwrap_err().to_string();
    assert!(none.contains("option transform is not given"), "{none}");
    let wrong = named(r#"{"transform": "flip"}"#).unwrap_err().to_string();
    assert!(wrong.contains("\"flip\""), "{wrong}");
}
