//! The two passes with NEON. It multiplies and adds 32-bit integers four at a time, so weights and
//! sums equal those of the portable passes, bit for bit. Unlike automatic vectorization, this code
//! maps pixels to lanes and keeps sums in registers.
#![allow(unsafe_code)] // intrinsics, loads and stores; bounds are checked where they are made

use super::axis::{Axis, GROUP};
use super::{HALF, Middle, PRECISION_BITS};
use crate::output::Layout;
use std::arch::aarch64::*;

/// Number of source rows that share one load of the weights.
const ROWS: usize = 4;
/// Bytes that a load of a group of pixels reads; `3 * GROUP` of them are used.
const LOAD: usize = 16;
/// Columns per step of the vertical pass.
const CHUNK: usize = 32;

/// Returns shuffles of 16 bytes into the 32-bit lanes of four registers: each register gets `lanes`
/// bytes, and 0 in the remaining lanes.
const fn widening(lanes: usize) -> [[u8; LOAD]; 4] {
    // An index past the 16 bytes gives 0.
    let mut places = [[u8::MAX; LOAD]; 4];
    let mut i = 0;
    while i < 4 * lanes {
        places[i / lanes][i % lanes * 4] = i as u8;
        i += 1;
    }
    places
}

const PIXELS: [[u8; LOAD]; 4] = widening(3);
const BYTES: [[u8; LOAD]; 4] = widening(4);

/// Returns the shuffle of four pixels with four bytes each to pixels of three bytes, or to channels.
const fn order(layout: Layout) -> [u8; LOAD] {
    match layout {
        Layout::Nhwc => [0, 1, 2, 4, 5, 6, 8, 9, 10, 12, 13, 14, 3, 7, 11, 15],
        Layout::Nchw => [0, 4, 8, 12, 1, 5, 9, 13, 2, 6, 10, 14, 3, 7, 11, 15],
    }
}

/// Returns the distance of rows of `width` pixels, in bytes, such that the last group of a row can be loaded.
pub(super) fn row_stride(width: usize) -> usize {
    width * 3 + LOAD
}

/// First pass: computes intermediate rows from `count` rows of pixels, [`row_stride`] bytes apart.
///
/// # Panics
/// If a buffer is too short for the plan, or the processor has no NEON.
pub(super) fn horizontal(
    columns: &Axis,
    source: &[u8],
    count: usize,
    middle: Middle,
    rows: &mut [u8],
) {
    assert!(std::arch::is_aarch64_feature_detected!("neon"));
    let stride = row_stride(columns.span().len());
    assert!(source.len() >= count * stride && rows.len() >= count * middle.stride);
    for y in (0..count).step_by(ROWS) {
        // Past the last row, the last one is used again, so that there are always `ROWS` rows.
        let last = (y + ROWS).min(count) - 1;
        let four = std::array::from_fn(|i| &source[(y + i).min(last) * stride..][..stride]);
        let into = &mut rows[y * middle.stride..][..(last - y + 1) * middle.stride];
        // SAFETY: NEON is available.
        unsafe { some_rows(columns, four, middle, into) };
    }
}

/// Computes as many rows as `out` has space for, four output columns at a time.
#[target_feature(enable = "neon")]
fn some_rows(columns: &Axis, source: [&[u8]; ROWS], middle: Middle, out: &mut [u8]) {
    let spread = PIXELS.map(|places| load(&places));
    let order = load(&order(middle.layout));
    let half = vdupq_n_s32(HALF);
    let length = source[0].len();
    assert!(source.iter().all(|row| row.len() == length));
    let width = columns.len();
    for x in (0..width).step_by(4) {
        // Four pixels of each row, with 32 bits per channel.
        let mut done = [[vdupq_n_s32(0); 4]; ROWS];
        for j in 0..(width - x).min(4) {
            let (start, groups) = columns.whole_groups(x + j);
            let mut sums = [half; ROWS];
            for (group, weights) in groups.iter().enumerate() {
                let at = (start + group * GROUP) * 3;
                // SAFETY: reads the 16 bytes of the weights.
                let weights = unsafe { vld1q_s32(weights.as_ptr()) };
                assert!(at + LOAD <= length);
                for (sum, row) in sums.iter_mut().zip(source) {
                    // SAFETY: the length of all rows was checked above.
                    let pixels = unsafe { vld1q_u8(row.as_ptr().add(at)) };
                    *sum = plus_pixels(*sum, pixels, weights, &spread);
                }
            }
            for (done, sum) in done.iter_mut().zip(sums) {
                done[j] = sum;
            }
        }
        for (out, done) in out.chunks_exact_mut(middle.stride).zip(done) {
            let bytes = vqtbl1q_u8(to_bytes(done), order);
            match middle.layout {
                // Writes up to 13 bytes past the run's end, into padding.
                Layout::Nhwc => store(bytes, &mut out[x * 3..]),
                Layout::Nchw => {
                    let mut channels = [0; LOAD];
                    store(bytes, &mut channels);
                    for (channel, run) in channels.chunks_exact(4).zip(0..3) {
                        out[run * middle.run_stride + x..][..4].copy_from_slice(channel);
                    }
                }
            }
        }
    }
}

