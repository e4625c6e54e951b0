//! Converts the rows of a row group to records, in batches of rows.

use super::fields::{Field, Fields, LeafType, Use};
use super::input::Input;
use super::memory::{ColumnMemory, GroupMemory};
use super::nested;
use super::pages::{CountedPages, SeenPages};
use super::values::Values;
use crate::records::{SourceRecord, extents};
use crate::sniff::check_image;
use forebay_shard::index::MAX_KEY_BYTES;
use forebay_shard::mapped::Extent;
use forebay_shard::schema::LABEL;
use forebay_shard::{ExampleBuilder, MAX_RECORD_BYTES};
use parquet::column::reader::{ColumnReader, ColumnReaderImpl, get_column_reader};
use parquet::data_type::DataType;
use parquet::errors::{ParquetError, Result as ParquetResult};
use parquet::file::metadata::RowGroupMetaData;
use std::ops::Range;
use std::sync::Arc;

/// Bytes of rows that are decoded at once.
const BATCH_BYTES: u64 = 1 << 20;
/// Most rows that are decoded at once.
const MAX_BATCH_ROWS: u64 = 4096;

/// The rows of a row group.
pub(super) struct Rows {
    fields: Arc<Fields>,
    leaves: Vec<Leaf>,
    batch_rows: usize,
    record: Vec<u8>,
    key: Vec<u8>,
}

