//! Loader options as they travel: `forebay.wire.v1.StreamSpec`.
//!
//! A spec comes from somebody else: every value is checked here or when the options are resolved, and nothing
//! is allocated from it before.

mod mixing;
mod ops;

use forebay_image::{Dtype, EvalTransform, Layout, Normalize, Output, TrainTransform, Transform};
use forebay_proto::wire;

use crate::decode;
use crate::error::{Error, Result};
use crate::options::Options;
use crate::plan::Shuffle;
use crate::sampling::Sampling;
use forebay_options::{LabelBase, OnError};

/// Largest batch that is made for somebody else, unless told otherwise.
pub const MAX_BATCH_BYTES: u64 = 1 << 30;

impl Options {
    /// The options that a spec asks for; the split it names is in [`wire::StreamSpec::split`].
    ///
    /// `max_batch_bytes` bounds the pixels of one batch ([`MAX_BATCH_BYTES`] is a good bound).
    ///
    /// # Errors
    ///
    /// A value that is missing, unknown, out of range or too large.
    pub fn from_spec(spec: &wire::StreamSpec, max_batch_bytes: u64) -> Result<Options> {
        let transform = transform_from(spec.transform.as_ref())?;
        transform.validate().map_err(Error::Transform)?;
        let mut options = Options::new(spec.batch_size, transform);
        options.rank = spec.rank;
        options.world_size = spec.world_size;
        options.lanes = spec.lanes;
        options.seed = spec.seed;
        options.shuffle = shuffle_from(spec.shuffle.as_ref())?;
        options.output = output_from(spec)?;
        options.batch_transform = mixing::from_wire(spec.batch_transform.as_ref())?;
        options.keep_last = spec.keep_last;
        options.sampling = Sampling::from_wire(spec.sampling.as_ref())?;
        options.on_error = match wire::OnError::try_from(spec.on_error) {
            Ok(wire::OnError::Raise | wire::OnError::Unspecified) => OnError::Raise,
            Ok(wire::OnError::Skip) => OnError::Skip,
            Ok(wire::OnError::Zero) => OnError::Zero,
            Err(_) => {
                let expected = "1 (raise), 2 (skip) or 3 (zero)";
                return Err(Error::option("on_error", spec.on_error, expected));
            }
        };
        options.label_base = match wire::LabelBase::try_from(spec.label_base) {
            Ok(wire::LabelBase::Zero | wire::LabelBase::Unspecified) => LabelBase::Zero,
            Ok(wire::LabelBase::One) => LabelBase::One,
            Ok(wire::LabelBase::Stored) => LabelBase::Stored,
            Err(_) => {
                let expected = "1 (zero), 2 (one) or 3 (stored)";
                return Err(Error::option("label_base", spec.label_base, expected));
            }
        };
        options.decode = decode::from_wire(spec.decode.as_ref())?;
        if options.is_raw() {
            // How large batches are is known once there is a split, and of each when it is made.
            options.raw.most = options.raw.most.min(max_batch_bytes);
        }
        let bytes = options.batch_bytes()? as u64;
        if bytes > max_batch_bytes {
            let expected = format!("batches of at most {max_batch_bytes} bytes");
            let found = format!("{} samples, which is {bytes} bytes", spec.batch_size);
            return Err(Error::option("batch_size", found, expected));
        }
        Ok(options)
    }

