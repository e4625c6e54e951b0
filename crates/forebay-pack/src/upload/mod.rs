//! A destination in an object store, or any other that is written through a staging area.
//!
//! Shards are written into a directory of the staging area as into any destination, with the same journal. As soon as a
//! shard is finished it is handed in and goes to its place behind, and its local copy goes when the one in the store is verified. What an
//! interrupted run left is found in both places: a shard counts that is here, or there with its size and checksum. The
//! manifest goes last, alone, with a put that succeeds only if there is none, after every object was looked at once more.

mod claim;
mod keys;
mod room;

use crate::destination::{INDEX_DIR, MANIFEST, PACK_DIR, REPORT, ShardLine};
use crate::error::{Error, Result};
use crate::observer::{Cancel, Observer, Stage};
use claim::{CLAIM, CLAIM_DIR, Claim, place};
use forebay_shard::Manifest;
use forebay_store::stage::{Area, AreaOptions, Item, Reservation};
use forebay_store::{Error as StoreError, Limiter, Location, Object, Put, Store, StoreOptions};
use keys::{files, is_of_pack, is_of_shards, is_probe};
pub(crate) use room::{Room, room_of_planned};
use std::collections::{BTreeMap, BTreeSet};
use std::io::Read;
use std::path::{Path, PathBuf};
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::Duration;

/// A manifest is smaller: a million shards take a tenth of this.
const MANIFEST_MAX_BYTES: u64 = 1 << 30;
/// Objects that are looked at at the same time.
const LOOKS: usize = 16;
/// Under this name the claim's id lies in the session.
const ID_FILE: &str = "claim";
/// How often an observer is told what is uploaded.
const TELL: Duration = Duration::from_millis(200);
/// Why parts and an upload do not go together.
pub(crate) const NO_PARTS: &str = "parts of a pack meet in a directory that all machines see: pack them into one without a staging \
                                   area, finish it there, and copy the data set with `forebay cp`";

/// How a destination in a store is reached, and where shards lie until they are there.
#[derive(Debug, Clone, Default)]
#[non_exhaustive]
pub struct UploadOptions {
    /// The staging area; none: [`AreaOptions::default_dir`]. Given with a local destination, that is written through the area too.
    pub staging_dir: Option<PathBuf>,
    /// Bytes that the area may hold; none: half of what is free on its disk.
    pub staging_bytes: Option<u64>,
    /// How the store is reached.
    pub store: StoreOptions,
    /// The bandwidth of all uploads together.
    pub limiter: Option<Limiter>,
}

impl UploadOptions {
    /// Whether a destination is written through a staging area.
    pub(crate) fn are_for(&self, dst: &Location) -> bool {
        dst.is_remote() || self.staging_dir.is_some()
    }

    /// The area that is used.
    pub fn area_dir(&self) -> PathBuf {
        self.staging_dir
            .clone()
            .unwrap_or_else(AreaOptions::default_dir)
    }
}

/// What is uploaded, for people and programs.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct Uploaded {
    /// Files that this run uploaded.
    pub files: u64,
    /// Their bytes.
    pub bytes: u64,
    /// Bytes handed in so far.
    pub submitted_bytes: u64,
    /// Why nothing moves, while that is so.
    pub trouble: Option<String>,
}

/// What decides a data set, as far as another writer could differ.
pub(crate) struct Identity<'a> {
    pub(crate) plan: &'a str,
    pub(crate) arguments: &'a BTreeMap<String, String>,
    pub(crate) shards: &'a [String],
}

/// A destination that is written through a staging area.
#[derive(Debug)]
pub(crate) struct Upload {
    store: Store,
    area: Area,
    /// Taken once it is known that nobody else writes there.
    claim: Mutex<Option<Claim>>,
    /// Bytes that the largest shard may take.
    shard_bytes: u64,
}

