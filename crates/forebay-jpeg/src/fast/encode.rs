//! Encodes a JPEG as a fast image.

use super::control::{self, CONTEXTS, Codes, Kind, SETS, Writer};
use super::file::{File, HEADER, MAX_JPEG, TileLength, tile_mcus};
use super::part::{EncodedBlock, EncodedPart, TilePart, append, append_symbols};
use super::tile::{COEFFICIENTS, LONG, MAX_BYTES, MAX_PARTS};
use super::verify::{Verifier, is_plain};
use crate::baseline::blocks::{Frame, READ_BATCH, ScanEnd};
use crate::header::JpegHeader;
use crate::limits::Limits;
use std::ops::Range;

/// How a fast image stores its coefficients.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum FastCoding {
    /// Bitmaps and widths in Huffman codes: about 5 % more bytes than the JPEG.
    Coded,
    /// No entropy codes: about a fifth more bytes than the JPEG, and the fastest to decode.
    Raw,
}

impl FastCoding {
    /// Returns the largest acceptable size, as a fraction of the JPEG's size.
    const fn limit(self) -> (usize, usize) {
        match self {
            Self::Coded => (5, 4),
            Self::Raw => (3, 2),
        }
    }
}

/// Maximum number of coefficients for which an encoder keeps memory from image to image.
const KEPT: usize = 8 << 20;

/// Encodes JPEGs as fast images. Reuses its memory from image to image.
///
/// ```
/// use forebay_jpeg::{FastCoding, FastEncoder, JpegDecoder, Limits, restore_fast};
/// # use libjpeg_turbo_rs::{Encoder, PixelFormat};
/// # let pixels: Vec<u8> = (0..96 * 50 * 3).map(|n| (n * n / 7 % 251) as u8).collect();
/// # let jpeg = Encoder::new(&pixels, 96, 50, PixelFormat::Rgb).encode().unwrap();
///
/// let limits = Limits::default();
/// let fast = FastEncoder::default().encode(&jpeg, FastCoding::Coded, &limits);
/// let fast = fast.expect("an ordinary JPEG");
///
/// let mut decoder = JpegDecoder::new(limits);
/// assert_eq!(decoder.decode(&fast)?, decoder.decode(&jpeg)?);
/// assert_eq!(restore_fast(&fast, &limits)?, jpeg);
/// # Ok::<(), forebay_jpeg::Error>(())
/// ```
#[derive(Debug, Default)]
pub struct FastEncoder {
    /// Also has the decoder and the instructions for encoding.
    pub(super) verifier: Verifier,
    /// The coefficients of the JPEG.
    pub(super) coefficients: Vec<i16>,
    parts: [EncodedPart; MAX_PARTS],
    symbols: Symbols,
    writer: Writer,
    tiles: Vec<u8>,
    lengths: Vec<TileLength>,
}

/// The control bytes of an image with their contexts.
#[derive(Debug, Default)]
struct Symbols {
    all: Vec<u16>,
    /// The end of each tile's symbols in `all`, by kind.
    ends: Vec<[usize; 3]>,
}

impl Symbols {
    /// Returns the symbols of a tile, by kind.
    fn of_tile(&self, tile: usize) -> Option<[&[u16]; 3]> {
        let [a, b, c] = *self.ends.get(tile)?;
        let start = match tile.checked_sub(1) {
            Some(before) => self.ends.get(before)?[2],
            None => 0,
        };
        Some([
            self.all.get(start..a)?,
            self.all.get(a..b)?,
            self.all.get(b..c)?,
        ])
    }
}

/// A fast image, with the data of its JPEG that are used to verify it.
struct Encoded {
    fast: Vec<u8>,
    frame: Frame,
    end: ScanEnd,
}

