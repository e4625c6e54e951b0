//! Huffman tables: one lookup gives a code's length, its run of zeros and the coefficient after it.
//!
//! A JPEG symbol is a Huffman code followed by extra bits that hold the value. Most symbols are
//! short: the [`LOOKUP_BITS`] bits that index the table contain the code and the first extra bits,
//! including the sign. An entry holds a partial value, to which only the extra bits beyond the
//! lookup must be added. Longer symbols are decoded by a search over code lengths.

use super::bits::LOOKUP_BITS;
use super::canonical::Canonical;
use super::multi_symbol::{self, MultiSymbolTable};
use super::symbol::{FAST_BITS, Kind, NOT_HERE, meaning};

/// Maximum size in bits of a value in the lookup: an entry has 10 bits for it. Larger values are
/// rare differences of DC coefficients.
const FAST_SIZE: u32 = 9;

/// An entry of the lookup. From the lowest bit: 8 bits length of code and extra bits; 8 bits
/// advance of the coefficient index; 6 bits right shift of the bits after the lookup; 10 bits
/// signed base of the value.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Entry(u32);

impl Entry {
    /// The entry of symbols that are not in the lookup: consumes nothing and has value 0.
    pub(super) const NOT_HERE: Self = Self::new(0, NOT_HERE, 0, 0);

    const fn new(length: u32, advance: u8, beyond: u32, base: i32) -> Self {
        let shift = 64 - LOOKUP_BITS - beyond;
        Self(length | (advance as u32) << 8 | shift << 16 | (base as u32) << 22)
    }

    /// Returns the argument of [`Bits::consume`]: the length, with the advance in the second byte.
    #[inline(always)]
    pub(super) fn step(self) -> u32 {
        self.0
    }

    /// Returns the value, given the bits that begin with the symbol's code.
    #[inline(always)]
    pub(super) fn value(self, bits: u64) -> i32 {
        let beyond = (bits & (u64::MAX >> LOOKUP_BITS)) >> (self.0 >> 16 & 63);
        (self.0 as i32 >> 22).wrapping_add(beyond as i32)
    }

    /// Returns whether the symbol is not in the lookup.
    #[inline(always)]
    pub(super) fn is_slow(self) -> bool {
        self == Self::NOT_HERE
    }
}

/// A symbol decoded without the lookup; see [`Entry`] for the fields.
#[derive(Debug, Clone, Copy)]
pub(super) struct Symbol {
    pub(super) length: u32,
    pub(super) advance: u8,
    pub(super) value: i32,
}

/// Entries by [`Bits::index`](super::bits::Bits::index).
pub(super) type Lookup = [Entry; 1 << LOOKUP_BITS];

/// A table with its definition. Most files of a dataset share a few tables, so tables are rarely
/// rebuilt.
#[derive(Debug, Clone)]
pub(super) struct Table {
    lookup: Box<Lookup>,
    kind: Kind,
    codes: Canonical,
    /// Length of the shortest code that is not in the lookup.
    shortest_slow: u32,
    /// Counts and symbols as in the file; empty if the table is invalid.
    definition: Vec<u8>,
    /// Table for skipping blocks; built when first needed.
    multi_symbols: Option<Box<MultiSymbolTable>>,
}

impl Table {
    /// Returns a table in which every code is an error.
    pub(super) fn new(kind: Kind) -> Self {
        Self {
            lookup: Box::new([Entry::NOT_HERE; 1 << LOOKUP_BITS]),
            kind,
            codes: Canonical::new(),
            shortest_slow: 17,
            definition: Vec::new(),
            multi_symbols: None,
        }
    }

    /// Sets the definition: 16 counts of codes by length, and the symbols. Returns `None` if
    /// libjpeg refuses such a table.
    pub(super) fn define(&mut self, counts: &[u8; 16], symbols: &[u8]) -> Option<()> {
        let same = self.definition.len() == 16 + symbols.len()
            && self.definition.starts_with(counts)
            && self.definition.ends_with(symbols);
        if same {
            return Some(());
        }
        self.definition.clear();
        self.multi_symbols = None;
        self.build(counts, symbols)?;
        self.definition.extend_from_slice(counts);
        self.definition.extend_from_slice(symbols);
        Some(())
    }

    fn build(&mut self, counts: &[u8; 16], symbols: &[u8]) -> Option<()> {
        let (kind, lookup) = (self.kind, &mut self.lookup);
        lookup.fill(Entry::NOT_HERE);
        self.shortest_slow = 17;
        let enter = |code, length, symbol| {
            if !enter(lookup, kind, (code, length), symbol) {
                self.shortest_slow = self.shortest_slow.min(length);
            }
        };
        self.codes.define(kind, counts, symbols, enter)
    }

    /// Returns the table's multi-symbols, if they exist.
    pub(super) fn multi_symbols(&self) -> Option<&MultiSymbolTable> {
        self.multi_symbols.as_deref()
    }

    /// Builds the multi-symbols, if they are not current.
    pub(super) fn make_multi_symbols(&mut self) {
        if self.multi_symbols.is_none()
            && let Some((counts, symbols)) = self.definition.split_at_checked(16)
        {
            self.multi_symbols = Some(multi_symbol::build(counts, symbols));
        }
    }

    /// Returns the entries by the next bits.
    #[inline(always)]
    pub(super) fn lookup(&self) -> &Lookup {
        &self.lookup
    }

