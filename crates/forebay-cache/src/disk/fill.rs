//! One block on its way into the directory.
//!
//! It is written under a name of its own that every process would choose for this block, and the process that fills it holds the file's `flock`:
//! so a block is filled once while others wait, the right to fill dies with its process, and publishing is a rename.

use std::fs::{File, OpenOptions};
use std::io;
use std::os::unix::fs::{FileExt, OpenOptionsExt};
use std::path::PathBuf;

use rustix::fs::{FallocateFlags, FlockOperation, OFlags};
use rustix::io::Errno;

use super::super::block::Header;
use super::super::object_id::ObjectId;
use super::{Disk, survey};

/// How often an object's directory is made again that others remove because it is empty.
const MOST_TRIES: u32 = 16;

/// The right to fill a block. Dropped before it is published, it leaves nothing.
#[derive(Debug)]
pub(in super::super) struct Filling<'a> {
    disk: &'a Disk,
    file: File,
    path: PathBuf,
    id: ObjectId,
    number: u64,
    /// Room that is reserved for it.
    pub(super) reserved: u64,
    is_published: bool,
}

/// The result of asking for that right.
pub(super) enum Claim<'a> {
    Mine(Filling<'a>),
    /// Another one is filling it.
    Busy,
}

impl<'a> Filling<'a> {
    pub(super) fn claim(disk: &'a Disk, id: ObjectId, number: u64) -> io::Result<Claim<'a>> {
        let path = disk.fills.join(survey::fill_name(id, number));
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
            // Its last filler may have published or removed the file between our open and our lock.
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

    /// Has the file system set the room aside, so that a full one shows before anything is fetched.
    pub(super) fn allocate(&self, len: u64) -> io::Result<()> {
        self.disk.fault()?;
        // What a killed process left there was of another try.
        self.file.set_len(0)?;
        match rustix::fs::fallocate(&self.file, FallocateFlags::empty(), 0, len) {
            // Not every file system can; then writing shows it.
            Err(Errno::OPNOTSUPP | Errno::NOSYS | Errno::INVAL) | Ok(()) => Ok(()),
            Err(errno) => Err(errno.into()),
        }
    }

    /// Writes the block and makes it visible to all, at once and whole.
    pub(in super::super) fn publish(mut self, header: &Header, payload: &[u8]) -> io::Result<()> {
        self.disk.fault()?;
        let head = header.encode();
        self.file.write_all_at(payload, head.len() as u64)?;
        self.file.write_all_at(&head, 0)?;
        self.file.set_len((head.len() + payload.len()) as u64)?;
        let target = survey::block_path(&self.disk.blocks, self.id, self.number);
        let mut tries = 0;
        loop {
            match std::fs::rename(&self.path, &target) {
                Ok(()) => break,
                // The object's first block; or its directory was just removed because it was empty.
                Err(error) if error.kind() == io::ErrorKind::NotFound && tries < MOST_TRIES => {
                    tries += 1;
                    let dir = target.parent().unwrap_or(&self.disk.blocks);
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
        // Removed while it is locked, so it is ours. If that fails it is cleaned up as that of a dead process.
        let _ = std::fs::remove_file(&self.path);
        if self.reserved > 0 {
            self.disk.give_back(self.reserved);
        }
    }
}
