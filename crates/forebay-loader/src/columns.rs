//! The columns that a loader adds to its batches, and their values.
//!
//! A thread that decodes a sample also reads its columns, already in the byte format of the batch. When all
//! samples of a batch are complete, these bytes are copied behind the images.

mod placement;

pub(crate) use placement::Placement;

use std::collections::BTreeSet;

use forebay_batch::column::{self, MAX_COLUMNS};
use forebay_batch::{BatchColumn, ColumnArray, ColumnKind, Element};
use forebay_shard::example::RecordFeatures;
use forebay_shard::schema::NumberType;
use forebay_shard::{Column, ColumnType, ColumnValue, ExampleView, Schema, some_of};

use crate::error::{Error, Result};
use crate::options::Options;

/// Maximum size in bytes of a column's value whose size is given by the schema.
const MAX_ROW_BYTES: usize = 1 << 30;

/// The columns of one loader.
pub(crate) struct Columns {
    formats: Vec<Format>,
    /// The columns of each part of the source, in the order of `formats`.
    parts: Vec<Vec<Column>>,
    /// Whether the transform changes the values of a column, as [`follows_pixels`] says.
    moves: bool,
}

/// A column in a batch.
struct Format {
    name: String,
    kind: ColumnKind,
    /// Whether samples differ in their number of rows.
    ragged: bool,
    /// Element type and shape of a row, for each array.
    arrays: Vec<(Element, Vec<usize>)>,
    /// Type of the column in records.
    column_type: ColumnType,
}

/// The values of all columns of one sample.
#[derive(Debug, Default, PartialEq)]
pub(crate) struct SampleColumns {
    bytes: Vec<u8>,
    /// Number of rows of each array, and the end of the array in `bytes`.
    arrays: Vec<(usize, usize)>,
}

/// The data of a record that [`Columns::read`] needs besides its features.
pub(crate) struct RecordContext<'a> {
    /// Number of the record's dataset in a mix.
    pub(crate) part: usize,
    /// The names of the features that hold its image and its label.
    pub(crate) features: &'a RecordFeatures,
    /// Its image.
    pub(crate) image: &'a [u8],
    /// Its label in batches.
    pub(crate) label: i64,
    /// The conversion of labels.
    pub(crate) relabel: &'a dyn Fn(i64) -> Result<i64, String>,
}

impl<'a> RecordContext<'a> {
    /// Returns the value of a column, with labels converted to those in batches.
    fn value(
        &self,
        column: &Column,
        example: ExampleView<'a>,
    ) -> Result<Option<ColumnValue<'a>>, String> {
        // For a record with several images or labels: the ones that the loader selected.
        match &column.column_type {
            ColumnType::Image if column.feature == self.features.image => {
                return Ok(Some(ColumnValue::Bytes(self.image)));
            }
            ColumnType::Label if column.feature == self.features.label => {
                return Ok(Some(ColumnValue::Int(self.label)));
            }
            _ => {}
        }
        let value = column.read(example).map_err(|error| error.to_string())?;
        let relabel = |labels: Vec<i64>| -> Result<Vec<i64>, String> {
            labels.into_iter().map(self.relabel).collect()
        };
        Ok(match (value, &column.column_type) {
            (Some(ColumnValue::Int(label)), ColumnType::Label) => {
                Some(ColumnValue::Int((self.relabel)(label)?))
            }
            (Some(ColumnValue::Ints(labels)), ColumnType::Labels) => {
                Some(ColumnValue::Ints(relabel(labels)?))
            }
            (Some(ColumnValue::Boxes { boxes, labels }), _) => Some(ColumnValue::Boxes {
                boxes,
                labels: relabel(labels)?,
            }),
            (value, _) => value,
        })
    }
}

