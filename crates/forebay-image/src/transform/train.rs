//! RandomResizedCrop and a random flip, as in torchvision.

use crate::error::Result;
use crate::ops::{check_crop, check_probability, check_side, random_region};
use crate::random::{Draws, Purpose, SampleSeed};
use crate::resize::{CropPlan, ResizePlan};
use forebay_jpeg::Region;
use serde::{Deserialize, Serialize};

/// Crops a random part, resizes it to a square, and flips it with a probability.
///
/// The crop is chosen as in `torchvision.transforms.RandomResizedCrop`: ten attempts with a random
/// area and a log-uniform aspect ratio, then the largest center crop within the ratio's bounds.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct TrainTransform {
    /// Side of the output, in pixels.
    pub size: u32,
    /// Minimum and maximum area of the crop, as a fraction of the image's.
    pub scale: (f64, f64),
    /// Minimum and maximum width / height of the crop.
    pub ratio: (f64, f64),
    /// Probability of a horizontal flip.
    pub flip: f64,
}

impl TrainTransform {
    /// The common settings for ImageNet: area 0.08 to 1, ratio 3/4 to 4/3, half of the images
    /// flipped.
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

    /// Returns the crop of a sample, and whether the crop is flipped; a pure function.
    pub fn crop(&self, width: u32, height: u32, seed: SampleSeed) -> (Region, bool) {
        let flip = Draws::new(seed, Purpose::FLIP).unit() < self.flip;
        (
            random_region(width, height, seed, self.scale, self.ratio),
            flip,
        )
    }

    pub(super) fn plan(&self, width: u32, height: u32, seed: SampleSeed) -> CropPlan {
        let (crop, flip) = self.crop(width, height, seed);
        CropPlan {
            origin: (crop.x, crop.y),
            centers: false,
            resize: ResizePlan {
                input: (crop.width, crop.height),
                output: (self.size, self.size),
                window: Region::whole(self.size, self.size),
                flip,
            },
        }
    }
}

impl Default for TrainTransform {
    /// The common settings, 224 pixels per side.
    fn default() -> Self {
        Self::new(224)
    }
}
