//! A damaged dataset as a source: its intact records, and what is known about it without an intact manifest.

use super::found_features::{KEY_FEATURE, features, find_features, first_records, recover_key};
use super::record::Converter;
use super::run::Run;
use super::source::{Source, SourceSplit};
use super::{STEP_BYTES, STEP_RECORDS};
use crate::error::{Error, Result};
use crate::options::DatasetFormat;
use crate::plan::PlannedShard;
use crate::publish::upload;
use crate::report::{FastCount, ProgressiveCount, SeekPointCount};
use crate::write::{WrittenShard, open_shard};
use forebay_cache::{ReadOptions, read_storage};
use forebay_formats::records::{RecordFormat, SourceFacts};
use forebay_shard::dataset::sidecar_path;
use forebay_shard::example::RecordFeatures;
use forebay_shard::index::PIECE_BYTES;
use forebay_shard::manifest::{EpochOrder, FILE_NAME, Manifest, block_records};
use forebay_shard::verify::{
    IntactRecord, Lost, ShardPlace, VerifyFinding, VerifyOptions, salvage_shard_in,
};
use forebay_shard::{Codec, ExampleView, OpenOptions, RecordMeta, Shard, ShardFormat, Storage};
use forebay_store::Location;
use std::collections::BTreeMap;
use std::io::ErrorKind;
use std::ops::Range;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

/// A shard that may be damaged or missing.
pub(super) struct DamagedShard {
    path: PathBuf,
    format: ShardFormat,
    sidecar: Option<PathBuf>,
    storage: Arc<dyn Storage>,
    /// Number of records in the manifest.
    pub(super) records: Option<u64>,
    crc32c: Option<u32>,
    /// Size of the file, or the size in the manifest if it is missing.
    pub(super) bytes: u64,
    is_missing: bool,
}

/// An open damaged dataset.
pub(super) struct Damaged {
    pub(super) source: Source,
    pub(super) format: DatasetFormat,
    /// Descriptions of what is lost of the manifest.
    pub(super) notes: Vec<String>,
}

/// The name of a shard, and its entry in the manifest, if known.
struct Entry {
    name: String,
    records: Option<u64>,
    bytes: u64,
    crc32c: Option<u32>,
}

/// Known facts about a dataset.
struct Known {
    manifest: Manifest,
    splits: BTreeMap<String, Vec<Entry>>,
    is_whole: bool,
    notes: Vec<String>,
}

/// Opens a dataset that may be damaged anywhere. `label_base` is used if no manifest contains it.
pub(super) fn open(location: &Location, read: &ReadOptions, label_base: i64) -> Result<Damaged> {
    let (root, storage) = read_storage(location, read)?;
    let known = know(&root, &*storage, label_base)?;
    let Known {
        mut manifest,
        splits: entries,
        is_whole,
        mut notes,
    } = known;
    let mut hasher = blake3::Hasher::new();
    let (mut opened, mut order) = (Vec::new(), EpochOrder::default());
    for (name, entries) in entries {
        let mut shards = Vec::new();
        for entry in entries {
            let shard = DamagedShard::find(&root, &storage, manifest.shard_format, entry)?;
            shard.identify(&mut hasher);
            shards.push(shard);
        }
        let records = shards.iter().map(|shard| shard.records.unwrap_or(0)).sum();
        let bytes = shards.iter().map(|shard| shard.bytes).sum();
        let block = match manifest.block_records(&name) {
            Some(block) => block,
            None if records > 0 => block_records(records, bytes),
            None => block_of_open_shards(&shards)?,
        };
        order.block_records.insert(name.clone(), block);
        opened.push((name, shards));
    }
    if !is_whole {
        let shards = opened.iter().flat_map(|(_, shards)| shards);
        if let Some(record) = first_records(shards).next() {
            notes.extend(find_features(&mut manifest, &record));
        }
    }
    let splits = opened
        .into_iter()
        .map(|(name, shards)| SourceSplit::damaged(name, shards));
    let splits: Vec<SourceSplit> = splits.collect();
    let format = match manifest.shard_format {
        ShardFormat::TfRecord => DatasetFormat::TfRecord,
        ShardFormat::Indexed => indexed_format(&manifest, &splits),
        ShardFormat::Mapped => {
            let what = "its records are in files of another tool, which are not repaired here: bring those back, or index what is left of them";
            return Err(Error::source(root, what));
        }
    };
    let features = match is_whole {
        true => manifest.features.clone(),
        false => features(&splits),
    };
    let fingerprint = match manifest.fingerprint.as_str() {
        "" => "unknown".to_owned(),
        known => known.to_owned(),
    };
    let identity = [
        ("repaired_from", fingerprint),
        ("source_files", hasher.finalize().to_hex()[..32].to_owned()),
    ];
    let facts = SourceFacts {
        label_base: manifest.label_base,
        classes: manifest.classes,
        features,
        record_features: manifest.record_features,
        schema: manifest.columns,
        foreign: None,
        pack: manifest.pack,
        identity: identity
            .map(|(name, value)| (name.to_owned(), value))
            .into(),
        order,
        findings: Vec::new(),
        is_own: true,
        label: None,
        warnings: Vec::new(),
    };
    Ok(Damaged {
        source: Source {
            format: RecordFormat::DATASET.name(),
            splits,
            facts,
        },
        format,
        notes,
    })
}