impl Format {
    fn of(column: &Column, options: &Options) -> Result<Format, String> {
        let one = |element, row: Vec<usize>| vec![(element, row)];
        let side = |len: u64| {
            let len = usize::try_from(len).ok();
            len.ok_or_else(|| format!("{}: no memory can hold it", column.column_type))
        };
        let (kind, ragged, arrays) = match &column.column_type {
            ColumnType::Label | ColumnType::Int | ColumnType::Labels => {
                let ragged = column.column_type == ColumnType::Labels;
                (ColumnKind::Numbers, ragged, one(Element::Int64, vec![]))
            }
            ColumnType::Float => (ColumnKind::Numbers, false, one(Element::Float32, vec![])),
            ColumnType::Vector { len, number } => {
                let row = len.map(side).transpose()?;
                let ragged = row.is_none();
                let row = Vec::from_iter(row);
                (ColumnKind::Numbers, ragged, one(element(*number)?, row))
            }
            ColumnType::Tensor { shape, number } => {
                let element = element(*number)?;
                let known = |shape: &[Option<u64>]| -> Result<Option<Vec<usize>>, String> {
                    let sides: Option<Vec<u64>> = shape.iter().copied().collect();
                    sides
                        .map(|sides| sides.into_iter().map(side).collect())
                        .transpose()
                };
                let rows = match shape.split_first() {
                    Some((None, row)) => known(row)?.filter(|row| !row.contains(&0)),
                    _ => None,
                };
                match (known(shape)?, rows) {
                    (Some(row), _) => (ColumnKind::Numbers, false, one(element, row)),
                    (None, Some(row)) => (ColumnKind::Numbers, true, one(element, row)),
                    (None, None) => {
                        let shapes = (Element::Int64, vec![shape.len()]);
                        (ColumnKind::Tensors, true, vec![(element, vec![]), shapes])
                    }
                }
            }
            ColumnType::Text => (ColumnKind::Text, true, one(Element::Uint8, vec![])),
            ColumnType::Texts | ColumnType::Json | ColumnType::Polygons => {
                (ColumnKind::Json, true, one(Element::Uint8, vec![]))
            }
            ColumnType::Mask if !options.is_raw() => {
                let (height, width) = options.transform.output_size();
                let row = vec![height as usize, width as usize];
                (ColumnKind::Numbers, false, one(Element::Int32, row))
            }
            ColumnType::Image | ColumnType::Bytes | ColumnType::Mask => {
                (ColumnKind::Bytes, true, one(Element::Uint8, vec![]))
            }
            ColumnType::Boxes | ColumnType::Keypoints => {
                let (kind, sides) = match column.column_type {
                    ColumnType::Boxes => (ColumnKind::Boxes, 4),
                    _ => (ColumnKind::Keypoints, 2),
                };
                let places = (Element::Float32, vec![sides]);
                (kind, true, vec![places, (Element::Int64, vec![])])
            }
            other => return Err(format!("batches cannot hold the type {other}")),
        };
        let format = Format {
            name: column.name.clone(),
            kind,
            ragged,
            arrays,
            column_type: column.column_type.clone(),
        };
        match format.row_bytes(0) {
            Some(bytes) if bytes <= MAX_ROW_BYTES => Ok(format),
            _ => Err(format!(
                "{}: a value has more than {MAX_ROW_BYTES} bytes",
                column.column_type
            )),
        }
    }

    /// Returns the size of a row of array `number` in bytes; `None` if it exceeds the address space.
    fn row_bytes(&self, number: usize) -> Option<usize> {
        let (element, row) = self.arrays.get(number)?;
        ColumnArray::new(*element, row.clone()).bytes()
    }

    /// Returns whether array `number` has exactly one row per sample.
    fn is_by_sample(&self, number: usize) -> bool {
        !self.ragged || (self.kind == ColumnKind::Tensors && number == 1)
    }

    /// Adds the value of a sample that has none: -1 for a label, zeros, null for JSON, or an empty list.
    fn add_none(&self, to: &mut SampleColumns) {
        if self.kind == ColumnKind::Json {
            return to.add_bytes(match self.column_type {
                ColumnType::Json => b"null",
                _ => b"[]",
            });
        }
        for number in 0..self.arrays.len() {
            let rows = usize::from(self.is_by_sample(number));
            let bytes = rows * self.row_bytes(number).unwrap_or(0);
            let byte = if self.is_label() { !0 } else { 0 };
            to.bytes.resize(to.bytes.len() + bytes, byte);
            to.end(rows);
        }
    }

    /// Returns whether the column is a single label, which may be missing.
    fn is_label(&self) -> bool {
        self.column_type == ColumnType::Label
    }

