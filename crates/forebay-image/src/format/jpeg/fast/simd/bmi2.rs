//! Tiles with AVX2 and BMI2: fields are spread to bytes by PDEP, eight at once, and bytes are moved
//! to their positions in whole registers.

use super::{Buffer, PAIR, Part, Tables, Tile, Window, tile};
use crate::format::jpeg::baseline::entropy::ZIGZAG;
use std::arch::x86_64::*;
use std::sync::LazyLock;

/// Family of the first of AMD's processors with a fast PDEP, Zen 3.
const ZEN_3: u32 = 0x19;

/// By a byte of a bitmap: all ones in the bytes that its ones stand for.
static BYTES: [u64; 256] = {
    let mut bytes = [0; 256];
    let mut map = 0;
    while map < 256 {
        let mut i = 0;
        while i < 8 {
            if map >> i & 1 == 1 {
                bytes[map] |= 255 << (8 * i);
            }
            i += 1;
        }
        map += 1;
    }
    bytes
};
/// For each half of a block row by row, and each 16 coefficients in zigzag order: which of these
/// they are, or none.
static ORDER: [[[u8; 32]; 4]; 2] = {
    let mut order = [[[0x80; 32]; 4]; 2];
    let mut k = 0;
    while k < 64 {
        let place = ZIGZAG[k] as usize;
        order[place / 32][k / 16][place % 32] = (k % 16) as u8;
        k += 1;
    }
    order
};
/// By width: all ones in the fields of four bytes.
static ONES: [u64; 16] = {
    let mut ones = [0; 16];
    let mut width = 1;
    while width <= 8 {
        ones[width] = ((1 << width) - 1) * 0x0101_0101;
        width += 1;
    }
    ones
};
/// By width: the field of the smallest positive value, in four bytes.
static HALF: [u64; 16] = {
    let mut half = [0; 16];
    let mut width = 1;
    while width <= 8 {
        half[width] = (1 << (width - 1)) * 0x0101_0101;
        width += 1;
    }
    half
};

/// Returns whether this processor has a fast PDEP.
pub(super) fn is_fast() -> bool {
    static FAST: LazyLock<bool> = LazyLock::new(|| {
        let vendor = __cpuid(0);
        let mut name = [0; 12];
        for (name, part) in name.chunks_mut(4).zip([vendor.ebx, vendor.edx, vendor.ecx]) {
            name.copy_from_slice(&part.to_le_bytes());
        }
        is_fast_on(&name, __cpuid(1).eax)
    });
    *FAST
}

/// [`is_fast`] by CPUID's vendor and signature.
fn is_fast_on(vendor: &[u8; 12], signature: u32) -> bool {
    let family = signature >> 8 & 15;
    let extended = if family == 15 {
        signature >> 20 & 255
    } else {
        0
    };
    let is_amd = matches!(vendor, b"AuthenticAMD" | b"HygonGenuine");
    !is_amd || family + extended >= ZEN_3
}

#[target_feature(enable = "avx2,bmi1,bmi2,lzcnt,popcnt")]
pub(super) fn open(
    tile: &mut Tile,
    window: &Window,
    length: usize,
    parts: &[Part],
    tables: Option<&Tables>,
    buffer: &mut Buffer,
) -> Option<()> {
    tile.open(window, length, parts, tables, buffer, tile::read_dc)
}

/// [`Tile::unpack`].
#[target_feature(enable = "avx2,bmi1,bmi2,lzcnt,popcnt")]
pub(super) fn unpack(tile: &Tile, window: &Window, parts: &[Part], out: &mut [i16]) {
    let mut first = 0;
    for (part, dc) in parts.iter().zip(&tile.dc) {
        for (block, &dc) in dc.iter().enumerate().take(part.to).skip(part.from) {
            let out = &mut out[part.block_at(block)..];
            let number = first + block;
            let values = values(
                window,
                tile.payload[number] as usize,
                tile.widths[number],
                tile.masks[number].count_ones() as usize,
            );
            rows(&values, tile.masks[number], out);
            out[0] = dc;
        }
        first += part.blocks;
    }
}

