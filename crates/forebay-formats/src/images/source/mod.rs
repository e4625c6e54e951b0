//! A source of image files: a directory, the members of one or several archives, or the objects of a store.
//!
//! [`Source::open`] lists archives and stores with `walk`, after a layout has said which archives belong together.
//! [`Source::survey`] lets a layout arrange the names at the top, and numbers the classes. [`Source::list`] walks the directories
//! of that arrangement, and an [`OpenSource`] reads what was listed.

mod classes;
mod label_files;
mod open;
mod open_archive;
mod survey;

pub use label_files::LabelFile;
pub use open::{OpenFile, OpenSource};
#[cfg(any(test, feature = "fuzzing"))]
pub(super) use open_archive::OpenArchive;
pub use survey::{ClassesFrom, Survey};

use super::boxes::{self, BoxIndex};
use super::layout::{
    self, ArchiveFacts, Arrangement, FoundArchives, LayoutContext, LayoutUnit, SourceLayout,
    SplitSource, TopFiles,
};
use super::walk::objects::{self, Objects};
use super::walk::{
    self, Collected, Collector, FileList, MemberLocation, Members, SourceArchive, Top, Tree,
    directory, member_files,
};
use crate::archive::Archive;
use crate::class_order::ClassOrder;
use crate::error::{Error, Result};
use crate::finding::Finding;
use crate::finding_list::FindingList;
use crate::progress::Progress;
use crate::sniff::ContentKind;
use forebay_store::{Cancel, Location, ObjectOrTree, Store, StoreOptions, map_parallel};
use std::fmt::Display;
use std::path::PathBuf;

/// Largest class list beside archives in a store; a real one has a thousand lines.
const LIST_MAX_BYTES: u64 = 16 << 20;

/// Location of a source of images, and how to read it.
#[derive(Debug, Clone)]
#[non_exhaustive]
pub struct SourceOptions {
    /// A directory or an archive of images, local or in a store.
    pub location: Location,
    /// Options for the store, if the source is in one.
    pub store: StoreOptions,
    /// Layout of the source; `None` to detect it.
    pub layout: Option<SourceLayout>,
    /// The split to read, or the name for the only split.
    pub split: Option<String>,
    /// The order of classes that no list numbers.
    pub class_order: ClassOrder,
    /// Number of threads that read.
    pub jobs: usize,
}

impl SourceOptions {
    /// Returns options with a detected layout and one thread.
    pub fn new(location: impl Into<Location>) -> Self {
        Self {
            location: location.into(),
            store: StoreOptions::default(),
            layout: None,
            split: None,
            class_order: ClassOrder::default(),
            jobs: 1,
        }
    }

    /// Returns the source as a path. For a source in a store, this is its URL, which messages and the paths of images begin
    /// with.
    pub fn root(&self) -> PathBuf {
        match self.location.local_path() {
            Ok(path) => path.to_path_buf(),
            Err(_) => PathBuf::from(self.location.to_string()),
        }
    }
}

/// An open source of image files.
#[derive(Debug)]
pub struct Source {
    tree: Tree,
    root: PathBuf,
    options: SourceOptions,
    archives: Vec<SourceArchive>,
    /// Boxes from annotations in archives.
    boxes: BoxIndex,
    /// The layout of the set of archives, and the facts that were read from them.
    archive_set: Option<(SourceLayout, ArchiveFacts)>,
    findings: Vec<Finding>,
    warnings: Vec<String>,
}

impl Source {
    /// Opens a source. For archives this reads all headers, which may take a while.
    ///
    /// # Errors
    /// [`Error::Source`] if nothing readable is found.
    pub fn open(options: &SourceOptions, progress: &dyn Progress, cancel: &Cancel) -> Result<Self> {
        if options.location.is_remote() {
            return Self::open_remote(options, progress, cancel);
        }
        let path = options.location.local_path()?;
        let meta = std::fs::metadata(path);
        if meta.as_ref().is_ok_and(|meta| meta.is_dir()) {
            let tree = Tree::Directory;
            let top = Top::read(&tree, path)?;
            let files = TopFiles::of_directory(path, top.dirs.clone(), top.files.clone());
            if let Some((layout, found)) = find_archives(&files, path.display(), options)? {
                let mut collector = Collector::new(progress, cancel);
                let facts = found.read(&mut collector, options.jobs)?;
                let mut collected = collector.finish()?;
                collected.findings.extend(top.outside_dirs(|_| false));
                collected.findings.extend(top.aside());
                return Ok(Self::of(options, collected, Some((layout, facts))));
            }
            return Ok(Self::of_tree(options, tree));
        }
        if meta.is_ok_and(|meta| meta.is_file()) {
            refuse_single_archive(path.display(), options)?;
        }
        Self::of_archive(&path.into(), options, progress, cancel)
    }

