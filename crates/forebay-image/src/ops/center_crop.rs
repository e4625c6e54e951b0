//! Center crop, as in torchvision.

use super::bounds::check_size;
use super::parameters::{self, Parameter, ParameterKind, Size};
use super::{Definition, Frame, Geometry, Op};
use crate::error::Result;
use crate::geometry::Tracking;
use crate::random::SampleSeed;
use forebay_jpeg::Region;
use serde::{Deserialize, Serialize};

/// Crops the center, with this height and width, of the image or of the preceding resize. Where the
/// input is smaller than the crop, the border is black.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct CenterCrop {
    /// Height and width, in pixels.
    #[serde(deserialize_with = "parameters::size")]
    pub size: Size,
}

impl Definition for CenterCrop {
    const DOC: &'static str = "Cuts out the middle of the image.";
    const DETAILS: &'static str = "It comes right after `Resize`, or first in a list; then only that part is decoded. Where the image is smaller, the rest is black, as in torchvision.";
    const IS_RANDOM: bool = false;
    const PARAMETERS: &'static [Parameter] = &[Parameter::new(
        "size",
        ParameterKind::Size,
        "Height and width in pixels; one number is both.",
    )
    .required()];

    fn check(&self) -> Result<()> {
        check_size(self.size)
    }
}

impl Geometry for CenterCrop {
    fn output_size(&self) -> Result<Size> {
        Ok(self.size)
    }

    fn follows(&self, before: &Op) -> bool {
        matches!(before, Op::Resize(_))
    }

    fn frame(&self, frame: Frame, _: SampleSeed, _: Option<&Tracking<'_>>) -> Frame {
        let (height, width) = self.size;
        let (w, h) = frame.output;
        // The part of the crop inside of the image; the rest of the output is black.
        let window = middle(frame.output, (width.min(w), height.min(h)));
        Frame { window, ..frame }
    }
}

/// Returns the center of an image. Both sizes are (width, height); `part` is at most as large as `whole`.
pub(crate) fn middle(whole: (u32, u32), part: (u32, u32)) -> Region {
    // Python's round((length - crop) / 2): ties to even.
    let start = |whole: u32, part: u32| (f64::from(whole - part) / 2.0).round_ties_even() as u32;
    Region {
        x: start(whole.0, part.0),
        y: start(whole.1, part.1),
        width: part.0,
        height: part.1,
    }
}
