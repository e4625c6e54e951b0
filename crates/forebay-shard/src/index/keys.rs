//! Keys of records, in pages that are read one at a time.
//!
//! Keys are most of an index and seldom needed, so they stay on disk. A page holds the keys of 256
//! records: `u32 crc32c of the following bytes | u32 length of each key | the keys`.

use super::layout::{KEY_PAGE_RECORDS, Take};
use crate::checksum::crc32c;
use crate::error::Corruption;

/// Maximum length of a key, in bytes.
pub const MAX_KEY_BYTES: usize = 65_535;

/// Number of pages for the keys of `records` records.
pub(crate) fn pages(records: u64) -> u64 {
    records.div_ceil(KEY_PAGE_RECORDS)
}

/// Number of records on page `page`.
pub(crate) fn page_records(page: u64, records: u64) -> u64 {
    records
        .saturating_sub(page * KEY_PAGE_RECORDS)
        .min(KEY_PAGE_RECORDS)
}

/// Collects keys into pages, and encodes each page as soon as it is full.
#[derive(Debug, Clone, Default)]
pub(crate) struct PageBuilder {
    /// The full pages.
    pages: Vec<u8>,
    /// The end offset of each full page.
    ends: Vec<u64>,
    /// The keys of the incomplete page, and the length of each.
    keys: Vec<u8>,
    lengths: Vec<u32>,
    has_keys: bool,
}

impl PageBuilder {
    /// Reserves memory for this many keys with this many bytes in total.
    pub(crate) fn reserve(&mut self, keys: u64, bytes: u64) {
        let pages = bytes.saturating_add(keys.saturating_mul(4) + pages(keys) * 4);
        self.pages
            .reserve_exact(usize::try_from(pages).unwrap_or(0));
    }

    /// Adds the next key.
    pub(crate) fn push(&mut self, key: &[u8]) {
        self.has_keys |= !key.is_empty();
        self.keys.extend_from_slice(key);
        self.lengths.push(key.len() as u32);
        if self.lengths.len() as u64 == KEY_PAGE_RECORDS {
            encode(&self.keys, &self.lengths, &mut self.pages);
            self.ends.push(self.pages.len() as u64);
            self.keys.clear();
            self.lengths.clear();
        }
    }

    /// Returns whether any key is not empty; otherwise there are no pages.
    pub(crate) fn has_keys(&self) -> bool {
        self.has_keys
    }

    /// Returns the full pages, the last page, and the directory: the start of each page, followed
    /// by the end of the last.
    pub(crate) fn finish(&self) -> (&[u8], Vec<u8>, Vec<u64>) {
        let mut last = Vec::new();
        if !self.has_keys {
            return (&[], last, Vec::new());
        }
        let mut directory = Vec::with_capacity(self.ends.len() + 2);
        directory.push(0);
        directory.extend_from_slice(&self.ends);
        if !self.lengths.is_empty() {
            encode(&self.keys, &self.lengths, &mut last);
            directory.push((self.pages.len() + last.len()) as u64);
        }
        (&self.pages, last, directory)
    }
}

/// Appends a page.
fn encode(keys: &[u8], lengths: &[u32], out: &mut Vec<u8>) {
    let at = out.len();
    out.extend_from_slice(&[0; 4]);
    for length in lengths {
        out.extend_from_slice(&length.to_le_bytes());
    }
    out.extend_from_slice(keys);
    let crc = crc32c(&out[at + 4..]);
    out[at..at + 4].copy_from_slice(&crc.to_le_bytes());
}

/// A page with valid checksum and lengths.
#[derive(Debug)]
pub(crate) struct Page<'a> {
    lengths: &'a [u8],
    keys: &'a [u8],
}

impl<'a> Page<'a> {
    /// Validates the page of `records` keys at offset `offset`.
    pub(crate) fn parse(bytes: &'a [u8], records: u64, offset: u64) -> Result<Self, Corruption> {
        let lengths = usize::try_from(records)
            .unwrap_or(usize::MAX)
            .saturating_mul(4);
        let Some((crc, rest)) = bytes.split_first_chunk() else {
            return Err(Corruption::new(
                offset,
                "key page",
                "4 bytes or more",
                bytes.len(),
            ));
        };
        let (stored, found) = (u32::from_le_bytes(*crc), crc32c(rest));
        if stored != found {
            return Err(Corruption::checksum(
                offset,
                "key page crc32c",
                stored,
                found,
            ));
        }
        let Some((lengths, keys)) = rest.split_at_checked(lengths) else {
            let needed = format_args!("{} bytes or more", lengths.saturating_add(4));
            return Err(Corruption::new(offset, "key page", needed, bytes.len()));
        };
        let page = Self { lengths, keys };
        let sum: u64 = page.lengths().map(|len| len as u64).sum();
        if sum != keys.len() as u64 {
            return Err(Corruption::new(
                offset,
                "bytes of the page's keys",
                sum,
                keys.len(),
            ));
        }
        Ok(page)
    }

    fn lengths(&self) -> impl Iterator<Item = usize> + use<'a> {
        self.lengths
            .chunks_exact(4)
            .map(|len| Take(len).u32() as usize)
    }

    /// The keys in order.
    pub(crate) fn iter(&self) -> impl Iterator<Item = &'a [u8]> + use<'a> {
        let keys = self.keys;
        self.lengths().scan(0, move |at, len| {
            let key = keys.get(*at..*at + len);
            *at += len;
            key
        })
    }
}
