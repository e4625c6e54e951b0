//! A job of CONFIG.toml as the loader's options: the names and defaults of `forebay.Loader`.

use forebay_image::{
    BatchTransform, ColorJitter, Dtype, EvalTransform, Fill, Interpolation, Layout, Mixing, Motion,
    Normalize, RandAugment, RandomErasing, RandomGrayscale, RandomResizedCrop, ResizeTo, Size,
    Step, TrainTransform, Transform, TransformList, TrivialAugmentWide,
};
use forebay_loader::plan::Shuffle as LoaderShuffle;
use forebay_loader::{OnError, Options, Weights};
use forebay_wire::wire::StreamSpec;
use serde::Deserialize;

use super::config::{Job, Shuffle};

/// Samples a batch where nothing is said.
const BATCH_SIZE: u64 = 32;
/// Side of the default transform's output.
const SIDE: u32 = 224;

type Result<T, E = String> = std::result::Result<T, E>;

/// The streams of a job: everything but the rank, and the world size where it is left open.
pub(super) fn spec(job: &Job) -> Result<StreamSpec> {
    let (transform, normalize) = match &job.transform {
        None => (Transform::Train(TrainTransform::new(SIDE)), None),
        Some(value) => transform(value).map_err(|e| format!("transform: {e}"))?,
    };
    let mut options = Options::new(job.batch_size.unwrap_or(BATCH_SIZE), transform);
    options.world_size = job.world_size.unwrap_or(0);
    options.seed = job.seed.unwrap_or(0);
    options.lanes = job.lanes.unwrap_or(0);
    options.shuffle = shuffle(job)?;
    options.output.layout = match job.layout.as_deref() {
        None | Some("nhwc") => Layout::Nhwc,
        Some("nchw") => Layout::Nchw,
        Some(other) => return Err(choice("layout", other, &["nhwc", "nchw"])),
    };
    options.output.normalize = normalize;
    options.output.dtype = match job.dtype.as_deref() {
        None if normalize.is_some() => Dtype::Float32,
        None | Some("uint8") => Dtype::Uint8,
        Some("float32") => Dtype::Float32,
        Some("float16") => Dtype::Float16,
        Some("bfloat16") => Dtype::Bfloat16,
        Some(other) => {
            let all = ["uint8", "float32", "float16", "bfloat16"];
            return Err(choice("dtype", other, &all));
        }
    };
    options.batch_transform = match &job.batch_transform {
        None => None,
        Some(value) => Some(batch_transform(value).map_err(|e| format!("batch_transform: {e}"))?),
    };
    if let Some(profile) = &job.profile {
        options.decode.profile = profile
            .parse()
            .map_err(|_| choice("profile", profile, &["pillow", "opencv", "tensorflow"]))?;
    }
    options.decode.exif = job.exif_orientation.unwrap_or(false);
    options.decode.scaled = job.dct_scaling.unwrap_or(false);
    options.keep_last = !job.drop_last.unwrap_or(true);
    options.sampling.classes = job.classes.clone().unwrap_or_default();
    options.sampling.limit = job.limit.unwrap_or(0);
    if job.class_balanced == Some(true) {
        options.sampling.weights = Weights::Balanced;
    }
    options.sampling.draws = job.draws.unwrap_or(0);
    options.sampling.repeats = job.repeats.unwrap_or(0);
    options.on_error = match job.on_error.as_deref() {
        None | Some("raise") => OnError::Raise,
        Some("skip") => OnError::Skip,
        Some("zero") => OnError::Zero,
        Some(other) => return Err(choice("on_error", other, &["raise", "skip", "zero"])),
    };
    Ok(options.to_spec(job.split.as_deref().unwrap_or_default()))
}

fn choice(name: &str, found: &str, expected: &[&str]) -> String {
    format!("{name} is {found:?}: expected {}", expected.join(", "))
}

