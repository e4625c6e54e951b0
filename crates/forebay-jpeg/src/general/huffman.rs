//! Huffman codes of the scans that only the general decoder reads: a lookup for short codes, a
//! search for long ones.

use crate::baseline::bits::Bits;

/// Bits that index the lookup.
const LOOKUP_BITS: u32 = 9;
/// Lookup entry for bits that begin a longer code or no code.
const LONG: u16 = 0;

/// The kind of symbols in a table.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Kind {
    /// Sizes of DC differences in bits.
    Dc,
    /// Runs of zeros and sizes of the AC coefficients after them.
    Ac,
}

/// A Huffman table, prepared for decoding.
#[derive(Debug, Clone)]
pub(super) struct Codes {
    /// Length of the code in the upper byte, its symbol in the lower one.
    lookup: [u16; 1 << LOOKUP_BITS],
    /// The largest code of each length, or -1.
    last: [i32; 17],
    /// Difference between the index of a symbol and its code, by length.
    offset: [i32; 17],
    symbols: [u8; 256],
}

impl Codes {
    /// Returns whether libjpeg accepts a table with these counts of codes by length and these
    /// symbols.
    pub(super) fn is_legal(kind: Kind, counts: &[u8; 16], symbols: &[u8]) -> bool {
        let codes: usize = counts.iter().map(|&count| usize::from(count)).sum();
        if codes > symbols.len().min(256) {
            return false;
        }
        if kind == Kind::Dc && symbols.iter().any(|&symbol| symbol > 15) {
            return false;
        }
        let mut code = 0usize;
        (1..).zip(counts).all(|(length, &count)| {
            code += usize::from(count);
            // The code of all ones is reserved, so `code`, the next free one, has to fit.
            let fits = code < 1 << length;
            code <<= 1;
            fits
        })
    }

    /// Builds a table. `None` if it is not [legal](Self::is_legal).
    pub(super) fn new(kind: Kind, counts: &[u8; 16], symbols: &[u8]) -> Option<Box<Self>> {
        if !Self::is_legal(kind, counts, symbols) {
            return None;
        }
        let mut table = Box::new(Self {
            lookup: [LONG; 1 << LOOKUP_BITS],
            last: [-1; 17],
            offset: [0; 17],
            symbols: [0; 256],
        });
        let used = symbols.len().min(256);
        table.symbols[..used].copy_from_slice(&symbols[..used]);
        let (mut code, mut place) = (0usize, 0usize);
        for (length, &count) in (1usize..).zip(counts) {
            let count = usize::from(count);
            table.offset[length] = place as i32 - code as i32;
            for &symbol in &symbols[place..place + count] {
                if length <= LOOKUP_BITS as usize {
                    let free = LOOKUP_BITS as usize - length;
                    table.lookup[code << free..(code + 1) << free]
                        .fill((length as u16) << 8 | u16::from(symbol));
                }
                code += 1;
            }
            place += count;
            if count > 0 {
                table.last[length] = code as i32 - 1;
            }
            code <<= 1;
        }
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
        let top = (bits.peek() >> 48) as i32;
        for length in LOOKUP_BITS + 1..=16 {
            let code = top >> (16 - length);
            if code <= self.last[length as usize] {
                let place = usize::try_from(code + self.offset[length as usize]).ok()?;
                bits.consume(length);
                return self.symbols.get(place).copied();
            }
        }
        None
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
