//! Reads the listed files of a source in any order, from any thread.
//!
//! A file is opened first and read later, so that callers can request many files ahead of time. Archives are opened once for
//! all threads, unless there are very many of them.

use super::open_archive::{ArchiveRef, OpenArchives};
use crate::error::{Error, Result};
use crate::finding::{Reason, Refusal};
use crate::images::walk::{EntryRef, MemberLocation, SourceArchive};
use crate::progress::Progress;
use forebay_store::advice;
use rustix::buffer::spare_capacity;
use rustix::fd::OwnedFd;
use rustix::fs::{Mode, OFlags};
use rustix::io::Errno;
use std::ffi::OsStr;
use std::fs::File;
use std::os::unix::ffi::OsStrExt;
use std::path::Path;

/// Spare room behind the expected size: a read that returns exactly the expected size then proves the end of the file.
const SLACK_BYTES: usize = 64;

/// The files of a source, open for reading.
#[derive(Debug)]
pub struct OpenSource {
    /// The directory of each split; empty if the source is archives or objects.
    dirs: Vec<OwnedFd>,
    archives: OpenArchives,
}

/// A file that is ready to be read.
#[derive(Debug)]
pub struct OpenFile<'a>(FileHandle<'a>);

#[derive(Debug)]
enum FileHandle<'a> {
    /// A local file.
    File(OwnedFd),
    /// A member of an archive.
    Member(ArchiveRef<'a>, MemberLocation, u64),
}

impl OpenSource {
    /// Opens the directories of splits below `root`, or the `archives`. Fails if an archive changed since it was
    /// listed.
    ///
    /// # Errors
    /// [`Error::Source`] if an archive changed since it was listed.
    pub fn open<'d>(
        root: &Path,
        dirs: impl Iterator<Item = &'d [u8]>,
        archives: &[SourceArchive],
    ) -> Result<Self> {
        let open = |dir: &[u8]| {
            let path = root.join(OsStr::from_bytes(dir));
            let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
            rustix::fs::open(&path, flags, Mode::empty())
                .map_err(|errno| Error::io(path, "open", errno))
        };
        let dirs = match archives {
            [] => dirs.map(open).collect::<Result<_>>()?,
            _ => Vec::new(),
        };
        let archives = OpenArchives::open(archives)?;
        Ok(Self { dirs, archives })
    }

    /// Returns the number of files that stay open for these splits and archives.
    pub fn files(splits: usize, archives: &[SourceArchive]) -> usize {
        splits.max(OpenArchives::files(archives))
    }

    /// Returns whether files are read over a network.
    pub fn is_remote(&self) -> bool {
        self.archives.are_remote()
    }

    /// Opens a file of a split.
    ///
    /// # Errors
    /// Why the file cannot be read: it was removed, or its archive changed.
    pub fn file(&self, split: usize, entry: &EntryRef<'_>) -> Result<OpenFile<'_>, Refusal> {
        if let Some(place) = entry.place {
            let archive = self.archives.get(place.archive);
            let archive = archive.map_err(|error| (Reason::SizeChanged, error.to_string()))?;
            return Ok(OpenFile(FileHandle::Member(archive, place, entry.size)));
        }
        open_file(&self.dirs[split], &entry.key()).map(|file| OpenFile(FileHandle::File(file)))
    }

    /// Decodes images of a compressed archive into `spool`, from which they are then read; the bytes in between stay a hole.
    /// The images are given as (offset, size) in ascending order. Returns false if it was stopped.
    pub fn spool(
        &mut self,
        archive: u16,
        images: &[(u64, u64)],
        spool: File,
        progress: &dyn Progress,
        stopped: &dyn Fn() -> bool,
    ) -> Result<bool> {
        match self.archives.open_mut(archive) {
            Some(archive) => archive.spool(images, spool, progress, stopped),
            // Compressed archives always stay open, so this one is not compressed.
            None => Ok(true),
        }
    }

    /// Decodes images of a compressed archive and passes them to `take` in pieces with their offsets. The images are given as
    /// (offset, size) in ascending order. Returns false if it was stopped.
    pub fn decode(
        &self,
        archive: u16,
        images: &[(u64, u64)],
        progress: &dyn Progress,
        stopped: &dyn Fn() -> bool,
        take: &mut dyn FnMut(u64, &[u8]) -> Result<()>,
    ) -> Result<bool> {
        let archive = self.archives.get(archive)?;
        archive.decode(images, progress, stopped, take)
    }
}

