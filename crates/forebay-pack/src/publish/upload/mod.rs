//! A destination in an object store, or any other destination that is written through a staging area.
//!
//! Shards are written into a directory of the staging area as into a local destination, with the same journal. A finished
//! shard is uploaded in the background, and its local copy is deleted when the copy in the store is verified. A resumed run
//! accepts a shard that exists either locally or in the store, with its size and checksum. The manifest is uploaded last,
//! with a put that succeeds only if there is none, after every object was checked once more.

mod claim;
mod keys;
mod open;
mod parts;
mod room;

use crate::error::{Error, Result};
use crate::observer::{Cancel, Observer, Stage};
use crate::options::{Part, UploadOptions};
use crate::publish::destination::{
    self, BeginState, Destination, Header, INDEX_DIR, Identity, LAST_FILES, MANIFEST, PACK_DIR,
    PlanFile, Publication, REPORT, Request, ShardLine, SharedPlan, SpaceReservation, State,
    WorkDir,
};
use crate::report::Uploaded;
use claim::{CLAIM, CLAIM_DIR, Claim, place};
use forebay_formats::key_path::is_split_name;
use forebay_formats::records::Conversion;
use forebay_shard::Manifest;
use forebay_staging::{AreaOptions, Item, Reservation, StagingArea};
use forebay_store::{
    Durability, Error as StoreError, Location, Object, Put, Store, clean_stale_tree,
    for_each_parallel, write_file,
};
use keys::{files, is_of_pack, is_of_shards, is_probe};
use open::session_name;
pub(crate) use open::{Step, open, open_parts, recorded_plan, shown, written};
pub(crate) use room::{room_of, room_of_planned};
use std::collections::BTreeMap;
use std::io::{self, Read};
use std::path::{Path, PathBuf};
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

/// Size limit of a manifest in bytes; one with a million shards has a tenth of this.
const MANIFEST_MAX_BYTES: u64 = 1 << 30;
/// Number of objects that are checked concurrently.
const LOOKS: usize = 16;
/// Name of the file with the claim's id, in the session of the staging area.
const ID_FILE: &str = "claim";
/// Interval of progress reports about uploads.
const TELL: Duration = Duration::from_millis(200);

/// A destination that is written through a staging area.
#[derive(Debug)]
pub(crate) struct StagedDestination {
    dir: WorkDir,
    store: Store,
    area: StagingArea,
    /// Set when this pack owns the destination.
    claim: Mutex<Option<Claim>>,
    /// The part that is written, if this process writes one.
    part: Option<Part>,
    /// Maximum size of a shard in bytes.
    shard_bytes: u64,
}

impl StagedDestination {
    /// Opens the store and the staging area, which must have space for the largest shard. Uploads nothing. `step` is that
    /// of a dataset in parts.
    pub(crate) fn open(
        dst: &Location,
        options: &UploadOptions,
        durability: Durability,
        step: Option<Step>,
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
        area.session = Some(session_name(dst, options) + &Step::suffix(step));
        area.title = format!("dataset for {dst}");
        area.store = options.store.clone();
        area.limiter.clone_from(&options.limiter);
        area.paused = true;
        let area = StagingArea::open(&area)?;
        area.require(shard_bytes.saturating_add(beside_bytes))?;
        Ok(Self {
            dir: WorkDir::open(&area.data_dir(), durability)?,
            store,
            area,
            claim: Mutex::new(None),
            part: match step {
                Some(Step::Part(part)) => Some(part),
                _ => None,
            },
            shard_bytes,
        })
    }

    /// Returns the manifest in the store, if the dataset there is complete.
    fn manifest(&self) -> Result<Option<Manifest>> {
        for name in LAST_FILES {
            let path = place(&self.store).join(name);
            match self.store.get(name, MANIFEST_MAX_BYTES) {
                Ok(bytes) if name == MANIFEST => return Ok(Some(Manifest::parse(&path, &bytes)?)),
                Ok(bytes) => return Ok(Some(Conversion::parse(&path, &bytes)?.to_manifest())),
                Err(StoreError::NotFound { .. }) => {}
                Err(error) => return Err(error.into()),
            }
        }
        Ok(None)
    }

