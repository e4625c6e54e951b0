//! Salvage: hands out what is whole in a shard that may be damaged.

use std::ops::Range;
use std::path::Path;

use super::{Observer, Options, Report, ShardCheck};
use crate::error::{Error, Result};
use crate::index::Index;
use crate::shard::ShardFormat;
use crate::storage::Storage;

/// A record that is intact.
#[derive(Debug, Clone, Copy)]
pub struct IntactRecord<'a> {
    /// Its number in the shard. Without an index or the headers of blocks, records before it are
    /// counted as far as they were found.
    pub number: u64,
    /// Its payload.
    pub payload: &'a [u8],
    /// Its label, if an index knows one.
    pub label: Option<i64>,
    /// Its key in the index, empty if it has none; `None` where no index tells.
    pub key: Option<&'a [u8]>,
}

/// Takes intact records in order.
pub type TakeRecord<'a> = dyn FnMut(&IntactRecord<'_>) + 'a;

/// A shard to salvage, with what a manifest says of it.
#[derive(Debug, Clone, Copy)]
pub struct ShardPlace<'a> {
    /// The shard.
    pub path: &'a Path,
    /// Its format.
    pub format: ShardFormat,
    /// The index of a TFRecord file, if there is one.
    pub sidecar: Option<&'a Path>,
    /// How many records the manifest says it has.
    pub records: Option<u64>,
    /// The CRC32C of the whole file in the manifest: an index of another file is not used.
    pub crc32c: Option<u32>,
}

/// Hands out every intact record of a shard, and reports what is damaged and what is lost to it.
///
/// # Errors
/// When a file cannot be read. Damage is in the report.
pub fn salvage_shard_in(
    place: &ShardPlace<'_>,
    storage: &dyn Storage,
    options: &Options<'_>,
    observer: &Observer<'_>,
    take: &mut TakeRecord<'_>,
) -> Result<Report> {
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

/// The additions of salvage to a verification.
pub(super) struct Salvage<'a> {
    take: &'a mut TakeRecord<'a>,
    crc32c: Option<u32>,
    pub(super) keys: Keys,
    /// A read that the system refused: that is no damage, and what it kept back is not lost.
    pub(super) failure: Option<Error>,
}

impl Salvage<'_> {
    /// Whether an index is of this shard, as far as the manifest tells.
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

/// The keys of a shard in memory, with where each is; those of damaged pages are not known.
#[derive(Default)]
pub(super) struct Keys {
    bytes: Vec<u8>,
    places: Vec<Option<Range<usize>>>,
    /// The index says that no record has a key.
    pub(super) are_none: bool,
}

impl Keys {
    /// Adds the key of the record `number`. Keys come in order; those that are left out are not known.
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
