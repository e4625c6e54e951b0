//! A directory as a store.

use super::backend::Backend;
use super::{LeftOut, Listing, Object, Put, StoreOptions, Transfer, Written};
use crate::atomic_file::{remove_stale, temporary_stem};
use crate::{AtomicFile, Durability, Error, FileLock, Limiter, Result, is_temporary};
use rustix::fs::FlockOperation;
use std::ffi::OsString;
use std::fs::{File, Metadata};
use std::io::{self, Read, Write};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::{FileExt, MetadataExt};
use std::path::{Path, PathBuf};

/// Files are copied in pieces of this many bytes; cancellation is checked before each piece.
const PIECE_BYTES: usize = 1 << 20;

#[derive(Debug)]
pub(super) struct Local {
    root: PathBuf,
    limiter: Option<Limiter>,
}

/// Opens a directory.
pub(super) fn open(root: &Path, options: &StoreOptions) -> Box<dyn Backend> {
    Box::new(Local {
        root: root.to_path_buf(),
        limiter: options.bandwidth.map(|rate| Limiter::new(Some(rate))),
    })
}

impl Local {
    fn path(&self, key: &str) -> PathBuf {
        if key.is_empty() {
            self.root.clone()
        } else {
            self.root.join(key)
        }
    }

    fn open(&self, key: &str) -> Result<(PathBuf, File, Metadata)> {
        let path = self.path(key);
        let file =
            forebay_shard::storage::open_file(&path).map_err(|error| match error.kind() {
                io::ErrorKind::NotFound => Error::NotFound {
                    object: path.display().to_string(),
                    op: "read",
                },
                _ => Error::io(&path, "open", error),
            })?;
        let meta = file
            .metadata()
            .map_err(|error| Error::io(&path, "look at", error))?;
        Ok((path, file, meta))
    }

    fn copy(
        &self,
        key: &str,
        source: &Path,
        target: &Path,
        transfer: &Transfer<'_>,
        op: &'static str,
    ) -> Result<Object> {
        let shown = || target.display().to_string();
        let mut from =
            forebay_shard::storage::open_file(source).map_err(|error| match error.kind() {
                io::ErrorKind::NotFound if op == "read" => Error::NotFound {
                    object: source.display().to_string(),
                    op,
                },
                _ => Error::io(source, "open", error),
            })?;
        let mut to = AtomicFile::create(target)?.with_early_writeback();
        let mut piece = vec![0; PIECE_BYTES];
        let mut crc32c = 0;
        loop {
            if transfer.cancel.is_cancelled() {
                return Err(Error::Cancelled {
                    object: shown(),
                    op,
                });
            }
            let n = match from.read(&mut piece) {
                Ok(0) => break,
                Ok(n) => n,
                Err(error) if error.kind() == io::ErrorKind::Interrupted => continue,
                Err(error) => return Err(Error::io(source, "read", error)),
            };
            let bytes = piece.get(..n).unwrap_or_default();
            for limiter in [transfer.limiter, self.limiter.as_ref()]
                .into_iter()
                .flatten()
            {
                if !limiter.take(n as u64, transfer.cancel) {
                    return Err(Error::Cancelled {
                        object: shown(),
                        op,
                    });
                }
            }
            crc32c = crc32c::crc32c_append(crc32c, bytes);
            to.write_all(bytes)
                .map_err(|error| Error::io(target, "write", error))?;
            (transfer.progress)(n as u64);
        }
        if let Some(expected) = transfer.crc32c
            && expected != crc32c
        {
            return Err(Error::Checksum {
                object: source.display().to_string(),
                what: "the file",
                expected,
                found: crc32c,
            });
        }
        to.commit(Durability::Synced)?;
        let meta =
            std::fs::metadata(target).map_err(|error| Error::io(target, "look at", error))?;
        let mut object = describe(key, &meta);
        object.crc32c = Some(crc32c);
        Ok(object)
    }
}

impl Backend for Local {
    fn list_all(&self, prefix: &str) -> Result<Listing> {
        let mut found = Listing::default();
        let mut open = vec![prefix.to_owned()];
        while let Some(dir) = open.pop() {
            let level = self.list_dir(&dir)?;
            found.objects.extend(level.objects);
            found.left_out.extend(level.left_out);
            open.extend(level.dirs);
        }
        found.objects.sort_by(|a, b| a.key.cmp(&b.key));
        found.left_out.sort();
        Ok(found)
    }

