//! Bringing the files of a source and the lines of a file of labels together.

use super::list::ChunkBuilder;
use super::{Chunk, ClassList, FindingList, SplitCensus, UNLABELLED, finding};
use crate::error::{Error, Result};
use crate::input::{Labels, RowClass, join};
use crate::report::{Action, Reason, escape};

pub(super) struct LabelJoin<'a> {
    labels: &'a Labels,
    classes: &'a ClassList,
    label_base: u8,
    used: Vec<bool>,
    /// The first file without a line, for an error that helps.
    unlisted: Option<Vec<u8>>,
}

impl<'a> LabelJoin<'a> {
    pub(super) fn new(labels: &'a Labels, classes: &'a ClassList, label_base: u8) -> Self {
        Self {
            labels,
            classes,
            label_base,
            used: vec![false; labels.rows() as usize],
            unlisted: None,
        }
    }

    /// Takes the files of a chunk that have a line into a split; the others are left out. Paths in the file are
    /// relative to the source, or to the directory of the split.
    pub(super) fn split(
        &mut self,
        split: &mut SplitCensus,
        chunk: &Chunk,
        findings: &mut FindingList,
    ) -> Result<()> {
        let mut kept = ChunkBuilder::new(chunk.name());
        // What has changed since, and when.
        kept.changed_at(i128::from(chunk.times_digest()));
        kept.leave_out_all_of(chunk);
        let mut listed = split.listed_classes.take().unwrap_or_default();
        let mut dir: Option<&[u8]> = None;
        for index in 0..chunk.len() {
            let entry = chunk.get(index);
            let key = entry.key();
            let path = join(&split.dir, &key);
            let Some(row) = self
                .labels
                .row_of(&path)
                .or_else(|| self.labels.row_of(&key))
            else {
                findings.push(&finding(Action::Skipped, Reason::Unlisted, &path, ""));
                self.unlisted.get_or_insert(path);
                continue;
            };
            self.used[row as usize] = true;
            listed.push(self.class(row)?);
            split.rows.push(row);
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

    /// The index of a row's class.
    fn class(&self, row: u32) -> Result<u32> {
        let at = |what: String| {
            let path = escape(self.labels.path(row));
            Error::source(self.labels.file(), format!("{path}: {what}"))
        };
        match self.labels.class(row) {
            RowClass::Unlabelled | RowClass::Number(-1) => Ok(UNLABELLED),
            RowClass::Number(0) if self.label_base == 1 => Err(at(
                "its label is 0, but labels begin with 1: --label-base 0 says that they begin with 0".into(),
            )),
            RowClass::Number(number) => number
                .checked_sub(i64::from(self.label_base))
                .and_then(|index| u32::try_from(index).ok())
                .filter(|index| *index != UNLABELLED && (self.classes.is_empty() || self.classes.get(*index).is_some()))
                .ok_or_else(|| at(format!("there is no class with the label {number}"))),
            RowClass::Name(name) => self
                .classes
                .index_of(name)
                .ok_or_else(|| at(format!("the class {} is not in the class list", escape(name)))),
        }
    }

    /// Says which lines have no file, if all splits were looked at.
    pub(super) fn finish(self, all_splits: bool, findings: &mut FindingList) -> Result<()> {
        if !self.used.contains(&true) {
            let listed = if self.labels.rows() > 0 {
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
            return Err(Error::source(self.labels.file(), what));
        }
        if all_splits {
            for (row, _) in (0u32..).zip(&self.used).filter(|(_, used)| !**used) {
                findings.push(&finding(
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
