//! What is to be done, decided before anything is changed, and what is refused.

use super::census::{self, Census, DatasetFound, Role, SourceItem};
use super::compare::Comparison;
use super::place::overlap;
use super::{CopyError, CopyObserver, CopyOptions, CopySource, CopyTarget};
use crate::{Cancel, Error, LeftOut, Object};
use forebay_shard::Manifest;
use forebay_shard::manifest::{self, FILE_NAME as MANIFEST};
use serde::Serialize;
use std::collections::{BTreeMap, BTreeSet};
use std::path::PathBuf;
use std::sync::Mutex;
use std::sync::atomic::{AtomicUsize, Ordering};

/// What becomes of an object.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Action {
    /// It is copied.
    Copy,
    /// It is there already.
    Keep,
    /// It is a manifest, written once all of its dataset is there.
    Publish,
    /// It is not in the source and is removed.
    Delete,
}

/// Why an object is copied.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Why {
    /// There is nothing of its name.
    Missing,
    /// What is there has another size.
    Size,
    /// What is there has another checksum.
    Content,
    /// What is there has the same size and no checksum that is known.
    Unknown,
    /// What is there is older, and no checksum is known.
    Newer,
}

/// One object and what becomes of it.
#[derive(Debug, Clone)]
pub struct PlannedItem {
    /// Its key at the destination.
    pub key: String,
    /// Its bytes.
    pub bytes: u64,
    /// What becomes of it.
    pub action: Action,
    /// Why, if it is copied or published.
    pub why: Option<Why>,
    pub(super) item: SourceItem,
    /// The etag of what has its name at the destination, as it was listed.
    pub(super) there: Option<String>,
}

/// How a manifest gets to its place.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Publish {
    /// It is there, byte for byte.
    Same,
    /// There is none.
    New,
    /// It takes the place of another one in one step: no file that the other one names has to change.
    InPlace(Option<String>),
    /// The other one goes first, so that nobody opens a mixture.
    Anew,
}

/// The objects of one dataset, or those that are in none.
#[derive(Debug)]
pub(super) struct Group {
    pub(super) items: Vec<PlannedItem>,
    pub(super) manifest: Option<(PlannedItem, Publish)>,
    pub(super) dataset: Option<DatasetFound>,
}

/// What a copy will do.
#[derive(Debug)]
pub struct Plan {
    pub(super) source: CopySource,
    pub(super) target: CopyTarget,
    pub(super) options: CopyOptions,
    pub(super) groups: Vec<Group>,
    pub(super) deletions: Vec<Object>,
    left_out: Vec<LeftOut>,
}

/// A manifest at the destination.
struct There {
    object: Object,
    json: Vec<u8>,
    /// None if it cannot be read as one.
    dataset: Option<DatasetFound>,
}

