//! The staging area: a directory of limited size on a fast disk, from which finished files are uploaded in the background.
//!
//! A writer reserves bytes with [`StagingArea::reserve`], which waits while the area is full, writes a file, and submits it with
//! [`StagingArea::submit`]. When that call returns, the file, its name and a line in a journal are on disk. Background threads
//! upload the file, verify its checksum, and then delete the local file. Files of a killed process are uploaded by the next
//! session of the same name, or by [`StagingArea::recover`].
//!
//! Any number of processes may share an area. Each opens a *session*: a directory with a lock that the kernel releases when the
//! process ends. The size limit applies to all sessions together. The area may be on a tmpfs (`/dev/shm/stage`): then files
//! survive a killed process, but neither a reboot nor a power cut, even where the documentation says "on disk".

pub mod checkpoint;
mod drain;
mod journal;
mod queue;
mod room;
mod session;
mod status;
mod tasks;
mod unit;

#[cfg(any(test, feature = "fuzzing"))]
#[doc(hidden)]
pub use journal::fuzz as fuzz_journal;
pub use room::Reservation;
use session::{AreaLock, make_dirs};
pub use session::{Sealed, StagedFile};
pub use status::{AreaStatus, LeftFile, SessionStatus, UploadProgress};

use checkpoint::Sum;
use forebay_store::{Cancel, Error, Limiter, Location, Result, Store, StoreOptions, sync_dir};
use journal::Submitted;
use queue::{Entry, UploadOutcomes};
use session::Session;
use std::collections::{BTreeMap, BTreeSet};
use std::fs::File;
use std::io::{self, BufReader};
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};
use std::time::Duration;
use tasks::{TaskQueue, Tried};

/// The environment variable with the default area. If it is not set, the area is `forebay/stage` in the user's cache directory.
pub const STAGING_VARIABLE: &str = "FOREBAY_STAGING";
/// The path of the default area below the user's cache directory.
const BELOW_CACHE: &str = "forebay/stage";
/// Files that are uploaded at once. Large files are also split into parallel parts.
const UPLOADS: usize = 4;
/// How long uploads of a file are retried.
const PATIENCE: Duration = Duration::from_secs(15 * 60);
/// The default limit allows the free space of the disk, divided by this, in addition to the files in the area.
const SHARE_OF_FREE: u64 = 2;
/// Bytes of one read while a checksum is computed.
const READ_BYTES: usize = 1 << 20;

/// Options of a staging area.
#[derive(Debug, Clone)]
#[non_exhaustive]
pub struct AreaOptions {
    /// The directory, created if necessary, with access for this user only.
    pub dir: PathBuf,
    /// Limit of all sessions together in bytes. `None`: the bytes in the area, plus half of the free space of its disk.
    pub max_bytes: Option<u64>,
    /// The name of the session. A named session continues when it is opened again, and cannot be opened while another process has
    /// it open. `None` creates a new session.
    pub session: Option<String>,
    /// A description of the session.
    pub title: String,
    /// The options of the stores. The journal keeps endpoint, region and `anonymous` only, for recovery by another process.
    pub store: StoreOptions,
    /// Files that are uploaded at once.
    pub uploads: usize,
    /// How long uploads of a file are retried before the file counts as failed.
    pub patience: Duration,
    /// The bandwidth limit of all uploads together. It can be shared with other transfers and changed while uploads run.
    pub limiter: Option<Limiter>,
    /// Whether uploads start only after [`StagingArea::resume`].
    pub paused: bool,
}

impl AreaOptions {
    /// Options for a new session in a directory, without a bandwidth limit.
    pub fn new(dir: impl Into<PathBuf>) -> Self {
        Self {
            dir: dir.into(),
            max_bytes: None,
            session: None,
            title: String::new(),
            store: StoreOptions::default(),
            uploads: UPLOADS,
            patience: PATIENCE,
            limiter: None,
            paused: false,
        }
    }

    /// The default directory: [`lasting_dir`], or, if there is none, one in the system's temporary directory.
    pub fn default_dir() -> PathBuf {
        lasting_dir().unwrap_or_else(|| std::env::temp_dir().join(BELOW_CACHE))
    }
}

