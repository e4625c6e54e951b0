//! A conversion: what it changes, its plan, and its run from the claim of the destination to publication.

use super::losses;
use super::mapped::Mapping;
use super::options::{ConvertOptions, ImageChange};
use super::plan::Plan;
use super::record::Changes;
use super::run::Run;
use super::shard::Bad;
use super::sink;
use super::source::Source;
use super::summary::ConvertSummary;
use crate::bad_count::BadCount;
use crate::error::{Error, Result};
use crate::observer::{Cancel, Observer, Stage};
use crate::options::{DatasetFormat, ImageForm, PackOptions, seek_points_named};
use crate::plan::PlannedShard;
use crate::prepare::refuse_nesting;
use crate::publish::destination::{
    BeginState, Destination, Header, INDEX_DIR, Publication, Request, ShardLine, split_dir, telling,
};
use crate::publish::{FAST_PROGRESSIVE_KEY, changed_options, other_dataset, write_report};
use crate::publish::{resume, upload};
use forebay_formats::FindingList;
use forebay_formats::records::{Conversion, RecordSink};
use forebay_shard::example::{IMAGE_FAST, IMAGE_PROGRESSIVE};
use forebay_shard::manifest::{FILE_NAME, Manifest};
use forebay_store::clean_stale;
use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::time::Instant;

/// Under this name the manifest keeps the digest of a conversion, so that the same command finds its work done.
pub(super) const CONVERSION_KEY: &str = "conversion";
/// Room beside the shards: indexes, journal, manifest.
const SPACE_BESIDE_BYTES: u64 = 16 << 20;

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
    opened(options, observer, cancel, |running| running.run_whole(None))
}

/// Converts what is open.
pub(super) fn convert_source(
    options: &ConvertOptions,
    source: Source,
    observer: &dyn Observer,
    cancel: &Cancel,
) -> Result<ConvertSummary> {
    planned(options, source, observer, cancel, |running| {
        running.run_whole(None)
    })
}

/// Opens the source, and does `work` with the planned conversion.
pub(super) fn opened<T>(
    options: &ConvertOptions,
    observer: &dyn Observer,
    cancel: &Cancel,
    work: impl FnOnce(&Running<'_>) -> Result<T>,
) -> Result<T> {
    options.of_shards().validate().map_err(Error::Options)?;
    for dir in upload::written(&options.dst, &options.upload)? {
        refuse_nesting(options.src.root(), &dir)?;
    }
    observer.stage(Stage::Census);
    let source = Source::open(options)?;
    planned(options, source, observer, cancel, work)
}

/// Plans the conversion of an open source, and does `work` with it.
fn planned<T>(
    options: &ConvertOptions,
    mut source: Source,
    observer: &dyn Observer,
    cancel: &Cancel,
    work: impl FnOnce(&Running<'_>) -> Result<T>,
) -> Result<T> {
    let begin = Instant::now();
    let changes = changes(options, &source)?;
    forget_restored(&changes, &mut source);
    let source = &source;
    let of_shards = options.of_shards();
    let shown = upload::shown(&options.dst);
    let arguments = options.arguments();
    let sink = sink::open(options, source, changes)?;
    let mapping = Mapping::of(options, source)?;
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
    let mut identified = arguments;
    identified.extend(source.facts.identity.clone());
    let header = Header::of_conversion(&plan.digest, identified, plan.names());
    let manifest = match sink {
        Some(_) => Conversion::FILE_NAME,
        None => FILE_NAME,
    };
    work(&Running {
        options,
        changes,
        of_shards: &of_shards,
        sink: sink.as_deref(),
        mapping: mapping.as_ref(),
        source,
        plan: &plan,
        header: &header,
        shown: &shown,
        manifest,
        shard_bytes: largest.unwrap_or(0),
        begin,
        observer,
        cancel,
    })
}

/// Decides the changes of the records of a source.
fn changes<'a>(options: &'a ConvertOptions, source: &Source) -> Result<Changes<'a>> {
    let form = options.image_form()?;
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
pub(super) struct Running<'a> {
    pub(super) options: &'a ConvertOptions,
    pub(super) changes: Changes<'a>,
    pub(super) of_shards: &'a PackOptions,
    /// How files of another tool's format are written.
    sink: Option<&'a dyn RecordSink>,
    /// The place of the records, if they stay there.
    pub(super) mapping: Option<&'a Mapping>,
    pub(super) source: &'a Source,
    pub(super) plan: &'a Plan,
    pub(super) header: &'a Header,
    /// The destination, for messages.
    pub(super) shown: &'a Path,
    /// The name of the manifest.
    manifest: &'static str,
    /// Space in the staging area for the largest shard, in bytes.
    pub(super) shard_bytes: u64,
    begin: Instant,
    observer: &'a dyn Observer,
    pub(super) cancel: &'a Cancel,
}