impl Plan {
    /// Looks at both sides and decides. Nothing is changed.
    ///
    /// # Errors
    /// See [`CopyError`]: when a side cannot be read, the source is empty or not whole, or something could be destroyed.
    pub fn make(
        source: CopySource,
        target: CopyTarget,
        options: CopyOptions,
        observer: &dyn CopyObserver,
        cancel: &Cancel,
    ) -> Result<Self, CopyError> {
        observer.stage("listing");
        refuse_overlap(&source, &target)?;
        let census = Census::take(&source)?;
        let target_key = |item: &SourceItem| match (&source.only, &target.name) {
            (Some(_), Some(name)) => name.clone(),
            _ => item.object.key.clone(),
        };
        if !target.store.location().is_remote() {
            for item in &census.items {
                refuse_unsafe_name(&target, &target_key(item))?;
            }
        }
        let there = match &source.only {
            Some(_) => {
                let keys = census.items.iter().map(target_key);
                let found = keys.map(|key| target.store.head(&key));
                found
                    .filter_map(Result::transpose)
                    .collect::<Result<Vec<_>, _>>()?
            }
            None => target.store.list_all("")?.objects,
        };
        let manifests = manifests(&target, &there)?;
        let by_key: BTreeMap<&str, &Object> = there
            .iter()
            .map(|object| (object.key.as_str(), object))
            .collect();
        observer.stage("comparing");
        let comparison = Comparison {
            source: &source.store,
            target: &target.store,
            options: &options,
            observer,
            cancel,
        };
        let whys = compare_all(&comparison, &census.items, &|item| {
            by_key.get(target_key(item).as_str()).copied()
        })?;
        let mut groups: Vec<Group> = std::iter::once(None)
            .chain(census.datasets.into_iter().map(Some))
            .map(|dataset| Group {
                items: Vec::new(),
                manifest: None,
                dataset,
            })
            .collect();
        for (item, why) in census.items.into_iter().zip(whys) {
            let group = &mut groups[item.dataset.map_or(0, |number| number + 1)];
            let key = target_key(&item);
            let there = by_key.get(key.as_str());
            let planned = PlannedItem {
                there: there.and_then(|there| there.etag.clone()),
                key,
                bytes: item.object.len,
                action: if why.is_some() {
                    Action::Copy
                } else {
                    Action::Keep
                },
                why,
                item,
            };
            if planned.item.role == Role::Manifest {
                group.manifest = Some((planned, Publish::New));
            } else {
                group.items.push(planned);
            }
        }
        for group in &mut groups {
            group.decide_publishing(&target, &manifests, &options)?;
        }
        refuse_damage_to_others(&groups, &target, &manifests)?;
        let mut plan = Self {
            source,
            target,
            options,
            groups,
            deletions: Vec::new(),
            left_out: census.left_out,
        };
        if plan.options.delete {
            plan.plan_deletions(there, &manifests)?;
        }
        Ok(plan)
    }

    /// All objects in the order in which they are dealt with: those of a dataset before its manifest.
    pub fn items(&self) -> impl Iterator<Item = &PlannedItem> {
        self.groups.iter().flat_map(|group| {
            group
                .items
                .iter()
                .chain(group.manifest.iter().map(|(item, _)| item))
        })
    }

    /// What is removed at the end.
    pub fn deletions(&self) -> &[Object] {
        &self.deletions
    }

    /// What lies in the source and is not copied.
    pub fn left_out(&self) -> &[LeftOut] {
        &self.left_out
    }

    /// The datasets that are copied.
    pub fn datasets(&self) -> impl Iterator<Item = &DatasetFound> {
        self.groups
            .iter()
            .filter_map(|group| group.dataset.as_ref())
    }

    /// The datasets at the destination that are replaced, by their directories, and whether the old manifest goes first.
    pub fn replaced(&self) -> impl Iterator<Item = (&str, bool)> {
        self.groups.iter().filter_map(|group| {
            let (_, publish) = group.manifest.as_ref()?;
            let root = group.dataset.as_ref()?.root.as_str();
            match publish {
                Publish::InPlace(_) => Some((root, false)),
                Publish::Anew => Some((root, true)),
                Publish::Same | Publish::New => None,
            }
        })
    }

    /// Objects and bytes that have to be moved.
    pub fn to_move(&self) -> (u64, u64) {
        let moved = self.items().filter(|item| item.action != Action::Keep);
        moved.fold((0, 0), |(objects, bytes), item| {
            (objects + 1, bytes + item.bytes)
        })
    }

    fn plan_deletions(&mut self, there: Vec<Object>, manifests: &[There]) -> Result<(), CopyError> {
        let place = self.target.location();
        let refuse = |problem: String, hint| {
            Err(CopyError::Refused {
                place: place.to_string(),
                problem,
                hint,
            })
        };
        if self.source.only.is_some() {
            let what = "one object is copied: nothing can be told to be too much".to_owned();
            return refuse(what, "leave --delete out, or name a directory");
        }
        if let Some(first) = self.left_out.first() {
            let what = format!(
                "{} lies in the source and is not copied ({}): what it stands for could be deleted",
                first.path, first.why
            );
            return refuse(what, "take it out of the source, or leave --delete out");
        }
        if let Ok(path) = place.local_path() {
            let real = path.canonicalize().unwrap_or_else(|_| path.to_path_buf());
            let home = std::env::var_os("HOME").map(PathBuf::from);
            if real.parent().is_none() || home.is_some_and(|home| home == real) {
                let what = "nothing is ever deleted from a whole file system or home directory";
                return refuse(what.to_owned(), "name a directory of its own for the copy");
            }
        }
        let kept: BTreeSet<&str> = self.items().map(|item| item.key.as_str()).collect();
        if let Some(other) = manifests
            .iter()
            .find(|there| !kept.contains(there.object.key.as_str()))
        {
            let what = format!(
                "a dataset that is not in the source lies there, {}: its files would be deleted",
                other.object.key
            );
            return refuse(what, "name another destination, or leave --delete out");
        }
        let deletions = there.into_iter().filter(|object| {
            // Locks and journals are of somebody who works there.
            !kept.contains(object.key.as_str()) && census::is_data(&object.key)
        });
        self.deletions = deletions.collect();
        Ok(())
    }
}

