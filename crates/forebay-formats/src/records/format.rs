//! The interface of a format of records.

use super::{RecordInput, RecordSink, RecordSource, SinkOptions, SourceFacts};
use crate::error::Result;

/// Creates a sink for records with these facts. Returns an error for features that the format cannot hold.
pub(super) type CreateSink =
    fn(&SourceFacts, &SinkOptions) -> std::result::Result<Box<dyn RecordSink>, String>;

/// Facts about a format that do not depend on a source.
pub(super) struct FormatInfo {
    /// The name in options and errors.
    pub(super) name: &'static str,
    /// A description of a source in this format, with an article: `a Forebay dataset`.
    pub(super) title: &'static str,
    /// The extensions of the format's files, with the dot.
    pub(super) extensions: &'static [&'static str],
    /// The name of the index file that every source in this format has, if the format has one.
    pub(super) index_name: Option<&'static str>,
    /// Ends of the names of files that identify the format in a directory for each split; none if a source in this format has
    /// no such directories, or has an index file in each.
    pub(super) names_in_split_dirs: &'static [&'static str],
    /// Whether loaders can read records of the format where they are, without a conversion.
    pub(super) is_read_in_place: bool,
    /// How a user of `pack` converts this format to shards.
    pub(super) advice: &'static str,
}

impl FormatInfo {
    pub(super) const NONE: Self = Self {
        name: "",
        title: "",
        extensions: &[],
        index_name: None,
        names_in_split_dirs: &[],
        is_read_in_place: false,
        advice: "",
    };
}

/// A format that records are read from.
pub(super) trait Format: Send + Sync {
    /// Returns the facts about the format.
    fn info(&self) -> &'static FormatInfo;

    /// Returns the first of `names`, the names at the top of a source, that identifies this format.
    fn detect<'n>(&self, names: &[&'n str]) -> Option<&'n str> {
        by_extension(self.info(), names)
    }

    /// Opens a source in this format.
    fn open(&self, input: &RecordInput) -> Result<RecordSource>;

    /// Returns the function that creates a sink of this format; `None` if the format is only read.
    fn writer(&self) -> Option<CreateSink> {
        None
    }
}

/// Returns the first name with an extension of the format. Text may follow the extension: a number, or the extension of a
/// compressor.
pub(super) fn by_extension<'n>(format: &FormatInfo, names: &[&'n str]) -> Option<&'n str> {
    let has = |name: &&str| format.extensions.iter().any(|end| name.contains(end));
    names.iter().copied().find(has)
}
