//! From a JPEG to a fast image.

use super::control::{self, CONTEXTS, Codes, SETS, Writer};
use super::file::{File, MAX_JPEG, TileLength, tile_mcus};
use super::read::Reader;
use super::restore::restore;
use super::tile::{COEFFICIENTS, LONG, MAX_BYTES, MAX_PARTS, MAX_WIDTHS, PLACE};
use crate::format::jpeg::baseline::Baseline;
use crate::format::jpeg::baseline::blocks::{Frame, READ_BATCH};
use crate::format::jpeg::baseline::entropy::{PAIR, SECOND};
use crate::format::{Format, probe};
use crate::limits::Limits;
use std::ops::Range;

/// How a fast image stores its coefficients.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum FastCoding {
    /// Bitmaps and widths in Huffman codes: about 5 % more bytes than the JPEG.
    Coded,
    /// Without any codes: about a fifth more bytes than the JPEG, and the fastest to decode.
    Raw,
}

impl FastCoding {
    /// Largest acceptable size, as a fraction of the JPEG's.
    const fn limit(self) -> (usize, usize) {
        match self {
            Self::Coded => (5, 4),
            Self::Raw => (3, 2),
        }
    }
}

/// Encodes JPEGs as fast images. Reuses its memory from image to image.
#[derive(Debug, Default)]
pub struct FastEncoder {
    baseline: Baseline,
    reader: Reader,
    parts: [EncodedPart; MAX_PARTS],
    writer: Writer,
    tiles: Vec<u8>,
    lengths: Vec<TileLength>,
    restored: Vec<u8>,
}

impl FastEncoder {
    /// Encodes a baseline JPEG as a fast image with the same pixels, from which
    /// [`restore_fast`](crate::restore_fast) restores its bytes; this is verified.
    ///
    /// `None` for every other file, if the bytes cannot be restored, and if the fast image would be
    /// larger by more than a quarter (coded) or a half (raw); such images are best left unchanged.
    pub fn encode(&mut self, jpeg: &[u8], coding: FastCoding, limits: &Limits) -> Option<Vec<u8>> {
        let header = probe(jpeg, limits).ok()?;
        if header.format != Format::Jpeg || header.progressive || jpeg.len() > MAX_JPEG {
            return None;
        }
        let fast = self.encode_unchecked(jpeg, coding)?;
        let (most, of) = coding.limit();
        if fast.len() * of > jpeg.len() * most {
            return None;
        }
        let (baseline, reader) = (&mut self.baseline, &mut self.reader);
        restore(&fast, baseline, reader, &mut self.restored).ok()?;
        (self.restored == jpeg).then_some(fast)
    }

    /// As [`FastEncoder::encode`], of any size, and not verified.
    pub(super) fn encode_unchecked(&mut self, jpeg: &[u8], coding: FastCoding) -> Option<Vec<u8>> {
        self.parts.iter_mut().for_each(EncodedPart::clear);
        let parts = &mut self.parts;
        let mut fits = true;
        let frame = self
            .baseline
            .read_blocks(jpeg, |frame, row, columns, coefficients| {
                let rows = frame.block_rows(READ_BATCH);
                for (part, (component, at)) in parts.iter_mut().zip(rows) {
                    let (h, _) = frame.factors[component];
                    let first = (row * frame.mcus.0 + columns.start) * h;
                    for block in 0..columns.len() * h {
                        let at = at + block / 2 * PAIR + block % 2 * SECOND;
                        let block = coefficients[at..].first_chunk::<128>();
                        fits &= block.is_some_and(|block| part.add(block));
                    }
                    debug_assert_eq!(part.blocks.len(), first + columns.len() * h);
                }
            })
            .ok()?;
        if !fits {
            return None;
        }
        let set = match coding {
            FastCoding::Coded => Some(self.best_set(&frame)),
            FastCoding::Raw => None,
        };
        self.write_tiles(&frame, set.map(control::codes))?;
        let end = end_of_scan(jpeg, frame.scan)?;
        let file = File {
            set,
            jpeg: (jpeg.len(), crc32c::crc32c(jpeg)),
            head: &jpeg[..frame.scan],
            tail: &jpeg[end..],
            lengths: &self.lengths,
            tiles: &self.tiles,
        };
        let mut out = Vec::new();
        file.write(&mut out)?;
        Some(out)
    }

