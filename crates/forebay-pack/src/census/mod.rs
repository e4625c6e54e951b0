//! The census: every image file of the source with its size, before the first byte is written.
//!
//! Owns walking, sorting and compact keeping (about six bytes and the name for each file, so a million files take
//! some 25 MB). What a class is comes from the layout; whether a file with an image's name is one is
//! found out when its bytes are read for the shard, so that they are read once.

mod class_list;
mod extras;
mod findings;
mod label_join;
mod list;
mod members;
#[cfg(test)]
mod store_tests;
mod walk;

#[cfg(any(test, feature = "fuzzing"))]
pub use class_list::fuzzing::classes;
pub use class_list::{ClassList, ClassName};
pub(crate) use class_list::{FileClasses, is_list};
use extras::{Extras, Knowledge};
pub(crate) use findings::FindingList;
use label_join::LabelJoin;
pub(crate) use list::Chunk;
pub use list::EntryRef;

use crate::error::{Error, Result};
use crate::input::{self, Ask, Labels, LayoutKind, Source, Tree, Unit, Volume};
use crate::observer::{Cancel, Observer, Stage};
use crate::options::{OnBadImage, PackOptions};
use crate::report::{Action, Finding, Reason};
use forebay_shard::{ExampleBuilder, MAX_RECORD_BYTES};
use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};

/// What is in the source.
#[derive(Debug)]
pub struct Census {
    src: PathBuf,
    layout: LayoutKind,
    splits: Vec<SplitCensus>,
    classes: ClassList,
    findings: FindingList,
    warnings: Vec<String>,
    volumes: Vec<Volume>,
    knowledge: Arc<Knowledge>,
}

/// One split of the source.
#[derive(Debug)]
pub struct SplitCensus {
    name: String,
    dir: Vec<u8>,
    chunks: Vec<Chunk>,
    /// Number of the first entry of each chunk, and the number of all entries at the end.
    starts: Vec<u64>,
    bytes: u64,
    /// Classes of the entries of a split without class directories, from a list beside it; `UNLABELLED` for none.
    listed_classes: Option<Vec<u32>>,
    /// Rows of the entries in a file of labels, if there is one.
    rows: Vec<u32>,
    knowledge: Arc<Knowledge>,
}

/// A file that a list of classes has no class for.
const UNLABELLED: u32 = u32::MAX;

impl Census {
    /// Walks the source. Directories are listed in parallel, the result is the same for any number of threads.
    pub fn take(options: &PackOptions, observer: &dyn Observer, cancel: &Cancel) -> Result<Self> {
        observer.stage(Stage::Census);
        let labels = options.labels.as_deref().map(Labels::read).transpose()?;
        let source = Source::open(options, observer, cancel)?;
        Self::of(source, labels, options, observer, cancel)
    }

