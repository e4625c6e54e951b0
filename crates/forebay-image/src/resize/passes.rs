//! A resize in progress: consumes the rows of its input one after the other and produces output
//! rows as early as possible.

use super::axis::{Axis, Source};
#[cfg(all(target_arch = "aarch64", target_endian = "little"))]
use super::neon;
use super::portable;
use super::{Level, Middle, Resizer, STRIP};
#[cfg(target_arch = "x86_64")]
use super::{avx2, avx512};
use crate::options::ResizeLike;
use crate::output::Layout;
use forebay_jpeg::internals::{Room, Rows};
use std::ops::Range;
use std::time::{Duration, Instant};

/// Layout of the buffered input rows: rows of pixels, or of each channel.
#[derive(Debug, Clone, Copy)]
struct Strip {
    /// Pixels per row.
    width: usize,
    /// Bytes from one row to the next.
    stride: usize,
    /// Whether each channel has its own rows, one channel after the other.
    planes: bool,
}

/// A resize in progress.
#[derive(Debug)]
pub(crate) struct Passes<'a> {
    resizer: &'a mut Resizer,
    out: &'a mut [u8],
    strip: Strip,
    middle: Middle,
    /// Number of rows of the input.
    height: usize,
    /// Number of rows consumed.
    taken: usize,
    /// Number of output rows produced.
    made: usize,
    spent: Duration,
}

impl<'a> Passes<'a> {
    pub(super) fn new(resizer: &'a mut Resizer, layout: Layout, out: &'a mut [u8]) -> Self {
        let (input, output, ring) = if resizer.resize_like == ResizeLike::Pillow {
            let (columns, rows) = (&resizer.columns, &resizer.rows);
            let input = (columns.span().len(), rows.span().len());
            // The inputs of an output row end in the strip just processed and reach back by at most `most_inputs` rows;
            // both ends are rounded to whole strips.
            let needed = rows.most_inputs().next_multiple_of(STRIP) + 2 * STRIP;
            let ring = needed.min(input.1.next_multiple_of(STRIP));
            (input, (columns.len(), rows.len()), ring)
        } else {
            resizer.linear.begin();
            let (input, output) = resizer.linear.size();
            (input, output, 0)
        };
        assert_eq!(out.len(), output.0 * output.1 * 3, "the window's size");
        let strip = resizer.strip_of(input.0);
        let size = strip.stride * STRIP * if strip.planes { 3 } else { 1 };
        if resizer.strip.len() < size {
            resizer.strip.resize(size, 0);
        }
        let middle = Middle::new(layout, output.0, ring);
        resizer.prepare(middle);
        Self {
            resizer,
            out,
            strip,
            middle,
            height: input.1,
            taken: 0,
            made: 0,
            spent: Duration::ZERO,
        }
    }

    /// Consumes all rows from memory, `stride` bytes apart.
    pub(crate) fn take_all(&mut self, source: &[u8], stride: usize) {
        let width = self.strip.width * 3;
        for row in source.chunks(stride).take(self.height) {
            match self.room() {
                Some(Room::Pixels(to)) => to.copy_from_slice(&row[..width]),
                // Only the levels of this architecture request planes.
                #[cfg(target_arch = "x86_64")]
                Some(Room::Planes(planes)) => avx2::split(&row[..width], planes),
                #[cfg(not(target_arch = "x86_64"))]
                Some(Room::Planes(_)) => {}
                None => {}
            }
            self.done();
        }
    }

    /// Ends the resize after the last row; returns the time that the passes took.
    ///
    /// # Panics
    /// If rows are missing.
    pub(crate) fn finish(self) -> Duration {
        assert_eq!(self.taken, self.height, "rows of the region");
        self.spent
    }

    /// Processes the buffered rows, the first of which is row `first` of the input.
    fn flush(&mut self, first: usize) {
        let begun = Instant::now();
        if self.resizer.resize_like == ResizeLike::Pillow {
            self.resizer
                .horizontal(self.middle, first, self.taken - first);
            while self.made < self.resizer.rows.len()
                && self.resizer.rows.end(self.made) <= self.taken
            {
                self.resizer.vertical(self.middle, self.made, self.out);
                self.made += 1;
            }
        } else {
            let Resizer {
                linear,
                strip,
                level,
                ..
            } = &mut *self.resizer;
            for (row, pixels) in (first..self.taken).zip(strip.chunks_exact(self.strip.stride)) {
                if linear.wants(row) {
                    let (layout, portable) = (self.middle.layout, *level == Level::Portable);
                    linear.take(row, pixels, layout, self.out, portable);
                }
            }
        }
        self.spent += begun.elapsed();
    }
}

