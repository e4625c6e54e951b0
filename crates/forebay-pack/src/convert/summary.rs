//! The result of a conversion.

use super::losses::Counts;
use super::plan::Plan;
use super::source::Source;
use crate::error::Result;
use crate::publish::destination::ShardLine;
use crate::report::{FastCount, ProgressiveCount, SeekPointCount, SplitSummary, Summary, Uploaded};
use forebay_formats::{Error as SourceError, Finding, Reason};
use forebay_shard::manifest::{Account, Manifest};
use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::time::Duration;

/// Summary of a conversion.
#[derive(Debug, Clone)]
#[non_exhaustive]
pub struct ConvertSummary {
    /// Root of the dataset.
    pub root: PathBuf,
    /// The dataset's fingerprint.
    pub fingerprint: String,
    /// The splits in the order of the manifest.
    pub splits: Vec<SplitSummary>,
    /// Seek points in all records.
    pub seek_points: SeekPointCount,
    /// Outcome of progressive JPEGs that were to become baseline ones.
    pub progressive: ProgressiveCount,
    /// Fast images in all records.
    pub fast: FastCount,
    /// Bytes of the source's shards.
    pub source_bytes: u64,
    /// Shards that an earlier, interrupted run had finished.
    pub resumed_shards: u64,
    /// It was all there already: nothing was done.
    pub already_complete: bool,
    /// Uploads of this run, where the destination is written through a staging area.
    pub uploaded: Option<Uploaded>,
    /// Decisions about records of another tool that a user should know.
    pub notes: Vec<String>,
    /// The name of the file that makes the dataset whole, below the root.
    pub manifest: &'static str,
    /// The account of the records; `None` if the manifest has none.
    pub account: Option<Account>,
    /// The names of the classes in the order of their labels.
    pub classes: Vec<String>,
    /// Decisions that a user may want otherwise.
    pub warnings: Vec<String>,
    /// The first records that were left out, up to ten.
    pub examples: Vec<Finding>,
    /// Files beside those of an index that it does not name.
    pub unread_files: u64,
    /// Records that have another key, since the format cannot hold theirs.
    pub changed_keys: u64,
    /// Time that it took.
    pub time: Duration,
    /// Losses, where the source was damaged.
    pub(super) repaired: Counts,
}

impl ConvertSummary {
    /// Creates the summary of a conversion that has written nothing yet. `manifest` is the name of its manifest.
    pub(super) fn new(root: &Path, source: &Source, manifest: &'static str) -> Self {
        Self {
            root: root.to_path_buf(),
            fingerprint: String::new(),
            splits: Vec::new(),
            seek_points: SeekPointCount::default(),
            progressive: ProgressiveCount::default(),
            fast: FastCount::default(),
            source_bytes: source.bytes(),
            resumed_shards: 0,
            already_complete: false,
            uploaded: None,
            notes: Vec::new(),
            manifest,
            account: None,
            classes: Vec::new(),
            warnings: source.facts.warnings.clone(),
            examples: Vec::new(),
            unread_files: 0,
            changed_keys: 0,
            time: Duration::ZERO,
            repaired: Counts::default(),
        }
    }

    /// Returns how many records were left out as bad.
    pub fn skipped(&self) -> u64 {
        self.account.as_ref().map_or(0, Account::left_out_count)
    }

    /// Counts what the report lists, and notes what the source names and lacks.
    pub(super) fn count_findings<'a>(
        &mut self,
        of_source: &[Finding],
        lines: impl Iterator<Item = &'a ShardLine>,
    ) {
        let all = lines.flat_map(|line| &line.findings).chain(of_source);
        let mut scaled = 0u64;
        for finding in all {
            self.unread_files += u64::from(finding.reason == Reason::NotIndexed);
            if finding.action.leaves_out() && self.examples.len() < Summary::EXAMPLES {
                self.examples.push(finding.clone());
            }
            self.changed_keys += u64::from(finding.reason == Reason::KeyChanged);
            scaled += u64::from(finding.reason == Reason::ScaledBoxes);
        }
        if scaled > 0 {
            self.notes.push(format!(
                "annotations of another size than their image, scaled: {scaled}"
            ));
        }
        for reason in [
            Reason::NotThere,
            Reason::NotIndexed,
            Reason::OtherForm,
            Reason::BehindEnd,
        ] {
            let mut found = of_source.iter().filter(|f| f.reason == reason);
            if let Some(first) = found.next() {
                self.notes.push(match found.count() {
                    0 => first.to_string(),
                    more => format!("{first}, and {more} more"),
                });
            }
        }
    }

    /// Checks that records of each split could be read.
    pub(super) fn check_written(
        &self,
        source: &Source,
        plan: &Plan,
        done: &BTreeMap<String, ShardLine>,
    ) -> Result<()> {
        let mut written = vec![0; source.splits.len()];
        for shard in &plan.shards {
            written[shard.split] += done.get(&shard.name).map_or(0, |line| line.records);
        }
        let mut splits = source.splits.iter().zip(written);
        match splits.find(|(split, written)| split.len() > 0 && *written == 0) {
            None => Ok(()),
            Some((split, _)) => {
                let lines = done.values().flat_map(|line| &line.findings);
                let first = lines.map(Finding::to_string).next().unwrap_or_default();
                let (name, count) = (&split.name, split.len());
                let what = format!(
                    "none of the {count} records of the split {name:?} can be read; the first problem is: {first}"
                );
                let path = split
                    .files
                    .first()
                    .map_or(Path::new(""), |file| file.path());
                Err(SourceError::source(path, what).into())
            }
        }
    }

    /// Completes the summary with the manifest.
    pub(super) fn of_manifest(mut self, manifest: &Manifest) -> Self {
        self.fingerprint.clone_from(&manifest.fingerprint);
        self.splits = manifest.splits.iter().map(SplitSummary::of).collect();
        self.account.clone_from(&manifest.account);
        let classes = manifest.classes.iter();
        self.classes = classes.map(|class| class.name.clone()).collect();
        self.seek_points = SeekPointCount::of(manifest);
        self.progressive = ProgressiveCount::of(manifest);
        self.fast = FastCount::of(manifest);
        self.repaired = Counts::of(manifest);
        self
    }
}
