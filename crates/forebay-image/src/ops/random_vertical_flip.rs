//! Vertical flip, in some of the samples.

use super::parameters::{Parameter, ParameterKind};
use super::{Definition, Pixels, check_probability};
use crate::error::Result;
use crate::geometry::SpatialStep;
use crate::pixels::PixelBuffer;
use crate::random::Draws;
use serde::{Deserialize, Serialize};

/// Flips top to bottom, with probability `p`.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct RandomVerticalFlip {
    /// Probability that a sample is flipped.
    pub p: f64,
}

impl Default for RandomVerticalFlip {
    fn default() -> Self {
        Self { p: 0.5 }
    }
}

impl Definition for RandomVerticalFlip {
    const DOC: &'static str = "Mirrors top to bottom, with probability `p`.";
    const PARAMETERS: &'static [Parameter] =
        &[Parameter::new("p", ParameterKind::Number, "Probability.")];

    fn check(&self) -> Result<()> {
        check_probability("p of RandomVerticalFlip", self.p)
    }
}

impl Pixels for RandomVerticalFlip {
    fn apply(&self, picture: &mut PixelBuffer, draws: &mut Draws) -> Option<SpatialStep> {
        if draws.unit() >= self.p {
            return None;
        }
        picture.upside_down();
        Some(SpatialStep::FlipVertical)
    }
}
