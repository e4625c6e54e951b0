//! A file of labels: one image per line, as CSV, TSV or JSON lines, in UTF-8 or UTF-16.
//!
//! One column is the path (`path`, `file`, `filename`, `image`, ...) and one the class (`label` or `class`; if a file has both,
//! `label` is used and `class` is an ordinary column). `split` is the split of an image. Every other column becomes a feature
//! of the same name: int64 if all of its values are integers, float if all are numbers in the range of float32, else bytes.
//! Integers have no leading zeros, so `007` is text. An empty value is an empty list, in a column of bytes an empty string.
//!
//! Several lines of one image, for instance one for each box, make each of its columns a list.
//!
//! The file is read twice, first to find the types of the columns, so that a million lines take little memory.

mod columns;
mod encoding;
mod label_column;
mod rows;

use crate::error::{Error, Result};
use crate::finding::escape;
use crate::key_path::split_name;
use crate::name_forms::{Ambiguous, NameForms};
use crate::option_names::{CLASSES, LABELS};
pub use columns::Columns;
use columns::{AppendError, Column, Groups, Kind, OBJECT_LABELS};
pub(crate) use encoding::to_utf8;
use forebay_shard::some_of;
use label_column::{LabelKinds, LabelValue, label_value};
use rows::{COLUMNS_MAX, Named};
pub(crate) use rows::{Cell, Rows, line_of};
use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

/// Names of the path column, in lower case and without separators.
const PATH_NAMES: [&str; 7] = [
    "path",
    "file",
    "filename",
    "image",
    "filepath",
    "imagepath",
    "imageid",
];
const LABEL_NAMES: [&str; 4] = ["label", "class", "labelname", "classname"];
const SPLIT_NAME: &str = "split";
/// Splits that rows can name, in the order of their indexes.
const SPLITS: [&str; 3] = ["test", "train", "validation"];

/// Features that every record gets from its image and its class; columns cannot have these names.
const RESERVED: &[&str] = &[
    "image/channels",
    "image/class/label",
    "image/class/synset",
    "image/class/text",
    "image/colorspace",
    "image/encoded",
    "image/filename",
    "image/format",
    "image/height",
    "image/object/bbox/label",
    "image/object/bbox/xmax",
    "image/object/bbox/xmin",
    "image/object/bbox/ymax",
    "image/object/bbox/ymin",
    OBJECT_LABELS,
    "image/progressive",
    "image/seek_points",
    "image/width",
];

/// Stands for no label in `LabelTable::labels`.
const NONE: i64 = i64::MIN;

/// The content of a file of labels.
#[derive(Debug)]
pub struct LabelTable {
    file: PathBuf,
    paths: Vec<u8>,
    /// End of each path in `paths`, which is the start of the next one.
    ends: Vec<u64>,
    /// Line number of each row, for messages.
    lines: Vec<u32>,
    /// Images sorted by path: numbers of rows, or indexes of `columns.groups` if images have several rows.
    sorted: Vec<u32>,
    /// Index of the paths that are not in composed Unicode form.
    forms: NameForms,
    /// The label of each row: the number in the file, or an index into `names`.
    labels: Vec<i64>,
    /// The distinct classes in byte order; `None` if labels are numbers.
    names: Option<Vec<Vec<u8>>>,
    has_labels: bool,
    /// The split of each row, as an index into `SPLITS`; `None` without a split column.
    splits: Option<Vec<u8>>,
    columns: Columns,
}

/// The class of an image.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum RowClass<'a> {
    /// The image has no class, or its rows have different ones.
    Unlabelled,
    /// The label itself.
    Number(i64),
    /// The name of a class.
    Name(&'a [u8]),
}

/// The columns of a file by their use.
struct Header {
    path: String,
    label: Option<String>,
    split: Option<String>,
    /// Whether labels are numbers; otherwise they are names of classes.
    by_number: bool,
    features: Vec<(String, ColumnKind)>,
}

/// Types that all values of a column so far can have.
#[derive(Clone, Copy)]
struct ColumnKind {
    kind: Kind,
    has_lists: bool,
}

/// Detects the index column that pandas writes: the first column, without a name, with increasing integers.
#[derive(Default)]
struct IndexColumn {
    name: Option<String>,
    last: Option<i64>,
    is_other: bool,
}

