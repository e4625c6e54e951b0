//! Running a prepared pack: take the destination, continue or begin, write, publish.

use crate::destination::{Destination, Header, INDEX_DIR, State};
use crate::error::{Error, Result};
use crate::observer::{Cancel, Observer, ShardDone, Stage};
use crate::options::{Format, PackOptions};
use crate::plan::PlannedShard;
use crate::prepare::{Prepared, prepare};
use crate::publish;
use crate::report::Summary;
use crate::resume;
use crate::write::write_shards;
use forebay_image::SeekDensity;
use std::collections::BTreeMap;
use std::time::Instant;

/// Beside the shards: indexes, manifest, journal.
const SPACE_BESIDE_BYTES: u64 = 1 << 20;

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
        let begin = Instant::now();
        let options = &self.options;
        let destination = Destination::open(&self.dst, options.durability)?;
        let header = Header::new(&self.census, &self.plan);
        let mut state = destination.state()?;
        if options.overwrite {
            destination.clear(state)?;
            state = State::Empty;
        }
        let shards: Vec<PlannedShard> = self.plan.shards().collect();
        let mut done = BTreeMap::new();
        let journal = match state {
            State::Complete(manifest) => {
                if !publish::is_of_plan(&manifest, &self.plan) {
                    let what = "the destination holds another data set: choose another one, or replace it with --overwrite";
                    return Err(Error::destination(&self.dst, what));
                }
                // The last run may have been killed between publishing and tidying up.
                destination.finish()?;
                return Ok(publish::summary_of(self, &destination, &manifest));
            }
            State::Unfinished(found) => {
                let differences = found.header.differences(&header);
                if !differences.is_empty() {
                    return Err(Error::DifferentPack {
                        path: self.dst.clone(),
                        differences,
                    });
                }
                observer.stage(Stage::Checking);
                let good = resume::check(
                    &destination,
                    &shards,
                    found.shards,
                    options.decided_jobs(),
                    cancel,
                )?;
                self.check_space(
                    &shards,
                    &good
                        .iter()
                        .map(|line| line.name.as_str())
                        .collect::<Vec<_>>(),
                )?;
                let journal = destination.resume(&header, &good)?;
                done.extend(good.into_iter().map(|line| (line.name.clone(), line)));
                journal
            }
            State::Empty => {
                self.check_space(&shards, &[])?;
                destination.begin(&header)?
            }
        };
        if options.format == Format::TfRecord {
            destination.create_dir(INDEX_DIR)?;
        }
        observer.stage(Stage::Writing);
        let resumed = done.len() as u64;
        self.announce(&shards, &done, observer);
        let missing: Vec<PlannedShard> = shards
            .iter()
            .filter(|s| !done.contains_key(&s.name))
            .cloned()
            .collect();
        let written = write_shards(self, &destination, journal, &missing, observer, cancel)?;
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
        let write_time = begin.elapsed();
        observer.stage(Stage::Publishing);
        let published = publish::publish(self, &destination, &shards, &done)?;
        destination.finish()?;
        let mut summary = publish::summary_of(self, &destination, &published.manifest);
        summary.already_complete = false;
        summary.resumed_shards = resumed;
        summary.findings = published.findings;
        summary.skipped_examples = published.skipped_examples;
        (summary.packed_files, summary.packed_bytes) = (packed_files, packed_bytes);
        summary.write_time = write_time;
        Ok(summary)
    }

    /// Tells the observer what earlier runs did.
    fn announce(
        &self,
        shards: &[PlannedShard],
        done: &BTreeMap<String, crate::destination::ShardLine>,
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

    fn check_space(&self, shards: &[PlannedShard], done: &[&str]) -> Result<()> {
        // How far compression goes is not known before.
        if !self.options.check_space || matches!(self.options.format, Format::IndexedZstd(_)) {
            return Ok(());
        }
        let missing = shards
            .iter()
            .filter(|shard| !done.contains(&shard.name.as_str()));
        let shard_bytes: u64 = missing.map(|shard| shard.bytes).sum();
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
