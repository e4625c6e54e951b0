//! Reads checkpoints: from a copy on the fast disk if there is one, otherwise from the store.
//!
//! The checksum of every file is verified before a read of the whole file returns.

use super::error::io_error;
use super::manifest::{CheckpointManifest, FileEntry, MANIFEST_MAX_BYTES, MANIFEST_NAME};
use super::marker::Marker;
use super::name::CheckpointPath;
use super::reading::{self, ReadingLock};
use super::{Error, Result, draft};
use crate::unit::{Unit, UnitLock, UnitState};
use forebay_store::{
    AtomicFile, Cancel, Durability, Location, Object, Store, StoreOptions, for_each_parallel,
};
use std::io::{self, Read, Write};
use std::os::unix::fs::FileExt;
use std::path::Path;
use std::time::Duration;

/// Bytes of one range request.
const RANGE_BYTES: usize = 8 << 20;
/// Range requests in flight at once for a file.
const RANGES_AT_ONCE: usize = 8;
/// Interval at which a reader tries again to lock a checkpoint that is being removed.
const REMOVAL: Duration = Duration::from_millis(20);

/// A complete checkpoint, open for reading. If it was opened with a staging area, retention on this host does not remove the
/// checkpoint as long as this value exists.
#[derive(Debug)]
pub struct Checkpoint {
    place: CheckpointPath,
    manifest: CheckpointManifest,
    local: Option<Local>,
    store: Option<Store>,
    #[expect(dead_code, reason = "held for its lock")]
    reading: Option<ReadingLock>,
}

#[derive(Debug)]
struct Local {
    entry: Unit,
    #[expect(dead_code, reason = "held for its flock")]
    lock: UnitLock,
    /// Whether this is the only copy: the checkpoint is not uploaded yet.
    is_only: bool,
}

impl Checkpoint {
    /// Opens a checkpoint. If `area` has a copy that is acknowledged and not uploaded yet, that copy is opened. Otherwise the
    /// store's checkpoint is opened, and its files are read from the area's copy if both are the same.
    pub fn open(location: &Location, options: &StoreOptions, area: Option<&Path>) -> Result<Self> {
        let place = CheckpointPath::of(location)?;
        let copies = match area {
            Some(area) => copies_of(area, &place)?,
            None => Vec::new(),
        };
        // The copy that was staged last is uploaded last, so it is the current checkpoint.
        if let Some((entry, lock, manifest, UnitState::Staged)) =
            copies.last().map(|(e, m, s)| (e, e.read(), m, s))
            && let Ok(Some(lock)) = lock
        {
            let local = Some(Local {
                entry: entry.clone(),
                lock,
                is_only: true,
            });
            return Ok(Self {
                manifest: manifest.clone(),
                local,
                store: None,
                reading: None,
                place,
            });
        }
        let reading = match area {
            Some(area) if area.is_dir() => loop {
                match reading::share(area, &place)? {
                    Some(lock) => break Some(lock),
                    None => std::thread::sleep(REMOVAL),
                }
            },
            _ => None,
        };
        let store = Store::open(&place.prefix, options)?;
        let Some((_, manifest)) = CheckpointManifest::find(&store, &place)? else {
            // A HEAD request does not tell a missing bucket from a missing object; a GET request does.
            return Err(
                match store.get(&place.key(MANIFEST_NAME), MANIFEST_MAX_BYTES) {
                    Ok(_) | Err(forebay_store::Error::NotFound { .. }) => Error::Missing {
                        place: place.location(),
                        hint: None,
                    },
                    Err(error) => error.into(),
                },
            );
        };
        let manifest = manifest?;
        let mut local = None;
        for (entry, copy, _) in copies {
            if copy.is_same(&manifest)
                && let Some(lock) = entry.read()?
            {
                local = Some(Local {
                    entry,
                    lock,
                    is_only: false,
                });
            }
        }
        Ok(Self {
            place,
            manifest,
            local,
            store: Some(store),
            reading,
        })
    }

    /// Returns the location.
    pub fn location(&self) -> String {
        self.place.location()
    }

    /// Returns the manifest.
    pub fn manifest(&self) -> &CheckpointManifest {
        &self.manifest
    }