impl IndexColumn {
    /// Adds the first cell of a line.
    fn see(&mut self, cell: Option<&Named<'_>>) {
        let unnamed = cell.filter(|(name, _)| name.is_empty() || name == "Unnamed: 0");
        let number = unnamed.and_then(|(_, cell)| cell.to_int64());
        match number {
            Some(number) if self.last.is_none_or(|last| number > last) => self.last = Some(number),
            _ => self.is_other = true,
        }
        if let (None, Some((name, _))) = (&self.name, unnamed) {
            self.name = Some(name.to_string());
        }
    }

    fn is(&self, name: &str) -> bool {
        !self.is_other && self.name.as_deref() == Some(name)
    }
}

/// Returns a column's name in lower case and without separators.
fn plain(name: &str) -> String {
    let letters = name.chars().filter(|c| !matches!(c, '_' | '-' | ' '));
    letters.collect::<String>().to_lowercase()
}

impl Header {
    /// Reads the whole file to find the names and types of its columns.
    fn read(file: &Path, has_class_list: bool, needs_labels: bool) -> Result<Self> {
        let mut kinds: BTreeMap<String, ColumnKind> = BTreeMap::new();
        let mut labels: BTreeMap<String, LabelKinds> = BTreeMap::new();
        // A value that is not a valid label is an error only if its column turns out to hold the labels.
        let mut refused: BTreeMap<String, String> = BTreeMap::new();
        let mut index = IndexColumn::default();
        Rows::open(file)?.each(|line, cells| {
            index.see(cells.first());
            for (name, cell) in cells {
                let name: &str = name;
                let plain_name = plain(name);
                if LABEL_NAMES.contains(&plain_name.as_str()) {
                    let by_name = plain_name != "label" && has_class_list;
                    let seen = labels.entry(name.to_owned()).or_default();
                    if let Err(what) = seen.see(line, cell, by_name) {
                        let what = format!("line {line}: {what}");
                        refused.entry(name.to_owned()).or_insert(what);
                    }
                }
                let (kind, is_list) = (Kind::of(cell), matches!(cell, Cell::List(_)));
                if let Some(known) = kinds.get_mut(name) {
                    known.kind = kind.max(known.kind);
                    known.has_lists |= is_list;
                    continue;
                }
                // Each JSON line may have other names, and each column takes memory for every row.
                if kinds.len() == COLUMNS_MAX {
                    let what = format!("line {line}: more than {COLUMNS_MAX} columns");
                    return Err(Error::list(file, what));
                }
                let known = ColumnKind {
                    kind,
                    has_lists: is_list,
                };
                kinds.insert(name.to_owned(), known);
            }
            Ok(())
        })?;
        if kinds.is_empty() {
            return Err(Error::list(file, "there is no line of labels in it"));
        }
        let named = |names: &[&str]| {
            let mut wanted = names.iter();
            let found = wanted.find_map(|wanted| kinds.keys().find(|name| plain(name) == *wanted));
            found.cloned()
        };
        let expected = |what: &str, names: &[&str]| {
            let found = kinds.keys().map(|name| escape(name.as_bytes()));
            let what = format!(
                "it has no column of {what}: one of {} is needed in its first line, found are {}",
                names.join(", "),
                some_of(found)
            );
            Error::list(file, what)
        };
        let path = named(&PATH_NAMES).ok_or_else(|| expected("paths", &PATH_NAMES))?;
        let label = named(&LABEL_NAMES);
        if label.is_none() && needs_labels {
            return Err(expected("labels", &LABEL_NAMES));
        }
        let split = named(&[SPLIT_NAME]);
        let refuse = |what: String| Error::list(file, what);
        let refused = label.as_ref().and_then(|label| refused.remove(label));
        if let Some(what) = refused {
            return Err(refuse(what));
        }
        let seen = label.as_ref().and_then(|label| labels.remove(label));
        let seen = seen.unwrap_or_default();
        let by_number = seen.are_numbers().map_err(refuse)?;
        if by_number
            && let Some(label) = label.as_ref().filter(|label| plain(label) != "label")
            && let Some((line, number)) = seen.first_number()
        {
            return Err(refuse(format!(
                "line {line}: the column {label:?} holds numbers such as {number}: name it label if they are labels; if they name classes, give the list of all ({CLASSES} FILE)"
            )));
        }
        let features = feature_columns(
            kinds,
            &index,
            &[Some(&path), label.as_ref(), split.as_ref()],
        )
        .map_err(refuse)?;
        Ok(Self {
            path,
            label,
            split,
            by_number,
            features,
        })
    }
}

