//! The tier in a directory: one file per block, shared by all processes of a host.
//!
//! The file system is the index: a block exists if its file does. It is published by a rename. Eviction unlinks the file and
//! truncates it, so that its space is free at once even if another process has it open; that process then reads too few bytes
//! and fetches the block. `ledger` counts the used bytes over all processes, `room` evicts blocks, `fill` decides which process
//! fills a block, and `live` records the open objects of each process.
//!
//! | name in the directory | content |
//! | --- | --- |
//! | `forebay-cache.json` | marks a cache directory; format version and block size |
//! | `forebay-cache.lock` | the ledger |
//! | `blocks/<id>/<number>` | blocks |
//! | `filling/<id>-<number>` | blocks that are being filled |
//! | `live/<process>-<number>` | the open objects of one open cache |

mod files;
mod fill;
mod ledger;
mod live;
mod marker;
mod room;
mod survey;

use std::fs::File;
use std::io;
use std::os::unix::fs::{FileExt, MetadataExt};
use std::path::{Path, PathBuf};
#[cfg(test)]
use std::sync::atomic::Ordering;
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use rustix::io::Errno;

use super::block::{HEADER_BYTES, Header, MIN_BLOCK_BYTES};
use super::notices::{Notice, Notices};
use super::object_id::{ObjectId, Reads};
use super::stats::Counters;
use files::{OpenFile, OpenFiles};
pub(super) use fill::Filling;
use forebay_store::{Error, Result};
use ledger::{Entry, Ledger};
pub(super) use live::Live;
pub use marker::{CacheContents, CachedLocation, Cleared, clear, contents};
use room::BASE_BYTES;
use survey::Victims;

/// Overhead of a block: inode, name, and its share of the object's directory.
const ENTRY_BYTES: u64 = 8 << 10;
/// How long another process may take to fill a block before readers bypass the cache for this block.
const FILL_PATIENCE: Duration = Duration::from_secs(60);
const FIRST_PAUSE: Duration = Duration::from_millis(1);
const LONGEST_PAUSE: Duration = Duration::from_millis(20);
/// Bytes that a file of this length counts as used.
fn cost(file_len: u64) -> u64 {
    let page = u64::from(MIN_BLOCK_BYTES);
    file_len.div_ceil(page).saturating_mul(page) + ENTRY_BYTES
}

/// Bytes that a block with a payload of this length counts as used.
fn block_cost(payload: u64) -> u64 {
    cost(HEADER_BYTES as u64 + payload)
}

/// Whether an open file is the one at `path`.
fn is_at(file: &File, path: &Path) -> bool {
    match (file.metadata(), std::fs::symlink_metadata(path)) {
        (Ok(ours), Ok(there)) => ours.ino() == there.ino() && ours.dev() == there.dev(),
        _ => false,
    }
}

/// A directory of blocks.
#[derive(Debug)]
pub(super) struct Disk {
    root: PathBuf,
    folders: Folders,
    pub(super) block_bytes: u32,
    /// The limit in bytes, metadata included.
    pub(super) limit: u64,
    ledger: Ledger,
    pub(super) live: Arc<Live>,
    files: OpenFiles,
    victims: Mutex<Victims>,
    counters: Arc<Counters>,
    notices: Arc<Notices>,
    fill_patience: Duration,
    /// Makes writes fail as on a full disk, for tests.
    #[cfg(test)]
    pub(super) faulty: std::sync::atomic::AtomicBool,
}

/// The directories below the root of the cache.
#[derive(Debug)]
struct Folders {
    blocks: PathBuf,
    fills: PathBuf,
    notes: PathBuf,
}

/// The result of [`Disk::begin`] for a missing block.
#[derive(Debug)]
pub(super) enum FillOutcome<'a> {
    /// The caller fills the block.
    Filling(Filling<'a>),
    /// The block has been stored meanwhile.
    Present,
    /// Another process is filling the block.
    Busy,
    /// The block cannot be stored: there is no room, or an error.
    Refused,
}