impl Upload {
    /// Opens the store and the staging area, which must have room for the largest shard. Nothing is uploaded yet.
    pub(crate) fn open(
        dst: &Location,
        options: &UploadOptions,
        shard_bytes: u64,
        beside_bytes: u64,
    ) -> Result<Self> {
        if let Some(scheme @ ("http" | "https")) = dst.scheme() {
            let what = format!(
                "{scheme}:// can only be read: name a bucket, such as s3://bucket/name, or a directory"
            );
            return Err(Error::destination(dst.to_string(), what));
        }
        let store = Store::open(dst, &options.store)?;
        let mut area = AreaOptions::new(options.area_dir());
        area.max_bytes = options.staging_bytes;
        area.session = Some(session_name(dst, options));
        area.title = format!("data set for {dst}");
        area.store = options.store.clone();
        area.limiter.clone_from(&options.limiter);
        area.paused = true;
        let area = Area::open(&area)?;
        area.require(shard_bytes.saturating_add(beside_bytes))?;
        Ok(Self {
            store,
            area,
            claim: Mutex::new(None),
            shard_bytes,
        })
    }

    /// The directory that is written instead of the destination.
    pub(crate) fn work_dir(&self) -> PathBuf {
        self.area.data_dir()
    }

    /// The data set that is there, if it is whole.
    pub(crate) fn manifest(&self) -> Result<Option<Manifest>> {
        match self.store.get(MANIFEST, MANIFEST_MAX_BYTES) {
            Ok(bytes) => Ok(Some(Manifest::parse(
                &place(&self.store).join(MANIFEST),
                &bytes,
            )?)),
            Err(StoreError::NotFound { .. }) => Ok(None),
            Err(error) => Err(error.into()),
        }
    }

    /// Takes the destination for this pack, or goes on with it. `is_continued`: the staging area holds the work of an earlier run
    /// of the same plan. `overwrite` removes what is there, and takes over from whoever writes there.
    pub(crate) fn claim(
        &self,
        identity: &Identity<'_>,
        is_continued: bool,
        overwrite: bool,
    ) -> Result<()> {
        let claim = Claim {
            id: self.id()?,
            plan: identity.plan.to_owned(),
            arguments: identity.arguments.clone(),
            by: claim::this_process(),
        };
        let found = Claim::read(&self.store)?;
        let is_own = found
            .as_ref()
            .is_some_and(|(found, _)| found.id == claim.id);
        let is_anew = overwrite || !is_continued;
        match &found {
            Some((other, _)) if !is_own && !overwrite => {
                return Err(claim.lost_to(other, &self.store));
            }
            // Before the claim: where something else lies, nothing is put.
            None if !overwrite && !is_continued => self.refuse_objects(&|_| false)?,
            _ => self.refuse_objects(&is_of_pack)?,
        }
        match found {
            Some((found, _)) if found.is_of(&claim) => {}
            Some((_, tag)) => claim.put(&self.store, tag)?,
            None => claim.put(&self.store, None)?,
        }
        if is_anew {
            self.clear()?;
        } else if self.manifest()?.is_some() {
            // Published, and the claim gone, between the first look and the claim.
            let what = "a data set was published there in this moment, by somebody else: look at it, or choose another destination";
            self.store.delete(CLAIM)?;
            return Err(Error::destination(place(&self.store), what));
        }
        let shards: BTreeSet<&str> = identity.shards.iter().map(String::as_str).collect();
        self.refuse_objects(&|key| is_of_shards(key, &shards))?;
        *self.claim.lock().unwrap_or_else(|e| e.into_inner()) = Some(claim);
        Ok(())
    }

    /// An error if there are objects that are not `known`.
    fn refuse_objects(&self, known: &dyn Fn(&str) -> bool) -> Result<()> {
        let mut foreign = Vec::new();
        let mut listing = self.store.list_dir("")?;
        for dir in [INDEX_DIR, PACK_DIR] {
            if listing.dirs.iter().any(|found| found == dir) {
                let below = self.store.list_dir(dir)?;
                listing.objects.extend(below.objects);
                foreign.extend(below.dirs);
            }
        }
        foreign.extend(
            listing
                .dirs
                .into_iter()
                .filter(|dir| ![INDEX_DIR, PACK_DIR, CLAIM_DIR].contains(&dir.as_str())),
        );
        let objects = listing.objects.into_iter().map(|object| object.key);
        foreign.extend(objects.filter(|key| !is_probe(key) && !known(key)));
        foreign.sort();
        match foreign.first() {
            None => Ok(()),
            Some(first) => Err(Error::destination(
                place(&self.store),
                format!(
                    "the destination holds {} that no pack of this data set put there ({first}): choose another one",
                    if foreign.len() == 1 {
                        "an object".to_owned()
                    } else {
                        format!("{} objects", foreign.len())
                    },
                ),
            )),
        }
    }

