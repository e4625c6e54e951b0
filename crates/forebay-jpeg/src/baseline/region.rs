//! Decodes a region of a file: selects the MCUs that are needed and converts their blocks to planes
//! and to rows of RGB.
//!
//! Smooth upsampling uses neighboring chroma samples, so a margin around the region is decoded too;
//! the result then equals that of a full decode. Planes are rings of a few rows of MCUs, so that
//! pixels are produced while their samples are in the cache.

use super::header::{Header, Output, Sampling};
use super::scan::{BATCH, Cursor, Layout, Scan, pairs_in_row};
use super::seek::{Points, RowStart};
use super::simd::Level;
use super::upsample;
use super::{Refusal, learn};
use crate::learned::SeekPoints;
use crate::region::Region;
use crate::rows::{Room, Rows};
use std::ops::Range;

/// Number of MCU rows in a plane: two being decoded, the one above them, and one more for a power
/// of two.
const RING: usize = 4;
/// Extra samples at the end of a row of a plane: pairs of blocks are stored whole, which may exceed the row by a block.
const PLANE_SLACK: usize = 16;
/// Maximum width of a chroma plane whose samples are repeated, not interpolated (libjpeg's rule).
const REPEAT_UP_TO: usize = 2;

/// The decoder, with the memory that it reuses from image to image.
#[derive(Debug, Default)]
pub(crate) struct Baseline {
    pub(super) header: Header,
    points: Points,
    pub(super) layout: Layout,
    pub(super) coefficients: [Vec<i16>; 2],
    pub(super) cursors: [Cursor; 2],
    pub(super) pixels: Pixels,
    multi_symbols_pay: MultiSymbolsPay,
    /// Starts of rows that were recorded in the last decode.
    recorded: Vec<RowStart>,
}

/// Sizes of an image at the decode scale.
#[derive(Debug, Clone, Copy, Default)]
struct Geometry {
    width: usize,
    height: usize,
    /// Side of a transformed block in samples: of luma (or the only component), and of chroma.
    luma: usize,
    chroma: usize,
    /// Luma samples per chroma sample.
    sampling: Sampling,
    /// Size of an MCU in pixels.
    mcu: (usize, usize),
    /// Whether upsampling interpolates.
    smooth: bool,
}

impl Geometry {
    /// `scale` is 1, 2, 4 or 8. Chroma at half size is transformed to twice the samples of luma if
    /// that saves upsampling in both directions (libjpeg's rule).
    fn new(header: &Header, scale: usize) -> Self {
        let Sampling { h, v } = header.sampling;
        let luma = 8 / scale;
        let double = luma < 8 && h % 2 == 0 && v % 2 == 0;
        let chroma = if double { 2 * luma } else { luma };
        Self {
            width: header.frame.size.0.div_ceil(scale),
            height: header.frame.size.1.div_ceil(scale),
            luma,
            chroma,
            sampling: Sampling {
                h: h * luma / chroma,
                v: v * luma / chroma,
            },
            mcu: (h * luma, v * luma),
            smooth: luma > 1,
        }
    }

    fn block(&self, component: usize) -> usize {
        if component == 0 {
            self.luma
        } else {
            self.chroma
        }
    }
}

/// The region's position among MCUs.
#[derive(Debug, Clone, Default)]
pub(crate) struct Window {
    pub(crate) columns: Range<usize>,
    pub(crate) rows: Range<usize>,
}

impl Window {
    /// Returns the MCUs that a region needs, including its margin.
    fn new(geometry: &Geometry, area: &Area) -> Self {
        let Sampling { h, v } = geometry.sampling;
        let span = |from: &Range<usize>, factor: usize, mcu: usize, limit: usize| {
            let margin = if factor == 2 { 2 } else { 0 };
            let start = from.start.saturating_sub(margin) / mcu;
            let end = (from.end + margin).min(limit).div_ceil(mcu);
            start..end
        };
        Self {
            columns: span(&area.columns, h, geometry.mcu.0, geometry.width),
            rows: span(&area.rows, v, geometry.mcu.1, geometry.height),
        }
    }