/// A requested block.
#[derive(Debug, Clone, Copy)]
pub(super) struct Wanted {
    pub(super) id: ObjectId,
    pub(super) number: u64,
    pub(super) payload_len: u32,
    /// When the block was read before.
    pub(super) reads: Reads,
}

impl Disk {
    /// Opens the cache in `root`, or creates it there. `limit` is in bytes and covers everything in the directory.
    pub(super) fn open(
        root: &Path,
        block_bytes: u32,
        limit: Option<u64>,
        counters: &Arc<Counters>,
        notices: &Arc<Notices>,
    ) -> Result<Self> {
        let ledger = loop {
            marker::prepare(root)?;
            let ledger = Ledger::open(&root.join(marker::LEDGER))?;
            // Another process may have removed the cache, the ledger included, between our open and our lock.
            if ledger.lock()?.is_current() {
                break ledger;
            }
        };
        let entry = ledger.lock()?;
        let block_bytes = marker::settle(root, block_bytes)?;
        let dirs = [marker::BLOCKS, marker::FILLS, marker::NOTES].map(|name| root.join(name));
        for dir in &dirs {
            match std::fs::create_dir(dir) {
                Err(error) if error.kind() != io::ErrorKind::AlreadyExists => {
                    return Err(Error::io(dir, "create", error));
                }
                _ => {}
            }
        }
        let [blocks, fills, notes] = dirs;
        drop(entry);
        let mut disk = Self {
            live: Arc::new(Live::create(&notes)?),
            root: root.to_owned(),
            folders: Folders {
                blocks,
                fills,
                notes,
            },
            block_bytes,
            limit: 0,
            ledger,
            files: OpenFiles::within_limits(),
            victims: Mutex::default(),
            counters: Arc::clone(counters),
            notices: Arc::clone(notices),
            fill_patience: FILL_PATIENCE,
            #[cfg(test)]
            faulty: false.into(),
        };
        disk.settle_limit(limit)?;
        Ok(disk)
    }

    /// Bytes in use, metadata included.
    pub(super) fn used(&self) -> u64 {
        self.ledger.glance().unwrap_or(0)
    }

    fn path(&self, id: ObjectId, number: u64) -> PathBuf {
        survey::block_path(&self.folders.blocks, id, number)
    }

    /// Whether the block exists and has a valid header.
    pub(super) fn has(&self, wanted: &Wanted) -> bool {
        self.find(wanted).is_some()
    }

    /// Opens the block if it exists and its header is valid. An invalid block is removed.
    fn find(&self, wanted: &Wanted) -> Option<Arc<OpenFile>> {
        let key = (wanted.id, wanted.number);
        if let Some(file) = self.files.get(key) {
            return Some(file);
        }
        let path = self.path(wanted.id, wanted.number);
        let file = match self.open_block(&path) {
            Ok(file) => file,
            Err(error) if error.kind() == io::ErrorKind::NotFound => return None,
            Err(error) if is_out_of_files(&error) => {
                self.notices.tell(Notice::Descriptors, out_of_files());
                return None;
            }
            // A symbolic link, or a disk error: the block cannot be used.
            Err(_) => {
                self.discard(wanted, None);
                return None;
            }
        };
        match self.check(&file, wanted) {
            Some((header, used_at)) => {
                let file = Arc::new(OpenFile::new(file, header, used_at));
                self.files.put(key, Arc::clone(&file));
                Some(file)
            }
            None => {
                self.discard(wanted, Some(&file));
                None
            }
        }
    }

    fn open_block(&self, path: &Path) -> io::Result<File> {
        match survey::open_to_read(path) {
            Err(error) if is_out_of_files(&error) => {
                self.files.clear();
                survey::open_to_read(path)
            }
            other => other,
        }
    }

    fn check(&self, file: &File, wanted: &Wanted) -> Option<(Header, u64)> {
        let metadata = file.metadata().ok()?;
        let mut head = [0; HEADER_BYTES];
        file.read_exact_at(&mut head, 0).ok()?;
        let header = Header::parse(&head, metadata.len())?;
        let is_it = header.id == wanted.id
            && header.number == wanted.number
            && header.block_bytes == self.block_bytes
            && header.payload_len == wanted.payload_len;
        is_it.then(|| (header, survey::used_at(&metadata)))
    }

