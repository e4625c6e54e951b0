//! Counts the files and images in a directory that is not part of the dataset.

use super::members::Members;
use crate::sniff::{self, ContentKind, has_image_name};
use std::os::unix::ffi::OsStrExt;
use std::path::Path;
use walkdir::WalkDir;

/// Most files that are counted in an ignored directory: a directory of snapshots may contain the whole volume many times.
const COUNTED_ASIDE: u64 = 100_000;
/// Most files without an extension whose first bytes are read to detect an image.
const LOOKED_AT: u32 = 64;
/// Deepest level of directories that is counted.
const MAX_DEPTH: usize = 64;

/// Numbers of files below a directory.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(super) struct Contents {
    pub(super) files: u64,
    /// The number of these files that are images, by their names or their first bytes.
    pub(super) images: u64,
}

impl Contents {
    /// Counts the files below a path in archives or in a store.
    pub(super) fn of_members(members: &Members, path: &[u8]) -> Self {
        let mut found = Self::default();
        for member in members.below(path) {
            if member.kind != ContentKind::Directory {
                found.add(member.kind == ContentKind::Image);
            }
        }
        found
    }

    /// Counts the files below a directory. `is_part` means that it could have been part of the dataset.
    pub(super) fn of_dir(dir: &Path, is_part: bool) -> Self {
        let mut found = Self::default();
        let mut looked = 0;
        let entries = WalkDir::new(dir).follow_links(is_part).max_depth(MAX_DEPTH);
        for entry in entries {
            let Ok(entry) = entry else {
                continue;
            };
            if entry.file_type().is_dir() {
                continue;
            }
            let name = entry.file_name().as_bytes();
            let mut is_image = has_image_name(name);
            if is_part && !is_image && !name.contains(&b'.') && looked < LOOKED_AT {
                looked += 1;
                let is_file = entry.file_type().is_file();
                is_image =
                    is_file && matches!(sniff::kind_of_file(entry.path()), Ok(ContentKind::Image));
            }
            found.add(is_image);
            if !is_part && found.files == COUNTED_ASIDE {
                break;
            }
        }
        found
    }

    fn add(&mut self, is_image: bool) {
        self.files += 1;
        self.images += u64::from(is_image);
    }
}
