//! Writing entropy-coded data with given Huffman tables.

use super::markers::HuffmanTable;

/// Code and its length by symbol; length 0 for symbols without a code.
pub type Codes = [(u16, u8); 256];

/// The Huffman tables of a file, by class (DC, AC) and number.
#[derive(Debug, Default)]
pub struct CodeTables {
    /// Those of DC coefficients.
    pub dc: [Option<Box<Codes>>; 4],
    /// Those of AC coefficients.
    pub ac: [Option<Box<Codes>>; 4],
}

/// Returns whether, in all tables of a DHT segment, each symbol has one code, and the only AC
/// symbols of size 0 are the end of a block and the run of sixteen zeros.
pub(crate) fn has_plain_tables(mut payload: &[u8]) -> bool {
    while !payload.is_empty() {
        let Some(table) = HuffmanTable::take(&mut payload) else {
            return false;
        };
        let mut seen = [false; 256];
        for &symbol in table.symbols {
            let is_odd = table.target >> 4 == 1 && symbol % 16 == 0 && !matches!(symbol, 0 | 0xf0);
            if is_odd || std::mem::replace(&mut seen[usize::from(symbol)], true) {
                return false;
            }
        }
    }
    true
}

impl CodeTables {
    /// Reads the payload of a DHT segment. Returns `None` if the payload is damaged.
    pub fn read(&mut self, mut payload: &[u8]) -> Option<()> {
        while !payload.is_empty() {
            let table = HuffmanTable::take(&mut payload)?;
            let mut codes = Box::new([(0, 0); 256]);
            let (mut code, mut at) = (0u32, 0);
            for (length, &count) in (1u8..).zip(table.counts) {
                for _ in 0..count {
                    if code >= 1 << length {
                        return None;
                    }
                    codes[usize::from(table.symbols[at])] = (code as u16, length);
                    code += 1;
                    at += 1;
                }
                code <<= 1;
            }
            *table.slot(&mut self.dc, &mut self.ac)? = Some(codes);
        }
        Some(())
    }
}

/// Writes bits as bytes, with a zero byte after each `ff`.
pub struct BitWriter<'a> {
    /// The bytes so far.
    pub out: &'a mut Vec<u8>,
    bits: u64,
    /// Number of bits that are not in `out` yet, less than 32.
    count: u32,
}

impl<'a> BitWriter<'a> {
    /// Creates a writer that appends to these bytes.
    pub fn new(out: &'a mut Vec<u8>) -> Self {
        Self {
            out,
            bits: 0,
            count: 0,
        }
    }

    /// Writes the lowest `count` bits of `bits`, up to 32; all others must be zero.
    #[inline(always)]
    pub fn put(&mut self, bits: u32, count: u32) {
        self.bits = self.bits << count | u64::from(bits);
        self.count += count;
        if self.count >= 32 {
            self.count -= 32;
            self.write((self.bits >> self.count) as u32);
        }
    }

    #[inline(always)]
    fn write(&mut self, word: u32) {
        let bytes = word.to_be_bytes();
        // A byte ff in `word` is a zero byte in its complement.
        let has_ff = (!word).wrapping_sub(0x0101_0101) & word & 0x8080_8080 != 0;
        if has_ff {
            self.write_stuffed(&bytes);
        } else {
            self.out.extend_from_slice(&bytes);
        }
    }

    fn write_stuffed(&mut self, bytes: &[u8]) {
        for &byte in bytes {
            self.out.push(byte);
            if byte == 0xff {
                self.out.push(0);
            }
        }
    }

    /// Writes the code of a symbol. Returns `None` if it has none.
    #[inline(always)]
    pub fn code(&mut self, codes: &Codes, symbol: u32) -> Option<()> {
        let &(code, length) = codes.get(symbol as usize)?;
        if length == 0 {
            return None;
        }
        self.put(u32::from(code), u32::from(length));
        Some(())
    }

    /// Writes a value in `size` bits, at most 15; a negative value is written as the value minus one.
    #[inline(always)]
    pub fn value(&mut self, value: i32, size: u32) {
        self.put(value_bits(value, size), size);
    }

    /// Writes a code, followed by a value in `size` bits, at most 15.
    #[inline(always)]
    pub(crate) fn code_and_value(
        &mut self,
        codes: &Codes,
        symbol: u32,
        value: i32,
        size: u32,
    ) -> Option<()> {
        let &(code, length) = codes.get(symbol as usize)?;
        if length == 0 {
            return None;
        }
        let bits = u32::from(code) << size | value_bits(value, size);
        self.put(bits, u32::from(length) + size);
        Some(())
    }

    /// Writes single bits.
    #[inline]
    pub fn bits(&mut self, bits: &[bool]) {
        for &bit in bits {
            self.put(u32::from(bit), 1);
        }
    }

    /// Fills the last byte with ones, and writes all pending bits.
    pub fn pad(&mut self) {
        let missing = (8 - self.count % 8) % 8;
        self.put((1 << missing) - 1, missing);
        let bytes = (self.bits << (32 - self.count)) as u32;
        self.write_stuffed(&bytes.to_be_bytes()[..self.count as usize / 8]);
        self.count = 0;
    }
}

#[inline(always)]
fn value_bits(value: i32, size: u32) -> u32 {
    // A negative value is encoded as the value minus one.
    (value + (value >> 31)) as u32 & ((1 << size) - 1)
}
