//! Encoding with AVX2 and BMI2: the reverse of [`bmi2`](super::bmi2), from rows of coefficients to
//! fields.

use super::{EncodedPart, PAIR, tile};
use crate::baseline::entropy::{SECOND, ZIGZAG};
use crate::fast::part::{self, EncodedBlock};
use std::arch::x86_64::*;

/// Blocks per batch: all their values are stored before the first ones are loaded, to avoid stalls.
const BLOCKS: usize = 16;
/// Room for the values of a block, and for storing eight bytes at each of them.
const VALUES: usize = 72;
/// Largest magnitude that fits into every field without a correction.
const SMALL: i8 = 64;
/// Maximum length in bytes of the fields of a block whose values are all small.
const FIELDS: usize = 56;

/// For 32 coefficients in zigzag order, from the first AC coefficient on, and each two rows of a
/// block: the position of each coefficient in the rows, if it is there.
static ORDER: [[[u8; 32]; 4]; 2] = {
    let mut order = [[[0x80; 32]; 4]; 2];
    let mut k = 1;
    while k < 64 {
        let place = ZIGZAG[k] as usize;
        order[(k - 1) / 32][place / 16][(k - 1) % 32] = (place % 16) as u8;
        k += 1;
    }
    order
};

/// Nonzero AC coefficients of a block, in zigzag order.
#[derive(Clone, Copy)]
struct Values {
    bytes: [u8; VALUES],
    /// Which coefficients are nonzero; `None` if one is not small.
    mask: Option<u64>,
}

/// [`EncodedPart::add_row`] with AVX2 and BMI2.
#[target_feature(enable = "avx2,bmi1,bmi2,lzcnt,popcnt")]
pub(super) fn add_row(part: &mut EncodedPart, pairs: &[i16], blocks: usize) -> bool {
    let block_at = |block: usize| {
        let at = block / 2 * PAIR + block % 2 * SECOND;
        pairs.get(at..).and_then(|rest| rest.first_chunk::<128>())
    };
    let mut fits = true;
    for first in (0..blocks).step_by(BLOCKS) {
        let mut all = [Values {
            bytes: [0; VALUES],
            mask: None,
        }; BLOCKS];
        let numbers = first..(first + BLOCKS).min(blocks);
        for (values, block) in all.iter_mut().zip(numbers.clone()) {
            let Some(block) = block_at(block) else {
                return false;
            };
            compact(block, values);
        }
        let (mut bytes, mut at) = ([0; BLOCKS * FIELDS + 8], 0);
        for (values, block) in all.iter().zip(numbers) {
            let Some(block) = block_at(block) else {
                return false;
            };
            if let Some(mask) = values.mask {
                let end = part.payload.len();
                let widths = fields(values, mask, &mut bytes, &mut at);
                let dc = block[0];
                fits &= tile::COEFFICIENTS.contains(&dc.into());
                part.blocks.push(EncodedBlock {
                    mask,
                    widths,
                    dc,
                    end: end + at,
                });
            } else {
                part.payload.extend_from_slice(&bytes[..at]);
                at = 0;
                fits &= add_large(part, block);
            }
        }
        part.payload.extend_from_slice(&bytes[..at]);
    }
    fits
}

/// [`EncodedPart::add`] with BMI2, for a block with coefficients that are not small.
#[target_feature(enable = "avx2,bmi1,bmi2,lzcnt,popcnt")]
#[inline(never)]
fn add_large(part: &mut EncodedPart, block: &[i16; 128]) -> bool {
    part.add(block, |lanes, width| {
        _pext_u64(lanes, ((1 << width) - 1) * part::EACH)
    })
}