    /// The census of a source that was looked at.
    fn of(
        mut source: Source,
        labels: Option<Labels>,
        options: &PackOptions,
        observer: &dyn Observer,
        cancel: &Cancel,
    ) -> Result<Self> {
        let place = options.place();
        let src = place.as_path();
        let mut academic = source.academic.take();
        let top = source.top(src)?;
        let ask = Ask {
            split: options.split.as_deref(),
            labelled: labels.is_some(),
            academic: academic.as_ref(),
        };
        let (layout, mut arrangement) = input::arrange(&top, options.layout, &ask)?;
        if let Some(academic) = &mut academic {
            arrangement.classes = academic.classes.take();
            arrangement.validation = academic.validation.take();
        }
        if let Some(labels) = &labels {
            arrangement.class_dirs = labels.names().unwrap_or_default().to_vec();
            arrangement.validation = None;
        }
        let (classes, listed) = class_list::decide(&top, options, &mut arrangement)?;
        if let (Tree::Listing(members), Some(objects)) = (
            &mut source.tree,
            source
                .volumes
                .first()
                .and_then(|volume| volume.objects.clone()),
        ) {
            for split in &arrangement.splits {
                objects.look(members, &split.dir, &split.units, cancel)?;
            }
        }
        let mut findings = FindingList::default();
        let lead = source.findings.iter().chain(&arrangement.findings);
        for finding in lead.filter(|finding| !is_list_path(finding.path.as_bytes())) {
            // The lists of classes have done their part, and labels take in what is outside of directories.
            if labels.is_none() || finding.reason != Reason::Outside {
                observer.finding(finding);
                findings.push(finding);
            }
        }
        let mut warnings = std::mem::take(&mut source.warnings);
        warnings.append(&mut arrangement.warnings);
        let mut splits = Vec::new();
        let mut join_labels = labels
            .as_ref()
            .map(|labels| LabelJoin::new(labels, &classes, options.label_base));
        for split_source in arrangement.splits {
            let walked = match &source.tree {
                Tree::Directory => walk_units(
                    src,
                    &split_source.dir,
                    &split_source.units,
                    options.decided_jobs(),
                    observer,
                    cancel,
                )?,
                Tree::Members(tree) | Tree::Listing(tree) => {
                    let units = split_source.units.iter();
                    units
                        .map(|unit| {
                            members::collect(tree, &source.volumes, &split_source.dir, unit)
                        })
                        .collect()
                }
            };
            let mut split = SplitCensus {
                name: split_source.name,
                dir: split_source.dir,
                chunks: Vec::new(),
                starts: vec![0],
                bytes: 0,
                listed_classes: None,
                rows: Vec::new(),
                knowledge: Arc::default(),
            };
            for (unit, (mut chunk, found)) in split_source.units.iter().zip(walked) {
                if let Unit::Class(name) = unit {
                    chunk.class = Some(
                        classes
                            .index_of(name)
                            .ok_or_else(|| classes.unknown(src, name))?,
                    );
                }
                findings.append(&found);
                match &mut join_labels {
                    Some(join) => join.split(&mut split, &chunk, &mut findings)?,
                    None => split.push(chunk),
                }
            }
            if join_labels.is_none() {
                split.attach_listed_classes(&classes, listed.as_ref(), &mut warnings)?;
            }
            splits.push(split);
        }
        if let Some(join) = join_labels {
            join.finish(options.split.is_none(), &mut findings)?;
        }
        let mut boxes = std::mem::take(&mut source.boxes);
        if !arrangement.annotation_dirs.is_empty() && matches!(source.tree, Tree::Directory) {
            let (read, found) = input::read_boxes(
                src,
                &arrangement.annotation_dirs,
                options.decided_jobs(),
                cancel,
            );
            found.iter().for_each(|finding| findings.push(finding));
            boxes = read;
            boxes.finish().map_err(|what| Error::source(src, what))?;
            if cancel.is_cancelled() {
                return Err(Error::Interrupted {
                    finished: 0,
                    total: 0,
                });
            }
        }
        if let (Tree::Listing(members), Some(objects)) = (
            &source.tree,
            source
                .volumes
                .first()
                .and_then(|volume| volume.objects.as_ref()),
        ) && !arrangement.annotation_dirs.is_empty()
        {
            let dirs = &arrangement.annotation_dirs;
            let (read, found) = objects.read_boxes(members, dirs, cancel)?;
            found.iter().for_each(|finding| findings.push(finding));
            boxes = read;
            boxes.finish().map_err(|what| Error::source(src, what))?;
        }
        if cancel.is_cancelled() {
            return Err(Error::Interrupted {
                finished: 0,
                total: 0,
            });
        }
        let knowledge = Arc::new(Knowledge {
            boxes: arrangement.has_boxes.then_some(boxes),
            columns: labels.map(Labels::into_columns).unwrap_or_default(),
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
        if census.files() == 0 {
            let what = match census.findings.len() {
                0 => "there are no images in it".to_owned(),
                n => format!("there are no images in it, and {n} other files or directories"),
            };
            return Err(Error::source(src, what));
        }
        Ok(census)
    }

    /// Images in a format that is not packed are in quarantine when the pack is done.
    fn quarantine_left_out(&mut self) {
        let mut paths = BTreeSet::new();
        for split in &self.splits {
            let keys = split.left_out().map(|entry| entry.key());
            paths.extend(keys.map(|key| crate::report::escape(&input::join(&split.dir, &key))));
        }
        self.findings.quarantine(&paths);
    }

    /// The source.
    pub fn src(&self) -> &Path {
        &self.src
    }

    /// The layout that the source has.
    pub fn layout(&self) -> LayoutKind {
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

    /// What a user should know and would not see.
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
            let volume = chunk
                .volume()
                .and_then(|volume| self.volumes.get(usize::from(volume)));
            volume.is_some_and(Volume::is_compressed_stream)
        };
        chunks.filter(compressed).map(Chunk::bytes).sum()
    }

    /// What is known of images beyond their files and classes.
    pub(crate) fn knowledge(&self) -> &Knowledge {
        &self.knowledge
    }
}

impl SplitCensus {
    /// The split's name in the data set.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// Its directory relative to the source; empty for the source itself.
    pub fn dir(&self) -> &[u8] {
        &self.dir
    }

    /// Image files in it.
    pub fn len(&self) -> u64 {
        self.starts.last().copied().unwrap_or(0)
    }

    /// Whether it has none.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Their bytes.
    pub fn bytes(&self) -> u64 {
        self.bytes
    }

    /// File number `index` in the byte order of keys. Panics beyond the end, as a slice does.
    pub fn get(&self, index: u64) -> EntryRef<'_> {
        let chunk = self.starts.partition_point(|start| *start <= index) - 1;
        let mut entry = self.chunks[chunk].get(index - self.starts[chunk]);
        if let Some(listed) = &self.listed_classes {
            let class = listed.get(index as usize).copied();
            entry.class = class.filter(|class| *class != UNLABELLED);
        }
        entry.extras = Extras {
            boxes: self.knowledge.boxes.as_ref(),
            row: self
                .rows
                .get(index as usize)
                .map(|row| (&self.knowledge.columns, *row)),
        };
        entry
    }