    /// Opens a location in a store: an archive, the archives of a layout such as ILSVRC2012, or images.
    fn open_remote(
        options: &SourceOptions,
        progress: &dyn Progress,
        cancel: &Cancel,
    ) -> Result<Self> {
        let location = &options.location;
        let shown = location.to_string();
        let found = ObjectOrTree::find(location, &options.store)?;
        if let Some(object) = found.object() {
            refuse_single_archive(&shown, options)?;
            let archive = Archive::Object(found.store().clone(), object.key.clone());
            return Self::of_archive(&archive, options, progress, cancel);
        }
        if let Some(scheme @ ("http" | "https")) = location.scheme() {
            let what = format!(
                "{scheme}:// servers do not list what they have: name an archive there, or pack from a store that lists"
            );
            return Err(Error::source(&shown, what));
        }
        Self::open_store(found.store(), options, progress, cancel)
    }

    /// Opens the objects of a store.
    pub fn open_store(
        store: &Store,
        options: &SourceOptions,
        progress: &dyn Progress,
        cancel: &Cancel,
    ) -> Result<Self> {
        let shown = store.location().to_string();
        let top = store.list_dir("")?;
        let is_shown = |name: &&[u8]| !name.starts_with(b".");
        let names = top.objects.iter().map(|object| object.key.as_bytes());
        let names = names.filter(is_shown).map(<[u8]>::to_vec).collect();
        let dirs = top.dirs.iter().map(|dir| dir.as_bytes());
        let dirs = dirs.filter(is_shown).map(<[u8]>::to_vec).collect();
        let files = TopFiles::of_store(store, dirs, names);
        if let Some((layout, found)) = find_archives(&files, &shown, options)? {
            let mut collector = Collector::new(progress, cancel);
            let facts = found.read(&mut collector, options.jobs)?;
            for object in &top.objects {
                let name = object.key.as_bytes();
                if Members::keeps_text(name) && object.len <= LIST_MAX_BYTES {
                    let text = store.get(&object.key, LIST_MAX_BYTES)?;
                    let place = MemberLocation {
                        archive: 0,
                        offset: 0,
                    };
                    let members = &mut collector.collected.members;
                    members.push(name, text.len() as u64, place, ContentKind::NotAnImage);
                    members.texts.insert(name.to_vec(), text);
                }
            }
            let set = Some((layout, facts));
            return Ok(Self::of(options, collector.finish()?, set));
        }
        let listed = objects::list(store, progress, cancel)?;
        if listed.members.below(b"").next().is_none() {
            return Err(Error::source(&shown, "there is nothing there"));
        }
        Ok(Self {
            archives: vec![SourceArchive::of_objects(listed.objects)],
            findings: listed.findings,
            ..Self::of_tree(options, Tree::Listing(listed.members))
        })
    }

    /// Opens an archive, local or in a store.
    pub fn of_archive(
        archive: &Archive,
        options: &SourceOptions,
        progress: &dyn Progress,
        cancel: &Cancel,
    ) -> Result<Self> {
        let collected = walk::collect(archive, progress, cancel)?;
        Ok(Self::of(options, collected, None))
    }

    fn of(
        options: &SourceOptions,
        mut collected: Collected,
        archive_set: Option<(SourceLayout, ArchiveFacts)>,
    ) -> Self {
        collected.members.is_mounted = archive_set.is_some();
        Self {
            archives: collected.archives,
            boxes: collected.boxes,
            archive_set,
            findings: collected.findings,
            warnings: collected.warnings,
            ..Self::of_tree(options, Tree::Members(collected.members))
        }
    }

    fn of_tree(options: &SourceOptions, tree: Tree) -> Self {
        Self {
            tree,
            root: options.root(),
            options: options.clone(),
            archives: Vec::new(),
            boxes: BoxIndex::default(),
            archive_set: None,
            findings: Vec::new(),
            warnings: Vec::new(),
        }
    }

    /// Returns the archives of the source, or the store whose objects are its files; empty for a directory.
    pub fn archives(&self) -> &[SourceArchive] {
        &self.archives
    }

    /// Returns findings about files that were left out while the source was opened.
    pub fn findings(&self) -> &[Finding] {
        &self.findings
    }

    /// Returns warnings for the user.
    pub fn warnings(&self) -> &[String] {
        &self.warnings
    }

    /// Returns the order of classes that no list numbers.
    pub(super) fn class_order(&self) -> ClassOrder {
        self.options.class_order
    }

