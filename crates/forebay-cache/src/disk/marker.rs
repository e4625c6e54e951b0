//! The marker file of a cache directory, and functions to inspect and clear a cache without opening it.

use std::collections::BTreeMap;
use std::io::{self, Read};
use std::os::unix::fs::DirBuilderExt;
use std::path::{Path, PathBuf};

use serde::{Deserialize, Serialize};

use super::ledger::Ledger;
use super::room::BASE_BYTES;
use super::survey::{self, Listed};
use super::{cost, is_at, live};
use crate::block::{HEADER_BYTES, Header, is_block_size};
use crate::object_id::ObjectId;
use forebay_store::{Durability, Error, Result, is_temporary, write_file};

pub(super) const MARKER: &str = "forebay-cache.json";
pub(super) const LEDGER: &str = "forebay-cache.lock";
pub(super) const BLOCKS: &str = "blocks";
pub(super) const FILLS: &str = "filling";
pub(super) const NOTES: &str = "live";

const VERSION: u32 = 1;
/// The largest number of bytes read from a marker file, which has some 50 bytes.
const MOST_MARKER_BYTES: u64 = 4096;

#[derive(Debug, Serialize, Deserialize)]
struct Marker {
    forebay_cache: u32,
    block_bytes: u32,
}

fn not_a_cache(dir: &Path, why: impl Into<String>) -> Error {
    Error::NotACache {
        dir: dir.to_owned(),
        why: why.into(),
    }
}

fn read_marker(dir: &Path) -> Result<Option<Marker>> {
    let path = dir.join(MARKER);
    let mut bytes = Vec::new();
    match forebay_shard::storage::open_file(&path) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
        Err(error) => return Err(Error::io(&path, "open", error)),
        Ok(file) => file
            .take(MOST_MARKER_BYTES)
            .read_to_end(&mut bytes)
            .map_err(|error| Error::io(&path, "read", error))?,
    };
    let marker: Marker = forebay_shard::json::from_slice(&bytes)
        .map_err(|error| not_a_cache(dir, format!("its {MARKER} cannot be read: {error}")))?;
    if marker.forebay_cache != VERSION {
        let why = format!(
            "it is a cache of version {}, and this release knows version {VERSION}",
            marker.forebay_cache
        );
        return Err(not_a_cache(dir, why));
    }
    if !is_block_size(marker.block_bytes) {
        let why = format!("its {MARKER} has blocks of {} bytes", marker.block_bytes);
        return Err(not_a_cache(dir, why));
    }
    Ok(Some(marker))
}

/// Creates `dir` if necessary, and fails if it is neither a cache nor empty. Other directories are not changed.
pub(super) fn prepare(dir: &Path) -> Result<()> {
    // Accessible by the owner only: users who can write here could change the training data.
    std::fs::DirBuilder::new()
        .recursive(true)
        .mode(0o700)
        .create(dir)
        .map_err(|error| Error::io(dir, "create", error))?;
    if read_marker(dir)?.is_some() {
        return Ok(());
    }
    for entry in std::fs::read_dir(dir).map_err(|error| Error::io(dir, "list", error))? {
        let name = entry
            .map_err(|error| Error::io(dir, "list", error))?
            .file_name();
        // Files of a cache that another process is creating, or was creating when it was killed.
        let is_ours =
            name == LEDGER || name == MARKER || is_temporary(&name) || name == "lost+found";
        if !is_ours && read_marker(dir)?.is_none() {
            return Err(not_a_cache(dir, "there are other things in it"));
        }
    }
    Ok(())
}

/// The block size of the cache. For a new cache, writes a marker with the requested size. The ledger must be locked.
pub(super) fn settle(dir: &Path, block_bytes: u32) -> Result<u32> {
    if let Some(marker) = read_marker(dir)? {
        return Ok(marker.block_bytes);
    }
    let marker = Marker {
        forebay_cache: VERSION,
        block_bytes,
    };
    let path = dir.join(MARKER);
    let mut text = serde_json::to_vec(&marker)
        .map_err(|error| Error::io(&path, "write", io::Error::other(error)))?;
    text.push(b'\n');
    // Synced, unlike blocks: without its marker the whole cache would be unusable.
    write_file(&path, &text, Durability::Synced)?;
    Ok(block_bytes)
}

