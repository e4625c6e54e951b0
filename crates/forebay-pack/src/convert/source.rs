//! The source of a conversion: shards in order, with the metadata of their records.

use super::damaged::DamagedShard;
use crate::error::{Error, Result};
use crate::foreign_records::{ForeignRecords, ForeignSchema, refused};
use forebay_cache::{ReadOptions, open_dataset};
use forebay_shard::example::{FeatureKind, RecordFeatures, feature_kinds};
use forebay_shard::manifest::{ClassEntry, EpochOrder, FeatureEntry, block_records};
use forebay_shard::tfrecord::ExpandedFiles;
use forebay_shard::{Dataset, ExampleView, OpenOptions, Scan, Shard};
use forebay_store::Location;
use std::collections::BTreeMap;
use std::ops::Range;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::UNIX_EPOCH;

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

    /// The directory that the files are in.
    pub(super) fn dir(&self) -> &Path {
        match self.root.is_dir() {
            true => &self.root,
            false => self.root.parent().unwrap_or(Path::new("")),
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
    /// The features that hold image and label.
    pub(super) record_features: RecordFeatures,
    /// The features of another tool's records, and the directory of its files.
    pub(super) schema: Option<(ForeignSchema, PathBuf)>,
    /// Options that it was packed with.
    pub(super) pack: BTreeMap<String, serde_json::Value>,
    /// Identity of this source, by name.
    pub(super) identity: BTreeMap<String, String>,
    /// How epochs order its samples: what the manifest says or, without that, what loaders take from the shards.
    pub(super) order: EpochOrder,
}

/// The shards of a split.
pub(super) struct SourceSplit {
    pub(super) name: String,
    pub(super) shards: Vec<Shard>,
    /// First record of each shard, and the number of records at the end.
    pub(super) starts: Vec<u64>,
    names: Names,
    /// Instead of `shards`, where what is whole of them is taken.
    pub(super) damaged: Vec<DamagedShard>,
}

/// The source of labels and keys.
#[derive(Clone)]
enum Names {
    /// From the index, and labels from this feature where no index knows them.
    Known(RecordFeatures),
    /// From the records alone.
    Foreign(ForeignSchema),
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
            let names = Names::Known(manifest.record_features.clone());
            splits.push(SourceSplit::new(name, shards, names));
        }
        let fingerprint = dataset.fingerprint().to_owned();
        let order = match &manifest.order {
            Some(order) => order.clone(),
            None => order_of(&splits)?,
        };
        Ok(Self {
            order,
            splits,
            label_base: manifest.label_base,
            classes: manifest.classes.clone(),
            features: manifest.features.clone(),
            record_features: manifest.record_features.clone(),
            schema: None,
            pack: manifest.pack.clone(),
            identity: BTreeMap::from([("converted_from".to_owned(), fingerprint)]),
        })
    }

    fn of_files(files: &ForeignFiles) -> Result<Self> {
        let mut splits = Vec::new();
        let mut features: BTreeMap<String, (FeatureKind, bool)> = BTreeMap::new();
        let mut hasher = blake3::Hasher::new();
        let mut schema = None;
        let mut opened = Vec::new();
        // Compressed files are read through from their beginnings, in order.
        let storage = Arc::new(ExpandedFiles::default());
        for (name, paths) in &files.splits {
            let mut shards = Vec::new();
            for path in paths {
                let storage = Arc::<ExpandedFiles>::clone(&storage);
                let shard = Shard::open_path_in(path, &OpenOptions::default(), storage)?;
                if schema.is_none() {
                    schema = first_schema(files, &shard)?;
                }
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
            opened.push((name.clone(), shards));
        }
        let schema = match schema {
            Some(schema) => schema,
            None => decide(files, None)?,
        };
        for (name, shards) in opened {
            splits.push(SourceSplit::new(
                name,
                shards,
                Names::Foreign(schema.clone()),
            ));
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
            ("image_feature", schema.features.image.clone()),
            ("label_feature", schema.features.label.clone()),
            (
                "first_of_several",
                schema.features.first_of_several.to_string(),
            ),
            ("key_feature", schema.key.clone()),
            ("label_base", schema.label_base.to_string()),
        ];
        Ok(Self {
            order: order_of(&splits)?,
            splits,
            label_base: schema.label_base,
            classes: Vec::new(),
            features: features.collect(),
            record_features: schema.features.clone(),
            schema: Some((schema, files.dir().to_path_buf())),
            pack: BTreeMap::from([("tool".to_owned(), "convert".into())]),
            identity: identity
                .map(|(name, value)| (name.to_owned(), value))
                .into(),
        })
    }

    /// Whether only what is whole of it is taken.
    pub(super) fn is_damaged(&self) -> bool {
        self.splits.iter().any(|split| !split.damaged.is_empty())
    }

    /// Bytes of all files.
    pub(super) fn bytes(&self) -> u64 {
        self.splits.iter().flat_map(SourceSplit::shard_bytes).sum()
    }
}

