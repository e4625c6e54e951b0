//! From codes to samples: which blocks to keep, which to walk through.

use super::Declined;
use super::entropy::{Bits, Entropy};
use super::header::{Component, Header, Tables, Window};
use libjpeg_turbo_rs::simd::SimdRoutines;
use std::sync::LazyLock;

/// The kernels for this processor.
pub(super) static KERNELS: LazyLock<SimdRoutines> = LazyLock::new(libjpeg_turbo_rs::simd::detect);

/// The samples of a window, one plane for each component.
#[derive(Debug, Default)]
pub(super) struct Planes {
    planes: [Plane; 3],
}

#[derive(Debug, Default)]
struct Plane {
    samples: Vec<u8>,
    stride: usize,
}

impl Planes {
    /// Sizes the planes for a window; samples left from another image are all written over.
    pub(super) fn reset(&mut self, header: &Header, window: &Window) {
        for (plane, c) in self.planes.iter_mut().zip(header.components()) {
            plane.stride = (window.c1 - window.c0) * c.h * 8;
            plane
                .samples
                .resize(plane.stride * (window.r1 - window.r0) * c.v * 8, 0);
        }
    }

    /// A row of a component, both counted from the window's first.
    #[inline(always)]
    pub(super) fn row(&self, component: usize, y: usize) -> &[u8] {
        let plane = &self.planes[component];
        &plane.samples[y * plane.stride..][..plane.stride]
    }
}

impl Plane {
    #[inline(always)]
    fn put(&mut self, column: usize, row: usize, block: &[u8; 64]) {
        for (y, line) in block.chunks_exact(8).enumerate() {
            let at = (row * 8 + y) * self.stride + column * 8;
            self.samples[at..at + 8].copy_from_slice(line);
        }
    }

    #[inline(always)]
    fn fill(&mut self, column: usize, row: usize, sample: u8) {
        for y in 0..8 {
            let at = (row * 8 + y) * self.stride + column * 8;
            self.samples[at..at + 8].fill(sample);
        }
    }
}

/// The scan, as far as it is walked: where it is and what the next block's DC builds on.
struct Walk<'a> {
    parts: Vec<Part<'a>>,
    entropy: &'a Entropy,
    restart: usize,
    mcu: usize,
    bits: Bits<'a>,
    levels: [i32; 3],
}

/// A component with its tables.
struct Part<'a> {
    component: Component,
    quant: &'a [u16; 64],
    dc: &'a super::entropy::Table,
    ac: &'a super::entropy::Table,
}

/// Decodes the samples of a window.
#[inline(always)]
pub(super) fn read(
    tables: &Tables,
    entropy: &Entropy,
    header: &Header,
    window: &Window,
    planes: &mut Planes,
) -> Result<(), Declined> {
    let mut parts = Vec::with_capacity(3);
    for &component in header.components() {
        let (quant, dc, ac) = tables.of(&component)?;
        parts.push(Part {
            component,
            quant,
            dc,
            ac,
        });
    }
    let across = header.mcus().0;
    let restart = header.restart;
    // With restart markers the walk begins at the last one before the window.
    let interval = (window.r0 * across + window.c0)
        .checked_div(restart)
        .unwrap_or(0);
    let mcu = interval * restart;
    let bits = entropy.interval(interval)?;
    let mut walk = Walk {
        parts,
        entropy,
        restart,
        mcu,
        bits,
        levels: [0; 3],
    };
    for r in window.r0..window.r1 {
        walk.skip(r * across + window.c0)?;
        for c in window.c0..window.c1 {
            walk.keep(planes, c - window.c0, r - window.r0)?;
        }
        walk.bits.check()?;
    }
    Ok(())
}

impl Walk<'_> {
    /// At the start of a restart interval: the next one's bits.
    #[inline(always)]
    fn resume(&mut self) -> Result<(), Declined> {
        if self.restart != 0 && self.mcu.is_multiple_of(self.restart) && self.mcu != 0 {
            self.bits.check()?;
            self.bits = self.entropy.interval(self.mcu / self.restart)?;
            self.levels = [0; 3];
        }
        Ok(())
    }

    /// Walks through MCUs up to one.
    #[inline(always)]
    fn skip(&mut self, to: usize) -> Result<(), Declined> {
        let mut unused = [0; 64];
        while self.mcu < to {
            self.resume()?;
            for (part, level) in self.parts.iter().zip(&mut self.levels) {
                for _ in 0..part.component.h * part.component.v {
                    *level = self.bits.block::<false>(
                        part.dc,
                        part.ac,
                        *level,
                        &mut unused,
                        &mut false,
                    )?;
                }
            }
            self.mcu += 1;
        }
        Ok(())
    }

    /// Decodes one MCU into the planes, at a column and row counted in MCUs from the window's first.
    #[inline(always)]
    fn keep(&mut self, planes: &mut Planes, column: usize, row: usize) -> Result<(), Declined> {
        self.resume()?;
        for ((part, level), plane) in self
            .parts
            .iter()
            .zip(&mut self.levels)
            .zip(&mut planes.planes)
        {
            let (h, v) = (part.component.h, part.component.v);
            for y in 0..v {
                for x in 0..h {
                    let mut block = [0; 64];
                    let mut alone = false;
                    *level = self
                        .bits
                        .block::<true>(part.dc, part.ac, *level, &mut block, &mut alone)?;
                    let (x, y) = (column * h + x, row * v + y);
                    let mean = i32::from(block[0]) * i32::from(part.quant[0]);
                    // The transform of a lone DC is flat; far outside of the range of samples the transform's
                    // 16-bit arithmetic wraps, and is left to do so.
                    if alone && mean.abs() < 8192 {
                        plane.fill(x, y, (((mean + 4) >> 3) + 128).clamp(0, 255) as u8);
                    } else {
                        let mut samples = [0; 64];
                        (KERNELS.idct_islow)(&block, part.quant, &mut samples);
                        plane.put(x, y, &samples);
                    }
                }
            }
        }
        self.mcu += 1;
        Ok(())
    }
}
