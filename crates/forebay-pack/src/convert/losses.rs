//! Records that a repair lost: their counts in the manifest, and the report.

use super::source::Source;
use crate::error::Result;
use crate::publish::destination::{ShardLine, WorkDir, read_report};
use forebay_shard::Manifest;
use forebay_shard::verify::{Lost, VerifyFinding};
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

/// Manifest entries of a repaired dataset that count the lost records, the places in which records were lost,
/// and the findings of damage.
const LOST_RECORDS_KEY: &str = "lost_records";
const LOST_PLACES_KEY: &str = "lost_places";
const DAMAGE_KEY: &str = "damage";

/// The counts of a repair in the manifest of the repaired dataset.
#[derive(Debug, Clone, Copy, Default)]
pub(super) struct Counts {
    pub(super) lost_records: u64,
    pub(super) lost_places: u64,
    pub(super) damage: u64,
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

/// Records the losses in the manifest of a repaired dataset.
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
        /// Number of the first lost record in the shard, and number of lost records; missing if no index contains them.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        record: Option<u64>,
        #[serde(default, skip_serializing_if = "Option::is_none")]
        records: Option<u64>,
        offset: u64,
        bytes: u64,
    },
}

/// Writes the report of a repair, if there is anything to report, and returns its path.
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
    dir.write_report(all.iter())?;
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

/// Reads the lost records from a report, if it exists here.
pub(super) fn read_lost(path: &Path) -> Result<Vec<Lost>> {
    let mut all = Vec::new();
    read_report(path, |line| {
        if let ReportLine::Lost {
            shard,
            record,
            records,
            offset,
            bytes,
        } = line
        {
            all.push(Lost {
                path: shard,
                records: record
                    .zip(records)
                    .map(|(first, count)| first..first + count),
                bytes: offset..offset + bytes,
            });
        }
    })?;
    Ok(all)
}
