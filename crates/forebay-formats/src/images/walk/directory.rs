//! Lists the images of a directory, sorted by key. Links are followed, but loops are detected.

use super::ancestors::{DirId, ancestors};
use super::contents::Contents;
use super::file_list::{FileList, FileListBuilder, too_large};
use crate::finding::{Action, Finding, Reason};
use crate::finding_list::FindingList;
use crate::key_path::{base, join};
use crate::progress::Progress;
use crate::sniff::{self, ContentKind};
use crate::system_names::left_aside;
use forebay_store::Cancel;
use std::collections::HashSet;
use std::ffi::OsStr;
use std::fs::Metadata;
use std::io;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use walkdir::{DirEntry, WalkDir};

/// Deepest level of directories; deeper ones are reported as an error in the source.
const MAX_DEPTH: usize = 64;
/// Number of files after which the progress is updated.
const COUNT_FILES: u64 = 256;

/// Lists a directory of a split, whose path is relative to the split's directory, with or without its subdirectories.
pub(crate) fn walk(
    src: &Path,
    split_dir: &[u8],
    (dir, recurse): (&[u8], bool),
    progress: &dyn Progress,
    cancel: &Cancel,
) -> (FileList, FindingList) {
    let mut walk = Walk {
        root: src.join(OsStr::from_bytes(split_dir)),
        split_dir,
        top_is_reported: dir.is_empty(),
        chunk: FileListBuilder::new(dir),
        findings: FindingList::default(),
        progress,
        counted: (0, 0),
    };
    let mut listing = walk.list(dir, recurse, cancel);
    listing.sort();
    walk.take(&listing);
    // The operating system lists names in arbitrary order.
    walk.findings.sort();
    (walk.chunk.finish(), walk.findings)
}

struct Walk<'a> {
    root: PathBuf,
    split_dir: &'a [u8],
    top_is_reported: bool,
    chunk: FileListBuilder,
    findings: FindingList,
    progress: &'a dyn Progress,
    /// Files and bytes that were not reported to the progress yet.
    counted: (u64, u64),
}

/// Keys in one buffer. The key of a directory ends in `/`, so that sorting by key gives the byte order of the files below.
#[derive(Default)]
struct Listing {
    keys: Vec<u8>,
    items: Vec<Item>,
}

#[derive(Clone, Copy)]
struct Item {
    start: usize,
    len: u32,
    modified_nanos: u32,
    modified: i64,
    size: u64,
}

impl Listing {
    fn push(&mut self, key: &[u8], meta: Option<&Metadata>) {
        let start = self.keys.len();
        self.keys.extend_from_slice(key);
        if meta.is_none() {
            self.keys.push(b'/');
        }
        self.items.push(Item {
            start,
            // No operating system has paths of 4 GiB, and nanoseconds are below 10^9.
            len: (self.keys.len() - start) as u32,
            modified_nanos: meta.map_or(0, |meta| meta.mtime_nsec() as u32),
            modified: meta.map_or(0, Metadata::mtime),
            size: meta.map_or(0, Metadata::len),
        });
    }

    fn sort(&mut self) {
        let keys = &self.keys;
        self.items
            .sort_unstable_by(|a, b| a.key(keys).cmp(b.key(keys)));
    }
}

impl Item {
    fn key<'k>(&self, keys: &'k [u8]) -> &'k [u8] {
        &keys[self.start..self.start + self.len as usize]
    }

    fn modified(&self) -> i128 {
        i128::from(self.modified) * 1_000_000_000 + i128::from(self.modified_nanos)
    }
}

