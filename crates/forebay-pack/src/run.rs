//! Running a prepared pack: take the destination, continue or begin, write, publish.

use crate::destination::{
    Destination, Difference, Header, INDEX_DIR, MANIFEST, PACK_DIR, REPORT, ShardLine, State,
};
use crate::error::{Error, Result};
use crate::observer::{Cancel, Observer, ShardDone, Stage};
use crate::options::{Format, OnBadImage, PackOptions};
use crate::plan::PlannedShard;
use crate::prepare::{Prepared, prepare};
use crate::publish::{self, Tally};
use crate::report::{Action, Summary};
use crate::resume;
use crate::upload::{self, Upload};
use crate::write::write_shards;
use forebay_image::SeekDensity;
use forebay_shard::Manifest;
use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::{Duration, Instant};

/// Beside the shards: indexes, manifest, journal.
const SPACE_BESIDE_BYTES: u64 = 1 << 20;

/// What a run begins with.
enum Begin {
    /// The data set is whole.
    Complete(Box<Manifest>),
    /// These shards were finished by earlier runs, nothing if there were none.
    Lines {
        lines: Vec<ShardLine>,
        /// An earlier run began this very plan.
        is_continued: bool,
    },
}

impl Begin {
    fn anew() -> Self {
        Self::Lines {
            lines: Vec::new(),
            is_continued: false,
        }
    }
}

/// What was done, before it is published.
struct Work {
    done: BTreeMap<String, ShardLine>,
    resumed: u64,
    packed_files: u64,
    packed_bytes: u64,
}

/// Packs a directory of images: [`prepare`], then [`Prepared::run`].
///
/// # Errors
/// See [`Error`]. Whatever the error, the destination has no manifest then, and the same call again continues.
///
/// # Examples
/// ```no_run
/// use forebay_pack::{Cancel, Format, PackOptions, pack};
/// use std::path::Path;
///
/// let mut options = PackOptions::new(Path::new("imagenet"), Path::new("packed"));
/// options.format = Format::Indexed;
/// let summary = pack(&options, &(), &Cancel::new())?;
/// println!("{} records in {} bytes", summary.records(), summary.shard_bytes());
/// # Ok::<(), forebay_pack::Error>(())
/// ```
pub fn pack(options: &PackOptions, observer: &dyn Observer, cancel: &Cancel) -> Result<Summary> {
    prepare(options, observer, cancel)?.run(observer, cancel)
}

impl Prepared {
    /// Writes the data set, or what is missing of it after an interruption.
    ///
    /// # Errors
    /// As [`pack`].
    pub fn run(&self, observer: &dyn Observer, cancel: &Cancel) -> Result<Summary> {
        if self.options.upload.are_for(&self.options.dst) {
            return self.run_uploaded(observer, cancel);
        }
        let begin = Instant::now();
        let destination = Destination::open(&self.dst, self.options.durability)?;
        let header = Header::new(&self.census, &self.plan);
        let lines = match self.begin(&destination, &header, observer)? {
            Begin::Complete(manifest) => return self.complete(&destination, &manifest),
            Begin::Lines { lines, .. } => lines,
        };
        let work =
            self.finish_shards(&destination, &header, lines, observer, cancel, &|_| Ok(()))?;
        let write_time = begin.elapsed();
        observer.stage(Stage::Publishing);
        let published = publish::publish(
            &destination,
            &publish::outline(self),
            self.census.finding_list(),
            &header.shards,
            &work.done,
        )?;
        destination.finish()?;
        Ok(self.summary(&destination, published, &work, write_time))
    }

    /// The same for a destination that is written through a staging area.
    fn run_uploaded(&self, observer: &dyn Observer, cancel: &Cancel) -> Result<Summary> {
        let begin = Instant::now();
        let options = &self.options;
        let spool_bytes = self.census.spool_bytes();
        let shard_bytes = self.staging_bytes().saturating_sub(spool_bytes);
        let upload = Upload::open(&options.dst, &options.upload, shard_bytes, spool_bytes)?;
        let upload = Arc::new(upload);
        let destination = Destination::open(&upload.work_dir(), options.durability)?;
        let destination = destination.uploading(Arc::clone(&upload));
        if !options.overwrite
            && let Some(manifest) = upload.manifest()?
        {
            self.refuse_other(&manifest)?;
            return self.complete_uploaded(upload, destination, &manifest, cancel);
        }
        // A manifest that was written here and not published yet is written again.
        destination.remove(&destination.path(MANIFEST))?;
        let header = Header::new(&self.census, &self.plan);
        let (lines, is_continued) = match self.begin(&destination, &header, observer)? {
            Begin::Lines {
                lines,
                is_continued,
            } => (lines, is_continued),
            Begin::Complete(_) => (Vec::new(), false),
        };
        upload.claim(&header.identity(), is_continued, options.overwrite)?;
        upload
            .telling(observer, || {
                let resume = |done: &BTreeMap<String, ShardLine>| upload.resume(done.values());
                let work =
                    self.finish_shards(&destination, &header, lines, observer, cancel, &resume)?;
                let published = publish::publish(
                    &destination,
                    &publish::outline(self),
                    self.census.finding_list(),
                    &header.shards,
                    &work.done,
                )?;
                let report = Some(destination.report()).filter(|path| path.exists());
                let path = destination.path(MANIFEST);
                let json = std::fs::read(&path).map_err(|error| Error::io(&path, "read", error))?;
                upload.publish(&json, report.as_deref(), &work.done, observer, cancel)?;
                let mut summary = self.summary(&destination, published, &work, begin.elapsed());
                summary.uploaded = Some(upload.uploaded());
                Ok((summary, report.is_some()))
            })
            .and_then(|(summary, has_report)| {
                drop(destination);
                self.end_upload(upload)?;
                Ok(self.shown(summary, has_report))
            })
    }