/// Collects the nonzero AC coefficients of a block.
#[target_feature(enable = "avx2,bmi1,bmi2,lzcnt,popcnt")]
#[inline]
fn compact(block: &[i16; 128], values: &mut Values) {
    let (rows, _) = block.as_chunks::<16>();
    let mut halves = [_mm256_setzero_si256(); 2];
    for (i, two) in rows.as_chunks::<2>().0.iter().enumerate() {
        // SAFETY: each reads 16 of the 32 bytes of a row; the others are of the other block.
        let [upper, lower] = unsafe {
            [
                _mm_loadu_si128(two[0].as_ptr().cast()),
                _mm_loadu_si128(two[1].as_ptr().cast()),
            ]
        };
        let two_rows = _mm256_broadcastsi128_si256(_mm_packs_epi16(upper, lower));
        for (half, order) in halves.iter_mut().zip(&ORDER) {
            // SAFETY: reads 32 bytes.
            let order = unsafe { _mm256_loadu_si256(order[i].as_ptr().cast()) };
            *half = _mm256_or_si256(*half, _mm256_shuffle_epi8(two_rows, order));
        }
    }
    let zero = _mm256_setzero_si256();
    let [low, high] = halves.map(|half| _mm256_movemask_epi8(_mm256_cmpeq_epi8(half, zero)) as u32);
    let mask = !(u64::from(high) << 32 | u64::from(low));
    // Saturated values are not small either.
    let large = halves.map(|half| {
        let small = _mm256_set1_epi8(SMALL);
        _mm256_subs_epu8(_mm256_abs_epi8(half), small)
    });
    let large = _mm256_or_si256(large[0], large[1]);
    values.mask = (_mm256_testz_si256(large, large) == 1).then_some(mask);
    let mut in_order = [0; 64];
    for (to, half) in in_order.as_chunks_mut::<32>().0.iter_mut().zip(halves) {
        // SAFETY: writes the 32 bytes of the array.
        unsafe { _mm256_storeu_si256(to.as_mut_ptr().cast(), half) };
    }
    let (mut left, mut at) = (mask, 0);
    for eight in in_order.as_chunks::<8>().0 {
        if left == 0 {
            break;
        }
        let ones = left as u8;
        left >>= 8;
        let spread = super::bmi2::BYTES[usize::from(ones)];
        let packed = _pext_u64(u64::from_le_bytes(*eight), spread);
        if let Some(to) = values.bytes[at..].first_chunk_mut::<8>() {
            *to = packed.to_le_bytes();
        }
        at += ones.count_ones() as usize;
    }
}

/// Appends the fields of a block to the bytes. Returns their widths.
#[target_feature(enable = "avx2,bmi1,bmi2,lzcnt,popcnt")]
#[inline]
fn fields(
    values: &Values,
    mask: u64,
    bytes: &mut [u8; BLOCKS * FIELDS + 8],
    at: &mut usize,
) -> u64 {
    let count = mask.count_ones() as usize;
    let (mut widths, mut bits, mut pending) = (0u64, 0u64, 0usize);
    let (halves, _) = values.bytes.as_chunks::<32>();
    for (i, half) in halves.iter().enumerate() {
        let Some(left) = count.checked_sub(32 * i).filter(|left| *left > 0) else {
            break;
        };
        let (fields, ones, four_widths) = fields_of_half(half, left.min(32));
        widths |= u64::from(four_widths) << (32 * i);
        let eights = fields
            .as_chunks::<8>()
            .0
            .iter()
            .zip(ones.as_chunks::<8>().0);
        for (fields, ones) in eights.take(left.div_ceil(8)) {
            let ones = u64::from_le_bytes(*ones);
            // At most seven bits are pending, and eight fields have at most 56 bits.
            bits |= _pext_u64(u64::from_le_bytes(*fields), ones) << pending;
            pending += ones.count_ones() as usize;
            if let Some(to) = bytes[*at..].first_chunk_mut::<8>() {
                *to = bits.to_le_bytes();
            }
            *at += pending / 8;
            bits >>= pending & !7;
            pending %= 8;
        }
    }
    if pending > 0 {
        bytes[*at] = bits as u8;
        *at += 1;
    }
    widths
}

