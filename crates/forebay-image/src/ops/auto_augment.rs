//! AutoAugment, with torchvision's policies and magnitudes.

use super::augment::Operation::{self, *};
use super::augment::{FILL, INTERPOLATION, Space};
use super::parameters::{self, Parameter, ParameterKind};
use super::{Definition, Pixels};
use crate::geometry::SpatialStep;
use crate::pixels::{AffineParams, Interpolation, PixelBuffer};
use crate::random::Draws;
use serde::{Deserialize, Serialize};

/// Number of bins of magnitudes.
const BINS: u32 = 10;

/// One of 25 learned pairs of operations, each operation with its own probability and magnitude.
///
/// Cubuk, Zoph, Mané, Vasudevan, Le: "AutoAugment: Learning Augmentation Policies from Data", 2018.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct AutoAugment {
    /// The dataset on which the policy was learned.
    pub policy: Policy,
    /// Interpolation of shear, translation and rotation.
    pub interpolation: Interpolation,
    /// Fill outside of the image: red, green, blue.
    #[serde(deserialize_with = "parameters::color")]
    pub fill: [u8; 3],
}

/// A dataset for which a policy was learned.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Policy {
    /// Learned on ImageNet.
    #[default]
    ImageNet,
    /// Learned on CIFAR-10.
    Cifar10,
    /// Learned on SVHN.
    Svhn,
}

/// An operation, its probability in tenths, and the bin of its magnitude.
type Choice = (Operation, u8, u32);

impl Policy {
    /// Names of the policies, as in torchvision's `AutoAugmentPolicy`.
    const NAMES: [&'static str; 3] = ["imagenet", "cifar10", "svhn"];

    pub(crate) const fn pairs(self) -> &'static [[Choice; 2]; 25] {
        match self {
            Self::ImageNet => &IMAGENET,
            Self::Cifar10 => &CIFAR10,
            Self::Svhn => &SVHN,
        }
    }
}

impl Definition for AutoAugment {
    const DOC: &'static str = "Applies one of 25 learned pairs of operations.";
    const DETAILS: &'static str = "torchvision's policies; each operation has its own probability and magnitude, and is bit for bit as on PIL images there.";
    const PARAMETERS: &'static [Parameter] = &[
        Parameter::new(
            "policy",
            ParameterKind::Choice(&Policy::NAMES),
            "The dataset for which the pairs were learned.",
        ),
        INTERPOLATION,
        FILL,
    ];
}

impl Pixels for AutoAugment {
    fn apply(&self, picture: &mut PixelBuffer, draws: &mut Draws) -> Option<SpatialStep> {
        let affine = AffineParams {
            interpolation: self.interpolation,
            fill: self.fill,
        };
        let pairs = self.policy.pairs();
        let pair = pairs[draws.below(pairs.len() as u32) as usize];
        for (operation, tenths, bin) in pair {
            // Both numbers are drawn even if unused, so that a skipped operation does not change later draws.
            let applies = draws.unit() < f64::from(tenths) / 10.0;
            let negative = draws.unit() < 0.5;
            if applies {
                let bin = (bin, BINS);
                Space::RandAugment.apply(picture, bin, (operation, negative), &affine);
            }
        }
        None
    }

    fn moves_objects(&self) -> bool {
        false
    }
}

#[rustfmt::skip]
const IMAGENET: [[Choice; 2]; 25] = [
    [(Posterize, 4, 8), (Rotate, 6, 9)],
    [(Solarize, 6, 5), (AutoContrast, 6, 0)],
    [(Equalize, 8, 0), (Equalize, 6, 0)],
    [(Posterize, 6, 7), (Posterize, 6, 6)],
    [(Equalize, 4, 0), (Solarize, 2, 4)],
    [(Equalize, 4, 0), (Rotate, 8, 8)],
    [(Solarize, 6, 3), (Equalize, 6, 0)],
    [(Posterize, 8, 5), (Equalize, 10, 0)],
    [(Rotate, 2, 3), (Solarize, 6, 8)],
    [(Equalize, 6, 0), (Posterize, 4, 6)],
    [(Rotate, 8, 8), (Color, 4, 0)],
    [(Rotate, 4, 9), (Equalize, 6, 0)],
    [(Equalize, 0, 0), (Equalize, 8, 0)],
    [(Invert, 6, 0), (Equalize, 10, 0)],
    [(Color, 6, 4), (Contrast, 10, 8)],
    [(Rotate, 8, 8), (Color, 10, 2)],
    [(Color, 8, 8), (Solarize, 8, 7)],
    [(Sharpness, 4, 7), (Invert, 6, 0)],
    [(ShearX, 6, 5), (Equalize, 10, 0)],
    [(Color, 4, 0), (Equalize, 6, 0)],
    [(Equalize, 4, 0), (Solarize, 2, 4)],
    [(Solarize, 6, 5), (AutoContrast, 6, 0)],
    [(Invert, 6, 0), (Equalize, 10, 0)],
    [(Color, 6, 4), (Contrast, 10, 8)],
    [(Equalize, 8, 0), (Equalize, 6, 0)],
];

