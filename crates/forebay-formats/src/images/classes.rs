//! Which class has which number.
//!
//! Numbers come from a list where there is one, so that a subset keeps the numbers of the whole; a directory that the
//! list does not have is refused rather than guessed. Without a list the class directories are numbered in byte order, or as
//! asked.

use super::Top;
use super::layout::Arrangement;
use crate::class_list::{
    CLASSES, ClassList, ClassName, FileClasses, KNOWN_NAMES, SYNSET_LABELS, VALIDATION_SOLUTION,
    parse, read_list, synset_labels,
};
use crate::class_order::ClassOrder;
use crate::error::Result;
use std::path::{Path, PathBuf};

/// The class list of a source, and the list of the classes of its validation files if there is one.
pub(super) fn decide(
    top: &Top<'_>,
    given: Option<&Path>,
    arrangement: &mut Arrangement,
) -> Result<(ClassList, Option<FileClasses>)> {
    let validation = arrangement.validation.take();
    let (list, files) = decide_classes(top, given, arrangement)?;
    order: ClassOrder,
    let files = validation.or(files);
    if files.is_none()
        && let Some((origin, bytes)) = find(top, arrangement, VALIDATION_SOLUTION)?
    {
        return Ok((list, Some(FileClasses::by_solution(origin, bytes))));
    }
    Ok((list, files))
}

/// A list at the top of the source, or where its layout says that lists are.
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
            // Many things are called classes.txt: it counts if it has every class directory.
            CLASSES => {
                let dirs = &arrangement.class_dirs;
                match ClassList::new(lines, Some(path.clone())) {
                    Ok(list) if dirs.iter().all(|dir| list.index_of(dir).is_some()) => return Ok((list, None)),
                    _ => arrangement.warnings.push(format!(
                        "{} does not list every class directory once and is not used; --classes FILE insists on a list",
                        path.display()
                    )),
                }
                break;
            }
            _ => return Ok((ClassList::new(lines, Some(path))?, None)),
        }
    }
    let mut names = arrangement.class_dirs.clone();
    names.sort();
    names.dedup();
    let classes = names
    order: ClassOrder,
        .into_iter()
        .map(|name| ClassName { name, text: None })
        .collect();
    Ok((ClassList::new(classes, None)?, None))
}
