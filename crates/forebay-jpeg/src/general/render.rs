//! Renders the pixels of a region from coefficients.

use super::read::ParsedJpeg;
use super::smooth::Row;
use super::{Component, General};
use crate::baseline::entropy::{PAIR, SECOND, TAIL};
use crate::baseline::header::Steps;
use crate::baseline::simd::Level;
use crate::baseline::upsample;
use crate::markers::ColorModel;
use crate::region::Region;
use std::ops::Range;

/// Maximum width of a chroma plane whose samples are repeated, not interpolated (libjpeg's rule).
const REPEAT_UP_TO: usize = 2;
/// Writable bytes after a row, so that whole vectors can be stored.
const SLACK: usize = 64;

/// The samples of a component that a region needs.
struct Plane {
    samples: Vec<u8>,
    stride: usize,
    /// Needed columns and rows of the component; `samples` begins with the block that contains the
    /// first column and row.
    columns: Range<usize>,
    rows: Range<usize>,
    /// Offset in `samples` of the first needed column, and number of rows before the first needed one.
    skip: (usize, usize),
    /// Width and height of the whole component.
    size: (usize, usize),
    /// Pixels per sample, horizontally and vertically.
    ratio: (usize, usize),
    /// Whether upsampling interpolates.
    smooth: bool,
    /// The last row that was upsampled to full width.
    wide: Vec<u8>,
}

impl General {
    /// Produces the RGB rows of a region at a scale of 1/`scale` (1, 2, 4 or 8).
    pub(super) fn render(
        &mut self,
        picture: &ParsedJpeg,
        scale: usize,
        region: &Region,
        out: &mut [u8],
    ) {
        let mut planes: Vec<Plane> = picture
            .components
            .iter()
            .map(|component| self.plane(picture, component, scale, region))
            .collect();
        let (x, y) = (region.x as usize, region.y as usize);
        let width = region.width as usize;
        for (row, line) in out.chunks_exact_mut(width * 3).enumerate() {
            for plane in &mut planes {
                plane.widen(self.level, y + row);
            }
            let rows: Vec<&[u8]> = planes
                .iter()
                .map(|plane| plane.pixels(y + row, x..x + width))
                .collect();
            paint(self.level, picture.color, &rows, line);
        }
    }

    fn plane(
        &mut self,
        picture: &ParsedJpeg,
        component: &Component,
        scale: usize,
        region: &Region,
    ) -> Plane {
        let least = 8 / scale;
        let (h, v) = component.factors;
        let most = picture.most;
        // libjpeg uses a larger inverse transform if that saves upsampling in both directions.
        let mut block = least;
        while block < 8
            && (most.0 * least).is_multiple_of(h * block * 2)
            && (most.1 * least).is_multiple_of(v * block * 2)
        {
            block *= 2;
        }
        let ratio = (most.0 * least / (h * block), most.1 * least / (v * block));
        let size = (
            (picture.size.0 * h * block).div_ceil(8 * most.0),
            (picture.size.1 * v * block).div_ceil(8 * most.1),
        );
        let needed = |from: u32, length: u32, ratio: usize, limit: usize| {
            let (from, to) = (from as usize, (from + length) as usize);
            // Interpolation uses neighbors, so one more sample is needed on each side.
            (from / ratio).saturating_sub(1)..(to.div_ceil(ratio) + 1).min(limit)
        };
        let columns = needed(region.x, region.width, ratio.0, size.0);
        let rows = needed(region.y, region.height, ratio.1, size.1);
        let across = columns.start / block..columns.end.div_ceil(block);
        let down = rows.start / block..rows.end.div_ceil(block);
        let pairs = across.len().div_ceil(2);
        let stride = pairs * 2 * block;
        let mut samples = vec![0; stride * block * down.len() + SLACK];
        self.pairs.clear();
        self.pairs.resize(pairs * PAIR + TAIL, 0);
        let steps: Steps = component.steps.unwrap_or([0; 64]);
        for (line, row) in samples.chunks_mut(stride * block).zip(down.clone()) {
            let smoothed = picture.smooth.then(|| Row::new(component, row));
            for (i, column) in across.clone().enumerate() {
                let estimated;
                let from = if let Some(row) = &smoothed {
                    estimated = row.block(column);
                    &estimated
                } else {
                    &component.blocks[row * component.padded.0 + column]
                };
                let to = &mut self.pairs[i / 2 * PAIR + i % 2 * SECOND..];
                for (to, from) in to.chunks_mut(2 * SECOND).zip(from.chunks_exact(8)) {
                    to[..8].copy_from_slice(from);
                }
            }
            let coefficients = &mut self.pairs[..pairs * PAIR];
            self.level.idct(block, coefficients, &steps, line, stride);
        }
        Plane {
            skip: (
                columns.start - across.start * block,
                rows.start - down.start * block,
            ),
            wide: vec![0; columns.len() * ratio.0 + SLACK],
            samples,
            stride,
            columns,
            rows,
            size,
            ratio,
            smooth: least > 1,
        }
    }
}

