//! Reads rows in order and encodes an `Example` from the rows of all arrays.

use super::table::{self, Pixels, Table, TableColumn, Target, Values};
use super::{ArrayFile, ArrayInfo, Element, MAX_ROW_BYTES, RowReader};
use crate::error::{Error, Result};
use crate::finding::escape;
use crate::option_names::LABEL_BASE;
use crate::records::conversion::Conversion;
use crate::records::numbers::{float32s, int64s, integer, is_integer};
use crate::records::{
    OwnedRecord, RecordFile, RecordInput, RecordReader, RecordSource, RecordSplit, SourceFacts,
    SourceRecord, order_by_sizes,
};
use crate::sniff::check_image;
use forebay_image::{PngCompression, encode_png_samples};
use forebay_shard::ExampleBuilder;
use forebay_shard::index::MAX_KEY_BYTES;
use forebay_shard::schema::{ColumnType, ColumnValue, IMAGE, NumberType};
use std::borrow::Cow;
use std::collections::BTreeMap;
use std::io;
use std::ops::Range;
use std::path::Path;
use std::sync::Arc;

/// Estimated bytes of a record in addition to its arrays.
const RECORD_BYTES: u64 = 128;
/// Most rows at the beginning that are searched for a value.
const FIRST_ROWS: u64 = 16;
/// Most bytes that are allocated before the data for them was read.
const STEP_BYTES: u64 = 4 << 20;

/// Files by split, both in order.
pub(in crate::records) type SplitFiles = Vec<(String, Vec<Arc<dyn ArrayFile>>)>;

/// Makes a source of files. If the names of all arrays in a file contain a split, these are the splits.
pub(in crate::records) fn open(
    files: SplitFiles,
    input: &RecordInput,
    conversion: Option<&Conversion>,
    root: &Path,
) -> Result<RecordSource> {
    let mut hasher = blake3::Hasher::new();
    let mut decided: Option<Table> = None;
    let mut splits: BTreeMap<String, Vec<Rows>> = BTreeMap::new();
    let mut findings = Vec::new();
    for (split, files) in files {
        for file in files {
            file.version().add_to(&split, &mut hasher);
            let unread = file.findings().iter();
            let unread = unread.filter(|(name, _)| !input.drop_features.contains(name));
            findings.extend(unread.map(|(_, finding)| finding.clone()));
            let told = match conversion.is_some() || input.split.is_some() {
                true => None,
                false => table::by_split(file.arrays(), input),
            };
            let whole = || {
                let names = file.arrays().iter().map(|array| array.name.clone());
                BTreeMap::from([(split.clone(), names.zip(0..).collect())])
            };
            for (split, named) in told.unwrap_or_else(whole) {
                let mut first = |values| first_row(&*file, values);
                let table = Table::decide(&named, file.arrays(), input, conversion, &mut first);
                let table = table.map_err(|what| Error::source(&file.version().path, what))?;
                if let Some(what) = decided.as_ref().and_then(|first| first.difference(&table)) {
                    return Err(Error::source(&file.version().path, what));
                }
                // A header of a few bytes may claim any number of rows, and the plan has an entry for each row.
                if table.rows > file.version().bytes {
                    let (rows, bytes) = (table.rows, file.version().bytes);
                    let what = format!("it is damaged: {rows} rows in {bytes} bytes");
                    return Err(Error::source(&file.version().path, what));
                }
                decided.get_or_insert_with(|| table.clone());
                let rows = Rows {
                    file: Arc::clone(&file),
                    row_bytes: row_bytes(&*file, &table),
                    table,
                };
                splits.entry(split).or_default().push(rows);
            }
        }
    }
    let table = decided.ok_or_else(|| Error::source(root, "it has no arrays"))?;
    let splits = splits
        .into_iter()
        .map(|(name, files)| RecordSplit::new(name, files));
    let splits: Vec<RecordSplit> = splits.collect();
    let uses = table.columns.iter().map(|column| {
        let kind = match column.target {
            Target::Pixels(_) => "pixels".to_owned(),
            target => format!("{target:?}"),
        };
        format!("{}={kind}", column.column.feature)
    });
    let identity = [
        ("columns", uses.collect::<Vec<_>>().join(",")),
        ("label_base", table.label_base.to_string()),
    ];
    let schema = match conversion {
        Some(known) => known.columns.clone(),
        None => table.schema().map_err(|what| Error::source(root, what))?,
    };
    let facts = SourceFacts {
        features: table.features(),
        record_features: table.record_features(),
        findings,
        ..SourceFacts::new(table.label_base, schema, &hasher, identity)
    };
    Ok(RecordSource {
        facts: facts.with_conversion(conversion, || order_by_sizes(&splits)),
        splits,
    })
}

