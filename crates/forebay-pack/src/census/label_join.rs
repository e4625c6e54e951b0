//! Joins the files of a source with the lines of a file of labels.

use super::{SplitCensus, UNLABELLED};
use crate::error::{Error, Result};
use forebay_formats::images::{Columns, FileList, FileListBuilder, LabelTable, RowClass};
use forebay_formats::key_path::{base, join, stem};
use forebay_formats::option_names::LABEL_BASE;
use forebay_formats::{Action, ClassList, Finding, FindingList, Reason, escape};
use forebay_shard::some_of;
use std::path::Path;

pub(super) struct LabelJoin<'a> {
    labels: &'a LabelTable,
    classes: &'a ClassList,
    label_base: u8,
    used: Vec<bool>,
    /// Whether a file has exactly the name of each image, if names with several Unicode forms are listed.
    exact: Vec<bool>,
    /// Number of files that were matched only by the Unicode form of their names.
    other_forms: u64,
    /// The first file without a line, for the error message.
    unlisted: Option<Vec<u8>>,
}

impl<'a> LabelJoin<'a> {
    pub(super) fn new(labels: &'a LabelTable, classes: &'a ClassList, label_base: u8) -> Self {
        Self {
            labels,
            classes,
            label_base,
            used: vec![false; labels.images() as usize],
            exact: vec![false; labels.images() as usize],
            other_forms: 0,
            unlisted: None,
        }
    }

    /// Returns the splits into which the files of a directory are divided.
    pub(super) fn splits(
        &self,
        dir_split: &str,
        is_named: bool,
        wanted: Option<&str>,
    ) -> Result<Vec<String>> {
        if is_named || !self.labels.has_splits() {
            return Ok(vec![dir_split.to_owned()]);
        }
        let names = self.labels.split_names();
        let wanted_name = |name: &&&str| wanted.is_none_or(|wanted| wanted == **name);
        let chosen: Vec<String> = names
            .iter()
            .filter(wanted_name)
            .map(|name| (*name).to_owned())
            .collect();
        match wanted {
            Some(wanted) if chosen.is_empty() => {
                let what = format!("no line has the split {wanted}, only {}", some_of(&names));
                Err(Error::list(self.labels.file(), what))
            }
            _ => Ok(chosen),
        }
    }

    /// Marks the images that are listed with exactly the name of a file. These matches precede matches by Unicode form.
    pub(super) fn mark_exact(&mut self, dir: &[u8], chunk: &FileList) {
        if !self.labels.has_forms() {
            return;
        }
        for index in 0..chunk.files() {
            let key = chunk.get(index).key();
            let path = join(dir, &key);
            if !path.is_ascii()
                && let Some(image) = self.find(&path, &key)
            {
                self.exact[image as usize] = true;
            }
        }
    }

    /// Adds the files of a chunk that have a line to a split, and leaves out the others. Paths in the file of labels are
    /// relative to the source or to the directory of the split, with or without the extension of the file's name.
    /// If directories are named like splits (`is_named`), a column of splits must agree with them; otherwise the column decides.
    /// Called once per split for each chunk; the first call (`is_first`) reports files without a line.
    pub(super) fn split(
        &mut self,
        split: &mut SplitCensus,
        chunk: &FileList,
        (is_named, is_first): (bool, bool),
        findings: &mut FindingList,
    ) -> Result<()> {
        let mut kept = FileListBuilder::new(chunk.name());
        // Part of the identity of the source, so that a later run detects changed files.
        kept.changed_as(chunk);
        if is_first {
            kept.leave_out_all_of(chunk);
        }
        let mut listed = split.listed_classes.take().unwrap_or_default();
        let mut dir: Option<&[u8]> = None;
        for index in 0..chunk.files() {
            let entry = chunk.get(index);
            let key = entry.key();
            let path = join(&split.dir, &key);
            let mut image = self.find(&path, &key);
            if image.is_none() {
                image = self.find_form(&path, &key)?;
                self.other_forms += u64::from(is_first && image.is_some());
            }
            let Some(image) = image else {
                if is_first {
                    findings.push(&Finding::new(Action::Skipped, Reason::Unlisted, &path, ""));
                    self.unlisted.get_or_insert(path);
                }
                continue;
            };
            if let Some(named) = self.labels.split(image)
                && named != split.name
            {
                if is_named {
                    let what = format!(
                        "line {}: {} is of the split {named}, but its directory is that of {}",
                        self.labels.line(image),
                        escape(&path),
                        split.name
                    );
                    return Err(Error::list(self.labels.file(), what));
                }
                continue;
            }
            if std::mem::replace(&mut self.used[image as usize], true) {
                let what = format!(
                    "line {}: {} stands for several files, {} among them: give paths with endings, relative to the source",
                    self.labels.line(image),
                    escape(self.labels.path(image)),
                    escape(&path)
                );
                return Err(Error::list(self.labels.file(), what));
            }
            listed.push(self.class(image)?);
            split.rows.push(image);
            if dir != Some(entry.dir) {
                dir = Some(entry.dir);
                kept.enter(entry.dir);
            }
            kept.push_entry(&entry);
        }
        split.listed_classes = Some(listed);
        split.push(kept.finish());
        Ok(())
    }

