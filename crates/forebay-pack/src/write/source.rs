//! Where the bytes of entries come from: files of a directory.
//!
//! Opened once for a pack and shared by all workers. An entry is opened first and read later, so that many can be
//! asked for ahead of time.

use super::read::{Refusal, append_file, open_file};
use crate::census::EntryRef;
use crate::error::{Error, Result};
use crate::prepare::Prepared;
use rustix::fd::OwnedFd;
use rustix::fs::{Advice, Mode, OFlags};
use std::ffi::OsStr;
use std::os::unix::ffi::OsStrExt;

/// The source of a pack, open for reading.
#[derive(Debug)]
pub(super) struct Sources {
    /// The directory of each split.
    dirs: Vec<OwnedFd>,
}

/// An entry that is ready to be read.
#[derive(Debug)]
pub(super) enum Opened {
    /// A file of its own.
    File(OwnedFd),
}

impl Sources {
    pub(super) fn open(prepared: &Prepared) -> Result<Self> {
        let open = |dir: &[u8]| {
            let path = prepared.census.src().join(OsStr::from_bytes(dir));
            let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
            rustix::fs::open(&path, flags, Mode::empty())
                .map_err(|errno| Error::io(path, "open", errno))
        };
        let splits = prepared.census.splits().iter();
        Ok(Self {
            dirs: splits
                .map(|split| open(split.dir()))
                .collect::<Result<_>>()?,
        })
    }

    /// Opens an entry of a split.
    pub(super) fn entry(&self, split: usize, entry: &EntryRef<'_>) -> Result<Opened, Refusal> {
        open_file(&self.dirs[split], &entry.key()).map(Opened::File)
    }
}

impl Opened {
    /// Tells the system that the bytes will be needed. Only a hint.
    pub(super) fn will_need(&self) {
        match self {
            Self::File(file) => {
                let _ = rustix::fs::fadvise(file, 0, None, Advice::WillNeed);
            }
        }
    }

    /// Appends all bytes of the entry to `buffer`. It must still have the size that it had in the census.
    pub(super) fn append_to(&self, size: u64, buffer: &mut Vec<u8>) -> Result<(), Refusal> {
        match self {
            Self::File(file) => append_file(file, size, buffer),
        }
    }
}
