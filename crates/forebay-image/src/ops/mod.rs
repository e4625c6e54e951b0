//! Ops are the transforms that a list can contain. Each op has a file and a line in the table below.
//!
//! The file of an op contains its parameters (`Definition`: names, types, defaults, bounds, JSON
//! form) and its implementation (a trait of `Part`); the table has the kind of the implementation
//! and the number that identifies random draws (`Purpose`).
//! All other code (the wire, the command line, the Python package) knows ops by name and
//! parameters: [`parse`], [`Op::name`], [`Op::params`], [`schemas`].
//!
//! [`Compose`] validates the order of a list and runs it.

mod augment;
mod auto_augment;
mod bounds;
mod center_crop;
mod color_jitter;
mod compose;
mod gaussian_blur;
mod grayscale;
mod normalize;
mod parameters;
mod rand_augment;
mod random_affine;
mod random_erasing;
mod random_grayscale;
mod random_horizontal_flip;
mod random_iou_crop;
mod random_photometric_distort;
mod random_resized_crop;
mod random_rotation;
mod random_vertical_flip;
mod resize;
mod trivial_augment_wide;

#[cfg(test)]
pub(crate) use augment::{Operation, Space};
pub use auto_augment::{AutoAugment, Policy};
pub(crate) use bounds::{check_probability, check_side};
pub use center_crop::CenterCrop;
pub(crate) use center_crop::middle;
pub use color_jitter::ColorJitter;
pub use compose::Compose;
pub use gaussian_blur::GaussianBlur;
pub use grayscale::Grayscale;
pub use parameters::{
    Bounds, OpSchema, Parameter, ParameterKind, ParameterSchema, ShearBounds, Size,
};
pub use rand_augment::RandAugment;
pub use random_affine::RandomAffine;
#[cfg(test)]
pub(crate) use random_affine::inverse_matrix;
pub use random_erasing::{Fill, RandomErasing};
pub use random_grayscale::RandomGrayscale;
pub use random_horizontal_flip::RandomHorizontalFlip;
pub use random_iou_crop::RandomIoUCrop;
pub use random_photometric_distort::RandomPhotometricDistort;
pub use random_resized_crop::RandomResizedCrop;
pub(crate) use random_resized_crop::{check_crop, random_region};
pub use random_rotation::RandomRotation;
pub use random_vertical_flip::RandomVerticalFlip;
pub(crate) use resize::resized;
pub use resize::{Resize, ResizeTo};
pub use trivial_augment_wide::TrivialAugmentWide;

use crate::error::{Result, invalid};
use crate::geometry::{SpatialStep, Tracking};
use crate::output::{Normalize, Output};
use crate::pixels::PixelBuffer;
use crate::random::{Draws, Purpose, SampleSeed};
use forebay_jpeg::Region;
use serde::Serialize;
use serde::de::DeserializeOwned;
use serde_json::Value;

/// The definition of an op, in its file.
pub(crate) trait Definition: Serialize + DeserializeOwned {
    /// One sentence for users.
    const DOC: &'static str;
    /// Further sentences for users: which library gives equal results, where the op may stand in a list.
    const DETAILS: &'static str = "";
    /// The fields, in order.
    const PARAMETERS: &'static [Parameter];

    /// Whether the result for an image differs from epoch to epoch.
    const IS_RANDOM: bool = true;

    /// Checks the bounds of the parameters.
    fn check(&self) -> Result<()> {
        Ok(())
    }
}

