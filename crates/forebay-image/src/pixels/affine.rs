//! Affine operations: interpolation between pixels and the fill outside of the image, as Pillow
//! computes them.

use serde::{Deserialize, Serialize};

/// Interpolation between pixels.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Interpolation {
    /// The nearest pixel.
    #[default]
    Nearest,
    /// The four surrounding pixels, weighted by distance.
    Bilinear,
    /// The sixteen surrounding pixels, with Pillow's cubic of slope -1.
    Bicubic,
}

impl Interpolation {
    /// Their names, as in torchvision's `InterpolationMode`.
    pub const NAMES: [&'static str; 3] = ["nearest", "bilinear", "bicubic"];
}

/// Parameters of affine operations.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
pub(crate) struct AffineParams {
    /// How colors between pixel centers are computed.
    pub interpolation: Interpolation,
    /// Fill outside of the image: red, green, blue.
    pub fill: [u8; 3],
}

impl AffineParams {
    pub(super) fn is_nearest(&self) -> bool {
        self.interpolation == Interpolation::Nearest
    }
}

/// Returns the color at a position, where the center of the first pixel is (0.5, 0.5). Computed in
/// binary64, as in Pillow; fractions are truncated.
pub(super) fn sample(
    source: &[[u8; 3]],
    (width, height): (usize, usize),
    (x, y): (f64, f64),
    affine: &AffineParams,
) -> [u8; 3] {
    // Also false for NaN.
    let inside = x >= 0.0 && x < width as f64 && y >= 0.0 && y < height as f64;
    if !inside {
        return affine.fill;
    }
    let (x, y) = (x - 0.5, y - 0.5);
    let (column, line) = (x.floor(), y.floor());
    let (dx, dy) = (x - column, y - line);
    let (column, line) = (column as i64, line as i64);
    let clipped = |at: i64, side: usize| at.clamp(0, side as i64 - 1) as usize;
    let row = |line: i64| {
        let start = clipped(line, height) * width;
        &source[start..start + width]
    };
    match affine.interpolation {
        Interpolation::Bicubic => {
            let columns = [-1, 0, 1, 2].map(|by| clipped(column + by, width));
            let rows = [-1, 0, 1, 2].map(|by| row(line + by));
            std::array::from_fn(|channel| {
                let across = rows
                    .map(|row| cubic(columns.map(|column| f64::from(row[column][channel])), dx));
                // The cast saturates.
                cubic(across, dy) as u8
            })
        }
        _ => {
            let columns = [0, 1].map(|by| clipped(column + by, width));
            let rows = [row(line), row(line + 1)];
            std::array::from_fn(|channel| {
                let across = rows.map(|row| {
                    let [left, right] = columns.map(|column| f64::from(row[column][channel]));
                    left + (right - left) * dx
                });
                (across[0] + (across[1] - across[0]) * dy) as u8
            })
        }
    }
}

/// Evaluates the cubic between the two middle values, at the fraction `d` of their distance.
fn cubic([before, from, to, after]: [f64; 4], d: f64) -> f64 {
    let slope = to - before;
    let square = 2.0 * (before - from) + to - after;
    let cube = from - before - to + after;
    from + d * (slope + d * (square + d * cube))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pixel_centers_give_the_pixel_and_outside_gives_the_fill() {
        let source: Vec<[u8; 3]> = (0..12).map(|i| [i * 20, 255 - i, i]).collect();
        for interpolation in [Interpolation::Bilinear, Interpolation::Bicubic] {
            let affine = AffineParams {
                interpolation,
                fill: [1, 2, 3],
            };
            let at = |x, y| sample(&source, (4, 3), (x, y), &affine);
            for (i, pixel) in source.iter().enumerate() {
                assert_eq!(at((i % 4) as f64 + 0.5, (i / 4) as f64 + 0.5), *pixel);
            }
            for (x, y) in [
                (-0.1, 1.0),
                (4.0, 1.0),
                (1.0, 3.0),
                (1.0, f64::NAN),
                (f64::MAX, 0.0),
            ] {
                assert_eq!(at(x, y), [1, 2, 3]);
            }
            assert_eq!(at(0.0, 0.0), source[0]);
        }
        let affine = AffineParams {
            interpolation: Interpolation::Bilinear,
            ..AffineParams::default()
        };
        assert_eq!(sample(&source, (4, 3), (1.25, 0.5), &affine)[0], 15);
    }
}
