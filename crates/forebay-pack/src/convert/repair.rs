//! Repair: a conversion of what is whole in a damaged dataset, and a list of what is lost.
//!
//! Each shard becomes one of the same number, without its lost records. It runs as every conversion does: resumable,
//! and published last.

use super::source::Source;
use super::{ConvertOptions, ConvertSource, ConvertSummary, convert_source, damaged};
use crate::destination::{PACK_DIR, ShardLine, WorkDir};
use crate::error::{Error, Result};
use crate::observer::{Cancel, Observer, Stage};
use crate::prepare::refuse_nesting;
use crate::upload;
use forebay_shard::Manifest;
use forebay_shard::verify::{Lost, VerifyFinding};
use forebay_store::{AtomicFile, Location};
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
use std::fs::File;
use std::io::{self, BufRead, BufReader, BufWriter, Write};
use std::path::{Path, PathBuf};

/// Under these names the manifest of a repaired dataset counts the records that were lost, the places in which they
/// were, and what was damaged.
const LOST_RECORDS_KEY: &str = "lost_records";
const LOST_PLACES_KEY: &str = "lost_places";
const DAMAGE_KEY: &str = "damage";

/// Options of a repair. Start from [`RepairOptions::new`] and change fields.
#[derive(Debug, Clone)]
#[non_exhaustive]
pub struct RepairOptions {
    /// The damaged dataset.
    pub src: Location,
    /// How the repaired one is written. Its format is the source's, whatever is given here.
    pub convert: ConvertOptions,
    /// The label of the first class, where the manifest is too damaged to tell it.
    pub label_base: i64,
}

impl RepairOptions {
    /// Returns options that copy what is whole in `src` to `dst`.
    pub fn new(src: impl Into<Location>, dst: impl Into<Location>) -> Self {
        let src = src.into();
        let source = ConvertSource::Dataset(src.clone());
        Self {
            src,
            convert: ConvertOptions::new(source, dst, crate::DatasetFormat::TfRecord),
            label_base: 1,
        }
    }
}

/// The result of a repair.
#[derive(Debug, Clone)]
#[non_exhaustive]
pub struct RepairSummary {
    /// The dataset that was written.
    pub converted: ConvertSummary,
    /// Records that are lost, as far as the source's manifest or its indexes tell.
    pub lost_records: u64,
    /// Places in which records are lost; 0 where nothing is.
    pub lost_places: u64,
    /// Number of findings of damage in the shards.
    pub damage: u64,
    /// The lost records, as in the report; empty where the dataset was complete already and its report is not here.
    pub lost: Vec<Lost>,
    /// Losses in the manifest that could not be recovered.
    pub notes: Vec<String>,
    /// The report of what was damaged and lost, if anything was.
    pub report: Option<PathBuf>,
}

/// Writes what is whole in a damaged dataset as a new one. Records, blocks, indexes and the manifest may be damaged,
/// and shards may be missing. Observers get the same calls as from [`convert`](super::convert).
///
/// # Errors
/// See [`Error`]. Damage is no error: it is in the summary and the report.
pub fn repair(
    options: &RepairOptions,
    observer: &dyn Observer,
    cancel: &Cancel,
) -> Result<RepairSummary> {
    let mut convert = options.convert.clone();
    if let Ok(root) = options.src.local_path() {
        for dir in upload::written(&convert.dst, &convert.upload)? {
            refuse_nesting(root, &dir)?;
        }
    }
    observer.stage(Stage::Census);
    let damaged = damaged::open(&options.src, &convert.read, options.label_base)?;
    convert.format = damaged.format.into();
    convert.of_shards().validate().map_err(Error::Options)?;
    let converted = convert_source(&convert, damaged.source, observer, cancel)?;
    let report = converted
        .root
        .join(PACK_DIR)
        .join(crate::destination::REPORT);
    let counts = converted.repaired;
    Ok(RepairSummary {
        lost_records: counts.lost_records,
        lost_places: counts.lost_places,
        damage: counts.damage,
        lost: read_lost(&report)?,
        notes: damaged.notes,
        report: (counts.lost_places + counts.damage > 0).then_some(report),
        converted,
    })
}

/// The counts of a repair in the manifest of its result.
#[derive(Debug, Clone, Copy, Default)]
pub(super) struct Counts {
    lost_records: u64,
    lost_places: u64,
    damage: u64,
}