    /// These options as a spec for a split.
    #[must_use]
    pub fn to_spec(&self, split: &str) -> wire::StreamSpec {
        wire::StreamSpec {
            split: split.to_owned(),
            batch_size: self.batch_size,
            rank: self.rank,
            world_size: self.world_size,
            lanes: self.lanes,
            seed: self.seed,
            shuffle: Some(shuffle_to(self.shuffle)),
            transform: transform_to(&self.transform),
            layout: match self.output.layout {
                Layout::Nhwc => wire::Layout::Nhwc,
                Layout::Nchw => wire::Layout::Nchw,
            }
            .into(),
            keep_last: self.keep_last,
            output: output_to(&self.output),
            sampling: self.sampling.to_wire(),
            on_error: match self.on_error {
                OnError::Raise => wire::OnError::Unspecified,
                OnError::Skip => wire::OnError::Skip,
                OnError::Zero => wire::OnError::Zero,
            }
            .into(),
            batch_transform: self.batch_transform.as_ref().map(mixing::to_wire),
            decode: decode::to_wire(&self.decode),
            label_base: match self.label_base {
                LabelBase::Zero => wire::LabelBase::Zero,
                LabelBase::One => wire::LabelBase::One,
                LabelBase::Stored => wire::LabelBase::Stored,
            }
            .into(),
        }
    }
}

/// Layout, type and normalisation; the last is checked when the options are resolved.
fn output_from(spec: &wire::StreamSpec) -> Result<Output> {
    let layout = match wire::Layout::try_from(spec.layout) {
        Ok(wire::Layout::Nhwc | wire::Layout::Unspecified) => Layout::Nhwc,
        Ok(wire::Layout::Nchw) => Layout::Nchw,
        Err(_) => return Err(Error::option("layout", spec.layout, "1 (NHWC) or 2 (NCHW)")),
    };
    let Some(output) = &spec.output else {
        return Ok(layout.into());
    };
    let dtype = match wire::Dtype::try_from(output.dtype) {
        Ok(wire::Dtype::Uint8 | wire::Dtype::Unspecified) => Dtype::Uint8,
        Ok(wire::Dtype::Float32) => Dtype::Float32,
        Ok(wire::Dtype::Float16) => Dtype::Float16,
        Ok(wire::Dtype::Bfloat16) => Dtype::Bfloat16,
        Err(_) => return Err(Error::option("dtype", output.dtype, "1 to 4")),
    };
    let three = |name: &'static str, numbers: &[f32]| {
        <[f32; 3]>::try_from(numbers)
            .map_err(|_| Error::option(name, format!("{} numbers", numbers.len()), "three numbers"))
    };
    let normalize = match &output.normalize {
        None => None,
        Some(normalize) => Some(Normalize {
            mean: three("mean", &normalize.mean)?,
            std: three("std", &normalize.std)?,
        }),
    };
    Ok(Output {
        layout,
        dtype,
        normalize,
    })
}

/// Nothing for bytes, so that specs of bytes are those of ever.
fn output_to(output: &Output) -> Option<wire::Output> {
    let dtype = match output.dtype {
        Dtype::Uint8 if output.normalize.is_none() => return None,
        Dtype::Uint8 => wire::Dtype::Uint8, // refused by the other side too
        Dtype::Float32 => wire::Dtype::Float32,
        Dtype::Float16 => wire::Dtype::Float16,
        Dtype::Bfloat16 => wire::Dtype::Bfloat16,
    };
    Some(wire::Output {
        dtype: dtype.into(),
        normalize: output.normalize.map(|normalize| wire::Normalize {
            mean: normalize.mean.to_vec(),
            std: normalize.std.to_vec(),
        }),
    })
}

fn transform_from(transform: Option<&wire::Transform>) -> Result<Transform> {
    match transform.and_then(|transform| transform.kind.as_ref()) {
        Some(wire::transform::Kind::Train(train)) => Ok(Transform::Train(TrainTransform {
            size: train.size,
            scale: (train.scale_min, train.scale_max),
            ratio: (train.ratio_min, train.ratio_max),
            flip: train.flip,
        })),
        Some(wire::transform::Kind::Eval(eval)) => Ok(Transform::Eval(EvalTransform {
            resize: eval.resize,
            crop: eval.crop,
        })),
        Some(wire::transform::Kind::List(list)) => ops::from_wire(list).map(Transform::List),
        Some(wire::transform::Kind::Raw(_)) => Ok(Transform::Raw),
        None => Err(Error::option(
            "transform",
            "missing, or one that this release does not know",
            "train, eval, list or raw",
        )),
    }
}

