//! The command or program that started an unfinished dataset, for messages that advise to run it again.

use super::WORK_DIR;
use super::journal::Journal;
use super::locks;
use super::plan_file;
use super::work_dir::{has_plan, journal_path, plan_path};
use forebay_shard::ShardFormat;
use std::path::Path;

/// The origin of an unfinished dataset.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub enum UnfinishedBy {
    /// [`pack`](crate::pack), or parts of a pack.
    Pack,
    /// [`convert`](crate::convert), or parts of a conversion.
    Convert,
    /// A conversion to mapped shards.
    Index,
    /// [`repair`](crate::repair).
    Repair,
    /// A [`DatasetWriter`](crate::DatasetWriter).
    Writer,
}

impl UnfinishedBy {
    /// Determines the origin from a directory. `None` if there is no unfinished dataset, or its journal cannot be read.
    pub fn of(root: &Path) -> Option<Self> {
        if !root.join(WORK_DIR).is_dir() {
            return None;
        }
        if has_plan(root) || locks::parts(root).next().is_some() {
            let plan = plan_file::read(&plan_path(root)).ok().flatten();
            let is_of_pack = plan.is_none_or(|plan| plan.header.is_of_pack());
            return Some(if is_of_pack {
                Self::Pack
            } else {
                Self::Convert
            });
        }
        let header = Journal::read(&journal_path(root)).ok()??.header;
        let has = |name: &str| header.argument(name).is_some();
        // A writer that converts has its samples next to the destination.
        let samples = |name: &std::ffi::OsStr| {
            let name = format!(".{}.samples", name.to_string_lossy());
            root.with_file_name(name).is_dir()
        };
        Some(
            if header.is_open_ended() || root.file_name().is_some_and(samples) {
                Self::Writer
            } else if header.is_of_pack() {
                Self::Pack
            } else if has("repaired_from") {
                Self::Repair
            } else if header.argument("format") == Some(ShardFormat::Mapped.name()) {
                Self::Index
            } else {
                Self::Convert
            },
        )
    }
}
