//! From shards to shards: another format, other shard sizes, seek points made or removed. Records keep their order, their
//! keys, their labels and all other features.
//!
//! A conversion runs as a pack does: it is planned whole, shards are written in parallel, each is in a journal when it is on
//! disk, an interrupted run goes on, and the manifest comes last, after every file was read back. What is converted is a
//! data set, TFRecord files of another tool or, in a repair, what is whole of a damaged data set.

mod damaged;
mod found_features;
mod options;
mod plan;
mod record;
mod repair;
mod source;

pub use options::{ConvertOptions, ProgressiveChange, SeekPointChange};
pub use repair::{RepairOptions, RepairSummary, repair};
pub use source::{ConvertSource, ForeignFiles};

use crate::destination::{
    Destination, Header, INDEX_DIR, Journal, Publication, Request, ShardLine, Taken, telling,
};
use crate::error::{Error, Result};
use crate::observer::{Cancel, Observer, ShardDone, Stage};
use crate::options::{Format, PackOptions};
use crate::plan::PlannedShard;
use crate::prepare::refuse_nesting;
use crate::publish::{identify_samples, shard_entry};
use crate::report::{ProgressiveCount, SeekPointCount, SplitSummary, Uploaded};
use crate::resume;
use crate::upload;
use crate::write::{WrittenShard, open_shard};
use forebay_formats::records::class_names;
use forebay_shard::RecordMeta;
use forebay_shard::manifest::{FILE_NAME, Manifest, SplitEntry};
use forebay_shard::parallel::{for_each_parallel, run_beside};
use plan::Plan;
use source::Source;
use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::sync_channel;
use std::time::{Duration, Instant};

/// Under this name the manifest keeps the digest of a conversion, so that the same command finds its work done.
const CONVERSION_KEY: &str = "conversion";
/// Room beside the shards: indexes, journal, manifest.
const SPACE_BESIDE_BYTES: u64 = 16 << 20;
/// Bytes or records between two progress reports and checks for cancellation.
const STEP_BYTES: u64 = 4 << 20;
const STEP_RECORDS: u64 = 64;

/// Summary of a conversion.
#[derive(Debug, Clone)]
#[non_exhaustive]
pub struct ConvertSummary {
    /// Root of the dataset.
    pub root: PathBuf,
    /// The data set's fingerprint.
    pub fingerprint: String,
    /// The splits in the order of the manifest.
    pub splits: Vec<SplitSummary>,
    /// Seek points in all records.
    pub seek_points: SeekPointCount,
    /// Outcome of progressive JPEGs that were to become baseline ones.
    pub progressive: ProgressiveCount,
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
    /// Time that it took.
    pub time: Duration,
    /// Losses, where the source was damaged.
    repaired: repair::Counts,
}

/// Converts. Of the observer [`stage`](Observer::stage), [`advanced`](Observer::advanced) (in records and bytes of the
/// source) and [`shard_done`](Observer::shard_done) are called.
///
/// # Errors
/// See [`Error`]. A record that is damaged stops the conversion with its shard, number and place.
pub fn convert(
    options: &ConvertOptions,
    observer: &dyn Observer,
    cancel: &Cancel,
) -> Result<ConvertSummary> {
    options.of_shards().validate().map_err(Error::Options)?;
    for dir in upload::written(&options.dst, &options.upload)? {
        refuse_nesting(options.src.root(), &dir)?;
    }
    observer.stage(Stage::Census);
    let source = Source::open(&options.src, &options.read)?;
    convert_source(options, &source, observer, cancel)
}

/// Converts what is open.
fn convert_source(
    options: &ConvertOptions,
    source: &Source,
    observer: &dyn Observer,
    cancel: &Cancel,
) -> Result<ConvertSummary> {
    let begin = Instant::now();
    let of_shards = options.of_shards();
    let shown = upload::shown(&options.dst);
    let arguments = options.arguments();
    let plan = Plan::make(source, &options.format, options.sharding, &arguments)?;
    let largest = plan
        .shards
        .iter()
        .map(|shard| upload::room_of_planned(shard, &of_shards))
        .max();
    let destination = upload::open(
        &options.dst,
        &options.upload,
        options.durability,
        largest.unwrap_or(0),
        0,
    )?;
    let mut identified = arguments;
    identified.extend(source.facts.identity.clone());
    let header = Header::of_conversion(&plan.digest, identified, plan.names());
    let summary = ConvertSummary {
        root: shown.clone(),
        fingerprint: String::new(),
        splits: Vec::new(),
        seek_points: SeekPointCount::default(),
        progressive: ProgressiveCount::default(),
        source_bytes: source.bytes(),
        resumed_shards: 0,
        already_complete: false,
        uploaded: None,
        notes: Vec::new(),
        time: Duration::ZERO,
        repaired: repair::Counts::default(),
    };
    let conversion = Conversion {
        options,
        of_shards: &of_shards,
        source,
        plan: &plan,
        header: &header,
        shown: &shown,
        observer,
        cancel,
    };
    let (manifest, summary) = telling(&*destination, observer, || {
        conversion.run(&*destination, summary)
    })?;
    destination.end(&plan.digest)?;
    Ok(summarise(summary, &manifest, begin))
}

