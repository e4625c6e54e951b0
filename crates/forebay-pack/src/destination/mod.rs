//! The destination directory: who owns it, what is in it, and how it is cleared.
//!
//! While a pack runs it holds, besides finished shards, the lock, `.forebay-pack/journal` and temporary files; all of
//! these are gone at the end. A reader finds no `forebay.json` before everything else is in place.

mod journal;

pub(crate) use journal::{Header, Journal, ShardLine, Sidecar};

use crate::error::{Error, Result};
use forebay_shard::manifest::{FILE_NAME as MANIFEST, Manifest};
use forebay_store::{DirLock, Durability, clean_stale, is_temporary, sync_dir};
use rustix::fs::{Mode, OFlags};
use rustix::io::Errno;
use std::collections::BTreeSet;
use std::ffi::{OsStr, OsString};
use std::fs::File;
use std::io;
use std::path::{Path, PathBuf};

/// Where sidecar indexes are: never beside the shards, because readers glob `train-*`.
pub(crate) const INDEX_DIR: &str = "index";
/// Where the report is.
pub(crate) const PACK_DIR: &str = "pack";
/// The report's name in [`PACK_DIR`].
pub(crate) const REPORT: &str = "report.jsonl";
/// Where the journal is while the pack is unfinished.
const WORK_DIR: &str = ".forebay-pack";
const JOURNAL: &str = "journal";
/// Decoded images of a compressed archive. The ending is that of temporary files, which `open` clears away.
const SPOOL: &str = ".spool.forebay-tmp";
/// Made by mkfs at the top of a file system, and nobody's data.
const LOST_AND_FOUND: &str = "lost+found";

/// The destination, locked.
#[derive(Debug)]
pub(crate) struct Destination {
    root: PathBuf,
    durability: Durability,
    _lock: DirLock,
}

/// What was found in it.
pub(crate) enum State {
    /// Nothing.
    Empty,
    /// An unfinished pack: these shards of it are finished.
    Unfinished(journal::Found),
    /// A whole data set.
    Complete(Box<Manifest>),
}

impl Destination {
    /// Makes the directory if it is not there, locks it, and clears what a killed process left half-written.
    pub(crate) fn open(root: &Path, durability: Durability) -> Result<Self> {
        create_dirs(root, durability)?;
        let lock = DirLock::acquire(root)?;
        let destination = Self {
            root: root.to_path_buf(),
            durability,
            _lock: lock,
        };
        for dir in [
            root.to_path_buf(),
            root.join(WORK_DIR),
            destination.index_dir(),
            root.join(PACK_DIR),
        ] {
            clean_stale(&dir)?;
        }
        Ok(destination)
    }

    pub(crate) fn path(&self, name: &str) -> PathBuf {
        self.root.join(name)
    }

    pub(crate) fn index_dir(&self) -> PathBuf {
        self.root.join(INDEX_DIR)
    }

    pub(crate) fn report(&self) -> PathBuf {
        self.root.join(PACK_DIR).join(REPORT)
    }

    pub(crate) fn journal(&self) -> PathBuf {
        self.root.join(WORK_DIR).join(JOURNAL)
    }

    /// Looks at what is there. Files that no pack put there are an error.
    pub(crate) fn state(&self) -> Result<State> {
        if self.path(MANIFEST).exists() {
            return Ok(State::Complete(Box::new(Manifest::load(&self.root)?)));
        }
        if let Some(found) = Journal::read(&self.journal())? {
            return Ok(State::Unfinished(found));
        }
        self.refuse_foreign(&BTreeSet::new())?;
        Ok(State::Empty)
    }

