//! Upsampling and color conversion of rows with NEON.
//!
//! As with AVX2, vectors cover a row from its start, and the last one is moved back so that it ends
//! with the row. Rows shorter than a vector use the portable code.

use super::parts::{part, part_mut, steps};
use super::{color, upsample};
use std::arch::aarch64::*;

/// Samples per step.
const STEP: usize = 16;

#[target_feature(enable = "neon")]
#[inline]
fn load(bytes: &[u8; STEP]) -> uint8x16_t {
    // SAFETY: reads the 16 bytes.
    unsafe { vld1q_u8(bytes.as_ptr()) }
}

/// Interleaves `even` and `odd`.
#[target_feature(enable = "neon")]
#[inline]
fn store_in_turns(even: uint8x16_t, odd: uint8x16_t, out: &mut [u8; 2 * STEP]) {
    // SAFETY: writes the 32 bytes.
    unsafe { vst2q_u8(out.as_mut_ptr(), uint8x16x2_t(even, odd)) }
}

#[target_feature(enable = "neon")]
#[inline]
fn store_pixels(channels: [uint8x16_t; 3], out: &mut [u8; 3 * STEP]) {
    let [red, green, blue] = channels;
    // SAFETY: writes the 48 bytes.
    unsafe { vst3q_u8(out.as_mut_ptr(), uint8x16x3_t(red, green, blue)) }
}

/// Returns `3 * near + far`.
#[target_feature(enable = "neon")]
#[inline]
fn three_to_one(near: uint8x16_t, far: uint8x16_t) -> [uint16x8_t; 2] {
    let three = vdupq_n_u8(3);
    let low = vmovl_u8(vget_low_u8(far));
    [
        vmlal_u8(low, vget_low_u8(near), vget_low_u8(three)),
        vmlal_high_u8(vmovl_high_u8(far), near, three),
    ]
}

#[target_feature(enable = "neon")]
pub(super) fn horizontal(row: &[u8], out: &mut [u8]) {
    let width = row.len();
    if width < STEP + 2 {
        return upsample::horizontal(row, out);
    }
    upsample::horizontal_in(row, 0..1, out);
    upsample::horizontal_in(row, width - 1..width, out);
    let one = vdupq_n_u16(1);
    for at in steps(1, width - 1, STEP) {
        let here = load(part(row, at));
        let [low, high] = three_to_one(here, load(part(row, at - 1)));
        let even = vshrn_n_u16::<2>(vaddq_u16(low, one));
        let even = vshrn_high_n_u16::<2>(even, vaddq_u16(high, one));
        let [low, high] = three_to_one(here, load(part(row, at + 1)));
        // The rounding shift adds the rounding term 2.
        let odd = vrshrn_high_n_u16::<2>(vrshrn_n_u16::<2>(low), high);
        store_in_turns(even, odd, part_mut(out, 2 * at));
    }
}

#[target_feature(enable = "neon")]
pub(super) fn both(near: &[u8], far: &[u8], out: &mut [u8]) {
    let width = near.len();
    if width < STEP + 2 {
        return upsample::both(near, far, out);
    }
    upsample::both_in(near, far, 0..1, out);
    upsample::both_in(near, far, width - 1..width, out);
    let seven = vdupq_n_u16(7);
    for at in steps(1, width - 1, STEP) {
        let column = |at| three_to_one(load(part(near, at)), load(part(far, at)));
        let here = column(at);
        let [low, high] = plus_three(column(at - 1), here);
        // The rounding shift adds the rounding term 8.
        let even = vrshrn_high_n_u16::<4>(vrshrn_n_u16::<4>(low), high);
        let [low, high] = plus_three(column(at + 1), here);
        let odd = vshrn_n_u16::<4>(vaddq_u16(low, seven));
        let odd = vshrn_high_n_u16::<4>(odd, vaddq_u16(high, seven));
        store_in_turns(even, odd, part_mut(out, 2 * at));
    }
}

/// Returns `side + 3 * here`.
#[target_feature(enable = "neon")]
#[inline]
fn plus_three(side: [uint16x8_t; 2], here: [uint16x8_t; 2]) -> [uint16x8_t; 2] {
    [
        vmlaq_n_u16(side[0], here[0], 3),
        vmlaq_n_u16(side[1], here[1], 3),
    ]
}

#[target_feature(enable = "neon")]
pub(super) fn ycc(y: &[u8], cb: &[u8], cr: &[u8], out: &mut [u8]) {
    let width = y.len();
    if width < STEP {
        return color::ycc(y, cb, cr, out);
    }
    for at in steps(0, width, STEP) {
        let (y, cb, cr) = (load(part(y, at)), load(part(cb, at)), load(part(cr, at)));
        let low = rgb_8(vget_low_u8(y), vget_low_u8(cb), vget_low_u8(cr));
        let high = rgb_8(vget_high_u8(y), vget_high_u8(cb), vget_high_u8(cr));
        let channels = [
            vqmovun_high_s16(vqmovun_s16(low[0]), high[0]),
            vqmovun_high_s16(vqmovun_s16(low[1]), high[1]),
            vqmovun_high_s16(vqmovun_s16(low[2]), high[2]),
        ];
        store_pixels(channels, part_mut(out, 3 * at));
    }
}

/// Returns red, green and blue of 8 pixels, before saturation.
///
/// The factors of `color` without their integer parts (1, 2 and -1) fit into 16 bits. Products are
/// rounded exactly as in `color`: half of the doubled product's upper half, rounded up, is
/// `(x * factor + 2^15) >> 16`.
#[target_feature(enable = "neon")]
#[inline]
fn rgb_8(y: uint8x8_t, cb: uint8x8_t, cr: uint8x8_t) -> [int16x8_t; 3] {
    let middle = vdup_n_u8(128);
    let cb = vreinterpretq_s16_u16(vsubl_u8(cb, middle));
    let cr = vreinterpretq_s16_u16(vsubl_u8(cr, middle));
    let plus_y = |x| vreinterpretq_s16_u16(vaddw_u8(vreinterpretq_u16_s16(x), y));
    let red = vrsraq_n_s16::<1>(plus_y(cr), vqdmulhq_n_s16(cr, 26_345));
    let twice_cb = vaddq_s16(cb, cb);
    let blue = vrsraq_n_s16::<1>(plus_y(twice_cb), vqdmulhq_n_s16(cb, -14_942));
    let low = vmull_n_s16(vget_low_s16(cb), -22_554);
    let low = vmlal_n_s16(low, vget_low_s16(cr), 18_734);
    let high = vmlal_high_n_s16(vmull_high_n_s16(cb, -22_554), cr, 18_734);
    let mix = vrshrn_high_n_s32::<16>(vrshrn_n_s32::<16>(low), high);
    let green = plus_y(vsubq_s16(mix, cr));
    [red, green, blue]
}
