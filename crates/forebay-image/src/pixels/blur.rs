//! Gaussian blur, with torchvision's kernel and padding.

use super::PixelBuffer;
use crate::random::exp;

impl PixelBuffer {
    /// `gaussian_blur(image, kernel_size, sigma)`: width and height of the kernel are odd; the
    /// image is reflected at its border.
    ///
    /// torchvision adds the products of a two-dimensional kernel in binary32, in an order that
    /// depends on the processor. Here the two axes are separate passes, so a value close to a half
    /// may round differently.
    pub(crate) fn gaussian_blur(&mut self, (kernel_width, kernel_height): (u32, u32), sigma: f64) {
        let (width, height) = (self.width, self.height);
        if width == 0 || height == 0 {
            return;
        }
        let stride = 3 * width;
        let across = kernel(kernel_width, sigma);
        let down = kernel(kernel_height, sigma);
        let columns = reflected(width, across.len() / 2);
        let mut padded = vec![0.0; 3 * columns.len()];
        // The result of the horizontal pass.
        let mut rows = vec![0.0; stride * height];
        for (row, sums) in self
            .data
            .chunks_exact(stride)
            .zip(rows.chunks_exact_mut(stride))
        {
            let pixels = row.as_chunks::<3>().0;
            for (to, &column) in padded.as_chunks_mut().0.iter_mut().zip(&columns) {
                *to = pixels[column].map(f32::from);
            }
            for (tap, weight) in across.iter().enumerate() {
                add(sums, &padded[3 * tap..], *weight);
            }
        }
        let lines = reflected(height, down.len() / 2);
        let mut sums = vec![0.0; stride];
        for (y, row) in self.data.chunks_exact_mut(stride).enumerate() {
            sums.fill(0.0);
            for (weight, line) in down.iter().zip(&lines[y..]) {
                add(&mut sums, &rows[line * stride..], *weight);
            }
            for (to, sum) in row.iter_mut().zip(&sums) {
                *to = sum.round_ties_even() as u8;
            }
        }
    }
}

/// Adds `weight` times the values to the sums.
fn add(sums: &mut [f32], values: &[f32], weight: f32) {
    for (sum, value) in sums.iter_mut().zip(values) {
        *sum += weight * value;
    }
}

/// Returns the weights of a kernel; their sum is 1.
fn kernel(size: u32, sigma: f64) -> Vec<f32> {
    let middle = f64::from(size - 1) / 2.0;
    // Clamped to the range of `exp`: smaller weights are zero in binary32.
    let weight = |at: u32| exp((-0.5 * ((f64::from(at) - middle) / sigma).powi(2)).max(-600.0));
    let weights: Vec<f64> = (0..size).map(weight).collect();
    let sum: f64 = weights.iter().sum();
    weights.iter().map(|weight| (weight / sum) as f32).collect()
}

/// Returns the source positions of an axis with `margin` reflected positions on each side; the
/// border pixel is not repeated.
fn reflected(length: usize, margin: usize) -> Vec<usize> {
    let period = (2 * length - 2).max(1) as i64;
    let position = |at: i64| {
        let at = at.rem_euclid(period);
        at.min(period - at).min(length as i64 - 1) as usize
    };
    let (length, margin) = (length as i64, margin as i64);
    (-margin..length + margin).map(position).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn borders_are_reflected_without_the_outermost_position() {
        assert_eq!(reflected(3, 2), [2, 1, 0, 1, 2, 1, 0]);
        assert_eq!(reflected(3, 5), [1, 0, 1, 2, 1, 0, 1, 2, 1, 0, 1, 2, 1]);
        assert_eq!(reflected(1, 2), [0; 5]);
        assert_eq!(reflected(2, 1), [1, 0, 1, 0]);
    }

    #[test]
    fn kernels_are_symmetric_and_sum_to_one() {
        for (size, sigma) in [(1, 0.1), (3, 0.01), (23, 2.0), (255, 1000.0)] {
            let kernel = kernel(size, sigma);
            assert!(kernel.iter().eq(kernel.iter().rev()));
            let sum: f64 = kernel.iter().map(|&w| f64::from(w)).sum();
            assert!((sum - 1.0).abs() < 1e-5, "{sum}");
        }
    }
}
