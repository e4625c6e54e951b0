//! The owner of blocks: one version of one object.

use std::collections::HashMap;
use std::fmt;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError, Weak};

use super::disk::Live;

/// Identity of an object's bytes: the same only for the same location, key, version and length.
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct ObjectId([u8; 32]);

impl ObjectId {
    /// Before every other one.
    pub(super) const LEAST: Self = Self([0; 32]);

    /// The BLAKE3 hash of the four, each text with its length before it. Without a version, an object that is replaced by
    /// another one of its length is taken for the one that was there before.
    #[must_use]
    pub fn of(location: &str, key: &str, version: Option<&str>, len: u64) -> Self {
        let mut hash = blake3::Hasher::new();
        hash.update(b"forebay cache 1\0");
        for text in [Some(location), Some(key), version] {
            match text {
                Some(text) => {
                    hash.update(&[1]);
                    hash.update(&(text.len() as u64).to_le_bytes());
                    hash.update(text.as_bytes());
                }
                None => {
                    hash.update(&[0]);
                }
            }
        }
        hash.update(&len.to_le_bytes());
        Self(*hash.finalize().as_bytes())
    }

    pub(super) fn from_bytes(bytes: [u8; 32]) -> Self {
        Self(bytes)
    }

    pub(super) fn as_bytes(&self) -> &[u8; 32] {
        &self.0
    }

    /// 64 hexadecimal digits.
    pub(super) fn to_hex(self) -> String {
        self.to_string()
    }

    /// Reads what [`to_hex`](Self::to_hex) wrote, and nothing else.
    pub(super) fn from_hex(text: &str) -> Option<Self> {
        let mut bytes = [0; 32];
        if text.len() != 64 || text.bytes().any(|digit| digit.is_ascii_uppercase()) {
            return None;
        }
        for (byte, digits) in bytes.iter_mut().zip(text.as_bytes().chunks(2)) {
            let digits = std::str::from_utf8(digits).ok()?;
            if !digits.bytes().all(|digit| digit.is_ascii_hexdigit()) {
                return None;
            }
            *byte = u8::from_str_radix(digits, 16).ok()?;
        }
        Some(Self(bytes))
    }
}

impl fmt::Display for ObjectId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.iter().try_for_each(|byte| write!(f, "{byte:02x}"))
    }
}

impl fmt::Debug for ObjectId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

/// An object that is read through a cache, made by [`Cache::object`](super::Cache::object). While any clone of it lives, in any
/// process, its blocks do not make room for others that are not needed more often.
#[derive(Debug, Clone)]
pub struct CachedObject(pub(super) Arc<Inner>);

#[derive(Debug)]
pub(super) struct Inner {
    pub(super) id: ObjectId,
    pub(super) location: String,
    pub(super) key: String,
    pub(super) len: u64,
    blocks: Mutex<HashMap<u64, Uses>>,
    /// The note that the object is in use.
    live: Option<Weak<Live>>,
    /// How often an object of the cache was closed.
    closings: Arc<AtomicU64>,
}

/// The reads of a block that this process knows of.
#[derive(Debug, Clone, Copy, Default)]
struct Uses {
    reads: Reads,
    /// Bytes read of it since it was last read as a whole.
    bytes: u64,
    pins: u32,
}

/// When as many bytes of a block had been read as it has, and when as many before them: nanoseconds since 1970, 0 for never.
///
/// Counted in bytes, because a block may be read at once or record by record: either way once an epoch.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(super) struct Reads {
    pub(super) last: u64,
    pub(super) before_last: u64,
}

/// The state of a block before a read.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(super) struct Before {
    pub(super) reads: Reads,
    /// Whether this is the first read of the block in this process.
    pub(super) is_first: bool,
}

impl CachedObject {
    /// Its identity.
    #[must_use]
    pub fn id(&self) -> ObjectId {
        self.0.id
    }

    /// Its length in bytes.
    #[must_use]
    #[allow(clippy::len_without_is_empty)]
    pub fn len(&self) -> u64 {
        self.0.len
    }

