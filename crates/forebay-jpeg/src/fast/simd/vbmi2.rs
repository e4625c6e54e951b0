//! Tiles with AVX-512 VBMI and VBMI2: decodes four blocks at once from fields to rows of
//! coefficients, all in registers.

use super::bmi2::read_entries;
use super::{Buffer, PAIR, Part, Tables, Tile, WIDTH, Window, control};
use crate::baseline::entropy::ZIGZAG;
use crate::fast::control::Streams;
use crate::fast::tile::{Control, EACH, MAX_BLOCKS};
use std::arch::x86_64::*;

/// The content of a register.
#[repr(align(64))]
struct Bytes([u8; 64]);

impl Bytes {
    #[target_feature(enable = "avx512f")]
    #[inline]
    fn load(&self) -> __m512i {
        // SAFETY: reads its 64 bytes, which are aligned.
        unsafe { _mm512_load_si512(self.0.as_ptr().cast()) }
    }
}

/// Declares a register's bytes by a function of the index.
macro_rules! bytes {
    ($(#[$doc:meta])* $name:ident: |$i:ident| $value:expr) => {
        $(#[$doc])*
        static $name: Bytes = {
            let mut bytes = [0u8; 64];
            let mut $i = 0;
            while $i < 64 {
                bytes[$i] = $value;
                $i += 1;
            }
            Bytes(bytes)
        };
    };
}

bytes!(
    /// By field: the index of its group of four; the first groups of all eights come before the second ones.
    FOUR: |i| (i / 8 + i % 8 / 4 * 8) as u8
);
bytes!(
    /// By field: the index of its group of eight.
    EIGHT: |i| (i / 8) as u8
);
bytes!(
    /// By byte: its position in a group of eight.
    PLACE: |i| (i % 8) as u8
);
bytes!(
    /// By field of four blocks with 16 fields each: the byte with its width (eight bytes per block).
    WIDTH_OF_SIXTEEN: |i| (i / 16 * 8 + i % 16 / 8) as u8
);
bytes!(
    /// By field of four blocks with 16 fields each: the first bit of its width in that byte.
    HALF_OF_SIXTEEN: |i| (i % 8 / 4 * 4) as u8
);
/// By position row by row: the zigzag index.
static INDEX: Bytes = {
    let mut bytes = [0; 64];
    let mut k = 0;
    while k < 64 {
        bytes[ZIGZAG[k] as usize] = k as u8;
        k += 1;
    }
    Bytes(bytes)
};
/// By width: a field of all ones.
static ONES: [u8; 16] = [0, 1, 3, 7, 15, 31, 63, 127, 255, 0, 0, 0, 0, 0, 0, 0];
/// By width: the field of the smallest positive value.
static HALF: [u8; 16] = [0, 1, 2, 4, 8, 16, 32, 64, 128, 0, 0, 0, 0, 0, 0, 0];

/// Constants in registers.
#[derive(Clone, Copy)]
struct Constants {
    four: __m512i,
    eight: __m512i,
    place: __m512i,
    index: __m512i,
    ones: __m512i,
    half: __m512i,
    width_of_sixteen: __m512i,
    half_of_sixteen: __m512i,
}

impl Constants {
    #[target_feature(enable = "avx512f")]
    #[inline]
    fn load() -> Self {
        // SAFETY: each reads 16 bytes.
        let (ones, half) = unsafe {
            let ones = _mm_loadu_si128(ONES.as_ptr().cast());
            let half = _mm_loadu_si128(HALF.as_ptr().cast());
            (ones, half)
        };
        Self {
            four: FOUR.load(),
            eight: EIGHT.load(),
            place: PLACE.load(),
            index: INDEX.load(),
            ones: _mm512_broadcast_i32x4(ones),
            half: _mm512_broadcast_i32x4(half),
            width_of_sixteen: WIDTH_OF_SIXTEEN.load(),
            half_of_sixteen: HALF_OF_SIXTEEN.load(),
        }
    }

    /// Returns the values of fields from their widths and bits: eight fields in each eight bytes.
    #[target_feature(enable = "avx2,avx512f,avx512bw,avx512vbmi")]
    #[inline]
    fn values(self, data: __m512i, start: __m512i, width: __m512i) -> __m512i {
        // Field i of a group of four begins i widths after the group's start.
        let bit = _mm512_mask_add_epi8(start, 0xaaaa_aaaa_aaaa_aaaa, start, width);
        let double = _mm512_add_epi8(width, width);
        let bit = _mm512_mask_add_epi8(bit, 0xcccc_cccc_cccc_cccc, bit, double);
        let ones = _mm512_shuffle_epi8(self.ones, width);
        let fields = _mm512_and_si512(_mm512_multishift_epi64_epi8(bit, data), ones);
        let half = _mm512_shuffle_epi8(self.half, width);
        let positive = _mm512_cmpge_epu8_mask(fields, half);
        let values = _mm512_sub_epi8(fields, half);
        _mm512_mask_sub_epi8(values, positive, values, _mm512_set1_epi8(-1))
    }
}

#[target_feature(
    enable = "avx2,avx512f,avx512bw,avx512dq,avx512vl,avx512vbmi,avx512vbmi2,avx512vpopcntdq,bmi1,bmi2,lzcnt,popcnt"
)]
pub(super) fn open(
    tile: &mut Tile,
    window: &Window,
    length: usize,
    parts: &[Part],
    tables: Option<&Tables>,
    buffer: &mut Buffer,
) -> Option<()> {
    // Closures in this function are compiled with its features; functions with features cannot be passed.
    let dc = |bytes: &[u8; 64], blocks: usize, out: &mut [i16; WIDTH]| read_dc(bytes, blocks, out);
    let entries = |streams: &mut Streams, window: &Window, tables: &Tables, entries: &mut [u16]| {
        read_entries(streams, window, tables, entries);
    };
    let masks =
        |bytes: &[u8], lengths: &[u8; MAX_BLOCKS], blocks: usize, out: &mut [u64; MAX_BLOCKS]| {
            spread_masks(bytes, lengths, blocks, out)
        };
    let widths =
        |bytes: &[u8], masks: &[u64; MAX_BLOCKS], blocks: usize, out: &mut [u64; MAX_BLOCKS]| {
            spread_widths(bytes, masks, blocks, out)
        };
    let control = |at: usize, blocks: (usize, usize), out: Control<'_>| match tables {
        Some(tables) => {
            let ways = (entries, masks, widths);
            control::read(tables, window, at, blocks, buffer, out, ways)
        }
        None => control::read_raw(window, at, blocks.1, out, (masks, widths)),
    };
    let place = |tile: &mut Tile, at: usize, blocks: usize, length: usize| {
        place_payload(tile, at, blocks, length)
    };
    tile.open(window, length, parts, dc, control, place)
}

