//! Reading members at the places that the census found.

// Bytes are read where they stay: clearing the room for each image first costs a seventh of a pack's time.
#![allow(unsafe_code)]

use super::{Place, Trouble, Volume, VolumeKind, zip};
use crate::error::{Error, Result};
use crate::observer::Observer;
use crate::report::Reason;
use rustix::fs::Advice;
use std::fs::File;
use std::io;
use std::num::NonZeroU64;
use std::os::unix::fs::FileExt;

/// Decoded bytes go to the spool in pieces of this size.
const COPY_BYTES: usize = 1 << 20;
/// A tar of fewer bytes than this behind a member says nothing about the next one.
const HINT_MAX_BYTES: u64 = 64 << 20;

/// An archive that is open for reading members in any order.
#[derive(Debug)]
pub(crate) struct OpenVolume {
    volume: Volume,
    /// The archive, or its decoded images at the positions that they have in the decoded stream.
    file: File,
}

impl OpenVolume {
    /// Opens an archive, which must still be what the census saw.
    pub(crate) fn open(seen: &Volume) -> Result<Self> {
        let (now, file) = Volume::open(&seen.path)?;
        if (now.len, now.modified, now.kind) != (seen.len, seen.modified, seen.kind) {
            return Err(Error::source(
                &seen.path,
                "the archive has changed since its census",
            ));
        }
        Ok(Self { volume: now, file })
    }

    /// Decodes the images of a compressed archive, given as (position, size) in ascending order, into `spool`.
    /// Everything between them stays a hole. Returns false if it was stopped.
    pub(crate) fn spool(
        &mut self,
        images: &[(u64, u64)],
        spool: File,
        observer: &dyn Observer,
        stopped: &dyn Fn() -> bool,
    ) -> Result<bool> {
        let path = self.volume.path.clone();
        let whole = self.decode(images, observer, stopped, &mut |at, bytes| {
            spool
                .write_all_at(bytes, at)
                .map_err(|error| Error::io(&path, "decode into the destination", error))
        })?;
        self.file = spool;
        Ok(whole)
    }

    /// Decodes the images of a compressed archive, given as (position, size) in ascending order: `take` gets them piece
    /// by piece, each with its position. Returns false if it was stopped.
    pub(crate) fn decode(
        &self,
        images: &[(u64, u64)],
        observer: &dyn Observer,
        stopped: &dyn Fn() -> bool,
        take: &mut dyn FnMut(u64, &[u8]) -> Result<()>,
    ) -> Result<bool> {
        let path = &self.volume.path;
        let archive = self
            .file
            .try_clone()
            .map_err(|error| Error::io(path, "open", error))?;
        let mut stream = self.volume.stream(archive)?;
        let mut buffer = vec![0; COPY_BYTES];
        let mut decoded = 0;
        for (position, size) in images {
            if stopped() {
                return Ok(false);
            }
            decoded += size;
            if decoded >= COPY_BYTES as u64 {
                decoded = 0;
                let (done, len) = stream.progress();
                observer.archive_read(done, len);
            }
            let mut done = 0;
            while done < *size {
                let at = position + done;
                let step = (size - done).min(buffer.len() as u64) as usize;
                super::read_exact(&mut stream, at, &mut buffer[..step])
                    .map_err(|trouble| trouble.of(path))?;
                take(at, &buffer[..step])?;
                done += step as u64;
            }
        }
        // To its end: its checksum is the last thing in it.
        super::drain(&mut stream).map_err(|trouble| trouble.of(path))?;
        Ok(true)
    }

    /// The archive, or the file that its images were decoded into.
    pub(crate) fn file(&self) -> &File {
        &self.file
    }

    /// Tells the system that a member will be needed.
    pub(crate) fn will_need(&self, place: Place, size: u64) {
        let at = match self.volume.kind {
            VolumeKind::Zip { .. } => return,
            _ => place.offset,
        };
        // Only a hint.
        let _ = rustix::fs::fadvise(
            &self.file,
            at,
            NonZeroU64::new(size.min(HINT_MAX_BYTES)),
            Advice::WillNeed,
        );
    }

    /// Appends the content of a member.
    pub(crate) fn append_to(
        &self,
        place: Place,
        size: u64,
        out: &mut Vec<u8>,
    ) -> Result<(), (Reason, String)> {
        let unreadable = |what: String| (Reason::Unreadable, what);
        match self.volume.kind {
            VolumeKind::Zip { base } => {
                let member = zip::member_at(&self.file, self.volume.len, place.offset)
                    .map_err(|trouble| unreadable(trouble.to_string()))?;
                if member.size != size {
                    return Err((
                        Reason::SizeChanged,
                        format!("then {size} bytes, now {}", member.size),
                    ));
                }
                member
                    .append_to(&self.file, base, u64::MAX, out)
                    .map_err(unreadable)
            }
            _ => read_at(&self.file, place.offset, size, out)
                .map_err(|trouble| unreadable(trouble.to_string())),
        }
    }
}

/// Appends exactly `size` bytes from `offset`.
fn read_at(file: &File, offset: u64, size: u64, out: &mut Vec<u8>) -> Result<(), Trouble> {
    let size = usize::try_from(size).map_err(|_| Trouble::at(offset, "a member is too large"))?;
    out.reserve(size);
    let end = out.len() + size;
    let mut at = offset;
    while out.len() < end {
        let room = end - out.len();
        match rustix::io::pread(file, &mut out.spare_capacity_mut()[..room], at) {
            Ok(([], _)) => {
                return Err(Trouble::at(at, "the archive ends here, it is cut short"));
            }
            Ok((read, _)) => {
                let read = read.len();
                at += read as u64;
                let len = out.len() + read;
                // SAFETY: pread has just initialised the first `read` bytes of the spare room.
                unsafe { out.set_len(len) };
            }
            Err(rustix::io::Errno::INTR) => {}
            Err(errno) => return Err(Trouble::io(at, &io::Error::from(errno))),
        }
    }
    Ok(())
}
