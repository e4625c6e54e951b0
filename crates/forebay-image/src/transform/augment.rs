//! Random changes of colour and place: ColorJitter, RandomGrayscale, RandAugment and TrivialAugmentWide, with
//! torchvision's sets of operations, magnitudes and distributions on PIL images.
//!
//! What is drawn comes from this project's own random numbers (`random.rs`): each kind of step has a purpose, and draws in
//! the order that its `apply` shows.

use super::moving::Motion;
use super::picture::Picture;
use super::{check_probability, invalid};
use crate::error::Result;
use crate::random::Draws;

/// Bounds of a factor, the least first.
pub type Bounds = (f64, f64);

/// Changes brightness, contrast, saturation and hue, in random order, each by a random factor.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct ColorJitter {
    /// Factor: 0 is black, 1 no change. `None`: not at all.
    pub brightness: Option<Bounds>,
    /// Factor: 0 is the mean grey, 1 no change.
    pub contrast: Option<Bounds>,
    /// Factor: 0 is grey, 1 no change.
    pub saturation: Option<Bounds>,
    /// Part of a turn of the colour circle: -0.5 to 0.5, 0 is no change.
    pub hue: Option<Bounds>,
}

impl ColorJitter {
    pub(super) fn validate(&self) -> Result<()> {
        for (name, bounds, (low, high)) in [
            ("brightness", self.brightness, (0.0, 1e6)),
            ("contrast", self.contrast, (0.0, 1e6)),
            ("saturation", self.saturation, (0.0, 1e6)),
            ("hue", self.hue, (-0.5, 0.5)),
        ] {
            if let Some((from, to)) = bounds
                && !(low <= from && from <= to && to <= high)
            {
                return Err(invalid(format!(
                    "{name} of ColorJitter is {from} to {to}, expected {low} <= from <= to <= {high}"
                )));
            }
        }
        Ok(())
    }

    pub(super) fn apply(&self, picture: &mut Picture, draws: &mut Draws) {
        let mut order = [0, 1, 2, 3];
        for last in (1..4).rev() {
            order.swap(last, draws.below(last as u32 + 1) as usize);
        }
        // All four are drawn, so that leaving one out does not change the others.
        let factors = [self.brightness, self.contrast, self.saturation, self.hue].map(|bounds| {
            let unit = draws.unit();
            bounds.map(|(from, to)| from + (to - from) * unit)
        });
        for which in order {
            let Some(factor) = factors[which] else {
                continue;
            };
            match which {
                0 => picture.brightness(factor),
                1 => picture.contrast(factor),
                2 => picture.saturation(factor),
                _ => picture.hue(factor),
            }
        }
    }
}

/// The operations of RandAugment and TrivialAugmentWide, in the order in which they are drawn.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Operation {
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
}

impl Operation {
    pub(super) const ALL: [Self; 14] = [
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

    /// Whether a magnitude is taken as negative half of the time.
    fn is_signed(self) -> bool {
        !matches!(
            self,
            Self::Identity | Self::Posterize | Self::Solarize | Self::AutoContrast | Self::Equalize
        )
    }

    pub(super) fn apply(self, picture: &mut Picture, magnitude: f64, motion: &Motion) {
        match self {
            Self::Identity => {}
            Self::ShearX => picture.shear_x(magnitude, motion),
            Self::ShearY => picture.shear_y(magnitude, motion),
            // Truncated, as there.
            Self::TranslateX => picture.translate(magnitude as i64, 0, motion),
            Self::TranslateY => picture.translate(0, magnitude as i64, motion),
            Self::Rotate => picture.rotate(magnitude, motion),
            Self::Brightness => picture.brightness(1.0 + magnitude),
            Self::Color => picture.saturation(1.0 + magnitude),
            Self::Contrast => picture.contrast(1.0 + magnitude),
            Self::Sharpness => picture.sharpness(1.0 + magnitude),
            Self::Posterize => picture.posterize(magnitude as u32),
            Self::Solarize => picture.solarize(255.0 * magnitude),
            Self::AutoContrast => picture.autocontrast(),
            Self::Equalize => picture.equalize(),
        }
    }
}

/// How strong the strongest bin of each operation is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Space {
    RandAugment,
    TrivialWide,
}

