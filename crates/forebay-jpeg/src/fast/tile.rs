//! Tiles: the coefficients of a row of MCUs, 16 blocks of the first component wide.
//! docs/format/fast-images.md specifies their bytes.
//!
//! [`Tile::open`] reads everything before the payload of a tile. The positions of blocks in the
//! payload follow from bitmaps and widths, so unwanted blocks are never unpacked.
//!
//! All reads are within a [`Window`] from the start of a tile, and each tile has to end exactly at
//! the length in the table.

use crate::baseline::entropy::{PAIR, SECOND, ZIGZAG};

/// Maximum number of blocks in a part.
pub(super) const WIDTH: usize = 16;
/// Maximum number of parts in a tile: two rows of luma and two of chroma.
pub(super) const MAX_PARTS: usize = 4;
/// Maximum number of blocks in a tile.
pub(super) const MAX_BLOCKS: usize = MAX_PARTS * WIDTH;
/// Number of bytes that may be read from the start of a tile.
pub(super) const WINDOW: usize = 16 << 10;
/// Maximum length of a tile in bytes.
pub(super) const MAX_BYTES: usize = WINDOW - 1024;
/// Range of coefficients: the field of a correction has 12 bits.
pub(super) const COEFFICIENTS: std::ops::Range<i32> = -2048..2048;
/// Maximum field widths in bits, of the first and of the second four of eight coefficients.
pub(super) const MAX_WIDTHS: [u32; 2] = [8, 7];
/// Length of corrections in bytes from which on the length itself takes three bytes.
pub(super) const LONG: u8 = 255;

/// The bytes from the start of a tile.
pub(super) type Window = [u8; WINDOW];

/// Position in a pair of blocks, by zigzag index.
pub(super) static PLACE: [u8; 64] = {
    let mut place = [0; 64];
    let mut k = 0;
    while k < 64 {
        place[k] = ZIGZAG[k] / 8 * 2 * SECOND as u8 + ZIGZAG[k] % 8;
        k += 1;
    }
    place
};

/// A row of blocks of a component in a tile, and which of them are wanted.
#[derive(Debug, Clone, Copy, Default)]
pub(super) struct Part {
    /// Number of blocks, 1 to [`WIDTH`].
    pub(super) blocks: usize,
    /// The first wanted block, and the index after the last one.
    pub(super) from: usize,
    pub(super) to: usize,
    /// Whether the blocks are those of the first component.
    pub(super) is_luma: bool,
    /// Offset of the first wanted block in the coefficients, which hold pairs of blocks.
    pub(super) at: usize,
}

impl Part {
    /// Returns the offset of the coefficients of a wanted block.
    pub(super) fn block_at(&self, block: usize) -> usize {
        let block = block - self.from;
        self.at + block / 2 * PAIR + block % 2 * SECOND
    }
}

/// A one in each of eight bytes.
pub(super) const EACH: u64 = 0x0101_0101_0101_0101;

/// Bitmaps and widths, by block.
pub(super) type Control<'a> = [&'a mut [u64; MAX_BLOCKS]; 2];

/// An opened tile, whose blocks can be unpacked.
#[derive(Debug)]
pub(super) struct Tile {
    /// Number of blocks.
    pub(super) blocks: usize,
    /// By block: bitmap of the nonzero AC coefficients (63 bits), in zigzag order.
    pub(super) masks: [u64; MAX_BLOCKS],
    /// By block: a byte of field widths for each eight coefficients; the width of the first four is
    /// in the low half.
    pub(super) widths: [u64; MAX_BLOCKS],
    /// By block: offset of its fields. The window contains at least 64 bytes from there.
    pub(super) payload: [u32; MAX_BLOCKS],
    /// DC coefficients by part.
    pub(super) dc: [[i16; WIDTH]; MAX_PARTS],
    corrections: (usize, usize),
}

impl Default for Tile {
    fn default() -> Self {
        Self {
            blocks: 0,
            masks: [0; MAX_BLOCKS],
            widths: [0; MAX_BLOCKS],
            payload: [0; MAX_BLOCKS],
            dc: [[0; WIDTH]; MAX_PARTS],
            corrections: (0, 0),
        }
    }
}

