//! The rows of a row group as records, a batch of rows at a time.

use super::fields::{Field, Fields, LeafType, Use};
use super::file::Input;
use super::pages::{CountedPages, SeenPages};
use crate::records::{SourceRecord, extents};
use forebay_shard::ExampleBuilder;
use forebay_shard::index::MAX_KEY_BYTES;
use forebay_shard::mapped::Extent;
use forebay_shard::schema::LABEL;
use parquet::column::reader::{ColumnReader, ColumnReaderImpl, get_column_reader};
use parquet::data_type::{ByteArray, DataType, FixedLenByteArray};
use parquet::errors::{ParquetError, Result as ParquetResult};
use parquet::file::metadata::RowGroupMetaData;
use std::ops::Range;
use std::sync::Arc;

/// Bytes of rows that are decoded at once.
const BATCH_BYTES: u64 = 1 << 20;
/// Rows that are decoded at once, at most.
const MAX_BATCH_ROWS: u64 = 4096;

/// The rows of a row group.
pub(super) struct Rows {
    fields: Arc<Fields>,
    leaves: Vec<Leaf>,
    batch_rows: usize,
    /// Rows of the batch that are not read yet.
    left: usize,
    record: Vec<u8>,
    key: Vec<u8>,
}

/// A column of a row group, and the rows of it that are decoded.
struct Leaf {
    reader: ColumnReader,
    definitions: Vec<i16>,
    repetitions: Vec<i16>,
    values: Values,
    /// Levels and values of rows that were read.
    level: usize,
    value: usize,
    /// The values of the current row; `None` where it is null.
    row: Option<Range<usize>>,
    /// The doubles of the current row, as a record holds them.
    doubles: Vec<u8>,
    /// The pages of the values, if the caller needs their places.
    seen: Option<SeenPages>,
}

enum Values {
    Bool(Vec<bool>),
    Int32(Vec<i32>),
    Int64(Vec<i64>),
    Float(Vec<f32>),
    Double(Vec<f64>),
    Bytes(Vec<ByteArray>),
    FixedBytes(Vec<FixedLenByteArray>),
}

impl Rows {
    /// Opens a row group at a row.
    pub(super) fn open(
        input: &Arc<Input>,
        group: &RowGroupMetaData,
        fields: &Arc<Fields>,
        (row, is_mapped): (u64, bool),
    ) -> ParquetResult<Self> {
        let rows = group.num_rows().max(1) as u64;
        let row_bytes = group.total_byte_size().max(1) as u64 / rows;
        let batch_rows = (BATCH_BYTES / row_bytes.max(1)).clamp(1, MAX_BATCH_ROWS);
        let mut leaves = Vec::with_capacity(fields.fields.len());
        for field in &fields.fields {
            leaves.push(Leaf::open(input, group, field, (row as usize, is_mapped))?);
        }
        Ok(Self {
            fields: fields.clone(),
            leaves,
            batch_rows: batch_rows as usize,
            left: 0,
            record: Vec::new(),
            key: Vec::new(),
        })
    }

    /// Goes to the next row, the first one after `open`.
    pub(super) fn advance(&mut self) -> ParquetResult<()> {
        if self.left == 0 {
            let mut rows = None;
            for (leaf, field) in self.leaves.iter_mut().zip(&self.fields.fields) {
                let found = leaf.read(self.batch_rows)?;
                if found == 0 || rows.is_some_and(|rows| rows != found) {
                    return Err(ParquetError::General(format!(
                        "the column {:?} ends before the row group does",
                        field.name
                    )));
                }
                rows = Some(found);
            }
            self.left = rows.unwrap_or(self.batch_rows);
        }
        self.left -= 1;
        for (leaf, field) in self.leaves.iter_mut().zip(&self.fields.fields) {
            leaf.advance(field)?;
        }
        Ok(())
    }

