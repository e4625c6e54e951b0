//! Encodes the blocks of an image for tiles: bitmaps, widths and fields of their coefficients.

use super::control::{self, Kind};
use super::tile::{COEFFICIENTS, MAX_WIDTHS, PLACE};
use crate::baseline::entropy::{PAIR, SECOND, ZIGZAG};
use std::ops::Range;

/// The data of a block, without its fields.
#[derive(Debug, Clone, Copy)]
pub(super) struct EncodedBlock {
    pub(super) mask: u64,
    pub(super) widths: u64,
    pub(super) dc: i16,
    /// End of the block's fields in the payload of its part.
    pub(super) end: usize,
}

impl EncodedBlock {
    /// Returns the zigzag index of the last nonzero coefficient; 0 without nonzero AC coefficients.
    pub(super) fn last(&self) -> u32 {
        64 - self.mask.leading_zeros()
    }

    /// Returns the length of the block's bitmap in bytes.
    fn length(&self) -> u8 {
        self.last().div_ceil(8) as u8
    }

    /// Returns the block's control bytes of a kind, and their number.
    #[inline(always)]
    pub(super) fn bytes(&self, kind: Kind) -> ([u8; 8], usize) {
        match kind {
            Kind::Length => (u64::from(self.length()).to_le_bytes(), 1),
            Kind::Bitmap => (self.mask.to_le_bytes(), self.length().into()),
            Kind::Widths => {
                let count = self.mask.count_ones().div_ceil(8) as usize;
                (self.widths.to_le_bytes(), count)
            }
        }
    }
}

/// Appends the first `count` of eight items.
#[inline(always)]
pub(super) fn append<T: Copy>(out: &mut Vec<T>, eight: [T; 8], count: usize) {
    out.extend_from_slice(&eight);
    out.truncate(out.len() - 8 + count.min(8));
}

/// Appends the symbols of the control bytes of a kind: contexts and bytes.
pub(super) fn append_symbols(
    blocks: &[EncodedBlock],
    kind: Kind,
    is_luma: bool,
    out: &mut Vec<u16>,
) {
    let contexts = control::contexts(kind, is_luma).map(|context| context << 8);
    for block in blocks {
        let (bytes, count) = block.bytes(kind);
        let symbols = std::array::from_fn(|i| contexts[i] | u16::from(bytes[i]));
        append(out, symbols, count);
    }
}

/// A one in each of four lanes of 16 bits.
pub(super) const EACH: u64 = 0x0001_0001_0001_0001;

/// By row of a block and a byte with a bit for each coefficient of the row: the same bits in zigzag
/// order.
static ZIGZAG_BITS: [[u64; 256]; 8] = {
    let mut bits = [[0; 256]; 8];
    let mut k = 0;
    while k < 64 {
        let (row, column) = (ZIGZAG[k] / 8, ZIGZAG[k] % 8);
        let mut byte = 0;
        while byte < 256 {
            bits[row as usize][byte] |= ((byte as u64) >> column & 1) << k;
            byte += 1;
        }
        k += 1;
    }
    bits
};

/// Packs four numbers of 16 bits, the first one lowest.
#[inline(always)]
fn lanes(four: &[u16; 4]) -> u64 {
    let [a, b, c, d] = four.map(u64::from);
    a | b << 16 | c << 32 | d << 48
}

/// Returns the number of bits of a field that holds the largest of four magnitudes and a sign.
#[inline(always)]
fn width_of(magnitudes: u64) -> u32 {
    let all = magnitudes | magnitudes >> 32;
    33 - ((all | all >> 16) as u32 & 0xffff).leading_zeros()
}

/// Packs the lowest `width` bits of four lanes side by side.
#[inline(always)]
fn pack(lanes: u64, width: u32) -> u64 {
    let field = |lane: u32| (lanes >> (16 * lane) & ((1 << width) - 1)) << (lane * width);
    field(0) | field(1) | field(2) | field(3)
}