/// Returns the block size that loaders would compute from the readable shards.
fn block_of_open_shards(shards: &[DamagedShard]) -> Result<u64> {
    let (mut records, mut bytes) = (0, 0);
    for shard in shards.iter().filter_map(DamagedShard::open) {
        let range = shard.byte_range(0..shard.len())?;
        records += shard.len();
        bytes += range.end - range.start;
    }
    Ok(block_records(records, bytes))
}

/// Reads the manifest, or salvages it, or derives the shards from the names of the files.
fn know(root: &Path, storage: &dyn Storage, label_base: i64) -> Result<Known> {
    let problem = match Manifest::load_in(root, storage) {
        Ok(manifest) => {
            return Ok(Known {
                splits: entries(&manifest),
                manifest,
                is_whole: true,
                notes: Vec::new(),
            });
        }
        Err(forebay_shard::Error::Io { source, .. }) if source.kind() == ErrorKind::NotFound => {
            format!("{FILE_NAME} is missing")
        }
        Err(
            error @ (forebay_shard::Error::Manifest { .. } | forebay_shard::Error::Mismatch { .. }),
        ) => error.to_string(),
        Err(error) => return Err(error.into()),
    };
    if let Some(manifest) = Manifest::salvage_in(root, storage)? {
        let lost = "its shards and class names are right by its fingerprint; texts of classes, BLAKE3 hashes and the options of the pack are not recovered";
        return Ok(Known {
            splits: entries(&manifest),
            manifest,
            is_whole: false,
            notes: vec![problem, lost.to_owned()],
        });
    }
    let (format, splits) = by_names(root, storage)?;
    let mut manifest = Manifest::new(format, label_base, Vec::new());
    manifest.fingerprint.clear();
    let notes = vec![
        problem,
        "the shards are taken by their names: how many records they had, names and texts of classes, and the options of the pack are not recovered".to_owned(),
        format!("the label of the first class is taken to be {label_base}"),
    ];
    Ok(Known {
        manifest,
        splits,
        is_whole: false,
        notes,
    })
}

fn entries(manifest: &Manifest) -> BTreeMap<String, Vec<Entry>> {
    let splits = manifest.splits.iter().map(|split| {
        let shards = split.shards.iter().map(|shard| Entry {
            name: shard.name.clone(),
            records: Some(shard.records),
            bytes: shard.bytes,
            crc32c: Some(shard.crc32c),
        });
        (split.name.clone(), shards.collect())
    });
    splits.collect()
}

