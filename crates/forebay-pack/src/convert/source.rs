//! What is converted: shards in order, with whatever is known about their records.

use crate::error::{Error, Result};
use forebay_shard::example::feature_kinds;
use forebay_shard::example::{FeatureKind, IMAGE_LABEL};
use forebay_shard::manifest::{ClassEntry, FeatureEntry};
use forebay_shard::{Dataset, ExampleView, Scan, Shard};
use forebay_store::{Location, ReadOptions, open_dataset};
use std::collections::BTreeMap;
use std::ops::Range;
use std::path::{Path, PathBuf};
use std::time::UNIX_EPOCH;

/// What is converted.
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
    /// Integer feature that labels come from.
    pub label_feature: String,
    /// Bytes feature that keys come from.
    pub key_feature: String,
    /// The label of the first class: 0 or 1.
    pub label_base: i64,
}

impl ForeignFiles {
    /// Files with the features of TensorFlow's ImageNet tool, labels from 1.
    pub fn new(root: impl Into<PathBuf>, splits: BTreeMap<String, Vec<PathBuf>>) -> Self {
        Self {
            root: root.into(),
            splits,
            label_feature: IMAGE_LABEL.to_owned(),
            key_feature: "image/filename".to_owned(),
            label_base: 1,
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
    pub(super) label_base: i64,
    pub(super) classes: Vec<ClassEntry>,
    pub(super) features: Vec<FeatureEntry>,
    /// Options that it was packed with.
    pub(super) pack: BTreeMap<String, serde_json::Value>,
    /// What tells this source from others, by name.
    pub(super) identity: BTreeMap<String, String>,
}

/// The shards of a split.
pub(super) struct SourceSplit {
    pub(super) name: String,
    pub(super) shards: Vec<Shard>,
    /// First record of each shard, and the number of records at the end.
    pub(super) starts: Vec<u64>,
    names: Option<Names>,
}

/// Features that labels and keys come from where no index knows them.
#[derive(Clone)]
struct Names {
    label: String,
    key: Option<String>,
}

impl Source {
    pub(super) fn open(source: &ConvertSource, read: &ReadOptions) -> Result<Self> {
        match source {
            ConvertSource::Dataset(location) => Self::of_dataset(&open_dataset(location, read)?),
            ConvertSource::Files(files) => Self::of_files(files),
        }
    }

    fn of_dataset(dataset: &Dataset) -> Result<Self> {
        let manifest = dataset.manifest();
        let names: Vec<String> = dataset.splits().map(str::to_owned).collect();
        let mut splits = Vec::new();
        for name in names {
            let shards = dataset.split(&name)?.shards().to_vec();
            // Where a TFRecord has no sidecar, records still tell their labels.
            let names = Names {
                label: IMAGE_LABEL.to_owned(),
                key: None,
            };
            splits.push(SourceSplit::new(name, shards, Some(names)));
        }
        let fingerprint = dataset.fingerprint().to_owned();
        Ok(Self {
            splits,
            label_base: manifest.label_base,
            classes: manifest.classes.clone(),
            features: manifest.features.clone(),
            pack: manifest.pack.clone(),
            identity: BTreeMap::from([("converted_from".to_owned(), fingerprint)]),
        })
    }

    fn of_files(files: &ForeignFiles) -> Result<Self> {
        let mut splits = Vec::new();
        let mut features: BTreeMap<String, (FeatureKind, bool)> = BTreeMap::new();
        let mut hasher = blake3::Hasher::new();
        for (name, paths) in &files.splits {
            let mut shards = Vec::new();
            for path in paths {
                let shard = Shard::open_path(path)?;
                for (name, (kind, is_one)) in first_features(&shard)? {
                    features.entry(name).or_insert((kind, is_one)).1 &= is_one;
                }
                let modified = std::fs::metadata(path).and_then(|meta| meta.modified());
                let modified = modified.map_err(|error| Error::io(path, "stat", error))?;
                let nanos = modified
                    .duration_since(UNIX_EPOCH)
                    .map_or(0, |d| d.as_nanos());
                for text in [path.as_os_str().as_encoded_bytes(), name.as_bytes()] {
                    hasher
                        .update(&(text.len() as u64).to_le_bytes())
                        .update(text);
                }
                hasher.update(&shard.file_len().to_le_bytes());
                hasher.update(&shard.len().to_le_bytes());
                hasher.update(&nanos.to_le_bytes());
                shards.push(shard);
            }
            let names = Names {
                label: files.label_feature.clone(),
                key: Some(files.key_feature.clone()),
            };
            splits.push(SourceSplit::new(name.clone(), shards, Some(names)));
        }
        let features = features
            .into_iter()
            .map(|(name, (kind, is_one))| FeatureEntry {
                name,
                kind,
                shape: if is_one { Vec::new() } else { vec![None] },
            });
        let identity = [
            ("source_files", hasher.finalize().to_hex()[..32].to_owned()),
            ("label_feature", files.label_feature.clone()),
            ("key_feature", files.key_feature.clone()),
            ("label_base", files.label_base.to_string()),
        ];
        Ok(Self {
            splits,
            label_base: files.label_base,
            classes: Vec::new(),
            features: features.collect(),
            pack: BTreeMap::from([("tool".to_owned(), "convert".into())]),
            identity: identity
                .map(|(name, value)| (name.to_owned(), value))
                .into(),
        })
    }

    /// Bytes of all files.
    pub(super) fn bytes(&self) -> u64 {
        let shards = self.splits.iter().flat_map(|split| &split.shards);
        shards.map(Shard::file_len).sum()
    }
}

impl SourceSplit {
    fn new(name: String, shards: Vec<Shard>, names: Option<Names>) -> Self {
        let mut starts = vec![0];
        let mut records = 0;
        for shard in &shards {
            records += shard.len();
            starts.push(records);
        }
        Self {
            name,
            shards,
            starts,
            names,
        }
    }

    /// Records of all shards.
    pub(super) fn len(&self) -> u64 {
        self.starts.last().copied().unwrap_or(0)
    }

    /// Payload bytes of each record, in order.
    pub(super) fn places(&self) -> impl Iterator<Item = u64> + '_ {
        self.shards
            .iter()
            .flat_map(|shard| (0..shard.len()).map(|i| shard.record_len(i).unwrap_or(0)))
    }

    /// Payload bytes of all records.
    pub(super) fn record_bytes(&self) -> u64 {
        self.places().sum()
    }

    /// The shards in which records of the split lie, and their numbers there.
    pub(super) fn pieces(&self, records: Range<u64>) -> Vec<(usize, Range<u64>)> {
        let ends = self.starts.iter().zip(self.starts.iter().skip(1));
        ends.enumerate()
            .filter_map(|(shard, (start, end))| {
                let range = records.start.max(*start)..records.end.min(*end);
                (!range.is_empty()).then(|| (shard, range.start - start..range.end - start))
            })
            .collect()
    }

    /// Reads records of a shard in order.
    pub(super) fn read(&self, shard: usize, records: Range<u64>) -> Result<Piece<'_>> {
        let shard = &self.shards[shard];
        let (mut keys, mut ends) = (Vec::new(), Vec::new());
        // All keys at once: a page is cheap to walk but not to find one key in.
        shard.for_each_key(|number, key| {
            if records.contains(&number) {
                keys.extend_from_slice(key);
                ends.push(keys.len());
            }
        })?;
        Ok(Piece {
            shard,
            scan: shard.scan(records),
            names: self.names.as_ref(),
            keys,
            ends: ends.into_iter(),
            end: 0,
        })
    }
}

