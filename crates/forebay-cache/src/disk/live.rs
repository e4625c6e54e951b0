//! Tells other processes which objects are open.
//!
//! Each open cache has a file (its note) with the ids of its open objects, 32 bytes each, with zeros for a closed one. It holds
//! the file's `flock`, so other processes can tell the note of a live process from that of a dead one.

use std::collections::{HashMap, HashSet};
use std::fs::{File, OpenOptions};
use std::io;
use std::os::unix::fs::{FileExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Mutex, PoisonError};

use rustix::fs::{FlockOperation, OFlags};

use super::super::object_id::ObjectId;
use forebay_store::{Error, Result};

const ID_BYTES: usize = 32;
/// The largest number of bytes read from a note: a million objects.
const MOST_BYTES: u64 = 32 << 20;
const CLOSED: [u8; ID_BYTES] = [0; ID_BYTES];

/// The note of an open cache in this process.
#[derive(Debug)]
pub(in super::super) struct Live {
    path: PathBuf,
    file: File,
    open: Mutex<Open>,
    closings: AtomicU64,
}

#[derive(Debug, Default)]
struct Open {
    /// The open count of each object, and the position of its entry in the file.
    objects: HashMap<ObjectId, (u64, u64)>,
    free: Vec<u64>,
    entries: u64,
}

impl Live {
    /// Creates a note in `dir`, which must exist.
    pub(super) fn create(dir: &Path) -> Result<Self> {
        static NUMBER: AtomicU64 = AtomicU64::new(0);
        loop {
            // An existing file belongs to a dead process, or to a process in another container or host.
            let number = NUMBER.fetch_add(1, Ordering::Relaxed);
            let path = dir.join(format!("{}-{number}", std::process::id()));
            let file = OpenOptions::new()
                .read(true)
                .write(true)
                .create_new(true)
                .mode(0o600)
                .open(&path);
            let file = match file {
                Err(error) if error.kind() == io::ErrorKind::AlreadyExists => continue,
                other => other.map_err(|error| Error::io(&path, "create", error))?,
            };
            match rustix::fs::flock(&file, FlockOperation::NonBlockingLockExclusive) {
                Ok(()) => {}
                // Another process has locked the file to check whether it is stale, and removes it.
                Err(rustix::io::Errno::WOULDBLOCK) => continue,
                Err(errno) => {
                    let _ = std::fs::remove_file(&path);
                    return Err(Error::io(&path, "lock", errno));
                }
            }
            if super::is_at(&file, &path) {
                return Ok(Self {
                    path,
                    file,
                    open: Mutex::default(),
                    closings: AtomicU64::new(0),
                });
            }
        }
    }

    /// Marks an object as open. If the write fails, other processes may evict the object's blocks.
    pub(in super::super) fn enter(&self, id: ObjectId) {
        let mut open = self.open.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some((count, _)) = open.objects.get_mut(&id) {
            *count += 1;
            return;
        }
        let entry = open.free.pop().unwrap_or_else(|| {
            open.entries += 1;
            open.entries - 1
        });
        open.objects.insert(id, (1, entry));
        let _ = self
            .file
            .write_all_at(id.as_bytes(), entry * ID_BYTES as u64);
    }

    /// Undoes one [`enter`](Self::enter); the last one marks the object as closed.
    pub(in super::super) fn leave(&self, id: ObjectId) {
        let mut open = self.open.lock().unwrap_or_else(PoisonError::into_inner);
        let Some((count, entry)) = open.objects.get_mut(&id) else {
            return;
        };
        *count -= 1;
        if *count == 0 {
            let entry = *entry;
            open.objects.remove(&id);
            open.free.push(entry);
            self.closings.fetch_add(1, Ordering::Relaxed);
            let _ = self.file.write_all_at(&CLOSED, entry * ID_BYTES as u64);
        }
    }

    /// The number of objects that were closed so far.
    pub(super) fn closings(&self) -> u64 {
        self.closings.load(Ordering::Relaxed)
    }

    /// Whether an object is open.
    #[cfg(test)]
    pub(super) fn has(&self, id: ObjectId) -> bool {
        let open = self.open.lock().unwrap_or_else(PoisonError::into_inner);
        open.objects.contains_key(&id)
    }
}