/// Returns the columns that become features: all but those of `roles` and numbers of rows.
fn feature_columns(
    kinds: BTreeMap<String, ColumnKind>,
    index: &IndexColumn,
    roles: &[Option<&String>],
) -> std::result::Result<Vec<(String, ColumnKind)>, String> {
    let mut features = Vec::new();
    for (name, kind) in kinds {
        if roles.contains(&Some(&name))
            || index.is(&name)
            || name.is_empty() && kind.kind == Kind::Empty
        {
            continue;
        }
        if name.is_empty() {
            return Err("a column without a name cannot become a feature: name it, or leave it out (index=False in pandas)".to_owned());
        }
        if RESERVED.contains(&name.as_str()) {
            return Err(format!("a column named {name:?} cannot become a feature"));
        }
        features.push((name, kind));
    }
    Ok(features)
}

impl LabelTable {
    /// Reads and checks a file of labels. With a class list, the values of a column `class` are names, even if they are
    /// numbers.
    pub fn read(file: &Path, has_class_list: bool) -> Result<Self> {
        Self::of(file, Header::read(file, has_class_list, true)?)
    }

    /// Reads and checks a list of images, which may lack labels.
    pub(crate) fn read_list(file: &Path) -> Result<Self> {
        Self::of(file, Header::read(file, false, false)?)
    }

    fn of(file: &Path, header: Header) -> Result<Self> {
        let columns = header.features.iter();
        let columns = columns.map(|(name, kind)| Column::new(name, kind.kind, kind.has_lists));
        let mut labels = Self {
            file: file.to_path_buf(),
            paths: Vec::new(),
            ends: Vec::new(),
            lines: Vec::new(),
            sorted: Vec::new(),
            forms: NameForms::default(),
            labels: Vec::new(),
            names: None,
            has_labels: header.label.is_some(),
            splits: header.split.as_ref().map(|_| Vec::new()),
            columns: Columns {
                columns: columns.collect(),
                ..Columns::default()
            },
        };
        let mut names: BTreeMap<Vec<u8>, i64> = BTreeMap::new();
        Rows::open(file)?.each(|line, cells| {
            let at = |what: String| Error::list(file, format!("line {line}: {what}"));
            let cell = |name: &str| {
                let found = cells.iter().find(|(known, _)| known == name);
                found.map(|(_, cell)| cell)
            };
            let path = cell(&header.path).map(Cell::to_bytes).unwrap_or_default();
            let path = crate::key_path::normal(&path).map_err(|why| at(why.to_owned()))?;
            if path.is_empty() {
                return Err(at("there is no path".into()));
            }
            let value = header.label.as_deref().and_then(cell);
            let value = value.unwrap_or(&Cell::Empty);
            let value = label_value(value, header.by_number).ok_or_else(|| changed(file))?;
            let label = match value {
                LabelValue::None => NONE,
                LabelValue::Number(NONE) => return Err(at(format!("{NONE} is no label"))),
                LabelValue::Number(number) => number,
                LabelValue::Name(name) => {
                    let next = names.len() as i64;
                    *names.entry(name.into_owned()).or_insert(next)
                }
            };
            if let (Some(splits), Some(name)) = (&mut labels.splits, &header.split) {
                let value = cell(name).map(Cell::to_bytes).unwrap_or_default();
                splits.push(split_number(&value).map_err(at)?);
            }
            labels.paths.extend_from_slice(&path);
            labels.ends.push(labels.paths.len() as u64);
            labels.lines.push(u32::try_from(line).unwrap_or(u32::MAX));
            labels.labels.push(label);
            for column in &mut labels.columns.columns {
                match column.push(cell(&column.name)) {
                    Ok(()) => {}
                    Err(AppendError::Changed) => return Err(changed(file)),
                    Err(AppendError::TooMany) => {
                        return Err(at(format!(
                            "the column {:?} has more than 4294967295 values",
                            column.name
                        )));
                    }
                }
            }
            Ok(())
        })?;
        labels.finish(header.by_number, names)?;
        if !labels.paths.is_ascii() {
            let images = (0..labels.images()).map(|image| (labels.path(image), image));
            labels.forms = NameForms::new(images);
        }
        Ok(labels)
    }

