//! Walking one unit of a split: all files below a directory, sorted, links followed but never in circles.

use super::list::ChunkBuilder;
use super::{Chunk, FindingList, finding};
use crate::input::{Unit, join};
use crate::observer::{Cancel, Observer};
use crate::report::{Action, Reason};
use crate::sniff::{self, Content};
use std::ffi::OsStr;
use std::fs::{File, Metadata};
use std::io::{self, Read};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::{MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};

/// Directories nested deeper than this are taken for a mistake.
const MAX_DEPTH: usize = 64;

pub(super) fn walk(
    src: &Path,
    split_dir: &[u8],
    unit: &Unit,
    observer: &dyn Observer,
    cancel: &Cancel,
) -> (Chunk, FindingList) {
    let (dir, recurse) = match unit {
        Unit::Class(name) => (name.as_slice(), true),
        Unit::Flat => (b"".as_slice(), false),
        Unit::All => (b"".as_slice(), true),
    };
    let root = src.join(OsStr::from_bytes(split_dir));
    let mut walk = Walk {
        root,
        split_dir,
        recurse,
        chunk: ChunkBuilder::new(dir),
        findings: FindingList::default(),
        ancestors: Vec::new(),
        observer,
        cancel,
    };
    walk.directory(dir);
    // The system lists names in any order.
    walk.findings.sort();
    (walk.chunk.finish(), walk.findings)
}

struct Walk<'a> {
    root: PathBuf,
    split_dir: &'a [u8],
    recurse: bool,
    chunk: ChunkBuilder,
    findings: FindingList,
    /// Device and inode of the directories that we are in.
    ancestors: Vec<(u64, u64)>,
    observer: &'a dyn Observer,
    cancel: &'a Cancel,
}

/// One directory's names in one buffer; a directory's name ends in `/`, so that sorting gives the byte order of
/// the keys below.
#[derive(Default)]
struct Listing {
    names: Vec<u8>,
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
    fn push(&mut self, name: &[u8], meta: &Metadata) {
        let start = self.names.len();
        self.names.extend_from_slice(name);
        if meta.is_dir() {
            self.names.push(b'/');
        }
        self.items.push(Item {
            start,
            // No system lists names of 4 GiB, nor seconds of more than a second.
            len: (self.names.len() - start) as u32,
            modified_nanos: meta.mtime_nsec() as u32,
            modified: meta.mtime(),
            size: meta.len(),
        });
    }

    fn sort(&mut self) {
        let names = &self.names;
        self.items
            .sort_unstable_by(|a, b| a.name(names).cmp(b.name(names)));
    }
}

impl Item {
    fn name<'n>(&self, names: &'n [u8]) -> &'n [u8] {
        &names[self.start..self.start + self.len as usize]
    }

    fn modified(&self) -> i128 {
        i128::from(self.modified) * 1_000_000_000 + i128::from(self.modified_nanos)
    }
}