impl Group {
    /// Finds out how the manifest of the group's dataset gets to its place.
    fn decide_publishing(
        &mut self,
        target: &CopyTarget,
        manifests: &[There],
        options: &CopyOptions,
    ) -> Result<(), CopyError> {
        let (Some(dataset), Some((planned, publish))) = (&self.dataset, &mut self.manifest) else {
            return Ok(());
        };
        let old = manifests
            .iter()
            .find(|there| there.object.key == planned.key);
        let Some(old) = old else {
            planned.action = Action::Publish;
            planned.why = Some(Why::Missing);
            return Ok(());
        };
        if old.json == dataset.json {
            planned.action = Action::Keep;
            planned.why = None;
            *publish = Publish::Same;
            return Ok(());
        }
        planned.action = Action::Publish;
        planned.why = Some(Why::Content);
        let is_same_data = old
            .dataset
            .as_ref()
            .is_some_and(|old| old.manifest.fingerprint == dataset.manifest.fingerprint);
        if !is_same_data && !options.overwrite {
            return Err(CopyError::Refused {
                place: target.store.location().join(&planned.key).to_string(),
                problem: "another dataset is there, which may have readers".to_owned(),
                hint: "copy to a place of its own, which is what readers need, or replace it with --overwrite",
            });
        }
        // What an unreadable manifest named is not known.
        let named: Option<BTreeSet<String>> =
            old.dataset.as_ref().map(|old| old.named_keys().collect());
        let changes_it = self.items.iter().any(|item| {
            item.action == Action::Copy
                && item.why != Some(Why::Missing)
                && named.as_ref().is_none_or(|named| named.contains(&item.key))
        });
        *publish = if changes_it {
            Publish::Anew
        } else {
            Publish::InPlace(old.object.etag.clone())
        };
        Ok(())
    }
}

fn refuse_overlap(source: &CopySource, target: &CopyTarget) -> Result<(), CopyError> {
    let (from, to) = (source.store.location(), target.store.location());
    let overlaps = match (&source.only, &target.name) {
        (None, _) => {
            overlap(from, to).map_err(|error| Error::io(to.to_string(), "resolve", error))?
        }
        (Some(object), name) => {
            let name = name.as_deref().unwrap_or(&object.key);
            from.join(&object.key) == to.join(name)
        }
    };
    if overlaps {
        return Err(CopyError::Refused {
            place: to.to_string(),
            problem: format!("it overlaps with the source {from}"),
            hint: "choose a destination that is not in the source, and does not hold it",
        });
    }
    Ok(())
}

/// Keys come from a store that anybody may have filled: none of them leads out of the destination.
fn refuse_unsafe_name(target: &CopyTarget, key: &str) -> Result<(), CopyError> {
    let is_plain = |part: &str| !matches!(part, "" | "." | "..") && !part.contains('\0');
    if key.split('/').all(is_plain) {
        return Ok(());
    }
    Err(CopyError::Refused {
        place: target.location().to_string(),
        problem: format!("the key {key:?} cannot be a path below it"),
        hint: "copy the objects with such names one by one, each to a name of its own",
    })
}

