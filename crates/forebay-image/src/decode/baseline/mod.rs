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
pub(super) use region::Baseline;

/// Decodes a region, or declines.
pub(super) fn decode(job: &Job<'_>, scratch: &mut Scratch, canvas: &mut Canvas) -> Result<Outcome> {
    let (region, probe) = (job.region, job.probe);
    canvas.reset(region.width as usize, region.height as usize);
    let out = &mut canvas.data[..region.width as usize * region.height as usize * 3];
    let size = (probe.width, probe.height);
    let outcome = scratch
        .baseline
        .decode(job.bytes, job.seek_points, size, job.scale, region, out);
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
