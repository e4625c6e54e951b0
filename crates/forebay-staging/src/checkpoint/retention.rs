//! Retention: removes old checkpoints of a run once a newer one is complete.
//!
//! Candidates are complete checkpoints of lower steps whose names differ from the new one's only in the number. The newest N,
//! pinned ones, and those that are being read on this host stay. A tombstone with the manifest's content is written before the
//! manifest is deleted, so the next removal finishes one that a crash interrupted. Data without a manifest is removed only if
//! it is of a lower step than all that stay, has not changed for a day, and is not in this host's staging area: its saver must
//! have died.

use super::manifest::{
    CheckpointManifest, DATA_PREFIX, MANIFEST_MAX_BYTES, MANIFEST_NAME, PIN_NAME, PartManifest,
};
use super::marker::Marker;
use super::name::{CheckpointPath, family_of, step_of};
use super::{Result, reading};
use crate::unit::Unit;
use forebay_store::{Object, Put, Store, clean_stale_tree};
use std::collections::BTreeSet;
use std::path::Path;
use std::time::{Duration, SystemTime};

/// Data without a manifest counts as abandoned after this time without a change. Even if its saver still runs, the checkpoint
/// is too old to be kept.
const ABANDONED_AFTER: Duration = Duration::from_secs(24 * 3600);
/// Replaces a manifest while its files are being deleted.
const TOMBSTONE_NAME: &str = "forebay-checkpoint.removed";

/// Removes the checkpoints beyond the newest `keep` once the one at `place` is complete, and returns their names.
pub(super) fn retire(
    store: &Store,
    place: &CheckpointPath,
    keep: u32,
    area: &Path,
) -> Result<Vec<String>> {
    let (Some(step), family) = (step_of(&place.name), family_of(&place.name)) else {
        return Ok(Vec::new());
    };
    let mut siblings: Vec<(u64, String)> = store
        .list_dir("")?
        .dirs
        .into_iter()
        .filter(|name| family_of(name) == family)
        .filter_map(|name| Some((step_of(&name).filter(|other| *other <= step)?, name)))
        .collect();
    siblings.sort_unstable();
    // Nothing is removed unless the new checkpoint exists and its manifest can be read.
    let Some((saved, Ok(_))) = CheckpointManifest::find(store, place)? else {
        return Ok(Vec::new());
    };
    let mut kept = 0;
    let mut surplus = Vec::new();
    let mut incomplete = Vec::new();
    for (_, name) in siblings.into_iter().rev() {
        let there: Vec<String> = store
            .list_dir(&name)?
            .objects
            .into_iter()
            .map(|object| object.key)
            .collect();
        let sibling = CheckpointPath {
            prefix: place.prefix.clone(),
            name,
        };
        let has = |below: &str| there.contains(&sibling.key(below));
        if has(MANIFEST_NAME) {
            // A checkpoint with a damaged manifest cannot be loaded: it does not count as kept, and is left for inspection.
            if kept < keep.max(1) {
                let is_good = matches!(
                    CheckpointManifest::find(store, &sibling),
                    Ok(Some((_, Ok(_))))
                );
                kept += u32::from(is_good);
            } else if !has(PIN_NAME) {
                surplus.push(sibling);
            }
        } else if has(TOMBSTONE_NAME) {
            finish(store, &sibling)?;
        } else if kept >= keep.max(1) {
            incomplete.push(sibling);
        }
    }
    // Ages are measured by the store's clock, not this host's.
    if let Some(now) = saved.modified {
        for sibling in incomplete {
            if !is_staged(area, &sibling)? {
                remove_abandoned(store, &sibling, now)?;
            }
        }
    }
    let mut removed = Vec::new();
    // The checkpoint just saved is the newest here and counts as kept, so it is not in `surplus`; skipping it is a safeguard.
    for sibling in surplus {
        if sibling == *place {
            continue;
        }
        let Some(_alone) = reading::alone(area, &sibling)? else {
            continue;
        };
        if remove(store, &sibling)? {
            removed.push(sibling.name);
        }
    }
    Ok(removed)
}

/// Whether this host's staging area has an acknowledged checkpoint for this place.
fn is_staged(area: &Path, place: &CheckpointPath) -> Result<bool> {
    for entry in Unit::all(area)? {
        // A unit whose marker cannot be read may be for any place.
        match Marker::of(&entry).map(|marker| marker.map(|marker| marker.place())) {
            Ok(None) => {}
            Ok(Some(Ok(found))) if found != *place => {}
            _ => return Ok(true),
        }
    }
    Ok(false)
}

