//! The inverse discrete cosine transform: libjpeg's accurate integer algorithm (`islow`), bit for
//! bit.
//!
//! Source: C. Loeffler, A. Ligtenberg and G. Moschytz, "Practical Fast 1-D DCT Algorithms with 11
//! Multiplications", ICASSP 1989, in fixed point with 13 bits, columns first, with two extra bits
//! between the passes. For coefficients that an encoder can produce, every correct implementation
//! gives the same pixels. For out-of-range coefficients in damaged files, sums and products are
//! truncated to 16 bits where libjpeg-turbo's SIMD code for x86-64 truncates them, so that all
//! implementations agree on every processor.

use super::entropy::{PAIR, SECOND};
use super::header::Steps;

/// Fractional bits of the fixed-point numbers.
pub(super) const CONST_BITS: u32 = 13;
/// Extra bits of values between the passes.
pub(super) const PASS1_BITS: u32 = 2;
/// Right shift of the first pass.
pub(super) const SHIFT_COLUMNS: u32 = CONST_BITS - PASS1_BITS;
/// Right shift of the second pass: 3 more bits for the factor 8 of the transform.
pub(super) const SHIFT_ROWS: u32 = CONST_BITS + PASS1_BITS + 3;

/// The constants of the algorithm times 2^13, named by their values.
pub(super) const C0_298: i16 = 2446;
pub(super) const C0_390: i16 = 3196;
pub(super) const C0_541: i16 = 4433;
pub(super) const C0_765: i16 = 6270;
pub(super) const C0_899: i16 = 7373;
pub(super) const C1_175: i16 = 9633;
pub(super) const C1_501: i16 = 12299;
pub(super) const C1_847: i16 = 15137;
pub(super) const C1_961: i16 = 16069;
pub(super) const C2_053: i16 = 16819;
pub(super) const C2_562: i16 = 20995;
pub(super) const C3_072: i16 = 25172;

/// Transforms pairs of blocks side by side into 8 rows of a plane, and clears the coefficients.
///
/// # Panics
/// If the plane is too short for the blocks.
pub(super) fn strip(pairs: &mut [i16], steps: &Steps, plane: &mut [u8], stride: usize) {
    for (i, pair) in pairs.chunks_exact_mut(PAIR).enumerate() {
        for lane in 0..2 {
            let at = i * 16 + lane * 8;
            block(&pair[lane * SECOND..], steps, &mut plane[at..], stride);
        }
        pair.fill(0);
    }
}

fn block(coefficients: &[i16], steps: &Steps, plane: &mut [u8], stride: usize) {
    let mut values = [0i16; 64];
    for row in 0..8 {
        for column in 0..8 {
            let i = row * 8 + column;
            values[i] = coefficients[row * 2 * SECOND + column].wrapping_mul(steps[i]);
        }
    }
    // If only the first row of a block has nonzero coefficients, libjpeg-turbo truncates here,
    // while the full pass saturates.
    let only_first_row = coefficients
        .chunks(2 * SECOND)
        .skip(1)
        .take(7)
        .all(|row| row[..8].iter().all(|&value| value == 0));
    for column in 0..8 {
        let output = if only_first_row {
            [values[column] << PASS1_BITS; 8]
        } else {
            pass::<SHIFT_COLUMNS>(std::array::from_fn(|row| values[row * 8 + column]))
        };
        for (row, value) in output.into_iter().enumerate() {
            values[row * 8 + column] = value;
        }
    }
    for row in 0..8 {
        let input = std::array::from_fn(|column| values[row * 8 + column]);
        let output = &mut plane[row * stride..][..8];
        for (pixel, value) in output.iter_mut().zip(pass::<SHIFT_ROWS>(input)) {
            *pixel = (value.clamp(-128, 127) + 128) as u8;
        }
    }
}

/// Transforms one column or row.
fn pass<const SHIFT: u32>(v: [i16; 8]) -> [i16; 8] {
    // Returns `a * x + b * y`, like the processor's multiply-add; it cannot overflow.
    let dot =
        |x: i16, a: i16, y: i16, b: i16| i32::from(x) * i32::from(a) + i32::from(y) * i32::from(b);
    let round = 1 << (SHIFT - 1);
    let [v0, v1, v2, v3, v4, v5, v6, v7] = v;

    let sum = (i32::from(v0.wrapping_add(v4)) << CONST_BITS).wrapping_add(round);
    let difference = (i32::from(v0.wrapping_sub(v4)) << CONST_BITS).wrapping_add(round);
    let even2 = dot(v2, C0_541, v6, C0_541 - C1_847);
    let even3 = dot(v2, C0_541 + C0_765, v6, C0_541);
    let even = [
        sum.wrapping_add(even3),
        difference.wrapping_add(even2),
        difference.wrapping_sub(even2),
        sum.wrapping_sub(even3),
    ];

    let z3 = v7.wrapping_add(v3);
    let z4 = v5.wrapping_add(v1);
    let s3 = dot(z3, C1_175 - C1_961, z4, C1_175);
    let s4 = dot(z3, C1_175, z4, C1_175 - C0_390);
    let odd = [
        dot(v7, -C0_899, v1, C1_501 - C0_899).wrapping_add(s4),
        dot(v5, -C2_562, v3, C3_072 - C2_562).wrapping_add(s3),
        dot(v5, C2_053 - C2_562, v3, -C2_562).wrapping_add(s4),
        dot(v7, C0_298 - C0_899, v1, -C0_899).wrapping_add(s3),
    ];

    let cut = |x: i32| (x >> SHIFT).clamp(i16::MIN.into(), i16::MAX.into()) as i16;
    std::array::from_fn(|i| {
        if i < 4 {
            cut(even[i].wrapping_add(odd[i]))
        } else {
            cut(even[7 - i].wrapping_sub(odd[7 - i]))
        }
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_block_without_detail_is_flat() {
        let mut pair = [0; PAIR];
        pair[0] = 16;
        pair[SECOND] = -1024;
        let mut plane = [0; 8 * 16];
        strip(&mut pair, &[1; 64], &mut plane, 16);
        for row in plane.chunks(16) {
            assert_eq!(row, [[130; 8], [0; 8]].concat());
        }
        assert_eq!(pair, [0; PAIR]);
    }

    #[test]
    fn the_result_is_close_to_the_definition() {
        // Compares each single coefficient with the definition in floating point.
        for i in 0..64 {
            let mut pair = [0; PAIR];
            pair[i / 8 * 16 + i % 8] = 300;
            let mut plane = [0; 8 * 16];
            strip(&mut pair, &[1; 64], &mut plane, 16);
            for y in 0..8 {
                for x in 0..8 {
                    let wave = |place: usize, frequency: usize| {
                        let scale = if frequency == 0 { 0.5f64.sqrt() } else { 1.0 };
                        let angle = (2 * place + 1) as f64 * frequency as f64;
                        scale * (angle * std::f64::consts::PI / 16.0).cos()
                    };
                    let exact = 128.0 + 300.0 / 4.0 * wave(x, i % 8) * wave(y, i / 8);
                    assert!((f64::from(plane[y * 16 + x]) - exact).abs() < 1.0);
                }
            }
        }
    }
}