    fn finish(&mut self, by_number: bool, names: BTreeMap<Vec<u8>, i64>) -> Result<()> {
        if !by_number {
            // Renumbers the classes from order of occurrence to byte order.
            let mut numbers = vec![0; names.len()];
            for (number, came) in names.values().enumerate() {
                numbers[*came as usize] = number as i64;
            }
            for label in self.labels.iter_mut().filter(|label| **label != NONE) {
                *label = numbers[*label as usize];
            }
            self.names = Some(names.into_keys().collect());
        }
        let rows = u32::try_from(self.ends.len())
            .map_err(|_| Error::list(&self.file, "it has more lines than can be numbered"))?;
        let mut sorted: Vec<u32> = (0..rows).collect();
        // The sort is stable: rows of one path keep the order of the file.
        sorted.sort_by(|a, b| self.row_path(*a).cmp(self.row_path(*b)));
        let is_same = |pair: &[u32]| self.row_path(pair[0]) == self.row_path(pair[1]);
        let Some(first) = sorted.windows(2).find(|pair| is_same(pair)) else {
            self.sorted = sorted;
            return Ok(());
        };
        if self.columns.columns.is_empty() {
            let what = format!(
                "{} is in it more than once, on lines {} and {}: several lines for one image need further columns, such as boxes",
                escape(self.row_path(first[0])),
                self.lines[first[0] as usize],
                self.lines[first[1] as usize],
            );
            return Err(Error::list(&self.file, what));
        }
        let mut starts = vec![0];
        for (at, pair) in (1..).zip(sorted.windows(2)) {
            if !is_same(pair) {
                starts.push(at);
            }
        }
        starts.push(rows);
        let groups = Groups {
            rows: sorted,
            starts,
        };
        self.check_groups(&groups)?;
        self.sorted = (0..groups.images()).collect();
        self.columns.groups = Some(groups);
        Ok(())
    }

    /// Refuses rows of one image that have different splits, or columns with different numbers of values per row.
    fn check_groups(&self, groups: &Groups) -> Result<()> {
        for image in 0..groups.images() {
            let [first, others @ ..] = groups.rows(image) else {
                continue;
            };
            for row in others {
                let refuse = |what: String| {
                    let path = escape(self.row_path(*row));
                    let (line, before) = (self.lines[*row as usize], self.lines[*first as usize]);
                    Error::list(
                        &self.file,
                        format!("line {line}: {path} {what} line {before}"),
                    )
                };
                if self.split_of(*row) != self.split_of(*first) {
                    return Err(refuse("has another split than on".into()));
                }
                for column in &self.columns.columns {
                    if column.values_of(*row).len() != column.values_of(*first).len() {
                        let name = &column.name;
                        return Err(refuse(format!(
                            "has another number of values in the column {name:?} than on"
                        )));
                    }
                }
            }
        }
        Ok(())
    }

    /// Returns the file.
    pub fn file(&self) -> &Path {
        &self.file
    }

    /// Returns the distinct classes in byte order; `None` if labels are numbers.
    pub fn names(&self) -> Option<&[Vec<u8>]> {
        self.names.as_deref()
    }

    /// Returns whether the file has a column of labels.
    pub(crate) fn has_labels(&self) -> bool {
        self.has_labels
    }

    /// Returns the number of images.
    pub fn images(&self) -> u32 {
        self.sorted.len() as u32
    }

    /// Returns the number of images that have several rows; `None` if every image has one.
    pub fn images_of_several_rows(&self) -> Option<usize> {
        let groups = self.columns.groups.as_ref()?;
        let several = (0..groups.images()).filter(|image| groups.rows(*image).len() > 1);
        Some(several.count())
    }

    /// Returns the rows of an image.
    fn rows_of(&self, image: u32) -> Vec<u32> {
        match &self.columns.groups {
            Some(groups) => groups.rows(image).to_vec(),
            None => vec![image],
        }
    }

    fn first_row(&self, image: u32) -> u32 {
        match &self.columns.groups {
            Some(groups) => groups.rows(image).first().copied().unwrap_or(0),
            None => image,
        }
    }

    fn row_path(&self, row: u32) -> &[u8] {
        let row = row as usize;
        let start = if row == 0 { 0 } else { self.ends[row - 1] };
        &self.paths[start as usize..self.ends[row] as usize]
    }

    /// Returns the path of an image.
    pub fn path(&self, image: u32) -> &[u8] {
        self.row_path(self.first_row(image))
    }

    /// Returns the line number of an image's first row.
    pub fn line(&self, image: u32) -> u32 {
        self.lines[self.first_row(image) as usize]
    }

