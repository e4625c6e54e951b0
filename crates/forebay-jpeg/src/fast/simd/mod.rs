//! Selects an implementation at run time. This module contains the only unsafe code of this format.
//!
//! Every level gives the same coefficients as the portable one.
#![allow(unsafe_code)] // calls of code compiled for the instructions that `Level` stands for

#[cfg(target_arch = "x86_64")]
mod bmi2;
#[cfg(target_arch = "x86_64")]
mod bmi2_encode;
#[cfg(all(target_arch = "aarch64", target_endian = "little"))]
mod neon;
#[cfg(all(target_arch = "aarch64", target_endian = "little"))]
mod neon_encode;
#[cfg(target_arch = "x86_64")]
mod vbmi2;

use super::control::{self, Buffer, Tables};
use super::part::EncodedPart;
use super::scan_encoder::ScanEncoder;
use super::tile::{self, Control, MAX_PARTS, Part, Tile, WIDTH, Window};
use crate::baseline::entropy::PAIR;
use std::ops::Range;

/// The instructions that may be used.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Level(Kind);

/// Private, so that only [`Level::all`] creates levels above `Portable`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Kind {
    Portable,
    /// AVX2, BMI1, BMI2, LZCNT and POPCNT.
    #[cfg(target_arch = "x86_64")]
    Bmi2,
    /// The features of `Bmi2`, and AVX-512 F, BW, DQ, VL, VBMI, VBMI2 and VPOPCNTDQ.
    #[cfg(target_arch = "x86_64")]
    Vbmi2,
    #[cfg(all(target_arch = "aarch64", target_endian = "little"))]
    Neon,
}

impl Default for Level {
    fn default() -> Self {
        Self::detect()
    }
}

impl Level {
    /// Returns the fastest level on this processor. PDEP is microcoded on AMD processors before Zen
    /// 3, a hundred times slower than elsewhere; the portable level is faster there.
    pub(super) fn detect() -> Self {
        #[cfg(target_arch = "x86_64")]
        let usable = |level: &Self| level.0 != Kind::Bmi2 || bmi2::is_fast();
        #[cfg(not(target_arch = "x86_64"))]
        let usable = |_: &Self| true;
        let level = Self::all().filter(usable).last();
        level.unwrap_or(Self(Kind::Portable))
    }

    /// Returns all levels that this processor supports, the slowest first.
    pub(super) fn all() -> impl Iterator<Item = Self> {
        let mut kinds = [Some(Kind::Portable), None, None];
        #[cfg(target_arch = "x86_64")]
        if is_x86_feature_detected!("avx2")
            && is_x86_feature_detected!("bmi1")
            && is_x86_feature_detected!("bmi2")
            && is_x86_feature_detected!("lzcnt")
            && is_x86_feature_detected!("popcnt")
        {
            kinds[1] = Some(Kind::Bmi2);
            if crate::instructions::may_use_avx512()
                && is_x86_feature_detected!("avx512f")
                && is_x86_feature_detected!("avx512bw")
                && is_x86_feature_detected!("avx512dq")
                && is_x86_feature_detected!("avx512vl")
                && is_x86_feature_detected!("avx512vbmi")
                && is_x86_feature_detected!("avx512vbmi2")
                && is_x86_feature_detected!("avx512vpopcntdq")
            {
                kinds[2] = Some(Kind::Vbmi2);
            }
        }
        #[cfg(all(target_arch = "aarch64", target_endian = "little"))]
        if std::arch::is_aarch64_feature_detected!("neon") {
            kinds[1] = Some(Kind::Neon);
        }
        kinds.into_iter().flatten().map(Self)
    }

    /// [`EncodedPart::add_row`].
    pub(super) fn add_row(self, part: &mut EncodedPart, pairs: &[i16], blocks: usize) -> bool {
        match self.0 {
            // SAFETY: `Level::all` creates these levels only if the processor has these features.
            #[cfg(target_arch = "x86_64")]
            Kind::Bmi2 | Kind::Vbmi2 => unsafe { bmi2_encode::add_row(part, pairs, blocks) },
            // SAFETY: `Level::all` creates this level only if the processor has NEON.
            #[cfg(all(target_arch = "aarch64", target_endian = "little"))]
            Kind::Neon => unsafe { neon_encode::add_row(part, pairs, blocks) },
            _ => part.add_row(pairs, blocks),
        }
    }

