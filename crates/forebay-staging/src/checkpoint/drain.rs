//! Uploads one staged checkpoint to its destination.
//!
//! The files are uploaded first, under keys that no other attempt uses; the manifest last, by a conditional put. So a
//! checkpoint is either complete or absent, two attempts under one name cannot mix, and a retry after a crash writes the same
//! bytes to the same keys.
//!
//! Replacing a checkpoint deletes the data of the old one, so a retry or a late rank must not publish the old manifest again.
//! Each manifest lists the attempts that it replaced, and its put fails if the existing manifest has changed since it was read.
//! It also lists those that its ranks had staged before it and that were never complete, such as a save that failed on one
//! rank: their data is deleted, and the ranks that still have parts of them have nothing left to upload.

use super::error::io_error;
use super::manifest::{
    CheckpointManifest, MANIFEST_MAX_BYTES, MANIFEST_NAME, PartManifest, data_key,
};
use super::marker::Marker;
use super::name::{CheckpointPath, family_of, step_of};
use super::{Error, Result, draft, retention};
use crate::unit::Unit;
use forebay_store::{
    Cancel, Limiter, Location, Put, Store, StoreOptions, Transfer, for_each_parallel,
};
use std::collections::BTreeSet;
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

/// Files uploaded at once. Large files are themselves uploaded in parallel parts.
const FILES_AT_ONCE: usize = 4;
/// How long a request is retried before this try ends and the next checkpoint has its turn.
const REQUEST_PATIENCE: Duration = Duration::from_secs(30);
/// Maximum number of open stores: enough for the runs that save at the same time.
const OPEN_STORES: usize = 8;
/// Maximum tries to publish a manifest that other processes keep replacing.
const PUBLISH_TRIES: usize = 20;

/// Inputs of a drain besides the unit and its marker.
pub(super) struct DrainContext<'a> {
    pub(super) options: &'a StoreOptions,
    pub(super) stores: &'a OpenStores,
    pub(super) limiter: &'a Limiter,
    pub(super) cancel: &'a Cancel,
    /// Called with the number of bytes uploaded since the previous call, from any thread.
    pub(super) progress: &'a (dyn Fn(u64) + Sync),
    /// Names of files that this process has uploaded already, also in earlier tries.
    pub(super) done: &'a Mutex<BTreeSet<String>>,
}

/// Open stores, the most recently used last. A store keeps its connections and what it learned about its bucket; opening one
/// for each of many small checkpoints would take longer than their uploads.
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

    /// Closes all stores, so that credentials are read again after a store refused them.
    pub(super) fn forget(&self) {
        let mut open = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        open.clear();
    }
}

/// The result of a drain.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Drained {
    /// The checkpoint is complete.
    Complete,
    /// This rank's part is uploaded; the parts of these ranks are not.
    Waiting {
        missing: Vec<u32>,
        /// Whether another attempt is complete at the destination.
        is_beside_complete: bool,
    },
}