/// Returns `$FOREBAY_STAGING`, else `forebay/stage` in `$XDG_CACHE_HOME`, else in `~/.cache`; `None` if `$HOME` is not set.
/// Unlike the temporary directory, these are not emptied at a reboot.
pub fn lasting_dir() -> Option<PathBuf> {
    variable(STAGING_VARIABLE).or_else(|| Some(user_cache()?.join(BELOW_CACHE)))
}

/// Returns `$XDG_CACHE_HOME`, else `~/.cache`; `None` if `$HOME` is not set.
pub fn user_cache() -> Option<PathBuf> {
    let cache = variable("XDG_CACHE_HOME").filter(|dir| dir.is_absolute());
    cache.or_else(|| Some(variable("HOME")?.join(".cache")))
}

fn variable(name: &str) -> Option<PathBuf> {
    let value = std::env::var_os(name).filter(|value| !value.is_empty())?;
    Some(PathBuf::from(value))
}

/// A file to be uploaded.
#[derive(Debug, Clone)]
pub struct Item {
    /// The path in [`StagingArea::data_dir`]. The area owns the file after the submission: no process may write to it.
    pub file: PathBuf,
    /// The location that the key is relative to.
    pub destination: Location,
    /// The object's key.
    pub key: String,
    /// The CRC32C of the file, if it is known. Otherwise the file is read to compute it.
    pub crc32c: Option<u32>,
}

/// A session in a staging area. Dropping it stops uploads; submitted files stay for the process that continues or recovers it.
#[derive(Debug)]
pub struct StagingArea {
    shared: Arc<Shared>,
    is_open: bool,
}

/// Converts I/O errors of a directory that cannot be created or written to [`Error::AreaNotWritable`], whose hint names the
/// staging area rather than the destination.
fn of_area(error: Error) -> Error {
    use std::io::ErrorKind::{NotADirectory, PermissionDenied, ReadOnlyFilesystem};
    match error {
        Error::Io { path, op, source }
            if matches!(
                source.kind(),
                NotADirectory | PermissionDenied | ReadOnlyFilesystem
            ) =>
        {
            Error::AreaNotWritable { path, op, source }
        }
        error => error,
    }
}

/// State that the area, its reservations and its threads share.
#[derive(Debug)]
struct Shared {
    dir: PathBuf,
    max_bytes: u64,
    options: AreaOptions,
    own: Arc<Session>,
    /// Bytes of files that were in the session when it was opened and are not submitted yet.
    found_bytes: Mutex<u64>,
    queue: TaskQueue<Entry>,
    ledger: Mutex<UploadOutcomes>,
    stores: Mutex<BTreeMap<String, Store>>,
    /// Cancels uploads.
    stop: Cancel,
    sent_bytes: AtomicU64,
    process: u32,
}

impl StagingArea {
    /// Opens a session, and starts to upload the files that an earlier process left in it.
    ///
    /// # Errors
    /// [`Error::Locked`] if another process has the session of this name open.
    pub fn open(options: &AreaOptions) -> Result<Self> {
        let dir = std::path::absolute(&options.dir)
            .map_err(|error| Error::io(&options.dir, "resolve", error))?;
        let (own, found) =
            Session::open(&dir, options.session.as_deref(), &options.title).map_err(of_area)?;
        let own = Arc::new(own);
        let max_bytes = match options.max_bytes {
            Some(bytes) => bytes,
            None => {
                let held: u64 = room::all_held(&dir, &own)?;
                held.saturating_add(forebay_store::free_bytes(&dir)? / SHARE_OF_FREE)
            }
        };
        // The queue's threads hold a weak reference, so that a dropped area is freed.
        let shared = Arc::new_cyclic(|shared: &Weak<Shared>| Shared {
            queue: TaskQueue::new("forebay-stage", options.uploads, options.paused, {
                let shared = Weak::clone(shared);
                move |entry| match shared.upgrade() {
                    Some(shared) => drain::step(&shared, entry),
                    None => Tried::Again(PATIENCE),
                }
            }),
            dir,
            max_bytes,
            options: options.clone(),
            found_bytes: Mutex::new(0),
            ledger: Mutex::default(),
            stores: Mutex::default(),
            stop: Cancel::new(),
            sent_bytes: AtomicU64::new(0),
            process: std::process::id(),
            own: Arc::clone(&own),
        });
        shared.take_up(found);
        Ok(Self {
            shared,
            is_open: true,
        })
    }

