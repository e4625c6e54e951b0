//! A decoder of every kind of JPEG with Huffman codes and 8 bits a sample: progressive files, complete or not, several
//! scans, four components, any sampling factors that divide the largest ones.
//!
//! It reads all coefficients into memory, then transforms those that a region needs. Pixels are those of libjpeg-turbo's
//! default decoder, to the bit. [`baseline`](super::baseline) is faster on what it reads; this decoder takes the
//! rest and finds the words for what is damaged.
//!
//! - [`read`] walks over markers and scans, with or without their data; [`scan`] and [`huffman`] turn bits into coefficients.
//! - [`smooth`] estimates what the scans of an incomplete progressive file did not bring; [`render`] makes pixels.

mod huffman;
mod read;
mod render;
mod scan;
mod smooth;

#[cfg(test)]
mod tests;

use super::super::decoding::{Canvas, DecodeJob, Outcome, Scratch};
use super::baseline::bits::Stream;
use super::baseline::header::Steps;
use super::baseline::simd::Level;
use crate::error::{ImageError, Result};
use crate::format::Format;
use crate::limits::Limits;
use read::{Depth, Picture};
use scan::Block;

/// The memory that the decoder keeps from image to image.
#[derive(Debug, Default)]
pub(super) struct General {
    stream: Stream,
    level: Level,
    pairs: Vec<i16>,
}

/// A component of the frame.
#[derive(Debug, Clone)]
struct Component {
    id: u8,
    /// Blocks in an MCU of an interleaved scan: in a row, in a column.
    factors: (usize, usize),
    /// The slot of its quantization table.
    slot: usize,
    /// Blocks that the image needs, in a row and in a column.
    size: (usize, usize),
    /// The same, filled up to whole MCUs.
    padded: (usize, usize),
    /// Coefficients, `padded.0` blocks a row; empty if only the structure is read.
    blocks: Vec<Block>,
    /// The quantization table when its first scan began.
    steps: Option<Steps>,
    /// Bits that are missing from each coefficient, by zigzag index; -1 where no scan has coded it yet.
    known: [i8; 64],
}

/// Decodes a region onto a canvas.
pub(super) fn decode(
    job: &DecodeJob<'_>,
    scratch: &mut Scratch,
    canvas: &mut Canvas,
) -> Result<Outcome> {
    let general = &mut scratch.jpeg.general;
    let picture = Picture::read(
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

/// Checks that a JPEG is of a kind that is decoded, by its markers alone: of an ordinary file only those before its single scan are
/// looked at, of others the data between them are skipped.
pub(super) fn check_structure(bytes: &[u8], limits: &Limits) -> Result<()> {
    Picture::read(bytes, limits, Depth::Structure).map(drop)
}

/// Checks that a JPEG can be decoded by reading the codes of all its scans. `probe` is what [`probe`](crate::probe()) said about it.
pub(super) fn check_codes(general: &mut General, bytes: &[u8], limits: &Limits) -> Result<()> {
    let depth = Depth::Coefficients(&mut general.stream);
    Picture::read(bytes, limits, depth).map(drop)
}