/// Returns the fields of up to 32 values in a byte each, a mask of the bits that belong to the
/// fields, and the width of each group of four. Only the first `count` values exist.
#[target_feature(enable = "avx2,bmi1,bmi2,lzcnt,popcnt")]
#[inline]
fn fields_of_half(values: &[u8; 32], count: usize) -> ([u8; 32], [u8; 32], u32) {
    let each = |byte: i8| _mm256_set1_epi8(byte);
    let lookup = |table: [i8; 16], index| {
        let [a, b, c, d, e, f, g, h, i, j, k, l, m, n, o, p] = table;
        let table = _mm_setr_epi8(a, b, c, d, e, f, g, h, i, j, k, l, m, n, o, p);
        _mm256_shuffle_epi8(_mm256_broadcastsi128_si256(table), index)
    };
    // SAFETY: reads the 32 bytes of the array.
    let values = unsafe { _mm256_loadu_si256(values.as_ptr().cast()) };
    // A field stores v + half - 1 for a positive value v, and v + half for a negative one.
    let magnitudes = _mm256_subs_epu8(_mm256_abs_epi8(values), each(1));
    let positive = _mm256_cmpgt_epi8(values, _mm256_setzero_si256());
    let all = _mm256_or_si256(magnitudes, _mm256_srli_epi32::<16>(magnitudes));
    let all = _mm256_or_si256(all, _mm256_srli_epi32::<8>(all));
    let first_of_four = _mm_setr_epi8(0, 0, 0, 0, 4, 4, 4, 4, 8, 8, 8, 8, 12, 12, 12, 12);
    let all = _mm256_shuffle_epi8(all, _mm256_broadcastsi128_si256(first_of_four));
    // Number of bits of the largest magnitude, by its two halves of four bits, plus one for the sign.
    const LOW: [i8; 16] = [1, 2, 3, 3, 4, 4, 4, 4, 5, 5, 5, 5, 5, 5, 5, 5];
    const HIGH: [i8; 16] = [0, 6, 7, 7, 8, 8, 8, 8, 9, 9, 9, 9, 9, 9, 9, 9];
    let low = _mm256_and_si256(all, each(15));
    let high = _mm256_and_si256(_mm256_srli_epi16::<4>(all), each(15));
    let widths = _mm256_max_epu8(lookup(LOW, low), lookup(HIGH, high));
    const ONES: [i8; 16] = [0, 1, 3, 7, 15, 31, 63, 127, -1, -1, -1, -1, -1, -1, -1, -1];
    let ones = lookup(ONES, widths);
    // In a field, a positive value is half the range plus the magnitude; a negative one is half the
    // range minus one, minus the magnitude.
    let below_half = _mm256_and_si256(_mm256_srli_epi16::<1>(ones), each(63));
    let fields = _mm256_xor_si256(magnitudes, below_half);
    let fields = _mm256_xor_si256(fields, _mm256_and_si256(positive, ones));
    let number = _mm256_setr_epi8(
        0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15, 16, 17, 18, 19, 20, 21, 22, 23, 24,
        25, 26, 27, 28, 29, 30, 31,
    );
    let exist = _mm256_cmpgt_epi8(each(count as i8), number);
    let ones = _mm256_and_si256(ones, exist);
    // Every fourth byte is a width; it is zero for a group of four without values.
    let widths = _mm256_and_si256(widths, exist);
    let fours = _mm_setr_epi8(0, 4, 8, 12, -1, -1, -1, -1, -1, -1, -1, -1, -1, -1, -1, -1);
    let widths = _mm256_shuffle_epi8(widths, _mm256_broadcastsi128_si256(fours));
    let low = _mm256_extract_epi32::<0>(widths) as u32;
    let high = _mm256_extract_epi32::<4>(widths) as u32;
    let widths = _pext_u64(
        u64::from(high) << 32 | u64::from(low),
        0x0f0f_0f0f_0f0f_0f0f,
    ) as u32;
    let mut out = [[0; 32]; 2];
    for (to, from) in out.iter_mut().zip([fields, ones]) {
        // SAFETY: writes the 32 bytes of the array.
        unsafe { _mm256_storeu_si256(to.as_mut_ptr().cast(), from) };
    }
    (out[0], out[1], widths)
}
