//! Tiles with AVX2 and BMI2: PDEP spreads fields to bytes, eight at once, and shuffles move bytes
//! to their positions in whole registers.

use super::{Buffer, PAIR, Part, ScanEncoder, Tables, Tile, WIDTH, Window, control, tile};
use crate::baseline::entropy::{SECOND, ZIGZAG};
use crate::fast::control::Streams;
use crate::fast::tile::Control;
use std::arch::x86_64::*;
use std::ops::Range;
use std::sync::LazyLock;

/// CPUID family of Zen 3, AMD's first processors with a fast PDEP.
const ZEN_3: u32 = 0x19;

/// By a byte of a bitmap: all ones in the bytes whose bits are set.
pub(super) static BYTES: [u64; 256] = {
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
/// For each two rows of a block and each 16 coefficients in zigzag order: the index of the
/// coefficient at each position, or none; the same in both halves of a register.
static ORDER: [[[u8; 32]; 4]; 4] = {
    let mut order = [[[0x80; 32]; 4]; 4];
    let mut k = 0;
    while k < 64 {
        let place = ZIGZAG[k] as usize;
        order[place / 16][k / 16][place % 16] = (k % 16) as u8;
        order[place / 16][k / 16][16 + place % 16] = (k % 16) as u8;
        k += 1;
    }
    order
};
/// By a byte of widths: masks of the fields in eight bytes, and the fields of the smallest positive
/// values.
static FIELDS: [[u64; 2]; 256] = {
    let mut fields = [[0; 2]; 256];
    let mut widths = 0;
    while widths < 256 {
        let mut four = 0;
        while four < 2 {
            let width = widths >> (4 * four) & 15;
            if width >= 1 && width <= 8 {
                fields[widths][0] |= (((1 << width) - 1) * 0x0101_0101) << (32 * four);
                fields[widths][1] |= ((1 << (width - 1)) * 0x0101_0101) << (32 * four);
            }
            four += 1;
        }
        widths += 1;
    }
    fields
};

/// Returns whether this processor has a fast PDEP.
pub(super) fn is_fast() -> bool {
    static FAST: LazyLock<bool> = LazyLock::new(|| {
        // `__cpuid` is unsafe in the oldest supported version of Rust only.
        #[allow(unused_unsafe)]
        // SAFETY: every processor with AVX2, which was detected, has this instruction.
        let (vendor, version) = unsafe { (__cpuid(0), __cpuid(1)) };
        let mut name = [0; 12];
        for (name, part) in name.chunks_mut(4).zip([vendor.ebx, vendor.edx, vendor.ecx]) {
            name.copy_from_slice(&part.to_le_bytes());
        }
        is_fast_on(&name, version.eax)
    });
    *FAST
}

/// Evaluates [`is_fast`] for a vendor and signature from CPUID.
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

/// [`control::Writer::write`], compiled for these features.
#[target_feature(enable = "avx2,bmi1,bmi2,lzcnt,popcnt")]
pub(super) fn write_control(
    writer: &mut control::Writer,
    codes: &control::Codes,
    kinds: [&[u16]; 3],
    out: &mut Vec<u8>,
) {
    writer.write(codes, kinds, out);
}

/// [`ScanEncoder::tile`], compiled for these features.
#[target_feature(enable = "avx2,bmi1,bmi2,lzcnt,popcnt")]
pub(super) fn write_tile(
    encoder: &mut ScanEncoder<'_>,
    tile: &Tile,
    coefficients: &[i16],
    batch: usize,
    columns: Range<usize>,
) -> Option<()> {
    encoder.tile(tile, coefficients, batch, columns)
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
    let dc = |bytes: &[u8; 64], blocks: usize, out: &mut [i16; WIDTH]| read_dc(bytes, blocks, out);
    let (masks, widths) = (control::spread_masks, control::spread_widths);
    let entries = |streams: &mut Streams, window: &Window, tables: &Tables, entries: &mut [u16]| {
        read_entries(streams, window, tables, entries);
    };
    let control = |at: usize, blocks: (usize, usize), out: Control<'_>| match tables {
        Some(tables) => {
            let ways = (entries, masks, widths);
            control::read(tables, window, at, blocks, buffer, out, ways)
        }
        None => control::read_raw(window, at, blocks.1, out, (masks, widths)),
    };
    tile.open(window, length, parts, dc, control, Tile::place_payload)
}

