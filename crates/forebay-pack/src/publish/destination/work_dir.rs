//! The directory to which a pack or conversion writes: its locks, its state, and its removal.
//!
//! While a pack runs, the directory contains the finished shards, and the lock, `.forebay-pack/journal` and temporary files,
//! which are removed at the end. `forebay.json` is written after everything else is in place.
//!
//! If several machines share the work, each part has a directory `.forebay-pack/part-00003-of-00016` with its own lock
//! and journal, and all parts have the plan `.forebay-pack/plan` in common.

use super::journal::{Header, Journal, JournalContents, PlanDifference, ShardLine};
use super::locks::{self, Locks};
use super::plan_file::{self, PlanFile, SharedPlan};
use super::{
    INDEX_DIR, LAST_FILES, MANIFEST, PACK_DIR, REPORT, WORK_DIR, is_shard_name, split_dir,
    split_of_numbered,
};
use crate::census::{CensusRecord, RECORD_MAX_BYTES};
use crate::error::{Error, Result};
use crate::options::Part;
use forebay_formats::records::Conversion;
use forebay_shard::LocalFiles;
use forebay_shard::manifest::Manifest;
use forebay_store::{
    AtomicFile, DirLock, Durability, clean_stale, is_temporary, sync_dir, write_file,
};
use rustix::fs::{Mode, OFlags};
use rustix::io::Errno;
use serde::Serialize;
use serde::de::DeserializeOwned;
use std::collections::{BTreeMap, BTreeSet};
use std::ffi::{OsStr, OsString};
use std::fs::File;
use std::io::{self, BufRead, BufReader, BufWriter, Write};
use std::path::{Path, PathBuf};

const JOURNAL: &str = "journal";
/// The plan that parts share.
const PLAN: &str = "plan";
/// Decoded images of a compressed archive. It has the extension of temporary files, which `open` removes.
const SPOOL: &str = ".spool.forebay-tmp";
/// Created by mkfs at the root of a file system; contains no data.
const LOST_AND_FOUND: &str = "lost+found";

/// The locked directory to which shards are written.
#[derive(Debug)]
pub(crate) struct WorkDir {
    root: PathBuf,
    durability: Durability,
    /// The part that is written; `None` for the whole pack.
    part: Option<Part>,
    _locks: Locks,
}

/// State of the directory.
pub(crate) enum State {
    /// The directory is empty.
    Empty,
    /// An unfinished pack.
    Unfinished(Box<UnfinishedPack>),
    /// A complete dataset.
    Complete(Box<Manifest>),
}

/// The unfinished work of earlier runs and of parts.
pub(crate) struct UnfinishedPack {
    pub(crate) plan: Option<PlanFile>,
    /// Journals with the parts that wrote them; `None` for a run that held the destination exclusively.
    pub(crate) journals: Vec<(Option<Part>, JournalContents)>,
}

impl UnfinishedPack {
    /// Returns the first lines of the plan and of all journals.
    pub(crate) fn headers(&self) -> impl Iterator<Item = &Header> {
        let plan = self.plan.iter().map(|plan| &plan.header);
        plan.chain(self.journals.iter().map(|(_, found)| &found.header))
    }

    /// Returns how the unfinished work differs from the current pack; the most severe difference, if there are several.
    pub(crate) fn difference(&self, now: &Header) -> PlanDifference {
        let mut gravest = PlanDifference::None;
        for header in self.headers() {
            match header.difference(now) {
                PlanDifference::None => {}
                PlanDifference::Source(words) => gravest = PlanDifference::Source(words),
                other => return other,
            }
        }
        gravest
    }

    /// Returns the numbers of parts into which the work was divided.
    pub(crate) fn part_counts(&self) -> BTreeSet<u32> {
        let parts = self.journals.iter().filter_map(|(part, _)| *part);
        parts.map(Part::count).collect()
    }

    /// Returns all finished shards.
    pub(crate) fn into_lines(self) -> Vec<ShardLine> {
        let journals = self.journals.into_iter();
        journals.flat_map(|(_, found)| found.shards).collect()
    }
}

