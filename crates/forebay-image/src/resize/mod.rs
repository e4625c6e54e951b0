//! Resizing: antialiased, as in Pillow's `Image.resize(..., BILINEAR)` on 8-bit images, bit for bit
//! (here), or from the nearest pixels as in OpenCV and TensorFlow ([`linear`]).
//!
//! The filter is a triangle as wide as the scale. Each axis is a separate pass, columns first;
//! weights are integers with [`PRECISION_BITS`] bits, and both passes round to bytes. (Pillow did
//! the same up to version 12. Version 13 processes rows first if the height shrinks much more than
//! the width, which changes some values by one.) Because the arithmetic is integer, every
//! implementation here (portable, AVX2, AVX-512, NEON) gives the same bytes as Pillow. Only the
//! wanted part of the output is computed, from the part of the input that it needs. A horizontal
//! flip and a change of layout cost nothing.
//!
//! The input arrives row by row ([`Passes`]): a few rows are buffered for the first pass, whose
//! results are kept in a ring that is as large as the second pass needs. So neither the input nor
//! the intermediate rows are ever completely in memory.

#[cfg(target_arch = "x86_64")]
mod avx2;
#[cfg(target_arch = "x86_64")]
mod avx512;
mod axis;
mod linear;
#[cfg(all(target_arch = "aarch64", target_endian = "little"))]
mod neon;
mod passes;
mod portable;

use crate::geometry::{SpatialMap, SpatialStep};
use crate::options::ResizeLike;
use crate::output::Layout;
use axis::Axis;
pub(crate) use axis::Source;
use forebay_jpeg::Region;
use linear::Linear;
pub(crate) use passes::Passes;

/// Fractional bits of the weights: 32 bits minus 8 for the pixel and 2 for headroom of the sum, as
/// in Pillow.
const PRECISION_BITS: u32 = 32 - 8 - 2;
/// Half a unit of the fixed-point numbers, added for rounding.
const HALF: i32 = 1 << (PRECISION_BITS - 1);

/// Rows of the input that the first pass processes together.
const STRIP: usize = 16;

/// A resize of a whole image, and the wanted part of the result.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct ResizePlan {
    /// Size of the input.
    pub(crate) input: (u32, u32),
    /// Size of the whole output.
    pub(crate) output: (u32, u32),
    /// The wanted part of the output.
    pub(crate) window: Region,
    /// Whether the window is mirrored left to right.
    pub(crate) flip: bool,
}

/// A crop of an image, and its resize.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct CropPlan {
    /// Left column and top row of the crop.
    pub(crate) origin: (u32, u32),
    /// Whether boxes whose center is outside of the crop are dropped.
    pub(crate) centers: bool,
    pub(crate) resize: ResizePlan,
}

impl CropPlan {
    /// Adds the steps of this plan to the map of the whole image. The window is padded to `width` and `height`.
    pub(crate) fn track(&self, map: &mut SpatialMap, (width, height): (u32, u32)) {
        let ResizePlan {
            input,
            output,
            window,
            flip,
        } = self.resize;
        let (x, y) = self.origin;
        let crop = Region {
            x,
            y,
            width: input.0,
            height: input.1,
        };
        if self.centers || crop != Region::whole(map.output().0, map.output().1) {
            map.push(SpatialStep::Crop {
                x: x.into(),
                y: y.into(),
                width: input.0,
                height: input.1,
                centers: self.centers,
            });
        }
        if output != input {
            let (width, height) = output;
            map.push(SpatialStep::Resize { width, height });
        }
        if window != Region::whole(width, height) || output != (width, height) {
            // `PixelBuffer::pad` adds the border after the flip; of an odd border, the narrower side is at the left.
            let border = |inner: u32, outer: u32| outer.saturating_sub(inner);
            let (left, top) = (border(window.width, width), border(window.height, height));
            let left = if flip { left.div_ceil(2) } else { left / 2 };
            map.push(SpatialStep::Crop {
                x: i64::from(window.x) - i64::from(left),
                y: i64::from(window.y) - i64::from(top / 2),
                width,
                height,
                centers: false,
            });
        }
        if flip {
            map.push(SpatialStep::FlipHorizontal);
        }
    }
}

/// Weights and intermediate rows, reused from image to image.
#[derive(Debug, Default)]
pub(crate) struct Resizer {
    pub(crate) resize_like: ResizeLike,
    columns: Axis,
    rows: Axis,
    /// Rows of the input, buffered for the first pass.
    strip: Vec<u8>,
    /// Intermediate rows.
    between: Vec<u8>,
    #[cfg(target_arch = "x86_64")]
    pairs: Vec<avx2::Pair>,
    #[cfg(target_arch = "x86_64")]
    lines: avx512::Lines,
    linear: Linear,
    level: Level,
}

