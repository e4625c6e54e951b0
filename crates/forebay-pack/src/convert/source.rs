//! The source of a conversion: records in order, with the boundaries of their files.

use super::damaged::DamagedShard;
use crate::error::{Error, Result};
use forebay_cache::ReadOptions;
use forebay_formats::records::{
    ForeignRecords, RecordFile, RecordFormat, RecordInput, RecordSplit, SourceFacts,
};
use forebay_store::Location;
use std::collections::BTreeMap;
use std::ops::Range;
use std::path::{Path, PathBuf};

/// Source of the conversion.
#[derive(Debug, Clone)]
pub enum ConvertSource {
    /// A data set: a directory with a manifest, or one in a store.
    Dataset(Location),
    /// TFRecord files that another tool wrote.
    Files(ForeignFiles),
}

/// TFRecord files without a manifest, and what a manifest would say.
#[derive(Debug, Clone)]
pub struct ForeignFiles {
    /// The directory that they are from, for messages and to keep the destination out of it.
    pub root: PathBuf,
    /// The files of each split, in order.
    pub splits: BTreeMap<String, Vec<PathBuf>>,
    /// Which features hold image, label and key.
    pub records: ForeignRecords,
}

impl ForeignFiles {
    /// Files whose features are found by looking.
    pub fn new(root: impl Into<PathBuf>, splits: BTreeMap<String, Vec<PathBuf>>) -> Self {
        Self {
            root: root.into(),
            splits,
            records: ForeignRecords::default(),
        }
    }
}

impl ConvertSource {
    pub(super) fn root(&self) -> &Path {
        match self {
            Self::Dataset(location) => location.local_path().unwrap_or(Path::new("")),
            Self::Files(files) => &files.root,
        }
    }
}

/// The source, open.
pub(super) struct Source {
    pub(super) splits: Vec<SourceSplit>,
    pub(super) facts: SourceFacts,
}

/// The files of a split.
pub(super) struct SourceSplit {
    pub(super) name: String,
    pub(super) files: Vec<Box<dyn RecordFile>>,
    /// First record of each file, and the number of records at the end.
    pub(super) starts: Vec<u64>,
    /// Instead of `files`, where what is whole of them is taken.
    pub(super) damaged: Vec<DamagedShard>,
}

impl Source {
    pub(super) fn open(source: &ConvertSource, read: &ReadOptions) -> Result<Self> {
        let (format, mut input) = match source {
            ConvertSource::Dataset(location) => {
                (RecordFormat::DATASET, RecordInput::new(location.clone()))
            }
            ConvertSource::Files(files) => {
                let mut input = RecordInput::new(files.root.as_path());
                input.splits.clone_from(&files.splits);
                input.features = files.records.clone();
                (RecordFormat::TFRECORD, input)
            }
        };
        input.read = read.clone();
        let source = format.open(&input)?;
        Ok(Self {
            splits: source.splits.into_iter().map(SourceSplit::new).collect(),
            facts: source.facts,
        })
    }

    /// Whether only what is whole of it is taken.
    pub(super) fn is_damaged(&self) -> bool {
        self.splits.iter().any(|split| !split.damaged.is_empty())
    }

    /// Bytes of all files.
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

    /// Shards that may be damaged. Those of which nothing is known count as empty.
    pub(super) fn damaged(name: String, damaged: Vec<DamagedShard>) -> Self {
        Self {
            name,
            starts: starts(damaged.iter().map(|shard| shard.records.unwrap_or(0))),
            files: Vec::new(),
            damaged,
        }
    }

    /// Bytes of each file.
    pub(super) fn file_bytes(&self) -> Vec<u64> {
        match self.damaged.is_empty() {
            true => self.files.iter().map(|file| file.bytes()).collect(),
            false => self.damaged.iter().map(|shard| shard.bytes).collect(),
        }
    }

    /// Records of all files.
    pub(super) fn len(&self) -> u64 {
        self.starts.last().copied().unwrap_or(0)
    }

    /// Payload bytes of each record, in order.
    pub(super) fn record_bytes(&self) -> impl Iterator<Item = u64> + '_ {
        let files = self.files.iter();
        files.flat_map(|file| (0..file.records()).map(|record| file.record_bytes(record)))
    }

    /// The files in which records of the split lie, and their numbers there.
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

/// The first record of each file, and the number of records at the end.
fn starts(counts: impl Iterator<Item = u64>) -> Vec<u64> {
    let mut starts = vec![0];
    for count in counts {
        starts.push(starts[starts.len() - 1] + count);
    }
    starts
}

/// The error of a record that cannot be converted.
pub(super) fn refused(file: &dyn RecordFile, record: u64, what: String) -> Error {
    Error::Export {
        shard: file.path().to_path_buf(),
        record: Some(record),
        what,
    }
}