    /// Uploads a small file, unless it exists with the same bytes.
    fn put_new(&self, name: &str, bytes: &[u8]) -> Result<()> {
        match self.store.put(name, bytes, Put::IfAbsent) {
            Ok(_) => Ok(()),
            Err(StoreError::AlreadyThere { .. }) => {
                if self.store.get(name, MANIFEST_MAX_BYTES)? != bytes {
                    let what =
                        "another packer published a dataset there first: this one is not published";
                    return Err(Error::destination(place(&self.store), what));
                }
                Ok(())
            }
            Err(error) => Err(error.into()),
        }
    }

    /// Claims the destination for this pack, or continues its claim. `is_continued`: the staging area contains the work of an
    /// earlier run of the same plan. `overwrite` removes an existing dataset, and takes the claim over from any other owner.
    fn claim(&self, identity: &Identity<'_>, is_continued: bool, overwrite: bool) -> Result<()> {
        let claim = Claim {
            id: self.id()?,
            plan: identity.plan.to_owned(),
            arguments: identity.arguments.clone(),
            by: claim::this_process(),
        };
        if overwrite {
            self.remove_parts()?;
        } else {
            self.refuse_parts()?;
        }
        let found = Claim::read(&self.store)?;
        let is_own = found
            .as_ref()
            .is_some_and(|(found, _)| found.id == claim.id);
        let is_anew = overwrite || !is_continued;
        match &found {
            Some((other, _)) if !is_own && !overwrite => {
                return Err(claim.lost_to(other, &self.store));
            }
            // Checked before the claim, so that nothing is written where other objects exist.
            None if !overwrite && !is_continued => self.refuse_objects(&|_| false)?,
            _ => self.refuse_objects(&is_of_pack)?,
        }
        match found {
            Some((found, _)) if found.is_of(&claim) => {}
            Some((_, tag)) => claim.put(&self.store, tag)?,
            None => claim.put(&self.store, None)?,
        }
        if let Err(parts) = self.refuse_parts() {
            self.store.delete(CLAIM)?;
            return Err(parts);
        }
        if is_anew {
            self.clear()?;
        } else if self.manifest()?.is_some() {
            // Another process has published a dataset and deleted its claim since the first check.
            let what = "another process published a dataset there meanwhile: inspect it, or choose another destination";
            self.store.delete(CLAIM)?;
            return Err(Error::destination(place(&self.store), what));
        }
        self.refuse_objects(&|key| is_of_shards(key, &|shard| identity.owns(shard)))?;
        *self.claim.lock().unwrap_or_else(|e| e.into_inner()) = Some(claim);
        Ok(())
    }

    /// Returns an error if there are objects whose keys are not `known`.
    fn refuse_objects(&self, known: &dyn Fn(&str) -> bool) -> Result<()> {
        let mut foreign = Vec::new();
        let mut listing = self.store.list_dir("")?;
        for dir in std::mem::take(&mut listing.dirs) {
            if self.is_own_dir(&dir) {
                let below = self.store.list_dir(&dir)?;
                listing.objects.extend(below.objects);
                foreign.extend(below.dirs);
            } else if dir != CLAIM_DIR {
                foreign.push(dir);
            }
        }
        let objects = listing.objects.into_iter().map(|object| object.key);
        foreign.extend(objects.filter(|key| !is_probe(key) && !known(key)));
        foreign.sort();
        match foreign.first() {
            None => Ok(()),
            Some(first) => Err(Error::destination(
                place(&self.store),
                format!(
                    "the destination holds {} that no pack of this dataset put there ({first}): choose another one",
                    if foreign.len() == 1 {
                        "an object".to_owned()
                    } else {
                        format!("{} objects", foreign.len())
                    },
                ),
            )),
        }
    }

    /// Waits for the uploads of all submitted files. `finished` is the number of finished shards, for the error.
    fn wait(&self, cancel: &Cancel, finished: usize) -> Result<()> {
        self.area.wait(cancel).map_err(|error| match error {
            StoreError::Cancelled { .. } => Error::Interrupted {
                finished: finished as u64,
                total: finished as u64,
            },
            error => error.into(),
        })
    }

    /// Returns whether a directory may belong to a dataset: for indexes, the report, or the files of a split.
    fn is_own_dir(&self, dir: &str) -> bool {
        [INDEX_DIR, PACK_DIR].contains(&dir) || is_split_name(dir)
    }

