//! Canonical Huffman codes as libjpeg accepts them, and the search for codes that no lookup has.

use super::symbol::Kind;

/// The codes of a table.
#[derive(Debug, Clone)]
pub(crate) struct Canonical {
    /// The largest code of each length, or -1.
    last: [i32; 17],
    /// Offset from a code to its index in `symbols`, by code length.
    offset: [i32; 17],
    symbols: [u8; 256],
}

impl Canonical {
    /// Returns a table without codes.
    pub(crate) fn new() -> Self {
        Self {
            last: [-1; 17],
            offset: [0; 17],
            symbols: [0; 256],
        }
    }

    /// Sets the counts of codes by length, and the symbols. Calls `enter` with each code, its length
    /// and its symbol. Returns `None` if libjpeg refuses such a table.
    pub(crate) fn define(
        &mut self,
        kind: Kind,
        counts: &[u8; 16],
        symbols: &[u8],
        mut enter: impl FnMut(u32, u32, u8),
    ) -> Option<()> {
        self.symbols
            .get_mut(..symbols.len())?
            .copy_from_slice(symbols);
        if kind == Kind::Dc && symbols.iter().any(|&symbol| symbol > 15) {
            return None;
        }
        let (mut code, mut place) = (0u32, 0usize);
        for (length, &count) in (1u32..).zip(counts) {
            let slot = length as usize;
            let count = usize::from(count);
            self.offset[slot] = place as i32 - code as i32;
            let first = code;
            code += count as u32;
            self.last[slot] = if count > 0 { code as i32 - 1 } else { -1 };
            // The code of all ones is reserved, and more codes would not form a prefix code.
            if code >= 1 << length {
                return None;
            }
            for (code, &symbol) in (first..).zip(symbols.get(place..place + count)?) {
                enter(code, length, symbol);
            }
            place += count;
            code <<= 1;
        }
        Some(())
    }

    /// Finds the code of at least `shortest` bits with which `bits` begin. Returns its length and
    /// its symbol, or `None` if the bits are not a code.
    pub(crate) fn find(&self, bits: u64, shortest: u32) -> Option<(u32, u8)> {
        let top = (bits >> 48) as i32;
        for length in shortest..=16 {
            let code = top >> (16 - length);
            let slot = length as usize;
            if code <= self.last[slot] {
                let place = usize::try_from(code + self.offset[slot]).ok()?;
                return Some((length, *self.symbols.get(place)?));
            }
        }
        None
    }
}
