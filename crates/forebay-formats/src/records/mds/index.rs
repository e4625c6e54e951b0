//! `index.json` of MDS, and the offsets at the beginning of each shard.

use super::ClassName;
use crate::archive::{Archive, ArchiveKind, FileVersion, Stream};
use crate::error::{Error, Result};
use crate::records::samples::{INDEX, is_relative_path, read_index, read_offsets, values_at};
use forebay_shard::Storage;
use forebay_shard::manifest::ClassEntry;
use serde::Deserialize;
use std::collections::BTreeSet;
use std::path::Path;

const VERSION: u64 = 2;
/// Most columns; a real dataset has a handful.
const COLUMNS_MAX: usize = 1024;
/// The index of a split.
#[derive(Debug)]
pub(super) struct Index {
    pub(super) shards: Vec<ShardInfo>,
    pub(super) classes: Vec<ClassEntry>,
}

#[derive(Deserialize)]
struct IndexFile {
    version: u64,
    shards: Vec<ShardInfo>,
    #[serde(default)]
    classes: Vec<ClassName>,
}

/// An entry of a shard in the index.
#[derive(Debug, Clone, Deserialize)]
pub(super) struct ShardInfo {
    format: String,
    version: u64,
    column_names: Vec<String>,
    column_encodings: Vec<String>,
    column_sizes: Vec<Option<u64>>,
    #[serde(default)]
    compression: Option<String>,
    pub(super) raw_data: FileInfo,
    #[serde(default)]
    zip_data: Option<FileInfo>,
    samples: u64,
}

/// A file of a shard.
#[derive(Debug, Clone, Deserialize)]
pub(super) struct FileInfo {
    pub(super) basename: String,
    bytes: u64,
}

impl Index {
    /// Reads the index in a directory.
    pub(super) fn load(dir: &Path, storage: &dyn Storage) -> Result<Self> {
        read_index(dir, storage, Self::parse)
    }

    /// Parses the index.
    pub(super) fn parse(bytes: &[u8]) -> std::result::Result<Self, String> {
        let file: IndexFile = forebay_shard::json::from_slice(bytes)
            .map_err(|error| format!("no index of MDS: {error}"))?;
        if file.version != VERSION {
            return Err(format!(
                "version {} is not read, only {VERSION}",
                file.version
            ));
        }
        let mut names = BTreeSet::new();
        for (number, shard) in file.shards.iter().enumerate() {
            shard
                .check()
                .map_err(|what| format!("shard {number}: {what}"))?;
            if let Some(twice) = shard.files().find(|file| !names.insert(&file.basename)) {
                let name = &twice.basename;
                return Err(format!("shard {number}: {name} is listed twice"));
            }
        }
        let classes = file.classes.into_iter().map(|class| match class {
            ClassName::Name(name) => ClassEntry { name, text: None },
            ClassName::Entry(entry) => entry,
        });
        Ok(Self {
            shards: file.shards,
            classes: classes.collect(),
        })
    }
}

impl ShardInfo {
    fn check(&self) -> std::result::Result<(), String> {
        if self.format != "mds" || self.version != VERSION {
            return Err(format!(
                "format {:?} of version {} is not read, only \"mds\" of version {VERSION}",
                self.format, self.version
            ));
        }
        let count = self.column_names.len();
        if count == 0
            || count > COLUMNS_MAX
            || self.column_encodings.len() != count
            || self.column_sizes.len() != count
        {
            return Err(format!(
                "{count} columns, {} encodings and {} sizes",
                self.column_encodings.len(),
                self.column_sizes.len()
            ));
        }
        let names: BTreeSet<&String> = self.column_names.iter().collect();
        if names.len() != count {
            return Err("two columns have one name".to_owned());
        }
        for file in self.files() {
            let name = &file.basename;
            if !is_relative_path(name) {
                return Err(format!(
                    "{name:?} is no name of a file beside the index or below"
                ));
            }
        }
        Ok(())
    }