impl Drop for Live {
    fn drop(&mut self) {
        // Removed while it is locked. If this fails, another process removes the file later.
        let _ = std::fs::remove_file(&self.path);
    }
}

/// The content of all notes in a directory.
#[derive(Debug, Default)]
pub(super) struct InUse {
    pub(super) objects: HashSet<ObjectId>,
    /// Open caches of live processes.
    pub(super) users: u64,
    /// Notes of dead processes.
    pub(super) gone: u64,
}

/// Reads all notes in `dir`. With `clean`, removes the notes of dead processes.
pub(super) fn in_use(dir: &Path, clean: bool) -> io::Result<InUse> {
    let mut found = InUse::default();
    for entry in std::fs::read_dir(dir)? {
        let name = entry?.file_name();
        if !is_note(&name.to_string_lossy()) {
            continue;
        }
        let path = dir.join(name);
        let file = OpenOptions::new()
            .read(true)
            .custom_flags(OFlags::NOFOLLOW.bits() as i32)
            .open(&path);
        let file = match file {
            Err(error) if error.kind() == io::ErrorKind::NotFound => continue,
            other => other?,
        };
        if rustix::fs::flock(&file, FlockOperation::NonBlockingLockExclusive).is_ok() {
            found.gone += 1;
            // A process that is just creating this note notices that it was removed, and creates another one.
            if clean && super::is_at(&file, &path) {
                let _ = std::fs::remove_file(&path);
            }
            continue;
        }
        found.users += 1;
        let mut bytes = Vec::new();
        io::Read::read_to_end(&mut io::Read::take(file, MOST_BYTES), &mut bytes)?;
        let entries = bytes.chunks_exact(ID_BYTES);
        let ids = entries.filter_map(|entry| <[u8; ID_BYTES]>::try_from(entry).ok());
        let open = ids.filter(|id| *id != CLOSED).map(ObjectId::from_bytes);
        found.objects.extend(open);
    }
    Ok(found)
}

/// Whether a name is `<process>-<number>`.
pub(super) fn is_note(name: &str) -> bool {
    let is_number = |text: &str| !text.is_empty() && text.bytes().all(|b| b.is_ascii_digit());
    name.split_once('-')
        .is_some_and(|(process, number)| is_number(process) && is_number(number))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn id(name: &str) -> ObjectId {
        ObjectId::of("", name, None, 1)
    }

    #[test]
    fn notes_contain_open_objects_only() {
        let dir = tempfile::tempdir().unwrap();
        let (one, other) = (
            Live::create(dir.path()).unwrap(),
            Live::create(dir.path()).unwrap(),
        );
        one.enter(id("a"));
        one.enter(id("a"));
        one.enter(id("b"));
        other.enter(id("c"));
        one.leave(id("a"));
        one.leave(id("b"));
        one.leave(id("nobody"));
        let found = in_use(dir.path(), true).unwrap();
        assert_eq!(found.objects, HashSet::from([id("a"), id("c")]));
        assert_eq!((found.users, found.gone), (2, 0));
        assert!(one.has(id("a")) && !one.has(id("b")));
        // The entry of a closed object is reused.
        one.enter(id("d"));
        assert_eq!(std::fs::metadata(&one.path).unwrap().len(), 64);
        drop((one, other));
        assert_eq!(std::fs::read_dir(dir.path()).unwrap().count(), 0);
    }

    #[test]
    fn notes_of_dead_processes_are_ignored_and_removed() {
        let dir = tempfile::tempdir().unwrap();
        std::fs::write(dir.path().join("1-0"), id("a").as_bytes()).unwrap();
        std::fs::write(dir.path().join("notes.txt"), "mine").unwrap();
        let found = in_use(dir.path(), false).unwrap();
        assert!(found.objects.is_empty() && found.gone == 1);
        assert!(dir.path().join("1-0").exists());
        in_use(dir.path(), true).unwrap();
        let left: Vec<_> = std::fs::read_dir(dir.path()).unwrap().collect();
        assert_eq!(left.len(), 1);
        assert_eq!(left[0].as_ref().unwrap().file_name(), "notes.txt");
    }
}
