//! Reads the tiles of an image in order.

use super::control::{self, Buffer};
use super::file::{File, tile_mcus};
use super::simd::{Level, prefetch};
use super::tile::{MAX_PARTS, Part, Tile, WINDOW, Window};
use crate::baseline::Refusal;
use crate::baseline::blocks::{Blocks, Frame, McuWindow};
use std::ops::Range;

/// Number of tiles that are opened before the first one is unpacked, so that first the code tables
/// and then the tables for unpacking stay in the processor's cache.
const OPENED: usize = 16;
/// Number of tiles whose bytes are prefetched into the processor's cache before they are opened.
const PREFETCHED: usize = 2;
const DAMAGED: Refusal = Refusal::Damaged("a tile");

/// Memory that is reused from image to image.
#[derive(Debug, Default)]
pub(crate) struct Reader {
    pub(super) level: Level,
    buffer: Buffer,
    tiles: Vec<OpenTile>,
    /// The parts of each tile in a row of MCUs, and their number.
    parts: Vec<([Part; MAX_PARTS], usize)>,
    /// A copy of the last tiles, followed by zeros; empty until one of these tiles is read.
    end: Vec<u8>,
}

#[derive(Debug, Default)]
struct OpenTile {
    tile: Tile,
    /// Offset of the tile in the data of all tiles.
    at: usize,
    /// Index of the tile.
    number: usize,
    length: usize,
}

/// The tiles of an image.
pub(super) struct Tiles<'a> {
    file: &'a File<'a>,
    reader: &'a mut Reader,
    /// Number of MCUs in a tile.
    batch: usize,
    /// Tiles and rows of MCUs to read.
    columns: Range<usize>,
    rows: Range<usize>,
    /// Number of tiles in a row of MCUs.
    across: usize,
    /// Index and offset of the next tile in the file.
    next: (usize, usize),
    /// Number of opened tiles, and number of those that have been unpacked.
    opened: usize,
    unpacked: usize,
}

/// Returns the bytes from the start of a tile.
fn window<'a>(tiles: &'a [u8], end: &'a [u8], at: usize) -> Option<&'a Window> {
    let start = tiles.len().saturating_sub(WINDOW);
    match at.checked_sub(start) {
        Some(at) if at > 0 || tiles.len() < WINDOW => end.get(at..)?.first_chunk(),
        _ => tiles.get(at..)?.first_chunk(),
    }
}

/// Returns the parts of the tile that begins with MCU `first` of a row, and their number. `wanted`
/// is the range of wanted MCUs of the row.
fn parts(frame: &Frame, wanted: &Range<usize>, first: usize) -> ([Part; MAX_PARTS], usize) {
    let batch = tile_mcus(frame.factors[0].0);
    let mcus = batch.min(frame.mcus.0 - first);
    let from = wanted.start.saturating_sub(first);
    let to = wanted.end.saturating_sub(first).min(mcus);
    let mut parts = [Part::default(); MAX_PARTS];
    let mut count = 0;
    let rows = frame.block_rows(batch);
    for (part, (component, at)) in parts.iter_mut().zip(rows) {
        let (h, _) = frame.factors[component];
        *part = Part {
            blocks: h * mcus,
            from: h * from,
            to: h * to,
            is_luma: component == 0,
            at,
        };
        count += 1;
    }
    (parts, count)
}

impl<'a> Tiles<'a> {
    pub(super) fn new(file: &'a File<'a>, reader: &'a mut Reader) -> Self {
        reader.end.clear();
        Self {
            file,
            reader,
            batch: 1,
            columns: 0..0,
            rows: 0..0,
            across: 0,
            next: (0, 0),
            opened: 0,
            unpacked: 0,
        }
    }

