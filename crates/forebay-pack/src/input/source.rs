//! The source as the layouts see it: a directory, or the tree of the members of one archive or several.

use super::archive::{self, Archive, Collected, Collector, Kind, Members, Place, Volume};
use super::boxes::BoxIndex;
use super::layout::{ArchiveFacts, FoundArchives, SplitSource, TopFiles};
use super::objects::{self, Objects};
use super::{SourceLayout, Top};
use crate::error::{Error, Result};
use crate::observer::{Cancel, Observer};
use crate::options::PackOptions;
use crate::report::Finding;
use forebay_store::{CopyError, CopySource, Store};
use std::fmt::Display;
use std::path::Path;

/// A class list beside archives in a store is a thousand lines.
const LIST_MAX_BYTES: u64 = 16 << 20;

/// Source of names and bytes.
#[derive(Debug)]
pub(crate) enum Tree {
    Directory,
    Members(Members),
    /// The objects of a store, which are laid out as the files of a directory.
    Listing(Members),
}

/// A source that was looked at.
#[derive(Debug)]
pub(crate) struct Source {
    pub(crate) tree: Tree,
    /// The archives; none for a directory.
    pub(crate) volumes: Vec<Volume>,
    /// Boxes from annotations in archives.
    pub(crate) boxes: BoxIndex,
    /// The layout that the archives have together, and what they say.
    pub(crate) archives: Option<(SourceLayout, ArchiveFacts)>,
    pub(crate) findings: Vec<Finding>,
    pub(crate) warnings: Vec<String>,
}

impl Source {
    /// Opens a source. Reads the headers of archives, which may take a while.
    pub(crate) fn open(
        options: &PackOptions,
        observer: &dyn Observer,
        cancel: &Cancel,
    ) -> Result<Self> {
        if options.src.is_remote() {
            return Self::open_remote(options, observer, cancel);
        }
        let path = options.src.local_path()?;
        let meta = std::fs::metadata(path);
        if meta.as_ref().is_ok_and(|meta| meta.is_dir()) {
            let tree = Tree::Directory;
            let top = Top::read(&tree, path)?;
            let files = TopFiles::of_directory(path, top.dirs, top.files);
            if let Some((layout, found)) = find_archives(&files, path.display(), options)? {
                let mut collector = Collector::new(observer, cancel);
                let facts = found.read(&mut collector, options.decided_jobs())?;
                return Ok(Self::of(collector.finish()?, Some((layout, facts))));
            }
            return Ok(Self {
                tree,
                volumes: Vec::new(),
                boxes: BoxIndex::default(),
                archives: None,
                findings: Vec::new(),
                warnings: Vec::new(),
            });
        }
        if meta.is_ok_and(|meta| meta.is_file()) {
            refuse_single_archive(path.display(), options)?;
        }
        Self::of_archive(&path.into(), observer, cancel)
    }

    /// Looks at what is in a store: an archive, the archives of ILSVRC2012, or images.
    fn open_remote(
        options: &PackOptions,
        observer: &dyn Observer,
        cancel: &Cancel,
    ) -> Result<Self> {
        let shown = options.src.to_string();
        if let Some(path) = [&options.labels, &options.classes]
            .into_iter()
            .flatten()
            .find(|path| forebay_store::Location::parse(path).is_ok_and(|at| at.is_remote()))
        {
            return Err(Error::source(
                path,
                "lists are read from local files: copy it here first",
            ));
        }
        let found =
            CopySource::find(&options.src, &options.src_store).map_err(|error| match error {
                CopyError::Store(error) => Error::Store(error),
                error => Error::source(&shown, error.to_string()),
            })?;
        if let Some(key) = found.object() {
            refuse_single_archive(&shown, options)?;
            let archive = Archive::Object(found.store().clone(), key.to_owned());
            return Self::of_archive(&archive, observer, cancel);
        }
        if let Some(scheme @ ("http" | "https")) = options.src.scheme() {
            let what = format!(
                "{scheme}:// servers do not list what they have: name an archive there, or pack from a store that lists"
            );
            return Err(Error::source(&shown, what));
        }
        Self::open_store(found.store(), options, observer, cancel)
    }

    pub(crate) fn open_store(
        store: &Store,
        options: &PackOptions,
        observer: &dyn Observer,
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
            let mut collector = Collector::new(observer, cancel);
            let facts = found.read(&mut collector, options.decided_jobs())?;
            for object in &top.objects {
                let name = object.key.as_bytes();
                if Members::keeps_text(name) && object.len <= LIST_MAX_BYTES {
                    let text = store.get(&object.key, LIST_MAX_BYTES)?;
                    let place = Place {
                        volume: 0,
                        offset: 0,
                    };
                    let members = &mut collector.collected.members;
                    members.push(name, text.len() as u64, place, Kind::NotAnImage);
                    members.texts.insert(name.to_vec(), text);
                }
            }
            return Ok(Self::of(collector.finish()?, Some((layout, facts))));
        }
        let listed = objects::list(store, observer, cancel)?;
        if listed.members.below(b"").next().is_none() {
            return Err(Error::source(&shown, "there is nothing there"));
        }
        Ok(Self {
            tree: Tree::Listing(listed.members),
            volumes: vec![listed.volume],
            boxes: BoxIndex::default(),
            archives: None,
            findings: listed.findings,
            warnings: Vec::new(),
        })
    }

    /// Looks at an archive, wherever it is.
    pub(crate) fn of_archive(
        archive: &Archive,
        observer: &dyn Observer,
        cancel: &Cancel,
    ) -> Result<Self> {
        Ok(Self::of(archive::collect(archive, observer, cancel)?, None))
    }

    fn of(mut collected: Collected, archives: Option<(SourceLayout, ArchiveFacts)>) -> Self {
        collected.members.is_mounted = archives.is_some();
        Self {
            tree: Tree::Members(collected.members),
            volumes: collected.volumes,
            boxes: collected.boxes,
            archives,
            findings: collected.findings,
            warnings: collected.warnings,
        }
    }

    /// The objects of the store that is the source, if it is one.
    pub(crate) fn objects(&self) -> Option<&Objects> {
        self.volumes.first()?.objects.as_deref()
    }

    /// Finds out what the objects of splits are that have not the names of images.
    pub(crate) fn identify_objects(
        &mut self,
        splits: &[SplitSource],
        cancel: &Cancel,
    ) -> Result<()> {
        let objects = self
            .volumes
            .first()
            .and_then(|volume| volume.objects.clone());
        if let (Tree::Listing(members), Some(objects)) = (&mut self.tree, objects) {
            for split in splits {
                objects.look(members, &split.dir, &split.units, cancel)?;
            }
        }
        Ok(())
    }

    pub(crate) fn top(&self, path: &Path) -> Result<Top<'_>> {
        Top::read(&self.tree, path)
    }
}

/// The archives of the forced layout, or of the first layout that is recognized by archives.
fn find_archives(
    top: &TopFiles<'_>,
    shown: impl Display,
    options: &PackOptions,
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

fn refuse_single_archive(shown: impl Display, options: &PackOptions) -> Result<()> {
    if options
        .layout
        .is_some_and(|layout| layout.archive_set().is_some())
    {
        let what = "this layout is a directory of archives";
        return Err(Error::source(shown.to_string(), what));
    }
    Ok(())
}
