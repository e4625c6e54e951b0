//! Mapped shards as the destination of a conversion; the records stay in the files of the source.

use super::options::{ConvertOptions, OutputFormat};
use super::source::Source;
use crate::error::{Error, Result};
use forebay_cache::read_storage;
use forebay_formats::Error as SourceError;
use forebay_formats::records::RecordFile;
use forebay_shard::Storage;
use forebay_shard::manifest::MappedFrom;
use forebay_shard::mapped::SourceIdentity;
use forebay_store::Location;
use std::path::{Path, PathBuf};
use std::sync::Arc;

/// The location of the records.
#[derive(Debug)]
pub(super) struct Mapping {
    pub(super) source: MappedFrom,
    /// The location as a prefix of the paths of files.
    root: PathBuf,
    /// The store of the records, and the path of the location in it.
    store: Option<(PathBuf, Arc<dyn Storage>)>,
}

impl Mapping {
    /// Determines the location, if the options request mapped shards.
    pub(super) fn of(options: &ConvertOptions, source: &Source) -> Result<Option<Self>> {
        if options.format != OutputFormat::Mapped {
            return Ok(None);
        }
        if options.sharding.is_some() {
            let what = "records that stay where they are cannot be distributed to other shards";
            return Err(Error::Options(what.to_owned()));
        }
        let files = || source.splits.iter().flat_map(|split| &split.files);
        for file in files() {
            if let Some(why) = file.in_place_refusal() {
                return Err(SourceError::source(file.path(), why).into());
            }
        }
        let dirs = files().map(|file| file.path().parent().unwrap_or(Path::new("")));
        let root = dirs.map(Path::to_path_buf).reduce(|a, b| common(&a, &b));
        let root = root.unwrap_or_default();
        let is_remote = root.to_string_lossy().contains(":/");
        if options.dst.is_remote() && !is_remote {
            let what = format!(
                "the index would be in a store and its records in {}, which no other machine has: choose a local directory, or upload the files first",
                root.display()
            );
            return Err(Error::Options(what));
        }
        let location = match is_remote {
            true => root.clone(),
            false => {
                let dir = if root.as_os_str().is_empty() {
                    Path::new(".")
                } else {
                    &root
                };
                let whole = std::fs::canonicalize(dir);
                whole.map_err(|error| SourceError::io(&root, "find", error))?
            }
        };
        let text = location.to_str().ok_or_else(|| {
            SourceError::source(&root, "its path is not UTF-8, which manifests are")
        })?;
        // Paths contain single slashes, so the double slash of a URL is restored.
        let location = match is_remote && !text.contains("://") {
            true => text.replacen(":/", "://", 1),
            false => text.to_owned(),
        };
        let store = is_remote.then(|| -> Result<_> {
            let place = Location::parse(&location).map_err(SourceError::from)?;
            Ok(read_storage(&place, &options.read)?)
        });
        Ok(Some(Self {
            source: MappedFrom {
                location,
                format: source.format.to_owned(),
            },
            root,
            store: store.transpose()?,
        }))
    }

    /// Returns the identity of a file. Must be called before records are read: every read compares the file with its first
    /// opened version, so the version returned here is that of the records.
    pub(super) fn identity(&self, file: &dyn RecordFile) -> Result<SourceIdentity> {
        let mut identity = SourceIdentity::new(self.name(file)?, file.bytes());
        if let Some((root, storage)) = &self.store {
            let path = root.join(&identity.name);
            let opened = storage.open(&path);
            let opened = opened.map_err(|error| SourceError::io(&path, "open", error))?;
            identity.version = opened.version().map(str::to_owned);
        }
        Ok(identity)
    }

    /// Returns the name of a file relative to the location.
    fn name(&self, file: &dyn RecordFile) -> Result<String> {
        let below = file.path().strip_prefix(&self.root).ok();
        let name = below.and_then(|path| path.to_str()).map(str::to_owned);
        let what = "its name is not UTF-8, which manifests are";
        name.ok_or_else(|| SourceError::source(file.path(), what).into())
    }
}

/// Returns the longest common prefix of two directories.
fn common(a: &Path, b: &Path) -> PathBuf {
    let parts = a.components().zip(b.components());
    let same = parts.take_while(|(a, b)| a == b);
    same.map(|(part, _)| part).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn directories_have_a_common_prefix() {
        for (a, b, expected) in [
            ("/a/b", "/a/b", "/a/b"),
            ("/a/b/c", "/a/bc", "/a"),
            ("s3://bucket/x/train", "s3://bucket/x/val", "s3://bucket/x"),
            ("", "", ""),
        ] {
            assert_eq!(common(Path::new(a), Path::new(b)), Path::new(expected));
        }
    }
}
