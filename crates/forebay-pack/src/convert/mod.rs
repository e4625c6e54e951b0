//! From records to records: another format, other shard sizes, seek points made or removed. Records keep their order, their
//! keys, their labels and all other features.
//!
//! A conversion runs as a pack does: it is planned whole, shards are written in parallel, each is in a journal when it is on
//! disk, an interrupted run goes on, and the manifest comes last, after every file was read back. What is converted is a
//! dataset, TFRecord files of another tool or, in a repair, what is whole of a damaged dataset.

mod batches;
mod damaged;
mod mapped;
mod options;
mod plan;
mod record;
mod repair;
mod run;
mod shard;
mod sink;
mod source;

pub use options::{
    ConvertOptions, ConvertSource, ForeignFiles, ImageChange, OutputFormat, ProgressiveChange,
    SeekPointChange,
};
pub use repair::{RepairOptions, RepairSummary, repair};

use crate::bad_count::BadCount;
use crate::error::{Error, Result};
use crate::observer::{Cancel, Observer, ShardDone, Stage};
use crate::options::{DatasetFormat, IMAGES_KEY, ImageForm, PackOptions, seek_points_named};
use crate::prepare::refuse_nesting;
use crate::publish::account::{self, FindingCounts};
use crate::publish::destination::{
    BeginState, Destination, Header, INDEX_DIR, Publication, Request, ShardLine, split_dir, telling,
};
use crate::publish::resume;
use crate::publish::upload;
use crate::publish::{
    FAST_PROGRESSIVE_KEY, changed_options, identify_samples, other_dataset, shard_entry,
    write_report,
};
use crate::report::{FastCount, ProgressiveCount, SeekPointCount, SplitSummary, Summary, Uploaded};
use forebay_formats::records::{Conversion, ForeignSchema, RecordSink, class_names};
use forebay_formats::{Error as SourceError, Finding, FindingList, Reason};
use forebay_shard::example::{IMAGE_FAST, IMAGE_PROGRESSIVE};
use forebay_shard::manifest::{Account, FILE_NAME, Manifest, SplitEntry};
use forebay_store::clean_stale;
use plan::Plan;
use record::Changes;
use run::Run;
use shard::Bad;
use source::Source;
use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};
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
    /// The dataset's fingerprint.
    pub fingerprint: String,
    /// The splits in the order of the manifest.
    pub splits: Vec<SplitSummary>,
    /// Seek points in all records.
    pub seek_points: SeekPointCount,
    /// Outcome of progressive JPEGs that were to become baseline ones.
    pub progressive: ProgressiveCount,
    /// Fast images in all records.
    pub fast: FastCount,
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
    /// The name of the file that makes the dataset whole, below the root.
    pub manifest: &'static str,
    /// The account of the records; `None` if the manifest has none.
    pub account: Option<Account>,
    /// The names of the classes in the order of their labels.
    pub classes: Vec<String>,
    /// Decisions that a user may want otherwise.
    pub warnings: Vec<String>,
    /// The first records that were left out, up to ten.
    pub examples: Vec<Finding>,
    /// Files beside those of an index that it does not name.
    pub unread_files: u64,
    /// Records that have another key, since the format cannot hold theirs.
    pub changed_keys: u64,
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
    let source = Source::open(options)?;
    convert_source(options, source, observer, cancel)
}