/// A coefficient that is too large for its field.
#[derive(Debug, Clone, Copy)]
pub(super) struct Correction {
    /// Index of its block in the part, or in the tile.
    pub(super) block: usize,
    pub(super) k: u8,
    pub(super) value: i16,
}

/// All blocks of the image in one row of blocks of each MCU.
#[derive(Debug, Default)]
pub(super) struct EncodedPart {
    pub(super) blocks: Vec<EncodedBlock>,
    pub(super) payload: Vec<u8>,
    corrections: Vec<Correction>,
    /// Index of the first correction that is not in a tile yet.
    next: usize,
}

impl EncodedPart {
    pub(super) fn clear(&mut self) {
        self.blocks.clear();
        self.payload.clear();
        self.corrections.clear();
        self.next = 0;
    }

    /// Adds a row of blocks, which are stored in pairs. Returns `false` if a coefficient is larger
    /// than the format allows, or pairs are missing. Portable.
    pub(super) fn add_row(&mut self, pairs: &[i16], blocks: usize) -> bool {
        let mut fits = true;
        for block in 0..blocks {
            let at = block / 2 * PAIR + block % 2 * SECOND;
            let block = pairs.get(at..).and_then(|rest| rest.first_chunk());
            fits &= block.is_some_and(|block| self.add_portable(block));
        }
        fits
    }

    /// The portable version of [`EncodedPart::add`].
    pub(super) fn add_portable(&mut self, block: &[i16; 128]) -> bool {
        self.add(block, pack)
    }

    /// Adds a block of a pair. Returns `false` if a coefficient is larger than the format allows.
    /// The argument `pack` is the function [`pack`] or an equivalent.
    #[inline(always)]
    pub(super) fn add(&mut self, block: &[i16; 128], pack: impl Fn(u64, u32) -> u64) -> bool {
        let mut mask = 0;
        let (rows, _) = block.as_chunks::<16>();
        for (row, bits) in rows.iter().zip(&ZIGZAG_BITS) {
            // The second half of a row belongs to the other block.
            let &[a, b, c, d, e, f, g, h, ..] = row;
            let ones = [a, b, c, d, e, f, g, h].map(|value| u8::from(value != 0));
            // The lowest bits of eight bytes become one byte.
            let byte = u64::from_le_bytes(ones).wrapping_mul(0x0102_0408_1020_4080) >> 56;
            mask |= bits[byte as usize];
        }
        let dc = block[0];
        mask >>= 1;
        let (mut values, mut count) = ([0i16; 64], 0);
        let mut left = mask;
        while left != 0 {
            let k = left.trailing_zeros() as usize + 1;
            left &= left - 1;
            values[count & 63] = block[usize::from(PLACE[k & 63]) & 127];
            count += 1;
        }
        let widths = self.fields(&values, count, mask, pack);
        self.blocks.push(EncodedBlock {
            mask,
            widths,
            dc,
            end: self.payload.len(),
        });
        let fits = values.iter().fold(true, |fits, &value| {
            fits & COEFFICIENTS.contains(&value.into())
        });
        fits && COEFFICIENTS.contains(&dc.into())
    }