impl Tile {
    /// Reads everything before the payload of a tile of `length` bytes; `None` if the tile is damaged. `read_dc` and
    /// `place_payload` are the functions of these names, or equivalents. `read_control` reads the control bytes, given their
    /// offset and the numbers of luma blocks and of all blocks; it returns the offset after them.
    #[inline(always)]
    pub(super) fn open(
        &mut self,
        window: &Window,
        length: usize,
        parts: &[Part],
        read_dc: impl Fn(&[u8; 64], usize, &mut [i16; WIDTH]) -> usize,
        read_control: impl FnOnce(usize, (usize, usize), Control<'_>) -> Option<usize>,
        place_payload: impl FnOnce(&mut Self, usize, usize, usize) -> Option<()>,
    ) -> Option<()> {
        let (at, luma, blocks) = self.begin(window, length, parts, read_dc)?;
        let at = read_control(at, (luma, blocks), [&mut self.masks, &mut self.widths])?;
        place_payload(self, at, blocks, length)?;
        self.blocks = blocks;
        Some(())
    }

    /// Reads everything before the control bytes. Returns their offset, the number of luma blocks,
    /// and the number of all blocks.
    #[inline(always)]
    fn begin(
        &mut self,
        window: &Window,
        length: usize,
        parts: &[Part],
        read_dc: impl Fn(&[u8; 64], usize, &mut [i16; WIDTH]) -> usize,
    ) -> Option<(usize, usize, usize)> {
        self.blocks = 0;
        if length > MAX_BYTES || parts.len() > MAX_PARTS {
            return None;
        }
        let mut at = match window[0] {
            LONG => {
                let count = u16::from_le_bytes([window[1], window[2]]);
                self.corrections = (3, usize::from(count));
                3 + usize::from(count)
            }
            count => {
                self.corrections = (1, usize::from(count));
                1 + usize::from(count)
            }
        };
        let mut blocks = 0;
        let mut luma = 0;
        for (part, dc) in parts.iter().zip(&mut self.dc) {
            let bytes = window.get(at..)?.first_chunk()?;
            if !(1..=WIDTH).contains(&part.blocks) {
                return None;
            }
            at += read_dc(bytes, part.blocks, dc);
            blocks += part.blocks;
            luma += if part.is_luma { part.blocks } else { 0 };
        }
        Some((at, luma, blocks.min(MAX_BLOCKS)))
    }

    /// Computes the offset of each block's fields. Returns `None` if a width is invalid, or the
    /// last field does not end at the end of the tile.
    #[inline(always)]
    pub(super) fn place_payload(
        &mut self,
        mut at: usize,
        blocks: usize,
        length: usize,
    ) -> Option<()> {
        let mut lengths = [0u16; MAX_BLOCKS];
        let mut wrong = 0;
        // Written without branches and for whole vectors.
        let whole = blocks.next_multiple_of(8).min(MAX_BLOCKS);
        self.masks[blocks..whole].fill(0);
        self.widths[blocks..whole].fill(0);
        let all = self.masks[..whole].iter().zip(&self.widths[..whole]);
        for (length, (&mask, &widths)) in lengths[..whole].iter_mut().zip(all) {
            // Invalid: widths over 8 or over 7, and a 64th coefficient in addition to DC.
            let first = widths & (15 * EACH);
            wrong |= ((first + 7 * EACH) & (16 * EACH)) | (widths & (128 * EACH)) | mask >> 63;
            *length = payload_bytes(mask, widths) as u16;
        }
        for (start, &length) in self.payload[..blocks].iter_mut().zip(&lengths) {
            *start = at as u32;
            at += usize::from(length);
        }
        (wrong == 0 && at == length).then_some(())
    }

    /// Unpacks the wanted blocks into pairs. Portable.
    pub(super) fn unpack(&self, window: &Window, parts: &[Part], out: &mut [i16]) {
        let mut first = 0;
        for (part, dc) in parts.iter().zip(&self.dc) {
            for (block, &dc) in dc.iter().enumerate().take(part.to).skip(part.from) {
                let out = &mut out[part.block_at(block)..][..PAIR - SECOND];
                for row in out.chunks_mut(2 * SECOND).take(8) {
                    row[..8].fill(0);
                }
                out[0] = dc;
                self.block(window, first + block, |place, value| out[place] = value);
            }
            first += part.blocks;
        }
    }

    /// Calls `put(position in a pair, value)` for the AC coefficients of a block.
    fn block(&self, window: &Window, block: usize, mut put: impl FnMut(usize, i16)) {
        let (mut mask, mut widths) = (self.masks[block], self.widths[block]);
        let mut bit = 8 * self.payload[block] as usize;
        while mask != 0 {
            let width = (widths & 15) as u32;
            widths >>= 4;
            let fields = word(window, bit / 8) >> (bit % 8);
            let half = 1i32 << width >> 1;
            for i in 0..4 {
                if mask == 0 {
                    break;
                }
                let k = mask.trailing_zeros() as usize + 1;
                mask &= mask - 1;
                let field = (fields >> (i * width)) as i32 & ((1 << width) - 1);
                let value = field - half + i32::from(field >= half);
                // The value becomes a signed byte, as in the other implementations; an encoder never writes 128.
                put(usize::from(PLACE[k & 63]), i16::from(value as i8));
            }
            bit += 4 * width as usize;
        }
    }

    /// Sets the wanted coefficients that are too large for their fields. Returns `None` if a
    /// correction is invalid.
    #[inline]
    pub(super) fn correct(&self, window: &Window, parts: &[Part], out: &mut [i16]) -> Option<()> {
        let (at, count) = self.corrections;
        let mut rest = window.get(at..at + count)?;
        let mut block = 0;
        while let Some((&short, after)) = rest.split_first_chunk::<2>() {
            let short = u16::from_le_bytes(short);
            rest = after;
            let (k, value) = if short & 15 != 0 {
                block += usize::from(short >> 4 & 3);
                (usize::from(short & 15), (short >> 6) as i16 - 512)
            } else {
                let (&[a, b, c], after) = rest.split_first_chunk::<3>()?;
                rest = after;
                let long = u32::from_le_bytes([a, b, c, 0]);
                block = (long & 63) as usize;
                ((long >> 6 & 63) as usize, (long >> 12) as i16 - 2048)
            };
            // A correction is only valid for a coefficient with a field.
            if block >= self.blocks || k == 0 || self.masks[block] >> (k - 1) & 1 == 0 {
                return None;
            }
            let mut number = block;
            for part in parts {
                if number < part.blocks {
                    if (part.from..part.to).contains(&number) {
                        out[part.block_at(number) + usize::from(PLACE[k])] = value;
                    }
                    break;
                }
                number -= part.blocks;
            }
        }
        rest.is_empty().then_some(())
    }
}

/// Returns the length of the fields of a block, in bytes.
#[inline(always)]
pub(super) fn payload_bytes(mask: u64, widths: u64) -> u64 {
    let coefficients = u64::from(mask.count_ones());
    // The sum of all widths, over pairs, fours and eights of bytes.
    let sum = (widths & (15 * EACH)) + (widths >> 4 & (15 * EACH));
    let sum = (sum & 0x00ff_00ff_00ff_00ff) + (sum >> 8 & 0x00ff_00ff_00ff_00ff);
    let sum = (sum & 0x0000_ffff_0000_ffff) + (sum >> 16 & 0x0000_ffff_0000_ffff);
    let sum = (sum + (sum >> 32)) & 0xffff;
    // The last group of eight may have fewer coefficients.
    let before = coefficients.wrapping_sub(1);
    let last = widths >> (before & 0x38);
    let used = (before & 7) + 1;
    let missing = 4u64.saturating_sub(used) * (last & 15) + (8 - used).min(4) * (last >> 4 & 15);
    ((4 * sum).wrapping_sub(missing) & 0xfff).div_ceil(8)
}

/// Reads the DC coefficients of a part. Returns the number of bytes. Coefficients after the last
/// block are undefined.
#[inline(always)]
pub(super) fn read_dc(bytes: &[u8; 64], blocks: usize, out: &mut [i16; WIDTH]) -> usize {
    let head = u16::from_le_bytes([bytes[0], bytes[1]]);
    let width = usize::from(head >> 12);
    let mut dc = i32::from(head & 0xfff) - 2048;
    let mut bit = 16;
    for out in out {
        *out = dc as i16;
        // At most 15 differences of 15 bits follow the first two bytes.
        let at = bit / 8 % 32;
        let four = bytes[at..at + 4].first_chunk();
        let word = u32::from_le_bytes(*four.expect("a slice of 4 bytes"));
        let code = word >> (bit % 8) & ((1 << width) - 1);
        dc += (code >> 1) as i32 ^ -((code & 1) as i32);
        bit += width;
    }
    2 + ((blocks - 1) * width).div_ceil(8)
}

/// Returns the eight bytes at `at` as an integer.
///
/// # Panics
/// If the bytes are not in the window.
#[inline(always)]
pub(super) fn word(window: &[u8], at: usize) -> u64 {
    let bytes = window[at..at + 8].first_chunk();
    u64::from_le_bytes(*bytes.expect("a slice of 8 bytes"))
}