    /// [`control::Writer::write`].
    pub(super) fn write_control(
        self,
        writer: &mut control::Writer,
        codes: &control::Codes,
        kinds: [&[u16]; 3],
        out: &mut Vec<u8>,
    ) {
        match self.0 {
            // SAFETY: as above.
            #[cfg(target_arch = "x86_64")]
            Kind::Bmi2 | Kind::Vbmi2 => unsafe { bmi2::write_control(writer, codes, kinds, out) },
            _ => writer.write(codes, kinds, out),
        }
    }

    /// [`ScanEncoder::tile`].
    pub(super) fn write_tile(
        self,
        encoder: &mut ScanEncoder<'_>,
        tile: &Tile,
        coefficients: &[i16],
        batch: usize,
        columns: Range<usize>,
    ) -> Option<()> {
        match self.0 {
            // SAFETY: as above.
            #[cfg(target_arch = "x86_64")]
            Kind::Bmi2 | Kind::Vbmi2 => unsafe {
                bmi2::write_tile(encoder, tile, coefficients, batch, columns)
            },
            _ => encoder.tile(tile, coefficients, batch, columns),
        }
    }

    /// [`Tile::open`].
    pub(super) fn open(
        self,
        tile: &mut Tile,
        window: &Window,
        length: usize,
        parts: &[Part],
        tables: Option<&Tables>,
        buffer: &mut Buffer,
    ) -> Option<()> {
        match self.0 {
            // SAFETY: `Level::all` creates this level only if the processor has these features.
            #[cfg(target_arch = "x86_64")]
            Kind::Bmi2 => unsafe { bmi2::open(tile, window, length, parts, tables, buffer) },
            // SAFETY: as above.
            #[cfg(target_arch = "x86_64")]
            Kind::Vbmi2 => unsafe { vbmi2::open(tile, window, length, parts, tables, buffer) },
            _ => {
                let (masks, widths) = (control::spread_masks, control::spread_widths);
                let control = |at: usize, blocks: (usize, usize), out: Control<'_>| match tables {
                    Some(tables) => {
                        let ways = (control::read_entries, masks, widths);
                        control::read(tables, window, at, blocks, buffer, out, ways)
                    }
                    None => control::read_raw(window, at, blocks.1, out, (masks, widths)),
                };
                let place = Tile::place_payload;
                tile.open(window, length, parts, tile::read_dc, control, place)
            }
        }
    }

    /// Unpacks the wanted blocks of an opened tile into pairs of blocks. `window` and `parts` have
    /// to be those with which the tile was opened; up to a multiple of four blocks of each part may
    /// be overwritten. Returns `None` if a correction is invalid.
    pub(super) fn unpack(
        self,
        tile: &Tile,
        window: &Window,
        parts: &[Part],
        out: &mut [i16],
    ) -> Option<()> {
        let mut blocks = 0;
        assert!(parts.len() <= MAX_PARTS);
        for part in parts {
            let fours = part.to.saturating_sub(part.from).div_ceil(4);
            assert!(part.to <= part.blocks && part.blocks <= WIDTH);
            assert!(part.at + fours * 2 * PAIR <= out.len());
            blocks += part.blocks;
        }
        assert_eq!(blocks, tile.blocks);
        match self.0 {
            Kind::Portable => tile.unpack(window, parts, out),
            // SAFETY: `Level::all` creates this level only if the processor has NEON.
            #[cfg(all(target_arch = "aarch64", target_endian = "little"))]
            Kind::Neon => unsafe { neon::unpack(tile, window, parts, out) },
            // SAFETY: as above, and the assertions hold.
            #[cfg(target_arch = "x86_64")]
            Kind::Bmi2 => unsafe { bmi2::unpack(tile, window, parts, out) },
            // SAFETY: as above.
            #[cfg(target_arch = "x86_64")]
            Kind::Vbmi2 => unsafe { vbmi2::unpack(tile, window, parts, out) },
        }
        tile.correct(window, parts, out)
    }
}

/// Prefetches bytes into the cache, on processors with an instruction for it.
pub(super) fn prefetch(bytes: &[u8]) {
    #[cfg(target_arch = "x86_64")]
    for line in bytes.chunks(64) {
        use std::arch::x86_64::{_MM_HINT_T0, _mm_prefetch};
        // SAFETY: every x86-64 has this instruction, and it never faults.
        unsafe { _mm_prefetch::<_MM_HINT_T0>(line.as_ptr().cast()) };
    }
    #[cfg(not(target_arch = "x86_64"))]
    let _ = bytes;
}
