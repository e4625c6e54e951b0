//! The two passes with AVX2. A weight has 23 bits and `vpmaddwd` takes 16, so it is applied in two
//! halves; the sums are exact and the result equals that of the portable passes, bit for bit.
#![expect(unsafe_code)] // intrinsics and unchecked loads; every bound is asserted in `resize`

use super::axis::{Axis, GROUP, LOW_BITS};
use super::{HALF, Middle, PRECISION_BITS};
use crate::output::Layout;
use std::arch::x86_64::*;

/// Source rows that share one load of the weights.
const ROWS: usize = 4;
/// Bytes that a load of a group of pixels reads; it uses `3 * GROUP` of them.
const LOAD: usize = 16;

/// Bytes from one row of `width` pixels to the next, so that the last group of a row can be loaded.
pub(super) fn row_stride(width: usize) -> usize {
    (width + GROUP) * 3 + LOAD
}

/// First pass: `count` rows of pixels, [`row_stride`] bytes apart, to intermediate rows.
///
/// # Panics
/// If a buffer is too short for the plan, or the processor has no AVX2.
pub(super) fn horizontal(
    columns: &Axis,
    source: &[u8],
    count: usize,
    middle: Middle,
    rows: &mut [u8],
) {
    assert!(is_x86_feature_detected!("avx2"));
    let stride = row_stride(columns.span().len());
    assert!(source.len() >= count * stride && rows.len() >= count * middle.stride);
    for y in (0..count).step_by(ROWS) {
        // Rows past the last one repeat it, so that there are always `ROWS` of them.
        let last = (y + ROWS).min(count) - 1;
        let into = &mut rows[y * middle.stride..][..(last - y + 1) * middle.stride];
        // SAFETY: AVX2 is available; each of the rows y..=last has `stride` bytes, as much as a
        // group may need.
        unsafe {
            four(
                columns,
                &source[y * stride..],
                stride,
                last - y,
                middle,
                into,
            )
        };
    }
}

/// Second pass: intermediate rows to row `y` of the output.
///
/// # Panics
/// If a buffer is too short for the plan, or the processor has no AVX2.
pub(super) fn vertical(axis: &Axis, y: usize, rows: &[u8], middle: Middle, out: &mut [u8]) {
    assert!(is_x86_feature_detected!("avx2"));
    assert!(rows.len() >= middle.ring * middle.stride);
    for (at, length, to) in middle.runs(y, axis.len()) {
        // SAFETY: AVX2 is available, and rows are inside of the ring.
        unsafe { run(axis, y, rows, at, middle, &mut out[to..to + length]) };
    }
}

/// `last + 1` rows at a time, at most [`ROWS`]; four output columns at a time.
///
/// SAFETY: each of the rows must have (inputs + GROUP) * 3 + LOAD bytes from its start.
#[target_feature(enable = "avx2")]
unsafe fn four(
    columns: &Axis,
    source: &[u8],
    stride: usize,
    last: usize,
    middle: Middle,
    out: &mut [u8],
) {
    // Pixels 0 and 1 (2 and 3) of a load as pairs of 16 bits: r r g g b b and nothing.
    let first = _mm256_broadcastsi128_si256(_mm_setr_epi8(
        0, -1, 3, -1, 1, -1, 4, -1, 2, -1, 5, -1, -1, -1, -1, -1,
    ));
    let second = _mm256_broadcastsi128_si256(_mm_setr_epi8(
        6, -1, 9, -1, 7, -1, 10, -1, 8, -1, 11, -1, -1, -1, -1, -1,
    ));
    // Four pixels of four bytes to pixels, or to channels.
    let order = _mm256_broadcastsi128_si256(match middle.layout {
        Layout::Nhwc => _mm_setr_epi8(0, 1, 2, 4, 5, 6, 8, 9, 10, 12, 13, 14, -1, -1, -1, -1),
        Layout::Nchw => _mm_setr_epi8(0, 4, 8, 12, 1, 5, 9, 13, 2, 6, 10, 14, -1, -1, -1, -1),
    });
    let half = _mm256_set1_epi32(HALF);
    let zero = _mm256_setzero_si256();
    let row: [*const u8; ROWS] = std::array::from_fn(|i| source[i.min(last) * stride..].as_ptr());
    let width = columns.len();
    let mut x = 0;
    while x < width {
        let (mut done_a, mut done_b) = ([zero; 4], [zero; 4]);
        for (j, (a_done, b_done)) in done_a
            .iter_mut()
            .zip(&mut done_b)
            .take(width - x)
            .enumerate()
        {
            let (start, high, low) = columns.halves(x + j);
            let (mut a_high, mut a_low, mut b_high, mut b_low) = (zero, half, zero, half);
            let groups = high.chunks(GROUP / 2).zip(low.chunks(GROUP / 2));
            for (group, (high, low)) in groups.enumerate() {
                let at = (start + group * GROUP) * 3;
                // SAFETY: the group begins before the end of the inputs, so at + LOAD is within the
                // length that the caller guarantees.
                let load = |i: usize| unsafe { _mm_loadu_si128(row[i].add(at).cast()) };
                let a = _mm256_inserti128_si256(_mm256_castsi128_si256(load(0)), load(1), 1);
                let b = _mm256_inserti128_si256(_mm256_castsi128_si256(load(2)), load(3), 1);
                let mut add = |pixels: __m256i, high: i32, low: i32| {
                    let (a, b) = (
                        _mm256_shuffle_epi8(a, pixels),
                        _mm256_shuffle_epi8(b, pixels),
                    );
                    let (high, low) = (_mm256_set1_epi32(high), _mm256_set1_epi32(low));
                    a_high = _mm256_add_epi32(a_high, _mm256_madd_epi16(a, high));
                    b_high = _mm256_add_epi32(b_high, _mm256_madd_epi16(b, high));
                    a_low = _mm256_add_epi32(a_low, _mm256_madd_epi16(a, low));
                    b_low = _mm256_add_epi32(b_low, _mm256_madd_epi16(b, low));
                };
                add(first, high[0], low[0]);
                if let (Some(&high), Some(&low)) = (high.get(1), low.get(1)) {
                    add(second, high, low);
                }
            }
            *a_done = join(a_high, a_low);
            *b_done = join(b_high, b_low);
        }
        for (pair, d) in [done_a, done_b].into_iter().enumerate() {
            let bytes = _mm256_packus_epi16(
                _mm256_packs_epi32(d[0], d[1]),
                _mm256_packs_epi32(d[2], d[3]),
            );
            let bytes = _mm256_shuffle_epi8(bytes, order);
            let lanes = [
                _mm256_castsi256_si128(bytes),
                _mm256_extracti128_si256(bytes, 1),
            ];
            for (lane, bytes) in lanes.into_iter().enumerate() {
                let i = pair * 2 + lane;
                if i > last {
                    break;
                }
                let to = i * middle.stride;
                match middle.layout {
                    // Writes up to 13 bytes past the run's end, into padding.
                    Layout::Nhwc => store(bytes, &mut out[to + x * 3..][..LOAD]),
                    Layout::Nchw => {
                        let channels = [
                            _mm_extract_epi32(bytes, 0),
                            _mm_extract_epi32(bytes, 1),
                            _mm_extract_epi32(bytes, 2),
                        ];
                        for (c, four) in channels.into_iter().enumerate() {
                            let to = to + c * middle.run_stride + x;
                            out[to..to + 4].copy_from_slice(&four.to_ne_bytes());
                        }
                    }
                }
            }
        }
        x += 4;
    }
}

