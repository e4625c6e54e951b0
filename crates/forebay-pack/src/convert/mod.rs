//! From shards to shards: another format, other shard sizes, seek points made or removed. Records keep their order, their
//! keys, their labels and all other features.
//!
//! A conversion runs as a pack does: it is planned whole, shards are written in parallel, each is in a journal when it is on
//! disk, an interrupted run goes on, and the manifest comes last, after every file was read back. What is converted is a
//! data set, or TFRecord files that anybody wrote.

mod options;
mod plan;
mod record;
mod source;

pub use options::{ConvertOptions, ProgressiveChange, SeekPointChange};
pub use source::{ConvertSource, ForeignFiles};

use crate::destination::{Destination, Header, INDEX_DIR, Journal, ShardLine, State};
use crate::error::{Error, Result};
use crate::observer::{Cancel, Observer, ShardDone, Stage};
use crate::options::{Format, PackOptions};
use crate::plan::PlannedShard;
use crate::prepare::refuse_nesting;
use crate::publish::shard_entry;
use crate::report::{ProgressiveCount, SeekPointCount, SplitSummary};
use crate::resume;
use crate::upload::{self, Upload, Uploaded};
use crate::write::{WrittenShard, open_shard, write_file};
use forebay_shard::manifest::{FILE_NAME, Manifest, SplitEntry};
use forebay_shard::{RecordMeta, ShardFormat};
use plan::Plan;
use source::Source;
use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::mpsc::sync_channel;
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

/// Under this name the manifest keeps the digest of a conversion, so that the same command finds its work done.
const CONVERSION_KEY: &str = "conversion";
/// Room beside the shards: indexes, journal, manifest.
const SPACE_BESIDE_BYTES: u64 = 16 << 20;
/// Progress is told and a stop is looked for after this many bytes or records.
const STEP_BYTES: u64 = 4 << 20;
const STEP_RECORDS: u64 = 64;

/// What a conversion did.
#[derive(Debug, Clone)]
#[non_exhaustive]
pub struct ConvertSummary {
    /// Where the data set is.
    pub root: PathBuf,
    /// The data set's fingerprint.
    pub fingerprint: String,
    /// The splits in the order of the manifest.
    pub splits: Vec<SplitSummary>,
    /// Seek points in all records.
    pub seek_points: SeekPointCount,
    /// What became of progressive JPEGs that were to become baseline ones.
    pub progressive: ProgressiveCount,
    /// Bytes of the source's shards.
    pub source_bytes: u64,
    /// Shards that an earlier, interrupted run had finished.
    pub resumed_shards: u64,
    /// It was all there already: nothing was done.
    pub already_complete: bool,
    /// What this run uploaded, where the destination is written through a staging area.
    pub uploaded: Option<Uploaded>,
    /// Time that it took.
    pub time: Duration,
}