    /// Returns the needed rows that each begin at a point of their own. The rows after them are read
    /// in order.
    fn by_points(&self, points: Option<&Points>) -> Range<usize> {
        let end = match points {
            Some(points) if points.in_each_row() => match points.last_row() {
                last if last + 1 >= self.rows.end => self.rows.end,
                last => last.max(self.rows.start),
            },
            _ => self.rows.start,
        };
        self.rows.start..end
    }

    /// Returns the number of unneeded MCUs before or between needed ones; in rows with a seek point
    /// of their own, of those between the seek point and the needed ones.
    fn walked_over(&self, header: &Header, points: Option<&Points>) -> usize {
        let (columns, _) = header.frame.mcus;
        let by_points = self.by_points(points);
        let to_point = points.map_or(0, |points| {
            self.columns.start - points.column(self.columns.start)
        });
        let in_order = self.rows.end - by_points.end;
        let first = match points {
            Some(points) if points.in_each_row() => points.last_row(),
            _ => 0,
        };
        let all = self.rows.end.saturating_sub(first) * columns;
        let walked = match in_order {
            0 => 0,
            rows => all - rows * self.columns.len(),
        };
        by_points.len() * to_point + walked
    }
}

/// Minimum number of skipped MCUs for which building multi-symbols pays off.
#[derive(Debug, Clone, Copy)]
struct MultiSymbolsPay(usize);

impl Default for MultiSymbolsPay {
    /// Building the multi-symbols of two tables takes about as long as is saved on this many MCUs.
    fn default() -> Self {
        Self(250)
    }
}

/// The region in pixels.
#[derive(Debug, Clone, Default)]
struct Area {
    columns: Range<usize>,
    rows: Range<usize>,
}

impl Baseline {
    #[cfg(test)]
    pub(super) fn with_level(level: Level, multi_symbols: bool) -> Self {
        let mut new = Self::default();
        new.pixels.level = level;
        new.multi_symbols_pay = MultiSymbolsPay(if multi_symbols { 0 } else { usize::MAX });
        new
    }

    /// Decodes a region at a scale of 1, 1/2, 1/4 or 1/8, and passes its rows to `out`. The region is in pixels of the scaled
    /// image. `size` is the expected size of the image. A refusal may come after some rows.
    pub(crate) fn decode(
        &mut self,
        bytes: &[u8],
        seek_points: SeekPoints<'_>,
        size: (u32, u32),
        scale: u32,
        region: Region,
        out: &mut dyn Rows,
    ) -> Result<(), Refusal> {
        self.header.read(bytes).map_err(Refusal::Foreign)?;
        if !has_end(bytes, self.header.frame.scan) {
            return Err(Refusal::Damaged("no end of image"));
        }
        self.place(size, scale, region)?;
        let header = &self.header;
        let window = &self.pixels.window;
        // Restart markers serve the same purpose.
        let seek_points = match header.frame.restart_interval {
            0 => seek_points,
            _ => SeekPoints::None,
        };
        let points = match seek_points {
            SeekPoints::None => None,
            SeekPoints::Stored(points) => self.points.read(points, bytes, header),
            SeekPoints::Learning(learning) => {
                learn::start(learning, &mut self.points, bytes, header)
            }
        };
        if window.walked_over(header, points) >= self.multi_symbols_pay.0 {
            self.header.make_multi_symbols();
        }
        let header = &self.header;
        let scan = Scan::new(bytes, header, &mut self.layout, self.pixels.level);
        for coefficients in &mut self.coefficients {
            coefficients.clear();
            coefficients.resize(scan.layout.coefficients(), 0);
        }
        let mut run = Run {
            header,
            scan,
            coefficients: &mut self.coefficients,
            cursors: &mut self.cursors,
            pixels: &mut self.pixels,
        };
        let rows = run.pixels.window.rows.clone();
        let by_points = run.pixels.window.by_points(points);
        let in_order = by_points.end..rows.end;
        if let Some(points) = points {
            run.by_points(points, by_points, out)?;
        }
        self.recorded.clear();
        if !in_order.is_empty() {
            let learns = matches!(seek_points, SeekPoints::Learning(_));
            let recorded = learns.then_some(&mut self.recorded);
            run.in_order(points, in_order, recorded, out)?;
        }
        if let SeekPoints::Learning(learning) = seek_points {
            learn::finish(learning, &mut self.points, &self.recorded, bytes, header);
        }
        Ok(())
    }
}

