//! Reads values of Thrift's compact protocol.

use forebay_shard::varint;

/// A parser; `rest` has the bytes that were not read yet.
pub(super) struct Compact<'a> {
    pub(super) rest: &'a [u8],
}

impl Compact<'_> {
    pub(super) fn byte(&mut self) -> Option<u8> {
        let (first, rest) = self.rest.split_first()?;
        self.rest = rest;
        Some(*first)
    }

    pub(super) fn skip_bytes(&mut self, len: u64) -> Option<()> {
        self.rest = self.rest.get(usize::try_from(len).ok()?..)?;
        Some(())
    }

    pub(super) fn varint(&mut self) -> Option<u64> {
        varint::read(&mut self.rest)
    }
}