fn transform_to(transform: &Transform) -> Option<wire::Transform> {
    let kind = match transform {
        Transform::Train(train) => wire::transform::Kind::Train(wire::TrainTransform {
            size: train.size,
            scale_min: train.scale.0,
            scale_max: train.scale.1,
            ratio_min: train.ratio.0,
            ratio_max: train.ratio.1,
            flip: train.flip,
        }),
        Transform::Eval(eval) => wire::transform::Kind::Eval(wire::EvalTransform {
            resize: eval.resize,
            crop: eval.crop,
        }),
        Transform::List(list) => wire::transform::Kind::List(ops::to_wire(list)),
        Transform::Raw => wire::transform::Kind::Raw(wire::Raw {}),
        // A transform that the wire has no words for is left out, and refused by the other side.
        _ => return None,
    };
    Some(wire::Transform { kind: Some(kind) })
}

fn shuffle_from(shuffle: Option<&wire::Shuffle>) -> Result<Shuffle> {
    let Some(shuffle) = shuffle.filter(|shuffle| !shuffle.name.is_empty()) else {
        return Ok(Shuffle::default());
    };
    match Shuffle::named(&shuffle.name) {
        Some(named) => Ok(named.with_blocks(shuffle.block_records, shuffle.window_blocks)),
        None => {
            let names: Vec<&str> = Shuffle::names().collect();
            let found = format!("{:?}", shuffle.name);
            Err(Error::option("shuffle", found, names.join(", ")))
        }
    }
}