fn shuffle(job: &Job) -> Result<LoaderShuffle> {
    let name = match &job.shuffle {
        None | Some(Shuffle::Whether(true)) => "blocks",
        Some(Shuffle::Whether(false)) => "none",
        Some(Shuffle::Named(name)) => name,
    };
    let shuffle = match name {
        "blocks" => {
            return Ok(LoaderShuffle::Blocks {
                block_records: job.block_records.unwrap_or(0),
                window_blocks: job.window_blocks.unwrap_or(0),
            });
        }
        "full" => LoaderShuffle::Full,
        "none" => LoaderShuffle::None,
        other => return Err(choice("shuffle", other, &["blocks", "full", "none"])),
    };
    if job.block_records.is_some() || job.window_blocks.is_some() {
        return Err(
            "block_records and window_blocks: only shuffle = \"blocks\" has blocks".to_owned(),
        );
    }
    Ok(shuffle)
}

/// A side, or height and width.
#[derive(Debug, Clone, Copy, Deserialize)]
#[serde(untagged, expecting = "expected a side in pixels, or [height, width]")]
enum Sides {
    One(u32),
    Two(Size),
}

impl Sides {
    fn both(self) -> Size {
        match self {
            Sides::One(side) => (side, side),
            Sides::Two(size) => size,
        }
    }
}

/// A factor around 1 (a part of a turn around 0, for hue), or its bounds.
#[derive(Debug, Clone, Copy, Deserialize)]
#[serde(untagged, expecting = "expected a number, or [low, high]")]
enum Range {
    Around(f64),
    Bounds((f64, f64)),
}

#[derive(Debug, Clone, Deserialize)]
#[serde(untagged, expecting = "expected a number, three numbers or \"random\"")]
enum Filling {
    One(f32),
    Three([f32; 3]),
    Named(String),
}

/// One transform, by the name it has in Python.
#[derive(Debug, Deserialize)]
#[serde(tag = "kind", deny_unknown_fields)]
enum Named {
    #[serde(alias = "train")]
    TrainTransform {
        size: Option<u32>,
        scale: Option<(f64, f64)>,
        ratio: Option<(f64, f64)>,
        flip: Option<f64>,
    },
    #[serde(alias = "eval")]
    EvalTransform {
        resize: Option<u32>,
        crop: Option<u32>,
    },
    #[serde(alias = "raw")]
    Raw {},
    RandomResizedCrop {
        size: Option<Sides>,
        scale: Option<(f64, f64)>,
        ratio: Option<(f64, f64)>,
    },
    Resize {
        size: Sides,
    },
    CentreCrop {
        size: Sides,
    },
    RandomHorizontalFlip {
        p: Option<f64>,
    },
    RandomVerticalFlip {
        p: Option<f64>,
    },
    ColorJitter {
        brightness: Option<Range>,
        contrast: Option<Range>,
        saturation: Option<Range>,
        hue: Option<Range>,
    },
    Grayscale {},
    RandomGrayscale {
        p: Option<f64>,
    },
    RandAugment {
        num_ops: Option<u32>,
        magnitude: Option<u32>,
        num_magnitude_bins: Option<u32>,
        interpolation: Option<String>,
        fill: Option<Colour>,
    },
    TrivialAugmentWide {
        num_magnitude_bins: Option<u32>,
        interpolation: Option<String>,
        fill: Option<Colour>,
    },
    RandomErasing {
        p: Option<f64>,
        scale: Option<(f64, f64)>,
        ratio: Option<(f64, f64)>,
        value: Option<Filling>,
    },
    Normalize {
        mean: Option<[f32; 3]>,
        std: Option<[f32; 3]>,
    },
}

fn named(value: &toml::Value) -> Result<Named> {
    // `"raw"` is `{ kind = "raw" }`.
    let value = match value {
        toml::Value::String(kind) => {
            let kind = toml::Value::String(kind.clone());
            toml::Value::Table([("kind".to_owned(), kind)].into_iter().collect())
        }
        value => value.clone(),
    };
    Named::deserialize(value).map_err(|e| e.message().replace('\n', " "))
}

