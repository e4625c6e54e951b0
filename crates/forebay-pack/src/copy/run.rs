//! Executes a plan: the objects of a dataset in parallel, then its manifest, and deletions at the very end.

use super::listing::{self, Role};
use super::plan::{CopyAction, CopyPlan, Group, PlannedItem, Publish};
use super::scratch::Scratch;
use super::transfer::{Moved, Mover};
use super::{CopyError, CopyObserver};
use forebay_store::{Cancel, DirLock, Error, Object, Put, clean_stale, for_each_parallel};
use std::collections::{BTreeMap, BTreeSet};
use std::path::PathBuf;
use std::sync::Mutex;
use std::time::{Duration, Instant};

/// The counts of a finished copy.
#[derive(Debug, Clone, Default)]
#[non_exhaustive]
pub struct CopySummary {
    /// Objects that were copied, manifests among them.
    pub copied: u64,
    /// Their bytes.
    pub copied_bytes: u64,
    /// Objects that existed already.
    pub kept: u64,
    /// Their bytes.
    pub kept_bytes: u64,
    /// Objects that were removed at the destination.
    pub deleted: u64,
    /// Their bytes.
    pub deleted_bytes: u64,
    /// Manifests that were written.
    pub published: u64,
    /// The duration of the copy, without the planning.
    pub time: Duration,
}

/// The first damaged object, and how many there are.
#[derive(Default)]
struct Damage {
    first: Option<(String, String)>,
    count: u64,
}

impl CopyPlan {
    /// Executes the plan. A manifest is never published before all other objects of its dataset are copied. After a failure,
    /// planning and running the same copy again continues it.
    ///
    /// # Errors
    /// See [`CopyError`]. Damaged objects are skipped and reported at the end; any other error stops the copy.
    pub fn run(
        &self,
        observer: &dyn CopyObserver,
        cancel: &Cancel,
    ) -> Result<CopySummary, CopyError> {
        let begin = Instant::now();
        let _lock = self.take_destination()?;
        let tally = Mutex::new(CopySummary::default());
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
        self.delete(&tally, observer, cancel)?;
        let mut summary = tally.into_inner().unwrap_or_else(|e| e.into_inner());
        summary.time = begin.elapsed();
        Ok(summary)
    }

