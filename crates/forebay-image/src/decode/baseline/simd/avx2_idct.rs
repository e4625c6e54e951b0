//! The inverse cosine transform of two blocks at once with AVX2: one block in each half of a register.
//! The arithmetic is that of [`idct`](super::idct), step for step.

use super::Steps;
use super::entropy::PAIR;
use super::idct::*;
use std::arch::x86_64::*;

/// Rows of a block, two blocks side by side.
type Rows = [__m256i; 8];
/// For `_mm256_shuffle_epi32`: the two 64-bit halves of each block's row change places.
const SWAP_HALVES: i32 = 0b01_00_11_10;

#[target_feature(enable = "avx2")]
pub(super) fn strip(pairs: &mut [i16], steps: &Steps, plane: &mut [u8], stride: usize) {
    let (step_rows, _) = steps.as_chunks::<8>();
    let mut by = [_mm256_setzero_si256(); 8];
    for (by, row) in by.iter_mut().zip(step_rows) {
        // SAFETY: reads the 16 bytes of the row.
        let row = unsafe { _mm_loadu_si128(row.as_ptr().cast()) };
        *by = _mm256_broadcastsi128_si256(row);
    }
    for (i, pair) in pairs.chunks_exact_mut(PAIR).enumerate() {
        let (rows, _) = pair.as_chunks_mut::<16>();
        let Some(rows) = rows.first_chunk_mut::<8>() else {
            continue;
        };
        let mut values = [_mm256_setzero_si256(); 8];
        for (value, row) in values.iter_mut().zip(rows.iter_mut()) {
            // SAFETY: reads and writes the 32 bytes of the row.
            unsafe {
                *value = _mm256_loadu_si256(row.as_ptr().cast());
                _mm256_storeu_si256(row.as_mut_ptr().cast(), _mm256_setzero_si256());
            }
        }
        let pixels = transform(&values, &by);
        for (row, pixels) in pixels.into_iter().enumerate() {
            let to = &mut plane[row * stride + i * 16..][..16];
            // SAFETY: writes the 16 bytes of `to`.
            unsafe { _mm_storeu_si128(to.as_mut_ptr().cast(), pixels) };
        }
    }
}

/// Coefficients to rows of 16 pixels.
#[target_feature(enable = "avx2")]
#[inline]
fn transform(coefficients: &Rows, steps: &Rows) -> [__m128i; 8] {
    let [r0, rest @ ..] = coefficients;
    let zero = _mm256_setzero_si256();
    let below = rest
        .iter()
        .fold(zero, |all, row| _mm256_or_si256(all, *row));
    // All but the two DC coefficients.
    let details = _mm256_or_si256(below, _mm256_bsrli_epi128::<2>(*r0));
    if _mm256_testz_si256(details, details) != 0 {
        return flat(_mm256_mullo_epi16(*r0, steps[0]));
    }
    let mut values = *coefficients;
    for (value, step) in values.iter_mut().zip(steps) {
        *value = _mm256_mullo_epi16(*value, *step);
    }
    let mut columns = pass::<{ SHIFT_COLUMNS as i32 }>(values);
    // Blocks with only a first row are cut where the pass saturates.
    let empty = _mm256_cmpeq_epi64(below, zero);
    let only_first_row = _mm256_and_si256(empty, _mm256_shuffle_epi32::<{ SWAP_HALVES }>(empty));
    if _mm256_testz_si256(only_first_row, only_first_row) == 0 {
        let row = _mm256_slli_epi16::<{ PASS1_BITS as i32 }>(values[0]);
        for column in &mut columns {
            *column = _mm256_blendv_epi8(*column, row, only_first_row);
        }
    }
    to_pixels(pass::<{ SHIFT_ROWS as i32 }>(transpose(columns)))
}

