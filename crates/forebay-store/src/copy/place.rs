//! The source and the target of a copy: one object, or a tree.
//!
//! A location is a tree if its text ends in `/`, if it is a bucket or a directory, or if there are objects below it. Otherwise
//! it is an object if one of this name exists. The path of a manifest stands for its dataset.

use super::CopyError;
use crate::{Error, Location, Object, Store, StoreOptions};
use forebay_shard::manifest::FILE_NAME as MANIFEST;
use std::io;
use std::path::Path;

/// The source of a copy.
#[derive(Debug, Clone)]
pub struct CopySource {
    pub(super) store: Store,
    /// The object, if the source is a single object.
    pub(super) only: Option<Object>,
}

/// The target of a copy.
#[derive(Debug, Clone)]
pub struct CopyTarget {
    pub(super) store: Store,
    /// The name of the object to write, if the source is a single object and the location is not a directory.
    pub(super) name: Option<String>,
}

impl CopySource {
    /// Determines whether a location is an object or a tree.
    ///
    /// # Errors
    /// If the location does not exist, or cannot be opened.
    pub fn find(location: &Location, options: &StoreOptions) -> Result<Self, CopyError> {
        let tree = || -> Result<Self, CopyError> {
            Ok(Self {
                store: Store::open(location, options)?,
                only: None,
            })
        };
        if let Ok(path) = location.local_path() {
            let meta = std::fs::metadata(path).map_err(|error| Error::io(path, "open", error))?;
            if meta.is_dir() {
                return tree();
            }
            if !meta.is_file() {
                let what = "it is neither a directory nor a regular file";
                return Err(CopyError::source(location, what));
            }
        }
        let Some((parent, name)) = apart(location)? else {
            return tree();
        };
        if location.is_remote() && has_more_below(location, options)? {
            return tree();
        }
        let store = Store::open(&parent, options)?;
        match store.head(&name)? {
            Some(_) if name == MANIFEST => Ok(Self { store, only: None }),
            Some(object) => Ok(Self {
                store,
                only: Some(object),
            }),
            None => tree(),
        }
    }

    /// Returns the location of the tree or the object.
    pub fn location(&self) -> &Location {
        self.store.location()
    }

    /// The object's name, if the source is a single object.
    pub fn object(&self) -> Option<&str> {
        self.only.as_ref().map(|object| object.key.as_str())
    }

    /// The store that contains the source's objects.
    pub fn store(&self) -> &Store {
        &self.store
    }
}

impl CopyTarget {
    /// Opens the target of a copy of `source`. If the location is a directory or its text ends in `/`, a single object is copied
    /// into it under its own name; otherwise the location is the new name of the object. Creates nothing.
    ///
    /// # Errors
    /// If the location cannot be opened, or is read only.
    pub fn find(
        location: &Location,
        source: &CopySource,
        options: &StoreOptions,
    ) -> Result<Self, CopyError> {
        if let Some(scheme @ ("http" | "https")) = location.scheme() {
            return Err(CopyError::Refused {
                place: location.to_string(),
                problem: format!("nothing can be written to {scheme}:// places"),
                hint: "name a directory, or a place such as s3://bucket/prefix",
            });
        }
        let is_dir = location.local_path().is_ok_and(Path::is_dir);
        if source.only.is_none() || is_dir {
            return Ok(Self {
                store: Store::open(location, options)?,
                name: None,
            });
        }
        match apart(location)? {
            Some((parent, name)) => Ok(Self {
                store: Store::open(&parent, options)?,
                name: Some(name),
            }),
            None => Ok(Self {
                store: Store::open(location, options)?,
                name: None,
            }),
        }
    }

    /// Returns the location of the tree, or of the object to be written.
    pub fn location(&self) -> &Location {
        self.store.location()
    }
}