/// Finds the shards in a directory by name: `SPLIT-NNNNN-of-NNNNN`, followed by `.fbs` for indexed ones.
fn by_names(
    root: &Path,
    storage: &dyn Storage,
) -> Result<(ShardFormat, BTreeMap<String, Vec<Entry>>)> {
    let listed = storage.list(root);
    let listed = listed.map_err(|error| Error::io(root, "list", error))?;
    let mut sets: BTreeMap<(String, u32, bool), Vec<u32>> = BTreeMap::new();
    for name in listed.iter().filter_map(|name| name.to_str()) {
        if let Some((split, number, count)) = take_apart(name) {
            let set = (split.to_owned(), count, name.ends_with(".fbs"));
            sets.entry(set).or_default().push(number);
        }
    }
    let mut splits: BTreeMap<String, Vec<Entry>> = BTreeMap::new();
    let mut formats = Vec::new();
    for ((split, count, is_indexed), numbers) in sets {
        let ending = if is_indexed { ".fbs" } else { "" };
        if numbers.iter().any(|number| *number >= count) || splits.contains_key(&split) {
            let what = format!(
                "without a manifest it is not clear which files the split {split:?} is made of: move those away that are of another dataset"
            );
            return Err(Error::source(root, what));
        }
        let entry = |number| Entry {
            name: format!("{split}-{number:05}-of-{count:05}{ending}"),
            records: None,
            bytes: 0,
            crc32c: None,
        };
        let entries = (0..count).map(entry).collect();
        splits.insert(split, entries);
        formats.push(if is_indexed {
            ShardFormat::Indexed
        } else {
            ShardFormat::TfRecord
        });
    }
    formats.dedup();
    match formats[..] {
        [format] => Ok((format, splits)),
        [] => Err(Error::source(
            root,
            "it has neither a manifest that can be read nor files named as shards are: nothing can be repaired",
        )),
        _ => Err(Error::source(
            root,
            "without a manifest it is not clear whether its TFRecord or its indexed shards are the dataset: move the others away",
        )),
    }
}

/// Parses split, number and count from the name of a shard.
fn take_apart(name: &str) -> Option<(&str, u32, u32)> {
    if !crate::publish::destination::is_shard_name(name) {
        return None;
    }
    let stem = name.strip_suffix(".fbs").unwrap_or(name);
    let (rest, count) = stem.rsplit_once("-of-")?;
    let (split, number) = rest.rsplit_once('-')?;
    Some((split, number.parse().ok()?, count.parse().ok()?))
}

/// Returns the format with the codec of indexed shards, from the manifest or else from the header of a shard.
fn indexed_format(manifest: &Manifest, splits: &[SourceSplit]) -> DatasetFormat {
    if let Some(codec) = manifest.pack.get("codec").and_then(|codec| codec.as_str()) {
        return DatasetFormat::Indexed(codec.parse().unwrap_or_default());
    }
    let mut shards = splits.iter().flat_map(|split| &split.damaged);
    let codec = shards.find_map(|shard| shard.codec().filter(|&codec| codec != Codec::NONE));
    DatasetFormat::Indexed(codec.unwrap_or_default().into())
}

impl DamagedShard {
    fn find(
        root: &Path,
        storage: &Arc<dyn Storage>,
        format: ShardFormat,
        entry: Entry,
    ) -> Result<Self> {
        let path = root.join(&entry.name);
        let (bytes, is_missing) = match storage.open(&path) {
            Ok(file) => (file.len(), false),
            Err(error) if error.kind() == ErrorKind::NotFound => (entry.bytes, true),
            // A failing disk is not damage, so nothing may be left out because of it.
            Err(error) => return Err(Error::io(&path, "open", error)),
        };
        let sidecar = Some(sidecar_path(root, &entry.name)).filter(|sidecar| {
            format == ShardFormat::TfRecord && storage.exists(sidecar).unwrap_or(false)
        });
        Ok(Self {
            path,
            format,
            sidecar,
            storage: Arc::clone(storage),
            records: entry.records,
            crc32c: entry.crc32c,
            bytes,
            is_missing,
        })
    }

    /// Returns the finding and the losses of a missing file.
    fn missing(&self) -> (Vec<VerifyFinding>, Vec<Lost>) {
        let error = forebay_shard::Error::Io {
            path: self.path.clone(),
            op: "open",
            source: ErrorKind::NotFound.into(),
        };
        let lost = Lost {
            path: self.path.clone(),
            records: self.records.map(|records| 0..records),
            bytes: 0..self.bytes,
        };
        (vec![error.into()], vec![lost])
    }