    /// Reads the names at the top of the source.
    pub(super) fn top(&self) -> Result<Top<'_>> {
        Top::read(&self.tree, &self.root)
    }

    /// Detects the layout of the source and its splits. With `labelled`, the classes come from a file of labels and directories
    /// are not classes.
    pub(super) fn arrange(
        &self,
        top: &Top<'_>,
        labelled: bool,
    ) -> Result<(SourceLayout, Arrangement)> {
        let facts = self.archive_set.as_ref();
        let context = LayoutContext {
            split: self.options.split.as_deref(),
            labelled,
            has_boxes: facts.is_some_and(|(_, facts)| facts.has_boxes),
        };
        let found = facts.map(|(layout, _)| *layout);
        let asked = found.or(self.options.layout);
        let (layout, mut arrangement) = layout::arrange(top, asked, &context)?;
        if let Some((_, facts)) = facts {
            arrangement.classes.clone_from(&facts.classes);
            arrangement.validation.clone_from(&facts.validation);
        }
        Ok((layout, arrangement))
    }

    /// Returns the objects, if the source is a store.
    fn objects(&self) -> Option<&Objects> {
        self.archives.first()?.objects.as_deref()
    }

    /// Reads the first bytes of the objects in `splits` whose names are not those of images. Files and members of archives need
    /// no such step: their first bytes were read when they were listed.
    pub fn identify(&mut self, splits: &[SplitSource], cancel: &Cancel) -> Result<()> {
        let archive = self.archives.first();
        let objects = archive.and_then(|archive| archive.objects.clone());
        if let (Tree::Listing(members), Some(objects)) = (&mut self.tree, objects) {
            for split in splits {
                let dirs = split.units.iter().map(LayoutUnit::range);
                objects.look(members, &split.dir, dirs, cancel)?;
            }
        }
        Ok(())
    }

    /// Lists the image files of a split, unit by unit in byte order of their keys, and the files that were left out. The result
    /// does not depend on the number of threads.
    pub fn list(
        &self,
        split: &SplitSource,
        progress: &dyn Progress,
        cancel: &Cancel,
    ) -> Result<Vec<(FileList, FindingList)>> {
        let (dir, units) = (&split.dir, &split.units);
        if let Tree::Members(tree) | Tree::Listing(tree) = &self.tree {
            let list =
                |unit: &LayoutUnit| member_files::collect(tree, &self.archives, dir, unit.range());
            return Ok(units.iter().map(list).collect());
        }
        // Listing is bound by the disk or the network, not by the CPU, so it uses a few more threads than cores.
        let threads = (self.options.jobs * 2).clamp(4, 32);
        let walked = map_parallel(
            units,
            threads,
            &|| cancel.is_cancelled(),
            || (),
            |(), unit| directory::walk(&self.root, dir, unit.range(), progress, cancel),
        );
        if cancel.is_cancelled() {
            return Err(Error::Interrupted);
        }
        Ok(walked.into_iter().flatten().collect())
    }

    /// Returns the boxes of images, if records have boxes, and findings about annotations that cannot be read.
    ///
    /// # Errors
    /// [`Error::Source`] for too many boxes, or if the store fails.
    pub fn boxes(
        &mut self,
        survey: &Survey,
        cancel: &Cancel,
    ) -> Result<(Option<BoxIndex>, Vec<Finding>)> {
        let dirs = &survey.annotation_dirs;
        let read = match &self.tree {
            _ if dirs.is_empty() => None,
            Tree::Directory => {
                let jobs = self.options.jobs;
                Some(boxes::read_dir(&self.root, dirs, jobs, cancel))
            }
            Tree::Listing(members) => match self.objects() {
                Some(objects) => Some(objects.read_boxes(members, dirs, cancel)?),
                None => None,
            },
            Tree::Members(_) => None,
        };
        let (boxes, findings) = match read {
            Some((mut boxes, findings)) => {
                let finished = boxes.finish();
                finished.map_err(|what| Error::source(&self.root, what))?;
                (boxes, findings)
            }
            None => (std::mem::take(&mut self.boxes), Vec::new()),
        };
        if cancel.is_cancelled() {
            return Err(Error::Interrupted);
        }
        Ok((survey.has_boxes.then_some(boxes), findings))
    }
}

/// Returns the archives of the forced layout, or of the first layout that recognizes its archives.
fn find_archives(
    top: &TopFiles<'_>,
    shown: impl Display,
    options: &SourceOptions,
) -> Result<Option<(SourceLayout, Box<dyn FoundArchives>)>> {
    let forced = options.layout.is_some();
    for layout in SourceLayout::all() {
        let Some(set) = layout.archive_set() else {
            continue;
        };
        if options.layout.is_none_or(|asked| asked == layout) {
            match set.find(top, forced, options.split.as_deref()) {
                Some(found) => return Ok(Some((layout, found))),
                None if forced => {
                    let what = format!("there is no {}", set.expected());
                    return Err(Error::source(shown.to_string(), what));
                }
                None => {}
            }
        }
    }
    Ok(None)
}

fn refuse_single_archive(shown: impl Display, options: &SourceOptions) -> Result<()> {
    if options
        .layout
        .is_some_and(|layout| layout.archive_set().is_some())
    {
        let what = "this layout is a directory of archives";
        return Err(Error::source(shown.to_string(), what));
    }
    Ok(())
}
