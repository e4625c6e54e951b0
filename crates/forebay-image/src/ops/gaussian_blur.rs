//! Gaussian blur with a random standard deviation.

use super::bounds::check_range;
use super::parameters::{self, Bounds, Parameter, ParameterKind};
use super::{Definition, Pixels};
use crate::error::{Result, invalid};
use crate::geometry::SpatialStep;
use crate::pixels::PixelBuffer;
use crate::random::Draws;
use serde::{Deserialize, Serialize};

/// Maximum kernel size. Larger ones have no use, and a spec from an unauthenticated client must not cause hours of work.
const MAX_KERNEL: u32 = 255;

/// Blurs with a Gaussian kernel whose standard deviation is drawn uniformly.
///
/// In JSON one number stands for both sides of the kernel, and for both bounds of `sigma`.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct GaussianBlur {
    /// Width and height of the kernel, odd.
    #[serde(deserialize_with = "parameters::size")]
    pub kernel_size: (u32, u32),
    /// Bounds of the standard deviation, in pixels.
    #[serde(
        deserialize_with = "parameters::number_or_range",
        default = "default_sigma"
    )]
    pub sigma: Bounds,
}

fn default_sigma() -> Bounds {
    (0.1, 2.0)
}

impl Definition for GaussianBlur {
    const DOC: &'static str = "Blurs with a Gaussian kernel of a random standard deviation.";
    const DETAILS: &'static str = "torchvision's kernel and reflected borders. Values differ from torchvision's by at most one level, in at most one of 10,000: its own sums depend on the processor.";
    const PARAMETERS: &'static [Parameter] = &[
        Parameter::new(
            "kernel_size",
            ParameterKind::IntegerOrPair,
            "Width and height of the kernel, odd; one number is both.",
        )
        .required(),
        Parameter::new(
            "sigma",
            ParameterKind::NumberOrRange,
            "Bounds of the standard deviation in pixels; one number is both.",
        ),
    ];

    fn check(&self) -> Result<()> {
        let (width, height) = self.kernel_size;
        if [width, height]
            .iter()
            .any(|&side| side % 2 == 0 || side > MAX_KERNEL)
        {
            return Err(invalid(format!(
                "kernel_size of GaussianBlur is {width} by {height}, odd numbers of 1 to {MAX_KERNEL} are possible"
            )));
        }
        check_range("sigma of GaussianBlur", self.sigma, (1e-3, 1e3))
    }
}

impl Pixels for GaussianBlur {
    fn apply(&self, picture: &mut PixelBuffer, draws: &mut Draws) -> Option<SpatialStep> {
        let sigma = draws.uniform(self.sigma.0, self.sigma.1);
        picture.gaussian_blur(self.kernel_size, sigma);
        None
    }
}
