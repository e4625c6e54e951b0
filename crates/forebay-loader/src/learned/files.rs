//! Learned seek points in files, which the processes of a machine share, and later runs begin with.
//!
//! A dataset's split has a directory. Each process appends to a file of its own there, and reads what others appended. An
//! entry is the number of a record, the length of its points, the points, and the CRC-32C of all of it. Entries are used up
//! to the first one that is incomplete: its writer may be about to complete it.

use std::collections::HashMap;
use std::ffi::OsString;
use std::fs::{DirBuilder, DirEntry, File, OpenOptions};
use std::hash::{DefaultHasher, Hash, Hasher};
use std::io::{self, Read, Seek, SeekFrom, Write};
use std::os::unix::fs::{DirBuilderExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::sync::OnceLock;
use std::time::{Duration, SystemTime};

use forebay_image::LearnedPoints;

/// The start of each file.
const MAGIC: [u8; 8] = *b"FBLEARN1";
/// Bytes of an entry beside its points: record, length and checksum.
const OVERHEAD: usize = 8 + 2 + 4;
/// Maximum number of files that a split has. Runs that learn nothing new add none.
const MAX_FILES: usize = 256;
/// The points of a split that no run has used for this long are removed.
const KEPT_FOR: Duration = Duration::from_secs(30 * 86_400);

static DIRECTORY: OnceLock<PathBuf> = OnceLock::new();

/// Shares learned seek points with other processes and later runs, in this directory. The first call of a process counts, and
/// loaders that are opened after it.
pub fn share_learned_seek_points(directory: PathBuf) {
    let _ = DIRECTORY.set(directory);
}

/// The files of a split.
#[derive(Debug)]
pub(super) struct Files {
    dir: PathBuf,
    /// The process that may append to `own`: a child of a fork has a file of its own.
    pid: u32,
    own: Option<(OsString, File)>,
    /// Bytes that all files together may have.
    limit: u64,
    /// The offset up to which each file was read.
    read: HashMap<OsString, u64>,
    /// Whether writing failed, or there are too many files or bytes.
    is_closed: bool,
}

impl Files {
    /// Opens the directory of a split; `None` if this process shares no points, or the directory cannot be made.
    pub(super) fn open(fingerprint: &str, split: &str) -> Option<Self> {
        let root = DIRECTORY.get()?;
        let mut hasher = DefaultHasher::new();
        (fingerprint, split).hash(&mut hasher);
        let dir = root.join(format!("{:016x}", hasher.finish()));
        Self::at(root, dir).ok()
    }

    pub(super) fn at(root: &Path, dir: PathBuf) -> io::Result<Self> {
        let mut builder = DirBuilder::new();
        builder.recursive(true).mode(0o700).create(&dir)?;
        remove_unused(root);
        // The time of its last use.
        let _ = File::open(&dir).and_then(|dir| dir.set_modified(SystemTime::now()));
        Ok(Self {
            dir,
            pid: std::process::id(),
            own: None,
            limit: 0,
            read: HashMap::new(),
            is_closed: false,
        })
    }

    /// Passes what other processes have saved since the last call to `found`. All files together may have `limit` bytes.
    pub(super) fn load(&mut self, limit: u64, mut found: impl FnMut(u64, LearnedPoints)) {
        self.limit = limit;
        let mut each = |entry: io::Result<DirEntry>| {
            let entry = entry?;
            let (name, length) = (entry.file_name(), entry.metadata()?.len());
            let is_own = self.own.as_ref().is_some_and(|(own, _)| *own == name);
            let start = self.read.get(&name).copied().unwrap_or(0);
            if !is_own && length > start && length <= limit {
                let end = read_entries(&entry.path(), start, length, &mut found)?;
                self.read.insert(name, end);
            }
            io::Result::Ok(())
        };
        for entry in std::fs::read_dir(&self.dir).into_iter().flatten() {
            // Points that cannot be read now are learned here, or read the next time.
            let _ = each(entry);
        }
    }

    /// Appends entries to the file of this process. A failure is the end of it: the points are in memory.
    pub(super) fn save(&mut self, entries: &[u8]) {
        if entries.is_empty() || self.is_closed {
            return;
        }
        if self.pid != std::process::id() {
            (self.pid, self.own) = (std::process::id(), None);
        }
        self.is_closed = !self.append(entries).unwrap_or(false);
    }

    /// Returns whether there was room.
    fn append(&mut self, entries: &[u8]) -> io::Result<bool> {
        let (mut files, mut bytes) = (0, entries.len() as u64);
        for entry in std::fs::read_dir(&self.dir)? {
            (files, bytes) = (files + 1, bytes + entry?.metadata()?.len());
        }
        if bytes > self.limit || (self.own.is_none() && files >= MAX_FILES) {
            return Ok(false);
        }
        let file = match &mut self.own {
            Some((_, file)) => file,
            None => &mut self.own.insert(create(&self.dir)?).1,
        };
        file.write_all(entries)?;
        Ok(true)
    }
}

/// Appends the entry of a record's points.
pub(super) fn encode(record: u64, points: &LearnedPoints, entries: &mut Vec<u8>) {
    let Ok(length) = u16::try_from(points.as_bytes().len()) else {
        return;
    };
    let start = entries.len();
    entries.extend_from_slice(&record.to_le_bytes());
    entries.extend_from_slice(&length.to_le_bytes());
    entries.extend_from_slice(points.as_bytes());
    let checksum = crc32c::crc32c(&entries[start..]);
    entries.extend_from_slice(&checksum.to_le_bytes());
}

/// Creates a file that no other process appends to.
fn create(dir: &Path) -> io::Result<(OsString, File)> {
    let since = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH);
    let name = format!(
        "{}-{:x}",
        std::process::id(),
        since.unwrap_or_default().as_nanos()
    );
    let mut options = OpenOptions::new();
    let options = options.append(true).create_new(true).mode(0o600);
    let mut file = options.open(dir.join(&name))?;
    file.write_all(&MAGIC)?;
    Ok((name.into(), file))
}

