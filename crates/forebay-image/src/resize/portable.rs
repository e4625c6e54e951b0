//! The two passes in plain Rust: the definition that SIMD versions must equal.

use super::PRECISION_BITS;
use super::axis::Axis;
use crate::transform::Layout;

const HALF: i32 = 1 << (PRECISION_BITS - 1);

fn to_byte(sum: i32) -> u8 {
    (sum >> PRECISION_BITS).clamp(0, 255) as u8
}

/// Source rows to rows of `3 * columns` bytes: pixels for NHWC, three runs of one channel for NCHW.
pub(super) fn horizontal(
    columns: &Axis,
    source: &[u8],
    stride: usize,
    layout: Layout,
    middle: &mut [u8],
) {
    let width = columns.len();
    let (pixel, channel) = steps(layout, width);
    for (row, out) in source
        .chunks(stride)
        .zip(middle.chunks_exact_mut(width * 3))
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

/// Rows of bytes to the output; a row's three runs go to three planes for NCHW.
pub(super) fn vertical(rows: &Axis, middle: &[u8], width: usize, layout: Layout, out: &mut [u8]) {
    let line = width * 3;
    let plane = width * rows.len();
    let mut sums = vec![0; line];
    for (y, (start, weights)) in rows.iter().enumerate() {
        sums.fill(HALF);
        for (row, &w) in middle[start * line..].chunks_exact(line).zip(weights) {
            for (sum, &v) in sums.iter_mut().zip(row) {
                *sum += i32::from(v) * w;
            }
        }
        match layout {
            Layout::Nhwc => {
                for (o, &sum) in out[y * line..][..line].iter_mut().zip(&sums) {
                    *o = to_byte(sum);
                }
            }
            Layout::Nchw => {
                for (c, run) in sums.chunks_exact(width).enumerate() {
                    for (o, &sum) in out[c * plane + y * width..][..width].iter_mut().zip(run) {
                        *o = to_byte(sum);
                    }
                }
            }
        }
    }
}

/// Bytes from a pixel to the next and from a channel to the next.
fn steps(layout: Layout, width: usize) -> (usize, usize) {
    match layout {
        Layout::Nhwc => (3, 1),
        Layout::Nchw => (1, width),
    }
}
