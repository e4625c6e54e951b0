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

    fn new(length: u32, advance: u8) -> Self {
        Self(length as u16 | u16::from(advance) << 8)
    }

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

/// The first symbol of some bits.
#[derive(Clone, Copy)]
struct First {
    code_length: u32,
    length: u32,
    advance: u8,
}

/// Strides that reach nowhere.
pub(super) static NO_STRIDES: Strides = [Stride::NOT_HERE; ENTRIES];

/// Makes the strides of a valid AC table.
pub(super) fn build(counts: &[u8], symbols: &[u8]) -> Box<Strides> {
    let none = First {
        code_length: u32::MAX,
        length: 0,
        advance: 0,
    };
    let mut firsts = vec![none; ENTRIES];
    let mut symbols = symbols.iter();
    let mut at = 0;
    for (code_length, &count) in (1..=STRIDE_BITS).zip(counts) {
        for &symbol in symbols.by_ref().take(count.into()) {
            let (advance, size) = meaning(Kind::Ac, symbol);
            let span = 1 << (STRIDE_BITS - code_length);
            firsts[at..at + span].fill(First {
                code_length,
                length: code_length + size,
                advance,
            });
            at += span;
        }
    }
    let mut strides = Box::new(NO_STRIDES);
    for (bits, stride) in strides.iter_mut().enumerate() {
        let (mut length, mut advance) = (0, 0);
        while length < STRIDE_BITS && advance < END_OF_BLOCK {
            let next = firsts[(bits << length) % ENTRIES];
            let known = length + next.code_length.min(STRIDE_BITS + 1) <= STRIDE_BITS;
            let too_far = next.advance < END_OF_BLOCK && advance + next.advance > LONGEST;
            if !known || too_far || length + next.length > FAST_BITS {
                break;
            }
            length += next.length;
            advance += next.advance;
        }
        if length > 0 {
            *stride = Stride::new(length, advance);
        }
    }
    strides
}
