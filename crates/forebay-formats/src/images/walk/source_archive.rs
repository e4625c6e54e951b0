//! One archive of a source: how its members are stored and how it is opened.

use super::objects::{ObjectList, Objects};
use crate::archive::{Archive, ArchiveFile, ArchiveKind, Stream, read_head, zip};
use crate::error::{Error, Result};
use crate::key_path::is_below;
use forebay_store::{Location, Store, StoreOptions};
use serde::{Deserialize, Serialize};
use std::ffi::OsStr;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;

/// One archive of the source, in the version that was listed, or the objects of a store in the place of one.
#[derive(Debug, Clone)]
pub struct SourceArchive {
    pub(crate) location: Archive,
    /// The path in messages, which is also the prefix of the paths of its members.
    pub(crate) path: PathBuf,
    pub(crate) kind: ArchiveKind,
    pub(crate) len: u64,
    /// Modification time in nanoseconds; for objects a hash that changes with their versions.
    pub(crate) modified: i128,
    /// Set for the objects of a store, which are not an archive.
    pub(crate) objects: Option<Arc<Objects>>,
}

/// An archive as it is stored in a file: machines may see the source under different paths. `L` is an [`ObjectList`], or a
/// reference to one.
#[derive(Debug, Serialize, Deserialize)]
pub struct StoredArchive<L> {
    place: StoredPlace<L>,
    kind: ArchiveKind,
    len: u64,
    modified: i128,
}

#[derive(Debug, Serialize, Deserialize)]
enum StoredPlace<L> {
    /// The path relative to the source; empty for the source itself.
    Local(Vec<u8>),
    /// The key in the store of the source.
    Object(String),
    /// The object that is the source.
    Source,
    /// All objects of the source.
    Objects(L),
}

impl StoredArchive<ObjectList> {
    /// Returns the archive in the source at `root`; `store` has its objects, unless the source is local. `None` if the
    /// archive cannot be in this source.
    fn in_source(self, root: &Path, store: Option<&(Store, String)>) -> Option<SourceArchive> {
        let location = match self.place {
            StoredPlace::Local(path) if path.is_empty() => Archive::Local(root.to_path_buf()),
            StoredPlace::Local(path) if !is_below(&path) => return None,
            StoredPlace::Local(path) => Archive::Local(root.join(OsStr::from_bytes(&path))),
            StoredPlace::Source => {
                let (store, name) = store?.clone();
                Archive::Object(store, name)
            }
            StoredPlace::Object(key) => Archive::Object(store?.0.clone(), key),
            StoredPlace::Objects(list) => {
                let (store, identity) = (store?.0.clone(), self.modified);
                let objects = Objects {
                    store,
                    identity,
                    list,
                };
                return Some(SourceArchive::of_objects(Arc::new(objects)));
            }
        };
        Some(SourceArchive {
            path: location.shown(),
            location,
            kind: self.kind,
            len: self.len,
            modified: self.modified,
            objects: None,
        })
    }

    /// Returns the archives of a source; `None` if they cannot be in it. Sends no request.
    ///
    /// # Errors
    /// If the store of the source cannot be opened.
    pub fn all_in(
        stored: Vec<Self>,
        location: &Location,
        options: &StoreOptions,
    ) -> Result<Option<Vec<SourceArchive>>> {
        let is_source = |archive: &Self| matches!(archive.place, StoredPlace::Source);
        let (root, store) = match location.local_path() {
            Ok(path) => (path.to_path_buf(), None),
            Err(_) => {
                let parent = match stored.iter().any(is_source) {
                    true => location.parent_and_name()?,
                    false => None,
                };
                let (at, name) = parent.unwrap_or_else(|| (location.clone(), String::new()));
                let store = Store::open(&at, options)?;
                (PathBuf::new(), Some((store, name)))
            }
        };
        let stored = stored.into_iter();
        Ok(stored
            .map(|archive| archive.in_source(&root, store.as_ref()))
            .collect())
    }
}

/// Describes the kind of a file by its first bytes.
fn begins_as(head: &[u8]) -> String {
    match (head, forebay_image::sniff(head)) {
        (_, Some(format)) => format!("an image ({})", format.name()),
        ([], _) => "an empty file".to_owned(),
        ([b'P', b'A', b'R', b'1', ..], _) => "a Parquet file".to_owned(),
        ([0x89, b'H', b'D', b'F', ..], _) => "an HDF5 file".to_owned(),
        (head, _) if head.iter().all(|byte| *byte == 0) => "a file of zeros".to_owned(),
        (head, _) if is_text(head) => "a text".to_owned(),
        (head, _) => {
            let first = head.iter().take(8).map(|byte| format!("{byte:02x}"));
            format!("{} (bytes)", first.collect::<Vec<_>>().join(" "))
        }
    }
}