    /// All files in the byte order of their keys.
    pub fn iter(&self) -> impl Iterator<Item = EntryRef<'_>> + '_ {
        (0..self.len()).map(|index| self.get(index))
    }

    /// Files of each class: (class index, files), in the order of the walk, or of the classes.
    pub fn class_counts(&self) -> Vec<(Option<u32>, u64)> {
        if let Some(listed) = &self.listed_classes {
            let mut counts = BTreeMap::new();
            for class in listed {
                *counts.entry(*class).or_insert(0) += 1;
            }
            let named = |class| (class != UNLABELLED).then_some(class);
            return counts
                .into_iter()
                .map(|(class, files)| (named(class), files))
                .collect();
        }
        self.chunks
            .iter()
            .map(|chunk| (chunk.class, chunk.len()))
            .collect()
    }

    /// Images that were left out because of their format, and that are not too large to be looked at; their names are
    /// whole keys.
    pub(crate) fn left_out(&self) -> impl Iterator<Item = EntryRef<'_>> {
        let entries = self.chunks.iter().flat_map(Chunk::left_out);
        entries.filter(|entry| entry.size <= MAX_RECORD_BYTES)
    }

    pub(crate) fn chunks(&self) -> &[Chunk] {
        &self.chunks
    }

    /// Feeds what is known of the entries to a hash.
    pub(crate) fn hash_extras(&self, hasher: &mut blake3::Hasher) {
        let mut record = Vec::new();
        for entry in self.iter() {
            if entry.extras.is_none() {
                return;
            }
            let mut example = ExampleBuilder::new();
            entry.extras.add_to(entry.name, 0, &mut example);
            record.clear();
            example.encode_into(&mut record);
            hasher
                .update(&(record.len() as u64).to_le_bytes())
                .update(&record);
        }
    }

    /// The classes of single files, for a split whose classes come from a list of files.
    pub(crate) fn listed_classes(&self) -> &[u32] {
        self.listed_classes.as_deref().unwrap_or_default()
    }

    fn push(&mut self, chunk: Chunk) {
        self.starts.push(self.len() + chunk.len());
        self.bytes = self.bytes.saturating_add(chunk.bytes());
        self.chunks.push(chunk);
    }

    /// A validation directory without classes gets them from a list beside it, where there is one.
    fn attach_listed_classes(
        &mut self,
        classes: &ClassList,
        listed: Option<&FileClasses>,
        warnings: &mut Vec<String>,
    ) -> Result<()> {
        let unlabelled: u64 = self
            .chunks
            .iter()
            .filter(|c| c.class.is_none())
            .map(Chunk::len)
            .sum();
        match listed {
            _ if unlabelled == 0 => {}
            Some(listed) if self.name == "validation" => {
                self.listed_classes =
                    Some(listed.of(classes, self.len(), self.iter().map(|entry| entry.name))?);
            }
            _ => warnings.push(format!(
                "the split {} has no class directories: its {unlabelled} images get the label -1",
                self.name
            )),
        }
        Ok(())
    }
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
    let threads = (jobs * 2).clamp(4, 32).min(units.len());
    let next = AtomicUsize::new(0);
    let done: Vec<Mutex<Option<(Chunk, FindingList)>>> =
        units.iter().map(|_| Mutex::new(None)).collect();
    std::thread::scope(|scope| {
        for _ in 0..threads {
            scope.spawn(|| {
                while let Some((unit, slot)) = {
                    let at = next.fetch_add(1, Ordering::Relaxed);
                    units.get(at).zip(done.get(at))
                } {
                    if cancel.is_cancelled() {
                        return;
                    }
                    let result = walk::walk(src, split_dir, unit, observer, cancel);
                    *slot.lock().unwrap_or_else(|e| e.into_inner()) = Some(result);
                }
            });
        }
    });
    if cancel.is_cancelled() {
        return Err(Error::Interrupted {
            finished: 0,
            total: 0,
        });
    }
    Ok(done
        .into_iter()
        .filter_map(|slot| slot.into_inner().unwrap_or_else(|e| e.into_inner()))
        .collect())
}

/// Whether a path is that of a list of classes.
pub(crate) fn is_list_path(path: &[u8]) -> bool {
    std::str::from_utf8(input::base(path)).is_ok_and(is_list)
}

/// A finding about a path, with or without details.
pub(crate) fn finding(
    action: Action,
    reason: Reason,
    path: &[u8],
    detail: impl Into<String>,
) -> Finding {
    Finding {
        action,
        reason,
        path: crate::report::escape(path),
        detail: detail.into(),
    }
}