/// Returns `sum` plus four pixels, each multiplied by its weight.
#[target_feature(enable = "neon")]
#[inline]
fn plus_pixels(
    sum: int32x4_t,
    pixels: uint8x16_t,
    weights: int32x4_t,
    spread: &[uint8x16_t; 4],
) -> int32x4_t {
    let pixel = |i: usize| vreinterpretq_s32_u8(vqtbl1q_u8(pixels, spread[i]));
    let sum = vmlaq_laneq_s32::<0>(sum, pixel(0), weights);
    let sum = vmlaq_laneq_s32::<1>(sum, pixel(1), weights);
    let sum = vmlaq_laneq_s32::<2>(sum, pixel(2), weights);
    vmlaq_laneq_s32::<3>(sum, pixel(3), weights)
}

/// Second pass: computes row `y` of the output from intermediate rows.
///
/// # Panics
/// If a buffer is too short for the plan, or the processor has no NEON.
pub(super) fn vertical(axis: &Axis, y: usize, rows: &[u8], middle: Middle, out: &mut [u8]) {
    assert!(std::arch::is_aarch64_feature_detected!("neon"));
    for (at, length, to) in middle.runs(y, axis.len()) {
        // SAFETY: NEON is available.
        unsafe { run(axis, y, rows, at, middle, &mut out[to..to + length]) };
    }
}

/// Computes one run of an output row, which begins `at` bytes after the start of each intermediate row.
#[target_feature(enable = "neon")]
fn run(axis: &Axis, y: usize, rows: &[u8], at: usize, middle: Middle, out: &mut [u8]) {
    let (start, weights) = axis.weights(y);
    let place = start % middle.ring;
    let spread = BYTES.map(|places| load(&places));
    for (chunk, out) in out.chunks_mut(CHUNK).enumerate() {
        let mut sums = [[vdupq_n_s32(HALF); 4]; CHUNK / LOAD];
        for (t, &weight) in weights.iter().enumerate() {
            // A run is followed by at least this many bytes of the same row.
            let row = &rows[middle.row(place, t) + at + chunk * CHUNK..];
            let (parts, _) = row[..CHUNK].as_chunks();
            for (sums, part) in sums.iter_mut().zip(parts) {
                let bytes = load(part);
                for (sum, &spread) in sums.iter_mut().zip(&spread) {
                    let values = vreinterpretq_s32_u8(vqtbl1q_u8(bytes, spread));
                    *sum = vmlaq_n_s32(*sum, values, weight);
                }
            }
        }
        let mut bytes = [0; CHUNK];
        let (parts, _) = bytes.as_chunks_mut::<LOAD>();
        for (part, sums) in parts.iter_mut().zip(sums) {
            store(to_bytes(sums), part);
        }
        match out.first_chunk_mut() {
            Some(out) => *out = bytes,
            None => out.copy_from_slice(&bytes[..out.len()]),
        }
    }
}

/// Rounds sums to integers and saturates them to bytes.
#[target_feature(enable = "neon")]
#[inline]
fn to_bytes([a, b, c, d]: [int32x4_t; 4]) -> uint8x16_t {
    /// The remainder of the shift: narrowing already drops 16 bits.
    const SHIFT: i32 = PRECISION_BITS as i32 - 16;
    let low = vshrn_high_n_s32::<16>(vshrn_n_s32::<16>(a), b);
    let high = vshrn_high_n_s32::<16>(vshrn_n_s32::<16>(c), d);
    vqshrun_high_n_s16::<SHIFT>(vqshrun_n_s16::<SHIFT>(low), high)
}

#[target_feature(enable = "neon")]
#[inline]
fn load(bytes: &[u8; LOAD]) -> uint8x16_t {
    // SAFETY: reads the 16 bytes.
    unsafe { vld1q_u8(bytes.as_ptr()) }
}

#[target_feature(enable = "neon")]
#[inline]
fn store(bytes: uint8x16_t, out: &mut [u8]) {
    let out = &mut out[..LOAD];
    // SAFETY: writes the 16 bytes.
    unsafe { vst1q_u8(out.as_mut_ptr(), bytes) }
}