/// Columns of samples around zero to rows of pixels.
#[target_feature(enable = "avx2")]
#[inline]
fn to_pixels(columns: Rows) -> [__m128i; 8] {
    // Bytes are half as many registers to transpose; in each, two columns that are 4 apart.
    let middle = _mm256_set1_epi8(-128);
    let pack = |i: usize| {
        let two = _mm256_packs_epi16(columns[i], columns[i + 4]);
        _mm256_xor_si256(two, middle)
    };
    let (c04, c15, c26, c37) = (pack(0), pack(1), pack(2), pack(3));
    // Columns 0 and 1 of all rows, and so on.
    let c01 = _mm256_unpacklo_epi8(c04, c15);
    let c45 = _mm256_unpackhi_epi8(c04, c15);
    let c23 = _mm256_unpacklo_epi8(c26, c37);
    let c67 = _mm256_unpackhi_epi8(c26, c37);
    let left = [
        _mm256_unpacklo_epi16(c01, c23),
        _mm256_unpackhi_epi16(c01, c23),
    ];
    let right = [
        _mm256_unpacklo_epi16(c45, c67),
        _mm256_unpackhi_epi16(c45, c67),
    ];
    let mut out = [_mm_setzero_si128(); 8];
    for half in 0..2 {
        let two_rows = [
            _mm256_unpacklo_epi32(left[half], right[half]),
            _mm256_unpackhi_epi32(left[half], right[half]),
        ];
        for (i, two) in two_rows.into_iter().enumerate() {
            // Row by row, the first block's beside the second's.
            let two = _mm256_permute4x64_epi64::<0b11_01_10_00>(two);
            out[4 * half + 2 * i] = _mm256_castsi256_si128(two);
            out[4 * half + 2 * i + 1] = _mm256_extracti128_si256::<1>(two);
        }
    }
    out
}

/// Two blocks that have only a DC coefficient, which is already multiplied by its step.
#[target_feature(enable = "avx2")]
#[inline]
fn flat(dc: __m256i) -> [__m128i; 8] {
    // The two passes for a single value: the second is a rounded shift by 5.
    let between = _mm256_slli_epi16::<{ PASS1_BITS as i32 }>(dc);
    let pixel = _mm256_srai_epi16::<5>(_mm256_adds_epi16(between, _mm256_set1_epi16(16)));
    let pixel = _mm256_xor_si256(_mm256_packs_epi16(pixel, pixel), _mm256_set1_epi8(-128));
    let first = _mm256_shuffle_epi8(pixel, _mm256_setzero_si256());
    [_mm_unpacklo_epi64(
        _mm256_castsi256_si128(first),
        _mm256_extracti128_si256::<1>(first),
    ); 8]
}

/// Transposes both blocks.
#[target_feature(enable = "avx2")]
#[inline]
fn transpose(r: Rows) -> Rows {
    let a0 = _mm256_unpacklo_epi16(r[0], r[1]);
    let a1 = _mm256_unpackhi_epi16(r[0], r[1]);
    let a2 = _mm256_unpacklo_epi16(r[2], r[3]);
    let a3 = _mm256_unpackhi_epi16(r[2], r[3]);
    let a4 = _mm256_unpacklo_epi16(r[4], r[5]);
    let a5 = _mm256_unpackhi_epi16(r[4], r[5]);
    let a6 = _mm256_unpacklo_epi16(r[6], r[7]);
    let a7 = _mm256_unpackhi_epi16(r[6], r[7]);
    let b0 = _mm256_unpacklo_epi32(a0, a2);
    let b1 = _mm256_unpackhi_epi32(a0, a2);
    let b2 = _mm256_unpacklo_epi32(a1, a3);
    let b3 = _mm256_unpackhi_epi32(a1, a3);
    let b4 = _mm256_unpacklo_epi32(a4, a6);
    let b5 = _mm256_unpackhi_epi32(a4, a6);
    let b6 = _mm256_unpacklo_epi32(a5, a7);
    let b7 = _mm256_unpackhi_epi32(a5, a7);
    [
        _mm256_unpacklo_epi64(b0, b4),
        _mm256_unpackhi_epi64(b0, b4),
        _mm256_unpacklo_epi64(b1, b5),
        _mm256_unpackhi_epi64(b1, b5),
        _mm256_unpacklo_epi64(b2, b6),
        _mm256_unpackhi_epi64(b2, b6),
        _mm256_unpacklo_epi64(b3, b7),
        _mm256_unpackhi_epi64(b3, b7),
    ]
}