/// The processor features that the passes may use.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Level {
    Portable,
    #[cfg(target_arch = "x86_64")]
    Avx2,
    #[cfg(target_arch = "x86_64")]
    Avx512,
    #[cfg(all(target_arch = "aarch64", target_endian = "little"))]
    Neon,
}

impl Level {
    /// All levels that this processor supports, the slowest first.
    fn all() -> impl Iterator<Item = Self> {
        let mut levels = [Some(Self::Portable), None, None];
        #[cfg(target_arch = "x86_64")]
        {
            levels[1] = is_x86_feature_detected!("avx2").then_some(Self::Avx2);
            levels[2] = avx512::is_there().then_some(Self::Avx512);
        }
        #[cfg(all(target_arch = "aarch64", target_endian = "little"))]
        {
            levels[1] = std::arch::is_aarch64_feature_detected!("neon").then_some(Self::Neon);
        }
        levels.into_iter().flatten()
    }
}

impl Default for Level {
    fn default() -> Self {
        Self::all().last().unwrap_or(Self::Portable)
    }
}

/// Layout of intermediate rows, in the order of the output: one run of pixels (NHWC) or three runs
/// of one channel (NCHW). Runs are multiples of 32 bytes apart, so that a pass may write a little
/// past the end of a run.
#[derive(Debug, Clone, Copy)]
struct Middle {
    layout: Layout,
    /// Wanted columns.
    width: usize,
    /// Bytes from one run to the next.
    run_stride: usize,
    /// Bytes from one row to the next.
    stride: usize,
    /// Capacity in rows; a row replaces the one this many rows before it.
    ring: usize,
}

impl Middle {
    fn new(layout: Layout, width: usize, ring: usize) -> Self {
        let (run, runs) = match layout {
            Layout::Nhwc => (width * 3, 1),
            Layout::Nchw => (width, 3),
        };
        let run_stride = run.next_multiple_of(32) + 32;
        Self {
            layout,
            width,
            run_stride,
            stride: run_stride * runs,
            ring,
        }
    }

    /// Returns the start of row `first + t` in the ring, where `place` is the position of `first`;
    /// `t` is at most the capacity of the ring.
    #[inline(always)]
    fn row(self, place: usize, t: usize) -> usize {
        let row = place + t;
        let row = if row < self.ring {
            row
        } else {
            row - self.ring
        };
        row * self.stride
    }

    /// Returns the runs of one row: the start of each in the row, its length, and its position in the output.
    fn runs(self, y: usize, height: usize) -> impl Iterator<Item = (usize, usize, usize)> {
        let (runs, length) = match self.layout {
            Layout::Nhwc => (1, self.width * 3),
            Layout::Nchw => (3, self.width),
        };
        (0..runs).map(move |run| (run * self.run_stride, length, (run * height + y) * length))
    }
}

impl Resizer {
    /// Computes the weights. Returns the region of the input that [`Resizer::run`] needs.
    pub(crate) fn plan(&mut self, resize: &ResizePlan) -> Region {
        let (width, height) = resize.input;
        self.plan_part(Source::whole(width), Source::whole(height), resize)
    }

    /// As [`Resizer::plan`], for a part of an image that may begin and end between pixels; ignores
    /// `resize.input`. The returned region is in columns and rows of the image.
    pub(crate) fn plan_part(
        &mut self,
        columns: Source,
        rows: Source,
        resize: &ResizePlan,
    ) -> Region {
        let ResizePlan {
            output,
            window,
            flip,
            ..
        } = *resize;
        let [x, y] = if self.resize_like == ResizeLike::Pillow {
            let x = window.x..window.x + window.width;
            let y = window.y..window.y + window.height;
            self.level
                .fill(&mut self.columns, columns, output.0, x, flip);
            self.level.fill(&mut self.rows, rows, output.1, y, false);
            [self.columns.span(), self.rows.span()]
        } else {
            self.linear.plan(self.resize_like, [columns, rows], resize)
        };
        Region {
            x: x.start,
            y: y.start,
            width: x.end - x.start,
            height: y.end - y.start,
        }
    }

    /// Resizes the region that [`Resizer::plan`] returned: `source` begins at its first pixel and
    /// has `stride` bytes from one row to the next. `out` holds three bytes per pixel of the
    /// window.
    pub(crate) fn run(&mut self, source: &[u8], stride: usize, layout: Layout, out: &mut [u8]) {
        let mut passes = self.passes(layout, out);
        passes.take_all(source, stride);
        passes.finish();
    }