/// Records of one shard, being read.
pub(super) struct Piece<'a> {
    shard: &'a Shard,
    scan: Scan,
    names: Option<&'a Names>,
    keys: Vec<u8>,
    ends: std::vec::IntoIter<usize>,
    end: usize,
}

/// A record and what is known about it.
pub(super) struct SourceRecord<'a> {
    /// Its number in the shard.
    pub(super) number: u64,
    pub(super) bytes: &'a [u8],
    pub(super) label: Option<i64>,
    /// Empty where it has none.
    pub(super) key: &'a [u8],
}

/// No label, as indexes write it.
const NO_LABEL: i64 = i64::MIN;
/// What an index holds of a key at most, in bytes.
const MAX_KEY_BYTES: usize = u16::MAX as usize;

impl Piece<'_> {
    pub(super) fn next(&mut self) -> Result<Option<SourceRecord<'_>>> {
        let Some(record) = self.scan.next_record()? else {
            return Ok(None);
        };
        let start = self.end;
        self.end = self.ends.next().unwrap_or(start);
        let (mut key, number) = (&self.keys[start..self.end], record.info.index);
        let mut label = self.shard.label(number);
        if let Some(names) = self.names
            && (label.is_none() || (key.is_empty() && names.key.is_some()))
            && let Ok(example) = ExampleView::parse(record.bytes)
        {
            let found = example.int64(&names.label).ok().flatten();
            label = label.or(found.filter(|label| *label != NO_LABEL));
            if let Some(name) = &names.key
                && key.is_empty()
            {
                let found = example.bytes(name).ok().flatten();
                key = found
                    .filter(|key| key.len() <= MAX_KEY_BYTES)
                    .unwrap_or(b"");
            }
        }
        Ok(Some(SourceRecord {
            number,
            bytes: record.bytes,
            label,
            key,
        }))
    }
}

/// The features of a shard's first record: their kinds, and whether each holds one value.
fn first_features(shard: &Shard) -> Result<BTreeMap<String, (FeatureKind, bool)>> {
    if shard.is_empty() {
        return Ok(BTreeMap::new());
    }
    let mut record = Vec::new();
    shard.read(0, &mut record)?;
    // Records that are no Examples have no features: they are converted all the same.
    Ok(feature_kinds(&record))
}