/// Spreads bytes over eight integers; `counts` are the numbers of bytes per integer, 8 at most.
#[target_feature(
    enable = "avx2,avx512f,avx512bw,avx512dq,avx512vl,avx512vbmi,avx512vbmi2,avx512vpopcntdq,bmi1,bmi2,lzcnt,popcnt"
)]
#[inline]
fn spread(bytes: &[u8], counts: __m128i, out: &mut [u64]) -> usize {
    // By number of bytes: that many ones.
    let bits = _mm_setr_epi8(0, 1, 3, 7, 15, 31, 63, 127, -1, -1, -1, -1, -1, -1, -1, -1);
    let mask = _mm_cvtsi128_si64(_mm_shuffle_epi8(bits, counts)) as u64;
    let (bytes, out) = (&bytes[..64], &mut out[..8]);
    // SAFETY: reads and writes the 64 bytes of each slice.
    unsafe {
        let bytes = _mm512_loadu_si512(bytes.as_ptr().cast());
        let bytes = _mm512_maskz_expand_epi8(mask, bytes);
        _mm512_storeu_si512(out.as_mut_ptr().cast(), bytes);
    }
    mask.count_ones() as usize
}

/// [`control::spread_masks`] for eight blocks at once.
#[target_feature(
    enable = "avx2,avx512f,avx512bw,avx512dq,avx512vl,avx512vbmi,avx512vbmi2,avx512vpopcntdq,bmi1,bmi2,lzcnt,popcnt"
)]
#[inline]
fn spread_masks(
    bytes: &[u8],
    lengths: &[u8; MAX_BLOCKS],
    blocks: usize,
    masks: &mut [u64; MAX_BLOCKS],
) -> usize {
    let mut from = 0;
    let eights = lengths.as_chunks().0.iter().zip(masks.chunks_mut(8));
    for (&lengths, masks) in eights.take(blocks.div_ceil(8)) {
        let counts = _mm_cvtsi64_si128(i64::from_le_bytes(lengths));
        from += spread(&bytes[from..], counts, masks);
    }
    from
}