    /// Appends the fields of a block with these values. Returns their widths.
    #[inline(always)]
    fn fields(
        &mut self,
        values: &[i16; 64],
        count: usize,
        mask: u64,
        pack: impl Fn(u64, u32) -> u64,
    ) -> u64 {
        /// Room for all fields of a block, and for storing eight bytes at each of them.
        const ROOM: usize = 72;
        // A field stores v + half - 1 for a positive value v, and v + half for a negative one.
        let magnitudes = values.map(|value| value.unsigned_abs().saturating_sub(1));
        let signs = values.map(|value| if value > 0 { u16::MAX } else { 0 });
        let (magnitudes, _) = magnitudes.as_chunks::<4>();
        let (signs, _) = signs.as_chunks::<4>();
        let mut bytes = [0; ROOM];
        let (mut widths, mut bits, mut pending, mut at) = (0, 0u64, 0, 0);
        for (number, (magnitudes, signs)) in magnitudes.iter().zip(signs).enumerate() {
            let first = 4 * number;
            if first >= count {
                break;
            }
            let (mut magnitudes, mut signs) = (lanes(magnitudes), lanes(signs));
            let mut width = width_of(magnitudes);
            if width >= MAX_WIDTHS[1] {
                let four = values[first..].first_chunk().copied().unwrap_or_default();
                let fit = self.fit(four, number, mask);
                magnitudes = lanes(&fit.map(|value| value.unsigned_abs().saturating_sub(1)));
                signs = lanes(&fit.map(|value| if value > 0 { u16::MAX } else { 0 }));
                width = width_of(magnitudes);
            }
            widths |= u64::from(width) << (4 * number);
            // In a field, a positive value is half the range plus the magnitude; a negative one is
            // half the range minus one, minus the magnitude.
            let half = (1 << (width - 1)) * EACH;
            let fields = magnitudes ^ (half - EACH) ^ (signs & (2 * half - EACH));
            // The last group may have fewer than four values.
            let length = (count - first).min(4) as u32 * width;
            bits |= (pack(fields, width) & ((1 << length) - 1)) << pending;
            pending += length;
            if let Some(to) = bytes[at..].first_chunk_mut::<8>() {
                *to = bits.to_le_bytes();
            }
            // At most 39 bits are pending.
            at += pending as usize / 8;
            bits >>= pending & !7;
            pending %= 8;
        }
        if pending > 0 {
            bytes[at] = bits as u8;
            at += 1;
        }
        self.payload.extend_from_slice(&bytes[..at]);
        widths
    }

    /// Returns the nearest values that fit into the fields of four coefficients, and adds corrections with the original values.
    #[cold]
    fn fit(&mut self, four: [i16; 4], number: usize, mask: u64) -> [i16; 4] {
        let most = MAX_WIDTHS[number % 2];
        // A field of 8 bits is read as a signed byte.
        let range = (-(1 << (most - 1)), (1 << (most - 1)) - i16::from(most == 8));
        let fit = four.map(|value| value.clamp(range.0, range.1));
        let mut left = mask;
        for _ in 0..4 * number {
            left &= left.wrapping_sub(1);
        }
        for (value, fit) in four.into_iter().zip(fit) {
            if value != fit {
                let (block, k) = (self.blocks.len(), left.trailing_zeros() as u8 + 1);
                self.corrections.push(Correction { block, k, value });
            }
            left &= left.wrapping_sub(1);
        }
        fit
    }

    /// Returns the blocks of a tile. The caller requests tiles in order.
    pub(super) fn tile(&mut self, blocks: Range<usize>) -> TilePart<'_> {
        let end = |block: usize| self.blocks[block].end;
        let from = blocks.start.checked_sub(1).map_or(0, end);
        let payload = from..blocks.end.checked_sub(1).map_or(0, end);
        let first = self.next;
        let rest = self.corrections[first..].iter();
        self.next += rest
            .take_while(|correction| correction.block < blocks.end)
            .count();
        TilePart {
            first: blocks.start,
            blocks: &self.blocks[blocks],
            payload: &self.payload[payload],
            corrections: &self.corrections[first..self.next],
        }
    }
}

/// The blocks of a part in a tile.
pub(super) struct TilePart<'a> {
    /// Index of the tile's first block in the part.
    pub(super) first: usize,
    pub(super) blocks: &'a [EncodedBlock],
    pub(super) payload: &'a [u8],
    pub(super) corrections: &'a [Correction],
}

impl TilePart<'_> {
    pub(super) const EMPTY: Self = Self {
        first: 0,
        blocks: &[],
        payload: &[],
        corrections: &[],
    };
}
