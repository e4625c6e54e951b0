//! A checkpoint that is being written into a staging area.
//!
//! Each file is written once, checksummed while it is written, and fsynced in the background by threads of the draft. A draft
//! that is dropped before it is committed is removed.

use super::error::io_error;
use super::manifest::{CheckpointPart, FileEntry};
use super::marker::{Marker, SaveTarget};
use super::{Error, Result, name};
use crate::make_dirs;
use crate::unit::{Unit, UnitLock};
use forebay_store::{Cancel, advice, sync_dir};
use serde_json::{Map, Value};
use std::collections::BTreeMap;
use std::fs::{File, OpenOptions};
use std::io::{self, Read, Write};
use std::num::NonZeroU64;
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};
use std::sync::mpsc::{Receiver, SyncSender, sync_channel};
use std::sync::{Arc, Mutex, MutexGuard};
use std::thread::JoinHandle;

/// Threads that fsync files. Several at once let many small files share one journal commit of the file system.
const SYNCERS: usize = 4;
/// Maximum number of written files that wait for one of these threads; each holds a file descriptor.
const UNSYNCED_MAX: usize = 32;
/// Bytes after which write-back of a file starts, so that the final fsync has little left to write.
const WRITEBACK_BYTES: u64 = 16 << 20;
/// Bytes that are read and checksummed at a time when a file is copied.
const COPY_BYTES: usize = 1 << 20;

/// A checkpoint under construction; removed when dropped before it is committed.
#[derive(Debug)]
pub struct Draft {
    entry: Unit,
    owner: Option<UnitLock>,
    shared: Arc<Shared>,
    syncers: Mutex<Syncers>,
    committed: bool,
}

#[derive(Debug, Default)]
struct Syncers {
    sender: Option<SyncSender<Written>>,
    threads: Vec<JoinHandle<()>>,
}

#[derive(Debug, Default)]
struct Shared {
    state: Mutex<State>,
}

#[derive(Debug, Default)]
struct State {
    /// `None` until the file is written and fsynced.
    files: BTreeMap<String, Option<FileEntry>>,
    failure: Option<Error>,
}

#[derive(Debug)]
struct Written {
    file: File,
    path: PathBuf,
    entry: FileEntry,
}

impl Shared {
    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(|e| e.into_inner())
    }
}

impl Draft {
    /// Begins a draft, and reserves about this many bytes of the area for it.
    pub(super) fn begin(area: &Path, bytes: u64) -> Result<Self> {
        let (entry, owner) = Unit::create(area)?;
        entry.promise(bytes);
        Ok(Self {
            entry,
            owner: Some(owner),
            shared: Arc::default(),
            syncers: Mutex::default(),
            committed: false,
        })
    }

    /// Creates a file of the checkpoint. Several threads may write files at the same time.
    pub fn create(&self, name: &str) -> Result<DraftFile> {
        let path = self.path(name)?;
        let file = OpenOptions::new()
            .write(true)
            .create_new(true)
            .mode(0o600)
            .open(&path)
            .map_err(|error| io_error(&path, "create", error))?;
        Ok(DraftFile {
            file,
            path,
            name: name.to_owned(),
            bytes: 0,
            started: 0,
            crc32c: 0,
        })
    }

    /// Queues a completely written file for fsync. Committing the draft waits for it.
    pub fn finish(&self, file: DraftFile) -> Result<()> {
        let entry = FileEntry {
            name: file.name,
            bytes: file.bytes,
            crc32c: file.crc32c,
        };
        send(
            &self.queue()?,
            Written {
                file: file.file,
                path: file.path,
                entry,
            },
        )
    }

    /// Returns a path at which a library may write a file of this name; call [`Draft::adopt`] afterwards.
    pub fn path(&self, name: &str) -> Result<PathBuf> {
        name::check(name).map_err(|what| Error::Option { what })?;
        if self
            .shared
            .state()
            .files
            .insert(name.to_owned(), None)
            .is_some()
        {
            return Err(Error::Option {
                what: format!("the checkpoint has two files of the name {name:?}"),
            });
        }
        let path = self.entry.file(name);
        if let Some(parent) = path.parent() {
            std::fs::create_dir_all(parent)
                .map_err(|error| io_error(parent, "create the directory", error))?;
        }
        Ok(path)
    }

    /// Adds a file that the caller wrote at [`Draft::path`]: reads it for its checksum, and queues it for fsync.
    pub fn adopt(&self, name: &str, cancel: &Cancel) -> Result<()> {
        let path = self.entry.file(name);
        let file = forebay_shard::storage::open_file(&path)
            .map_err(|error| io_error(&path, "open", error))?;
        let mut sum = Sum::default();
        copy(&file, &path, &mut sum, cancel)?;
        let entry = FileEntry {
            name: name.to_owned(),
            bytes: sum.bytes,
            crc32c: sum.crc32c,
        };
        send(&self.queue()?, Written { file, path, entry })
    }