/// [`control::spread_widths`] for eight blocks at once.
#[target_feature(
    enable = "avx2,avx512f,avx512bw,avx512dq,avx512vl,avx512vbmi,avx512vbmi2,avx512vpopcntdq,bmi1,bmi2,lzcnt,popcnt"
)]
#[inline]
fn spread_widths(
    bytes: &[u8],
    masks: &[u64; MAX_BLOCKS],
    blocks: usize,
    widths: &mut [u64; MAX_BLOCKS],
) -> usize {
    let mut from = 0;
    let eights = masks.as_chunks::<8>().0.iter().zip(widths.chunks_mut(8));
    for (masks, widths) in eights.take(blocks.div_ceil(8)) {
        // SAFETY: reads the 64 bytes of the array.
        let masks = unsafe { _mm512_loadu_si512(masks.as_ptr().cast()) };
        let ones = _mm512_popcnt_epi64(masks);
        let counts = _mm512_srli_epi64::<3>(_mm512_add_epi64(ones, _mm512_set1_epi64(7)));
        from += spread(&bytes[from..], _mm512_cvtepi64_epi8(counts), widths);
    }
    from
}

/// [`Tile::place_payload`] for eight blocks at once.
#[target_feature(
    enable = "avx2,avx512f,avx512bw,avx512dq,avx512vl,avx512vbmi,avx512vbmi2,avx512vpopcntdq,bmi1,bmi2,lzcnt,popcnt"
)]
#[inline]
fn place_payload(tile: &mut Tile, at: usize, blocks: usize, length: usize) -> Option<()> {
    let zero = _mm512_setzero_si512();
    let each = |value: u64| _mm512_set1_epi64((value * EACH) as i64);
    let number = |value: i64| _mm512_set1_epi64(value);
    let mut wrong = zero;
    let mut start = number(at as i64);
    let whole = blocks.next_multiple_of(8).min(MAX_BLOCKS);
    tile.masks[blocks..whole].fill(0);
    tile.widths[blocks..whole].fill(0);
    for block in (0..whole).step_by(8) {
        let (masks, widths) = (&tile.masks[block..][..8], &tile.widths[block..][..8]);
        // SAFETY: each reads the 64 bytes of its slice.
        let (masks, widths) = unsafe {
            let masks = _mm512_loadu_si512(masks.as_ptr().cast());
            (masks, _mm512_loadu_si512(widths.as_ptr().cast()))
        };
        let first = _mm512_and_si512(widths, each(15));
        let second = _mm512_and_si512(_mm512_srli_epi64::<4>(widths), each(15));
        // Invalid: widths over 8 or over 7, and a 64th coefficient in addition to DC.
        let over = _mm512_and_si512(_mm512_add_epi8(first, each(7)), each(16));
        let over = _mm512_or_si512(over, _mm512_and_si512(widths, each(128)));
        let over = _mm512_or_si512(over, _mm512_and_si512(masks, number(i64::MIN)));
        wrong = _mm512_or_si512(wrong, over);
        // The arithmetic of `payload_bytes`.
        let sum = _mm512_sad_epu8(_mm512_add_epi8(first, second), zero);
        let before = _mm512_sub_epi64(_mm512_popcnt_epi64(masks), number(1));
        let last = _mm512_srlv_epi64(widths, _mm512_and_si512(before, number(0x38)));
        let used = _mm512_add_epi64(_mm512_and_si512(before, number(7)), number(1));
        let first_missing = _mm512_subs_epu16(number(4), used);
        let second_missing = _mm512_min_epu16(_mm512_sub_epi64(number(8), used), number(4));
        // One value in each half of 32 bits, for one sum of two products.
        let missing = _mm512_or_si512(first_missing, _mm512_slli_epi64::<16>(second_missing));
        let of_last = _mm512_or_si512(
            _mm512_and_si512(last, number(15)),
            _mm512_slli_epi64::<12>(_mm512_and_si512(last, number(0xf0))),
        );
        let missing = _mm512_madd_epi16(missing, of_last);
        let bits = _mm512_sub_epi64(_mm512_slli_epi64::<2>(sum), missing);
        let bits = _mm512_and_si512(bits, number(0xfff));
        let bytes = _mm512_srli_epi64::<3>(_mm512_add_epi64(bits, number(7)));
        // Prefix sums over the blocks.
        let mut end = _mm512_add_epi64(bytes, _mm512_alignr_epi64::<7>(bytes, zero));
        end = _mm512_add_epi64(end, _mm512_alignr_epi64::<6>(end, zero));
        end = _mm512_add_epi64(end, _mm512_alignr_epi64::<4>(end, zero));
        let starts = _mm512_add_epi64(_mm512_sub_epi64(end, bytes), start);
        let to = &mut tile.payload[block..][..8];
        // SAFETY: writes the 32 bytes of the slice.
        unsafe { _mm256_storeu_si256(to.as_mut_ptr().cast(), _mm512_cvtepi64_epi32(starts)) };
        start = _mm512_add_epi64(start, _mm512_permutexvar_epi64(number(7), end));
    }
    let end = _mm_cvtsi128_si64(_mm512_castsi512_si128(start)) as usize;
    (_mm512_test_epi64_mask(wrong, wrong) == 0 && end == length).then_some(())
}

