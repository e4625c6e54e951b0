//! The operations of RandAugment, TrivialAugmentWide and AutoAugment, with torchvision's magnitudes on PIL images.

use super::parameters::{Parameter, ParameterKind};
use crate::error::{Result, invalid};
use crate::pixels::{AffineParams, Interpolation, PixelBuffer};
use crate::random::Draws;

/// Interpolation of shear, translation and rotation.
pub(super) const INTERPOLATION: Parameter = Parameter::new(
    "interpolation",
    ParameterKind::Choice(&Interpolation::NAMES),
    "Interpolation of operations that shear, shift and rotate.",
);
/// Fill of shear, translation and rotation.
pub(super) const FILL: Parameter = Parameter::new(
    "fill",
    ParameterKind::Color,
    "Color that these operations bring in from outside the image.",
);
/// Number of bins.
pub(super) const BINS: Parameter = Parameter::new(
    "num_magnitude_bins",
    ParameterKind::Integer,
    "Number of bins of magnitudes.",
);

/// An operation of RandAugment, TrivialAugmentWide or AutoAugment.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Operation {
    Identity,
    ShearX,
    ShearY,
    TranslateX,
    TranslateY,
    Rotate,
    Brightness,
    Color,
    Contrast,
    Sharpness,
    Posterize,
    Solarize,
    AutoContrast,
    Equalize,
    /// Used by AutoAugment only.
    Invert,
}

impl Operation {
    /// The operations of RandAugment and TrivialAugmentWide, in the order of their indices.
    pub(crate) const DRAWN: [Self; 14] = [
        Self::Identity,
        Self::ShearX,
        Self::ShearY,
        Self::TranslateX,
        Self::TranslateY,
        Self::Rotate,
        Self::Brightness,
        Self::Color,
        Self::Contrast,
        Self::Sharpness,
        Self::Posterize,
        Self::Solarize,
        Self::AutoContrast,
        Self::Equalize,
    ];

    /// Returns whether the magnitude gets a random sign.
    fn is_signed(self) -> bool {
        !matches!(
            self,
            Self::Identity
                | Self::Posterize
                | Self::Solarize
                | Self::AutoContrast
                | Self::Equalize
                | Self::Invert
        )
    }

    /// Draws one of [`DRAWN`](Self::DRAWN).
    pub(super) fn draw(draws: &mut Draws) -> Self {
        Self::DRAWN[draws.below(Self::DRAWN.len() as u32) as usize]
    }

    pub(crate) fn apply(self, picture: &mut PixelBuffer, magnitude: f64, affine: &AffineParams) {
        match self {
            Self::Identity => {}
            Self::ShearX => picture.shear_x(magnitude, affine),
            Self::ShearY => picture.shear_y(magnitude, affine),
            // The cast truncates, as in torchvision.
            Self::TranslateX => picture.translate(magnitude as i64, 0, affine),
            Self::TranslateY => picture.translate(0, magnitude as i64, affine),
            Self::Rotate => {
                picture.rotate(magnitude, affine);
            }
            Self::Brightness => picture.brightness(1.0 + magnitude),
            Self::Color => picture.saturation(1.0 + magnitude),
            Self::Contrast => picture.contrast(1.0 + magnitude),
            Self::Sharpness => picture.sharpness(1.0 + magnitude),
            Self::Posterize => picture.posterize(magnitude as u32),
            Self::Solarize => picture.solarize(255.0 * magnitude),
            Self::AutoContrast => picture.autocontrast(),
            Self::Equalize => picture.equalize(),
            Self::Invert => picture.invert(),
        }
    }
}

/// Selects the ranges of magnitudes of the operations.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Space {
    RandAugment,
    TrivialWide,
}

impl Space {
    /// Returns the magnitude of `bin` (0 to `bins - 1`) for an image of this size. Computed in
    /// binary32, with the rounding of `torch.linspace` (on processors with fused multiply-add).
    pub(crate) fn magnitude(
        self,
        operation: Operation,
        bin: u32,
        bins: u32,
        (width, height): (usize, usize),
    ) -> f64 {
        let wide = self == Self::TrivialWide;
        let line = |start: f64, end: f64| {
            let (start, end) = (start as f32, end as f32);
            let step = (end - start) / (bins - 1) as f32;
            f64::from(if bin < bins / 2 {
                step.mul_add(bin as f32, start)
            } else {
                (-step).mul_add((bins - 1 - bin) as f32, end)
            })
        };
        let part = |side: usize| match wide {
            true => 32.0,
            false => 150.0 / 331.0 * side as f64,
        };
        match operation {
            Operation::Identity
            | Operation::AutoContrast
            | Operation::Equalize
            | Operation::Invert => 0.0,
            Operation::ShearX | Operation::ShearY => line(0.0, if wide { 0.99 } else { 0.3 }),
            Operation::TranslateX => line(0.0, part(width)),
            Operation::TranslateY => line(0.0, part(height)),
            Operation::Rotate => line(0.0, if wide { 135.0 } else { 30.0 }),
            Operation::Brightness
            | Operation::Color
            | Operation::Contrast
            | Operation::Sharpness => line(0.0, if wide { 0.99 } else { 0.9 }),
            Operation::Posterize => {
                let levels = if wide { 6.0 } else { 4.0 };
                let per_level = (f64::from(bins - 1) / levels) as f32;
                f64::from((8.0 - bin as f32 / per_level).round_ties_even())
            }
            Operation::Solarize => line(1.0, 0.0),
        }
    }

    pub(crate) fn apply(
        self,
        picture: &mut PixelBuffer,
        (bin, bins): (u32, u32),
        (operation, negative): (Operation, bool),
        affine: &AffineParams,
    ) {
        let size = (picture.width, picture.height);
        let mut magnitude = self.magnitude(operation, bin, bins, size);
        if negative && operation.is_signed() {
            magnitude = -magnitude;
        }
        operation.apply(picture, magnitude, affine);
    }
}

/// Maximum number of bins. Higher values have no use, and a spec from an unauthenticated client
/// must not cause hours of work.
const MAX_BINS: u32 = 1000;

pub(super) fn check_bins(name: &str, bins: u32) -> Result<()> {
    if (2..=MAX_BINS).contains(&bins) {
        return Ok(());
    }
    Err(invalid(format!(
        "num_magnitude_bins of {name} is {bins}, 2 to {MAX_BINS} are possible"
    )))
}