/// A conversion that is planned.
struct Conversion<'a> {
    options: &'a ConvertOptions,
    of_shards: &'a PackOptions,
    source: &'a Source,
    plan: &'a Plan,
    header: &'a Header,
    /// The destination, for messages.
    shown: &'a Path,
    observer: &'a dyn Observer,
    cancel: &'a Cancel,
}

impl Conversion<'_> {
    /// Does what is not done yet. Gives the manifest that is published then.
    fn run(
        &self,
        destination: &dyn Destination,
        mut summary: ConvertSummary,
    ) -> Result<(Manifest, ConvertSummary)> {
        let request = Request {
            header: self.header,
            overwrite: self.options.overwrite,
            restarts: false,
            shown: self.shown,
            refuse_other: &|manifest| self.refuse_other(manifest),
        };
        let (lines, is_continued) = match destination.begin(&request, self.observer)? {
            Taken::Complete(manifest) => {
                summary.already_complete = true;
                return Ok((*manifest, summary));
            }
            Taken::Lines {
                lines,
                is_continued,
            } => (lines, is_continued),
        };
        let is_staged = self.options.upload.are_for(&self.options.dst);
        if self.options.check_space && !is_staged && !is_continued {
            check_space(self.shown, self.plan)?;
        }
        let names: BTreeSet<&str> = self
            .plan
            .shards
            .iter()
            .map(|shard| shard.name.as_str())
            .collect();
        let jobs = self.of_shards.decided_jobs();
        let mut done = BTreeMap::new();
        if is_continued {
            self.observer.stage(Stage::Checking);
            done = resume::check(destination, &names, lines, jobs, self.cancel)?;
        }
        destination.resume(&done)?;
        summary.resumed_shards = done.len() as u64;
        let written = self.write(destination, &done)?;
        done.extend(written.iter().map(|line| (line.name.clone(), line.clone())));
        if done.len() < self.plan.shards.len() {
            return Err(Error::Interrupted {
                finished: done.len() as u64,
                total: self.plan.shards.len() as u64,
            });
        }
        // Shards of this run are read back before they are published; uploaded ones are checked in the store.
        self.observer.stage(Stage::Checking);
        let count = written.len();
        if resume::check(destination, &names, written, jobs, self.cancel)?.len() != count {
            let what = "a shard that was just written reads back as something else: the storage cannot be trusted";
            return Err(Error::destination(self.shown, what));
        }
        let report = repair::write_report(destination.dir(), self.source, done.values())?;
        let notes = &mut summary.notes;
        let json = manifest(self.options, self.source, self.plan, &done, notes)?.to_json()?;
        let dataset = Publication {
            manifest: json.as_bytes(),
            report: report.as_deref(),
            shards: &done,
        };
        destination.publish(&dataset, self.observer, self.cancel)?;
        summary.uploaded = destination.uploaded();
        let manifest = Manifest::parse(&self.shown.join(FILE_NAME), json.as_bytes())?;
        Ok((manifest, summary))
    }

    fn refuse_other(&self, manifest: &Manifest) -> Result<()> {
        let digest = manifest.pack.get(CONVERSION_KEY).and_then(|d| d.as_str());
        if digest == Some(&self.plan.digest) {
            return Ok(());
        }
        let what = "the destination holds another data set: choose another one, or replace it with --overwrite";
        Err(Error::destination(self.shown, what))
    }

    /// Writes the shards that are not done.
    fn write(
        &self,
        destination: &dyn Destination,
        done: &BTreeMap<String, ShardLine>,
    ) -> Result<Vec<ShardLine>> {
        let journal = destination
            .dir()
            .begin_journal(self.header, done.values())?;
        if self.options.format == Format::TfRecord {
            destination.dir().create_dir(INDEX_DIR)?;
        }
        self.observer.stage(Stage::Writing);
        for line in self
            .plan
            .shards
            .iter()
            .filter_map(|shard| done.get(&shard.name))
        {
            self.observer.advanced(line.records, line.image_bytes);
            self.observer.shard_done(&shard_done(line, true));
        }
        let run = Run {
            options: self.of_shards,
            changes: (self.options.seek_points, self.options.progressive),
            source: self.source,
            destination,
            observer: self.observer,
            cancel: self.cancel,
        };
        let missing = self
            .plan
            .shards
            .iter()
            .filter(|shard| !done.contains_key(&shard.name));
        run.write_all(&missing.collect::<Vec<_>>(), journal)
    }
}

