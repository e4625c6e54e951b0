//! Conversion to gray, in some of the samples.

use super::parameters::{Parameter, ParameterKind};
use super::{Definition, Pixels, check_probability};
use crate::error::Result;
use crate::geometry::SpatialStep;
use crate::pixels::PixelBuffer;
use crate::random::Draws;
use serde::{Deserialize, Serialize};

/// Makes the image gray, with probability `p`.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct RandomGrayscale {
    /// Probability that a sample is changed.
    pub p: f64,
}

impl Default for RandomGrayscale {
    fn default() -> Self {
        Self { p: 0.1 }
    }
}

impl Definition for RandomGrayscale {
    const DOC: &'static str = "Makes the picture gray, with probability `p`.";
    const DETAILS: &'static str = "All three channels hold the luma of PIL's conversion to \"L\".";
    const PARAMETERS: &'static [Parameter] =
        &[Parameter::new("p", ParameterKind::Number, "Probability.")];

    fn check(&self) -> Result<()> {
        check_probability("p of RandomGrayscale", self.p)
    }
}

impl Pixels for RandomGrayscale {
    fn apply(&self, picture: &mut PixelBuffer, draws: &mut Draws) -> Option<SpatialStep> {
        if draws.unit() < self.p {
            picture.grayscale();
        }
        None
    }
}
