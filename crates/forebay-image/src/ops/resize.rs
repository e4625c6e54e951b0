//! Resize of the whole image.

use super::bounds::check_size;
use super::parameters::{Parameter, ParameterKind, Sides, Size};
use super::{Definition, Frame, Geometry, Op, check_side};
use crate::error::{Result, invalid};
use crate::geometry::Tracking;
use crate::random::SampleSeed;
use forebay_jpeg::Region;
use serde::{Deserialize, Serialize};

/// Resizes the whole image.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Resize {
    /// The size after the resize.
    pub size: ResizeTo,
}

/// The size that an image is resized to.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(untagged, from = "Sides")]
pub enum ResizeTo {
    /// Length of the short side in pixels; the other side keeps the aspect ratio, rounded down. A
    /// center crop has to follow.
    Short(u32),
    /// Height and width, ignoring the image's aspect ratio.
    Exact(Size),
}

impl From<Sides> for ResizeTo {
    fn from(given: Sides) -> Self {
        match given {
            Sides::One(side) | Sides::ListOfOne([side]) => Self::Short(side),
            Sides::Two(size) => Self::Exact(size),
        }
    }
}

impl Definition for Resize {
    const DOC: &'static str = "Resizes the whole image.";
    const DETAILS: &'static str = "The first transform of a list for validation.";
    const IS_RANDOM: bool = false;
    const PARAMETERS: &'static [Parameter] = &[Parameter::new(
        "size",
        ParameterKind::SideOrSize,
        "The short side in pixels, where `CenterCrop` has to come next; or height and width.",
    )
    .required()];

    fn check(&self) -> Result<()> {
        match self.size {
            ResizeTo::Short(side) => check_side("size", side),
            ResizeTo::Exact(size) => check_size(size),
        }
    }
}

impl Geometry for Resize {
    fn output_size(&self) -> Result<Size> {
        match self.size {
            ResizeTo::Exact(size) => Ok(size),
            ResizeTo::Short(side) => Err(invalid(format!(
                "Resize({side}) gives pictures of different sizes: put CenterCrop({side}) right after it, or give it \
                 a height and a width"
            ))),
        }
    }

    fn follows(&self, before: &Op) -> bool {
        matches!(before, Op::RandomIoUCrop(_))
    }

    fn frame(&self, frame: Frame, _: SampleSeed, _: Option<&Tracking<'_>>) -> Frame {
        let output = match self.size {
            ResizeTo::Short(side) => resized(side, frame.crop.width, frame.crop.height),
            ResizeTo::Exact((height, width)) => (width, height),
        };
        Frame {
            output,
            window: Region::whole(output.0, output.1),
            ..frame
        }
    }
}

/// Width and height of an image after its short side becomes `short`.
pub(crate) fn resized(short: u32, width: u32, height: u32) -> (u32, u32) {
    let long = |long: u32, other: u32| {
        let side = u64::from(short) * u64::from(long) / u64::from(other);
        u32::try_from(side).unwrap_or(u32::MAX)
    };
    if width <= height {
        (short, long(height, width))
    } else {
        (long(width, height), short)
    }
}
