//! A source in an object store: its objects as a tree, and their content.
//!
//! A listing provides the sizes, and the etags by which changed objects are detected. The first bytes are read only of objects
//! in the splits whose names are not those of images. Reading takes one request per image; the number of reading threads bounds
//! the requests in flight. A source in a store gives the same shards as the same files in a directory.

use super::members::{MemberLocation, MemberRef, Members};
use crate::archive::identity;
use crate::error::{Error, Result};
use crate::finding::{Action, Finding, Reason, Refusal};
use crate::images::boxes::{self, BoxIndex};
use crate::key_path::{base, join, stem};
use crate::progress::Progress;
use crate::sniff::{self, ContentKind};
use crate::system_names::part_left_aside;
use forebay_shard::MAX_RECORD_BYTES;
use forebay_store::{Cancel, Object, Store, try_map_parallel};
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
use std::path::PathBuf;
use std::sync::{Arc, Mutex};

/// Most requests in flight: listings, small objects, or first bytes of objects.
const REQUESTS: usize = 32;
/// With at least this many directories at the top, these are listed in parallel. With fewer, their subdirectories are, so that
/// there are enough listings to run in parallel.
const MANY_DIRS: usize = 64;
/// Larger sizes are reduced to this one, which is already too large for a record.
const SIZE_MAX_BYTES: u64 = 1 << 40;
/// Largest class list, and the most class lists that are read.
const TEXT_MAX_BYTES: u64 = 64 << 20;
const TEXTS_MAX: usize = 64;
/// Most bytes of all class lists, since they stay in memory.
const TEXTS_MAX_BYTES: u64 = 256 << 20;
/// Longest key that the tree can hold.
const PATH_MAX_BYTES: usize = u16::MAX as usize;

/// The objects of a source.
#[derive(Debug)]
pub(crate) struct Objects {
    pub(super) store: Store,
    /// A hash of all objects in their versions, which does not depend on the order of listing.
    pub(super) identity: i128,
    pub(super) list: ObjectList,
}

/// Keys and versions, stored in 50 bytes and the key for each object.
#[derive(Debug, Default, Serialize, Deserialize)]
pub struct ObjectList {
    keys: Vec<u8>,
    /// End of each key, which is the start of the next.
    ends: Vec<u64>,
    etags: Etags,
}

/// Etags. Most are 16-byte hashes, written as hexadecimal digits in quotes.
#[derive(Debug, Default, Serialize, Deserialize)]
struct Etags {
    hashes: Vec<[u8; 16]>,
    others: BTreeMap<usize, Option<String>>,
}

/// Result of a listing.
pub(crate) struct Listed {
    pub(crate) members: Members,
    pub(crate) objects: Arc<Objects>,
    pub(crate) findings: Vec<Finding>,
}

impl Etags {
    fn push(&mut self, etag: Option<String>) {
        let hash = etag.as_deref().and_then(hash_of);
        if hash.is_none() {
            self.others.insert(self.hashes.len(), etag);
        }
        self.hashes.push(hash.unwrap_or_default());
    }

    fn get(&self, at: usize) -> Option<String> {
        if let Some(other) = self.others.get(&at) {
            return other.clone();
        }
        let digits = self
            .hashes
            .get(at)?
            .iter()
            .map(|byte| format!("{byte:02x}"));
        Some(format!("\"{}\"", digits.collect::<String>()))
    }
}

/// Returns the hash in an etag, if the etag can be restored from it exactly.
fn hash_of(etag: &str) -> Option<[u8; 16]> {
    let digits = etag.strip_prefix('"')?.strip_suffix('"')?.as_bytes();
    let mut hash = [0; 16];
    if digits.len() != 2 * hash.len() {
        return None;
    }
    for (byte, pair) in hash.iter_mut().zip(digits.chunks_exact(2)) {
        let digit = |digit: u8| match digit {
            b'0'..=b'9' => Some(digit - b'0'),
            b'a'..=b'f' => Some(digit - b'a' + 10),
            _ => None,
        };
        *byte = digit(pair[0])? * 16 + digit(pair[1])?;
    }
    Some(hash)
}

