//! The inverse cosine transform of two blocks at once with AVX2: one block in each half of a
//! register. The arithmetic equals that of [`idct`](super::idct), step by step.

use super::Steps;
use super::entropy::PAIR;
use super::idct::*;
use super::x86::passes;
use std::arch::x86_64::*;
use std::arch::x86_64::{
    _mm256_add_epi16 as add_epi16, _mm256_add_epi32 as add_epi32, _mm256_adds_epi16 as adds_epi16,
    _mm256_and_si256 as and, _mm256_madd_epi16 as madd_epi16, _mm256_or_si256 as or,
    _mm256_packs_epi16 as packs_epi16, _mm256_packs_epi32 as packs_epi32,
    _mm256_set1_epi8 as set1_epi8, _mm256_set1_epi16 as set1_epi16,
    _mm256_set1_epi32 as set1_epi32, _mm256_setzero_si256 as zero,
    _mm256_shuffle_epi8 as shuffle_epi8, _mm256_slli_epi16 as slli_epi16,
    _mm256_srai_epi16 as srai_epi16, _mm256_srai_epi32 as srai_epi32,
    _mm256_sub_epi16 as sub_epi16, _mm256_sub_epi32 as sub_epi32,
    _mm256_unpackhi_epi8 as unpackhi_epi8, _mm256_unpackhi_epi16 as unpackhi_epi16,
    _mm256_unpackhi_epi32 as unpackhi_epi32, _mm256_unpackhi_epi64 as unpackhi_epi64,
    _mm256_unpacklo_epi8 as unpacklo_epi8, _mm256_unpacklo_epi16 as unpacklo_epi16,
    _mm256_unpacklo_epi32 as unpacklo_epi32, _mm256_unpacklo_epi64 as unpacklo_epi64,
    _mm256_xor_si256 as xor,
};

passes!("avx2", __m256i, __m128i, i32);

/// For `_mm256_shuffle_epi32`: swaps the two 64-bit halves of each block's row.
const SWAP_HALVES: i32 = 0b01_00_11_10;

/// The quantization steps of a row of coefficients, for both blocks of a pair.
#[repr(align(32))]
struct StepRow([i16; 16]);

#[target_feature(enable = "avx2")]
pub(super) fn strip(pairs: &mut [i16], steps: &Steps, plane: &mut [u8], stride: usize) {
    let (step_rows, _) = steps.as_chunks::<8>();
    let mut by = [const { StepRow([0; 16]) }; 8];
    for (by, row) in by.iter_mut().zip(step_rows) {
        by.0[..8].copy_from_slice(row);
        by.0[8..].copy_from_slice(row);
    }
    // `black_box` keeps the steps in memory: the compiler aligns the stack for them, and so the values that it
    // spills. A spilled value that crosses two pages would cost a quarter of the transform's time.
    let by = std::hint::black_box(&by);
    let (pairs, _) = pairs.as_chunks_mut::<PAIR>();
    assert!(pairs.is_empty() || plane.len() >= 7 * stride + 16 * pairs.len());
    for (i, pair) in pairs.iter_mut().enumerate() {
        let (rows, _) = pair.as_chunks_mut::<16>();
        let mut values = [_mm256_setzero_si256(); 8];
        for (value, row) in values.iter_mut().zip(rows) {
            // SAFETY: reads and writes the 32 bytes of the row.
            unsafe {
                *value = _mm256_loadu_si256(row.as_ptr().cast());
                _mm256_storeu_si256(row.as_mut_ptr().cast(), _mm256_setzero_si256());
            }
        }
        let pixels = transform(&values, by);
        for (row, pixels) in pixels.into_iter().enumerate() {
            // SAFETY: the assertion bounds the last of the 16 bytes in the last row.
            unsafe {
                let to = plane.as_mut_ptr().add(row * stride + i * 16);
                _mm_storeu_si128(to.cast(), pixels);
            }
        }
    }
}

/// Transforms coefficients to rows of 16 pixels.
#[target_feature(enable = "avx2")]
#[inline]
fn transform(coefficients: &Rows, steps: &[StepRow; 8]) -> [__m128i; 8] {
    let times = |row: __m256i, step: &StepRow| {
        // SAFETY: reads the 32 bytes of the row, which is aligned to 32 bytes.
        let step = unsafe { _mm256_load_si256(step.0.as_ptr().cast()) };
        _mm256_mullo_epi16(row, step)
    };
    let [r0, rest @ ..] = coefficients;
    let zero = _mm256_setzero_si256();
    let below = rest
        .iter()
        .fold(zero, |all, row| _mm256_or_si256(all, *row));
    // The bits of all coefficients but the two DC coefficients.
    let details = _mm256_or_si256(below, _mm256_bsrli_epi128::<2>(*r0));
    if _mm256_testz_si256(details, details) != 0 {
        return flat(times(*r0, &steps[0]));
    }
    let mut values = *coefficients;
    for (value, step) in values.iter_mut().zip(steps) {
        *value = times(*value, step);
    }
    let beyond = beyond_left(_mm256_or_si256(below, *r0), values[0]);
    if _mm256_testz_si256(beyond, beyond) != 0 {
        return to_pixels(pass_rows_of_four(&left_columns(&values)));
    }
    let mut columns = pass_columns(&values);
    // In blocks with only a first row, values are truncated where the full pass saturates.
    let empty = _mm256_cmpeq_epi64(below, zero);
    let only_first_row = _mm256_and_si256(empty, _mm256_shuffle_epi32::<{ SWAP_HALVES }>(empty));
    if _mm256_testz_si256(only_first_row, only_first_row) == 0 {
        let row = _mm256_slli_epi16::<{ PASS1_BITS as i32 }>(values[0]);
        for column in &mut columns {
            *column = _mm256_blendv_epi8(*column, row, only_first_row);
        }
    }
    to_pixels(pass_rows(&transpose(columns)))
}

/// Returns the first 64-bit halves of both lanes side by side, and the second halves.
#[target_feature(enable = "avx2")]
#[inline]
fn halves(value: __m256i) -> [__m128i; 2] {
    let value = _mm256_permute4x64_epi64::<0b11_01_10_00>(value);
    [
        _mm256_castsi256_si128(value),
        _mm256_extracti128_si256::<1>(value),
    ]
}

/// The portable loops of the scaled transforms, vectorized by the compiler.
#[target_feature(enable = "avx2")]
pub(super) fn scaled<const N: usize>(
    pairs: &mut [i16],
    steps: &Steps,
    plane: &mut [u8],
    stride: usize,
) {
    super::scaled::strip::<N>(pairs, steps, plane, stride);
}

/// Returns the upper 16 bits of each integer, alternating between the registers.
#[target_feature(enable = "avx2")]
#[inline]
fn high_words(even: __m256i, odd: __m256i) -> __m256i {
    _mm256_blend_epi16::<0b1010_1010>(_mm256_srli_epi32::<16>(even), odd)
}