impl From<File> for OpenFile<'_> {
    fn from(file: File) -> Self {
        Self(FileHandle::File(file.into()))
    }
}

impl OpenFile<'_> {
    /// Advises the operating system to read the file ahead.
    pub fn will_need(&self) {
        match &self.0 {
            FileHandle::File(file) => {
                advice::will_need(file, 0, None);
            }
            FileHandle::Member(archive, place, size) => archive.will_need(*place, *size),
        }
    }

    /// Appends the whole file to `buffer`. Fails if its size differs from the size that was listed.
    ///
    /// # Errors
    /// Why the file cannot be read.
    pub fn append_to(&self, size: u64, buffer: &mut Vec<u8>) -> Result<(), Refusal> {
        match &self.0 {
            FileHandle::File(file) => append_file(file, size, buffer),
            FileHandle::Member(archive, place, _) => archive.append_to(*place, size, buffer),
        }
    }
}

/// Opens an image file.
fn open_file(dir: &OwnedFd, path: &[u8]) -> Result<OwnedFd, Refusal> {
    // Non-blocking, in case the file was replaced by a pipe; this has no effect on regular files.
    let flags = OFlags::RDONLY | OFlags::CLOEXEC | OFlags::NONBLOCK | OFlags::NOCTTY;
    rustix::fs::openat(dir, path, flags, Mode::empty()).map_err(refusal)
}

/// Appends the whole file to `buffer`. Fails if its size differs from the size that was listed.
///
/// A read of a regular file fills the buffer unless the file ends, so a short read is the last one. A file therefore costs
/// open, read and close, but no stat.
fn append_file(file: &OwnedFd, size: u64, buffer: &mut Vec<u8>) -> Result<(), Refusal> {
    let start = buffer.len();
    let expected =
        usize::try_from(size).map_err(|_| (Reason::TooLarge, format!("{size} bytes")))?;
    buffer.reserve(expected.saturating_add(SLACK_BYTES));
    loop {
        let room = buffer.capacity() - buffer.len();
        let read = match rustix::io::read(file, spare_capacity(buffer)) {
            Ok(read) => read,
            Err(Errno::INTR) => continue,
            Err(errno) => return Err(refusal(errno)),
        };
        let total = buffer.len() - start;
        if total > expected || (read == 0 && total < expected) {
            let now = match rustix::fs::fstat(file) {
                Ok(stat) => format!(", now {}", stat.st_size),
                Err(_) => String::new(),
            };
            return Err((Reason::SizeChanged, format!("then {size} bytes{now}")));
        }
        if read == 0 || (total == expected && read < room) {
            return Ok(());
        }
    }
}

fn refusal(errno: Errno) -> Refusal {
    match errno {
        Errno::NOENT | Errno::NOTDIR => (Reason::Vanished, String::new()),
        Errno::ISDIR => (Reason::Vanished, "it is a directory now".into()),
        errno => (Reason::Unreadable, std::io::Error::from(errno).to_string()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(name: &str, size: u64) -> Result<Vec<u8>, Reason> {
        let dir = tempfile::tempdir().unwrap();
        std::fs::write(dir.path().join("file"), vec![7u8; 5000]).unwrap();
        std::fs::write(dir.path().join("empty"), b"").unwrap();
        std::fs::create_dir(dir.path().join("dir")).unwrap();
        let fd = OwnedFd::from(File::open(dir.path()).unwrap());
        let mut buffer = vec![1];
        let file = open_file(&fd, name.as_bytes()).map_err(|refusal| refusal.0)?;
        append_file(&file, size, &mut buffer).map_err(|refusal| refusal.0)?;
        Ok(buffer)
    }

    #[test]
    fn a_file_of_the_expected_size_is_read_whole() {
        assert_eq!(read("file", 5000).unwrap().len(), 5001);
        assert_eq!(read("empty", 0).unwrap(), [1]);
    }

    #[test]
    fn other_sizes_are_errors() {
        for size in [0, 1, 4999, 5001, 10_000] {
            assert_eq!(read("file", size), Err(Reason::SizeChanged), "{size}");
        }
        assert_eq!(read("empty", 1), Err(Reason::SizeChanged));
        assert_eq!(read("missing", 1), Err(Reason::Vanished));
        assert_eq!(read("file/below", 1), Err(Reason::Vanished));
        assert_eq!(read("dir", 1), Err(Reason::Vanished));
    }
}
