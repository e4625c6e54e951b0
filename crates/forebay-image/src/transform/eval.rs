//! Resize of the short side followed by a center crop, as in torchvision, in one step.

use crate::error::{Result, invalid};
use crate::ops::{check_side, middle, resized};
use crate::resize::{CropPlan, ResizePlan};
use serde::{Deserialize, Serialize};

/// Resizes so that the short side has `resize` pixels, then takes the center square of `crop`
/// pixels. Only the part that the square needs is decoded and resized; the pixels equal those of
/// two separate steps.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct EvalTransform {
    /// Length of the short side after the resize, in pixels.
    pub resize: u32,
    /// Side of the output, in pixels; at most `resize`.
    pub crop: u32,
}

impl EvalTransform {
    /// Creates a transform: the short side becomes `resize`, the output is the center square of
    /// side `crop`.
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

    pub(super) fn plan(&self, width: u32, height: u32) -> CropPlan {
        let output = resized(self.resize, width, height);
        let window = middle(output, (self.crop, self.crop));
        CropPlan {
            origin: (0, 0),
            centers: false,
            resize: ResizePlan {
                input: (width, height),
                output,
                window,
                flip: false,
            },
        }
    }
}

impl Default for EvalTransform {
    /// The common sizes for ImageNet: 256 and 224.
    fn default() -> Self {
        Self::new(256, 224)
    }
}
