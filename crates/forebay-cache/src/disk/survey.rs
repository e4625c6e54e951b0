//! Listing of the directory: its blocks, and the candidates for eviction.

use std::collections::VecDeque;
use std::fs::{File, OpenOptions};
use std::io;
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use rustix::fs::{FlockOperation, OFlags};

use super::super::object_id::ObjectId;
use super::live;
use forebay_store::{Error, Result};

/// A block file as the directory lists it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Listed {
    pub(super) id: ObjectId,
    pub(super) number: u64,
    pub(super) file_len: u64,
    /// When the block was last used: nanoseconds since 1970. Stored as the file's modification time.
    pub(super) used_at: u64,
}

/// The path of a block file.
pub(super) fn block_path(blocks: &Path, id: ObjectId, number: u64) -> PathBuf {
    blocks.join(id.to_hex()).join(number.to_string())
}

/// The file name of a block that is being filled.
pub(super) fn fill_name(id: ObjectId, number: u64) -> String {
    format!("{id}-{number}")
}

pub(super) fn is_fill_name(name: &str) -> bool {
    name.split_once('-').is_some_and(|(id, number)| {
        ObjectId::from_hex(id).is_some() && block_number(number).is_some()
    })
}

/// Parses a number in a file name: no sign, no leading zeros.
fn block_number(name: &str) -> Option<u64> {
    let number: u64 = name.parse().ok()?;
    (number.to_string() == name).then_some(number)
}

/// A file's modification time in nanoseconds since 1970.
pub(super) fn used_at(metadata: &std::fs::Metadata) -> u64 {
    let changed = metadata.modified().unwrap_or(std::time::UNIX_EPOCH);
    let since = changed.duration_since(std::time::UNIX_EPOCH);
    since.map_or(0, |since| {
        u64::try_from(since.as_nanos()).unwrap_or(u64::MAX)
    })
}

/// Lists the blocks below `blocks`. Skips foreign files, and files that are removed meanwhile.
pub(super) fn walk(blocks: &Path, each: &mut dyn FnMut(Listed)) -> Result<()> {
    let failed = |error| Error::io(blocks, "list", error);
    for entry in std::fs::read_dir(blocks).map_err(failed)? {
        let entry = entry.map_err(failed)?;
        let Some(id) = entry.file_name().to_str().and_then(ObjectId::from_hex) else {
            continue;
        };
        let files = match std::fs::read_dir(entry.path()) {
            Ok(files) => files,
            Err(error) if is_gone(&error) => continue,
            Err(error) => return Err(Error::io(entry.path(), "list", error)),
        };
        for file in files {
            let Ok(file) = file else { continue };
            let Some(number) = file.file_name().to_str().and_then(block_number) else {
                continue;
            };
            // `DirEntry::metadata` does not follow symbolic links.
            let Ok(metadata) = file.metadata() else {
                continue;
            };
            if metadata.is_file() {
                each(Listed {
                    id,
                    number,
                    file_len: metadata.len(),
                    used_at: used_at(&metadata),
                });
            }
        }
    }
    Ok(())
}

fn is_gone(error: &io::Error) -> bool {
    matches!(
        error.kind(),
        io::ErrorKind::NotFound | io::ErrorKind::NotADirectory
    )
}

/// Removes the partly filled blocks of killed processes. Returns how many blocks are being filled, and how many were removed.
pub(super) fn clean_fills(dir: &Path) -> Result<(u64, u64)> {
    let (mut filling, mut removed) = (0, 0);
    let failed = |error| Error::io(dir, "list", error);
    for entry in std::fs::read_dir(dir).map_err(failed)? {
        let name = entry.map_err(failed)?.file_name();
        if !name.to_str().is_some_and(is_fill_name) {
            continue;
        }
        let path = dir.join(name);
        let Ok(file) = open_own(&path) else { continue };
        if rustix::fs::flock(&file, FlockOperation::NonBlockingLockExclusive).is_err() {
            filling += 1;
        } else if super::is_at(&file, &path) && std::fs::remove_file(&path).is_ok() {
            removed += 1;
        }
    }
    Ok((filling, removed))
}

