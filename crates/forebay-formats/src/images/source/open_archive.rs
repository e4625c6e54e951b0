//! Reads members at the offsets that listing found.

// Reads go directly into uninitialized memory: zeroing the buffer for each image took a seventh of the time of a pack.
#![expect(unsafe_code)]

use crate::archive::{ArchiveError, ArchiveFile, ArchiveKind, Fetched, ReadAt, read_exact, zip};
use crate::error::{Error, Result};
use crate::finding::{Reason, Refusal};
use crate::images::walk::{MemberLocation, SourceArchive, drain};
use crate::progress::Progress;
use forebay_store::{Cancel, advice};
use std::fs::File;
use std::io;
use std::num::NonZeroU64;
use std::ops::Deref;
use std::os::unix::fs::FileExt;
use std::sync::Arc;

/// Size of the pieces in which decoded bytes are written to the spool file.
const COPY_BYTES: usize = 1 << 20;
/// Most bytes that are requested ahead for one member of a tar.
const HINT_MAX_BYTES: u64 = 64 << 20;

/// Most archives that stay open.
const OPEN_MAX: usize = 64;

/// The archives of a source, for reading members in any order.
#[derive(Debug)]
pub(crate) enum OpenArchives {
    Open(Vec<OpenArchive>),
    /// Too many archives to keep them open: each is opened when a member is read, as the files of a directory are.
    OnDemand(Vec<SourceArchive>),
}

/// An archive that stays open, or one that was opened for a single read.
#[derive(Debug)]
pub(crate) enum ArchiveRef<'a> {
    Open(&'a OpenArchive),
    OnDemand(Box<OpenArchive>),
}

impl OpenArchives {
    /// Opens the archives, unless there are too many.
    pub(crate) fn open(seen: &[SourceArchive]) -> Result<Self> {
        if Self::are_on_demand(seen) {
            return Ok(Self::OnDemand(seen.to_vec()));
        }
        Ok(Self::Open(
            seen.iter().map(OpenArchive::open).collect::<Result<_>>()?,
        ))
    }

    fn are_on_demand(seen: &[SourceArchive]) -> bool {
        seen.len() > OPEN_MAX && !seen.iter().any(SourceArchive::is_compressed_stream)
    }

    /// Returns the number of files that stay open for these archives.
    pub(crate) fn files(seen: &[SourceArchive]) -> usize {
        match Self::are_on_demand(seen) {
            true => 0,
            false => seen.len(),
        }
    }

    /// Returns whether reads go over a network.
    pub(crate) fn are_remote(&self) -> bool {
        match self {
            Self::Open(archives) => archives.iter().any(OpenArchive::is_remote),
            Self::OnDemand(archives) => archives.iter().any(|archive| archive.location.is_object()),
        }
    }

    /// Returns the archive with this index, if it stays open.
    pub(crate) fn open_mut(&mut self, number: u16) -> Option<&mut OpenArchive> {
        match self {
            Self::Open(archives) => archives.get_mut(usize::from(number)),
            Self::OnDemand(_) => None,
        }
    }

    /// Returns the archive with this index. Fails if it changed since it was listed.
    pub(crate) fn get(&self, number: u16) -> Result<ArchiveRef<'_>> {
        let number = usize::from(number);
        Ok(match self {
            Self::Open(archives) => ArchiveRef::Open(&archives[number]),
            Self::OnDemand(archives) => {
                ArchiveRef::OnDemand(Box::new(OpenArchive::open(&archives[number])?))
            }
        })
    }
}

impl Deref for ArchiveRef<'_> {
    type Target = OpenArchive;

    fn deref(&self) -> &OpenArchive {
        match self {
            Self::Open(archive) => archive,
            Self::OnDemand(archive) => archive,
        }
    }
}

/// An archive that is open for reading members in any order.
#[derive(Debug)]
pub(crate) struct OpenArchive {
    archive: SourceArchive,
    /// The archive, or a spool file with its decoded images at their offsets in the decoded stream. `None` for objects of a
    /// store.
    file: Option<ArchiveFile>,
}

impl OpenArchive {
    /// Opens an archive. Fails if it changed since it was listed.
    pub(crate) fn open(seen: &SourceArchive) -> Result<Self> {
        if seen.objects.is_some() {
            // Each object is checked for changes when it is read.
            return Ok(Self {
                archive: seen.clone(),
                file: None,
            });
        }
        let (now, file) = SourceArchive::open(&seen.location)?;
        if (now.len, now.modified, now.kind) != (seen.len, seen.modified, seen.kind) {
            return Err(Error::source(
                &seen.path,
                "the archive has changed since its census",
            ));
        }
        Ok(Self {
            archive: now,
            file: Some(file),
        })
    }

    /// Decodes the images of a compressed archive into `spool`, at their offsets in the decoded stream; the bytes in between
    /// stay a hole. `images` has (offset, size) in ascending order. Returns false if it was stopped.
    pub(crate) fn spool(
        &mut self,
        images: &[(u64, u64)],
        spool: File,
        progress: &dyn Progress,
        stopped: &dyn Fn() -> bool,
    ) -> Result<bool> {
        let path = self.archive.path.clone();
        let whole = self.decode(images, progress, stopped, &mut |at, bytes| {
            spool
                .write_all_at(bytes, at)
                .map_err(|error| Error::io(&path, "decode into the destination", error))
        })?;
        self.file = Some(ArchiveFile::Local(Arc::new(spool), u64::MAX));
        Ok(whole)
    }

