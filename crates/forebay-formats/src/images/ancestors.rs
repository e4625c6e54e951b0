//! The directories that a directory is in: a link to one of them would lead in a circle.

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

/// The directories above one up to the root: those of its path, and those of the place to which links in it lead. Those
/// that cannot be looked at are missing.
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
