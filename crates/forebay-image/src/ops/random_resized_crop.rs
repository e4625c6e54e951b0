//! A random crop, chosen as in torchvision.

use super::bounds::{check_range, check_size};
use super::parameters::{self, Bounds, Parameter, ParameterKind, Size};
use super::{Definition, Frame, Geometry};
use crate::error::{Result, invalid};
use crate::geometry::Tracking;
use crate::random::{Draws, Purpose, SampleSeed, exp, ln};
use forebay_jpeg::Region;
use serde::{Deserialize, Serialize};

/// A random crop, resized to `size`.
///
/// It is chosen as in `torchvision.transforms.RandomResizedCrop`: ten attempts with a random area
/// and a log-uniform aspect ratio, then the largest center crop within the ratio's bounds.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct RandomResizedCrop {
    /// Height and width of the output, in pixels.
    #[serde(deserialize_with = "parameters::size")]
    pub size: Size,
    /// Bounds of the crop's area, as a fraction of the image's.
    pub scale: Bounds,
    /// Bounds of the crop's width / height.
    pub ratio: Bounds,
}

impl Default for RandomResizedCrop {
    /// torchvision's bounds, and 224 pixels per side.
    fn default() -> Self {
        Self {
            size: (224, 224),
            scale: (0.08, 1.0),
            ratio: (3.0 / 4.0, 4.0 / 3.0),
        }
    }
}

impl Definition for RandomResizedCrop {
    const DOC: &'static str = "Resizes a random part of the image.";
    const DETAILS: &'static str = "The first transform of a list for training. As torchvision's, with the filter that `resize_like` selects. Only that part is decoded.";
    const PARAMETERS: &'static [Parameter] = &[
        Parameter::new(
            "size",
            ParameterKind::Size,
            "Height and width of the output in pixels; one number is both.",
        ),
        Parameter::new(
            "scale",
            ParameterKind::Range,
            "Bounds of the part's area, relative to the image's.",
        ),
        Parameter::new(
            "ratio",
            ParameterKind::Range,
            "Bounds of the part's width / height.",
        ),
    ];

    fn check(&self) -> Result<()> {
        check_size(self.size)?;
        check_crop(self.scale, self.ratio)
    }
}

impl Geometry for RandomResizedCrop {
    fn output_size(&self) -> Result<Size> {
        Ok(self.size)
    }

    fn frame(&self, frame: Frame, seed: SampleSeed, _: Option<&Tracking<'_>>) -> Frame {
        let Region { width, height, .. } = frame.crop;
        let output = (self.size.1, self.size.0);
        Frame {
            crop: random_region(width, height, seed, self.scale, self.ratio),
            output,
            window: Region::whole(output.0, output.1),
            ..frame
        }
    }
}

/// Checks the bounds of a random crop.
pub(crate) fn check_crop(scale: (f64, f64), ratio: (f64, f64)) -> Result<()> {
    let (low, high) = scale;
    if !(low > 0.0 && low <= high && high <= 1.0) {
        return Err(invalid(format!(
            "scale is {low} to {high}, expected 0 < low <= high <= 1"
        )));
    }
    check_range("ratio", ratio, (1e-3, 1e3))
}

/// Draws the random crop of a sample.
pub(crate) fn random_region(
    width: u32,
    height: u32,
    seed: SampleSeed,
    scale: (f64, f64),
    ratio: (f64, f64),
) -> Region {
    let mut draws = Draws::new(seed, Purpose::CROP);
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