impl Plane {
    /// Returns the needed columns of a row of the component.
    fn row(&self, row: usize) -> &[u8] {
        let line = row - self.rows.start + self.skip.1;
        &self.samples[line * self.stride + self.skip.0..][..self.columns.len()]
    }

    /// Upsamples a row to full width, if the component is subsampled.
    fn widen(&mut self, level: Level, y: usize) {
        let (h, v) = self.ratio;
        if (h, v) == (1, 1) {
            return;
        }
        let mut wide = std::mem::take(&mut self.wide);
        let near_row = y / v;
        let is_odd = y % 2 == 1;
        let near = self.row(near_row);
        // Past the last row of the image, that row is repeated.
        let far = || {
            self.row(if is_odd {
                (near_row + 1).min(self.size.1 - 1)
            } else {
                near_row.saturating_sub(1)
            })
        };
        match (h, v) {
            _ if !self.smooth => upsample::repeat(near, h, &mut wide),
            (2, 1 | 2) if self.size.0 <= REPEAT_UP_TO => upsample::repeat(near, 2, &mut wide),
            (2, 1) => level.horizontal(near, &mut wide),
            (2, 2) => level.both(near, far(), &mut wide),
            (1, 2) => {
                let bias = upsample::vertical_bias(is_odd);
                level.vertical(near, far(), bias, &mut wide);
            }
            _ => upsample::repeat(near, h, &mut wide),
        }
        self.wide = wide;
    }

    /// Returns pixels of the last upsampled row.
    fn pixels(&self, y: usize, columns: Range<usize>) -> &[u8] {
        let start = columns.start - self.columns.start * self.ratio.0;
        let row = if self.ratio == (1, 1) {
            self.row(y)
        } else {
            &self.wide
        };
        &row[start..start + columns.len()]
    }
}

/// Converts a row of each component to RGB pixels.
fn paint(level: Level, color: ColorModel, rows: &[&[u8]], out: &mut [u8]) {
    match (color, rows) {
        (ColorModel::YCbCr | ColorModel::Ycck, &[y, cb, cr, ..]) => level.ycc(y, cb, cr, out),
        (_, &[first, second, third, ..]) => level.interleave([first, second, third], out),
        (_, &[gray, ..]) => level.interleave([gray; 3], out),
        _ => {}
    }
    // Inks are stored inverted, as Adobe does: 255 means no ink. YCCK stores the complement of these values.
    if let &[_, _, _, black] = rows {
        let flip = if color == ColorModel::Ycck { 255 } else { 0 };
        for (pixel, &black) in out.chunks_exact_mut(3).zip(black) {
            for value in pixel {
                *value = (u16::from(*value ^ flip) * u16::from(black) / 255) as u8;
            }
        }
    }
}