    /// Removes the data set or unfinished pack that is there; refuses if there is anything else.
    pub(crate) fn clear(&self, state: State) -> Result<()> {
        let shards: Vec<String> = match state {
            State::Empty => return Ok(()),
            State::Unfinished(found) => found.header.shards,
            State::Complete(manifest) => manifest
                .splits
                .iter()
                .flat_map(|split| &split.shards)
                .map(|shard| shard.name.clone())
                .collect(),
        };
        // The names come from a file that anybody may have written: only names of shards count.
        let shards: BTreeSet<String> = shards
            .into_iter()
            .filter(|name| is_shard_name(name))
            .collect();
        self.refuse_foreign(&shards)?;
        // The manifest first: from here on no reader takes what is left for a data set.
        self.remove(&self.path(MANIFEST))?;
        self.sync(&self.root)?;
        for name in &shards {
            self.remove(&self.path(name))?;
            for extension in ["fbi", "idx"] {
                self.remove(&self.index_dir().join(format!("{name}.{extension}")))?;
            }
        }
        self.remove(&self.report())?;
        self.finish()
    }

    /// Begins the journal of a new pack.
    pub(crate) fn begin(&self, header: &Header) -> Result<Journal> {
        create_dirs(&self.path(WORK_DIR), self.durability)?;
        Journal::create(&self.journal(), header, self.durability)
    }

    /// Continues the journal with the shards that are still good.
    pub(crate) fn resume(&self, header: &Header, shards: &[ShardLine]) -> Result<Journal> {
        Journal::resume(&self.journal(), header, shards, self.durability)
    }

    /// A file for a while: it has no name, so whatever happens to this process, nothing of it stays.
    pub(crate) fn unnamed_file(&self) -> Result<File> {
        let flags = OFlags::TMPFILE | OFlags::RDWR | OFlags::CLOEXEC;
        match rustix::fs::open(&self.root, flags, Mode::from_raw_mode(0o600)) {
            Ok(fd) => return Ok(fd.into()),
            // Not every file system has such files.
            Err(Errno::OPNOTSUPP | Errno::ISDIR | Errno::INVAL) => {}
            Err(errno) => return Err(Error::io(&self.root, "create an unnamed file in", errno)),
        }
        // A crash between both lines leaves a name that the next run takes for what it is.
        let path = self.path(SPOOL);
        let file = File::options()
            .read(true)
            .write(true)
            .create(true)
            .truncate(true)
            .open(&path)
            .map_err(|error| Error::io(&path, "create", error))?;
        self.remove(&path)?;
        Ok(file)
    }

    pub(crate) fn create_dir(&self, name: &str) -> Result<()> {
        create_dirs(&self.path(name), self.durability)
    }

    /// Removes what only an unfinished pack needs, and directories that turned out empty.
    pub(crate) fn finish(&self) -> Result<()> {
        self.remove(&self.journal())?;
        for dir in [WORK_DIR, INDEX_DIR, PACK_DIR] {
            match std::fs::remove_dir(self.path(dir)) {
                Ok(()) => {}
                Err(e)
                    if matches!(
                        e.kind(),
                        io::ErrorKind::NotFound | io::ErrorKind::DirectoryNotEmpty
                    ) => {}
                Err(e) => return Err(Error::io(self.path(dir), "remove", e)),
            }
        }
        self.sync(&self.root)
    }

    pub(crate) fn remove(&self, path: &Path) -> Result<()> {
        match std::fs::remove_file(path) {
            Err(error)
                if !matches!(
                    error.kind(),
                    io::ErrorKind::NotFound | io::ErrorKind::NotADirectory
                ) =>
            {
                Err(Error::io(path, "remove", error))
            }
            _ => Ok(()),
        }
    }

    fn sync(&self, dir: &Path) -> Result<()> {
        match self.durability {
            Durability::Synced => Ok(sync_dir(dir)?),
            Durability::Cached => Ok(()),
        }
    }

