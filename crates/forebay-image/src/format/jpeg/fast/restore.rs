//! Restores the JPEG of a fast image: encodes the scan again as nearly all encoders do, and
//! verifies the length and checksum of the result.

use super::file::File;
use super::read::{Reader, Tiles};
use super::tile::{MAX_PARTS, PLACE, Tile};
use super::{damaged, refused};
use crate::error::Result;
use crate::format::jpeg::baseline::Baseline;
use crate::format::jpeg::baseline::blocks::{Blocks, Frame, McuWindow};
use crate::format::jpeg::baseline::entropy::{PAIR, SECOND};
use crate::format::jpeg::markers::{self, DHT, SOS};
use crate::format::jpeg::writer::{CodeTables, Codes, Writer};
use crate::format::{Format, probe, sniff};
use crate::limits::Limits;
use std::borrow::Cow;
use std::ops::Range;

/// Returns an image in a standard format: [restores](restore_fast) a fast image, and returns all
/// other bytes unchanged.
///
/// # Errors
/// As [`restore_fast`].
pub fn standard_image<'a>(bytes: &'a [u8], limits: &Limits) -> Result<Cow<'a, [u8]>> {
    match sniff(bytes) {
        Some(Format::Fast) => restore_fast(bytes, limits).map(Cow::Owned),
        _ => Ok(Cow::Borrowed(bytes)),
    }
}

/// Restores the JPEG from which a fast image was encoded, byte for byte.
///
/// # Errors
/// [`ImageError`](crate::ImageError) if these bytes are not a fast image, or are damaged. A
/// successful result is the original: its length and CRC-32C are verified.
pub fn restore_fast(bytes: &[u8], limits: &Limits) -> Result<Vec<u8>> {
    let format = probe(bytes, limits)?.format;
    if format != Format::Fast {
        return Err(damaged("it does not begin as a fast image"));
    }
    let mut out = Vec::new();
    let (mut baseline, mut reader) = (Baseline::default(), Reader::default());
    restore(bytes, &mut baseline, &mut reader, &mut out)?;
    Ok(out)
}

/// [`restore_fast`] into a buffer, without checking limits.
pub(super) fn restore(
    bytes: &[u8],
    baseline: &mut Baseline,
    reader: &mut Reader,
    out: &mut Vec<u8>,
) -> Result<()> {
    let file = File::read(bytes)?;
    let frame = baseline.frame(file.head).map_err(refused)?;
    if frame.scan != file.head.len() {
        return Err(damaged("the head does not end with the header of a scan"));
    }
    let mut tables = CodeTables::default();
    let mut at = 2;
    loop {
        let segment = markers::segment(file.head, at)?;
        at = segment.end;
        match segment.marker {
            DHT => tables
                .read(segment.payload)
                .ok_or_else(|| damaged("a Huffman table"))?,
            SOS => break,
            _ => {}
        }
    }
    out.clear();
    out.extend_from_slice(file.head);
    let level = reader.level;
    let mut tiles = Tiles::new(&file, reader);
    let mut encoder = ScanEncoder::new(&frame, &tables, Writer::new(out))
        .ok_or_else(|| damaged("the scan uses a table that the head does not define"))?;
    let window = McuWindow {
        columns: 0..frame.mcus.0,
        rows: 0..frame.mcus.1,
    };
    let batch = tiles.start(&frame, &window).map_err(refused)?;
    let mut coefficients = vec![0; frame.coefficients(batch)];
    for row in window.rows {
        for first in window.columns.clone().step_by(batch) {
            let columns = first..(first + batch).min(frame.mcus.0);
            let taken = tiles.take(row, columns.clone(), &mut coefficients);
            taken.map_err(refused)?;
            let tile = tiles.last().ok_or_else(|| damaged("a tile"))?;
            let encoded = level.write_tile(&mut encoder, tile, &coefficients, batch, columns);
            encoded.ok_or_else(|| damaged("a coefficient has no code"))?;
            if encoder.writer.out.len() > file.jpeg.0 {
                return Err(damaged("the JPEG is longer than expected"));
            }
        }
    }
    encoder.writer.pad();
    out.extend_from_slice(file.tail);
    if (out.len(), crc32c::crc32c(out)) != file.jpeg {
        return Err(damaged("the checksum of the JPEG does not match"));
    }
    Ok(())
}

