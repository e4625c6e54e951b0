//! The inverse cosine transform with NEON, one block at a time: a register holds a row of the
//! block. The arithmetic equals that of [`idct`](super::idct), step by step.
//!
//! This code does not share the passes of AVX2 and AVX-512: NEON adds a product to a sum in one
//! instruction, so it keeps other intermediate sums, and the second pass shifts in two steps.

use super::Steps;
use super::entropy::PAIR;
use super::idct::*;
use std::arch::aarch64::*;

/// Rows or columns of a block.
type Rows = [int16x8_t; 8];

#[target_feature(enable = "neon")]
pub(super) fn strip(pairs: &mut [i16], steps: &Steps, plane: &mut [u8], stride: usize) {
    let (step_rows, _) = steps.as_chunks::<8>();
    let mut by = [vdupq_n_s16(0); 8];
    for (by, row) in by.iter_mut().zip(step_rows) {
        *by = load(row);
    }
    for (i, pair) in pairs.chunks_exact_mut(PAIR).enumerate() {
        // Rows of both blocks alternate.
        let (rows, _) = pair.as_chunks_mut::<8>();
        let Some(rows) = rows.first_chunk_mut::<16>() else {
            continue;
        };
        for lane in 0..2 {
            let mut values = [vdupq_n_s16(0); 8];
            for (row, value) in values.iter_mut().enumerate() {
                *value = load(&rows[2 * row + lane]);
            }
            let pixels = transform(&values, &by);
            for (row, pixels) in pixels.into_iter().enumerate() {
                let to = &mut plane[row * stride + i * 16 + lane * 8..][..8];
                // SAFETY: writes the 8 bytes of `to`.
                unsafe { vst1_u8(to.as_mut_ptr(), pixels) };
            }
        }
        *rows = [[0; 8]; 16];
    }
}

#[target_feature(enable = "neon")]
#[inline]
fn load(row: &[i16; 8]) -> int16x8_t {
    // SAFETY: reads the 16 bytes of the row.
    unsafe { vld1q_s16(row.as_ptr()) }
}

/// Transforms coefficients to rows of 8 pixels.
#[target_feature(enable = "neon")]
#[inline]
fn transform(coefficients: &Rows, steps: &Rows) -> [uint8x8_t; 8] {
    let [r0, rest @ ..] = coefficients;
    let below = rest
        .iter()
        .fold(vdupq_n_s16(0), |all, row| vorrq_s16(all, *row));
    let columns = if is_zero(below) {
        let row = vmulq_s16(*r0, steps[0]);
        // All coefficients but the DC coefficient are zero.
        if is_zero(vextq_s16::<1>(*r0, below)) {
            return flat(row);
        }
        // Values are truncated where the full pass saturates; all rows are the same.
        let row = vshlq_n_s16::<{ PASS1_BITS as i32 }>(row);
        [
            vdupq_laneq_s16::<0>(row),
            vdupq_laneq_s16::<1>(row),
            vdupq_laneq_s16::<2>(row),
            vdupq_laneq_s16::<3>(row),
            vdupq_laneq_s16::<4>(row),
            vdupq_laneq_s16::<5>(row),
            vdupq_laneq_s16::<6>(row),
            vdupq_laneq_s16::<7>(row),
        ]
    } else {
        let mut values = *coefficients;
        for (value, step) in values.iter_mut().zip(steps) {
            *value = vmulq_s16(*value, *step);
        }
        transpose(pass::<{ SHIFT_COLUMNS as i32 }>(values).map(|sum| sum.cut()))
    };
    to_pixels(pass::<{ SHIFT_ROWS as i32 }>(columns).map(|sum| sum.upper()))
}

#[target_feature(enable = "neon")]
#[inline]
fn is_zero(value: int16x8_t) -> bool {
    let halves = vreinterpretq_u64_s16(value);
    vgetq_lane_u64::<0>(halves) | vgetq_lane_u64::<1>(halves) == 0
}