/// Opens a file of the cache for reading and writing; does not follow symbolic links.
pub(super) fn open_own(path: &Path) -> io::Result<File> {
    OpenOptions::new()
        .read(true)
        .write(true)
        .custom_flags(OFlags::NOFOLLOW.bits() as i32)
        .open(path)
}

/// Opens a file of the cache for reading; does not follow symbolic links.
pub(super) fn open_to_read(path: &Path) -> io::Result<File> {
    OpenOptions::new()
        .read(true)
        .custom_flags(OFlags::NOFOLLOW.bits() as i32)
        .open(path)
}

/// How long the result of a survey is used.
const BELIEVED: Duration = Duration::from_secs(10);
/// A survey of many files may take long: surveys take at most 1/20 of the time.
const REST: u32 = 20;

/// Candidates for eviction, in the order in which they are evicted.
#[derive(Debug, Default)]
pub(super) struct Victims {
    /// Blocks of objects that no process has open, the least recently used first.
    pub(super) unused: VecDeque<Listed>,
    /// Blocks of open objects, in the same order.
    pub(super) in_use: VecDeque<Listed>,
    surveyed: Option<(Instant, Duration)>,
    /// The number of closed objects at the time of the survey.
    closings: u64,
}

impl Victims {
    /// Makes a new survey, unless blocks of closed objects are left or the last survey is recent enough.
    pub(super) fn refresh(&mut self, blocks: &Path, notes: &Path, closings: u64) -> Result<()> {
        let is_believed = self.closings == closings
            && self.surveyed.is_some_and(|(when, took)| {
                when.elapsed() < BELIEVED.max(took.saturating_mul(REST))
            });
        if is_believed || !self.unused.is_empty() {
            return Ok(());
        }
        let started = Instant::now();
        let open = live::in_use(notes, true).map_err(|error| Error::io(notes, "list", error))?;
        let (mut unused, mut in_use) = (Vec::new(), Vec::new());
        walk(blocks, &mut |listed| {
            if open.objects.contains(&listed.id) {
                in_use.push(listed);
            } else {
                unused.push(listed);
            }
        })?;
        for list in [&mut unused, &mut in_use] {
            list.sort_unstable_by_key(|listed| (listed.used_at, listed.id, listed.number));
        }
        *self = Self {
            unused: unused.into(),
            in_use: in_use.into(),
            surveyed: Some((started, started.elapsed())),
            closings,
        };
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_blocks_are_listed() {
        let dir = tempfile::tempdir().unwrap();
        let id = ObjectId::of("a", "b", None, 1);
        let path = block_path(dir.path(), id, 7);
        let objects = path.parent().unwrap();
        std::fs::create_dir(objects).unwrap();
        std::fs::write(&path, "block").unwrap();
        for foreign in ["07", "+7", "x", "8~"] {
            std::fs::write(objects.join(foreign), "mine").unwrap();
        }
        std::fs::create_dir(objects.join("9")).unwrap();
        std::os::unix::fs::symlink(&path, objects.join("10")).unwrap();
        std::fs::create_dir(dir.path().join("other")).unwrap();
        std::fs::write(dir.path().join("other/1"), "mine").unwrap();
        std::fs::write(dir.path().join("f".repeat(64)), "a file, no directory").unwrap();
        let mut found = Vec::new();
        walk(dir.path(), &mut |listed| found.push(listed)).unwrap();
        assert_eq!(found.len(), 1);
        assert_eq!(
            (found[0].id, found[0].number, found[0].file_len),
            (id, 7, 5)
        );
    }

    #[test]
    fn blocks_being_filled_are_not_removed() {
        let dir = tempfile::tempdir().unwrap();
        let id = ObjectId::of("a", "b", None, 1);
        let (held, dead) = (
            dir.path().join(fill_name(id, 1)),
            dir.path().join(fill_name(id, 2)),
        );
        let filling = File::create(&held).unwrap();
        rustix::fs::flock(&filling, FlockOperation::NonBlockingLockExclusive).unwrap();
        File::create(&dead).unwrap();
        File::create(dir.path().join("mine")).unwrap();
        assert_eq!(clean_fills(dir.path()).unwrap(), (1, 1));
        assert!(held.exists() && !dead.exists() && dir.path().join("mine").exists());
    }
}