    /// Copies the file `source` into the checkpoint under `name`.
    pub fn copy_file(&self, name: &str, source: &Path, cancel: &Cancel) -> Result<()> {
        let file = forebay_shard::storage::open_file(source)
            .map_err(|error| io_error(source, "open", error))?;
        let mut made = self.create(name)?;
        copy(&file, source, &mut made, cancel)?;
        self.finish(made)
    }

    /// Copies all files of a directory into the checkpoint, named by their relative paths. Links to files are followed; other
    /// links, and entries that are neither file nor directory, are refused. Empty directories are not saved.
    pub fn copy_dir(&self, source: &Path, cancel: &Cancel) -> Result<()> {
        for (name, path) in files_below(source)? {
            self.copy_file(&name, &path, cancel)?;
        }
        Ok(())
    }

    fn queue(&self) -> Result<SyncSender<Written>> {
        let mut syncers = self.syncers.lock().unwrap_or_else(|e| e.into_inner());
        if let Some(sender) = &syncers.sender {
            return Ok(sender.clone());
        }
        let (sender, receiver) = sync_channel(UNSYNCED_MAX);
        let receiver = Arc::new(Mutex::new(receiver));
        for _ in 0..SYNCERS {
            let (receiver, shared) = (Arc::clone(&receiver), Arc::clone(&self.shared));
            let thread = std::thread::Builder::new()
                .name("forebay-fsync".into())
                .spawn(move || sync_all(&receiver, &shared))
                .map_err(|error| io_error(self.entry.path(), "start a thread for", error))?;
            syncers.threads.push(thread);
        }
        syncers.sender = Some(sender.clone());
        Ok(sender)
    }

    /// Waits until all queued files are fsynced, and ends the threads.
    fn settle(&self) {
        let mut syncers = self.syncers.lock().unwrap_or_else(|e| e.into_inner());
        syncers.sender = None;
        for thread in syncers.threads.drain(..) {
            // If a thread panicked, its file has no entry, and `commit` reports the file as unfinished.
            let _ = thread.join();
        }
    }

    /// Makes files and directories durable, then acknowledges the checkpoint by its marker. Every file has to be finished.
    pub(super) fn commit(
        mut self,
        orders: &mut SaveTarget,
        content: &str,
        metadata: Map<String, Value>,
    ) -> Result<(Unit, UnitLock, Marker)> {
        self.settle();
        let files = {
            let mut state = self.shared.state();
            if let Some(failure) = state.failure.take() {
                return Err(failure);
            }
            let mut files = Vec::with_capacity(state.files.len());
            for (name, entry) in std::mem::take(&mut state.files) {
                files.push(entry.ok_or_else(|| Error::Option {
                    what: format!("{name:?} was begun and never finished"),
                })?);
            }
            files
        };
        sync_dirs(&self.entry.files())?;
        sync_dir(self.entry.path())?;
        let part = CheckpointPart {
            content: content.to_owned(),
            metadata,
            superseded: std::mem::take(&mut orders.superseded),
            files,
        };
        part.check().map_err(|what| Error::Option { what })?;
        if orders.world_size == 1 && orders.attempt.is_empty() {
            orders.attempt = super::manifest::CheckpointManifest::new_attempt()?;
        }
        let marker = Marker::new(orders, part);
        self.entry.acknowledge(&marker.to_bytes())?;
        self.committed = true;
        let owner = self.owner.take().ok_or_else(|| Error::Option {
            what: "committed twice".to_owned(),
        })?;
        Ok((self.entry.clone(), owner, marker))
    }
}

impl Drop for Draft {
    fn drop(&mut self) {
        self.settle();
        if !self.committed {
            // If this fails, the next recovery removes the directory, since it was never acknowledged.
            let _ = self.entry.remove();
        }
    }
}

fn sync_all(receiver: &Mutex<Receiver<Written>>, shared: &Shared) {
    loop {
        let next = receiver.lock().unwrap_or_else(|e| e.into_inner()).recv();
        let Ok(written) = next else { return };
        // A failed fsync cannot be retried: the whole draft fails, and the caller saves again into new files.
        let synced = written.file.sync_all();
        let mut state = shared.state();
        match synced {
            Ok(()) => {
                state
                    .files
                    .insert(written.entry.name.clone(), Some(written.entry));
            }
            Err(error) => {
                state
                    .failure
                    .get_or_insert(io_error(&written.path, "fsync", error));
            }
        }
    }
}

