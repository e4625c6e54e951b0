//! The census: every image file of the source with its size, before the first byte is written.
//!
//! Owns walking, sorting and compact keeping (about six bytes and the name for each file, so a million files take
//! some 25 MB). What a class is comes from the layout; whether a file with an image's name is one is
//! found out when its bytes are read for the shard, so that they are read once.

mod choose_classes;
mod extras;
mod findings;
mod label_join;
mod list;
mod members;
mod split;
#[cfg(test)]
mod store_tests;
mod walk;

use extras::Knowledge;
pub(crate) use findings::FindingList;
use label_join::LabelJoin;
pub(crate) use list::Chunk;
pub use list::EntryRef;
pub use split::SplitCensus;

use crate::class_list::{ClassList, is_list_path};
use crate::error::{Error, Result};
use crate::input::foreign::{self, ForeignTree, LabelFile};
use crate::input::{
    self, Arrangement, BoxIndex, Columns, Labels, LayoutContext, Source, SourceLayout, SplitSource,
    Top, Tree, Unit, Volume,
};
use crate::key_path::join;
use crate::observer::{Cancel, Observer, Stage};
use crate::options::{OnBadImage, PackOptions};
use crate::report::{Finding, Reason, escape};
use forebay_shard::MAX_RECORD_BYTES;
use forebay_shard::parallel::map_parallel;
use std::collections::BTreeSet;
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
    volumes: Vec<Volume>,
    knowledge: Arc<Knowledge>,
}

/// A file that a list of classes has no class for.
const UNLABELLED: u32 = u32::MAX;

impl Census {
    /// Walks the source. Directories are listed in parallel, the result is the same for any number of threads.
    pub fn take(options: &PackOptions, observer: &dyn Observer, cancel: &Cancel) -> Result<Self> {
        observer.stage(Stage::Census);
        let labels = match options.labels.as_deref() {
            Some(file) => Some(Labels::read(file, options.classes.is_some())?),
            None => None,
        };
        let source = Source::open(options, observer, cancel)?;
        let labelled = labels.is_some();
        Self::of(source, (labels, labelled), options, observer, cancel)
    }

    /// The files that a pack with a file of labels chose from, where that file is not at hand.
    pub(crate) fn take_labelled(
        options: &PackOptions,
        observer: &dyn Observer,
        cancel: &Cancel,
    ) -> Result<Self> {
        observer.stage(Stage::Census);
        let source = Source::open(options, observer, cancel)?;
        Self::of(source, (None, true), options, observer, cancel)
    }

    /// Takes the census of an open source.
    fn of(
        mut source: Source,
        (labels, labelled): (Option<Labels>, bool),
        options: &PackOptions,
        observer: &dyn Observer,
        cancel: &Cancel,
    ) -> Result<Self> {
        let place = options.place();
        let src = place.as_path();
        let archives = source.archives.take();
        let top = source.top(src)?;
        let context = LayoutContext {
            split: options.split.as_deref(),
            labelled,
            has_boxes: archives.as_ref().is_some_and(|(_, facts)| facts.has_boxes),
        };
        let found = archives.as_ref().map(|(layout, _)| *layout);
        let (layout, mut arrangement) = input::arrange(&top, found.or(options.layout), &context)?;
        let label_files = match labelled {
            true => Vec::new(),
            false => unused_label_files(&top, &arrangement)?,
        };
        let container = foreign::container(&top)?;
        if let Some((_, facts)) = archives {
            arrangement.classes = facts.classes;
            arrangement.validation = facts.validation;
        }
        if labelled {
            let names = labels.as_ref().and_then(Labels::names);
            arrangement.class_dirs = names.unwrap_or_default().to_vec();
            arrangement.validation = None;
        }
        let (classes, listed) = choose_classes::decide(&top, options, &mut arrangement)?;
        source.identify_objects(&arrangement.splits, cancel)?;
        let mut findings = early_findings(&source, &arrangement, labelled, observer);
        let mut warnings = std::mem::take(&mut source.warnings);
        warnings.append(&mut arrangement.warnings);
        let mut splits = Vec::new();
        let mut join = labels
            .as_ref()
            .map(|labels| LabelJoin::new(labels, &classes, options.label_base));
        for split_source in &arrangement.splits {
            let chunks = chunks_of(
                &source,
                split_source,
                &classes,
                (options, src),
                &mut findings,
                observer,
                cancel,
            )?;
            let new = |name: String| SplitCensus::new(name, split_source.dir.clone());
            let Some(join) = &mut join else {
                let mut split = new(split_source.name.clone());
                chunks.into_iter().for_each(|chunk| split.push(chunk));
                if !labelled {
                    split.attach_listed_classes(&classes, listed.as_ref(), &mut warnings)?;
                }
                splits.push(split);
                continue;
            };
            let is_named = layout.names_splits();
            let names = join.splits(&split_source.name, is_named, options.split.as_deref())?;
            for (number, name) in names.into_iter().enumerate() {
                let mut split = new(name);
                for chunk in &chunks {
                    join.split(&mut split, chunk, (is_named, number == 0), &mut findings)?;
                }
                splits.push(split);
            }
        }
        if let Some(join) = join {
            join.finish(options.split.is_none(), &mut findings)?;
        }
        for file in label_files {
            let path = escape(&file.relative);
            warnings.push(format!(
                "{path} may hold labels, and is not used: {}",
                file.advice
            ));
            findings.unused_labels(&path, &file.advice);
        }
        let knowledge = Arc::new(Knowledge {
            boxes: boxes_of(
                &mut source,
                &arrangement,
                (options, src),
                &mut findings,
                cancel,
            )?,
            columns: columns_of(labels, &classes, options, &mut warnings)?,
        });
        for split in &mut splits {
            split.knowledge = Arc::clone(&knowledge);
        }
        let mut census = Self {
            src: src.to_path_buf(),
            layout,
            splits,
            classes,
            findings,
            warnings,
            volumes: source.volumes,
            knowledge,
        };
        if matches!(options.on_bad_image, OnBadImage::Quarantine(_)) {
            census.quarantine_left_out();
        }
        match census.files() {
            0 => Err(census.without_images(container.filter(|_| options.layout.is_none()))),
            _ => Ok(census),
        }
    }

