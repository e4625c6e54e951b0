//! RandomResizedCrop and a random flip, as torchvision defines them.

use super::{check_probability, check_side, invalid};
use crate::decode::Region;
use crate::error::Result;
use crate::random::{Draws, Purpose, SampleSeed, exp, ln};
use crate::resize::Resize;

/// Crop a random part, resize it to a square, mirror it sometimes.
///
/// The crop is chosen as `torchvision.transforms.RandomResizedCrop` does: ten tries of a random area and
/// a log-uniform aspect ratio, then the largest centre crop within the ratio's bounds.
#[derive(Debug, Clone, Copy, PartialEq)]
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
        let flip = Draws::new(seed, Purpose::Flip).unit() < self.flip;
        (
            random_region(width, height, seed, self.scale, self.ratio),
            flip,
        )
    }

    pub(super) fn plan(&self, width: u32, height: u32, seed: SampleSeed) -> ((u32, u32), Resize) {
        let (crop, flip) = self.crop(width, height, seed);
        let resize = Resize {
            input: (crop.width, crop.height),
            output: (self.size, self.size),
            window: Region::whole(self.size, self.size),
            flip,
        };
        ((crop.x, crop.y), resize)
    }
}

/// Checks the bounds of a random crop.
pub(super) fn check_crop(scale: (f64, f64), ratio: (f64, f64)) -> Result<()> {
    let (low, high) = scale;
    if !(low > 0.0 && low <= high && high <= 1.0) {
        return Err(invalid(format!(
            "scale is {low} to {high}, expected 0 < low <= high <= 1"
        )));
    }
    let (low, high) = ratio;
    if !(low >= 1e-3 && low <= high && high <= 1e3) {
        return Err(invalid(format!(
            "ratio is {low} to {high}, expected 0.001 <= low <= high <= 1000"
        )));
    }
    Ok(())
}

/// The random crop of a sample.
pub(super) fn random_region(
    width: u32,
    height: u32,
    seed: SampleSeed,
    scale: (f64, f64),
    ratio: (f64, f64),
) -> Region {
    let mut draws = Draws::new(seed, Purpose::Crop);
    let (w, h) = (f64::from(width), f64::from(height));
    let (log_low, log_high) = (ln(ratio.0), ln(ratio.1));
    for _ in 0..10 {
        let area = w * h * draws.uniform(scale.0, scale.1);
        let aspect = exp(draws.uniform(log_low, log_high));
        // Python's round: ties to even. The cast saturates.
        let crop_width = (area * aspect).sqrt().round_ties_even() as u32;
        let crop_height = (area / aspect).sqrt().round_ties_even() as u32;
        if (1..=width).contains(&crop_width) && (1..=height).contains(&crop_height) {
            let y = draws.below(height - crop_height + 1);
            let x = draws.below(width - crop_width + 1);
            return Region {
                x,
                y,
                width: crop_width,
                height: crop_height,
            };
        }
    }
    let (crop_width, crop_height) = if w / h < ratio.0 {
        (
            width,
            ((w / ratio.0).round_ties_even() as u32).clamp(1, height),
        )
    } else if w / h > ratio.1 {
        (
            ((h * ratio.1).round_ties_even() as u32).clamp(1, width),
            height,
        )
    } else {
        (width, height)
    };
    let (x, y) = ((width - crop_width) / 2, (height - crop_height) / 2);
    Region {
        x,
        y,
        width: crop_width,
        height: crop_height,
    }
}