    /// Removes the dataset, complete or not.
    fn clear(&self) -> Result<()> {
        // The manifest is removed first, so that no reader takes the remaining objects for a dataset.
        for name in LAST_FILES {
            self.store.delete(name)?;
        }
        let listing = self.store.list_dir("")?;
        let mut objects = listing.objects;
        for dir in listing.dirs.iter().filter(|dir| self.is_own_dir(dir)) {
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

    /// Returns the id of this pack, which distinguishes it from others with the same plan. It is stored before it is used.
    fn id(&self) -> Result<String> {
        // The file is outside of the directory that serves as the destination, where other files are not allowed.
        let path = self.area.data_dir().with_file_name(ID_FILE);
        let found = forebay_shard::storage::read_file(&path).map(String::from_utf8);
        if let Ok(Ok(text)) = found
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
        write_file(&path, id.as_bytes(), Durability::Synced)?;
        Ok(id)
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

    fn hand_in(&self, key: &str, crc32c: Option<u32>, room: Reservation) -> Result<()> {
        Ok(self.area.submit(self.item(key, crc32c), room)?)
    }

    fn item(&self, key: &str, crc32c: Option<u32>) -> Item {
        Item {
            file: self.area.data_dir().join(key),
            destination: self.store.location().clone(),
            key: key.to_owned(),
            crc32c,
        }
    }

    fn check_claim(&self) -> Result<()> {
        let claim = self.claim.lock().unwrap_or_else(|e| e.into_inner()).clone();
        claim.map_or(Ok(()), |claim| claim.check(&self.store))
    }

    /// Checks that no other process replaced an object after its upload.
    fn look_at_all(&self, done: &BTreeMap<String, ShardLine>) -> Result<()> {
        let all: Vec<_> = done.values().flat_map(files).collect();
        for_each_parallel(&all, LOOKS, |(key, bytes, crc32c)| {
            let found = self.store.head(key)?;
            let is_same = |object: &Object| {
                object.len == *bytes && object.crc32c.is_none_or(|sum| sum == *crc32c)
            };
            if found.as_ref().is_some_and(is_same) {
                return Ok(());
            }
            let what = format!(
                "{key} is not what was uploaded: another process writes there; nothing was published, choose another destination"
            );
            Err(Error::destination(place(&self.store), what))
        })
    }

    /// Returns the uploads of this run.
    fn progress(&self) -> Uploaded {
        let progress = self.area.progress();
        Uploaded {
            files: progress.stored_files,
            bytes: progress.stored_bytes,
            submitted_bytes: progress.submitted_bytes,
            trouble: progress.trouble,
        }
    }
}

impl Destination for StagedDestination {
    fn dir(&self) -> &WorkDir {
        &self.dir
    }

    fn begin_plan(&self, request: &Request<'_>, observer: &dyn Observer) -> Result<BeginState> {
        self.begin_shared_plan(request, observer)
    }

    fn state(&self) -> Result<State> {
        self.shared_state()
    }

    fn has_plan(&self) -> Result<bool> {
        Ok(self.store.head(parts::PLAN)?.is_some())
    }

    fn publish_plan(&self, plan: &SharedPlan<'_>) -> Result<PlanFile> {
        self.put_plan(plan)
    }

    fn put_part(
        &self,
        part: Part,
        header: &Header,
        done: &BTreeMap<String, ShardLine>,
        cancel: &Cancel,
    ) -> Result<()> {
        self.wait(cancel, done.len())?;
        self.put_record(part, header, done)
    }

    fn begin(&self, request: &Request<'_>, observer: &dyn Observer) -> Result<BeginState> {
        if !request.overwrite
            && let Some(manifest) = self.manifest()?
        {
            (request.refuse_other)(&manifest)?;
            return Ok(BeginState::Complete(Box::new(manifest)));
        }
        let discard = || -> Result<()> { Ok(self.area.discard()?) };
        let taken = destination::take(&self.dir, request, observer, &discard)?;
        let is_continued = matches!(
            taken,
            BeginState::Lines {
                is_continued: true,
                ..
            }
        );
        self.claim(&request.header.identity(), is_continued, request.overwrite)?;
        Ok(taken)
    }

    fn resume(&self, done: &BTreeMap<String, ShardLine>) -> Result<()> {
        self.area.recount()?;
        let queued = self.area.files();
        for line in done.values() {
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

    fn holds(&self, key: &str, bytes: u64, crc32c: u32) -> Result<bool> {
        let Some(object) = self.store.head(key)? else {
            return Ok(false);
        };
        if object.len != bytes {
            return Ok(false);
        }
        match object.crc32c {
            Some(sum) => Ok(sum == crc32c),
            // If the store does not return checksums, the bytes are read.
            None => Ok(self.sum(&object)? == crc32c),
        }
    }

    fn shards_at_once(&self, jobs: usize) -> usize {
        let fit = self.area.max_bytes() / self.shard_bytes.max(1);
        jobs.min(usize::try_from(fit.saturating_sub(1)).unwrap_or(usize::MAX))
            .max(1)
    }

    fn reserve(&self, bytes: u64, stopped: &dyn Fn() -> bool) -> Result<Option<SpaceReservation>> {
        let taken = self.area.reserve_unless(bytes, stopped)?;
        Ok(taken.map(|reservation| SpaceReservation(Some(reservation))))
    }

    fn put_shard(&self, line: &ShardLine, mut room: SpaceReservation) -> Result<()> {
        match self.check_claim() {
            // If the store does not respond now, the claim is checked again at the end.
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
        Ok(self.area.submit_all(all)?)
    }

    fn publish(
        &self,
        dataset: &Publication<'_>,
        observer: &dyn Observer,
        cancel: &Cancel,
    ) -> Result<()> {
        observer.stage(Stage::Uploading);
        let (manifest, done) = (dataset.manifest, dataset.shards);
        if let Some(report) = dataset.report {
            let key = format!("{PACK_DIR}/{REPORT}");
            // A killed run may have submitted the same report, which is deleted after its upload.
            self.wait(cancel, done.len())?;
            match std::fs::metadata(report) {
                Ok(file) => {
                    let room = self.area.reserve_found(file.len())?;
                    self.hand_in(&key, None, room)?;
                }
                Err(error) if error.kind() == io::ErrorKind::NotFound => {
                    if self.store.head(&key)?.is_none() {
                        return Err(Error::io(report, "look at", error));
                    }
                }
                Err(error) => return Err(Error::io(report, "look at", error)),
            }
        }
        self.wait(cancel, done.len())?;
        observer.stage(Stage::Publishing);
        self.look_at_all(done)?;
        self.check_claim()?;
        for (name, bytes) in dataset.indexes {
            self.put_new(name, bytes)?;
        }
        self.put_new(dataset.name, manifest)?;
        Ok(self.store.delete(CLAIM)?)
    }

    fn report(&self, cancel: &Cancel) -> Result<Option<PathBuf>> {
        let to = self.dir.root().with_file_name(REPORT);
        let key = format!("{PACK_DIR}/{REPORT}");
        if self.store.head(&key)?.is_none() {
            return Ok(None);
        }
        let transfer = forebay_store::Transfer::new(cancel);
        self.store.download_file(&key, &to, &transfer)?;
        Ok(Some(to))
    }

    fn uploaded(&self) -> Option<Uploaded> {
        Some(self.progress())
    }

    fn telling(&self, observer: &dyn Observer, work: &mut dyn FnMut()) {
        let is_done = AtomicBool::new(false);
        std::thread::scope(|scope| {
            let teller = scope.spawn(|| {
                while !is_done.load(Ordering::Acquire) {
                    observer.uploaded(&self.progress());
                    std::thread::park_timeout(TELL);
                }
                observer.uploaded(&self.progress());
            });
            let done = Done(&is_done, teller.thread());
            work();
            drop(done);
        })
    }

    fn end(self: Box<Self>, plan: &str) -> Result<()> {
        let own = self.id()?;
        match Claim::read(&self.store)? {
            Some((claim, _)) if claim.id != own && claim.plan != plan => {}
            _ => {
                // Deletes the claim, and probes for conditional puts that a killed process may have left.
                for object in self.store.list_dir(CLAIM_DIR)?.objects {
                    self.store.delete(&object.key)?;
                }
                if let Ok(root) = self.store.location().local_path() {
                    // Removes temporary files of killed processes, which listings do not contain.
                    clean_stale_tree(root)?;
                    // In a directory used as a store, an empty directory does no harm, so errors are ignored.
                    let _ = std::fs::remove_dir(root.join(CLAIM_DIR));
                }
            }
        }
        self.leave()
    }

    fn leave(self: Box<Self>) -> Result<()> {
        let Self { dir, area, .. } = *self;
        drop(dir);
        Ok(area.remove()?)
    }
}

/// Stops the progress thread when the work ends for any reason.
struct Done<'a>(&'a AtomicBool, &'a std::thread::Thread);

impl Drop for Done<'_> {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Release);
        self.1.unpark();
    }
}