    /// The current row as a record; its number is left to the caller.
    pub(super) fn record(&mut self) -> Result<SourceRecord<'_>, String> {
        let fields = &self.fields.fields;
        self.key.clear();
        let label_column = self.fields.columns.column(LABEL);
        let label_feature = label_column.map(|column| column.feature.as_str());
        let mut label = None;
        let mut builder = ExampleBuilder::new();
        for (leaf, field) in self.leaves.iter().zip(fields) {
            let Some(row) = leaf.row.clone() else {
                continue;
            };
            let name = match &field.used_as {
                Use::Feature(name) => name.as_str(),
                Use::Key => {
                    let key = leaf.values.bytes(row).next().unwrap_or_default();
                    if key.len() > MAX_KEY_BYTES {
                        return Err(format!(
                            "its key has {} bytes: at most {MAX_KEY_BYTES} are supported",
                            key.len()
                        ));
                    }
                    self.key.extend_from_slice(key);
                    continue;
                }
            };
            match field.leaf_type {
                LeafType::Bool | LeafType::Int | LeafType::Unsigned => {
                    let mut numbers = leaf.values.integers(row, field)?;
                    if Some(name) == label_feature {
                        let stored = numbers.iter_mut().filter(|label| **label >= 0);
                        stored.for_each(|label| *label += self.fields.stored_base);
                        label = numbers.first().copied();
                    }
                    builder.add_int64s(name, &numbers);
                }
                LeafType::Float => {
                    builder.add_floats(name, leaf.values.floats(row));
                }
                LeafType::Double => {
                    builder.add_bytes(name, &leaf.doubles);
                    if let Some(shape) = &field.shape_feature {
                        builder.add_int64(shape, row.len() as i64);
                    }
                }
                LeafType::Text | LeafType::Bytes => {
                    let all: Vec<&[u8]> = leaf.values.bytes(row).collect();
                    let is_text = field.leaf_type == LeafType::Text;
                    if is_text && all.iter().any(|text| std::str::from_utf8(text).is_err()) {
                        return Err(format!("the column {:?} is not UTF-8", field.name));
                    }
                    builder.add_bytes_list(name, &all);
                }
            }
        }
        self.record.clear();
        builder.encode_into(&mut self.record);
        Ok(SourceRecord {
            number: 0,
            bytes: &self.record,
            label,
            key: &self.key,
        })
    }
}

impl Rows {
    /// Adds the places of the current row's values, which are in the record that was made last.
    pub(super) fn locate(&self, extents: &mut Vec<Extent>) {
        for leaf in &self.leaves {
            let (Some(seen), Some(row)) = (&leaf.seen, leaf.row.clone()) else {
                continue;
            };
            for value in leaf.values.bytes(row) {
                if let Some(start) = seen.locate(value) {
                    extents::find(&self.record, value, start, extents);
                }
            }
        }
    }
}

impl Leaf {
    fn open(
        input: &Arc<Input>,
        group: &RowGroupMetaData,
        field: &Field,
        (row, is_mapped): (usize, bool),
    ) -> ParquetResult<Self> {
        let chunk = group.column(field.leaf);
        let rows = group.num_rows() as usize;
        let seen = is_mapped.then(SeenPages::default);
        let pages = CountedPages::open(input, chunk, rows, seen.clone())?;
        let mut reader = get_column_reader(field.descriptor.clone(), Box::new(pages));
        if skip(&mut reader, row)? != row {
            return Err(ParquetError::General(format!(
                "the column {:?} ends before the row group does",
                field.name
            )));
        }
        let values = match &reader {
            ColumnReader::BoolColumnReader(_) => Values::Bool(Vec::new()),
            ColumnReader::Int32ColumnReader(_) => Values::Int32(Vec::new()),
            ColumnReader::Int64ColumnReader(_) => Values::Int64(Vec::new()),
            ColumnReader::FloatColumnReader(_) => Values::Float(Vec::new()),
            ColumnReader::DoubleColumnReader(_) => Values::Double(Vec::new()),
            ColumnReader::FixedLenByteArrayColumnReader(_) => Values::FixedBytes(Vec::new()),
            _ => Values::Bytes(Vec::new()),
        };
        Ok(Self {
            reader,
            definitions: Vec::new(),
            repetitions: Vec::new(),
            values,
            level: 0,
            value: 0,
            row: None,
            doubles: Vec::new(),
            seen,
        })
    }

    /// Decodes up to this many rows in place of those before.
    fn read(&mut self, rows: usize) -> ParquetResult<usize> {
        if let Some(seen) = &self.seen {
            seen.forget();
        }
        self.definitions.clear();
        self.repetitions.clear();
        (self.level, self.value) = (0, 0);
        let levels = (&mut self.definitions, &mut self.repetitions);
        match (&mut self.reader, &mut self.values) {
            (ColumnReader::BoolColumnReader(reader), Values::Bool(values)) => {
                read_rows(reader, rows, levels, values)
            }
            (ColumnReader::Int32ColumnReader(reader), Values::Int32(values)) => {
                read_rows(reader, rows, levels, values)
            }
            (ColumnReader::Int64ColumnReader(reader), Values::Int64(values)) => {
                read_rows(reader, rows, levels, values)
            }
            (ColumnReader::FloatColumnReader(reader), Values::Float(values)) => {
                read_rows(reader, rows, levels, values)
            }
            (ColumnReader::DoubleColumnReader(reader), Values::Double(values)) => {
                read_rows(reader, rows, levels, values)
            }
            (ColumnReader::ByteArrayColumnReader(reader), Values::Bytes(values)) => {
                read_rows(reader, rows, levels, values)
            }
            (ColumnReader::FixedLenByteArrayColumnReader(reader), Values::FixedBytes(values)) => {
                read_rows(reader, rows, levels, values)
            }
            _ => Err(ParquetError::NYI("96-bit integers".to_owned())),
        }
    }

