//! The ancestors of a directory. A link to one of them would make a walk endless.

use std::collections::HashSet;
use std::fs::Metadata;
use std::os::unix::fs::MetadataExt;
use std::path::Path;

/// Identity of a directory: device and inode.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(super) struct DirId(u64, u64);

impl DirId {
    pub(super) fn of(meta: &Metadata) -> Self {
        Self(meta.dev(), meta.ino())
    }
}

/// Returns the ancestors of a directory: those of its path as given, and those of its canonical path. Unreadable ones are
/// missing.
pub(super) fn ancestors(dir: &Path) -> HashSet<DirId> {
    let named = std::path::absolute(dir).unwrap_or_default();
    let real = std::fs::canonicalize(dir).unwrap_or_default();
    let above = [&named, &real]
        .into_iter()
        .flat_map(|path| path.ancestors().skip(1));
    above
        .filter_map(|path| Some(DirId::of(&std::fs::metadata(path).ok()?)))
        .collect()
}
