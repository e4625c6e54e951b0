//! The two passes with AVX-512 and its dot products of bytes (VNNI). A weight has 23 bits and the products take 8, so it is
//! applied in three digits; the sums are exact and the result is that of the portable passes, bit for bit.
#![allow(unsafe_code)] // intrinsics and unchecked loads; every bound is asserted in `resize`

use super::axis::{Axis, DIGIT_BITS, GROUP};
use super::{HALF, Middle, PRECISION_BITS, portable};
use crate::transform::Layout;
use std::arch::x86_64::*;

/// Source rows of a step: one in each quarter of a register.
const ROWS: usize = 4;
/// A load of a group of pixels reads this many bytes, of which it uses `3 * GROUP`.
const LOAD: usize = 16;
/// Bytes of a step of the vertical pass.
const WIDE: usize = 64;

/// Whether this processor can do it.
pub(super) fn is_there() -> bool {
    is_x86_feature_detected!("avx512f")
        && is_x86_feature_detected!("avx512bw")
        && is_x86_feature_detected!("avx512vnni")
}

/// Both passes. The axes must have digits.
///
/// # Panics
/// If a buffer is too short for the plan, or the processor has not what [`is_there`] asks for.
pub(super) fn resize(
    columns: &Axis,
    rows: &Axis,
    middle: Middle,
    source: &[u8],
    stride: usize,
    between: &mut [u8],
    out: &mut [u8],
) {
    assert!(is_there());
    let (in_width, in_height) = (columns.span().len(), rows.span().len());
    assert!(in_height * middle.stride <= between.len());
    assert!(out.len() == 3 * columns.len() * rows.len());
    // The last group of a row may read this far past the row's last pixel.
    let reach = (in_width + GROUP) * 3 + LOAD;
    let mut y = 0;
    while y < in_height {
        // Rows past the last one repeat it, so that there are always `ROWS` of them.
        let last = (y + ROWS).min(in_height) - 1;
        let into = &mut between[y * middle.stride..][..(last - y + 1) * middle.stride];
        let from = &source[y * stride..];
        if source.len() >= last * stride + reach {
            // SAFETY: the processor has what it takes; each of the rows y..=last has `reach` bytes in `source`.
            unsafe { horizontal(columns, from, stride, last - y, middle, into) };
        } else {
            portable::horizontal(columns, from, stride, middle, into);
        }
        y += ROWS;
    }
    for y in 0..rows.len() {
        for (at, length, to) in middle.runs(y, rows.len()) {
            let out = &mut out[to..to + length];
            // SAFETY: the processor has what it takes; the rows that output y needs are below in_height.
            unsafe { vertical(rows, y, &between[at..], middle.stride, out) };
        }
    }
}

/// A sum for each of a weight's digits.
#[derive(Clone, Copy)]
struct Sums([__m512i; 3]);

impl Sums {
    #[inline]
    #[target_feature(enable = "avx512f")]
    fn new() -> Self {
        let zero = _mm512_setzero_si512();
        Self([zero, zero, _mm512_set1_epi32(HALF)])
    }

    /// Adds groups of four bytes, each times its weight.
    #[inline]
    #[target_feature(enable = "avx512f,avx512vnni")]
    fn add(&mut self, bytes: __m512i, digits: [i32; 3]) {
        for (sum, digit) in self.0.iter_mut().zip(digits) {
            *sum = _mm512_dpbusd_epi32(*sum, bytes, _mm512_set1_epi32(digit));
        }
    }

    /// The sums of all digits, rounded to integers.
    #[inline]
    #[target_feature(enable = "avx512f")]
    fn join(self) -> __m512i {
        let [high, middle, low] = self.0;
        let sum = _mm512_add_epi32(_mm512_slli_epi32::<DIGIT_BITS>(high), middle);
        let sum = _mm512_add_epi32(_mm512_slli_epi32::<DIGIT_BITS>(sum), low);
        _mm512_srai_epi32::<PRECISION_BITS>(sum)
    }
}

/// Four registers of integers as bytes.
#[inline]
#[target_feature(enable = "avx512f,avx512bw")]
fn to_bytes([a, b, c, d]: [__m512i; 4]) -> __m512i {
    _mm512_packus_epi16(_mm512_packs_epi32(a, b), _mm512_packs_epi32(c, d))
}

/// One output column of four rows: in each quarter of the register three integers.
///
/// SAFETY: each of the rows must have (inputs + GROUP) * 3 + LOAD bytes.
#[inline]
#[target_feature(enable = "avx512f,avx512bw,avx512vnni")]
unsafe fn mix(columns: &Axis, x: usize, row: [*const u8; ROWS], by_channel: __m512i) -> __m512i {
    let (start, groups) = columns.digits(x);
    let mut sums = Sums::new();
    for (group, &digits) in groups.iter().enumerate() {
        let at = (start + group * GROUP) * 3;
        // SAFETY: the group begins before the end of the inputs, so at + LOAD is within the reach that the caller guarantees.
        let load = |i: usize| unsafe { _mm_loadu_si128(row[i].add(at).cast()) };
        let four = _mm512_castsi128_si512(load(0));
        let four = _mm512_inserti32x4::<1>(four, load(1));
        let four = _mm512_inserti32x4::<2>(four, load(2));
        let four = _mm512_inserti32x4::<3>(four, load(3));
        sums.add(_mm512_shuffle_epi8(four, by_channel), digits);
    }
    sums.join()
}