    fn list_dir(&self, prefix: &str) -> Result<Listing> {
        let dir = self.path(prefix);
        let mut listing = Listing::default();
        let entries = match std::fs::read_dir(&dir) {
            Ok(entries) => entries,
            Err(error) if is_absent(&error) => return Ok(listing),
            Err(error) => return Err(Error::io(&dir, "list", error)),
        };
        for entry in entries {
            let entry = entry.map_err(|error| Error::io(&dir, "list", error))?;
            let name = entry.file_name();
            // Temporary files of `AtomicFile` are not objects yet.
            if is_temporary(&name) {
                continue;
            }
            let text = name.to_string_lossy();
            let key = if prefix.is_empty() {
                text.clone().into_owned()
            } else {
                format!("{prefix}/{text}")
            };
            let left_out = |why| LeftOut {
                path: key.clone(),
                why,
            };
            if name.to_str().is_none() {
                listing.left_out.push(left_out("its name is not UTF-8"));
                continue;
            }
            if text.chars().any(char::is_control) {
                let why = "its name has control characters in it";
                listing.left_out.push(left_out(why));
                continue;
            }
            let path = entry.path();
            match std::fs::metadata(&path) {
                // A linked directory may be an ancestor and lead to a loop.
                Ok(meta) if meta.is_dir() => {
                    if entry.file_type().is_ok_and(|kind| kind.is_dir()) {
                        listing.dirs.push(key);
                    } else {
                        let why = "it is a link to a directory, which is not followed";
                        listing.left_out.push(left_out(why));
                    }
                }
                Ok(meta) if meta.is_file() => listing.objects.push(describe(&key, &meta)),
                Ok(_) => {
                    let why = "it is neither a file nor a directory";
                    listing.left_out.push(left_out(why));
                }
                Err(error) if is_absent(&error) => {
                    // A broken link; any other entry was removed after the listing, and is ignored.
                    if entry.file_type().is_ok_and(|kind| kind.is_symlink()) {
                        listing.left_out.push(left_out("it is a link to nothing"));
                    }
                }
                Err(error) => return Err(Error::io(&path, "look at", error)),
            }
        }
        listing.objects.sort_by(|a, b| a.key.cmp(&b.key));
        listing.dirs.sort();
        listing.left_out.sort();
        Ok(listing)
    }

    fn head(&self, key: &str) -> Result<Option<Object>> {
        let path = self.path(key);
        match std::fs::metadata(&path) {
            Ok(meta) if meta.is_file() => Ok(Some(describe(key, &meta))),
            Ok(_) => Ok(None),
            Err(error) if is_absent(&error) => Ok(None),
            Err(error) => Err(Error::io(&path, "look at", error)),
        }
    }

    fn get(&self, key: &str, limit: u64) -> Result<Vec<u8>> {
        let (path, file, meta) = self.open(key)?;
        let too_large = |len| Error::TooLarge {
            object: path.display().to_string(),
            len,
            limit,
        };
        if meta.len() > limit {
            return Err(too_large(meta.len()));
        }
        let mut bytes = Vec::new();
        file.take(limit.saturating_add(1))
            .read_to_end(&mut bytes)
            .map_err(|error| Error::io(&path, "read", error))?;
        if bytes.len() as u64 > limit {
            return Err(too_large(bytes.len() as u64));
        }
        Ok(bytes)
    }

    fn read_at(
        &self,
        key: &str,
        expected: Option<&Object>,
        offset: u64,
        buf: &mut [u8],
    ) -> Result<()> {
        let (path, file, meta) = self.open(key)?;
        if let Some(expected) = expected {
            refuse_changed(&path, &meta, expected.len, expected.etag.as_deref())?;
        }
        file.read_exact_at(buf, offset)
            .map_err(|error| match error.kind() {
                io::ErrorKind::UnexpectedEof => Error::BeyondEnd {
                    object: path.display().to_string(),
                    len: meta.len(),
                    offset,
                    wanted: buf.len() as u64,
                },
                _ => Error::io(&path, "read", error),
            })
    }