/// Converts what is open.
fn convert_source(
    options: &ConvertOptions,
    mut source: Source,
    observer: &dyn Observer,
    cancel: &Cancel,
) -> Result<ConvertSummary> {
    let begin = Instant::now();
    let changes = changes(options, &source)?;
    forget_restored(&changes, &mut source);
    let source = &source;
    let of_shards = options.of_shards();
    let shown = upload::shown(&options.dst);
    let arguments = options.arguments();
    let sink = sink::open(options, source, changes)?;
    let mapping = mapped::Mapping::of(options, source)?;
    let file_name = |split: &str, number, count| match (&sink, options.format) {
        (Some(sink), _) => sink.file_name(split, number, count),
        (None, _) => {
            let extension = options.format.shard_format().extension();
            format!("{split}-{number:05}-of-{count:05}{extension}")
        }
    };
    let plan = Plan::make(source, &file_name, options.sharding, &arguments)?;
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
        fast: FastCount::default(),
        source_bytes: source.bytes(),
        resumed_shards: 0,
        already_complete: false,
        uploaded: None,
        notes: Vec::new(),
        manifest: match sink {
            Some(_) => Conversion::FILE_NAME,
            None => FILE_NAME,
        },
        account: None,
        classes: Vec::new(),
        warnings: source.facts.warnings.clone(),
        examples: Vec::new(),
        unread_files: 0,
        changed_keys: 0,
        time: Duration::ZERO,
        repaired: repair::Counts::default(),
    };
    let conversion = Running {
        options,
        changes,
        of_shards: &of_shards,
        sink: sink.as_deref(),
        mapping: mapping.as_ref(),
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

/// Decides the changes of the records of a source.
fn changes<'a>(options: &'a ConvertOptions, source: &Source) -> Result<Changes<'a>> {
    let form = options.image_form().map_err(Error::Options)?;
    let pack = &source.facts.pack;
    let had_points = pack.get("seek_points").and_then(|name| name.as_str());
    let of_progressive = pack.get(FAST_PROGRESSIVE_KEY).and_then(|n| n.as_u64());
    Ok(Changes {
        seek_points: options.seek_points,
        progressive: options.progressive,
        images: form.map_or(ImageChange::Keep, ImageChange::To),
        restored_seek_points: had_points.and_then(seek_points_named),
        restores_progressive: of_progressive.is_some_and(|count| count > 0),
        dropped: &options.drop_features,
        examines_images: !source.facts.is_own,
    })
}

/// Leaves out of what is said of the records which features they lose with their fast images.
fn forget_restored(changes: &Changes<'_>, source: &mut Source) {
    if changes.images != ImageChange::To(ImageForm::Jpeg) {
        return;
    }
    let facts = &mut source.facts;
    let is_lost = |name: &str| {
        name == IMAGE_FAST || name == IMAGE_PROGRESSIVE && changes.restores_progressive
    };
    facts.features.retain(|feature| !is_lost(&feature.name));
}

/// A conversion that is planned.
struct Running<'a> {
    options: &'a ConvertOptions,
    changes: Changes<'a>,
    of_shards: &'a PackOptions,
    /// How files of another tool's format are written.
    sink: Option<&'a dyn RecordSink>,
    /// The place of the records, if they stay there.
    mapping: Option<&'a mapped::Mapping>,
    source: &'a Source,
    plan: &'a Plan,
    header: &'a Header,
    /// The destination, for messages.
    shown: &'a Path,
    observer: &'a dyn Observer,
    cancel: &'a Cancel,
}

