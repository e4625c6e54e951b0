//! Multi-symbols: tables for skipping blocks whose coefficients are not wanted.
//!
//! A decoder that skips values need not read symbols one by one: an entry holds the total length of
//! all symbols whose codes are in the next [`MULTI_SYMBOL_BITS`] bits, usually two or three.

use super::symbol::{END_OF_BLOCK, FAST_BITS, Kind, NOT_HERE, meaning};
use std::ops::Range;

/// Number of bits that index the table: 8 KiB per table, two of which fit into the L1 cache.
pub(super) const MULTI_SYMBOL_BITS: u32 = 12;
const ENTRIES: usize = 1 << MULTI_SYMBOL_BITS;
/// Maximum advance of several symbols that do not end the block. From index 62 it leads to at most
/// 79, so the index shows whether [`END_OF_BLOCK`] ended a block.
const LONGEST: u8 = 17;
const _: () = assert!(62 + LONGEST < END_OF_BLOCK);
const END: u32 = END_OF_BLOCK as u32;

/// Several symbols: the lower byte is their length in bits, the upper one the advance of the
/// coefficient index.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct MultiSymbol(u16);

impl MultiSymbol {
    /// Consumes nothing, and advances by more than the remainder of any block.
    const NOT_HERE: Self = Self((NOT_HERE as u16) << 8);

    /// Returns the argument of [`Bits::consume`](super::bits::Bits::consume): the length, with the
    /// advance in the second byte.
    #[inline(always)]
    pub(super) fn step(self) -> u32 {
        self.0.into()
    }

    /// Returns whether the bits do not contain a whole symbol.
    #[inline(always)]
    pub(super) fn is_slow(self) -> bool {
        self == Self::NOT_HERE
    }
}

/// Multi-symbols, by the next bits.
pub(super) type MultiSymbolTable = [MultiSymbol; ENTRIES];

/// A table without symbols.
pub(super) static NO_MULTI_SYMBOLS: MultiSymbolTable = [MultiSymbol::NOT_HERE; ENTRIES];

/// A symbol: from the lowest byte its total length, its advance, and the length of its code.
#[derive(Clone, Copy)]
struct Symbol(u32);

impl Symbol {
    /// For bits that begin no symbol, or a symbol whose code is too long.
    const NONE: Self = Self(0xff << 16);

    fn new(code: u32, size: u32, advance: u8) -> Self {
        Self((code + size) | u32::from(advance) << 8 | code << 16)
    }

    fn code(self) -> u32 {
        self.0 >> 16
    }

    fn length(self) -> u32 {
        self.0 & 0xff
    }

    fn advance(self) -> u32 {
        self.0 >> 8 & 0xff
    }

    /// Returns the symbol as a multi-symbol, if it is not too long.
    fn alone(self) -> MultiSymbol {
        if self.length() <= FAST_BITS {
            MultiSymbol(self.0 as u16)
        } else {
            MultiSymbol::NOT_HERE
        }
    }
}

/// Maximum number of symbols in a multi-symbol. A fourth would seldom fit.
const SYMBOLS: usize = 3;

/// Builds the multi-symbols of a valid AC table.
pub(super) fn build(counts: &[u8], symbols: &[u8]) -> Box<MultiSymbolTable> {
    let mut firsts = [Symbol::NONE; ENTRIES];
    each(counts, symbols, |place, symbol| {
        firsts[place].fill(symbol);
    });
    let mut multi_symbols = Box::new(NO_MULTI_SYMBOLS);
    each(counts, symbols, |place, symbol| {
        let from = place.start;
        let multi_symbols = &mut multi_symbols[place];
        if symbol.length() >= MULTI_SYMBOL_BITS || symbol.advance() >= END {
            return multi_symbols.fill(symbol.alone());
        }
        // The continuation is the same for all values of the symbol, so it is computed once and copied.
        let (once, again) =
            multi_symbols.split_at_mut(multi_symbols.len() >> (symbol.length() - symbol.code()));
        for (bits, multi_symbol) in (from..).zip(once.iter_mut()) {
            *multi_symbol = follow(&firsts, bits, symbol.alone());
        }
        for multi_symbols in again.chunks_exact_mut(once.len()) {
            multi_symbols.copy_from_slice(once);
        }
    });
    multi_symbols
}