    fn find(&self, path: &[u8], key: &[u8]) -> Option<u32> {
        names_of(path, key)
            .into_iter()
            .find_map(|path| self.labels.image_of(path))
    }

    /// Returns the image whose path has the same Unicode form, unless a file has exactly the listed path.
    fn find_form(&self, path: &[u8], key: &[u8]) -> Result<Option<u32>> {
        for name in names_of(path, key) {
            if let Some(image) = self.labels.image_of_form(name)?
                && !self.exact[image as usize]
            {
                return Ok(Some(image));
            }
        }
        Ok(None)
    }

    /// Returns the index of an image's class.
    fn class(&self, image: u32) -> Result<u32> {
        self.index_of(self.labels.line(image), self.labels.class(image))
    }

    /// Returns the index of the class on a line.
    fn index_of(&self, line: u32, class: RowClass<'_>) -> Result<u32> {
        let file = self.labels.file();
        Ok(class_index(
            file,
            self.classes,
            self.label_base,
            line,
            class,
        )?)
    }

    /// Reports the lines without a file, if all splits were joined.
    pub(super) fn finish(self, all_splits: bool, findings: &mut FindingList) -> Result<()> {
        if !self.used.contains(&true) {
            let listed = if self.labels.images() > 0 {
                escape(self.labels.path(0))
            } else {
                "nothing".into()
            };
            let there = self
                .unlisted
                .map_or("there is nothing".into(), |path| escape(&path));
            let what = format!(
                "none of its paths is that of a file: listed is for instance {listed}, found {there}; paths are relative to the source"
            );
            return Err(Error::list(self.labels.file(), what));
        }
        let other_forms = Finding::other_forms(self.labels.file(), self.other_forms);
        other_forms.iter().for_each(|found| findings.push(found));
        if all_splits {
            for (row, _) in (0u32..).zip(&self.used).filter(|(_, used)| !**used) {
                findings.push(&Finding::new(
                    Action::Skipped,
                    Reason::NotThere,
                    self.labels.path(row),
                    "",
                ));
            }
        }
        Ok(())
    }
}

/// Returns the index of the class that a line of a file of labels gives.
pub(super) fn class_index(
    file: &Path,
    classes: &ClassList,
    label_base: u8,
    line: u32,
    class: RowClass<'_>,
) -> forebay_formats::Result<u32> {
    let at = |what: String| forebay_formats::Error::list(file, format!("line {line}: {what}"));
    match class {
        RowClass::Unlabelled | RowClass::Number(-1) => Ok(UNLABELLED),
        RowClass::Number(0) if label_base == 1 => Err(at(format!(
            "the label is 0, but labels begin with 1: {LABEL_BASE} 0 says that they begin with 0"
        ))),
        RowClass::Number(number) => number
            .checked_sub(i64::from(label_base))
            .and_then(|index| u32::try_from(index).ok())
            .filter(|index| {
                *index != UNLABELLED && (classes.is_empty() || classes.get(*index).is_some())
            })
            .ok_or_else(|| at(format!("there is no class with the label {number}"))),
        RowClass::Name(name) => classes.index_of(name).ok_or_else(|| {
            at(format!(
                "the class {} is not in the class list",
                escape(name)
            ))
        }),
    }
}

/// Returns the names by which a line may refer to a file.
fn names_of<'a>(path: &'a [u8], key: &'a [u8]) -> [&'a [u8]; 4] {
    [path, key, without_ending(path), without_ending(key)]
}

/// Returns a path without the extension of its name.
fn without_ending(path: &[u8]) -> &[u8] {
    let name = path.len() - base(path).len();
    &path[..name + stem(base(path)).len()]
}

/// Returns the columns of a file of labels, with the label of each line if images have several lines.
pub(super) fn object_labels(
    labels: LabelTable,
    classes: &ClassList,
    label_base: u8,
) -> Result<Columns> {
    let columns = labels.into_columns(|labels, line, class| {
        match class_index(labels.file(), classes, label_base, line, class)? {
            UNLABELLED => Ok(-1),
            index => Ok(i64::from(index) + i64::from(label_base)),
        }
    });
    Ok(columns?)
}
