//! An open Parquet file: its validated footer, and a reader of its row groups.

use super::fields::{Field, Fields};
use super::input::Input;
use super::rows::Rows;
use super::{footer, pages};
use crate::archive::hash_text;
use crate::error::{Error, Result};
use crate::records::{RecordFile, RecordReader, SourceRecord};
use forebay_image::catch_panic;
use forebay_shard::mapped::Extent;
use forebay_shard::storage::Storage;
use parquet::errors::{ParquetError, Result as ParquetResult};
use parquet::file::metadata::{ParquetMetaData, RowGroupMetaData};
use parquet::file::reader::Length;
use std::io;
use std::ops::Range;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::UNIX_EPOCH;

/// Most values of a list column in a row group, because all of them are decoded into memory if they are in one row.
const MAX_LIST_VALUES: i64 = 64 << 20;

/// An open Parquet file.
#[derive(Debug)]
pub(super) struct ParquetFile {
    path: PathBuf,
    bytes: u64,
    storage: Arc<dyn Storage>,
    metadata: Arc<ParquetMetaData>,
    pub(super) fields: Arc<Fields>,
    /// First row of each row group, followed by the number of rows.
    starts: Vec<u64>,
}

impl ParquetFile {
    /// Opens a file; `fields` decides by the metadata how its columns are used.
    pub(super) fn open(
        path: &Path,
        storage: Arc<dyn Storage>,
        fields: impl FnOnce(&ParquetMetaData) -> Result<Fields, String>,
    ) -> Result<Self> {
        let file = Input::open(path, &*storage)?;
        let metadata = decoded(|| footer::read(&file));
        let metadata = metadata.map_err(|failure| match failure {
            DecodeFailure::Io(error) => Error::io(path, "read", error),
            DecodeFailure::Damage(what) => {
                let what = format!("it is not a Parquet file, or damaged: {what}");
                Error::source(path, what)
            }
        })?;
        let fields = fields(&metadata).map_err(|what| Error::source(path, what))?;
        let starts = check(&metadata, &fields, file.len())
            .map_err(|what| Error::source(path, format!("it is damaged: {what}")))?;
        Ok(Self {
            path: path.to_path_buf(),
            bytes: file.len(),
            storage,
            metadata: Arc::new(metadata),
            fields: Arc::new(fields),
            starts,
        })
    }

    /// Adds the identity of the file to a hash.
    pub(super) fn identify(&self, split: &str, hasher: &mut blake3::Hasher) {
        let modified = std::fs::metadata(&self.path).and_then(|meta| meta.modified());
        let modified = modified
            .ok()
            .and_then(|time| time.duration_since(UNIX_EPOCH).ok());
        for text in [self.path.as_os_str().as_encoded_bytes(), split.as_bytes()] {
            hash_text(text, hasher);
        }
        hasher.update(&self.bytes.to_le_bytes());
        hasher.update(&self.records().to_le_bytes());
        // Objects in a store have no modification time here; their size and footer identify them.
        hasher.update(&modified.map_or(0, |time| time.as_nanos()).to_le_bytes());
    }

    /// Returns whether any row has a value in a column.
    pub(super) fn has_values(&self, field: &Field) -> Result<bool> {
        let fields = Arc::new(Fields {
            fields: vec![field.clone()],
            ..Fields::clone(&self.fields)
        });
        for group in self.metadata.row_groups() {
            let rows = u64::try_from(group.num_rows()).unwrap_or(0);
            let chunk = group.columns().get(field.leaf);
            let counted = chunk.and_then(|chunk| chunk.statistics()?.null_count_opt());
            let has_values = match counted {
                Some(nulls) => nulls < rows,
                None => match decoded(|| {
                    let input = Input::open(&self.path, &*self.storage);
                    let input = input.map_err(|error| ParquetError::External(Box::new(error)))?;
                    let mut values = Rows::open(&Arc::new(input), group, &fields, (0, false))?;
                    for _ in 0..rows {
                        values.advance()?;
                        if !values.is_null() {
                            return Ok(true);
                        }
                    }
                    Ok(false)
                }) {
                    Ok(has_values) => has_values,
                    Err(DecodeFailure::Io(error)) => {
                        return Err(Error::io(&self.path, "read", error));
                    }
                    // Damage counts as a value; the conversion reports it with its row.
                    Err(DecodeFailure::Damage(_)) => true,
                },
            };
            if has_values {
                return Ok(true);
            }
        }
        Ok(false)
    }

