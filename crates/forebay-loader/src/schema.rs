//! Conversion of a loader's options from and to [`LoaderOptions`], the schema that all interfaces share.
//!
//! This module owns the defaults of options that are not given. Options may come from a peer: values are checked here
//! or when the options are resolved, and no memory is allocated for them before.

use forebay_image::{
    BatchTransform, Compose, EvalTransform, Limits, Mixing, Normalize, Op, Transform, ops,
};
use forebay_options::{
    Class, DEFAULT_BATCH_SIZE, LoaderOptions, NormalizeSpec, ShuffleSpec, TransformSpec,
    Transforms, WeightsSpec,
};
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};

use crate::error::{Error, Result};
use crate::options::Options;
use crate::plan::Shuffle;
use crate::sampling::{Sampling, Weights};

/// Default maximum size in bytes of a batch that a peer requests.
pub const MAX_BATCH_BYTES: u64 = 1 << 30;

impl Options {
    /// Converts options, with defaults for those that are not given. `transform` is required. For transforms with a
    /// random operation (training), `shuffle` and `drop_last` default to true; for `eval`, to false. Other transforms require
    /// `shuffle`, and `drop_last` defaults to true if it shuffles.
    ///
    /// ```
    /// use forebay_loader::{Options, Shuffle};
    ///
    /// let given = serde_json::from_str(r#"{"batch_size": 256, "transform": {"kind": "eval"}}"#)?;
    /// let options = Options::from_schema(&given)?;
    /// assert_eq!(options.transform.output_size(), (224, 224));
    /// assert_eq!((options.shuffle, options.drop_last), (Shuffle::NONE, false));
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// # Errors
    ///
    /// An invalid value, with the allowed ones; no transform; no shuffle for a transform that has no default for it.
    pub fn from_schema(given: &LoaderOptions) -> Result<Options> {
        let transform = match &given.transform {
            None => {
                return Err(Error::Missing {
                    name: "transform",
                    expected: "choose \"train\", \"eval\", \"keep_encoded\" or a list",
                });
            }
            Some(transforms) => transform(transforms).map_err(|e| invalid("transform", e))?,
        };
        let trains = match &transform {
            Transform::Eval(_) => Some(false),
            other => other.is_random().then_some(true),
        };
        let normalize = normalize(given, &transform)?;
        let mut options = Options::new(given.batch_size.unwrap_or(DEFAULT_BATCH_SIZE), transform);
        options.rank = given.rank.unwrap_or(0);
        options.world_size = given.world_size.unwrap_or(1);
        options.virtual_ranks = given.virtual_ranks.unwrap_or(0);
        options.seed = given.seed.unwrap_or(0);
        options.shuffle = shuffle(given, trains)?;
        options.shuffle.reshuffle = given.reshuffle.unwrap_or(true);
        options.output.layout = given.layout.unwrap_or_default();
        options.output.normalize = normalize;
        options.output.dtype = match given.dtype {
            None if normalize.is_some() => forebay_image::Dtype::Float32,
            dtype => dtype.unwrap_or_default(),
        };
        options.batch_transform = match &given.batch_transform {
            None => None,
            Some(mixing) => {
                Some(batch_transform(mixing).map_err(|e| invalid("batch_transform", e))?)
            }
        };
        if let Some(resize_like) = &given.resize_like {
            options.decode.resize_like = resize_like.parse().map_err(Error::Transform)?;
        }
        options.decode.exif = given.exif_orientation.unwrap_or(false);
        options.decode.scaled = given.dct_scaling.unwrap_or(false);
        let limits = &mut options.decode.limits;
        limits.max_pixels = given.max_pixels.unwrap_or(limits.max_pixels);
        limits.max_decoded_bytes = given.max_image_bytes.unwrap_or(limits.max_decoded_bytes);
        let shuffles = options.shuffle.name() != Shuffle::NONE.name();
        options.drop_last = given.drop_last.unwrap_or(trains.unwrap_or(shuffles));
        options.sampling = sampling(given)?;
        options.on_error = given.on_error.unwrap_or_default();
        options.label_base = given.label_base.unwrap_or_default();
        options.columns = given.columns.clone().unwrap_or_default().into();
        options.keep_empty_boxes = given.keep_empty_boxes.unwrap_or(false);
        Ok(options)
    }

