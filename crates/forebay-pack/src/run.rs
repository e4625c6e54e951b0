//! Runs a prepared pack: claims the destination, starts or continues, writes shards, and publishes.

use crate::census::{CensusRecord, inputs};
use crate::error::{Error, Result};
use crate::observer::{Cancel, Observer, Stage};
use crate::options::{DatasetFormat, OnBad, PackOptions};
use crate::parts::FinishedShards;
use crate::plan::{OPTIONAL_ARGUMENTS, PlannedShard};
use crate::prepare::{Prepared, prepare};
use crate::publish::destination::{
    BeginState, Destination, Header, INDEX_DIR, Outline, PlanFile, Request, ShardLine, SharedPlan,
    telling,
};
use crate::publish::resume;
use crate::publish::upload;
use crate::publish::{self, Tally};
use crate::report::Summary;
use crate::write::write_shards;
use forebay_formats::Action;
use forebay_image::SeekDensity;
use forebay_shard::{BlockCompression, Manifest};
use std::collections::BTreeMap;
use std::time::Instant;

/// Estimated space for indexes, manifest and journal.
const SPACE_BESIDE_BYTES: u64 = 1 << 20;

/// Packs a directory of images: [`prepare`], then [`Prepared::run`].
///
/// # Errors
/// See [`Error`]. After an error, the destination has no manifest, and the same call continues the pack.
///
/// # Examples
/// ```no_run
/// use forebay_pack::{Cancel, DatasetFormat, PackOptions, pack};
/// use std::path::Path;
///
/// let mut options = PackOptions::new(Path::new("imagenet"), Path::new("packed"));
/// options.format = DatasetFormat::INDEXED;
/// let summary = pack(&options, &(), &Cancel::new())?;
/// println!("{} records in {} bytes", summary.records(), summary.shard_bytes());
/// # Ok::<(), forebay_pack::Error>(())
/// ```
pub fn pack(options: &PackOptions, observer: &dyn Observer, cancel: &Cancel) -> Result<Summary> {
    prepare(options, observer, cancel)?.run(observer, cancel)
}

impl Prepared {
    /// Writes the dataset, or what is missing after an interruption.
    ///
    /// # Errors
    /// As [`pack`].
    pub fn run(&self, observer: &dyn Observer, cancel: &Cancel) -> Result<Summary> {
        let options = &self.options;
        let spool_bytes = self.census.spool_bytes();
        let destination = upload::open(
            &options.dst,
            &options.upload,
            options.durability,
            self.staging_bytes().saturating_sub(spool_bytes),
            spool_bytes,
        )?;
        let summary = telling(&*destination, observer, || {
            self.run_into(&*destination, observer, cancel)
        })?;
        destination.end(self.plan.digest())?;
        Ok(summary)
    }

    fn run_into(
        &self,
        destination: &dyn Destination,
        observer: &dyn Observer,
        cancel: &Cancel,
    ) -> Result<Summary> {
        let begin = Instant::now();
        let header = Header::new(&self.census, &self.plan);
        let lines = match destination.begin(
            &self.request(&header, &|manifest| self.refuse_other(manifest)),
            observer,
        )? {
            BeginState::Complete(manifest) => {
                let tally = match destination.report(cancel)? {
                    Some(report) => Tally::of_report(&report)?,
                    None => Tally::default(),
                };
                return Ok(Summary {
                    warnings: self.census.warnings().to_vec(),
                    census_time: self.census_time,
                    ..publish::summary(&self.dst, &manifest, tally)
                });
            }
            BeginState::Lines { lines, .. } => lines,
        };
        let work = self.finish_shards(destination, &header, lines, observer, cancel)?;
        let write_time = begin.elapsed();
        let published = publish::publish(
            destination,
            &self.outline(),
            self.census.finding_list(),
            (&header.shards, &work.done),
            observer,
            cancel,
        )?;
        Ok(Summary {
            already_complete: false,
            resumed_shards: work.resumed,
            packed_files: work.packed.0,
            packed_bytes: work.packed.1,
            warnings: self.census.warnings().to_vec(),
            census_time: self.census_time,
            write_time,
            uploaded: destination.uploaded(),
            ..publish::summary(&self.dst, &published.manifest, published.tally)
        })
    }

