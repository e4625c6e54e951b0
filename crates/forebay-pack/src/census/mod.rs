//! The census lists every image file of the source with its size, before any byte is written.
//!
//! It walks and sorts the files, and stores them compactly (about six bytes plus the name per file, so a million files
//! take some 25 MB). The layout defines the classes. Whether a file with the name of an image is an image is
//! checked when its bytes are read for the shard, so that each file is read once.
//!
//! `prepare` takes the census: it collects each split (`split`) and joins files of labels to the images (`label_join`).
//! `record` stores the census with a plan that parts share, and checks it when a part reads it.

mod label_join;
mod record;
mod split;
#[cfg(test)]
mod store_tests;

use label_join::LabelJoin;
pub(crate) use record::{CensusRecord, Inputs, MAX_BYTES as RECORD_MAX_BYTES, inputs};
pub use split::SplitCensus;

use crate::error::{Error, Result};
use crate::options::{OnBad, PackOptions};
use forebay_formats::images::{
    ClassesFrom, Columns, ExtraFeatures, FileList, LabelFile, LabelTable, LayoutUnit, Source,
    SourceArchive, SourceLayout, SplitSource, Survey,
};
use forebay_formats::key_path::join;
use forebay_formats::option_names::CLASS_ORDER;
use forebay_formats::{
    ClassList, ClassName, Finding, FindingList, Progress, Reason, escape, is_list_path,
};
use forebay_store::{Cancel, Location};
use std::collections::{BTreeMap, BTreeSet};
use std::ffi::OsStr;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;

/// The census of the source.
#[derive(Debug)]
pub struct Census {
    src: PathBuf,
    layout: SourceLayout,
    splits: Vec<SplitCensus>,
    classes: ClassList,
    findings: FindingList,
    warnings: Vec<String>,
    archives: Vec<SourceArchive>,
    extra_features: Arc<ExtraFeatures>,
}

/// Class index of a file to which a list of classes assigns no class.
const UNLABELLED: u32 = u32::MAX;

impl Census {
    /// Walks the source. Directories are listed in parallel; the result does not depend on the number of threads.
    pub fn take(options: &PackOptions, progress: &dyn Progress, cancel: &Cancel) -> Result<Self> {
        let labels = match options.labels.as_deref() {
            Some(file) => Some(LabelTable::read(file, options.classes.is_some())?),
            None => None,
        };
        let source = open(options, progress, cancel)?;
        let labelled = labels.is_some();
        Self::of(source, (labels, labelled), options, progress, cancel)
    }

    /// Takes the census for a pack with a file of labels that is not available: lists all files that it may refer to.
    pub(crate) fn take_labelled(
        options: &PackOptions,
        progress: &dyn Progress,
        cancel: &Cancel,
    ) -> Result<Self> {
        let source = open(options, progress, cancel)?;
        Self::of(source, (None, true), options, progress, cancel)
    }

    /// Takes the census of an open source.
    fn of(
        mut source: Source,
        (labels, labelled): (Option<LabelTable>, bool),
        options: &PackOptions,
        progress: &dyn Progress,
        cancel: &Cancel,
    ) -> Result<Self> {
        let src = options.place();
        let from = match labelled {
            true => ClassesFrom::LabelTable(labels.as_ref()),
            false => ClassesFrom::Layout,
        };
        let mut survey = source.survey(from, options.classes.as_deref())?;
        source.identify(&survey.splits, cancel)?;
        let mut findings = early_findings(&source, &survey, labelled, progress);
        let mut warnings = source.warnings().to_vec();
        warnings.append(&mut survey.warnings);
        warnings.extend(numbers_as_text(&survey.classes, options));
        let files = Files {
            source: &source,
            survey: &survey,
            src: &src,
            options,
            progress,
            cancel,
        };
        let mut splits = match &labels {
            Some(labels) => files.labelled_splits(labels, &mut findings)?,
            None => files.splits(labelled, &mut findings)?,
        };
        note_label_files(&survey.label_files, &mut findings, &mut warnings);
        let (boxes, bad) = source.boxes(&survey, cancel)?;
        bad.iter().for_each(|finding| findings.push(finding));
        findings.forget(&lists_in(options));
        let forms = findings
            .iter()
            .filter(|found| found.reason == Reason::OtherForm);
        warnings.extend(forms.map(|found| found.to_string()));
        let extra_features = Arc::new(ExtraFeatures {
            boxes,
            columns: columns_of(labels, &survey.classes, options, &mut warnings)?,
        });
        for split in &mut splits {
            split.extra_features = Arc::clone(&extra_features);
        }
        let mut census = Self {
            src,
            layout: survey.layout,
            splits,
            classes: std::mem::take(&mut survey.classes),
            findings,
            warnings,
            archives: source.archives().to_vec(),
            extra_features,
        };
        if matches!(options.on_bad, OnBad::Quarantine(_)) {
            census.quarantine_left_out();
        }
        match census.files() {
            0 => Err(census.without_images(options.layout.is_none().then_some(survey))),
            _ => Ok(census),
        }
    }