/// A column of a row group with its decoded rows.
struct Leaf {
    reader: ColumnReader,
    definitions: Vec<i16>,
    repetitions: Vec<i16>,
    values: Values,
    memory: Arc<ColumnMemory>,
    /// Number of decoded rows since the start of the row group, and how many of them were not read yet.
    decoded: u64,
    left: usize,
    /// Number of levels and values of the decoded rows that were read.
    level: usize,
    value: usize,
    /// The values of the current row; `None` if it is null.
    row: Option<Range<usize>>,
    /// The levels of the current row.
    row_levels: Range<usize>,
    /// The doubles of the current row, in the encoding of records.
    doubles: Vec<u8>,
    /// The nested lists of the current row.
    json: Vec<u8>,
    /// The pages of the values, if the caller needs their locations.
    seen: Option<SeenPages>,
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
        let memory = GroupMemory::default();
        for field in &fields.fields {
            let at = (row as usize, is_mapped);
            leaves.push(Leaf::open(input, group, field, &memory, at)?);
        }
        Ok(Self {
            fields: fields.clone(),
            leaves,
            batch_rows: batch_rows as usize,
            record: Vec::new(),
            key: Vec::new(),
        })
    }

    /// Moves to the next row; after `open`, to the first one.
    pub(super) fn advance(&mut self) -> ParquetResult<()> {
        for (leaf, field) in self.leaves.iter_mut().zip(&self.fields.fields) {
            if leaf.left == 0 {
                leaf.left = leaf.read(self.batch_rows, field)?;
            }
            leaf.left = leaf.left.checked_sub(1).ok_or_else(|| ends_early(field))?;
            leaf.advance(field)?;
        }
        Ok(())
    }

    /// Returns whether all columns of the current row are null.
    pub(super) fn is_null(&self) -> bool {
        self.leaves.iter().all(|leaf| leaf.row.is_none())
    }

    /// Encodes the current row as a record. The caller sets its number.
    pub(super) fn record(&mut self) -> Result<SourceRecord<'_>, String> {
        let fields = &self.fields.fields;
        self.key.clear();
        let label_column = self.fields.columns.column(LABEL);
        let label_feature = label_column.map(|column| column.feature.as_str());
        let mut label = None;
        let bytes: u64 = self.leaves.iter().map(Leaf::row_bytes).sum();
        if bytes > MAX_RECORD_BYTES {
            return Err(format!(
                "its values have {bytes} bytes: a record holds at most {MAX_RECORD_BYTES}"
            ));
        }
        let leaves = self.leaves.iter_mut().zip(fields);
        for (leaf, field) in leaves.filter(|(_, field)| field.is_nested()) {
            leaf.assemble(field)?;
        }
        let image = self.fields.image().map(|field| field.leaf);
        let mut builder = ExampleBuilder::new();
        for (leaf, field) in self.leaves.iter().zip(fields) {
            let is_image = Some(field.leaf) == image;
            let Some(row) = leaf.row.clone() else {
                if is_image {
                    return Err(format!(
                        "the column {:?} is null: it has no image",
                        field.name
                    ));
                }
                continue;
            };
            if is_image {
                let bytes = leaf.values.bytes(row.clone()).next().unwrap_or_default();
                let checked = check_image(bytes);
                checked.map_err(|what| format!("the column {:?}: {what}", field.name))?;
            }
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
            if field.is_nested() {
                builder.add_bytes(name, &leaf.json);
                continue;
            }
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
    /// Adds the locations of the current row's values in the record that was encoded last.
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
        memory: &GroupMemory,
        (row, is_mapped): (usize, bool),
    ) -> ParquetResult<Self> {
        let chunk = group.column(field.leaf);
        let rows = group.num_rows() as usize;
        let seen = is_mapped.then(SeenPages::default);
        let (compression, physical_type) = (chunk.compression(), chunk.column_type());
        let memory = ColumnMemory::new(memory, compression, physical_type, field.is_list);
        let memory = Arc::new(memory);
        let pages = CountedPages::open(input, chunk, rows, Arc::clone(&memory), seen.clone())?;
        let mut reader = get_column_reader(field.descriptor.clone(), Box::new(pages));
        if skip(&mut reader, row)? != row {
            return Err(ends_early(field));
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
            memory,
            decoded: row as u64,
            left: 0,
            level: 0,
            value: 0,
            row: None,
            row_levels: 0..0,
            doubles: Vec::new(),
            json: Vec::new(),
            seen,
        })
    }

    /// Replaces the decoded rows by up to `rows` further ones. Without lists, these are from a single page. Returns their
    /// number.
    fn read(&mut self, rows: usize, field: &Field) -> ParquetResult<usize> {
        if let Some(seen) = &self.seen {
            seen.forget();
        }
        self.definitions.clear();
        self.repetitions.clear();
        self.values.clear();
        (self.level, self.value) = (0, 0);
        if field.is_list {
            self.memory.release(true);
            return self.read_more(rows);
        }
        let left = |leaf: &Self| {
            let (values, most) = leaf.memory.position();
            usize::try_from(values.saturating_sub(leaf.decoded).min(most)).unwrap_or(rows)
        };
        let is_last_used = left(self) > 0;
        self.memory.release(is_last_used);
        // Reading the first row decodes a page, after which the number of its rows is known.
        let first = match is_last_used {
            true => 0,
            false => self.read_more(rows.min(1))?,
        };
        let more = left(self).min(rows).saturating_sub(first);
        Ok(first + self.read_more(more)?)
    }

    /// Decodes up to `rows` further rows and keeps the previous ones. Returns their number.
    fn read_more(&mut self, rows: usize) -> ParquetResult<usize> {
        if rows == 0 {
            return Ok(0);
        }
        let levels = (&mut self.definitions, &mut self.repetitions);
        let read = match (&mut self.reader, &mut self.values) {
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
        };
        let read = read?;
        self.decoded += read as u64;
        Ok(read)
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
        let first_level = self.level;
        loop {
            let definition = self.definitions.get(self.level).copied().unwrap_or(0);
            if definition == field.max_definition {
                self.value += 1;
            } else if definition >= field.list_definition && !field.is_nested() {
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
        let is_there = field
            .lists
            .first()
            .is_none_or(|elements| first >= elements - 1);
        self.row = is_there.then_some(start..self.value);
        self.row_levels = first_level..self.level;
        self.check_end(field)
    }

    /// Assembles the nested lists of the current row.
    fn assemble(&mut self, field: &Field) -> Result<(), String> {
        self.json.clear();
        let Some(row) = self.row.clone() else {
            return Ok(());
        };
        let definitions = self.definitions.get(self.row_levels.clone());
        let repetitions = self.repetitions.get(self.row_levels.clone());
        let levels = (
            definitions.unwrap_or_default(),
            repetitions.unwrap_or_default(),
        );
        nested::write_json(field, levels, &self.values, row, &mut self.json)
    }

    /// Estimates the bytes of the current row's values in a record.
    fn row_bytes(&self) -> u64 {
        let Some(row) = self.row.clone() else {
            return 0;
        };
        let brackets = 4 * self.row_levels.len() as u64;
        match &self.values {
            Values::Bytes(_) | Values::FixedBytes(_) => {
                let lengths = self.values.bytes(row).map(|value| value.len() as u64);
                lengths.fold(brackets, u64::saturating_add)
            }
            _ => 8 * row.len() as u64 + brackets,
        }
    }

    /// Checks that all values of the row exist.
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

fn ends_early(field: &Field) -> ParquetError {
    ParquetError::General(format!(
        "the column {:?} ends before the row group does",
        field.name
    ))
}

fn read_rows<T: DataType>(
    reader: &mut ColumnReaderImpl<T>,
    rows: usize,
    (definitions, repetitions): (&mut Vec<i16>, &mut Vec<i16>),
    values: &mut Vec<T::T>,
) -> ParquetResult<usize> {
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