    /// Returns the row group that contains a row, and the row's number in the group.
    fn locate(&self, row: u64) -> Option<(usize, u64)> {
        let group = self.starts.partition_point(|start| *start <= row);
        let group = group.checked_sub(1)?;
        (group < self.metadata.num_row_groups()).then(|| (group, row - self.starts[group]))
    }
}

impl RecordFile for ParquetFile {
    fn path(&self) -> &Path {
        &self.path
    }

    fn bytes(&self) -> u64 {
        self.bytes
    }

    fn records(&self) -> u64 {
        self.starts.last().copied().unwrap_or(0)
    }

    /// Returns the average of the row group, because Parquet does not store the sizes of rows.
    fn record_bytes(&self, record: u64) -> u64 {
        let Some((group, _)) = self.locate(record) else {
            return 0;
        };
        let group = self.metadata.row_group(group);
        let bytes = u64::try_from(group.total_byte_size()).unwrap_or(0);
        bytes / (group.num_rows() as u64).max(1)
    }

    fn in_place_refusal(&self) -> Option<String> {
        let groups = self.metadata.row_groups().iter();
        let mut chunks = groups.flat_map(|group| {
            let fields = self.fields.fields.iter();
            fields.filter_map(|field| Some((&field.name, group.columns().get(field.leaf)?)))
        });
        chunks.find_map(|(name, chunk)| {
            let compression = chunk.compression();
            let is_known = pages::codec(compression).is_some();
            (!is_known).then(|| {
                format!("the pages of the column {name:?} are compressed with {compression}: uncompressed, Snappy, LZ4_RAW and ZSTD pages are read in place, and others can be converted")
            })
        })
    }

    fn with_column(&self, column: &str) -> Option<Box<dyn RecordFile + '_>> {
        Some(Box::new(Self {
            path: self.path.clone(),
            bytes: self.bytes,
            storage: Arc::clone(&self.storage),
            metadata: Arc::clone(&self.metadata),
            fields: Arc::new(self.fields.only(column)),
            starts: self.starts.clone(),
        }))
    }

    fn read(&self, records: Range<u64>) -> Result<Box<dyn RecordReader + '_>> {
        let input = Arc::new(Input::open(&self.path, &*self.storage)?);
        if input.len() != self.bytes {
            let what = "it changed since it was opened: run the command again";
            return Err(Error::source(&self.path, what));
        }
        Ok(Box::new(Reader {
            file: self,
            input,
            next: records.start,
            end: records.end.min(self.records()),
            rows: None,
            failed: None,
            is_mapped: false,
        }))
    }
}

/// Checks everything that the decoder does not check itself. Returns the first row of each row group.
fn check(metadata: &ParquetMetaData, fields: &Fields, len: u64) -> Result<Vec<u64>, String> {
    let mut starts = vec![0u64];
    for (number, group) in metadata.row_groups().iter().enumerate() {
        let wrong = |what: String| format!("row group {number}: {what}");
        let rows = u64::try_from(group.num_rows())
            .map_err(|_| wrong("a negative number of rows".to_owned()))?;
        // A footer of a few bytes may claim any number of rows, and the plan has an entry for each row.
        let next = starts[number].saturating_add(rows);
        if next > len {
            return Err(wrong(format!("{next} rows in a file of {len} bytes")));
        }
        check_columns(group, fields, len).map_err(wrong)?;
        starts.push(next);
    }
    Ok(starts)
}

fn check_columns(group: &RowGroupMetaData, fields: &Fields, len: u64) -> Result<(), String> {
    for field in &fields.fields {
        let name = &field.name;
        let chunk = group.columns().get(field.leaf);
        let chunk = chunk.ok_or_else(|| format!("the column {name:?} is missing"))?;
        let start = chunk
            .dictionary_page_offset()
            .unwrap_or_else(|| chunk.data_page_offset());
        let (start, size) = (u64::try_from(start), u64::try_from(chunk.compressed_size()));
        let end = match (start, size) {
            (Ok(start), Ok(size)) => start.checked_add(size).filter(|end| *end <= len),
            _ => None,
        };
        if end.is_none() {
            return Err(format!(
                "the column {name:?} lies outside of the file's {len} bytes"
            ));
        }
        let (values, rows) = (chunk.num_values(), group.num_rows());
        if !field.is_list && values != rows {
            return Err(format!(
                "the column {name:?} has {values} values for {rows} rows"
            ));
        }
        if field.is_list && !(0..=MAX_LIST_VALUES).contains(&values) {
            return Err(format!(
                "the column {name:?} has {values} values, more than the {MAX_LIST_VALUES} that a row group may have: write smaller row groups"
            ));
        }
    }
    Ok(())
}

