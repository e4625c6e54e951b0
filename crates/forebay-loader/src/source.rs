//! The interface between the loader and the sources of records.
//!
//! A loader requests pieces of consecutive records; the source determines how a piece is read: from
//! a file, a cache, or an object store.

use std::ops::Range;
use std::path::PathBuf;
use std::sync::Arc;

use forebay_options::LabelBase;
use forebay_shard::example::RecordFeatures;
use forebay_shard::{ReadProfile, RecordBlock, Schema, Shard, Split, StorageStats};

use crate::error::{Error, RecordLocation, Result};
use crate::labels::Relabel;

/// Maximum gap in bytes between two requested records of a local file up to which one read covers both
/// records and the gap.
pub(crate) const MAX_GAP_BYTES: u64 = 64 << 10;
/// Default number of concurrent reads: enough to keep local disks busy, and to hide some of the latency of a network.
pub const DEFAULT_READERS: usize = 4;

/// Page cache policy for records that were read from local files.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
#[non_exhaustive]
pub enum PageCache {
    /// The operating system decides. Suits datasets that fit into memory, and machines without other users of the cache.
    #[default]
    Keep,
    /// Pages are dropped as soon as they were read. Suits datasets larger than memory, which would evict the pages of others.
    Drop,
}

/// Numbered records that several threads read concurrently, in pieces.
pub(crate) trait Source: Send + Sync {
    /// Returns the number of records.
    fn records(&self) -> u64;

    /// Returns the size of all records as stored.
    fn bytes(&self) -> u64;

    /// Returns the maximum number of records per block of a shuffled epoch, if a manifest has one.
    fn block_records(&self) -> Option<u64> {
        None
    }

    /// Returns the part of `run` around `record` that can be read at once.
    fn piece(&self, run: &Range<u64>, record: u64) -> Range<u64>;

    /// Returns the number of bytes to read for a piece.
    fn stored_bytes(&self, piece: &Range<u64>) -> Result<u64>;

    /// Reads and verifies a piece. Record `i` of the block is record `piece.start + i`.
    fn read(&self, piece: &Range<u64>, block: &mut RecordBlock) -> Result<()>;

    /// Returns the useful number of concurrent reads, and the gap in bytes between two requested
    /// records up to which reading the gap is cheaper than a separate read.
    fn read_profile(&self) -> (usize, u64) {
        (DEFAULT_READERS, MAX_GAP_BYTES)
    }

    /// Returns the storage of the records, if it is remote.
    fn storage(&self) -> Option<String> {
        None
    }

    /// Returns the counters of the storage, if it has any.
    fn traffic(&self) -> Option<StorageStats> {
        None
    }

    /// Announces that this piece will be read soon. Advisory.
    fn will_need(&self, _piece: &Range<u64>) {}

    /// Returns the location of a record without its key; never reads.
    fn locate(&self, record: u64) -> RecordLocation;

    /// Returns the key of a record, if it exists and can be read.
    fn key(&self, record: u64) -> Option<Vec<u8>>;

    /// Returns the features that hold image and label of a record.
    fn record_features(&self, _record: u64) -> &RecordFeatures {
        RecordFeatures::standard()
    }

    /// Returns the columns of the records, for each part whose records differ in them.
    fn schemas(&self) -> Vec<Schema> {
        vec![Schema::default()]
    }

    /// Returns the number of the part in [`schemas`](Source::schemas) that a record belongs to.
    fn part_of(&self, _record: u64) -> usize {
        0
    }

    /// Converts the stored label of a record to the label in batches, or returns the reason for
    /// refusing it.
    fn relabel(&self, _record: u64, stored: i64) -> Result<i64, String> {
        Ok(stored)
    }

    /// As [`relabel`](Source::relabel), with an error that names the record.
    fn label(&self, record: u64, stored: i64) -> Result<i64> {
        self.relabel(record, stored).map_err(|what| Error::Record {
            place: Box::new(self.place(record)),
            what,
        })
    }

