//! The columns of a file of labels that become features of the records.

use super::rows::{self, Cell};
use forebay_shard::ExampleBuilder;
use forebay_shard::example::FeatureKind;
use serde::{Deserialize, Serialize};

/// The feature that holds the label of each row, for images with several rows.
pub(super) const OBJECT_LABELS: &str = "image/object/class/label";

/// Columns that become features.
#[derive(Debug, Default, Serialize, Deserialize)]
pub struct Columns {
    pub(super) columns: Vec<Column>,
    /// Rows of each image, if some image has several.
    pub(super) groups: Option<Groups>,
    /// The label of each row, if some image has several.
    pub(super) object_labels: Vec<i64>,
}

/// The rows of each image: `rows[starts[image]..starts[image + 1]]`, in the order of the file.
#[derive(Debug, Serialize, Deserialize)]
pub(super) struct Groups {
    pub(super) rows: Vec<u32>,
    pub(super) starts: Vec<u32>,
}

impl Groups {
    pub(super) fn rows(&self, image: u32) -> &[u32] {
        let (start, end) = (self.starts[image as usize], self.starts[image as usize + 1]);
        &self.rows[start as usize..end as usize]
    }

    pub(super) fn images(&self) -> u32 {
        self.starts.len() as u32 - 1
    }

    fn is_sound(&self, rows: u32) -> bool {
        self.starts.is_sorted()
            && self
                .starts
                .last()
                .is_some_and(|end| *end as usize <= self.rows.len())
            && self.rows.iter().all(|row| *row < rows)
    }
}

#[derive(Debug, Serialize, Deserialize)]
pub(super) struct Column {
    pub(super) name: String,
    values: Values,
    /// Whether values are JSON lists, so that a missing value is an empty list.
    has_lists: bool,
    rows: u32,
    /// The end of each row's values; `None` while every row has exactly one value.
    ends: Option<Vec<u32>>,
}

#[derive(Debug, Serialize, Deserialize)]
enum Values {
    Int64(Vec<i64>),
    Float(Vec<f32>),
    Bytes { bytes: Vec<u8>, ends: Vec<u64> },
}

/// The kind of all values of a column.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Kind {
    Empty,
    Int64,
    Float,
    Bytes,
}

impl Kind {
    pub(super) fn of(cell: &Cell<'_>) -> Self {
        match cell {
            Cell::Empty => Self::Empty,
            Cell::Int64(_) => Self::Int64,
            Cell::Float(number) if (*number as f32).is_finite() => Self::Float,
            Cell::Text(text) if rows::integer(text).is_some() => Self::Int64,
            Cell::Text(text) if rows::float(text).is_some() => Self::Float,
            Cell::Text(_) | Cell::String(_) | Cell::Float(_) => Self::Bytes,
            Cell::List(values) => values.iter().map(Self::of).max().unwrap_or(Self::Empty),
        }
    }
}

impl Values {
    fn push(&mut self, cell: &Cell<'_>) -> Option<()> {
        match self {
            Self::Int64(values) => values.push(cell.to_int64()?),
            Self::Float(values) => values.push(cell.to_float()?),
            Self::Bytes { bytes, ends } => {
                bytes.extend_from_slice(&cell.to_bytes());
                ends.push(bytes.len() as u64);
            }
        }
        Some(())
    }

    fn len(&self) -> usize {
        match self {
            Self::Int64(values) => values.len(),
            Self::Float(values) => values.len(),
            Self::Bytes { ends, .. } => ends.len(),
        }
    }
}

/// Why a value cannot be added to a column.
pub(super) enum AppendError {
    /// The file changed: the first pass found other types of values.
    Changed,
    TooMany,
}

