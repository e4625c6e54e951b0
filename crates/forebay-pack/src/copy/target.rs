//! The target of a copy.

use super::CopyError;
use forebay_store::{Location, ObjectOrTree, Store, StoreOptions};
use std::io;
use std::path::Path;

/// The target of a copy.
#[derive(Debug, Clone)]
pub struct CopyTarget {
    pub(super) store: Store,
    /// The name of the object to write, if the source is a single object and the location is not a directory.
    pub(super) name: Option<String>,
}

impl CopyTarget {
    /// Opens the target of a copy of `source`. If the location is a directory or its text ends in `/`, a single object is copied
    /// into it under its own name; otherwise the location is the new name of the object. Creates nothing.
    ///
    /// # Errors
    /// If the location cannot be opened, or is read only.
    pub fn find(
        location: &Location,
        source: &ObjectOrTree,
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
        if source.object().is_none() || is_dir {
            return Ok(Self {
                store: Store::open(location, options)?,
                name: None,
            });
        }
        match location.parent_and_name()? {
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