impl ObjectList {
    /// Returns an object in the version that was listed.
    fn object(&self, number: u64, size: u64) -> Option<Object> {
        let at = usize::try_from(number).ok()?;
        let start = match at.checked_sub(1) {
            Some(before) => *self.ends.get(before)?,
            None => 0,
        };
        let end = *self.ends.get(at)?;
        let key = self.keys.get(start as usize..end as usize)?;
        let mut object = Object::new(std::str::from_utf8(key).ok()?, size);
        object.etag = self.etags.get(at);
        Some(object)
    }
}

impl Objects {
    /// Appends the content of an object. Fails if the object changed since it was listed.
    pub(crate) fn append_to(
        &self,
        place: MemberLocation,
        size: u64,
        out: &mut Vec<u8>,
    ) -> Result<(), Refusal> {
        let Some(object) = self.list.object(place.offset, size) else {
            return Err((Reason::Vanished, "the census has no such object".to_owned()));
        };
        if size > MAX_RECORD_BYTES {
            return Err((Reason::TooLarge, format!("{size} bytes")));
        }
        let room = size as usize;
        let start = out.len();
        out.resize(start + room, 0);
        if room == 0 {
            return Ok(());
        }
        self.store
            .read_at_if(&object, 0, &mut out[start..])
            .map_err(|error| match error {
                forebay_store::Error::NotFound { .. } => (Reason::Vanished, String::new()),
                error @ (forebay_store::Error::Changed { .. }
                | forebay_store::Error::BeyondEnd { .. }) => {
                    (Reason::SizeChanged, error.to_string())
                }
                error => (Reason::NotFetched, error.to_string()),
            })
    }

    /// Reads at most `limit` bytes from the beginning of an object.
    fn head(&self, number: u64, size: u64, limit: u64) -> Result<Vec<u8>, String> {
        let object = self.list.object(number, size);
        let object = object.ok_or("the census has no such object")?;
        let mut bytes = vec![0; size.min(limit) as usize];
        if !bytes.is_empty() {
            self.store
                .read_at_if(&object, 0, &mut bytes)
                .map_err(|error| error.to_string())?;
        }
        Ok(bytes)
    }

    /// Reads the first bytes of the objects in some directories of a split, each with or without its subdirectories, if their
    /// names are not those of images.
    pub(crate) fn look<'d>(
        &self,
        members: &mut Members,
        split_dir: &[u8],
        dirs: impl Iterator<Item = (&'d [u8], bool)>,
        cancel: &Cancel,
    ) -> Result<()> {
        let mut unknown = Vec::new();
        for (dir, deep) in dirs {
            let below = match dir {
                b"" => split_dir.to_vec(),
                dir => join(split_dir, dir),
            };
            let prefix = if below.is_empty() { 0 } else { below.len() + 1 };
            let here = members.below(&below).filter(|member| {
                let key = &member.path[prefix..];
                member.kind == ContentKind::Unlooked
                    && part_left_aside(key, 0).is_none()
                    && (deep || !key.contains(&b'/'))
            });
            unknown.extend(here.map(|member| (member.place.offset, member.size)));
        }
        unknown.sort_unstable();
        unknown.dedup();
        // The kind decides whether an object is packed, so a failed request must not look like an ignored file.
        let found = in_parallel(&unknown, cancel, |(number, size)| {
            match self.head(*number, *size, sniff::SNIFF_BYTES as u64) {
                Ok(head) => Ok(sniff::kind(&head)),
                Err(what) => {
                    let key = self.list.object(*number, 0).map(|object| object.key);
                    let place = self.store.location().join(&key.unwrap_or_default());
                    Err(Error::source(place.to_string(), what))
                }
            }
        })?;
        let kinds = unknown.iter().zip(found).map(|((number, _), kind)| {
            let kind = kind.unwrap_or(ContentKind::NotAnImage);
            (*number, kind)
        });
        members.learn(&kinds.collect());
        Ok(())
    }

