//! Encoding with NEON: the reverse of [`neon`](super::neon), from rows of coefficients to fields.

use super::{EncodedPart, PAIR, tile};
use crate::baseline::entropy::{SECOND, ZIGZAG};
use crate::fast::part::EncodedBlock;
use std::arch::aarch64::*;

/// Room for the values of a block, and for storing eight bytes at each of them.
const VALUES: usize = 80;
/// Largest magnitude that fits into every field without a correction.
const SMALL: u8 = 64;
/// Room for the fields of a block whose values are all small, and for storing eight bytes at each of them.
const FIELDS: usize = 64;

/// For each 16 AC coefficients in zigzag order: their positions row by row.
static ORDER: [[u8; 16]; 4] = {
    let mut order = [[0xff; 16]; 4];
    let mut k = 1;
    while k < 64 {
        order[(k - 1) / 16][(k - 1) % 16] = ZIGZAG[k];
        k += 1;
    }
    order
};
/// By a byte of a bitmap: the positions of its ones.
static ONES: [[u8; 8]; 256] = {
    let mut ones = [[0xff; 8]; 256];
    let mut map = 0;
    while map < 256 {
        let (mut bit, mut count) = (0, 0);
        while bit < 8 {
            if map >> bit & 1 == 1 {
                ones[map][count] = bit as u8;
                count += 1;
            }
            bit += 1;
        }
        map += 1;
    }
    ones
};
static NUMBERS: [u8; 16] = [0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15];
static BITS: [u8; 16] = [1, 2, 4, 8, 16, 32, 64, 128, 1, 2, 4, 8, 16, 32, 64, 128];

#[target_feature(enable = "neon")]
#[inline]
fn load(bytes: &[u8; 16]) -> uint8x16_t {
    // SAFETY: reads the 16 bytes of the array.
    unsafe { vld1q_u8(bytes.as_ptr()) }
}

/// [`EncodedPart::add_row`] with NEON.
#[target_feature(enable = "neon")]
pub(super) fn add_row(part: &mut EncodedPart, pairs: &[i16], blocks: usize) -> bool {
    let mut fits = true;
    for number in 0..blocks {
        let at = number / 2 * PAIR + number % 2 * SECOND;
        let Some(block) = pairs.get(at..).and_then(|rest| rest.first_chunk()) else {
            return false;
        };
        let mut values = [0; VALUES];
        let Some(mask) = compact(block, &mut values) else {
            fits &= part.add_portable(block);
            continue;
        };
        let mut bytes = [0; FIELDS];
        let (widths, length) = fields(&values, mask, &mut bytes);
        part.payload.extend_from_slice(&bytes[..length]);
        let dc = block[0];
        fits &= tile::COEFFICIENTS.contains(&dc.into());
        part.blocks.push(EncodedBlock {
            mask,
            widths,
            dc,
            end: part.payload.len(),
        });
    }
    fits
}

/// Stores the nonzero AC coefficients of a block. Returns which coefficients they are; `None` if
/// one is not small.
#[target_feature(enable = "neon")]
#[inline]
fn compact(block: &[i16; 128], values: &mut [u8; VALUES]) -> Option<u64> {
    let (rows, _) = block.as_chunks::<16>();
    let mut two_rows = [vdupq_n_u8(0); 4];
    for (to, rows) in two_rows.iter_mut().zip(rows.as_chunks::<2>().0) {
        // SAFETY: each reads 8 of the 16 coefficients of a row; the others are of the other block.
        let [upper, lower] = unsafe { [vld1q_s16(rows[0].as_ptr()), vld1q_s16(rows[1].as_ptr())] };
        let both = vqmovn_high_s16(vqmovn_s16(upper), lower);
        *to = vreinterpretq_u8_s8(both);
    }
    let [a, b, c, d] = two_rows;
    let all = uint8x16x4_t(a, b, c, d);
    let mut largest = vdupq_n_u8(0);
    let mut in_order = [[0; 8]; 8];
    let mut bits = [vdupq_n_u8(0); 4];
    let (sixteens, _) = in_order.as_chunks_mut::<2>();
    for ((order, to), bits) in ORDER.iter().zip(sixteens).zip(&mut bits) {
        let values = vqtbl4q_u8(all, load(order));
        // Saturated values are not small either.
        let magnitudes = vreinterpretq_u8_s8(vabsq_s8(vreinterpretq_s8_u8(values)));
        largest = vmaxq_u8(largest, magnitudes);
        *bits = vandq_u8(vtstq_u8(values, values), load(&BITS));
        // SAFETY: writes the 16 bytes of the array.
        unsafe { vst1q_u8(to.as_mut_ptr().cast(), values) };
    }
    if vmaxvq_u8(largest) > SMALL {
        return None;
    }
    let [a, b, c, d] = bits;
    let sums = vpaddq_u8(vpaddq_u8(a, b), vpaddq_u8(c, d));
    let mask = vgetq_lane_u64::<0>(vreinterpretq_u64_u8(vpaddq_u8(sums, sums)));
    let (mut left, mut at) = (mask, 0);
    for eight in &in_order {
        if left == 0 {
            break;
        }
        let ones = left as u8;
        left >>= 8;
        if let Some(to) = values[at..].first_chunk_mut::<8>() {
            // SAFETY: each reads or writes the 8 bytes of an array.
            unsafe {
                let from = vld1_u8(eight.as_ptr());
                let packed = vtbl1_u8(from, vld1_u8(ONES[usize::from(ones)].as_ptr()));
                vst1_u8(to.as_mut_ptr(), packed);
            }
        }
        at += ones.count_ones() as usize;
    }
    Some(mask)
}

