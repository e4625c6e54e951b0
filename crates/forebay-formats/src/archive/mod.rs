//! Access to archives: local files and objects are read sequentially or at offsets, decompressed if needed, and the headers of
//! tars and zips are parsed. Used for archives of images and for WebDataset samples.

mod bytes;
mod read_ahead;
mod stream;
pub(crate) mod tar;
mod version;
pub(crate) mod zip;
mod zip_writer;

pub use bytes::Archive;
pub(crate) use bytes::{ArchiveFile, Fetched, ReadAt, identity, u16_at, u32_at, u64_at};
pub(crate) use stream::Stream;
pub(crate) use version::{FileVersion, hash_text};
pub(crate) use zip_writer::ZipWriter;

use crate::error::{Error, Result};
use serde::{Deserialize, Serialize};
use std::fmt;
use std::io;
use std::path::Path;

/// Number of bytes that [`ArchiveKind::of_tar`] needs.
pub(crate) const HEAD_BYTES: usize = 512;
/// Sizes of tars without members; tools may pad them to a larger record size.
const EMPTY_TAR_BYTES: std::ops::RangeInclusive<u64> = 1024..=1 << 20;

/// How the members of an archive are stored.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) enum ArchiveKind {
    Tar,
    TarGz,
    TarZst,
    Zip {
        /// Bytes before the archive, such as those of a self-extracting program.
        base: u64,
    },
    /// Not an archive: the objects of a store, each of which is a file.
    Objects,
}

impl ArchiveKind {
    /// Detects a tar of `len` bytes by its first bytes.
    pub(crate) fn of_tar(head: &[u8], len: u64) -> Option<Self> {
        match head {
            [0x1f, 0x8b, ..] => Some(Self::TarGz),
            [0x28, 0xb5, 0x2f, 0xfd, ..] => Some(Self::TarZst),
            // A tar without members consists of the end mark and padding, which are zeros.
            _ if tar::is_header(head)
                || (EMPTY_TAR_BYTES.contains(&len) && head == [0; HEAD_BYTES]) =>
            {
                Some(Self::Tar)
            }
            _ => None,
        }
    }
}

/// An error in an archive with its offset.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct ArchiveError {
    pub(crate) offset: u64,
    pub(crate) what: String,
}

impl ArchiveError {
    pub(crate) fn at(offset: u64, what: impl Into<String>) -> Self {
        Self {
            offset,
            what: what.into(),
        }
    }

    pub(crate) fn io(offset: u64, error: &io::Error) -> Self {
        Self::at(offset, error.to_string())
    }

    pub(crate) fn of(self, path: &Path) -> Error {
        Error::source(path, self.to_string())
    }
}

impl fmt::Display for ArchiveError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "offset {}: {}", self.offset, self.what)
    }
}

/// Reads the first bytes of an archive; fewer if it is shorter.
pub(crate) fn read_head(file: &ArchiveFile, path: &Path) -> Result<Vec<u8>> {
    let mut head = vec![0; HEAD_BYTES];
    let mut filled = 0;
    while filled < head.len() {
        match file.read_at(&mut head[filled..], filled as u64) {
            Ok(0) => break,
            Ok(read) => filled += read,
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            Err(error) => return Err(Error::io(path, "read", error)),
        }
    }
    head.truncate(filled);
    Ok(head)
}

/// Fills `out` with the bytes at offset `at`, which must not be before the position of the stream.
pub(crate) fn read_exact(stream: &mut Stream, at: u64, out: &mut [u8]) -> Result<(), ArchiveError> {
    let there = stream
        .skip_to(at)
        .and_then(|there| Ok((there, stream.fill(out)?)));
    match there {
        Ok((true, filled)) if filled == out.len() => Ok(()),
        Ok(_) => Err(ArchiveError::at(
            at,
            "the archive is cut short inside a member",
        )),
        Err(error) => Err(ArchiveError::io(at, &error)),
    }
}