impl FastEncoder {
    /// Encodes a baseline JPEG as a fast image with the same pixels, from which
    /// [`restore_fast`](crate::restore_fast) restores its bytes; this is verified.
    ///
    /// Returns `None` for every other file, if the bytes cannot be restored, and if the fast image would be larger
    /// than the JPEG by more than a quarter (coded) or a half (raw); leave such images unchanged.
    pub fn encode(&mut self, jpeg: &[u8], coding: FastCoding, limits: &Limits) -> Option<Vec<u8>> {
        let header = JpegHeader::of_jpeg(jpeg).ok()?;
        header.check(limits).ok()?;
        if header.progressive || jpeg.len() > MAX_JPEG {
            return None;
        }
        let encoded = self.encode_unchecked(jpeg, coding);
        let verified = encoded.filter(|encoded| {
            let (most, of) = coding.limit();
            encoded.fast.len() * of <= jpeg.len() * most && self.is_right(encoded, jpeg)
        });
        if self.coefficients.capacity() > KEPT {
            self.coefficients = Vec::new();
        }
        verified.map(|encoded| encoded.fast)
    }

    /// Returns whether the fast image restores the JPEG that was encoded last.
    fn is_right(&mut self, encoded: &Encoded, jpeg: &[u8]) -> bool {
        let Encoded { fast, frame, end } = encoded;
        let blocks = self.parts.iter().flat_map(|part| &part.blocks);
        let last = blocks.map(|block| u64::from(block.last())).sum();
        if !is_plain(&jpeg[..frame.scan], frame, end, last) {
            return self.verifier.restores(fast, jpeg);
        }
        let (verifier, end) = (&mut self.verifier, end.marker);
        let holds = verifier.holds(fast, jpeg, (frame, end), &self.coefficients);
        debug_assert_eq!(holds, verifier.restores(fast, jpeg));
        holds
    }

    /// As [`FastEncoder::encode`], but of any size and not verified.
    #[cfg(test)]
    pub(super) fn encode_any(&mut self, jpeg: &[u8], coding: FastCoding) -> Option<Vec<u8>> {
        self.encode_unchecked(jpeg, coding)
            .map(|encoded| encoded.fast)
    }

    fn encode_unchecked(&mut self, jpeg: &[u8], coding: FastCoding) -> Option<Encoded> {
        self.parts.iter_mut().for_each(EncodedPart::clear);
        let (parts, level) = (&mut self.parts, self.verifier.reader.level);
        let mut fits = true;
        let read = self.verifier.baseline.read_blocks(
            jpeg,
            &mut self.coefficients,
            |frame, columns, batch| {
                let rows = frame.block_rows(READ_BATCH);
                for (part, (component, at)) in parts.iter_mut().zip(rows) {
                    let (h, _) = frame.factors[component];
                    fits &= level.add_row(part, &batch[at..], columns.len() * h);
                }
            },
        );
        let (frame, Some(end)) = read.ok()? else {
            return None;
        };
        // A restart marker at the end, which no encoder writes, belongs to the scan.
        let code = *jpeg.get(end.marker + 1)?;
        if !fits || (0xd0..=0xd7).contains(&code) {
            return None;
        }
        let set = match coding {
            FastCoding::Coded => Some(self.best_set(&frame)),
            FastCoding::Raw => None,
        };
        self.write_tiles(&frame, set.map(control::codes))?;
        let file = File {
            set,
            jpeg: (jpeg.len(), crc32c::crc32c(jpeg)),
            head: &jpeg[..frame.scan],
            tail: &jpeg[end.marker..],
            lengths: &self.lengths,
            tiles: &self.tiles,
        };
        let mut fast = Vec::with_capacity(HEADER + jpeg.len() + jpeg.len() / 4);
        file.write(&mut fast)?;
        Some(Encoded { fast, frame, end })
    }

