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
pub use restore::restore_fast;

pub(crate) use read::Reader;

use super::baseline::{Baseline, Refusal};
use crate::encoding::Encoding;
use crate::error::{Error, Result};
use crate::header::JpegHeader;
use crate::region::RegionJob;
use crate::rows::Rows;
use file::File;

/// Reads the header of a fast image from the whole file or a prefix.
pub(crate) fn header(bytes: &[u8]) -> Result<JpegHeader> {
    let head = file::head(bytes)?;
    let header = JpegHeader::of_jpeg(head).map_err(|error| match error {
        Error::Incomplete { .. } => damaged("the JPEG's header is cut short"),
        error => error,
    })?;
    Ok(JpegHeader {
        encoding: Encoding::Fast,
        header_bytes: (file::HEADER + head.len()) as u64,
        ..header
    })
}

/// Returns the JPEG up to its scan.
pub(crate) fn head(bytes: &[u8]) -> Option<&[u8]> {
    file::head(bytes).ok()
}

/// Returns whether the header and the tables of a whole file are intact, and all tiles are there.
pub(crate) fn is_intact(bytes: &[u8]) -> bool {
    File::read(bytes).is_ok()
}

/// Checks everything but the tiles.
pub(crate) fn check_structure(bytes: &[u8]) -> Result<()> {
    let file = File::read(bytes)?;
    let frame = Baseline::default().frame(file.head);
    frame.map(drop).map_err(refused)
}

/// Checks that an image can be decoded, by restoring its JPEG.
pub(crate) fn check_codes(
    bytes: &[u8],
    baseline: &mut Baseline,
    reader: &mut Reader,
) -> Result<()> {
    restore::restore(bytes, baseline, reader, &mut Vec::new())
}

/// Decodes a region row by row.
pub(crate) fn decode(
    job: &RegionJob<'_>,
    baseline: &mut Baseline,
    reader: &mut Reader,
    rows: &mut dyn Rows,
) -> Result<()> {
    let file = File::read(job.bytes)?;
    let mut tiles = read::Tiles::new(&file, reader);
    let (head, size) = (file.head, job.size);
    let decoded = baseline.decode_blocks(head, &mut tiles, size, job.scale, job.region, rows);
    decoded.map_err(refused)
}

fn damaged(what: &str) -> Error {
    Error::corrupt(Encoding::Fast, what)
}

fn refused(refusal: Refusal) -> Error {
    let (Refusal::Damaged(what) | Refusal::Foreign(what)) = refusal;
    damaged(what)
}