    /// Converts the options of a stream that a peer requests, with at most `max_batch_bytes` of pixels per batch
    /// (for example [`MAX_BATCH_BYTES`]).
    ///
    /// # Errors
    ///
    /// An invalid value; a batch above the maximum.
    pub fn from_request(given: &LoaderOptions, max_batch_bytes: u64) -> Result<Options> {
        let mut options = Options::from_schema(given)?;
        options.transform.validate().map_err(Error::Transform)?;
        if options.varies() {
            // The batch size in bytes is known only for an open split; each batch is checked when it is made.
            options.raw.most = options.raw.most.min(max_batch_bytes);
        }
        let bytes = options.batch_bytes()? as u64;
        if bytes > max_batch_bytes {
            let expected = format!("batches of at most {max_batch_bytes} bytes");
            let found = format!("{} samples, which is {bytes} bytes", options.batch_size);
            return Err(Error::option("batch_size", found, expected));
        }
        Ok(options)
    }

    /// Converts these options to the schema, in a canonical form: defaults are written out, and numbers that are 0 (automatic)
    /// are left out. The result includes neither the split nor options that concern only this machine.
    #[must_use]
    pub fn to_schema(&self) -> LoaderOptions {
        let chosen = |number: u64| (number > 0).then_some(number);
        let differs = |limit: u64, default: u64| (limit != default).then_some(limit);
        let (limits, default) = (self.decode.limits, Limits::default());
        let mut schema = LoaderOptions::default();
        schema.batch_size = Some(self.batch_size);
        schema.rank = Some(self.rank);
        schema.world_size = Some(self.world_size);
        schema.virtual_ranks = chosen(self.virtual_ranks);
        schema.seed = Some(self.seed);
        schema.shuffle = Some(ShuffleSpec(self.shuffle.name().to_owned()));
        schema.reshuffle = Some(self.shuffle.reshuffle);
        schema.block_records = chosen(self.shuffle.block_records);
        schema.window_blocks = chosen(self.shuffle.window_blocks);
        schema.transform = Some(transform_spec(&self.transform));
        let normalize = self.output.normalize;
        schema.normalize = normalize.map(|Normalize { mean, std }| NormalizeSpec { mean, std });
        schema.layout = Some(self.output.layout);
        schema.dtype = Some(self.output.dtype);
        schema.batch_transform = self.batch_transform.as_ref().map(batch_transform_spec);
        schema.resize_like = Some(self.decode.resize_like.to_string());
        schema.exif_orientation = Some(self.decode.exif);
        schema.dct_scaling = Some(self.decode.scaled);
        schema.max_pixels = differs(limits.max_pixels, default.max_pixels);
        schema.max_image_bytes = differs(limits.max_decoded_bytes, default.max_decoded_bytes);
        schema.drop_last = Some(self.drop_last);
        schema.on_error = Some(self.on_error);
        schema.label_base = Some(self.label_base);
        schema.keep_empty_boxes = self.keep_empty_boxes.then_some(true);
        schema.columns = (!self.columns.is_empty()).then(|| self.columns.to_vec());
        self.sampling.put_into(&mut schema);
        schema
    }
}

impl Sampling {
    /// Returns these options alone in the form of the schema.
    pub(crate) fn schema(&self) -> LoaderOptions {
        let mut schema = LoaderOptions::default();
        self.put_into(&mut schema);
        schema
    }

    fn put_into(&self, schema: &mut LoaderOptions) {
        let chosen = |number: u64| (number > 0).then_some(number);
        let names = self.classes.iter().cloned().map(Class::Name);
        let classes: Vec<Class> = names
            .chain(self.labels.iter().copied().map(Class::Label))
            .collect();
        schema.classes = (!classes.is_empty()).then_some(classes);
        schema.indices = (!self.indices.is_empty()).then(|| self.indices.to_vec());
        schema.limit = chosen(self.limit);
        schema.num_samples = chosen(self.num_samples);
        schema.repeats = chosen(self.repeats);
        schema.class_balanced = (self.weights == Weights::Balanced).then_some(true);
        schema.weights = match &self.weights {
            Weights::None | Weights::Balanced => None,
            Weights::ByLabel(weights) => Some(WeightsSpec::ByLabel(weights.clone())),
            Weights::ByClass(weights) => {
                Some(WeightsSpec::ByClass(weights.iter().cloned().collect()))
            }
            Weights::BySample(weights) => Some(WeightsSpec::BySample(weights.to_vec())),
        };
    }
}