    /// Uploads the files that processes left in an area when they ended. With `options.session`, only the files of that session.
    /// Skips sessions of running processes.
    ///
    /// # Errors
    /// The error of the first file that could not be uploaded, after all other files were tried; the file stays in the area.
    pub fn recover(options: &AreaOptions, cancel: &Cancel) -> Result<UploadProgress> {
        let dir = std::path::absolute(&options.dir)
            .map_err(|error| Error::io(&options.dir, "resolve", error))?;
        let mut sum = UploadProgress::default();
        let mut failure = None;
        for session in status::look(&dir)?.sessions {
            let is_wanted = options
                .session
                .as_ref()
                .is_none_or(|name| *name == session.name);
            if session.owner.is_some() || !is_wanted {
                continue;
            }
            let title = session.title;
            let options = AreaOptions {
                session: Some(session.name),
                title,
                paused: false,
                ..options.clone()
            };
            let area = match Self::open(&options) {
                // Another process recovers this session.
                Err(Error::Locked { .. }) => continue,
                other => other?,
            };
            let waited = area.wait(cancel);
            sum = sum.plus(area.progress());
            match waited {
                Ok(()) => area.close()?,
                Err(error) if cancel.is_cancelled() => return Err(error),
                Err(error) => drop(failure.get_or_insert(error)),
            }
        }
        failure.map_or(Ok(sum), Err)
    }

    /// Returns the sessions of an area without opening any of them.
    pub fn look(dir: &Path) -> Result<AreaStatus> {
        status::look(dir)
    }

    /// The directory of the area.
    pub fn dir(&self) -> &Path {
        &self.shared.dir
    }

    /// The directory in which files must be written before they are submitted.
    pub fn data_dir(&self) -> PathBuf {
        self.shared.own.data()
    }

    /// The limit of all sessions together in bytes.
    pub fn max_bytes(&self) -> u64 {
        self.shared.max_bytes
    }

    /// Creates a file in [`data_dir`](Self::data_dir). The caller must have reserved its bytes.
    pub fn create(&self, name: &str) -> Result<StagedFile> {
        self.shared.check_process()?;
        StagedFile::create(&self.data_dir(), name)
    }

    /// Starts uploads, if the area was opened paused.
    pub fn resume(&self) {
        self.shared.queue.resume();
    }

    /// Takes over a written file. When this returns, the file, its name and its line in the journal are on disk.
    ///
    /// # Errors
    /// Also returns the error of an earlier file that could not be uploaded, once.
    pub fn submit(&self, item: Item, room: Reservation) -> Result<()> {
        self.submit_all(vec![(item, room)])
    }

    /// As [`submit`](Self::submit), for several files: the journal is fsynced once, and all files are taken over or none.
    ///
    /// # Errors
    /// As [`submit`](Self::submit).
    pub fn submit_all(&self, files: Vec<(Item, Reservation)>) -> Result<()> {
        let shared = &self.shared;
        shared.check_process()?;
        shared.tell_failure()?;
        let mut described = Vec::with_capacity(files.len());
        let mut dirs = BTreeSet::new();
        for (item, _) in &files {
            described.push(shared.describe(item, &mut dirs)?);
        }
        dirs.iter().try_for_each(|dir| sync_dir(dir))?;
        let session = &shared.own;
        // The journal stays locked until the files are queued, so that it is not rewritten without them in between.
        let mut journal = session.journal();
        for submitted in &mut described {
            submitted.id = journal.next_id();
        }
        journal.submitted(&described)?;
        for ((_, room), submitted) in files.into_iter().zip(described) {
            room.becomes(submitted.len)?;
            let entry = Entry::new(Arc::clone(session), submitted, false);
            shared.ledger().submitted(&entry.submitted);
            shared.queue.add(Arc::new(entry));
        }
        Ok(())
    }