impl Baseline {
    /// Selects the MCUs that a region needs. `size` is the expected size of the image.
    pub(super) fn place(
        &mut self,
        size: (u32, u32),
        scale: u32,
        region: Region,
    ) -> Result<(), Refusal> {
        let header = &self.header;
        if header.frame.size != (size.0 as usize, size.1 as usize) {
            return Err(Refusal::Damaged("two different sizes"));
        }
        let area = Area {
            columns: region.x as usize..(region.x + region.width) as usize,
            rows: region.y as usize..(region.y + region.height) as usize,
        };
        let geometry = Geometry::new(header, scale as usize);
        let window = Window::new(&geometry, &area);
        self.pixels.set(header, geometry, window, area);
        Ok(())
    }
}

/// Returns whether there is an end marker after `from`. Searches from the end of the file, near
/// which the marker almost always is.
pub(super) fn has_end(bytes: &[u8], from: usize) -> bool {
    bytes[from..]
        .windows(2)
        .rev()
        .any(|pair| pair == [0xff, 0xd9])
}

/// The state of decoding a region.
struct Run<'a> {
    header: &'a Header,
    scan: Scan<'a>,
    coefficients: &'a mut [Vec<i16>; 2],
    cursors: &'a mut [Cursor; 2],
    pixels: &'a mut Pixels,
}

impl Run<'_> {
    /// Reads some rows in order, from the start of the scan or from seek points that only some rows
    /// have. Records the starts of rows that follow the last point.
    fn in_order(
        &mut self,
        points: Option<&Points>,
        rows: Range<usize>,
        mut recorded: Option<&mut Vec<RowStart>>,
        out: &mut dyn Rows,
    ) -> Result<(), Refusal> {
        let (mcus, _) = self.header.frame.mcus;
        let columns = self.pixels.window.columns.clone();
        let [cursor, _] = &mut *self.cursors;
        let [coefficients, _] = &mut *self.coefficients;
        cursor.rewind(&self.scan);
        let last = points.map_or(0, Points::last_row);
        let step = points.map_or(1, |points| usize::from(points.step()));
        let first = match recorded {
            Some(_) => rows.start.min(last),
            None => rows.start,
        };
        for row in first..rows.end {
            let end = row * mcus + columns.end;
            if let Some(points) = points
                && (row == first || points.has(row))
            {
                let (point, mcu, limit) = points.before(row, columns.start, mcus);
                cursor.seek(&self.scan, &point, mcu, limit);
            }
            if let Some(recorded) = &mut recorded
                && row > last
                && row.is_multiple_of(step)
            {
                cursor.skip_to(&self.scan, row * mcus, coefficients)?;
                recorded.push(RowStart::of(cursor));
            }
            if row < rows.start {
                continue;
            }
            cursor.skip_to(&self.scan, row * mcus + columns.start, coefficients)?;
            while cursor.mcu() < end {
                let column = cursor.mcu() - row * mcus - columns.start;
                let count = cursor.batch(&self.scan, end - cursor.mcu());
                cursor.take(&self.scan, count, coefficients)?;
                let columns = column..column + count;
                self.pixels
                    .transform(self.header, coefficients, BATCH, row, columns);
            }
            self.pixels.emit(self.header, row + 1, out);
        }
        Ok(())
    }

    /// Starts each of some rows at its own seek point; decodes two rows in alternation.
    fn by_points(
        &mut self,
        points: &Points,
        rows: Range<usize>,
        out: &mut dyn Rows,
    ) -> Result<(), Refusal> {
        let (mcus, _) = self.header.frame.mcus;
        let columns = self.pixels.window.columns.clone();
        let scan = &self.scan;
        let [first, second] = &mut *self.cursors;
        let [to_first, to_second] = &mut *self.coefficients;
        let open = |cursor: &mut Cursor, row: usize| {
            let (point, mcu, limit) = points.before(row, columns.start, columns.end);
            cursor.seek(scan, &point, mcu, limit);
        };
        let mut row = rows.start;
        while row < rows.end {
            open(first, row);
            if row + 1 == rows.end {
                first.skip_to(scan, row * mcus + columns.start, to_first)?;
            } else {
                open(second, row + 1);
            }
            let mut column = first.mcu() - row * mcus;
            while column < columns.end {
                let keep = column >= columns.start;
                let until = if keep { columns.end } else { columns.start };
                let count = first.batch(scan, until - column);
                if row + 1 == rows.end {
                    first.take(scan, count, to_first)?;
                } else if keep {
                    Cursor::two::<true>(first, second, scan, count, [to_first, to_second])?;
                } else {
                    Cursor::two::<false>(first, second, scan, count, [to_first, to_second])?;
                }
                if keep {
                    let at = column - columns.start;
                    let at = at..at + count;
                    let (header, pixels) = (self.header, &mut *self.pixels);
                    pixels.transform(header, to_first, BATCH, row, at.clone());
                    if row + 1 < rows.end {
                        pixels.transform(header, to_second, BATCH, row + 1, at);
                    }
                }
                column += count;
            }
            row = (row + 2).min(rows.end);
            self.pixels.emit(self.header, row, out);
        }
        Ok(())
    }
}

