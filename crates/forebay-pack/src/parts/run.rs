//! Writes one part of a pack or conversion, while other machines write the others.

use crate::error::{Error, Result};
use crate::observer::{Cancel, Observer};
use crate::options::Part;
use crate::plan::PlannedShard;
use crate::prepare::Prepared;
use crate::publish::Tally;
use crate::publish::destination::{
    Destination, Header, Outline, PlanDifference, ShardLine, State, telling,
};
use crate::publish::upload;
use crate::report::Uploaded;
use forebay_formats::FindingList;
use forebay_formats::{Action, Finding, Reason};
use forebay_shard::Manifest;
use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

/// Summary of one part.
#[derive(Debug, Clone)]
#[non_exhaustive]
pub struct PartSummary {
    /// Directory of the dataset.
    pub root: PathBuf,
    /// The part.
    pub part: Part,
    /// Its shards, all of which are finished now.
    pub shards: u64,
    /// Shards of all parts.
    pub all_shards: u64,
    /// Records in its shards.
    pub records: u64,
    /// Bytes of its shards.
    pub shard_bytes: u64,
    /// Its shards that an earlier run had finished.
    pub resumed_shards: u64,
    /// Image bytes that this run read and wrote.
    pub packed_bytes: u64,
    /// Files that this run read and wrote.
    pub packed_files: u64,
    /// The dataset is published already, so nothing was done.
    pub already_complete: bool,
    /// Uploads of this run, if the destination is a store.
    pub uploaded: Option<Uploaded>,
    /// How many files of this part met which fate, in a fixed order.
    pub findings: Vec<((Action, Reason), u64)>,
    /// The first files of this part that were skipped, up to [`Summary::EXAMPLES`](crate::Summary::EXAMPLES).
    pub skipped_examples: Vec<Finding>,
    /// Warnings for the user.
    pub warnings: Vec<String>,
    /// Time for the census and the plan.
    pub census_time: Duration,
    /// Time from the plan to the last shard.
    pub write_time: Duration,
}

impl PartSummary {
    /// Files of this part that should have been packed and could not be, those in quarantine included.
    pub fn skipped(&self) -> u64 {
        let findings = self.findings.iter();
        let skipped = findings.filter(|((action, _), _)| action.leaves_out());
        skipped.map(|(_, files)| files).sum()
    }
}

/// A part that is about to be written, of a pack or of a conversion.
pub(crate) struct PartJob<'a> {
    pub(crate) part: Part,
    pub(crate) root: &'a Path,
    pub(crate) header: &'a Header,
    pub(crate) outline: Option<&'a Outline>,
    pub(crate) findings: &'a FindingList,
    /// Returns an error for a published dataset that is a different one.
    pub(crate) refuse_other: &'a dyn Fn(&Manifest) -> Result<()>,
}

/// The finished shards of a part, by name.
pub(crate) struct PartWork {
    done: BTreeMap<String, ShardLine>,
    /// Shards that an earlier run had finished.
    resumed: u64,
    /// Records and image bytes that this run wrote.
    packed: (u64, u64),
}

impl PartWork {
    /// `done`: the shards of earlier runs; `written`: those of this run.
    pub(crate) fn new(mut done: BTreeMap<String, ShardLine>, written: Vec<ShardLine>) -> Self {
        let resumed = done.len() as u64;
        let packed = written.iter().fold((0, 0), |(files, bytes), line| {
            (files + line.records, bytes + line.image_bytes)
        });
        done.extend(written.into_iter().map(|line| (line.name.clone(), line)));
        Self {
            done,
            resumed,
            packed,
        }
    }
}