    /// Returns the finding and the loss of an intact record that cannot be converted.
    fn refused(&self, number: u64, what: String) -> (VerifyFinding, Lost) {
        let records = number..number + 1;
        let range = self.open().and_then(|s| s.byte_range(records.clone()).ok());
        let finding = VerifyFinding {
            path: self.path.clone(),
            record: Some(number),
            offset: range.as_ref().map(|range| range.start),
            what,
            expected: None,
            found: None,
        };
        let lost = Lost {
            path: self.path.clone(),
            records: Some(records),
            bytes: range.unwrap_or(0..self.bytes),
        };
        (finding, lost)
    }

    /// Adds the identity of the file to a hash: a run that continues must find the same file.
    fn identify(&self, hasher: &mut blake3::Hasher) {
        let name = self.path.file_name().unwrap_or_default();
        let name = name.as_encoded_bytes();
        hasher
            .update(&(name.len() as u64).to_le_bytes())
            .update(name);
        hasher.update(&self.bytes.to_le_bytes());
        hasher.update(&[u8::from(self.is_missing), u8::from(self.sidecar.is_some())]);
        let modified = std::fs::metadata(&self.path).and_then(|meta| meta.modified());
        let since = modified
            .ok()
            .and_then(|at| at.duration_since(std::time::UNIX_EPOCH).ok());
        hasher.update(&since.map_or(0, |since| since.as_nanos()).to_le_bytes());
    }

    /// Opens the shard by its index, if the index is intact.
    pub(super) fn open(&self) -> Option<Shard> {
        let (sidecar, storage) = (self.sidecar.as_deref(), Arc::clone(&self.storage));
        Shard::open_in(
            &self.path,
            self.format,
            sidecar,
            &OpenOptions::default(),
            storage,
        )
        .ok()
    }

    fn codec(&self) -> Option<Codec> {
        let mut header = [0; PIECE_BYTES];
        let file = self.storage.open(&self.path).ok()?;
        file.read_exact_at(&mut header, 0).ok()?;
        Codec::of_shard(&header)
    }

    fn place(&self) -> ShardPlace<'_> {
        ShardPlace {
            path: &self.path,
            format: self.format,
            sidecar: self.sidecar.as_deref(),
            records: self.records,
            crc32c: self.crc32c,
        }
    }

    /// Returns the lost records and their number, given that `found` records are intact. The number comes from the manifest
    /// if possible.
    fn lost(&self, mut lost: Vec<Lost>, found: u64) -> (Vec<Lost>, u64) {
        let count = |records: &Option<Range<u64>>| records.as_ref().map_or(0, |r| r.end - r.start);
        let Some(records) = self.records else {
            let known = lost.iter().map(|lost| count(&lost.records)).sum();
            return (lost, known);
        };
        let missing = records.saturating_sub(found);
        if missing == 0 {
            lost.clear();
        } else if lost.is_empty() {
            // The file is truncated between two records.
            lost.push(Lost {
                path: self.path.clone(),
                records: Some(found..records),
                bytes: self.bytes..self.bytes,
            });
        }
        (lost, missing)
    }
}

/// The state of salvaging a shard.
struct Salvaging<'a, 's, W: std::io::Write> {
    features: &'a RecordFeatures,
    key_feature: Option<&'a str>,
    converter: &'a mut Converter<'s>,
    writer: forebay_shard::ShardWriter<W>,
    seek_points: SeekPointCount,
    progressive: ProgressiveCount,
    fast: FastCount,
    record_bytes: u64,
    key: Vec<u8>,
    /// Records that cannot be converted, with the reason.
    refused: Vec<(u64, String)>,
}

