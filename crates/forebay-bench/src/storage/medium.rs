//! Sources of a run's reads: local files, buffered or direct, and any [`Storage`].

use std::fs::File;
use std::io;
use std::num::NonZeroU64;
use std::ops::Range;
use std::os::unix::fs::FileExt;
use std::path::Path;
use std::sync::Arc;

use forebay_shard::storage::{ReadAt, Storage};

/// Alignment of direct I/O in bytes: a multiple of the block sizes of all common devices.
pub(super) const ALIGN: usize = 4096;

/// The storage from which a run reads its files.
#[derive(Debug, Clone)]
pub enum Medium {
    /// Local files, read with `pread`.
    Local {
        /// Whether reads bypass the page cache (`O_DIRECT`). Each read is extended to whole blocks of 4096 bytes.
        direct: bool,
    },
    /// Files of a [`Storage`]: an object store, a cache in front of an object store, or generated data.
    Storage(Arc<dyn Storage>),
}

/// An open file.
pub(super) enum Handle {
    Buffered(File),
    Direct(File),
    Storage(Arc<dyn ReadAt>),
}

impl Medium {
    pub(super) fn open(&self, path: &Path) -> io::Result<Handle> {
        Ok(match self {
            Self::Local { direct: false } => {
                Handle::Buffered(forebay_shard::storage::open_file(path)?)
            }
            Self::Local { direct: true } => Handle::Direct(open_direct(path)?),
            Self::Storage(storage) => Handle::Storage(storage.open(path)?),
        })
    }

    /// Returns whether the medium itself keeps files open between reads. If so, a run opens a handle for each read.
    pub(super) fn keeps_files_itself(&self) -> bool {
        matches!(self, Self::Storage(_))
    }
}

/// A read buffer that is aligned for direct I/O.
pub(super) struct Buffer {
    bytes: Vec<u8>,
    skip: usize,
}

impl Buffer {
    pub(super) fn new(longest: u32) -> Self {
        // Room for the alignment of the buffer, and for the blocks that a direct read adds at its start and its end.
        let bytes = vec![0; longest as usize + 3 * ALIGN];
        let skip = bytes.as_ptr().align_offset(ALIGN).min(ALIGN);
        Self { bytes, skip }
    }

    pub(super) fn aligned(&mut self) -> &mut [u8] {
        &mut self.bytes[self.skip..]
    }
}

impl Handle {
    /// Reads a range into the buffer, and returns its bytes.
    pub(super) fn read<'a>(
        &self,
        range: Range<u64>,
        buffer: &'a mut Buffer,
    ) -> io::Result<&'a [u8]> {
        let len = (range.end - range.start) as usize;
        let room = buffer.aligned();
        match self {
            Self::Buffered(file) => file.read_exact_at(&mut room[..len], range.start)?,
            Self::Storage(file) => file.read_exact_at(&mut room[..len], range.start)?,
            Self::Direct(file) => {
                let block = ALIGN as u64;
                let from = range.start / block * block;
                let to = range.end.div_ceil(block) * block;
                let lead = (range.start - from) as usize;
                read_direct(file, &mut room[..(to - from) as usize], from, lead + len)?;
                return Ok(&room[lead..lead + len]);
            }
        }
        Ok(&room[..len])
    }

    /// Hints that the range is going to be read. Direct files have no readahead, and ignore the hint.
    pub(super) fn announce(&self, range: Range<u64>) {
        match self {
            Self::Buffered(file) => {
                let len = NonZeroU64::new(range.end - range.start);
                forebay_store::advice::will_need(file, range.start, len);
            }
            Self::Direct(_) => {}
            Self::Storage(file) => file.will_need(range),
        }
    }
}

/// Reads at least `needed` bytes into `room`; the file may end inside the last block.
fn read_direct(file: &File, room: &mut [u8], offset: u64, needed: usize) -> io::Result<()> {
    let mut done = 0;
    while done < needed {
        match file.read_at(&mut room[done..], offset + done as u64) {
            Ok(0) => return Err(io::ErrorKind::UnexpectedEof.into()),
            Ok(read) if read % ALIGN == 0 || done + read >= needed => done += read,
            // A short read that is no multiple of a block ends at the end of the file.
            Ok(_) => return Err(io::ErrorKind::UnexpectedEof.into()),
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            Err(error) => return Err(error),
        }
    }
    Ok(())
}

#[cfg(target_os = "linux")]
pub(super) fn open_direct(path: &Path) -> io::Result<File> {
    direct(path, rustix::fs::OFlags::RDONLY)
}

/// Opens a file with `O_DIRECT`.
#[cfg(target_os = "linux")]
pub(super) fn direct(path: &Path, flags: rustix::fs::OFlags) -> io::Result<File> {
    use rustix::fs::{Mode, OFlags};

    let flags = flags | OFlags::DIRECT | OFlags::CLOEXEC | OFlags::NOCTTY;
    let mode = Mode::RUSR | Mode::WUSR | Mode::RGRP | Mode::ROTH;
    rustix::fs::open(path, flags, mode)
        .map(File::from)
        .map_err(|error| match error {
            rustix::io::Errno::INVAL => io::Error::new(
                io::ErrorKind::Unsupported,
                "this file system has no O_DIRECT",
            ),
            error => error.into(),
        })
}

#[cfg(not(target_os = "linux"))]
pub(super) fn open_direct(_: &Path) -> io::Result<File> {
    Err(io::Error::new(
        io::ErrorKind::Unsupported,
        "O_DIRECT is supported on Linux only",
    ))
}
