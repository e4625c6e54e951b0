//! Files that are opened more than once, and must be the same each time.

use super::bytes::{Archive, ArchiveFile};
use crate::error::{Error, Result};
use std::path::PathBuf;

/// A file, or files that are read as one, as they were when they were opened first.
#[derive(Debug, Clone)]
pub(crate) struct FileVersion {
    /// The path in messages.
    pub(crate) path: PathBuf,
    /// The size.
    pub(crate) bytes: u64,
    /// Changes when the content does.
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
    /// Those of [`Archive::open`], and a file that changed.
    pub(crate) fn reopen(&self, archive: &Archive) -> Result<ArchiveFile> {
        let (file, modified) = archive.open()?;
        match (file.len(), modified) == (self.bytes, self.modified) {
            true => Ok(file),
            false => Err(Error::source(&self.path, "it changed while it was read")),
        }
    }

    /// Adds the file, and the split that it belongs to, to the identity of a source.
    pub(crate) fn add_to(&self, split: &str, hasher: &mut blake3::Hasher) {
        for text in [self.path.as_os_str().as_encoded_bytes(), split.as_bytes()] {
            hasher
                .update(&(text.len() as u64).to_le_bytes())
                .update(text);
        }
        hasher.update(&self.bytes.to_le_bytes());
        hasher.update(&self.modified.to_le_bytes());
    }
}
