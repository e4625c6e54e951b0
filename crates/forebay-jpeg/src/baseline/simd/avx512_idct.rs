//! The inverse cosine transform of four blocks at once with AVX-512: a block in each quarter of a
//! register. The arithmetic equals that of [`idct`](super::idct), step by step.

use super::Steps;
use super::avx2_idct;
use super::entropy::PAIR;
use super::idct::*;
use super::x86::passes;
use std::arch::x86_64::*;
use std::arch::x86_64::{
    _mm512_add_epi16 as add_epi16, _mm512_add_epi32 as add_epi32, _mm512_adds_epi16 as adds_epi16,
    _mm512_and_si512 as and, _mm512_madd_epi16 as madd_epi16, _mm512_or_si512 as or,
    _mm512_packs_epi16 as packs_epi16, _mm512_packs_epi32 as packs_epi32,
    _mm512_set1_epi8 as set1_epi8, _mm512_set1_epi16 as set1_epi16,
    _mm512_set1_epi32 as set1_epi32, _mm512_setzero_si512 as zero,
    _mm512_shuffle_epi8 as shuffle_epi8, _mm512_slli_epi16 as slli_epi16,
    _mm512_srai_epi16 as srai_epi16, _mm512_srai_epi32 as srai_epi32,
    _mm512_sub_epi16 as sub_epi16, _mm512_sub_epi32 as sub_epi32,
    _mm512_unpackhi_epi8 as unpackhi_epi8, _mm512_unpackhi_epi16 as unpackhi_epi16,
    _mm512_unpackhi_epi32 as unpackhi_epi32, _mm512_unpackhi_epi64 as unpackhi_epi64,
    _mm512_unpacklo_epi8 as unpacklo_epi8, _mm512_unpacklo_epi16 as unpacklo_epi16,
    _mm512_unpacklo_epi32 as unpacklo_epi32, _mm512_unpacklo_epi64 as unpacklo_epi64,
    _mm512_xor_si512 as xor,
};

passes!("avx2,avx512f,avx512bw", __m512i, __m256i, u32);

#[target_feature(enable = "avx2,avx512f,avx512bw")]
pub(super) fn strip(pairs: &mut [i16], steps: &Steps, plane: &mut [u8], stride: usize) {
    let (step_rows, _) = steps.as_chunks::<8>();
    let mut by = [_mm512_setzero_si512(); 8];
    for (by, row) in by.iter_mut().zip(step_rows) {
        // SAFETY: reads the 16 bytes of the row.
        let row = unsafe { _mm_loadu_si128(row.as_ptr().cast()) };
        *by = _mm512_broadcast_i32x4(row);
    }
    let mut twos = pairs.chunks_exact_mut(2 * PAIR);
    let mut at = 0;
    for two in twos.by_ref() {
        let (first, second) = two.split_at_mut(PAIR);
        let pixels = transform(&take(first, second), &by);
        for (row, pixels) in pixels.into_iter().enumerate() {
            let to = &mut plane[row * stride + at..][..32];
            // SAFETY: writes the 32 bytes of `to`.
            unsafe { _mm256_storeu_si256(to.as_mut_ptr().cast(), pixels) };
        }
        at += 32;
    }
    let rest = twos.into_remainder();
    if !rest.is_empty() {
        avx2_idct::strip(rest, steps, &mut plane[at..], stride);
    }
}

/// Loads the coefficients of two pairs of blocks, and clears them.
#[target_feature(enable = "avx2,avx512f,avx512bw")]
#[inline]
fn take(first: &mut [i16], second: &mut [i16]) -> Rows {
    let (first, _) = first.as_chunks_mut::<16>();
    let (second, _) = second.as_chunks_mut::<16>();
    let zero = _mm256_setzero_si256();
    let mut rows = [_mm512_setzero_si512(); 8];
    for ((row, first), second) in rows.iter_mut().zip(first).zip(second) {
        // SAFETY: reads and writes the 32 bytes of each row.
        unsafe {
            let left = _mm256_loadu_si256(first.as_ptr().cast());
            let right = _mm256_loadu_si256(second.as_ptr().cast());
            *row = _mm512_inserti64x4::<1>(_mm512_castsi256_si512(left), right);
            _mm256_storeu_si256(first.as_mut_ptr().cast(), zero);
            _mm256_storeu_si256(second.as_mut_ptr().cast(), zero);
        }
    }
    rows
}

/// Transforms coefficients to rows of 32 pixels.
#[target_feature(enable = "avx2,avx512f,avx512bw")]
#[inline]
fn transform(coefficients: &Rows, steps: &Rows) -> [__m256i; 8] {
    let [r0, rest @ ..] = coefficients;
    let zero = _mm512_setzero_si512();
    let below = rest
        .iter()
        .fold(zero, |all, row| _mm512_or_si512(all, *row));
    // The bits of all coefficients but the four DC coefficients.
    let details = _mm512_or_si512(below, _mm512_bsrli_epi128::<2>(*r0));
    if _mm512_test_epi64_mask(details, details) == 0 {
        return flat(_mm512_mullo_epi16(*r0, steps[0]));
    }
    let mut values = *coefficients;
    for (value, step) in values.iter_mut().zip(steps) {
        *value = _mm512_mullo_epi16(*value, *step);
    }
    let beyond = beyond_left(_mm512_or_si512(below, *r0), values[0]);
    if _mm512_test_epi64_mask(beyond, beyond) == 0 {
        return to_pixels(pass_rows_of_four(&left_columns(&values)));
    }
    let mut columns = pass_columns(&values);
    // In blocks with only a first row, values are truncated where the full pass saturates. The mask
    // has one bit per half of a block's rows.
    let empty = _mm512_testn_epi64_mask(below, below);
    let both = empty & (empty >> 1) & 0b0101_0101;
    if both != 0 {
        let only_first_row = both | both << 1;
        let row = _mm512_slli_epi16::<{ PASS1_BITS }>(values[0]);
        for column in &mut columns {
            *column = _mm512_mask_mov_epi64(*column, only_first_row, row);
        }
    }
    to_pixels(pass_rows(&transpose(columns)))
}

/// Returns the first 64-bit halves of all lanes side by side, and the second halves.
#[target_feature(enable = "avx2,avx512f,avx512bw")]
#[inline]
fn halves(value: __m512i) -> [__m256i; 2] {
    let order = _mm512_setr_epi64(0, 2, 4, 6, 1, 3, 5, 7);
    let value = _mm512_permutexvar_epi64(order, value);
    [
        _mm512_castsi512_si256(value),
        _mm512_extracti64x4_epi64::<1>(value),
    ]
}

/// Returns the upper 16 bits of each integer, alternating between the registers.
#[target_feature(enable = "avx2,avx512f,avx512bw")]
#[inline]
fn high_words(even: __m512i, odd: __m512i) -> __m512i {
    _mm512_mask_mov_epi16(_mm512_srli_epi32::<16>(even), 0xaaaa_aaaa, odd)
}
