//! The top of a source: the names in a directory on disk, in an archive or in a store. Links are followed.

use super::ancestors::{DirId, ancestors};
use super::contents::Contents;
use super::tree::Tree;
use crate::class_list::read_list;
use crate::error::{Error, Result};
use crate::finding::{Action, Finding, Reason};
use crate::key_path::{base, join};
use crate::system_names::left_aside;
use std::ffi::OsStr;
use std::io;
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::path::{Path, PathBuf};

/// Advice about a directory with images that is not part of the dataset.
const IMAGES_OUTSIDE: &str = "images in a directory that is neither a split nor a class: pack it by itself, or move it below a split or a class";

/// The names in one directory, sorted.
#[derive(Debug)]
pub(crate) struct Top<'t> {
    pub(crate) tree: &'t Tree,
    /// The directory.
    pub(crate) path: PathBuf,
    /// The directory relative to the source; empty for the source itself.
    pub(crate) relative: Vec<u8>,
    /// Directories that are not ignored, in byte order of the keys below them.
    pub(crate) dirs: Vec<Vec<u8>>,
    /// Files that are not ignored.
    pub(crate) files: Vec<Vec<u8>>,
    /// Entries that are ignored.
    aside: Vec<Aside>,
}

/// An entry that is not part of the dataset because of its name.
#[derive(Debug)]
struct Aside {
    /// Path relative to the source.
    path: Vec<u8>,
    is_dir: bool,
    reason: Reason,
}

impl<'t> Top<'t> {
    /// Returns the top of a source. If an archive has only one directory and that has subdirectories, the directory is the top.
    pub(crate) fn read(tree: &'t Tree, path: &Path) -> Result<Self> {
        let mut top = Self::read_at(tree, path, &[])?;
        if !top.is_archive() {
            return Ok(top);
        }
        while let [dir] = top.dirs.as_slice() {
            let has_images = |top: &Self| {
                top.files
                    .iter()
                    .any(|name| crate::sniff::has_image_name(name))
            };
            if crate::key_path::split_name(dir).is_some() || has_images(&top) {
                break;
            }
            let below = top.below(dir)?;
            if below.dirs.is_empty() || has_images(&below) {
                break;
            }
            let aside = top.aside.into_iter().chain(below.aside).collect();
            top = Self { aside, ..below };
        }
        Ok(top)
    }

    /// Returns the names in a directory below this one, which may be several levels down.
    pub(crate) fn below(&self, dir: &[u8]) -> Result<Self> {
        Self::read_at(
            self.tree,
            &self.path.join(OsStr::from_bytes(dir)),
            &join(&self.relative, dir),
        )
    }

    /// Returns whether the source is a single archive.
    pub(crate) fn is_archive(&self) -> bool {
        matches!(self.tree, Tree::Members(members) if !members.is_mounted)
    }

    /// Returns whether a directory exists below this one, which may be several levels down.
    pub(crate) fn has_dir(&self, dir: &[u8]) -> bool {
        match self.tree {
            Tree::Directory => self.path.join(OsStr::from_bytes(dir)).is_dir(),
            Tree::Members(members) | Tree::Listing(members) => {
                members.below(&join(&self.relative, dir)).next().is_some()
            }
        }
    }

    /// Reads a small file in this directory; `None` if it does not exist.
    pub(crate) fn list_file(&self, name: &str) -> Result<Option<(PathBuf, Vec<u8>)>> {
        if !self.files.iter().any(|file| file == name.as_bytes()) {
            return Ok(None);
        }
        let path = self.path.join(name);
        let bytes = match self.tree {
            Tree::Directory => read_list(&path)?,
            Tree::Members(members) | Tree::Listing(members) => {
                let text = members.texts.get(&join(&self.relative, name.as_bytes()));
                text.cloned().ok_or_else(|| {
                    Error::source(&path, "it cannot be read, or is too large for a class list")
                })?
            }
        };
        Ok(Some((path, bytes)))
    }

    fn read_at(tree: &'t Tree, path: &Path, relative: &[u8]) -> Result<Self> {
        let mut top = Self {
            tree,
            path: path.to_path_buf(),
            relative: relative.to_vec(),
            dirs: Vec::new(),
            files: Vec::new(),
            aside: Vec::new(),
        };
        match tree {
            Tree::Directory => top.read_directory()?,
            Tree::Members(members) | Tree::Listing(members) => {
                let (dirs, files) = members.list(relative);
                dirs.into_iter().for_each(|name| top.push(name, true));
                files.into_iter().for_each(|name| top.push(name, false));
            }
        }
        // Sort by the keys of the files below: `a-b/x` comes before `a/x`.
        top.dirs
            .sort_by_cached_key(|name| [name, b"/".as_slice()].concat());
        top.files.sort();
        top.aside.sort_by(|a, b| a.path.cmp(&b.path));
        Ok(top)
    }

