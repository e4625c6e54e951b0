//! The plan of a copy, made before anything is changed, and the reasons to refuse one.

use super::compare::{Comparison, Why};
use super::listing::{self, DatasetFound, Role, SourceItem, SourceListing};
use super::target::overlap;
use super::{CopyError, CopyObserver, CopyOptions, CopyTarget};
use forebay_shard::Manifest;
use forebay_shard::manifest::{self, FILE_NAME as MANIFEST};
use forebay_store::{Cancel, Error, LeftOut, Object, ObjectOrTree, for_each_parallel};
use serde::Serialize;
use std::collections::{BTreeMap, BTreeSet};
use std::path::PathBuf;

/// The action for an object.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum CopyAction {
    /// The object is copied.
    Copy,
    /// The object exists already.
    Keep,
    /// The object is a manifest; it is written after all other objects of its dataset.
    Publish,
    /// The object is not in the source and is removed.
    Delete,
}

/// One object and its planned action.
#[derive(Debug, Clone)]
pub struct PlannedItem {
    /// The key at the destination.
    pub key: String,
    /// The size in bytes.
    pub bytes: u64,
    /// The action.
    pub action: CopyAction,
    /// The reason, if the object is copied or published.
    pub why: Option<Why>,
    pub(super) item: SourceItem,
    /// The etag of the destination's object of that name, from the listing.
    pub(super) there: Option<String>,
}

/// How a manifest is written at the destination.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Publish {
    /// The destination has the same manifest, byte for byte.
    Same,
    /// The destination has no manifest.
    New,
    /// The old manifest is replaced atomically (with its etag as the condition): no file that it names has to change.
    InPlace(Option<String>),
    /// The old manifest is deleted first, so that no process opens a mixture of both datasets.
    Anew,
}

/// The objects of one dataset, or the objects outside any dataset.
#[derive(Debug)]
pub(super) struct Group {
    pub(super) items: Vec<PlannedItem>,
    pub(super) manifest: Option<(PlannedItem, Publish)>,
    pub(super) dataset: Option<DatasetFound>,
}

/// The plan of a copy.
#[derive(Debug)]
pub struct CopyPlan {
    pub(super) source: ObjectOrTree,
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
    /// `None` if the manifest is not valid.
    dataset: Option<DatasetFound>,
}

