//! Lists, pins and removes the checkpoints of a run, and reports those in a staging area.

use super::manifest::{CheckpointManifest, MANIFEST_NAME, PIN_NAME};
use super::marker::Marker;
use super::name::{CheckpointPath, absolute, step_of};
use super::{Error, Result, read, reading, retention};
use crate::unit::{Unit, UnitState};
use forebay_store::{Location, Put, Store, StoreOptions};
use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::time::Duration;

/// A complete checkpoint of a run.
#[derive(Debug, Clone)]
#[non_exhaustive]
pub struct CheckpointEntry {
    /// Its directory or prefix.
    pub location: String,
    /// Its name in the run.
    pub name: String,
    /// The last number in its name; `None` if the name has no number.
    pub step: Option<u64>,
    /// Its manifest, or the error as text if the manifest is damaged.
    pub manifest: std::result::Result<CheckpointManifest, String>,
    /// Whether it is complete at its destination. If not, the staging area holds it until it is uploaded.
    pub is_stored: bool,
    /// Whether the staging area has a copy of its files.
    pub is_staged: bool,
    /// Whether it is pinned. Retention never removes a pinned checkpoint.
    pub is_pinned: bool,
}

/// Returns the complete checkpoints directly below `prefix`: first those without a number, by name, then the others by number.
/// If `area` is given, checkpoints that are acknowledged there and not uploaded yet are included.
pub fn list(
    prefix: &Location,
    options: &StoreOptions,
    area: Option<&Path>,
) -> Result<Vec<CheckpointEntry>> {
    let prefix = run_of(prefix)?;
    let staged = staged_below(&prefix, area)?;
    let store = Store::open(&prefix, options)?;
    let mut found = BTreeMap::new();
    for name in store.list_dir("")?.dirs {
        let place = CheckpointPath {
            prefix: prefix.clone(),
            name,
        };
        let there = store.list_dir(&place.name)?.objects;
        let has = |below: &str| there.iter().any(|object| object.key == place.key(below));
        if !has(MANIFEST_NAME) {
            continue;
        }
        let Some((_, manifest)) = CheckpointManifest::find(&store, &place)? else {
            continue;
        };
        let is_staged = manifest.as_ref().is_ok_and(|manifest| {
            staged
                .get(&place.name)
                .is_some_and(|(copy, _)| copy.is_same(manifest))
        });
        let is_pinned = has(PIN_NAME);
        let manifest = manifest.map_err(|error| error.to_string());
        found.insert(
            place.name.clone(),
            entry(&place, manifest, true, is_staged, is_pinned),
        );
    }
    for (name, (manifest, stage)) in staged {
        // A checkpoint that is staged and not uploaded yet will replace the stored one of the same name, so it is listed
        // instead.
        if stage == UnitState::Staged {
            let is_pinned = found.get(&name).is_some_and(|found| found.is_pinned);
            let place = CheckpointPath {
                prefix: prefix.clone(),
                name,
            };
            found.insert(
                place.name.clone(),
                entry(&place, Ok(manifest), false, true, is_pinned),
            );
        }
    }
    let mut found: Vec<CheckpointEntry> = found.into_values().collect();
    found.sort_by(|a, b| (a.step, &a.name).cmp(&(b.step, &b.name)));
    Ok(found)
}

/// Returns the location of the complete checkpoint directly below `prefix` with the highest number in its name; `None` if no
/// name has a number. A checkpoint that is staged in `area` and not uploaded yet counts, since it is durable. Checkpoints with
/// a damaged manifest are skipped.
pub fn latest(
    prefix: &Location,
    options: &StoreOptions,
    area: Option<&Path>,
) -> Result<Option<String>> {
    let prefix = run_of(prefix)?;
    let staged = staged_below(&prefix, area)?;
    let newest_staged = staged
        .iter()
        .filter(|(_, (_, stage))| *stage == UnitState::Staged)
        .filter_map(|(name, _)| Some((step_of(name)?, name.clone())))
        .max();
    let mut names: Vec<(u64, String)> =
        match Store::open(&prefix, options).and_then(|store| Ok((store.list_dir("")?, store))) {
            Ok((listing, store)) => {
                let mut names: Vec<(u64, String)> = listing
                    .dirs
                    .into_iter()
                    .filter_map(|name| Some((step_of(&name)?, name)))
                    .collect();
                names.sort_unstable();
                while let Some((_, name)) = names.last() {
                    if newest_staged.as_ref() >= names.last() {
                        break;
                    }
                    let place = CheckpointPath {
                        prefix: prefix.clone(),
                        name: name.clone(),
                    };
                    if let Some((_, Ok(_))) = CheckpointManifest::find(&store, &place)? {
                        break;
                    }
                    names.pop();
                }
                names.pop().into_iter().collect()
            }
            Err(error) => return Err(error.into()),
        };
    names.extend(newest_staged);
    Ok(names
        .into_iter()
        .max()
        .map(|(_, name)| CheckpointPath { prefix, name }.location()))
}

fn entry(
    place: &CheckpointPath,
    manifest: std::result::Result<CheckpointManifest, String>,
    is_stored: bool,
    is_staged: bool,
    is_pinned: bool,
) -> CheckpointEntry {
    CheckpointEntry {
        location: place.location(),
        step: step_of(&place.name),
        name: place.name.clone(),
        manifest,
        is_stored,
        is_staged,
        is_pinned,
    }
}