fn shard_done(line: &ShardLine, resumed: bool) -> ShardDone {
    ShardDone {
        name: line.name.clone(),
        records: line.records,
        bytes: line.bytes,
        resumed,
    }
}

fn summarise(mut summary: ConvertSummary, manifest: &Manifest, begin: Instant) -> ConvertSummary {
    summary.fingerprint.clone_from(&manifest.fingerprint);
    summary.splits = manifest.splits.iter().map(SplitSummary::of).collect();
    summary.seek_points = SeekPointCount::of(manifest);
    summary.progressive = ProgressiveCount::of(manifest);
    summary.repaired = repair::Counts::of(manifest);
    summary.time = begin.elapsed();
    summary
}

fn check_space(root: &Path, plan: &Plan) -> Result<()> {
    let bytes: u64 = plan.shards.iter().map(|shard| shard.bytes).sum();
    // Seek points take a hundredth or less, fine ones some more.
    let needed_bytes = bytes + bytes / 50 + SPACE_BESIDE_BYTES;
    let free_bytes = forebay_store::free_bytes(root)?;
    if free_bytes < needed_bytes {
        return Err(Error::NoSpace {
            path: root.to_path_buf(),
            free_bytes,
            needed_bytes,
        });
    }
    Ok(())
}

/// A conversion that runs.
struct Run<'a> {
    options: &'a PackOptions,
    changes: (SeekPointChange, ProgressiveChange),
    source: &'a Source,
    destination: &'a dyn Destination,
    observer: &'a dyn Observer,
    cancel: &'a Cancel,
}

impl Run<'_> {
    /// Writes shards in parallel; this thread makes them durable in the order in which they come.
    fn write_all(&self, shards: &[&PlannedShard], mut journal: Journal) -> Result<Vec<ShardLine>> {
        let jobs = self.options.decided_jobs().min(shards.len());
        let jobs = self.destination.shards_at_once(jobs);
        let stop = AtomicBool::new(false);
        let failure: Mutex<Option<Error>> = Mutex::new(None);
        let fail = |error: Error| {
            stop.store(true, Ordering::Relaxed);
            let mut failure = failure.lock().unwrap_or_else(|e| e.into_inner());
            failure.get_or_insert(error);
        };
        let stopped = || stop.load(Ordering::Relaxed) || self.cancel.is_cancelled();
        let (sender, receiver) = sync_channel::<WrittenShard>(jobs.max(1));
        let mut lines = Vec::new();
        let (fail, stopped) = (&fail, &stopped);
        let writer = move || {
            let converter =
                || record::Converter::new(self.changes, &self.source.facts.record_features);
            let written = for_each_parallel(shards, jobs, converter, |converter, shard| {
                if !stopped()
                    && let Some(written) = self.write(shard, converter, stopped)?
                {
                    // The finisher hangs up only after an error, which it has reported.
                    let _ = sender.send(written);
                }
                Ok(())
            });
            if let Err(error) = written {
                fail(error);
            }
        };
        let finisher = || {
            for written in receiver {
                let line = written.publish(self.destination, &mut journal, self.options.durability);
                match line {
                    Ok(line) => {
                        self.observer.shard_done(&shard_done(&line, false));
                        lines.push(line);
                    }
                    Err(error) => {
                        fail(error);
                        break;
                    }
                }
            }
        };
        run_beside(vec![writer], finisher).map_err(|error| {
            Error::io(self.destination.dir().root(), "start threads for", error)
        })?;
        match failure.into_inner().unwrap_or_else(|e| e.into_inner()) {
            Some(error) => Err(error),
            None => Ok(lines),
        }
    }

    /// Writes the records of a shard. None if it was stopped.
    fn write(
        &self,
        planned: &PlannedShard,
        converter: &mut record::Converter<'_>,
        stopped: &(dyn Fn() -> bool + Sync),
    ) -> Result<Option<WrittenShard>> {
        let split = &self.source.splits[planned.split];
        if let Some(shard) = split.damaged.get(planned.number as usize) {
            return self.salvage(planned, shard, converter, stopped);
        }
        let path = self.destination.dir().path(&planned.name);
        let bytes = upload::room_of_planned(planned, self.options);
        let Some(room) = self.destination.reserve(bytes, stopped)? else {
            return Ok(None);
        };
        let mut writer = open_shard(&path, self.options)?;
        let mut seek_points = SeekPointCount::default();
        let mut progressive = ProgressiveCount::default();
        let (mut source_bytes, mut records, mut bytes) = (0, 0, 0);
        let mut labels: Option<(i64, i64)> = None;
        for (file, range) in split.pieces(planned.positions.clone()) {
            let mut reader = file.read(range)?;
            while let Some(record) = reader.next_record()? {
                let converted = converter
                    .convert(record.bytes)
                    .map_err(|what| source::refused(file, record.number, what))?;
                seek_points.add(converted.seek_point_bytes);
                progressive.add(converted.is_baseline_now);
                if let Some(label) = record.label.filter(|label| *label >= 0) {
                    let (least, most) = labels.unwrap_or((label, label));
                    labels = Some((least.min(label), most.max(label)));
                }
                let meta = RecordMeta {
                    label: record.label,
                    key: record.key,
                };
                writer.append(converted.bytes, &meta)?;
                records += 1;
                bytes += record.bytes.len() as u64;
                if records >= STEP_RECORDS || bytes >= STEP_BYTES {
                    source_bytes += bytes;
                    self.observer.advanced(records, bytes);
                    (records, bytes) = (0, 0);
                    if stopped() {
                        return Ok(None);
                    }
                }
            }
        }
        source_bytes += bytes;
        self.observer.advanced(records, bytes);
        let name = planned.name.clone();
        let file = writer.finish()?;
        let written = WrittenShard::new(name, file, source_bytes, seek_points, self.options);
        let written = written.with_progressive(progressive).with_labels(labels);
        Ok(Some(written.in_room(room)))
    }
}

