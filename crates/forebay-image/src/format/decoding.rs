//! The interface of a format's decoders: the job, and the canvas for the pixels.

use super::Probe;
use super::jpeg;
use crate::error::Result;
use crate::limits::Limits;
use crate::region::{Region, RgbImage};
use crate::rows::Rows;

/// One decoder of a format.
pub(crate) struct FormatDecoder {
    /// Decodes the region of a job onto the canvas.
    pub(crate) decode: fn(&DecodeJob<'_>, &mut Scratch, &mut Canvas) -> Result<Outcome>,
    /// Decodes it row by row, where the decoder can.
    pub(crate) stream: Option<Stream>,
}

/// Decodes row by row. [`Outcome::Declined`] may come after some of the rows.
pub(crate) type Stream = fn(&DecodeJob<'_>, &mut Scratch, &mut dyn Rows) -> Result<Outcome>;

/// Whether a decoder accepted an image.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Outcome {
    /// The region is on the canvas.
    Done,
    /// Another kind of file, for the next decoder of the format.
    Declined,
}

/// Memory that decoders keep from image to image.
#[derive(Debug, Default)]
pub(crate) struct Scratch {
    pub(super) jpeg: jpeg::Scratch,
}

/// A region to decode; it is inside the image, and the image is within the limits.
pub(crate) struct DecodeJob<'a> {
    pub(crate) bytes: &'a [u8],
    pub(crate) probe: &'a Probe,
    /// Width and height are divided by this: 1, or 2, 4 or 8 for a format that [scales](super::ImageFormat::scales).
    pub(crate) scale: u32,
    /// A region of the picture at that scale.
    pub(crate) region: Region,
    pub(crate) limits: &'a Limits,
    /// The image's seek points, unchecked.
    pub(crate) seek_points: Option<&'a [u8]>,
}

/// Memory for the pixels of a region. A decoder may deliver more columns and rows than asked for.
#[derive(Debug, Default)]
pub(crate) struct Canvas {
    /// RGB rows.
    pub(crate) data: Vec<u8>,
    /// Bytes from a row to the next.
    pub(crate) stride: usize,
    /// Offset of the region's first pixel.
    pub(crate) start: usize,
    /// Room for turned pictures.
    pub(crate) turned: Vec<u8>,
}

impl Canvas {
    /// Bytes that are readable past the last row, so that SIMD may load whole vectors.
    pub(crate) const TAIL: usize = 64;

    /// Makes room for rows of exactly a region's width; what is in it is left over.
    pub(crate) fn reset(&mut self, width: usize, height: usize) {
        self.stride = width * 3;
        self.start = 0;
        let size = self.stride * height + Self::TAIL;
        // Never shorter: growing again would write zeros over what is written over anyway.
        if self.data.len() < size {
            self.data.resize(size, 0);
        }
    }

    /// Checks that the region is really there: decoders are not trusted.
    pub(crate) fn holds(&self, region: &Region) -> bool {
        let row = region.width as usize * 3;
        let last = (region.height as usize - 1)
            .checked_mul(self.stride)
            .and_then(|n| n.checked_add(self.start))
            .and_then(|n| n.checked_add(row));
        row <= self.stride && last.is_some_and(|end| end <= self.data.len())
    }

    /// The region alone.
    pub(crate) fn cut(&self, region: &Region) -> RgbImage {
        let row = region.width as usize * 3;
        let mut data = Vec::with_capacity(row * region.height as usize);
        for line in self
            .rows_from()
            .chunks(self.stride)
            .take(region.height as usize)
        {
            data.extend_from_slice(&line[..row]);
        }
        RgbImage {
            width: region.width,
            height: region.height,
            data,
        }
    }

    /// From the region's first pixel on: its rows, and whatever lies beside them.
    pub(crate) fn rows_from(&self) -> &[u8] {
        &self.data[self.start..]
    }
}
