//! One staged checkpoint on its way to its destination.
//!
//! Files first, under names that no other attempt has; the manifest last, by a conditional put. So a checkpoint is
//! complete or not there, two that are saved under one name cannot mix, and what is repeated after a crash writes the same
//! bytes to the same keys.
//!
//! A process that replaces a checkpoint deletes the data of the one that was there. So that one must not come back, by a try that
//! is made again or by a rank that is late: each manifest names the attempts that were in its place, and is put on the
//! condition that what was there has not changed since.

use super::error::io_error;
use super::manifest::{
    CheckpointManifest, MANIFEST_MAX_BYTES, MANIFEST_NAME, PartManifest, data_key,
};
use super::marker::Marker;
use super::name::{Place, family_of, step_of};
use super::{Error, Result, draft, retention};
use forebay_staging::unit::Unit;
use forebay_store::{
    Cancel, Limiter, Location, Put, Store, StoreOptions, Transfer, for_each_parallel,
};
use std::collections::BTreeSet;
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

/// Files on their way at once; each goes in parallel parts itself.
const FILES_AT_ONCE: usize = 4;
/// How long a request is tried before the next entry has its turn.
const REQUEST_PATIENCE: Duration = Duration::from_secs(30);
/// Stores that stay open: those of the runs that save at the same time.
const OPEN_STORES: usize = 8;
/// How often a manifest that another process keeps replacing is tried.
const PUBLISH_TRIES: usize = 20;

/// The context of a drain besides the unit.
pub(super) struct DrainContext<'a> {
    pub(super) options: &'a StoreOptions,
    pub(super) stores: &'a OpenStores,
    pub(super) limiter: &'a Limiter,
    pub(super) cancel: &'a Cancel,
    /// Told of bytes that are through, from any thread.
    pub(super) progress: &'a (dyn Fn(u64) + Sync),
    /// Names of files that an earlier try brought there.
    pub(super) done: &'a Mutex<BTreeSet<String>>,
}

/// Stores that are open, the one that was used last at the end. Each has its connections, and what was learned of its bucket:
/// to open one for each of many small checkpoints takes longer than to upload them.
#[derive(Debug, Default)]
pub(super) struct OpenStores(Mutex<Vec<(Location, StoreOptions, Store)>>);

impl OpenStores {
    pub(super) fn open(&self, place: &Location, options: &StoreOptions) -> Result<Store> {
        let mut open = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let found = open
            .iter()
            .position(|(other, with, _)| other == place && with == options);
        let entry = match found {
            Some(at) => open.remove(at),
            None => (place.clone(), options.clone(), Store::open(place, options)?),
        };
        let store = entry.2.clone();
        open.push(entry);
        if open.len() > OPEN_STORES {
            open.remove(0);
        }
        Ok(store)
    }

    /// Closes all: credentials that a store refused are read again.
    pub(super) fn forget(&self) {
        let mut open = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        open.clear();
    }
}

/// How a drain ended.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Drained {
    /// The checkpoint is complete.
    Complete,
    /// This rank's part is there; these ranks' are not yet.
    Waiting(Vec<u32>),
}

/// Uploads an entry to its destination, or as much of it as is possible now.
pub(super) fn drain(entry: &Unit, marker: &Marker, way: &DrainContext<'_>) -> Result<Drained> {
    let place = marker.place()?;
    // Tries go on for ever, here and not within one request: then others have their turn, and errors are reported.
    let mut options = way.options.clone();
    options.retry.give_up_after = options.retry.give_up_after.min(REQUEST_PATIENCE);
    // Ends with the buffer, whatever else its caller stops.
    options.cancel = Some(way.cancel.clone());
    let store = way.stores.open(&place.prefix, &options)?;
    if marker.world_size == 1 {
        let manifest = CheckpointManifest::new(marker.attempt.clone(), vec![marker.part.clone()]);
        if is_there(&store, &place, &manifest, marker.overwrite)? {
            return Ok(Drained::Complete);
        }
        upload(entry, marker, &store, &place, way)?;
        publish(&store, &place, &manifest, marker.overwrite)?;
        return Ok(Drained::Complete);
    }
    let part = PartManifest::new(
        marker.attempt.clone(),
        marker.rank,
        marker.world_size,
        marker.part.clone(),
    );
    let key = place.key(&PartManifest::key(
        &marker.attempt,
        marker.rank,
        marker.world_size,
    ));
    match read_part(&store, &place, marker, marker.rank)? {
        Some(found) if found == part => {}
        Some(_) => {
            // Another content under the same attempt would end in a checkpoint of two.
            return Err(Error::Exists {
                place: format!(
                    "{} (rank {} of attempt {:?})",
                    place.location(),
                    marker.rank,
                    marker.attempt
                ),
            });
        }
        None => {
            if has_been(&store, &place, &marker.attempt)? {
                // Without its files this is a late look at what was complete once.
                if !entry.files().exists() {
                    return Ok(Drained::Complete);
                }
                return Err(Error::Exists {
                    place: format!(
                        "{} (attempt {:?} was complete before, and has been replaced)",
                        place.location(),
                        marker.attempt
                    ),
                });
            }
            upload(entry, marker, &store, &place, way)?;
            store.put(&key, &part.to_bytes(), Put::Always)?;
        }
    }
    // The files are in the store, so the place that they take is free for the next checkpoint.
    entry.remove_files()?;
    join(&store, &place, marker)
}

