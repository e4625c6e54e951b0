//! Strides: tables for walking over blocks whose coefficients are not wanted.
//!
//! Who does not want values need not take symbols one by one: an entry holds how far all the symbols reach whose
//! codes lie in the next [`STRIDE_BITS`] bits, two or three of them as a rule.

use super::huffman::{END_OF_BLOCK, FAST_BITS, Kind, meaning};

/// Bits that index the table: 8 KiB a table, two of which stay in the first cache.
pub(super) const STRIDE_BITS: u32 = 12;
const ENTRIES: usize = 1 << STRIDE_BITS;
/// Largest advance of several symbols that do not end the block. From index 62 it leads to 79 at most, so an index
/// tells whether a block was ended by [`END_OF_BLOCK`].
const LONGEST: u8 = 17;
const _: () = assert!(62 + LONGEST < END_OF_BLOCK);

/// Several symbols: the lower byte is their length, the other one the advance of the coefficient index.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Stride(u16);

impl Stride {
    /// No symbol.
    const NOT_HERE: Self = Self(0);

    /// For [`Bits::consume`](super::bits::Bits::consume): the length, and in the second byte the advance.
    #[inline(always)]
    pub(super) fn step(self) -> u32 {
        self.0.into()
    }

    /// Whether not even one symbol lies in the bits.
    #[inline(always)]
    pub(super) fn is_slow(self) -> bool {
        self == Self::NOT_HERE
    }
}

/// Strides by the next bits.
pub(super) type Strides = [Stride; ENTRIES];

/// The first symbol of some bits: a byte each for the length of its code, that of the whole, and its advance.
#[derive(Clone, Copy)]
struct First(u32);

impl First {
    /// Bits that begin no symbol, or one that is too long.
    const NONE: Self = Self(0xff);

    fn new(code: u32, length: u32, advance: u8) -> Self {
        Self(code | length << 8 | u32::from(advance) << 16)
    }
}

/// Strides that reach nowhere.
pub(super) static NO_STRIDES: Strides = [Stride::NOT_HERE; ENTRIES];

/// Most symbols of a stride. A fourth would seldom fit.
const SYMBOLS: usize = 3;

/// Makes the strides of a valid AC table.
pub(super) fn build(counts: &[u8], symbols: &[u8]) -> Box<Strides> {
    let mut firsts = [First::NONE; ENTRIES];
    let mut symbols = symbols.iter();
    let mut at = 0;
    for (code, &count) in (1..=STRIDE_BITS).zip(counts) {
        for &symbol in symbols.by_ref().take(count.into()) {
            let (advance, size) = meaning(Kind::Ac, symbol);
            let span = 1 << (STRIDE_BITS - code);
            firsts[at..at + span].fill(First::new(code, code + size, advance));
            at += span;
        }
    }
    let mut strides = Box::new(NO_STRIDES);
    // Symbol after symbol for all bits at once, without branches: none could be foreseen.
    for _ in 0..SYMBOLS {
        for (bits, stride) in (0u32..).zip(strides.iter_mut()) {
            let Stride(so_far) = *stride;
            let (length, advance) = (u32::from(so_far & 0xff), u32::from(so_far >> 8));
            let First(next) = firsts[(bits << length) as usize % ENTRIES];
            let (code, next) = (next & 0xff, next >> 8);
            let (next_length, next_advance) = (next & 0xff, next >> 8);
            let end = u32::from(END_OF_BLOCK);
            let fits = (length + code <= STRIDE_BITS)
                & (length + next_length <= FAST_BITS)
                & (advance < end)
                & ((next_advance >= end) | (advance + next_advance <= u32::from(LONGEST)));
            *stride = Stride(so_far + if fits { next as u16 } else { 0 });
        }
    }
    strides
}