    /// Paths, relative to [`data_dir`](Self::data_dir), of the submitted files that are not stored.
    pub fn files(&self) -> BTreeSet<PathBuf> {
        let left = self.shared.left();
        let files = left.iter().map(|entry| &entry.submitted.file);
        files.map(PathBuf::from).collect()
    }

    /// Fails if the area can never hold this many bytes.
    pub fn require(&self, bytes: u64) -> Result<()> {
        self.shared.require(bytes)
    }

    /// Waits until all submitted files are at their destinations.
    ///
    /// # Errors
    /// The error of the first file that could not be uploaded, after all others have finished; [`Error::Cancelled`].
    pub fn wait(&self, cancel: &Cancel) -> Result<()> {
        self.shared.check_process()?;
        self.shared.wait_until(cancel, || self.shared.end())
    }

    /// The progress of the uploads.
    pub fn progress(&self) -> UploadProgress {
        let sent_bytes = self.shared.sent_bytes.load(Ordering::Relaxed);
        UploadProgress {
            sent_bytes,
            ..self.shared.ledger().progress()
        }
    }

    /// All sessions of the area.
    pub fn status(&self) -> Result<AreaStatus> {
        status::look(&self.shared.dir)
    }

    /// Removes all submitted files that are not stored from the queue and the journal; the local files stay.
    pub fn discard(&self) -> Result<()> {
        let shared = &self.shared;
        let mut journal = shared.own.journal();
        let idle = shared.queue.take_idle();
        for entry in shared.ledger().discard(idle) {
            journal.dropped(entry.submitted.id)?;
        }
        drop(journal);
        self.recount()
    }

    /// Recounts the bytes of the session, after its files were changed without the area's methods. No reservation may be held.
    pub fn recount(&self) -> Result<()> {
        self.shared.recount()
    }

    /// Closes the session. If all files are stored and it has no name, its directory is removed.
    pub fn close(mut self) -> Result<()> {
        self.stop();
        if self.shared.is_done() {
            self.shared.own.close(&self.shared.dir, false)
        } else {
            Ok(())
        }
    }

    /// Closes the session, and removes it with all of its files, stored or not.
    pub fn remove(mut self) -> Result<()> {
        self.stop();
        self.shared.own.close(&self.shared.dir, true)
    }

    fn stop(&mut self) {
        self.is_open = false;
        self.shared.stop.cancel();
        self.shared.queue.close();
    }
}

impl Drop for StagingArea {
    fn drop(&mut self) {
        // In a forked child the queue has no threads, and the files belong to the parent.
        if self.shared.process != std::process::id() {
            return;
        }
        let was_open = self.is_open;
        self.stop();
        if was_open && self.shared.is_done() {
            // If the removal fails, an empty session stays, which the next recovery removes.
            let _ = self.shared.own.close(&self.shared.dir, false);
        }
    }
}

impl Shared {
    fn ledger(&self) -> MutexGuard<'_, UploadOutcomes> {
        self.ledger.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Whether all files are at their destinations.
    fn is_done(&self) -> bool {
        matches!(self.end(), Some(Ok(())))
    }

    /// Fails in a forked child: threads do not survive a fork, so a call that waits for them would never return.
    fn check_process(&self) -> Result<()> {
        if self.process == std::process::id() {
            return Ok(());
        }
        Err(self.error(
            "it was opened before this process was forked: open it in the process that uses it",
        ))
    }

    fn error(&self, what: impl Into<String>) -> Error {
        Error::Staging {
            dir: self.dir.clone(),
            what: what.into(),
        }
    }

    /// Queues the files that an earlier process left in the session.
    fn take_up(&self, found: journal::Found) {
        let mut bytes = 0u64;
        for left in found.left.into_values() {
            bytes = bytes.saturating_add(left.submitted.len);
            self.ledger().submitted(&left.submitted);
            let entry = Entry::new(Arc::clone(&self.own), left.submitted, true);
            self.queue.add(Arc::new(entry));
        }
        *self
            .found_bytes
            .lock()
            .unwrap_or_else(PoisonError::into_inner) = self.own.held().bytes.saturating_sub(bytes);
    }

