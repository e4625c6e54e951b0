//! Which checkpoints of a run go once a newer one is complete, and how they go.
//!
//! Only checkpoints whose names differ from the new one's in nothing but their number are looked at, and of those only
//! complete ones of lower steps: never the newest N, never one that is pinned, never one that is being read on this host.
//! A tombstone with the manifest's content is written before the manifest goes, so a removal that a crash cuts short is
//! finished by the next one. Nothing is ever deleted that no manifest names.

use super::drain::find;
use super::manifest::{MANIFEST_MAX_BYTES, MANIFEST_NAME, Manifest, PIN_NAME, PartManifest};
use super::name::{Place, family_of, step_of};
use super::{Result, reading};
use crate::{Put, Store};
use std::collections::BTreeSet;
use std::path::Path;

/// What is left of a manifest while its files are being deleted.
const TOMBSTONE_NAME: &str = "forebay-checkpoint.removed";

/// Removes what is too much once the checkpoint at `place` is complete, and returns the names.
pub(super) fn retire(store: &Store, place: &Place, keep: u32, area: &Path) -> Result<Vec<String>> {
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
    // Nothing goes unless what replaces it is there, and can be read.
    if !matches!(find(store, place)?, Some((_, Ok(_)))) {
        return Ok(Vec::new());
    }
    let mut kept = 0;
    let mut surplus = Vec::new();
    for (_, name) in siblings.into_iter().rev() {
        let there: Vec<String> = store
            .list_dir(&name)?
            .objects
            .into_iter()
            .map(|object| object.key)
            .collect();
        let sibling = Place {
            prefix: place.prefix.clone(),
            name,
        };
        let has = |below: &str| there.contains(&sibling.key(below));
        if has(MANIFEST_NAME) {
            // One with a damaged manifest cannot be loaded: it counts as none, and stays for somebody to look at.
            if kept < keep.max(1) {
                let is_good = matches!(find(store, &sibling), Ok(Some((_, Ok(_)))));
                kept += u32::from(is_good);
            } else if !has(PIN_NAME) {
                surplus.push(sibling);
            }
        } else if has(TOMBSTONE_NAME) {
            finish(store, &sibling)?;
        }
    }
    let mut removed = Vec::new();
    // The one that was just saved is the newest of them and good, so it is none of these; higher steps were not looked at.
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

/// Removes a checkpoint; false if it has no manifest that can be read.
fn remove(store: &Store, place: &Place) -> Result<bool> {
    let Some((_, Ok(manifest))) = find(store, place)? else {
        return Ok(false);
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

/// Deletes what the tombstone names, and the tombstone last.
fn finish(store: &Store, place: &Place) -> Result<()> {
    let key = place.key(TOMBSTONE_NAME);
    let bytes = match store.get(&key, MANIFEST_MAX_BYTES) {
        Err(crate::Error::NotFound { .. }) => return Ok(()),
        other => other?,
    };
    if let Ok(manifest) = Manifest::parse(&bytes, &key) {
        for key in keys(place, &manifest) {
            store.delete(&key)?;
        }
    }
    store.delete(&key)?;
    tidy(place);
    Ok(())
}

/// Deletes the files of a manifest that was replaced, but for those that the new one has as well. What cannot be deleted stays
/// without harm.
pub(super) fn remove_data(store: &Store, place: &Place, old: &Manifest, new: Option<&Manifest>) {
    let kept = new.map_or_else(BTreeSet::new, |new| keys(place, new).into_iter().collect());
    for key in keys(place, old) {
        if !kept.contains(&key) {
            let _ = store.delete(&key);
        }
    }
    tidy(place);
}

/// The keys of all that a manifest speaks of.
fn keys(place: &Place, manifest: &Manifest) -> Vec<String> {
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

/// Directories that nothing is in any more, where a store has such.
fn tidy(place: &Place) {
    if let Ok(prefix) = place.prefix.local_path() {
        remove_empty(&prefix.join(&place.name), 64);
    }
}

/// Only ever removes what is empty.
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