/// Calls `what` for each symbol whose code fits into the index, with the range of indices that
/// begin with it.
fn each(counts: &[u8], symbols: &[u8], mut what: impl FnMut(Range<usize>, Symbol)) {
    let mut symbols = symbols.iter();
    let mut at = 0;
    for (code, &count) in (1..=MULTI_SYMBOL_BITS).zip(counts) {
        for &symbol in symbols.by_ref().take(count.into()) {
            let (advance, size) = meaning(Kind::Ac, symbol);
            let span = 1 << (MULTI_SYMBOL_BITS - code);
            what(at..at + span, Symbol::new(code, size, advance));
            at += span;
        }
    }
}

/// Extends a multi-symbol of one symbol by the symbols after it.
fn follow(firsts: &[Symbol; ENTRIES], bits: usize, first: MultiSymbol) -> MultiSymbol {
    let (mut length, mut advance) = (u32::from(first.0 & 0xff), u32::from(first.0 >> 8));
    for _ in 1..SYMBOLS {
        // Without branches, which would be hard to predict.
        let next = firsts[(bits << (length & 31)) % ENTRIES];
        let fits = (length + next.code() <= MULTI_SYMBOL_BITS)
            & (length + next.length() <= FAST_BITS)
            & (advance < END)
            & ((next.advance() >= END) | (advance + next.advance() <= u32::from(LONGEST)));
        length += if fits { next.length() } else { 0 };
        advance += if fits { next.advance() } else { 0 };
    }
    MultiSymbol((length | advance << 8) as u16)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn multi_symbols_equal_their_symbols_in_sequence() {
        // Codes of 2 to 16 bits, values of 0 to 15, ends of block and long runs.
        let counts = [0, 1, 2, 3, 1, 1, 1, 2, 2, 2, 2, 2, 2, 2, 2, 5];
        let symbols = [
            0x01, 0x02, 0x11, 0x00, 0xf0, 0x03, 0x21, 0x81, 0xf1, 0x0c, 0x04, 0x7a, 0x05, 0x31,
            0x06, 0x0a, 0x50, 0x41, 0xa3, 0x0f, 0xff, 0x07, 0x12, 0x22, 0x08, 0x13, 0x14, 0x23,
            0x09, 0x32,
        ];
        let mut codes = Vec::new();
        let (mut code, mut left) = (0u64, symbols.iter());
        for (length, &count) in (1u32..).zip(&counts) {
            for &symbol in left.by_ref().take(count) {
                codes.push((code, length, symbol));
                code += 1;
            }
            code <<= 1;
        }
        let multi_symbols = build(&counts.map(|count| count as u8), &symbols);
        let (mut several, mut ends) = (0, 0);
        for (bits, multi_symbol) in (0u64..).zip(multi_symbols.iter()) {
            let [mut length, mut advance] = [0; 2];
            let mut found = 0;
            while found < SYMBOLS && advance < u32::from(END_OF_BLOCK) {
                let next = bits << (64 - MULTI_SYMBOL_BITS) << length;
                let is_next = |&&(code, length, _): &&(u64, u32, u8)| next >> (64 - length) == code;
                let Some(&(_, code, symbol)) = codes.iter().find(is_next) else {
                    break;
                };
                let (run, size) = (u32::from(symbol >> 4), u32::from(symbol & 15));
                let end = size == 0 && run < 15;
                let step = if end { END_OF_BLOCK.into() } else { run + 1 };
                if length + code > MULTI_SYMBOL_BITS
                    || length + code + size > FAST_BITS
                    || (!end && advance + step > u32::from(LONGEST))
                {
                    break;
                }
                length += code + size;
                advance += step;
                found += 1;
            }
            if found == 0 {
                advance = NOT_HERE.into();
            }
            assert_eq!(multi_symbol.step(), length | advance << 8, "{bits:012b}");
            several += usize::from(found > 1);
            ends += usize::from(advance >= u32::from(END_OF_BLOCK));
        }
        assert!(several > 500 && ends > 100, "{several} {ends}");
    }
}
