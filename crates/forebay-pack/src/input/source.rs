//! The source as the layouts see it: a directory, or the tree of the members of one archive or several.

use super::academic::{self, Academic};
use super::archive::{self, Collected, Members, Volume};
use super::boxes::BoxIndex;
use super::{LayoutKind, Top};
use crate::error::{Error, Result};
use crate::observer::{Cancel, Observer};
use crate::options::PackOptions;
use crate::report::Finding;
use std::path::Path;

/// Where names and bytes come from.
#[derive(Debug)]
pub(crate) enum Tree {
    Directory,
    Members(Members),
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
        let path = options.src.local_path()?;
        let forced = options.layout;
        if std::fs::metadata(path).is_ok_and(|meta| meta.is_dir()) {
            let found = academic::find(path, options.split.as_deref())?;
            return match (found, forced) {
                (Some(archives), None | Some(LayoutKind::Academic)) => {
                    let (collected, academic) = archives.read(observer, cancel)?;
                    Ok(Self::of(collected, Some(academic)))
                }
                (None, Some(LayoutKind::Academic)) => Err(Error::source(
                    path,
                    "there is no ILSVRC2012_img_train.tar, ILSVRC2012_img_val.tar or ILSVRC2012_img_test.tar",
                )),
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
        Ok(Self::of(archive::collect(path, observer, cancel)?, None))
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
