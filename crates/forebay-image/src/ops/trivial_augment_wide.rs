//! TrivialAugment (wide), with torchvision's operations and magnitudes.

use super::augment::{BINS, FILL, INTERPOLATION, Operation, Space, check_bins};
use super::parameters::{self, Parameter};
use super::{Definition, Pixels};
use crate::error::Result;
use crate::geometry::SpatialStep;
use crate::pixels::{AffineParams, Interpolation, PixelBuffer};
use crate::random::Draws;
use serde::{Deserialize, Serialize};

/// One operation drawn from fourteen, with a random magnitude from a wide range.
///
/// Müller, Hutter: "TrivialAugment: Tuning-free yet state-of-the-art data augmentation", 2021.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct TrivialAugmentWide {
    /// Number of bins of magnitudes, at least 2.
    pub num_magnitude_bins: u32,
    /// Interpolation of shear, translation and rotation.
    pub interpolation: Interpolation,
    /// Fill outside of the image: red, green, blue.
    #[serde(deserialize_with = "parameters::color")]
    pub fill: [u8; 3],
}

impl Default for TrivialAugmentWide {
    /// As in torchvision: 31 bins.
    fn default() -> Self {
        Self {
            num_magnitude_bins: 31,
            interpolation: Interpolation::default(),
            fill: [0; 3],
        }
    }
}

impl Definition for TrivialAugmentWide {
    const DOC: &'static str =
        "Applies one operation drawn from fourteen, of a magnitude drawn from a wide range.";
    const DETAILS: &'static str = "torchvision's set of operations, magnitudes and distribution; each operation bit for bit as on PIL images there.";
    const PARAMETERS: &'static [Parameter] = &[BINS, INTERPOLATION, FILL];

    fn check(&self) -> Result<()> {
        check_bins("TrivialAugmentWide", self.num_magnitude_bins)
    }
}

impl Pixels for TrivialAugmentWide {
    fn apply(&self, picture: &mut PixelBuffer, draws: &mut Draws) -> Option<SpatialStep> {
        let affine = AffineParams {
            interpolation: self.interpolation,
            fill: self.fill,
        };
        let operation = Operation::draw(draws);
        let bin = draws.below(self.num_magnitude_bins);
        let negative = draws.unit() < 0.5;
        let bins = (bin, self.num_magnitude_bins);
        Space::TrivialWide.apply(picture, bins, (operation, negative), &affine);
        None
    }

    fn moves_objects(&self) -> bool {
        false
    }
}