/// `last + 1` rows at a time, at most [`ROWS`]; four output columns at a time.
///
/// SAFETY: each of the rows must have (inputs + GROUP) * 3 + LOAD bytes from its start.
#[target_feature(enable = "avx512f,avx512bw,avx512vnni")]
unsafe fn horizontal(
    columns: &Axis,
    source: &[u8],
    stride: usize,
    last: usize,
    middle: Middle,
    out: &mut [u8],
) {
    // The four pixels of a load by channel.
    let by_channel = _mm512_broadcast_i32x4(_mm_setr_epi8(
        0, 3, 6, 9, 1, 4, 7, 10, 2, 5, 8, 11, -1, -1, -1, -1,
    ));
    // Four pixels of four bytes to pixels, or to channels.
    let order = _mm512_broadcast_i32x4(match middle.layout {
        Layout::Nhwc => _mm_setr_epi8(0, 1, 2, 4, 5, 6, 8, 9, 10, 12, 13, 14, -1, -1, -1, -1),
        Layout::Nchw => _mm_setr_epi8(0, 4, 8, 12, 1, 5, 9, 13, 2, 6, 10, 14, -1, -1, -1, -1),
    });
    let row: [*const u8; ROWS] = std::array::from_fn(|i| source[i.min(last) * stride..].as_ptr());
    let width = columns.len();
    let mut x = 0;
    while x < width {
        // SAFETY: what the caller guarantees. Columns past the last one repeat it.
        let column = |j: usize| unsafe { mix(columns, (x + j).min(width - 1), row, by_channel) };
        let four = [column(0), column(1), column(2), column(3)];
        let bytes = _mm512_shuffle_epi8(to_bytes(four), order);
        let lanes = [
            _mm512_castsi512_si128(bytes),
            _mm512_extracti32x4_epi32::<1>(bytes),
            _mm512_extracti32x4_epi32::<2>(bytes),
            _mm512_extracti32x4_epi32::<3>(bytes),
        ];
        for (i, bytes) in lanes.into_iter().enumerate().take(last + 1) {
            let mut pixels = [0; LOAD];
            // SAFETY: writes the 16 bytes.
            unsafe { _mm_storeu_si128(pixels.as_mut_ptr().cast(), bytes) };
            let to = i * middle.stride;
            match middle.layout {
                // Up to 13 bytes past the run's end, where nothing is kept.
                Layout::Nhwc => out[to + x * 3..][..LOAD].copy_from_slice(&pixels),
                Layout::Nchw => {
                    for (c, four) in pixels.as_chunks::<4>().0.iter().take(3).enumerate() {
                        let to = to + c * middle.run_stride + x;
                        out[to..to + 4].copy_from_slice(four);
                    }
                }
            }
        }
        x += 4;
    }
}

/// One run of one output row.
///
/// SAFETY: none of the caller's: what is read is asserted, or read under a mask.
#[target_feature(enable = "avx512f,avx512bw,avx512vnni")]
unsafe fn vertical(axis: &Axis, y: usize, rows: &[u8], stride: usize, out: &mut [u8]) {
    let (start, groups) = axis.digits(y);
    let taps = axis.inputs(y);
    assert!((start + taps - 1) * stride + out.len() <= rows.len());
    let source = rows[start * stride..].as_ptr();
    for (chunk, out) in out.chunks_mut(WIDE).enumerate() {
        let mask = u64::MAX >> (WIDE - out.len());
        let mut sums = [Sums::new(); 4];
        for (group, &digits) in groups.iter().enumerate() {
            let row = |i: usize| {
                // Rows that are not inputs have weight 0: any other does as well.
                let row = (group * GROUP + i).min(taps - 1);
                // SAFETY: asserted above; no more than `out.len()` bytes of the chunk are read.
                unsafe {
                    _mm512_maskz_loadu_epi8(mask, source.add(row * stride + chunk * WIDE).cast())
                }
            };
            let (a, b, c, d) = (row(0), row(1), row(2), row(3));
            // Bytes of the four rows side by side.
            let (ab, cd) = (_mm512_unpacklo_epi8(a, b), _mm512_unpacklo_epi8(c, d));
            sums[0].add(_mm512_unpacklo_epi16(ab, cd), digits);
            sums[1].add(_mm512_unpackhi_epi16(ab, cd), digits);
            let (ab, cd) = (_mm512_unpackhi_epi8(a, b), _mm512_unpackhi_epi8(c, d));
            sums[2].add(_mm512_unpacklo_epi16(ab, cd), digits);
            sums[3].add(_mm512_unpackhi_epi16(ab, cd), digits);
        }
        let [a, b, c, d] = sums;
        let (a, b, c, d) = (a.join(), b.join(), c.join(), d.join());
        // SAFETY: writes as many bytes as `out` has.
        unsafe { _mm512_mask_storeu_epi8(out.as_mut_ptr().cast(), mask, to_bytes([a, b, c, d])) };
    }
}