/// Reads the rows of a file, one row group after the other.
struct Reader<'a> {
    file: &'a ParquetFile,
    input: Arc<Input>,
    next: u64,
    end: u64,
    rows: Option<Rows>,
    /// The row group that is skipped because the decoder failed in it, and the row at which it failed.
    failed: Option<(usize, u64)>,
    /// Whether the caller needs the offsets of values.
    is_mapped: bool,
}

impl RecordReader for Reader<'_> {
    fn next_record(&mut self) -> Result<Option<SourceRecord<'_>>> {
        match self.advance()? {
            Some(number) => self.record(number),
            None => Ok(None),
        }
    }

    fn next_mapped(&mut self, extents: &mut Vec<Extent>) -> Result<Option<SourceRecord<'_>>> {
        extents.clear();
        self.is_mapped = true;
        let Some(number) = self.advance()? else {
            return Ok(None);
        };
        self.record(number)?;
        if let Some(rows) = &self.rows {
            rows.locate(extents);
        }
        self.record(number)
    }
}

impl Reader<'_> {
    /// Moves to the next row. Returns its number.
    fn advance(&mut self) -> Result<Option<u64>> {
        if self.next >= self.end {
            return Ok(None);
        }
        let (path, number) = (&self.file.path, self.next);
        let Some((group, row)) = self.file.locate(number) else {
            return Ok(None);
        };
        // Each remaining row of a failed row group is an error of its own, so that the number of errors is the number of lost
        // rows.
        self.next += 1;
        if let Some((failed, at)) = self.failed.filter(|(failed, _)| *failed == group) {
            let what = format!(
                "row group {failed}, row {row}: not read, as row {at} of the row group is damaged"
            );
            return Err(Error::record(path, number, what));
        }
        if row == 0 {
            self.rows = None;
        }
        let read = decoded(|| {
            let rows = match &mut self.rows {
                Some(rows) => rows,
                none => {
                    let metadata = self.file.metadata.row_group(group);
                    let options = (row, self.is_mapped);
                    let opened = Rows::open(&self.input, metadata, &self.file.fields, options)?;
                    none.insert(opened)
                }
            };
            rows.advance()
        });
        if let Err(failure) = read {
            // The decoder cannot resume after a failure.
            (self.rows, self.failed) = (None, Some((group, row)));
            return Err(match failure {
                DecodeFailure::Io(error) => Error::io(path, "read", error),
                DecodeFailure::Damage(what) => Error::record(
                    path,
                    number,
                    format!("row group {group}, row {row}: {what}"),
                ),
            });
        }
        Ok(Some(number))
    }

    fn record(&mut self, number: u64) -> Result<Option<SourceRecord<'_>>> {
        let Some(rows) = &mut self.rows else {
            return Ok(None);
        };
        let record = rows.record();
        let record = record.map_err(|what| {
            let (group, row) = self.file.locate(number).unwrap_or_default();
            let what = format!("row group {group}, row {row}: {what}");
            Error::record(&self.file.path, number, what)
        })?;
        Ok(Some(SourceRecord { number, ..record }))
    }
}

/// Why the decoder failed.
enum DecodeFailure {
    Io(io::Error),
    Damage(String),
}

/// Runs the decoder. Its panics on damaged files become errors.
fn decoded<T>(decode: impl FnOnce() -> ParquetResult<T>) -> Result<T, DecodeFailure> {
    let what = match catch_panic(decode) {
        Ok(Ok(value)) => return Ok(value),
        Ok(Err(ParquetError::External(error))) => match error.downcast::<io::Error>() {
            Ok(error) => return Err(DecodeFailure::Io(*error)),
            Err(error) => error.to_string(),
        },
        Ok(Err(ParquetError::General(what) | ParquetError::NYI(what))) => what,
        Ok(Err(error)) => error.to_string(),
        Err(_) => "the Parquet decoder failed on it".to_owned(),
    };
    Err(DecodeFailure::Damage(what))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::records::RecordInput;
    use forebay_shard::storage::LocalFiles;

    #[test]
    fn more_rows_than_bytes_are_refused() {
        let dir = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../testdata/parquet");
        let input = RecordInput::new(dir.as_path());
        let storage = Arc::new(LocalFiles::new(1));
        let file = ParquetFile::open(&dir.join("plain.parquet"), storage, |metadata| {
            Fields::decide(metadata.file_metadata(), &input, None)
        });
        let file = file.unwrap();
        assert_eq!(
            check(&file.metadata, &file.fields, file.bytes).unwrap(),
            [0, 5]
        );
        let error = check(&file.metadata, &file.fields, 4).unwrap_err();
        assert_eq!(error, "row group 0: 5 rows in a file of 4 bytes");
    }
}
