//! Writes one dataset: claims the destination, writes the shards, and publishes them.

use super::options::WriterOptions;
use super::queue::Queue;
use super::record::RecordEncoder;
use super::repeat::Progress;
use super::shards::{OpenShards, room_of};
use crate::error::{Error, Result};
use crate::observer::Cancel;
use crate::options::{DatasetFormat, PackOptions};
use crate::publish::account::{self, FindingCounts};
use crate::publish::destination::{
    BeginState, Destination, Header, INDEX_DIR, Journal, Publication, Request, ShardLine,
};
use crate::publish::resume;
use crate::publish::upload;
use crate::publish::{IMAGE_BYTES_KEY, identify_samples, shard_entry};
use crate::report::{SeekPointCount, SplitSummary, Uploaded};
use crate::write::{WrittenShard, run_beside};
use forebay_shard::Manifest;
use forebay_shard::manifest::{Account, FILE_NAME, FeatureEntry, SplitEntry};
use forebay_store::map_parallel;
use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{Receiver, SyncSender, sync_channel};
use std::sync::{Arc, Mutex, PoisonError};

/// Manifest entry with the digest of a writer's options, by which a repeated run recognizes a finished dataset.
pub(super) const WRITER_KEY: &str = "writer";

/// Summary of a written dataset.
#[derive(Debug, Clone)]
#[non_exhaustive]
pub struct WriteSummary {
    /// Root of the dataset.
    pub root: PathBuf,
    /// The dataset's fingerprint.
    pub fingerprint: String,
    /// The splits in the order of the manifest.
    pub splits: Vec<SplitSummary>,
    /// Number of shards that earlier writers had finished.
    pub resumed_shards: u64,
    /// Whether the dataset was complete already, so that nothing was written.
    pub already_complete: bool,
    /// Uploads of this run, if the destination is written through a staging area.
    pub uploaded: Option<Uploaded>,
    /// The account of the samples.
    pub account: Option<Account>,
    /// Warnings about a complete dataset, such as class names that are numbers sorted as text.
    pub warnings: Vec<String>,
}

impl WriteSummary {
    fn new(root: &Path, manifest: &Manifest) -> Self {
        Self {
            root: root.to_path_buf(),
            fingerprint: manifest.fingerprint.clone(),
            splits: manifest.splits.iter().map(SplitSummary::of).collect(),
            resumed_shards: 0,
            already_complete: false,
            uploaded: None,
            account: manifest.account.clone(),
            warnings: Vec::new(),
        }
    }

    /// Creates the summary of a dataset that was published before.
    pub(super) fn of_complete(root: &Path, manifest: &Manifest) -> Self {
        let summary = Self::new(root, manifest);
        Self {
            resumed_shards: summary.splits.iter().map(|split| split.shards).sum(),
            already_complete: true,
            ..summary
        }
    }

    /// Returns the number of records of all splits.
    pub fn records(&self) -> u64 {
        self.splits.iter().map(|split| split.records).sum()
    }
}

/// A dataset under construction.
pub(super) struct Session {
    options: Arc<WriterOptions>,
    of_shards: PackOptions,
    shown: PathBuf,
    header: Header,
    plan: String,
    /// Intact shards of earlier writers.
    done: BTreeMap<String, ShardLine>,
    first_shards: Vec<(Arc<str>, u32)>,
    destination: Box<dyn Destination>,
    cancel: Cancel,
}

/// The state of a claimed destination.
pub(super) enum Started {
    Writing(Box<Session>, Progress),
    /// The dataset is complete.
    Complete(Box<Manifest>),
}