    fn complete_uploaded(
        &self,
        upload: Arc<Upload>,
        destination: Destination,
        manifest: &Manifest,
        cancel: &Cancel,
    ) -> Result<Summary> {
        let local = upload.work_dir().with_file_name(REPORT);
        let report = upload.fetch_report(&local, cancel)?;
        let tally = Tally::of_report(&local)?;
        let summary = Summary {
            warnings: self.census.warnings().to_vec(),
            census_time: self.census_time,
            ..publish::summary(&destination, manifest, tally)
        };
        drop(destination);
        self.end_upload(upload)?;
        Ok(self.shown(summary, report.is_some()))
    }

    /// Nothing stays in the staging area.
    fn end_upload(&self, upload: Arc<Upload>) -> Result<()> {
        Arc::into_inner(upload).map_or(Ok(()), |upload| upload.finish(self.plan.digest()))
    }

    /// A summary with the places that users know.
    fn shown(&self, summary: Summary, has_report: bool) -> Summary {
        let root = self.dst.clone();
        let report = has_report.then(|| root.join(PACK_DIR).join(REPORT));
        Summary {
            root,
            report,
            ..summary
        }
    }

    /// Checks what earlier runs finished, which `resume` is told, and writes the rest.
    fn finish_shards(
        &self,
        destination: &Destination,
        header: &Header,
        lines: Vec<ShardLine>,
        observer: &dyn Observer,
        cancel: &Cancel,
        resume: &dyn Fn(&BTreeMap<String, ShardLine>) -> Result<()>,
    ) -> Result<Work> {
        self.check_findings()?;
        let shards: Vec<PlannedShard> = self.plan.shards().collect();
        let (mut done, resumed) = self.check(destination, &shards, lines, observer, cancel)?;
        resume(&done)?;
        let written = self.write(destination, header, &shards, &done, observer, cancel)?;
        let (packed_files, packed_bytes) = written.iter().fold((0, 0), |(files, bytes), line| {
            (files + line.records, bytes + line.image_bytes)
        });
        done.extend(written.into_iter().map(|line| (line.name.clone(), line)));
        if done.len() < shards.len() {
            return Err(Error::Interrupted {
                finished: done.len() as u64,
                total: shards.len() as u64,
            });
        }
        Ok(Work {
            done,
            resumed,
            packed_files,
            packed_bytes,
        })
    }

    fn summary(
        &self,
        destination: &Destination,
        published: publish::Published,
        work: &Work,
        write_time: Duration,
    ) -> Summary {
        Summary {
            already_complete: false,
            resumed_shards: work.resumed,
            packed_files: work.packed_files,
            packed_bytes: work.packed_bytes,
            warnings: self.census.warnings().to_vec(),
            census_time: self.census_time,
            write_time,
            ..publish::summary(destination, &published.manifest, published.tally)
        }
    }

    /// Records the plan in the destination, so that parts begin with it. Says whether it was there already.
    ///
    /// # Errors
    /// As [`pack`].
    pub fn record_plan(&self, observer: &dyn Observer) -> Result<bool> {
        self.refuse_parts_elsewhere()?;
        let destination = Destination::open(&self.dst, self.options.durability)?;
        let header = Header::new(&self.census, &self.plan);
        let begin = self.begin(&destination, &header, observer)?;
        if matches!(begin, Begin::Complete(_)) || destination.has_plan() {
            return Ok(true);
        }
        destination.publish_plan(&header, &publish::outline(self), self.census.finding_list())?;
        Ok(false)
    }

    /// Parts meet in a directory that all of them see.
    pub(crate) fn refuse_parts_elsewhere(&self) -> Result<()> {
        if !self.options.upload.are_for(&self.options.dst) {
            return Ok(());
        }
        Err(Error::Options(upload::NO_PARTS.into()))
    }

