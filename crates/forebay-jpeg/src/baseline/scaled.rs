//! Scaled inverse cosine transforms to fewer samples than coefficients: libjpeg's 4x4, 2x2 and 1x1
//! transforms, bit for bit.
//!
//! They compute means of two or four of the accurate transform's 8 samples, using only the
//! coefficients that influence the result: in a row or column the fifth cancels for 4 samples, and
//! the third, fifth and seventh for 2. The fixed-point numbers are those of [`idct`](super::idct);
//! the results of the first pass are truncated to 16 bits.

use super::entropy::{PAIR, SECOND};
use super::header::Steps;
use super::idct::{CONST_BITS, PASS1_BITS};

/// Constants times 2^13, named by their values.
const C0_211: i32 = 1730;
const C0_510: i32 = 4176;
const C0_601: i32 = 4926;
const C0_721: i32 = 5906;
const C0_765: i32 = 6270;
const C0_850: i32 = 6967;
const C0_900: i32 = 7373;
const C1_062: i32 = 8697;
const C1_273: i32 = 10_426;
const C1_452: i32 = 11_893;
const C1_848: i32 = 15_137;
const C2_173: i32 = 17_799;
const C2_563: i32 = 20_995;
const C3_625: i32 = 29_692;

/// Transforms pairs of blocks side by side into `N` rows of a plane, `N` samples per block, and clears the coefficients.
///
/// # Panics
/// If the plane is too short for the blocks.
#[inline(always)]
pub(super) fn strip<const N: usize>(
    pairs: &mut [i16],
    steps: &Steps,
    plane: &mut [u8],
    stride: usize,
) {
    for (i, pair) in pairs.chunks_exact_mut(PAIR).enumerate() {
        for lane in 0..2 {
            let at = (2 * i + lane) * N;
            block::<N>(&pair[lane * SECOND..], steps, &mut plane[at..], stride);
        }
        pair.fill(0);
    }
}

#[inline(always)]
fn block<const N: usize>(coefficients: &[i16], steps: &Steps, plane: &mut [u8], stride: usize) {
    if N == 1 {
        let value = i32::from(coefficients[0].wrapping_mul(steps[0]));
        plane[0] = sample((value + 4) >> 3);
        return;
    }
    let mut values = [[0i32; 8]; 8];
    for (row, values) in values.iter_mut().enumerate() {
        let from = &coefficients[row * 2 * SECOND..][..8];
        let steps = &steps[row * 8..][..8];
        for (value, (&coefficient, &step)) in values.iter_mut().zip(from.iter().zip(steps)) {
            *value = coefficient.wrapping_mul(step).into();
        }
    }
    let mut between = [[0i32; 8]; N];
    for column in 0..8 {
        let input = std::array::from_fn(|row| values[row][column]);
        let output = pass::<N>(input, CONST_BITS - PASS1_BITS);
        for (row, value) in output.into_iter().enumerate() {
            between[row][column] = value.clamp(i16::MIN.into(), i16::MAX.into());
        }
    }
    for (row, values) in between.into_iter().enumerate() {
        let output = pass::<N>(values, CONST_BITS + PASS1_BITS + 3);
        let to = &mut plane[row * stride..][..N];
        for (to, value) in to.iter_mut().zip(output) {
            *to = sample(value);
        }
    }
}

#[inline(always)]
fn sample(value: i32) -> u8 {
    (value.clamp(-128, 127) + 128) as u8
}

/// Transforms one column or row; `shift` is the shift of the full transform.
#[inline(always)]
fn pass<const N: usize>(v: [i32; 8], shift: u32) -> [i32; N] {
    let [v0, v1, v2, v3, _, v5, v6, v7] = v;
    let mut out = [0; N];
    if N == 4 {
        let even = v0 << (CONST_BITS + 1);
        let turn = v2 * C1_848 - v6 * C0_765;
        let (outer, inner) = (even.wrapping_add(turn), even.wrapping_sub(turn));
        let near = v5 * C1_452 + v1 * C1_062 - v7 * C0_211 - v3 * C2_173;
        let far = v3 * C0_900 + v1 * C2_563 - v7 * C0_510 - v5 * C0_601;
        let sums = [
            outer.wrapping_add(far),
            inner.wrapping_add(near),
            inner.wrapping_sub(near),
            outer.wrapping_sub(far),
        ];
        for (out, sum) in out.iter_mut().zip(sums) {
            *out = down(sum, shift + 1);
        }
    } else {
        let even = v0 << (CONST_BITS + 2);
        let odd = v5 * C0_850 + v1 * C3_625 - v7 * C0_721 - v3 * C1_273;
        for (out, sum) in out
            .iter_mut()
            .zip([even.wrapping_add(odd), even.wrapping_sub(odd)])
        {
            *out = down(sum, shift + 2);
        }
    }
    out
}

#[inline(always)]
fn down(sum: i32, shift: u32) -> i32 {
    sum.wrapping_add(1 << (shift - 1)) >> shift
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_block_without_detail_is_flat() {
        fn check<const N: usize>() {
            let mut pair = [0; PAIR];
            pair[0] = 16;
            pair[SECOND] = -1024;
            let mut plane = [7; 8 * 16];
            strip::<N>(&mut pair, &[1; 64], &mut plane, 16);
            for row in plane.chunks(16).take(N) {
                assert_eq!(row[..2 * N], [[130; N], [0; N]].concat());
            }
            assert_eq!(pair, [0; PAIR]);
        }
        check::<1>();
        check::<2>();
        check::<4>();
    }

    #[test]
    fn extreme_coefficients_do_not_overflow() {
        for value in [i16::MIN, i16::MAX, -1] {
            let mut plane = [0; 8 * 16];
            strip::<4>(&mut [value; PAIR], &[1; 64], &mut plane, 16);
            strip::<2>(&mut [value; PAIR], &[1; 64], &mut plane, 16);
            strip::<1>(&mut [value; PAIR], &[255; 64], &mut plane, 16);
        }
    }
}
