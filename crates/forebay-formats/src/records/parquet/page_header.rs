//! Parses page headers: the decompressed size of a page, which the decoder would allocate without a check.
//!
//! The decoder only exposes the number of values. The header uses Thrift's compact encoding. All of its fields are read,
//! because the decoder takes the last one if a field is repeated.

use super::thrift::Compact;

/// Deepest nesting of structs; statistics have 2.
const MAX_DEPTH: usize = 8;

/// The sizes of a page.
#[derive(Debug, Default, Clone, Copy, PartialEq, Eq)]
pub(super) struct PageHeader {
    /// Size of the decompressed page in bytes.
    pub(super) expanded: u64,
    /// Number of values, including nulls.
    pub(super) values: u64,
    /// Size of the uncompressed levels before the compressed data, in data pages of version 2.
    pub(super) levels: u64,
    pub(super) is_dictionary: bool,
    /// Whether each value is stored as a difference to the previous one, so that values take more memory than the page.
    pub(super) shares_prefixes: bool,
}

/// Field numbers of the header, and of the headers inside it.
const EXPANDED: i16 = 2;
const DATA_PAGE: i16 = 5;
const DICTIONARY_PAGE: i16 = 7;
const DATA_PAGE_2: i16 = 8;
const VALUES: i16 = 1;
const ENCODING: i16 = 2;
const ENCODING_2: i16 = 4;
const DEFINITION_BYTES: i16 = 5;
const REPETITION_BYTES: i16 = 6;
const DELTA_BYTE_ARRAY: u64 = 7;

impl PageHeader {
    /// Parses a header; `None` if it is damaged.
    pub(super) fn parse(bytes: &[u8]) -> Option<Self> {
        let mut header = Self::default();
        let (mut definitions, mut repetitions) = (0, 0);
        let mut fields = Compact { rest: bytes };
        fields.walk(0, &mut |path, value| {
            // Negative numbers are left to the decoder, which refuses them.
            let value = u64::try_from(value).unwrap_or(0);
            match *path {
                [EXPANDED] => header.expanded = value,
                [DATA_PAGE, VALUES] | [DATA_PAGE_2, VALUES] => header.values = value,
                [DICTIONARY_PAGE, VALUES] => {
                    (header.values, header.is_dictionary) = (value, true);
                }
                [DATA_PAGE, ENCODING] | [DATA_PAGE_2, ENCODING_2] => {
                    header.shares_prefixes = value == DELTA_BYTE_ARRAY;
                }
                [DATA_PAGE_2, DEFINITION_BYTES] => definitions = value,
                [DATA_PAGE_2, REPETITION_BYTES] => repetitions = value,
                _ => {}
            }
        })?;
        header.levels = definitions.saturating_add(repetitions);
        Some(header)
    }
}

impl Compact<'_> {
    fn integer(&mut self) -> Option<i64> {
        let coded = self.varint()?;
        Some((coded >> 1) as i64 ^ -((coded & 1) as i64))
    }

    /// Reads the fields of a struct up to its end. Calls `found` for integers of the first two levels with their field numbers.
    fn walk(&mut self, depth: usize, found: &mut dyn FnMut(&[i16], i64)) -> Option<()> {
        let mut id: i16 = 0;
        loop {
            let head = self.byte()?;
            if head == 0 {
                return Some(());
            }
            id = match head >> 4 {
                0 => i16::try_from(self.integer()?).ok()?,
                more => id.checked_add(i16::from(more))?,
            };
            match head & 0xf {
                4..=6 => found(&[id], self.integer()?),
                12 if depth < MAX_DEPTH => {
                    let mut inner = |path: &[i16], value| {
                        if let [inner] = path {
                            found(&[id, *inner], value);
                        }
                    };
                    self.walk(depth + 1, &mut inner)?;
                }
                other => self.value(other, depth)?,
            }
        }
    }

    /// Skips a value that is neither an integer nor a struct at this level.
    fn value(&mut self, kind: u8, depth: usize) -> Option<()> {
        if depth > MAX_DEPTH {
            return None;
        }
        match kind {
            // Booleans are encoded in the type.
            1 | 2 => Some(()),
            3 => self.skip_bytes(1),
            4..=6 => self.varint().map(|_| ()),
            7 => self.skip_bytes(8),
            8 => {
                let len = self.varint()?;
                self.skip_bytes(len)
            }
            9 | 10 => {
                let head = self.byte()?;
                let count = match head >> 4 {
                    15 => self.varint()?,
                    count => u64::from(count),
                };
                for _ in 0..count {
                    match head & 0xf {
                        1 | 2 => self.skip_bytes(1)?,
                        kind => self.value(kind, depth + 1)?,
                    }
                }
                Some(())
            }
            12 => self.walk(depth + 1, &mut |_, _| {}),
            _ => None,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_last_of_repeated_fields_is_used() {
        // A data page of 300 bytes with 7 values in encoding 7, statistics, and then a second size of 5.
        let header = [
            0x15, 0x00, 0x15, 0xd8, 0x04, 0x15, 0x10, 0x2c, 0x15, 0x0e, 0x15, 0x0e, 0x3c, 0x18,
            0x01, b'x', 0x00, 0x00, 0x05, 0x04, 0x0a, 0x00,
        ];
        let expected = PageHeader {
            expanded: 5,
            values: 7,
            shares_prefixes: true,
            ..PageHeader::default()
        };
        assert_eq!(PageHeader::parse(&header), Some(expected));
        for len in 0..header.len() {
            assert_eq!(PageHeader::parse(&header[..len]), None, "{len}");
        }
        let deep = [0x1c; 100];
        assert_eq!(PageHeader::parse(&deep), None);
        let lists = [0x19; 100];
        assert_eq!(PageHeader::parse(&lists), None);
    }
}