impl Session {
    /// Claims the destination, and determines what earlier writers left.
    pub(super) fn start(options: &Arc<WriterOptions>, cancel: &Cancel) -> Result<Started> {
        let shown = upload::shown(&options.dst);
        let (arguments, plan) = options.identity();
        let header = Header::of_writer(&plan, arguments);
        let destination = upload::open(
            &options.dst,
            &options.upload,
            options.durability,
            room_of(options),
            0,
        )?;
        let request = Request {
            header: &header,
            overwrite: options.overwrite,
            restarts: false,
            shown: &shown,
            refuse_other: &|manifest| refuse_other(options, &plan, manifest, &shown),
        };
        let (lines, is_continued) = match destination.begin(&request, &())? {
            BeginState::Complete(manifest) => {
                // The last writer may have been killed after publishing and before this call.
                destination.end(&plan)?;
                return Ok(Started::Complete(manifest));
            }
            BeginState::Lines {
                lines,
                is_continued,
            } => (lines, is_continued),
        };
        if is_continued && !options.resume && !lines.is_empty() {
            return Err(Error::Unfinished { path: shown });
        }
        let of_shards = options.of_shards();
        let names: BTreeSet<&str> = lines.iter().map(|line| line.name.as_str()).collect();
        let jobs = of_shards.decided_jobs();
        let mut done = resume::check(&*destination, &names, lines.clone(), jobs, cancel)?;
        let progress = Progress::of_lines(lines.iter(), |name| done.contains_key(name));
        done.retain(|name, _| progress.has(name));
        if is_continued {
            destination.dir().remove_numbered_but(&done)?;
        }
        destination.resume(&done)?;
        let session = Self {
            options: Arc::clone(options),
            of_shards,
            shown,
            header,
            plan,
            done,
            first_shards: progress.first_shards().collect(),
            destination,
            cancel: cancel.clone(),
        };
        Ok(Started::Writing(Box::new(session), progress))
    }

    pub(super) fn resumed_shards(&self) -> u64 {
        self.done.len() as u64
    }

    /// Writes the samples from the queue, and publishes the dataset.
    pub(super) fn run(mut self: Box<Self>, queue: &Queue) -> Result<WriteSummary> {
        let _close = Close(queue);
        let resumed_shards = self.resumed_shards();
        let mut lines = Vec::new();
        let written = self.write(queue, &mut lines);
        self.done
            .extend(lines.into_iter().map(|line| (line.name.clone(), line)));
        if self.done.is_empty() {
            // There is nothing that a later writer could continue.
            let ended = self.destination.end(&self.plan);
            let what = "no sample was written: nothing is published";
            let nothing = Error::destination(&self.shown, what);
            return written.and(ended).and(Err(nothing));
        }
        written?;
        if queue.is_abandoned() {
            return Err(Error::Closed { path: self.shown });
        }
        let mut manifest = self.manifest();
        let json = manifest.to_json()?;
        let dataset = Publication {
            manifest: json.as_bytes(),
            name: FILE_NAME,
            indexes: &[],
            report: None,
            shards: &self.done,
        };
        self.destination.publish(&dataset, &(), &self.cancel)?;
        let uploaded = self.destination.uploaded();
        self.destination.end(&self.plan)?;
        manifest.fingerprint = manifest.fingerprint();
        Ok(WriteSummary {
            resumed_shards,
            uploaded,
            ..WriteSummary::new(&self.shown, &manifest)
        })
    }

    /// Writes all shards; this thread makes them durable in the order in which they are finished, and adds them to `lines`.
    fn write(&self, queue: &Queue, lines: &mut Vec<ShardLine>) -> Result<()> {
        let dir = self.destination.dir();
        let journal = dir.begin_journal(&self.header, self.done.values())?;
        if self.options.format == DatasetFormat::TfRecord {
            dir.create_dir(INDEX_DIR)?;
        }
        let stop = AtomicBool::new(false);
        let failure: Mutex<Option<Error>> = Mutex::new(None);
        let fail = |error: Error| {
            stop.store(true, Ordering::Relaxed);
            let mut failure = failure.lock().unwrap_or_else(PoisonError::into_inner);
            failure.get_or_insert(error);
            // The caller gets the error when it writes the next sample.
            queue.close();
        };
        let is_cancelled = || self.cancel.is_cancelled();
        let stopped = || stop.load(Ordering::Relaxed) || is_cancelled();
        let (sender, receiver) = sync_channel::<WrittenShard>(1);
        let (fail, stopped) = (&fail, &stopped);
        let writer = move || {
            let written = self.write_shards(queue, &sender, stopped);
            if let Err(error) = written {
                fail(error);
            }
        };
        let finisher = || {
            let published = self.publish_shards(receiver, journal, lines);
            if let Err(error) = published {
                fail(error);
            }
        };
        run_beside(vec![writer], finisher)
            .map_err(|error| Error::io(dir.root(), "start threads for", error))?;
        match failure.into_inner().unwrap_or_else(PoisonError::into_inner) {
            Some(error) => Err(error),
            None if is_cancelled() => Err(Error::Interrupted {
                finished: (self.done.len() + lines.len()) as u64,
                total: 0,
            }),
            None => Ok(()),
        }
    }

