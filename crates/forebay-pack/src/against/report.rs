//! The findings of a comparison, combined with the report of the pack.

use crate::error::{Error, Result};
use crate::publish::destination::{PACK_DIR, REPORT};
use forebay_shard::Storage;
use serde::{Deserialize, Serialize};
use std::collections::{BTreeMap, HashMap};
use std::fmt;
use std::io;
use std::path::{Path, PathBuf};

/// The kind of a difference between a dataset and its source.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "kebab-case")]
#[non_exhaustive]
pub enum DifferenceKind {
    /// A file is in no record, and the report of the pack does not give a reason.
    Missing,
    /// A record belongs to no file.
    Extra,
    /// A file is in several records, each of which is listed.
    Doubled,
    /// The image of a record differs from its file.
    Changed,
    /// A file cannot be read, so its record was not compared.
    Unreadable,
}

impl DifferenceKind {
    /// Returns the name of the kind.
    pub fn name(self) -> &'static str {
        match self {
            Self::Missing => "missing",
            Self::Extra => "extra",
            Self::Doubled => "doubled",
            Self::Changed => "changed",
            Self::Unreadable => "unreadable",
        }
    }
}

/// One difference.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
#[non_exhaustive]
pub struct Difference {
    /// The kind of difference.
    pub kind: DifferenceKind,
    /// The split.
    pub split: String,
    /// The key: the path below the directory of the split, escaped as in reports.
    pub key: String,
    /// The shard of the record, if there is one.
    pub shard: Option<PathBuf>,
    /// The record's number in the shard.
    pub record: Option<u64>,
    /// Details, if there are any.
    pub detail: String,
}

impl fmt::Display for Difference {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: {}", self.split, self.key)?;
        if let (Some(shard), Some(record)) = (&self.shard, self.record) {
            write!(f, ", {}: record {record}", shard.display())?;
        }
        if !self.detail.is_empty() {
            write!(f, ": {}", self.detail)?;
        }
        Ok(())
    }
}

/// The result of the comparison.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct ComparisonReport {
    /// Files of the source.
    pub files: u64,
    /// Records whose image equals its file byte for byte.
    pub verbatim: u64,
    /// Records whose image was transcoded by the pack and has the expected size in pixels.
    pub remade: u64,
    /// Files that are in no record for a reason given in the report of the pack.
    pub left_out: u64,
    /// Number of differences of each kind.
    pub counts: BTreeMap<DifferenceKind, u64>,
    /// The first differences of each kind, up to [`ComparisonReport::KEPT`], ordered by kind, shard and record.
    pub differences: Vec<Difference>,
}

impl ComparisonReport {
    /// Maximum number of differences of a kind that are kept.
    pub const KEPT: usize = 10_000;

    /// Returns the number of differences of one kind.
    pub fn count(&self, kind: DifferenceKind) -> u64 {
        self.counts.get(&kind).copied().unwrap_or(0)
    }

    /// Returns whether every readable file is in exactly one record, and every record belongs to a file.
    pub fn is_ok(&self) -> bool {
        let mut wrong = self.counts.keys();
        wrong.all(|kind| *kind == DifferenceKind::Unreadable)
    }
}

/// A report under construction.
#[derive(Debug, Default)]
pub(super) struct ReportBuilder {
    pub(super) verbatim: u64,
    pub(super) remade: u64,
    pub(super) left_out: u64,
    kinds: BTreeMap<DifferenceKind, (u64, Vec<Difference>)>,
}

impl ReportBuilder {
    pub(super) fn note(&mut self, difference: Difference) {
        let (count, kept) = self.kinds.entry(difference.kind).or_default();
        *count += 1;
        if kept.len() < ComparisonReport::KEPT {
            kept.push(difference);
        }
    }

    pub(super) fn report(self, files: u64) -> ComparisonReport {
        let mut report = ComparisonReport {
            files,
            verbatim: self.verbatim,
            remade: self.remade,
            left_out: self.left_out,
            ..ComparisonReport::default()
        };
        for (kind, (count, mut kept)) in self.kinds {
            let place = |d: &Difference| (d.shard.clone(), d.record);
            kept.sort_by(|a, b| place(a).cmp(&place(b)).then_with(|| a.key.cmp(&b.key)));
            report.counts.insert(kind, count);
            report.differences.append(&mut kept);
        }
        report
    }
}

/// Outcome of packing a file, if the report has a line for it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum PackOutcome {
    /// The record contains an image that was transcoded from the file.
    Converted,
    /// As `Converted`, and the image was made smaller.
    Resized,
    /// The file is in no record.
    LeftOut,
}

/// Returns the outcomes of files by path, from the report of the pack.
pub(super) fn pack_outcomes(
    dataset: &Path,
    storage: &dyn Storage,
) -> Result<HashMap<String, PackOutcome>> {
    /// Size limit of a report, which has one line per file with a finding.
    const MAX_BYTES: u64 = 4 << 30;
    /// The fields of a line that are needed here.
    #[derive(Deserialize)]
    struct Line {
        action: String,
        reason: String,
        path: String,
    }
    let path = dataset.join(PACK_DIR).join(REPORT);
    let mut pack_outcomes = HashMap::new();
    let bytes = match storage.read(&path, MAX_BYTES) {
        Ok(bytes) => bytes,
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(pack_outcomes),
        Err(error) => return Err(Error::io(&path, "read", error)),
    };
    let lines = bytes.split(|byte| *byte == b'\n');
    // Every line, including the last one, ends with a newline.
    for (number, line) in (1..).zip(lines).filter(|(_, line)| !line.is_empty()) {
        let line: Line = forebay_shard::json::from_slice(line).map_err(|error| {
            Error::destination(
                &path,
                format!("line {number} is not one of a report: {error}"),
            )
        })?;
        let outcome = match line.action.as_str() {
            "converted" => PackOutcome::Converted,
            "resized" => PackOutcome::Resized,
            "kept" => continue,
            // These files never were images, so the census does not list them; there may be as many of them as of images.
            "ignored" if line.reason != "unlisted" => continue,
            _ => PackOutcome::LeftOut,
        };
        let known = pack_outcomes.entry(line.path).or_insert(outcome);
        *known = outcome.max(*known);
    }
    Ok(pack_outcomes)
}