    /// The set of tables with the shortest codes for this image; the first one of several.
    fn best_set(&self, frame: &Frame) -> usize {
        let mut counts = Box::new([[0u32; 256]; CONTEXTS]);
        let rows = frame.block_rows(READ_BATCH);
        for (part, (component, _)) in self.parts.iter().zip(rows) {
            let is_luma = component == 0;
            for block in &part.blocks {
                for kind in Kind::ALL {
                    block.bytes(kind, is_luma, |context, byte| {
                        counts[context][usize::from(byte)] += 1;
                    });
                }
            }
        }
        let cost = |set: &usize| -> u64 {
            let counts = counts.as_flattened().iter();
            let codes = control::codes(*set).as_flattened();
            let bits = counts
                .zip(codes)
                .map(|(n, (_, length))| n * u32::from(*length));
            bits.map(u64::from).sum()
        };
        (0..SETS).min_by_key(cost).unwrap_or_default()
    }

    fn write_tiles(&mut self, frame: &Frame, codes: Option<&Codes>) -> Option<()> {
        self.tiles.clear();
        self.lengths.clear();
        let batch = tile_mcus(frame.factors[0].0);
        let rows: Vec<usize> = frame
            .block_rows(batch)
            .map(|(component, _)| component)
            .collect();
        for row in 0..frame.mcus.1 {
            for first in (0..frame.mcus.0).step_by(batch) {
                let columns = first..(first + batch).min(frame.mcus.0);
                let start = self.tiles.len();
                let mut tile = [const { TilePart::EMPTY }; MAX_PARTS];
                for ((part, to), &component) in self.parts.iter_mut().zip(&mut tile).zip(&rows) {
                    let (h, _) = frame.factors[component];
                    let at = |column: usize| (row * frame.mcus.0 + column) * h;
                    *to = part.tile(at(columns.start)..at(columns.end), component == 0);
                }
                write_tile(
                    &tile[..rows.len()],
                    codes,
                    &mut self.writer,
                    &mut self.tiles,
                )?;
                let length = self.tiles.len() - start;
                if length > MAX_BYTES {
                    return None;
                }
                self.lengths.push((length as u16).to_le_bytes());
            }
        }
        Some(())
    }
}

/// The kinds of control bytes, in their order.
#[derive(Debug, Clone, Copy)]
enum Kind {
    Length,
    Bitmap,
    Widths,
}

impl Kind {
    const ALL: [Self; 3] = [Self::Length, Self::Bitmap, Self::Widths];
}

/// A block, except for its fields.
#[derive(Debug, Clone, Copy)]
struct EncodedBlock {
    mask: u64,
    widths: u64,
    dc: i16,
    /// End of its fields in the payload of its part.
    end: usize,
}

impl EncodedBlock {
    /// Length of its bitmap in bytes.
    fn length(&self) -> u8 {
        (64 - self.mask.leading_zeros()).div_ceil(8) as u8
    }

    /// Calls `put(context, byte)` for its control bytes of a kind.
    #[inline]
    fn bytes(&self, kind: Kind, is_luma: bool, mut put: impl FnMut(usize, u8)) {
        match kind {
            Kind::Length => put(control::length_context(is_luma), self.length()),
            Kind::Bitmap => {
                let bytes = self.mask.to_le_bytes();
                for (place, &byte) in bytes[..self.length().into()].iter().enumerate() {
                    put(control::bitmap_context(is_luma, place), byte);
                }
            }
            Kind::Widths => {
                let bytes = self.widths.to_le_bytes();
                let count = self.mask.count_ones().div_ceil(8) as usize;
                for (place, &byte) in bytes[..count].iter().enumerate() {
                    put(control::width_context(is_luma, place), byte);
                }
            }
        }
    }
}

/// A coefficient that is too large for its field.
#[derive(Debug, Clone, Copy)]
struct Correction {
    /// Number of its block in the part, or in the tile.
    block: usize,
    k: u8,
    value: i16,
}

/// A row of blocks of each MCU: all blocks of the image in such rows.
#[derive(Debug, Default)]
struct EncodedPart {
    blocks: Vec<EncodedBlock>,
    payload: Vec<u8>,
    corrections: Vec<Correction>,
    /// The first correction that no tile has yet.
    next: usize,
}