/// Calls `each` for the lines of a report, if it exists. Lines that a newer version wrote are ignored.
pub(crate) fn read_report<T: DeserializeOwned>(path: &Path, mut each: impl FnMut(T)) -> Result<()> {
    let file = match forebay_shard::storage::open_file(path) {
        Ok(file) => file,
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(()),
        Err(error) => return Err(Error::io(path, "open", error)),
    };
    for line in BufReader::new(file).split(b'\n') {
        let line = line.map_err(|error| Error::io(path, "read", error))?;
        if let Ok(line) = forebay_shard::json::from_slice(&line) {
            each(line);
        }
    }
    Ok(())
}

impl WorkDir {
    /// Creates the directory if necessary, locks it, and removes the temporary files of a killed process.
    pub(crate) fn open(root: &Path, durability: Durability) -> Result<Self> {
        create_dirs(root, durability)?;
        let dir = Self {
            root: root.to_path_buf(),
            durability,
            part: None,
            _locks: locks::alone(root)?,
        };
        for stale in [
            root.to_path_buf(),
            root.join(WORK_DIR),
            dir.index_dir(),
            root.join(PACK_DIR),
        ] {
            clean_stale(&stale)?;
        }
        Ok(dir)
    }

    /// Creates the directory if necessary, and locks it for one part; other processes may write other parts concurrently.
    pub(crate) fn open_part(root: &Path, durability: Durability, part: Part) -> Result<Self> {
        create_dirs(root, durability)?;
        let shared = locks::share(root)?;
        // A directory with unrelated files is refused.
        if locks::parts(root).next().is_none()
            && plan_file::read(&plan_path(root))?.is_none()
            && !LAST_FILES.iter().any(|name| root.join(name).exists())
            && Journal::read(&journal_path(root))?.is_none()
            && let Err(foreign) = refuse_foreign(root, &BTreeSet::new())
            // Another part may have started in between; then the files are its shards.
            && !plan_path(root).exists()
        {
            return Err(foreign);
        }
        let dir = locks::dir(root, part);
        create_dirs(&dir, durability)?;
        let locks = locks::part(root, shared, part)?;
        // Temporary files outside of the part's directory are replaced when their shards are written again.
        clean_stale(&dir)?;
        Ok(Self {
            root: root.to_path_buf(),
            durability,
            part: Some(part),
            _locks: locks,
        })
    }

    pub(crate) fn root(&self) -> &Path {
        &self.root
    }

