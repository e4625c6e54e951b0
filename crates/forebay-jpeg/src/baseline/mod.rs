//! A fast decoder for regions of baseline JPEGs, the usual case in training.
//!
//! It reads 8-bit baseline and extended sequential files with Huffman codes, one scan, gray or
//! three components with chroma at full, half or quarter width and full or half height. Pixels
//! equal those of libjpeg-turbo's default decoder, bit for bit. It declines all other kinds
//! (progressive, 12 bits, arithmetic coding, four components, several scans, unusual sampling) and
//! damaged files, which the [general](super::general) decoder then reads or refuses with an error.
//! So this decoder changes the speed, never the result.
//!
//! Damage outside a region may remain undetected, because unneeded data are not read; but a file
//! without its end marker is always refused.
//!
//! - [`header`] reads markers and tables; [`symbol`], [`canonical`], [`huffman`], [`bits`] and [`entropy`] turn
//!   bits into coefficients; [`multi_symbol`] makes skipping unwanted blocks faster; [`scan`] moves through the
//!   entropy-coded data; [`seek`] starts decoding in the middle of them,
//!   at points that [`walk`] and [`lane`] find, or that decodes [recorded](learn).
//! - [`idct`], [`scaled`] (the transform to fewer samples), [`upsample`] and [`color`] are the portable
//!   arithmetic; [`simd`] selects faster versions.
//! - [`region`] decodes only the rows and columns that a region needs.
//! - [`blocks`] exchanges coefficients with their other encodings.

pub(crate) mod bits;
pub(crate) mod blocks;
pub(crate) mod canonical;
mod color;
pub(crate) mod entropy;
pub(crate) mod header;
mod huffman;
mod idct;
mod lane;
mod learn;
mod multi_symbol;
mod region;
mod scaled;
mod scan;
mod seek;
pub(crate) mod simd;
pub(crate) mod symbol;
pub(crate) mod upsample;
mod walk;

#[cfg(test)]
mod tests;

pub use seek::{SeekDensity, SeekPointBuilder, build_seek_points};

pub(crate) use region::Baseline;

/// Reason why this decoder did not decode a file.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Refusal {
    /// The file is of a kind that another decoder reads.
    Foreign(&'static str),
    /// The data are damaged; the general decoder may return a more precise error.
    Damaged(&'static str),
}
