//! Horizontal flip, in some of the samples.

use super::parameters::{Parameter, ParameterKind};
use super::{Definition, Pixels, check_probability};
use crate::error::Result;
use crate::geometry::SpatialStep;
use crate::pixels::PixelBuffer;
use crate::random::Draws;
use serde::{Deserialize, Serialize};

/// Flips left to right, with probability `p`.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct RandomHorizontalFlip {
    /// Probability that a sample is flipped.
    pub p: f64,
}

impl Default for RandomHorizontalFlip {
    fn default() -> Self {
        Self { p: 0.5 }
    }
}

impl Definition for RandomHorizontalFlip {
    const DOC: &'static str = "Mirrors left to right, with probability `p`.";
    const DETAILS: &'static str = "Right after the resize it costs nothing.";
    const PARAMETERS: &'static [Parameter] =
        &[Parameter::new("p", ParameterKind::Number, "Probability.")];

    fn check(&self) -> Result<()> {
        check_probability("p of RandomHorizontalFlip", self.p)
    }
}

impl Pixels for RandomHorizontalFlip {
    fn apply(&self, picture: &mut PixelBuffer, draws: &mut Draws) -> Option<SpatialStep> {
        if draws.unit() >= self.p {
            return None;
        }
        picture.mirror();
        Some(SpatialStep::FlipHorizontal)
    }

    fn mirrors(&self) -> Option<f64> {
        Some(self.p)
    }
}