/// The contents of a cache directory.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
#[non_exhaustive]
pub struct CacheContents {
    /// Bytes of a block.
    pub block_bytes: u32,
    /// Bytes in use, metadata included.
    pub used_bytes: u64,
    /// The number of blocks.
    pub blocks: u64,
    /// Open caches that use the directory now, usually one per process.
    pub users: u64,
    /// The cached locations, the largest first.
    pub locations: Vec<CachedLocation>,
}

/// The objects of one location in a cache.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
#[non_exhaustive]
pub struct CachedLocation {
    /// The location of the objects; empty if it is not known, because no header of their blocks is valid.
    pub location: String,
    /// Objects with blocks in the cache.
    pub objects: u64,
    /// Their blocks.
    pub blocks: u64,
    /// Bytes in use by these blocks.
    pub bytes: u64,
    /// Whether an open cache uses any of these objects.
    pub in_use: bool,
}

/// Inspects the cache in `dir` without changing it.
///
/// # Errors
/// [`Error::NotACache`] if `dir` is not a cache.
pub fn contents(dir: &Path) -> Result<CacheContents> {
    let marker = existing(dir)?;
    let notes = dir.join(NOTES);
    let open = match live::in_use(&notes, false) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => live::InUse::default(),
        other => other.map_err(|error| Error::io(&notes, "list", error))?,
    };
    let (mut used_bytes, mut blocks) = (BASE_BYTES, 0);
    let mut locations: BTreeMap<String, CachedLocation> = BTreeMap::new();
    for (id, listed) in by_object(dir)? {
        let named = listed.iter().find_map(|block| location_of(dir, block));
        let location = named.unwrap_or_default();
        let bytes: u64 = listed.iter().map(|block| cost(block.file_len)).sum();
        used_bytes += bytes;
        blocks += listed.len() as u64;
        let entry = locations
            .entry(location)
            .or_insert_with_key(|location| CachedLocation {
                location: location.clone(),
                objects: 0,
                blocks: 0,
                bytes: 0,
                in_use: false,
            });
        entry.objects += 1;
        entry.blocks += listed.len() as u64;
        entry.bytes += bytes;
        entry.in_use |= open.objects.contains(&id);
    }
    let mut locations: Vec<_> = locations.into_values().collect();
    locations.sort_by(|a, b| b.bytes.cmp(&a.bytes).then(a.location.cmp(&b.location)));
    Ok(CacheContents {
        block_bytes: marker.block_bytes,
        used_bytes,
        blocks,
        users: open.users,
        locations,
    })
}

fn existing(dir: &Path) -> Result<Marker> {
    read_marker(dir)?.ok_or_else(|| not_a_cache(dir, format!("it has no {MARKER}")))
}

fn by_object(dir: &Path) -> Result<BTreeMap<ObjectId, Vec<Listed>>> {
    let blocks = dir.join(BLOCKS);
    let mut found: BTreeMap<ObjectId, Vec<Listed>> = BTreeMap::new();
    if blocks.is_dir() {
        survey::walk(&blocks, &mut |listed| {
            found.entry(listed.id).or_default().push(listed)
        })?;
    }
    Ok(found)
}

/// The location in a block's header, if the header is valid.
fn location_of(dir: &Path, block: &Listed) -> Option<String> {
    let path = survey::block_path(&dir.join(BLOCKS), block.id, block.number);
    let mut file = survey::open_to_read(&path).ok()?;
    let mut head = [0; HEADER_BYTES];
    file.read_exact(&mut head).ok()?;
    Header::parse(&head, block.file_len).map(|header| header.location)
}