/// [`control::read_entries`], compiled without vectors: the compiler would combine the four streams
/// in a vector, and extract them for each table lookup.
#[target_feature(enable = "bmi1,bmi2,lzcnt,popcnt")]
#[inline(never)]
pub(super) fn read_entries(
    streams: &mut Streams,
    window: &Window,
    tables: &Tables,
    entries: &mut [u16],
) {
    control::read_entries(streams, window, tables, entries);
}

/// [`tile::read_dc`] with AVX2.
#[target_feature(enable = "avx2,bmi1,bmi2,lzcnt,popcnt")]
#[inline]
fn read_dc(bytes: &[u8; 64], blocks: usize, out: &mut [i16; WIDTH]) -> usize {
    const EACH: u64 = 0x0001_0001_0001_0001;
    let head = u16::from_le_bytes([bytes[0], bytes[1]]);
    let width = usize::from(head >> 12);
    let first = _mm_set1_epi16((head & 0xfff) as i16 - 2048);
    let mut fours = [0; 4];
    for (i, four) in fours.iter_mut().enumerate() {
        // Reads four codes of up to 15 bits each, which begin at a multiple of four bits.
        let bit = 4 * i * width;
        let codes = tile::word(bytes, 2 + bit / 8 % 32) >> (bit % 8);
        *four = _pdep_u64(codes, ((1 << width) - 1) * EACH) as i64;
    }
    let codes = _mm256_setr_epi64x(fours[0], fours[1], fours[2], fours[3]);
    let zero = _mm256_setzero_si256();
    let sign = _mm256_sub_epi16(zero, _mm256_and_si256(codes, _mm256_set1_epi16(1)));
    let differences = _mm256_xor_si256(_mm256_srli_epi16::<1>(codes), sign);
    // Prefix sums within each half.
    let mut sum = _mm256_add_epi16(differences, _mm256_bslli_epi128::<2>(differences));
    sum = _mm256_add_epi16(sum, _mm256_bslli_epi128::<4>(sum));
    sum = _mm256_add_epi16(sum, _mm256_bslli_epi128::<8>(sum));
    let lower = _mm256_castsi256_si128(sum);
    let last = _mm_shuffle_epi8(lower, _mm_set1_epi16(0x0f0e));
    // Difference i leads from block i to block i + 1.
    let before = _mm256_bslli_epi128::<2>(sum);
    let halves = [
        _mm_add_epi16(_mm256_castsi256_si128(before), first),
        _mm_add_epi16(
            _mm256_extracti128_si256::<1>(before),
            _mm_add_epi16(first, last),
        ),
    ];
    for (half, out) in halves.into_iter().zip(out.as_chunks_mut::<8>().0) {
        // SAFETY: writes the 16 bytes of the array.
        unsafe { _mm_storeu_si128(out.as_mut_ptr().cast(), half) };
    }
    2 + ((blocks - 1) * width).div_ceil(8)
}

/// [`Tile::unpack`] with AVX2 and BMI2.
#[target_feature(enable = "avx2,bmi1,bmi2,lzcnt,popcnt")]
pub(super) fn unpack(tile: &Tile, window: &Window, parts: &[Part], out: &mut [i16]) {
    let mut values = [[0; VALUES]; 2];
    let mut first = 0;
    for (part, dc) in parts.iter().zip(&tile.dc) {
        for block in (part.from..part.to).step_by(2) {
            let out = &mut out[part.block_at(block)..];
            // After an odd number of blocks, the second block of the last pair has no coefficients.
            let is_pair = block + 1 < part.to;
            let numbers = [first + block, first + block + usize::from(is_pair)];
            let masks = [
                tile.masks[numbers[0]],
                if is_pair { tile.masks[numbers[1]] } else { 0 },
            ];
            for ((values, number), mask) in values.iter_mut().zip(numbers).zip(masks) {
                let payload = tile.payload[number] as usize;
                let count = mask.count_ones() as usize;
                unpack_values(window, payload, tile.widths[number], count, values);
            }
            rows(&values, masks, out);
            (out[0], out[SECOND]) = (dc[block], dc[(block + 1) % WIDTH]);
        }
        first += part.blocks;
    }
}