fn manifest(
    options: &ConvertOptions,
    source: &Source,
    plan: &Plan,
    done: &BTreeMap<String, ShardLine>,
    notes: &mut Vec<String>,
) -> Result<Manifest> {
    let format = options.format.shard_format();
    let mut entries: Vec<Vec<_>> = source.splits.iter().map(|_| Vec::new()).collect();
    for shard in &plan.shards {
        if let Some(line) = done.get(&shard.name) {
            entries[shard.split].push(shard_entry(line));
        }
    }
    let splits = source.splits.iter().zip(entries);
    let splits = splits.map(|(split, shards)| SplitEntry::new(&split.name, shards));
    let mut manifest = Manifest::new(format, source.facts.label_base, splits.collect());
    identify_samples(&mut manifest, done);
    // A run goes on with the same epoch, though records have other sizes now.
    manifest.order = Some(source.facts.order.clone());
    manifest.classes.clone_from(&source.facts.classes);
    manifest.record_features = source.facts.record_features.clone();
    if let Some((schema, dir)) = &source.facts.schema {
        let labels = done.values().filter_map(|line| line.labels);
        let labels = labels.reduce(|a, b| (a.0.min(b.0), a.1.max(b.1)));
        if let Some((classes, what)) = class_names(dir, schema, labels)? {
            manifest.classes = classes;
            notes.push(what);
        }
        notes.push(schema.in_words());
    }
    manifest.features.clone_from(&source.facts.features);
    manifest.pack.clone_from(&source.facts.pack);
    for old in [
        "format",
        "codec",
        "index_text",
        "blake3",
        "plan",
        CONVERSION_KEY,
    ] {
        manifest.pack.remove(old);
    }
    if options.sharding.is_some() {
        manifest.pack.remove("shards");
        manifest.pack.remove("shard_size");
    }
    let seek_points: SeekPointCount = done.values().map(|line| line.seek_points).sum();
    seek_points.record(&mut manifest);
    let progressive: ProgressiveCount = done.values().map(|line| line.progressive).sum();
    match options.progressive {
        ProgressiveChange::Keep => {}
        ProgressiveChange::Baseline => progressive.record(&mut manifest),
        ProgressiveChange::Original => ProgressiveCount::remove(&mut manifest),
    }
    for (name, value) in options.arguments() {
        manifest.pack.insert(name, value.into());
    }
    for (name, value) in &source.facts.identity {
        manifest.pack.insert(name.clone(), value.as_str().into());
    }
    let digest = plan.digest.as_str();
    manifest.pack.insert(CONVERSION_KEY.into(), digest.into());
    repair::record(source, done, &mut manifest);
    Ok(manifest)
}