/// Returns the first non-zero value of a column in the first rows; empty or zeros if there is none.
fn first_row(file: &dyn ArrayFile, values: Values) -> std::result::Result<Vec<u8>, String> {
    let array = &file.arrays()[values.array()];
    if array.rows() == 0 {
        return Ok(Vec::new());
    }
    // The error of opening contains the path, and the caller adds it again.
    let mut reader = ColumnReader::open(file, values, 0).map_err(|error| match error {
        Error::Source { what, .. } => what,
        error => error.to_string(),
    })?;
    let mut row = Vec::new();
    let rows = match values {
        Values::Rows(_) => array.rows(),
        Values::Ragged { offsets, .. } => file.arrays()[offsets].rows().saturating_sub(1),
    };
    // An empty image is a damaged record, and does not show the format of the others.
    for _ in 0..rows.min(FIRST_ROWS) {
        let read = reader.read(MAX_ROW_BYTES, &mut row);
        read.map_err(|error| format!("array {:?}: {error}", array.name))?;
        if row.iter().any(|byte| *byte != 0) {
            break;
        }
    }
    Ok(row)
}

/// Estimates the bytes of a record. If values have variable length, all rows together count at least as much as
/// the file.
fn row_bytes(file: &dyn ArrayFile, table: &Table) -> u64 {
    let rows = table.rows.max(1);
    let arrays = table.columns.iter().map(|column| {
        let array = &file.arrays()[column.values.array()];
        (array.all_bytes().unwrap_or(0), array.width == 0)
    });
    let known: u64 = arrays.clone().map(|(bytes, _)| bytes).sum();
    let is_any = arrays.clone().any(|(_, is_any)| is_any);
    let bytes = match is_any {
        true => known.max(file.version().bytes),
        false => known,
    };
    bytes / rows + RECORD_BYTES
}

/// The rows of a split in a file.
#[derive(Debug)]
struct Rows {
    file: Arc<dyn ArrayFile>,
    table: Table,
    row_bytes: u64,
}

impl RecordFile for Rows {
    fn path(&self) -> &Path {
        &self.file.version().path
    }

    fn bytes(&self) -> u64 {
        self.file.version().bytes
    }

    fn records(&self) -> u64 {
        self.table.rows
    }

    fn record_bytes(&self, record: u64) -> u64 {
        match record < self.table.rows {
            true => self.row_bytes,
            false => 0,
        }
    }

    fn read(&self, records: Range<u64>) -> Result<Box<dyn RecordReader + '_>> {
        let columns = self.table.columns.iter();
        let readers =
            columns.map(|column| ColumnReader::open(&*self.file, column.values, records.start));
        Ok(Box::new(Reader {
            rows: self,
            readers: readers.collect::<Result<_>>()?,
            next: records.start,
            end: records.end.min(self.table.rows),
            record: OwnedRecord::default(),
        }))
    }

    fn is_slow_to_encode(&self) -> bool {
        let mut columns = self.table.columns.iter();
        columns.any(|column| matches!(column.target, Target::Pixels(_)))
    }

    fn encode(&self, record: &mut OwnedRecord) -> Result<()> {
        let OwnedRecord {
            bytes, key, raw, ..
        } = record;
        key.clear();
        bytes.clear();
        let label = encode(&self.table, self.file.arrays(), raw, key, bytes);
        record.label = label.map_err(|what| Error::record(self.path(), record.number, what))?;
        Ok(())
    }
}

