//! One archive of a source: how its members are stored, and how it is opened.

use crate::archive::{Archive, ArchiveFile, Stream, VolumeKind, read_head, zip};
use crate::error::{Error, Result};
use crate::images::objects::Objects;
use std::path::PathBuf;
use std::sync::Arc;

/// One archive of the source, as the census saw it.
#[derive(Debug, Clone)]
pub struct Volume {
    pub(crate) archive: Archive,
    /// As it is shown, and as the paths of its members begin.
    pub(crate) path: PathBuf,
    pub(crate) kind: VolumeKind,
    pub(crate) len: u64,
    /// Time of last change in nanoseconds; of objects, what changes when they do.
    pub(crate) modified: i128,
    /// Set if this is no archive.
    pub(crate) objects: Option<Arc<Objects>>,
}

impl Volume {
    /// Recognises an archive by its first bytes.
    pub(crate) fn open(archive: &Archive) -> Result<(Self, ArchiveFile)> {
        let shown = archive.shown();
        let path = shown.as_path();
        let (file, modified) = archive.open()?;
        let len = file.len();
        let head = read_head(&file, path)?;
        let tar = VolumeKind::of_tar(&head, len);
        let kind = match (&head[..], tar) {
            (_, Some(kind)) => kind,
            ([b'P', b'K', 3, 4, ..] | [b'P', b'K', 5, 6, ..], None) => {
                let directory = zip::Directory::find(&file, len).map_err(|t| t.of(path))?;
                VolumeKind::Zip {
                    base: directory.base,
                }
            }
            (head, None) => {
                let what = match head {
                    [b'B', b'Z', b'h', ..] => {
                        "bzip2 archives are not read, only tar, tar.gz, tar.zst and zip"
                    }
                    [0xfd, b'7', b'z', ..] => {
                        "xz archives are not read, only tar, tar.gz, tar.zst and zip"
                    }
                    [b'7', b'z', ..] => {
                        "7z archives are not read, only tar, tar.gz, tar.zst and zip"
                    }
                    [b'R', b'a', b'r', ..] => {
                        "RAR archives are not read, only tar, tar.gz, tar.zst and zip"
                    }
                    _ => {
                        "this is not a directory, and no tar, tar.gz, tar.zst or zip archive either"
                    }
                };
                return Err(Error::source(path, what));
            }
        };
        let volume = Self {
            archive: archive.clone(),
            path: shown,
            kind,
            len,
            modified,
            objects: None,
        };
        Ok((volume, file))
    }

    /// Whether members cannot be read at their places.
    pub fn is_compressed_stream(&self) -> bool {
        matches!(self.kind, VolumeKind::TarGz | VolumeKind::TarZst)
    }

    /// Reads the archive again from its beginning, to decode what `kind` says.
    pub(crate) fn stream(&self, file: ArchiveFile) -> Result<Stream> {
        Stream::new(file, self.kind).map_err(|error| Error::io(&self.path, "read", error))
    }
}