impl Walk<'_> {
    /// Lists the files and directories below `dir` in any order. `dir` is relative to the split's directory.
    fn list(&mut self, dir: &[u8], recurse: bool, cancel: &Cancel) -> Listing {
        let mut listing = Listing::default();
        // The directories from the start of the walk to the current entry. A link to one of them is a loop; so is a link to an
        // ancestor of the start, which leads back here.
        let mut within: Vec<DirId> = Vec::new();
        let depth = if recurse { usize::MAX } else { 1 };
        let top = self.root.join(OsStr::from_bytes(dir));
        let above = ancestors(&top);
        let mut entries = WalkDir::new(top)
            .follow_links(true)
            .max_depth(depth)
            .into_iter();
        while let Some(entry) = entries.next() {
            if cancel.is_cancelled() {
                break;
            }
            let entry = match entry {
                Ok(entry) => entry,
                Err(error) if error.loop_ancestor().is_some() && !recurse => continue,
                Err(error) => {
                    self.failed(dir, error, &mut listing);
                    continue;
                }
            };
            let key = self.key(entry.path());
            let is_dir = entry.file_type().is_dir();
            if let Some(reason) = left_aside(base(&key)).filter(|_| entry.depth() > 0) {
                let files = match is_dir {
                    true => Contents::of_dir(entry.path(), false).files,
                    false => 1,
                };
                self.aside(&key, reason, files);
                if is_dir {
                    entries.skip_current_dir();
                }
            } else if is_dir {
                if entry.depth() > 0 {
                    // A flat split has no directories, except for those that were created after the layout was read.
                    if !recurse {
                        entries.skip_current_dir();
                        continue;
                    }
                    listing.push(&key, None);
                }
                if !self.may_enter(&entry, &key, &above, &mut within) {
                    entries.skip_current_dir();
                }
            } else if !entry.file_type().is_file() {
                self.note(Action::Ignored, Reason::SpecialFile, &key, "");
            } else {
                match entry.metadata() {
                    Ok(meta) if self.is_candidate(entry.path(), &key, meta.len()) => {
                        self.count(meta.len());
                        listing.push(&key, Some(&meta));
                    }
                    Ok(_) => {}
                    Err(error) => self.failed(dir, error, &mut listing),
                }
            }
        }
        self.tell();
        listing
    }

    /// Returns whether the walk enters a directory: not if it is one of its own ancestors, and not if it is nested too deeply.
    fn may_enter(
        &mut self,
        entry: &DirEntry,
        key: &[u8],
        above: &HashSet<DirId>,
        within: &mut Vec<DirId>,
    ) -> bool {
        let meta = match entry.metadata() {
            Ok(meta) => meta,
            Err(error) => {
                self.note(Action::Skipped, Reason::Unreadable, key, text(&error));
                return false;
            }
        };
        let identity = DirId::of(&meta);
        within.truncate(entry.depth());
        if within.contains(&identity) || above.contains(&identity) {
            self.note(Action::Ignored, Reason::LinkLoop, key, "");
            return false;
        }
        if entry.depth() >= MAX_DEPTH {
            let detail = format!("more than {MAX_DEPTH} levels deep");
            self.note(Action::Skipped, Reason::Unreadable, key, detail);
            return false;
        }
        within.push(identity);
        true
    }

    /// Reports a directory or an entry that could not be read.
    fn failed(&mut self, top: &[u8], error: walkdir::Error, listing: &mut Listing) {
        let key = error
            .path()
            .map_or_else(|| top.to_vec(), |path| self.key(path));
        if let Some(reason) = left_aside(base(&key)).filter(|_| error.depth() > 0) {
            return self.aside(&key, reason, 1);
        }
        if error.loop_ancestor().is_some() {
            listing.push(&key, None);
            return self.note(Action::Ignored, Reason::LinkLoop, &key, "");
        }
        let is_dir = |path: &Path| std::fs::metadata(path).is_ok_and(|meta| meta.is_dir());
        let raw = error.io_error().and_then(io::Error::raw_os_error);
        let kind = error.io_error().map(io::Error::kind);
        if error.depth() == 0 || error.path().is_none_or(is_dir) {
            return self.note(Action::Skipped, Reason::Unreadable, &key, text(&error));
        }
        let (reason, detail) = match kind {
            Some(io::ErrorKind::NotFound) => (Reason::DanglingLink, String::new()),
            _ if raw == Some(rustix::io::Errno::LOOP.raw_os_error()) => {
                (Reason::LinkLoop, String::new())
            }
            _ => (Reason::Unreadable, text(&error)),
        };
        let action = if sniff::has_image_name(&key) {
            Action::Skipped
        } else {
            Action::Ignored
        };
        self.note(action, reason, &key, detail);
    }

    /// Adds the files of a sorted listing to the chunk.
    fn take(&mut self, listing: &Listing) {
        let mut entered: Option<&[u8]> = None;
        for item in &listing.items {
            let key = item.key(&listing.keys);
            let (dir, name) = match key.iter().rposition(|byte| *byte == b'/') {
                Some(slash) => (&key[..slash], &key[slash + 1..]),
                None => (b"".as_slice(), key),
            };
            if name.is_empty() {
                // A subdirectory follows, so enter the current directory again for the files after it.
                entered = None;
                continue;
            }
            if entered != Some(dir) {
                self.chunk.enter(dir);
                entered = Some(dir);
            }
            self.chunk.push_file(name, item.size, item.modified());
        }
    }

    /// Returns whether a file is listed as an image: by its name, or else by its first bytes.
    fn is_candidate(&mut self, path: &Path, key: &[u8], size: u64) -> bool {
        if sniff::has_image_name(key) {
            let too_large = too_large(size);
            if let Some(detail) = &too_large {
                self.note(Action::Skipped, Reason::TooLarge, key, detail);
            }
            return too_large.is_none();
        }
        match sniff::kind_of_file(path) {
            Ok(ContentKind::Image) => true,
            Ok(ContentKind::OtherImage(format)) => {
                self.chunk.leave_out(key.to_vec(), size, None);
                self.note(Action::Skipped, Reason::OtherFormat, key, format);
                false
            }
            Ok(_) => {
                self.note(Action::Ignored, Reason::NotAnImage, key, "");
                false
            }
            Err(error) => {
                self.note(Action::Ignored, Reason::Unreadable, key, error.to_string());
                false
            }
        }
    }

    /// Returns the path relative to the split's directory.
    fn key(&self, path: &Path) -> Vec<u8> {
        let below = path.strip_prefix(&self.root).unwrap_or(path);
        below.as_os_str().as_bytes().to_vec()
    }

    fn count(&mut self, bytes: u64) {
        self.counted = (self.counted.0 + 1, self.counted.1.saturating_add(bytes));
        if self.counted.0 >= COUNT_FILES {
            self.tell();
        }
    }

    fn tell(&mut self) {
        let (files, bytes) = std::mem::take(&mut self.counted);
        self.progress.counted(files, bytes);
    }

    /// Adds a finding about ignored files at or below a path. The layout reports those at the top of a split.
    fn aside(&mut self, key: &[u8], reason: Reason, files: u64) {
        if self.top_is_reported && !key.contains(&b'/') {
            return;
        }
        let found = Finding::new(Action::Ignored, reason, &join(self.split_dir, key), "");
        self.push(&found.of_files(files));
    }

    fn note(&mut self, action: Action, reason: Reason, key: &[u8], detail: impl Into<String>) {
        self.push(&Finding::new(
            action,
            reason,
            &join(self.split_dir, key),
            detail,
        ));
    }

    fn push(&mut self, found: &Finding) {
        self.progress.finding(found);
        self.findings.push(found);
    }
}

/// Returns the system's message without the path, which the finding already has.
fn text(error: &walkdir::Error) -> String {
    error
        .io_error()
        .map_or_else(|| error.to_string(), io::Error::to_string)
}