    /// Calls `each` with the label of each record in order, as [`label`](Source::label) would
    /// return it, if the index has it; never reads.
    fn for_each_label(&self, each: &mut dyn FnMut(u64, Option<i64>));

    /// Returns the label of the class with this name, as in [`label`](Source::label).
    fn class_label(&self, name: &str) -> Result<Option<i64>>;

    /// Returns the known names of classes in the order of their labels in batches, with the first
    /// label.
    fn classes(&self) -> Classes;

    /// Returns the parts with quotas of the epochs, if there are any.
    fn portions(&self) -> Option<Portions> {
        None
    }

    /// Returns the location of a record with its key.
    fn place(&self, record: u64) -> RecordLocation {
        RecordLocation {
            key: self.key(record),
            ..self.locate(record)
        }
    }
}

/// The classes of a source, numbered as in batches.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub(crate) struct Classes {
    /// Label of the first class; `None` if it differs between datasets.
    pub(crate) first: Option<i64>,
    /// Names in the order of labels; empty if unknown, or if a label has several.
    pub(crate) names: Arc<[String]>,
}

/// Parts of a source, with their weights in an epoch.
pub(crate) struct Portions {
    /// First record of each part, followed by the number of all records.
    pub(crate) starts: Vec<u64>,
    /// Stored size of each part, in bytes.
    pub(crate) bytes: Vec<u64>,
    /// Not negative, for each epoch; those of the last one stay.
    pub(crate) weights: Vec<Vec<f64>>,
}

impl Portions {
    /// Returns the size of `counts` records of each part, if all records had the average size.
    pub(crate) fn bytes_of(&self, counts: &[u64]) -> u64 {
        let of = |part: usize| {
            let records = self.starts[part + 1] - self.starts[part];
            u128::from(self.bytes[part]) * u128::from(counts[part]) / u128::from(records.max(1))
        };
        u64::try_from((0..counts.len()).map(of).sum::<u128>()).unwrap_or(u64::MAX)
    }
}

/// A split of a dataset in any storage.
pub(crate) struct SplitSource {
    split: Split,
    bytes: u64,
    page_cache: PageCache,
    relabel: Relabel,
    /// Label of the first class in batches.
    first: i64,
}

impl SplitSource {
    pub(crate) fn new(split: Split) -> Result<Self> {
        let mut bytes = 0;
        for shard in split.shards() {
            let range = shard.byte_range(0..shard.len())?;
            bytes += range.end - range.start;
        }
        let first = split.label_base();
        Ok(SplitSource {
            split,
            bytes,
            page_cache: PageCache::default(),
            relabel: Relabel::new(LabelBase::Stored, first, 0),
            first,
        })
    }

    /// Returns the same source with another page cache policy.
    pub(crate) fn keeping(self, page_cache: PageCache) -> Self {
        SplitSource { page_cache, ..self }
    }

    /// Returns the same source with the first class labeled as `label_base` says.
    pub(crate) fn counting_from(self, label_base: LabelBase) -> Self {
        let stored = self.split.label_base();
        SplitSource {
            relabel: Relabel::new(label_base, stored, 0),
            first: label_base.or_stored(stored),
            ..self
        }
    }

    /// Returns the same source with the labels of a mix.
    pub(crate) fn relabelled(self, relabel: Relabel) -> Self {
        SplitSource { relabel, ..self }
    }

    /// Returns the profile of the storage, if it is remote.
    fn far(&self) -> Option<ReadProfile> {
        let first = self.split.shards().first()?;
        Some(first.storage().read_profile()).filter(ReadProfile::is_remote)
    }

    /// Returns the shard of a piece, and the piece's record numbers in it.
    fn within(&self, piece: &Range<u64>) -> Result<(&Shard, Range<u64>)> {
        let found = self.split.locate(piece.start);
        let found = found.and_then(|(shard, first)| {
            let shard = self.split.shards().get(shard)?;
            Some((shard, first..first + (piece.end - piece.start)))
        });
        let outside = || forebay_shard::Error::OutOfRange {
            within: forebay_shard::Records::Split(self.split.name().to_owned()),
            record: piece.start,
            records: self.split.len(),
        };
        Ok(found.ok_or_else(outside)?)
    }
}