    fn refuse_foreign(&self, shards: &BTreeSet<String>) -> Result<()> {
        let known = |name: &OsStr| {
            is_temporary(name)
                || [
                    MANIFEST,
                    INDEX_DIR,
                    PACK_DIR,
                    WORK_DIR,
                    DirLock::FILE_NAME,
                    DirLock::OWNER_FILE_NAME,
                    LOST_AND_FOUND,
                ]
                .iter()
                .any(|k| name == *k)
                || name.to_str().is_some_and(|name| shards.contains(name))
        };
        let mut foreign: Vec<OsString> = list(&self.root)?
            .into_iter()
            .filter(|name| !known(name))
            .collect();
        if shards.is_empty() {
            // Before any shard there is nothing in these directories either.
            for dir in [INDEX_DIR, PACK_DIR] {
                foreign.extend(
                    list(&self.path(dir))?
                        .into_iter()
                        .map(|name| Path::new(dir).join(name).into_os_string()),
                );
            }
        }
        foreign.sort();
        match foreign.first() {
            None => Ok(()),
            Some(first) => Err(Error::destination(
                &self.root,
                format!(
                    "the destination holds {} that no pack of this data set put there ({}): choose an empty or new directory",
                    if foreign.len() == 1 {
                        "a file".to_owned()
                    } else {
                        format!("{} files", foreign.len())
                    },
                    first.display()
                ),
            )),
        }
    }
}

/// `name-00000-of-00001`, with or without `.fbs`.
fn is_shard_name(name: &str) -> bool {
    let stem = name.strip_suffix(".fbs").unwrap_or(name);
    let parts: Vec<&str> = stem.rsplitn(4, '-').collect();
    let five_digits = |text: &str| text.len() == 5 && text.bytes().all(|b| b.is_ascii_digit());
    matches!(parts[..], [count, "of", number, split]
        if five_digits(count) && five_digits(number) && crate::options::is_split_name(split))
}

fn list(dir: &Path) -> Result<Vec<OsString>> {
    let fail = |error| Error::io(dir, "list", error);
    match std::fs::read_dir(dir) {
        Ok(entries) => entries
            .map(|entry| Ok(entry.map_err(fail)?.file_name()))
            .collect(),
        Err(error) if matches!(error.kind(), io::ErrorKind::NotFound) => Ok(Vec::new()),
        Err(error) => Err(fail(error)),
    }
}

/// Makes a directory and those above it, each durable.
fn create_dirs(dir: &Path, durability: Durability) -> Result<()> {
    match std::fs::create_dir(dir) {
        Ok(()) => {}
        Err(error) if error.kind() == io::ErrorKind::AlreadyExists && dir.is_dir() => return Ok(()),
        Err(error) if error.kind() == io::ErrorKind::NotFound => {
            // Some file systems, such as /proc, answer so although the parent is there.
            let Some(parent) = dir
                .parent()
                .filter(|parent| !parent.as_os_str().is_empty() && !parent.is_dir())
            else {
                return Err(Error::io(dir, "create the directory", error));
            };
            create_dirs(parent, durability)?;
            return create_dirs(dir, durability);
        }
        Err(error) => return Err(Error::io(dir, "create the directory", error)),
    }
    match (durability, dir.parent()) {
        (Durability::Synced, Some(parent)) => Ok(sync_dir(parent)?),
        _ => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn shard_names_are_told_from_others() {
        for name in ["train-00000-of-00001", "a.b_c-12345-of-99999.fbs"] {
            assert!(is_shard_name(name), "{name}");
        }
        for name in [
            "",
            "train",
            "../x-00000-of-00001",
            "train-0-of-1",
            "train-00000-of-00001.idx",
            "-00000-of-00001",
        ] {
            assert!(!is_shard_name(name), "{name}");
        }
    }

    #[test]
    fn foreign_files_are_refused_and_kept() {
        let dir = tempfile::tempdir().unwrap();
        let destination = Destination::open(&dir.path().join("a/b"), Durability::Synced).unwrap();
        assert!(matches!(destination.state().unwrap(), State::Empty));
        std::fs::write(dir.path().join("a/b/thesis.tex"), "x").unwrap();
        let error = destination.state().err().unwrap().to_string();
        assert!(error.contains("thesis.tex"), "{error}");
        assert!(Destination::open(&dir.path().join("a/b/thesis.tex"), Durability::Cached).is_err());
    }
}