    /// Removes the data set, or what there is of one.
    fn clear(&self) -> Result<()> {
        // The manifest first: from here on nobody takes what is left for a data set.
        self.store.delete(MANIFEST)?;
        // Another packer's uploads end here, so that none of them appears later.
        self.store.abort_uploads("")?;
        let mut objects = self.store.list_dir("")?.objects;
        for dir in [INDEX_DIR, PACK_DIR] {
            objects.extend(self.store.list_dir(dir)?.objects);
        }
        for object in objects
            .iter()
            .filter(|object| object.key != CLAIM && is_of_pack(&object.key))
        {
            self.store.delete(&object.key)?;
        }
        Ok(())
    }

    /// What tells this pack from others of the same plan, on disk before it is used.
    fn id(&self) -> Result<String> {
        // Beside the directory that is written as a destination, which holds nothing else.
        let path = self.area.data_dir().with_file_name(ID_FILE);
        if let Ok(text) = std::fs::read_to_string(&path)
            && text.len() == 32
            && text.bytes().all(|b| b.is_ascii_hexdigit())
        {
            return Ok(text);
        }
        let mut random = [0; 16];
        let source = Path::new("/dev/urandom");
        let filled = std::fs::File::open(source).and_then(|mut file| file.read_exact(&mut random));
        filled.map_err(|error| Error::io(source, "read", error))?;
        let id: String = random.iter().map(|byte| format!("{byte:02x}")).collect();
        crate::write::write_file(&path, id.as_bytes(), forebay_store::Durability::Synced)?;
        Ok(id)
    }

    /// Whether the file of a shard is where it belongs.
    pub(crate) fn holds(&self, key: &str, bytes: u64, crc32c: u32) -> Result<bool> {
        let Some(object) = self.store.head(key)? else {
            return Ok(false);
        };
        if object.len != bytes {
            return Ok(false);
        }
        match object.crc32c {
            Some(sum) => Ok(sum == crc32c),
            // Where the store knows no checksums the bytes are looked at.
            None => Ok(self.sum(&object)? == crc32c),
        }
    }

    fn sum(&self, object: &Object) -> Result<u32> {
        const STEP_BYTES: u64 = 8 << 20;
        let mut sum = forebay_shard::checksum::Crc32c::default();
        let mut piece = Vec::new();
        while sum.len() < object.len {
            piece.resize(
                usize::try_from(STEP_BYTES.min(object.len - sum.len())).unwrap_or_default(),
                0,
            );
            self.store.read_at_if(object, sum.len(), &mut piece)?;
            sum.update(&piece);
        }
        Ok(sum.value())
    }