impl Running<'_> {
    pub(super) fn request<'b>(
        &'b self,
        refuse_other: &'b dyn Fn(&Manifest) -> Result<()>,
    ) -> Request<'b> {
        Request {
            header: self.header,
            overwrite: self.options.overwrite,
            restarts: false,
            shown: self.shown,
            refuse_other,
        }
    }

    /// Writes what is not done yet, or joins the parts, and publishes the dataset.
    pub(super) fn run_whole(&self, step: Option<upload::Step>) -> Result<ConvertSummary> {
        let (options, bytes) = (self.options, self.shard_bytes);
        let destination = match step {
            Some(step) => self.open_parts(step)?,
            None => upload::open(&options.dst, &options.upload, options.durability, bytes, 0)?,
        };
        let summary = ConvertSummary::new(self.shown, self.source, self.manifest);
        let (manifest, summary) = telling(&*destination, self.observer, || {
            self.run(&*destination, step.is_some(), summary)
        })?;
        destination.end(&self.plan.digest)?;
        let mut summary = summary.of_manifest(&manifest);
        summary.time = self.begin.elapsed();
        Ok(summary)
    }

    /// Returns the shards of earlier runs that are intact, by name.
    pub(super) fn check(
        &self,
        destination: &dyn Destination,
        shards: &[&PlannedShard],
        lines: Vec<ShardLine>,
    ) -> Result<BTreeMap<String, ShardLine>> {
        if lines.is_empty() {
            return Ok(BTreeMap::new());
        }
        self.observer.stage(Stage::Checking);
        let names = shards.iter().map(|shard| shard.name.as_str()).collect();
        let jobs = self.of_shards.decided_jobs();
        resume::check(destination, &names, lines, jobs, self.cancel)
    }

    /// Reads shards of this run back before they are published; uploaded ones are checked in the store.
    pub(super) fn read_back(
        &self,
        destination: &dyn Destination,
        shards: &[&PlannedShard],
        written: &[ShardLine],
    ) -> Result<()> {
        if self.check(destination, shards, written.to_vec())?.len() == written.len() {
            return Ok(());
        }
        let what = "a shard that was just written reads back as something else: the storage cannot be trusted";
        Err(Error::destination(self.shown, what))
    }

    /// Does what is not done yet. Gives the manifest that is published then.
    fn run(
        &self,
        destination: &dyn Destination,
        joins: bool,
        mut summary: ConvertSummary,
    ) -> Result<(Manifest, ConvertSummary)> {
        let begun = match joins {
            true => self.joined(destination)?,
            false => {
                let refuse_other = |manifest: &Manifest| self.refuse_other(manifest);
                destination.begin(&self.request(&refuse_other), self.observer)?
            }
        };
        let (lines, is_continued) = match begun {
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
        let shards: Vec<&PlannedShard> = self.plan.shards.iter().collect();
        let mut done = match joins {
            true => lines
                .into_iter()
                .map(|line| (line.name.clone(), line))
                .collect(),
            false => self.check(destination, &shards, lines)?,
        };
        destination.resume(&done)?;
        summary.resumed_shards = done.len() as u64;
        let written = match joins {
            true => Vec::new(),
            false => self.write(destination, &shards, &done)?,
        };
        done.extend(written.iter().map(|line| (line.name.clone(), line.clone())));
        if done.len() < self.plan.shards.len() {
            return Err(Error::Interrupted {
                finished: done.len() as u64,
                total: self.plan.shards.len() as u64,
            });
        }
        self.read_back(destination, &shards, &written)?;
        if !self.source.is_damaged() {
            summary.check_written(self.source, self.plan, &done)?;
        }
        let report = self.write_report(destination, &done)?;
        let notes = &mut summary.notes;
        let mut manifest = self.manifest(&done, notes)?;
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
            return losses::write_report(dir, self.source, done.values());
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

    pub(super) fn refuse_other(&self, manifest: &Manifest) -> Result<()> {
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

    /// Writes those of these shards that are not done.
    pub(super) fn write(
        &self,
        destination: &dyn Destination,
        shards: &[&PlannedShard],
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
        for line in shards.iter().filter_map(|shard| done.get(&shard.name)) {
            self.observer.advanced(line.records, line.image_bytes);
            self.observer.shard_done(&line.done(true));
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
        let missing = shards
            .iter()
            .filter(|shard| !done.contains_key(&shard.name));
        run.write_all(&missing.copied().collect::<Vec<_>>(), journal)
    }
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