/// Encodes MCUs in order with the JPEG's Huffman tables.
pub(super) struct ScanEncoder<'a> {
    frame: &'a Frame,
    /// The DC and AC codes, by component.
    codes: [(&'a Codes, &'a Codes); 3],
    writer: Writer<'a>,
    predictors: [i32; 3],
    /// Index of the next MCU.
    mcu: usize,
}

impl<'a> ScanEncoder<'a> {
    fn new(frame: &'a Frame, tables: &'a CodeTables, writer: Writer<'a>) -> Option<Self> {
        let codes = |component: usize| {
            let (dc, ac) = frame.selectors[component];
            Some((
                tables.dc.get(dc)?.as_deref()?,
                tables.ac.get(ac)?.as_deref()?,
            ))
        };
        let first = codes(0)?;
        let mut all = [first; 3];
        for (component, pair) in all.iter_mut().enumerate().take(frame.components) {
            *pair = codes(component)?;
        }
        Some(Self {
            frame,
            codes: all,
            writer,
            predictors: [0; 3],
            mcu: 0,
        })
    }

    /// Encodes all MCUs of a tile. Returns `None` if a coefficient has no code.
    #[inline(always)]
    pub(super) fn tile(
        &mut self,
        tile: &Tile,
        coefficients: &[i16],
        batch: usize,
        columns: Range<usize>,
    ) -> Option<()> {
        let mut rows = [(0, 0); MAX_PARTS];
        let mut count = 0;
        for (row, found) in rows.iter_mut().zip(self.frame.block_rows(batch)) {
            *row = found;
            count += 1;
        }
        for column in 0..columns.len() {
            self.restart();
            self.mcu += 1;
            let mut first = 0;
            for &(component, at) in &rows[..count] {
                let (h, _) = self.frame.factors[component];
                for block in column * h..(column + 1) * h {
                    let at = at + block / 2 * PAIR + block % 2 * SECOND;
                    let block = (tile.masks[first + block], coefficients.get(at..)?);
                    self.block(component, block)?;
                }
                first += columns.len() * h;
            }
        }
        Some(())
    }

    /// Writes a restart marker if the interval has ended.
    fn restart(&mut self) {
        let interval = self.frame.restart_interval;
        if self.mcu > 0 && self.mcu.checked_rem(interval) == Some(0) {
            self.writer.pad();
            let number = (self.mcu / interval - 1) % 8;
            self.writer
                .out
                .extend_from_slice(&[0xff, 0xd0 + number as u8]);
            self.predictors = [0; 3];
        }
    }

    #[inline(always)]
    fn block(&mut self, component: usize, (mut mask, values): (u64, &[i16])) -> Option<()> {
        let values = values.first_chunk::<128>()?;
        let (dc_codes, ac_codes) = self.codes[component];
        let dc = i32::from(values[0]);
        let difference = dc - self.predictors[component];
        self.predictors[component] = dc;
        let size = bits_of(difference)?;
        let writer = &mut self.writer;
        writer.code_and_value(dc_codes, size, difference, size)?;
        let mut last = 0;
        while mask != 0 {
            let k = mask.trailing_zeros() + 1;
            mask &= mask - 1;
            let mut run = k - last - 1;
            last = k;
            while run > 15 {
                writer.code(ac_codes, 0xf0)?;
                run -= 16;
            }
            let value = i32::from(values[usize::from(PLACE[k as usize & 63]) & 127]);
            let size = bits_of(value)?;
            writer.code_and_value(ac_codes, run << 4 | size, value, size)?;
        }
        if last < 63 {
            writer.code(ac_codes, 0)?;
        }
        Some(())
    }
}

/// Returns the number of bits of a value, at most 15.
#[inline(always)]
fn bits_of(value: i32) -> Option<u32> {
    let size = 32 - value.unsigned_abs().leading_zeros();
    (size < 16).then_some(size)
}
