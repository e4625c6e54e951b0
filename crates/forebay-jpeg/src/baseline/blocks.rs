//! The two halves of the decoder, for other encodings of the coefficients: from a scan to
//! coefficients, and from coefficients to pixels.

use super::Refusal;
use super::entropy::{PAIR, TAIL};
pub(crate) use super::header::Frame;
pub(crate) use super::region::Window as McuWindow;
use super::region::{Baseline, has_end};
pub(crate) use super::scan::ScanEnd;
use super::scan::{BATCH, Scan, pairs_in_row};
use crate::region::Region;
use crate::rows::Rows;
use std::ops::Range;

impl Frame {
    /// Returns the number of coefficients for which `batch` MCUs need space.
    pub(crate) fn coefficients(&self, batch: usize) -> usize {
        let rows = self.factors[..self.components].iter();
        let pairs: usize = rows.map(|&(h, v)| v * pairs_in_row(h, batch)).sum();
        pairs * PAIR + TAIL
    }

    /// Returns the range of batch `number` of a row in the coefficients of [`Baseline::read_blocks`].
    pub(crate) fn room_of(&self, row: usize, number: usize) -> Range<usize> {
        let batch = row * self.mcus.0.div_ceil(READ_BATCH) + number;
        let room = self.coefficients(READ_BATCH);
        let start = batch * (room - TAIL);
        start..start + room
    }

    /// Returns, for each component and each row of its blocks in an MCU, the component and the
    /// offset of the row in the coefficients of a batch.
    pub(crate) fn block_rows(&self, batch: usize) -> impl Iterator<Item = (usize, usize)> {
        let factors = self.factors.into_iter().take(self.components);
        let rows = factors.enumerate().flat_map(move |(component, (h, v))| {
            std::iter::repeat_n((component, pairs_in_row(h, batch) * PAIR), v)
        });
        rows.scan(0, |at, (component, room)| {
            let row = (component, *at);
            *at += room;
            Some(row)
        })
    }
}

/// A source of coefficients in an encoding other than a JPEG's scan.
pub(crate) trait Blocks {
    /// Starts a region, given the columns and rows of MCUs that it needs. Returns the number of
    /// MCUs in a batch; batches begin at multiples of this number.
    fn start(&mut self, frame: &Frame, window: &McuWindow) -> Result<usize, Refusal>;

    /// Stores the blocks of the MCUs in these columns, which are in one batch, at the start of each
    /// row of blocks.
    fn take(
        &mut self,
        row: usize,
        columns: Range<usize>,
        coefficients: &mut [i16],
    ) -> Result<(), Refusal>;
}

impl Baseline {
    /// As [`Baseline::decode`], with coefficients from `blocks`. `head` is the JPEG up to its scan.
    pub(crate) fn decode_blocks(
        &mut self,
        head: &[u8],
        blocks: &mut impl Blocks,
        size: (u32, u32),
        scale: u32,
        region: Region,
        out: &mut dyn Rows,
    ) -> Result<(), Refusal> {
        self.header
            .read_without_codes(head)
            .map_err(Refusal::Foreign)?;
        self.place(size, scale, region)?;
        let frame = self.header.frame;
        let window = self.pixels.window.clone();
        let batch = blocks.start(&frame, &window)?;
        let [coefficients, _] = &mut self.coefficients;
        coefficients.clear();
        coefficients.resize(frame.coefficients(batch), 0);
        let McuWindow { columns, rows } = window;
        for row in rows {
            let mut column = columns.start;
            while column < columns.end {
                let end = (column / batch + 1) * batch;
                let end = end.min(columns.end);
                blocks.take(row, column..end, coefficients)?;
                let at = column - columns.start..end - columns.start;
                self.pixels
                    .transform(&self.header, coefficients, batch, row, at);
                column = end;
            }
            self.pixels.emit(&self.header, row + 1, out);
        }
        Ok(())
    }

    /// Reads the header of a JPEG without its scan.
    pub(crate) fn frame(&mut self, head: &[u8]) -> Result<Frame, Refusal> {
        let read = self.header.read_without_codes(head);
        read.map_err(Refusal::Foreign)?;
        Ok(self.header.frame)
    }

    /// Reads the coefficients of a whole image, [`READ_BATCH`] MCUs of a row at a time; see
    /// [`Frame::room_of`]. After each batch, calls `take` with its columns and its coefficients.
    /// Returns the frame, and the end of the scan unless other bytes precede the next marker.
    pub(crate) fn read_blocks(
        &mut self,
        bytes: &[u8],
        coefficients: &mut Vec<i16>,
        mut take: impl FnMut(&Frame, Range<usize>, &[i16]),
    ) -> Result<(Frame, Option<ScanEnd>), Refusal> {
        self.header.read(bytes).map_err(Refusal::Foreign)?;
        let header = &self.header;
        if !has_end(bytes, header.frame.scan) {
            return Err(Refusal::Damaged("no end of image"));
        }
        let scan = Scan::new(bytes, header, &mut self.layout, self.pixels.level);
        coefficients.clear();
        let frame = header.frame;
        let [cursor, _] = &mut self.cursors;
        cursor.rewind(&scan);
        let room = frame.coefficients(READ_BATCH);
        for _ in 0..frame.mcus.1 {
            for first in (0..frame.mcus.0).step_by(READ_BATCH) {
                let end = (first + READ_BATCH).min(frame.mcus.0);
                // The allocation grows with the bytes that were read, not with the size in the header.
                let start = coefficients.len().saturating_sub(TAIL);
                coefficients.resize(start + room, 0);
                let batch = &mut coefficients[start..];
                let mut column = first;
                while column < end {
                    let count = cursor.batch(&scan, end - column);
                    let places = column - first..column - first + count;
                    cursor.take_to(&scan, places, batch)?;
                    column += count;
                }
                take(&frame, first..end, batch);
            }
        }
        let end = cursor.end(&scan);
        Ok((frame, end))
    }
}

/// Number of MCUs in a batch of [`Baseline::read_blocks`].
pub(crate) const READ_BATCH: usize = BATCH;