impl Counts {
    pub(super) fn of(manifest: &Manifest) -> Self {
        let number = |key: &str| manifest.pack.get(key).and_then(|n| n.as_u64()).unwrap_or(0);
        Self {
            lost_records: number(LOST_RECORDS_KEY),
            lost_places: number(LOST_PLACES_KEY),
            damage: number(DAMAGE_KEY),
        }
    }
}

/// Says in the manifest of a repaired dataset what was lost.
pub(super) fn record(source: &Source, done: &BTreeMap<String, ShardLine>, manifest: &mut Manifest) {
    for key in [LOST_RECORDS_KEY, LOST_PLACES_KEY, DAMAGE_KEY] {
        manifest.pack.remove(key);
    }
    if !source.is_damaged() {
        return;
    }
    let sum = |of: &dyn Fn(&ShardLine) -> u64| done.values().map(of).sum::<u64>();
    for (key, value) in [
        (LOST_RECORDS_KEY, sum(&|line| line.lost_records)),
        (LOST_PLACES_KEY, sum(&|line| line.lost.len() as u64)),
        (DAMAGE_KEY, sum(&|line| line.damage.len() as u64)),
    ] {
        manifest.pack.insert(key.into(), value.into());
    }
}

/// A line of the report.
#[derive(Serialize, Deserialize)]
#[serde(tag = "action", rename_all = "snake_case")]
enum ReportLine {
    Damaged {
        #[serde(flatten)]
        finding: VerifyFinding,
    },
    Lost {
        shard: PathBuf,
        /// Number of the first lost record in the shard, and how many are lost; missing where no index tells.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        record: Option<u64>,
        #[serde(default, skip_serializing_if = "Option::is_none")]
        records: Option<u64>,
        offset: u64,
        bytes: u64,
    },
}

/// Writes the report of a repair, if there is anything to report, and gives its place.
pub(super) fn write_report<'a>(
    dir: &WorkDir,
    source: &Source,
    lines: impl Iterator<Item = &'a ShardLine>,
) -> Result<Option<PathBuf>> {
    if !source.is_damaged() {
        return Ok(None);
    }
    let path = dir.report();
    let mut all = Vec::new();
    for line in lines {
        let damage = line.damage.iter().cloned();
        all.extend(damage.map(|finding| ReportLine::Damaged { finding }));
        all.extend(line.lost.iter().map(ReportLine::of));
    }
    if all.is_empty() {
        dir.remove(&path)?;
        return Ok(None);
    }
    dir.create_dir(PACK_DIR)?;
    let fail = |error: io::Error| Error::io(&path, "write", error);
    let mut report = BufWriter::new(AtomicFile::create(&path)?);
    for line in &all {
        serde_json::to_writer(&mut report, line).map_err(|error| fail(error.into()))?;
        report.write_all(b"\n").map_err(fail)?;
    }
    let report = report
        .into_inner()
        .map_err(|error| fail(error.into_error()))?;
    report.commit(dir.durability())?;
    Ok(Some(path))
}

impl ReportLine {
    fn of(lost: &Lost) -> Self {
        Self::Lost {
            shard: lost.path.clone(),
            record: lost.records.as_ref().map(|records| records.start),
            records: lost
                .records
                .as_ref()
                .map(|records| records.end - records.start),
            offset: lost.bytes.start,
            bytes: lost.bytes.end - lost.bytes.start,
        }
    }
}

/// The lost records of a report, if it is here.
fn read_lost(path: &Path) -> Result<Vec<Lost>> {
    let file = match File::open(path) {
        Ok(file) => file,
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(Vec::new()),
        Err(error) => return Err(Error::io(path, "open", error)),
    };
    let mut all = Vec::new();
    for line in BufReader::new(file).split(b'\n') {
        let line = line.map_err(|error| Error::io(path, "read", error))?;
        if let Ok(ReportLine::Lost {
            shard,
            record,
            records,
            offset,
            bytes,
        }) = forebay_shard::json::from_slice(&line)
        {
            all.push(Lost {
                path: shard,
                records: record
                    .zip(records)
                    .map(|(first, count)| first..first + count),
                bytes: offset..offset + bytes,
            });
        }
    }
    Ok(all)
}
