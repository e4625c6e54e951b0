//! The source of a conversion: records in order, with the boundaries of its files.

use super::damaged::DamagedShard;
use super::options::{ConvertOptions, ConvertSource};
use crate::error::{Error, Result};
use forebay_formats::Error as SourceError;
use forebay_formats::records::{RecordFile, RecordFormat, RecordInput, RecordSplit, SourceFacts};
use forebay_shard::example::RecordFeatures;
use forebay_shard::schema::Schema;
use forebay_store::Store;
use std::collections::BTreeSet;
use std::ops::Range;

/// An open source.
pub(super) struct Source {
    /// The name of the source's format.
    pub(super) format: &'static str,
    pub(super) splits: Vec<SourceSplit>,
    pub(super) facts: SourceFacts,
}

/// The files of a split.
pub(super) struct SourceSplit {
    pub(super) name: String,
    pub(super) files: Vec<Box<dyn RecordFile>>,
    /// Number of the first record of each file, followed by the total number of records.
    pub(super) starts: Vec<u64>,
    /// Used instead of `files` if the source may be damaged.
    pub(super) damaged: Vec<DamagedShard>,
}

impl Source {
    pub(super) fn open(options: &ConvertOptions) -> Result<Self> {
        let (format, mut input) = match &options.src {
            ConvertSource::Dataset(location) => {
                (RecordFormat::DATASET, RecordInput::new(location.clone()))
            }
            ConvertSource::Records(format, input) => (*format, (**input).clone()),
        };
        input.read = options.read.clone();
        if input.location.is_remote() {
            let store = Store::open(&input.location, &input.read.store);
            let pinned = store.and_then(|store| store.pinned());
            input.location = pinned.map_err(SourceError::from)?;
        }
        input.on_bad_record = options.on_bad.of_records();
        input.drop_features.clone_from(&options.drop_features);
        let source = format.open(&input)?;
        source
            .check_splits()
            .map_err(|what| SourceError::source(input.location.to_string(), what))?;
        let mut facts = source.facts;
        drop_features(&mut facts, &options.drop_features)?;
        Ok(Self {
            format: format.name(),
            splits: source.splits.into_iter().map(SourceSplit::new).collect(),
            facts,
        })
    }

    /// Returns whether the source may be damaged, so that only intact records are taken.
    pub(super) fn is_damaged(&self) -> bool {
        self.splits.iter().any(|split| !split.damaged.is_empty())
    }

    /// Returns the number of records of all splits.
    pub(super) fn len(&self) -> u64 {
        self.splits.iter().map(SourceSplit::len).sum()
    }

    /// Returns the size of all files in bytes.
    pub(super) fn bytes(&self) -> u64 {
        self.splits.iter().flat_map(SourceSplit::file_bytes).sum()
    }
}

impl SourceSplit {
    fn new(split: RecordSplit) -> Self {
        Self {
            name: split.name,
            starts: starts(split.files.iter().map(|file| file.records())),
            files: split.files,
            damaged: Vec::new(),
        }
    }

    /// Creates a split of shards that may be damaged. A shard with an unknown number of records counts as empty.
    pub(super) fn damaged(name: String, damaged: Vec<DamagedShard>) -> Self {
        Self {
            name,
            starts: starts(damaged.iter().map(|shard| shard.records.unwrap_or(0))),
            files: Vec::new(),
            damaged,
        }
    }

    /// Returns the size of each file in bytes.
    pub(super) fn file_bytes(&self) -> Vec<u64> {
        match self.damaged.is_empty() {
            true => self.files.iter().map(|file| file.bytes()).collect(),
            false => self.damaged.iter().map(|shard| shard.bytes).collect(),
        }
    }

    /// Returns the number of records of all files.
    pub(super) fn len(&self) -> u64 {
        self.starts.last().copied().unwrap_or(0)
    }

    /// Returns the payload size of each record in bytes, in order.
    pub(super) fn record_bytes(&self) -> impl Iterator<Item = u64> + '_ {
        let files = self.files.iter();
        files.flat_map(|file| (0..file.records()).map(|record| file.record_bytes(record)))
    }

    /// Returns the files that contain the given records of the split, with the range of records in each.
    pub(super) fn pieces(
        &self,
        records: Range<u64>,
    ) -> impl Iterator<Item = (&dyn RecordFile, Range<u64>)> {
        let starts = self.files.iter().zip(&self.starts);
        starts.filter_map(move |(file, start)| {
            let range = records.start.max(*start)..records.end.min(start + file.records());
            (!range.is_empty()).then(|| (&**file, range.start - start..range.end - start))
        })
    }
}

/// Removes features from the description of the records, together with the columns that they form.
fn drop_features(facts: &mut SourceFacts, dropped: &BTreeSet<String>) -> Result<()> {
    let RecordFeatures { image, label, .. } = &facts.record_features;
    if let Some(name) = [image, label]
        .into_iter()
        .find(|name| dropped.contains(*name))
    {
        return Err(Error::Option {
            option: "drop_features",
            value: Some(name.clone()),
            why: "images and labels stay, since loaders read them; name another feature".to_owned(),
        });
    }
    facts
        .features
        .retain(|feature| !dropped.contains(&feature.name));
    let columns = facts.schema.columns().iter();
    let kept = columns.filter(|column| {
        let mut features = column.features().into_iter();
        features.all(|feature| !dropped.contains(&feature.name))
    });
    facts.schema = Schema::new(kept.cloned().collect()).map_err(Error::Options)?;
    Ok(())
}

/// Returns the number of the first record of each file, followed by the total number of records.
fn starts(counts: impl Iterator<Item = u64>) -> Vec<u64> {
    let mut starts = vec![0];
    for count in counts {
        starts.push(starts[starts.len() - 1] + count);
    }
    starts
}

/// Returns the error for a record that cannot be converted.
pub(super) fn refused(file: &dyn RecordFile, record: u64, what: String) -> Error {
    Error::Export {
        shard: file.path().to_path_buf(),
        record: Some(record),
        what,
    }
}