/// The manifests at the destination, readable or not.
fn manifests(target: &CopyTarget, there: &[Object]) -> Result<Vec<There>, CopyError> {
    let mut found = Vec::new();
    for object in there {
        let Some(root) = object.key.strip_suffix(MANIFEST) else {
            continue;
        };
        if !root.is_empty() && !root.ends_with('/') {
            continue;
        }
        // One that is too large to be read is one that cannot be read.
        let json = match object.len {
            ..=manifest::MAX_BYTES => target.store.get_listed(object, manifest::MAX_BYTES)?,
            _ => Vec::new(),
        };
        let parsed = Manifest::parse(&PathBuf::from(&object.key), &json).ok();
        let now = target
            .store
            .head_listed(object)?
            .unwrap_or_else(|| object.clone());
        found.push(There {
            dataset: parsed.map(|manifest| DatasetFound {
                root: root.trim_end_matches('/').to_owned(),
                manifest,
                json: json.clone(),
                object: now.clone(),
            }),
            object: now,
            json,
        });
    }
    Ok(found)
}

/// Files of a dataset that is not replaced stay as they are.
fn refuse_damage_to_others(
    groups: &[Group],
    target: &CopyTarget,
    manifests: &[There],
) -> Result<(), CopyError> {
    let replaced: BTreeSet<&str> = groups
        .iter()
        .filter_map(|group| group.manifest.as_ref())
        .map(|(manifest, _)| manifest.key.as_str())
        .collect();
    for other in manifests
        .iter()
        .filter(|m| !replaced.contains(m.object.key.as_str()))
    {
        let Some(dataset) = &other.dataset else {
            continue;
        };
        let named: BTreeSet<String> = dataset.named_keys().collect();
        let items = groups.iter().flat_map(|group| &group.items);
        let mut hits = items.filter(|item| {
            item.action == Action::Copy
                && item.why != Some(Why::Missing)
                && named.contains(&item.key)
        });
        if let Some(hit) = hits.next() {
            return Err(CopyError::Refused {
                place: target.location().to_string(),
                problem: format!(
                    "{} belongs to the dataset of {} there, and would be replaced by a file of another kind",
                    hit.key, other.object.key
                ),
                hint: "choose another destination",
            });
        }
    }
    Ok(())
}

/// Why each item has to be copied, in their order; compared by several threads, since most of it is waiting.
fn compare_all<'o>(
    comparison: &Comparison<'_>,
    items: &[SourceItem],
    there: &(dyn Fn(&SourceItem) -> Option<&'o Object> + Sync),
) -> Result<Vec<Option<Why>>, CopyError> {
    let whys: Vec<Mutex<Option<Why>>> = items.iter().map(|_| Mutex::new(None)).collect();
    let failure: Mutex<Option<CopyError>> = Mutex::new(None);
    let next = AtomicUsize::new(0);
    let lock =
        |slot: &Mutex<Option<Why>>, why| *slot.lock().unwrap_or_else(|e| e.into_inner()) = why;
    let work = || {
        loop {
            let at = next.fetch_add(1, Ordering::Relaxed);
            let (Some(item), Some(slot)) = (items.get(at), whys.get(at)) else {
                return;
            };
            if comparison.cancel.is_cancelled() {
                return;
            }
            // The manifests themselves were read, and are compared byte by byte.
            let found = match item.role {
                Role::Manifest => Ok(None),
                _ => comparison.why(item, there(item)),
            };
            match found {
                Ok(why) => lock(slot, why),
                Err(error) => {
                    let mut failure = failure.lock().unwrap_or_else(|e| e.into_inner());
                    failure.get_or_insert(error);
                    next.store(items.len(), Ordering::Relaxed);
                    return;
                }
            }
        }
    };
    std::thread::scope(|scope| {
        for _ in 1..comparison
            .options
            .parallel
            .clamp(1, 32)
            .min(items.len().max(1))
        {
            scope.spawn(work);
        }
        work();
    });
    if let Some(error) = failure.into_inner().unwrap_or_else(|e| e.into_inner()) {
        return Err(error);
    }
    if comparison.cancel.is_cancelled() {
        let total = items.len() as u64;
        return Err(CopyError::Interrupted { done: 0, total });
    }
    Ok(whys
        .into_iter()
        .map(|slot| slot.into_inner().unwrap_or_else(|e| e.into_inner()))
        .collect())
}