#[rustfmt::skip]
const CIFAR10: [[Choice; 2]; 25] = [
    [(Invert, 1, 0), (Contrast, 2, 6)],
    [(Rotate, 7, 2), (TranslateX, 3, 9)],
    [(Sharpness, 8, 1), (Sharpness, 9, 3)],
    [(ShearY, 5, 8), (TranslateY, 7, 9)],
    [(AutoContrast, 5, 0), (Equalize, 9, 0)],
    [(ShearY, 2, 7), (Posterize, 3, 7)],
    [(Color, 4, 3), (Brightness, 6, 7)],
    [(Sharpness, 3, 9), (Brightness, 7, 9)],
    [(Equalize, 6, 0), (Equalize, 5, 0)],
    [(Contrast, 6, 7), (Sharpness, 6, 5)],
    [(Color, 7, 7), (TranslateX, 5, 8)],
    [(Equalize, 3, 0), (AutoContrast, 4, 0)],
    [(TranslateY, 4, 3), (Sharpness, 2, 6)],
    [(Brightness, 9, 6), (Color, 2, 8)],
    [(Solarize, 5, 2), (Invert, 0, 0)],
    [(Equalize, 2, 0), (AutoContrast, 6, 0)],
    [(Equalize, 2, 0), (Equalize, 6, 0)],
    [(Color, 9, 9), (Equalize, 6, 0)],
    [(AutoContrast, 8, 0), (Solarize, 2, 8)],
    [(Brightness, 1, 3), (Color, 7, 0)],
    [(Solarize, 4, 5), (AutoContrast, 9, 0)],
    [(TranslateY, 9, 9), (TranslateY, 7, 9)],
    [(AutoContrast, 9, 0), (Solarize, 8, 3)],
    [(Equalize, 8, 0), (Invert, 1, 0)],
    [(TranslateY, 7, 9), (AutoContrast, 9, 0)],
];

#[rustfmt::skip]
const SVHN: [[Choice; 2]; 25] = [
    [(ShearX, 9, 4), (Invert, 2, 0)],
    [(ShearY, 9, 8), (Invert, 7, 0)],
    [(Equalize, 6, 0), (Solarize, 6, 6)],
    [(Invert, 9, 0), (Equalize, 6, 0)],
    [(Equalize, 6, 0), (Rotate, 9, 3)],
    [(ShearX, 9, 4), (AutoContrast, 8, 0)],
    [(ShearY, 9, 8), (Invert, 4, 0)],
    [(ShearY, 9, 5), (Solarize, 2, 6)],
    [(Invert, 9, 0), (AutoContrast, 8, 0)],
    [(Equalize, 6, 0), (Rotate, 9, 3)],
    [(ShearX, 9, 4), (Solarize, 3, 3)],
    [(ShearY, 8, 8), (Invert, 7, 0)],
    [(Equalize, 9, 0), (TranslateY, 6, 6)],
    [(Invert, 9, 0), (Equalize, 6, 0)],
    [(Contrast, 3, 3), (Rotate, 8, 4)],
    [(Invert, 8, 0), (TranslateY, 0, 2)],
    [(ShearY, 7, 6), (Solarize, 4, 8)],
    [(Invert, 6, 0), (Rotate, 8, 4)],
    [(ShearY, 3, 7), (TranslateX, 9, 3)],
    [(ShearX, 1, 6), (Invert, 6, 0)],
    [(Solarize, 7, 2), (TranslateY, 6, 7)],
    [(ShearY, 8, 4), (Invert, 8, 0)],
    [(ShearX, 7, 9), (TranslateY, 8, 3)],
    [(ShearY, 8, 5), (AutoContrast, 7, 0)],
    [(ShearX, 7, 2), (Invert, 1, 0)],
];