/// [`tile::read_dc`](super::tile::read_dc).
#[target_feature(
    enable = "avx2,avx512f,avx512bw,avx512dq,avx512vl,avx512vbmi,avx512vbmi2,avx512vpopcntdq,bmi1,bmi2,lzcnt,popcnt"
)]
#[inline]
fn read_dc(bytes: &[u8; 64], blocks: usize, out: &mut [i16; WIDTH]) -> usize {
    let head = u16::from_le_bytes([bytes[0], bytes[1]]);
    let width = i32::from(head >> 12);
    let first = i32::from(head & 0xfff) - 2048;
    // Lane 0 holds the first value, each other lane a difference.
    let number = _mm512_setr_epi32(0, 0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14);
    let bit = _mm512_madd_epi16(number, _mm512_set1_epi32(width));
    let byte = _mm512_srli_epi32::<3>(bit);
    let of_lane = _mm512_set4_epi32(0x0c0c_0c0c, 0x0808_0808, 0x0404_0404, 0);
    let four_bytes = _mm512_add_epi32(
        _mm512_shuffle_epi8(byte, of_lane),
        _mm512_set1_epi32(0x0504_0302),
    );
    // SAFETY: reads 64 bytes.
    let all = unsafe { _mm512_loadu_si512(bytes.as_ptr().cast()) };
    let words = _mm512_permutexvar_epi8(four_bytes, all);
    let shift = _mm512_and_si512(bit, _mm512_set1_epi32(7));
    let codes = _mm512_and_si512(
        _mm512_srlv_epi32(words, shift),
        _mm512_set1_epi32((1 << width) - 1),
    );
    let zero = _mm512_setzero_si512();
    let sign = _mm512_sub_epi32(zero, _mm512_and_si512(codes, _mm512_set1_epi32(1)));
    let differences = _mm512_xor_si512(_mm512_srli_epi32::<1>(codes), sign);
    // Prefix sums.
    let mut sum = _mm512_mask_mov_epi32(differences, 1, _mm512_set1_epi32(first));
    sum = _mm512_add_epi32(sum, _mm512_alignr_epi32::<15>(sum, zero));
    sum = _mm512_add_epi32(sum, _mm512_alignr_epi32::<14>(sum, zero));
    sum = _mm512_add_epi32(sum, _mm512_alignr_epi32::<12>(sum, zero));
    sum = _mm512_add_epi32(sum, _mm512_alignr_epi32::<8>(sum, zero));
    // SAFETY: writes 16 values.
    unsafe { _mm256_storeu_si256(out.as_mut_ptr().cast(), _mm512_cvtepi32_epi16(sum)) };
    2 + ((blocks - 1) * width as usize).div_ceil(8)
}