    /// Returns the files that hold the shard: the plain one, then the compressed one.
    pub(super) fn files(&self) -> impl Iterator<Item = &FileInfo> {
        std::iter::once(&self.raw_data).chain(&self.zip_data)
    }

    /// Returns the size of each column in bytes; `None` if its values have different sizes.
    pub(super) fn sizes(&self) -> impl ExactSizeIterator<Item = Option<u64>> + Clone {
        let sizes = self.column_sizes.iter();
        sizes.map(|size| size.filter(|size| *size > 0))
    }

    /// Returns the names, encodings and sizes of the columns.
    pub(super) fn columns(&self) -> impl Iterator<Item = (&str, (&str, Option<u64>))> + Clone {
        let names = self.column_names.iter().zip(&self.column_encodings);
        names
            .zip(self.sizes())
            .map(|((name, encoding), size)| (name.as_str(), (encoding.as_str(), size)))
    }
}

/// An open shard with the offsets of its samples.
#[derive(Debug)]
pub(super) struct OpenShard {
    pub(super) info: ShardInfo,
    pub(super) archive: Archive,
    pub(super) version: FileVersion,
    pub(super) kind: ArchiveKind,
    /// The offset of each sample in the plain shard, followed by the end of the last one.
    offsets: Vec<u32>,
    /// The position of each column of the source among the columns of the shard.
    pub(super) places: Vec<usize>,
}

impl OpenShard {
    /// Opens a shard and reads its offsets.
    pub(super) fn open(info: ShardInfo, archive: Archive, is_raw: bool) -> Result<Self> {
        let (version, file) = FileVersion::open(&archive)?;
        let path = &version.path;
        let refused = |what: String| Error::source(path, what);
        let kind = match info.compression.as_deref().filter(|_| !is_raw) {
            None => ArchiveKind::Tar,
            Some(text) => match text.split(':').next().unwrap_or_default() {
                "zstd" => ArchiveKind::TarZst,
                "gz" => ArchiveKind::TarGz,
                other => {
                    return Err(refused(format!(
                        "compression {other:?} is not read, only zstd and gz: decompress the shards, or write them with another one"
                    )));
                }
            },
        };
        let bytes = version.bytes;
        let listed = info
            .files()
            .nth(usize::from(!is_raw))
            .map(|file| file.bytes);
        if listed != Some(bytes) {
            let listed = listed.unwrap_or(0);
            return Err(refused(format!(
                "it has {bytes} bytes, and {INDEX} says {listed}: it is damaged, or of another dataset"
            )));
        }
        let mut stream = Stream::new(file, kind).map_err(|error| Error::io(path, "read", error))?;
        let offsets = read_offsets(&mut stream, info.samples, info.raw_data.bytes, bytes);
        let offsets = offsets.map_err(|(at, what)| refused(format!("offset {at}: {what}")))?;
        Ok(Self {
            info,
            archive,
            version,
            kind,
            offsets,
            places: Vec::new(),
        })
    }

    /// Splits a sample into its values, in the order of the source's columns.
    pub(super) fn values<'a>(
        &self,
        sample: &'a [u8],
    ) -> std::result::Result<Vec<&'a [u8]>, String> {
        values_at(self.info.sizes(), &self.places, sample)
    }

    pub(super) fn len(&self) -> usize {
        self.offsets.len().saturating_sub(1)
    }

    /// Returns the size of the plain shard in bytes.
    pub(super) fn raw_bytes(&self) -> u64 {
        self.offsets.last().copied().map_or(0, u64::from)
    }

    /// Returns the offset and the length of a sample in the plain shard.
    pub(super) fn sample(&self, number: usize) -> Option<(u64, usize)> {
        let (start, end) = (*self.offsets.get(number)?, *self.offsets.get(number + 1)?);
        Some((u64::from(start), (end - start) as usize))
    }
}
