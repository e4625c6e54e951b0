//! The work in order: the objects of a dataset in parallel, then its manifest, and deletions at the very end.

use super::census::{self, Role};
use super::plan::{Action, Group, Plan, PlannedItem, Publish};
use super::transfer::{Moved, Mover};
use super::{CopyError, CopyObserver};
use crate::{Cancel, DirLock, Error, Object, Put, clean_stale};
use std::collections::{BTreeMap, BTreeSet};
use std::path::PathBuf;
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::time::{Duration, Instant};

/// How often a listing that lacks what was copied is looked at.
const LOOKS: u32 = 5;
/// The wait between.
const LOOK_PAUSE: Duration = Duration::from_millis(300);

/// What a copy did.
#[derive(Debug, Clone, Default)]
#[non_exhaustive]
pub struct CopySummary {
    /// Objects that were copied, manifests among them.
    pub copied: u64,
    /// Their bytes.
    pub copied_bytes: u64,
    /// Objects that were there already.
    pub kept: u64,
    /// Their bytes.
    pub kept_bytes: u64,
    /// Objects that were removed at the destination.
    pub deleted: u64,
    /// Their bytes.
    pub deleted_bytes: u64,
    /// Manifests that were written.
    pub published: u64,
    /// Time from the first byte on.
    pub time: Duration,
}

#[derive(Default)]
struct Tally {
    copied: AtomicU64,
    copied_bytes: AtomicU64,
    kept: AtomicU64,
    kept_bytes: AtomicU64,
    published: AtomicU64,
}

/// The first damaged object, and how many there are.
#[derive(Default)]
struct Damage {
    first: Option<(String, String)>,
    count: u64,
}

impl Plan {
    /// Does what was planned. Whatever happens, no manifest is published before all of its dataset is there, and the same
    /// copy planned and run again continues.
    ///
    /// # Errors
    /// See [`CopyError`]. Damaged objects are left out and told at the end; anything else stops the work.
    pub fn run(
        &self,
        observer: &dyn CopyObserver,
        cancel: &Cancel,
    ) -> Result<CopySummary, CopyError> {
        let begin = Instant::now();
        let _lock = self.take_destination()?;
        self.clear_uploads();
        let tally = Tally::default();
        let damage = Mutex::new(Damage::default());
        observer.stage("copying");
        for group in &self.groups {
            self.run_group(group, &tally, &damage, observer, cancel)?;
        }
        let damage = damage.into_inner().unwrap_or_else(|e| e.into_inner());
        if let Some((first, problem)) = damage.first {
            return Err(CopyError::Damaged {
                count: damage.count,
                first,
                problem,
            });
        }
        let mut summary = CopySummary {
            copied: tally.copied.into_inner(),
            copied_bytes: tally.copied_bytes.into_inner(),
            kept: tally.kept.into_inner(),
            kept_bytes: tally.kept_bytes.into_inner(),
            published: tally.published.into_inner(),
            ..CopySummary::default()
        };
        self.delete(&mut summary, observer, cancel)?;
        summary.time = begin.elapsed();
        Ok(summary)
    }

    /// Makes a local destination, locks it, and clears what a killed copy left half-written in it.
    fn take_destination(&self) -> Result<Option<DirLock>, CopyError> {
        let Ok(root) = self.target.store.location().local_path() else {
            return Ok(None);
        };
        std::fs::create_dir_all(root).map_err(|error| Error::io(root, "create", error))?;
        // One object among others: whoever works in its directory is not disturbed.
        if self.source.only.is_some() {
            return Ok(None);
        }
        let lock = DirLock::acquire(root)?;
        let mut dirs: BTreeSet<PathBuf> = BTreeSet::from([root.to_path_buf()]);
        for item in self.items() {
            dirs.extend(root.join(&item.key).parent().map(PathBuf::from));
        }
        for dir in dirs {
            clean_stale(&dir)?;
        }
        Ok(Some(lock))
    }

    /// Ends what a killed copy of the same datasets left open. Only where a dataset has a prefix of its own: below it nobody
    /// else has anything to upload. Elsewhere, and where the store does not allow it, what is left open stays.
    fn clear_uploads(&self) {
        let store = &self.target.store;
        if !store.location().is_remote() {
            return;
        }
        for dataset in self.datasets() {
            let is_own = !dataset.root.is_empty()
                || store.location().key().is_some_and(|key| !key.is_empty());
            if is_own {
                let _ = store.abort_uploads(&dataset.root);
            }
        }
    }

