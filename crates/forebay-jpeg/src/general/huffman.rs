//! Huffman codes of the scans that only the general decoder reads: a lookup for short codes, a
//! search for long ones.

use crate::baseline::bits::Bits;
use crate::baseline::canonical::Canonical;
use crate::baseline::symbol::Kind;

/// Bits that index the lookup.
const LOOKUP_BITS: u32 = 9;
/// Lookup entry for bits that begin a longer code or no code.
const LONG: u16 = 0;

/// A Huffman table, prepared for decoding.
#[derive(Debug, Clone)]
pub(super) struct Codes {
    /// Length of the code in the upper byte, its symbol in the lower one.
    lookup: [u16; 1 << LOOKUP_BITS],
    codes: Canonical,
}

impl Codes {
    /// Builds a table. `None` if libjpeg refuses it.
    pub(super) fn new(kind: Kind, counts: &[u8; 16], symbols: &[u8]) -> Option<Box<Self>> {
        let mut table = Box::new(Self {
            lookup: [LONG; 1 << LOOKUP_BITS],
            codes: Canonical::new(),
        });
        let lookup = &mut table.lookup;
        let enter = |code: u32, length: u32, symbol: u8| {
            if length <= LOOKUP_BITS {
                let free = LOOKUP_BITS - length;
                let range = (code << free) as usize..((code + 1) << free) as usize;
                lookup[range].fill((length as u16) << 8 | u16::from(symbol));
            }
        };
        table.codes.define(kind, counts, symbols, enter)?;
        Some(table)
    }

    /// Reads a symbol; at least 16 bits must be valid. Returns `None` if the bits are not a code.
    #[inline(always)]
    pub(super) fn read(&self, bits: &mut Bits) -> Option<u8> {
        let entry = self.lookup[(bits.peek() >> (64 - LOOKUP_BITS)) as usize];
        if entry != LONG {
            bits.consume(u32::from(entry >> 8));
            return Some(entry as u8);
        }
        self.read_long(bits)
    }

    #[cold]
    #[inline(never)]
    fn read_long(&self, bits: &mut Bits) -> Option<u8> {
        let (length, symbol) = self.codes.find(bits.peek(), LOOKUP_BITS + 1)?;
        bits.consume(length);
        Some(symbol)
    }
}

/// Reads the next `size` bits (at most 16) as an unsigned number.
#[inline(always)]
pub(super) fn extra(bits: &mut Bits, size: u32) -> i32 {
    if size == 0 {
        return 0;
    }
    let value = (bits.peek() >> (64 - size)) as i32;
    bits.consume(size);
    value
}

/// Reads a signed value of `size` bits; values that begin with a 0 bit are negative.
#[inline(always)]
pub(super) fn signed(bits: &mut Bits, size: u32) -> i32 {
    let value = extra(bits, size);
    if size > 0 && value >> (size - 1) == 0 {
        value - ((1 << size) - 1)
    } else {
        value
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn invalid_huffman_tables_are_refused() {
        let mut counts = [0; 16];
        counts[0] = 2;
        assert!(Codes::new(Kind::Ac, &counts, &[1, 2]).is_none());
        counts[0] = 1;
        assert!(Codes::new(Kind::Ac, &counts, &[]).is_none());
        assert!(Codes::new(Kind::Dc, &counts, &[16]).is_none());
        assert!(Codes::new(Kind::Ac, &counts, &[16]).is_some());
        counts[1] = 200;
        assert!(Codes::new(Kind::Ac, &counts, &[1; 201]).is_none());
    }
}
