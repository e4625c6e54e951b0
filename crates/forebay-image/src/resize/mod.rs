//! Antialiased resizing, bit for bit as Pillow's `Image.resize(..., BILINEAR)` does it on 8-bit images.
//!
//! The filter is a triangle as wide as the scale; each axis is a pass of its own; weights are integers with
//! [`PRECISION_BITS`] bits; both passes round to bytes. Because the arithmetic is integer, every
//! implementation here (portable, SIMD) gives the same bytes, and the same as Pillow. Only the part of the
//! output that is wanted is computed, from only the part of the input that it needs; a horizontal flip and the
//! layout of the output cost nothing extra.

mod axis;
mod portable;

use crate::decode::Region;
use crate::transform::Layout;
use axis::Axis;

/// Fixed point of the weights: 32 bits less 8 for the pixel and 2 for the sum's head room, as in Pillow.
const PRECISION_BITS: u32 = 32 - 8 - 2;

/// A resize of a whole image and the part of the result that is wanted.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Resize {
    /// Size of the input.
    pub(crate) input: (u32, u32),
    /// Size of the whole output.
    pub(crate) output: (u32, u32),
    /// What is wanted of the output.
    pub(crate) window: Region,
    /// Mirror the window left to right.
    pub(crate) flip: bool,
}

/// Weights and the rows between the passes, kept from image to image.
#[derive(Debug, Default)]
pub(crate) struct Resizer {
    columns: Axis,
    rows: Axis,
    middle: Vec<u8>,
}

impl Resizer {
    /// Computes the weights; returns the region of the input that [`Resizer::run`] needs.
    pub(crate) fn plan(&mut self, resize: &Resize) -> Region {
        let Resize {
            input,
            output,
            window,
            flip,
        } = *resize;
        self.columns
            .fill(input.0, output.0, window.x..window.x + window.width, flip);
        self.rows
            .fill(input.1, output.1, window.y..window.y + window.height, false);
        let (x, y) = (self.columns.span(), self.rows.span());
        Region {
            x: x.start,
            y: y.start,
            width: x.end - x.start,
            height: y.end - y.start,
        }
    }

    /// Resizes what [`Resizer::plan`] asked for: `source` begins at that region's first pixel and has
    /// `stride` bytes from a row to the next. `out` holds three bytes for each pixel of the window.
    pub(crate) fn run(&mut self, source: &[u8], stride: usize, layout: Layout, out: &mut [u8]) {
        let (width, height) = (self.columns.len(), self.rows.len());
        assert_eq!(out.len(), width * height * 3, "the window's size");
        let span = self.rows.span();
        let in_rows = (span.end - span.start) as usize;
        self.middle.resize(in_rows * width * 3, 0);
        portable::horizontal(&self.columns, source, stride, layout, &mut self.middle);
        portable::vertical(&self.rows, &self.middle, width, layout, out);
    }
}
