//! The members of archives as one sorted tree of paths, stored compactly: 32 bytes and the path for each member.

use crate::archive::ArchiveError;
use crate::class_list;
use crate::sniff::ContentKind;
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;

/// Location of a member.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct MemberLocation {
    /// Index of the archive in the source.
    pub archive: u16,
    /// Offset of its data in the decoded tar stream, or of its record in the central directory of a zip.
    pub offset: u64,
}

/// One member; its path is relative to the source.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct MemberRef<'a> {
    pub(crate) path: &'a [u8],
    pub(crate) size: u64,
    pub(crate) place: MemberLocation,
    pub(crate) kind: ContentKind,
}

#[derive(Debug, Clone, Copy)]
struct Item {
    start: u64,
    offset: u64,
    size: u64,
    len: u16,
    archive: u16,
    /// Index into `Members::kinds`.
    kind: u8,
}

/// All members of a source.
#[derive(Debug, Default)]
pub(crate) struct Members {
    paths: Vec<u8>,
    items: Vec<Item>,
    kinds: Vec<ContentKind>,
    /// Whether the tree has several archives, each below a directory of its own.
    pub(crate) is_mounted: bool,
    /// The content of small files about other files, such as class lists, by path.
    pub(crate) texts: BTreeMap<Vec<u8>, Vec<u8>>,
}

/// Returns the index of a kind, which is added if it is new.
fn number_of(kinds: &mut Vec<ContentKind>, kind: ContentKind) -> u8 {
    let known = kinds.iter().position(|known| *known == kind);
    let number = known.unwrap_or_else(|| {
        kinds.push(kind);
        kinds.len() - 1
    });
    number as u8
}

impl Members {
    pub(crate) fn push(
        &mut self,
        path: &[u8],
        size: u64,
        place: MemberLocation,
        kind: ContentKind,
    ) {
        let kind = number_of(&mut self.kinds, kind);
        let start = self.paths.len() as u64;
        self.paths.extend_from_slice(path);
        self.items.push(Item {
            start,
            offset: place.offset,
            size,
            len: path.len() as u16,
            archive: place.archive,
            kind,
        });
    }

    /// Adds all members of other archives; `archives` of them are already in the tree.
    pub(crate) fn append(&mut self, other: &Self, archives: u16) {
        for at in 0..other.items.len() {
            let member = other.get(at);
            let place = MemberLocation {
                archive: member.place.archive + archives,
                offset: member.place.offset,
            };
            self.push(member.path, member.size, place, member.kind);
        }
    }

    /// Sorts by path. A repeated path is an error, because it is ambiguous which member is meant. Directories may be repeated.
    pub(crate) fn finish(&mut self) -> Result<(), (u16, ArchiveError)> {
        let paths = &self.paths;
        let path =
            |item: &Item| &paths[item.start as usize..item.start as usize + usize::from(item.len)];
        self.items
            .sort_unstable_by(|a, b| path(a).cmp(path(b)).then(a.offset.cmp(&b.offset)));
        let kinds = &self.kinds;
        let is_directory = |item: &Item| kinds[usize::from(item.kind)] == ContentKind::Directory;
        for pair in self.items.windows(2) {
            let [first, second] = pair else { continue };
            if path(first) == path(second) && !(is_directory(first) && is_directory(second)) {
                let what = format!(
                    "{} is there already, at offset {}: which of both is meant cannot be known",
                    crate::finding::escape(path(second)),
                    first.offset,
                );
                return Err((second.archive, ArchiveError::at(second.offset, what)));
            }
        }
        self.items
            .dedup_by(|second, first| path(second) == path(first));
        self.items.shrink_to_fit();
        self.paths.shrink_to_fit();
        Ok(())
    }

    /// Sets the kinds of members whose first bytes were read, by their offsets.
    pub(crate) fn learn(&mut self, kinds: &BTreeMap<u64, ContentKind>) {
        for item in &mut self.items {
            let Some(kind) = kinds.get(&item.offset) else {
                continue;
            };
            item.kind = number_of(&mut self.kinds, *kind);
        }
    }

    fn path_of(&self, item: &Item) -> &[u8] {
        &self.paths[item.start as usize..item.start as usize + usize::from(item.len)]
    }