/// A component's samples: a ring of rows.
#[derive(Debug, Default)]
struct Plane {
    samples: Vec<u8>,
    stride: usize,
    rows: usize,
}

impl Plane {
    fn row(&self, row: usize, columns: Range<usize>) -> &[u8] {
        &self.samples[row % self.rows * self.stride..][columns]
    }
}

/// Samples of the window, and the progress of their conversion to pixels.
#[derive(Debug, Default)]
pub(super) struct Pixels {
    pub(super) level: Level,
    geometry: Geometry,
    pub(super) window: Window,
    area: Area,
    planes: [Plane; 3],
    /// A row of each chroma component at full width.
    wide: [Vec<u8>; 2],
    /// The next row of the region to produce.
    next: usize,
}

impl Pixels {
    fn set(&mut self, header: &Header, geometry: Geometry, window: Window, area: Area) {
        for (component, plane) in self.planes.iter_mut().enumerate() {
            let (h, v) = header.frame.factors[component];
            let block = geometry.block(component);
            plane.stride = window.columns.len() * h * block + PLANE_SLACK;
            plane.rows = RING * v * block;
            let size = plane.stride * plane.rows;
            if plane.samples.len() < size {
                plane.samples.resize(size, 0);
            }
        }
        let width = window.columns.len() * geometry.mcu.0;
        for wide in &mut self.wide {
            if wide.len() < width {
                wide.resize(width, 0);
            }
        }
        self.next = area.rows.start;
        self.geometry = geometry;
        self.window = window;
        self.area = area;
    }

