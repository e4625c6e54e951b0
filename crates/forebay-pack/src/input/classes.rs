//! `<class>/<file>`: the directories at the top are the classes. Without directories the files at the top are
//! images without a label, as test sets have them.

use super::{Arrangement, Layout, LayoutKind, SplitSource, Top, Unit, split_name};
use crate::error::{Error, Result};
use std::os::unix::ffi::OsStrExt;

pub(super) struct Classes;

impl Layout for Classes {
    fn kind(&self) -> LayoutKind {
        LayoutKind::Classes
    }

    fn recognises(&self, _top: &Top) -> Result<bool> {
        Ok(true)
    }

    fn arrange(&self, top: &Top, split: Option<&str>) -> Result<Arrangement> {
        // `pack imagenet/val OUT` means the validation split: the directory says so itself.
        let own_name = top
            .path
            .file_name()
            .and_then(|name| split_name(name.as_bytes()));
        let name = split.or(own_name).unwrap_or("train").to_owned();
        let mut arrangement = Arrangement::default();
        let units = units(top, &mut arrangement);
        if units.is_empty() {
            return Err(Error::source(&top.path, "the directory is empty"));
        }
        arrangement.splits.push(SplitSource {
            name,
            dir: Vec::new(),
            units,
        });
        Ok(arrangement)
    }
}

/// The units of one split whose classes are the directories in `top`.
pub(super) fn units(top: &Top, arrangement: &mut Arrangement) -> Vec<Unit> {
    arrangement.findings.extend(top.findings.iter().cloned());
    arrangement.class_dirs.extend(top.dirs.iter().cloned());
    if top.dirs.is_empty() {
        return if top.files.is_empty() {
            Vec::new()
        } else {
            vec![Unit::Flat]
        };
    }
    arrangement.findings.extend(top.outside_files());
    top.dirs.iter().cloned().map(Unit::Class).collect()
}
