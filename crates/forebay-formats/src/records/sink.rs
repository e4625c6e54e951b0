//! Traits for writing records to the files of a format.

use super::SourceRecord;
use crate::error::Result;
use forebay_shard::BlockCompression;
use std::fmt;
use std::fs::File;
use std::io::{self, Write};

/// Options of a sink.
#[derive(Debug, Clone, Default)]
#[non_exhaustive]
pub struct SinkOptions {
    /// Compression of whole files, for formats that have one.
    pub compression: BlockCompression,
    /// The first record. Some formats need it to find the types of columns.
    pub first_record: Option<Vec<u8>>,
}

/// Creates an unnamed temporary file, for parts that a format can write only after later data is known.
pub type Scratch<'a> = &'a dyn Fn() -> Result<File>;

/// Writes a dataset in a format.
pub trait RecordSink: fmt::Debug + Send + Sync {
    /// Returns the name of file `number` of `count` files of a split, relative to the destination.
    fn file_name(&self, split: &str, number: u32, count: u32) -> String;

    /// Begins a file. `first` is the number in the split of its first record.
    ///
    /// # Errors
    /// Errors of the scratch file.
    fn begin(&self, first: u64, scratch: Scratch<'_>) -> Result<Box<dyn RecordWriter>>;

    /// Returns the names and contents of the index files that complete the dataset, in the order of publication. `splits` has
    /// the results of [`RecordWriter::finish`] of all files.
    fn index(&self, _splits: &[(&str, Vec<&serde_json::Value>)]) -> Vec<(String, Vec<u8>)> {
        Vec::new()
    }
}

/// Writes the records of one file in order.
pub trait RecordWriter: Send {
    /// Writes a record.
    ///
    /// # Errors
    /// A record that cannot be written, after which the next record can be written, and errors of `out`.
    fn append(
        &mut self,
        record: &SourceRecord<'_>,
        out: &mut dyn Write,
    ) -> std::result::Result<Appended, SinkError>;

    /// Writes what follows the last record. Returns the facts that the format's index needs about the file, other than its
    /// name; `null` if it needs none.
    ///
    /// # Errors
    /// Errors of `out`, and content that the format cannot hold.
    fn finish(
        &mut self,
        name: &str,
        out: &mut dyn Write,
    ) -> std::result::Result<serde_json::Value, SinkError>;
}

/// The result of writing a record.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Appended {
    /// The key that was written, if it differs from the key of the record.
    pub new_key: Option<String>,
}

/// Why a record was not written.
#[derive(Debug, thiserror::Error)]
pub enum SinkError {
    /// The format cannot hold the record.
    #[error("{0}")]
    Record(String),
    /// Writing to the file failed.
    #[error(transparent)]
    Io(#[from] io::Error),
}