    /// The error of a source without images, which may be a dataset of another tool.
    fn without_images(self, container: Option<ForeignTree>) -> Error {
        if let Some(tree) = container {
            return tree.into_error(self.src);
        }
        let what = match self.findings.len() {
            0 => "there are no images in it".to_owned(),
            n => format!("there are no images in it, and {n} other files or directories"),
        };
        Error::source(self.src, what)
    }

    /// Images in a format that is not packed are in quarantine when the pack is done.
    fn quarantine_left_out(&mut self) {
        let mut paths = BTreeSet::new();
        for split in &self.splits {
            let keys = split.left_out().map(|entry| entry.key());
            paths.extend(keys.map(|key| crate::report::escape(&join(&split.dir, &key))));
        }
        self.findings.quarantine(&paths);
    }

    /// The source.
    pub fn src(&self) -> &Path {
        &self.src
    }

    /// The layout that the source has.
    pub fn layout(&self) -> SourceLayout {
        self.layout
    }

    /// The splits in the order of their names.
    pub fn splits(&self) -> &[SplitCensus] {
        &self.splits
    }

    /// The classes in the order of their labels.
    pub fn classes(&self) -> &ClassList {
        &self.classes
    }

    /// Image files of all splits.
    pub fn files(&self) -> u64 {
        self.splits.iter().map(SplitCensus::len).sum()
    }

    /// Their bytes.
    pub fn bytes(&self) -> u64 {
        self.splits.iter().map(|s| s.bytes).sum()
    }

    /// Warnings for the user.
    pub fn warnings(&self) -> &[String] {
        &self.warnings
    }

    /// Files that the census passed over, in a fixed order.
    pub fn findings(&self) -> impl Iterator<Item = Finding> + '_ {
        self.findings.iter()
    }

    pub(crate) fn finding_list(&self) -> &FindingList {
        &self.findings
    }

    /// The archives that are the source; none for a directory.
    pub(crate) fn volumes(&self) -> &[Volume] {
        &self.volumes
    }

    /// Bytes of the images in compressed archives, which are decoded into a file before they are packed.
    pub(crate) fn spool_bytes(&self) -> u64 {
        let chunks = self.splits.iter().flat_map(|split| &split.chunks);
        let compressed = |chunk: &&Chunk| {
            let mut volumes = chunk
                .volumes()
                .map(|volume| &self.volumes[usize::from(volume)]);
            volumes.any(Volume::is_compressed_stream)
        };
        chunks.filter(compressed).map(Chunk::bytes).sum()
    }

    /// Facts about images beyond their files and classes.
    pub(crate) fn knowledge(&self) -> &Knowledge {
        &self.knowledge
    }
}