    pub(crate) fn durability(&self) -> Durability {
        self.durability
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

    /// Writes the report, a line for each of `lines`.
    pub(crate) fn write_report(&self, lines: impl Iterator<Item = impl Serialize>) -> Result<()> {
        self.create_dir(PACK_DIR)?;
        let path = self.report();
        let fail = |error: io::Error| Error::io(&path, "write", error);
        let mut report = BufWriter::new(AtomicFile::create(&path)?);
        for line in lines {
            serde_json::to_writer(&mut report, &line).map_err(|error| fail(error.into()))?;
            report.write_all(b"\n").map_err(fail)?;
        }
        let report = report
            .into_inner()
            .map_err(|error| fail(error.into_error()))?;
        Ok(report.commit(self.durability)?)
    }

    /// Returns the directory of the files that only an unfinished pack needs.
    fn work_dir(&self) -> PathBuf {
        match self.part {
            Some(part) => locks::dir(&self.root, part),
            None => self.path(WORK_DIR),
        }
    }

    pub(crate) fn journal(&self) -> PathBuf {
        self.work_dir().join(JOURNAL)
    }

    /// Returns the state of the directory. Files that no pack created are an error. A part does not read the journals of
    /// other parts, of which there may be a thousand.
    pub(crate) fn state(&self) -> Result<State> {
        if self.path(MANIFEST).exists() {
            return Ok(State::Complete(Box::new(Manifest::load(&self.root)?)));
        }
        if let Some(conversion) = Conversion::load(&self.root, &LocalFiles::new(1))? {
            return Ok(State::Complete(Box::new(conversion.to_manifest())));
        }
        let plan = plan_file::read(&plan_path(&self.root))?;
        let mut journals = Vec::new();
        if let Some(found) = Journal::read(&journal_path(&self.root))? {
            journals.push((None, found));
        }
        let of_interest = |part: &Part| {
            self.part
                .is_none_or(|own| own == *part || own.count() != part.count())
        };
        for part in locks::parts(&self.root).filter(of_interest) {
            if let Some(found) = Journal::read(&locks::dir(&self.root, part).join(JOURNAL))? {
                journals.push((Some(part), found));
            }
        }
        if plan.is_some() || !journals.is_empty() {
            return Ok(State::Unfinished(Box::new(UnfinishedPack {
                plan,
                journals,
            })));
        }
        if self.part.is_none() {
            refuse_foreign(&self.root, &BTreeSet::new())?;
        }
        Ok(State::Empty)
    }

    /// Reads the plan that parts in a directory share.
    pub(crate) fn read_plan(root: &Path) -> Result<Option<PlanFile>> {
        plan_file::read(&plan_path(root))
    }

    /// Reads a recorded census; `None` if it was removed.
    pub(crate) fn read_census(root: &Path, name: &str) -> Result<Option<Vec<u8>>> {
        let path = census_path(root, name);
        let fail = |error| Error::io(&path, "read", error);
        let len = match std::fs::metadata(&path) {
            Ok(meta) => meta.len(),
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
            Err(error) => return Err(fail(error)),
        };
        if len > RECORD_MAX_BYTES {
            return Err(fail(io::ErrorKind::FileTooLarge.into()));
        }
        std::fs::read(&path).map(Some).map_err(fail)
    }

    pub(crate) fn has_plan(&self) -> bool {
        has_plan(&self.root)
    }

    /// Publishes the plan for all parts. The plan of the first part is used; returns it.
    pub(crate) fn publish_plan(&self, plan: &SharedPlan<'_>) -> Result<PlanFile> {
        let target = plan_path(&self.root);
        create_dirs(&self.work_dir(), self.durability)?;
        if let Some(census) = plan.census {
            let path = census_path(&self.root, &census.name);
            write_file(&path, &census.bytes, self.durability)?;
        }
        // The file is synced before it gets the final name under which other parts find it.
        let own = self.work_dir().join(PLAN);
        let plan = plan_file::encode(&target, plan)?;
        write_file(&own, &plan, self.durability)?;
        if self.part.is_some() {
            match std::fs::hard_link(&own, &target) {
                Ok(()) => {}
                Err(error) if error.kind() == io::ErrorKind::AlreadyExists => {}
                // Without hard links, the last plan replaces the others, and finishing detects a part that has used another one.
                Err(_) => std::fs::rename(&own, &target)
                    .map_err(|error| Error::io(&target, "publish", error))?,
            }
            self.remove(&own)?;
            self.sync(&self.path(WORK_DIR))?;
        }
        let published = plan_file::read(&target)?;
        published.ok_or_else(|| Error::io(&target, "read", io::ErrorKind::NotFound))
    }

    /// Removes the dataset or unfinished pack in the directory; refuses if there are other files. `discard` cancels uploads from
    /// the directory, before any file is removed.
    pub(crate) fn clear(&self, state: State, discard: &dyn Fn() -> Result<()>) -> Result<()> {
        let shards: Vec<String> = match state {
            State::Empty => return Ok(()),
            State::Unfinished(unfinished) => {
                let listed = unfinished.headers().flat_map(|header| &header.shards);
                let mut shards: Vec<String> = listed.cloned().collect();
                if unfinished.headers().any(Header::is_open_ended) {
                    shards.extend(self.numbered_shards()?);
                }
                shards
            }
            State::Complete(manifest) => manifest
                .splits
                .iter()
                .flat_map(|split| &split.shards)
                .map(|shard| shard.name.clone())
                .collect(),
        };
        // The names come from a file that is not trusted, so only valid names of shards are removed.
        let shards: BTreeSet<String> = shards
            .into_iter()
            .filter(|name| is_shard_name(name))
            .collect();
        refuse_foreign(&self.root, &shards)?;
        discard()?;
        // The manifest is removed first, so that no reader takes the remaining files for a dataset.
        for name in LAST_FILES {
            self.remove(&self.path(name))?;
        }
        self.sync(&self.root)?;
        for name in &shards {
            self.remove_shard(name)?;
        }
        let dirs: BTreeSet<_> = shards.iter().filter_map(|shard| split_dir(shard)).collect();
        for (dir, index) in dirs {
            self.remove(&self.path(&index))?;
            clean_stale(&self.path(dir))?;
            remove_empty(&self.path(dir))?;
        }
        self.remove(&self.report())?;
        // If the journal were removed before a shard, that shard would be an unknown file after a crash.
        for dir in [self.index_dir(), self.root.clone()] {
            if dir.is_dir() {
                self.sync(&dir)?;
            }
        }
        self.finish()
    }

    /// Returns the shards here whose names do not contain the number of shards.
    fn numbered_shards(&self) -> Result<Vec<String>> {
        let names = list(&self.root)?.into_iter();
        let names = names.filter_map(|name| name.into_string().ok());
        Ok(names
            .filter(|name| split_of_numbered(name).is_some())
            .collect())
    }

    /// Removes numbered shards except those to keep. A killed process leaves a shard that its journal does not list.
    pub(crate) fn remove_numbered_but(&self, keep: &BTreeMap<String, ShardLine>) -> Result<()> {
        for name in self.numbered_shards()? {
            if !keep.contains_key(&name) {
                self.remove_shard(&name)?;
            }
        }
        Ok(())
    }

    /// Removes a shard and its sidecars.
    fn remove_shard(&self, name: &str) -> Result<()> {
        self.remove(&self.path(name))?;
        for extension in ["fbi", "idx"] {
            self.remove(&self.index_dir().join(format!("{name}.{extension}")))?;
        }
        Ok(())
    }

    /// Creates the journal, or continues it with the valid shards.
    pub(crate) fn begin_journal<'a>(
        &self,
        header: &Header,
        shards: impl Iterator<Item = &'a ShardLine>,
    ) -> Result<Journal> {
        create_dirs(&self.work_dir(), self.durability)?;
        Journal::begin(&self.journal(), header, shards, self.durability)
    }

