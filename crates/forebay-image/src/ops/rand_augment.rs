//! RandAugment, with torchvision's operations and magnitudes.

use super::augment::{BINS, FILL, INTERPOLATION, Operation, Space, check_bins};
use super::parameters::{self, Parameter, ParameterKind};
use super::{Definition, Pixels};
use crate::error::{Result, invalid};
use crate::geometry::SpatialStep;
use crate::pixels::{AffineParams, Interpolation, PixelBuffer};
use crate::random::Draws;
use serde::{Deserialize, Serialize};

/// Maximum number of operations. Higher values have no use, and a spec from an unauthenticated
/// client must not cause hours of work.
const MAX_OPERATIONS: u32 = 16;

/// Several operations drawn from fourteen, all with the same magnitude.
///
/// Cubuk, Zoph, Shlens, Le: "RandAugment: Practical automated data augmentation with a reduced search space", 2019.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct RandAugment {
    /// Number of operations, applied one after the other.
    pub num_ops: u32,
    /// Bin of the magnitude, from 0.
    pub magnitude: u32,
    /// Number of bins of magnitudes, at least 2.
    pub num_magnitude_bins: u32,
    /// Interpolation of shear, translation and rotation.
    pub interpolation: Interpolation,
    /// Fill outside of the image: red, green, blue.
    #[serde(deserialize_with = "parameters::color")]
    pub fill: [u8; 3],
}

impl Default for RandAugment {
    /// As in torchvision: two operations of magnitude 9 out of 31.
    fn default() -> Self {
        Self {
            num_ops: 2,
            magnitude: 9,
            num_magnitude_bins: 31,
            interpolation: Interpolation::default(),
            fill: [0; 3],
        }
    }
}

impl Definition for RandAugment {
    const DOC: &'static str =
        "Applies several operations drawn from fourteen, all of one magnitude.";
    const DETAILS: &'static str = "torchvision's set of operations, magnitudes and distribution; each operation bit for bit as on PIL images there.";
    const PARAMETERS: &'static [Parameter] = &[
        Parameter::new(
            "num_ops",
            ParameterKind::Integer,
            "Number of operations, one after the other.",
        ),
        Parameter::new(
            "magnitude",
            ParameterKind::Integer,
            "The bin of magnitudes, from 0.",
        ),
        BINS,
        INTERPOLATION,
        FILL,
    ];

    fn check(&self) -> Result<()> {
        check_bins("RandAugment", self.num_magnitude_bins)?;
        if self.num_ops > MAX_OPERATIONS {
            return Err(invalid(format!(
                "num_ops of RandAugment is {}, 0 to {MAX_OPERATIONS} are possible",
                self.num_ops
            )));
        }
        if self.magnitude >= self.num_magnitude_bins {
            return Err(invalid(format!(
                "magnitude of RandAugment is {}, there are bins 0 to {}",
                self.magnitude,
                self.num_magnitude_bins - 1
            )));
        }
        Ok(())
    }
}

impl Pixels for RandAugment {
    fn apply(&self, picture: &mut PixelBuffer, draws: &mut Draws) -> Option<SpatialStep> {
        let affine = AffineParams {
            interpolation: self.interpolation,
            fill: self.fill,
        };
        for _ in 0..self.num_ops {
            let operation = Operation::draw(draws);
            let negative = draws.unit() < 0.5;
            let (bin, bins) = (self.magnitude, self.num_magnitude_bins);
            Space::RandAugment.apply(picture, (bin, bins), (operation, negative), &affine);
        }
        None
    }

    fn moves_objects(&self) -> bool {
        false
    }
}
