//! Conversion to gray.

use super::parameters::Parameter;
use super::{Definition, Part, Pixels};
use crate::error::Result;
use crate::geometry::SpatialStep;
use crate::pixels::PixelBuffer;
use crate::random::{Draws, Purpose};
use serde::{Deserialize, Serialize};

/// Shared with `RandomGrayscale`: a list numbers the draws of both ops as one kind.
pub(super) const PURPOSE: Purpose = Purpose(5);

/// Makes the image gray: luma in all three channels.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Grayscale {}

impl Definition for Grayscale {
    const DOC: &'static str = "Makes the picture gray.";
    const DETAILS: &'static str = "All three channels hold the luma of PIL's conversion to \"L\".";
    const IS_RANDOM: bool = false;
    const PARAMETERS: &'static [Parameter] = &[];

    fn defaults() -> Option<Self> {
        Some(Self::default())
    }

    fn check(&self) -> Result<()> {
        Ok(())
    }

    fn part(&self) -> Part<'_> {
        Part::Pixels(PURPOSE, self)
    }
}

impl Pixels for Grayscale {
    fn apply(&self, picture: &mut PixelBuffer, _: &mut Draws) -> Option<SpatialStep> {
        picture.grayscale();
        None
    }
}