/// Returns a block with only a DC coefficient, which is already multiplied by its quantization step.
#[target_feature(enable = "neon")]
#[inline]
fn flat(dc: int16x8_t) -> [uint8x8_t; 8] {
    // The two passes for a single value: the second one is a rounding shift by 5.
    let between = vshlq_n_s16::<{ PASS1_BITS as i32 }>(dc);
    let pixel = vqrshrn_n_s16::<5>(between);
    [vdup_lane_u8::<0>(around_middle(pixel)); 8]
}

/// Converts samples around zero to pixels.
#[target_feature(enable = "neon")]
#[inline]
fn around_middle(samples: int8x8_t) -> uint8x8_t {
    veor_u8(vreinterpret_u8_s8(samples), vdup_n_u8(128))
}

/// Converts columns of sums, whose lowest 16 bits were dropped, to rows of pixels.
#[target_feature(enable = "neon")]
#[inline]
fn to_pixels(columns: Rows) -> [uint8x8_t; 8] {
    // The remaining shift of the second pass, with saturation.
    const SHIFT: i32 = SHIFT_ROWS as i32 - 16;
    // Bytes need half as many registers for the transpose; each holds two columns that are 4 apart.
    let pack = |i: usize| {
        let two = vqshrn_high_n_s16::<SHIFT>(vqshrn_n_s16::<SHIFT>(columns[i]), columns[i + 4]);
        veorq_u8(vreinterpretq_u8_s8(two), vdupq_n_u8(128))
    };
    let (c04, c15, c26, c37) = (pack(0), pack(1), pack(2), pack(3));
    // `c01` holds columns 0 and 1 of all rows, and so on.
    let c01 = vreinterpretq_u16_u8(vzip1q_u8(c04, c15));
    let c45 = vreinterpretq_u16_u8(vzip2q_u8(c04, c15));
    let c23 = vreinterpretq_u16_u8(vzip1q_u8(c26, c37));
    let c67 = vreinterpretq_u16_u8(vzip2q_u8(c26, c37));
    // Each half holds columns 0 to 3 and 4 to 7 of four rows.
    let halves = [
        (vzip1q_u16(c01, c23), vzip1q_u16(c45, c67)),
        (vzip2q_u16(c01, c23), vzip2q_u16(c45, c67)),
    ];
    let mut out = [vdup_n_u8(0); 8];
    for (four, (left, right)) in out.chunks_exact_mut(4).zip(halves) {
        let (left, right) = (vreinterpretq_u32_u16(left), vreinterpretq_u32_u16(right));
        let first = vreinterpretq_u8_u32(vzip1q_u32(left, right));
        let second = vreinterpretq_u8_u32(vzip2q_u32(left, right));
        four[0] = vget_low_u8(first);
        four[1] = vget_high_u8(first);
        four[2] = vget_low_u8(second);
        four[3] = vget_high_u8(second);
    }
    out
}

#[target_feature(enable = "neon")]
#[inline]
fn transpose(r: Rows) -> Rows {
    // For each pair of rows: the even columns of both rows, and the odd columns.
    let pairs = |a, b| {
        (
            vreinterpretq_s32_s16(vtrn1q_s16(a, b)),
            vreinterpretq_s32_s16(vtrn2q_s16(a, b)),
        )
    };
    // For four rows, each register holds two columns that are 4 apart.
    let fours = |a, b, c, d| {
        let ((even0, odd0), (even1, odd1)) = (pairs(a, b), pairs(c, d));
        [
            vreinterpretq_s64_s32(vtrn1q_s32(even0, even1)),
            vreinterpretq_s64_s32(vtrn1q_s32(odd0, odd1)),
            vreinterpretq_s64_s32(vtrn2q_s32(even0, even1)),
            vreinterpretq_s64_s32(vtrn2q_s32(odd0, odd1)),
        ]
    };
    let upper = fours(r[0], r[1], r[2], r[3]);
    let lower = fours(r[4], r[5], r[6], r[7]);
    let mut out = [vdupq_n_s16(0); 8];
    for i in 0..4 {
        out[i] = vreinterpretq_s16_s64(vtrn1q_s64(upper[i], lower[i]));
        out[i + 4] = vreinterpretq_s16_s64(vtrn2q_s64(upper[i], lower[i]));
    }
    out
}