impl Column {
    pub(super) fn new(name: &str, kind: Kind, has_lists: bool) -> Self {
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
            has_lists,
            rows: 0,
            ends: None,
        }
    }

    /// Adds the next row's value or values.
    pub(super) fn push(&mut self, cell: Option<&Cell<'_>>) -> Result<(), AppendError> {
        let cell = cell.unwrap_or(&Cell::Empty);
        let is_text = matches!(self.values, Values::Bytes { .. }) && !self.has_lists;
        let values = match cell {
            Cell::Empty if is_text => std::slice::from_ref(cell),
            cell => cell.values(),
        };
        for value in values {
            self.values.push(value).ok_or(AppendError::Changed)?;
        }
        if values.len() != 1 && self.ends.is_none() {
            self.ends = Some((1..=self.rows).collect());
        }
        if let Some(ends) = &mut self.ends {
            let end = u32::try_from(self.values.len()).map_err(|_| AppendError::TooMany)?;
            ends.push(end);
        }
        self.rows += 1;
        Ok(())
    }

    fn is_sound(&self) -> bool {
        let has_values = match &self.values {
            Values::Bytes { bytes, ends } => {
                ends.is_sorted() && ends.last().copied().unwrap_or(0) == bytes.len() as u64
            }
            Values::Int64(_) | Values::Float(_) => true,
        };
        let (rows, values) = (self.rows as usize, self.values.len());
        has_values
            && match &self.ends {
                None => values == rows,
                Some(ends) => {
                    ends.len() == rows
                        && ends.is_sorted()
                        && ends.last().copied().unwrap_or(0) as usize == values
                }
            }
    }

    /// Returns the range of a row's values.
    pub(super) fn values_of(&self, row: u32) -> std::ops::Range<usize> {
        let row = row as usize;
        match &self.ends {
            None => row..row + 1,
            Some(ends) => {
                let start = if row == 0 { 0 } else { ends[row - 1] };
                start as usize..ends[row] as usize
            }
        }
    }

    fn add_to<'a>(&'a self, rows: &[u32], is_list: bool, example: &mut ExampleBuilder<'a>) {
        let at = || rows.iter().flat_map(|row| self.values_of(*row));
        match (&self.values, is_list) {
            (Values::Int64(values), false) => {
                example.add_int64(&self.name, values[rows[0] as usize])
            }
            (Values::Int64(values), true) => {
                let list: Vec<i64> = at().map(|at| values[at]).collect();
                example.add_int64s(&self.name, &list)
            }
            (Values::Float(values), _) => {
                let list: Vec<f32> = at().map(|at| values[at]).collect();
                example.add_floats(&self.name, &list)
            }
            (Values::Bytes { bytes, ends }, _) => {
                let value = |at: usize| {
                    let start = if at == 0 { 0 } else { ends[at - 1] };
                    &bytes[start as usize..ends[at] as usize]
                };
                if is_list {
                    example.add_bytes_list(&self.name, &at().map(value).collect::<Vec<_>>())
                } else {
                    example.add_bytes(&self.name, value(rows[0] as usize))
                }
            }
        };
    }
}

impl Columns {
    /// Returns the number of images, if columns that were read from a file are consistent.
    pub(crate) fn images(&self) -> Option<u32> {
        let rows = self.columns.first().map_or(u32::MAX, |column| column.rows);
        let is_sound = self
            .columns
            .iter()
            .all(|column| column.rows == rows && column.is_sound());
        match &self.groups {
            _ if !is_sound => None,
            None => Some(rows),
            Some(groups) => groups.is_sound(rows).then(|| groups.images()),
        }
    }

    /// Returns the names and kinds of the features, and whether some records have more or fewer than one value.
    pub(crate) fn features(&self) -> impl Iterator<Item = (&str, FeatureKind, bool)> {
        let columns = self.columns.iter().map(|column| {
            let kind = match column.values {
                Values::Int64(_) => FeatureKind::Int64,
                Values::Float(_) => FeatureKind::Float,
                Values::Bytes { .. } => FeatureKind::Bytes,
            };
            (column.name.as_str(), kind, self.is_list(column))
        });
        let objects = !self.object_labels.is_empty();
        columns.chain(objects.then_some((OBJECT_LABELS, FeatureKind::Int64, true)))
    }

    /// Returns whether all values of a feature are text.
    pub(crate) fn is_text(&self, name: &str) -> bool {
        let column = self.columns.iter().find(|column| column.name == name);
        match column.map(|column| &column.values) {
            Some(Values::Bytes { bytes, ends }) => std::str::from_utf8(bytes).is_ok_and(|text| {
                let mut ends = ends.iter();
                ends.all(|end| text.is_char_boundary(*end as usize))
            }),
            _ => false,
        }
    }

    fn is_list(&self, column: &Column) -> bool {
        column.ends.is_some() || self.groups.is_some()
    }

    /// Adds the features of an image to its record.
    pub(crate) fn add_to<'a>(&'a self, image: u32, example: &mut ExampleBuilder<'a>) {
        let alone = [image];
        let rows = match &self.groups {
            None => &alone[..],
            Some(groups) => groups.rows(image),
        };
        for column in &self.columns {
            column.add_to(rows, self.is_list(column), example);
        }
        if !self.object_labels.is_empty() {
            let labels = rows
                .iter()
                .filter_map(|row| self.object_labels.get(*row as usize));
            example.add_int64s(OBJECT_LABELS, &labels.copied().collect::<Vec<_>>());
        }
    }
}