/// Reads the offsets of a column with rows of variable length.
struct Offsets<'a> {
    reader: Box<dyn RowReader + 'a>,
    is_big_endian: bool,
    /// The offset of the next row's values.
    start: u64,
}

impl Offsets<'_> {
    fn next(&mut self) -> io::Result<u64> {
        let mut word = Vec::with_capacity(8);
        self.reader.read(1, &mut word)?;
        let word: [u8; 8] = word.try_into().unwrap_or_default();
        let offset = match self.is_big_endian {
            true => i64::from_be_bytes(word),
            false => i64::from_le_bytes(word),
        };
        u64::try_from(offset).map_err(|_| invalid(format!("{offset} is no offset")))
    }
}

fn invalid(what: String) -> io::Error {
    io::Error::new(io::ErrorKind::InvalidData, what)
}

/// Reads the values of one column in order.
struct ColumnReader<'a> {
    values: Box<dyn RowReader + 'a>,
    offsets: Option<Offsets<'a>>,
    info: &'a ArrayInfo,
    row_bytes: u64,
}

impl<'a> ColumnReader<'a> {
    fn open(file: &'a dyn ArrayFile, values: Values, first: u64) -> Result<Self> {
        let info = &file.arrays()[values.array()];
        let row_bytes = info.row_bytes().unwrap_or(0);
        let (first, offsets) = match values {
            Values::Rows(_) => (first, None),
            Values::Ragged { offsets, .. } => {
                let mut offsets = Offsets {
                    reader: file.rows(offsets, first)?,
                    is_big_endian: file.arrays()[offsets].is_big_endian,
                    start: 0,
                };
                let start = offsets.next();
                offsets.start =
                    start.map_err(|error| Error::io(&file.version().path, "read", error))?;
                (offsets.start, Some(offsets))
            }
        };
        Ok(Self {
            values: file.rows(values.array(), first)?,
            offsets,
            info,
            row_bytes,
        })
    }

    /// Reads the values of the next record, at most `most` bytes, and converts them to little-endian.
    fn read(&mut self, most: u64, out: &mut Vec<u8>) -> io::Result<()> {
        let mut rows = 1;
        if let Some(offsets) = &mut self.offsets {
            let (start, end) = (offsets.start, offsets.next()?);
            let len = end.checked_sub(start).filter(|_| end <= self.info.rows());
            let refused = || invalid(format!("{start} and {end} are no offsets of its values"));
            rows = len.ok_or_else(refused)?;
            offsets.start = end;
        }
        let bytes = rows.checked_mul(self.row_bytes);
        if bytes.is_none_or(|bytes| bytes > most) {
            return Err(invalid(format!(
                "{rows} rows of {} bytes, and the record has room for {most}: at most {MAX_ROW_BYTES} bytes are in all of its arrays",
                self.row_bytes
            )));
        }
        out.clear();
        let step = (STEP_BYTES / self.row_bytes.max(1)).max(1);
        while rows > 0 {
            let count = rows.min(step);
            self.values.read(count, out)?;
            rows -= count;
        }
        if self.info.is_big_endian {
            swap(out, &self.info.element);
        }
        Ok(())
    }
}

/// Swaps the byte order of each number or character.
fn swap(bytes: &mut [u8], element: &Element) {
    let width = match element {
        Element::Number(number) => number.bytes(),
        Element::Utf32 => 4,
        _ => 1,
    };
    bytes.chunks_exact_mut(width).for_each(<[u8]>::reverse);
}

/// Reads records in order.
struct Reader<'a> {
    rows: &'a Rows,
    readers: Vec<ColumnReader<'a>>,
    next: u64,
    end: u64,
    record: OwnedRecord,
}

