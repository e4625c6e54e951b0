//! Mapped shards as the destination of a conversion: records stay in the files of the source.

use super::source::Source;
use super::{ConvertOptions, OutputFormat};
use crate::error::{Error, Result};
use forebay_cache::read_storage;
use forebay_formats::Error as SourceError;
use forebay_formats::records::RecordFile;
use forebay_shard::manifest::MappedFrom;
use forebay_shard::mapped::{Extent, ExtentStart, MIN_EXTENT_BYTES, SourceIdentity};
use forebay_shard::{ExampleView, Storage};
use forebay_store::Location;
use memchr::memmem;
use std::path::{Path, PathBuf};
use std::sync::Arc;

/// The place of the records.
#[derive(Debug)]
pub(super) struct Mapping {
    pub(super) source: MappedFrom,
    /// The location as the paths of files have it.
    root: PathBuf,
    /// The store of the records, and the location there.
    store: Option<(PathBuf, Arc<dyn Storage>)>,
}

impl Mapping {
    /// Decides the location, where the options ask for mapped shards.
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
        // Paths have single slashes.
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

    /// Returns what identifies a file. Call it before records are read: every read compares the file with the one that was
    /// opened first, so this version is that of the records.
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

    /// Returns the name of a file below the location.
    fn name(&self, file: &dyn RecordFile) -> Result<String> {
        let below = file.path().strip_prefix(&self.root).ok();
        let name = below.and_then(|path| path.to_str()).map(str::to_owned);
        let what = "its name is not UTF-8, which manifests are";
        name.ok_or_else(|| SourceError::source(file.path(), what).into())
    }
}

/// The directory that two directories have in common.
fn common(a: &Path, b: &Path) -> PathBuf {
    let parts = a.components().zip(b.components());
    let same = parts.take_while(|(a, b)| a == b);
    same.map(|(part, _)| part).collect()
}

/// Finds the parts of a changed record that are still those of the file. `extents` are of the record before the change.
pub(super) fn find_again(changed: &[u8], record: &[u8], extents: &mut Vec<Extent>) {
    let old = std::mem::take(extents);
    let Ok(example) = ExampleView::parse(changed) else {
        return;
    };
    for feature in example.iter() {
        for value in feature.bytes_list().unwrap_or_default() {
            let place = (value.len() >= MIN_EXTENT_BYTES)
                .then(|| memmem::find(record, value))
                .flatten();
            let Some(at) = place else {
                continue;
            };
            let end = at + value.len();
            // A value may be in several pieces, as in blocks with headers.
            for known in &old {
                let first = known.record.start.max(at);
                let last = known.record.end.min(end);
                if last.saturating_sub(first) < MIN_EXTENT_BYTES {
                    continue;
                }
                let further = (first - known.record.start) as u64;
                let start = value.as_ptr().addr() - changed.as_ptr().addr() + (first - at);
                extents.push(Extent {
                    record: start..start + (last - first),
                    start: match known.start {
                        ExtentStart::File(offset) => ExtentStart::File(offset + further),
                        ExtentStart::Block(block, offset) => {
                            ExtentStart::Block(block, offset + further)
                        }
                    },
                });
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use forebay_shard::ExampleBuilder;

    #[test]
    fn values_are_found_again_in_a_changed_record() {
        let (image, text) = ([7u8; 100], [b'x'; 40]);
        let encode = |points: Option<&[u8]>| {
            let mut builder = ExampleBuilder::new();
            builder.add_bytes("a", &text).add_bytes("z", &image);
            if let Some(points) = points {
                builder.add_bytes("b", points);
            }
            let mut record = Vec::new();
            builder.encode_into(&mut record);
            record
        };
        let (old, new) = (encode(None), encode(Some(&[1; 50])));
        // The record is in two pieces, which the image is a part of both of.
        let middle = memmem::find(&old, &image).unwrap() + 45;
        let piece = |record: std::ops::Range<usize>| Extent {
            start: ExtentStart::File(1000 + record.start as u64),
            record,
        };
        let mut extents = vec![piece(0..middle), piece(middle..old.len())];
        find_again(&new, &old, &mut extents);
        let found: Vec<(&[u8], &[u8])> = extents
            .iter()
            .map(|extent| {
                let ExtentStart::File(offset) = extent.start else {
                    panic!("no block was given");
                };
                let at = (offset - 1000) as usize;
                (
                    &new[extent.record.clone()],
                    &old[at..at + extent.record.len()],
                )
            })
            .collect();
        assert_eq!(found.iter().map(|(new, _)| new.len()).sum::<usize>(), 140);
        assert!(found.iter().all(|(new, old)| new == old));
    }

    #[test]
    fn directories_have_a_common_one() {
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