/// One transform, or a list; and the normalisation of a list.
fn transform(value: &toml::Value) -> Result<(Transform, Option<Normalize>)> {
    let toml::Value::Array(values) = value else {
        return match named(value)? {
            Named::TrainTransform {
                size,
                scale,
                ratio,
                flip,
            } => {
                let plain = TrainTransform::new(size.unwrap_or(SIDE));
                let train = TrainTransform {
                    scale: scale.unwrap_or(plain.scale),
                    ratio: ratio.unwrap_or(plain.ratio),
                    flip: flip.unwrap_or(plain.flip),
                    ..plain
                };
                Ok((Transform::Train(train), None))
            }
            Named::EvalTransform { resize, crop } => {
                let eval = EvalTransform::new(resize.unwrap_or(256), crop.unwrap_or(SIDE));
                Ok((Transform::Eval(eval), None))
            }
            Named::Raw {} => Ok((Transform::Raw, None)),
            _ => Err("a single one of these has to be in a list: transform = [{ ... }]".to_owned()),
        };
    };
    let mut steps = Vec::new();
    let mut normalize = None;
    let mut erased_before = false;
    for (i, value) in values.iter().enumerate() {
        let at = |e: String| format!("number {} of the list: {e}", i + 1);
        match (named(value).map_err(at)?, &normalize) {
            (Named::Normalize { mean, std }, None) => {
                normalize = Some(Normalize {
                    mean: mean.unwrap_or([0.485, 0.456, 0.406]),
                    std: std.unwrap_or([0.229, 0.224, 0.225]),
                });
            }
            (Named::Normalize { .. }, Some(_)) => return Err(at("a second Normalize".to_owned())),
            (other, normalized) => {
                let step = step(other).map_err(at)?;
                if normalized.is_some() && !matches!(step, Step::RandomErasing(_)) {
                    return Err(at("only RandomErasing comes after Normalize".to_owned()));
                }
                erased_before |= normalized.is_none() && matches!(step, Step::RandomErasing(_));
                steps.push(step);
            }
        }
    }
    if normalize.is_some() && erased_before {
        return Err(
            "RandomErasing before Normalize: put it last, its value is what the output has"
                .to_owned(),
        );
    }
    let list = TransformList::new(steps).map_err(|e| e.to_string())?;
    Ok((Transform::List(list), normalize))
}

fn step(named: Named) -> Result<Step> {
    let around = |range: Option<Range>, middle: f64| {
        range.map(|range| match range {
            Range::Around(by) if middle == 0.0 => (-by, by),
            Range::Around(by) => ((middle - by).max(0.0), middle + by),
            Range::Bounds(bounds) => bounds,
        })
    };
    Ok(match named {
        Named::RandomResizedCrop { size, scale, ratio } => {
            Step::RandomResizedCrop(RandomResizedCrop {
                size: size.map_or((SIDE, SIDE), Sides::both),
                scale: scale.unwrap_or((0.08, 1.0)),
                ratio: ratio.unwrap_or((3.0 / 4.0, 4.0 / 3.0)),
            })
        }
        Named::Resize { size } => Step::Resize(match size {
            Sides::One(side) => ResizeTo::Short(side),
            Sides::Two(size) => ResizeTo::Exact(size),
        }),
        Named::CentreCrop { size } => Step::CentreCrop(size.both()),
        Named::RandomHorizontalFlip { p } => Step::RandomHorizontalFlip(p.unwrap_or(0.5)),
        Named::RandomVerticalFlip { p } => Step::RandomVerticalFlip(p.unwrap_or(0.5)),
        Named::ColorJitter {
            brightness,
            contrast,
            saturation,
            hue,
        } => Step::ColorJitter(ColorJitter {
            brightness: around(brightness, 1.0),
            contrast: around(contrast, 1.0),
            saturation: around(saturation, 1.0),
            hue: around(hue, 0.0),
        }),
        Named::Grayscale {} => Step::RandomGrayscale(RandomGrayscale { p: 1.0 }),
        Named::RandomGrayscale { p } => Step::RandomGrayscale(RandomGrayscale {
            p: p.unwrap_or(0.1),
        }),
        Named::RandAugment {
            num_ops,
            magnitude,
            num_magnitude_bins,
            interpolation,
            fill,
        } => Step::RandAugment(RandAugment {
            num_ops: num_ops.unwrap_or(2),
            magnitude: magnitude.unwrap_or(9),
            num_magnitude_bins: num_magnitude_bins.unwrap_or(31),
            motion: motion(interpolation.as_deref(), fill)?,
        }),
        Named::TrivialAugmentWide {
            num_magnitude_bins,
            interpolation,
            fill,
        } => Step::TrivialAugmentWide(TrivialAugmentWide {
            num_magnitude_bins: num_magnitude_bins.unwrap_or(31),
            motion: motion(interpolation.as_deref(), fill)?,
        }),
        Named::RandomErasing {
            p,
            scale,
            ratio,
            value,
        } => Step::RandomErasing(RandomErasing {
            p: p.unwrap_or(0.5),
            scale: scale.unwrap_or((0.02, 0.33)),
            ratio: ratio.unwrap_or((0.3, 3.3)),
            value: match value {
                None => Fill::Value([0.0; 3]),
                Some(Filling::One(value)) => Fill::Value([value; 3]),
                Some(Filling::Three(values)) => Fill::Value(values),
                Some(Filling::Named(name)) if name == "random" => Fill::Random,
                Some(Filling::Named(name)) => return Err(choice("value", &name, &["random"])),
            },
        }),
        Named::TrainTransform { .. } | Named::EvalTransform { .. } | Named::Raw {} => {
            return Err("give it alone, or write out what it does".to_owned());
        }
        Named::Normalize { .. } => unreachable!("taken out of the list before"),
    })
}

