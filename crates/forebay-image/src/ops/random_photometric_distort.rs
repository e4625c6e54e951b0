//! The color changes of SSD, as in torchvision.

use super::bounds::check_range;
use super::parameters::{Bounds, Parameter, ParameterKind};
use super::{Definition, Pixels, check_probability};
use crate::error::Result;
use crate::geometry::SpatialStep;
use crate::pixels::PixelBuffer;
use crate::random::Draws;
use serde::{Deserialize, Serialize};

/// Changes brightness, contrast, saturation, hue and the order of channels, each with probability `p`.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct RandomPhotometricDistort {
    /// Bounds of the factor: 0 is black, 1 no change.
    pub brightness: Bounds,
    /// Bounds of the factor: 0 is the mean gray, 1 no change.
    pub contrast: Bounds,
    /// Bounds of the factor: 0 is gray, 1 no change.
    pub saturation: Bounds,
    /// Bounds of the hue shift in turns of the color circle, -0.5 to 0.5.
    pub hue: Bounds,
    /// Probability of each change.
    pub p: f64,
}

impl Default for RandomPhotometricDistort {
    /// As in torchvision.
    fn default() -> Self {
        Self {
            brightness: (0.875, 1.125),
            contrast: (0.5, 1.5),
            saturation: (0.5, 1.5),
            hue: (-0.05, 0.05),
            p: 0.5,
        }
    }
}

impl Definition for RandomPhotometricDistort {
    const DOC: &'static str = "Changes brightness, contrast, saturation, hue and the order of the channels, each with probability `p`.";
    const DETAILS: &'static str = "As torchvision's, with the same pixels as on PIL images for the same factors. The contrast comes after the brightness or last, each half of the time.";
    const PARAMETERS: &'static [Parameter] = &[
        Parameter::new(
            "brightness",
            ParameterKind::Range,
            "Bounds of the factor, where 1 is no change.",
        ),
        Parameter::new("contrast", ParameterKind::Range, "As `brightness`."),
        Parameter::new("saturation", ParameterKind::Range, "As `brightness`."),
        Parameter::new(
            "hue",
            ParameterKind::Range,
            "Bounds of the part of a turn, -0.5 to 0.5.",
        ),
        Parameter::new("p", ParameterKind::Number, "Probability of each change."),
    ];

    fn check(&self) -> Result<()> {
        for (name, bounds, limits) in [
            ("brightness", self.brightness, (0.0, 1e6)),
            ("contrast", self.contrast, (0.0, 1e6)),
            ("saturation", self.saturation, (0.0, 1e6)),
            ("hue", self.hue, (-0.5, 0.5)),
        ] {
            check_range(
                &format!("{name} of RandomPhotometricDistort"),
                bounds,
                limits,
            )?;
        }
        check_probability("p of RandomPhotometricDistort", self.p)
    }
}

impl Pixels for RandomPhotometricDistort {
    fn apply(&self, picture: &mut PixelBuffer, draws: &mut Draws) -> Option<SpatialStep> {
        // All numbers are drawn, so that an omitted change does not change the other draws.
        let factors = [self.brightness, self.contrast, self.saturation, self.hue];
        let factors = factors.map(|(low, high)| {
            let applies = draws.unit() < self.p;
            let factor = draws.uniform(low, high);
            applies.then_some(factor)
        });
        let contrast_before = draws.unit() < 0.5;
        let permutes = draws.unit() < self.p;
        let mut order = [0, 1, 2];
        for last in (1..3).rev() {
            order.swap(last, draws.below(last as u32 + 1) as usize);
        }
        let [brightness, contrast, saturation, hue] = factors;
        let (first, last) = match contrast_before {
            true => (contrast, None),
            false => (None, contrast),
        };
        if let Some(factor) = brightness {
            picture.brightness(factor);
        }
        if let Some(factor) = first {
            picture.contrast(factor);
        }
        if let Some(factor) = saturation {
            picture.saturation(factor);
        }
        if let Some(turn) = hue {
            picture.hue(turn);
        }
        if let Some(factor) = last {
            picture.contrast(factor);
        }
        if permutes {
            picture.permute_channels(order);
        }
        None
    }
}
