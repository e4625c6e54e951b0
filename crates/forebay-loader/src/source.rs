//! The seam for where records come from.
//!
//! A loader asks a source for pieces of neighbouring records; what a piece is read from (a file, a cache, an
//! object store) is the source's business.

use std::ops::Range;
use std::path::PathBuf;
use std::sync::Arc;

use forebay_options::LabelBase;
use forebay_shard::example::RecordFeatures;
use forebay_shard::{ReadProfile, RecordBlock, Shard, Split, StorageStats};

use crate::error::{Error, Place, Result};
use crate::labels::Relabel;
use crate::options::{DEFAULT_READERS, PageCache};

/// Records of local files further apart than this many bytes are read one by one instead of reading over what is between.
pub(crate) const MAX_GAP_BYTES: u64 = 64 << 10;

/// Records by number, read in pieces, from several threads at once.
pub(crate) trait Source: Send + Sync {
    /// Number of records.
    fn records(&self) -> u64;

    /// Bytes of all records as stored.
    fn bytes(&self) -> u64;

    /// The most records that a block of a shuffled epoch may have, where a manifest says so.
    fn block_records(&self) -> Option<u64> {
        None
    }

    /// The part of `run` around `record` that can be read in one go.
    fn piece(&self, run: &Range<u64>, record: u64) -> Range<u64>;

    /// Bytes to read for a piece.
    fn stored_bytes(&self, piece: &Range<u64>) -> Result<u64>;

    /// Reads a piece and checks it. Record `i` of the block is record `piece.start + i`.
    fn read(&self, piece: &Range<u64>, block: &mut RecordBlock) -> Result<()>;

    /// Reads on their way at once that are worth it, and the bytes between two wanted records that cost less to read over than a
    /// read of its own.
    fn read_profile(&self) -> (usize, u64) {
        (DEFAULT_READERS, MAX_GAP_BYTES)
    }

    /// The storage that the bytes come from, where a network is in between.
    fn storage(&self) -> Option<String> {
        None
    }

    /// What the storage counted so far, if it counts.
    fn traffic(&self) -> Option<StorageStats> {
        None
    }

    /// Tells whoever keeps the bytes that this piece will be read soon. Advice: nothing may come of it.
    fn will_need(&self, _piece: &Range<u64>) {}

    /// Where a record is, without its key: never reads.
    fn locate(&self, record: u64) -> Place;

    /// Key of a record, if there is one that can be read.
    fn key(&self, record: u64) -> Option<Vec<u8>>;

    /// The features that hold image and label of a record.
    fn record_features(&self, _record: u64) -> &RecordFeatures {
        RecordFeatures::standard()
    }

    /// Returns the label in batches of a record that is stored with label `stored`, or why there is none.
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

    /// Tells the label of each record in order, as [`label`](Source::label) has it and as far as the index knows it: never reads.
    fn for_each_label(&self, each: &mut dyn FnMut(u64, Option<i64>));

    /// The label of the class with this name, as [`label`](Source::label) has it.
    fn class_label(&self, name: &str) -> Result<Option<i64>>;

    /// The names of classes in the order of their labels in batches, the first of which is given; as far as they are known.
    fn classes(&self) -> Classes;

    /// The parts that epochs have portions of, if they do.
    fn portions(&self) -> Option<Portions> {
        None
    }

    /// Where a record is, with its key.
    fn place(&self, record: u64) -> Place {
        Place {
            key: self.key(record),
            ..self.locate(record)
        }
    }
}

/// The classes of a source, as batches number them.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub(crate) struct Classes {
    /// The label of the first class; `None` where it differs from dataset to dataset.
    pub(crate) first: Option<i64>,
    /// Their names in the order of labels; empty where they are not known, or a label has several.
    pub(crate) names: Arc<[String]>,
}

/// Parts of a source, and how much of an epoch each is.
pub(crate) struct Portions {
    /// The first record of each part, then the number of all records.
    pub(crate) starts: Vec<u64>,
    /// Bytes of each part as stored.
    pub(crate) bytes: Vec<u64>,
    /// Not negative.
    pub(crate) weights: Vec<f64>,
}

impl Portions {
    /// Bytes of so many picks of each part, if its records were all of one size.
    pub(crate) fn bytes_of(&self, counts: &[u64]) -> u64 {
        let of = |part: usize| {
            let records = self.starts[part + 1] - self.starts[part];
            u128::from(self.bytes[part]) * u128::from(counts[part]) / u128::from(records.max(1))
        };
        u64::try_from((0..counts.len()).map(of).sum::<u128>()).unwrap_or(u64::MAX)
    }
}

/// A split of a dataset, wherever that is.
pub(crate) struct SplitSource {
    split: Split,
    bytes: u64,
    page_cache: PageCache,
    relabel: Relabel,
    /// The label of the first class in batches.
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

    /// The same source with another wish for the system's copies.
    pub(crate) fn keeping(self, page_cache: PageCache) -> Self {
        SplitSource { page_cache, ..self }
    }

    /// The same source with labels that count from `label_base`.
    pub(crate) fn counting_from(self, label_base: LabelBase) -> Self {
        let stored = self.split.label_base();
        SplitSource {
            relabel: Relabel::new(label_base, stored, 0),
            first: label_base.or_stored(stored),
            ..self
        }
    }

    /// The same source with labels of a mix.
    pub(crate) fn relabelled(self, relabel: Relabel) -> Self {
        SplitSource { relabel, ..self }
    }

    /// How the storage is read, where it is far away.
    fn far(&self) -> Option<ReadProfile> {
        let first = self.split.shards().first()?;
        Some(first.storage().read_profile()).filter(ReadProfile::is_remote)
    }

    /// The shard of a piece, and the piece's numbers there.
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
            // What cannot be opened is reported when it is read.
            let _ = shard.will_need_range(records);
        }
    }

    fn locate(&self, record: u64) -> Place {
        let found = self.within(&(record..record + 1)).ok();
        let (shard, at) = match &found {
            Some((shard, records)) => (Some(*shard), records.start),
            None => (None, record),
        };
        let offset = shard.and_then(|shard| shard.byte_range(at..at + 1).ok());
        Place {
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