    /// Decodes the symbol at the beginning of the bits. Returns `None` if they are not a code.
    #[cold]
    #[inline(never)]
    pub(super) fn slow(&self, bits: u64) -> Option<Symbol> {
        self.slow_from(bits, self.shortest_slow)
    }

    /// [`Table::slow`] for codes of at least `shortest` bits.
    fn slow_from(&self, bits: u64, shortest: u32) -> Option<Symbol> {
        let (length, symbol) = self.codes.find(bits, shortest)?;
        let (advance, size) = meaning(self.kind, symbol);
        let value = if size == 0 {
            0
        } else {
            signed((bits << length >> (64 - size)) as u32, size)
        };
        Some(Symbol {
            length: length + size,
            advance,
            value,
        })
    }
}

/// Adds a code to the lookup, for all bits that may follow it. Returns `false` if it does not fit.
fn enter(lookup: &mut Lookup, kind: Kind, (code, length): (u32, u32), symbol: u8) -> bool {
    let (advance, size) = meaning(kind, symbol);
    let total = length + size;
    // At least the sign of the extra bits must be inside the lookup.
    let fits = length + size.min(1) <= LOOKUP_BITS && total <= FAST_BITS && size <= FAST_SIZE;
    if !fits {
        return false;
    }
    let free = LOOKUP_BITS - length;
    let known = size.min(free);
    let beyond = size - known;
    let first = (code as usize) << free;
    for (following, entry) in lookup[first..first + (1 << free)].iter_mut().enumerate() {
        let extra = following as u32 >> (free - known);
        let base = if size == 0 {
            0
        } else {
            signed(extra << beyond, size)
        };
        *entry = Entry::new(total, advance, beyond, base);
    }
    true
}

/// Decodes a value from its `size` extra bits; values that begin with a 0 bit are negative.
fn signed(extra: u32, size: u32) -> i32 {
    if extra >> (size - 1) == 0 {
        extra as i32 - ((1 << size) - 1)
    } else {
        extra as i32
    }
}

#[cfg(test)]
mod tests {
    use super::super::symbol::END_OF_BLOCK;
    use super::*;

    /// Counts of codes for luma AC coefficients in table K.5 of ITU T.81, and its first symbols.
    const COUNTS: [u8; 16] = [0, 2, 1, 3, 3, 2, 4, 3, 5, 5, 4, 4, 0, 0, 1, 125];
    const FIRST: [u8; 5] = [0x01, 0x02, 0x03, 0x00, 0x04];

    fn table() -> Table {
        let mut symbols = FIRST.to_vec();
        symbols.extend((0x05..=0xff).take(162 - FIRST.len()));
        let mut table = Table::new(Kind::Ac);
        table.define(&COUNTS, &symbols).unwrap();
        table
    }

    /// Parses bits written as text, first bit first.
    fn bits(text: &str) -> u64 {
        let digits = text.chars().filter(|c| *c != ' ');
        (0..64)
            .zip(digits)
            .map(|(i, digit)| u64::from(digit == '1') << (63 - i))
            .sum()
    }

    #[test]
    fn an_entry_holds_code_length_run_and_value() {
        let table = table();
        for (text, length, advance, value) in [
            ("00 1", 3, 1, 1),
            ("00 0", 3, 1, -1),
            ("01 10", 4, 1, 2),
            ("01 00", 4, 1, -3),
            ("100 011", 6, 1, -4),
            ("1010", 4, END_OF_BLOCK, 0),
            ("1011 1000", 8, 1, 8),
        ] {
            // The entry does not depend on the bits after the symbol.
            for rest in [0, u64::MAX >> length] {
                let next = bits(text) | rest;
                let entry = table.lookup[(next >> (64 - LOOKUP_BITS)) as usize];
                let [found_length, found_advance, ..] = entry.step().to_le_bytes();
                let found = (u32::from(found_length), found_advance, entry.value(next));
                assert_eq!(found, (length, advance, value), "{text}");
                let slow = table.slow_from(next, 1).unwrap();
                assert_eq!((slow.length, slow.advance, slow.value), found, "{text}");
            }
        }
    }

    #[test]
    fn invalid_tables_are_refused() {
        let mut table = Table::new(Kind::Ac);
        let mut counts = [0; 16];
        counts[0] = 2;
        assert_eq!(table.define(&counts, &[1, 2]), None);
        counts[0] = 1;
        assert_eq!(table.define(&counts, &[]), None);
        assert_eq!(table.define(&counts, &[1]), Some(()));
        // The other code of one bit is not assigned, and neither are longer codes with that prefix.
        assert!(table.slow(1 << 63).is_none());
        let mut dc = Table::new(Kind::Dc);
        assert_eq!(dc.define(&counts, &[16]), None);
    }

    #[test]
    fn a_multi_symbol_is_as_long_as_its_symbols() {
        let mut table = table();
        table.make_multi_symbols();
        let multi_symbols = table.multi_symbols().unwrap();
        for (text, length, advance) in [
            ("00 1 00 0 1010 11", 10, 2 + END_OF_BLOCK),
            ("01 10 01 10 00 1 1", 11, 3),
            ("1010 00 1 00 1 00", 4, END_OF_BLOCK),
        ] {
            let multi_symbol = multi_symbols[(bits(text) >> 52) as usize];
            assert_eq!(multi_symbol.step(), length | u32::from(advance) << 8);
        }
        assert!(multi_symbols[4095].is_slow());
    }
}