    /// Reads a part of a block's payload and verifies it. Returns false if the block does not exist (any more) or is damaged; a
    /// damaged block is removed.
    pub(super) fn read(&self, wanted: &Wanted, offset: usize, out: &mut [u8], now: u64) -> bool {
        // Two tries: the open file may be of an evicted block that was stored again.
        for _ in 0..2 {
            let Some(file) = self.find(wanted) else {
                return false;
            };
            if read_checked(&file, offset, out).is_some() {
                file.note_use(now);
                return true;
            }
            self.files.remove((wanted.id, wanted.number));
            if file
                .file
                .metadata()
                .is_ok_and(|metadata| metadata.nlink() > 0)
            {
                self.discard(wanted, Some(&file.file));
                return false;
            }
        }
        false
    }

    /// Marks a block as used now, because it will be read soon, so that other processes do not evict it.
    pub(super) fn will_need(&self, wanted: &Wanted, now: u64) {
        if let Some(file) = self.find(wanted) {
            file.note_use(now);
        }
    }

    /// Removes a damaged block: the given file if it is still at the path, or, without one, any file at the path.
    fn discard(&self, wanted: &Wanted, file: Option<&File>) {
        let path = self.path(wanted.id, wanted.number);
        let Ok(entry) = self.ledger.lock() else {
            return;
        };
        if file.is_some_and(|file| !is_at(file, &path)) {
            return;
        }
        if std::fs::remove_file(&path).is_ok() {
            self.counters.disk.damaged.add(1);
            // Releases the bytes that were reserved for the block, whatever the file's length is now.
            self.take_off(&entry, block_cost(u64::from(wanted.payload_len)));
        }
    }

    fn take_off(&self, entry: &Entry<'_>, bytes: u64) {
        if let Some(used) = entry.used() {
            // If the write fails, the bytes count as used until the next recount.
            let _ = entry.set_used(used.saturating_sub(bytes).max(BASE_BYTES));
        }
    }

    fn give_back(&self, bytes: u64) {
        if let Ok(entry) = self.ledger.lock() {
            self.take_off(&entry, bytes);
        }
    }