/// Reads the complete entries of a file between `start` and `length`; returns the offset behind them.
fn read_entries(
    path: &Path,
    start: u64,
    length: u64,
    found: &mut impl FnMut(u64, LearnedPoints),
) -> io::Result<u64> {
    let mut file = forebay_shard::storage::open_file(path)?;
    file.seek(SeekFrom::Start(start))?;
    let mut bytes = Vec::new();
    file.take(length - start).read_to_end(&mut bytes)?;
    let mut rest = bytes.as_slice();
    if start == 0 {
        match rest.strip_prefix(&MAGIC) {
            Some(entries) => rest = entries,
            None if rest.len() < MAGIC.len() => return Ok(0),
            // The file is of another version, or of something else.
            None => return Ok(u64::MAX),
        }
    }
    while let Some((record, points, behind)) = read_entry(rest) {
        rest = behind;
        if let Some(points) = points {
            found(record, points);
        }
    }
    Ok(start + (bytes.len() - rest.len()) as u64)
}

/// The first entry, and the bytes behind it; `None` if it is incomplete or damaged.
fn read_entry(bytes: &[u8]) -> Option<(u64, Option<LearnedPoints>, &[u8])> {
    let (record, rest) = bytes.split_first_chunk::<8>()?;
    let (length, _) = rest.split_first_chunk::<2>()?;
    let end = OVERHEAD + usize::from(u16::from_le_bytes(*length));
    let (entry, behind) = bytes.split_at_checked(end)?;
    let (entry, checksum) = entry.split_last_chunk::<4>()?;
    if crc32c::crc32c(entry) != u32::from_le_bytes(*checksum) {
        return None;
    }
    let points = LearnedPoints::from_bytes(&entry[OVERHEAD - 4..]);
    Some((u64::from_le_bytes(*record), points, behind))
}

/// Removes the points of splits that no run has used for long. A directory that cannot be removed stays.
fn remove_unused(root: &Path) {
    for entry in std::fs::read_dir(root).into_iter().flatten().flatten() {
        let used = entry.metadata().and_then(|split| split.modified());
        let age = used.ok().and_then(|used| used.elapsed().ok());
        let name = entry.file_name();
        let is_ours = name.len() == 16
            && name
                .to_string_lossy()
                .bytes()
                .all(|b| b.is_ascii_hexdigit());
        if is_ours && age.is_some_and(|age| age > KEPT_FOR) {
            let _ = std::fs::remove_dir_all(entry.path());
        }
    }
}
