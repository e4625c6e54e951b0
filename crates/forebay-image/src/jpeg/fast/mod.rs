//! Fast images: JPEGs in an encoding that decodes crops quickly. They hold the same quantized
//! coefficients, so pixels are the same, and the JPEG can be restored byte for byte.
//! docs/format/fast-images.md specifies the bytes.
//!
//! - [`file`](mod@file) reads the header and the tables; [`read`] reads the tiles that a region needs.
//! - [`tile`] and [`control`] define the bytes of a tile; [`simd`] selects faster versions.
//! - [`encode`] encodes JPEGs as fast images, from the blocks of [`part`]; [`verify`] checks the
//!   result, and [`restore`] restores JPEGs with [`scan_encoder`].
//!
//! The [`baseline`](super::baseline) decoder computes pixels from the coefficients.

mod control;
mod encode;
mod file;
mod part;
mod read;
mod restore;
mod scan_encoder;
mod simd;
mod tile;
mod verify;

#[cfg(test)]
mod tests;

pub use encode::{FastCoding, FastEncoder};
pub use restore::{restore_fast, standard_image};

pub(crate) use read::Reader;

use super::baseline::{Baseline, Refusal};
use super::markers;
use crate::error::{ImageError, Result};
use crate::format::{Canvas, DecodeJob, FormatDecoder, Outcome, Scratch};
use crate::format::{Format, ImageFormat, Probe, Sniff};
use crate::jpeg::limits::Limits;
use crate::jpeg::rows::{Memory, Rows};
use file::File;

/// The fast image in the table of formats.
pub(crate) struct Fast;

impl ImageFormat for Fast {
    fn name(&self) -> &'static str {
        "FAST"
    }

    fn extensions(&self) -> &'static [&'static str] {
        &["fjpg"]
    }

    fn sniff(&self, head: &[u8]) -> Sniff {
        Sniff::magic(head, &file::MAGIC, file::HEADER as u64)
    }

    fn probe(&self, bytes: &[u8]) -> Result<Probe> {
        let head = file::head(bytes)?;
        let probe = markers::probe(head).map_err(|error| match error {
            ImageError::Incomplete { .. } => damaged("the JPEG's header is cut short"),
            error => error,
        })?;
        Ok(Probe {
            format: Format::Fast,
            header_bytes: (file::HEADER + head.len()) as u64,
            ..probe
        })
    }

    fn decoded_bytes_per_pixel(&self, probe: &Probe) -> u64 {
        3 + u64::from(probe.channels)
    }

    fn decoders(&self) -> &'static [FormatDecoder] {
        &[FormatDecoder {
            decode,
            stream: Some(stream),
        }]
    }

    /// Bytes after the last tile make the file invalid.
    fn end(&self, bytes: &[u8]) -> Option<usize> {
        File::read(bytes).is_ok().then_some(bytes.len())
    }

    fn exif<'a>(&self, bytes: &'a [u8]) -> Option<&'a [u8]> {
        markers::exif(file::head(bytes).ok()?)
    }

    fn check_structure(&self, bytes: &[u8], _: &Limits) -> Result<()> {
        let file = File::read(bytes)?;
        let frame = Baseline::default().frame(file.head);
        frame.map(drop).map_err(refused)
    }

    fn check_codes(&self, bytes: &[u8], _: &Limits, scratch: &mut Scratch) -> Result<()> {
        let scratch = &mut scratch.jpeg;
        let mut jpeg = Vec::new();
        restore::restore(bytes, &mut scratch.baseline, &mut scratch.fast, &mut jpeg)
    }

    fn scales(&self) -> bool {
        true
    }
}

/// Decodes a region onto a canvas.
fn decode(job: &DecodeJob<'_>, scratch: &mut Scratch, canvas: &mut Canvas) -> Result<Outcome> {
    let (width, height) = (job.region.width as usize, job.region.height as usize);
    canvas.reset(width, height);
    let out = &mut canvas.data[..width * height * 3];
    stream(job, scratch, &mut Memory::new(out, width))
}

/// Decodes a region row by row.
fn stream(job: &DecodeJob<'_>, scratch: &mut Scratch, rows: &mut dyn Rows) -> Result<Outcome> {
    let file = File::read(job.bytes)?;
    let size = (job.probe.width, job.probe.height);
    let scratch = &mut scratch.jpeg;
    let mut tiles = read::Tiles::new(&file, &mut scratch.fast);
    let baseline = &mut scratch.baseline;
    let decoded = baseline.decode_blocks(file.head, &mut tiles, size, job.scale, job.region, rows);
    decoded.map(|()| Outcome::Done).map_err(refused)
}

fn damaged(what: &str) -> ImageError {
    ImageError::corrupt(Format::Fast, what)
}

fn refused(refusal: Refusal) -> ImageError {
    let (Refusal::Damaged(what) | Refusal::Foreign(what)) = refusal;
    damaged(what)
}