/// What comes in from outside: a grey, or red, green and blue.
#[derive(Debug, Deserialize)]
#[serde(untagged)]
enum Colour {
    Grey(u8),
    Three([u8; 3]),
}

fn motion(interpolation: Option<&str>, fill: Option<Colour>) -> Result<Motion> {
    let interpolation = match interpolation {
        None => Interpolation::default(),
        Some(name) => Interpolation::from_name(name).ok_or_else(|| {
            choice(
                "interpolation",
                name,
                &Interpolation::ALL.map(Interpolation::name),
            )
        })?,
    };
    Ok(Motion {
        interpolation,
        fill: match fill {
            None => [0; 3],
            Some(Colour::Grey(grey)) => [grey; 3],
            Some(Colour::Three(colour)) => colour,
        },
    })
}

/// A way to mix a batch, with its weight where there are several.
#[derive(Debug, Deserialize)]
#[serde(tag = "kind", deny_unknown_fields)]
enum MixingNamed {
    Mixup {
        alpha: Option<f64>,
        weight: Option<f64>,
    },
    CutMix {
        alpha: Option<f64>,
        weight: Option<f64>,
    },
    Nothing {
        weight: Option<f64>,
    },
}

/// One way to mix a batch, or a choice of several.
fn batch_transform(value: &toml::Value) -> Result<BatchTransform> {
    let values = match value {
        toml::Value::Array(values) => values.clone(),
        one => vec![one.clone()],
    };
    let mut choices = Vec::new();
    for value in values {
        let named = MixingNamed::deserialize(value).map_err(|e| e.message().replace('\n', " "))?;
        let (mixing, weight) = match named {
            MixingNamed::Mixup { alpha, weight } => {
                let alpha = alpha.unwrap_or(1.0);
                (Mixing::Mixup { alpha }, weight)
            }
            MixingNamed::CutMix { alpha, weight } => {
                let alpha = alpha.unwrap_or(1.0);
                (Mixing::CutMix { alpha }, weight)
            }
            MixingNamed::Nothing { weight } => (Mixing::Nothing, weight),
        };
        choices.push((mixing, weight.unwrap_or(1.0)));
    }
    BatchTransform::new(choices).map_err(|e| e.to_string())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn job(text: &str) -> Result<StreamSpec> {
        let job: Job = toml::from_str(text).map_err(|e| e.message().to_owned())?;
        spec(&job)
    }

    fn options(text: &str) -> Options {
        Options::from_spec(&job(text).unwrap(), u64::MAX).unwrap()
    }

    #[test]
    fn a_job_of_nothing_has_the_defaults_of_the_loader() {
        let mut expected = Options::new(32, Transform::Train(TrainTransform::new(224)));
        expected.world_size = 0;
        assert_eq!(options(""), expected);
    }

    #[test]
    fn everything_can_be_said() {
        let options = options(
            r#"
            split = "train"
            batch_size = 8
            world_size = 4
            seed = 7
            shuffle = "full"
            lanes = 8
            layout = "nchw"
            profile = "opencv"
            exif_orientation = true
            dct_scaling = true
            drop_last = false
            limit = 100
            on_error = "skip"
            transform = [
                { kind = "RandomResizedCrop", size = [160, 192] },
                { kind = "RandomHorizontalFlip" },
                { kind = "ColorJitter", brightness = 0.4, hue = 0.1, contrast = [0.5, 1.5] },
                { kind = "RandAugment", magnitude = 7, interpolation = "bilinear", fill = [124, 116, 104] },
                { kind = "Normalize" },
                { kind = "RandomErasing", value = "random" },
            ]
            batch_transform = [{ kind = "Mixup", alpha = 0.2 }, { kind = "CutMix", weight = 3.0 }]
            "#,
        );
        assert_eq!(options.output.dtype, Dtype::Float32);
        assert_eq!(options.output.layout, Layout::Nchw);
        assert_eq!(
            (options.batch_size, options.world_size, options.seed),
            (8, 4, 7)
        );
        assert!(options.keep_last && options.decode.exif && options.decode.scaled);
        assert_eq!(options.sampling.limit, 100);
        let Transform::List(list) = &options.transform else {
            panic!("{:?}", options.transform)
        };
        assert_eq!(list.output_size(), (160, 192));
        let Step::ColorJitter(jitter) = list.steps()[2] else {
            panic!("{list:?}")
        };
        assert_eq!(jitter.brightness, Some((0.6, 1.4)));
        assert_eq!(jitter.hue, Some((-0.1, 0.1)));
        assert_eq!(jitter.contrast, Some((0.5, 1.5)));
        assert!(options.batch_transform.is_some());
    }

    #[test]
    fn single_transforms_have_short_names() {
        let train = TrainTransform {
            flip: 0.0,
            ..TrainTransform::new(160)
        };
        for (text, expected) in [
            (
                r#"transform = { kind = "train", size = 160, flip = 0.0 }"#,
                Transform::Train(train),
            ),
            (
                r#"transform = { kind = "EvalTransform", crop = 200 }"#,
                Transform::Eval(EvalTransform::new(256, 200)),
            ),
            (r#"transform = "raw""#, Transform::Raw),
        ] {
            assert_eq!(options(text).transform, expected);
        }
    }

    #[test]
    fn what_cannot_be_says_what_can() {
        for (text, part) in [
            (r#"shuffle = "sometimes""#, "blocks, full, none"),
            (
                "shuffle = false\nblock_records = 3",
                "only shuffle = \"blocks\"",
            ),
            (r#"dtype = "float64""#, "bfloat16"),
            (r#"on_error = "ignore""#, "raise, skip, zero"),
            (r#"transform = { kind = "train", sise = 3 }"#, "sise"),
            (r#"transform = { kind = "flip" }"#, "flip"),
            (r#"transform = { kind = "Resize", size = 3 }"#, "in a list"),
            (r#"transform = ["raw"]"#, "number 1 of the list"),
            (
                r#"transform = [{ kind = "RandomResizedCrop" }, { kind = "Normalize" }, { kind = "Grayscale" }]"#,
                "after Normalize",
            ),
            (
                r#"batch_transform = { kind = "Mixup", alpha = -1.0 }"#,
                "alpha",
            ),
        ] {
            let error = job(text).unwrap_err();
            assert!(error.contains(part), "{text}: {error}");
        }
    }
}
