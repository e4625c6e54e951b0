//! Findings of a comparison, joined with the pack's own report.

use crate::destination::{PACK_DIR, REPORT};
use crate::error::{Error, Result};
use forebay_shard::Storage;
use serde::{Deserialize, Serialize};
use std::collections::{BTreeMap, HashMap};
use std::fmt;
use std::io;
use std::path::{Path, PathBuf};

/// How a dataset and its source differ.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "kebab-case")]
#[non_exhaustive]
pub enum DifferenceKind {
    /// A file is in no record, and the pack's report does not say why.
    Missing,
    /// A record is of no file.
    Extra,
    /// A file is in more than one record; each of them is listed.
    Doubled,
    /// A record's image is not the file's.
    Changed,
    /// A file cannot be read, so its record was not compared.
    Unreadable,
}

impl DifferenceKind {
    /// The kind in a word.
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
    /// How they differ.
    pub kind: DifferenceKind,
    /// The split.
    pub split: String,
    /// The key, which is the path below the split's directory; odd bytes as reports write them.
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

/// The whole comparison.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct ComparisonReport {
    /// Files of the source.
    pub files: u64,
    /// Records whose image is the file's, byte for byte.
    pub verbatim: u64,
    /// Records whose image was transcoded when it was packed, and has the right size in pixels.
    pub remade: u64,
    /// Files in no record, as the pack's report says.
    pub left_out: u64,
    /// How many differences there are of each kind.
    pub counts: BTreeMap<DifferenceKind, u64>,
    /// The first of each kind, up to [`ComparisonReport::KEPT`], in the order of kinds, shards and records.
    pub differences: Vec<Difference>,
}

impl ComparisonReport {
    /// So many differences of a kind are kept.
    pub const KEPT: usize = 10_000;

    /// Differences of one kind.
    pub fn count(&self, kind: DifferenceKind) -> u64 {
        self.counts.get(&kind).copied().unwrap_or(0)
    }

    /// Whether every file that could be read is in one record, and every record is of one file.
    pub fn is_ok(&self) -> bool {
        let mut wrong = self.counts.keys();
        wrong.all(|kind| *kind == DifferenceKind::Unreadable)
    }
}

/// The report while it grows.
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

/// Outcome of a file when it was packed, where the report has a line for it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum PackOutcome {
    /// In its record is an image that was made of it.
    Converted,
    /// And made smaller.
    Resized,
    /// It is in no record.
    LeftOut,
}

/// The outcomes of files by their paths, as the pack's report has them.
pub(super) fn pack_outcomes(
    dataset: &Path,
    storage: &dyn Storage,
) -> Result<HashMap<String, PackOutcome>> {
    /// A line for each odd file of a source: longer ones are no reports.
    const MAX_BYTES: u64 = 4 << 30;
    /// All that is wanted of a line.
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
    // The last line ends as all others do.
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
            // Never meant to be an image, so no file of the census; there may be as many of these as of images.
            "ignored" if line.reason != "unlisted" => continue,
            _ => PackOutcome::LeftOut,
        };
        let known = pack_outcomes.entry(line.path).or_insert(outcome);
        *known = outcome.max(*known);
    }
    Ok(pack_outcomes)
}
