//! Detects changes of files that are opened more than once.

use super::bytes::{Archive, ArchiveFile};
use crate::error::{Error, Result};
use std::path::PathBuf;

/// The version of a file, or of several files that are read as one, when it was first opened.
#[derive(Debug, Clone)]
pub(crate) struct FileVersion {
    /// The path in messages.
    pub(crate) path: PathBuf,
    /// The size in bytes.
    pub(crate) bytes: u64,
    /// A value that changes when the content changes.
    pub(crate) modified: i128,
}

impl FileVersion {
    /// Opens a file.
    ///
    /// # Errors
    /// Those of [`Archive::open`].
    pub(crate) fn open(archive: &Archive) -> Result<(Self, ArchiveFile)> {
        let (file, modified) = archive.open()?;
        let version = Self {
            path: archive.shown(),
            bytes: file.len(),
            modified,
        };
        Ok((version, file))
    }

    /// Opens the file again.
    ///
    /// # Errors
    /// Those of [`Archive::open`], and [`Error::Source`](crate::error::Error::Source) if the file changed.
    pub(crate) fn reopen(&self, archive: &Archive) -> Result<ArchiveFile> {
        let (file, modified) = archive.open()?;
        match (file.len(), modified) == (self.bytes, self.modified) {
            true => Ok(file),
            false => Err(Error::source(&self.path, "it changed while it was read")),
        }
    }

    /// Adds the file and its split to the identity of a source.
    pub(crate) fn add_to(&self, split: &str, hasher: &mut blake3::Hasher) {
        for text in [self.path.as_os_str().as_encoded_bytes(), split.as_bytes()] {
            hash_text(text, hasher);
        }
        hasher.update(&self.bytes.to_le_bytes());
        hasher.update(&self.modified.to_le_bytes());
    }
}

/// Adds a text with its length to a hash.
pub(crate) fn hash_text(text: &[u8], hasher: &mut blake3::Hasher) {
    let len = text.len() as u64;
    hasher.update(&len.to_le_bytes()).update(text);
}
