//! The objects of a source, and the datasets among them.
//!
//! A dataset is copied only if each shard of its manifest exists with the size that the manifest states. Working files of
//! running or killed processes (locks, journals, temporary files) are never part of a source.

use super::CopyError;
use forebay_shard::Manifest;
use forebay_shard::dataset::INDEX_DIRECTORY;
use forebay_shard::manifest::{self, FILE_NAME as MANIFEST};
use forebay_store::{DirLock, LeftOut, Location, Object, ObjectOrTree, Store, is_temporary};
use std::collections::BTreeMap;
use std::ffi::OsStr;
use std::path::PathBuf;

/// The journal directory of an unfinished pack.
const WORK_DIRECTORY: &str = ".forebay-pack";
/// The report that a dataset may have in addition to shards and indexes.
const REPORT: &str = "pack/report.jsonl";

/// The objects and datasets of a source.
#[derive(Debug)]
pub struct SourceListing {
    pub(super) items: Vec<SourceItem>,
    pub(super) datasets: Vec<DatasetFound>,
    pub(super) left_out: Vec<LeftOut>,
}

/// A dataset in a tree.
#[derive(Debug, Clone)]
pub struct DatasetFound {
    /// The directory, relative to the tree; empty for the tree itself.
    pub root: String,
    /// The parsed manifest.
    pub manifest: Manifest,
    /// The manifest's bytes, which are copied unchanged.
    pub(super) json: Vec<u8>,
    /// The metadata of the manifest object.
    pub(super) object: Object,
}

/// One object to copy.
#[derive(Debug, Clone)]
pub(super) struct SourceItem {
    pub(super) object: Object,
    /// The expected CRC-32C, if known: for shards from the manifest, for other objects as stored with the object.
    pub(super) crc32c: Option<u32>,
    pub(super) role: Role,
    /// The position in `datasets` of the dataset that the object belongs to.
    pub(super) dataset: Option<usize>,
}

/// The role of an object in its dataset.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Role {
    Plain,
    Shard,
    /// A binary index of the shard with this CRC-32C.
    Index(u32),
    Manifest,
}

impl DatasetFound {
    /// The key of a file of this dataset.
    pub(super) fn key(&self, name: &str) -> String {
        join(&self.root, name)
    }

    /// The keys of the shards in the manifest, and of the indexes that these shards may have.
    pub(super) fn named_keys(&self) -> impl Iterator<Item = String> + '_ {
        let shards = self.manifest.splits.iter().flat_map(|split| &split.shards);
        shards.flat_map(|shard| {
            let index =
                |ending: &str| self.key(&format!("{INDEX_DIRECTORY}/{}.{ending}", shard.name));
            [self.key(&shard.name), index("fbi"), index("idx")]
        })
    }
}

impl SourceListing {
    /// Lists all objects of a source, and finds the datasets among them.
    ///
    /// # Errors
    /// If the source cannot be listed, is empty, or contains an incomplete dataset.
    pub fn take(source: &ObjectOrTree) -> Result<Self, CopyError> {
        if let Some(object) = source.object() {
            return Ok(Self {
                items: vec![SourceItem {
                    object: object.clone(),
                    crc32c: object.crc32c,
                    role: Role::Plain,
                    dataset: None,
                }],
                datasets: Vec::new(),
                left_out: Vec::new(),
            });
        }
        let store = source.store();
        let place = store.location();
        let is_web = matches!(place.scheme(), Some("http" | "https"));
        let (objects, left_out) = if is_web {
            (listed_by_manifest(store)?, Vec::new())
        } else {
            let all = store.list_all("")?;
            (all.objects, all.left_out)
        };
        let objects: Vec<Object> = objects
            .into_iter()
            .filter(|object| is_data(&object.key))
            .collect();
        let datasets = datasets(store, &objects)?;
        let mut listing = Self {
            items: objects.into_iter().map(plain).collect(),
            datasets,
            left_out,
        };
        listing.refuse_unfinished(store)?;
        if listing.items.is_empty() {
            return Err(CopyError::source(place, "there is nothing there"));
        }
        listing.tell_apart(place)?;
        Ok(listing)
    }

    /// Refuses an unfinished pack, which has shards and no manifest: its copy would look like a directory of plain files.
    fn refuse_unfinished(&self, store: &Store) -> Result<(), CopyError> {
        if !self.datasets.is_empty() {
            return Ok(());
        }
        let begun = ["journal", "plan"].map(|name| format!("{WORK_DIRECTORY}/{name}"));
        for key in begun {
            if store.location().local_path().is_ok() && store.head(&key)?.is_some() {
                return Err(CopyError::Refused {
                    place: store.location().to_string(),
                    problem: "an unfinished dataset lies there".to_owned(),
                    hint: "run the same `forebay pack` command again to finish it, then copy the dataset",
                });
            }
        }
        Ok(())
    }

