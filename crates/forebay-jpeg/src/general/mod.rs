//! A decoder for all JPEGs with Huffman codes and 8 bits per sample: progressive files, complete or
//! truncated, several scans, four components, and any sampling factors that divide the largest
//! ones.
//!
//! It reads all coefficients into memory, then transforms the blocks that a region needs. Pixels equal those of
//! libjpeg-turbo's default decoder, bit for bit. [`baseline`](super::baseline) is faster on the files that it
//! supports; this decoder reads all others, and returns the errors about damaged files.
//!
//! - [`read`] walks over markers and scans, with or without their data; [`scan`] and [`huffman`]
//!   turn bits into coefficients.
//! - [`smooth`] estimates coefficients that an incomplete progressive file lacks; [`render`]
//!   produces pixels.

mod huffman;
mod read;
mod render;
mod scan;
mod smooth;

#[cfg(test)]
mod tests;

use super::baseline::bits::Stream;
use super::baseline::header::Steps;
use super::baseline::simd::Level;
use crate::encoding::Encoding;
use crate::error::{Error, Result};
use crate::limits::Limits;
use crate::region::RegionJob;
use read::{Depth, ParsedJpeg};
use scan::Block;

/// Memory that the decoder reuses from image to image.
#[derive(Debug, Default)]
pub(crate) struct General {
    stream: Stream,
    level: Level,
    pairs: Vec<i16>,
}

/// A component of the frame.
#[derive(Debug, Clone)]
struct Component {
    id: u8,
    /// Blocks per MCU of an interleaved scan: horizontally and vertically.
    factors: (usize, usize),
    /// Slot of the component's quantization table.
    slot: usize,
    /// Number of blocks that the image needs, horizontally and vertically.
    size: (usize, usize),
    /// Like `size`, but padded to whole MCUs.
    padded: (usize, usize),
    /// Coefficients, `padded.0` blocks per row; empty if only the structure of the file is read.
    blocks: Vec<Block>,
    /// The quantization table in effect at the component's first scan.
    steps: Option<Steps>,
    /// Number of missing low bits of each coefficient, by zigzag index; -1 if no scan has coded the
    /// coefficient yet.
    known: [i8; 64],
}

impl General {
    /// Decodes a region into `out`, three bytes per pixel.
    pub(crate) fn decode(&mut self, job: &RegionJob<'_>, out: &mut [u8]) -> Result<()> {
        let depth = Depth::Coefficients(&mut self.stream);
        let picture = ParsedJpeg::read(job.bytes, job.limits, depth)?;
        if picture.size != (job.size.0 as usize, job.size.1 as usize) {
            return Err(Error::corrupt(Encoding::Jpeg, "two different sizes"));
        }
        self.render(&picture, job.scale as usize, &job.region, out);
        Ok(())
    }

    /// Checks that a JPEG can be decoded, by reading the codes of all its scans.
    pub(crate) fn check_codes(&mut self, bytes: &[u8], limits: &Limits) -> Result<()> {
        let depth = Depth::Coefficients(&mut self.stream);
        ParsedJpeg::read(bytes, limits, depth).map(drop)
    }
}

/// Checks from its markers that a JPEG is of a supported kind. For a file with a single scan this
/// stops before the scan; for other files it skips the data between markers.
pub(crate) fn check_structure(bytes: &[u8], limits: &Limits) -> Result<()> {
    ParsedJpeg::read(bytes, limits, Depth::Structure).map(drop)
}
