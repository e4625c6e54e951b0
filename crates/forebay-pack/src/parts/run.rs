//! Writes one part of a pack or conversion, while other machines write the others.

use crate::error::{Error, Result};
use crate::observer::{Cancel, Observer};
use crate::options::Part;
use crate::plan::PlannedShard;
use crate::prepare::Prepared;
use crate::publish::Tally;
use crate::publish::destination::{
    Destination, Header, PlanDifference, PlanFile, ShardLine, State, telling,
};
use crate::publish::upload;
use crate::report::Uploaded;
use forebay_formats::images::FileList;
use forebay_formats::{Action, Finding, Reason};
use forebay_shard::Manifest;
use forebay_store::map_parallel;
use std::collections::BTreeMap;
use std::ffi::OsStr;
use std::fs::Metadata;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::MetadataExt;
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
    /// Publishes the plan, unless another part was faster; returns the published plan.
    pub(crate) publish_plan: &'a dyn Fn() -> Result<PlanFile>,
    /// Returns an error for a published dataset that is a different one.
    pub(crate) refuse_other: &'a dyn Fn(&Manifest) -> Result<()>,
}

/// The finished shards of a part or of a whole pack, by name.
pub(crate) struct FinishedShards {
    pub(crate) done: BTreeMap<String, ShardLine>,
    /// Shards that an earlier run had finished.
    pub(crate) resumed: u64,
    /// Records and image bytes that this run wrote.
    pub(crate) packed: (u64, u64),
}

impl FinishedShards {
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

    /// Returns an error unless these are `total` shards.
    pub(crate) fn all_of(self, total: u64) -> Result<Self> {
        let finished = self.done.len() as u64;
        match finished < total {
            true => Err(Error::Interrupted { finished, total }),
            false => Ok(self),
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
        write: &dyn Fn(Vec<ShardLine>) -> Result<FinishedShards>,
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
            let plan = (self.publish_plan)()?;
            // Another part may have been faster.
            agree(plan.header.difference(header))?;
        }
        let work = write(lines)?.all_of(shards)?;
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

/// Returns the modification time of a file in nanoseconds since 1970.
fn modified(meta: &Metadata) -> i128 {
    i128::from(meta.mtime()) * 1_000_000_000 + i128::from(meta.mtime_nsec())
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
            publish_plan: &|| self.publish_plan(destination, &header),
            refuse_other: &|manifest| self.refuse_other(manifest),
        };
        let mut summary = job.run(destination, cancel, &|lines| {
            observer.assigned(files, bytes);
            self.check_findings()?;
            let done = self.check(destination, &shards, lines, observer, cancel)?;
            self.look_at_files(part, &shards, &done, cancel)?;
            destination.resume(&done)?;
            let written = self.write(destination, &header, &shards, &done, observer, cancel)?;
            Ok(FinishedShards::new(done, written))
        })?;
        summary.warnings = self.census.warnings().to_vec();
        summary.census_time = self.census_time;
        Ok(summary)
    }

    /// Looks at the files of shards that are not done, if another process took the census: a source that has changed since
    /// is refused. Files in stores and archives are compared when they are read.
    fn look_at_files(
        &self,
        part: Part,
        shards: &[PlannedShard],
        done: &BTreeMap<String, ShardLine>,
        cancel: &Cancel,
    ) -> Result<()> {
        if !self.is_recorded || !self.census.archives().is_empty() {
            return Ok(());
        }
        let missing = shards
            .iter()
            .filter(|shard| !done.contains_key(&shard.name));
        let missing: Vec<&PlannedShard> = missing.collect();
        let threads = (self.options.decided_jobs() * 2).clamp(4, 32);
        let stopped = || cancel.is_cancelled();
        let changes = map_parallel(
            &missing,
            threads,
            &stopped,
            || (),
            |(), shard| self.first_change(shard),
        );
        if cancel.is_cancelled() {
            return Err(forebay_formats::Error::Interrupted.into());
        }
        let changes: Vec<String> = changes.into_iter().flatten().flatten().collect();
        PlanDifference::of(changes, PlanDifference::Source)
            .refuse_part(&self.dst, format!("part {part}"))
    }

    /// Returns how the first file of a shard that changed since the census did.
    fn first_change(&self, shard: &PlannedShard) -> Option<String> {
        let census = &self.census.splits()[shard.split];
        let split = &self.plan.splits()[shard.split];
        let dir = self.census.src().join(OsStr::from_bytes(census.dir()));
        let newest = census.chunks().iter().filter_map(FileList::newest).max();
        let mut entries = split.entries(census, shard.positions.clone());
        entries.find_map(|entry| {
            let path = dir.join(OsStr::from_bytes(&entry.key()));
            let shown = path.display();
            match std::fs::metadata(&path) {
                Err(error) => Some(format!("{shown}: {error}")),
                Ok(meta) if meta.len() != entry.size => Some(format!(
                    "{shown}: then {} bytes, now {}",
                    entry.size,
                    meta.len()
                )),
                Ok(meta) if Some(modified(&meta)) > newest => {
                    Some(format!("{shown} was modified since"))
                }
                Ok(_) => None,
            }
        })
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
