//! RandomResizedCrop and a random flip, as torchvision defines them.

use crate::error::Result;
use crate::ops::{check_crop, check_probability, check_side, random_region};
use crate::random::{Draws, Purpose, SampleSeed};
use crate::region::Region;
use crate::resize::ResizePlan;
use serde::{Deserialize, Serialize};

/// Crop a random part, resize it to a square, mirror it sometimes.
///
/// The crop is chosen as `torchvision.transforms.RandomResizedCrop` does: ten tries of a random area and
/// a log-uniform aspect ratio, then the largest center crop within the ratio's bounds.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct TrainTransform {
    /// Side of the output, in pixels.
    pub size: u32,
    /// Least and greatest area of the crop, as a part of the image's.
    pub scale: (f64, f64),
    /// Least and greatest width / height of the crop.
    pub ratio: (f64, f64),
    /// Probability of the mirror image.
    pub flip: f64,
}

impl TrainTransform {
    /// The usual settings for ImageNet: area 0.08 to 1, ratio 3/4 to 4/3, half of the images mirrored.
    pub const fn new(size: u32) -> Self {
        Self {
            size,
            scale: (0.08, 1.0),
            ratio: (3.0 / 4.0, 4.0 / 3.0),
            flip: 0.5,
        }
    }

    pub(super) fn validate(&self) -> Result<()> {
        check_side("size", self.size)?;
        check_crop(self.scale, self.ratio)?;
        check_probability("flip", self.flip)
    }

    /// The crop for a sample, and whether it is mirrored; a pure function.
    pub fn crop(&self, width: u32, height: u32, seed: SampleSeed) -> (Region, bool) {
        let flip = Draws::new(seed, Purpose::FLIP).unit() < self.flip;
        (
            random_region(width, height, seed, self.scale, self.ratio),
            flip,
        )
    }

    pub(super) fn plan(
        &self,
        width: u32,
        height: u32,
        seed: SampleSeed,
    ) -> ((u32, u32), ResizePlan) {
        let (crop, flip) = self.crop(width, height, seed);
        let resize = ResizePlan {
            input: (crop.width, crop.height),
            output: (self.size, self.size),
            window: Region::whole(self.size, self.size),
            flip,
        };
        ((crop.x, crop.y), resize)
    }
}

impl Default for TrainTransform {
    /// The usual settings, 224 pixels a side.
    fn default() -> Self {
        Self::new(224)
    }
}