    /// Creates a temporary file without a name, which disappears when this process ends in any way.
    pub(crate) fn unnamed_file(&self) -> Result<File> {
        let flags = OFlags::TMPFILE | OFlags::RDWR | OFlags::CLOEXEC;
        match rustix::fs::open(self.work_dir(), flags, Mode::from_raw_mode(0o600)) {
            Ok(fd) => return Ok(fd.into()),
            // Not every file system supports unnamed files.
            Err(Errno::OPNOTSUPP | Errno::ISDIR | Errno::INVAL) => {}
            Err(errno) => return Err(Error::io(&self.root, "create an unnamed file in", errno)),
        }
        // After a crash before the removal, the next run recognizes the name as that of a temporary file and removes it.
        let path = self.work_dir().join(SPOOL);
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

    /// Removes the files that only an unfinished pack needs, and empty directories.
    pub(crate) fn finish(&self) -> Result<()> {
        for part in locks::parts(&self.root) {
            let dir = locks::dir(&self.root, part);
            for name in [JOURNAL, PLAN, DirLock::FILE_NAME, DirLock::OWNER_FILE_NAME] {
                self.remove(&dir.join(name))?;
            }
            clean_stale(&dir)?;
            remove_empty(&dir)?;
        }
        self.remove(&plan_path(&self.root))?;
        for name in list(&self.path(WORK_DIR))? {
            if name.to_str().is_some_and(CensusRecord::is_file_name) {
                self.remove(&self.path(WORK_DIR).join(name))?;
            }
        }
        self.remove(&self.journal())?;
        for dir in [WORK_DIR, INDEX_DIR, PACK_DIR] {
            remove_empty(&self.path(dir))?;
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
}

pub(super) fn plan_path(root: &Path) -> PathBuf {
    root.join(WORK_DIR).join(PLAN)
}

/// Returns the path of a recorded census.
fn census_path(root: &Path, name: &str) -> PathBuf {
    root.join(WORK_DIR).join(CensusRecord::file_name(name))
}

/// Returns whether there is a plan of a pack in parts.
pub(super) fn has_plan(root: &Path) -> bool {
    plan_path(root).exists()
}

/// Returns the path of the journal of a process that holds the destination exclusively.
pub(super) fn journal_path(root: &Path) -> PathBuf {
    root.join(WORK_DIR).join(JOURNAL)
}

/// Removes a directory if it is empty.
fn remove_empty(dir: &Path) -> Result<()> {
    match std::fs::remove_dir(dir) {
        Err(error)
            if !matches!(
                error.kind(),
                io::ErrorKind::NotFound | io::ErrorKind::DirectoryNotEmpty
            ) =>
        {
            Err(Error::io(dir, "remove", error))
        }
        _ => Ok(()),
    }
}

/// Returns an error if there are files that no pack with these shards creates.
fn refuse_foreign(root: &Path, shards: &BTreeSet<String>) -> Result<()> {
    let dirs: BTreeMap<&str, String> = shards.iter().filter_map(|s| split_dir(s)).collect();
    let known = |name: &OsStr| {
        is_temporary(name)
            || LAST_FILES.iter().any(|k| name == *k)
            || [
                INDEX_DIR,
                PACK_DIR,
                WORK_DIR,
                DirLock::FILE_NAME,
                DirLock::OWNER_FILE_NAME,
                LOST_AND_FOUND,
            ]
            .iter()
            .any(|k| name == *k)
            || name
                .to_str()
                .is_some_and(|name| shards.contains(name) || dirs.contains_key(name))
    };
    let mut foreign: Vec<OsString> = list(root)?
        .into_iter()
        .filter(|name| !known(name))
        .collect();
    for (dir, index) in &dirs {
        let path = Path::new(dir);
        let below = list(&root.join(path))?.into_iter();
        let below = below.filter(|name| !is_temporary(name));
        foreign.extend(
            below
                .map(|name| path.join(name).into_os_string())
                .filter(|name| {
                    let name = name.to_str().unwrap_or_default();
                    !shards.contains(name) && name != index
                }),
        );
    }
    if shards.is_empty() {
        // If no shard is expected, these directories must be empty too.
        for dir in [INDEX_DIR, PACK_DIR] {
            foreign.extend(
                list(&root.join(dir))?
                    .into_iter()
                    .map(|name| Path::new(dir).join(name).into_os_string()),
            );
        }
    }
    foreign.sort();
    match foreign.first() {
        None => Ok(()),
        Some(first) => Err(Error::destination(
            root,
            format!(
                "the destination holds {} that no pack of this dataset put there ({}): choose an empty or new directory",
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

/// Creates a directory and its parents, and syncs each of them.
fn create_dirs(dir: &Path, durability: Durability) -> Result<()> {
    match std::fs::create_dir(dir) {
        Ok(()) => {}
        Err(error) if error.kind() == io::ErrorKind::AlreadyExists && dir.is_dir() => return Ok(()),
        Err(error) if error.kind() == io::ErrorKind::NotFound => {
            // Some file systems, such as /proc, return this error although the parent exists.
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
    fn foreign_files_are_refused_and_kept() {
        let dir = tempfile::tempdir().unwrap();
        let work_dir = WorkDir::open(&dir.path().join("a/b"), Durability::Synced).unwrap();
        assert!(matches!(work_dir.state().unwrap(), State::Empty));
        std::fs::write(dir.path().join("a/b/thesis.tex"), "x").unwrap();
        let error = work_dir.state().err().unwrap().to_string();
        assert!(error.contains("thesis.tex"), "{error}");
        assert!(WorkDir::open(&dir.path().join("a/b/thesis.tex"), Durability::Cached).is_err());
    }
}