/// 32-bit values of eight columns: four in `low`, four in `high`.
#[derive(Clone, Copy)]
struct Wide {
    low: int32x4_t,
    high: int32x4_t,
}

impl Wide {
    /// Returns `self + x * factor`.
    #[target_feature(enable = "neon")]
    #[inline]
    fn plus_times(self, x: int16x8_t, factor: i16) -> Self {
        Self {
            low: vmlal_n_s16(self.low, vget_low_s16(x), factor),
            high: vmlal_high_n_s16(self.high, x, factor),
        }
    }

    /// Returns `x * a + y * b`.
    #[target_feature(enable = "neon")]
    #[inline]
    fn dot(x: int16x8_t, a: i16, y: int16x8_t, b: i16) -> Self {
        let product = Self {
            low: vmull_n_s16(vget_low_s16(x), a),
            high: vmull_high_n_s16(x, a),
        };
        product.plus_times(y, b)
    }

    #[target_feature(enable = "neon")]
    #[inline]
    fn plus(self, other: Self) -> Self {
        Self {
            low: vaddq_s32(self.low, other.low),
            high: vaddq_s32(self.high, other.high),
        }
    }

    #[target_feature(enable = "neon")]
    #[inline]
    fn minus(self, other: Self) -> Self {
        Self {
            low: vsubq_s32(self.low, other.low),
            high: vsubq_s32(self.high, other.high),
        }
    }

    /// Shifts right by the first pass's shift and saturates to 16 bits.
    #[target_feature(enable = "neon")]
    #[inline]
    fn cut(self) -> int16x8_t {
        const SHIFT: i32 = SHIFT_COLUMNS as i32;
        vqshrn_high_n_s32::<SHIFT>(vqshrn_n_s32::<SHIFT>(self.low), self.high)
    }

    /// Returns the upper 16 bits.
    #[target_feature(enable = "neon")]
    #[inline]
    fn upper(self) -> int16x8_t {
        vshrn_high_n_s32::<16>(vshrn_n_s32::<16>(self.low), self.high)
    }
}

/// [`idct::pass`](super::idct) of all columns, before the shift.
#[target_feature(enable = "neon")]
#[inline]
fn pass<const SHIFT: i32>(v: Rows) -> [Wide; 8] {
    let [v0, v1, v2, v3, v4, v5, v6, v7] = v;
    let round = vdupq_n_s32(1 << (SHIFT - 1));
    let (low, high) = (round, round);
    let round = Wide { low, high };
    let sum = round.plus_times(vaddq_s16(v0, v4), 1 << CONST_BITS);
    let difference = round.plus_times(vsubq_s16(v0, v4), 1 << CONST_BITS);
    let even2 = Wide::dot(v2, C0_541, v6, C0_541 - C1_847);
    let even3 = Wide::dot(v2, C0_541 + C0_765, v6, C0_541);
    let even = [
        sum.plus(even3),
        difference.plus(even2),
        difference.minus(even2),
        sum.minus(even3),
    ];

    let z3 = vaddq_s16(v7, v3);
    let z4 = vaddq_s16(v5, v1);
    let s3 = Wide::dot(z3, C1_175 - C1_961, z4, C1_175);
    let s4 = Wide::dot(z3, C1_175, z4, C1_175 - C0_390);
    // The sums may wrap around; the result does not depend on their order.
    let odd = [
        s4.plus_times(v7, -C0_899).plus_times(v1, C1_501 - C0_899),
        s3.plus_times(v5, -C2_562).plus_times(v3, C3_072 - C2_562),
        s4.plus_times(v5, C2_053 - C2_562).plus_times(v3, -C2_562),
        s3.plus_times(v7, C0_298 - C0_899).plus_times(v1, -C0_899),
    ];

    [
        even[0].plus(odd[0]),
        even[1].plus(odd[1]),
        even[2].plus(odd[2]),
        even[3].plus(odd[3]),
        even[3].minus(odd[3]),
        even[2].minus(odd[2]),
        even[1].minus(odd[1]),
        even[0].minus(odd[0]),
    ]
}