    /// Goes on with what earlier runs finished: what of it lies here is handed in. From here on, uploads run.
    pub(crate) fn resume<'a>(&self, lines: impl Iterator<Item = &'a ShardLine>) -> Result<()> {
        self.area.recount()?;
        let queued = self.area.files();
        for line in lines {
            for (key, bytes, crc32c) in files(line) {
                let is_here = self.area.data_dir().join(&key).exists();
                if is_here && !queued.contains(Path::new(&key)) {
                    let room = self.area.reserve_found(bytes)?;
                    self.hand_in(&key, Some(crc32c), room)?;
                }
            }
        }
        self.area.resume();
        Ok(())
    }

    /// Gives up what is handed in and not stored.
    pub(crate) fn discard(&self) -> Result<()> {
        Ok(self.area.discard()?)
    }

    /// Shards to write at the same time: one more has to find room, so that something drains while others are written.
    pub(crate) fn shards_at_once(&self, jobs: usize) -> usize {
        let fit = self.area.max_bytes() / self.shard_bytes.max(1);
        jobs.min(usize::try_from(fit.saturating_sub(1)).unwrap_or(usize::MAX))
            .max(1)
    }

    /// Waits for room; none if `stopped` says so.
    pub(crate) fn reserve(&self, bytes: u64, stopped: &dyn Fn() -> bool) -> Result<Option<Room>> {
        let taken = self.area.reserve_unless(bytes, stopped)?;
        Ok(taken.map(|reservation| Room(Some(reservation))))
    }

    /// Hands in the files of a finished shard, if the destination is still this pack's.
    pub(crate) fn send(&self, line: &ShardLine, mut room: Room) -> Result<()> {
        match self.check_claim() {
            // A store that does not answer now is asked again at the end.
            Err(Error::Store(StoreError::Request { .. })) => {}
            other => other?,
        }
        let mut all = Vec::new();
        for (key, bytes, crc32c) in files(line) {
            let part = match &mut room.0 {
                Some(reservation) => reservation.split(bytes),
                None => self.area.reserve_found(bytes)?,
            };
            all.push((self.item(&key, Some(crc32c)), part));
        }
        self.area.submit_all(all)?;
        Ok(())
    }

    fn hand_in(&self, key: &str, crc32c: Option<u32>, room: Reservation) -> Result<()> {
        self.area.submit(self.item(key, crc32c), room)?;
        Ok(())
    }

    fn item(&self, key: &str, crc32c: Option<u32>) -> Item {
        Item {
            file: self.area.data_dir().join(key),
            destination: self.store.location().clone(),
            key: key.to_owned(),
            crc32c,
            put: Put::Always,
            after: None,
        }
    }

    fn check_claim(&self) -> Result<()> {
        let claim = self.claim.lock().unwrap_or_else(|e| e.into_inner()).clone();
        claim.map_or(Ok(()), |claim| claim.check(&self.store))
    }

    /// Waits for all uploads, looks at every object, and publishes the manifest, after the report if there is one.
    pub(crate) fn publish(
        &self,
        manifest: &[u8],
        report: Option<&Path>,
        done: &BTreeMap<String, ShardLine>,
        observer: &dyn Observer,
        cancel: &Cancel,
    ) -> Result<()> {
        observer.stage(Stage::Uploading);
        if let Some(report) = report {
            let bytes = std::fs::metadata(report)
                .map_err(|error| Error::io(report, "look at", error))?
                .len();
            let room = self.area.reserve_found(bytes)?;
            self.hand_in(&format!("{PACK_DIR}/{REPORT}"), None, room)?;
        }
        self.area.wait(cancel).map_err(|error| match error {
            StoreError::Cancelled { .. } => Error::Interrupted {
                finished: done.len() as u64,
                total: done.len() as u64,
            },
            error => error.into(),
        })?;
        observer.stage(Stage::Publishing);
        self.look_at_all(done)?;
        self.check_claim()?;
        match self.store.put(MANIFEST, manifest, Put::IfAbsent) {
            Ok(_) => {}
            Err(StoreError::AlreadyThere { .. }) => {
                if self.store.get(MANIFEST, MANIFEST_MAX_BYTES)? != manifest {
                    let what = "another packer published a data set there first: this one is not published";
                    return Err(Error::destination(place(&self.store), what));
                }
            }
            Err(error) => return Err(error.into()),
        }
        Ok(self.store.delete(CLAIM)?)
    }

    /// Nobody else wrote any of the objects since they were uploaded.
    fn look_at_all(&self, done: &BTreeMap<String, ShardLine>) -> Result<()> {
        let all: Vec<_> = done.values().flat_map(files).collect();
        let next = AtomicUsize::new(0);
        let failure: Mutex<Option<Error>> = Mutex::new(None);
        let look = |(key, bytes, crc32c): &(String, u64, u32)| -> Result<()> {
            let found = self.store.head(key)?;
            let is_same = |object: &Object| {
                object.len == *bytes && object.crc32c.is_none_or(|sum| sum == *crc32c)
            };
            if found.as_ref().is_some_and(is_same) {
                return Ok(());
            }
            let what = format!(
                "{key} is not what was uploaded: somebody else writes there. Nothing was published"
            );
            Err(Error::destination(place(&self.store), what))
        };
        std::thread::scope(|scope| {
            for _ in 0..LOOKS.min(all.len()) {
                scope.spawn(|| {
                    while let Some(file) = all.get(next.fetch_add(1, Ordering::Relaxed)) {
                        if let Err(error) = look(file) {
                            next.store(all.len(), Ordering::Relaxed);
                            failure
                                .lock()
                                .unwrap_or_else(|e| e.into_inner())
                                .get_or_insert(error);
                        }
                    }
                });
            }
        });
        failure
            .into_inner()
            .unwrap_or_else(|e| e.into_inner())
            .map_or(Ok(()), Err)
    }

    /// The data set is published: nothing stays here, and no claim there that is of this plan.
    pub(crate) fn finish(self, plan: &str) -> Result<()> {
        let own = self.id()?;
        match Claim::read(&self.store)? {
            Some((claim, _)) if claim.id != own && claim.plan != plan => {}
            _ => {
                // The claim, and what a killed process may have left of proving that claims work.
                for object in self.store.list_dir(CLAIM_DIR)?.objects {
                    self.store.delete(&object.key)?;
                }
                if let Ok(root) = self.store.location().local_path() {
                    // What a process that was killed left half-written, under names that no listing shows.
                    self.store.abort_uploads("")?;
                    // Directories are no objects: an empty one is in nobody's way.
                    let _ = std::fs::remove_dir(root.join(CLAIM_DIR));
                }
            }
        }
        Ok(self.area.remove()?)
    }

    /// Fetches the report of a data set that is there; none if it has none.
    pub(crate) fn fetch_report(&self, to: &Path, cancel: &Cancel) -> Result<Option<PathBuf>> {
        let key = format!("{PACK_DIR}/{REPORT}");
        if self.store.head(&key)?.is_none() {
            return Ok(None);
        }
        let transfer = forebay_store::Transfer::new(cancel);
        self.store.download_file(&key, to, &transfer)?;
        Ok(Some(place(&self.store).join(key)))
    }

    /// What this run uploaded.
    pub(crate) fn uploaded(&self) -> Uploaded {
        let progress = self.area.progress();
        Uploaded {
            files: progress.stored_files,
            bytes: progress.stored_bytes,
            submitted_bytes: progress.submitted_bytes,
            trouble: progress.trouble,
        }
    }

    /// Does the work, and tells the observer meanwhile what is uploaded.
    pub(crate) fn telling<T>(&self, observer: &dyn Observer, work: impl FnOnce() -> T) -> T {
        let is_done = AtomicBool::new(false);
        std::thread::scope(|scope| {
            let teller = scope.spawn(|| {
                while !is_done.load(Ordering::Acquire) {
                    observer.uploaded(&self.uploaded());
                    std::thread::park_timeout(TELL);
                }
                observer.uploaded(&self.uploaded());
            });
            let done = Done(&is_done, teller.thread());
            let result = work();
            drop(done);
            result
        })
    }
}

