//! Selects an implementation at run time. This module contains the only unsafe code of this decoder.
//!
//! A [`Level`] is a set of processor features. Every operation has a portable implementation, and
//! all others give the same bits. Another architecture needs one more file, and one more arm in
//! each method here.
#![expect(unsafe_code)] // calls of code compiled for the instructions that `Level` stands for

#[cfg(target_arch = "x86_64")]
mod avx2_entropy;
#[cfg(target_arch = "x86_64")]
mod avx2_idct;
#[cfg(target_arch = "x86_64")]
mod avx2_rows;
#[cfg(target_arch = "x86_64")]
mod avx512_idct;
#[cfg(target_arch = "x86_64")]
mod avx512_rows;
#[cfg(all(target_arch = "aarch64", target_endian = "little"))]
mod neon_idct;
#[cfg(all(target_arch = "aarch64", target_endian = "little"))]
mod neon_rows;
mod parts;
#[cfg(target_arch = "x86_64")]
mod x86;

use super::entropy::{self, PAIR, Read, Reader, Slot, Tables, Walk, Way};
use super::header::Steps;
use super::lane::{self, Lane};
use super::{color, idct, scaled, upsample};
#[cfg(target_arch = "x86_64")]
use crate::instructions::may_use_avx512;

/// The instructions that may be used.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Level(Kind);

/// Private, so that only [`Level::detect`] creates levels above `Portable`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Kind {
    Portable,
    #[cfg(target_arch = "x86_64")]
    Avx2,
    /// AVX2 and related features, plus AVX-512 F and BW.
    #[cfg(target_arch = "x86_64")]
    Avx512,
    #[cfg(all(target_arch = "aarch64", target_endian = "little"))]
    Neon,
}

impl Default for Level {
    fn default() -> Self {
        Self::detect()
    }
}

/// Calls the fastest implementation that the level allows.
macro_rules! dispatch {
    ($level:expr, $avx2:expr, $portable:expr) => {
        dispatch!($level, $avx2, $avx2, $portable)
    };
    ($level:expr, $avx512:expr, $avx2:expr, $portable:expr $(; neon $neon:expr)?) => {
        match $level.0 {
            // SAFETY: `Level::all` creates these levels only if the processor has AVX2, BMI1, BMI2
            // and LZCNT, plus AVX-512 F and BW for the first; the implementations are compiled for
            // no other features.
            #[cfg(target_arch = "x86_64")]
            Kind::Avx512 => unsafe { $avx512 },
            // SAFETY: as above.
            #[cfg(target_arch = "x86_64")]
            Kind::Avx2 => unsafe { $avx2 },
            $(
                // SAFETY: `Level::all` creates this level only if the processor has NEON.
                #[cfg(all(target_arch = "aarch64", target_endian = "little"))]
                Kind::Neon => unsafe { $neon },
            )?
            // The portable code is also used where a NEON version would gain nothing: every 64-bit
            // Arm processor has NEON, so the compiler uses it anyway.
            _ => $portable,
        }
    };
}

impl Level {
    /// Returns the highest level that this processor supports.
    pub(crate) fn detect() -> Self {
        Self::all().last().unwrap_or(Self(Kind::Portable))
    }

    /// Returns all levels that this processor supports, the slowest first.
    pub(crate) fn all() -> impl Iterator<Item = Self> {
        let mut kinds = [Some(Kind::Portable), None, None];
        #[cfg(target_arch = "x86_64")]
        if is_x86_feature_detected!("avx2")
            && is_x86_feature_detected!("bmi1")
            && is_x86_feature_detected!("bmi2")
            && is_x86_feature_detected!("lzcnt")
        {
            kinds[1] = Some(Kind::Avx2);
            if may_use_avx512()
                && is_x86_feature_detected!("avx512f")
                && is_x86_feature_detected!("avx512bw")
            {
                kinds[2] = Some(Kind::Avx512);
            }
        }
        #[cfg(all(target_arch = "aarch64", target_endian = "little"))]
        if std::arch::is_aarch64_feature_detected!("neon") {
            kinds[1] = Some(Kind::Neon);
        }
        kinds.into_iter().flatten().map(Self)
    }

    /// [`entropy::read`].
    fn read<W: Way>(
        self,
        reader: Reader<'_>,
        tables: &Tables<'_>,
        slots: &[Slot],
        coefficients: &mut [i16],
    ) -> bool {
        dispatch!(
            self,
            avx2_entropy::read::<W>(reader, tables, slots, coefficients),
            entropy::read::<W>(reader, tables, slots, coefficients)
        )
    }

