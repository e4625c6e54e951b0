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
use crate::error::{ImageError, Result};
use crate::format::Format;
use crate::format::{Canvas, DecodeJob, Outcome, Scratch};
use crate::jpeg::limits::Limits;
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

/// Decodes a region onto a canvas.
pub(crate) fn decode(
    job: &DecodeJob<'_>,
    scratch: &mut Scratch,
    canvas: &mut Canvas,
) -> Result<Outcome> {
    let general = &mut scratch.jpeg.general;
    let picture = ParsedJpeg::read(
        job.bytes,
        job.limits,
        Depth::Coefficients(&mut general.stream),
    )?;
    if picture.size != (job.probe.width as usize, job.probe.height as usize) {
        return Err(ImageError::corrupt(Format::Jpeg, "two different sizes"));
    }
    let (width, height) = (job.region.width as usize, job.region.height as usize);
    canvas.reset(width, height);
    let out = &mut canvas.data[..width * height * 3];
    general.render(&picture, job.scale as usize, &job.region, out);
    Ok(Outcome::Done)
}

/// Checks from its markers that a JPEG is of a supported kind. For a file with a single scan this
/// stops before the scan; for other files it skips the data between markers.
pub(crate) fn check_structure(bytes: &[u8], limits: &Limits) -> Result<()> {
    ParsedJpeg::read(bytes, limits, Depth::Structure).map(drop)
}

/// Checks that a JPEG can be decoded, by reading the codes of all its scans. `probe` is the result
/// of [`probe`](crate::probe()).
pub(crate) fn check_codes(general: &mut General, bytes: &[u8], limits: &Limits) -> Result<()> {
    let depth = Depth::Coefficients(&mut general.stream);
    ParsedJpeg::read(bytes, limits, depth).map(drop)
}