/// Returns the AC coefficients of a block as bytes, row by row.
#[target_feature(
    enable = "avx2,avx512f,avx512bw,avx512dq,avx512vl,avx512vbmi,avx512vbmi2,avx512vpopcntdq,bmi1,bmi2,lzcnt,popcnt"
)]
#[inline]
fn block(payload: __m512i, widths: u64, mask: u64, constants: Constants) -> __m512i {
    const EACH: u64 = 0x0101_0101_0101_0101;
    let two = |low: u64, high: u64| _mm512_castsi128_si512(_mm_set_epi64x(high as i64, low as i64));
    let low = widths & (15 * EACH);
    let high = widths >> 4 & (15 * EACH);
    // The sum of the widths (stored in four bits each) before each group of eight is the group's
    // offset in half bytes, because four fields of `w` bits take `w` half bytes.
    let before = (low + high).wrapping_mul(EACH) << 8;
    let bytes = before >> 1 & (0x7f * EACH);
    // A group of eight may begin in the middle of a byte.
    let first = (before & EACH) << 2;
    let second = first.wrapping_add(low << 2);
    let width = _mm512_permutexvar_epi8(constants.four, two(low, high));
    let start = _mm512_permutexvar_epi8(constants.four, two(first, second));
    // Eight bytes for each group of eight fields.
    let from = _mm512_permutexvar_epi8(constants.eight, two(bytes, 0));
    let data = _mm512_permutexvar_epi8(_mm512_add_epi8(from, constants.place), payload);
    row_by_row(constants.values(data, start, width), mask, constants)
}

/// Reorders the values of a block's fields to its AC coefficients, row by row.
#[target_feature(enable = "avx2,avx512f,avx512bw,avx512vbmi,avx512vbmi2")]
#[inline]
fn row_by_row(values: __m512i, mask: u64, constants: Constants) -> __m512i {
    let zigzag = _mm512_maskz_expand_epi8(mask << 1, values);
    _mm512_permutexvar_epi8(constants.index, zigzag)
}