/// The result of [`clear`].
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize)]
#[non_exhaustive]
pub struct Cleared {
    /// Removed blocks; with `dry_run`, blocks that would be removed.
    pub blocks: u64,
    /// Bytes that these blocks used.
    pub bytes: u64,
    /// Open caches that use the directory; they continue, and fill it again.
    pub users: u64,
    /// Foreign files in the directory, which were not removed; at most 20 of them.
    pub left: Vec<PathBuf>,
}

const MOST_LEFT: usize = 20;

/// Removes all blocks from the cache in `dir`, or those of one location. If all blocks are removed and no process uses the
/// cache, removes the cache itself. Never removes foreign files. With `dry_run` it only counts.
///
/// # Errors
/// [`Error::NotACache`] if `dir` is not a cache.
pub fn clear(dir: &Path, location: Option<&str>, dry_run: bool) -> Result<Cleared> {
    existing(dir)?;
    let path = dir.join(LEDGER);
    let ledger = Ledger::open(&path)?;
    let entry = ledger.lock()?;
    let notes = dir.join(NOTES);
    let mut cleared = Cleared {
        users: live::in_use(&notes, !dry_run).map_or(0, |open| open.users),
        ..Cleared::default()
    };
    for (id, listed) in by_object(dir)? {
        let is_meant = location.is_none_or(|location| {
            let named = listed.iter().find_map(|block| location_of(dir, block));
            named.is_some_and(|named| named == location)
        });
        if !is_meant {
            continue;
        }
        for block in &listed {
            cleared.blocks += 1;
            cleared.bytes += cost(block.file_len);
            if !dry_run {
                remove(&survey::block_path(&dir.join(BLOCKS), id, block.number))?;
            }
        }
        if !dry_run {
            // Fails if the directory is not empty, and then it stays.
            let _ = std::fs::remove_dir(dir.join(BLOCKS).join(id.to_hex()));
        }
    }
    if dry_run {
        return Ok(cleared);
    }
    if let Some(used) = entry.used() {
        entry.set_used(used.saturating_sub(cleared.bytes).max(BASE_BYTES))?;
    }
    if location.is_none() {
        let _ = survey::clean_fills(&dir.join(FILLS));
        if cleared.users == 0 {
            for name in [BLOCKS, FILLS, NOTES] {
                let _ = std::fs::remove_dir(dir.join(name));
            }
            // The locked ledger is removed last: a process that waits for its lock then notices that the file is gone.
            remove(&dir.join(MARKER))?;
            remove(&path)?;
            let _ = std::fs::remove_dir(dir);
        }
        cleared.left = foreign(dir, cleared.users > 0);
    }
    Ok(cleared)
}

fn remove(path: &Path) -> Result<()> {
    let file = survey::open_own(path);
    match std::fs::remove_file(path) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(()),
        other => other.map_err(|error| Error::io(path, "remove", error))?,
    }
    if let Ok(file) = file
        && !is_at(&file, path)
    {
        let _ = file.set_len(0);
    }
    Ok(())
}

/// Files below `dir` that do not belong to the cache.
fn foreign(dir: &Path, is_in_use: bool) -> Vec<PathBuf> {
    let mut found = Vec::new();
    let mut pending = vec![dir.to_owned()];
    while let Some(next) = pending.pop() {
        let Ok(entries) = std::fs::read_dir(&next) else {
            continue;
        };
        for entry in entries.flatten() {
            let name = entry.file_name();
            let text = name.to_string_lossy();
            let is_ours = is_in_use
                && (next == dir && (name == MARKER || name == LEDGER)
                    || next == dir.join(NOTES) && live::is_note(&text)
                    || next == dir.join(FILLS) && survey::is_fill_name(&text)
                    || next.starts_with(dir.join(BLOCKS)) && text.parse::<u64>().is_ok());
            if entry.file_type().is_ok_and(|kind| kind.is_dir()) {
                pending.push(entry.path());
            } else if !is_ours && found.len() < MOST_LEFT {
                found.push(entry.path());
            }
        }
    }
    found.sort();
    found
}
