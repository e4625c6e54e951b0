//! The symbols of a JPEG: runs of zeros with the size of the value after them, and ends of blocks.

/// Maximum length in bits of a symbol (code and extra bits) in the lookup: three of them fit into
/// the 56 bits that a refill provides.
pub(super) const FAST_BITS: u32 = 18;

/// `advance` of the end of a block: larger than the remainder of any block, and any run.
pub(super) const END_OF_BLOCK: u8 = 80;
/// `advance` of symbols that are not in the lookup: larger than the remainder of any block.
pub(super) const NOT_HERE: u8 = 64;

/// The kind of coefficients that a table encodes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Kind {
    /// Differences of DC coefficients.
    Dc,
    /// Runs of zeros, and AC coefficients.
    Ac,
}

/// Returns the advance of the coefficient index and the size of a symbol's value in bits.
pub(super) fn meaning(kind: Kind, symbol: u8) -> (u8, u32) {
    let (run, size) = (symbol >> 4, u32::from(symbol & 15));
    match kind {
        Kind::Dc => (0, size),
        Kind::Ac if size == 0 && run != 15 => (END_OF_BLOCK, 0),
        Kind::Ac => (run + 1, size),
    }
}
