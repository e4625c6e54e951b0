//! A file of labels: one line for each image, as CSV, TSV or JSON lines.
//!
//! One column is the path (`path`, `file`, `filename` or `image`), one the class (`label` or `class`; of both, `label`
//! counts and `class` is a column like any other). Every other column becomes a feature of that name: int64 if all
//! of its values are integers, float if all are numbers that a float32 reaches, else bytes. Integers are written as programs write
//! them, so `007` is text. An empty value is an empty list, in a column of bytes an empty string.
//!
//! The file is read twice, first for the types of the columns, so that a million lines take little memory.

mod rows;

use crate::error::{Error, Result};
use crate::report::escape;
use forebay_shard::ExampleBuilder;
use forebay_shard::example::FeatureKind;
use rows::{COLUMNS_MAX, Cell, Rows};
use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

/// Names of the columns that mean something.
const PATH_NAMES: [&str; 4] = ["path", "file", "filename", "image"];
const LABEL_NAMES: [&str; 2] = ["label", "class"];

/// Features that every record has from its image and its class.
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
    "image/progressive",
    "image/seek_points",
    "image/width",
];

/// No label, in `Labels::labels`.
const NONE: i64 = i64::MIN;

/// A whole file of labels.
#[derive(Debug)]
pub(crate) struct Labels {
    file: PathBuf,
    paths: Vec<u8>,
    /// Where each path ends; the one before ends where it begins.
    ends: Vec<u64>,
    /// Row numbers in the order of their paths.
    sorted: Vec<u32>,
    /// A number as it is in the file, or the index of a name.
    labels: Vec<i64>,
    /// The different classes in byte order; none where labels are numbers.
    names: Option<Vec<Vec<u8>>>,
    columns: Columns,
}

/// The class of a row.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum RowClass<'a> {
    Unlabelled,
    /// The label itself.
    Number(i64),
    Name(&'a [u8]),
}

/// Columns that become features.
#[derive(Debug, Default)]
pub(crate) struct Columns(Vec<Column>);

#[derive(Debug)]
struct Column {
    name: String,
    values: Values,
    /// Rows without a value, in ascending order.
    missing: Vec<u32>,
}

#[derive(Debug)]
enum Values {
    Int64(Vec<i64>),
    Float(Vec<f32>),
    Bytes { bytes: Vec<u8>, ends: Vec<u64> },
}

/// What the values of a column have been so far.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum Kind {
    Empty,
    Int64,
    Float,
    Bytes,
}

impl Kind {
    fn of(cell: &Cell<'_>) -> Self {
        match cell {
            Cell::Empty => Self::Empty,
            Cell::Int64(_) => Self::Int64,
            Cell::Float(number) if (*number as f32).is_finite() => Self::Float,
            Cell::Text(text) if rows::integer(text).is_some() => Self::Int64,
            Cell::Text(text) if rows::float(text).is_some() => Self::Float,
            Cell::Text(_) | Cell::String(_) | Cell::Float(_) => Self::Bytes,
        }
    }
}

