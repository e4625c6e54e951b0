//! The resized image on which pixel ops work: rows of RGB pixels without gaps, and geometric
//! operations (mirror, translate, shear, rotate) as in Pillow.

mod affine;
mod blur;
mod photometric;

pub(crate) use affine::AffineParams;
pub use affine::Interpolation;

use crate::geometry::AffineMap;
use crate::random::sin_cos;
use affine::sample;

/// An image, and a second buffer for operations that need a copy. Both are reused for the next image.
#[derive(Debug, Default)]
pub(crate) struct PixelBuffer {
    pub(crate) width: usize,
    pub(crate) height: usize,
    data: Vec<u8>,
    spare: Vec<u8>,
}

impl PixelBuffer {
    /// Sets the size to `width` by `height`; the content is then undefined.
    pub(crate) fn reset(&mut self, width: usize, height: usize) -> &mut [u8] {
        (self.width, self.height) = (width, height);
        self.data.resize(3 * width * height, 0);
        &mut self.data
    }

    pub(crate) fn data(&self) -> &[u8] {
        &self.data
    }

    pub(crate) fn pixels(&self) -> &[[u8; 3]] {
        self.data.as_chunks().0
    }

    pub(crate) fn pixels_mut(&mut self) -> &mut [[u8; 3]] {
        self.data.as_chunks_mut().0
    }

    /// Returns the image for writing, and a copy of its content.
    pub(crate) fn with_copy(&mut self) -> (&mut [u8], &[u8]) {
        self.spare.clear();
        self.spare.extend_from_slice(&self.data);
        (&mut self.data, &self.spare)
    }

    /// Mirrors left to right.
    pub(crate) fn mirror(&mut self) {
        let width = self.width.max(1);
        self.pixels_mut()
            .chunks_exact_mut(width)
            .for_each(<[[u8; 3]]>::reverse);
    }

    /// Mirrors top to bottom.
    pub(crate) fn upside_down(&mut self) {
        let stride = self.width * 3;
        let half = self.height / 2;
        let middle = self.data.len() - half * stride;
        let (upper, lower) = self.data.split_at_mut(middle);
        let rows = upper.chunks_exact_mut(stride.max(1)).take(half);
        for (a, b) in rows.zip(lower.chunks_exact_mut(stride.max(1)).rev()) {
            a.swap_with_slice(b);
        }
    }

    /// Centers the image in a black one of this size: torchvision's `CenterCrop` of an image that is too small.
    pub(crate) fn pad(&mut self, width: usize, height: usize) {
        let (old_width, old_height) = (self.width, self.height);
        // An odd difference adds one more pixel to the right and below.
        let (left, top) = (
            width.saturating_sub(old_width) / 2,
            height.saturating_sub(old_height) / 2,
        );
        self.spare.clear();
        self.spare.resize(3 * width * height, 0);
        let rows = self.data.chunks_exact((3 * old_width).max(1));
        let padded = self.spare.chunks_exact_mut((3 * width).max(1)).skip(top);
        for (row, padded) in rows.zip(padded) {
            if let Some(middle) = padded.get_mut(3 * left..3 * left + row.len()) {
                middle.copy_from_slice(row);
            }
        }
        std::mem::swap(&mut self.data, &mut self.spare);
        (self.width, self.height) = (width, height);
    }

    /// Translates the image by whole pixels, right and down.
    pub(crate) fn translate(&mut self, x: i64, y: i64, affine: &AffineParams) {
        let inverse = AffineMap([1.0, 0.0, -(x as f64), 0.0, 1.0, -(y as f64)]);
        self.transform(inverse, affine);
    }

    /// Shifts each row left by `slope` times its index.
    pub(crate) fn shear_x(&mut self, slope: f64, affine: &AffineParams) {
        self.transform(AffineMap([1.0, slope, 0.0, 0.0, 1.0, 0.0]), affine);
    }

