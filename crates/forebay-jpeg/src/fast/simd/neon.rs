//! Tiles with NEON, which has neither PDEP nor an expand instruction: each lane looks up the bytes
//! that contain its field, and each position of a block looks up the index of its value.

use super::{PAIR, Part, Tile, WIDTH, Window};
use crate::baseline::entropy::{SECOND, ZIGZAG};
use std::arch::aarch64::*;

/// Number of fields per group, and maximum number of bytes that contain them.
const FIELDS: usize = 16;
/// Length of a block's coefficients in a pair, from the first to the last one.
const BLOCK: usize = 7 * 2 * SECOND + 8;
const _: () = assert!(BLOCK <= PAIR - SECOND);

/// Declares a table of bytes by a function of the index.
macro_rules! bytes {
    ($(#[$doc:meta])* $name:ident: $bytes:literal, |$i:ident| $value:expr) => {
        $(#[$doc])*
        static $name: [[u8; 16]; $bytes / 16] = {
            let mut bytes = [[0u8; 16]; $bytes / 16];
            let mut $i = 0;
            while $i < $bytes {
                bytes[$i / 16][$i % 16] = $value;
                $i += 1;
            }
            bytes
        };
    };
}

bytes!(
    /// By field: the index of its group of four.
    FOUR: 64, |i| (i / 4) as u8
);
bytes!(
    /// By field of a group of 16: its position in its group of four.
    PLACE: 16, |i| (i % 4) as u8
);
bytes!(
    /// By group of four: the index of the first group of four in its group of 16 fields.
    GROUP: 16, |i| (i / 4 * 4) as u8
);
bytes!(
    /// By width: a field of all ones.
    ONES: 16, |i| if i < 8 { (1 << i) - 1 } else { 255 }
);
bytes!(
    /// By position row by row: the byte of a bitmap that contains its bit.
    BYTE: 64, |i| index(i) / 8
);
bytes!(
    /// By position row by row: the bit in that byte.
    BIT: 64, |i| 1 << (index(i) % 8)
);
bytes!(
    /// By position row by row: the bits before its bit in that byte.
    BEFORE: 64, |i| (1 << (index(i) % 8)) - 1
);

/// Returns the zigzag index of a position row by row.
const fn index(position: usize) -> u8 {
    let mut k = 0;
    while ZIGZAG[k] as usize != position {
        k += 1;
    }
    k as u8
}

/// The numbers from which a block's values are looked up.
#[derive(Clone, Copy)]
struct Block {
    /// By group of four: the width of its fields.
    widths: uint8x16_t,
    /// By group of four: the start of its fields, in half bytes.
    starts: uint8x16_t,
    /// By group of four: the start of its fields, in bits from the byte in which its group of 16 begins.
    bits: uint8x16_t,
    /// By byte of the bitmap (with a bit for DC): its bits.
    map: uint8x16_t,
    /// By byte of the bitmap: the number of values before it.
    values: uint8x16_t,
}

#[target_feature(enable = "neon")]
#[inline]
fn load(bytes: &[u8; 16]) -> uint8x16_t {
    // SAFETY: reads the 16 bytes of the array.
    unsafe { vld1q_u8(bytes.as_ptr()) }
}

/// Repeats eight bytes.
#[target_feature(enable = "neon")]
#[inline]
fn twice(eight: u64) -> uint8x16_t {
    vreinterpretq_u8_u64(vdupq_n_u64(eight))
}

impl Block {
    #[target_feature(enable = "neon")]
    #[inline]
    fn new(mask: u64, widths: u64) -> Self {
        let both = twice(widths);
        let (low, high) = (vandq_u8(both, vdupq_n_u8(15)), vshrq_n_u8::<4>(both));
        let map = twice(mask << 1);
        // Sums of the bytes before each byte: widths of eights, and ones of the bitmap.
        let all = vcombine_u8(vget_low_u8(vaddq_u8(low, high)), vcnt_u8(vget_low_u8(map)));
        let mut sums = vshlq_n_u64::<8>(vreinterpretq_u64_u8(all));
        let add =
            |a, b| vreinterpretq_u64_u8(vaddq_u8(vreinterpretq_u8_u64(a), vreinterpretq_u8_u64(b)));
        sums = add(sums, vshlq_n_u64::<8>(sums));
        sums = add(sums, vshlq_n_u64::<16>(sums));
        sums = add(sums, vshlq_n_u64::<32>(sums));
        let sums = vreinterpretq_u8_u64(sums);
        let starts = vzip1q_u8(sums, vaddq_u8(sums, low));
        // Modulo 256 suffices, because a group has fewer bits.
        let bits = vshlq_n_u8::<2>(starts);
        let group = vandq_u8(vqtbl1q_u8(bits, load(&GROUP[0])), vdupq_n_u8(0xf8));
        Self {
            widths: vzip1q_u8(low, high),
            starts,
            bits: vsubq_u8(bits, group),
            map,
            values: vextq_u8::<8>(sums, sums),
        }
    }

    /// Returns the values of a group of fields. `window` begins with the first field of the block.
    #[target_feature(enable = "neon")]
    #[inline]
    fn group<const GROUP: i32, const FIRST: i32>(&self, window: &[u8; 64]) -> uint8x16_t {
        const { assert!(FIRST == 4 * GROUP) };
        let at = usize::from(vgetq_lane_u8::<FIRST>(self.starts) / 2);
        // All fields begin in the first 60 bytes.
        let bytes = window[at.min(64 - FIELDS)..].first_chunk();
        let bytes = load(bytes.expect("a slice of 16 bytes"));
        let four = load(&FOUR[GROUP as usize]);
        let widths = vqtbl1q_u8(self.widths, four);
        let bit = vmlaq_u8(vqtbl1q_u8(self.bits, four), widths, load(&PLACE[0]));
        // A field lies within two bytes.
        let byte = vshrq_n_u8::<3>(bit);
        let low = vqtbl1q_u8(bytes, byte);
        let high = vqtbl1q_u8(bytes, vaddq_u8(byte, vdupq_n_u8(1)));
        let right = vreinterpretq_s8_u8(vandq_u8(bit, vdupq_n_u8(7)));
        let low = vshlq_u8(low, vnegq_s8(right));
        let high = vshlq_u8(high, vsubq_s8(vdupq_n_s8(8), right));
        let ones = vqtbl1q_u8(load(&ONES[0]), widths);
        let fields = vandq_u8(vorrq_u8(low, high), ones);
        // The field of the smallest positive value.
        let half = vrhaddq_u8(ones, vdupq_n_u8(0));
        let positive = vcgeq_u8(fields, half);
        vsubq_u8(vsubq_u8(fields, half), positive)
    }

    /// Stores the coefficients of a block. `value` returns values by their indices, and 0 for
    /// indices from 64 on.
    #[target_feature(enable = "neon")]
    #[inline]
    fn store(&self, out: &mut [i16; BLOCK], value: impl Fn(uint8x16_t) -> uint8x16_t) {
        for rows in 0..4 {
            let byte = load(&BYTE[rows]);
            let ones = vqtbl1q_u8(self.map, byte);
            let exists = vtstq_u8(ones, load(&BIT[rows]));
            let before = vcntq_u8(vandq_u8(ones, load(&BEFORE[rows])));
            let number = vaddq_u8(vqtbl1q_u8(self.values, byte), before);
            let values = vreinterpretq_s8_u8(value(vornq_u8(number, exists)));
            let upper = vmovl_s8(vget_low_s8(values));
            let lower = vmovl_high_s8(values);
            let (to_upper, to_lower) = out[4 * SECOND * rows..].split_at_mut(2 * SECOND);
            let (to_upper, to_lower) = (&mut to_upper[..8], &mut to_lower[..8]);
            // SAFETY: each writes eight coefficients.
            unsafe {
                vst1q_s16(to_upper.as_mut_ptr(), upper);
                vst1q_s16(to_lower.as_mut_ptr(), lower);
            }
        }
    }
}

/// [`Tile::unpack`] with NEON.
#[target_feature(enable = "neon")]
pub(super) fn unpack(tile: &Tile, window: &Window, parts: &[Part], out: &mut [i16]) {
    let mut first = 0;
    for (part, dc) in parts.iter().zip(&tile.dc) {
        for at in part.from..part.to {
            let number = first + at;
            let mask = tile.masks[number];
            let block = Block::new(mask, tile.widths[number]);
            let window = window[tile.payload[number] as usize..].first_chunk();
            let window = window.expect("64 bytes of an opened tile");
            let out = out[part.block_at(at)..].first_chunk_mut();
            let out = out.expect("a slice of a block");
            let [a, b] = [block.group::<0, 0>(window), block.group::<1, 4>(window)];
            if mask.count_ones() as usize <= 2 * FIELDS {
                block.store(out, |number| vqtbl2q_u8(uint8x16x2_t(a, b), number));
            } else {
                let [c, d] = [block.group::<2, 8>(window), block.group::<3, 12>(window)];
                block.store(out, |number| vqtbl4q_u8(uint8x16x4_t(a, b, c, d), number));
            }
            out[0] = dc[at % WIDTH];
        }
        first += part.blocks;
    }
}