impl SourceSplit {
    fn new(name: String, shards: Vec<Shard>, names: Names) -> Self {
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
            damaged: Vec::new(),
        }
    }

    /// Shards that may be damaged. Those of which nothing is known count as empty.
    pub(super) fn damaged(
        name: String,
        damaged: Vec<DamagedShard>,
        features: RecordFeatures,
    ) -> Self {
        let mut starts = vec![0];
        let mut records = 0;
        for shard in &damaged {
            records += shard.records.unwrap_or(0);
            starts.push(records);
        }
        Self {
            name,
            shards: Vec::new(),
            starts,
            names: Names::Known(features),
            damaged,
        }
    }

    /// Bytes of each file.
    pub(super) fn shard_bytes(&self) -> Vec<u64> {
        match self.damaged.is_empty() {
            true => self.shards.iter().map(Shard::file_len).collect(),
            false => self.damaged.iter().map(|shard| shard.bytes).collect(),
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
            names: &self.names,
            keys,
            ends: ends.into_iter(),
            end: 0,
        })
    }
}

/// How loaders order the samples of these shards where no manifest says.
fn order_of(splits: &[SourceSplit]) -> Result<EpochOrder> {
    let mut order = EpochOrder::default();
    for split in splits {
        let mut bytes = 0;
        for shard in &split.shards {
            let range = shard.byte_range(0..shard.len())?;
            bytes += range.end - range.start;
        }
        let block = block_records(split.len(), bytes);
        order.block_records.insert(split.name.clone(), block);
    }
    Ok(order)
}

/// Records of one shard, being read.
pub(super) struct Piece<'a> {
    shard: &'a Shard,
    scan: Scan,
    names: &'a Names,
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
/// Most bytes of a key in an index.
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
        match self.names {
            Names::Known(features) if label.is_none() => {
                let example = ExampleView::parse(record.bytes).ok();
                label = example.and_then(|example| features.label(example).ok().flatten());
            }
            Names::Known(_) => {}
            Names::Foreign(schema) => {
                let refuse = |what| refused(self.shard.path().to_path_buf(), number, what);
                schema.check(record.bytes).map_err(refuse)?;
                let example = ExampleView::parse(record.bytes).ok();
                label = example.and_then(|example| schema.features.label(example).ok().flatten());
                if let (Some(example), true) = (example, key.is_empty()) {
                    let found = example.bytes(&schema.key).ok().flatten();
                    let short = found.filter(|key| key.len() <= MAX_KEY_BYTES);
                    key = short.unwrap_or(b"");
                }
            }
        }
        label = label.filter(|label| *label != NO_LABEL);
        Ok(Some(SourceRecord {
            number,
            bytes: record.bytes,
            label,
            key,
        }))
    }
}

fn decide(files: &ForeignFiles, record: Option<(&Shard, &[u8])>) -> Result<ForeignSchema> {
    let decided = files.records.decide(record.map(|(_, bytes)| bytes));
    decided.map_err(|what| {
        let shard = record.map_or_else(
            || files.root.clone(),
            |(shard, _)| shard.path().to_path_buf(),
        );
        refused(shard, 0, what)
    })
}

/// The features that the first record of a shard has; none if the shard is empty.
fn first_schema(files: &ForeignFiles, shard: &Shard) -> Result<Option<ForeignSchema>> {
    if shard.is_empty() {
        return Ok(None);
    }
    let mut record = Vec::new();
    shard.read(0, &mut record)?;
    decide(files, Some((shard, &record))).map(Some)
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
