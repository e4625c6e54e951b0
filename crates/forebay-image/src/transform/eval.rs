//! Resize of the short side and a centre crop, as torchvision defines them, in one step.

use super::{check_side, invalid};
use crate::decode::Region;
use crate::error::Result;
use crate::resize::Resize;

/// Resize so that the short side has `resize` pixels, then take the middle square of `crop` pixels. Only the
/// part that the square needs is decoded and resized; the pixels are those of the two steps one by one.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct EvalTransform {
    /// Short side after the resize, in pixels.
    pub resize: u32,
    /// Side of the output, in pixels; at most `resize`.
    pub crop: u32,
}

impl EvalTransform {
    /// The short side becomes `resize`, the output is the middle square of side `crop`.
    pub const fn new(resize: u32, crop: u32) -> Self {
        Self { resize, crop }
    }

    pub(super) fn validate(&self) -> Result<()> {
        check_side("resize", self.resize)?;
        check_side("crop", self.crop)?;
        if self.crop > self.resize {
            let Self { resize, crop } = self;
            return Err(invalid(format!(
                "crop ({crop}) is larger than resize ({resize})"
            )));
        }
        Ok(())
    }

    pub(super) fn plan(&self, width: u32, height: u32) -> ((u32, u32), Resize) {
        let output = resized(self.resize, width, height);
        let window = middle(output, (self.crop, self.crop));
        (
            (0, 0),
            Resize {
                input: (width, height),
                output,
                window,
                flip: false,
            },
        )
    }
}

/// Width and height of an image whose short side becomes `short`.
pub(super) fn resized(short: u32, width: u32, height: u32) -> (u32, u32) {
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

/// The middle of a picture; both sizes as width and height, the second not the larger one.
pub(super) fn middle(whole: (u32, u32), part: (u32, u32)) -> Region {
    // Python's round((length - crop) / 2): ties to even.
    let start = |whole: u32, part: u32| (f64::from(whole - part) / 2.0).round_ties_even() as u32;
    Region {
        x: start(whole.0, part.0),
        y: start(whole.1, part.1),
        width: part.0,
        height: part.1,
    }
}