    /// Finds out what earlier runs left of this pack. What they left of a source that has changed since is removed.
    fn begin(
        &self,
        destination: &Destination,
        header: &Header,
        observer: &dyn Observer,
    ) -> Result<Begin> {
        let state = destination.state()?;
        if self.options.overwrite {
            destination.clear(state)?;
            return Ok(Begin::anew());
        }
        let begun = match state {
            State::Empty => return Ok(Begin::anew()),
            State::Complete(manifest) => {
                self.refuse_other(&manifest)?;
                return Ok(Begin::Complete(manifest));
            }
            State::Unfinished(begun) => begun,
        };
        match begun.difference(header) {
            Difference::None => Ok(Begin::Lines {
                lines: begun.into_lines(),
                is_continued: true,
            }),
            Difference::Source(differences) => {
                observer.begins_anew(&differences);
                destination.clear(State::Unfinished(begun))?;
                Ok(Begin::anew())
            }
            Difference::Arguments(differences) => Err(Error::DifferentPack {
                path: self.dst.clone(),
                differences,
            }),
        }
    }

    /// A data set that is whole stays what it is.
    pub(crate) fn refuse_other(&self, manifest: &Manifest) -> Result<()> {
        if publish::is_of_plan(manifest, self.plan.digest()) {
            return Ok(());
        }
        let what = "the destination holds another data set, or this one of a source that has changed since: \
                    choose another one, or replace it with --overwrite";
        Err(Error::destination(&self.dst, what))
    }

    fn complete(&self, destination: &Destination, manifest: &Manifest) -> Result<Summary> {
        // The last run may have been killed between publishing and tidying up.
        destination.finish()?;
        Ok(Summary {
            warnings: self.census.warnings().to_vec(),
            census_time: self.census_time,
            ..publish::summary_of(destination, manifest)?
        })
    }

    /// Stops for the first bad image that the census passed over, if that is to be done.
    pub(crate) fn check_findings(&self) -> Result<()> {
        if self.options.on_bad_image != OnBadImage::Fail {
            return Ok(());
        }
        let mut findings = self.census.findings();
        let bad = findings.find(|f| f.action == Action::Skipped && f.reason.is_bad_image());
        bad.map_or(Ok(()), |finding| Err(Error::BadImage(Box::new(finding))))
    }

    /// The shards of `lines` that are still good, by name, and how many those are.
    pub(crate) fn check(
        &self,
        destination: &Destination,
        shards: &[PlannedShard],
        lines: Vec<ShardLine>,
        observer: &dyn Observer,
        cancel: &Cancel,
    ) -> Result<(BTreeMap<String, ShardLine>, u64)> {
        if lines.is_empty() {
            return Ok((BTreeMap::new(), 0));
        }
        observer.stage(Stage::Checking);
        let names = shards.iter().map(|shard| shard.name.as_str()).collect();
        let jobs = self.options.decided_jobs();
        let good = resume::check(destination, &names, lines, jobs, cancel)?;
        let resumed = good.len() as u64;
        Ok((good, resumed))
    }

    /// Writes the shards that are not done, and keeps the journal meanwhile.
    pub(crate) fn write(
        &self,
        destination: &Destination,
        header: &Header,
        shards: &[PlannedShard],
        done: &BTreeMap<String, ShardLine>,
        observer: &dyn Observer,
        cancel: &Cancel,
    ) -> Result<Vec<ShardLine>> {
        let missing = shards.iter().filter(|s| !done.contains_key(&s.name));
        let missing: Vec<PlannedShard> = missing.cloned().collect();
        self.check_space(&missing)?;
        let journal = destination.begin(header, done.values())?;
        if self.options.format == Format::TfRecord {
            destination.create_dir(INDEX_DIR)?;
        }
        observer.stage(Stage::Writing);
        self.announce(shards, done, observer);
        write_shards(self, destination, journal, &missing, observer, cancel)
    }

    /// Tells the observer what earlier runs did.
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
            observer.shard_done(&ShardDone {
                name: line.name.clone(),
                records: line.records,
                bytes: line.bytes,
                resumed: true,
            });
        }
    }

    fn check_space(&self, missing: &[PlannedShard]) -> Result<()> {
        // How far compression goes is not known before.
        // Where shards go on from here, they wait for room.
        let is_staged = self.options.upload.are_for(&self.options.dst);
        if !self.options.check_space
            || is_staged
            || matches!(self.options.format, Format::IndexedZstd(_))
        {
            return Ok(());
        }
        let shard_bytes: u64 = missing.iter().map(|shard| shard.bytes).sum();
        // What seek points take at most, or nearly always.
        let extra_bytes = match self.options.seek_points {
            None => 0,
            Some(SeekDensity::Fine) => shard_bytes / 20,
            Some(_) => shard_bytes / 100,
        };
        // Images of compressed archives lie there twice for a while.
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