    /// Shifts each column up by `slope` times its index.
    pub(crate) fn shear_y(&mut self, slope: f64, affine: &AffineParams) {
        self.transform(AffineMap([1.0, 0.0, 0.0, slope, 1.0, 0.0]), affine);
    }

    /// Rotates about the center, counter-clockwise, by an angle in degrees.
    /// Returns the map from output to input; `None` for whole turns.
    pub(crate) fn rotate(&mut self, degrees: f64, affine: &AffineParams) -> Option<AffineMap> {
        let size = (self.width as f64, self.height as f64);
        let inverse = rotation(size, degrees)?;
        self.transform(inverse, affine);
        Some(inverse)
    }

    /// `Image.transform(size, AFFINE, matrix, resample, fillcolor=fill)`, where the matrix maps a
    /// pixel of the output to one of the input.
    pub(crate) fn transform(&mut self, inverse: AffineMap, affine: &AffineParams) {
        if affine.is_nearest() {
            return self.transform_nearest(inverse, affine.fill);
        }
        let size = (self.width, self.height);
        let (data, before) = self.with_copy();
        let source = before.as_chunks::<3>().0;
        let rows = data.as_chunks_mut::<3>().0.chunks_exact_mut(size.0.max(1));
        for (y, row) in rows.enumerate() {
            let y = y as f64 + 0.5;
            for (x, pixel) in row.iter_mut().enumerate() {
                let [x, y] = inverse.apply([x as f64 + 0.5, y]);
                *pixel = sample(source, size, (x, y), affine);
            }
        }
    }

    /// The nearest pixel, with Pillow's 16 fractional bits; `fill` outside of the image.
    fn transform_nearest(&mut self, inverse: AffineMap, fill: [u8; 3]) {
        let AffineMap([a, b, c, d, e, f]) = inverse;
        let (width, height) = (self.width, self.height);
        let fixed = |v: f64| (v * 65536.0 + 0.5).floor() as i64;
        let (dx, dy) = (fixed(a), fixed(d));
        let mut row_x = fixed(c + a * 0.5 + b * 0.5);
        let mut row_y = fixed(f + d * 0.5 + e * 0.5);
        let (row_dx, row_dy) = (fixed(b), fixed(e));
        let (data, before) = self.with_copy();
        let (source, _) = before.as_chunks::<3>();
        let (pixels, _) = data.as_chunks_mut::<3>();
        for row in pixels.chunks_exact_mut(width.max(1)) {
            let (mut x, mut y) = (row_x, row_y);
            for pixel in row {
                // The cast makes a negative coordinate larger than any side.
                let (column, line) = ((x >> 16) as usize, (y >> 16) as usize);
                *pixel = if column < width && line < height {
                    source[line * width + column]
                } else {
                    fill
                };
                x += dx;
                y += dy;
            }
            row_x += row_dx;
            row_y += row_dy;
        }
    }
}

/// Returns the map from output to input of a rotation about the center, counter-clockwise, by an
/// angle in degrees; `None` for whole turns.
pub(crate) fn rotation((width, height): (f64, f64), degrees: f64) -> Option<AffineMap> {
    let degrees = degrees.rem_euclid(360.0);
    if degrees == 0.0 {
        return None;
    }
    // Pillow rounds to 15 places, so that right angles are exact. The rounding error of the
    // product decides the sine of 45 degrees.
    let places = |v: f64| {
        let many = v * 1e15;
        let lost = v.mul_add(1e15, -many);
        let below = many.floor();
        (below + (many - below + lost).round_ties_even()) / 1e15
    };
    let (sin, cos) = sin_cos(-degrees.to_radians());
    let (sin, cos) = (places(sin), places(cos));
    let (x, y) = (width / 2.0, height / 2.0);
    let [c, f] = [cos * -x + sin * -y + x, -sin * -x + cos * -y + y];
    Some(AffineMap([cos, sin, c, -sin, cos, f]))
}
