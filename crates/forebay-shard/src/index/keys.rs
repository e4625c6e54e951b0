//! Keys of records, in pages that are read one at a time.
//!
//! Keys are most of an index and seldom wanted, so they stay on disk. A page
//! holds the keys of 256 records: `u32 crc32c of what follows | u32 length of
//! each key | the keys`.

use super::layout::{KEY_PAGE_RECORDS, Take};
use crate::checksum::crc32c;
use crate::error::Corruption;

/// The longest key, in bytes.
pub const MAX_KEY_BYTES: usize = 65_535;

/// How many pages the keys of `records` records take.
pub(crate) fn pages(records: u64) -> u64 {
    records.div_ceil(KEY_PAGE_RECORDS)
}

/// Records on page `page`.
pub(crate) fn page_records(page: u64, records: u64) -> u64 {
    records
        .saturating_sub(page * KEY_PAGE_RECORDS)
        .min(KEY_PAGE_RECORDS)
}

/// Appends the pages of all keys; `ends` are where each key ends in `keys`.
/// Gives the directory: where each page starts, then where the last ends.
pub(crate) fn encode(keys: &[u8], ends: &[u64], out: &mut Vec<u8>) -> Vec<u64> {
    let base = out.len();
    let mut directory = vec![0];
    let mut start = 0;
    for page in ends.chunks(KEY_PAGE_RECORDS as usize) {
        let at = out.len();
        out.extend_from_slice(&[0; 4]);
        let first = start;
        for &end in page {
            out.extend_from_slice(&((end - start) as u32).to_le_bytes());
            start = end;
        }
        out.extend_from_slice(&keys[first as usize..start as usize]);
        let crc = crc32c(&out[at + 4..]);
        out[at..at + 4].copy_from_slice(&crc.to_le_bytes());
        directory.push((out.len() - base) as u64);
    }
    directory
}

/// A page whose checksum and lengths are right.
#[derive(Debug)]
pub(crate) struct Page<'a> {
    lengths: &'a [u8],
    keys: &'a [u8],
}

impl<'a> Page<'a> {
    /// Checks the page of `records` keys that lies at byte `offset`.
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