impl<W: std::io::Write> Salvaging<'_, '_, W> {
    fn take(&mut self, record: &IntactRecord<'_>) -> Result<()> {
        let converted = match self.converter.convert(record.payload) {
            Ok(converted) => converted,
            Err(what) => {
                self.refused.push((record.number, what));
                return Ok(());
            }
        };
        self.seek_points.add(converted.seek_point_bytes);
        self.progressive.add(converted.is_baseline_now);
        self.fast.add(converted.fast);
        let mut label = record.label;
        self.key.clear();
        self.key.extend_from_slice(record.key.unwrap_or_default());
        if (label.is_none() || record.key.is_none())
            && let Ok(example) = ExampleView::parse(record.payload)
        {
            let found = self.features.label(example).ok().flatten();
            label = label.or(found.filter(|label| *label != i64::MIN));
            if record.key.is_none() {
                recover_key(&example, self.key_feature, &mut self.key);
            }
        }
        let meta = RecordMeta {
            label,
            key: &self.key,
        };
        self.writer.append(converted.bytes, &meta)?;
        self.record_bytes += record.payload.len() as u64;
        Ok(())
    }
}

impl Run<'_> {
    /// Writes the intact records of a shard. `None` if the conversion was stopped.
    pub(super) fn salvage(
        &self,
        planned: &PlannedShard,
        shard: &DamagedShard,
        converter: &mut Converter<'_>,
        stopped: &(dyn Fn() -> bool + Sync),
    ) -> Result<Option<WrittenShard>> {
        let bytes = upload::room_of_planned(planned, self.options);
        let Some(room) = self.destination.reserve(bytes, stopped)? else {
            return Ok(None);
        };
        let path = self.destination.dir().path(&planned.name);
        let key_feature = self.source.facts.pack.get(KEY_FEATURE);
        let mut salvaging = Salvaging {
            features: &self.source.facts.record_features,
            key_feature: key_feature.and_then(|name| name.as_str()),
            converter,
            writer: open_shard(&path, self.options)?,
            seek_points: SeekPointCount::default(),
            progressive: ProgressiveCount::default(),
            fast: FastCount::default(),
            record_bytes: 0,
            key: Vec::new(),
            refused: Vec::new(),
        };
        let failed = AtomicBool::new(false);
        let mut failure = None;
        let (mut told_records, mut told_bytes) = (0, 0);
        let mut take = |record: &IntactRecord<'_>| {
            if failed.load(Ordering::Relaxed) {
                return;
            }
            if let Err(error) = salvaging.take(record) {
                failure = Some(error);
                return failed.store(true, Ordering::Relaxed);
            }
            let (records, bytes) = (salvaging.writer.records(), salvaging.record_bytes);
            if records - told_records >= STEP_RECORDS || bytes - told_bytes >= STEP_BYTES {
                self.observer
                    .advanced(records - told_records, bytes - told_bytes);
                (told_records, told_bytes) = (records, bytes);
            }
        };
        let stop = || stopped() || failed.load(Ordering::Relaxed);
        let options = VerifyOptions {
            label_feature: None,
            stop: Some(&stop),
            ..VerifyOptions::default()
        };
        let (mut findings, mut lost) = if shard.is_missing {
            shard.missing()
        } else {
            let report = salvage_shard_in(
                &shard.place(),
                &*shard.storage,
                &options,
                &|_| {},
                &mut take,
            )?;
            if let Some(error) = failure {
                return Err(error);
            }
            if report.stopped {
                return Ok(None);
            }
            (report.findings, report.lost)
        };
        let (records, bytes) = (salvaging.writer.records(), salvaging.record_bytes);
        self.observer
            .advanced(records - told_records, bytes - told_bytes);
        for (number, what) in std::mem::take(&mut salvaging.refused) {
            let (finding, place) = shard.refused(number, what);
            findings.push(finding);
            lost.push(place);
        }
        lost.sort_by_key(|lost| lost.bytes.start);
        let (lost, lost_records) = shard.lost(lost, records);
        let Salvaging {
            writer,
            seek_points,
            progressive,
            fast,
            ..
        } = salvaging;
        let written = WrittenShard::new(
            planned.name.clone(),
            writer.finish()?,
            bytes,
            seek_points,
            self.options,
        );
        let written = written
            .with_progressive(progressive)
            .with_fast(fast)
            .in_room(room);
        Ok(Some(written.with_losses(findings, lost, lost_records)))
    }
}
