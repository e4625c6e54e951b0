//! Fills one block of the directory.
//!
//! The block is written to a file in `filling/` whose name depends only on the block, and the process that fills it holds the
//! file's `flock`. So one process fills a block while others wait, the kernel releases the lock when the process dies, and
//! publishing is a rename.

use std::fs::{File, OpenOptions};
use std::io;
use std::os::unix::fs::{FileExt, OpenOptionsExt};
use std::path::PathBuf;

use rustix::fs::{FallocateFlags, FlockOperation, OFlags};
use rustix::io::Errno;

use super::super::block::Header;
use super::super::object_id::ObjectId;
use super::{Disk, survey};

/// How often an object's directory is created again that other processes remove because it is empty.
const MOST_TRIES: u32 = 16;

/// The right to fill a block. Dropping it before the block is published removes the file and releases the reserved bytes.
#[derive(Debug)]
pub(in super::super) struct Filling<'a> {
    disk: &'a Disk,
    file: File,
    path: PathBuf,
    id: ObjectId,
    number: u64,
    /// Bytes that are reserved in the ledger.
    pub(super) reserved: u64,
    is_published: bool,
}

/// The result of [`Filling::claim`].
pub(super) enum Claim<'a> {
    Mine(Filling<'a>),
    /// Another reader or process is filling the block.
    Busy,
}

impl<'a> Filling<'a> {
    pub(super) fn claim(disk: &'a Disk, id: ObjectId, number: u64) -> io::Result<Claim<'a>> {
        let path = disk.folders.fills.join(survey::fill_name(id, number));
        loop {
            let file = OpenOptions::new()
                .read(true)
                .write(true)
                .create(true)
                .truncate(false)
                .mode(0o600)
                .custom_flags(OFlags::NOFOLLOW.bits() as i32)
                .open(&path)?;
            match rustix::fs::flock(&file, FlockOperation::NonBlockingLockExclusive) {
                Ok(()) => {}
                Err(Errno::WOULDBLOCK) => return Ok(Claim::Busy),
                Err(errno) => return Err(errno.into()),
            }
            // Another process may have published or removed the file between our open and our lock.
            if super::is_at(&file, &path) {
                return Ok(Claim::Mine(Self {
                    disk,
                    file,
                    path,
                    id,
                    number,
                    reserved: 0,
                    is_published: false,
                }));
            }
        }
    }

    /// Allocates the file's space, so that a full file system is noticed before anything is fetched.
    pub(super) fn allocate(&self, len: u64) -> io::Result<()> {
        self.disk.fault()?;
        // Discards the bytes of a killed process.
        self.file.set_len(0)?;
        match rustix::fs::fallocate(&self.file, FallocateFlags::empty(), 0, len) {
            // If the file system does not support this, the write fails later.
            Err(Errno::OPNOTSUPP | Errno::NOSYS | Errno::INVAL) | Ok(()) => Ok(()),
            Err(errno) => Err(errno.into()),
        }
    }

    /// Writes the block and publishes it atomically.
    pub(in super::super) fn publish(mut self, header: &Header, payload: &[u8]) -> io::Result<()> {
        self.disk.fault()?;
        let head = header.encode();
        self.file.write_all_at(payload, head.len() as u64)?;
        self.file.write_all_at(&head, 0)?;
        self.file.set_len((head.len() + payload.len()) as u64)?;
        let target = survey::block_path(&self.disk.folders.blocks, self.id, self.number);
        let mut tries = 0;
        loop {
            match std::fs::rename(&self.path, &target) {
                Ok(()) => break,
                // This is the object's first block, or the empty directory was just removed.
                Err(error) if error.kind() == io::ErrorKind::NotFound && tries < MOST_TRIES => {
                    tries += 1;
                    let dir = target.parent().unwrap_or(&self.disk.folders.blocks);
                    match std::fs::create_dir(dir) {
                        Err(error) if error.kind() != io::ErrorKind::AlreadyExists => {
                            return Err(error);
                        }
                        _ => {}
                    }
                }
                Err(error) => return Err(error),
            }
        }
        self.is_published = true;
        Ok(())
    }
}

impl Drop for Filling<'_> {
    fn drop(&mut self) {
        if self.is_published {
            return;
        }
        // Removed while it is locked, so no other process uses it. If this fails, `clean_fills` removes the file later.
        let _ = std::fs::remove_file(&self.path);
        if self.reserved > 0 {
            self.disk.give_back(self.reserved);
        }
    }
}