fn shuffle_to(shuffle: Shuffle) -> wire::Shuffle {
    wire::Shuffle {
        name: shuffle.name().to_owned(),
        block_records: shuffle.block_records,
        window_blocks: shuffle.window_blocks,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn options() -> Options {
        let mut options = Options::new(
            32,
            Transform::Train(TrainTransform {
                size: 160,
                scale: (0.1, 0.9),
                ratio: (3.0 / 4.0, 4.0 / 3.0),
                flip: 1.0 / 3.0,
            }),
        );
        options.rank = 3;
        options.world_size = 4;
        options.lanes = 16;
        options.seed = u64::MAX;
        options.output.layout = Layout::Nchw;
        options.keep_last = true;
        options.sampling.limit = 77;
        options.on_error = OnError::Skip;
        options.label_base = LabelBase::Stored;
        options.decode.profile = forebay_image::Profile::OpenCv;
        options.decode.exif = true;
        options.decode.limits.max_pixels = 1 << 20;
        options
    }

    #[test]
    fn specs_say_everything_about_batches() {
        for shuffle in [
            Shuffle::NONE,
            Shuffle::FULL,
            Shuffle::default(),
            Shuffle::blocks(5, 6),
        ] {
            for transform in [
                options().transform,
                Transform::Eval(EvalTransform::new(256, 224)),
            ] {
                let mut options = options();
                options.shuffle = shuffle;
                options.transform = transform.clone();
                let spec = options.to_spec("train");
                assert_eq!(spec.split, "train");
                assert_eq!(Options::from_spec(&spec, MAX_BATCH_BYTES).unwrap(), options);
            }
        }
    }

    #[test]
    fn specs_say_that_images_stay_encoded() {
        let mut options = Options::new(7, Transform::Raw);
        options.on_error = OnError::Zero;
        let spec = options.to_spec("train");
        options.raw.most = MAX_BATCH_BYTES;
        assert_eq!(Options::from_spec(&spec, MAX_BATCH_BYTES).unwrap(), options);
        let mut pixels = spec.clone();
        pixels.layout = wire::Layout::Nchw.into();
        let options = Options::from_spec(&pixels, MAX_BATCH_BYTES).unwrap();
        let error = options.resolve(1000, 1000).unwrap_err().to_string();
        assert!(error.contains("layout is nchw"), "{error}");
        let mut many = spec;
        many.batch_size = u64::MAX;
        assert!(Options::from_spec(&many, MAX_BATCH_BYTES).is_err());
    }

    #[test]
    fn specs_say_what_numbers_are() {
        let normalize = Some(Normalize {
            mean: [0.485, 0.456, 0.406],
            std: [0.229, 0.224, 0.225],
        });
        for (dtype, normalize) in [
            (Dtype::Uint8, None),
            (Dtype::Float32, normalize),
            (Dtype::Float16, None),
            (Dtype::Bfloat16, normalize),
        ] {
            let mut options = options();
            (options.output.dtype, options.output.normalize) = (dtype, normalize);
            let spec = options.to_spec("train");
            assert_eq!(Options::from_spec(&spec, MAX_BATCH_BYTES).unwrap(), options);
        }
    }

    #[test]
    fn specs_of_strangers_are_checked() {
        let good = options().to_spec("train");
        let refused = |change: &dyn Fn(&mut wire::StreamSpec)| {
            let mut spec = good.clone();
            change(&mut spec);
            Options::from_spec(&spec, MAX_BATCH_BYTES)
                .and_then(|options| options.resolve(1000, 1000))
                .unwrap_err()
                .to_string()
        };
        let train = |change: &dyn Fn(&mut wire::TrainTransform)| {
            refused(&|spec| {
                if let Some(wire::Transform {
                    kind: Some(wire::transform::Kind::Train(train)),
                }) = &mut spec.transform
                {
                    change(train);
                }
            })
        };
        assert!(refused(&|spec| spec.transform = None).contains("transform"));
        assert!(refused(&|spec| spec.layout = 9).contains("layout"));
        let output = |dtype: i32, mean: &[f32], std: &[f32]| {
            let normalize = Some(wire::Normalize {
                mean: mean.to_vec(),
                std: std.to_vec(),
            });
            refused(&|spec| {
                let normalize = normalize.clone();
                spec.output = Some(wire::Output { dtype, normalize });
            })
        };
        assert!(output(9, &[0.0; 3], &[1.0; 3]).contains("dtype"));
        assert!(output(2, &[0.0; 4], &[1.0; 3]).contains("mean"));
        assert!(output(2, &[0.0; 3], &[]).contains("std"));
        assert!(output(2, &[0.0; 3], &[1.0, 0.0, 1.0]).contains("std"));
        assert!(output(3, &[f32::NAN; 3], &[1.0; 3]).contains("mean"));
        assert!(output(1, &[0.0; 3], &[1.0; 3]).contains("uint8"));
        assert!(refused(&|spec| spec.shuffle.as_mut().unwrap().name += "9").contains("shuffle"));
        assert!(refused(&|spec| spec.batch_size = u64::MAX).contains("batch_size"));
        assert!(refused(&|spec| spec.batch_size = 1 << 23).contains("at most 1073741824 bytes"));
        assert!(refused(&|spec| spec.batch_size = 0).contains("batch_size"));
        assert!(refused(&|spec| spec.world_size = u64::MAX).contains("world_size"));
        assert!(refused(&|spec| spec.world_size = 0).contains("world_size"));
        assert!(refused(&|spec| spec.rank = 4).contains("rank"));
        assert!(refused(&|spec| spec.on_error = 9).contains("on_error"));
        assert!(refused(&|spec| spec.label_base = 9).contains("label_base"));
        assert!(refused(&|spec| spec.lanes = 10).contains("lanes"));
        assert!(train(&|train| train.size = u32::MAX).contains("size"));
        assert!(train(&|train| train.scale_min = f64::NAN).contains("scale"));
        assert!(train(&|train| train.ratio_max = f64::INFINITY).contains("ratio"));
        assert!(train(&|train| train.flip = f64::NAN).contains("flip"));
    }
}