/// Returns whether the first bytes of a file are text. They may end inside a character.
fn is_text(head: &[u8]) -> bool {
    let is_cut = |error: std::str::Utf8Error| error.error_len().is_none();
    !head.contains(&0) && std::str::from_utf8(head).map_or_else(is_cut, |_| true)
}

impl SourceArchive {
    /// Returns the objects of a store in the place of an archive.
    pub(crate) fn of_objects(objects: Arc<Objects>) -> Self {
        let store = &objects.store;
        Self {
            location: Archive::Object(store.clone(), String::new()),
            path: PathBuf::from(store.location().to_string()),
            kind: ArchiveKind::Objects,
            len: 0,
            modified: objects.identity,
            objects: Some(objects),
        }
    }

    /// Detects the kind of an archive by its first bytes.
    pub(crate) fn open(location: &Archive) -> Result<(Self, ArchiveFile)> {
        let shown = location.shown();
        let path = shown.as_path();
        let (file, modified) = location.open()?;
        let len = file.len();
        let head = read_head(&file, path)?;
        let tar = ArchiveKind::of_tar(&head, len);
        let kind = match (&head[..], tar) {
            (_, Some(kind)) => kind,
            ([b'P', b'K', 3, 4, ..] | [b'P', b'K', 5, 6, ..], None) => {
                let directory = zip::Directory::find(&file, len).map_err(|t| t.of(path))?;
                ArchiveKind::Zip {
                    base: directory.base,
                }
            }
            (head, None) => {
                let other = match head {
                    [b'B', b'Z', b'h', ..] => "bzip2",
                    [0xfd, b'7', b'z', ..] => "xz",
                    [b'7', b'z', ..] => "7z",
                    [b'R', b'a', b'r', ..] => "RAR",
                    head => {
                        let what = format!(
                            "this is not a directory, and no tar, tar.gz, tar.zst or zip archive either: it begins as {} does",
                            begins_as(head)
                        );
                        return Err(Error::source(path, what));
                    }
                };
                let what =
                    format!("{other} archives are not read, only tar, tar.gz, tar.zst and zip");
                return Err(Error::source(path, what));
            }
        };
        let archive = Self {
            location: location.clone(),
            path: shown,
            kind,
            len,
            modified,
            objects: None,
        };
        Ok((archive, file))
    }

    /// Returns what a file stores about the archive of the source at `root`.
    pub fn to_stored(&self, root: &Path) -> StoredArchive<&ObjectList> {
        let is_root = |store: &Store| store.location().to_string() == root.to_string_lossy();
        let place = match (&self.objects, &self.location) {
            (Some(objects), _) => StoredPlace::Objects(&objects.list),
            (None, Archive::Object(store, key)) if is_root(store) => {
                StoredPlace::Object(key.clone())
            }
            (None, Archive::Object(..)) => StoredPlace::Source,
            (None, Archive::Local(path)) => {
                let path = path.strip_prefix(root).unwrap_or(path);
                StoredPlace::Local(path.as_os_str().as_bytes().to_vec())
            }
        };
        StoredArchive {
            place,
            kind: self.kind,
            len: self.len,
            modified: self.modified,
        }
    }

    /// Returns whether members cannot be read at their offsets.
    pub fn is_compressed_stream(&self) -> bool {
        matches!(self.kind, ArchiveKind::TarGz | ArchiveKind::TarZst)
    }

    /// Returns a stream that decodes the archive from its beginning.
    pub(crate) fn stream(&self, file: ArchiveFile) -> Result<Stream> {
        Stream::new(file, self.kind).map_err(|error| Error::io(&self.path, "read", error))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The first bytes are enough to refuse a sparse file of 1 TiB.
    #[test]
    fn a_file_that_is_no_archive_is_refused_at_once() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("large");
        for (head, said) in [
            (&b"path,label\na.jpg,1\n"[..], "(bytes)"),
            (b"", "a file of zeros"),
            (b"PAR1", "a Parquet file"),
            (b"\xff\xd8\xff\xe0", "an image (JPEG)"),
        ] {
            std::fs::write(&path, head).unwrap();
            let file = std::fs::File::options().write(true).open(&path).unwrap();
            file.set_len(1 << 40).unwrap();
            let error = SourceArchive::open(&Archive::Local(path.clone())).unwrap_err();
            let error = error.to_string();
            assert!(
                error.contains("it begins as") && error.contains(said),
                "{error}"
            );
        }
        std::fs::write(&path, [0; 10_240]).unwrap();
        let (empty, _) = SourceArchive::open(&Archive::Local(path)).unwrap();
        assert_eq!(empty.kind, ArchiveKind::Tar);
    }
}
