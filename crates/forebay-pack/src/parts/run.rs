//! One part of a pack, while other machines write the others, and the joining of all parts.

use crate::error::{Error, Result};
use crate::observer::{Cancel, Observer, Stage};
use crate::options::Part;
use crate::plan::PlannedShard;
use crate::prepare::Prepared;
use crate::publish::destination::{
    Destination, Header, LocalDestination, PlanDifference, PlanFile, State, UnfinishedPack,
};
use crate::publish::resume;
use crate::publish::upload;
use crate::publish::{self, Tally};
use crate::report::Summary;
use forebay_formats::{Action, Finding, Reason};
use forebay_store::{Durability, Location};
use std::collections::BTreeSet;
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
    /// How many files of this part met which fate, in a fixed order.
    pub findings: Vec<((Action, Reason), u64)>,
    /// The first files of this part that were skipped, up to [`Summary::EXAMPLES`].
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
    /// machine that sees the same source and destination; [`finish`] publishes the dataset when all are there.
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
        let begin = Instant::now();
        self.refuse_parts_elsewhere()?;
        if self.options.overwrite {
            return Err(Error::PartOverwrites);
        }
        let destination = LocalDestination::open_part(&self.dst, self.options.durability, part)?;
        let dir = destination.dir();
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
            findings: Vec::new(),
            skipped_examples: Vec::new(),
            warnings: self.census.warnings().to_vec(),
            census_time: self.census_time,
            write_time: Duration::ZERO,
        };
        let lines = match dir.state()? {
            State::Complete(manifest) => {
                self.refuse_other(&manifest)?;
                summary.already_complete = true;
                return Ok(summary);
            }
            State::Unfinished(unfinished) => {
                self.agree(&unfinished, part, &header)?;
                unfinished.into_lines()
            }
            State::Empty => Vec::new(),
        };
        if !dir.has_plan() {
            let findings = self.census.finding_list();
            let plan = dir.publish_plan(&header, &self.outline(), findings)?;
            // Another part may have been faster.
            differ(
                &self.dst,
                format!("part {part}"),
                plan.header.difference(&header),
            )?;
        }
        let (files, bytes) = self.extent(&shards);
        observer.assigned(files, bytes);
        self.check_findings()?;
        let (mut done, resumed) = self.check(&destination, &shards, lines, observer, cancel)?;
        let written = self.write(&destination, &header, &shards, &done, observer, cancel)?;
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
        summary.write_time = begin.elapsed();
        Ok(summary)
    }

    /// Compares the plan of other parts with that of this one.
    fn agree(&self, unfinished: &UnfinishedPack, part: Part, header: &Header) -> Result<()> {
        differ(
            &self.dst,
            format!("part {part}"),
            unfinished.difference(header),
        )
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

/// Options of [`finish`].
#[derive(Debug, Clone)]
#[non_exhaustive]
pub struct FinishOptions {
    /// The destination that the parts were packed into.
    pub dst: Location,
    /// Shards read at the same time; none: what the machine allows.
    pub jobs: Option<usize>,
    /// Whether finished files are forced to disk.
    pub durability: Durability,
}

impl FinishOptions {
    /// All cores, and synced.
    pub fn new(dst: impl Into<Location>) -> Self {
        Self {
            dst: dst.into(),
            jobs: None,
            durability: Durability::Synced,
        }
    }
}

/// Joins the parts of a pack: all of them are of one plan, every shard is there with the size and checksum that its part
/// wrote down, and then the manifest is published. The result is that of a pack by one machine, byte for byte.
///
/// Needs no source. With `source`, which is prepared from the arguments that the parts had, the source must also still be
/// what was planned.
///
/// # Errors
/// [`Error::Missing`] names the parts to run again, [`Error::DifferentPart`] what does not fit together. Nothing is
/// published then.
pub fn finish(
    options: &FinishOptions,
    source: Option<&Prepared>,
    observer: &dyn Observer,
    cancel: &Cancel,
) -> Result<Summary> {
    let begin = Instant::now();
    if options.dst.is_remote() {
        return Err(Error::Options(upload::NO_PARTS.into()));
    }
    let root = options.dst.local_path()?;
    if !root.is_dir() {
        return Err(Error::destination(
            root,
            "there is no such directory: no part has been packed into it",
        ));
    }
    let destination = LocalDestination::open(root, options.durability)?;
    let dir = destination.dir();
    let unfinished = match dir.state()? {
        State::Complete(manifest) => {
            if let Some(source) = source {
                source.refuse_other(&manifest)?;
            }
            let tally = Tally::of_report(&dir.report())?;
            dir.finish()?;
            return Ok(publish::summary(root, &manifest, tally));
        }
        State::Unfinished(unfinished) => unfinished,
        State::Empty => {
            return Err(Error::destination(root, "no part has been packed into it"));
        }
    };
    let UnfinishedPack { plan, journals } = *unfinished;
    let Some(PlanFile {
        header,
        outline,
        findings,
    }) = plan
    else {
        let what = "it holds an unfinished pack without parts: `pack` with its paths and options continues it";
        return Err(Error::destination(root, what));
    };
    if let Some(source) = source {
        let now = Header::new(&source.census, &source.plan);
        differ(
            root,
            "the source as it is now".into(),
            header.difference(&now),
        )?;
    }
    let mut lines = Vec::new();
    let mut counts = BTreeSet::new();
    for (part, found) in journals {
        let name = part.map_or("a run without parts".into(), |part| format!("part {part}"));
        differ(root, name, header.difference(&found.header))?;
        counts.extend(part.map(Part::count));
        lines.extend(found.shards);
    }
    observer.stage(Stage::Checking);
    let names: BTreeSet<&str> = header.shards.iter().map(String::as_str).collect();
    let machine = || std::thread::available_parallelism().map_or(1, |n| n.get());
    let jobs = options.jobs.unwrap_or_else(machine).max(1);
    let done = resume::check(&destination, &names, lines, jobs, cancel)?;
    if done.len() < names.len() {
        return Err(missing(root, &header, &done.into_keys().collect(), &counts));
    }
    let shards = (header.shards.as_slice(), &done);
    let published = publish::publish(&destination, &outline, &findings, shards, observer, cancel)?;
    dir.finish()?;
    Ok(Summary {
        already_complete: false,
        resumed_shards: done.len() as u64,
        warnings: outline.warnings,
        write_time: begin.elapsed(),
        ..publish::summary(root, &published.manifest, published.tally)
    })
}

fn differ(root: &std::path::Path, part: String, difference: PlanDifference) -> Result<()> {
    match difference {
        PlanDifference::None => Ok(()),
        different => Err(Error::DifferentPart {
            path: root.to_path_buf(),
            part,
            differences: different.into_words(),
        }),
    }
}

fn missing(
    root: &std::path::Path,
    header: &Header,
    done: &BTreeSet<String>,
    counts: &BTreeSet<u32>,
) -> Error {
    let mut parts = BTreeSet::new();
    let mut names = Vec::new();
    for (number, name) in header.shards.iter().enumerate() {
        if !done.contains(name) {
            names.push(name.clone());
            if let [count] = counts.iter().copied().collect::<Vec<_>>()[..] {
                parts.extend(Part::of_shard(number, count));
            }
        }
    }
    Error::Missing {
        path: root.to_path_buf(),
        missing: names,
        parts: parts.into_iter().collect(),
        total: header.shards.len() as u64,
    }
}