fn upload(
    entry: &Unit,
    marker: &Marker,
    store: &Store,
    place: &Place,
    way: &DrainContext<'_>,
) -> Result<()> {
    for_each_parallel(marker.part.files.iter(), FILES_AT_ONCE, |file| {
        let done = || way.done.lock().unwrap_or_else(PoisonError::into_inner);
        if done().contains(&file.name) {
            (way.progress)(file.bytes);
            return Ok(());
        }
        let key = data_key(&marker.attempt, marker.rank, marker.world_size, &file.name);
        upload_file(entry, place, store, &place.key(&key), file, way)?;
        done().insert(file.name.clone());
        Ok(())
    })
}

fn upload_file(
    entry: &Unit,
    place: &Place,
    store: &Store,
    key: &str,
    file: &super::FileEntry,
    way: &DrainContext<'_>,
) -> Result<()> {
    // A process that died may have brought it there already.
    let there = store.head(key)?;
    if there.is_some_and(|object| object.len == file.bytes && object.crc32c == Some(file.crc32c)) {
        (way.progress)(file.bytes);
        return Ok(());
    }
    let path = entry.file(&file.name);
    let progress = |bytes| (way.progress)(bytes);
    let transfer = Transfer::new(way.cancel)
        .with_crc32c(Some(file.crc32c))
        .with_limiter(Some(way.limiter))
        .with_progress(&progress);
    match store.upload_file(key, &path, &transfer) {
        Ok(_) => Ok(()),
        Err(forebay_store::Error::Cancelled { .. }) => Err(Error::Cancelled {
            what: format!("{} was in the store", place.location()),
        }),
        Err(error) => {
            // Was it the way, or is it the file itself?
            verify_file(entry, place, file, way.cancel)?;
            Err(error.into())
        }
    }
}

/// Whether a staged file is what was saved.
fn verify_file(
    entry: &Unit,
    place: &Place,
    file: &super::FileEntry,
    cancel: &Cancel,
) -> Result<()> {
    let path = entry.file(&file.name);
    let corrupt = |why: String| Error::Corrupt {
        place: place.location(),
        file: path.display().to_string(),
        why,
    };
    let opened = forebay_shard::open_file(&path).map_err(|error| {
        if error.kind() == std::io::ErrorKind::NotFound {
            corrupt("the staged file is gone".to_owned())
        } else {
            io_error(&path, "open", error)
        }
    })?;
    let mut sum = draft::Sum::default();
    draft::copy(&opened, &path, &mut sum, cancel)?;
    match (sum.bytes == file.bytes, sum.crc32c == file.crc32c) {
        (true, true) => Ok(()),
        (false, _) => Err(corrupt(format!(
            "it has {} bytes, and {} were saved",
            sum.bytes, file.bytes
        ))),
        (true, false) => Err(corrupt(format!(
            "its CRC32C is {:08x}, that of what was saved is {:08x}",
            sum.crc32c, file.crc32c
        ))),
    }
}

/// Whether there is nothing to do any more: this attempt is there or was, or the same content is, saved by whomever. Another
/// one that is not to be replaced is an error.
fn is_there(
    store: &Store,
    place: &Place,
    own: &CheckpointManifest,
    overwrite: bool,
) -> Result<bool> {
    match CheckpointManifest::find(store, place)? {
        Some((_, Ok(found))) if found.is_same(own) || found.has_replaced(&own.attempt) => Ok(true),
        Some((_, Ok(found))) if !overwrite && found.parts == own.parts => Ok(true),
        Some(_) if !overwrite => Err(Error::Exists {
            place: place.location(),
        }),
        _ => Ok(false),
    }
}