    /// Reads all annotations below directories, as [`boxes::read_dir`] does.
    pub(crate) fn read_boxes(
        &self,
        members: &Members,
        dirs: &[Vec<u8>],
        cancel: &Cancel,
    ) -> Result<(BoxIndex, Vec<Finding>)> {
        let annotations: Vec<MemberRef<'_>> = dirs
            .iter()
            .flat_map(|dir| members.below(dir))
            .filter(|member| member.path.ends_with(b".xml"))
            .collect();
        let read = in_parallel(&annotations, cancel, |member| {
            if member.size > boxes::XML_MAX_BYTES {
                let what = format!("it has more than {} bytes", boxes::XML_MAX_BYTES);
                return Ok(Err(what));
            }
            match self.head(member.place.offset, member.size, boxes::XML_MAX_BYTES) {
                Ok(xml) => Ok(boxes::parse(&xml)),
                Err(what) => {
                    let key = String::from_utf8_lossy(member.path);
                    let place = self.store.location().join(&key);
                    Err(Error::source(place.to_string(), what))
                }
            }
        })?;
        let mut index = BoxIndex::default();
        let mut findings = Vec::new();
        for (member, parsed) in annotations.iter().zip(read) {
            match parsed {
                None => {}
                Some(Ok(annotation)) => index.add(stem(base(member.path)), &annotation),
                Some(Err(what)) => {
                    let (action, reason) = (Action::Ignored, Reason::BadAnnotation);
                    findings.push(Finding::new(action, reason, member.path, what));
                }
            }
        }
        findings.sort_by(|a, b| a.path.cmp(&b.path));
        Ok((index, findings))
    }
}

/// Lists a source.
pub(crate) fn list(store: &Store, progress: &dyn Progress, cancel: &Cancel) -> Result<Listed> {
    let all = Mutex::new(Gathered::default());
    let gather = |objects: Vec<Object>| {
        let (files, bytes) = objects
            .iter()
            .filter(|object| sniff::has_image_name(object.key.as_bytes()))
            .fold((0, 0), |(files, bytes), object| {
                (files + 1, bytes + object.len)
            });
        progress.counted(files, bytes);
        let mut all = all.lock().unwrap_or_else(|e| e.into_inner());
        objects.into_iter().for_each(|object| all.push(object));
    };
    let top = store.list_dir("")?;
    gather(top.objects);
    let mut dirs = top.dirs;
    if dirs.len() < MANY_DIRS {
        let levels = in_parallel(&dirs, cancel, |dir| store.list_dir(dir))?;
        let mut below = Vec::new();
        for level in levels.into_iter().flatten() {
            gather(level.objects);
            below.extend(level.dirs);
        }
        dirs = below;
    }
    in_parallel(&dirs, cancel, |dir| store.list(dir).map(&gather))?;
    if cancel.is_cancelled() {
        return Err(Error::Interrupted);
    }
    let all = all.into_inner().unwrap_or_else(|e| e.into_inner());
    let mut listed = all.into_tree(store, cancel)?;
    for left_out in store.invalid_names()? {
        let (action, reason) = (Action::Skipped, Reason::UnsafeName);
        let path = left_out.path.as_bytes();
        listed
            .findings
            .push(Finding::new(action, reason, path, left_out.why));
    }
    Ok(listed)
}

/// Objects in the order in which the listings returned them.
#[derive(Default)]
struct Gathered {
    keys: Vec<u8>,
    ends: Vec<u64>,
    sizes: Vec<u64>,
    etags: Etags,
    /// Sum over all objects, which does not depend on their order.
    identity: i128,
}

