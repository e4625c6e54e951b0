//! The two passes in plain Rust: the reference that SIMD versions must equal.

use super::axis::Axis;
use super::{HALF, Middle, PRECISION_BITS};
use crate::output::Layout;

fn to_byte(sum: i32) -> u8 {
    (sum >> PRECISION_BITS).clamp(0, 255) as u8
}

/// First pass: computes intermediate rows from source rows.
pub(super) fn horizontal(
    columns: &Axis,
    source: &[u8],
    stride: usize,
    middle: Middle,
    rows: &mut [u8],
) {
    // Bytes from one pixel to the next and from one channel to the next.
    let (pixel, channel) = match middle.layout {
        Layout::Nhwc => (3, 1),
        Layout::Nchw => (1, middle.run_stride),
    };
    for (row, out) in source
        .chunks(stride)
        .zip(rows.chunks_exact_mut(middle.stride))
    {
        for (x, (start, weights)) in columns.iter().enumerate() {
            let mut sums = [HALF; 3];
            for (p, &w) in row[start * 3..].chunks_exact(3).zip(weights) {
                for (sum, &v) in sums.iter_mut().zip(p) {
                    *sum += i32::from(v) * w;
                }
            }
            for (c, sum) in sums.into_iter().enumerate() {
                out[x * pixel + c * channel] = to_byte(sum);
            }
        }
    }
}

/// Second pass: computes one row of the output from intermediate rows.
pub(super) fn vertical(axis: &Axis, y: usize, rows: &[u8], middle: Middle, out: &mut [u8]) {
    let (start, weights) = axis.weights(y);
    let place = start % middle.ring;
    for (at, length, to) in middle.runs(y, axis.len()) {
        let out = &mut out[to..to + length];
        // A few columns at a time keep their sums in registers.
        for (chunk, out) in out.chunks_mut(32).enumerate() {
            let mut sums = [HALF; 32];
            for (t, &w) in weights.iter().enumerate() {
                let row = &rows[middle.row(place, t) + at + chunk * 32..][..out.len()];
                for (sum, &v) in sums.iter_mut().zip(row) {
                    *sum += i32::from(v) * w;
                }
            }
            for (o, &sum) in out.iter_mut().zip(&sums) {
                *o = to_byte(sum);
            }
        }
    }
}