    /// Returns the error for a source without images, which may be a dataset of another tool.
    fn without_images(self, survey: Option<Survey>) -> Error {
        if let Some(error) = survey.and_then(|survey| survey.into_foreign_tree(&self.src)) {
            return error.into();
        }
        let what = match self.findings.count() {
            0 => "there are no images in it".to_owned(),
            n => format!("there are no images in it, and {n} other files or directories"),
        };
        Error::source(self.src, what)
    }

    /// Marks the findings about images of unsupported formats as quarantined, because the pack copies these to the quarantine.
    fn quarantine_left_out(&mut self) {
        let mut paths = BTreeSet::new();
        for split in &self.splits {
            let keys = split.left_out().map(|entry| entry.key());
            paths.extend(keys.map(|key| forebay_formats::escape(&join(&split.dir, &key))));
        }
        self.findings.quarantine(&paths);
    }

    /// Returns the path of the source.
    pub fn src(&self) -> &Path {
        &self.src
    }

    /// Returns the layout of the source.
    pub fn layout(&self) -> SourceLayout {
        self.layout
    }

    /// Returns the splits in the order of their names.
    pub fn splits(&self) -> &[SplitCensus] {
        &self.splits
    }

    /// Returns the classes in the order of their labels.
    pub fn classes(&self) -> &ClassList {
        &self.classes
    }

    /// Returns the number of image files of all splits.
    pub fn files(&self) -> u64 {
        self.splits.iter().map(SplitCensus::len).sum()
    }

    /// Returns the total size of the image files, in bytes.
    pub fn bytes(&self) -> u64 {
        self.splits.iter().map(|s| s.bytes).sum()
    }

    /// Returns warnings for the user.
    pub fn warnings(&self) -> &[String] {
        &self.warnings
    }

    /// Returns findings about the files that are not part of the census, in a fixed order.
    pub fn findings(&self) -> impl Iterator<Item = Finding> + '_ {
        self.findings.iter()
    }

    pub(crate) fn finding_list(&self) -> &FindingList {
        &self.findings
    }

    /// Returns the archives of the source; empty for a directory.
    pub fn archives(&self) -> &[SourceArchive] {
        &self.archives
    }

    /// Returns the size in bytes of the images in compressed archives, which are decoded into a temporary file before packing.
    pub(crate) fn spool_bytes(&self) -> u64 {
        let chunks = self.splits.iter().flat_map(|split| &split.chunks);
        let compressed = |chunk: &&FileList| {
            let mut archives = chunk
                .archives()
                .map(|archive| &self.archives[usize::from(archive)]);
            archives.any(SourceArchive::is_compressed_stream)
        };
        chunks.filter(compressed).map(FileList::bytes).sum()
    }

    /// Returns the data of images beyond their bytes and classes.
    pub fn extra_features(&self) -> &ExtraFeatures {
        &self.extra_features
    }
}

/// Opens the source of a pack.
fn open(options: &PackOptions, progress: &dyn Progress, cancel: &Cancel) -> Result<Source> {
    let lists = [&options.labels, &options.classes];
    let is_remote = |path: &&PathBuf| Location::parse(path).is_ok_and(|at| at.is_remote());
    if options.src.is_remote()
        && let Some(path) = lists.into_iter().flatten().find(is_remote)
    {
        let what = "lists are read from local files: copy it here first";
        return Err(Error::source(path, what));
    }
    let source = options.source();
    Ok(Source::open(&source, progress, cancel)?)
}

/// Reports the findings of the source and its layout.
fn early_findings(
    source: &Source,
    survey: &Survey,
    labelled: bool,
    progress: &dyn Progress,
) -> FindingList {
    let mut findings = FindingList::default();
    for finding in source.findings().iter().chain(&survey.findings) {
        // Lists of classes were already used, and a file of labels includes all files in the directory of a split.
        let is_used = is_list_path(finding.path.as_bytes())
            || (labelled && finding.reason == Reason::Outside && is_in_split(finding, survey));
        if !is_used {
            progress.finding(finding);
            findings.push(finding);
        }
    }
    findings
}

/// Returns whether a finding is about a file in the directory of a split.
fn is_in_split(finding: &Finding, survey: &Survey) -> bool {
    let mut dirs = survey.splits.iter().map(|split| escape(&split.dir));
    dirs.any(|dir| {
        let below = finding.path.strip_prefix(&dir);
        dir.is_empty() || below.is_some_and(|below| below.starts_with('/'))
    })
}

/// Returns a warning if class names are numbers and sorted as text, unless an option sets the class order.
fn numbers_as_text(classes: &ClassList, options: &PackOptions) -> Option<String> {
    if options.class_order.is_some() {
        return None;
    }
    let (first, second) = classes.first_number_out_of_order()?;
    let shown = |class: &ClassName| {
        let index = classes.index_of(&class.name).unwrap_or(0);
        let label = u64::from(index) + u64::from(options.label_base);
        (escape(&class.name), label)
    };
    let ((first, label), (second, other)) = (shown(first), shown(second));
    Some(format!(
        "the names of classes are numbers, and are numbered in the order of text, as ImageFolder does: {first} has the label {label}, and {second} has {other}; {CLASS_ORDER} natural numbers them by their values, {CLASS_ORDER} text keeps this order"
    ))
}

