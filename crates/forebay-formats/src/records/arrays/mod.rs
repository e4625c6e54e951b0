//! Arrays with one row per record, as in files of NumPy, safetensors, HDF5 and Zarr.
//!
//! A format lists the arrays of its files and reads their rows ([`ArrayFile`]). `table` decides which arrays hold images,
//! labels and keys, `read` makes records of rows, and `write` makes rows of records: `layout` says which columns are in which
//! arrays, and `spool` keeps the rows until their number is known.

mod layout;
pub(super) mod places;
mod read;
mod spool;
mod table;
mod write;

pub(super) use layout::TextAs;
pub(super) use read::open;
pub(super) use spool::SpooledArray;
pub(super) use write::{ArrayFormat, ArraySink};

use crate::archive::{ArchiveFile, FileVersion, ReadAt};
use crate::error::Result;
use crate::finding::Finding;
use forebay_shard::schema::NumberType;
use std::fmt;
use std::io;

/// Bytes that are read at once if rows are small: from a local file, and from a store.
const READ_BYTES: u64 = 256 << 10;
const OBJECT_READ_BYTES: u64 = 4 << 20;
/// Most bytes of a row, including rows of variable length: the limit of a record.
const MAX_ROW_BYTES: u64 = forebay_shard::MAX_RECORD_BYTES;
/// Most bytes of a chunk: `CHUNK_BYTES`, or `CHUNK_RATIO` times the size of its file up to `MAX_CHUNK_BYTES` if that is
/// larger.
const CHUNK_BYTES: u64 = 128 << 20;
const CHUNK_RATIO: u64 = 4;
const MAX_CHUNK_BYTES: u64 = 1 << 30;
/// Suffix of the name of the array with the offsets of variable-length rows, after the name of the array with their values.
const OFFSETS: &str = ".offsets";

/// The type of an array's elements.
// Only HDF5, which needs this feature, has elements of variable length.
#[cfg_attr(not(feature = "formats"), allow(dead_code))]
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Element {
    Number(NumberType),
    /// Text with four bytes per character, padded with zeros.
    Utf32,
    /// Byte strings padded with zeros.
    Padded,
    /// UTF-8 of any length.
    Text,
    /// Byte strings of any length.
    Bytes,
    /// A type that columns do not support, and why.
    Other(String),
}

/// An array of a file.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct ArrayInfo {
    pub(super) name: String,
    pub(super) element: Element,
    /// Bytes of an element; 0 for elements of variable length.
    pub(super) width: u64,
    pub(super) is_big_endian: bool,
    /// The dimensions; the first one is the number of rows.
    pub(super) shape: Vec<u64>,
}

impl ArrayInfo {
    fn rows(&self) -> u64 {
        self.shape.first().copied().unwrap_or(0)
    }

    pub(super) fn row_shape(&self) -> &[u64] {
        self.shape.get(1..).unwrap_or_default()
    }

    /// Returns the bytes of a row; `None` on overflow.
    pub(super) fn row_bytes(&self) -> Option<u64> {
        let dims = self.row_shape().iter();
        dims.copied().try_fold(self.width, u64::checked_mul)
    }

    /// Returns the bytes of all rows; `None` on overflow.
    pub(super) fn all_bytes(&self) -> Option<u64> {
        self.row_bytes()?.checked_mul(match self.shape.first() {
            Some(rows) => *rows,
            None => 1,
        })
    }

    /// Returns whether its elements are numbers of this type.
    fn holds(&self, number: NumberType) -> bool {
        self.element == Element::Number(number)
    }
}

impl fmt::Display for ArrayInfo {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let kind = match &self.element {
            Element::Number(number) => number.name(),
            Element::Utf32 | Element::Text => "text",
            Element::Padded | Element::Bytes => "bytes",
            Element::Other(_) => "other",
        };
        write!(f, "{:?} ({kind}, shape {:?})", self.name, self.shape)
    }
}

/// Returns the most bytes that a chunk may have, by the size of its file: small files cannot claim large chunks.
pub(super) fn chunk_limit(file_bytes: u64) -> u64 {
    let of_file = file_bytes.saturating_mul(CHUNK_RATIO);
    of_file.clamp(CHUNK_BYTES, MAX_CHUNK_BYTES)
}

/// A file of arrays.
pub(super) trait ArrayFile: fmt::Debug + Send + Sync {
    /// Returns the identity of the file at the time of opening.
    fn version(&self) -> &FileVersion;

    /// Returns the arrays.
    fn arrays(&self) -> &[ArrayInfo];

    /// Returns the names of arrays that cannot be read, each with a finding.
    fn findings(&self) -> &[(String, Finding)] {
        &[]
    }

    /// Returns a reader of an array's rows, starting at row `first`.
    fn rows(&self, array: usize, first: u64) -> Result<Box<dyn RowReader + '_>>;
}

/// Reads rows of one array in order.
pub(super) trait RowReader {
    /// Appends the bytes of the next `rows` rows, in the byte order of the file.
    fn read(&mut self, rows: u64, out: &mut Vec<u8>) -> io::Result<()>;
}

/// Rows that are contiguous in a file.
pub(super) struct Contiguous {
    file: ArchiveFile,
    next: u64,
    end: u64,
    row_bytes: u64,
    buffer: Vec<u8>,
    taken: usize,
}

impl Contiguous {
    /// Returns the rows from `first` on of an array that begins at `start` in the file.
    pub(super) fn new(file: ArchiveFile, start: u64, info: &ArrayInfo, first: u64) -> Self {
        let row_bytes = info.row_bytes().unwrap_or(0);
        let end = start + info.all_bytes().unwrap_or(0);
        let next = first.saturating_mul(row_bytes).saturating_add(start);
        Self {
            file,
            next: next.min(end),
            end,
            row_bytes,
            buffer: Vec::new(),
            taken: 0,
        }
    }
}

impl RowReader for Contiguous {
    fn read(&mut self, rows: u64, out: &mut Vec<u8>) -> io::Result<()> {
        let mut left = rows.saturating_mul(self.row_bytes);
        while left > 0 {
            if self.taken == self.buffer.len() {
                let ahead = match self.file.is_object() {
                    true => OBJECT_READ_BYTES,
                    false => READ_BYTES,
                };
                let len = ahead.max(left.min(MAX_ROW_BYTES)).min(self.end - self.next);
                if len == 0 {
                    return Err(io::ErrorKind::UnexpectedEof.into());
                }
                self.buffer.resize(len as usize, 0);
                self.taken = 0;
                self.file.read_exact_at(&mut self.buffer, self.next)?;
                self.next += len;
            }
            let there = &self.buffer[self.taken..];
            let len = there.len().min(usize::try_from(left).unwrap_or(usize::MAX));
            out.extend_from_slice(&there[..len]);
            self.taken += len;
            left -= len as u64;
        }
        Ok(())
    }
}

#[cfg(test)]
pub(super) mod tests;