/// Uploads a staged checkpoint, or one rank's part of it, and publishes the manifest once all parts are there.
pub(super) fn drain(entry: &Unit, marker: &Marker, way: &DrainContext<'_>) -> Result<Drained> {
    let place = marker.place()?;
    // The queue retries without end, so a single request gives up early: other checkpoints get their turn, and errors are
    // reported.
    let mut options = way.options.clone();
    options.retry.give_up_after = options.retry.give_up_after.min(REQUEST_PATIENCE);
    // Requests are canceled when the uploader closes, not by the caller's own cancel token.
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
            // Accepting other content under the same attempt would mix two checkpoints.
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
            let there = CheckpointManifest::find(&store, &place)?;
            let there = there.and_then(|(_, found)| found.ok());
            if there
                .as_ref()
                .is_some_and(|found| found.supersedes(&marker.attempt))
            {
                retention::remove_attempt(&store, &place, &marker.attempt);
                return Ok(Drained::Complete);
            }
            if there.is_some_and(|found| found.has_replaced(&marker.attempt)) {
                // The local files are gone, so this part was uploaded and the checkpoint was complete: nothing is left to do.
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
    // The files are in the store, so their space in the area is free for the next checkpoint.
    entry.remove_files()?;
    join(&store, &place, marker)
}

fn upload(
    entry: &Unit,
    marker: &Marker,
    store: &Store,
    place: &CheckpointPath,
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
    place: &CheckpointPath,
    store: &Store,
    key: &str,
    file: &super::FileEntry,
    way: &DrainContext<'_>,
) -> Result<()> {
    // A process that died may have uploaded the file already.
    let there = store.head(key)?;
    if there.is_some_and(|object| object.len == file.bytes && object.crc32c == Some(file.crc32c)) {
        (way.progress)(file.bytes);
        return Ok(());
    }
    let path = entry.file(&file.name);
    let progress = |bytes| (way.progress)(bytes);
    let transfer = Transfer {
        crc32c: Some(file.crc32c),
        limiter: Some(way.limiter),
        progress: &progress,
        ..Transfer::new(way.cancel)
    };
    match store.upload_file(key, &path, &transfer) {
        Ok(_) => Ok(()),
        Err(forebay_store::Error::Cancelled { .. }) => Err(Error::Cancelled {
            what: format!("{} was in the store", place.location()),
        }),
        Err(error) => {
            // Find out whether the upload failed because the staged file itself is damaged.
            verify_file(entry, place, file, way.cancel)?;
            Err(error.into())
        }
    }
}

/// Checks that a staged file has the size and checksum that were saved.
fn verify_file(
    entry: &Unit,
    place: &CheckpointPath,
    file: &super::FileEntry,
    cancel: &Cancel,
) -> Result<()> {
    let path = entry.file(&file.name);
    let corrupt = |why: String| Error::Corrupt {
        place: place.location(),
        file: path.display().to_string(),
        why,
    };
    let opened = forebay_shard::storage::open_file(&path).map_err(|error| {
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

/// Returns true if nothing is left to do: this attempt is published or was replaced, or (unless overwriting) a checkpoint with
/// the same content is published. Any other checkpoint that must not be replaced is an error.
fn is_there(
    store: &Store,
    place: &CheckpointPath,
    own: &CheckpointManifest,
    overwrite: bool,
) -> Result<bool> {
    match CheckpointManifest::find(store, place)? {
        Some((_, Ok(found))) if found.is_same(own) || found.has_replaced(&own.attempt) => Ok(true),
        Some((_, Ok(found))) if found.supersedes(&own.attempt) => {
            retention::remove_attempt(store, place, &own.attempt);
            Ok(true)
        }
        Some((_, Ok(found))) if !overwrite && found.has_content_of(own) => Ok(true),
        Some(_) if !overwrite => Err(Error::Exists {
            place: place.location(),
        }),
        _ => Ok(false),
    }
}

/// Publishes the manifest, which makes the checkpoint complete, and then deletes the data of the one it replaces.
fn publish(
    store: &Store,
    place: &CheckpointPath,
    manifest: &CheckpointManifest,
    overwrite: bool,
) -> Result<()> {
    let key = place.key(MANIFEST_NAME);
    for _ in 0..PUBLISH_TRIES {
        let found = CheckpointManifest::find(store, place)?;
        let (put, old) = match found {
            None => (Put::IfAbsent, None),
            Some((_, Ok(found))) if found.is_same(manifest) => return Ok(()),
            // This attempt was complete and has been replaced, or a later one was faster: delete the data that it uploaded.
            Some((_, Ok(found)))
                if found.has_replaced(&manifest.attempt) || found.supersedes(&manifest.attempt) =>
            {
                retention::remove_data(store, place, manifest, Some(&found));
                return Ok(());
            }
            Some((_, found)) if !overwrite => {
                // Another process was faster: its checkpoint stays, and the data of this attempt is deleted.
                retention::remove_data(store, place, manifest, found.as_ref().ok());
                let is_same = found.is_ok_and(|found| found.has_content_of(manifest));
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
                for earlier in manifest.superseded() {
                    if manifest.supersedes(earlier) {
                        retention::remove_attempt(store, place, earlier);
                    }
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
    place: &CheckpointPath,
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

/// Publishes the manifest if all ranks' parts are uploaded. Every rank tries; all of them write the same manifest.
fn join(store: &Store, place: &CheckpointPath, marker: &Marker) -> Result<Drained> {
    let mut is_beside_complete = false;
    if let Some((_, Ok(found))) = CheckpointManifest::find(store, place)? {
        is_beside_complete = true;
        let is_it = found.attempt == marker.attempt && found.world_size() == marker.world_size;
        if is_it || found.has_replaced(&marker.attempt) {
            return Ok(Drained::Complete);
        }
        // No rank can publish this attempt any more.
        if found.supersedes(&marker.attempt) {
            retention::remove_attempt(store, place, &marker.attempt);
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
    Ok(Drained::Waiting {
        missing,
        is_beside_complete,
    })
}

/// Returns the name of a complete checkpoint of the same run with a higher step.
fn newer_than(store: &Store, place: &CheckpointPath) -> Result<Option<String>> {
    let Some(step) = step_of(&place.name) else {
        return Ok(None);
    };
    for name in store.list_dir("")?.dirs {
        if family_of(&name) == family_of(&place.name) && step_of(&name) > Some(step) {
            let other = CheckpointPath {
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
