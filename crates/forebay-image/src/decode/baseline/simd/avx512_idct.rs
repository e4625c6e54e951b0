//! The inverse cosine transform of four blocks at once with AVX-512: a block in each quarter of a register.
//! The arithmetic is that of [`idct`](super::idct), step for step.

use super::Steps;
use super::avx2_idct;
use super::entropy::PAIR;
use super::idct::*;
use std::arch::x86_64::*;

/// Rows of a block, four blocks side by side.
type Rows = [__m512i; 8];

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

/// The coefficients of two pairs of blocks, which are cleared.
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

/// Coefficients to rows of 32 pixels.
#[target_feature(enable = "avx2,avx512f,avx512bw")]
#[inline]
fn transform(coefficients: &Rows, steps: &Rows) -> [__m256i; 8] {
    let [r0, rest @ ..] = coefficients;
    let zero = _mm512_setzero_si512();
    let below = rest
        .iter()
        .fold(zero, |all, row| _mm512_or_si512(all, *row));
    // All but the four DC coefficients.
    let details = _mm512_or_si512(below, _mm512_bsrli_epi128::<2>(*r0));
    if _mm512_test_epi64_mask(details, details) == 0 {
        return flat(_mm512_mullo_epi16(*r0, steps[0]));
    }
    let mut values = *coefficients;
    for (value, step) in values.iter_mut().zip(steps) {
        *value = _mm512_mullo_epi16(*value, *step);
    }
    let mut columns = pass::<{ SHIFT_COLUMNS }>(values);
    // Blocks with only a first row are cut where the pass saturates. A bit for each half of a block's rows.
    let empty = _mm512_testn_epi64_mask(below, below);
    let both = empty & (empty >> 1) & 0b0101_0101;
    if both != 0 {
        let only_first_row = both | both << 1;
        let row = _mm512_slli_epi16::<{ PASS1_BITS }>(values[0]);
        for column in &mut columns {
            *column = _mm512_mask_mov_epi64(*column, only_first_row, row);
        }
    }
    to_pixels(pass::<{ SHIFT_ROWS }>(transpose(columns)))
}

/// The even 64-bit quarters of a register, then the odd ones.
#[target_feature(enable = "avx2,avx512f,avx512bw")]
#[inline]
fn even_then_odd(value: __m512i) -> __m512i {
    _mm512_permutexvar_epi64(_mm512_setr_epi64(0, 2, 4, 6, 1, 3, 5, 7), value)
}

/// Columns of samples around zero to rows of pixels.
#[target_feature(enable = "avx2,avx512f,avx512bw")]
#[inline]
fn to_pixels(columns: Rows) -> [__m256i; 8] {
    // Bytes are half as many registers to transpose; in each, two columns that are 4 apart.
    let middle = _mm512_set1_epi8(-128);
    let pack = |i: usize| {
        let two = _mm512_packs_epi16(columns[i], columns[i + 4]);
        _mm512_xor_si512(two, middle)
    };
    let (c04, c15, c26, c37) = (pack(0), pack(1), pack(2), pack(3));
    // Columns 0 and 1 of all rows, and so on.
    let c01 = _mm512_unpacklo_epi8(c04, c15);
    let c45 = _mm512_unpackhi_epi8(c04, c15);
    let c23 = _mm512_unpacklo_epi8(c26, c37);
    let c67 = _mm512_unpackhi_epi8(c26, c37);
    let left = [
        _mm512_unpacklo_epi16(c01, c23),
        _mm512_unpackhi_epi16(c01, c23),
    ];
    let right = [
        _mm512_unpacklo_epi16(c45, c67),
        _mm512_unpackhi_epi16(c45, c67),
    ];
    let mut out = [_mm256_setzero_si256(); 8];
    for half in 0..2 {
        let two_rows = [
            _mm512_unpacklo_epi32(left[half], right[half]),
            _mm512_unpackhi_epi32(left[half], right[half]),
        ];
        for (i, two) in two_rows.into_iter().enumerate() {
            // Row by row, the blocks' parts of it side by side.
            let two = even_then_odd(two);
            out[4 * half + 2 * i] = _mm512_castsi512_si256(two);
            out[4 * half + 2 * i + 1] = _mm512_extracti64x4_epi64::<1>(two);
        }
    }
    out
}

/// Four blocks that have only a DC coefficient, which is already multiplied by its step.
#[target_feature(enable = "avx2,avx512f,avx512bw")]
#[inline]
fn flat(dc: __m512i) -> [__m256i; 8] {
    // The two passes for a single value: the second is a rounded shift by 5.
    let between = _mm512_slli_epi16::<{ PASS1_BITS }>(dc);
    let pixel = _mm512_srai_epi16::<5>(_mm512_adds_epi16(between, _mm512_set1_epi16(16)));
    let pixel = _mm512_xor_si512(_mm512_packs_epi16(pixel, pixel), _mm512_set1_epi8(-128));
    let first = _mm512_shuffle_epi8(pixel, _mm512_setzero_si512());
    [_mm512_castsi512_si256(even_then_odd(first)); 8]
}