/// One run of one output row: the one that begins `at` bytes into each intermediate row.
///
/// SAFETY: `rows` must hold the whole ring.
#[target_feature(enable = "avx2")]
unsafe fn run(axis: &Axis, y: usize, rows: &[u8], at: usize, middle: Middle, out: &mut [u8]) {
    let half = _mm256_set1_epi32(HALF);
    let zero = _mm256_setzero_si256();
    let (start, high, low) = axis.halves(y);
    let (first, end) = (
        middle.row(start % middle.ring, 0),
        middle.ring * middle.stride,
    );
    // A run is followed by at least 32 bytes of its own row.
    assert!(at + out.len().next_multiple_of(32) <= middle.stride);
    let source = rows[at..].as_ptr();
    for (chunk, out) in out.chunks_mut(32).enumerate() {
        let mut sums_high = [zero; 4];
        let mut sums_low = [half; 4];
        let mut row = first;
        for (&high, &low) in high.iter().zip(low) {
            // Past the last input row, other rows are read with weights of 0.
            let [a, b] = [(); 2].map(|()| {
                // SAFETY: rows begin inside of the ring, and the assertion bounds the bytes read of
                // one.
                let bytes = unsafe { _mm256_loadu_si256(source.add(row + chunk * 32).cast()) };
                row += middle.stride;
                if row == end {
                    row = 0;
                }
                bytes
            });
            let (h, l) = (_mm256_set1_epi32(high), _mm256_set1_epi32(low));
            let (even, odd) = (_mm256_unpacklo_epi8(a, b), _mm256_unpackhi_epi8(a, b));
            let quarters = [
                _mm256_unpacklo_epi8(even, zero),
                _mm256_unpackhi_epi8(even, zero),
                _mm256_unpacklo_epi8(odd, zero),
                _mm256_unpackhi_epi8(odd, zero),
            ];
            for (i, v) in quarters.into_iter().enumerate() {
                sums_high[i] = _mm256_add_epi32(sums_high[i], _mm256_madd_epi16(v, h));
                sums_low[i] = _mm256_add_epi32(sums_low[i], _mm256_madd_epi16(v, l));
            }
        }
        let d: [__m256i; 4] = std::array::from_fn(|i| join(sums_high[i], sums_low[i]));
        let bytes = _mm256_packus_epi16(
            _mm256_packs_epi32(d[0], d[1]),
            _mm256_packs_epi32(d[2], d[3]),
        );
        let mut last = [0u8; 32];
        let full = out.len() == 32;
        let to = if full {
            out.as_mut_ptr()
        } else {
            last.as_mut_ptr()
        };
        // SAFETY: both destinations have 32 bytes.
        unsafe { _mm256_storeu_si256(to.cast(), bytes) };
        if !full {
            out.copy_from_slice(&last[..out.len()]);
        }
    }
}

/// The sum of both halves, rounded to an integer.
#[inline]
#[target_feature(enable = "avx2")]
fn join(high: __m256i, low: __m256i) -> __m256i {
    let sum = _mm256_add_epi32(_mm256_slli_epi32(high, LOW_BITS as i32), low);
    _mm256_srai_epi32(sum, PRECISION_BITS as i32)
}

#[inline]
#[target_feature(enable = "avx2")]
fn store(bytes: __m128i, out: &mut [u8]) {
    assert!(out.len() >= LOAD);
    // SAFETY: just asserted.
    unsafe { _mm_storeu_si128(out.as_mut_ptr().cast(), bytes) }
}
