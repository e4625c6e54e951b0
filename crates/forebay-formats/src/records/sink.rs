//! Writing records to the files of a format.

use super::SourceRecord;
use crate::error::Result;
use forebay_shard::BlockCompression;
use std::fmt;
use std::fs::File;
use std::io::{self, Write};

/// How files are written.
#[derive(Debug, Clone, Default)]
#[non_exhaustive]
pub struct SinkOptions {
    /// Compression of whole files, for formats that have one.
    pub compression: BlockCompression,
    /// The first record, for formats whose columns have types that records do not tell.
    pub first_record: Option<Vec<u8>>,
}

/// Makes a file without a name, for what a format writes only after it knows what follows.
pub type Scratch<'a> = &'a dyn Fn() -> Result<File>;

/// A format that is being written.
pub trait RecordSink: fmt::Debug + Send + Sync {
    /// Returns the name of a file below the destination: one of `count` of a split.
    fn file_name(&self, split: &str, number: u32, count: u32) -> String;

    /// Begins a file whose first record is `first` of its split.
    ///
    /// # Errors
    /// Those of the scratch file.
    fn begin(&self, first: u64, scratch: Scratch<'_>) -> Result<Box<dyn RecordWriter>>;

    /// Returns the files that make a dataset of the written ones, by name, in the order of publication. `splits` are the
    /// results of [`RecordWriter::finish`].
    fn index(&self, _splits: &[(&str, Vec<&serde_json::Value>)]) -> Vec<(String, Vec<u8>)> {
        Vec::new()
    }
}

/// Writes the records of one file in order.
pub trait RecordWriter: Send {
    /// Writes a record.
    ///
    /// # Errors
    /// A record that cannot be written, after which the next one can be, and errors of `out`.
    fn append(
        &mut self,
        record: &SourceRecord<'_>,
        out: &mut dyn Write,
    ) -> std::result::Result<Appended, SinkError>;

    /// Writes what comes after the last record. Returns what an index of the format has to know of the file, without its
    /// name, which may be nothing.
    ///
    /// # Errors
    /// Those of `out`, and a file that the format cannot hold.
    fn finish(
        &mut self,
        name: &str,
        out: &mut dyn Write,
    ) -> std::result::Result<serde_json::Value, SinkError>;
}

/// A record that was written.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Appended {
    /// The key that it has now, if it is another one.
    pub new_key: Option<String>,
}

/// Why a record was not written.
#[derive(Debug, thiserror::Error)]
pub enum SinkError {
    /// The format cannot hold it.
    #[error("{0}")]
    Record(String),
    /// The file.
    #[error(transparent)]
    Io(#[from] io::Error),
}
