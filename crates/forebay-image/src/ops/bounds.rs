//! Bounds shared by several parameters.

use crate::error::{Result, invalid};

/// Longest side of an output, in pixels: a mistyped option must not allocate gigabytes per sample.
const MAX_SIDE: u32 = 8192;

pub(crate) fn check_probability(name: &str, p: f64) -> Result<()> {
    if (0.0..=1.0).contains(&p) {
        return Ok(());
    }
    Err(invalid(format!(
        "{name} is {p}, a probability from 0 to 1 is expected"
    )))
}

pub(crate) fn check_side(name: &str, side: u32) -> Result<()> {
    if (1..=MAX_SIDE).contains(&side) {
        return Ok(());
    }
    Err(invalid(format!(
        "{name} is {side} pixels, 1 to {MAX_SIDE} are possible"
    )))
}

pub(super) fn check_size((height, width): (u32, u32)) -> Result<()> {
    check_side("height", height)?;
    check_side("width", width)
}

/// Checks that `minimum <= low <= high <= maximum`; `what` names the parameter and its op.
pub(super) fn check_range(
    what: &str,
    (low, high): (f64, f64),
    (minimum, maximum): (f64, f64),
) -> Result<()> {
    if minimum <= low && low <= high && high <= maximum {
        return Ok(());
    }
    Err(invalid(format!(
        "{what} is {low} to {high}, expected {minimum} <= low <= high <= {maximum}"
    )))
}