/// Transposes the blocks.
#[target_feature(enable = "avx2,avx512f,avx512bw")]
#[inline]
fn transpose(r: Rows) -> Rows {
    let a0 = _mm512_unpacklo_epi16(r[0], r[1]);
    let a1 = _mm512_unpackhi_epi16(r[0], r[1]);
    let a2 = _mm512_unpacklo_epi16(r[2], r[3]);
    let a3 = _mm512_unpackhi_epi16(r[2], r[3]);
    let a4 = _mm512_unpacklo_epi16(r[4], r[5]);
    let a5 = _mm512_unpackhi_epi16(r[4], r[5]);
    let a6 = _mm512_unpacklo_epi16(r[6], r[7]);
    let a7 = _mm512_unpackhi_epi16(r[6], r[7]);
    let b0 = _mm512_unpacklo_epi32(a0, a2);
    let b1 = _mm512_unpackhi_epi32(a0, a2);
    let b2 = _mm512_unpacklo_epi32(a1, a3);
    let b3 = _mm512_unpackhi_epi32(a1, a3);
    let b4 = _mm512_unpacklo_epi32(a4, a6);
    let b5 = _mm512_unpackhi_epi32(a4, a6);
    let b6 = _mm512_unpacklo_epi32(a5, a7);
    let b7 = _mm512_unpackhi_epi32(a5, a7);
    [
        _mm512_unpacklo_epi64(b0, b4),
        _mm512_unpackhi_epi64(b0, b4),
        _mm512_unpacklo_epi64(b1, b5),
        _mm512_unpackhi_epi64(b1, b5),
        _mm512_unpacklo_epi64(b2, b6),
        _mm512_unpackhi_epi64(b2, b6),
        _mm512_unpacklo_epi64(b3, b7),
        _mm512_unpackhi_epi64(b3, b7),
    ]
}

/// 32-bit values of eight columns of each block: four in `low`, four in `high`.
#[derive(Clone, Copy)]
struct Wide {
    low: __m512i,
    high: __m512i,
}

impl Wide {
    /// `x * a + y * b`.
    #[target_feature(enable = "avx2,avx512f,avx512bw")]
    #[inline]
    fn dot(x: __m512i, a: i16, y: __m512i, b: i16) -> Self {
        let factors = _mm512_set1_epi32(i32::from(b) << 16 | i32::from(a as u16));
        Self {
            low: _mm512_madd_epi16(_mm512_unpacklo_epi16(x, y), factors),
            high: _mm512_madd_epi16(_mm512_unpackhi_epi16(x, y), factors),
        }
    }

    /// `x << CONST_BITS`, plus what rounding adds.
    #[target_feature(enable = "avx2,avx512f,avx512bw")]
    #[inline]
    fn scaled(x: __m512i, round: __m512i) -> Self {
        const DOWN: u32 = 16 - CONST_BITS;
        let zero = _mm512_setzero_si512();
        let low = _mm512_srai_epi32::<DOWN>(_mm512_unpacklo_epi16(zero, x));
        let high = _mm512_srai_epi32::<DOWN>(_mm512_unpackhi_epi16(zero, x));
        Self {
            low: _mm512_add_epi32(low, round),
            high: _mm512_add_epi32(high, round),
        }
    }

    #[target_feature(enable = "avx2,avx512f,avx512bw")]
    #[inline]
    fn plus(self, other: Self) -> Self {
        Self {
            low: _mm512_add_epi32(self.low, other.low),
            high: _mm512_add_epi32(self.high, other.high),
        }
    }

    #[target_feature(enable = "avx2,avx512f,avx512bw")]
    #[inline]
    fn minus(self, other: Self) -> Self {
        Self {
            low: _mm512_sub_epi32(self.low, other.low),
            high: _mm512_sub_epi32(self.high, other.high),
        }
    }

    /// Shifted down and saturated to 16 bits.
    #[target_feature(enable = "avx2,avx512f,avx512bw")]
    #[inline]
    fn cut<const SHIFT: u32>(self) -> __m512i {
        _mm512_packs_epi32(
            _mm512_srai_epi32::<SHIFT>(self.low),
            _mm512_srai_epi32::<SHIFT>(self.high),
        )
    }
}

/// [`idct::pass`](super::idct) of all columns.
#[target_feature(enable = "avx2,avx512f,avx512bw")]
#[inline]
fn pass<const SHIFT: u32>(v: Rows) -> Rows {
    let [v0, v1, v2, v3, v4, v5, v6, v7] = v;
    let round = _mm512_set1_epi32(1 << (SHIFT - 1));
    let sum = Wide::scaled(_mm512_add_epi16(v0, v4), round);
    let difference = Wide::scaled(_mm512_sub_epi16(v0, v4), round);
    let even2 = Wide::dot(v2, C0_541, v6, C0_541 - C1_847);
    let even3 = Wide::dot(v2, C0_541 + C0_765, v6, C0_541);
    let even = [
        sum.plus(even3),
        difference.plus(even2),
        difference.minus(even2),
        sum.minus(even3),
    ];

    let z3 = _mm512_add_epi16(v7, v3);
    let z4 = _mm512_add_epi16(v5, v1);
    let s3 = Wide::dot(z3, C1_175 - C1_961, z4, C1_175);
    let s4 = Wide::dot(z3, C1_175, z4, C1_175 - C0_390);
    let odd = [
        Wide::dot(v7, -C0_899, v1, C1_501 - C0_899).plus(s4),
        Wide::dot(v5, -C2_562, v3, C3_072 - C2_562).plus(s3),
        Wide::dot(v5, C2_053 - C2_562, v3, -C2_562).plus(s4),
        Wide::dot(v7, C0_298 - C0_899, v1, -C0_899).plus(s3),
    ];

    [
        even[0].plus(odd[0]).cut::<SHIFT>(),
        even[1].plus(odd[1]).cut::<SHIFT>(),
        even[2].plus(odd[2]).cut::<SHIFT>(),
        even[3].plus(odd[3]).cut::<SHIFT>(),
        even[3].minus(odd[3]).cut::<SHIFT>(),
        even[2].minus(odd[2]).cut::<SHIFT>(),
        even[1].minus(odd[1]).cut::<SHIFT>(),
        even[0].minus(odd[0]).cut::<SHIFT>(),
    ]
}
