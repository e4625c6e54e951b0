//! Encodes coefficients as a JPEG's scan, with given Huffman tables.

use super::tile::{MAX_PARTS, PLACE, Tile};
use crate::baseline::blocks::Frame;
use crate::baseline::entropy::{PAIR, SECOND};
use crate::writer::{BitWriter, CodeTables, Codes};
use std::ops::Range;

/// Encodes MCUs in order with the JPEG's Huffman tables.
pub(super) struct ScanEncoder<'a> {
    frame: &'a Frame,
    /// The DC and AC codes, by component.
    codes: [(&'a Codes, &'a Codes); 3],
    pub(super) writer: BitWriter<'a>,
    predictors: [i32; 3],
    /// Index of the next MCU.
    mcu: usize,
}

impl<'a> ScanEncoder<'a> {
    pub(super) fn new(
        frame: &'a Frame,
        tables: &'a CodeTables,
        writer: BitWriter<'a>,
    ) -> Option<Self> {
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