    /// Returns the error of a file that could not be uploaded, if no caller has received it yet.
    fn tell_failure(&self) -> Result<()> {
        self.ledger().untold.take().map_or(Ok(()), Err)
    }

    /// Returns the journal's line of an item, without its id. Fsyncs the file; its name is durable once `dirs` are fsynced.
    fn describe(&self, item: &Item, dirs: &mut BTreeSet<PathBuf>) -> Result<Submitted> {
        let data = self.own.data();
        let path = data.join(&item.file);
        let outside = || {
            self.error(format!(
                "{} is not one of the session's files",
                path.display()
            ))
        };
        let inside = path
            .strip_prefix(&data)
            .ok()
            .filter(|file| journal::is_inside(file))
            .ok_or_else(outside)?;
        let name = inside.to_str().ok_or_else(outside)?.to_owned();
        let file = open_plain(&path)?;
        let len = file
            .metadata()
            .map_err(|error| Error::io(&path, "look at", error))?
            .len();
        file.sync_all()
            .map_err(|error| Error::io(&path, "fsync", error))?;
        dirs.extend(path.parent().map(Path::to_path_buf));
        let location = item.destination.to_string();
        if Location::parse(&location).ok().as_ref() != Some(&item.destination) {
            return Err(self.error(format!(
                "{location} cannot be written down: it is not UTF-8"
            )));
        }
        let crc32c = match item.crc32c {
            Some(sum) => sum,
            None => sum_of(&path, file)?,
        };
        let store = &self.options.store;
        Ok(Submitted {
            id: 0,
            file: name,
            len,
            crc32c,
            location,
            key: item.key.clone(),
            endpoint: store.public_endpoint(),
            region: store.region.clone(),
            anonymous: store.anonymous,
        })
    }

    /// The store of a file's location; each location is opened once.
    fn store(&self, submitted: &Submitted) -> Result<Store> {
        let mut stores = self.stores.lock().unwrap_or_else(|e| e.into_inner());
        if let Some(store) = stores.get(&submitted.location) {
            return Ok(store.clone());
        }
        let mut options = self.options.store.clone();
        // A process that recovers the session may override endpoint and region; the defaults come from the journal.
        options.endpoint = options.endpoint.or_else(|| submitted.endpoint.clone());
        options.region = options.region.or_else(|| submitted.region.clone());
        options.anonymous |= submitted.anonymous;
        // Uploads stop when the area is closed, not when the caller's flag is raised, which only ends its waits.
        options.cancel = Some(self.stop.clone());
        let store = Store::open(&Location::parse(&submitted.location)?, &options)?;
        stores.insert(submitted.location.clone(), store.clone());
        Ok(store)
    }
}

/// Opens a regular file. Refuses symbolic and hard links, which may refer to files outside the session.
fn open_plain(path: &Path) -> Result<File> {
    use rustix::fs::{Mode, OFlags};
    let flags = OFlags::RDONLY | OFlags::NOFOLLOW | OFlags::CLOEXEC | OFlags::NONBLOCK;
    let file: File = rustix::fs::open(path, flags, Mode::empty())
        .map_err(|errno| Error::io(path, "open", errno))?
        .into();
    let meta = file
        .metadata()
        .map_err(|error| Error::io(path, "look at", error))?;
    // With a second hard link the bytes would outlive the deletion, and could be changed through it.
    if !meta.is_file() || meta.nlink() != 1 {
        let odd = io::Error::other("it is no regular file of its own");
        return Err(Error::io(path, "open", odd));
    }
    Ok(file)
}

/// Reads a file and returns its CRC32C.
fn sum_of(path: &Path, file: File) -> Result<u32> {
    let mut sum = Sum::default();
    io::copy(&mut BufReader::with_capacity(READ_BYTES, file), &mut sum)
        .map_err(|error| Error::io(path, "read", error))?;
    Ok(sum.crc32c)
}