    /// Finds the values of the next row.
    fn advance(&mut self, field: &Field) -> ParquetResult<()> {
        let start = self.value;
        if !field.is_list {
            let definition = self.definitions.get(self.level).copied();
            let is_there = field.max_definition == 0 || definition == Some(field.max_definition);
            self.level += 1;
            self.value += usize::from(is_there);
            self.row = is_there.then_some(start..self.value);
            return self.check_end(field);
        }
        let first = self.definitions.get(self.level).copied().unwrap_or(0);
        loop {
            let definition = self.definitions.get(self.level).copied().unwrap_or(0);
            if definition == field.max_definition {
                self.value += 1;
            } else if definition >= field.list_definition {
                return Err(ParquetError::General(format!(
                    "the column {:?} has a list with a null in it",
                    field.name
                )));
            }
            self.level += 1;
            if self.repetitions.get(self.level).copied().unwrap_or(0) == 0 {
                break;
            }
        }
        self.row = (first >= field.list_definition - 1).then_some(start..self.value);
        self.check_end(field)
    }

    /// Checks that the values of the row exist.
    fn check_end(&mut self, field: &Field) -> ParquetResult<()> {
        if self.value > self.values.len() {
            let name = &field.name;
            return Err(ParquetError::General(format!(
                "the column {name:?} has too few values"
            )));
        }
        if let (Values::Double(values), Some(row)) = (&self.values, self.row.clone()) {
            self.doubles.clear();
            let bytes = values[row].iter().flat_map(|value| value.to_le_bytes());
            self.doubles.extend(bytes);
        }
        Ok(())
    }
}

fn read_rows<T: DataType>(
    reader: &mut ColumnReaderImpl<T>,
    rows: usize,
    (definitions, repetitions): (&mut Vec<i16>, &mut Vec<i16>),
    values: &mut Vec<T::T>,
) -> ParquetResult<usize> {
    values.clear();
    let (rows, ..) = reader.read_records(rows, Some(definitions), Some(repetitions), values)?;
    Ok(rows)
}

fn skip(reader: &mut ColumnReader, rows: usize) -> ParquetResult<usize> {
    match reader {
        ColumnReader::BoolColumnReader(reader) => reader.skip_records(rows),
        ColumnReader::Int32ColumnReader(reader) => reader.skip_records(rows),
        ColumnReader::Int64ColumnReader(reader) => reader.skip_records(rows),
        ColumnReader::Int96ColumnReader(reader) => reader.skip_records(rows),
        ColumnReader::FloatColumnReader(reader) => reader.skip_records(rows),
        ColumnReader::DoubleColumnReader(reader) => reader.skip_records(rows),
        ColumnReader::ByteArrayColumnReader(reader) => reader.skip_records(rows),
        ColumnReader::FixedLenByteArrayColumnReader(reader) => reader.skip_records(rows),
    }
}

impl Values {
    fn len(&self) -> usize {
        match self {
            Values::Bool(values) => values.len(),
            Values::Int32(values) => values.len(),
            Values::Int64(values) => values.len(),
            Values::Float(values) => values.len(),
            Values::Double(values) => values.len(),
            Values::Bytes(values) => values.len(),
            Values::FixedBytes(values) => values.len(),
        }
    }

    fn integers(&self, row: Range<usize>, field: &Field) -> Result<Vec<i64>, String> {
        let is_unsigned = field.leaf_type == LeafType::Unsigned;
        Ok(match self {
            Values::Bool(values) => values[row].iter().map(|&value| i64::from(value)).collect(),
            Values::Int32(values) if is_unsigned => values[row]
                .iter()
                .map(|&value| i64::from(value as u32))
                .collect(),
            Values::Int32(values) => values[row].iter().map(|&value| i64::from(value)).collect(),
            Values::Int64(values) => {
                let values = &values[row];
                if is_unsigned && let Some(value) = values.iter().find(|value| **value < 0) {
                    let value = *value as u64;
                    return Err(format!(
                        "the column {:?} is {value}: integers of records end at 2^63 - 1",
                        field.name
                    ));
                }
                values.to_vec()
            }
            _ => Vec::new(),
        })
    }

    fn floats(&self, row: Range<usize>) -> &[f32] {
        match self {
            Values::Float(values) => &values[row],
            _ => &[],
        }
    }

    fn bytes(&self, row: Range<usize>) -> Box<dyn Iterator<Item = &[u8]> + '_> {
        match self {
            Values::Bytes(values) => Box::new(values[row].iter().map(ByteArray::data)),
            Values::FixedBytes(values) => Box::new(values[row].iter().map(|value| value.data())),
            _ => Box::new(std::iter::empty()),
        }
    }
}
