//! The top of a source: the names in a directory, links followed.

use crate::error::{Error, Result};
use crate::report::{Action, Finding, Reason, escape};
use std::ffi::OsStr;
use std::io;
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::path::{Path, PathBuf};

/// The names in one directory, sorted by bytes.
#[derive(Debug)]
pub(crate) struct Top {
    /// The directory.
    pub(crate) path: PathBuf,
    /// The directory relative to the source, empty for the source itself.
    pub(crate) relative: Vec<u8>,
    /// Directories, hidden ones left out, in the byte order of the keys below them.
    pub(crate) dirs: Vec<Vec<u8>>,
    /// Everything else, hidden ones left out.
    pub(crate) files: Vec<Vec<u8>>,
    /// What was passed over.
    pub(crate) findings: Vec<Finding>,
}

impl Top {
    pub(crate) fn read(path: &Path) -> Result<Self> {
        Self::read_at(path, &[])
    }

    /// The top of a directory in this one.
    pub(crate) fn below(&self, dir: &[u8]) -> Result<Self> {
        Self::read_at(
            &self.path.join(OsStr::from_bytes(dir)),
            &join(&self.relative, dir),
        )
    }

    fn read_at(path: &Path, relative: &[u8]) -> Result<Self> {
        let fail = |error: io::Error| Error::source(path, explain(&error));
        let mut top = Self {
            path: path.to_path_buf(),
            relative: relative.to_vec(),
            dirs: Vec::new(),
            files: Vec::new(),
            findings: Vec::new(),
        };
        for entry in std::fs::read_dir(path).map_err(fail)? {
            let entry = entry.map_err(fail)?;
            let name = entry.file_name().into_vec();
            let kind = entry.file_type().map_err(fail)?;
            let is_dir = kind.is_dir() || (kind.is_symlink() && entry.path().is_dir());
            if name.starts_with(b".") {
                top.findings.push(finding(
                    Action::Ignored,
                    Reason::Hidden,
                    &join(relative, &name),
                ));
            } else if is_dir {
                top.dirs.push(name);
            } else {
                top.files.push(name);
            }
        }
        // As the keys below will compare: `a-b/x` comes before `a/x`.
        top.dirs
            .sort_by_cached_key(|name| [name, b"/".as_slice()].concat());
        top.files.sort();
        top.findings.sort_by(|a, b| a.path.cmp(&b.path));
        Ok(top)
    }

    /// Says of each file here that it is outside of all classes: images are samples lost, other files are not.
    pub(crate) fn outside_files(&self) -> impl Iterator<Item = Finding> + '_ {
        self.files.iter().map(|name| {
            let action = if crate::sniff::has_image_name(name) {
                Action::Skipped
            } else {
                Action::Ignored
            };
            finding(action, Reason::Outside, &join(&self.relative, name))
        })
    }
}

pub(crate) fn join(dir: &[u8], name: &[u8]) -> Vec<u8> {
    if dir.is_empty() {
        name.to_vec()
    } else {
        [dir, b"/", name].concat()
    }
}

pub(super) fn finding(action: Action, reason: Reason, path: &[u8]) -> Finding {
    Finding {
        action,
        reason,
        path: escape(path),
        detail: String::new(),
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
