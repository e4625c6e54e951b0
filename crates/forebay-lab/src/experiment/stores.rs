//! Stores as media: shards of a medium that are uploaded to a store.

use std::cell::RefCell;
use std::path::Path;
use std::sync::Arc;

use forebay_cache::{ReadOptions, read_storage};
use forebay_shard::storage::Storage;
use forebay_shard::{Dataset, Split};
use forebay_store::{Cancel, Location, Store, StoreOptions, Transfer};
use walkdir::WalkDir;

use super::data::MediumData;
use super::once::Once;
use crate::Result;
use crate::read::split_of;

/// A scratch location in a store, and the objects there.
#[derive(Debug)]
pub(super) struct StoreData {
    pub(super) name: String,
    place: Location,
    store: Store,
    read: ReadOptions,
    /// Keys of the uploaded objects, which are deleted on drop.
    keys: RefCell<Vec<String>>,
    tfrecord: Once<()>,
    indexed: Once<()>,
}

/// Formats that are uploaded.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Shards {
    TfRecord,
    Indexed,
}

impl StoreData {
    pub(super) fn new(location: &Location, options: &StoreOptions) -> Result<Self> {
        let place = location.join(&crate::store::scratch_name());
        Ok(Self {
            name: location.to_string(),
            store: Store::open(&place, options)?,
            place,
            read: ReadOptions::new(options.clone()).for_loader(),
            keys: RefCell::default(),
            tfrecord: Once::default(),
            indexed: Once::default(),
        })
    }

    /// Opens the shards, which are uploaded from a medium on first use. Each run opens them again, without the readahead of
    /// earlier ones.
    pub(super) fn open(
        &self,
        shards: Shards,
        from: &MediumData,
    ) -> Result<(Split, Arc<dyn Storage>)> {
        let place = self.put(shards, from)?;
        let (root, storage) = read_storage(&place, &self.read)?;
        let dataset = Dataset::options()
            .storage(Arc::clone(&storage))
            .open(&root)?;
        Ok((split_of(&dataset, &root, None)?, storage))
    }

    /// Uploads shards of a medium on first use, and returns their location.
    pub(super) fn put(&self, shards: Shards, from: &MediumData) -> Result<Location> {
        let (name, once, split) = match shards {
            Shards::TfRecord => ("tfrecord", &self.tfrecord, from.tfrecord()),
            Shards::Indexed => ("indexed", &self.indexed, from.indexed()),
        };
        split?;
        once.get(|| self.upload(&from.scratch().join(name), name))?;
        Ok(self.place.join(name))
    }

    /// Returns the options for reading the objects.
    pub(super) fn read_options(&self) -> &ReadOptions {
        &self.read
    }

    /// Uploads all files of a directory below a key.
    fn upload(&self, dir: &Path, key: &str) -> Result<()> {
        let cancel = Cancel::new();
        for entry in WalkDir::new(dir) {
            let entry = entry?;
            if entry.file_type().is_dir() {
                continue;
            }
            let name = entry.path().strip_prefix(dir)?.to_str();
            let name = name.ok_or("a shard has a name that is not UTF-8")?;
            let key = format!("{key}/{name}");
            self.keys.borrow_mut().push(key.clone());
            self.store
                .upload_file(&key, entry.path(), &Transfer::new(&cancel))?;
        }
        Ok(())
    }
}

impl Drop for StoreData {
    fn drop(&mut self) {
        // The error of the measurement is reported, not that of the removal. The names of objects left behind say where they
        // are from.
        for key in self.keys.get_mut() {
            let _ = self.store.delete(key);
        }
    }
}