/// The findings of the source and its layout.
fn early_findings(
    source: &Source,
    arrangement: &Arrangement,
    labelled: bool,
    observer: &dyn Observer,
) -> FindingList {
    let mut findings = FindingList::default();
    for finding in source.findings.iter().chain(&arrangement.findings) {
        // The lists of classes have done their part, and labels take in what is outside of directories.
        let is_used = is_list_path(finding.path.as_bytes())
            || (labelled && finding.reason == Reason::Outside);
        if !is_used {
            observer.finding(finding);
            findings.push(finding);
        }
    }
    findings
}

/// The files of a split, with the classes of their directories.
fn chunks_of(
    source: &Source,
    split: &SplitSource,
    classes: &ClassList,
    (options, src): (&PackOptions, &Path),
    findings: &mut FindingList,
    observer: &dyn Observer,
    cancel: &Cancel,
) -> Result<Vec<Chunk>> {
    let walked = match &source.tree {
        Tree::Directory => {
            let jobs = options.decided_jobs();
            walk_units(src, &split.dir, &split.units, jobs, observer, cancel)?
        }
        Tree::Members(tree) | Tree::Listing(tree) => {
            let units = split.units.iter();
            units
                .map(|unit| members::collect(tree, &source.volumes, &split.dir, unit))
                .collect()
        }
    };
    let mut chunks = Vec::new();
    for (unit, (mut chunk, found)) in split.units.iter().zip(walked) {
        if let Unit::Class(name) = unit {
            let index = classes.index_of(name);
            chunk.class = Some(index.ok_or_else(|| classes.unknown(src, name))?);
        }
        findings.append(&found);
        chunks.push(chunk);
    }
    Ok(chunks)
}

/// The boxes of all images, if records have the features of boxes.
fn boxes_of(
    source: &mut Source,
    arrangement: &Arrangement,
    (options, src): (&PackOptions, &Path),
    findings: &mut FindingList,
    cancel: &Cancel,
) -> Result<Option<BoxIndex>> {
    let dirs = &arrangement.annotation_dirs;
    let read = match &source.tree {
        _ if dirs.is_empty() => None,
        Tree::Directory => Some(input::read_boxes(src, dirs, options.decided_jobs(), cancel)),
        Tree::Listing(members) => match source.objects() {
            Some(objects) => Some(objects.read_boxes(members, dirs, cancel)?),
            None => None,
        },
        Tree::Members(_) => None,
    };
    let boxes = match read {
        Some((mut boxes, found)) => {
            found.iter().for_each(|finding| findings.push(finding));
            boxes.finish().map_err(|what| Error::source(src, what))?;
            boxes
        }
        None => std::mem::take(&mut source.boxes),
    };
    if cancel.is_cancelled() {
        return Err(Error::Interrupted {
            finished: 0,
            total: 0,
        });
    }
    Ok(arrangement.has_boxes.then_some(boxes))
}

/// The further columns of a file of labels.
fn columns_of(
    labels: Option<Labels>,
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

/// Files of labels beside the images, at the top and in the directories of splits.
fn unused_label_files(top: &Top<'_>, arrangement: &Arrangement) -> Result<Vec<LabelFile>> {
    let mut found = foreign::label_files(top);
    for split in &arrangement.splits {
        if let Some(below) = split.dir.strip_prefix(top.relative.as_slice())
            && !below.is_empty()
        {
            let dir = below.strip_prefix(b"/").unwrap_or(below);
            found.extend(foreign::label_files(&top.below(dir)?));
        }
    }
    Ok(found)
}

/// Walks the units of a split on several threads; results come in the order of the units.
fn walk_units(
    src: &Path,
    split_dir: &[u8],
    units: &[Unit],
    jobs: usize,
    observer: &dyn Observer,
    cancel: &Cancel,
) -> Result<Vec<(Chunk, FindingList)>> {
    // Listing waits for the disk or the network, not for the CPU: a few more threads than cores.
    let threads = (jobs * 2).clamp(4, 32);
    let stopped = || cancel.is_cancelled();
    let walked = map_parallel(
        units,
        threads,
        &stopped,
        || (),
        |(), unit| walk::walk(src, split_dir, unit, observer, cancel),
    );
    if cancel.is_cancelled() {
        return Err(Error::Interrupted {
            finished: 0,
            total: 0,
        });
    }
    Ok(walked.into_iter().flatten().collect())
}

/// The problem of a file that no record can hold, whatever its bytes are. It takes no part in the plan: a sparse file of
/// 100 GiB would fail the check for free space.
fn too_large(size: u64) -> Option<String> {
    (size > MAX_RECORD_BYTES).then(|| format!("{size} bytes, a record holds {MAX_RECORD_BYTES}"))
}