impl EncodedPart {
    fn clear(&mut self) {
        self.blocks.clear();
        self.payload.clear();
        self.corrections.clear();
        self.next = 0;
    }

    /// Adds a block of a pair; `false` if a coefficient is larger than the format allows.
    fn add(&mut self, block: &[i16; 128]) -> bool {
        let mut zigzag = [0i16; 64];
        for (value, &place) in zigzag.iter_mut().zip(&PLACE) {
            *value = block[usize::from(place) & 127];
        }
        let mut mask = 0;
        let (eights, _) = zigzag.as_chunks::<8>();
        for (i, eight) in eights.iter().enumerate() {
            // The lowest bits of eight bytes become one byte.
            let ones = u64::from_le_bytes(eight.map(|value| u8::from(value != 0)));
            mask |= (ones.wrapping_mul(0x0102_0408_1020_4080) >> 56) << (8 * i);
        }
        let dc = zigzag[0];
        mask >>= 1;
        let widths = self.fields(&zigzag, mask);
        self.blocks.push(EncodedBlock {
            mask,
            widths,
            dc,
            end: self.payload.len(),
        });
        zigzag
            .iter()
            .all(|&value| COEFFICIENTS.contains(&value.into()))
    }

    /// Appends the fields of a block; returns their widths.
    fn fields(&mut self, zigzag: &[i16; 64], mask: u64) -> u64 {
        /// Room for all fields of a block, and for writing eight bytes at each of them.
        const ROOM: usize = 72;
        let (mut places, mut values) = ([0u8; 64], [0i16; 64]);
        let (mut left, mut count) = (mask, 0);
        while left != 0 {
            let k = left.trailing_zeros() as usize + 1;
            left &= left - 1;
            places[count & 63] = k as u8;
            values[count & 63] = zigzag[k & 63];
            count += 1;
        }
        let mut at = self.payload.len();
        self.payload.resize(at + ROOM, 0);
        let (mut widths, mut bits, mut pending) = (0, 0u64, 0);
        let fours = values.as_chunks::<4>().0.iter().take(count.div_ceil(4));
        for (number, four) in fours.enumerate() {
            let most = MAX_WIDTHS[number % 2];
            // Of 8 bits, a signed byte is read.
            let range = (-(1 << (most - 1)), (1 << (most - 1)) - i16::from(most == 8));
            let fit = four.map(|value| value.clamp(range.0, range.1));
            if fit != *four {
                let places = &places[4 * number..];
                for ((&k, &value), fit) in places.iter().zip(four).zip(fit) {
                    if value != fit {
                        let block = self.blocks.len();
                        self.corrections.push(Correction { block, k, value });
                    }
                }
            }
            let magnitudes = fit.map(|value| u32::from(value.unsigned_abs().saturating_sub(1)));
            let width = 33
                - magnitudes
                    .iter()
                    .fold(0, |all, one| all | one)
                    .leading_zeros();
            widths |= u64::from(width) << (4 * number);
            let half = 1 << (width - 1);
            let mut fields = 0;
            for (i, &value) in (0u32..).zip(&fit) {
                let field = i32::from(value) + half - i32::from(value > 0);
                fields |= (field as u64) << (i * width);
            }
            // The last four may be fewer.
            let length = (count - 4 * number).min(4) as u32 * width;
            bits |= (fields & ((1 << length) - 1)) << pending;
            pending += length;
            self.payload[at..at + 8].copy_from_slice(&bits.to_le_bytes());
            // At most 39 bits are pending.
            at += pending as usize / 8;
            bits >>= pending & !7;
            pending %= 8;
        }
        if pending > 0 {
            self.payload[at] = bits as u8;
            at += 1;
        }
        self.payload.truncate(at);
        widths
    }

    /// The blocks of a tile. Tiles are taken in their order.
    fn tile(&mut self, blocks: Range<usize>, is_luma: bool) -> TilePart<'_> {
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
            is_luma,
            blocks: &self.blocks[blocks],
            payload: &self.payload[payload],
            corrections: &self.corrections[first..self.next],
        }
    }
}

/// The blocks of a part in a tile.
struct TilePart<'a> {
    /// Number of its first block in the part.
    first: usize,
    is_luma: bool,
    blocks: &'a [EncodedBlock],
    payload: &'a [u8],
    corrections: &'a [Correction],
}