    /// Whether files are read from a copy on the fast disk.
    pub fn is_local(&self) -> bool {
        self.local.is_some()
    }

    /// Reads a file of a rank's part into `buf`, whose length has to be the file's size.
    pub fn read(&self, rank: u32, file: &FileEntry, buf: &mut [u8], cancel: &Cancel) -> Result<()> {
        if buf.len() as u64 != file.bytes {
            return Err(Error::Option {
                what: format!("{} has {} bytes", file.name, file.bytes),
            });
        }
        if let Some(local) = &self.local {
            match self.read_local(local, file, buf, cancel) {
                // The copy is damaged, but the store has the file too: read it from there.
                Err(Error::Corrupt { .. }) if !local.is_only => {}
                other => return other,
            }
        }
        let (store, object) = self.object(rank, file)?;
        let crc32c = self.read_store(store, &object, file, 0, buf, cancel)?;
        self.compare(file, file.bytes, crc32c)
    }

    /// Reads the bytes of a file from `offset` on into `buf`. The size of the file is compared; the checksum, which is that of
    /// the whole file, is not.
    pub fn read_range(
        &self,
        rank: u32,
        file: &FileEntry,
        offset: u64,
        buf: &mut [u8],
        cancel: &Cancel,
    ) -> Result<()> {
        let end = offset.checked_add(buf.len() as u64);
        if end.is_none_or(|end| end > file.bytes) {
            let why = format!(
                "it has {} bytes, and {} from byte {offset} on are wanted",
                file.bytes,
                buf.len()
            );
            return Err(self.corrupt(file, why));
        }
        if let Some(local) = &self.local {
            match self.read_local_range(local, file, offset, buf) {
                Err(Error::Corrupt { .. }) if !local.is_only => {}
                other => return other,
            }
        }
        let (store, object) = self.object(rank, file)?;
        self.read_store(store, &object, file, offset, buf, cancel)
            .map(drop)
    }

    /// Writes a file of a rank's part to `path` atomically.
    pub fn export(
        &self,
        rank: u32,
        file: &FileEntry,
        path: &Path,
        cancel: &Cancel,
        progress: &dyn Fn(u64),
    ) -> Result<()> {
        if let Some(parent) = path.parent() {
            std::fs::create_dir_all(parent)
                .map_err(|error| io_error(parent, "create the directory", error))?;
        }
        if let Some(local) = &self.local {
            match self.export_local(local, file, path, cancel) {
                Err(Error::Corrupt { .. }) if !local.is_only => {}
                other => {
                    other?;
                    progress(file.bytes);
                    return Ok(());
                }
            }
        }
        let (store, object) = self.object(rank, file)?;
        let transfer = forebay_store::Transfer {
            crc32c: Some(file.crc32c),
            progress,
            ..forebay_store::Transfer::new(cancel)
        };
        match store.download_file(&object.key, path, &transfer) {
            Ok(_) => Ok(()),
            Err(forebay_store::Error::Checksum { .. }) => {
                Err(self.corrupt(file, "its bytes are not what was saved".to_owned()))
            }
            Err(error) => Err(self.explained(error, file)),
        }
    }

    /// Reads every file, compares sizes and checksums, and returns one error for each damaged or missing file. `progress` is
    /// called with the number of bytes read since the previous call.
    pub fn verify(&self, cancel: &Cancel, progress: &dyn Fn(u64)) -> Result<Vec<Error>> {
        let mut found = Vec::new();
        let mut piece = Vec::new();
        for (rank, part) in (0_u32..).zip(&self.manifest.parts) {
            for file in &part.files {
                match self.verify_file(rank, file, &mut piece, cancel, progress) {
                    Err(error @ (Error::Corrupt { .. } | Error::Missing { .. })) => {
                        found.push(error)
                    }
                    other => other?,
                }
            }
        }
        Ok(found)
    }