/// Removes the data of a saver that died before it published its manifest. A directory with any other file in it stays as it
/// is.
fn remove_abandoned(store: &Store, place: &CheckpointPath, now: SystemTime) -> Result<()> {
    let is_old = |modified: Option<SystemTime>| {
        let age = modified.and_then(|modified| now.duration_since(modified).ok());
        age.is_some_and(|age| age > ABANDONED_AFTER)
    };
    let data = place.key(DATA_PREFIX);
    let objects = store.list(&place.name)?;
    let is_dead = |object: &Object| object.key.starts_with(&data) && is_old(object.modified);
    if !objects.iter().all(is_dead) {
        return Ok(());
    }
    if let Ok(prefix) = place.prefix.local_path() {
        let newest = newest_dir(&prefix.join(&place.name), 64);
        if !is_old(newest) {
            return Ok(());
        }
        // Removes half-written temporary files, which no listing shows.
        clean_stale_tree(&prefix.join(&place.name))?;
    }
    for object in objects {
        store.delete(&object.key)?;
    }
    tidy(place);
    Ok(())
}

/// Returns when an entry of a directory, or of those below it, was last added or removed.
fn newest_dir(dir: &Path, depth: u32) -> Option<SystemTime> {
    let mut newest = std::fs::symlink_metadata(dir).ok()?.modified().ok()?;
    for entry in std::fs::read_dir(dir).ok()?.flatten() {
        if depth > 0 && entry.file_type().ok()?.is_dir() {
            newest = newest.max(newest_dir(&entry.path(), depth - 1)?);
        }
    }
    Some(newest)
}

/// Removes a checkpoint, or the remains of an interrupted removal; returns false if there is neither.
pub(super) fn remove(store: &Store, place: &CheckpointPath) -> Result<bool> {
    let manifest = match CheckpointManifest::find(store, place)? {
        Some((_, Ok(manifest))) => manifest,
        // A damaged manifest does not say which files are the checkpoint's.
        Some((_, Err(_))) => return Ok(false),
        None => {
            let is_begun = store.head(&place.key(TOMBSTONE_NAME))?.is_some();
            finish(store, place)?;
            return Ok(is_begun);
        }
    };
    store.put(
        &place.key(TOMBSTONE_NAME),
        &manifest.to_bytes(),
        Put::Always,
    )?;
    store.delete(&place.key(MANIFEST_NAME))?;
    finish(store, place)?;
    Ok(true)
}

/// Deletes the files that the tombstone lists, then the tombstone.
fn finish(store: &Store, place: &CheckpointPath) -> Result<()> {
    let key = place.key(TOMBSTONE_NAME);
    let bytes = match store.get(&key, MANIFEST_MAX_BYTES) {
        Err(forebay_store::Error::NotFound { .. }) => return Ok(()),
        other => other?,
    };
    if let Ok(manifest) = CheckpointManifest::parse(&bytes, &key) {
        for key in keys(place, &manifest) {
            store.delete(&key)?;
        }
    }
    store.delete(&key)?;
    tidy(place);
    Ok(())
}

/// Deletes the files of a manifest that was replaced, except those that the new one also lists. A file that cannot be deleted
/// stays, and does no harm.
pub(super) fn remove_data(
    store: &Store,
    place: &CheckpointPath,
    old: &CheckpointManifest,
    new: Option<&CheckpointManifest>,
) {
    let kept = new.map_or_else(BTreeSet::new, |new| keys(place, new).into_iter().collect());
    for key in keys(place, old) {
        if !kept.contains(&key) {
            let _ = store.delete(&key);
        }
    }
    tidy(place);
}

/// Deletes all data of an attempt that is never published. What cannot be deleted stays, and does no harm.
pub(super) fn remove_attempt(store: &Store, place: &CheckpointPath, attempt: &str) {
    let data = place.key(&format!("{DATA_PREFIX}{attempt}"));
    for object in store.list(&data).unwrap_or_default() {
        let _ = store.delete(&object.key);
    }
    tidy(place);
}

/// Returns the keys of all objects that belong to a manifest.
fn keys(place: &CheckpointPath, manifest: &CheckpointManifest) -> Vec<String> {
    let mut keys = Vec::new();
    for (rank, part) in (0_u32..).zip(&manifest.parts) {
        keys.extend(
            part.files
                .iter()
                .map(|file| place.key(&manifest.key(rank, &file.name))),
        );
        if manifest.world_size() > 1 {
            keys.push(place.key(&PartManifest::key(
                &manifest.attempt,
                rank,
                manifest.world_size(),
            )));
        }
    }
    keys
}

/// Removes empty directories of a checkpoint in a local store; object stores have no directories.
fn tidy(place: &CheckpointPath) {
    if let Ok(prefix) = place.prefix.local_path() {
        remove_empty(&prefix.join(&place.name), 64);
    }
}

/// Removes the empty directories of a tree. `remove_dir` refuses all others.
fn remove_empty(dir: &Path, depth: u32) {
    let Ok(entries) = std::fs::read_dir(dir) else {
        return;
    };
    for entry in entries.flatten() {
        if depth > 0 && entry.file_type().is_ok_and(|kind| kind.is_dir()) {
            remove_empty(&entry.path(), depth - 1);
        }
    }
    let _ = std::fs::remove_dir(dir);
}