    /// Adds a value that was validated by its column. `boxes` are those of the same record, if it has any.
    fn add(
        &self,
        value: &ColumnValue<'_>,
        placement: Placement<'_>,
        boxes: Option<&[[f32; 4]]>,
        to: &mut SampleColumns,
    ) -> Result<(), String> {
        match value {
            ColumnValue::Bytes(mask)
                if self.column_type == ColumnType::Mask && placement.moves() =>
            {
                let ids = placement.mask(mask)?;
                to.bytes.extend(ids.iter().flat_map(|id| id.to_le_bytes()));
                to.end(1);
            }
            ColumnValue::Bytes(bytes) => to.add_bytes(bytes),
            ColumnValue::List(objects) if self.column_type == ColumnType::Polygons => {
                to.add_json(&placement.polygons(objects, boxes)?)?;
            }
            ColumnValue::List(texts) => {
                let texts = texts.iter().map(|text| std::str::from_utf8(text));
                let texts: Result<Vec<&str>, _> = texts.collect();
                to.add_json(&texts.map_err(|error| error.to_string())?)?;
            }
            ColumnValue::Int(value) => to.add_ints(&[*value]),
            ColumnValue::Float(value) => to.add_floats([[*value]].into_iter()),
            ColumnValue::Ints(values) => {
                to.bytes.extend(values.iter().flat_map(|v| v.to_le_bytes()));
                to.end(if self.ragged { values.len() } else { 1 });
            }
            ColumnValue::Floats(values) => {
                to.bytes.extend(values.iter().flat_map(|v| v.to_le_bytes()));
                to.end(if self.ragged { values.len() } else { 1 });
            }
            ColumnValue::Tensor { shape, bytes } => return self.add_tensor(shape, bytes, to),
            ColumnValue::Boxes { boxes, labels } => {
                let (boxes, labels) = placement.boxes(boxes, labels)?;
                to.add_floats(boxes.into_iter());
                to.add_ints(&labels);
            }
            ColumnValue::Keypoints { points, visibility } => {
                let (points, visibility) = placement.keypoints(points, visibility)?;
                to.add_floats(points.into_iter());
                to.add_ints(&visibility);
            }
            _ => return Err("a value of an unknown kind".to_owned()),
        }
        Ok(())
    }

    fn add_tensor(
        &self,
        shape: &[u64],
        bytes: &[u8],
        to: &mut SampleColumns,
    ) -> Result<(), String> {
        let (element, _) = self.arrays[0];
        if element == Element::Bool
            && let Some(at) = bytes.iter().position(|&byte| byte > 1)
        {
            return Err(format!(
                "byte {at} of a bool tensor is {}, expected 0 or 1",
                bytes[at]
            ));
        }
        to.bytes.extend_from_slice(bytes);
        match (self.kind, self.ragged) {
            (ColumnKind::Tensors, _) => {
                to.end(bytes.len() / element.bytes());
                let sides: Result<Vec<i64>, _> = shape.iter().map(|&len| len.try_into()).collect();
                to.bytes.extend(
                    sides
                        .map_err(|_| format!("the shape {shape:?} is beyond 2^63"))?
                        .iter()
                        .flat_map(|side| side.to_le_bytes()),
                );
                to.end(1);
            }
            (_, true) => to.end(bytes.len() / self.row_bytes(0).unwrap_or(1).max(1)),
            (_, false) => to.end(1),
        }
        Ok(())
    }
}

fn element(number: NumberType) -> Result<Element, String> {
    let name = number.name();
    Element::from_name(name).ok_or_else(|| format!("batches cannot hold numbers of type {name}"))
}

impl SampleColumns {
    /// Returns the size in bytes.
    pub(crate) fn len(&self) -> u64 {
        self.bytes.len() as u64
    }

    /// Ends the current array.
    fn end(&mut self, rows: usize) {
        self.arrays.push((rows, self.bytes.len()));
    }

    fn add_bytes(&mut self, bytes: &[u8]) {
        self.bytes.extend_from_slice(bytes);
        self.end(bytes.len());
    }

    fn add_json(&mut self, value: &impl serde::Serialize) -> Result<(), String> {
        self.add_bytes(&serde_json::to_vec(value).map_err(|error| error.to_string())?);
        Ok(())
    }

    fn add_floats<const N: usize>(&mut self, rows: impl ExactSizeIterator<Item = [f32; N]>) {
        let count = rows.len();
        self.bytes.extend(rows.flatten().flat_map(f32::to_le_bytes));
        self.end(count);
    }

    fn add_ints(&mut self, values: &[i64]) {
        self.bytes
            .extend(values.iter().flat_map(|v| v.to_le_bytes()));
        self.end(values.len());
    }

    /// Returns the number of rows and the bytes of array `number`.
    fn array(&self, number: usize) -> (usize, &[u8]) {
        let start = match number.checked_sub(1) {
            Some(before) => self.arrays.get(before).map_or(0, |&(_, end)| end),
            None => 0,
        };
        let (rows, end) = self.arrays.get(number).copied().unwrap_or((0, start));
        (rows, &self.bytes[start..end])
    }
}

