//! Locks of a destination: either one process holds it exclusively, or the parts of a pack share it, each part once.

use super::WORK_DIR;
use crate::error::Result;
use crate::options::Part;
use forebay_store::{DirLock, Error as StoreError};
use std::path::{Path, PathBuf};
use std::time::Duration;

/// A process that is refused the exclusive lock briefly acquires the lock of each part to find out the holders. A part
/// that starts at this moment retries.
const TRIES: u32 = 3;
const BETWEEN_TRIES: Duration = Duration::from_millis(200);

/// Held until dropped.
#[derive(Debug)]
pub(super) struct Locks {
    // Dropped first, because a process that sees no part lock may acquire the root.
    _part: Option<DirLock>,
    _root: DirLock,
}

/// Locks the destination exclusively.
pub(super) fn alone(root: &Path) -> Result<Locks> {
    let lock = DirLock::acquire(root);
    // If parts share the root, the error names them. Without flock, only the locks of the parts show that they exist.
    if (lock.is_ok() || matches!(lock, Err(StoreError::Locked { .. })))
        && let Some((part, holder)) = parts(root).find_map(|part| holder(root, part))
    {
        return Err(refusal(root, part, &holder).into());
    }
    Ok(Locks {
        _part: None,
        _root: lock?,
    })
}

/// Acquires the shared lock, the first step of a part: no process holds the destination exclusively.
pub(super) fn share(root: &Path) -> Result<DirLock> {
    Ok(DirLock::share(root)?)
}

/// Acquires the lock of a part, the second step: no other process writes the same part or divides the pack into another
/// number of parts. The directory of the part must exist.
pub(super) fn part(root: &Path, shared: DirLock, part: Part) -> Result<Locks> {
    let lock = acquire(root, part)?;
    shared.confirm()?;
    let others = parts(root).filter(|other| other.count() != part.count());
    for other in others {
        if let Some((_, holder)) = holder(root, other) {
            return Err(refusal(root, other, &holder).into());
        }
    }
    Ok(Locks {
        _part: Some(lock),
        _root: shared,
    })
}

fn acquire(root: &Path, part: Part) -> Result<DirLock> {
    let mut tries = 1;
    loop {
        match DirLock::acquire(&dir(root, part)) {
            Err(StoreError::Locked { .. }) if tries < TRIES => {
                tries += 1;
                std::thread::sleep(BETWEEN_TRIES);
            }
            Err(StoreError::Locked { holder, .. }) => {
                return Err(refusal(root, part, &holder).into());
            }
            lock => return Ok(lock?),
        }
    }
}

fn refusal(root: &Path, part: Part, holder: &str) -> StoreError {
    StoreError::Locked {
        dir: root.to_path_buf(),
        holder: format!("{holder}, which packs part {part}"),
    }
}

/// Returns the part and the process that writes it, if there is one.
fn holder(root: &Path, part: Part) -> Option<(Part, String)> {
    match DirLock::acquire(&dir(root, part)) {
        Err(StoreError::Locked { holder, .. }) => Some((part, holder)),
        // Any other error means that no process writes the part.
        _ => None,
    }
}

/// Returns the directory of a part.
pub(super) fn dir(root: &Path, part: Part) -> PathBuf {
    root.join(WORK_DIR).join(part.dir_name())
}

/// Returns the parts that have started, in order.
pub(super) fn parts(root: &Path) -> impl Iterator<Item = Part> {
    let names = std::fs::read_dir(root.join(WORK_DIR)).into_iter().flatten();
    let mut parts: Vec<Part> = names
        .filter_map(|entry| Part::of_dir_name(entry.ok()?.file_name().to_str()?))
        .collect();
    parts.sort_by_key(|part| (part.count(), part.number()));
    parts.into_iter()
}