/// Returns the specification of a transform: its name with all of its parameters.
fn spec(kind: &str, params: impl Serialize) -> TransformSpec {
    match serde_json::to_value(params) {
        Ok(Value::Object(params)) => TransformSpec {
            kind: kind.to_owned(),
            params,
        },
        _ => unreachable!("parameters are a table"),
    }
}

pub(crate) fn transform_spec(transform: &Transform) -> Transforms {
    match transform {
        Transform::Train(train) => Transforms::One(spec("train", train)),
        Transform::Eval(eval) => Transforms::One(spec("eval", eval)),
        Transform::List(list) => {
            let ops = list.ops().iter();
            Transforms::List(ops.map(|op| spec(op.name(), op.params())).collect())
        }
        _ => Transforms::One(spec("keep_encoded", json!({}))),
    }
}

pub(crate) fn batch_transform_spec(transform: &BatchTransform) -> Transforms {
    let choices = transform.choices().iter();
    let specs = choices.map(|&(mixing, weight)| match mixing {
        Mixing::Mixup { alpha } => spec("Mixup", json!({"alpha": alpha, "weight": weight})),
        Mixing::CutMix { alpha } => spec("CutMix", json!({"alpha": alpha, "weight": weight})),
        _ => spec("Nothing", json!({"weight": weight})),
    });
    Transforms::List(specs.collect())
}

/// Returns the mean and standard deviation that pixels are normalized with: from an option, or from an op of a list.
fn normalize(given: &LoaderOptions, transform: &Transform) -> Result<Option<Normalize>> {
    let listed = match transform {
        Transform::List(list) => list.normalize(),
        _ => None,
    };
    let given = given
        .normalize
        .map(|NormalizeSpec { mean, std }| Normalize { mean, std });
    match (given, listed) {
        (Some(given), Some(listed)) if given != listed => {
            let found = "given as well as Normalize of the transform, with other numbers";
            Err(Error::option("normalize", found, "one of the two"))
        }
        (given, listed) => Ok(given.or(listed)),
    }
}

fn invalid(name: &'static str, error: String) -> Error {
    Error::Invalid { name, error }
}

/// Returns the shuffle; `trains` is the default that follows from the transform, if there is one.
fn shuffle(given: &LoaderOptions, trains: Option<bool>) -> Result<Shuffle> {
    let by_transform = trains.map(ShuffleSpec::from);
    let Some(ShuffleSpec(name)) = given.shuffle.as_ref().or(by_transform.as_ref()) else {
        return Err(Error::Missing {
            name: "shuffle",
            expected: "choose true or false, as a transform without a random operation does not say",
        });
    };
    let Some(mut shuffle) = Shuffle::named(name) else {
        let names: Vec<&str> = Shuffle::names().collect();
        let expected = format!("true, false or one of {}", names.join(", "));
        return Err(Error::option("shuffle", format!("{name:?}"), expected));
    };
    for (option, given, size) in [
        (
            "block_records",
            given.block_records,
            &mut shuffle.block_records,
        ),
        (
            "window_blocks",
            given.window_blocks,
            &mut shuffle.window_blocks,
        ),
    ] {
        match given {
            Some(given) if !Shuffle::named(name).is_some_and(|of| of.has_blocks()) => {
                let expected = format!("nothing: shuffle {name:?} has no blocks");
                return Err(Error::option(option, given, expected));
            }
            given => *size = given.unwrap_or(0),
        }
    }
    Ok(shuffle)
}

/// Reads the parameters of a transform that is not an op of a list.
fn params<T: DeserializeOwned>(spec: &TransformSpec) -> Result<T, String> {
    T::deserialize(Value::Object(spec.params.clone())).map_err(|e| format!("{}: {e}", spec.kind))
}

fn transform(transforms: &Transforms) -> Result<Transform, String> {
    #[derive(Deserialize)]
    #[serde(deny_unknown_fields)]
    struct KeepEncoded {}

    let list = match transforms {
        Transforms::List(list) => list,
        Transforms::One(spec) => {
            return match spec.kind.as_str() {
                "train" | "TrainTransform" => params(spec).map(Transform::Train),
                "eval" | "EvalTransform" => params::<EvalTransform>(spec).map(Transform::Eval),
                "keep_encoded" | "KeepEncoded" => {
                    params::<KeepEncoded>(spec).map(|_| Transform::KeepEncoded)
                }
                op if ops::NAMES.contains(&op) => Err(format!(
                    "{op} has to be in a list: transform = [{{ kind = \"{op}\" }}]"
                )),
                other => Err(format!(
                    "unknown transform {other:?}, expected train, eval, keep_encoded or a list of {}",
                    ops::NAMES.join(", ")
                )),
            };
        }
    };
    let op = |(i, spec): (usize, &TransformSpec)| {
        ops::parse(&spec.kind, Value::Object(spec.params.clone()))
            .map_err(|e| format!("number {} of the list: {e}", i + 1))
    };
    let ops: Result<Vec<Op>, String> = list.iter().enumerate().map(op).collect();
    let list = Compose::new(ops?).map_err(|e| e.to_string())?;
    Ok(Transform::List(list))
}