    fn put(&self, key: &str, bytes: &[u8], put: &Put) -> Result<Written> {
        let path = self.path(key);
        let dir = make_parent(&path)?;
        let _turn = match put {
            Put::IfMatch(_) => take_turn(&dir)?,
            Put::Always | Put::IfAbsent => None,
        };
        if let Put::IfMatch(etag) = put {
            let meta = std::fs::metadata(&path).map_err(|error| match error.kind() {
                io::ErrorKind::NotFound => Error::Changed {
                    object: path.display().to_string(),
                    why: "it is gone".to_owned(),
                },
                _ => Error::io(&path, "look at", error),
            })?;
            refuse_changed(&path, &meta, meta.len(), Some(etag))?;
        }
        let mut file = AtomicFile::create(&path)?;
        file.write_all(bytes)
            .map_err(|error| Error::io(&path, "write", error))?;
        if *put == Put::IfAbsent {
            if !file.commit_new(Durability::Synced)? {
                return Err(Error::AlreadyThere {
                    object: path.display().to_string(),
                });
            }
        } else {
            file.commit(Durability::Synced)?;
        }
        Ok(Written {
            etag: std::fs::metadata(&path).ok().map(|meta| etag(&meta)),
            crc32c: crc32c::crc32c(bytes),
        })
    }

    fn upload_file(&self, key: &str, file: &Path, transfer: &Transfer<'_>) -> Result<Object> {
        let target = self.path(key);
        make_parent(&target)?;
        self.copy(key, file, &target, transfer, "copy")
    }

    fn download_file(&self, key: &str, file: &Path, transfer: &Transfer<'_>) -> Result<Object> {
        make_parent(file)?;
        self.copy(key, &self.path(key), file, transfer, "read")
    }

    fn delete(&self, key: &str) -> Result<()> {
        let path = self.path(key);
        match std::fs::remove_file(&path) {
            Ok(()) => Ok(()),
            Err(error) if is_absent(&error) => Ok(()),
            Err(error) => Err(Error::io(&path, "delete", error)),
        }
    }

    /// Removes temporary files of this key that no process has open.
    fn abort_uploads_of(&self, key: &str) -> Result<()> {
        clean_stale_of(&self.path(key)).map(drop)
    }
}

/// Removes the temporary files that killed writers of one file left.
fn clean_stale_of(path: &Path) -> Result<u64> {
    let (Some(dir), Some(name)) = (path.parent(), path.file_name()) else {
        return Ok(0);
    };
    let mut begins = OsString::from(".");
    begins.push(temporary_stem(name));
    begins.push(".");
    let entries = match std::fs::read_dir(dir) {
        Ok(entries) => entries,
        Err(error) if is_absent(&error) => return Ok(0),
        Err(error) => return Err(Error::io(dir, "list", error)),
    };
    let mut removed = 0;
    for entry in entries {
        let name = entry
            .map_err(|error| Error::io(dir, "list", error))?
            .file_name();
        if is_temporary(&name) && name.as_bytes().starts_with(begins.as_bytes()) {
            removed += u64::from(remove_stale(&dir.join(&name))?);
        }
    }
    Ok(removed)
}

fn is_absent(error: &io::Error) -> bool {
    matches!(
        error.kind(),
        io::ErrorKind::NotFound | io::ErrorKind::NotADirectory
    )
}

fn describe(key: &str, meta: &Metadata) -> Object {
    Object {
        etag: Some(etag(meta)),
        modified: meta.modified().ok(),
        ..Object::new(key, meta.len())
    }
}

/// A replaced file has another inode; a file written in place has another modification time or size.
fn etag(meta: &Metadata) -> String {
    format!(
        "{:x}-{:x}-{:x}.{:x}",
        meta.ino(),
        meta.len(),
        meta.mtime(),
        meta.mtime_nsec()
    )
}

fn refuse_changed(path: &Path, meta: &Metadata, len: u64, expected: Option<&str>) -> Result<()> {
    let why = if meta.len() != len {
        format!("it has {} bytes, and had {len}", meta.len())
    } else if expected.is_some_and(|expected| expected != etag(meta)) {
        "it was overwritten".to_owned()
    } else {
        return Ok(());
    };
    Err(Error::Changed {
        object: path.display().to_string(),
        why,
    })
}

fn make_parent(path: &Path) -> Result<PathBuf> {
    let dir = match path.parent() {
        Some(dir) if !dir.as_os_str().is_empty() => dir,
        _ => Path::new("."),
    };
    std::fs::create_dir_all(dir).map_err(|error| Error::io(dir, "create", error))?;
    Ok(dir.to_path_buf())
}

/// Locks a directory against other conditional puts, also of other processes. On a file system without `flock` it returns
/// `None`, and two conditional puts at the same moment may both succeed.
fn take_turn(dir: &Path) -> Result<Option<FileLock>> {
    let handle = File::open(dir).map_err(|error| Error::io(dir, "open", error))?;
    Ok(FileLock::acquire(handle, FlockOperation::LockExclusive).ok())
}