impl Labels {
    /// Reads and checks a file of labels.
    pub(crate) fn read(file: &Path) -> Result<Self> {
        let mut kinds: BTreeMap<String, Kind> = BTreeMap::new();
        Rows::open(file)?.each(|line, cells| {
            for (name, cell) in cells {
                let kind = Kind::of(cell);
                if let Some(known) = kinds.get_mut(*name) {
                    *known = kind.max(*known);
                    continue;
                }
                // JSON lines may have other names on each line, and a column takes memory for every row.
                if kinds.len() == COLUMNS_MAX {
                    let what = format!("line {line}: more than {COLUMNS_MAX} columns");
                    return Err(Error::source(file, what));
                }
                kinds.insert((*name).to_owned(), kind);
            }
            Ok(())
        })?;
        if kinds.is_empty() {
            return Err(Error::source(file, "there is no line of labels in it"));
        }
        let named =
            |names: &[&'static str]| names.iter().copied().find(|name| kinds.contains_key(*name));
        let expected = |what: &str, names: &[&str]| {
            let what = format!(
                "it has no column of {what}: one of {} is needed in its first line, found are {}",
                names.join(", "),
                kinds
                    .keys()
                    .map(|name| escape(name.as_bytes()))
                    .collect::<Vec<_>>()
                    .join(", ")
            );
            Error::source(file, what)
        };
        let path_name = named(&PATH_NAMES).ok_or_else(|| expected("paths", &PATH_NAMES))?;
        let label_name = named(&LABEL_NAMES).ok_or_else(|| expected("labels", &LABEL_NAMES))?;
        let by_number = label_name == "label" && kinds[label_name] <= Kind::Int64;
        let mut columns = Columns::default();
        for (name, kind) in &kinds {
            if name == path_name || name == label_name {
                continue;
            }
            if name.is_empty() || RESERVED.contains(&name.as_str()) {
                let what = format!("a column named {name:?} cannot become a feature");
                return Err(Error::source(file, what));
            }
            columns.0.push(Column::new(name, *kind));
        }
        let mut labels = Self {
            file: file.to_path_buf(),
            paths: Vec::new(),
            ends: Vec::new(),
            sorted: Vec::new(),
            labels: Vec::new(),
            names: None,
            columns,
        };
        let mut names: BTreeMap<Vec<u8>, i64> = BTreeMap::new();
        Rows::open(file)?.each(|line, cells| {
            let at = |what: String| Error::source(file, format!("line {line}: {what}"));
            let cell = |name: &str| {
                cells
                    .iter()
                    .find(|(known, _)| *known == name)
                    .map(|(_, cell)| cell)
            };
            let path = cell(path_name).map(Cell::to_bytes).unwrap_or_default();
            let path = super::archive::normal(&path).map_err(|why| at(why.to_owned()))?;
            if path.is_empty() {
                return Err(at("there is no path".into()));
            }
            let label = match cell(label_name) {
                None | Some(Cell::Empty) => NONE,
                Some(cell) if by_number => match cell.to_int64().ok_or_else(|| changed(file))? {
                    NONE => return Err(at(format!("{NONE} is no label"))),
                    number => number,
                },
                Some(cell) => {
                    let next = names.len() as i64;
                    *names.entry(cell.to_bytes().into_owned()).or_insert(next)
                }
            };
            labels.paths.extend_from_slice(&path);
            labels.ends.push(labels.paths.len() as u64);
            labels.labels.push(label);
            for column in &mut labels.columns.0 {
                column
                    .push(cell(&column.name))
                    .ok_or_else(|| changed(file))?;
            }
            Ok(())
        })?;
        labels.finish(by_number, names)?;
        Ok(labels)
    }

    fn finish(&mut self, by_number: bool, names: BTreeMap<Vec<u8>, i64>) -> Result<()> {
        if !by_number {
            // From the order in which they came to their order as bytes.
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
            .map_err(|_| Error::source(&self.file, "it has more lines than can be numbered"))?;
        let mut sorted: Vec<u32> = (0..rows).collect();
        sorted.sort_unstable_by(|a, b| self.path(*a).cmp(self.path(*b)));
        for pair in sorted.windows(2) {
            if self.path(pair[0]) == self.path(pair[1]) {
                let what = format!("{} is in it more than once", escape(self.path(pair[0])));
                return Err(Error::source(&self.file, what));
            }
        }
        self.sorted = sorted;
        Ok(())
    }

    pub(crate) fn file(&self) -> &Path {
        &self.file
    }

    /// The different classes in byte order; none where labels are numbers.
    pub(crate) fn names(&self) -> Option<&[Vec<u8>]> {
        self.names.as_deref()
    }

    pub(crate) fn rows(&self) -> u32 {
        self.sorted.len() as u32
    }

    pub(crate) fn path(&self, row: u32) -> &[u8] {
        let row = row as usize;
        let start = if row == 0 { 0 } else { self.ends[row - 1] };
        &self.paths[start as usize..self.ends[row] as usize]
    }

    /// The row of a path.
    pub(crate) fn row_of(&self, path: &[u8]) -> Option<u32> {
        let at = self
            .sorted
            .binary_search_by(|row| self.path(*row).cmp(path))
            .ok()?;
        Some(self.sorted[at])
    }

    pub(crate) fn class(&self, row: u32) -> RowClass<'_> {
        match (self.labels[row as usize], &self.names) {
            (NONE, _) => RowClass::Unlabelled,
            (number, None) => RowClass::Number(number),
            (number, Some(names)) => RowClass::Name(&names[number as usize]),
        }
    }

    /// What stays of the file once the classes are known.
    pub(crate) fn into_columns(self) -> Columns {
        self.columns
    }
}

impl Column {
    fn new(name: &str, kind: Kind) -> Self {
        let values = match kind {
            Kind::Int64 => Values::Int64(Vec::new()),
            Kind::Float => Values::Float(Vec::new()),
            Kind::Empty | Kind::Bytes => Values::Bytes {
                bytes: Vec::new(),
                ends: Vec::new(),
            },
        };
        Self {
            name: name.to_owned(),
            values,
            missing: Vec::new(),
        }
    }