    /// Starts to fill a block. If another process is filling it and `wait` is set, waits for that process. `is_pinned` tells
    /// which blocks must not be evicted.
    pub(super) fn begin(
        &self,
        wanted: &Wanted,
        wait: bool,
        is_pinned: &dyn Fn(ObjectId, u64) -> bool,
    ) -> FillOutcome<'_> {
        let started = Instant::now();
        let mut pause = FIRST_PAUSE;
        let mut has_waited = false;
        loop {
            if self.find(wanted).is_some() {
                return FillOutcome::Present;
            }
            // This check runs at every miss of a full cache, so it comes before a file is created.
            if self.is_full_for(wanted) {
                return FillOutcome::Refused;
            }
            match Filling::claim(self, wanted.id, wanted.number) {
                Ok(fill::Claim::Mine(filling)) => {
                    // Another process may have published the block before our claim.
                    if self.find(wanted).is_some() {
                        return FillOutcome::Present;
                    }
                    return self.reserve(filling, wanted, is_pinned);
                }
                Ok(fill::Claim::Busy) if !wait => return FillOutcome::Busy,
                Ok(fill::Claim::Busy) if started.elapsed() < self.fill_patience => {
                    if !std::mem::replace(&mut has_waited, true) {
                        self.counters.waited.add(1);
                    }
                    std::thread::sleep(pause);
                    pause = (pause * 2).min(LONGEST_PAUSE);
                }
                Ok(fill::Claim::Busy) => {
                    self.notices.tell(
                        Notice::Waiting,
                        format!(
                            "another process has been filling a block in {} for {} s: it is read around the cache",
                            self.root.display(),
                            self.fill_patience.as_secs()
                        ),
                    );
                    return FillOutcome::Refused;
                }
                Err(error) => {
                    self.failed(&error);
                    return FillOutcome::Refused;
                }
            }
        }
    }

    fn reserve<'a>(
        &'a self,
        mut filling: Filling<'a>,
        wanted: &Wanted,
        is_pinned: &dyn Fn(ObjectId, u64) -> bool,
    ) -> FillOutcome<'a> {
        let bytes = block_cost(u64::from(wanted.payload_len));
        match self.make_room(bytes, wanted.reads, is_pinned) {
            Ok(true) => filling.reserved = bytes,
            Ok(false) => return FillOutcome::Refused,
            Err(error) => {
                self.notices.tell(Notice::ErrorKind, error.to_string());
                return FillOutcome::Refused;
            }
        }
        let file_len = HEADER_BYTES as u64 + u64::from(wanted.payload_len);
        match filling.allocate(file_len) {
            Ok(()) => FillOutcome::Filling(filling),
            Err(error) => {
                self.failed(&error);
                FillOutcome::Refused
            }
        }
    }

    /// Reports an error that prevents blocks from being stored.
    pub(super) fn failed(&self, error: &io::Error) {
        let dir = self.root.display();
        if is_out_of_files(error) {
            self.files.clear();
            self.notices.tell(Notice::Descriptors, out_of_files());
        } else if is_full(error) {
            self.notices.tell(
                Notice::Space,
                format!("no room is left for {dir} ({error}): what does not fit is read around it"),
            );
        } else {
            self.notices.tell(
                Notice::ErrorKind,
                format!("cannot store blocks in {dir}: {error}; they are read around it"),
            );
        }
    }

    /// Closes all open files, so that the next read opens and verifies them again.
    #[cfg(test)]
    pub(super) fn close_files(&self) {
        self.files.clear();
    }

    #[cfg(test)]
    fn fault(&self) -> io::Result<()> {
        if self.faulty.load(Ordering::Relaxed) {
            return Err(Errno::NOSPC.into());
        }
        Ok(())
    }

    #[cfg(not(test))]
    #[expect(clippy::unused_self)]
    fn fault(&self) -> io::Result<()> {
        Ok(())
    }
}

/// Reads `out` from the payload and verifies all chunks that it touches. `None` if the file is truncated or damaged.
fn read_checked(file: &OpenFile, offset: usize, out: &mut [u8]) -> Option<()> {
    let (header, chunk) = (&file.header, file.header.chunk_bytes());
    let payload = header.payload_len as usize;
    let end = offset
        .checked_add(out.len())
        .filter(|end| *end <= payload)?;
    let read = |bytes: &mut [u8], at: usize| {
        file.file
            .read_exact_at(bytes, (HEADER_BYTES + at) as u64)
            .ok()
    };
    // Whole chunks are read directly into `out`; partial chunks at both ends are read into a separate buffer.
    let first = offset.next_multiple_of(chunk).min(end);
    let last = if end == payload {
        end
    } else {
        (end / chunk * chunk).max(first)
    };
    let (head, rest) = out.split_at_mut(first - offset);
    let (whole, tail) = rest.split_at_mut(last - first);
    if !whole.is_empty() {
        read(whole, first)?;
        if !header.are_chunks(first / chunk, whole) {
            return None;
        }
    }
    let mut beside = Vec::new();
    for (part, at) in [(head, offset), (tail, last)] {
        if part.is_empty() {
            continue;
        }
        let number = at / chunk;
        let start = number * chunk;
        beside.resize(chunk.min(payload - start), 0);
        read(&mut beside, start)?;
        if !header.are_chunks(number, &beside) {
            return None;
        }
        part.copy_from_slice(&beside[at - start..at - start + part.len()]);
    }
    Some(())
}

fn is_out_of_files(error: &io::Error) -> bool {
    let code = error.raw_os_error();
    [Errno::MFILE, Errno::NFILE]
        .iter()
        .any(|errno| code == Some(errno.raw_os_error()))
}

fn is_full(error: &io::Error) -> bool {
    matches!(
        error.kind(),
        io::ErrorKind::StorageFull | io::ErrorKind::QuotaExceeded
    )
}

fn out_of_files() -> String {
    "too many files are open (`ulimit -n`) for the cache to open its own: it is read around"
        .to_owned()
}