impl CopyPlan {
    /// Lists and compares source and target, and plans the actions. Changes nothing.
    ///
    /// # Errors
    /// See [`CopyError`]: if a side cannot be read, the source is empty or incomplete, or the copy could destroy data.
    pub fn make(
        source: ObjectOrTree,
        target: CopyTarget,
        options: CopyOptions,
        observer: &dyn CopyObserver,
        cancel: &Cancel,
    ) -> Result<Self, CopyError> {
        observer.stage("listing");
        refuse_overlap(&source, &target)?;
        let mut listing = SourceListing::take(&source)?;
        let target_key = |item: &SourceItem| match (source.object(), &target.name) {
            (Some(_), Some(name)) => name.clone(),
            _ => item.object.key.clone(),
        };
        if !target.store.location().is_remote() {
            leave_out_odd_names(&mut listing, &target, &target_key)?;
        }
        let there = match source.object() {
            Some(_) => {
                let keys = listing.items.iter().map(target_key);
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
            source: source.store(),
            target: &target.store,
            options: &options,
            observer,
            cancel,
        };
        let whys = compare_all(&comparison, &listing.items, &|item| {
            by_key.get(target_key(item).as_str()).copied()
        })?;
        let mut groups: Vec<Group> = std::iter::once(None)
            .chain(listing.datasets.into_iter().map(Some))
            .map(|dataset| Group {
                items: Vec::new(),
                manifest: None,
                dataset,
            })
            .collect();
        for (item, why) in listing.items.into_iter().zip(whys) {
            let group = &mut groups[item.dataset.map_or(0, |number| number + 1)];
            let key = target_key(&item);
            let there = by_key.get(key.as_str());
            let planned = PlannedItem {
                there: there.and_then(|there| there.etag.clone()),
                key,
                bytes: item.object.len,
                action: if why.is_some() {
                    CopyAction::Copy
                } else {
                    CopyAction::Keep
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
            left_out: listing.left_out,
        };
        if plan.options.delete {
            plan.plan_deletions(there, &manifests)?;
        }
        Ok(plan)
    }

    /// All objects in processing order: the objects of a dataset before its manifest.
    pub fn items(&self) -> impl Iterator<Item = &PlannedItem> {
        self.groups.iter().flat_map(|group| {
            group
                .items
                .iter()
                .chain(group.manifest.iter().map(|(item, _)| item))
        })
    }

    /// Returns the objects that are removed at the end.
    pub fn deletions(&self) -> &[Object] {
        &self.deletions
    }

    /// Returns the entries of the source that are not copied.
    pub fn left_out(&self) -> &[LeftOut] {
        &self.left_out
    }

    /// The datasets that are copied.
    pub fn datasets(&self) -> impl Iterator<Item = &DatasetFound> {
        self.groups
            .iter()
            .filter_map(|group| group.dataset.as_ref())
    }

    /// The directories of the datasets at the destination that are replaced, and whether the old manifest is deleted first.
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

    /// The number of objects to copy, manifests included, and their bytes.
    pub fn to_move(&self) -> (u64, u64) {
        let moved = self.items().filter(|item| item.action != CopyAction::Keep);
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
        if self.source.object().is_some() {
            let what = "one object is copied: nothing can be told to be too much".to_owned();
            return refuse(what, "copy it without deleting, or name a directory");
        }
        if let Some(first) = self.left_out.first() {
            let what = format!(
                "{} lies in the source and is not copied ({}): what it stands for could be deleted",
                first.path, first.why
            );
            return refuse(what, "take it out of the source, or copy without deleting");
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
            return refuse(what, "name another destination, or copy without deleting");
        }
        let deletions = there.into_iter().filter(|object| {
            // Lock files and journals are kept: a process may be working in the directory.
            !kept.contains(object.key.as_str()) && listing::is_data(&object.key)
        });
        self.deletions = deletions.collect();
        Ok(())
    }
}

impl Group {
    /// Decides how the manifest of the group's dataset is written.
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
            planned.action = CopyAction::Publish;
            planned.why = Some(Why::Missing);
            return Ok(());
        };
        if old.json == dataset.json {
            planned.action = CopyAction::Keep;
            planned.why = None;
            *publish = Publish::Same;
            return Ok(());
        }
        planned.action = CopyAction::Publish;
        planned.why = Some(Why::Content);
        let is_same_data = old
            .dataset
            .as_ref()
            .is_some_and(|old| old.manifest.fingerprint == dataset.manifest.fingerprint);
        if !is_same_data && !options.overwrite {
            return Err(CopyError::Refused {
                place: target.store.location().join(&planned.key).to_string(),
                problem: "another dataset is there, which may have readers".to_owned(),
                hint: "copy to a place of its own, which is what readers need, or allow that it is overwritten",
            });
        }
        // If the old manifest is not valid, the files that it named are not known.
        let named: Option<BTreeSet<String>> =
            old.dataset.as_ref().map(|old| old.named_keys().collect());
        let changes_it = self.items.iter().any(|item| {
            item.action == CopyAction::Copy
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

fn refuse_overlap(source: &ObjectOrTree, target: &CopyTarget) -> Result<(), CopyError> {
    let (from, to) = (source.location(), target.store.location());
    let overlaps = match (source.object(), &target.name) {
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

/// The longest name of a file, in bytes, on the file systems in use.
const NAME_MAX_BYTES: usize = 255;

/// Leaves out objects whose keys are not valid file names, so that the others can be copied. If such an object belongs to a
/// dataset, the copy is refused, since datasets are copied whole or not at all.
fn leave_out_odd_names(
    listing: &mut SourceListing,
    target: &CopyTarget,
    target_key: &dyn Fn(&SourceItem) -> String,
) -> Result<(), CopyError> {
    let keys: BTreeSet<String> = listing.items.iter().map(target_key).collect();
    let mut kept = Vec::with_capacity(listing.items.len());
    for item in std::mem::take(&mut listing.items) {
        let key = target_key(&item);
        let Some(why) = odd_name(&key, &keys) else {
            kept.push(item);
            continue;
        };
        if item.dataset.is_some() || keys.len() == 1 {
            return Err(CopyError::Refused {
                place: target.location().to_string(),
                problem: format!("the key {key:?} cannot be a path below it: {why}"),
                hint: "copy the objects with such names one by one, each to a name of its own",
            });
        }
        listing.left_out.push(LeftOut { path: key, why });
    }
    listing.items = kept;
    Ok(())
}

/// The reason why a key cannot be a file path next to the other keys, if there is one.
fn odd_name(key: &str, keys: &BTreeSet<String>) -> Option<&'static str> {
    let is_plain = |part: &str| !matches!(part, "" | "." | "..") && !part.contains('\0');
    if !key.split('/').all(is_plain) {
        return Some("its name has an empty part, or one that is . or .., or a NUL");
    }
    if key.split('/').any(|part| part.len() > NAME_MAX_BYTES) {
        return Some("a part of its name is longer than 255 bytes");
    }
    let below = format!("{key}/");
    let next = keys.range(below.clone()..).next();
    let is_dir = next.is_some_and(|next| next.starts_with(&below));
    is_dir.then_some(
        "other names begin with its name and a slash, so it would have to be a directory",
    )
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
        // A manifest that is too large counts as not valid.
        let json = match object.len {
            ..=manifest::MAX_BYTES => target.store.get(&object.key, manifest::MAX_BYTES)?,
            _ => Vec::new(),
        };
        let parsed = Manifest::parse(&PathBuf::from(&object.key), &json).ok();
        let now = target
            .store
            .head(&object.key)?
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

/// Refuses a plan that would overwrite files of a dataset that it does not replace.
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
            item.action == CopyAction::Copy
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

/// Compares all items on several threads, since most of the time is waiting. Returns the reason to copy each item, in order.
fn compare_all<'o>(
    comparison: &Comparison<'_>,
    items: &[SourceItem],
    there: &(dyn Fn(&SourceItem) -> Option<&'o Object> + Sync),
) -> Result<Vec<Option<Why>>, CopyError> {
    let mut whys: Vec<Option<Why>> = vec![None; items.len()];
    let jobs = comparison.options.parallel.clamp(1, 32);
    let compared = for_each_parallel(items.iter().zip(&mut whys), jobs, |(item, why)| {
        // Manifests are compared byte by byte in `decide_publishing`.
        if item.role != Role::Manifest && !comparison.cancel.is_cancelled() {
            *why = comparison.why(item, there(item))?;
        }
        Ok::<_, CopyError>(())
    });
    compared?;
    if comparison.cancel.is_cancelled() {
        let total = items.len() as u64;
        return Err(CopyError::Interrupted { done: 0, total });
    }
    Ok(whys)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn keys_that_are_not_valid_paths_are_detected() {
        let long = "n".repeat(256);
        let all = [
            "a", "a/b", "a-b", "c//d", "../e", "f/./g", "h\0", &long, "i/j",
        ];
        let keys: BTreeSet<String> = all.map(str::to_owned).into();
        let odd: Vec<&str> = all
            .into_iter()
            .filter(|key| odd_name(key, &keys).is_some())
            .collect();
        assert_eq!(odd, ["a", "c//d", "../e", "f/./g", "h\0", &long]);
    }
}