/// The values of a block's fields, and bytes after them for [`rows`].
#[target_feature(enable = "avx2,bmi1,bmi2,lzcnt,popcnt")]
#[inline]
fn values(window: &Window, payload: usize, mut widths: u64, count: usize) -> [u8; 72] {
    let (mut fields, mut halves) = ([0u8; 64], [0u8; 64]);
    let (eights, _) = fields.as_chunks_mut::<8>();
    let (half_eights, _) = halves.as_chunks_mut::<8>();
    let mut bit = 8 * payload;
    for (fields, halves) in eights.iter_mut().zip(half_eights).take(count.div_ceil(8)) {
        let (width1, width2) = ((widths & 15) as usize, (widths >> 4 & 15) as usize);
        widths >>= 8;
        let bits = tile::word(window, bit / 8) >> (bit % 8);
        let first = _pdep_u64(bits, ONES[width1]);
        let second = _pdep_u64(bits >> (4 * width1), ONES[width2]) << 32;
        *fields = (first | second).to_le_bytes();
        *halves = (HALF[width1] | HALF[width2] << 32).to_le_bytes();
        bit += 4 * (width1 + width2);
    }
    let mut values = [0; 72];
    for at in [0, 32] {
        let (fields, halves) = (&fields[at..at + 32], &halves[at..at + 32]);
        let to = &mut values[at..at + 32];
        // SAFETY: each reads or writes the 32 bytes of a slice.
        unsafe {
            let fields = _mm256_loadu_si256(fields.as_ptr().cast());
            let halves = _mm256_loadu_si256(halves.as_ptr().cast());
            let positive = _mm256_cmpeq_epi8(_mm256_max_epu8(fields, halves), fields);
            let values = _mm256_sub_epi8(_mm256_sub_epi8(fields, halves), positive);
            _mm256_storeu_si256(to.as_mut_ptr().cast(), values);
        }
    }
    values
}

/// Moves values to the rows of a block.
#[target_feature(enable = "avx2,bmi1,bmi2,lzcnt,popcnt")]
#[inline]
fn rows(values: &[u8; 72], mask: u64, out: &mut [i16]) {
    // With a place for DC. A mask has at most 63 ones, so `from` stays below 64.
    let mut map = mask << 1;
    let mut from = 0;
    let mut halves = [_mm256_setzero_si256(); 2];
    for sixteen in 0..4 {
        let [low, high] = [(); 2].map(|()| {
            let ones = map as u8;
            map >>= 8;
            let eight = _pdep_u64(tile::word(values, from), BYTES[usize::from(ones)]);
            from += ones.count_ones() as usize;
            eight as i64
        });
        let both = _mm256_broadcastsi128_si256(_mm_set_epi64x(high, low));
        for (half, order) in halves.iter_mut().zip(&ORDER) {
            // SAFETY: reads 32 bytes.
            let order = unsafe { _mm256_loadu_si256(order[sixteen].as_ptr().cast()) };
            *half = _mm256_or_si256(*half, _mm256_shuffle_epi8(both, order));
        }
    }
    for (i, half) in halves.into_iter().enumerate() {
        let quarters = [
            _mm256_castsi256_si128(half),
            _mm256_extracti128_si256::<1>(half),
        ];
        for (j, two_rows) in quarters.into_iter().enumerate() {
            let rows = _mm256_cvtepi8_epi16(two_rows);
            let row = 4 * i + 2 * j;
            let (first, second) = out[16 * row..][..24].split_at_mut(16);
            // SAFETY: each writes 8 coefficients.
            unsafe {
                _mm_storeu_si128(first.as_mut_ptr().cast(), _mm256_castsi256_si128(rows));
                let rows = _mm256_extracti128_si256::<1>(rows);
                _mm_storeu_si128(second.as_mut_ptr().cast(), rows);
            }
        }
    }
}

const _: () = assert!(PAIR >= 8 * 16);

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pdep_is_slow_on_amd_before_zen_3() {
        let fast = |vendor, signature| is_fast_on(vendor, signature);
        assert!(!fast(b"AuthenticAMD", 0x0083_0f10), "Zen 2");
        assert!(!fast(b"HygonGenuine", 0x0090_0f02), "Dhyana");
        assert!(fast(b"AuthenticAMD", 0x00a0_0f11), "Zen 3");
        assert!(fast(b"AuthenticAMD", 0x00b4_0f40), "Zen 5");
        assert!(fast(b"GenuineIntel", 0x0005_0654), "Skylake");
    }
}
