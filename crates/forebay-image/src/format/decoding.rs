//! The interface of a format's decoders: the job, and the canvas for the pixels.

use super::Probe;
use forebay_jpeg::internals::Decoders;
use forebay_jpeg::{Limits, Region, RgbImage, SeekPoints};

/// Memory that decoders reuse from image to image.
#[derive(Debug, Default)]
pub(crate) struct Scratch {
    pub(crate) jpeg: Decoders,
}

/// A region to decode; it is inside the image, and the image is within the limits.
pub(crate) struct DecodeJob<'a> {
    pub(crate) bytes: &'a [u8],
    pub(crate) probe: &'a Probe,
    /// Divisor of width and height: 1, or 2, 4 or 8 for a format with [scaled
    /// decoding](super::ImageFormat::scales).
    pub(crate) scale: u32,
    /// The region, in the scaled image.
    pub(crate) region: Region,
    pub(crate) limits: &'a Limits,
    /// The image's seek points, not validated.
    pub(crate) seek_points: SeekPoints<'a>,
    /// Whether the format has [declined](super::ImageFormat::stream) to stream the region.
    pub(crate) declined: bool,
}

/// Memory for the pixels of a region. A decoder may write more columns and rows than requested.
#[derive(Debug, Default)]
pub(crate) struct Canvas {
    /// RGB rows.
    pub(crate) data: Vec<u8>,
    /// Bytes from one row to the next.
    pub(crate) stride: usize,
    /// Offset of the region's first pixel.
    pub(crate) start: usize,
    /// Buffer for oriented images.
    pub(crate) turned: Vec<u8>,
}

impl Canvas {
    /// Readable bytes past the last row, so that SIMD code can load whole vectors.
    pub(crate) const TAIL: usize = 64;

    /// Resizes the canvas for rows of exactly a region's width; the content is then undefined.
    pub(crate) fn reset(&mut self, width: usize, height: usize) {
        self.stride = width * 3;
        self.start = 0;
        let size = self.stride * height + Self::TAIL;
        // Never shrinks: growing again would zero bytes that are overwritten anyway.
        if self.data.len() < size {
            self.data.resize(size, 0);
        }
    }

    /// Returns whether the canvas contains the whole region, since decoders are not trusted.
    pub(crate) fn holds(&self, region: &Region) -> bool {
        let row = region.width as usize * 3;
        let last = (region.height as usize - 1)
            .checked_mul(self.stride)
            .and_then(|n| n.checked_add(self.start))
            .and_then(|n| n.checked_add(row));
        row <= self.stride && last.is_some_and(|end| end <= self.data.len())
    }

    /// Copies the region from the canvas.
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

    /// Returns the bytes from the region's first pixel on, including columns beside the region.
    pub(crate) fn rows_from(&self) -> &[u8] {
        &self.data[self.start..]
    }
}