    /// Sets the dataset and the role of each object, and fails if shards are missing or have the wrong size.
    fn tell_apart(&mut self, place: &Location) -> Result<(), CopyError> {
        let mut by_key: BTreeMap<String, usize> = BTreeMap::new();
        for (at, item) in self.items.iter().enumerate() {
            by_key.insert(item.object.key.clone(), at);
        }
        for (number, dataset) in self.datasets.iter().enumerate() {
            // Objects below a dataset belong to it. Nested datasets come later and override this.
            let prefix = join(&dataset.root, "");
            for (_, at) in by_key
                .range(prefix.clone()..)
                .take_while(|(key, _)| key.starts_with(&prefix))
            {
                self.items[*at].dataset = Some(number);
            }
        }
        let mut missing = Vec::new();
        for dataset in &self.datasets {
            if let Some(at) = by_key.get(&dataset.object.key) {
                self.items[*at].role = Role::Manifest;
            }
            for shard in dataset
                .manifest
                .splits
                .iter()
                .flat_map(|split| &split.shards)
            {
                let key = dataset.key(&shard.name);
                let Some(item) = by_key.get(&key).map(|at| &mut self.items[*at]) else {
                    missing.push(format!("{key} is missing"));
                    continue;
                };
                if item.object.len != shard.bytes {
                    let (found, expected) = (item.object.len, shard.bytes);
                    missing.push(format!("{key} has {found} bytes, expected {expected}"));
                    continue;
                }
                item.crc32c = Some(shard.crc32c);
                item.role = Role::Shard;
                let index = dataset.key(&format!("{INDEX_DIRECTORY}/{}.fbi", shard.name));
                if let Some(at) = by_key.get(&index) {
                    self.items[*at].role = Role::Index(shard.crc32c);
                }
            }
        }
        match missing.as_slice() {
            [] => Ok(()),
            [first, rest @ ..] => {
                let more = match rest.len() {
                    0 => String::new(),
                    more => format!(", and {more} more shards are missing or cut"),
                };
                let what = format!("the dataset is not whole: {first}{more}");
                Err(CopyError::source(place, what))
            }
        }
    }
}

fn plain(object: Object) -> SourceItem {
    SourceItem {
        crc32c: object.crc32c,
        object,
        role: Role::Plain,
        dataset: None,
    }
}

/// The datasets among objects; nested datasets come after the ones that contain them.
pub(super) fn datasets(store: &Store, objects: &[Object]) -> Result<Vec<DatasetFound>, CopyError> {
    let mut found = Vec::new();
    for object in objects {
        let Some(root) = object.key.strip_suffix(MANIFEST) else {
            continue;
        };
        // The name only ends with the name of a manifest.
        if !root.is_empty() && !root.ends_with('/') {
            continue;
        }
        let json = store.get(&object.key, manifest::MAX_BYTES)?;
        let name = PathBuf::from(store.location().join(&object.key).to_string());
        found.push(DatasetFound {
            root: root.trim_end_matches('/').to_owned(),
            manifest: Manifest::parse(&name, &json)?,
            json,
            object: object.clone(),
        });
    }
    found.sort_by(|a, b| a.root.cmp(&b.root));
    Ok(found)
}

/// The objects of a dataset on a web server, which cannot list: the keys come from the manifest.
fn listed_by_manifest(store: &Store) -> Result<Vec<Object>, CopyError> {
    let Some(head) = store.head(MANIFEST)? else {
        let what =
            format!("there is no {MANIFEST}, and web servers do not list what else there is");
        return Err(CopyError::source(store.location(), what));
    };
    let mut objects = vec![head];
    let found = datasets(store, &objects)?;
    for dataset in &found {
        for key in dataset.named_keys().chain([REPORT.to_owned()]) {
            // `tell_apart` reports missing shards.
            objects.extend(store.head(&key)?);
        }
    }
    objects.sort_by(|a, b| a.key.cmp(&b.key));
    Ok(objects)
}

/// Whether an object is data, not a working file (lock, journal, temporary file) of a process.
pub(super) fn is_data(key: &str) -> bool {
    let name = key.rsplit('/').next().unwrap_or(key);
    let is_lock = name == DirLock::FILE_NAME || name == DirLock::OWNER_FILE_NAME;
    let is_work = key.split('/').any(|part| part == WORK_DIRECTORY);
    // An empty name is a directory marker of some tools (the key ends in `/`).
    !name.is_empty() && !is_lock && !is_work && !is_temporary(OsStr::new(name))
}

fn join(root: &str, name: &str) -> String {
    if root.is_empty() {
        name.to_owned()
    } else {
        format!("{root}/{name}")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn working_files_of_processes_are_not_data() {
        for key in [
            ".forebay-lock",
            "a/.forebay-lock",
            ".forebay-pack/journal",
            "a/.forebay-pack/part-1-of-2/journal",
            "index/.x.fbi.forebay-tmp",
            "a/",
        ] {
            assert!(!is_data(key), "{key}");
        }
        for key in ["forebay.json", "a/.hidden", "index/x.fbi", "x.forebay-tmp"] {
            assert!(is_data(key), "{key}");
        }
    }
}