    fn get(&self, index: usize) -> MemberRef<'_> {
        let item = &self.items[index];
        MemberRef {
            path: self.path_of(item),
            size: item.size,
            place: MemberLocation {
                archive: item.archive,
                offset: item.offset,
            },
            kind: self.kinds[usize::from(item.kind)],
        }
    }

    /// Returns the index of the first member whose path is not less than `path`.
    fn position(&self, path: &[u8]) -> usize {
        self.items.partition_point(|item| self.path_of(item) < path)
    }

    /// Returns all members below a directory, in byte order of their paths; the empty path stands for the root.
    pub(crate) fn below<'a>(&'a self, dir: &[u8]) -> impl Iterator<Item = MemberRef<'a>> + 'a {
        let range = match dir {
            b"" => 0..self.items.len(),
            // '0' is the byte after '/'.
            dir => self.position(&[dir, b"/"].concat())..self.position(&[dir, b"0"].concat()),
        };
        range.map(|index| self.get(index))
    }

    /// Returns the names of the directories and of the files in a directory, in no particular order.
    pub(crate) fn list(&self, dir: &[u8]) -> (Vec<Vec<u8>>, Vec<Vec<u8>>) {
        let (mut dirs, mut files) = (Vec::new(), Vec::new());
        let prefix = if dir.is_empty() {
            Vec::new()
        } else {
            [dir, b"/"].concat()
        };
        let end = if dir.is_empty() {
            self.items.len()
        } else {
            self.position(&[dir, b"0"].concat())
        };
        let mut at = self.position(&prefix);
        while at < end {
            let member = self.get(at);
            let rest = &member.path[prefix.len()..];
            match rest.iter().position(|byte| *byte == b'/') {
                Some(slash) => {
                    dirs.push(rest[..slash].to_vec());
                    at = self
                        .position(&[&prefix, &rest[..slash], b"0"].concat())
                        .max(at + 1);
                }
                None => {
                    if member.kind == ContentKind::Directory {
                        dirs.push(rest.to_vec());
                    } else {
                        files.push(rest.to_vec());
                    }
                    at += 1;
                }
            }
        }
        dirs.sort();
        dirs.dedup();
        (dirs, files)
    }

    /// Returns whether a file at this path is about other files, so that its content is kept.
    pub(crate) fn keeps_text(path: &[u8]) -> bool {
        class_list::is_list_path(path)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn members(paths: &[&str]) -> Members {
        let mut members = Members::default();
        for (number, path) in paths.iter().enumerate() {
            let (path, kind) = match path.strip_suffix('/') {
                Some(path) => (path, ContentKind::Directory),
                None => (*path, ContentKind::Image),
            };
            let place = MemberLocation {
                archive: 0,
                offset: number as u64,
            };
            members.push(path.as_bytes(), 7, place, kind);
        }
        members
    }

    #[test]
    fn a_tree_is_listed_level_by_level() {
        let mut all = members(&["b/2", "a-b/1", "a/", "a/1", "top", "b/c/d/3", "a/", "a0"]);
        all.finish().unwrap();
        let names = |list: Vec<Vec<u8>>| {
            list.into_iter()
                .map(|n| String::from_utf8(n).unwrap())
                .collect::<Vec<_>>()
        };
        let (dirs, files) = all.list(b"");
        assert_eq!(names(dirs), ["a", "a-b", "b"]);
        assert_eq!(names(files), ["a0", "top"]);
        let (dirs, files) = all.list(b"b");
        assert_eq!(
            (names(dirs), names(files)),
            (vec!["c".to_owned()], vec!["2".to_owned()])
        );
        let below: Vec<_> = all
            .below(b"b")
            .map(|m| String::from_utf8(m.path.to_vec()).unwrap())
            .collect();
        assert_eq!(below, ["b/2", "b/c/d/3"]);
        assert_eq!(all.below(b"").count(), 7);
        assert!(std::mem::size_of::<Item>() <= 32);
    }

    #[test]
    fn repeated_paths_are_refused() {
        let (archive, error) = members(&["a/1", "b", "a/1"]).finish().unwrap_err();
        assert_eq!(archive, 0);
        assert_eq!(
            (error.offset, error.what.contains("at offset 0")),
            (2, true)
        );
        assert!(members(&["a/", "a"]).finish().is_err());
    }
}