    /// Collects the control bytes. Returns the set of tables that gives the shortest codes, the
    /// first one in a tie.
    fn best_set(&mut self, frame: &Frame) -> usize {
        let Symbols { all, ends } = &mut self.symbols;
        all.clear();
        ends.clear();
        for_each_tile(frame, |blocks| {
            let mut tile = [0; 3];
            for (kind, end) in Kind::ALL.into_iter().zip(&mut tile) {
                for (part, (range, is_luma)) in self.parts.iter().zip(blocks) {
                    append_symbols(&part.blocks[range.clone()], kind, *is_luma, all);
                }
                *end = all.len();
            }
            ends.push(tile);
            Some(())
        });
        let mut counts = Box::new([[0u32; 256]; CONTEXTS]);
        let flat = counts.as_flattened_mut();
        for symbol in all {
            flat[usize::from(*symbol)] += 1;
        }
        let cost = |set: &usize| -> u64 {
            let codes = control::codes(*set).as_flattened().iter();
            let bits = (counts.as_flattened().iter())
                .zip(codes)
                .map(|(n, code)| u64::from(*n) * u64::from(control::parts(*code).1));
            bits.sum()
        };
        (0..SETS).min_by_key(cost).unwrap_or_default()
    }

    fn write_tiles(&mut self, frame: &Frame, codes: Option<&Codes>) -> Option<()> {
        let level = self.verifier.reader.level;
        let (tiles, lengths) = (&mut self.tiles, &mut self.lengths);
        tiles.clear();
        lengths.clear();
        for_each_tile(frame, |blocks| {
            let start = tiles.len();
            let mut parts = [const { TilePart::EMPTY }; MAX_PARTS];
            for ((part, to), (range, _)) in self.parts.iter_mut().zip(&mut parts).zip(blocks) {
                *to = part.tile(range.clone());
            }
            let parts = &parts[..blocks.len()];
            write_corrections(parts, tiles)?;
            for part in parts {
                write_dc(part.blocks, tiles)?;
            }
            match codes {
                Some(codes) => {
                    let kinds = self.symbols.of_tile(lengths.len())?;
                    level.write_control(&mut self.writer, codes, kinds, tiles);
                }
                None => write_raw_control(parts, tiles),
            }
            for part in parts {
                tiles.extend_from_slice(part.payload);
            }
            let length = tiles.len() - start;
            if length > MAX_BYTES {
                return None;
            }
            lengths.push((length as u16).to_le_bytes());
            Some(())
        })
    }
}

/// Calls `take` for each tile: for each part its blocks, and whether they are of the first
/// component.
fn for_each_tile(
    frame: &Frame,
    mut take: impl FnMut(&[(Range<usize>, bool)]) -> Option<()>,
) -> Option<()> {
    let batch = tile_mcus(frame.factors[0].0);
    for row in 0..frame.mcus.1 {
        for first in (0..frame.mcus.0).step_by(batch) {
            let end = (first + batch).min(frame.mcus.0);
            let mut blocks = [const { (0..0, false) }; MAX_PARTS];
            let mut count = 0;
            for (to, (component, _)) in blocks.iter_mut().zip(frame.block_rows(batch)) {
                let (h, _) = frame.factors[component];
                let at = |column: usize| (row * frame.mcus.0 + column) * h;
                *to = (at(first)..at(end), component == 0);
                count += 1;
            }
            take(&blocks[..count])?;
        }
    }
    Some(())
}

/// Appends raw control bytes.
fn write_raw_control(parts: &[TilePart<'_>], out: &mut Vec<u8>) {
    let start = out.len();
    let all = || parts.iter().flat_map(|part| part.blocks);
    for (i, block) in all().enumerate() {
        let ([length, ..], _) = block.bytes(Kind::Length);
        match i % 2 {
            0 => out.push(length),
            _ => out[start + i / 2] |= length << 4,
        }
    }
    for kind in [Kind::Bitmap, Kind::Widths] {
        for block in all() {
            let (bytes, count) = block.bytes(kind);
            append(out, bytes, count);
        }
    }
}

/// Appends the length of the corrections in bytes, then the corrections in the order of their blocks.
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