    /// Creates a local destination, locks it, and removes the temporary files of killed copies from it.
    fn take_destination(&self) -> Result<Option<DirLock>, CopyError> {
        let Ok(root) = self.target.store.location().local_path() else {
            return Ok(None);
        };
        std::fs::create_dir_all(root).map_err(|error| Error::io(root, "create", error))?;
        // A single object needs no lock: another process may be working in its directory.
        if self.source.object().is_some() {
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

    fn run_group(
        &self,
        group: &Group,
        tally: &Mutex<CopySummary>,
        damage: &Mutex<Damage>,
        observer: &dyn CopyObserver,
        cancel: &Cancel,
    ) -> Result<(), CopyError> {
        if let Some((manifest, Publish::Anew)) = &group.manifest {
            // From here on no process can open the old dataset, whose files are about to change.
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
            lock(tally).published += 1;
            observer.moved(manifest.bytes);
        }
        lock(tally).count(manifest);
        observer.done(&manifest.key, manifest.bytes, manifest.action);
        Ok(())
    }

    /// Copies all objects with the action `Copy`, several at once.
    fn move_all(
        &self,
        items: &[PlannedItem],
        tally: &Mutex<CopySummary>,
        damage: &Mutex<Damage>,
        observer: &dyn CopyObserver,
        cancel: &Cancel,
    ) -> Result<(), CopyError> {
        let (kept, mut copies): (Vec<_>, Vec<_>) = items
            .iter()
            .partition(|item| item.action == CopyAction::Keep);
        for item in kept {
            lock(tally).count(item);
            observer.done(&item.key, item.bytes, CopyAction::Keep);
        }
        // Largest first, so that no large object is left to a single worker at the end.
        copies.sort_by_key(|item| std::cmp::Reverse(item.bytes));
        let parallel = self.options.parallel.max(1);
        let workers = parallel.min(copies.len()).max(1);
        let progress = |bytes| observer.moved(bytes);
        let scratch = Scratch::new(self.options.scratch.as_deref());
        let mover = Mover {
            source: &self.source,
            target: &self.target,
            options: &self.options,
            scratch: &scratch,
            parallel: parallel.div_ceil(workers),
            cancel,
            progress: &progress,
        };
        let moved = for_each_parallel(copies, workers, |item| {
            if cancel.is_cancelled() {
                return Err(self.interrupted(tally));
            }
            match mover.go(item)? {
                Moved::Whole => {
                    lock(tally).count(item);
                    observer.done(&item.key, item.bytes, CopyAction::Copy);
                }
                Moved::Damaged(problem) => {
                    observer.damaged(&item.item.object.key, &problem);
                    let mut damage = lock(damage);
                    damage.count += 1;
                    let key = item.item.object.key.clone();
                    damage.first.get_or_insert((key, problem));
                }
            }
            Ok(())
        });
        if cancel.is_cancelled() {
            // Errors of transfers that were cancelled are not reported.
            return Err(self.interrupted(tally));
        }
        moved
    }

    /// Lists the destination once more before the manifest is published, and verifies that the dataset's objects still exist.
    fn confirm(&self, group: &Group) -> Result<(), CopyError> {
        let root = group
            .dataset
            .as_ref()
            .map_or("", |dataset| dataset.root.as_str());
        let store = &self.target.store;
        let listed = store.list_all(root)?.objects;
        let there: BTreeMap<&str, &Object> = listed
            .iter()
            .map(|object| (object.key.as_str(), object))
            .collect();
        let is_there = |item: &&PlannedItem| {
            let Some(now) = there.get(item.key.as_str()) else {
                return false;
            };
            let is_same = item.action != CopyAction::Keep || now.etag == item.there;
            now.len == item.bytes && is_same
        };
        let missing = group
            .items
            .iter()
            .filter(|item| item.action == CopyAction::Keep || item.item.role != Role::Plain)
            .find(|item| !is_there(item));
        match missing {
            None => Ok(()),
            Some(item) => Err(self.changed(
                &item.key,
                "copied or existing objects are missing again: another writer uses this destination",
            )),
        }
    }

    /// Writes the manifest, unless another process has published one meanwhile.
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
                match store.get(&manifest.key, manifest.bytes) {
                    Ok(there) if there == dataset.json => return Ok(()),
                    Ok(_) | Err(Error::NotFound { .. } | Error::TooLarge { .. }) => {}
                    Err(error) => return Err(error.into()),
                }
                Err(self.changed(
                    &manifest.key,
                    "another writer published a dataset at this destination during the copy; the files of both are mixed",
                ))
            }
            Err(error) => Err(error.into()),
        }
    }

    /// Removes objects that are not in the source, after everything else is copied.
    fn delete(
        &self,
        tally: &Mutex<CopySummary>,
        observer: &dyn CopyObserver,
        cancel: &Cancel,
    ) -> Result<(), CopyError> {
        if self.deletions.is_empty() {
            return Ok(());
        }
        observer.stage("deleting");
        let jobs = self.options.parallel.clamp(1, 16);
        for_each_parallel(self.deletions.iter(), jobs, |object| {
            if !cancel.is_cancelled() {
                self.target.store.delete(&object.key)?;
                observer.done(&object.key, object.len, CopyAction::Delete);
                let mut tally = lock(tally);
                tally.deleted += 1;
                tally.deleted_bytes += object.len;
            }
            Ok::<_, CopyError>(())
        })?;
        if cancel.is_cancelled() {
            let total = self.items().count() as u64;
            return Err(CopyError::Interrupted { done: total, total });
        }
        self.remove_empty_dirs();
        Ok(())
    }

    /// Removes the directories that deletions have emptied.
    fn remove_empty_dirs(&self) {
        let Ok(root) = self.target.store.location().local_path() else {
            return;
        };
        let mut dirs: BTreeSet<PathBuf> = BTreeSet::new();
        for object in self
            .deletions
            .iter()
            .filter(|object| listing::is_data(&object.key))
        {
            let path = root.join(&object.key);
            let above = path.ancestors().skip(1).take_while(|dir| *dir != root);
            dirs.extend(above.map(PathBuf::from));
        }
        for dir in dirs.iter().rev() {
            // Fails for directories that are not empty, which stay.
            let _ = std::fs::remove_dir(dir);
        }
    }

    fn interrupted(&self, tally: &Mutex<CopySummary>) -> CopyError {
        let tally = lock(tally);
        CopyError::Interrupted {
            done: tally.copied + tally.kept,
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

impl CopySummary {
    fn count(&mut self, item: &PlannedItem) {
        let (objects, bytes) = match item.action {
            CopyAction::Keep => (&mut self.kept, &mut self.kept_bytes),
            _ => (&mut self.copied, &mut self.copied_bytes),
        };
        *objects += 1;
        *bytes += item.bytes;
    }
}

fn lock<T>(mutex: &Mutex<T>) -> std::sync::MutexGuard<'_, T> {
    // No code panics while it holds this lock.
    mutex.lock().unwrap_or_else(|e| e.into_inner())
}