impl Source for SplitSource {
    fn records(&self) -> u64 {
        self.split.len()
    }

    fn bytes(&self) -> u64 {
        self.bytes
    }

    fn block_records(&self) -> Option<u64> {
        self.split.block_records()
    }

    fn piece(&self, run: &Range<u64>, record: u64) -> Range<u64> {
        let shard = self.split.locate(record).map(|(shard, _)| shard);
        let begin = shard.and_then(|shard| self.split.shard_start(shard));
        let end = shard.and_then(|shard| self.split.shard_start(shard + 1));
        run.start.max(begin.unwrap_or(0))..run.end.min(end.unwrap_or(run.end))
    }

    fn stored_bytes(&self, piece: &Range<u64>) -> Result<u64> {
        let (shard, records) = self.within(piece)?;
        let range = shard.byte_range(records)?;
        Ok(range.end - range.start)
    }

    fn read(&self, piece: &Range<u64>, block: &mut RecordBlock) -> Result<()> {
        let (shard, records) = self.within(piece)?;
        let result = shard.read_range(records.clone(), block);
        if self.page_cache == PageCache::Drop {
            shard.forget_range(records)?;
        }
        Ok(result?)
    }

    fn read_profile(&self) -> (usize, u64) {
        match self.far() {
            Some(profile) => (
                profile.parallel.max(DEFAULT_READERS),
                profile.gap_bytes.max(MAX_GAP_BYTES),
            ),
            None => (DEFAULT_READERS, MAX_GAP_BYTES),
        }
    }

    fn storage(&self) -> Option<String> {
        self.far()?;
        let first = self.split.shards().first()?;
        let dir = first.path().parent()?;
        Some(dir.display().to_string())
    }

    fn traffic(&self) -> Option<StorageStats> {
        self.split.shards().first()?.storage().stats()
    }

    fn will_need(&self, piece: &Range<u64>) {
        if let Ok((shard, records)) = self.within(piece) {
            // An error here will occur again in the read, which reports it.
            let _ = shard.will_need_range(records);
        }
    }

    fn locate(&self, record: u64) -> RecordLocation {
        let found = self.within(&(record..record + 1)).ok();
        let (shard, at) = match &found {
            Some((shard, records)) => (Some(*shard), records.start),
            None => (None, record),
        };
        let offset = shard.and_then(|shard| shard.byte_range(at..at + 1).ok());
        RecordLocation {
            shard: shard.map_or_else(PathBuf::new, |shard| shard.path().to_owned()),
            record: at,
            sample: record,
            key: None,
            offset: offset.map_or(0, |range| range.start),
        }
    }

    fn key(&self, record: u64) -> Option<Vec<u8>> {
        let key = self.split.key(record).ok()?;
        (!key.is_empty()).then_some(key)
    }

    fn record_features(&self, _record: u64) -> &RecordFeatures {
        self.split.record_features()
    }

    fn schemas(&self) -> Vec<Schema> {
        vec![self.split.schema().clone()]
    }

    fn relabel(&self, _: u64, stored: i64) -> Result<i64, String> {
        self.relabel.of(stored)
    }

    fn for_each_label(&self, each: &mut dyn FnMut(u64, Option<i64>)) {
        let mut record = 0;
        for shard in self.split.shards() {
            for at in 0..shard.len() {
                let stored = shard.label(at);
                each(
                    record,
                    stored.and_then(|stored| self.relabel.of(stored).ok()),
                );
                record += 1;
            }
        }
    }

    fn class_label(&self, name: &str) -> Result<Option<i64>> {
        let at = self
            .split
            .classes()
            .iter()
            .position(|class| class.name == name);
        Ok(at.map(|at| self.first + at as i64))
    }

    fn classes(&self) -> Classes {
        let names = self.split.classes().iter();
        Classes {
            first: Some(self.first),
            names: names.map(|class| class.name.clone()).collect(),
        }
    }
}