    pub(super) fn new(
        (location, key): (&str, &str),
        id: ObjectId,
        len: u64,
        live: Option<&Arc<Live>>,
        closings: &Arc<AtomicU64>,
    ) -> Self {
        if let Some(live) = live {
            live.enter(id);
        }
        Self(Arc::new(Inner {
            id,
            location: location.to_owned(),
            key: key.to_owned(),
            len,
            blocks: Mutex::default(),
            live: live.map(Arc::downgrade),
            closings: Arc::clone(closings),
        }))
    }

    fn uses<T>(&self, with: impl FnOnce(&mut HashMap<u64, Uses>) -> T) -> T {
        // Counters stay right after a panic.
        with(&mut self.0.blocks.lock().unwrap_or_else(PoisonError::into_inner))
    }

    /// Notes that this many bytes are read of a block with this payload, and tells what was before.
    pub(super) fn note_read(&self, block: u64, bytes: u64, payload: u64, now: u64) -> Before {
        self.uses(|blocks| {
            let uses = blocks.entry(block).or_default();
            let before = Before {
                reads: uses.reads,
                is_first: uses.bytes == 0 && uses.reads.last == 0,
            };
            uses.bytes += bytes;
            if uses.bytes >= payload {
                uses.bytes %= payload.max(1);
                uses.reads = Reads {
                    last: now,
                    before_last: before.reads.last,
                };
            }
            before
        })
    }

    pub(super) fn pin(&self, block: u64) {
        self.uses(|blocks| blocks.entry(block).or_default().pins += 1);
    }

    pub(super) fn unpin(&self, block: u64) {
        self.uses(|blocks| {
            if let Some(uses) = blocks.get_mut(&block) {
                uses.pins = uses.pins.saturating_sub(1);
            }
        });
    }

    pub(super) fn is_pinned(&self, block: u64) -> bool {
        self.uses(|blocks| blocks.get(&block).is_some_and(|uses| uses.pins > 0))
    }
}

impl Drop for Inner {
    fn drop(&mut self) {
        self.closings.fetch_add(1, Ordering::Relaxed);
        if let Some(live) = self.live.as_ref().and_then(Weak::upgrade) {
            live.leave(self.id);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn identities_differ_where_anything_does() {
        let ids = [
            ObjectId::of("a", "bc", Some("1"), 9),
            ObjectId::of("ab", "c", Some("1"), 9),
            ObjectId::of("a", "bc", Some("2"), 9),
            ObjectId::of("a", "bc", None, 9),
            ObjectId::of("a", "bc", Some(""), 9),
            ObjectId::of("a", "bc", Some("1"), 10),
        ];
        for (i, id) in ids.iter().enumerate() {
            assert!(!ids[..i].contains(id), "{i}");
            assert_eq!(ObjectId::from_hex(&id.to_hex()), Some(*id));
        }
        assert_eq!(ids[0], ObjectId::of("a", "bc", Some("1"), 9));
    }

    #[test]
    fn other_names_are_not_identities() {
        let hex = ObjectId::of("a", "b", None, 1).to_hex();
        let upper = format!("A{}", &hex[1..]);
        let plus = format!("+{}", &hex[1..]);
        for name in ["", "..", &hex[1..], &upper, &plus, &format!("{hex}0")] {
            assert_eq!(ObjectId::from_hex(name), None, "{name}");
        }
    }

    fn object() -> CachedObject {
        let id = ObjectId::of("a", "b", None, 100);
        CachedObject::new(("a", "b"), id, 100, None, &Arc::default())
    }

    #[test]
    fn a_block_is_read_when_all_its_bytes_were() {
        let object = object();
        let note = |bytes, now| object.note_read(0, bytes, 100, now);
        assert!(note(40, 1).is_first);
        let before = note(40, 2);
        assert_eq!((before.is_first, before.reads.last), (false, 0));
        note(20, 3);
        assert_eq!(
            note(100, 9).reads,
            Reads {
                last: 3,
                before_last: 0
            }
        );
        assert_eq!(
            note(1, 10).reads,
            Reads {
                last: 9,
                before_last: 3
            }
        );
    }

    #[test]
    fn pins_are_counted() {
        let object = object();
        object.pin(3);
        object.pin(3);
        object.unpin(3);
        assert!(object.is_pinned(3));
        object.unpin(3);
        object.unpin(3);
        object.unpin(4);
        assert!(!object.is_pinned(3) && !object.is_pinned(4));
    }
}
