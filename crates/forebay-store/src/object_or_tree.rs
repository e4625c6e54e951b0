//! Whether a location is one object or a tree.

use crate::{Error, Location, Object, Result, Store, StoreOptions};
use forebay_shard::manifest::FILE_NAME as MANIFEST;
use std::io;

/// One object, or a tree of objects, at a location.
///
/// A location is a tree if its text ends in `/`, if it is a bucket or a directory, or if there are objects below it. Otherwise
/// it is an object if one of this name exists. The path of a manifest stands for its dataset.
#[derive(Debug, Clone)]
pub struct ObjectOrTree {
    store: Store,
    object: Option<Object>,
}

impl ObjectOrTree {
    /// Determines whether a location is an object or a tree.
    ///
    /// # Errors
    /// If the location does not exist, or cannot be opened.
    pub fn find(location: &Location, options: &StoreOptions) -> Result<Self> {
        let tree = || -> Result<Self> {
            Ok(Self {
                store: Store::open(location, options)?,
                object: None,
            })
        };
        if let Ok(path) = location.local_path() {
            let meta = std::fs::metadata(path).map_err(|error| Error::io(path, "open", error))?;
            if meta.is_dir() {
                return tree();
            }
            if !meta.is_file() {
                let what = "it is neither a directory nor a regular file";
                return Err(Error::io(path, "open", io::Error::other(what)));
            }
        }
        let Some((parent, name)) = location.parent_and_name()? else {
            return tree();
        };
        if location.is_remote() && has_more_below(location, options)? {
            return tree();
        }
        let store = Store::open(&parent, options)?;
        match store.head(&name)? {
            Some(_) if name == MANIFEST => Ok(Self {
                store,
                object: None,
            }),
            Some(object) => Ok(Self {
                store,
                object: Some(object),
            }),
            None => tree(),
        }
    }

    /// Returns the location of the tree or the object.
    pub fn location(&self) -> &Location {
        self.store.location()
    }

    /// The object, if the location names a single one.
    pub fn object(&self) -> Option<&Object> {
        self.object.as_ref()
    }

    /// The store that contains the object or the tree. Keys are relative to it.
    pub fn store(&self) -> &Store {
        &self.store
    }
}

/// Whether a remote location is a dataset or has objects below it. This is checked before the name itself is looked up:
/// servers that store objects as files may report a directory as a damaged object.
fn has_more_below(location: &Location, options: &StoreOptions) -> Result<bool> {
    let store = Store::open(location, options)?;
    if store.head(MANIFEST)?.is_some() {
        return Ok(true);
    }
    if let Some("http" | "https") = location.scheme() {
        return Ok(false);
    }
    let level = store.list_dir("")?;
    Ok(!level.dirs.is_empty() || !level.objects.is_empty())
}