/// Returns the paths of the given lists that lie in the source directory, escaped as in findings.
fn lists_in(options: &PackOptions) -> BTreeSet<String> {
    let root = options
        .src
        .local_path()
        .ok()
        .and_then(|src| src.canonicalize().ok());
    let lists = [&options.labels, &options.classes].into_iter().flatten();
    let inside = lists.filter_map(|list| {
        let real = list.canonicalize().ok()?;
        let below = real.strip_prefix(root.as_deref()?).ok()?;
        Some(escape(below.as_os_str().as_encoded_bytes()))
    });
    inside.collect()
}

/// Lists the files of a source whose layout is known.
struct Files<'a> {
    source: &'a Source,
    survey: &'a Survey,
    src: &'a Path,
    options: &'a PackOptions,
    progress: &'a dyn Progress,
    cancel: &'a Cancel,
}

impl Files<'_> {
    /// Returns the splits of the layout. With `labelled`, classes come from a file of labels that is not available.
    fn splits(&self, labelled: bool, findings: &mut FindingList) -> Result<Vec<SplitCensus>> {
        let mut splits = Vec::new();
        for source in &self.survey.splits {
            let mut split = SplitCensus::new(source.name.clone(), source.dir.clone());
            for chunk in self.chunks(source, findings)? {
                split.push(chunk);
            }
            if !labelled {
                let listed = self.survey.file_classes.as_ref();
                split.attach_listed_classes(&self.survey.classes, listed)?;
            }
            splits.push(split);
        }
        Ok(splits)
    }

    /// Divides the splits of the layout as a file of labels says.
    fn labelled_splits(
        &self,
        labels: &LabelTable,
        findings: &mut FindingList,
    ) -> Result<Vec<SplitCensus>> {
        let wanted = self.options.split.as_deref();
        let is_named = self.survey.layout.names_splits();
        let mut join = LabelJoin::new(labels, &self.survey.classes, self.options.label_base);
        let mut splits = Vec::new();
        let mut all = Vec::new();
        for source in &self.survey.splits {
            let chunks = self.chunks(source, findings)?;
            chunks
                .iter()
                .for_each(|chunk| join.mark_exact(&source.dir, chunk));
            all.push((source, chunks));
        }
        for (source, chunks) in all {
            let names = join.splits(&source.name, is_named, wanted)?;
            for (number, name) in names.into_iter().enumerate() {
                let mut split = SplitCensus::new(name, source.dir.clone());
                for chunk in &chunks {
                    join.split(&mut split, chunk, (is_named, number == 0), findings)?;
                }
                splits.push(split);
            }
        }
        join.finish(wanted.is_none(), findings)?;
        Ok(splits)
    }

    /// Returns the files of a split, with the classes of their directories.
    fn chunks(&self, split: &SplitSource, findings: &mut FindingList) -> Result<Vec<FileList>> {
        let listed = self.source.list(split, self.progress, self.cancel)?;
        let classes = &self.survey.classes;
        let mut chunks = Vec::new();
        let mut dirs = BTreeMap::new();
        for (unit, (mut chunk, found)) in split.units.iter().zip(listed) {
            if let LayoutUnit::Class(name) = unit {
                let index = classes.index_of(name);
                let index = index.ok_or_else(|| classes.unknown(self.src, name))?;
                if let Some(other) = dirs.insert(index, name) {
                    let what = format!(
                        "{} and {} are the same class in two Unicode forms: rename one of them",
                        escape(other),
                        escape(name)
                    );
                    return Err(Error::source(
                        self.src.join(OsStr::from_bytes(&split.dir)),
                        what,
                    ));
                }
                chunk.class = Some(index);
            }
            findings.append(&found);
            chunks.push(chunk);
        }
        Ok(chunks)
    }
}

/// Adds warnings and findings about files that may hold labels and are not used.
fn note_label_files(files: &[LabelFile], findings: &mut FindingList, warnings: &mut Vec<String>) {
    for file in files {
        let path = escape(&file.relative);
        warnings.push(format!(
            "{path} may hold labels, and is not used: {}",
            file.advice
        ));
        findings.unused_labels(&path, &file.advice);
    }
}

/// Returns the further columns of a file of labels.
fn columns_of(
    labels: Option<LabelTable>,
    classes: &ClassList,
    options: &PackOptions,
    warnings: &mut Vec<String>,
) -> Result<Columns> {
    let Some(labels) = labels else {
        return Ok(Columns::default());
    };
    if let Some(images) = labels.images_of_several_rows() {
        warnings.push(format!(
            "{}: {images} of {} images have several lines: columns become lists with a value for each line",
            labels.file().display(),
            labels.images()
        ));
    }
    label_join::object_labels(labels, classes, options.label_base)
}