    /// [`entropy::read_two`].
    fn read_two<W: Way>(
        self,
        readers: [Reader<'_>; 2],
        tables: &Tables<'_>,
        slots: &[Slot],
        coefficients: [&mut [i16]; 2],
    ) -> bool {
        dispatch!(
            self,
            avx2_entropy::read_two::<W>(readers, tables, slots, coefficients),
            entropy::read_two::<W>(readers, tables, slots, coefficients)
        )
    }

    /// [`lane::walk`].
    pub(super) fn walk(self, lane: &mut Lane<'_>) {
        dispatch!(self, avx2_entropy::walk(lane), lane::walk(lane));
    }

    /// [`lane::walk_two`].
    pub(super) fn walk_two(self, first: &mut Lane<'_>, second: &mut Lane<'_>) {
        dispatch!(
            self,
            avx2_entropy::walk_two(first, second),
            lane::walk_two(first, second)
        );
    }

    /// Stores a block per slot (`KEEP`), or skips it, using multi-symbols if they exist.
    pub(super) fn decode<const KEEP: bool>(
        self,
        reader: Reader<'_>,
        tables: &Tables<'_>,
        slots: &[Slot],
        coefficients: &mut [i16],
    ) -> bool {
        if !KEEP && tables.multi_symbols.is_some() {
            self.read::<Walk>(reader, tables, slots, coefficients)
        } else {
            self.read::<Read<KEEP>>(reader, tables, slots, coefficients)
        }
    }

    /// [`Level::decode`] of two streams in alternation.
    pub(super) fn decode_two<const KEEP: bool>(
        self,
        readers: [Reader<'_>; 2],
        tables: &Tables<'_>,
        slots: &[Slot],
        coefficients: [&mut [i16]; 2],
    ) -> bool {
        if !KEEP && tables.multi_symbols.is_some() {
            self.read_two::<Walk>(readers, tables, slots, coefficients)
        } else {
            self.read_two::<Read<KEEP>>(readers, tables, slots, coefficients)
        }
    }

    /// [`idct::strip`], or [`scaled::strip`] if blocks become `block` samples wide and high instead
    /// of 8.
    pub(crate) fn idct(
        self,
        block: usize,
        pairs: &mut [i16],
        steps: &Steps,
        plane: &mut [u8],
        stride: usize,
    ) {
        assert!(pairs.len().is_multiple_of(PAIR));
        match block {
            1 => scaled::strip::<1>(pairs, steps, plane, stride),
            2 => dispatch!(
                self,
                avx2_idct::scaled::<2>(pairs, steps, plane, stride),
                scaled::strip::<2>(pairs, steps, plane, stride)
            ),
            4 => dispatch!(
                self,
                avx2_idct::scaled::<4>(pairs, steps, plane, stride),
                scaled::strip::<4>(pairs, steps, plane, stride)
            ),
            _ => dispatch!(
                self,
                avx512_idct::strip(pairs, steps, plane, stride),
                avx2_idct::strip(pairs, steps, plane, stride),
                idct::strip(pairs, steps, plane, stride);
                neon neon_idct::strip(pairs, steps, plane, stride)
            ),
        }
    }

    /// [`upsample::horizontal`].
    pub(crate) fn horizontal(self, row: &[u8], out: &mut [u8]) {
        assert!(!row.is_empty() && out.len() >= 2 * row.len());
        dispatch!(
            self,
            avx512_rows::horizontal(row, out),
            avx2_rows::horizontal(row, out),
            upsample::horizontal(row, out);
            neon neon_rows::horizontal(row, out)
        );
    }

    /// [`upsample::both`].
    pub(crate) fn both(self, near: &[u8], far: &[u8], out: &mut [u8]) {
        assert!(!near.is_empty() && near.len() == far.len() && out.len() >= 2 * near.len());
        dispatch!(
            self,
            avx512_rows::both(near, far, out),
            avx2_rows::both(near, far, out),
            upsample::both(near, far, out);
            neon neon_rows::both(near, far, out)
        );
    }

    /// [`upsample::vertical`].
    pub(crate) fn vertical(self, near: &[u8], far: &[u8], bias: u16, out: &mut [u8]) {
        dispatch!(
            self,
            avx2_rows::vertical(near, far, bias, out),
            upsample::vertical(near, far, bias, out)
        );
    }

    /// [`color::ycc`]; all rows have as many pixels as `out`.
    pub(crate) fn ycc(self, y: &[u8], cb: &[u8], cr: &[u8], out: &mut [u8]) {
        let width = out.len() / 3;
        assert!(y.len() == width && cb.len() == width && cr.len() == width);
        dispatch!(
            self,
            avx512_rows::ycc(y, cb, cr, out),
            avx2_rows::ycc(y, cb, cr, out),
            color::ycc(y, cb, cr, out);
            neon neon_rows::ycc(y, cb, cr, out)
        );
    }

    /// [`color::ycc_planes`]; all rows are as long as the planes.
    pub(crate) fn ycc_planes(self, y: &[u8], cb: &[u8], cr: &[u8], out: [&mut [u8]; 3]) {
        let width = y.len();
        assert!(cb.len() == width && cr.len() == width);
        assert!(out.iter().all(|plane| plane.len() == width));
        dispatch!(
            self,
            avx512_rows::ycc_planes(y, cb, cr, out),
            avx2_rows::ycc_planes(y, cb, cr, out),
            color::ycc_planes(y, cb, cr, out)
        );
    }

    /// [`color::interleave`]; all rows have as many pixels as `out`.
    pub(crate) fn interleave(self, rows: [&[u8]; 3], out: &mut [u8]) {
        let width = out.len() / 3;
        assert!(rows.iter().all(|row| row.len() == width));
        dispatch!(
            self,
            avx2_rows::interleave(rows, out),
            color::interleave(rows, out)
        );
    }
}