impl Columns {
    /// Returns whether the encoded image is one of the columns of records from a part of the source.
    pub(crate) fn have_image(&self, part: usize, features: &RecordFeatures) -> bool {
        let is_image = |column: &Column| {
            column.column_type == ColumnType::Image && column.feature == features.image
        };
        self.parts
            .get(part)
            .is_some_and(|columns| columns.iter().any(is_image))
    }

    /// Finds the columns that `options` name, for a source with these schemas, one for each of its
    /// parts; `None` if they name none.
    pub(crate) fn resolve(options: &Options, schemas: &[Schema]) -> Result<Option<Columns>> {
        let names = &options.columns;
        if names.is_empty() {
            return match options.transform.needs_boxes() {
                Some(op) => Err(without_boxes(op)),
                None => Ok(None),
            };
        }
        if names.len() > MAX_COLUMNS {
            let found = format!("{} names", names.len());
            return Err(Error::option(
                "columns",
                found,
                format!("at most {MAX_COLUMNS}"),
            ));
        }
        let mut seen = BTreeSet::new();
        let mut columns = Columns {
            formats: Vec::new(),
            parts: schemas.iter().map(|_| Vec::new()).collect(),
            moves: false,
        };
        for name in names.iter() {
            let refused =
                |expected: String| Error::option("columns", format!("{name:?}"), expected);
            if !seen.insert(name) {
                return Err(refused("each name once".to_owned()));
            }
            let mut first: Option<Column> = None;
            for (at, schema) in schemas.iter().enumerate() {
                let known = || known_names(schema, at, schemas.len());
                let column = schema.requested(name);
                let column = column.map_err(|problem| refused(problem.unwrap_or_else(known)))?;
                let expected = first.get_or_insert_with(|| column.clone());
                if expected.column_type != column.column_type {
                    return Err(refused(format!(
                        "a column of one type in all datasets of the mix: it is {} in the first, and {} in number {}",
                        expected.column_type,
                        column.column_type,
                        at + 1
                    )));
                }
                columns.parts[at].push(column);
            }
            let Some(column) = first else { continue };
            check_geometry(&column, options).map_err(refused)?;
            let format = Format::of(&column, options).map_err(|problem| Error::Invalid {
                name: "columns",
                error: format!("column {name:?}: {problem}"),
            })?;
            columns.formats.push(format);
        }
        let has = |is: fn(&ColumnType) -> bool| {
            let mut formats = columns.formats.iter();
            formats.any(|format| is(&format.column_type))
        };
        let boxes = has(|column_type| *column_type == ColumnType::Boxes);
        columns.moves = has(follows_pixels);
        match options.transform.needs_boxes() {
            Some(op) if !boxes => Err(without_boxes(op)),
            _ => Ok(Some(columns)),
        }
    }

    /// Returns whether the transform changes the values of a column.
    pub(crate) fn moves(&self) -> bool {
        self.moves
    }

    /// Returns the size of a sample in columns of constant size, in bytes.
    pub(crate) fn sample_bytes(&self) -> u64 {
        let dense = self.formats.iter().filter(|format| !format.ragged);
        dense
            .filter_map(|format| format.row_bytes(0))
            .map(|bytes| bytes as u64)
            .sum()
    }