impl Space {
    /// Magnitude of a bin out of `bins`, for a picture of that size. In binary32, with the roundings of
    /// `torch.linspace` (on processors with fused multiplication and addition).
    pub(super) fn magnitude(
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
            Operation::Identity | Operation::AutoContrast | Operation::Equalize => 0.0,
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

    fn apply(
        self,
        picture: &mut Picture,
        (bin, bins): (u32, u32),
        drawn: (u32, bool),
        motion: &Motion,
    ) {
        let (which, negative) = drawn;
        let operation = Operation::ALL[which as usize % Operation::ALL.len()];
        let size = (picture.width, picture.height);
        let mut magnitude = self.magnitude(operation, bin, bins, size);
        if negative && operation.is_signed() {
            magnitude = -magnitude;
        }
        operation.apply(picture, magnitude, motion);
    }
}

/// Most bins of magnitudes, and most operations one after the other: nobody uses more, and a spec of a stranger
/// must not ask for hours.
const MAX_BINS: u32 = 1000;
const MAX_OPERATIONS: u32 = 16;

fn check_bins(name: &str, bins: u32) -> Result<()> {
    if (2..=MAX_BINS).contains(&bins) {
        return Ok(());
    }
    Err(invalid(format!(
        "num_magnitude_bins of {name} is {bins}, 2 to {MAX_BINS} are possible"
    )))
}

/// Some operations drawn from fourteen, all of one magnitude.
///
/// Cubuk, Zoph, Shlens, Le: "RandAugment: Practical automated data augmentation with a reduced search space", 2019.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct RandAugment {
    /// How many operations, one after the other.
    pub num_ops: u32,
    /// Which bin of magnitudes, from 0.
    pub magnitude: u32,
    /// Bins of magnitudes, at least 2.
    pub num_magnitude_bins: u32,
    /// For shearing, shifting and turning.
    pub motion: Motion,
}

impl RandAugment {
    pub(super) fn validate(&self) -> Result<()> {
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

    pub(super) fn apply(&self, picture: &mut Picture, draws: &mut Draws) {
        for _ in 0..self.num_ops {
            let which = draws.below(Operation::ALL.len() as u32);
            let negative = draws.unit() < 0.5;
            let (bin, bins) = (self.magnitude, self.num_magnitude_bins);
            Space::RandAugment.apply(picture, (bin, bins), (which, negative), &self.motion);
        }
    }
}

/// One operation drawn from fourteen, of a random magnitude from a wide range.
///
/// Müller, Hutter: "TrivialAugment: Tuning-free yet state-of-the-art data augmentation", 2021.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct TrivialAugmentWide {
    /// Bins of magnitudes, at least 2.
    pub num_magnitude_bins: u32,
    /// For shearing, shifting and turning.
    pub motion: Motion,
}

impl TrivialAugmentWide {
    pub(super) fn validate(&self) -> Result<()> {
        check_bins("TrivialAugmentWide", self.num_magnitude_bins)
    }

    pub(super) fn apply(&self, picture: &mut Picture, draws: &mut Draws) {
        let which = draws.below(Operation::ALL.len() as u32);
        let bin = draws.below(self.num_magnitude_bins);
        let negative = draws.unit() < 0.5;
        let bins = (bin, self.num_magnitude_bins);
        Space::TrivialWide.apply(picture, bins, (which, negative), &self.motion);
    }
}

/// Makes a part of the pictures grey.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct RandomGrayscale {
    /// Probability.
    pub p: f64,
}

impl RandomGrayscale {
    pub(super) fn validate(&self) -> Result<()> {
        check_probability("RandomGrayscale", self.p)
    }

    pub(super) fn apply(&self, picture: &mut Picture, draws: &mut Draws) {
        if draws.unit() < self.p {
            picture.greyscale();
        }
    }
}