impl RecordReader for Reader<'_> {
    fn next_record(&mut self) -> Result<Option<SourceRecord<'_>>> {
        let mut record = std::mem::take(&mut self.record);
        let is_one = self.next_raw(&mut record)?;
        if is_one {
            self.rows.encode(&mut record)?;
        }
        self.record = record;
        Ok(is_one.then(|| self.record.get()))
    }

    fn next_raw(&mut self, record: &mut OwnedRecord) -> Result<bool> {
        let file = &self.rows.file;
        let number = self.next;
        if number >= self.end {
            return Ok(false);
        }
        self.next += 1;
        record.number = number;
        record.raw.resize_with(self.readers.len(), Vec::new);
        let mut room = MAX_ROW_BYTES;
        for (reader, value) in self.readers.iter_mut().zip(&mut record.raw) {
            // After damage the following bytes cannot be trusted either, so this stops the conversion under any policy.
            let read = reader.read(room, value);
            room = room.saturating_sub(value.len() as u64);
            read.map_err(|error| match error.kind() {
                io::ErrorKind::UnexpectedEof | io::ErrorKind::InvalidData => {
                    let what = format!("record {number}: array {:?}: {error}", reader.info.name);
                    Error::source(&file.version().path, what)
                }
                _ => Error::io(&file.version().path, "read", error),
            })?;
        }
        Ok(true)
    }
}

/// Appends the record with the values of all columns. Returns its label.
fn encode(
    table: &Table,
    arrays: &[ArrayInfo],
    values: &[Vec<u8>],
    key: &mut Vec<u8>,
    record: &mut Vec<u8>,
) -> std::result::Result<Option<i64>, String> {
    let mut label = None;
    let mut owned: Vec<Cow<'_, [u8]>> = Vec::with_capacity(values.len());
    for (column, value) in table.columns.iter().zip(values) {
        let array = &arrays[column.values.array()];
        let refused = |what: String| format!("array {:?}: {what}", array.name);
        owned.push(match (column.target, &array.element) {
            (Target::Pixels(pixels), _) => Cow::Owned(png(pixels, value).map_err(refused)?),
            (_, Element::Utf32) => Cow::Owned(text_of_utf32(value).map_err(refused)?),
            (_, Element::Padded) => Cow::Borrowed(unpadded(value)),
            _ => Cow::Borrowed(value),
        });
        let is_encoded_image = column.target == Target::Feature && column.column.name == IMAGE;
        if let (true, Some(value)) = (is_encoded_image, owned.last()) {
            check_image(value).map_err(refused)?;
        }
    }
    let mut builder = ExampleBuilder::new();
    for (column, value) in table.columns.iter().zip(&owned) {
        let array = &arrays[column.values.array()];
        let refused = |what: String| format!("array {:?}: {what}", array.name);
        if matches!(column.target, Target::Key | Target::FeatureAndKey) {
            if value.len() > MAX_KEY_BYTES {
                let what = format!("a key of {} bytes is too long", value.len());
                return Err(refused(what));
            }
            key.extend_from_slice(value);
            if column.target == Target::Key {
                continue;
            }
        }
        let value = column_value(column, array, value).map_err(refused)?;
        let value = match (column.target, value) {
            (Target::Label, ColumnValue::Int(stored)) => {
                let stored = table.stored_label(stored).map_err(refused)?;
                label = Some(stored);
                ColumnValue::Int(stored)
            }
            (_, value) => value,
        };
        let added = column.column.add(&column.features, &value, &mut builder);
        added.map_err(|error| refused(error.to_string()))?;
    }
    builder.encode_into(record);
    Ok(label)
}

