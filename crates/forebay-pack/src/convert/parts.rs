//! A conversion that several machines share, as the parts of a pack.
//!
//! The parts share the description of the conversion; each opens the source, which takes an index at most, and so does
//! the process that joins them.

use super::conversion::{Running, opened};
use super::options::ConvertOptions;
use super::summary::ConvertSummary;
use crate::error::{Error, Result};
use crate::observer::{Cancel, Observer};
use crate::options::Part;
use crate::parts::{FinishedShards, PartJob, PartSummary, missing};
use crate::plan::PlannedShard;
use crate::publish::destination::{BeginState, Destination, PlanFile, SharedPlan, State, telling};
use crate::publish::upload;
use forebay_formats::FindingList;
use forebay_shard::Manifest;

/// The plan of a conversion in parts.
#[derive(Debug, Clone)]
#[non_exhaustive]
pub struct ConversionPlan {
    /// An earlier run had recorded it, or the dataset is complete.
    pub was_there: bool,
    /// Number of shards of all parts.
    pub shards: u64,
    /// Size of the source's shards in bytes.
    pub bytes: u64,
}

/// Records the plan of a conversion in its destination, so that parts can use it.
///
/// # Errors
/// As [`convert`].
pub fn plan_conversion(
    options: &ConvertOptions,
    observer: &dyn Observer,
    cancel: &Cancel,
) -> Result<ConversionPlan> {
    opened(options, observer, cancel, |running| {
        let destination = running.open_parts(upload::Step::Plan)?;
        let refuse_other = |manifest: &Manifest| running.refuse_other(manifest);
        let request = running.request(&refuse_other);
        let taken = destination.begin_plan(&request, observer)?;
        let was_there = matches!(taken, BeginState::Complete(_)) || destination.has_plan()?;
        if !was_there {
            running.publish_plan(&*destination)?;
        }
        destination.leave()?;
        Ok(ConversionPlan {
            was_there,
            shards: running.plan.shards.len() as u64,
            bytes: running.source.bytes(),
        })
    })
}

/// Writes one part of the shards of a conversion, or what is missing of them. Other parts may be written at the same
/// time, by any machine that sees the same source and destination; [`finish_conversion`] publishes the dataset.
///
/// # Errors
/// As [`convert`]; [`Error::DifferentPart`] when the source or the options are not those that other parts began with.
pub fn convert_part(
    options: &ConvertOptions,
    part: Part,
    observer: &dyn Observer,
    cancel: &Cancel,
) -> Result<PartSummary> {
    if options.overwrite {
        return Err(Error::PartOverwrites);
    }
    opened(options, observer, cancel, |running| {
        let destination = running.open_parts(upload::Step::Part(part))?;
        let summary = telling(&*destination, observer, || {
            running.run_part(&*destination, part)
        })?;
        destination.leave()?;
        Ok(summary)
    })
}

/// Joins the parts of a conversion: checks that every shard is there with the size and checksum that its part recorded,
/// and publishes the dataset. The result is that of [`convert`], byte for byte.
///
/// # Errors
/// As [`convert`]; [`Error::Missing`] names the parts to write again.
pub fn finish_conversion(
    options: &ConvertOptions,
    observer: &dyn Observer,
    cancel: &Cancel,
) -> Result<ConvertSummary> {
    opened(options, observer, cancel, |running| {
        running.run_whole(Some(upload::Step::Finish))
    })
}

impl Running<'_> {
    /// Opens the destination that parts share, for one of their steps.
    pub(super) fn open_parts(&self, step: upload::Step) -> Result<Box<dyn Destination>> {
        let (options, bytes) = (self.options, self.shard_bytes);
        upload::open_parts(
            &options.dst,
            &options.upload,
            options.durability,
            step,
            bytes,
            0,
        )
    }

    fn publish_plan(&self, destination: &dyn Destination) -> Result<PlanFile> {
        destination.publish_plan(&SharedPlan {
            header: self.header,
            outline: None,
            findings: &FindingList::default(),
            census: None,
        })
    }

    fn run_part(&self, destination: &dyn Destination, part: Part) -> Result<PartSummary> {
        let job = PartJob {
            part,
            root: self.shown,
            header: self.header,
            publish_plan: &|| self.publish_plan(destination),
            refuse_other: &|manifest| self.refuse_other(manifest),
        };
        let mut summary = job.run(destination, self.cancel, &|lines| {
            let shards = self.plan.shards.iter().enumerate();
            let shards = shards.filter(|(number, _)| part.takes(*number));
            let shards: Vec<&PlannedShard> = shards.map(|(_, shard)| shard).collect();
            let done = self.check(destination, &shards, lines)?;
            destination.resume(&done)?;
            let written = self.write(destination, &shards, &done)?;
            self.read_back(destination, &shards, &written)?;
            Ok(FinishedShards::new(done, written))
        })?;
        summary.warnings.clone_from(&self.source.facts.warnings);
        Ok(summary)
    }

    /// Determines what the parts left, without shards that are missing.
    pub(super) fn joined(&self, destination: &dyn Destination) -> Result<BeginState> {
        let unfinished = match destination.state()? {
            State::Complete(manifest) => {
                self.refuse_other(&manifest)?;
                return Ok(BeginState::Complete(manifest));
            }
            State::Empty => {
                let what = "no part has been converted into it";
                return Err(Error::destination(self.shown, what));
            }
            State::Unfinished(unfinished) => unfinished,
        };
        let difference = unfinished.difference(self.header);
        difference.refuse_part(self.shown, "this command".into())?;
        let counts = unfinished.part_counts();
        let shards: Vec<&PlannedShard> = self.plan.shards.iter().collect();
        let done = self.check(destination, &shards, unfinished.into_lines())?;
        if done.len() < shards.len() {
            // Another process may have joined the parts in the meantime, and removed what they had recorded.
            if let State::Complete(manifest) = destination.state()? {
                return Ok(BeginState::Complete(manifest));
            }
            return Err(missing(self.shown, self.header, &done, &counts));
        }
        Ok(BeginState::Lines {
            lines: done.into_values().collect(),
            is_continued: true,
        })
    }
}