/// 32-bit values of eight columns of each block: four in `low`, four in `high`.
#[derive(Clone, Copy)]
struct Wide {
    low: __m256i,
    high: __m256i,
}

impl Wide {
    /// `x * a + y * b`.
    #[target_feature(enable = "avx2")]
    #[inline]
    fn dot(x: __m256i, a: i16, y: __m256i, b: i16) -> Self {
        let factors = _mm256_set1_epi32(i32::from(b) << 16 | i32::from(a as u16));
        Self {
            low: _mm256_madd_epi16(_mm256_unpacklo_epi16(x, y), factors),
            high: _mm256_madd_epi16(_mm256_unpackhi_epi16(x, y), factors),
        }
    }

    /// `x << CONST_BITS`, plus what rounding adds.
    #[target_feature(enable = "avx2")]
    #[inline]
    fn scaled(x: __m256i, round: __m256i) -> Self {
        const DOWN: i32 = 16 - CONST_BITS as i32;
        let zero = _mm256_setzero_si256();
        let low = _mm256_srai_epi32::<DOWN>(_mm256_unpacklo_epi16(zero, x));
        let high = _mm256_srai_epi32::<DOWN>(_mm256_unpackhi_epi16(zero, x));
        Self {
            low: _mm256_add_epi32(low, round),
            high: _mm256_add_epi32(high, round),
        }
    }

    #[target_feature(enable = "avx2")]
    #[inline]
    fn plus(self, other: Self) -> Self {
        Self {
            low: _mm256_add_epi32(self.low, other.low),
            high: _mm256_add_epi32(self.high, other.high),
        }
    }

    #[target_feature(enable = "avx2")]
    #[inline]
    fn minus(self, other: Self) -> Self {
        Self {
            low: _mm256_sub_epi32(self.low, other.low),
            high: _mm256_sub_epi32(self.high, other.high),
        }
    }

    /// Shifted down and saturated to 16 bits.
    #[target_feature(enable = "avx2")]
    #[inline]
    fn cut<const SHIFT: i32>(self) -> __m256i {
        _mm256_packs_epi32(
            _mm256_srai_epi32::<SHIFT>(self.low),
            _mm256_srai_epi32::<SHIFT>(self.high),
        )
    }
}

/// [`idct::pass`](super::idct) of all columns.
#[target_feature(enable = "avx2")]
#[inline]
fn pass<const SHIFT: i32>(v: Rows) -> Rows {
    let [v0, v1, v2, v3, v4, v5, v6, v7] = v;
    let round = _mm256_set1_epi32(1 << (SHIFT - 1));
    let sum = Wide::scaled(_mm256_add_epi16(v0, v4), round);
    let difference = Wide::scaled(_mm256_sub_epi16(v0, v4), round);
    let even2 = Wide::dot(v2, C0_541, v6, C0_541 - C1_847);
    let even3 = Wide::dot(v2, C0_541 + C0_765, v6, C0_541);
    let even = [
        sum.plus(even3),
        difference.plus(even2),
        difference.minus(even2),
        sum.minus(even3),
    ];

    let z3 = _mm256_add_epi16(v7, v3);
    let z4 = _mm256_add_epi16(v5, v1);
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

/// The portable loops of the scaled transforms, which the compiler turns into vectors.
#[target_feature(enable = "avx2")]
pub(super) fn scaled<const N: usize>(
    pairs: &mut [i16],
    steps: &Steps,
    plane: &mut [u8],
    stride: usize,
) {
    super::scaled::strip::<N>(pairs, steps, plane, stride);
}
