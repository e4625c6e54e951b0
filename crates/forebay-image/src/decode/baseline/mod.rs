//! A decoder of baseline JPEG for what training asks for most: a part of a picture, soon.
//!
//! It reads 8-bit baseline and extended sequential files with Huffman codes, one scan, grey or three
//! components with chroma at full, half or quarter width and full or half height. Pixels are those of
//! libjpeg-turbo's default decoder, to the bit. All else (progressive, 12 bits, arithmetic coding, four
//! components, several scans, odd sampling) and everything damaged is refused, for the general decoder to read
//! or to find the words for. So it makes decoding faster, never different.
//!
//! Damage outside a region may go unnoticed, since what is not needed is not read; but a file without its end
//! marker is always refused.
//!
//! - [`header`] reads markers and tables; [`huffman`], [`bits`] and [`entropy`] turn bits into coefficients,
//!   [`strides`] makes walking over unwanted ones faster;
//!   [`scan`] moves about in the entropy-coded data, [`seek`] lets it begin in the middle.
//! - [`idct`], [`scaled`] (the same to fewer samples), [`upsample`] and [`color`] are the portable arithmetic; [`simd`] chooses something faster.
//! - [`region`] decodes no more rows and columns than a region needs.

mod bits;
mod color;
mod entropy;
mod header;
mod huffman;
mod idct;
mod region;
mod scaled;
mod scan;
mod seek;
mod simd;
mod strides;
mod upsample;

#[cfg(test)]
mod tests;

pub use seek::{SeekDensity, SeekPointBuilder, build_seek_points};

use super::{Canvas, Job, Outcome, Scratch};
use crate::error::Result;
use crate::rows::{Memory, Rows};
pub(super) use region::Baseline;

/// Decodes a region onto a canvas, or declines.
pub(super) fn decode(job: &Job<'_>, scratch: &mut Scratch, canvas: &mut Canvas) -> Result<Outcome> {
    let (width, height) = (job.region.width as usize, job.region.height as usize);
    canvas.reset(width, height);
    let out = &mut canvas.data[..width * height * 3];
    stream(job, scratch, &mut Memory::new(out, width))
}

/// Decodes a region row by row, or declines, perhaps after some of the rows.
pub(super) fn stream(job: &Job<'_>, scratch: &mut Scratch, rows: &mut dyn Rows) -> Result<Outcome> {
    let size = (job.probe.width, job.probe.height);
    let outcome = scratch.baseline.decode(
        job.bytes,
        job.seek_points,
        size,
        job.scale,
        job.region,
        rows,
    );
    Ok(match outcome {
        Ok(()) => Outcome::Done,
        Err(_) => Outcome::Declined,
    })
}

/// Why this decoder did not decode a file.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Refusal {
    /// It is of a kind that another decoder reads.
    Foreign(&'static str),
    /// What was read of it is damaged; another decoder may know more.
    Damaged(&'static str),
}
