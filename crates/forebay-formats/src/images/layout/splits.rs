//! `<split>/<class>/<file>`: directories at the top named train, val or test, and directories beside them that have the same
//! classes. `val` and `valid` become the split `validation`, as in TensorFlow; others keep their names.

use super::classes::units;
use super::{Arrangement, Layout, LayoutContext, SplitSource};
use crate::error::{Error, Result};
use crate::finding::escape;
use crate::images::walk::Top;
use crate::key_path::{is_split_name, split_name};
use forebay_shard::some_of;
use std::collections::BTreeSet;

pub(super) static LAYOUT: Layout = Layout {
    name: "splits",
    summary: "a folder with splits",
    example: "\
SRC/                                          or an archive of it
  train/n01440764/n01440764_10026.JPEG
  val/n01440764/ILSVRC2012_val_00000293.JPEG
  test/ILSVRC2012_test_00000001.JPEG
  extra/n01440764/x.png                       a split of its name: its classes are those of the others",
    names_splits: true,
    labels_by_directories: true,
    archive_set: None,
    recognizes,
    arrange,
};

/// A directory with the name of a split may also be a class (of trains). It is a split if it contains directories, if all
/// directories at the top have names of splits, or if several do.
pub(super) fn recognizes(top: &Top<'_>, _context: &LayoutContext<'_>) -> Result<bool> {
    let named: Vec<_> = top
        .dirs
        .iter()
        .filter(|dir| split_name(dir).is_some())
        .collect();
    if named.is_empty() {
        return Ok(false);
    }
    if named.len() == top.dirs.len() || named.len() > 1 {
        return Ok(true);
    }
    for dir in named {
        if !top.below(dir)?.dirs.is_empty() {
            return Ok(true);
        }
    }
    Ok(false)
}

pub(super) fn arrange(top: &Top<'_>, context: &LayoutContext<'_>) -> Result<Arrangement> {
    let mut arrangement = Arrangement {
        findings: top.aside().collect(),
        ..Arrangement::default()
    };
    let (wanted, others) = find_splits(top, context.split, &mut arrangement)?;
    arrangement.findings.extend(top.outside_files());
    for (name, dir) in wanted {
        let below = top.below(dir)?;
        let units = context.units(units(&below, &mut arrangement));
        arrangement.splits.push(SplitSource {
            name,
            dir: below.relative,
            units,
        });
    }
    for dir in others {
        arrangement.class_dirs.extend(top.below(dir)?.dirs);
    }
    Ok(arrangement)
}

/// A split's name and its directory.
type Named<'t> = (String, &'t [u8]);

/// Returns further directories that are splits: those with images in classes that the named splits have, or, if these have no
/// classes, those with images and no directories.
fn alike<'t>(top: &'t Top<'_>) -> Result<Vec<Named<'t>>> {
    let is_known = |dir: &&Vec<u8>| split_name(dir).is_some();
    let mut classes = BTreeSet::new();
    for dir in top.dirs.iter().filter(is_known) {
        classes.extend(top.below(dir)?.dirs);
    }
    let mut found = Vec::new();
    for dir in top.dirs.iter().filter(|dir| !is_known(dir)) {
        let name = std::str::from_utf8(dir).ok();
        let Some(name) = name.filter(|name| is_split_name(name)) else {
            continue;
        };
        let own = top.below(dir)?.dirs;
        let is_alike = own.iter().any(|class| classes.contains(class));
        if (is_alike || own.is_empty() && classes.is_empty()) && top.images_in(dir) > 0 {
            found.push((name.to_owned(), dir.as_slice()));
        }
    }
    Ok(found)
}

/// Returns the directories of the requested splits, sorted by name, and those of the other splits.
pub(super) fn find_splits<'t>(
    top: &'t Top<'_>,
    split: Option<&str>,
    arrangement: &mut Arrangement,
) -> Result<(Vec<Named<'t>>, Vec<&'t [u8]>)> {
    let mut found = alike(top)?;
    for dir in &top.dirs {
        let Some(name) = split_name(dir) else {
            continue;
        };
        if let Some((_, other)) = found.iter().find(|(known, _)| *known == name) {
            let what = format!(
                "both {}/ and {}/ would be the split {name}",
                escape(other),
                escape(dir)
            );
            return Err(Error::source(&top.path, what));
        }
        found.push((name.to_owned(), dir));
    }
    let is_split = |dir: &[u8]| found.iter().any(|(_, split)| *split == dir);
    arrangement.findings.extend(top.outside_dirs(is_split));
    found.sort();
    let is_wanted =
        |(name, dir): &Named<'_>| split.is_none_or(|s| s == name || s.as_bytes() == *dir);
    let names: Vec<String> = found.iter().map(|(name, _)| name.clone()).collect();
    let (wanted, others): (Vec<_>, Vec<_>) = found.into_iter().partition(is_wanted);
    if wanted.is_empty() {
        let what = match split {
            Some(asked) => format!("there is no split {asked}, only {}", some_of(names)),
            None => "there is no directory named train, val or test".into(),
        };
        return Err(Error::source(&top.path, what));
    }
    let others: Vec<&[u8]> = others.into_iter().map(|(_, dir)| dir).collect();
    let not_selected = others.iter().map(|dir| top.not_selected(dir));
    arrangement.findings.extend(not_selected);
    Ok((wanted, others))
}
