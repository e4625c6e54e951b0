//! The bytes that a measurement reads, whose caches matter.

use std::ops::Range;
use std::path::{Path, PathBuf};

use walkdir::WalkDir;

use super::page_bytes;

/// The bytes that a measurement reads.
#[derive(Debug, Clone)]
pub enum Footprint {
    /// Files of this machine's file systems.
    Files(Vec<FileBytes>),
    /// Objects of a store. The run itself reports how many bytes came over the network.
    Store,
    /// Generated data, without storage.
    Generated,
}

/// A file, or parts of it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct FileBytes {
    /// The file.
    pub path: PathBuf,
    /// The ranges that are read, which may overlap; `None` for the whole file.
    pub ranges: Option<Vec<Range<u64>>>,
}

impl Footprint {
    /// Creates a footprint of whole files.
    pub fn files<P: Into<PathBuf>>(paths: impl IntoIterator<Item = P>) -> Self {
        let whole = |path: P| FileBytes {
            path: path.into(),
            ranges: None,
        };
        Self::Files(paths.into_iter().map(whole).collect())
    }

    /// Creates a footprint of all regular files below a directory, or of a single file.
    ///
    /// # Errors
    /// A directory cannot be listed.
    pub fn tree(root: &Path) -> std::io::Result<Self> {
        if !root.is_dir() {
            return Ok(Self::files([root]));
        }
        let mut found = Vec::new();
        for entry in WalkDir::new(root) {
            let entry = entry?;
            if entry.file_type().is_file() {
                found.push(entry.into_path());
            }
        }
        found.sort();
        Ok(Self::files(found))
    }

    /// Returns the files, if there are any.
    pub fn local(&self) -> &[FileBytes] {
        match self {
            Self::Files(files) => files,
            Self::Store | Self::Generated => &[],
        }
    }
}

impl FileBytes {
    /// Returns the distinct bytes that are read from a file of `len` bytes, by pages.
    pub(super) fn spans(&self, len: u64) -> Vec<Span> {
        let page = page_bytes();
        let mut spans = Vec::new();
        for range in self.distinct(len) {
            // The first and the last page may hold other bytes too.
            let (first, last) = (range.start / page, (range.end - 1) / page);
            let inner = range.start.div_ceil(page)..range.end / page;
            let bytes_of = |number: u64| {
                let end = range.end.min((number + 1) * page);
                end - range.start.max(number * page)
            };
            if inner.start > first {
                spans.push(Span {
                    pages: first..first + 1,
                    bytes: bytes_of(first),
                });
            }
            if inner.start < inner.end {
                spans.push(Span {
                    bytes: (inner.end - inner.start) * page,
                    pages: inner.clone(),
                });
            }
            if last >= inner.end && (last > first || inner.start == first) {
                spans.push(Span {
                    pages: last..last + 1,
                    bytes: bytes_of(last),
                });
            }
        }
        spans
    }

    /// Returns the ranges sorted, disjoint, not empty, and within the file.
    fn distinct(&self, len: u64) -> Vec<Range<u64>> {
        let whole = 0..len;
        let ranges = self.ranges.as_deref();
        let ranges = ranges.unwrap_or(std::slice::from_ref(&whole));
        let inside = ranges.iter().map(|range| range.start..range.end.min(len));
        let mut sorted: Vec<_> = inside.filter(|range| range.start < range.end).collect();
        sorted.sort_unstable_by_key(|range| (range.start, range.end));
        let mut merged: Vec<Range<u64>> = Vec::with_capacity(sorted.len());
        for range in sorted {
            match merged.last_mut() {
                Some(last) if range.start <= last.end => last.end = last.end.max(range.end),
                _ => merged.push(range),
            }
        }
        merged
    }
}

/// Consecutive pages, and how many of their bytes are read: all bytes, or a part of a single page.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Span {
    pub(super) pages: Range<u64>,
    pub(super) bytes: u64,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn spans_cover_each_byte_once() {
        let page = page_bytes();
        let spans = |ranges: Option<Vec<Range<u64>>>, len| {
            let path = PathBuf::new();
            let spans = FileBytes { path, ranges }.spans(len);
            spans
                .into_iter()
                .map(|span| (span.pages, span.bytes))
                .collect::<Vec<_>>()
        };
        assert_eq!(spans(None, page + 1), [(0..1, page), (1..2, 1)]);
        assert_eq!(spans(None, 3), [(0..1, 3)]);
        assert!(spans(None, 0).is_empty());
        // Within a page, across pages, whole pages, overlapping, beyond the end, empty.
        let some = vec![
            5 * page + 1..5 * page + 3,
            page - 2..page + 1,
            2 * page..4 * page,
            3 * page..4 * page,
            9 * page + 7..99 * page,
            7..7,
        ];
        let expected = [
            (0..1, 2),
            (1..2, 1),
            (2..4, 2 * page),
            (5..6, 2),
            (9..10, page - 7),
        ];
        assert_eq!(spans(Some(some), 10 * page), expected);
    }

    #[test]
    fn trees_contain_regular_files_only() {
        let dir = tempfile::tempdir().unwrap();
        std::fs::create_dir(dir.path().join("a")).unwrap();
        for name in ["a/x", "y"] {
            std::fs::write(dir.path().join(name), name).unwrap();
        }
        std::os::unix::fs::symlink("y", dir.path().join("z")).unwrap();
        let tree = Footprint::tree(dir.path()).unwrap();
        let paths: Vec<_> = tree.local().iter().map(|file| file.path.clone()).collect();
        assert_eq!(paths, [dir.path().join("a/x"), dir.path().join("y")]);
    }
}