/// Room for the values of a block, and for loading eight bytes from each of them.
const VALUES: usize = 80;

/// Stores the values of the first `count` fields of a block. Later values are undefined.
#[target_feature(enable = "avx2,bmi1,bmi2,lzcnt,popcnt")]
#[inline]
fn unpack_values(
    window: &Window,
    payload: usize,
    mut widths: u64,
    count: usize,
    values: &mut [u8; VALUES],
) {
    let mut bit = 8 * payload;
    let (sixteens, _) = values.as_chunks_mut::<16>();
    for to in sixteens.iter_mut().take(count.div_ceil(16)) {
        let (mut fields, mut halves) = ([0; 2], [0; 2]);
        for (field, half) in fields.iter_mut().zip(&mut halves) {
            let eight = widths as u8;
            widths >>= 8;
            let [ones, smallest] = FIELDS[usize::from(eight)];
            // Eight fields begin at a multiple of four bits and have at most 60 bits.
            let bits = tile::word(window, bit / 8) >> (bit % 8);
            bit += 4 * usize::from((eight & 15) + (eight >> 4));
            *field = _pdep_u64(bits, ones) as i64;
            *half = smallest as i64;
        }
        let fields = _mm_set_epi64x(fields[1], fields[0]);
        let halves = _mm_set_epi64x(halves[1], halves[0]);
        let positive = _mm_cmpeq_epi8(_mm_max_epu8(fields, halves), fields);
        let values = _mm_sub_epi8(_mm_sub_epi8(fields, halves), positive);
        // SAFETY: writes the 16 bytes of the array.
        unsafe { _mm_storeu_si128(to.as_mut_ptr().cast(), values) };
    }
}

/// Moves the values of two blocks to the rows of a pair.
#[target_feature(enable = "avx2,bmi1,bmi2,lzcnt,popcnt")]
#[inline]
fn rows(values: &[[u8; VALUES]; 2], masks: [u64; 2], out: &mut [i16]) {
    // The masks get a bit for DC. A mask has at most 63 ones, so positions in the values stay below
    // 64.
    let mut maps = [masks[0] << 1, masks[1] << 1];
    let mut from = [0; 2];
    let mut two_rows = [_mm256_setzero_si256(); 4];
    let sixteens = if (maps[0] | maps[1]) >> 32 == 0 { 2 } else { 4 };
    for sixteen in 0..sixteens {
        // The lower and the upper eight coefficients of each block.
        let mut eights = [0; 4];
        for (i, eight) in eights.iter_mut().enumerate() {
            let (map, from) = (&mut maps[i / 2], &mut from[i / 2]);
            let ones = *map as u8;
            *map >>= 8;
            let eight_values = tile::word(&values[i / 2], *from);
            *from += ones.count_ones() as usize;
            *eight = _pdep_u64(eight_values, BYTES[usize::from(ones)]) as i64;
        }
        let both = _mm256_setr_epi64x(eights[0], eights[1], eights[2], eights[3]);
        for (rows, order) in two_rows.iter_mut().zip(&ORDER) {
            // SAFETY: reads 32 bytes.
            let order = unsafe { _mm256_loadu_si256(order[sixteen].as_ptr().cast()) };
            *rows = _mm256_or_si256(*rows, _mm256_shuffle_epi8(both, order));
        }
    }
    let (to, _) = out[..8 * 16].as_chunks_mut::<32>();
    for (to, rows) in to.iter_mut().zip(two_rows) {
        // Places a row of the first block beside the same row of the second block.
        let rows = _mm256_permute4x64_epi64::<0b11_01_10_00>(rows);
        let upper = _mm256_cvtepi8_epi16(_mm256_castsi256_si128(rows));
        let lower = _mm256_cvtepi8_epi16(_mm256_extracti128_si256::<1>(rows));
        // SAFETY: writes the 32 coefficients of the array.
        unsafe {
            _mm256_storeu_si256(to.as_mut_ptr().cast(), upper);
            _mm256_storeu_si256(to[16..].as_mut_ptr().cast(), lower);
        }
    }
}

const _: () = assert!(PAIR >= 8 * 16 && SECOND == 8);

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