    fn verify_file(
        &self,
        rank: u32,
        file: &FileEntry,
        piece: &mut Vec<u8>,
        cancel: &Cancel,
        progress: &dyn Fn(u64),
    ) -> Result<()> {
        if let Some(local) = self.local.as_ref().filter(|local| local.is_only) {
            let mut sum = draft::Sum::default();
            let path = local.entry.file(&file.name);
            let opened = forebay_shard::storage::open_file(&path)
                .map_err(|error| io_error(&path, "open", error))?;
            draft::copy(&opened, &path, &mut sum, cancel)?;
            progress(file.bytes);
            return self.compare(file, sum.bytes, sum.crc32c);
        }
        let (store, object) = self.object(rank, file)?;
        let (mut offset, mut crc32c) = (0, 0);
        while offset < file.bytes {
            stop_if(cancel, &self.place)?;
            let length = (file.bytes - offset).min(RANGE_BYTES as u64);
            piece.resize(length as usize, 0);
            store
                .read_at_if(&object, offset, piece)
                .map_err(|error| self.explained(error, file))?;
            crc32c = crc32c::crc32c_append(crc32c, piece);
            offset += length;
            progress(length);
        }
        self.compare(file, file.bytes, crc32c)
    }

    fn read_local(
        &self,
        local: &Local,
        file: &FileEntry,
        buf: &mut [u8],
        cancel: &Cancel,
    ) -> Result<()> {
        let path = local.entry.file(&file.name);
        let mut opened = forebay_shard::storage::open_file(&path)
            .map_err(|error| self.unopened(file, &path, error))?;
        let mut crc32c = 0;
        for piece in buf.chunks_mut(RANGE_BYTES / 8) {
            stop_if(cancel, &self.place)?;
            opened
                .read_exact(piece)
                .map_err(|error| match error.kind() {
                    io::ErrorKind::UnexpectedEof => {
                        self.corrupt(file, format!("it is shorter than {} bytes", file.bytes))
                    }
                    _ => io_error(&path, "read", error),
                })?;
            crc32c = crc32c::crc32c_append(crc32c, piece);
        }
        let more = opened
            .read(&mut [0])
            .map_err(|error| io_error(&path, "read", error))?;
        self.compare(file, file.bytes + more as u64, crc32c)
    }

    fn export_local(
        &self,
        local: &Local,
        file: &FileEntry,
        path: &Path,
        cancel: &Cancel,
    ) -> Result<()> {
        let source = local.entry.file(&file.name);
        let opened = forebay_shard::storage::open_file(&source)
            .map_err(|error| self.unopened(file, &source, error))?;
        let mut made = Both {
            sum: draft::Sum::default(),
            file: AtomicFile::create(path)?.with_early_writeback(),
        };
        draft::copy(&opened, &source, &mut made, cancel)?;
        self.compare(file, made.sum.bytes, made.sum.crc32c)?;
        Ok(made.file.commit(Durability::Synced)?)
    }

    fn unopened(&self, file: &FileEntry, path: &Path, error: io::Error) -> Error {
        match error.kind() {
            io::ErrorKind::NotFound => self.corrupt(file, "it is not there".to_owned()),
            _ => io_error(path, "open", error),
        }
    }

    /// Returns the store, and the object in it that holds the file.
    fn object(&self, rank: u32, file: &FileEntry) -> Result<(&Store, Object)> {
        let Some(store) = &self.store else {
            return Err(self.corrupt(file, "it is in no store yet".to_owned()));
        };
        let key = self.place.key(&self.manifest.key(rank, &file.name));
        match store.head(&key)? {
            None => Err(self.corrupt(file, "it is not there".to_owned())),
            Some(object) if object.len != file.bytes => Err(self.corrupt(
                file,
                format!("it has {} bytes, and {} were saved", object.len, file.bytes),
            )),
            Some(object) => Ok((store, object)),
        }
    }

    fn read_local_range(
        &self,
        local: &Local,
        file: &FileEntry,
        offset: u64,
        buf: &mut [u8],
    ) -> Result<()> {
        let path = local.entry.file(&file.name);
        let opened = forebay_shard::storage::open_file(&path)
            .map_err(|error| self.unopened(file, &path, error))?;
        let held = opened.metadata().map_or(0, |meta| meta.len());
        if held != file.bytes {
            let why = format!("it has {held} bytes, and {} were saved", file.bytes);
            return Err(self.corrupt(file, why));
        }
        opened
            .read_exact_at(buf, offset)
            .map_err(|error| io_error(&path, "read", error))
    }