/// Splits a location into parent and name; `None` if the location can only be a tree.
fn apart(location: &Location) -> Result<Option<(Location, String)>, CopyError> {
    if let Ok(path) = location.local_path() {
        if path.as_os_str().as_encoded_bytes().ends_with(b"/") {
            return Ok(None);
        }
        let Some(name) = path.file_name() else {
            return Ok(None);
        };
        let Some(name) = name.to_str() else {
            let what = "its name is not UTF-8, as names in stores are";
            return Err(CopyError::source(location, what));
        };
        let parent = match path.parent() {
            Some(parent) if !parent.as_os_str().is_empty() => parent,
            _ => Path::new("."),
        };
        return Ok(Some((Location::from(parent), name.to_owned())));
    }
    let text = location.to_string();
    let begin = text.find("://").map_or(0, |at| at + 3);
    match text[begin..].rfind('/') {
        Some(slash) if begin + slash + 1 < text.len() => {
            let (parent, name) = text.split_at(begin + slash + 1);
            Ok(Some((Location::parse(parent)?, name.to_owned())))
        }
        _ => Ok(None),
    }
}

/// Whether a remote location is a dataset or has objects below it. This is checked before the name itself is looked up:
/// servers that store objects as files may report a directory as a damaged object.
fn has_more_below(location: &Location, options: &StoreOptions) -> Result<bool, CopyError> {
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

/// Whether two locations are equal or one contains the other, so that a copy would read what it writes.
pub(super) fn overlap(a: &Location, b: &Location) -> io::Result<bool> {
    match (a.local_path(), b.local_path()) {
        (Ok(a), Ok(b)) => {
            let (a, b) = (resolved(a)?, resolved(b)?);
            Ok(a.starts_with(&b) || b.starts_with(&a))
        }
        (Err(_), Err(_)) => {
            let slashed =
                |place: &Location| format!("{}/", place.to_string().trim_end_matches('/'));
            let (a, b) = (slashed(a), slashed(b));
            Ok(a.starts_with(&b) || b.starts_with(&a))
        }
        _ => Ok(false),
    }
}

/// The absolute path, with symbolic links resolved in the part that exists.
fn resolved(path: &Path) -> io::Result<std::path::PathBuf> {
    let absolute = std::path::absolute(path)?;
    let mut existing = absolute.as_path();
    let mut rest = Vec::new();
    loop {
        if let Ok(real) = existing.canonicalize() {
            return Ok(rest.iter().rev().fold(real, |path, name| path.join(name)));
        }
        match (existing.parent(), existing.file_name()) {
            (Some(parent), Some(name)) => {
                rest.push(name.to_owned());
                existing = parent;
            }
            _ => return Ok(absolute),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parts(text: &str) -> Option<(String, String)> {
        let found = apart(&Location::parse(text).unwrap()).unwrap();
        found.map(|(parent, name)| (parent.to_string(), name))
    }

    #[test]
    fn apart_splits_names_from_parents() {
        let some = |a: &str, b: &str| Some((a.to_owned(), b.to_owned()));
        assert_eq!(parts("s3://b/a/x"), some("s3://b/a/", "x"));
        assert_eq!(parts("s3://b/x"), some("s3://b/", "x"));
        assert_eq!(parts("s3://b/a/"), None);
        assert_eq!(parts("s3://b"), None);
        assert_eq!(parts("/a/x"), some("/a", "x"));
        assert_eq!(parts("x"), some(".", "x"));
        assert_eq!(parts("a/"), None);
        assert_eq!(parts(".."), None);
    }

    #[test]
    fn overlapping_locations_are_detected() {
        let at = |text: &str| Location::parse(text).unwrap();
        for (a, b, expected) in [
            ("s3://b/a", "s3://b/a/", true),
            ("s3://b/a", "s3://b/a/c", true),
            ("s3://b", "s3://b/a", true),
            ("s3://b/a", "s3://b/ab", false),
            ("s3://b/a", "gs://b/a", false),
            ("/x-not-there/a", "/x-not-there/a/b", true),
            ("/x-not-there/a", "/x-not-there/ab", false),
            ("/a", "s3://b/a", false),
        ] {
            assert_eq!(overlap(&at(a), &at(b)).unwrap(), expected, "{a} {b}");
            assert_eq!(overlap(&at(b), &at(a)).unwrap(), expected, "{b} {a}");
        }
    }
}
