//! The keys and values of a hierarchy: objects below a location, or members of a zip.

use crate::archive::zip::{Directory, ZipMember};
use crate::archive::{Archive, ArchiveFile, ArchiveKind, FileVersion, ReadAt, Stream, identity};
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
    /// Identity of the zip, or of all objects by their sizes and etags.
    pub(super) version: FileVersion,
    values: Values,
}

#[derive(Debug)]
enum Values {
    Objects(Store, BTreeMap<String, Object>),
    Members {
        archive: Archive,
        base: u64,
        members: BTreeMap<String, ZipMember>,
    },
}

/// The value of a key.
#[derive(Debug)]
pub(super) enum Node<'a> {
    Object(&'a Store, &'a Object),
    /// A member of a zip, and the number of bytes before the zip.
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
            version: FileVersion {
                path,
                bytes,
                modified: i128::from_le_bytes(modified),
            },
            values: Values::Objects(store, objects.collect()),
        })
    }

    fn of_zip(archive: Archive) -> Result<Self> {
        let (version, file) = FileVersion::open(&archive)?;
        let path = &version.path;
        let mut directory =
            Directory::find(&file, file.len()).map_err(|trouble| trouble.of(path))?;
        let stream = Stream::new(file.clone(), ArchiveKind::Zip { base: 0 });
        let mut stream = stream.map_err(|error| Error::io(path, "read", error))?;
        let mut members = BTreeMap::new();
        while let Some(member) = directory
            .next(&mut stream)
            .map_err(|trouble| trouble.of(path))?
        {
            if member.is_directory {
                continue;
            }
            let shown = crate::finding::escape(&member.name);
            let refused = |what: String| Error::source(path, format!("member {shown}: {what}"));
            if let Some(refusal) = member.refusal_in(file.len()) {
                return Err(refused(refusal));
            }
            let Ok(name) = String::from_utf8(member.name.clone()) else {
                return Err(refused("its name is not UTF-8".to_owned()));
            };
            if members.len() == MAX_KEYS {
                return Err(refused(format!("it has more than {MAX_KEYS} chunks")));
            }
            // If a name is repeated, the last member is used, as in Python: changed metadata is appended again.
            members.insert(name, member);
        }
        Ok(Self {
            version,
            values: Values::Members {
                archive,
                base: directory.base,
                members,
            },
        })
    }

    /// Returns the keys that are `name` or end with a slash and `name`.
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

    /// Returns the value of a key; `None` if the key does not exist.
    pub(super) fn get(&self, key: &str) -> io::Result<Option<Node<'_>>> {
        match &self.values {
            Values::Objects(store, objects) => {
                Ok(objects.get(key).map(|object| Node::Object(store, object)))
            }
            Values::Members {
                archive,
                base,
                members,
            } => {
                let Some(member) = members.get(key) else {
                    return Ok(None);
                };
                let file = self.version.reopen(archive).map_err(io::Error::other)?;
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

    /// Reads a part of the value; an error if it has more than `most` bytes.
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
                // A compressed member has to be read completely, also to verify its checksum.
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

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::Write;

    #[test]
    fn parts_of_compressed_members_have_a_size_limit() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("a.zarr.zip");
        let content: Vec<u8> = (0..4096u32).map(|at| (at / 16) as u8).collect();
        let mut zip = zip::ZipWriter::new(std::fs::File::create(&path).unwrap());
        let deflated = zip::CompressionMethod::Deflated;
        for (name, method) in [
            ("deflated", deflated),
            ("stored", zip::CompressionMethod::Stored),
        ] {
            let options = zip::write::SimpleFileOptions::default().compression_method(method);
            zip.start_file(name, options).unwrap();
            zip.write_all(&content).unwrap();
        }
        zip.finish().unwrap();
        let nodes = Nodes::of_zip(Archive::Local(path)).unwrap();
        let read = |name: &str, most| nodes.get(name).unwrap().unwrap().read(2000, 100, most);
        for (name, most) in [("deflated", 4096), ("stored", 4096), ("stored", 100)] {
            assert_eq!(read(name, most).unwrap(), content[2000..2100], "{name}");
        }
        // Limits before, inside and at the end of the part.
        for most in [1000, 2050, 4095] {
            let error = read("deflated", most).unwrap_err();
            assert_eq!(error.kind(), io::ErrorKind::InvalidData);
            let said = format!(
                "compressed member of 4096 bytes cannot be read: the limit is {most} bytes"
            );
            assert!(error.to_string().contains(&said), "{error}");
        }
        // Offsets and lengths in a shard's index are untrusted.
        for (offset, len) in [(4000, 97), (u64::MAX, 1), (0, u64::MAX)] {
            let node = nodes.get("deflated").unwrap().unwrap();
            assert!(node.read(offset, len, 4096).is_err());
        }
    }

    /// If the name in the directory differs from the name in the local header, the bytes belong to another chunk.
    #[test]
    fn members_under_another_name_are_refused() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("a.zarr.zip");
        let mut zip = zip::ZipWriter::new(std::io::Cursor::new(Vec::new()));
        let stored = zip::CompressionMethod::Stored;
        let options = zip::write::SimpleFileOptions::default().compression_method(stored);
        zip.start_file("c/0", options).unwrap();
        zip.write_all(b"0123").unwrap();
        let mut bytes = zip.finish().unwrap().into_inner();
        let at = memchr::memmem::find(&bytes, b"c/0").unwrap();
        bytes[at + 2] = b'1';
        std::fs::write(&path, bytes).unwrap();
        let nodes = Nodes::of_zip(Archive::Local(path)).unwrap();
        let error = nodes
            .get("c/0")
            .unwrap()
            .unwrap()
            .read(0, 4, 100)
            .unwrap_err();
        assert!(error.to_string().contains("is that of \"c/1\""), "{error}");
    }
}