    /// Transforms the blocks of some MCUs into the planes; `columns` are relative to the window's
    /// first column. The coefficients have room for `batch` MCUs.
    pub(super) fn transform(
        &mut self,
        header: &Header,
        coefficients: &mut [i16],
        batch: usize,
        row: usize,
        columns: Range<usize>,
    ) {
        use super::entropy::PAIR;
        let (column, count) = (columns.start, columns.len());
        let mut base = 0;
        let planes = self.planes.iter_mut().take(header.frame.components);
        for (component, plane) in planes.enumerate() {
            let (h, v) = header.frame.factors[component];
            let block = self.geometry.block(component);
            let pairs = (count * h).div_ceil(2);
            for block_row in 0..v {
                let from = &mut coefficients[base * PAIR..][..pairs * PAIR];
                let line = (row % RING * v + block_row) * block;
                let to = &mut plane.samples[line * plane.stride + column * h * block..];
                self.level
                    .idct(block, from, header.steps(component), to, plane.stride);
                base += pairs_in_row(h, batch);
            }
        }
    }

    /// Produces the rows of the region that are complete once all MCU rows before `done` are
    /// decoded.
    pub(super) fn emit(&mut self, header: &Header, done: usize, out: &mut dyn Rows) {
        let v = self.geometry.sampling.v;
        let lines = done * self.geometry.mcu.1;
        // Upsampling of the last row uses the chroma row below it, unless the image ends there.
        let complete = if v == 1 || lines >= self.geometry.height {
            lines
        } else {
            lines - 1
        };
        let end = complete.min(self.area.rows.end);
        while self.next < end {
            if let Some(room) = out.room() {
                self.line(header, self.next, room);
            }
            out.done();
            self.next += 1;
        }
    }

    fn line(&mut self, header: &Header, y: usize, room: Room<'_>) {
        let left = self.window.columns.start * self.geometry.mcu.0;
        let columns = self.area.columns.start - left..self.area.columns.end - left;
        if header.output != Output::Gray {
            self.widen(y);
        }
        let luma = self.planes[0].row(y, columns.clone());
        let chroma = |i: usize| {
            if self.geometry.sampling == Sampling::default() {
                self.planes[i + 1].row(y, columns.clone())
            } else {
                &self.wide[i][columns.clone()]
            }
        };
        let stored = match header.output {
            Output::Gray => [luma; 3],
            Output::Rgb => [luma, chroma(0), chroma(1)],
            Output::YCbCr => {
                let (cb, cr) = (chroma(0), chroma(1));
                return match room {
                    Room::Pixels(out) => self.level.ycc(luma, cb, cr, out),
                    Room::Planes(out) => self.level.ycc_planes(luma, cb, cr, out),
                };
            }
        };
        match room {
            Room::Pixels(out) => self.level.interleave(stored, out),
            Room::Planes(out) => {
                for (out, stored) in out.into_iter().zip(stored) {
                    out.copy_from_slice(stored);
                }
            }
        }
    }

    /// Upsamples a row of chroma, for the columns of the window that are inside the image.
    fn widen(&mut self, y: usize) {
        let geometry = self.geometry;
        let Sampling { h, v } = geometry.sampling;
        if (h, v) == (1, 1) {
            return;
        }
        let (width, height) = (geometry.width.div_ceil(h), geometry.height.div_ceil(v));
        let left = self.window.columns.start * geometry.chroma;
        let columns = 0..(width - left).min(self.window.columns.len() * geometry.chroma);
        let near_row = y / v;
        let odd = y % 2 == 1;
        let far_row = if odd {
            (near_row + 1).min(height - 1)
        } else {
            near_row.saturating_sub(1)
        };
        for (plane, wide) in self.planes[1..].iter().zip(&mut self.wide) {
            let near = plane.row(near_row, columns.clone());
            let far = plane.row(far_row, columns.clone());
            match (h, v) {
                _ if !geometry.smooth => upsample::repeat(near, h, wide),
                (2, _) if width <= REPEAT_UP_TO => upsample::repeat(near, 2, wide),
                (2, 1) => self.level.horizontal(near, wide),
                (2, _) => self.level.both(near, far, wide),
                (1, _) => {
                    let bias = upsample::vertical_bias(odd);
                    self.level.vertical(near, far, bias, wide);
                }
                _ => upsample::repeat(near, h, wide),
            }
        }
    }
}