impl Walk<'_> {
    /// Walks a directory, given relative to the split's.
    fn directory(&mut self, dir: &[u8]) {
        if self.cancel.is_cancelled() {
            return;
        }
        let path = self.root.join(OsStr::from_bytes(dir));
        let identity = match std::fs::metadata(&path) {
            Ok(meta) => (meta.dev(), meta.ino()),
            Err(error) => return self.unreadable(dir, &error),
        };
        if self.ancestors.contains(&identity) {
            return self.note(Action::Ignored, Reason::LinkLoop, dir, "");
        }
        if self.ancestors.len() >= MAX_DEPTH {
            return self.note(
                Action::Skipped,
                Reason::Unreadable,
                dir,
                format!("more than {MAX_DEPTH} levels deep"),
            );
        }
        let mut listing = match self.list(&path, dir) {
            Ok(listing) => listing,
            Err(error) => return self.unreadable(dir, &error),
        };
        listing.sort();
        self.ancestors.push(identity);
        let mut entered = false;
        let (mut files, mut bytes) = (0, 0u64);
        for item in &listing.items {
            let name = item.name(&listing.names);
            if let Some(below) = name.strip_suffix(b"/") {
                self.directory(&join(dir, below));
                entered = false;
                continue;
            }
            if !self.is_candidate(&path, dir, name, item.size) {
                continue;
            }
            if !entered {
                self.chunk.enter(dir);
                entered = true;
            }
            self.chunk.push(name, item.size, item.modified());
            files += 1;
            bytes = bytes.saturating_add(item.size);
        }
        self.ancestors.pop();
        self.observer.counted(files, bytes);
    }

    fn list(&mut self, path: &Path, dir: &[u8]) -> io::Result<Listing> {
        let mut listing = Listing::default();
        for entry in std::fs::read_dir(path)? {
            let entry = entry?;
            let name = entry.file_name();
            let bytes = name.as_bytes();
            if bytes.starts_with(b".") {
                self.note(Action::Ignored, Reason::Hidden, &join(dir, bytes), "");
                continue;
            }
            let meta = match entry.metadata() {
                Ok(meta) if meta.is_symlink() => std::fs::metadata(entry.path()),
                other => other,
            };
            match meta {
                Ok(meta) if meta.is_file() || (meta.is_dir() && self.recurse) => {
                    listing.push(bytes, &meta)
                }
                // The directories of a flat split: there are none, or it would not be flat.
                Ok(meta) if meta.is_dir() => {}
                Ok(_) => self.note(Action::Ignored, Reason::SpecialFile, &join(dir, bytes), ""),
                Err(error) => {
                    let too_many_links =
                        error.raw_os_error() == Some(rustix::io::Errno::LOOP.raw_os_error());
                    let reason = match error.kind() {
                        io::ErrorKind::NotFound => Reason::DanglingLink,
                        _ if too_many_links => Reason::LinkLoop,
                        _ => Reason::Unreadable,
                    };
                    let action = if sniff::has_image_name(bytes) {
                        Action::Skipped
                    } else {
                        Action::Ignored
                    };
                    let detail = if reason == Reason::Unreadable {
                        error.to_string()
                    } else {
                        String::new()
                    };
                    self.note(action, reason, &join(dir, bytes), detail);
                }
            }
        }
        Ok(listing)
    }

    /// Whether a file goes into the plan: by its name, or else by its first bytes.
    fn is_candidate(&mut self, path: &Path, dir: &[u8], name: &[u8], size: u64) -> bool {
        if sniff::has_image_name(name) {
            return true;
        }
        match first_bytes(&path.join(OsStr::from_bytes(name))) {
            Ok(Content::Jpeg | Content::Png | Content::WebP) => true,
            Ok(Content::OtherImage(format)) => {
                self.chunk.leave_out(join(dir, name), size, None);
                self.note(
                    Action::Skipped,
                    Reason::OtherFormat,
                    &join(dir, name),
                    format,
                );
                false
            }
            Ok(Content::Unknown) => {
                self.note(Action::Ignored, Reason::NotAnImage, &join(dir, name), "");
                false
            }
            Err(error) => {
                self.note(
                    Action::Ignored,
                    Reason::Unreadable,
                    &join(dir, name),
                    error.to_string(),
                );
                false
            }
        }
    }

    fn unreadable(&mut self, dir: &[u8], error: &io::Error) {
        self.note(Action::Skipped, Reason::Unreadable, dir, error.to_string());
    }

    fn note(
        &mut self,
        action: Action,
        reason: Reason,
        below_split: &[u8],
        detail: impl Into<String>,
    ) {
        let found = finding(action, reason, &join(self.split_dir, below_split), detail);
        self.observer.finding(&found);
        self.findings.push(&found);
    }
}

fn first_bytes(path: &Path) -> io::Result<Content> {
    // Non-blocking, should the file have become a pipe in the meantime.
    let flags = rustix::fs::OFlags::NONBLOCK.bits() as i32;
    let file = File::options().read(true).custom_flags(flags).open(path)?;
    let mut head = Vec::with_capacity(sniff::SNIFF_BYTES);
    file.take(sniff::SNIFF_BYTES as u64)
        .read_to_end(&mut head)?;
    Ok(sniff::identify(&head))
}
