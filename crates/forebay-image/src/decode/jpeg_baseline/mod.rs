//! The usual JPEG, decoded here: 8-bit Huffman-coded baseline (or extended sequential) files with one scan, grey
//! or YCbCr at 4:4:4, 4:2:2 or 4:2:0.
//!
//! A crop needs a part of the picture. Blocks outside it are walked through by their codes alone and never
//! become pixels; rows below it are not even walked. Inside, samples come from the same kernels that
//! `libjpeg-turbo-rs` uses (inverse DCT, colour), and upsampling does the same arithmetic, so pixels are those of
//! libjpeg-turbo's default settings.
//!
//! Everything else, and everything that looks odd here (a code that does not exist, data that end early, a marker
//! where none belongs), is declined and left to the next decoder, which defines what becomes of it. So this
//! one can only make a decode faster, never different. Damage outside a region may go unnoticed, except that
//! a file without its end marker is always declined.

mod entropy;
mod header;
mod region;
mod rows;
mod simd;

use super::{Canvas, Job, Outcome};
use crate::error::Result;
use crate::probe::Color;
use entropy::Entropy;
use header::{Header, Tables};
use region::Planes;

/// What is kept from image to image.
#[derive(Debug, Default)]
pub(super) struct Baseline {
    tables: Tables,
    entropy: Entropy,
    planes: Planes,
    rows: rows::Scratch,
}

/// A reason to leave an image to the next decoder.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Declined;

pub(super) fn decode(
    job: &Job<'_>,
    scratch: &mut super::Scratch,
    canvas: &mut Canvas,
) -> Result<Outcome> {
    let done = scratch.baseline.decode(job, canvas);
    Ok(if done.is_ok() {
        Outcome::Done
    } else {
        Outcome::Declined
    })
}

impl Baseline {
    fn decode(&mut self, job: &Job<'_>, canvas: &mut Canvas) -> std::result::Result<(), Declined> {
        if !matches!(job.probe.color, Color::Grey | Color::YCbCr) || job.probe.progressive {
            return Err(Declined);
        }
        let header = Header::parse(job.bytes, &mut self.tables)?;
        if (header.width, header.height) != (job.probe.width as usize, job.probe.height as usize) {
            return Err(Declined);
        }
        self.entropy.load(job.bytes, &header)?;
        let window = header.window(&job.region);
        self.planes.reset(&header, &window);
        simd::read(
            &self.tables,
            &self.entropy,
            &header,
            &window,
            &mut self.planes,
        )?;
        simd::write(
            &header,
            &window,
            &job.region,
            &self.planes,
            &mut self.rows,
            canvas,
        );
        Ok(())
    }
}