/// [`block`] for four blocks with at most 16 coefficients each.
#[target_feature(
    enable = "avx2,avx512f,avx512bw,avx512dq,avx512vl,avx512vbmi,avx512vbmi2,avx512vpopcntdq,bmi1,bmi2,lzcnt,popcnt"
)]
#[inline]
fn four_small(
    [a, b, c, d]: [__m128i; 4],
    widths: __m256i,
    masks: [u64; 4],
    constants: Constants,
) -> [__m512i; 4] {
    const SECOND_EIGHTS: u64 = 0xff00_ff00_ff00_ff00;
    const SECOND_FOURS: u64 = 0xf0f0_f0f0_f0f0_f0f0;
    let low = _mm512_inserti32x4::<1>(_mm512_castsi128_si512(a), b);
    let payload = _mm512_inserti32x4::<3>(_mm512_inserti32x4::<2>(low, c), d);
    let widths = _mm512_castsi256_si512(widths);
    let fifteen = _mm512_set1_epi8(15);
    let both = _mm512_permutexvar_epi8(constants.width_of_sixteen, widths);
    let width = _mm512_multishift_epi64_epi8(constants.half_of_sixteen, both);
    let width = _mm512_and_si512(width, fifteen);
    // The sum of the widths in each first group of eight: the offset of the second group in half bytes.
    let first = _mm512_shuffle_epi8(both, _mm512_setzero_si512());
    let sum = _mm512_add_epi8(
        _mm512_and_si512(first, fifteen),
        _mm512_and_si512(_mm512_srli_epi16::<4>(first), fifteen),
    );
    let before = _mm512_maskz_mov_epi8(SECOND_EIGHTS, sum);
    let bytes = _mm512_and_si512(_mm512_srli_epi16::<1>(before), fifteen);
    let one = _mm512_and_si512(before, _mm512_set1_epi8(1));
    // The second group of four in an eight begins after the first one.
    let of_first_four = _mm512_and_si512(both, fifteen);
    let start = _mm512_mask_add_epi8(one, SECOND_FOURS, one, of_first_four);
    let start = _mm512_slli_epi16::<2>(start);
    let data = _mm512_shuffle_epi8(payload, _mm512_add_epi8(bytes, constants.place));
    let values = constants.values(data, start, width);
    let quarters = [
        _mm512_castsi512_si128(values),
        _mm512_extracti32x4_epi32::<1>(values),
        _mm512_extracti32x4_epi32::<2>(values),
        _mm512_extracti32x4_epi32::<3>(values),
    ];
    let mut blocks = quarters.map(|quarter| _mm512_castsi128_si512(quarter));
    for (block, mask) in blocks.iter_mut().zip(masks) {
        *block = row_by_row(*block, mask, constants);
    }
    blocks
}

/// Returns the AC coefficients of four blocks as bytes, row by row. After the last block of a part, that block is repeated.
///
/// # Safety
/// The tile has been opened with this window, and has these blocks.
#[target_feature(
    enable = "avx2,avx512f,avx512bw,avx512dq,avx512vl,avx512vbmi,avx512vbmi2,avx512vpopcntdq,bmi1,bmi2,lzcnt,popcnt"
)]
#[inline]
unsafe fn four(
    tile: &Tile,
    window: &Window,
    (number, last): (usize, usize),
    constants: Constants,
) -> [__m512i; 4] {
    let numbers: [usize; 4] = std::array::from_fn(|i| (number + i).min(last));
    let fields = numbers.map(|number| {
        // SAFETY: in an opened tile, 64 bytes from here are in the window.
        unsafe { window.as_ptr().add(tile.payload[number] as usize) }
    });
    if let Some(widths) = tile.widths[number..].first_chunk::<4>() {
        // SAFETY: reads the 32 bytes of the array.
        let widths = unsafe { _mm256_loadu_si256(widths.as_ptr().cast()) };
        if _mm256_testz_si256(widths, _mm256_set1_epi64x(!0xffff)) != 0 {
            // SAFETY: see above.
            let fields = fields.map(|fields| unsafe { _mm_loadu_si128(fields.cast()) });
            let masks = numbers.map(|number| tile.masks[number]);
            return four_small(fields, widths, masks, constants);
        }
    }
    let mut blocks = [_mm512_setzero_si512(); 4];
    for ((block_of, number), fields) in blocks.iter_mut().zip(numbers).zip(fields) {
        // SAFETY: see above.
        let payload = unsafe { _mm512_loadu_si512(fields.cast()) };
        *block_of = block(payload, tile.widths[number], tile.masks[number], constants);
    }
    blocks
}