    /// None if the value is not what the first reading of the file found.
    fn push(&mut self, cell: Option<&Cell<'_>>) -> Option<()> {
        let cell = cell.unwrap_or(&Cell::Empty);
        let empty = matches!(cell, Cell::Empty);
        let row = match &mut self.values {
            Values::Int64(values) => {
                values.push(if empty { 0 } else { cell.to_int64()? });
                values.len()
            }
            Values::Float(values) => {
                values.push(if empty { 0.0 } else { cell.to_float()? });
                values.len()
            }
            Values::Bytes { bytes, ends } => {
                bytes.extend_from_slice(&cell.to_bytes());
                ends.push(bytes.len() as u64);
                ends.len()
            }
        };
        if empty {
            self.missing.push((row - 1) as u32);
        }
        Some(())
    }

    fn is_missing(&self, row: u32) -> bool {
        self.missing.binary_search(&row).is_ok()
    }
}

impl Columns {
    /// Names and kinds of the features; numbers may be missing.
    pub(crate) fn features(&self) -> impl Iterator<Item = (&str, FeatureKind, bool)> {
        self.0.iter().map(|column| {
            let kind = match column.values {
                Values::Int64(_) => FeatureKind::Int64,
                Values::Float(_) => FeatureKind::Float,
                Values::Bytes { .. } => FeatureKind::Bytes,
            };
            let gaps = kind != FeatureKind::Bytes && !column.missing.is_empty();
            (column.name.as_str(), kind, gaps)
        })
    }

    /// Adds the features of a row to a record.
    pub(crate) fn add_to<'a>(&'a self, row: u32, example: &mut ExampleBuilder<'a>) {
        for column in &self.0 {
            let at = row as usize;
            match &column.values {
                Values::Int64(_) if column.is_missing(row) => example.add_int64s(&column.name, &[]),
                Values::Float(_) if column.is_missing(row) => example.add_floats(&column.name, &[]),
                Values::Int64(values) => example.add_int64(&column.name, values[at]),
                Values::Float(values) => example.add_float(&column.name, values[at]),
                Values::Bytes { bytes, ends } => {
                    let start = if at == 0 { 0 } else { ends[at - 1] };
                    example.add_bytes(&column.name, &bytes[start as usize..ends[at] as usize])
                }
            };
        }
    }
}

fn changed(file: &Path) -> Error {
    Error::source(file, "it was changed while it was read")
}

#[cfg(test)]
#[path = "labels/tests.rs"]
mod tests;
