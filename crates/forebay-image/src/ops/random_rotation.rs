//! A random rotation about the middle of the picture.

use super::augment::{FILL, INTERPOLATION};
use super::bounds::check_range;
use super::parameters::{self, Bounds, Parameter, ParameterKind};
use super::{Definition, Pixels};
use crate::error::Result;
use crate::geometry::SpatialStep;
use crate::pixels::{AffineParams, Interpolation, PixelBuffer};
use crate::random::Draws;
use serde::{Deserialize, Serialize};

/// Maximum absolute angle, in degrees; more turns have no use.
pub(super) const MAX_DEGREES: f64 = 3600.0;

/// Rotates by an angle that is drawn uniformly. The size is unchanged.
///
/// In JSON a number `x` stands for the bounds `-x` to `x`.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct RandomRotation {
    /// Bounds of the angle in degrees, counter-clockwise.
    #[serde(deserialize_with = "parameters::symmetric")]
    pub degrees: Bounds,
    /// Interpolation between pixels.
    #[serde(default)]
    pub interpolation: Interpolation,
    /// Color outside of the image: red, green, blue.
    #[serde(default, deserialize_with = "parameters::color")]
    pub fill: [u8; 3],
}

impl Definition for RandomRotation {
    const DOC: &'static str = "Rotates about the middle of the picture, by a random angle.";
    const DETAILS: &'static str = "The size of the picture stays: torchvision's `RandomRotation` with `expand=False` on PIL images, with the same pixels for an angle.";
    const PARAMETERS: &'static [Parameter] = &[
        Parameter::new(
            "degrees",
            ParameterKind::NumberOrRange,
            "Bounds of the angle in degrees, counter-clockwise; a number `x` is `(-x, x)`.",
        )
        .required(),
        INTERPOLATION,
        FILL,
    ];

    fn check(&self) -> Result<()> {
        let limits = (-MAX_DEGREES, MAX_DEGREES);
        check_range("degrees of RandomRotation", self.degrees, limits)
    }
}

impl Pixels for RandomRotation {
    fn apply(&self, picture: &mut PixelBuffer, draws: &mut Draws) -> Option<SpatialStep> {
        let affine = AffineParams {
            interpolation: self.interpolation,
            fill: self.fill,
        };
        let inverse = picture.rotate(draws.uniform(self.degrees.0, self.degrees.1), &affine)?;
        Some(SpatialStep::Warp { inverse })
    }
}