    fn read_directory(&mut self) -> Result<()> {
        let path = self.path.clone();
        let fail = |error: io::Error| Error::source(&path, explain(&error));
        // A link to this directory or to one of its ancestors is not a class.
        let mut circles = ancestors(&path);
        circles.extend(std::fs::metadata(&path).ok().map(|meta| DirId::of(&meta)));
        for entry in std::fs::read_dir(&path).map_err(fail)? {
            let entry = entry.map_err(fail)?;
            let name = entry.file_name().into_vec();
            let kind = entry.file_type().map_err(fail)?;
            let linked = (kind.is_symlink())
                .then(|| std::fs::metadata(entry.path()).ok())
                .flatten();
            let linked = linked.filter(|meta| meta.is_dir());
            let is_dir = kind.is_dir() || linked.is_some();
            let is_loop = linked.is_some_and(|meta| circles.contains(&DirId::of(&meta)));
            if is_loop && !name.starts_with(b".") {
                self.aside.push(Aside {
                    path: join(&self.relative, &name),
                    is_dir: false,
                    reason: Reason::LinkLoop,
                });
            } else {
                self.push(name, is_dir);
            }
        }
        Ok(())
    }

    /// Returns a finding for each ignored entry, with the number of its files.
    pub(crate) fn aside(&self) -> impl Iterator<Item = Finding> + '_ {
        self.aside.iter().map(|entry| {
            let files = match entry.is_dir {
                true => self.contents(&entry.path, false).files,
                false => 1,
            };
            Finding::new(Action::Ignored, entry.reason, &entry.path, "").of_files(files)
        })
    }

    /// Counts the files in a directory here; `path` is relative to the source.
    fn contents(&self, path: &[u8], is_part: bool) -> Contents {
        match self.tree {
            Tree::Directory => {
                let dir = self.path.join(OsStr::from_bytes(base(path)));
                Contents::of_dir(&dir, is_part)
            }
            Tree::Members(members) | Tree::Listing(members) => Contents::of_members(members, path),
        }
    }

    /// Counts the images in a directory below this one.
    pub(crate) fn images_in(&self, dir: &[u8]) -> u64 {
        self.contents(&join(&self.relative, dir), true).images
    }

    fn push(&mut self, name: Vec<u8>, is_dir: bool) {
        if let Some(reason) = left_aside(&name) {
            let path = join(&self.relative, &name);
            self.aside.push(Aside {
                path,
                is_dir,
                reason,
            });
        } else if is_dir {
            self.dirs.push(name);
        } else {
            self.files.push(name);
        }
    }

    /// Returns findings about files outside of all classes: images count as skipped, other files as ignored.
    pub(crate) fn outside_files(&self) -> impl Iterator<Item = Finding> + '_ {
        self.files.iter().map(|name| {
            let action = if crate::sniff::has_image_name(name) {
                Action::Skipped
            } else {
                Action::Ignored
            };
            Finding::new(action, Reason::Outside, &join(&self.relative, name), "")
        })
    }
}

impl Top<'_> {
    /// Returns findings about directories that are neither classes nor `known`: images in them count as skipped.
    pub(crate) fn outside_dirs<'a>(
        &'a self,
        known: impl Fn(&[u8]) -> bool + 'a,
    ) -> impl Iterator<Item = Finding> + 'a {
        let dirs = self.dirs.iter().filter(move |dir| !known(dir));
        dirs.flat_map(|dir| {
            let path = join(&self.relative, dir);
            let found = self.contents(&path, true);
            let others = found.files - found.images;
            let images = Finding::new(Action::Skipped, Reason::Outside, &path, IMAGES_OUTSIDE);
            let others = (others > 0 || found.images == 0).then(|| {
                Finding::new(Action::Ignored, Reason::Outside, &path, "").of_files(others)
            });
            let images = (found.images > 0).then(|| images.of_files(found.images));
            images.into_iter().chain(others)
        })
    }

    /// Returns a finding with the number of files of a split that is not packed.
    pub(crate) fn not_selected(&self, dir: &[u8]) -> Finding {
        let path = join(&self.relative, dir);
        let files = self.contents(&path, true).files;
        Finding::new(Action::Ignored, Reason::NotSelected, &path, "").of_files(files)
    }

    /// Returns directories beside the source that may contain class lists: the parent of an archive, or with `above` the parent
    /// of a directory.
    pub(crate) fn lists_beside(&self, above: bool) -> Vec<PathBuf> {
        let path = match self.tree {
            // A location in a store has no parent to search.
            Tree::Listing(_) => return Vec::new(),
            Tree::Directory if !above => return Vec::new(),
            Tree::Directory => Some(self.path.as_path()),
            // The path of a member begins with the path of its archive.
            Tree::Members(_) => self.path.ancestors().find(|path| path.is_file()),
        };
        let absolute = path.and_then(|path| std::path::absolute(path).ok());
        let parent = absolute.and_then(|path| Some(path.parent()?.to_path_buf()));
        parent.into_iter().collect()
    }
}

fn explain(error: &io::Error) -> String {
    match error.kind() {
        io::ErrorKind::NotFound => "there is no such directory".into(),
        io::ErrorKind::NotADirectory => "this is not a directory".into(),
        io::ErrorKind::PermissionDenied => {
            "the directory may not be read (permission denied)".into()
        }
        _ => format!("the directory cannot be listed: {error}"),
    }
}