    /// Decodes the images of a compressed archive and passes them to `take` in pieces with their offsets. `images` has (offset,
    /// size) in ascending order. Returns false if it was stopped.
    pub(crate) fn decode(
        &self,
        images: &[(u64, u64)],
        progress: &dyn Progress,
        stopped: &dyn Fn() -> bool,
        take: &mut dyn FnMut(u64, &[u8]) -> Result<()>,
    ) -> Result<bool> {
        let path = &self.archive.path;
        let Some(file) = self.file.clone() else {
            return Err(Error::source(path, "this is no archive"));
        };
        let mut stream = self.archive.stream(file)?;
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
                progress.archive_read(done, len);
            }
            let mut done = 0;
            while done < *size {
                let at = position + done;
                let step = (size - done).min(buffer.len() as u64) as usize;
                read_exact(&mut stream, at, &mut buffer[..step]).map_err(|error| error.of(path))?;
                take(at, &buffer[..step])?;
                done += step as u64;
            }
        }
        // Reads to the end of the stream to verify its checksum.
        drain(&mut stream, &Cancel::new()).map_err(|error| error.of(path))?;
        Ok(true)
    }

    /// Returns the archive, or the spool file; `None` if the archive is in a store.
    pub(crate) fn file(&self) -> Option<&File> {
        self.file.as_ref().and_then(ArchiveFile::local)
    }

    /// Returns whether reads go over a network, so that more of them should be in flight.
    pub(crate) fn is_remote(&self) -> bool {
        self.file.as_ref().is_none_or(ArchiveFile::is_object)
    }

    /// Advises the operating system to read ahead for a member.
    pub(crate) fn will_need(&self, place: MemberLocation, size: u64) {
        let (Some(file), false) = (
            self.file(),
            matches!(self.archive.kind, ArchiveKind::Zip { .. }),
        ) else {
            return;
        };
        let len = NonZeroU64::new(size.min(HINT_MAX_BYTES));
        advice::will_need(file, place.offset, len);
    }

    /// Appends the content of a member.
    pub(crate) fn append_to(
        &self,
        place: MemberLocation,
        size: u64,
        out: &mut Vec<u8>,
    ) -> Result<(), Refusal> {
        if let Some(objects) = &self.archive.objects {
            return objects.append_to(place, size, out);
        }
        let unreadable = |what: String| (Reason::Unreadable, what);
        let not_fetched = |error: io::Error| (Reason::NotFetched, error.to_string());
        let Some(file) = &self.file else {
            return Err(unreadable("this is no archive".to_owned()));
        };
        match (self.archive.kind, file) {
            (ArchiveKind::Zip { base }, ArchiveFile::Local(..)) => {
                let member = zip::member_at(file, self.archive.len, place.offset)
                    .map_err(|error| unreadable(error.to_string()))?;
                same_size(&member, size)?;
                member
                    .append_to(file, base, u64::MAX, out)
                    .map_err(unreadable)
            }
            // Two requests: one for the record in the central directory, one for the local header and data of the member.
            (ArchiveKind::Zip { base }, ArchiveFile::Object(_)) => {
                let peek = zip::RECORD_PEEK_BYTES as u64;
                let record = Fetched::new(file, place.offset, peek).map_err(not_fetched)?;
                let fail = |record: &Fetched<'_>, what: String| match record.failed() {
                    true => (Reason::NotFetched, what),
                    false => (Reason::Unreadable, what),
                };
                let member = zip::member_at(&record, self.archive.len, place.offset)
                    .map_err(|error| fail(&record, error.to_string()))?;
                same_size(&member, size)?;
                let (start, len) = member.stored(base);
                // Deflate expands incompressible data only slightly. The stored size in the directory is untrusted, so this
                // bounds the request.
                let most = size + size / 8 + (64 << 10);
                let stored = Fetched::new(file, start, len.min(most)).map_err(not_fetched)?;
                member
                    .append_to(&stored, base, u64::MAX, out)
                    .map_err(|what| fail(&stored, what))
            }
            (_, ArchiveFile::Local(file, _)) => read_at(file, place.offset, size, out)
                .map_err(|error| unreadable(error.to_string())),
            (_, ArchiveFile::Object(_)) => {
                let size = usize::try_from(size).map_err(|_| unreadable("too large".to_owned()))?;
                let start = out.len();
                out.resize(start + size, 0);
                file.read_exact_at(&mut out[start..], place.offset)
                    .map_err(|error| match error.kind() {
                        io::ErrorKind::UnexpectedEof => {
                            unreadable("the archive ends here, it is cut short".to_owned())
                        }
                        _ => not_fetched(error),
                    })
            }
        }
    }
}

fn same_size(member: &zip::ZipMember, size: u64) -> Result<(), Refusal> {
    if member.size == size {
        return Ok(());
    }
    let what = format!("then {size} bytes, now {}", member.size);
    Err((Reason::SizeChanged, what))
}

/// Appends exactly `size` bytes from `offset`.
fn read_at(file: &File, offset: u64, size: u64, out: &mut Vec<u8>) -> Result<(), ArchiveError> {
    let size =
        usize::try_from(size).map_err(|_| ArchiveError::at(offset, "a member is too large"))?;
    out.reserve(size);
    let end = out.len() + size;
    let mut at = offset;
    while out.len() < end {
        let room = end - out.len();
        match rustix::io::pread(file, &mut out.spare_capacity_mut()[..room], at) {
            Ok(([], _)) => {
                return Err(ArchiveError::at(
                    at,
                    "the archive ends here, it is cut short",
                ));
            }
            Ok((read, _)) => {
                let read = read.len();
                at += read as u64;
                let len = out.len() + read;
                // SAFETY: pread has just initialized the first `read` bytes of the spare capacity.
                unsafe { out.set_len(len) };
            }
            Err(rustix::io::Errno::INTR) => {}
            Err(errno) => return Err(ArchiveError::io(at, &io::Error::from(errno))),
        }
    }
    Ok(())
}