impl PartJob<'_> {
    /// Joins the other parts, and records this one when `write` has finished its shards. `write` gets the shards that
    /// earlier runs finished.
    pub(crate) fn run(
        &self,
        destination: &dyn Destination,
        cancel: &Cancel,
        write: &dyn Fn(Vec<ShardLine>) -> Result<PartWork>,
    ) -> Result<PartSummary> {
        let begin = Instant::now();
        let (part, header) = (self.part, self.header);
        let shards = (0..header.shards.len()).filter(|number| part.takes(*number));
        let shards = shards.count() as u64;
        let mut summary = PartSummary {
            root: self.root.to_path_buf(),
            part,
            shards,
            all_shards: header.shards.len() as u64,
            records: 0,
            shard_bytes: 0,
            resumed_shards: 0,
            packed_bytes: 0,
            packed_files: 0,
            already_complete: false,
            uploaded: None,
            findings: Vec::new(),
            skipped_examples: Vec::new(),
            warnings: Vec::new(),
            census_time: Duration::ZERO,
            write_time: Duration::ZERO,
        };
        let agree =
            |difference: PlanDifference| difference.refuse_part(self.root, format!("part {part}"));
        let lines = match destination.state()? {
            State::Complete(manifest) => {
                (self.refuse_other)(&manifest)?;
                summary.already_complete = true;
                return Ok(summary);
            }
            State::Unfinished(unfinished) => {
                agree(unfinished.difference(header))?;
                unfinished.into_lines()
            }
            State::Empty => Vec::new(),
        };
        if !destination.has_plan()? {
            let plan = destination.publish_plan(header, self.outline, self.findings)?;
            // Another part may have been faster.
            agree(plan.header.difference(header))?;
        }
        let work = write(lines)?;
        if (work.done.len() as u64) < shards {
            return Err(Error::Interrupted {
                finished: work.done.len() as u64,
                total: shards,
            });
        }
        destination.put_part(part, header, &work.done, cancel)?;
        let mut tally = Tally::default();
        for line in work.done.into_values() {
            summary.records += line.records;
            summary.shard_bytes += line.bytes;
            line.findings
                .into_iter()
                .for_each(|finding| tally.add(finding));
        }
        (summary.packed_files, summary.packed_bytes) = work.packed;
        summary.resumed_shards = work.resumed;
        summary.findings = tally.counts.into_iter().collect();
        summary.skipped_examples = tally.skipped_examples;
        summary.uploaded = destination.uploaded();
        summary.write_time = begin.elapsed();
        Ok(summary)
    }
}

impl Prepared {
    /// Writes one part of the shards, or what is missing of them. Other parts may be written at the same time, by any
    /// machine that sees the same source and destination; [`finish`](crate::finish) publishes the dataset when all are there.
    ///
    /// # Errors
    /// See [`Error`]; [`Error::DifferentPart`] when the source or the arguments are not those that other parts began
    /// with. Whatever the error, the same call again continues.
    pub fn run_part(
        &self,
        part: Part,
        observer: &dyn Observer,
        cancel: &Cancel,
    ) -> Result<PartSummary> {
        if self.options.overwrite {
            return Err(Error::PartOverwrites);
        }
        let destination = self.open_parts(upload::Step::Part(part))?;
        let summary = telling(&*destination, observer, || {
            self.run_part_into(&*destination, part, observer, cancel)
        })?;
        destination.leave()?;
        Ok(summary)
    }

    fn run_part_into(
        &self,
        destination: &dyn Destination,
        part: Part,
        observer: &dyn Observer,
        cancel: &Cancel,
    ) -> Result<PartSummary> {
        let header = Header::new(&self.census, &self.plan);
        let shards = self.plan.shards().enumerate();
        let shards = shards.filter(|(number, _)| part.takes(*number));
        let shards: Vec<PlannedShard> = shards.map(|(_, shard)| shard).collect();
        let (files, bytes) = self.extent(&shards);
        let job = PartJob {
            part,
            root: &self.dst,
            header: &header,
            outline: Some(&self.outline()),
            findings: self.census.finding_list(),
            refuse_other: &|manifest| self.refuse_other(manifest),
        };
        let mut summary = job.run(destination, cancel, &|lines| {
            observer.assigned(files, bytes);
            self.check_findings()?;
            let (done, _) = self.check(destination, &shards, lines, observer, cancel)?;
            destination.resume(&done)?;
            let written = self.write(destination, &header, &shards, &done, observer, cancel)?;
            Ok(PartWork::new(done, written))
        })?;
        summary.warnings = self.census.warnings().to_vec();
        summary.census_time = self.census_time;
        Ok(summary)
    }

    /// Files and bytes of some shards.
    fn extent(&self, shards: &[PlannedShard]) -> (u64, u64) {
        let sizes = shards.iter().flat_map(|shard| {
            let census = &self.census.splits()[shard.split];
            let split = &self.plan.splits()[shard.split];
            split.entries(census, shard.positions.clone())
        });
        sizes.fold((0, 0), |(files, bytes), entry| {
            (files + 1, bytes + entry.size)
        })
    }
}
