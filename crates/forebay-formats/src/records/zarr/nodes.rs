//! The keys of a hierarchy and their values: objects below a place, or members of a zip.

use crate::archive::zip::{Directory, ZipMember};
use crate::archive::{Archive, ArchiveFile, ReadAt, Stream, VolumeKind, identity};
use crate::error::{Error, Result};
use crate::records::RecordInput;
use crate::records::places::file_at;
use forebay_store::{Location, Object, Store};
use std::collections::BTreeMap;
use std::io;
use std::path::PathBuf;

/// Most keys of a hierarchy.
const MAX_KEYS: usize = 4 << 20;

/// A hierarchy of values by key.
#[derive(Debug)]
pub(super) struct Nodes {
    pub(super) path: PathBuf,
    pub(super) bytes: u64,
    /// Identity of all values, by their sizes and tags.
    pub(super) modified: i128,
    values: Values,
}

#[derive(Debug)]
enum Values {
    Objects(Store, BTreeMap<String, Object>),
    Members {
        archive: Archive,
        version: (u64, i128),
        base: u64,
        members: BTreeMap<String, ZipMember>,
    },
}

/// A value.
#[derive(Debug)]
pub(super) enum Node<'a> {
    Object(&'a Store, &'a Object),
    /// A member of a zip, and the bytes before the zip.
    Member(ArchiveFile, u64, &'a ZipMember),
}

impl Nodes {
    pub(super) fn open(location: &Location, input: &RecordInput) -> Result<Self> {
        match location.to_string().ends_with(super::ZIP) {
            true => Self::of_zip(file_at(location, &input.read)?.1),
            false => Self::of_place(location, input),
        }
    }

    fn of_place(location: &Location, input: &RecordInput) -> Result<Self> {
        let store = Store::open(location, &input.read.store)?;
        let path = match location.local_path() {
            Ok(path) => path.to_path_buf(),
            Err(_) => PathBuf::from(location.to_string()),
        };
        let listed = store.list("")?;
        if listed.len() > MAX_KEYS {
            let what = format!(
                "it has {} chunks, and at most {MAX_KEYS} are read: choose larger chunks or shards",
                listed.len()
            );
            return Err(Error::source(&path, what));
        }
        let mut hasher = blake3::Hasher::new();
        let mut bytes = 0;
        for object in &listed {
            hasher.update(&identity(object).to_le_bytes());
            bytes += object.len;
        }
        let mut modified = [0; 16];
        hasher.finalize_xof().fill(&mut modified);
        let objects = listed
            .into_iter()
            .map(|object| (object.key.clone(), object));
        Ok(Self {
            path,
            bytes,
            modified: i128::from_le_bytes(modified),
            values: Values::Objects(store, objects.collect()),
        })
    }

    fn of_zip(archive: Archive) -> Result<Self> {
        let (file, modified) = archive.open()?;
        let path = archive.shown();
        let mut directory =
            Directory::find(&file, file.len()).map_err(|trouble| trouble.of(&path))?;
        let stream = Stream::new(file.clone(), VolumeKind::Zip { base: 0 });
        let mut stream = stream.map_err(|error| Error::io(&path, "read", error))?;
        let mut members = BTreeMap::new();
        while let Some(member) = directory
            .next(&mut stream)
            .map_err(|trouble| trouble.of(&path))?
        {
            if member.is_directory {
                continue;
            }
            let shown = crate::finding::escape(&member.name);
            let refused = |what: String| Error::source(&path, format!("member {shown}: {what}"));
            if let Some(refusal) = member.refusal_in(file.len()) {
                return Err(refused(refusal));
            }
            let Ok(name) = String::from_utf8(member.name.clone()) else {
                return Err(refused("its name is not UTF-8".to_owned()));
            };
            if members.len() == MAX_KEYS {
                return Err(refused(format!("it has more than {MAX_KEYS} chunks")));
            }
            // The last one of a name counts, as in Python: metadata that changed was written again.
            members.insert(name, member);
        }
        Ok(Self {
            path,
            bytes: file.len(),
            modified,
            values: Values::Members {
                archive,
                version: (file.len(), modified),
                base: directory.base,
                members,
            },
        })
    }

    /// The keys that end with `name` behind a slash, or are it.
    pub(super) fn keys_of<'a>(&'a self, name: &'a str) -> Vec<&'a str> {
        let keys: Box<dyn Iterator<Item = &String>> = match &self.values {
            Values::Objects(_, objects) => Box::new(objects.keys()),
            Values::Members { members, .. } => Box::new(members.keys()),
        };
        let is_named = |key: &&str| {
            let before = key.strip_suffix(name);
            before.is_some_and(|before| before.is_empty() || before.ends_with('/'))
        };
        keys.map(String::as_str).filter(is_named).collect()
    }

    /// The value of a key; none if it has none.
    pub(super) fn get(&self, key: &str) -> io::Result<Option<Node<'_>>> {
        match &self.values {
            Values::Objects(store, objects) => {
                Ok(objects.get(key).map(|object| Node::Object(store, object)))
            }
            Values::Members {
                archive,
                version,
                base,
                members,
            } => {
                let Some(member) = members.get(key) else {
                    return Ok(None);
                };
                let (file, modified) = archive.open().map_err(io::Error::other)?;
                if (file.len(), modified) != *version {
                    return Err(io::Error::other("the zip changed while it was read"));
                }
                Ok(Some(Node::Member(file, *base, member)))
            }
        }
    }
}

impl Node<'_> {
    pub(super) fn len(&self) -> u64 {
        match self {
            Self::Object(_, object) => object.len,
            Self::Member(_, _, member) => member.size,
        }
    }

    /// Reads a part of the value, which has at most `most` bytes.
    pub(super) fn read(&self, offset: u64, len: u64, most: u64) -> io::Result<Vec<u8>> {
        let end = offset.checked_add(len);
        if end.is_none_or(|end| end > self.len()) || len > most {
            let what = format!(
                "bytes {offset} to {end:?} of {} are none of it, or too many",
                self.len()
            );
            return Err(io::Error::new(io::ErrorKind::InvalidData, what));
        }
        match self {
            Self::Object(_, _) if len == 0 => Ok(Vec::new()),
            Self::Object(store, object) => {
                let mut bytes = vec![0; len as usize];
                store.read_at_if(object, offset, &mut bytes)?;
                Ok(bytes)
            }
            Self::Member(file, base, member) => {
                let invalid = |what: String| io::Error::new(io::ErrorKind::InvalidData, what);
                if member.is_stored() && len < member.size {
                    let mut bytes = vec![0; len as usize];
                    let start = member.data(file, *base).map_err(invalid)?;
                    let at = start.checked_add(offset);
                    file.read_exact_at(&mut bytes, at.unwrap_or(u64::MAX))?;
                    return Ok(bytes);
                }
                // The checksum is that of the whole member.
                if member.size > most {
                    return Err(invalid(format!(
                        "a part of a compressed member of {} bytes cannot be read: the limit is {most} bytes",
                        member.size
                    )));
                }
                let mut bytes = Vec::new();
                let read = member.append_to(file, *base, most, &mut bytes);
                read.map_err(invalid)?;
                bytes.truncate((offset + len) as usize);
                bytes.drain(..offset as usize);
                Ok(bytes)
            }
        }
    }
}