    /// Resizes the region that [`Resizer::plan`] returned, which is supplied row by row. `out`
    /// holds three bytes per pixel of the window.
    pub(crate) fn passes<'a>(&'a mut self, layout: Layout, out: &'a mut [u8]) -> Passes<'a> {
        Passes::new(self, layout, out)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use forebay_jpeg::internals::{Room, Rows};
    use proptest::prelude::*;

    fn resize(
        level: Level,
        resize_like: ResizeLike,
        resize: &ResizePlan,
        layout: Layout,
        tail: usize,
    ) -> Vec<u8> {
        let mut resizer = Resizer {
            level,
            resize_like,
            ..Resizer::default()
        };
        let region = resizer.plan(resize);
        let stride = region.width as usize * 3 + tail;
        let mut x = 12345u32;
        let mut next = || {
            x = x.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
            // Many black and white pixels give sums at their limits.
            match x >> 30 {
                0 => 255,
                1 => 0,
                _ => (x >> 16) as u8,
            }
        };
        let source: Vec<u8> = (0..stride * region.height as usize - tail)
            .map(|_| next())
            .collect();
        let mut out = vec![7; (resize.window.width * resize.window.height * 3) as usize];
        resizer.run(&source, stride, layout, &mut out);
        out
    }

    proptest! {
        #[test]
        fn every_implementation_gives_the_same_bytes(
            input in (1u32..400, 1u32..200),
            output in (1u32..90, 1u32..60),
            cut in (0.0..1.0f64, 0.0..1.0f64),
            flip: bool,
            planes: bool,
            tail in 0usize..40,
        ) {
            let part = |length: u32, cut: f64| {
                let from = (f64::from(length) * cut * 0.5) as u32;
                (from, (length - from).div_ceil(2))
            };
            let ((x, width), (y, height)) = (part(output.0, cut.0), part(output.1, cut.1));
            let window = Region { x, y, width, height };
            let plan = ResizePlan { input, output, window, flip };
            let layout = if planes { Layout::Nchw } else { Layout::Nhwc };
            for resize_like in ResizeLike::ALL {
                let portable = resize(Level::Portable, resize_like, &plan, layout, tail);
                for level in Level::all() {
                    let found = resize(level, resize_like, &plan, layout, tail);
                    prop_assert!(found == portable, "{} {:?}", resize_like, level);
                }
            }
        }
    }

    #[test]
    fn the_same_size_gives_the_same_image() {
        let window = Region::whole(9, 7);
        let plan = ResizePlan {
            input: (9, 7),
            output: (9, 7),
            window,
            flip: false,
        };
        for resize_like in ResizeLike::ALL {
            let mut resizer = Resizer {
                resize_like,
                ..Resizer::default()
            };
            assert_eq!(resizer.plan(&plan), window);
            let source: Vec<u8> = (0..9 * 7 * 3).collect();
            let mut out = vec![0; source.len()];
            resizer.run(&source, 27, Layout::Nhwc, &mut out);
            assert_eq!(out, source, "{resize_like}");
        }
    }

    #[test]
    fn an_abandoned_resize_does_not_affect_the_next() {
        let window = Region::whole(13, 11);
        let plan = ResizePlan {
            input: (70, 90),
            output: (13, 11),
            window,
            flip: true,
        };
        let source: Vec<u8> = (0..70 * 90 * 3u32).map(|i| (i % 251) as u8).collect();
        let stride = 70 * 3;
        for resize_like in ResizeLike::ALL {
            for level in Level::all() {
                let mut resizer = Resizer {
                    level,
                    resize_like,
                    ..Resizer::default()
                };
                resizer.plan(&plan);
                let mut expected = vec![0; 13 * 11 * 3];
                resizer.run(&source, stride, Layout::Nhwc, &mut expected);
                // Some rows of another image, as if a decoder declined after them.
                let mut out = vec![7; expected.len()];
                let mut passes = resizer.passes(Layout::Nhwc, &mut out);
                for _ in 0..37 {
                    match passes.room() {
                        Some(Room::Pixels(row)) => row.fill(255),
                        Some(Room::Planes(rows)) => {
                            rows.into_iter().for_each(|row| row.fill(255));
                        }
                        None => {}
                    }
                    passes.done();
                }
                resizer.run(&source, stride, Layout::Nhwc, &mut out);
                assert!(out == expected, "{resize_like} {level:?}");
            }
        }
    }
}
