//! The census: every image file of the source with its size, before the first byte is written.
//!
//! Owns walking, sorting and compact keeping (about 40 bytes and the name for each file, so a million files stay
//! far under 200 MB). What a class is comes from the layout; whether a file with an image's name is one is
//! found out when its bytes are read for the shard, so that they are read once.

mod class_list;
mod findings;
mod list;
mod walk;

use class_list::FileClasses;
pub use class_list::{ClassList, ClassName};
pub(crate) use findings::FindingList;
pub(crate) use list::Chunk;
pub use list::EntryRef;

use crate::error::{Error, Result};
use crate::input::{self, LayoutKind, Top, Unit};
use crate::observer::{Cancel, Observer, Stage};
use crate::options::PackOptions;
use crate::report::{Action, Finding, Reason};
use std::path::{Path, PathBuf};
use std::sync::Mutex;
use std::sync::atomic::{AtomicUsize, Ordering};

/// What is in the source.
#[derive(Debug)]
pub struct Census {
    src: PathBuf,
    layout: LayoutKind,
    splits: Vec<SplitCensus>,
    classes: ClassList,
    findings: FindingList,
    warnings: Vec<String>,
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
    /// Labels of the entries of a split without class directories, from a list beside it.
    listed_classes: Option<Vec<u32>>,
}

impl Census {
    /// Walks the source. Directories are listed in parallel, the result is the same for any number of threads.
    pub fn take(options: &PackOptions, observer: &dyn Observer, cancel: &Cancel) -> Result<Self> {
        observer.stage(Stage::Census);
        let src = options.src.local_path()?;
        let top = Top::read(src)?;
        let (layout, arrangement) = input::arrange(&top, options.layout, options.split.as_deref())?;
        let mut warnings = arrangement.warnings;
        let (classes, listed) =
            class_list::decide(&top, options, &arrangement.class_dirs, &mut warnings)?;
        let mut findings = FindingList::default();
        for finding in arrangement.findings {
            // The lists of classes have done their part.
            if !class_list::is_list(&finding.path) {
                observer.finding(&finding);
                findings.push(&finding);
            }
        }
        let mut splits = Vec::new();
        for source in arrangement.splits {
            let walked = walk_units(
                src,
                &source.dir,
                &source.units,
                options.decided_jobs(),
                observer,
                cancel,
            )?;
            let mut split = SplitCensus {
                name: source.name,
                dir: source.dir,
                chunks: Vec::new(),
                starts: vec![0],
                bytes: 0,
                listed_classes: None,
            };
            for (unit, (mut chunk, found)) in source.units.iter().zip(walked) {
                if let Unit::Class(name) = unit {
                    chunk.class = Some(
                        classes
                            .index_of(name)
                            .ok_or_else(|| classes.unknown(src, name))?,
                    );
                }
                findings.append(&found);
                split.push(chunk);
            }
            split.attach_listed_classes(&classes, listed.as_ref(), &mut warnings)?;
            splits.push(split);
        }
        let census = Self {
            src: src.to_path_buf(),
            layout,
            splits,
            classes,
            findings,
            warnings,
        };
        if census.files() == 0 {
            let what = match census.findings.len() {
                0 => "there are no images in it".to_owned(),
                n => format!("there are no images in it, and {n} other files or directories"),
            };
            return Err(Error::source(src, what));
        }
        Ok(census)
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
            entry.class = listed.get(index as usize).copied();
        }
        entry
    }

    /// All files in the byte order of their keys.
    pub fn iter(&self) -> impl Iterator<Item = EntryRef<'_>> + '_ {
        (0..self.len()).map(|index| self.get(index))
    }

    /// Files of each class that has any: (class index, files), in the order of the walk.
    pub fn class_counts(&self) -> Vec<(Option<u32>, u64)> {
        self.chunks
            .iter()
            .map(|chunk| (chunk.class, chunk.len()))
            .collect()
    }

    pub(crate) fn chunks(&self) -> &[Chunk] {
        &self.chunks
    }

    /// The classes of single files, for a split whose classes come from a list of files.
    pub(crate) fn listed_classes(&self) -> &[u32] {
        self.listed_classes.as_deref().unwrap_or_default()
    }

    fn push(&mut self, chunk: Chunk) {
        self.starts.push(self.len() + chunk.len());
        self.bytes += chunk.bytes();
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