/// The implementation of an op. Variants are in the order in which a list contains them.
pub(crate) enum Part<'a> {
    /// Selects the pixels of the image that become the output.
    Geometry(&'a dyn Geometry),
    /// Changes the resized image, with its own random numbers.
    Pixels(Purpose, &'a dyn Pixels),
    /// Normalizes the values.
    Normalize(&'a Normalize),
    /// Changes the finished sample.
    Sample(&'a dyn Sample),
}

/// The mapping from an image to the output: `crop` is resized to `output`, and `window` of the
/// result is kept.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Frame {
    /// Region of the image that is resized, in pixels of the image.
    pub(crate) crop: Region,
    /// Whether boxes whose center is outside of `crop` are dropped.
    pub(crate) centers: bool,
    /// Width and height of the resized crop, in pixels.
    pub(crate) output: (u32, u32),
    /// Region of the resized crop that is kept.
    pub(crate) window: Region,
}

/// An op that selects pixels.
pub(crate) trait Geometry {
    /// Returns height and width of every output; an error if they depend on the image.
    fn output_size(&self) -> Result<Size>;

    /// Returns whether this op may directly follow `before`, another geometry op.
    fn follows(&self, _before: &Op) -> bool {
        false
    }

    /// Narrows or resizes the result of the preceding op; the first op gets the whole image. If the
    /// op [needs boxes](Self::needs_boxes), the caller passes `tracking`, whose map leads to the
    /// image that `frame` describes.
    fn frame(&self, frame: Frame, seed: SampleSeed, tracking: Option<&Tracking<'_>>) -> Frame;

    /// Returns whether the op selects pixels by the boxes of the sample.
    fn needs_boxes(&self) -> bool {
        false
    }
}

/// An op on the pixels of the resized image.
pub(crate) trait Pixels {
    /// Changes the image. Returns the spatial step if the op moved pixels.
    fn apply(&self, picture: &mut PixelBuffer, draws: &mut Draws) -> Option<SpatialStep>;

    /// Returns whether boxes, masks and keypoints can be moved like the pixels.
    fn moves_objects(&self) -> bool {
        true
    }

    /// Returns the probability of a horizontal flip, for an op that does nothing else: directly
    /// after the resize, the resize performs the flip.
    fn mirrors(&self) -> Option<f64> {
        None
    }
}

/// An op on a finished sample.
pub(crate) trait Sample {
    /// Changes the sample, of this width and height in pixels.
    fn apply(&self, output: &Output, size: (usize, usize), seed: SampleSeed, out: &mut [u8]);
}

/// Declares [`Op`] and the dispatch by name.
macro_rules! table {
    ($($op:ident => $kind:ident $(($purpose:expr))?,)*) => {
        /// One transform of a list.
        #[derive(Debug, Clone, PartialEq)]
        #[non_exhaustive]
        #[allow(missing_docs)] // each variant holds the struct of its name
        pub enum Op {
            $($op($op),)*
        }

        /// The names of all ops.
        pub const NAMES: &[&str] = &[$(stringify!($op)),*];

        impl Op {
            /// Returns the public name.
            pub const fn name(&self) -> &'static str {
                match self {
                    $(Self::$op(_) => stringify!($op),)*
                }
            }

            /// Returns its parameters as a JSON object that [`parse`] converts to the same op.
            pub fn params(&self) -> Value {
                match self {
                    $(Self::$op(op) => parameters::to_json(op),)*
                }
            }

            /// Validates its parameters; [`Compose::new`] validates its place in a list.
            ///
            /// # Errors
            /// [`ImageError::Transform`](crate::ImageError::Transform) with the invalid value and
            /// the allowed ones.
            pub fn validate(&self) -> Result<()> {
                match self {
                    $(Self::$op(op) => op.check(),)*
                }
            }

            /// Returns whether the result for an image differs from epoch to epoch.
            #[must_use]
            pub const fn is_random(&self) -> bool {
                match self {
                    $(Self::$op(_) => $op::IS_RANDOM,)*
                }
            }

            pub(crate) fn part(&self) -> Part<'_> {
                match self {
                    $(Self::$op(op) => Part::$kind($($purpose,)? op),)*
                }
            }
        }

        $(impl From<$op> for Op {
            fn from(op: $op) -> Self {
                Self::$op(op)
            }
        })*

        /// Creates an op from its name and its parameters as a JSON object; omitted parameters get
        /// their defaults.
        ///
        /// # Errors
        /// [`ImageError::Transform`](crate::ImageError::Transform): an unknown op, a parameter that
        /// is missing, unknown or of the wrong type, a value out of bounds.
        ///
        /// ```
        /// use forebay_image::ops;
        ///
        /// let crop = ops::parse("RandomResizedCrop", serde_json::json!({"size": 224}))?;
        /// assert_eq!(crop.params()["size"], serde_json::json!([224, 224]));
        /// assert!(ops::parse("RandomHorizontalFlip", serde_json::json!({"p": 1.5})).is_err());
        /// # Ok::<(), forebay_image::ImageError>(())
        /// ```
        pub fn parse(name: &str, params: Value) -> Result<Op> {
            let op = match name {
                $(stringify!($op) => Op::$op(parameters::from_json(name, params)?),)*
                _ => {
                    return Err(invalid(format!(
                        "unknown transform {name:?}, expected one of {}",
                        NAMES.join(", ")
                    )));
                }
            };
            op.validate()?;
            Ok(op)
        }

        /// Returns the parameters of all ops, for documentation and generated code.
        pub fn schemas() -> Vec<OpSchema> {
            vec![$(OpSchema::of::<$op>(stringify!($op))),*]
        }
    };
}

table! {
    RandomResizedCrop => Geometry,
    Resize => Geometry,
    CenterCrop => Geometry,
    RandomHorizontalFlip => Pixels(Purpose::FLIP),
    RandomVerticalFlip => Pixels(Purpose(3)),
    ColorJitter => Pixels(Purpose(4)),
    // Shares its number with RandomGrayscale: a list numbers the draws of both ops as one kind.
    Grayscale => Pixels(Purpose(5)),
    RandomGrayscale => Pixels(Purpose(5)),
    RandAugment => Pixels(Purpose(6)),
    TrivialAugmentWide => Pixels(Purpose(7)),
    AutoAugment => Pixels(Purpose(12)),
    GaussianBlur => Pixels(Purpose(11)),
    RandomRotation => Pixels(Purpose(13)),
    RandomAffine => Pixels(Purpose(14)),
    RandomPhotometricDistort => Pixels(Purpose(16)),
    RandomIoUCrop => Geometry,
    Normalize => Normalize,
    RandomErasing => Sample,
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    /// Returns values for the required parameters of an op.
    fn required(schema: &OpSchema) -> Value {
        let missing = schema.parameters.iter().filter(|p| p.default.is_none());
        missing.map(|p| (p.name.to_owned(), json!(63))).collect()
    }

    #[test]
    fn schemas_name_every_field_with_its_default() {
        let schemas = schemas();
        assert_eq!(schemas.iter().map(|s| s.name).collect::<Vec<_>>(), NAMES);
        for schema in schemas {
            let op = parse(schema.name, required(&schema)).unwrap();
            assert_eq!(op.name(), schema.name);
            let params = op.params();
            let fields = params.as_object().unwrap();
            assert_eq!(fields.len(), schema.parameters.len(), "{params}");
            for parameter in schema.parameters {
                let value = &fields[parameter.name];
                assert!(parameter.default.is_none_or(|default| default == *value));
            }
        }
    }

    #[test]
    fn ops_survive_their_json_text() {
        let mut ops = vec![
            parse("Resize", json!({"size": [30, 40]})).unwrap(),
            parse("RandomErasing", json!({"value": "random"})).unwrap(),
            parse("RandomErasing", json!({"value": [0.1, 2, -3.7]})).unwrap(),
            parse("RandomIoUCrop", json!({"sampler_options": [0.5, 1.0]})).unwrap(),
            parse("ColorJitter", json!({"hue": 0.1, "contrast": [0.3, 1.7]})).unwrap(),
            parse(
                "RandAugment",
                json!({"interpolation": "bicubic", "fill": 7}),
            )
            .unwrap(),
        ];
        ops.extend(
            schemas()
                .iter()
                .map(|s| parse(s.name, required(s)).unwrap()),
        );
        for op in ops {
            let text = op.params().to_string();
            let read = parse(op.name(), serde_json::from_str(&text).unwrap()).unwrap();
            assert_eq!(read, op, "{text}");
        }
    }

    #[test]
    fn ops_without_random_decisions() {
        let ops = schemas().into_iter();
        let ops = ops.map(|schema| parse(schema.name, required(&schema)).unwrap());
        let fixed: Vec<&str> = ops
            .filter(|op| !op.is_random())
            .map(|op| op.name())
            .collect();
        assert_eq!(fixed, ["Resize", "CenterCrop", "Grayscale", "Normalize"]);
    }

    #[test]
    fn random_decisions_have_unique_numbers() {
        let mut numbers = Vec::new();
        for schema in schemas() {
            let op = parse(schema.name, required(&schema)).unwrap();
            if let Part::Pixels(purpose, _) = op.part() {
                // Grayscale shares the number of RandomGrayscale.
                if schema.name != "Grayscale" {
                    numbers.push(purpose);
                }
            }
        }
        numbers.extend([Purpose::CROP, Purpose::ERASE, Purpose::NOISE, Purpose::MIX]);
        let count = numbers.len();
        numbers.sort();
        numbers.dedup();
        assert_eq!(numbers.len(), count);
    }

    #[test]
    fn errors_name_the_parameter() {
        let refused = |name, params| parse(name, params).unwrap_err().to_string();
        for (name, params, part) in [
            ("Crop", json!({}), "expected one of RandomResizedCrop"),
            ("Resize", json!({}), "missing field `size`"),
            ("Resize", json!([64]), "expected an object"),
            (
                "Resize",
                json!({"size": "big"}),
                "size of Resize: expected a side",
            ),
            (
                "RandAugment",
                json!({"num_ops": -1}),
                "num_ops of RandAugment: ",
            ),
            ("RandAugment", json!({"ops": 1}), "unknown field `ops`"),
            ("RandAugment", json!({"magnitude": 31}), "bins 0 to 30"),
            ("RandomErasing", json!({"value": "noise"}), "\"random\""),
            ("CenterCrop", json!({"size": 0}), "height is 0"),
        ] {
            let error = refused(name, params);
            assert!(error.contains(part), "{error}");
        }
    }
}
