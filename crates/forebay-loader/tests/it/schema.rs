//! Conversion of options to the schema and back.

use forebay_image::{
    BatchTransform, Compose, Dtype, EvalTransform, Layout, Mixing, Normalize, Op, ResizeLike,
    TrainTransform, Transform, ops,
};
use forebay_loader::{LabelBase, MAX_BATCH_BYTES, OnError, Options, Sampling, Shuffle, Weights};
use forebay_options::LoaderOptions;
use proptest::collection::{btree_set, vec};
use proptest::option;
use proptest::prelude::*;
use serde_json::json;

fn list() -> Vec<Op> {
    let op = |(name, params): (&str, serde_json::Value)| ops::parse(name, params).unwrap();
    let specs = [
        (
            "RandomResizedCrop",
            json!({"size": [160, 192], "ratio": [0.1, 4.0 / 3.0]}),
        ),
        ("RandomHorizontalFlip", json!({})),
        ("ColorJitter", json!({"hue": [-0.1, 0.2]})),
        ("RandAugment", json!({"fill": [128, 0, 255]})),
        ("Normalize", json!({"mean": [0.485, 0.456, 0.406]})),
        ("RandomErasing", json!({"value": [0.1, -2.5, 3]})),
    ];
    specs.into_iter().map(op).collect()
}

fn transforms() -> impl Strategy<Value = Transform> {
    prop_oneof![
        (1u32..300, 0.01..0.9, 0.1..1.0, 0.0..1.0).prop_map(|(size, scale, ratio, flip)| {
            Transform::Train(TrainTransform {
                size,
                scale: (scale, 1.0),
                ratio: (ratio, 4.0 / 3.0),
                flip,
            })
        }),
        (1u32..300, 0u32..300)
            .prop_map(|(crop, more)| Transform::Eval(EvalTransform::new(crop + more, crop))),
        (1..=list().len())
            .prop_map(|ops| Transform::List(Compose::new(list()[..ops].to_vec()).unwrap())),
        Just(Transform::KeepEncoded),
    ]
}

fn shuffles() -> impl Strategy<Value = Shuffle> {
    let names: Vec<&str> = Shuffle::names().collect();
    let blocks = (0u64..100, 0u64..100);
    (prop::sample::select(names), blocks, any::<bool>()).prop_map(
        |(name, (records, window), reshuffle)| {
            let mut shuffle = Shuffle::named(name).unwrap();
            shuffle.reshuffle = reshuffle;
            if shuffle.has_blocks() {
                shuffle.block_records = records;
                shuffle.window_blocks = window;
            }
            shuffle
        },
    )
}

fn samplings() -> impl Strategy<Value = Sampling> {
    let weight = || 0.0..100.0f64;
    let weights = prop_oneof![
        Just(Weights::None),
        Just(Weights::Balanced),
        vec((-5i64..5, weight()), 1..4).prop_map(Weights::ByLabel),
        prop::collection::btree_map("[a-z]{1,3}", weight(), 1..4)
            .prop_map(|weights| Weights::ByClass(weights.into_iter().collect())),
        vec(0.0..10.0f32, 1..9).prop_map(|weights| Weights::BySample(weights.into())),
    ];
    let which = (
        btree_set(any::<u64>(), 0..9),
        vec("[a-z\"é]{1,3}", 0..3),
        vec(any::<i64>(), 0..3),
    );
    (which, weights, [0u64..9, 0..9, 0..9]).prop_map(
        |((indices, classes, labels), weights, numbers)| {
            let mut sampling = Sampling::default();
            sampling.indices = indices.into_iter().collect();
            sampling.classes = classes;
            sampling.labels = labels;
            sampling.weights = weights;
            [sampling.limit, sampling.num_samples, sampling.repeats] = numbers;
            sampling
        },
    )
}

fn mixings() -> impl Strategy<Value = BatchTransform> {
    let choice = (0.1..2.0f64, 0.5..3.0f64, 0usize..3).prop_map(|(alpha, weight, which)| {
        let mixing = [
            Mixing::Mixup { alpha },
            Mixing::CutMix { alpha },
            Mixing::Nothing,
        ][which];
        (mixing, weight)
    });
    vec(choice, 1..4).prop_map(|choices| BatchTransform::new(choices).unwrap())
}

prop_compose! {
    fn outputs()(
        nchw in any::<bool>(),
        dtype in prop::sample::select(vec![Dtype::Uint8, Dtype::Float32, Dtype::Float16, Dtype::Bfloat16]),
        normalize in option::of(([0.0..1.0f32, 0.0..1.0, 0.0..1.0], [0.1..1.0f32, 0.1..1.0, 0.1..1.0])),
        resize_like in prop::sample::select(ResizeLike::ALL.to_vec()),
        decode in (any::<bool>(), any::<bool>(), 1u64.., 1u64..),
    ) -> Options {
        let mut options = Options::new(1, Transform::KeepEncoded);
        options.output.layout = if nchw { Layout::Nchw } else { Layout::Nhwc };
        options.output.dtype = dtype;
        options.output.normalize = normalize.map(|(mean, std)| Normalize { mean, std });
        options.decode.resize_like = resize_like;
        (options.decode.exif, options.decode.scaled, _, _) = decode;
        options.decode.limits.max_pixels = decode.2;
        options.decode.limits.max_decoded_bytes = decode.3;
        options
    }
}

