//! Random brightness, contrast, saturation and hue.

use super::bounds::check_range;
use super::parameters::{self, Bounds, Parameter, ParameterKind};
use super::{Definition, Pixels};
use crate::error::Result;
use crate::geometry::SpatialStep;
use crate::pixels::PixelBuffer;
use crate::random::Draws;
use serde::{Deserialize, Serialize};

/// Changes brightness, contrast, saturation and hue, in random order, each by a random factor.
///
/// In JSON a number `x` stands for the bounds `max(0, 1 - x)` to `1 + x`, for the hue `-x` to `x`.
#[derive(Debug, Clone, Copy, PartialEq, Default, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct ColorJitter {
    /// Bounds of the factor: 0 gives black, 1 no change. `None` leaves the property unchanged.
    #[serde(deserialize_with = "parameters::around_one")]
    pub brightness: Option<Bounds>,
    /// Bounds of the factor: 0 gives the mean gray, 1 no change.
    #[serde(deserialize_with = "parameters::around_one")]
    pub contrast: Option<Bounds>,
    /// Bounds of the factor: 0 gives gray, 1 no change.
    #[serde(deserialize_with = "parameters::around_one")]
    pub saturation: Option<Bounds>,
    /// Bounds of the hue shift in turns of the color circle: -0.5 to 0.5; 0 is no change.
    #[serde(deserialize_with = "parameters::around_zero")]
    pub hue: Option<Bounds>,
}

impl Definition for ColorJitter {
    const DOC: &'static str = "Changes brightness, contrast, saturation and hue, in random order, each by a random factor.";
    const DETAILS: &'static str =
        "Bit for bit the results of torchvision's functions with these factors on PIL images.";
    const PARAMETERS: &'static [Parameter] = &[
        Parameter::new(
            "brightness",
            ParameterKind::Deviation,
            "Bounds of the factor, where 1 is no change; a number `x` is `(max(0, 1 - x), 1 + x)`. 0 and None do not change it.",
        ),
        Parameter::new("contrast", ParameterKind::Deviation, "As `brightness`."),
        Parameter::new("saturation", ParameterKind::Deviation, "As `brightness`."),
        Parameter::new(
            "hue",
            ParameterKind::Deviation,
            "Bounds of the part of a turn, -0.5 to 0.5; a number `x` is `(-x, x)`.",
        ),
    ];

    fn check(&self) -> Result<()> {
        for (name, bounds, limits) in [
            ("brightness of ColorJitter", self.brightness, (0.0, 1e6)),
            ("contrast of ColorJitter", self.contrast, (0.0, 1e6)),
            ("saturation of ColorJitter", self.saturation, (0.0, 1e6)),
            ("hue of ColorJitter", self.hue, (-0.5, 0.5)),
        ] {
            if let Some(bounds) = bounds {
                check_range(name, bounds, limits)?;
            }
        }
        Ok(())
    }
}

impl Pixels for ColorJitter {
    fn apply(&self, picture: &mut PixelBuffer, draws: &mut Draws) -> Option<SpatialStep> {
        let mut order = [0, 1, 2, 3];
        for last in (1..4).rev() {
            order.swap(last, draws.below(last as u32 + 1) as usize);
        }
        // All four numbers are drawn, so that an omitted property does not change the other draws.
        let factors = [self.brightness, self.contrast, self.saturation, self.hue].map(|bounds| {
            let unit = draws.unit();
            bounds.map(|(from, to)| from + (to - from) * unit)
        });
        for which in order {
            let Some(factor) = factors[which] else {
                continue;
            };
            match which {
                0 => picture.brightness(factor),
                1 => picture.contrast(factor),
                2 => picture.saturation(factor),
                _ => picture.hue(factor),
            }
        }
        None
    }
}