/// Reads one way of mixing a batch, or several with their weights.
fn batch_transform(transforms: &Transforms) -> Result<BatchTransform, String> {
    #[derive(Deserialize)]
    #[serde(deny_unknown_fields)]
    struct Weighted {
        #[serde(default = "one")]
        weight: f64,
    }

    #[derive(Deserialize)]
    #[serde(deny_unknown_fields)]
    struct WeightedAlpha {
        #[serde(default = "one")]
        alpha: f64,
        #[serde(default = "one")]
        weight: f64,
    }

    fn one() -> f64 {
        1.0
    }

    let choice = |spec: &TransformSpec| -> Result<(Mixing, f64), String> {
        match spec.kind.as_str() {
            "Mixup" => params(spec)
                .map(|WeightedAlpha { alpha, weight }| (Mixing::Mixup { alpha }, weight)),
            "CutMix" => params(spec)
                .map(|WeightedAlpha { alpha, weight }| (Mixing::CutMix { alpha }, weight)),
            "Nothing" => params(spec).map(|Weighted { weight }| (Mixing::Nothing, weight)),
            other => Err(format!(
                "unknown {other:?}, expected Mixup, CutMix or Nothing"
            )),
        }
    };
    let choices: Result<Vec<_>, String> = match transforms {
        Transforms::One(spec) => choice(spec).map(|choice| vec![choice]),
        Transforms::List(list) => list.iter().map(choice).collect(),
    };
    BatchTransform::new(choices?).map_err(|e| e.to_string())
}

fn sampling(given: &LoaderOptions) -> Result<Sampling> {
    let mut sampling = Sampling::default();
    for (name, length, expected) in [
        (
            "indices",
            given.indices.as_ref().map(Vec::len),
            "at least one number",
        ),
        (
            "classes",
            given.classes.as_ref().map(Vec::len),
            "at least one class",
        ),
        (
            "weights",
            given.weights.as_ref().map(WeightsSpec::len),
            "at least one",
        ),
    ] {
        if length == Some(0) {
            return Err(Error::option(name, "empty", expected));
        }
    }
    let mut indices = given.indices.clone().unwrap_or_default();
    indices.sort_unstable();
    sampling.indices = indices.into();
    for class in given.classes.iter().flatten() {
        match class {
            Class::Name(name) => sampling.classes.push(name.clone()),
            Class::Label(label) => sampling.labels.push(*label),
        }
    }
    sampling.limit = given.limit.unwrap_or(0);
    sampling.num_samples = given.num_samples.unwrap_or(0);
    sampling.repeats = given.repeats.unwrap_or(0);
    sampling.weights = match (&given.weights, given.class_balanced.unwrap_or(false)) {
        (None, false) => Weights::None,
        (None, true) => Weights::Balanced,
        (Some(_), true) => {
            let found = "given as well as class_balanced";
            return Err(Error::option("weights", found, "one of the two"));
        }
        (Some(WeightsSpec::BySample(weights)), false) => {
            Weights::BySample(weights.as_slice().into())
        }
        (Some(WeightsSpec::ByLabel(weights)), false) => Weights::ByLabel(weights.clone()),
        (Some(WeightsSpec::ByClass(weights)), false) => {
            Weights::ByClass(weights.clone().into_iter().collect())
        }
    };
    Ok(sampling)
}

#[cfg(test)]
mod tests {
    use forebay_image::{Dtype, TrainTransform};
    use serde_json::json;

    use super::*;

    fn options(given: Value) -> Result<Options, String> {
        let given = LoaderOptions::deserialize(given).map_err(|e| e.to_string())?;
        Options::from_schema(&given).map_err(|e| e.to_string())
    }

