//! Conversion to gray.

use super::parameters::Parameter;
use super::{Definition, Pixels};
use crate::geometry::SpatialStep;
use crate::pixels::PixelBuffer;
use crate::random::Draws;
use serde::{Deserialize, Serialize};

/// Makes the image gray: luma in all three channels.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Grayscale {}

impl Definition for Grayscale {
    const DOC: &'static str = "Makes the picture gray.";
    const DETAILS: &'static str = "All three channels hold the luma of PIL's conversion to \"L\".";
    const IS_RANDOM: bool = false;
    const PARAMETERS: &'static [Parameter] = &[];
}

impl Pixels for Grayscale {
    fn apply(&self, picture: &mut PixelBuffer, _: &mut Draws) -> Option<SpatialStep> {
        picture.grayscale();
        None
    }
}