    /// Reads the bytes from `start` on, in ranges at the same time, and returns their checksum.
    fn read_store(
        &self,
        store: &Store,
        object: &Object,
        file: &FileEntry,
        start: u64,
        buf: &mut [u8],
        cancel: &Cancel,
    ) -> Result<u32> {
        let count = buf.len().div_ceil(RANGE_BYTES);
        let mut sums = vec![(0_u32, 0_usize); count];
        let ranges = buf.chunks_mut(RANGE_BYTES).zip(&mut sums).enumerate();
        let read: Result<()> = for_each_parallel(ranges, RANGES_AT_ONCE, |(at, (range, sum))| {
            stop_if(cancel, &self.place)?;
            store
                .read_at_if(object, start + (at * RANGE_BYTES) as u64, range)
                .map_err(|error| self.explained(error, file))?;
            *sum = (crc32c::crc32c(range), range.len());
            Ok(())
        });
        read?;
        let sums = sums.into_iter();
        Ok(sums.fold(0, |sum, (next, len)| crc32c::crc32c_combine(sum, next, len)))
    }

    fn compare(&self, file: &FileEntry, bytes: u64, crc32c: u32) -> Result<()> {
        if bytes != file.bytes {
            return Err(self.corrupt(
                file,
                format!("it has {bytes} bytes, and {} were saved", file.bytes),
            ));
        }
        if crc32c != file.crc32c {
            let why = format!(
                "its CRC32C is {crc32c:08x}, that of what was saved is {:08x}",
                file.crc32c
            );
            return Err(self.corrupt(file, why));
        }
        Ok(())
    }

    fn corrupt(&self, file: &FileEntry, why: String) -> Error {
        Error::Corrupt {
            place: self.place.location(),
            file: file.name.clone(),
            why,
        }
    }

    /// Converts an error of the store about a file that existed a moment ago, so that `NotFound` means removed.
    fn explained(&self, error: forebay_store::Error, file: &FileEntry) -> Error {
        match error {
            forebay_store::Error::NotFound { .. } | forebay_store::Error::Changed { .. } => {
                Error::Missing {
                    place: self.place.location(),
                    hint: Some(format!(
                        " any more: {} was removed or replaced while it was read",
                        file.name
                    )),
                }
            }
            forebay_store::Error::BeyondEnd { .. } => {
                self.corrupt(file, format!("it is shorter than {} bytes", file.bytes))
            }
            forebay_store::Error::Cancelled { .. } => cancelled(&self.place),
            error => error.into(),
        }
    }
}

struct Both {
    sum: draft::Sum,
    file: AtomicFile,
}

impl Write for Both {
    fn write(&mut self, buf: &[u8]) -> io::Result<usize> {
        let written = self.file.write(buf)?;
        self.sum.write(buf.get(..written).unwrap_or_default())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

fn stop_if(cancel: &Cancel, place: &CheckpointPath) -> Result<()> {
    if cancel.is_cancelled() {
        Err(cancelled(place))
    } else {
        Ok(())
    }
}

fn cancelled(place: &CheckpointPath) -> Error {
    Error::Cancelled {
        what: format!("{} was read", place.location()),
    }
}

/// Returns the copies of a checkpoint in the area, the oldest first. Parts of distributed checkpoints are not included.
pub(super) fn copies_of(
    area: &Path,
    place: &CheckpointPath,
) -> Result<Vec<(Unit, CheckpointManifest, UnitState)>> {
    let mut found = Vec::new();
    for (entry, of, manifest, stage) in all_copies(area)? {
        if of == *place {
            found.push((entry, manifest, stage));
        }
    }
    Ok(found)
}

/// Returns the checkpoints in an area that have a single part. Units whose marker cannot be read are skipped.
pub(super) fn all_copies(
    area: &Path,
) -> Result<Vec<(Unit, CheckpointPath, CheckpointManifest, UnitState)>> {
    let mut found = Vec::new();
    for entry in Unit::all(area)?.into_iter().filter(Unit::is_own) {
        let Ok(Some(marker)) = Marker::of(&entry) else {
            continue;
        };
        if marker.world_size == 1
            && let Ok(place) = marker.place()
        {
            let manifest = CheckpointManifest::new(marker.attempt.clone(), vec![marker.part]);
            let stage = entry.stage();
            found.push((entry, place, manifest, stage));
        }
    }
    Ok(found)
}