/// Ends the teller however the work ends.
struct Done<'a>(&'a AtomicBool, &'a std::thread::Thread);

impl Drop for Done<'_> {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Release);
        self.1.unpark();
    }
}

/// A destination as messages and summaries name it.
pub(crate) fn shown(dst: &Location) -> PathBuf {
    match dst.local_path() {
        Ok(path) => path.to_path_buf(),
        Err(_) => PathBuf::from(dst.to_string()),
    }
}

/// The local directories that a pack writes to.
pub(crate) fn written(dst: &Location, options: &UploadOptions) -> Result<Vec<PathBuf>> {
    let mut dirs = Vec::new();
    if options.are_for(dst) {
        dirs.push(options.area_dir());
    }
    if !dst.is_remote() {
        dirs.push(dst.local_path()?.to_path_buf());
    }
    Ok(dirs)
}

/// One session for each destination, so that the same command finds it again.
fn session_name(dst: &Location, options: &UploadOptions) -> String {
    let mut hasher = blake3::Hasher::new();
    hasher.update(dst.to_string().trim_end_matches('/').as_bytes());
    hasher.update(&[0]);
    hasher.update(
        options
            .store
            .endpoint
            .as_deref()
            .unwrap_or_default()
            .as_bytes(),
    );
    format!("pack-{}", &hasher.finalize().to_hex()[..32])
}