/// Stores the fields of a block. Returns their widths and the number of bytes.
#[target_feature(enable = "neon")]
#[inline]
fn fields(values: &[u8; VALUES], mask: u64, bytes: &mut [u8; FIELDS]) -> (u64, usize) {
    let count = mask.count_ones() as usize;
    let (mut widths, mut bits, mut pending, mut at) = (0u64, 0u64, 0usize, 0);
    let (sixteens, _) = values.as_chunks::<16>();
    for (i, values) in sixteens.iter().enumerate() {
        let Some(left) = count.checked_sub(16 * i).filter(|left| *left > 0) else {
            break;
        };
        let (fields, lengths, four_widths) = fields_of_group(load(values), left.min(16));
        widths |= four_widths << (16 * i);
        for (fields, length) in fields.into_iter().zip(lengths) {
            // At most seven bits are pending, and eight fields have at most 56 bits.
            bits |= fields << pending;
            pending += length as usize;
            if let Some(to) = bytes[at..].first_chunk_mut::<8>() {
                *to = bits.to_le_bytes();
            }
            at += pending / 8;
            bits >>= pending & !7;
            pending %= 8;
        }
    }
    if pending > 0 {
        bytes[at] = bits as u8;
        at += 1;
    }
    (widths, at)
}

/// Returns the fields of two groups of eight values, their numbers of bits, and the width of each
/// group of four. Only the first `count` values exist.
#[target_feature(enable = "neon")]
#[inline]
fn fields_of_group(values: uint8x16_t, count: usize) -> ([u64; 2], [u64; 2], u64) {
    let signed = vreinterpretq_s8_u8(values);
    // A field stores v + half - 1 for a positive value v, and v + half for a negative one.
    let magnitudes = vqsubq_u8(vreinterpretq_u8_s8(vabsq_s8(signed)), vdupq_n_u8(1));
    let positive = vcgtzq_s8(signed);
    let two = vreinterpretq_u16_u8(magnitudes);
    let all = vreinterpretq_u8_u16(vorrq_u16(two, vrev32q_u16(two)));
    let all = vorrq_u8(all, vrev16q_u8(all));
    // Number of bits of the largest magnitude of each group of four, plus one for the sign.
    let width = vsubq_u8(vdupq_n_u8(9), vclzq_u8(all));
    let ones = vshlq_u8(vdupq_n_u8(1), vreinterpretq_s8_u8(width));
    let ones = vsubq_u8(ones, vdupq_n_u8(1));
    // In a field, a positive value is half the range plus the magnitude; a negative one is half the
    // range minus one, minus the magnitude.
    let fields = veorq_u8(magnitudes, vshrq_n_u8::<1>(ones));
    let fields = veorq_u8(fields, vandq_u8(positive, ones));
    let exist = vcgtq_u8(vdupq_n_u8(count as u8), load(&NUMBERS));
    let fields = vandq_u8(fields, exist);
    // Packs two, then four, then eight fields side by side.
    let by = vreinterpretq_s16_u16(vandq_u16(vreinterpretq_u16_u8(width), vdupq_n_u16(15)));
    let lanes = vreinterpretq_u16_u8(fields);
    let twos = vorrq_u16(
        vandq_u16(lanes, vdupq_n_u16(255)),
        vshlq_u16(vshrq_n_u16::<8>(lanes), by),
    );
    let by = vandq_u32(vreinterpretq_u32_u8(width), vdupq_n_u32(15));
    let by = vreinterpretq_s32_u32(vaddq_u32(by, by));
    let lanes = vreinterpretq_u32_u16(twos);
    let fours = vorrq_u32(
        vandq_u32(lanes, vdupq_n_u32(0xffff)),
        vshlq_u32(vshrq_n_u32::<16>(lanes), by),
    );
    let by = vandq_u64(vreinterpretq_u64_u8(width), vdupq_n_u64(15));
    let by = vreinterpretq_s64_u64(vshlq_n_u64::<2>(by));
    let lanes = vreinterpretq_u64_u32(fours);
    let eights = vorrq_u64(
        vandq_u64(lanes, vdupq_n_u64(0xffff_ffff)),
        vshlq_u64(vshrq_n_u64::<32>(lanes), by),
    );
    // The width of a group of four without values is zero.
    let widths = vandq_u8(width, exist);
    let lengths = vpaddlq_u32(vpaddlq_u16(vpaddlq_u8(widths)));
    let widths = vreinterpretq_u64_u8(widths);
    let [low, high] = [vgetq_lane_u64::<0>(widths), vgetq_lane_u64::<1>(widths)];
    let [low, high] = [low, high].map(|eight| eight & 15 | eight >> 28 & 0xf0);
    (
        [vgetq_lane_u64::<0>(eights), vgetq_lane_u64::<1>(eights)],
        [vgetq_lane_u64::<0>(lengths), vgetq_lane_u64::<1>(lengths)],
        low | high << 8,
    )
}