/// Returns the run's checkpoints in the area by name; of several with the same name, the one that was staged last.
fn staged_below(
    prefix: &Location,
    area: Option<&Path>,
) -> Result<BTreeMap<String, (CheckpointManifest, UnitState)>> {
    let mut found = BTreeMap::new();
    if let Some(area) = area {
        for (_, place, manifest, stage) in read::all_copies(area)? {
            if place.prefix == *prefix {
                found.insert(place.name, (manifest, stage));
            }
        }
    }
    Ok(found)
}

/// Returns the run's location in the form of `CheckpointPath::prefix`: absolute, without a trailing slash.
fn run_of(prefix: &Location) -> Result<Location> {
    let text = absolute(prefix)?.to_string();
    let trimmed = text.trim_end_matches('/');
    Ok(Location::parse(if trimmed.is_empty() {
        "/"
    } else {
        trimmed
    })?)
}

/// Pins a checkpoint, so that retention does not remove it, or unpins it. Only a complete checkpoint can be pinned.
pub fn pin(location: &Location, options: &StoreOptions, pinned: bool) -> Result<()> {
    let place = CheckpointPath::of(location)?;
    let store = Store::open(&place.prefix, options)?;
    if !pinned {
        return Ok(store.delete(&place.key(PIN_NAME))?);
    }
    if CheckpointManifest::find(&store, &place)?.is_none() {
        return Err(Error::Missing {
            place: place.location(),
            hint: None,
        });
    }
    store.put(&place.key(PIN_NAME), b"", Put::Always)?;
    Ok(())
}

/// Removes a complete checkpoint: its manifest first, so that a reader finds the whole checkpoint or none.
///
/// Refuses a checkpoint that is pinned, that `area` still has to upload, or that a process of this host reads. A second call
/// finishes a removal that was interrupted.
pub fn remove(location: &Location, options: &StoreOptions, area: Option<&Path>) -> Result<()> {
    let place = CheckpointPath::of(location)?;
    let refuse = |why: &str| {
        Err(Error::Option {
            what: format!("{} cannot be removed: {why}", place.location()),
        })
    };
    let store = Store::open(&place.prefix, options)?;
    if store.head(&place.key(PIN_NAME))?.is_some() {
        return refuse("it is pinned");
    }
    let area = area.filter(|area| area.is_dir());
    let staged = staged_below(&place.prefix, area)?;
    if matches!(staged.get(&place.name), Some((_, UnitState::Staged))) {
        return refuse("it is not uploaded yet");
    }
    let reading = area.map(|area| reading::alone(area, &place)).transpose()?;
    if matches!(reading, Some(None)) {
        return refuse("a process of this host reads it");
    }
    if retention::remove(&store, &place)? {
        Ok(())
    } else {
        Err(Error::Missing {
            place: place.location(),
            hint: None,
        })
    }
}

/// The state of a checkpoint in a staging area, as any process can read it from the disk.
#[derive(Debug, Clone)]
#[non_exhaustive]
pub struct CheckpointStatus {
    /// The checkpoint's location; empty if its marker cannot be read.
    pub location: String,
    /// The rank that saved this part, below `world_size`.
    pub rank: u32,
    /// How many parts the checkpoint has.
    pub world_size: u32,
    /// Bytes that its files take in the area.
    pub bytes: u64,
    /// Whether it is being written, staged, stored or damaged.
    pub state: State,
    /// Time since it was acknowledged, if known.
    pub age: Option<Duration>,
    /// Whether a process holds its lock, to write or upload it.
    pub is_owned: bool,
    /// The error of the last try to upload it, or of a damaged marker.
    pub error: Option<String>,
    /// Its directory in the area.
    pub path: PathBuf,
}

/// The progress of a checkpoint in a staging area.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub enum State {
    /// Its files are being written. If no process holds its lock, the writer died before it acknowledged the checkpoint.
    Writing,
    /// Durable on the fast disk, and not uploaded yet.
    Staged,
    /// Uploaded to the store; the area has a copy.
    Stored,
    /// Its marker is damaged.
    Damaged,
}

/// Returns the checkpoints in a staging area, the oldest first. An area that does not exist is empty.
pub fn status(area: &Path) -> Result<Vec<CheckpointStatus>> {
    let mut all = Vec::new();
    for entry in Unit::all(area)? {
        // Takes the lock for a moment, to see whether another process holds it.
        let is_owned = entry.is_own() && entry.own()?.is_none();
        let stage = entry.stage();
        let bytes = entry.held_bytes();
        let (marker, error) = match Marker::of(&entry) {
            Ok(marker) => (marker, entry.last_error()),
            Err(error) => (None, Some(error.to_string())),
        };
        let state = match (stage, &marker) {
            (UnitState::Unfinished, _) => State::Writing,
            (_, None) => State::Damaged,
            (UnitState::Staged, _) => State::Staged,
            (UnitState::Stored, _) => State::Stored,
        };
        let location = marker
            .as_ref()
            .and_then(|marker| marker.place().ok())
            .map(|place| place.location());
        all.push(CheckpointStatus {
            location: location.unwrap_or_default(),
            rank: marker.as_ref().map_or(0, |marker| marker.rank),
            world_size: marker.as_ref().map_or(1, |marker| marker.world_size),
            bytes,
            state,
            age: entry.age(),
            is_owned,
            error: error.filter(|_| state != State::Stored),
            path: entry.path().to_path_buf(),
        });
    }
    Ok(all)
}