impl TilePart<'_> {
    const EMPTY: Self = Self {
        first: 0,
        is_luma: false,
        blocks: &[],
        payload: &[],
        corrections: &[],
    };
}

/// Appends a tile. `None` if a DC coefficient does not fit.
fn write_tile(
    parts: &[TilePart<'_>],
    codes: Option<&Codes>,
    writer: &mut Writer,
    out: &mut Vec<u8>,
) -> Option<()> {
    write_corrections(parts, out)?;
    for part in parts {
        write_dc(part.blocks, out)?;
    }
    let all = || {
        let blocks = |part: &'_ TilePart<'_>| part.is_luma;
        parts.iter().flat_map(move |part| {
            let is_luma = blocks(part);
            part.blocks.iter().map(move |block| (block, is_luma))
        })
    };
    match codes {
        Some(codes) => {
            for kind in Kind::ALL {
                writer.start_kind();
                for (block, is_luma) in all() {
                    block.bytes(kind, is_luma, |context, byte| {
                        writer.put(codes[context][usize::from(byte)]);
                    });
                }
            }
            writer.finish(out);
        }
        None => {
            let start = out.len();
            for (i, (block, _)) in all().enumerate() {
                match i % 2 {
                    0 => out.push(block.length()),
                    _ => out[start + i / 2] |= block.length() << 4,
                }
            }
            for kind in [Kind::Bitmap, Kind::Widths] {
                for (block, is_luma) in all() {
                    block.bytes(kind, is_luma, |_, byte| out.push(byte));
                }
            }
        }
    }
    for part in parts {
        out.extend_from_slice(part.payload);
    }
    Some(())
}

/// Appends corrections in the order of their blocks, after their length in bytes.
fn write_corrections(parts: &[TilePart<'_>], out: &mut Vec<u8>) -> Option<()> {
    let start = out.len();
    let mut before = 0;
    let mut last = 0;
    out.push(0);
    for part in parts {
        for correction in part.corrections {
            let block = before + correction.block - part.first;
            let (k, value) = (u16::from(correction.k), i32::from(correction.value));
            let step = block - last;
            last = block;
            if k < 16 && step < 4 && (-512..512).contains(&value) {
                let short = k | (step as u16) << 4 | ((value + 512) as u16) << 6;
                out.extend_from_slice(&short.to_le_bytes());
            } else {
                let long = block as u32 | u32::from(k) << 6 | ((value + 2048) as u32) << 12;
                out.extend_from_slice(&[0, 0]);
                out.extend_from_slice(&long.to_le_bytes()[..3]);
            }
        }
        before += part.blocks.len();
    }
    let length = out.len() - start - 1;
    if length < LONG.into() {
        out[start] = length as u8;
    } else {
        out[start] = LONG;
        let length = u16::try_from(length).ok()?.to_le_bytes();
        out.splice(start + 1..start + 1, length);
    }
    Some(())
}

/// Appends the DC coefficients of a part.
fn write_dc(blocks: &[EncodedBlock], out: &mut Vec<u8>) -> Option<()> {
    let first = i32::from(blocks.first()?.dc);
    let codes = blocks.windows(2).map(|two| {
        let difference = i32::from(two[1].dc) - i32::from(two[0].dc);
        (difference << 1 ^ difference >> 31) as u32
    });
    let all = codes.clone().fold(0, |all, code| all | code);
    let width = 32 - all.leading_zeros();
    if width > 15 || !COEFFICIENTS.contains(&first) {
        return None;
    }
    let head = (width as u16) << 12 | (first + 2048) as u16;
    out.extend_from_slice(&head.to_le_bytes());
    let (mut bits, mut count) = (0u64, 0);
    for code in codes {
        bits |= u64::from(code) << count;
        count += width;
        while count >= 8 {
            out.push(bits as u8);
            bits >>= 8;
            count -= 8;
        }
    }
    if count > 0 {
        out.push(bits as u8);
    }
    Some(())
}

/// Offset of the marker after the scan that begins at `at`; restart markers belong to the scan.
fn end_of_scan(bytes: &[u8], mut at: usize) -> Option<usize> {
    loop {
        at += memchr::memchr(0xff, bytes.get(at..)?)?;
        match bytes.get(at + 1)? {
            0 | 0xd0..=0xd7 => at += 2,
            _ => return Some(at),
        }
    }
}