/// Whether an attempt was complete here and has been replaced.
fn has_been(store: &Store, place: &Place, attempt: &str) -> Result<bool> {
    let found = CheckpointManifest::find(store, place)?.and_then(|(_, found)| found.ok());
    Ok(found.is_some_and(|found| found.has_replaced(attempt)))
}

/// Makes the checkpoint complete. What it replaces is removed afterwards.
fn publish(
    store: &Store,
    place: &Place,
    manifest: &CheckpointManifest,
    overwrite: bool,
) -> Result<()> {
    let key = place.key(MANIFEST_NAME);
    for _ in 0..PUBLISH_TRIES {
        let found = CheckpointManifest::find(store, place)?;
        let (put, old) = match found {
            None => (Put::IfAbsent, None),
            Some((_, Ok(found))) if found.is_same(manifest) => return Ok(()),
            // It was complete, and is replaced already: what an earlier try brought there again goes.
            Some((_, Ok(found))) if found.has_replaced(&manifest.attempt) => {
                retention::remove_data(store, place, manifest, Some(&found));
                return Ok(());
            }
            Some((_, found)) if !overwrite => {
                // Another process was faster: what exists stays, and ours goes.
                retention::remove_data(store, place, manifest, found.as_ref().ok());
                let is_same = found.is_ok_and(|found| found.parts == manifest.parts);
                return if is_same {
                    Ok(())
                } else {
                    Err(Error::Exists {
                        place: place.location(),
                    })
                };
            }
            Some((object, found)) => (object.etag.map_or(Put::Always, Put::IfMatch), found.ok()),
        };
        let bytes = manifest.replacing(old.as_ref()).to_bytes();
        match store.put(&key, &bytes, put) {
            Ok(_) => {
                if let Some(old) = old {
                    retention::remove_data(store, place, &old, Some(manifest));
                }
                return Ok(());
            }
            Err(
                forebay_store::Error::AlreadyThere { .. }
                | forebay_store::Error::Changed { .. }
                | forebay_store::Error::NotFound { .. },
            ) => {}
            Err(error) => return Err(error.into()),
        }
    }
    Err(Error::Exists {
        place: format!("{} (another writer keeps replacing it)", place.location()),
    })
}

fn read_part(
    store: &Store,
    place: &Place,
    marker: &Marker,
    rank: u32,
) -> Result<Option<PartManifest>> {
    let below = PartManifest::key(&marker.attempt, rank, marker.world_size);
    match store.get(&place.key(&below), MANIFEST_MAX_BYTES) {
        Ok(bytes) => {
            let shown = format!("{}/{below}", place.location());
            PartManifest::parse(&bytes, &shown, &marker.attempt, rank, marker.world_size).map(Some)
        }
        Err(forebay_store::Error::NotFound { .. }) => Ok(None),
        Err(error) => Err(error.into()),
    }
}

/// Publishes the manifest if all ranks' parts are there. Every rank tries; they all write the same checkpoint.
fn join(store: &Store, place: &Place, marker: &Marker) -> Result<Drained> {
    if let Some((_, Ok(found))) = CheckpointManifest::find(store, place)? {
        let is_it = found.attempt == marker.attempt && found.world_size() == marker.world_size;
        if is_it || found.has_replaced(&marker.attempt) {
            return Ok(Drained::Complete);
        }
    }
    let mut parts = Vec::new();
    let mut missing = Vec::new();
    for rank in 0..marker.world_size {
        match read_part(store, place, marker, rank)? {
            Some(found) => parts.push(found.part),
            None => missing.push(rank),
        }
    }
    if missing.is_empty() {
        let manifest = CheckpointManifest::new(marker.attempt.clone(), parts);
        publish(store, place, &manifest, marker.overwrite)?;
        return Ok(Drained::Complete);
    }
    if let Some(newer) = newer_than(store, place)? {
        return Err(Error::Abandoned {
            place: place.location(),
            why: format!(
                "the parts of ranks {missing:?} are missing, and the newer {newer} is complete"
            ),
        });
    }
    Ok(Drained::Waiting(missing))
}

/// A complete checkpoint of the same run with a higher step.
fn newer_than(store: &Store, place: &Place) -> Result<Option<String>> {
    let Some(step) = step_of(&place.name) else {
        return Ok(None);
    };
    for name in store.list_dir("")?.dirs {
        if family_of(&name) == family_of(&place.name) && step_of(&name) > Some(step) {
            let other = Place {
                prefix: place.prefix.clone(),
                name,
            };
            if store.head(&other.key(MANIFEST_NAME))?.is_some() {
                return Ok(Some(other.name));
            }
        }
    }
    Ok(None)
}