    #[test]
    fn a_transform_alone_gives_the_defaults() {
        let expected = Options::new(32, Transform::Train(TrainTransform::new(224)));
        assert_eq!(options(json!({"transform": "train"})).unwrap(), expected);
    }

    #[test]
    fn transforms_decide_shuffle_and_drop_last() {
        let fixed = json!([{"kind": "Resize", "size": 99}, {"kind": "CenterCrop", "size": 96}]);
        let random = json!([{"kind": "CenterCrop", "size": 96}, {"kind": "RandomHorizontalFlip"}]);
        for (given, expected) in [
            (json!({"transform": "train"}), ("blocks", true)),
            (json!({"transform": random}), ("blocks", true)),
            (json!({"transform": "eval"}), ("none", false)),
            (
                json!({"transform": "train", "shuffle": false}),
                ("none", true),
            ),
            (
                json!({"transform": "eval", "shuffle": "full"}),
                ("full", false),
            ),
            (
                json!({"transform": "eval", "drop_last": true}),
                ("none", true),
            ),
            (
                json!({"transform": fixed, "shuffle": false}),
                ("none", false),
            ),
            (
                json!({"transform": fixed, "shuffle": true}),
                ("blocks", true),
            ),
            (
                json!({"transform": "keep_encoded", "shuffle": "full"}),
                ("full", true),
            ),
        ] {
            let options = options(given.clone()).unwrap();
            assert_eq!(
                (options.shuffle.name(), options.drop_last),
                expected,
                "{given}"
            );
        }
        for (given, missing) in [
            (
                json!({}),
                "option transform is not given: choose \"train\", \"eval\"",
            ),
            (
                json!({"transform": fixed}),
                "option shuffle is not given: choose true or false",
            ),
            (
                json!({"transform": "keep_encoded", "drop_last": true}),
                "option shuffle is not given",
            ),
        ] {
            let error = options(given).unwrap_err();
            assert!(error.contains(missing), "{error}");
        }
    }

    #[test]
    fn lists_normalize_into_floating_point() {
        let list = json!([{"kind": "RandomResizedCrop", "size": 96}, {"kind": "Normalize"}]);
        let read = options(json!({"transform": list})).unwrap();
        assert_eq!(read.output.dtype, Dtype::Float32);
        assert!(read.output.normalize.is_some());
        let half = options(json!({"transform": list, "dtype": "float16"})).unwrap();
        assert_eq!(half.output.dtype, Dtype::Float16);
    }

    #[test]
    fn samples_are_selected_by_every_option() {
        let read = options(json!({
            "transform": "train", "indices": [9, 2], "classes": ["cat", 3], "limit": 5, "weights": [[3, 2.0]], "num_samples": 7, "repeats": 2,
        }))
        .unwrap();
        let expected = Sampling {
            indices: [2, 9].into(),
            classes: vec!["cat".to_owned()],
            labels: vec![3],
            limit: 5,
            num_samples: 7,
            repeats: 2,
            weights: Weights::ByLabel(vec![(3, 2.0)]),
            ..Default::default()
        };
        assert_eq!(read.sampling, expected);
        let by_sample = options(json!({"transform": "train", "weights": [0.5, 1]})).unwrap();
        let expected = Weights::BySample([0.5, 1.0].into());
        assert_eq!(by_sample.sampling.weights, expected);
    }

    #[test]
    fn errors_say_what_is_possible() {
        for (given, part) in [
            (json!({"shuffle": "sometimes"}), "none, blocks, full"),
            (
                json!({"shuffle": "full", "window_blocks": 2}),
                "\"full\" has no blocks",
            ),
            (json!({"transform": {"kind": "train", "sise": 3}}), "sise"),
            (json!({"transform": {"kind": "flip"}}), "\"flip\""),
            (
                json!({"transform": {"kind": "Resize", "size": 3}}),
                "in a list",
            ),
            (
                json!({"transform": ["keep_encoded"]}),
                "number 1 of the list",
            ),
            (
                json!({"batch_transform": {"kind": "Mixup", "alpha": -1.0}}),
                "alpha",
            ),
            (
                json!({"batch_transform": "Mixdown"}),
                "Mixup, CutMix or Nothing",
            ),
            (
                json!({"weights": [1.0], "class_balanced": true}),
                "one of the two",
            ),
        ] {
            let mut given = given;
            if given.get("transform").is_none() {
                given["transform"] = json!("train");
            }
            let error = options(given).unwrap_err();
            assert!(error.contains(part), "{error}");
        }
    }
}
