//! Layouts of several archives in one directory, local or in a store.

use crate::class_list::{ClassName, FileClasses};
use crate::error::Result;
use crate::finding::{Action, Finding, Reason};
use crate::images::Archive;
use crate::images::walk::Collector;
use crate::sniff::has_image_name;
use forebay_store::Store;
use std::ffi::OsStr;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};

/// The archives of a layout.
pub(crate) trait ArchiveSet: Send + Sync {
    /// Returns which archives are expected, for an error.
    fn expected(&self) -> String;

    /// Finds the archives among the files at the top of a source. `forced` is set if the user named the layout.
    fn find(
        &self,
        top: &TopFiles<'_>,
        forced: bool,
        split: Option<&str>,
    ) -> Option<Box<dyn FoundArchives>>;
}

/// The archives of a source that were found.
pub(crate) trait FoundArchives {
    /// Reads all headers into one tree, and small archives completely. If there are many archives, `jobs` are read in parallel.
    fn read(&self, collector: &mut Collector<'_>, jobs: usize) -> Result<ArchiveFacts>;
}

/// Facts from archives other than their images.
#[derive(Debug, Default)]
pub(crate) struct ArchiveFacts {
    /// The classes in the order of their labels, and the file they are from.
    pub(crate) classes: Option<(Vec<ClassName>, PathBuf)>,
    /// The class of each validation file.
    pub(crate) validation: Option<FileClasses>,
    /// Whether archives with boxes exist.
    pub(crate) has_boxes: bool,
}

/// Returns the finding about a file that is not part of the layout.
pub(super) fn outside(name: &[u8]) -> Finding {
    let action = match has_image_name(name) {
        true => Action::Skipped,
        false => Action::Ignored,
    };
    Finding::new(action, Reason::Outside, name, "")
}

/// The names at the top of a directory or store, without hidden ones.
pub(crate) struct TopFiles<'a> {
    pub(crate) dirs: Vec<Vec<u8>>,
    pub(crate) files: Vec<Vec<u8>>,
    place: TopLocation<'a>,
}

enum TopLocation<'a> {
    Directory(&'a Path),
    Store(&'a Store),
}

impl<'a> TopFiles<'a> {
    pub(crate) fn of_directory(path: &'a Path, dirs: Vec<Vec<u8>>, files: Vec<Vec<u8>>) -> Self {
        let place = TopLocation::Directory(path);
        Self { dirs, files, place }
    }

    pub(crate) fn of_store(store: &'a Store, dirs: Vec<Vec<u8>>, mut files: Vec<Vec<u8>>) -> Self {
        files.sort();
        let place = TopLocation::Store(store);
        Self { dirs, files, place }
    }

    /// Returns a file at the top as an archive.
    pub(crate) fn archive(&self, name: &[u8]) -> Archive {
        match self.place {
            TopLocation::Directory(path) => Archive::Local(path.join(OsStr::from_bytes(name))),
            TopLocation::Store(store) => {
                Archive::Object(store.clone(), String::from_utf8_lossy(name).into_owned())
            }
        }
    }
}
