//! Normalization as an op; `Output` does the arithmetic.

use super::Definition;
use super::parameters::{Parameter, ParameterKind};
use crate::error::Result;
use crate::output::{Dtype, Normalize, Output};

impl Definition for Normalize {
    const DOC: &'static str =
        "Computes `(value - mean) / std` for each channel, where values are 0 to 1.";
    const DETAILS: &'static str = "It comes after everything else but `RandomErasing`. The dtype of the loader is float32 unless it is given, and must not be uint8. Bit for bit the numbers of torchvision's `ToDtype(torch.float32, scale=True)` and `Normalize`.";
    const IS_RANDOM: bool = false;
    const PARAMETERS: &'static [Parameter] = &[
        Parameter::new(
            "mean",
            ParameterKind::Channels,
            "Mean of red, green and blue.",
        ),
        Parameter::new(
            "std",
            ParameterKind::Channels,
            "Standard deviation of red, green and blue.",
        ),
    ];

    fn check(&self) -> Result<()> {
        let output = Output {
            dtype: Dtype::Float32,
            normalize: Some(*self),
            ..Output::default()
        };
        output.validate()
    }
}
