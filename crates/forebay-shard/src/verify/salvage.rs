//! Salvage: extracts the intact records of a shard that may be damaged.

use std::ops::Range;
use std::path::Path;

use super::{ShardCheck, VerifyObserver, VerifyOptions, VerifyReport};
use crate::error::{Error, Result};
use crate::index::Index;
use crate::shard::ShardFormat;
use crate::storage::Storage;

/// An intact record.
#[derive(Debug, Clone, Copy)]
pub struct IntactRecord<'a> {
    /// The record's number in the shard. Without an index or block headers, it is the number of records found
    /// before.
    pub number: u64,
    /// Its payload.
    pub payload: &'a [u8],
    /// Its label, if an index has one.
    pub label: Option<i64>,
    /// Its key in the index, empty if it has none; `None` without an index.
    pub key: Option<&'a [u8]>,
}

/// Receives intact records in order.
pub type TakeRecord<'a> = dyn FnMut(&IntactRecord<'_>) + 'a;

/// A shard to salvage, with its entry in the manifest.
#[derive(Debug, Clone, Copy)]
pub struct ShardPlace<'a> {
    /// The shard.
    pub path: &'a Path,
    /// Its format.
    pub format: ShardFormat,
    /// The index of a TFRecord file, if any.
    pub sidecar: Option<&'a Path>,
    /// Number of records in the manifest.
    pub records: Option<u64>,
    /// CRC32C of the whole file in the manifest; an index of another file is not used.
    pub crc32c: Option<u32>,
}

/// Passes every intact record of a shard to a callback, and reports damage and lost records.
///
/// # Errors
/// If a file cannot be read. Damage is in the report.
pub fn salvage_shard_in(
    place: &ShardPlace<'_>,
    storage: &dyn Storage,
    options: &VerifyOptions<'_>,
    observer: &VerifyObserver<'_>,
    take: &mut TakeRecord<'_>,
) -> Result<VerifyReport> {
    let mut check = ShardCheck::new(place.path, storage, options, observer);
    check.expected_records = place.records;
    check.salvage = Some(Salvage {
        take,
        crc32c: place.crc32c,
        keys: Keys::default(),
        failure: None,
    });
    check.verify(place.format, place.sidecar)?;
    match check.salvage.take().and_then(|salvage| salvage.failure) {
        Some(failure) => Err(failure),
        None => Ok(check.finish()),
    }
}

/// The additional state of salvage in a verification.
pub(super) struct Salvage<'a> {
    take: &'a mut TakeRecord<'a>,
    crc32c: Option<u32>,
    pub(super) keys: Keys,
    /// A read error of the system. It is not damage, and the unread records do not count as lost.
    pub(super) failure: Option<Error>,
}

impl Salvage<'_> {
    /// Returns whether an index belongs to this shard, as far as the manifest shows.
    pub(super) fn trusts(&self, index: &Index) -> bool {
        match (self.crc32c, index.shard_crc32c()) {
            (Some(expected), Some(found)) => expected == found,
            _ => true,
        }
    }

    pub(super) fn take(&mut self, number: u64, payload: &[u8], label: Option<i64>) {
        (self.take)(&IntactRecord {
            number,
            payload,
            label,
            key: self.keys.get(number),
        });
    }
}

/// The keys of a shard in memory, by record. Keys of damaged pages are unknown.
#[derive(Default)]
pub(super) struct Keys {
    bytes: Vec<u8>,
    places: Vec<Option<Range<usize>>>,
    /// Whether the index says that no record has a key.
    pub(super) are_none: bool,
}

impl Keys {
    /// Adds the key of record `number`. Keys are added in order; skipped ones are unknown.
    pub(super) fn push(&mut self, number: u64, key: &[u8]) {
        let start = self.bytes.len();
        self.bytes.extend_from_slice(key);
        self.places
            .resize(usize::try_from(number).unwrap_or(usize::MAX), None);
        self.places.push(Some(start..self.bytes.len()));
    }

    fn get(&self, number: u64) -> Option<&[u8]> {
        if self.are_none {
            return Some(b"");
        }
        let place = self.places.get(usize::try_from(number).ok()?)?;
        self.bytes.get(place.clone()?)
    }
}
