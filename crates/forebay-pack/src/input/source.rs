//! The source as the layouts see it: a directory, or the tree of the members of one archive or several.

use super::academic::{self, Academic};
use super::archive::{self, Archive, Collected, Members, Volume};
use super::boxes::BoxIndex;
use super::objects;
use super::{LayoutKind, Top};
use crate::error::{Error, Result};
use crate::observer::{Cancel, Observer};
use crate::options::PackOptions;
use crate::report::Finding;
use forebay_store::{CopyError, CopySource, Store};
use std::path::Path;

const NO_ARCHIVES: &str =
    "there is no ILSVRC2012_img_train.tar, ILSVRC2012_img_val.tar or ILSVRC2012_img_test.tar";

/// Where names and bytes come from.
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
    pub(crate) academic: Option<Academic>,
    pub(crate) findings: Vec<Finding>,
    pub(crate) warnings: Vec<String>,
}

impl Source {
    /// Looks at what is there. The headers of archives are read, which may take a while.
    pub(crate) fn open(
        options: &PackOptions,
        observer: &dyn Observer,
        cancel: &Cancel,
    ) -> Result<Self> {
        if options.src.is_remote() {
            return Self::open_remote(options, observer, cancel);
        }
        let path = options.src.local_path()?;
        let forced = options.layout;
        if std::fs::metadata(path).is_ok_and(|meta| meta.is_dir()) {
            let found = academic::find(path, options.split.as_deref())?;
            return match (found, forced) {
                (Some(archives), None | Some(LayoutKind::Academic)) => {
                    let (collected, academic) = archives.read(observer, cancel)?;
                    Ok(Self::of(collected, Some(academic)))
                }
                (None, Some(LayoutKind::Academic)) => Err(Error::source(path, NO_ARCHIVES)),
                _ => Ok(Self {
                    tree: Tree::Directory,
                    volumes: Vec::new(),
                    boxes: BoxIndex::default(),
                    academic: None,
                    findings: Vec::new(),
                    warnings: Vec::new(),
                }),
            };
        }
        if forced == Some(LayoutKind::Academic)
            && std::fs::metadata(path).is_ok_and(|meta| meta.is_file())
        {
            return Err(Error::source(
                path,
                "this layout is a directory of archives",
            ));
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
            if options.layout == Some(LayoutKind::Academic) {
                return Err(Error::source(
                    &shown,
                    "this layout is a directory of archives",
                ));
            }
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
        let found = academic::find_in_store(store, options.split.as_deref())?;
        match (found, options.layout) {
            (Some(archives), None | Some(LayoutKind::Academic)) => {
                let (collected, academic) = archives.read(observer, cancel)?;
                return Ok(Self::of(collected, Some(academic)));
            }
            (None, Some(LayoutKind::Academic)) => {
                return Err(Error::source(&shown, NO_ARCHIVES));
            }
            _ => {}
        }
        let listed = objects::list(store, observer, cancel)?;
        if listed.members.below(b"").next().is_none() {
            return Err(Error::source(&shown, "there is nothing there"));
        }
        Ok(Self {
            tree: Tree::Listing(listed.members),
            volumes: vec![listed.volume],
            boxes: BoxIndex::default(),
            academic: None,
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

    fn of(collected: Collected, academic: Option<Academic>) -> Self {
        Self {
            tree: Tree::Members(collected.members),
            volumes: collected.volumes,
            boxes: collected.boxes,
            academic,
            findings: collected.findings,
            warnings: collected.warnings,
        }
    }

    pub(crate) fn top(&self, path: &Path) -> Result<Top<'_>> {
        Top::read(&self.tree, path)
    }
}