    fn run_group(
        &self,
        group: &Group,
        tally: &Tally,
        damage: &Mutex<Damage>,
        observer: &dyn CopyObserver,
        cancel: &Cancel,
    ) -> Result<(), CopyError> {
        if let Some((manifest, Publish::Anew)) = &group.manifest {
            // From here on nobody opens the old dataset, whose files are about to change.
            self.target.store.delete(&manifest.key)?;
        }
        let damaged_before = lock(damage).count;
        self.move_all(&group.items, tally, damage, observer, cancel)?;
        if cancel.is_cancelled() {
            return Err(self.interrupted(tally));
        }
        if lock(damage).count > damaged_before {
            return Ok(());
        }
        let Some((manifest, publish)) = &group.manifest else {
            return Ok(());
        };
        if *publish != Publish::Same {
            observer.stage("publishing");
            self.confirm(group)?;
            self.publish(group, manifest, publish)?;
            tally.published.fetch_add(1, Ordering::Relaxed);
            observer.moved(manifest.bytes);
        }
        tally.count(manifest);
        observer.done(&manifest.key, manifest.bytes, manifest.action);
        Ok(())
    }

    /// Moves what has to be moved, several objects at the same time.
    fn move_all(
        &self,
        items: &[PlannedItem],
        tally: &Tally,
        damage: &Mutex<Damage>,
        observer: &dyn CopyObserver,
        cancel: &Cancel,
    ) -> Result<(), CopyError> {
        let (kept, mut copies): (Vec<_>, Vec<_>) =
            items.iter().partition(|item| item.action == Action::Keep);
        for item in kept {
            tally.count(item);
            observer.done(&item.key, item.bytes, Action::Keep);
        }
        // The large ones first, so that none of them is alone at the end.
        copies.sort_by_key(|item| std::cmp::Reverse(item.bytes));
        let parallel = self.options.parallel.max(1);
        let workers = parallel.min(copies.len()).max(1);
        let failure: Mutex<Option<CopyError>> = Mutex::new(None);
        let stop = AtomicBool::new(false);
        let next = AtomicUsize::new(0);
        let work = || {
            let moved = |bytes| observer.moved(bytes);
            let mover = Mover {
                source: &self.source,
                target: &self.target,
                options: &self.options,
                parallel: parallel.div_ceil(workers),
                cancel,
                progress: &moved,
            };
            while !stop.load(Ordering::Relaxed) && !cancel.is_cancelled() {
                let Some(item) = copies.get(next.fetch_add(1, Ordering::Relaxed)) else {
                    return;
                };
                match mover.go(item) {
                    Ok(Moved::Whole) => {
                        tally.count(item);
                        observer.done(&item.key, item.bytes, Action::Copy);
                    }
                    Ok(Moved::Damaged(problem)) => {
                        observer.damaged(&item.item.object.key, &problem);
                        let mut damage = lock(damage);
                        damage.count += 1;
                        let key = item.item.object.key.clone();
                        damage.first.get_or_insert((key, problem));
                    }
                    Err(error) => {
                        stop.store(true, Ordering::Relaxed);
                        lock(&failure).get_or_insert(error);
                    }
                }
            }
        };
        std::thread::scope(|scope| {
            for _ in 1..workers {
                scope.spawn(work);
            }
            work();
        });
        if cancel.is_cancelled() {
            // What a transfer said when it was stopped is no news.
            return Err(self.interrupted(tally));
        }
        match failure.into_inner().unwrap_or_else(|e| e.into_inner()) {
            Some(error) => Err(error),
            None => Ok(()),
        }
    }

    /// Looks once more before a manifest says that everything is there.
    fn confirm(&self, group: &Group) -> Result<(), CopyError> {
        let root = group
            .dataset
            .as_ref()
            .map_or("", |dataset| dataset.root.as_str());
        let store = &self.target.store;
        // A store may tell for a while what it had before an earlier copy.
        let looks = if store.location().is_remote() {
            LOOKS
        } else {
            1
        };
        for look in 1.. {
            let listed = store.list_all(root)?.objects;
            let there: BTreeMap<&str, &Object> = listed
                .iter()
                .map(|object| (object.key.as_str(), object))
                .collect();
            let is_there = |item: &&PlannedItem| {
                let Some(now) = there.get(item.key.as_str()) else {
                    return false;
                };
                // What stayed is what it was when it was compared.
                let is_same = item.action != Action::Keep || now.etag == item.there;
                now.len == item.bytes && is_same
            };
            let missing = group
                .items
                .iter()
                .filter(|item| item.action == Action::Keep || item.item.role != Role::Plain)
                .find(|item| !is_there(item));
            let Some(item) = missing else { break };
            if look >= looks {
                return Err(self.changed(
                    &item.key,
                    "what was copied there, or was there already, is not there any more: somebody else works at this place",
                ));
            }
            std::thread::sleep(LOOK_PAUSE);
        }
        Ok(())
    }

