//! A random affine map: rotation, translation, scale and shear.

use super::augment::{FILL, INTERPOLATION};
use super::bounds::check_range;
use super::parameters::{self, Bounds, Parameter, ParameterKind, ShearBounds};
use super::random_rotation::MAX_DEGREES;
use super::{Definition, Pixels};
use crate::error::Result;
use crate::geometry::{AffineMap, SpatialStep};
use crate::pixels::{AffineParams, Interpolation, PixelBuffer};
use crate::random::{Draws, sin_cos};
use serde::{Deserialize, Serialize};

/// Rotates, translates, scales and shears about the center of the image, each by a random amount. The size is unchanged.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct RandomAffine {
    /// Bounds of the angle in degrees, clockwise.
    #[serde(deserialize_with = "parameters::symmetric")]
    pub degrees: Bounds,
    /// Largest translation to each side, relative to the width and to the height; `None` moves nothing.
    #[serde(default)]
    pub translate: Option<(f64, f64)>,
    /// Bounds of the scale factor; `None` is 1.
    #[serde(default)]
    pub scale: Option<Bounds>,
    /// Bounds of the horizontal and of the vertical angle of shear, in degrees; `None` is 0.
    #[serde(default, deserialize_with = "parameters::shear")]
    pub shear: Option<ShearBounds>,
    /// Interpolation between pixels.
    #[serde(default)]
    pub interpolation: Interpolation,
    /// Color outside of the image: red, green, blue.
    #[serde(default, deserialize_with = "parameters::color")]
    pub fill: [u8; 3],
}

impl Definition for RandomAffine {
    const DOC: &'static str = "Rotates, moves, scales and shears about the middle of the picture, each by a random amount.";
    const DETAILS: &'static str = "The size of the picture stays. torchvision's `RandomAffine` on PIL images, with the same pixels for the same angle, translation, scale and shear.";
    const PARAMETERS: &'static [Parameter] = &[
        Parameter::new(
            "degrees",
            ParameterKind::NumberOrRange,
            "Bounds of the angle in degrees, clockwise; a number `x` is `(-x, x)`.",
        )
        .required(),
        Parameter::new(
            "translate",
            ParameterKind::OptionalPair,
            "Largest translation, relative to the width and to the height, 0 to 1.",
        ),
        Parameter::new(
            "scale",
            ParameterKind::OptionalPair,
            "Bounds of the factor of scale.",
        ),
        Parameter::new(
            "shear",
            ParameterKind::Shear,
            "Bounds of the angle of horizontal shear in degrees, and of vertical shear if there are four; a number `x` is `(-x, x)`.",
        ),
        INTERPOLATION,
        FILL,
    ];

    fn check(&self) -> Result<()> {
        let limits = (-MAX_DEGREES, MAX_DEGREES);
        check_range("degrees of RandomAffine", self.degrees, limits)?;
        if let Some((x, y)) = self.translate {
            for part in [x, y] {
                check_range("translate of RandomAffine", (part, part), (0.0, 1.0))?;
            }
        }
        if let Some(scale) = self.scale {
            check_range("scale of RandomAffine", scale, (1e-3, 1e3))?;
        }
        if let Some((x, x1, y, y1)) = self.shear {
            check_range("shear of RandomAffine", (x, x1), (-89.0, 89.0))?;
            check_range("shear of RandomAffine", (y, y1), (-89.0, 89.0))?;
        }
        Ok(())
    }
}

impl Pixels for RandomAffine {
    fn apply(&self, picture: &mut PixelBuffer, draws: &mut Draws) -> Option<SpatialStep> {
        // All six numbers are drawn, so that an omitted parameter does not change the other draws.
        let angle = draws.uniform(self.degrees.0, self.degrees.1);
        let (width, height) = (picture.width as f64, picture.height as f64);
        let (most_x, most_y) = self.translate.unwrap_or((0.0, 0.0));
        let [x, y] = [most_x * width, most_y * height]
            .map(|most| draws.uniform(-most, most).round_ties_even());
        let (low, high) = self.scale.unwrap_or((1.0, 1.0));
        let scale = draws.uniform(low, high);
        let (low_x, high_x, low_y, high_y) = self.shear.unwrap_or_default();
        let shear = (draws.uniform(low_x, high_x), draws.uniform(low_y, high_y));
        let affine = AffineParams {
            interpolation: self.interpolation,
            fill: self.fill,
        };
        let inverse = inverse_matrix((width, height), angle, (x, y), scale, shear);
        picture.transform(inverse, &affine);
        Some(SpatialStep::Warp { inverse })
    }
}

/// Returns the matrix from a pixel of the output to one of the input, in torchvision's order of operations.
pub(crate) fn inverse_matrix(
    (width, height): (f64, f64),
    degrees: f64,
    (move_x, move_y): (f64, f64),
    scale: f64,
    (shear_x, shear_y): (f64, f64),
) -> AffineMap {
    let [rotation, shear_x, shear_y] = [degrees, shear_x, shear_y].map(f64::to_radians);
    let (sin_shear_x, cos_shear_x) = sin_cos(shear_x);
    let tan_shear_x = sin_shear_x / cos_shear_x;
    let (_, cos_shear_y) = sin_cos(shear_y);
    let (sin_difference, cos_difference) = sin_cos(rotation - shear_y);
    let (sin_rotation, cos_rotation) = sin_cos(rotation);
    let a = cos_difference / cos_shear_y;
    let b = -(a * tan_shear_x + sin_rotation);
    let c = sin_difference / cos_shear_y;
    let d = cos_rotation - c * tan_shear_x;
    let [a, b, c, d] = [d / scale, -b / scale, -c / scale, a / scale];
    let (x, y) = (width * 0.5, height * 0.5);
    let offset_x = x - a * (x + move_x) - b * (y + move_y);
    let offset_y = y - c * (x + move_x) - d * (y + move_y);
    AffineMap([a, b, offset_x, c, d, offset_y])
}