/// [`Tile::unpack`] for four blocks at once.
///
/// # Safety
/// The tile has been opened with this window and these parts, and for each of them, `out` has room
/// for its wanted blocks, rounded up to a multiple of four.
#[target_feature(
    enable = "avx2,avx512f,avx512bw,avx512dq,avx512vl,avx512vbmi,avx512vbmi2,avx512vpopcntdq,bmi1,bmi2,lzcnt,popcnt"
)]
pub(super) unsafe fn unpack(tile: &Tile, window: &Window, parts: &[Part], out: &mut [i16]) {
    let constants = Constants::load();
    let mut first = 0;
    for (part, dc) in parts.iter().zip(&tile.dc) {
        let mut to = part.at;
        for at in (part.from..part.to).step_by(4) {
            let numbers = (first + at, first + part.blocks - 1);
            // SAFETY: the tile has been opened with this window and has these blocks.
            let blocks = unsafe { four(tile, window, numbers, constants) };
            let dc = std::array::from_fn(|i| dc[(at + i) % WIDTH]);
            let out = &mut out[to..to + 2 * PAIR];
            for (row, values) in rows(blocks, dc).into_iter().enumerate() {
                let (left, right) = out.split_at_mut(PAIR);
                let (left, right) = (&mut left[16 * row..][..16], &mut right[16 * row..][..16]);
                // SAFETY: each writes 16 coefficients.
                unsafe {
                    let low = _mm512_castsi512_si256(values);
                    _mm256_storeu_si256(left.as_mut_ptr().cast(), low);
                    let high = _mm512_extracti64x4_epi64::<1>(values);
                    _mm256_storeu_si256(right.as_mut_ptr().cast(), high);
                }
            }
            to += 2 * PAIR;
        }
        first += part.blocks;
    }
}

/// Returns the rows of four blocks side by side, from their bytes and DC coefficients.
#[target_feature(
    enable = "avx2,avx512f,avx512bw,avx512dq,avx512vl,avx512vbmi,avx512vbmi2,avx512vpopcntdq,bmi1,bmi2,lzcnt,popcnt"
)]
#[inline]
fn rows([a, b, c, d]: [__m512i; 4], dc: [i16; 4]) -> [__m512i; 8] {
    // The even rows, and the odd rows, of two blocks in alternation.
    let (even_ab, odd_ab) = (_mm512_unpacklo_epi64(a, b), _mm512_unpackhi_epi64(a, b));
    let (even_cd, odd_cd) = (_mm512_unpacklo_epi64(c, d), _mm512_unpackhi_epi64(c, d));
    let upper = _mm512_setr_epi64(0, 1, 8, 9, 2, 3, 10, 11);
    let lower = _mm512_setr_epi64(4, 5, 12, 13, 6, 7, 14, 15);
    let rows_02 = _mm512_permutex2var_epi64(even_ab, upper, even_cd);
    let rows_13 = _mm512_permutex2var_epi64(odd_ab, upper, odd_cd);
    let rows_46 = _mm512_permutex2var_epi64(even_ab, lower, even_cd);
    let rows_57 = _mm512_permutex2var_epi64(odd_ab, lower, odd_cd);
    let low = |rows: __m512i| _mm512_cvtepi8_epi16(_mm512_castsi512_si256(rows));
    let high = |rows: __m512i| _mm512_cvtepi8_epi16(_mm512_extracti64x4_epi64::<1>(rows));
    let [dc_a, dc_b, dc_c, dc_d] = dc.map(|dc| i64::from(dc as u16));
    let dc = _mm512_setr_epi64(dc_a, 0, dc_b, 0, dc_c, 0, dc_d, 0);
    [
        _mm512_mask_mov_epi16(low(rows_02), 0x0101_0101, dc),
        low(rows_13),
        high(rows_02),
        high(rows_13),
        low(rows_46),
        low(rows_57),
        high(rows_46),
        high(rows_57),
    ]
}