    /// Writes the manifest, unless somebody else did so meanwhile.
    fn publish(
        &self,
        group: &Group,
        manifest: &PlannedItem,
        publish: &Publish,
    ) -> Result<(), CopyError> {
        let store = &self.target.store;
        let Some(dataset) = &group.dataset else {
            return Ok(());
        };
        let put = match publish {
            Publish::Same => return Ok(()),
            Publish::New | Publish::Anew => Put::IfAbsent,
            Publish::InPlace(Some(etag)) => Put::IfMatch(etag.clone()),
            Publish::InPlace(None) => Put::Always,
        };
        if let Ok(root) = store.location().local_path() {
            let path = root.join(&manifest.key);
            if let Some(parent) = path.parent() {
                std::fs::create_dir_all(parent)
                    .map_err(|error| Error::io(parent, "create", error))?;
            }
        }
        match store.put(&manifest.key, &dataset.json, put) {
            Ok(_) => Ok(()),
            Err(Error::AlreadyThere { .. } | Error::Changed { .. }) => {
                let listed = store.list_all(&dataset.root)?.objects;
                let there = listed.iter().find(|object| object.key == manifest.key);
                let len = dataset.json.len() as u64;
                if let Some(there) = there.filter(|there| there.len == len)
                    && store.get_listed(there, len)? == dataset.json
                {
                    return Ok(());
                }
                Err(self.changed(
                    &manifest.key,
                    "somebody else published another dataset there meanwhile; the files of both are mixed now",
                ))
            }
            Err(error) => Err(error.into()),
        }
    }

    /// Removes what is not in the source. All else is done by now.
    fn delete(
        &self,
        summary: &mut CopySummary,
        observer: &dyn CopyObserver,
        cancel: &Cancel,
    ) -> Result<(), CopyError> {
        if self.deletions.is_empty() {
            return Ok(());
        }
        observer.stage("deleting");
        let failure: Mutex<Option<CopyError>> = Mutex::new(None);
        let deleted: Mutex<Vec<&Object>> = Mutex::new(Vec::new());
        let next = AtomicUsize::new(0);
        let work = || {
            while !cancel.is_cancelled() && lock(&failure).is_none() {
                let Some(object) = self.deletions.get(next.fetch_add(1, Ordering::Relaxed)) else {
                    return;
                };
                match self.target.store.delete(&object.key) {
                    Ok(()) => {
                        observer.done(&object.key, object.len, Action::Delete);
                        lock(&deleted).push(object);
                    }
                    Err(error) => {
                        lock(&failure).get_or_insert(error.into());
                    }
                }
            }
        };
        std::thread::scope(|scope| {
            for _ in 1..self.options.parallel.clamp(1, 16).min(self.deletions.len()) {
                scope.spawn(work);
            }
            work();
        });
        let deleted = deleted.into_inner().unwrap_or_else(|e| e.into_inner());
        summary.deleted = deleted.len() as u64;
        summary.deleted_bytes = deleted.iter().map(|object| object.len).sum();
        if let Some(error) = failure.into_inner().unwrap_or_else(|e| e.into_inner()) {
            return Err(error);
        }
        if cancel.is_cancelled() {
            let total = self.items().count() as u64;
            return Err(CopyError::Interrupted { done: total, total });
        }
        self.remove_empty_dirs();
        Ok(())
    }

    /// Directories that deletions emptied go as well: a store has none.
    fn remove_empty_dirs(&self) {
        let Ok(root) = self.target.store.location().local_path() else {
            return;
        };
        let mut dirs: BTreeSet<PathBuf> = BTreeSet::new();
        for object in self
            .deletions
            .iter()
            .filter(|object| census::is_data(&object.key))
        {
            let path = root.join(&object.key);
            let above = path.ancestors().skip(1).take_while(|dir| *dir != root);
            dirs.extend(above.map(PathBuf::from));
        }
        for dir in dirs.iter().rev() {
            // One that is not empty stays, which is what is wanted.
            let _ = std::fs::remove_dir(dir);
        }
    }

    fn interrupted(&self, tally: &Tally) -> CopyError {
        let done = tally.copied.load(Ordering::Relaxed) + tally.kept.load(Ordering::Relaxed);
        CopyError::Interrupted {
            done,
            total: self.items().count() as u64,
        }
    }

    fn changed(&self, key: &str, problem: &str) -> CopyError {
        CopyError::Changed {
            place: self.target.store.location().join(key).to_string(),
            problem: problem.to_owned(),
        }
    }
}

impl Tally {
    fn count(&self, item: &PlannedItem) {
        let (objects, bytes) = match item.action {
            Action::Keep => (&self.kept, &self.kept_bytes),
            _ => (&self.copied, &self.copied_bytes),
        };
        objects.fetch_add(1, Ordering::Relaxed);
        bytes.fetch_add(item.bytes, Ordering::Relaxed);
    }
}

fn lock<T>(mutex: &Mutex<T>) -> std::sync::MutexGuard<'_, T> {
    // Nothing panics while it is held.
    mutex.lock().unwrap_or_else(|e| e.into_inner())
}
