//! `<class>/<file>`: the directories at the top are the classes. Without directories, the files at the top are images without
//! labels, such as those of test sets.

use super::{Arrangement, Layout, LayoutContext, LayoutUnit, SplitSource};
use crate::error::{Error, Result};
use crate::images::walk::Top;
use crate::key_path::split_name;
use crate::key_path::stem;
use std::os::unix::ffi::OsStrExt;

pub(super) static LAYOUT: Layout = Layout {
    name: "classes",
    summary: "a folder of classes",
    example: "\
SRC/                                          or an archive of it
  n01440764/n01440764_10026.JPEG
  n01443537/any/depth/below.png
  classes.txt                                 optional",
    names_splits: false,
    labels_by_directories: true,
    archive_set: None,
    recognizes: |_, _| Ok(true),
    arrange,
};

pub(super) fn arrange(top: &Top<'_>, context: &LayoutContext<'_>) -> Result<Arrangement> {
    // The name of the source may be that of a split: `pack imagenet/val OUT` packs the validation split.
    let own_name = top
        .path
        .file_name()
        .and_then(|name| own_split(name.as_bytes(), top.is_archive()));
    let name = context.split.or(own_name).unwrap_or("train").to_owned();
    let mut arrangement = Arrangement::default();
    let units = context.units(units(top, &mut arrangement));
    if units.is_empty() {
        return Err(Error::source(&top.path, "the directory is empty"));
    }
    arrangement.splits.push(SplitSource {
        name,
        dir: top.relative.clone(),
        units,
    });
    Ok(arrangement)
}

/// Returns the split that the name of a source stands for. Archives have names such as `val.tar` and
/// `ILSVRC2012_img_val.tar.gz`.
fn own_split(name: &[u8], is_archive: bool) -> Option<&'static str> {
    if !is_archive {
        return split_name(name);
    }
    let mut stem = stem(name);
    if let Some(shorter) = stem.strip_suffix(b".tar") {
        stem = shorter;
    }
    let last = stem
        .rsplit(|byte| matches!(byte, b'_' | b'-' | b'.'))
        .next();
    last.and_then(split_name)
}

/// Returns the units of a split whose classes are the directories in `top`.
pub(super) fn units(top: &Top<'_>, arrangement: &mut Arrangement) -> Vec<LayoutUnit> {
    arrangement.findings.extend(top.aside());
    arrangement.class_dirs.extend(top.dirs.iter().cloned());
    if top.dirs.is_empty() {
        return if top.files.is_empty() {
            Vec::new()
        } else {
            vec![LayoutUnit::Flat]
        };
    }
    arrangement.findings.extend(top.outside_files());
    top.dirs.iter().cloned().map(LayoutUnit::Class).collect()
}