impl Gathered {
    fn push(&mut self, object: Object) {
        // Some tools create an empty object without an extension for each directory.
        let name = object.key.rsplit('/').next().unwrap_or_default();
        if object.len == 0 && !name.contains('.') {
            return;
        }
        self.identity = self.identity.wrapping_add(identity(&object));
        self.keys.extend_from_slice(object.key.as_bytes());
        self.ends.push(self.keys.len() as u64);
        // A store may report arbitrary sizes; the limit prevents overflow of their sum.
        self.sizes.push(object.len.min(SIZE_MAX_BYTES));
        self.etags.push(object.etag);
    }

    fn into_tree(self, store: &Store, cancel: &Cancel) -> Result<Listed> {
        let mut members = Members::default();
        let mut findings = Vec::new();
        let mut texts = Vec::new();
        let mut start = 0;
        for (number, (end, size)) in self.ends.iter().zip(&self.sizes).enumerate() {
            let path = &self.keys[start as usize..*end as usize];
            start = *end;
            if path.len() > PATH_MAX_BYTES {
                let (action, reason) = (Action::Skipped, Reason::UnsafeName);
                findings.push(Finding::new(
                    action,
                    reason,
                    &path[..256],
                    "the key is too long",
                ));
                continue;
            }
            let place = MemberLocation {
                archive: 0,
                offset: number as u64,
            };
            let kind = if sniff::has_image_name(path) {
                ContentKind::Image
            } else if Members::keeps_text(path) && *size <= TEXT_MAX_BYTES {
                texts.push((path.to_vec(), *size, place));
                ContentKind::NotAnImage
            } else {
                ContentKind::Unlooked
            };
            members.push(path, *size, place, kind);
        }
        let shown = PathBuf::from(store.location().to_string());
        members.finish().map_err(|(_, error)| error.of(&shown))?;
        let objects = Arc::new(Objects {
            store: store.clone(),
            identity: self.identity,
            list: ObjectList {
                keys: self.keys,
                ends: self.ends,
                etags: self.etags,
            },
        });
        texts.sort_by(|a: &(Vec<u8>, u64, MemberLocation), b| a.0.cmp(&b.0));
        texts.truncate(TEXTS_MAX);
        let mut text_bytes = 0u64;
        texts.retain(|(_, size, _)| {
            text_bytes = text_bytes.saturating_add(*size);
            text_bytes <= TEXTS_MAX_BYTES
        });
        let read = in_parallel(&texts, cancel, |(path, size, place)| {
            let text = objects.head(place.offset, *size, TEXT_MAX_BYTES);
            text.map_err(|what| {
                let at = shown.join(String::from_utf8_lossy(path).as_ref());
                Error::source(at, what)
            })
        })?;
        for ((path, ..), text) in texts.into_iter().zip(read) {
            members.texts.extend(text.map(|text| (path, text)));
        }
        Ok(Listed {
            members,
            objects,
            findings,
        })
    }
}

/// Calls `work` for all things with up to `REQUESTS` threads and returns the results in order. After a cancellation no more
/// calls start, and the remaining results are `None`. After a failure no more calls start: a store that refuses one request
/// will refuse the next.
fn in_parallel<T: Sync, R: Send, E: Send>(
    things: &[T],
    cancel: &Cancel,
    work: impl Fn(&T) -> Result<R, E> + Sync,
) -> Result<Vec<Option<R>>, E> {
    try_map_parallel(things, REQUESTS, &|| cancel.is_cancelled(), work)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn etags_are_restored_exactly() {
        let all = [
            Some("\"0123456789abcdef0123456789abcdef\""),
            Some("\"0123456789ABCDEF0123456789abcdef\""),
            Some("\"0123456789abcdef0123456789abcdef-7\""),
            Some("0123456789abcdef0123456789abcdef"),
            None,
            Some(""),
            Some("\"ffffffffffffffffffffffffffffffff\""),
        ];
        let mut etags = Etags::default();
        all.iter()
            .for_each(|etag| etags.push(etag.map(str::to_owned)));
        for (at, etag) in all.iter().enumerate() {
            assert_eq!(etags.get(at).as_deref(), *etag);
        }
        assert_eq!(etags.others.len(), 5);
    }
}
