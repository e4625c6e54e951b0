//! Writes one part of a pack, while other machines write the others.

use crate::error::{Error, Result};
use crate::observer::{Cancel, Observer};
use crate::options::Part;
use crate::plan::PlannedShard;
use crate::prepare::Prepared;
use crate::publish::Tally;
use crate::publish::destination::{Destination, Header, State, telling};
use crate::publish::upload;
use crate::report::Uploaded;
use forebay_formats::{Action, Finding, Reason};
use std::path::PathBuf;
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
        let begin = Instant::now();
        let header = Header::new(&self.census, &self.plan);
        let mut shards = Vec::new();
        for (number, shard) in self.plan.shards().enumerate() {
            if part.takes(number) {
                shards.push(shard);
            }
        }
        let mut summary = PartSummary {
            root: self.dst.clone(),
            part,
            shards: shards.len() as u64,
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
            warnings: self.census.warnings().to_vec(),
            census_time: self.census_time,
            write_time: Duration::ZERO,
        };
        let lines = match destination.state()? {
            State::Complete(manifest) => {
                self.refuse_other(&manifest)?;
                summary.already_complete = true;
                return Ok(summary);
            }
            State::Unfinished(unfinished) => {
                let difference = unfinished.difference(&header);
                difference.refuse_part(&self.dst, format!("part {part}"))?;
                unfinished.into_lines()
            }
            State::Empty => Vec::new(),
        };
        if !destination.has_plan()? {
            let findings = self.census.finding_list();
            let plan = destination.publish_plan(&header, &self.outline(), findings)?;
            // Another part may have been faster.
            let difference = plan.header.difference(&header);
            difference.refuse_part(&self.dst, format!("part {part}"))?;
        }
        let (files, bytes) = self.extent(&shards);
        observer.assigned(files, bytes);
        self.check_findings()?;
        let (mut done, resumed) = self.check(destination, &shards, lines, observer, cancel)?;
        destination.resume(&done)?;
        let written = self.write(destination, &header, &shards, &done, observer, cancel)?;
        for line in &written {
            summary.packed_files += line.records;
            summary.packed_bytes += line.image_bytes;
        }
        done.extend(written.into_iter().map(|line| (line.name.clone(), line)));
        if done.len() < shards.len() {
            return Err(Error::Interrupted {
                finished: done.len() as u64,
                total: shards.len() as u64,
            });
        }
        destination.put_part(part, &header, &done, cancel)?;
        let mut tally = Tally::default();
        for line in done.into_values() {
            summary.records += line.records;
            summary.shard_bytes += line.bytes;
            line.findings
                .into_iter()
                .for_each(|finding| tally.add(finding));
        }
        summary.resumed_shards = resumed;
        summary.findings = tally.counts.into_iter().collect();
        summary.skipped_examples = tally.skipped_examples;
        summary.uploaded = destination.uploaded();
        summary.write_time = begin.elapsed();
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