    /// Returns what the manifest says before shards are written.
    pub(crate) fn outline(&self) -> Outline {
        publish::outline(&self.options, &self.census, &self.plan)
    }

    /// Creates the request for the destination. Unfinished work from a source that has changed since is removed.
    fn request<'a>(
        &'a self,
        header: &'a Header,
        refuse_other: &'a dyn Fn(&Manifest) -> Result<()>,
    ) -> Request<'a> {
        Request {
            header,
            overwrite: self.options.overwrite,
            restarts: true,
            shown: &self.dst,
            refuse_other,
        }
    }

    /// Verifies the shards that earlier runs finished, and writes the others.
    fn finish_shards(
        &self,
        destination: &dyn Destination,
        header: &Header,
        lines: Vec<ShardLine>,
        observer: &dyn Observer,
        cancel: &Cancel,
    ) -> Result<FinishedShards> {
        self.check_findings()?;
        let shards: Vec<PlannedShard> = self.plan.shards().collect();
        let done = self.check(destination, &shards, lines, observer, cancel)?;
        destination.resume(&done)?;
        let written = self.write(destination, header, &shards, &done, observer, cancel)?;
        FinishedShards::new(done, written).all_of(shards.len() as u64)
    }

    /// Stores the plan in the destination, so that parts can use it. Returns whether it was stored already.
    ///
    /// # Errors
    /// As [`pack`].
    pub fn record_plan(&self, observer: &dyn Observer) -> Result<bool> {
        let destination = self.open_parts(upload::Step::Plan)?;
        let header = Header::new(&self.census, &self.plan);
        let refuse_other = |manifest: &Manifest| self.refuse_other(manifest);
        let taken = destination.begin_plan(&self.request(&header, &refuse_other), observer)?;
        let was_there = matches!(taken, BeginState::Complete(_)) || destination.has_plan()?;
        if !was_there {
            self.publish_plan(&*destination, &header)?;
        }
        destination.leave()?;
        Ok(was_there)
    }

    /// Publishes the plan for parts with the census, unless there is one; returns the published plan.
    pub(crate) fn publish_plan(
        &self,
        destination: &dyn Destination,
        header: &Header,
    ) -> Result<PlanFile> {
        let census = CensusRecord::encode(&self.census)?;
        let mut outline = self.outline();
        outline.census = Some((census.name.clone(), inputs(&self.options)?));
        destination.publish_plan(&SharedPlan {
            header,
            outline: Some(&outline),
            findings: self.census.finding_list(),
            census: Some(&census),
        })
    }

    /// Opens the destination that parts share, for one of their steps.
    pub(crate) fn open_parts(&self, step: upload::Step) -> Result<Box<dyn Destination>> {
        let options = &self.options;
        let spool_bytes = self.census.spool_bytes();
        upload::open_parts(
            &options.dst,
            &options.upload,
            options.durability,
            step,
            self.staging_bytes().saturating_sub(spool_bytes),
            spool_bytes,
        )
    }

    /// Refuses to replace a complete dataset of another plan.
    pub(crate) fn refuse_other(&self, manifest: &Manifest) -> Result<()> {
        if publish::is_of_plan(manifest, self.plan.digest()) {
            return Ok(());
        }
        let changed = match publish::is_of_pack(manifest) {
            true => publish::changed_options(manifest, self.plan.arguments(), &OPTIONAL_ARGUMENTS),
            false => Vec::new(),
        };
        Err(publish::other_dataset(&self.dst, &changed))
    }

    /// Returns an error for the first bad image that the census found, if the policy is to fail.
    pub(crate) fn check_findings(&self) -> Result<()> {
        let findings = self.census.findings();
        for finding in findings.filter(|found| found.reason.is_bad_image()) {
            if self.options.on_bad == OnBad::Fail && finding.action == Action::Skipped {
                return Err(Error::BadImage(Box::new(finding)));
            }
            if finding.action.leaves_out() {
                self.bad.add(1, &finding)?;
            }
        }
        Ok(())
    }

    /// Returns the shards of `lines` that are still valid, by name.
    pub(crate) fn check(
        &self,
        destination: &dyn Destination,
        shards: &[PlannedShard],
        lines: Vec<ShardLine>,
        observer: &dyn Observer,
        cancel: &Cancel,
    ) -> Result<BTreeMap<String, ShardLine>> {
        if lines.is_empty() {
            return Ok(BTreeMap::new());
        }
        observer.stage(Stage::Checking);
        let names = shards.iter().map(|shard| shard.name.as_str()).collect();
        let jobs = self.options.decided_jobs();
        resume::check(destination, &names, lines, jobs, cancel)
    }

    /// Writes the unfinished shards, and updates the journal.
    pub(crate) fn write(
        &self,
        destination: &dyn Destination,
        header: &Header,
        shards: &[PlannedShard],
        done: &BTreeMap<String, ShardLine>,
        observer: &dyn Observer,
        cancel: &Cancel,
    ) -> Result<Vec<ShardLine>> {
        let missing = shards.iter().filter(|s| !done.contains_key(&s.name));
        let missing: Vec<PlannedShard> = missing.cloned().collect();
        self.check_space(&missing)?;
        let journal = destination.dir().begin_journal(header, done.values())?;
        if self.options.format == DatasetFormat::TfRecord {
            destination.dir().create_dir(INDEX_DIR)?;
        }
        observer.stage(Stage::Writing);
        self.announce(shards, done, observer);
        write_shards(self, destination, journal, &missing, observer, cancel)
    }

    /// Reports the work of earlier runs to the observer.
    fn announce(
        &self,
        shards: &[PlannedShard],
        done: &BTreeMap<String, ShardLine>,
        observer: &dyn Observer,
    ) {
        for shard in shards {
            let Some(line) = done.get(&shard.name) else {
                continue;
            };
            let census = &self.census.splits()[shard.split];
            let split = &self.plan.splits()[shard.split];
            let bytes = split
                .entries(census, shard.positions.clone())
                .map(|entry| entry.size)
                .sum();
            observer.advanced(shard.positions.end - shard.positions.start, bytes);
            for finding in &line.findings {
                observer.finding(finding);
            }
            observer.shard_done(&line.done(true));
        }
    }

    fn check_space(&self, missing: &[PlannedShard]) -> Result<()> {
        // The effect of compression is unknown in advance.
        // Shards in a staging area wait for free space.
        let is_staged = self.options.upload.are_for(&self.options.dst);
        if !self.options.check_space
            || is_staged
            || matches!(self.options.format, DatasetFormat::Indexed(compression) if compression != BlockCompression::NONE)
        {
            return Ok(());
        }
        let shard_bytes: u64 = missing.iter().map(|shard| shard.bytes).sum();
        // Upper bounds of the size of seek points, which are hardly ever exceeded.
        let extra_bytes = match self.options.seek_points {
            None => 0,
            Some(SeekDensity::Fine) => shard_bytes / 20,
            Some(_) => shard_bytes / 100,
        };
        // Images of compressed archives temporarily exist twice there.
        let spool_bytes = if shard_bytes > 0 {
            self.census.spool_bytes()
        } else {
            0
        };
        let needed_bytes = shard_bytes + extra_bytes + spool_bytes + SPACE_BESIDE_BYTES;
        let free_bytes = forebay_store::free_bytes(&self.dst)?;
        if free_bytes < needed_bytes {
            return Err(Error::NoSpace {
                path: self.dst.clone(),
                free_bytes,
                needed_bytes,
            });
        }
        Ok(())
    }
}
