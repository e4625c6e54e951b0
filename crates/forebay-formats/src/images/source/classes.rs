//! Numbers the classes of a source.
//!
//! Numbers come from a list if there is one, so that a subset has the same numbers as the whole dataset. A class directory that
//! is not in the list is an error. Without a list, class directories are numbered in byte order, or in the order of the option.

use crate::class_list::{
    CLASSES, ClassList, ClassName, FileClasses, KNOWN_NAMES, SYNSET_LABELS, VALIDATION_SOLUTION,
    parse, read_list, synset_labels,
};
use crate::class_order::ClassOrder;
use crate::error::Result;
use crate::finding::Finding;
use crate::images::layout::{Arrangement, LayoutUnit};
use crate::images::walk::Top;
use crate::name_forms::composed;
use crate::option_names;
use std::borrow::Cow;
use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};

/// Returns the class list of a source, and the list with the classes of its validation files, if there is one.
pub(super) fn decide(
    top: &Top<'_>,
    given: Option<&Path>,
    order: ClassOrder,
    arrangement: &mut Arrangement,
) -> Result<(ClassList, Option<FileClasses>)> {
    let validation = arrangement.validation.take();
    let (list, files) = decide_classes(top, given, order, arrangement)?;
    let dirs: BTreeSet<&Vec<u8>> = arrangement.class_dirs.iter().collect();
    let others = dirs.iter().filter(|dir| list.has_other_form(dir)).count() as u64;
    let origin = list.origin().unwrap_or(&top.path);
    arrangement
        .findings
        .extend(Finding::other_forms(origin, others));
    let files = validation.or(files);
    if files.is_none()
        && let Some((origin, bytes)) = find(top, arrangement, VALIDATION_SOLUTION)?
    {
        return Ok((list, Some(FileClasses::by_solution(origin, bytes))));
    }
    Ok((list, files))
}

/// Returns the distinct names of class directories. Names that differ only in their Unicode form are one class, unless a split
/// has both directories.
fn one_form_each(arrangement: &Arrangement) -> Vec<Vec<u8>> {
    let mut forms: BTreeMap<Cow<'_, [u8]>, BTreeSet<&[u8]>> = BTreeMap::new();
    for name in &arrangement.class_dirs {
        forms.entry(composed(name)).or_default().insert(name);
    }
    let mut names = Vec::with_capacity(forms.len());
    for (form, written) in forms {
        let is_there = |units: &[LayoutUnit], name: &[u8]| {
            let mut units = units.iter();
            units.any(|unit| matches!(unit, LayoutUnit::Class(class) if class == name))
        };
        let are_apart = written.len() > 1
            && arrangement.splits.iter().any(|split| {
                let own = written.iter().filter(|name| is_there(&split.units, name));
                own.count() > 1
            });
        match written.first() {
            Some(_) if are_apart => names.extend(written.iter().map(|name| name.to_vec())),
            Some(_) if written.contains(form.as_ref()) => names.push(form.into_owned()),
            first => names.extend(first.map(|name| name.to_vec())),
        }
    }
    names
}

/// Finds a list at the top of the source, or in the other directories where its layout has lists.
fn find(
    top: &Top<'_>,
    arrangement: &Arrangement,
    name: &str,
) -> Result<Option<(PathBuf, Vec<u8>)>> {
    if let Some(found) = top.list_file(name)? {
        return Ok(Some(found));
    }
    for dir in &arrangement.list_dirs {
        let path = dir.join(name);
        if path.is_file() {
            let bytes = read_list(&path)?;
            return Ok(Some((path, bytes)));
        }
    }
    Ok(None)
}

fn decide_classes(
    top: &Top<'_>,
    given: Option<&Path>,
    order: ClassOrder,
    arrangement: &mut Arrangement,
) -> Result<(ClassList, Option<FileClasses>)> {
    if let Some(path) = given {
        return Ok((
            ClassList::new(parse(&read_list(path)?), Some(path.to_path_buf()))?,
            None,
        ));
    }
    if let Some((classes, origin)) = arrangement.classes.take() {
        return Ok((ClassList::new(classes, Some(origin))?, None));
    }
    for name in KNOWN_NAMES {
        let Some((path, bytes)) = find(top, arrangement, name)? else {
            continue;
        };
        let lines = parse(&bytes);
        match *name {
            SYNSET_LABELS => return synset_labels(lines, path),
            // Files called classes.txt have various contents, so one is used only if it has every class directory.
            CLASSES => {
                let dirs = &arrangement.class_dirs;
                match ClassList::new(lines, Some(path.clone())) {
                    Ok(list) if dirs.iter().all(|dir| list.index_of(dir).is_some()) => return Ok((list, None)),
                    _ => arrangement.warnings.push(format!(
                        "{} does not list every class directory once and is not used; {} FILE insists on a list",
                        path.display(),
                        option_names::CLASSES
                    )),
                }
                break;
            }
            _ => return Ok((ClassList::new(lines, Some(path))?, None)),
        }
    }
    let mut names = one_form_each(arrangement);
    names.sort_by(|a, b| order.compare(a, b));
    let classes = names
        .into_iter()
        .map(|name| ClassName { name, text: None })
        .collect();
    Ok((ClassList::new(classes, None)?, None))
}