prop_compose! {
    fn all_options()(
        mut options in outputs(),
        transform in transforms(),
        shuffle in shuffles(),
        sampling in samplings(),
        batch_transform in option::of(mixings()),
        [batch_size, rank, world_size, virtual_ranks, seed] in any::<[u64; 5]>(),
        drop_last in any::<bool>(),
        on_error in prop::sample::select(vec![OnError::Raise, OnError::Skip, OnError::Zero]),
        label_base in prop::sample::select(vec![LabelBase::Zero, LabelBase::One, LabelBase::Stored]),
    ) -> Options {
        if let Transform::List(list) = &transform {
            // A list contains its own normalization.
            options.output.normalize = list.normalize().or(options.output.normalize);
        }
        options.transform = transform;
        options.shuffle = shuffle;
        options.sampling = sampling;
        options.batch_transform = batch_transform;
        (options.batch_size, options.rank, options.world_size) = (batch_size, rank, world_size);
        (options.virtual_ranks, options.seed, options.drop_last) = (virtual_ranks, seed, drop_last);
        (options.on_error, options.label_base) = (on_error, label_base);
        options
    }
}

proptest! {
    #[test]
    fn options_round_trip(options in all_options()) {
        let schema = options.to_schema();
        prop_assert_eq!(&Options::from_schema(&schema).unwrap(), &options);
        let sent = LoaderOptions::decode(schema.encode()).unwrap();
        prop_assert_eq!(&sent, &schema);
        let text = serde_json::to_string(&schema).unwrap();
        let read: LoaderOptions = serde_json::from_str(&text).unwrap();
        prop_assert_eq!(Options::from_schema(&read).unwrap().to_schema(), schema);
    }
}

#[test]
fn options_requested_by_a_peer_are_validated() {
    let refused = |more: serde_json::Value| {
        let more: LoaderOptions = serde_json::from_value(more).unwrap();
        let mut good = Options::new(8, Transform::Train(TrainTransform::new(64)));
        good.world_size = 2;
        Options::from_request(&more.or(&good.to_schema()), MAX_BATCH_BYTES)
            .and_then(|options| options.resolve(1000, 1000))
            .unwrap_err()
            .to_string()
    };
    let train = |name: &str, value: serde_json::Value| {
        refused(json!({"transform": {"kind": "train", name: value}}))
    };
    assert!(train("size", json!(u32::MAX)).contains("size"));
    assert!(train("size", json!(u64::MAX)).contains("transform"));
    assert!(train("scale", json!([null, 1])).contains("transform"));
    assert!(train("scale", json!([-1, 1])).contains("scale"));
    assert!(train("ratio", json!([0.5, 1e308])).contains("ratio"));
    assert!(train("flip", json!(7)).contains("flip"));
    assert!(train("colour", json!(7)).contains("colour"));
    assert!(refused(json!({"transform": []})).contains("transform"));
    assert!(
        refused(json!({"transform": vec!["RandomHorizontalFlip"; 1000]})).contains("transform")
    );
    assert!(
        refused(json!({"batch_transform": vec!["Mixup"; 100_000]})).contains("batch_transform")
    );
    assert!(refused(json!({"batch_transform": []})).contains("batch_transform"));
    assert!(refused(json!({"batch_size": 0})).contains("batch_size"));
    assert!(refused(json!({"batch_size": u64::MAX})).contains("batch_size"));
    assert!(refused(json!({"batch_size": 1 << 23})).contains("at most 1073741824 bytes"));
    assert!(
        refused(json!({"batch_size": u64::MAX, "transform": "keep_encoded"}))
            .contains("batch_size")
    );
    assert!(
        refused(json!({"transform": "keep_encoded", "layout": "nchw"})).contains("layout is nchw")
    );
    assert!(refused(json!({"world_size": u64::MAX})).contains("world_size"));
    assert!(refused(json!({"world_size": 0})).contains("world_size"));
    assert!(refused(json!({"rank": 4})).contains("rank"));
    assert!(refused(json!({"shuffle": "blocks9"})).contains("shuffle"));
    let numbers = |mean: [f32; 3], std: [f32; 3]| json!({"dtype": "float16", "normalize": {"mean": mean, "std": std}});
    assert!(refused(numbers([0.0; 3], [1.0, 0.0, 1.0])).contains("std"));
    let of_bytes =
        json!({"dtype": "uint8", "normalize": {"mean": [0.0, 0.0, 0.0], "std": [1.0, 1.0, 1.0]}});
    assert!(refused(of_bytes).contains("uint8"));
    let twice = json!({"transform": ["RandomResizedCrop", "Normalize"], "normalize": {"mean": [0.0, 0.0, 0.0], "std": [1.0, 1.0, 1.0]}});
    assert!(refused(twice).contains("one of the two"));
}