    /// Finds and opens the next wanted tiles, from a row of MCUs on.
    fn open(&mut self, row: usize) -> Result<(), Refusal> {
        let rows = (OPENED / self.columns.len().max(1)).max(1);
        let tables = self.file.set.map(control::tables);
        let Reader {
            level,
            buffer,
            tiles,
            parts,
            end,
        } = &mut *self.reader;
        (self.opened, self.unpacked) = (0, 0);
        for row in row..(row + rows).min(self.rows.end) {
            for column in self.columns.clone() {
                let number = row * self.across + column;
                let length = |tile: usize| {
                    let length = self.file.lengths.get(tile).ok_or(DAMAGED)?;
                    Ok(usize::from(u16::from_le_bytes(*length)))
                };
                while self.next.0 < number {
                    self.next.1 += length(self.next.0)?;
                    self.next.0 += 1;
                }
                if tiles.len() == self.opened {
                    tiles.push(OpenTile::default());
                }
                let open = &mut tiles[self.opened];
                (open.at, open.number, open.length) = (self.next.1, number, length(number)?);
                self.opened += 1;
            }
        }
        let all = self.file.tiles;
        let last = all.len().saturating_sub(WINDOW);
        if end.is_empty() && tiles[..self.opened].iter().any(|tile| tile.at >= last) {
            end.extend_from_slice(&all[last..]);
            end.resize(2 * WINDOW, 0);
        }
        let bytes = |tile: &OpenTile| all.get(tile.at..(tile.at + tile.length).min(all.len()));
        let tiles = &mut tiles[..self.opened];
        for tile in tiles.iter().take(PREFETCHED) {
            prefetch(bytes(tile).unwrap_or_default());
        }
        for i in 0..tiles.len() {
            if let Some(later) = tiles.get(i + PREFETCHED) {
                prefetch(bytes(later).unwrap_or_default());
            }
            let (parts, count) = &parts[i % self.columns.len()];
            let open = &mut tiles[i];
            window(all, end, open.at)
                .and_then(|window| {
                    let (parts, length) = (&parts[..*count], open.length);
                    level.open(&mut open.tile, window, length, parts, tables, buffer)
                })
                .ok_or(DAMAGED)?;
        }
        Ok(())
    }

    /// Returns the tile that was unpacked last.
    pub(super) fn last(&self) -> Option<&Tile> {
        let last = self.unpacked.checked_sub(1)?;
        Some(&self.reader.tiles.get(last)?.tile)
    }
}

impl Blocks for Tiles<'_> {
    fn start(&mut self, frame: &Frame, window: &McuWindow) -> Result<usize, Refusal> {
        let batch = tile_mcus(frame.factors[0].0);
        self.across = frame.mcus.0.div_ceil(batch);
        if self.across * frame.mcus.1 != self.file.lengths.len() {
            return Err(Refusal::Damaged(
                "the number of tiles is not that of the frame",
            ));
        }
        self.columns = window.columns.start / batch..window.columns.end.div_ceil(batch);
        self.rows = window.rows.clone();
        self.batch = batch;
        let tiles = self.columns.clone();
        self.reader.parts.clear();
        let parts = tiles.map(|tile| parts(frame, &window.columns, tile * batch));
        self.reader.parts.extend(parts);
        Ok(batch)
    }

    fn take(
        &mut self,
        row: usize,
        columns: Range<usize>,
        coefficients: &mut [i16],
    ) -> Result<(), Refusal> {
        if self.unpacked == self.opened {
            self.open(row)?;
        }
        let column = columns.start / self.batch;
        let Reader {
            level,
            tiles,
            parts,
            end,
            ..
        } = &*self.reader;
        let number = column.wrapping_sub(self.columns.start);
        let (parts, count) = parts.get(number).ok_or(DAMAGED)?;
        let open = tiles.get(self.unpacked).ok_or(DAMAGED)?;
        self.unpacked += 1;
        if open.number != row * self.across + column {
            return Err(DAMAGED);
        }
        let window = window(self.file.tiles, end, open.at).ok_or(DAMAGED)?;
        let parts = &parts[..*count];
        let unpacked = level.unpack(&open.tile, window, parts, coefficients);
        unpacked.ok_or(DAMAGED)
    }
}
