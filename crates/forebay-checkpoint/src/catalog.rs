//! Which checkpoints there are: of a run, and in a staging area.

use super::manifest::{CheckpointManifest, MANIFEST_NAME, PIN_NAME};
use super::marker::Marker;
use super::name::{Place, absolute, step_of};
use super::{Error, Result, read, reading, retention};
use forebay_staging::unit::{Unit, UnitState};
use forebay_store::{Location, Put, Store, StoreOptions};
use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::time::Duration;

/// A complete checkpoint of a run.
#[derive(Debug, Clone)]
#[non_exhaustive]
pub struct CheckpointEntry {
    /// The location.
    pub location: String,
    /// Its name in the run.
    pub name: String,
    /// The number in its name.
    pub step: Option<u64>,
    /// Its manifest; an error if that is damaged.
    pub manifest: std::result::Result<CheckpointManifest, String>,
    /// Whether it is at its destination. If not, it is in the staging area and will be uploaded.
    pub is_stored: bool,
    /// Whether the staging area has it.
    pub is_staged: bool,
    /// Whether retention leaves it alone.
    pub is_pinned: bool,
}

/// The complete checkpoints right below `prefix`: those without a number by name, then the others by their number. With an
/// area, those that are acknowledged there and on their way are among them.
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
        let place = Place {
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
        // What is on its way will be the checkpoint of that name.
        if stage == UnitState::Staged {
            let is_pinned = found.get(&name).is_some_and(|found| found.is_pinned);
            let place = Place {
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

/// The complete checkpoint right below `prefix` with the highest number in its name; if none has a number, none. What is
/// on its way in the area counts: it is safe. A damaged manifest is passed over.
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
                    let place = Place {
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
        .map(|(_, name)| Place { prefix, name }.location()))
}

fn entry(
    place: &Place,
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

/// Returns the run's checkpoints in the area by name, the last one of each name.
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

/// The run's place as a checkpoint below it has it.
fn run_of(prefix: &Location) -> Result<Location> {
    let text = absolute(prefix)?.to_string();
    let trimmed = text.trim_end_matches('/');
    Ok(Location::parse(if trimmed.is_empty() {
        "/"
    } else {
        trimmed
    })?)
}

/// Whether retention may remove a checkpoint. It has to be complete to be pinned.
pub fn pin(location: &Location, options: &StoreOptions, pinned: bool) -> Result<()> {
    let place = Place::of(location)?;
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
/// Refuses one that is pinned, one that `area` still has to upload, and one that a process of this host reads. A removal that
/// was interrupted continues when it is repeated.
pub fn remove(location: &Location, options: &StoreOptions, area: Option<&Path>) -> Result<()> {
    let place = Place::of(location)?;
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

/// A checkpoint in a staging area, as anybody sees it.
#[derive(Debug, Clone)]
#[non_exhaustive]
pub struct CheckpointStatus {
    /// The checkpoint's location; empty if its marker cannot be read.
    pub location: String,
    /// Which part of how many.
    pub rank: u32,
    /// How many parts the checkpoint has.
    pub world_size: u32,
    /// Bytes that it takes in the area.
    pub bytes: u64,
    /// How far it is.
    pub state: State,
    /// How long ago it was saved.
    pub age: Option<Duration>,
    /// Whether a process has it.
    pub is_owned: bool,
    /// Why the last try to drain it failed.
    pub error: Option<String>,
    /// Its directory.
    pub path: PathBuf,
}

/// How far a checkpoint in an area is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub enum State {
    /// Being written; if no process has it, left by one that is gone before it was acknowledged.
    Writing,
    /// Safe on the fast disk, and not uploaded yet.
    Staged,
    /// In the store; the area has a copy.
    Stored,
    /// Its marker is damaged.
    Damaged,
}

/// Returns the checkpoints in a staging area, the oldest first. An area that does not exist is empty.
pub fn status(area: &Path) -> Result<Vec<CheckpointStatus>> {
    let mut all = Vec::new();
    for entry in Unit::all(area)? {
        // Taken for a moment, to see whether another process has it.
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
