//! What a format of records implements.

use super::{RecordInput, RecordSink, RecordSource, SinkOptions, SourceFacts};
use crate::error::Result;

/// Creates a sink for records with these facts. Returns an error for features that the format cannot hold.
pub(super) type CreateSink =
    fn(&SourceFacts, &SinkOptions) -> std::result::Result<Box<dyn RecordSink>, String>;

/// A format that records are read from.
pub(super) trait Format: Send + Sync {
    /// Returns the name in options and errors.
    fn name(&self) -> &'static str;

    /// Returns a description of a source in this format, with an article: `a Forebay dataset`.
    fn title(&self) -> &'static str;

    /// Returns the extensions of the format's files, with the dot.
    fn extensions(&self) -> &'static [&'static str] {
        &[]
    }

    /// Returns the name of the index file that every source in this format has, if the format has one.
    fn index_name(&self) -> Option<&'static str> {
        None
    }

    /// Returns ends of the names of files that identify the format in a directory for each split; none if a source in this
    /// format has no such directories, or has an index file in each.
    fn names_in_split_dirs(&self) -> &'static [&'static str] {
        &[]
    }

    /// Returns whether loaders can read records of the format where they are, without a conversion.
    fn is_read_in_place(&self) -> bool {
        false
    }

    /// Returns the first of `names`, the names at the top of a source, that identifies this format.
    fn detect<'n>(&self, names: &[&'n str]) -> Option<&'n str>;

    /// Returns how a user of `pack` converts this format to shards.
    fn advice(&self) -> &'static str;

    /// Opens a source in this format.
    fn open(&self, input: &RecordInput) -> Result<RecordSource>;

    /// Returns the function that creates a sink of this format; `None` if the format is only read.
    fn writer(&self) -> Option<CreateSink> {
        None
    }
}

/// Returns the first name with an extension of the format. Text may follow the extension: a number, or the extension of a
/// compressor.
pub(super) fn by_extension<'n>(format: &dyn Format, names: &[&'n str]) -> Option<&'n str> {
    let has = |name: &&str| format.extensions().iter().any(|end| name.contains(end));
    names.iter().copied().find(has)
}