    /// Reads the values of a record, one per column.
    ///
    /// # Errors
    ///
    /// The name of a damaged column, with the problem.
    pub(crate) fn values<'a>(
        &self,
        record: &'a [u8],
        context: &RecordContext<'a>,
    ) -> Result<Vec<Option<ColumnValue<'a>>>, String> {
        let example = ExampleView::parse(record).map_err(|error| error.to_string())?;
        let columns = self.parts.get(context.part).map_or(&[][..], Vec::as_slice);
        let value = |column: &Column| {
            let failed = |problem: String| format!("column {:?}: {problem}", column.name);
            context.value(column, example).map_err(failed)
        };
        columns.iter().map(value).collect()
    }

    /// Converts the values of a record to the format of batches, with `placement` as the mapping of its pixels.
    ///
    /// # Errors
    ///
    /// The name of a column that is missing or does not fit the image, with the problem.
    pub(crate) fn convert(
        &self,
        values: &[Option<ColumnValue<'_>>],
        placement: Placement<'_>,
    ) -> Result<SampleColumns, String> {
        let mut sample = SampleColumns {
            bytes: Vec::new(),
            arrays: Vec::with_capacity(self.formats.len() + 1),
        };
        let boxes = values.iter().flatten().find_map(|value| match value {
            ColumnValue::Boxes { boxes, .. } => Some(boxes.as_slice()),
            _ => None,
        });
        for (format, value) in self.formats.iter().zip(values) {
            let name = &format.name;
            let failed = |problem: String| format!("column {name:?}: {problem}");
            match value {
                Some(value) => format
                    .add(value, placement, boxes, &mut sample)
                    .map_err(failed)?,
                None if format.ragged || format.is_label() => format.add_none(&mut sample),
                None => {
                    return Err(failed(
                        "the record has no value; on_error \"skip\" or \"zero\" replaces such samples".to_owned(),
                    ));
                }
            }
        }
        Ok(sample)
    }

    /// Returns the values of a sample that failed.
    pub(crate) fn none(&self) -> SampleColumns {
        let mut sample = SampleColumns::default();
        for format in &self.formats {
            format.add_none(&mut sample);
        }
        sample
    }

    /// Returns the layout of the columns of a batch of `samples`, which begin after `pixels` bytes of images, and
    /// the size of the whole payload; `None` if it exceeds the address space.
    pub(crate) fn place(
        &self,
        samples: &[&SampleColumns],
        pixels: usize,
    ) -> Option<(Vec<BatchColumn>, usize)> {
        let mut columns = Vec::with_capacity(self.formats.len());
        let mut next = 0;
        for format in &self.formats {
            let first = next;
            next += format.arrays.len();
            let mut offsets = vec![0i64];
            let mut rows = 0usize;
            for sample in samples {
                rows = rows.checked_add(sample.array(first).0)?;
                offsets.push(i64::try_from(rows).ok()?);
            }
            let arrays = format
                .arrays
                .iter()
                .enumerate()
                .map(|(number, (element, row))| {
                    let rows = match format.is_by_sample(number) {
                        true => samples.len(),
                        false => rows,
                    };
                    ColumnArray::new(*element, [&[rows], &row[..]].concat())
                });
            columns.push(BatchColumn {
                name: format.name.clone(),
                kind: format.kind,
                offsets: format.ragged.then_some(offsets),
                arrays: arrays.collect(),
            });
        }
        let bytes = column::place(&mut columns, pixels)?;
        Some((columns, bytes))
    }

    /// Writes the values of a batch at the offsets that [`Columns::place`] returned. The first `pixels` bytes of
    /// `payload` are the images. Bytes between the arrays become zeros.
    pub(crate) fn write(
        columns: &[BatchColumn],
        samples: &[&SampleColumns],
        payload: &mut [u8],
        pixels: usize,
    ) {
        let mut end = pixels;
        let arrays = columns.iter().flat_map(|column| &column.arrays);
        for (number, array) in arrays.enumerate() {
            payload[end..array.start].fill(0);
            end = array.start;
            for sample in samples {
                let (_, bytes) = sample.array(number);
                payload[end..end + bytes.len()].copy_from_slice(bytes);
                end += bytes.len();
            }
        }
    }
}

fn known_names(schema: &Schema, at: usize, parts: usize) -> String {
    let columns = schema.columns();
    let names = columns.iter().map(|column| format!("{:?}", column.name));
    let of = match parts {
        1 => "the dataset".to_owned(),
        _ => format!("dataset number {} of the mix", at + 1),
    };
    match columns.is_empty() {
        true => format!("nothing, because the manifest of {of} lists no columns"),
        false => format!("columns of {of}: {}", some_of(names)),
    }
}

fn without_boxes(op: &str) -> Error {
    Error::option(
        "transform",
        op.to_owned(),
        "a column of boxes in columns, by which it selects its crop",
    )
}

/// Returns whether the values of a column move with the pixels.
fn follows_pixels(column_type: &ColumnType) -> bool {
    use ColumnType::{Boxes, Keypoints, Mask, Polygons};
    matches!(column_type, Boxes | Mask | Keypoints | Polygons)
}

/// Refuses columns whose values the transform cannot move along with the pixels.
fn check_geometry(column: &Column, options: &Options) -> Result<(), String> {
    if !follows_pixels(&column.column_type) {
        return Ok(());
    }
    if options.batch_transform.is_some() {
        return Err(format!(
            "columns that mixing leaves valid: Mixup and CutMix cannot mix {}",
            column.column_type
        ));
    }
    options
        .transform
        .check_objects()
        .map_err(|error| error.to_string())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn batches_hold_each_number_type_of_a_schema() {
        let numbers = NumberType::ALL.iter();
        let elements: Vec<Element> = numbers.map(|&number| element(number).unwrap()).collect();
        assert_eq!(elements, Element::ALL);
        for (number, element) in NumberType::ALL.iter().zip(elements) {
            assert_eq!(number.bytes(), element.bytes(), "{}", number.name());
        }
    }
}