    /// Returns the index of the image with this path.
    pub fn image_of(&self, path: &[u8]) -> Option<u32> {
        let at = self
            .sorted
            .binary_search_by(|image| self.path(*image).cmp(path))
            .ok()?;
        Some(self.sorted[at])
    }

    /// Returns the image whose path equals `path` after Unicode normalization; an error if two paths do.
    pub fn image_of_form(&self, path: &[u8]) -> Result<Option<u32>> {
        let found = self.forms.find(path, |path| self.image_of(path));
        found.map_err(|Ambiguous| {
            let what = format!(
                "{} is in it in two other Unicode forms: write it as the file's name",
                escape(path)
            );
            Error::list(&self.file, what)
        })
    }

    /// Returns whether some paths have characters outside of ASCII, so that their Unicode form matters.
    pub fn has_forms(&self) -> bool {
        !self.paths.is_ascii()
    }

    /// Returns the class of an image; unlabelled if its rows have different classes.
    pub fn class(&self, image: u32) -> RowClass<'_> {
        let rows = self.rows_of(image);
        let first = self.labels[rows[0] as usize];
        match rows.iter().all(|row| self.labels[*row as usize] == first) {
            true => self.class_of(first),
            false => RowClass::Unlabelled,
        }
    }

    fn class_of(&self, label: i64) -> RowClass<'_> {
        match (label, &self.names) {
            (NONE, _) => RowClass::Unlabelled,
            (number, None) => RowClass::Number(number),
            (number, Some(names)) => RowClass::Name(&names[number as usize]),
        }
    }

    /// Returns whether the file has a column of splits.
    pub fn has_splits(&self) -> bool {
        self.splits.is_some()
    }

    /// Returns the splits that occur, sorted by name.
    pub fn split_names(&self) -> Vec<&'static str> {
        let splits = self.splits.as_deref().unwrap_or_default();
        let used = (0..)
            .zip(SPLITS)
            .filter(|(number, _)| splits.contains(number));
        used.map(|(_, name)| name).collect()
    }

    fn split_of(&self, row: u32) -> Option<&'static str> {
        let number = *self.splits.as_ref()?.get(row as usize)?;
        SPLITS.get(usize::from(number)).copied()
    }

    /// Returns the split of an image, if the file has one for it.
    pub fn split(&self, image: u32) -> Option<&'static str> {
        self.split_of(self.first_row(image))
    }

    /// Returns the feature columns. The caller has numbered the classes; `number` returns the label of a class.
    pub fn into_columns(
        mut self,
        number: impl Fn(&Self, u32, RowClass<'_>) -> Result<i64>,
    ) -> Result<Columns> {
        if self.columns.groups.is_some() && self.has_labels {
            let mut labels = Vec::with_capacity(self.labels.len());
            for (row, label) in (0..).zip(&self.labels) {
                labels.push(number(&self, self.lines[row], self.class_of(*label))?);
            }
            self.columns.object_labels = labels;
        }
        Ok(self.columns)
    }
}

/// Returns how to use a file that may hold labels, based on the names of its columns.
pub(crate) fn advice(file: &Path) -> String {
    let mut columns: Vec<String> = Vec::new();
    // Only the first line is read.
    let read = Rows::open(file).and_then(|rows| {
        rows.each(|_, cells| {
            columns = cells.iter().map(|(name, _)| plain(name)).collect();
            Err(changed(file))
        })
    });
    drop(read);
    let has = |names: &[&str]| {
        columns
            .iter()
            .any(|column| names.contains(&column.as_str()))
    };
    let shown = file.display();
    if has(&PATH_NAMES) && has(&LABEL_NAMES) {
        format!("{LABELS} {shown} takes the labels from it")
    } else {
        format!("{LABELS} {shown} takes labels from it once its columns are named path and label")
    }
}

/// Returns the index of the split that a value names.
fn split_number(value: &[u8]) -> Result<u8, String> {
    let found = split_name(value.trim_ascii());
    let number = (0..).zip(SPLITS).find(|(_, name)| Some(*name) == found);
    number.map(|(number, _)| number).ok_or_else(|| {
        format!(
            "the split {:?} is not known: train, training, val, valid, validation, test and testing are",
            escape(value)
        )
    })
}

fn changed(file: &Path) -> Error {
    Error::list(file, "it was changed while it was read")
}

#[cfg(test)]
#[path = "labels/tests.rs"]
mod tests;