    fn write_shards(
        &self,
        queue: &Queue,
        sender: &SyncSender<WrittenShard>,
        stopped: &(dyn Fn() -> bool + Sync),
    ) -> Result<()> {
        let options = &*self.options;
        let columns = options.schema.columns().iter();
        let features: Vec<Vec<FeatureEntry>> = columns.map(|column| column.features()).collect();
        let jobs = self.of_shards.decided_jobs();
        let next = self.first_shards.iter().cloned();
        let destination = &*self.destination;
        // An abandoned writer finishes the samples it has, but does not wait for space in a staging area.
        let waits_no_more = || stopped() || queue.is_abandoned();
        let mut shards =
            OpenShards::new(options, &self.of_shards, destination, &waits_no_more, next);
        let mut sink = |written| {
            // The finisher stops receiving only after an error, which it has reported.
            let _ = sender.send(written);
            Ok(())
        };
        while let Some(batch) = queue.take() {
            let encoder = || RecordEncoder::new(options, &features);
            let records = map_parallel(&batch, jobs, stopped, encoder, |encoder, sample| {
                encoder.encode(sample)
            });
            for (sample, record) in batch.iter().zip(records) {
                let Some(record) = record else {
                    return Ok(());
                };
                if stopped() || !shards.append(sample, &record?, &mut sink)? {
                    return Ok(());
                }
            }
        }
        match waits_no_more() {
            true => Ok(()),
            false => shards.finish(&mut sink),
        }
    }

    fn publish_shards(
        &self,
        receiver: Receiver<WrittenShard>,
        mut journal: Journal,
        lines: &mut Vec<ShardLine>,
    ) -> Result<()> {
        for written in receiver {
            lines.push(written.publish(
                &*self.destination,
                &mut journal,
                self.options.durability,
            )?);
        }
        Ok(())
    }

    fn manifest(&self) -> Manifest {
        let options = &*self.options;
        let mut splits: BTreeMap<&str, Vec<_>> = BTreeMap::new();
        // Within a split, the order of names is that of numbers.
        for line in self.done.values() {
            if let Some((split, _)) = crate::publish::destination::split_of_numbered(&line.name) {
                splits.entry(split).or_default().push(shard_entry(line));
            }
        }
        let splits = splits.into_iter();
        let splits = splits.map(|(name, shards)| SplitEntry::new(name, shards));
        let format = options.format.shard_format();
        let label_base = i64::from(options.label_base);
        let mut manifest = Manifest::new(format, label_base, splits.collect());
        identify_samples(&mut manifest, &self.done);
        manifest.features = options.schema.features();
        manifest.columns = options.schema.clone();
        manifest.classes.clone_from(&options.classes);
        let seek_points: SeekPointCount = self.done.values().map(|line| line.seek_points).sum();
        seek_points.record(&mut manifest);
        let image_bytes: u64 = self.done.values().map(|line| line.image_bytes).sum();
        let pack = &mut manifest.pack;
        for (name, value) in options.arguments() {
            pack.insert(name, value.into());
        }
        pack.insert(IMAGE_BYTES_KEY.into(), image_bytes.into());
        pack.insert(WRITER_KEY.into(), self.plan.as_str().into());
        let written = self.done.values().map(|line| line.records).sum();
        let counts = FindingCounts::default();
        let mut account = account::account("samples", written, counts, &manifest, |name| {
            self.done.get(name)
        });
        account::add_schema(&mut account, &options.schema);
        manifest.account = Some(account);
        manifest
    }
}

/// Refuses to replace a complete dataset, unless the same dataset is written again.
fn refuse_other(
    options: &WriterOptions,
    plan: &str,
    manifest: &Manifest,
    shown: &Path,
) -> Result<()> {
    let found = manifest
        .pack
        .get(WRITER_KEY)
        .and_then(|digest| digest.as_str());
    if options.resume && found == Some(plan) {
        return Ok(());
    }
    Err(Error::Occupied {
        path: shown.to_path_buf(),
    })
}

/// Closes the queue when the thread ends for any reason.
struct Close<'a>(&'a Queue);

impl Drop for Close<'_> {
    fn drop(&mut self) {
        self.0.close();
    }
}
