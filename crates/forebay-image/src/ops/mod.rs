//! Ops: the transforms that a list can hold. One file and one line of the table for each.
//!
//! The file of an op owns its parameters (`Definition`): names, types, defaults, bounds, JSON form, the number of its random decisions
//! (`Purpose`), and what it does (`Part`). Everything else (the wire, the command line, the Python package) knows ops
//! by name and parameters: [`parse`], [`Op::name`], [`Op::params`], [`schemas`].
//!
//! [`Compose`] checks the order of a list and runs it.

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
pub use parameters::{Bounds, OpSchema, Parameter, ParameterKind, ParameterSchema, Size};
pub use rand_augment::RandAugment;
pub use random_affine::RandomAffine;
#[cfg(test)]
pub(crate) use random_affine::inverse_matrix;
pub use random_erasing::{Fill, RandomErasing};
pub use random_grayscale::RandomGrayscale;
pub use random_horizontal_flip::RandomHorizontalFlip;
pub use random_resized_crop::RandomResizedCrop;
pub(crate) use random_resized_crop::{check_crop, random_region};
pub use random_rotation::RandomRotation;
pub use random_vertical_flip::RandomVerticalFlip;
pub(crate) use resize::resized;
pub use resize::{Resize, ResizeTo};
pub use trivial_augment_wide::TrivialAugmentWide;

use crate::error::{Result, invalid};
use crate::output::{Normalize, Output};
use crate::pixels::Picture;
use crate::random::{Draws, Purpose, SampleSeed};
use crate::region::Region;
use serde::Serialize;
use serde::de::DeserializeOwned;
use serde_json::Value;

/// The definition of an op, in its file.
pub(crate) trait Definition: Serialize + DeserializeOwned {
    /// One sentence for users.
    const DOC: &'static str;
    /// Further sentences for users: what is equal to which library, where it may stand in a list.
    const DETAILS: &'static str = "";
    /// The fields, in order.
    const PARAMETERS: &'static [Parameter];

    /// The values of parameters that are left out; `None` if one is required.
    fn defaults() -> Option<Self> {
        None
    }

    /// Checks the bounds of the parameters.
    fn check(&self) -> Result<()>;

    /// The part of the work that it does.
    fn part(&self) -> Part<'_>;
}

/// The work of an op. The variants are in the order in which they stand in a list.
pub(crate) enum Part<'a> {
    /// Chooses which pixels of the image become the output.
    Geometry(&'a dyn Geometry),
    /// Changes the resized picture, with random numbers of its own.
    Pixels(Purpose, &'a dyn Pixels),
    /// Normalizes the values.
    Normalize(Normalize),
    /// Changes the finished sample.
    Sample(&'a dyn Sample),
}

/// Which part of an image becomes which picture: `crop` is resized to `output`, and `window` of that is kept.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Frame {
    /// In the image.
    pub(crate) crop: Region,
    /// Width and height.
    pub(crate) output: (u32, u32),
    /// In the output.
    pub(crate) window: Region,
}

/// An op that chooses pixels.
pub(crate) trait Geometry {
    /// Height and width of every output; an error where they depend on the image.
    fn output_size(&self) -> Result<Size>;

    /// Whether it may stand right after `before`, another op of geometry.
    fn follows(&self, _before: &Op) -> bool {
        false
    }

    /// Narrows or resizes what the op before it left, at first the whole image.
    fn frame(&self, frame: Frame, seed: SampleSeed) -> Frame;
}

/// An op on the pixels of the resized picture.
pub(crate) trait Pixels {
    /// Changes the picture.
    fn apply(&self, picture: &mut Picture, draws: &mut Draws);

    /// The probability of a mirror image, for an op that does nothing else: right after the resize it is part of it.
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
    ($($op:ident,)*) => {
        /// One transform of a list.
        #[derive(Debug, Clone, Copy, PartialEq)]
        #[non_exhaustive]
        #[allow(missing_docs)] // each holds the struct of its name
        pub enum Op {
            $($op($op),)*
        }

        /// The names of all ops.
        pub const NAMES: &[&str] = &[$(stringify!($op)),*];

        impl Op {
            /// The name that users know it by.
            pub const fn name(&self) -> &'static str {
                match self {
                    $(Self::$op(_) => stringify!($op),)*
                }
            }

            /// Its parameters as a JSON object, such that [`parse`] gives the same op.
            pub fn params(&self) -> Value {
                match self {
                    $(Self::$op(op) => parameters::to_json(op),)*
                }
            }

            /// Checks its parameters; whether it fits into a list is for [`Compose::new`].
            ///
            /// # Errors
            /// [`ImageError::Transform`](crate::ImageError::Transform) says what is wrong and what is allowed.
            pub fn validate(&self) -> Result<()> {
                match self {
                    $(Self::$op(op) => op.check(),)*
                }
            }

            pub(crate) fn part(&self) -> Part<'_> {
                match self {
                    $(Self::$op(op) => op.part(),)*
                }
            }
        }

        $(impl From<$op> for Op {
            fn from(op: $op) -> Self {
                Self::$op(op)
            }
        })*

        /// The op of a name, from its parameters as a JSON object; those left out have their defaults.
        ///
        /// # Errors
        /// [`ImageError::Transform`](crate::ImageError::Transform): no such op, a parameter that is missing, unknown or of the wrong
        /// type, a value out of bounds.
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

        /// The parameters of all ops: for documentation and generated code.
        pub fn schemas() -> Vec<OpSchema> {
            vec![$(OpSchema::of::<$op>(stringify!($op))),*]
        }
    };
}

table! {
    RandomResizedCrop,
    Resize,
    CenterCrop,
    RandomHorizontalFlip,
    RandomVerticalFlip,
    ColorJitter,
    Grayscale,
    RandomGrayscale,
    RandAugment,
    TrivialAugmentWide,
    AutoAugment,
    GaussianBlur,
    RandomRotation,
    RandomAffine,
    Normalize,
    RandomErasing,
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    /// Parameters that are required, for an op of each name.
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
    fn random_decisions_are_numbered_once() {
        let mut numbers = Vec::new();
        for schema in schemas() {
            let op = parse(schema.name, required(&schema)).unwrap();
            if let Part::Pixels(purpose, _) = op.part() {
                // A list counts the two as one kind.
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