impl Rows for Passes<'_> {
    #[inline]
    fn room(&mut self) -> Option<Room<'_>> {
        let Strip {
            width,
            stride,
            planes,
        } = self.strip;
        let linear = self.resizer.resize_like != ResizeLike::Pillow;
        if self.taken >= self.height || (linear && !self.resizer.linear.wants(self.taken)) {
            return None;
        }
        let row = self.taken % STRIP;
        if !planes {
            return Some(Room::Pixels(
                &mut self.resizer.strip[row * stride..][..width * 3],
            ));
        }
        let (red, rest) = self.resizer.strip.split_at_mut(STRIP * stride);
        let (green, blue) = rest.split_at_mut(STRIP * stride);
        Some(Room::Planes(
            [red, green, blue].map(|plane| &mut plane[row * stride..][..width]),
        ))
    }

    #[inline]
    fn done(&mut self) {
        self.taken += 1;
        if self.taken.is_multiple_of(STRIP) || self.taken == self.height {
            self.flush((self.taken - 1) / STRIP * STRIP);
        }
    }
}

impl Level {
    /// [`Axis::fill`], compiled for this level.
    pub(super) fn fill(
        self,
        axis: &mut Axis,
        input: Source,
        output: u32,
        window: Range<u32>,
        reverse: bool,
    ) {
        match self {
            #[cfg(target_arch = "x86_64")]
            Self::Avx512 => avx512::fill(axis, input, output, window, reverse),
            #[cfg(target_arch = "x86_64")]
            Self::Avx2 => avx2::fill(axis, input, output, window, reverse),
            _ => axis.fill(input, output, window, reverse),
        }
    }
}

/// The passes at the resizer's level.
impl Resizer {
    fn strip_of(&self, width: usize) -> Strip {
        let (stride, planes) = match self.level {
            _ if self.resize_like != ResizeLike::Pillow => (width * 3, false),
            #[cfg(target_arch = "x86_64")]
            Level::Avx512 => (avx512::row_stride(width), true),
            #[cfg(target_arch = "x86_64")]
            Level::Avx2 => (avx2::row_stride(width), true),
            #[cfg(all(target_arch = "aarch64", target_endian = "little"))]
            Level::Neon => (neon::row_stride(width), false),
            Level::Portable => (width * 3, false),
        };
        Strip {
            width,
            stride,
            planes,
        }
    }

    /// Prepares the weights and buffers that the passes use.
    fn prepare(&mut self, middle: Middle) {
        if self.resize_like != ResizeLike::Pillow {
            return;
        }
        #[cfg(target_arch = "x86_64")]
        match self.level {
            Level::Avx512 => {
                avx512::make_digits(&mut self.columns);
                avx512::make_digits(&mut self.rows);
                return self.lines.set(&self.columns, middle.ring);
            }
            Level::Avx2 => {
                self.columns.make_pairs();
                self.rows.make_neighbors();
            }
            Level::Portable => {}
        }
        let size = middle.ring * middle.stride;
        if self.between.len() < size {
            self.between.resize(size, 0);
        }
    }

    /// Applies the first pass to `count` buffered rows, which begin with row `first` of the input.
    fn horizontal(&mut self, middle: Middle, first: usize, count: usize) {
        let stride = self.strip_of(self.columns.span().len()).stride;
        #[cfg(target_arch = "x86_64")]
        if self.level == Level::Avx512 {
            let rows = &self.strip[..stride * STRIP * 3];
            return self.lines.horizontal(&self.columns, rows, first);
        }
        let rows = &mut self.between[middle.row(first % middle.ring, 0)..];
        #[cfg(target_arch = "x86_64")]
        if self.level == Level::Avx2 {
            let source = &self.strip[..stride * STRIP * 3];
            return avx2::horizontal(&self.columns, source, middle, &mut self.pairs, rows);
        }
        let source = &self.strip[..stride * count];
        let rows = &mut rows[..middle.stride * count];
        match self.level {
            #[cfg(all(target_arch = "aarch64", target_endian = "little"))]
            Level::Neon => neon::horizontal(&self.columns, source, count, middle, rows),
            _ => portable::horizontal(&self.columns, source, stride, middle, rows),
        }
    }

    /// Applies the second pass for row `y` of the output.
    fn vertical(&self, middle: Middle, y: usize, out: &mut [u8]) {
        let rows = &self.between;
        match self.level {
            #[cfg(target_arch = "x86_64")]
            Level::Avx512 => {
                self.lines
                    .vertical(&self.rows, y, &self.columns, middle.layout, out);
            }
            #[cfg(target_arch = "x86_64")]
            Level::Avx2 => avx2::vertical(&self.rows, y, rows, middle, out),
            #[cfg(all(target_arch = "aarch64", target_endian = "little"))]
            Level::Neon => neon::vertical(&self.rows, y, rows, middle, out),
            Level::Portable => portable::vertical(&self.rows, y, rows, middle, out),
        }
    }
}