/// Converts. Of the observer [`stage`](Observer::stage), [`advanced`](Observer::advanced) (in records and bytes of the
/// source) and [`shard_done`](Observer::shard_done) are told.
///
/// # Errors
/// See [`Error`]. A record that is damaged stops the conversion with its shard, number and place.
pub fn convert(
    options: &ConvertOptions,
    observer: &dyn Observer,
    cancel: &Cancel,
) -> Result<ConvertSummary> {
    let begin = Instant::now();
    let of_shards = options.of_shards();
    of_shards.validate().map_err(Error::Options)?;
    let shown = upload::shown(&options.dst);
    for dir in upload::written(&options.dst, &options.upload)? {
        refuse_nesting(options.src.root(), &dir)?;
    }
    observer.stage(Stage::Census);
    let source = Source::open(&options.src, &options.read)?;
    let arguments = options.arguments();
    let plan = Plan::make(&source, &options.format, options.sharding, &arguments)?;
    let upload = if options.upload.are_for(&options.dst) {
        let largest = plan
            .shards
            .iter()
            .map(|shard| upload::room_of_planned(shard, &of_shards))
            .max();
        let opened = Upload::open(&options.dst, &options.upload, largest.unwrap_or(0), 0)?;
        Some(Arc::new(opened))
    } else {
        None
    };
    let destination = match &upload {
        Some(upload) => {
            Destination::open(&upload.work_dir(), options.durability)?.uploading(Arc::clone(upload))
        }
        None => Destination::open(&shown, options.durability)?,
    };
    let mut identified = arguments;
    identified.extend(source.identity.clone());
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
        time: Duration::ZERO,
    };
    let conversion = Conversion {
        options,
        of_shards: &of_shards,
        source: &source,
        plan: &plan,
        header: &header,
        shown: &shown,
        observer,
        cancel,
    };
    let (manifest, summary) = match &upload {
        None => conversion.run(&destination, summary)?,
        Some(upload) => upload.telling(observer, || conversion.run(&destination, summary))?,
    };
    drop(destination);
    if let Some(upload) = upload.and_then(Arc::into_inner) {
        upload.finish(&plan.digest)?;
    }
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
        destination: &Destination,
        mut summary: ConvertSummary,
    ) -> Result<(Manifest, ConvertSummary)> {
        let upload = destination.upload();
        if let Some(upload) = upload {
            if !self.options.overwrite
                && let Some(manifest) = upload.manifest()?
            {
                self.refuse_other(&manifest)?;
                summary.already_complete = true;
                return Ok((manifest, summary));
            }
            // A manifest that was written here and not published yet is written again.
            destination.remove(&destination.path(FILE_NAME))?;
        }
        let mut state = destination.state()?;
        if self.options.overwrite {
            destination.clear(state)?;
            state = State::Empty;
        }
        let is_continued = matches!(state, State::Unfinished(_));
        let lines = match state {
            State::Complete(manifest) => {
                self.refuse_other(&manifest)?;
                destination.finish()?;
                summary.already_complete = true;
                return Ok((*manifest, summary));
            }
            State::Unfinished(begun) => {
                let differences = begun.difference(self.header).into_words();
                if !differences.is_empty() {
                    return Err(Error::DifferentPack {
                        path: self.shown.to_path_buf(),
                        differences,
                    });
                }
                begun.into_lines()
            }
            State::Empty => {
                if self.options.check_space && upload.is_none() {
                    check_space(self.shown, self.plan)?;
                }
                Vec::new()
            }
        };
        if let Some(upload) = upload {
            upload.claim(
                &self.header.identity(),
                is_continued,
                self.options.overwrite,
            )?;
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
        if let Some(upload) = upload {
            upload.resume(done.values())?;
        }
        summary.resumed_shards = done.len() as u64;
        let written = self.write(destination, &done)?;
        done.extend(written.iter().map(|line| (line.name.clone(), line.clone())));
        if done.len() < self.plan.shards.len() {
            return Err(Error::Interrupted {
                finished: done.len() as u64,
                total: self.plan.shards.len() as u64,
            });
        }
        // What this run wrote is read back before anybody is told of it. What is uploaded is looked at where it is.
        self.observer.stage(Stage::Checking);
        let count = written.len();
        if resume::check(destination, &names, written, jobs, self.cancel)?.len() != count {
            let what = "a shard that was just written reads back as something else: the storage cannot be trusted";
            return Err(Error::destination(self.shown, what));
        }
        let json = manifest(self.options, self.source, self.plan, &done)?.to_json()?;
        match upload {
            Some(upload) => {
                upload.publish(json.as_bytes(), None, &done, self.observer, self.cancel)?;
                summary.uploaded = Some(upload.uploaded());
            }
            None => {
                self.observer.stage(Stage::Publishing);
                let path = destination.path(FILE_NAME);
                write_file(&path, json.as_bytes(), self.options.durability)?;
                destination.finish()?;
            }
        }
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
        destination: &Destination,
        done: &BTreeMap<String, ShardLine>,
    ) -> Result<Vec<ShardLine>> {
        let journal = destination.begin(self.header, done.values())?;
        if self.options.format == Format::TfRecord {
            destination.create_dir(INDEX_DIR)?;
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
    destination: &'a Destination,
    observer: &'a dyn Observer,
    cancel: &'a Cancel,
}

impl Run<'_> {
    /// Writes shards in parallel; this thread makes them durable in the order in which they come.
    fn write_all(&self, shards: &[&PlannedShard], mut journal: Journal) -> Result<Vec<ShardLine>> {
        let jobs = self.options.decided_jobs().min(shards.len());
        let jobs = self
            .destination
            .upload()
            .map_or(jobs, |upload| upload.shards_at_once(jobs));
        let (next, stop) = (AtomicUsize::new(0), AtomicBool::new(false));
        let failure: Mutex<Option<Error>> = Mutex::new(None);
        let fail = |error: Error| {
            stop.store(true, Ordering::Relaxed);
            let mut failure = failure.lock().unwrap_or_else(|e| e.into_inner());
            failure.get_or_insert(error);
        };
        let stopped = || stop.load(Ordering::Relaxed) || self.cancel.is_cancelled();
        let (sender, receiver) = sync_channel::<WrittenShard>(jobs.max(1));
        let mut lines = Vec::new();
        std::thread::scope(|scope| {
            let (next, fail, stopped) = (&next, &fail, &stopped);
            for _ in 0..jobs {
                let sender = sender.clone();
                scope.spawn(move || {
                    let mut converter = record::Converter::new(self.changes);
                    while let Some(shard) = shards.get(next.fetch_add(1, Ordering::Relaxed)) {
                        if stopped() {
                            return;
                        }
                        match self.write(shard, &mut converter, stopped) {
                            // The finisher hangs up only after an error, which it has reported.
                            Ok(Some(written)) => {
                                if sender.send(written).is_err() {
                                    return;
                                }
                            }
                            Ok(None) => return,
                            Err(error) => return fail(error),
                        }
                    }
                });
            }
            drop(sender);
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
        });
        match failure.into_inner().unwrap_or_else(|e| e.into_inner()) {
            Some(error) => Err(error),
            None => Ok(lines),
        }
    }

    /// Writes the records of a shard. None if it was stopped.
    fn write(
        &self,
        planned: &PlannedShard,
        converter: &mut record::Converter,
        stopped: &dyn Fn() -> bool,
    ) -> Result<Option<WrittenShard>> {
        let split = &self.source.splits[planned.split];
        let path = self.destination.path(&planned.name);
        let bytes = upload::room_of_planned(planned, self.options);
        let Some(room) = self.destination.reserve(bytes, stopped)? else {
            return Ok(None);
        };
        let mut writer = open_shard(&path, self.options)?;
        let mut seek_points = SeekPointCount::default();
        let mut progressive = ProgressiveCount::default();
        let (mut source_bytes, mut records, mut bytes) = (0, 0, 0);
        for (number, range) in split.pieces(planned.positions.clone()) {
            let mut piece = split.read(number, range)?;
            while let Some(record) = piece.next()? {
                let converted = converter
                    .convert(record.bytes)
                    .map_err(|what| piece_error(&split.shards[number], record.number, what))?;
                seek_points.add(converted.seek_point_bytes);
                progressive.add(converted.is_baseline_now);
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
        Ok(Some(written.with_progressive(progressive).in_room(room)))
    }
}

fn piece_error(shard: &forebay_shard::Shard, record: u64, what: String) -> Error {
    Error::Export {
        shard: shard.path().to_path_buf(),
        record,
        what,
    }
}

fn manifest(
    options: &ConvertOptions,
    source: &Source,
    plan: &Plan,
    done: &BTreeMap<String, ShardLine>,
) -> Result<Manifest> {
    let format = match options.format {
        Format::TfRecord => ShardFormat::TfRecord,
        Format::Indexed | Format::IndexedZstd(_) => ShardFormat::Indexed,
    };
    let mut entries: Vec<Vec<_>> = source.splits.iter().map(|_| Vec::new()).collect();
    for shard in &plan.shards {
        if let Some(line) = done.get(&shard.name) {
            entries[shard.split].push(shard_entry(line));
        }
    }
    let splits = source.splits.iter().zip(entries);
    let splits = splits.map(|(split, shards)| SplitEntry::new(&split.name, shards));
    let mut manifest = Manifest::new(format, source.label_base, splits.collect());
    manifest.classes.clone_from(&source.classes);
    manifest.features.clone_from(&source.features);
    manifest.pack.clone_from(&source.pack);
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
    for (name, value) in &source.identity {
        manifest.pack.insert(name.clone(), value.as_str().into());
    }
    let digest = plan.digest.as_str();
    manifest.pack.insert(CONVERSION_KEY.into(), digest.into());
    Ok(manifest)
}