fn send(queue: &SyncSender<Written>, written: Written) -> Result<()> {
    queue.send(written).map_err(|_| Error::Cancelled {
        what: "a file was on disk".to_owned(),
    })
}

/// A file of a draft. It is checksummed while it is written.
#[derive(Debug)]
pub struct DraftFile {
    file: File,
    path: PathBuf,
    name: String,
    bytes: u64,
    /// Offset up to which write-back has been started.
    started: u64,
    crc32c: u32,
}

impl DraftFile {
    /// Bytes written so far.
    pub fn written(&self) -> u64 {
        self.bytes
    }

    /// Converts an error of a write to this file into one that names the file.
    pub fn explain(&self, error: io::Error) -> Error {
        io_error(&self.path, "write", error)
    }
}

impl Write for DraftFile {
    fn write(&mut self, buf: &[u8]) -> io::Result<usize> {
        // Writes at most `COPY_BYTES` at a time, so that the data is still in the CPU cache when it is checksummed.
        let piece = buf.get(..COPY_BYTES).unwrap_or(buf);
        let written = self.file.write(piece)?;
        self.crc32c = crc32c::crc32c_append(self.crc32c, piece.get(..written).unwrap_or_default());
        self.bytes += written as u64;
        let fresh = self.bytes - self.started;
        if fresh >= WRITEBACK_BYTES {
            advice::wont_need(&self.file, self.started, NonZeroU64::new(fresh));
            self.started = self.bytes;
        }
        Ok(written)
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

/// A writer that counts and checksums the bytes, and keeps none.
#[derive(Debug, Default)]
pub(crate) struct Sum {
    pub(super) bytes: u64,
    pub(crate) crc32c: u32,
}

impl Write for Sum {
    fn write(&mut self, buf: &[u8]) -> io::Result<usize> {
        self.crc32c = crc32c::crc32c_append(self.crc32c, buf);
        self.bytes += buf.len() as u64;
        Ok(buf.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

/// Copies all of a file into `to`.
pub(super) fn copy(
    mut from: &File,
    path: &Path,
    to: &mut impl Write,
    cancel: &Cancel,
) -> Result<()> {
    let mut buffer = vec![0; COPY_BYTES];
    loop {
        if cancel.is_cancelled() {
            return Err(Error::Cancelled {
                what: format!("{} was copied", path.display()),
            });
        }
        let read = match from.read(&mut buffer) {
            Ok(0) => return Ok(()),
            Ok(read) => read,
            Err(error) if error.kind() == io::ErrorKind::Interrupted => continue,
            Err(error) => return Err(io_error(path, "read", error)),
        };
        to.write_all(buffer.get(..read).unwrap_or_default())
            .map_err(|error| io_error(path, "copy", error))?;
    }
}

/// Returns the names and paths of the files below a directory, sorted by name.
fn files_below(root: &Path) -> Result<Vec<(String, PathBuf)>> {
    let mut files = Vec::new();
    let mut left = vec![(String::new(), root.to_path_buf())];
    while let Some((prefix, dir)) = left.pop() {
        let entries = std::fs::read_dir(&dir).map_err(|error| io_error(&dir, "list", error))?;
        for entry in entries {
            let entry = entry.map_err(|error| io_error(&dir, "list", error))?;
            let path = entry.path();
            let refuse = |why: &str| Error::Option {
                what: format!("{} {why}", path.display()),
            };
            let name = entry
                .file_name()
                .into_string()
                .map_err(|_| refuse("has a name that is not UTF-8"))?;
            let name = format!("{prefix}{name}");
            let kind = entry
                .file_type()
                .map_err(|error| io_error(&path, "look at", error))?;
            if kind.is_dir() {
                left.push((format!("{name}/"), path));
            } else if std::fs::metadata(&path).is_ok_and(|meta| meta.is_file()) {
                name::check(&name).map_err(|what| Error::Option { what })?;
                files.push((name, path));
            } else {
                return Err(refuse(
                    "is neither a file nor a directory: it cannot be part of a checkpoint",
                ));
            }
        }
    }
    files.sort();
    Ok(files)
}

/// Fsyncs a directory and all below it, so that the names of their files are durable.
fn sync_dirs(dir: &Path) -> Result<()> {
    make_dirs(dir)?;
    for entry in std::fs::read_dir(dir).map_err(|error| io_error(dir, "list", error))? {
        let entry = entry.map_err(|error| io_error(dir, "list", error))?;
        if entry.file_type().is_ok_and(|kind| kind.is_dir()) {
            sync_dirs(&entry.path())?;
        }
    }
    Ok(sync_dir(dir)?)
}