impl Table {
    /// Returns a label as records store it. -1 always means no label.
    fn stored_label(&self, label: i64) -> std::result::Result<i64, String> {
        let stored = match label {
            -1 => return Ok(-1),
            label => label.checked_add(self.stored_base),
        };
        let is_valid = |stored: &i64| *stored >= self.label_base;
        stored.filter(is_valid).ok_or_else(|| {
            let first = self.label_base - self.stored_base;
            format!("its label is {label}, and the first class has label {first}, -1 is none: {LABEL_BASE} says which label is the first")
        })
    }
}

/// Returns the value without the zeros at the end.
fn unpadded(value: &[u8]) -> &[u8] {
    let end = value.iter().rposition(|byte| *byte != 0);
    &value[..end.map_or(0, |at| at + 1)]
}

fn text_of_utf32(value: &[u8]) -> std::result::Result<Vec<u8>, String> {
    let words = value.chunks_exact(4);
    let mut text = String::new();
    for word in words {
        let number = u32::from_le_bytes(word.try_into().unwrap_or_default());
        let character = char::from_u32(number);
        text.push(character.ok_or_else(|| format!("{number:#x} is no character"))?);
    }
    Ok(text.trim_end_matches('\0').to_owned().into_bytes())
}

/// Encodes the pixels of a row as PNG.
fn png(pixels: Pixels, value: &[u8]) -> std::result::Result<Vec<u8>, String> {
    let interleaved: Vec<u8>;
    let mut data = value;
    let channels = pixels.format.pixel_bytes();
    if pixels.is_planar && channels > 1 {
        let plane = value.len() / channels;
        let samples = (0..plane).flat_map(|at| (0..channels).map(move |c| c * plane + at));
        interleaved = samples.map(|at| value[at]).collect();
        data = &interleaved;
    }
    let encoded = encode_png_samples(
        data,
        pixels.width,
        pixels.height,
        pixels.format,
        PngCompression::Fast,
    );
    encoded.map_err(|error| format!("it cannot be encoded: {error}"))
}

/// Returns the value of a column from little-endian bytes.
fn column_value<'a>(
    column: &TableColumn,
    array: &ArrayInfo,
    bytes: &'a [u8],
) -> std::result::Result<ColumnValue<'a>, String> {
    let number = match &array.element {
        Element::Number(number) => *number,
        _ => return Ok(ColumnValue::Bytes(bytes)),
    };
    let mismatch =
        |expected: &ColumnType| Err(format!("numbers of {} are no {expected}", number.name()));
    match &column.column.column_type {
        ColumnType::Label | ColumnType::Int if is_integer(number) => {
            Ok(ColumnValue::Int(integer(number, bytes)))
        }
        ColumnType::Float if number == NumberType::Float32 => {
            let word = bytes.try_into().unwrap_or_default();
            Ok(ColumnValue::Float(f32::from_le_bytes(word)))
        }
        ColumnType::Vector { number: own, .. } if *own == number => Ok(match own {
            NumberType::Int64 => ColumnValue::Ints(int64s(bytes)),
            _ => ColumnValue::Floats(float32s(bytes)),
        }),
        ColumnType::Labels if number == NumberType::Int64 => Ok(ColumnValue::Ints(int64s(bytes))),
        ColumnType::Tensor { number: own, .. } if *own == number => {
            let mut shape = array.row_shape().to_vec();
            if let Values::Ragged { .. } = column.values {
                let row = array.row_bytes().unwrap_or(0).max(1);
                shape.insert(0, bytes.len() as u64 / row);
            }
            Ok(ColumnValue::Tensor { shape, bytes })
        }
        // Text and bytes of variable length, and images.
        ColumnType::Text | ColumnType::Bytes | ColumnType::Image | ColumnType::Mask => {
            if column.column.column_type == ColumnType::Text && std::str::from_utf8(bytes).is_err()
            {
                return Err(format!(
                    "{:?} is not UTF-8",
                    escape(&bytes[..bytes.len().min(64)])
                ));
            }
            Ok(ColumnValue::Bytes(bytes))
        }
        other => mismatch(other),
    }
}