impl Running<'_> {
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
            BeginState::Complete(manifest) => {
                summary.already_complete = true;
                return Ok((*manifest, summary));
            }
            BeginState::Lines {
                lines,
                is_continued,
            } => (lines, is_continued),
        };
        let is_staged = self.options.upload.are_for(&self.options.dst);
        // Mapped shards take a small part of their records.
        let is_copied = self.mapping.is_none();
        if self.options.check_space && is_copied && !is_staged && !is_continued {
            check_space(self.shown, self.plan, self.of_shards.images)?;
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
        if !self.source.is_damaged() {
            summary.check_written(self.source, self.plan, &done)?;
        }
        let report = self.write_report(destination, &done)?;
        let notes = &mut summary.notes;
        let mut manifest = manifest(self, &done, notes)?;
        let (name, bytes, indexes) = match self.sink {
            None => {
                manifest.account = Some(self.account(&manifest, &done)?);
                let json = manifest.to_json()?.into_bytes();
                manifest = Manifest::parse(&self.shown.join(FILE_NAME), &json)?;
                (FILE_NAME, json, Vec::new())
            }
            Some(sink) => {
                manifest.account = Some(self.account(&manifest, &done)?);
                let conversion = Conversion::new(self.options.format.name(), &manifest);
                manifest = conversion.to_manifest();
                let name = Conversion::FILE_NAME;
                let json = conversion.to_json();
                let json =
                    json.map_err(|error| Error::io(self.shown.join(name), "encode", error))?;
                (name, json, sink::indexes(sink, &manifest, &done))
            }
        };
        let dataset = Publication {
            manifest: &bytes,
            name,
            indexes: &indexes,
            report: report.as_deref(),
            shards: &done,
        };
        destination.publish(&dataset, self.observer, self.cancel)?;
        summary.uploaded = destination.uploaded();
        summary.count_findings(&self.source.facts.findings, done.values());
        Ok((manifest, summary))
    }

    /// Writes the report, if there is anything to report, and gives its place.
    fn write_report(
        &self,
        destination: &dyn Destination,
        done: &BTreeMap<String, ShardLine>,
    ) -> Result<Option<PathBuf>> {
        let dir = destination.dir();
        if self.source.is_damaged() {
            return repair::write_report(dir, self.source, done.values());
        }
        let lines: Vec<&ShardLine> = done.values().collect();
        let mut of_source = FindingList::default();
        for finding in &self.source.facts.findings {
            of_source.push(finding);
        }
        let report = dir.report();
        if self.source.facts.findings.is_empty() && lines.iter().all(|l| l.findings.is_empty()) {
            dir.remove(&report)?;
            return Ok(None);
        }
        write_report(dir, &of_source, &lines)?;
        Ok(Some(report))
    }

    /// Returns the account of the records, which has to add up.
    fn account(&self, manifest: &Manifest, done: &BTreeMap<String, ShardLine>) -> Result<Account> {
        let of_source = &self.source.facts.findings;
        let found = done
            .values()
            .flat_map(|line| &line.findings)
            .chain(of_source);
        let counts = FindingCounts::of(found);
        let before = FindingCounts::of(of_source.iter());
        // What the source left out by itself is not among its records.
        let read = self.source.len() + before.passed_over();
        let mut account =
            account::account("records", read, counts, manifest, |name| done.get(name));
        if self.source.is_damaged() {
            // Without its manifest and indexes, only what is whole of a damaged shard can be counted.
            account.read = read.max(account.packed_samples() + account.left_out_count());
            let lost = read.saturating_sub(account.packed_samples() + account.left_out_count());
            if lost > 0 {
                account.left_out.insert("lost to damage".to_owned(), lost);
                account.problems.insert("lost to damage".to_owned(), lost);
            }
        }
        account::add_columns(&mut account, &self.source.facts);
        account.unused = self.options.drop_features.iter().cloned().collect();
        account::check(&account, self.shown)?;
        Ok(account)
    }

    fn refuse_other(&self, manifest: &Manifest) -> Result<()> {
        let digest = manifest.pack.get(CONVERSION_KEY).and_then(|d| d.as_str());
        if digest == Some(&self.plan.digest) {
            return Ok(());
        }
        // Options that are not given now may be those of the source, whose records it lists too.
        let changed = match digest {
            Some(_) => changed_options(manifest, &self.options.arguments(), &[]),
            None => Vec::new(),
        };
        Err(other_dataset(self.shown, &changed))
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
        if self.options.format == DatasetFormat::TfRecord.into() {
            destination.dir().create_dir(INDEX_DIR)?;
        }
        let dirs = self
            .plan
            .shards
            .iter()
            .filter_map(|shard| split_dir(&shard.name));
        for (dir, _) in dirs.collect::<BTreeMap<_, _>>() {
            destination.dir().create_dir(dir)?;
            clean_stale(&destination.dir().path(dir))?;
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
        let bad = BadCount::new(self.options.max_bad, self.source.len());
        let earlier = done.values().flat_map(|line| &line.findings);
        for finding in self.source.facts.findings.iter().chain(earlier) {
            if finding.action.leaves_out() {
                bad.add(1, finding)?;
            }
        }
        let run = Run {
            options: self.of_shards,
            changes: self.changes,
            bad: Bad {
                policy: &self.options.on_bad,
                count: &bad,
                durability: self.options.durability,
            },
            has_unique_keys: !self.source.facts.is_own && !self.source.is_damaged(),
            sink: self.sink,
            mapping: self.mapping,
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

impl ConvertSummary {
    /// Returns how many records were left out as bad.
    pub fn skipped(&self) -> u64 {
        self.account.as_ref().map_or(0, Account::left_out_count)
    }

    /// Counts what the report lists, and notes what the source names and lacks.
    fn count_findings<'a>(
        &mut self,
        of_source: &[Finding],
        lines: impl Iterator<Item = &'a ShardLine>,
    ) {
        let all = lines.flat_map(|line| &line.findings).chain(of_source);
        let mut scaled = 0u64;
        for finding in all {
            self.unread_files += u64::from(finding.reason == Reason::NotIndexed);
            if finding.action.leaves_out() && self.examples.len() < Summary::EXAMPLES {
                self.examples.push(finding.clone());
            }
            self.changed_keys += u64::from(finding.reason == Reason::KeyChanged);
            scaled += u64::from(finding.reason == Reason::ScaledBoxes);
        }
        if scaled > 0 {
            self.notes.push(format!(
                "annotations of another size than their image, scaled: {scaled}"
            ));
        }
        for reason in [
            Reason::NotThere,
            Reason::NotIndexed,
            Reason::OtherForm,
            Reason::BehindEnd,
        ] {
            let mut found = of_source.iter().filter(|f| f.reason == reason);
            if let Some(first) = found.next() {
                self.notes.push(match found.count() {
                    0 => first.to_string(),
                    more => format!("{first}, and {more} more"),
                });
            }
        }
    }

    /// Checks that records of each split could be read.
    fn check_written(
        &self,
        source: &Source,
        plan: &Plan,
        done: &BTreeMap<String, ShardLine>,
    ) -> Result<()> {
        let mut written = vec![0; source.splits.len()];
        for shard in &plan.shards {
            written[shard.split] += done.get(&shard.name).map_or(0, |line| line.records);
        }
        let mut splits = source.splits.iter().zip(written);
        match splits.find(|(split, written)| split.len() > 0 && *written == 0) {
            None => Ok(()),
            Some((split, _)) => {
                let lines = done.values().flat_map(|line| &line.findings);
                let first = lines.map(Finding::to_string).next().unwrap_or_default();
                let (name, count) = (&split.name, split.len());
                let what = format!(
                    "none of the {count} records of the split {name:?} can be read; the first problem is: {first}"
                );
                let path = split
                    .files
                    .first()
                    .map_or(Path::new(""), |file| file.path());
                Err(SourceError::source(path, what).into())
            }
        }
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
    summary.account.clone_from(&manifest.account);
    let classes = manifest.classes.iter();
    summary.classes = classes.map(|class| class.name.clone()).collect();
    summary.seek_points = SeekPointCount::of(manifest);
    summary.progressive = ProgressiveCount::of(manifest);
    summary.fast = FastCount::of(manifest);
    summary.repaired = repair::Counts::of(manifest);
    summary.time = begin.elapsed();
    summary
}

fn check_space(root: &Path, plan: &Plan, images: ImageForm) -> Result<()> {
    let bytes: u64 = plan.shards.iter().map(|shard| shard.bytes).sum();
    let bytes = images.most_bytes(bytes);
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

fn manifest(
    conversion: &Running<'_>,
    done: &BTreeMap<String, ShardLine>,
    notes: &mut Vec<String>,
) -> Result<Manifest> {
    let Running {
        options,
        changes,
        source,
        plan,
        ..
    } = conversion;
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
    manifest.source = conversion.mapping.map(|mapping| mapping.source.clone());
    // A run goes on with the same epoch, though records have other sizes now.
    manifest.order = Some(source.facts.order.clone());
    manifest.classes.clone_from(&source.facts.classes);
    manifest.record_features = source.facts.record_features.clone();
    if let Some((schema, dir)) = &source.facts.foreign
        && source.facts.classes.is_empty()
        && source.facts.label.is_some()
    {
        let schema = ForeignSchema {
            features: source.facts.record_features.clone(),
            label_base: source.facts.label_base,
            ..schema.clone()
        };
        let labels = done.values().filter_map(|line| line.labels);
        let labels = labels.reduce(|a, b| (a.0.min(b.0), a.1.max(b.1)));
        if let Some((classes, what)) = class_names(dir, &schema, labels)? {
            manifest.classes = classes;
            notes.push(what);
        }
    }
    manifest.features.clone_from(&source.facts.features);
    manifest.columns = source.facts.schema.clone();
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
    if changes.images != ImageChange::Keep {
        manifest.pack.remove(IMAGES_KEY);
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
    let fast: FastCount = done.values().map(|line| line.fast).sum();
    fast.record(&mut manifest);
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
