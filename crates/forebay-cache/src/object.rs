//! A cached object: one version of one object, to which blocks belong.

use std::collections::HashMap;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError, Weak};

use super::disk::Live;
use super::object_id::{ObjectId, Reads};

/// An object that is read through a cache, created by [`Cache::object`](super::Cache::object). While a clone exists in any
/// process, the object is open: its blocks are evicted only for blocks that are read more often.
#[derive(Debug, Clone)]
pub struct CachedObject(pub(super) Arc<Inner>);

#[derive(Debug)]
pub(super) struct Inner {
    pub(super) id: ObjectId,
    pub(super) location: String,
    pub(super) key: String,
    pub(super) len: u64,
    blocks: Mutex<HashMap<u64, Uses>>,
    /// The file that tells other processes which objects are open.
    live: Option<Weak<Live>>,
    /// The number of objects of this cache that were closed so far.
    closings: Arc<AtomicU64>,
}

/// The reads of a block in this process.
#[derive(Debug, Clone, Copy, Default)]
struct Uses {
    reads: Reads,
    /// Bytes read since the last time that as many bytes were read as the block has.
    bytes: u64,
    pins: u32,
}

/// The state of a block before a read.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(super) struct Before {
    pub(super) reads: Reads,
    /// Whether this is the first read of the block in this process.
    pub(super) is_first: bool,
}

impl CachedObject {
    /// The object's id.
    #[must_use]
    pub fn id(&self) -> ObjectId {
        self.0.id
    }

    /// The object's length in bytes.
    #[must_use]
    #[expect(
        clippy::len_without_is_empty,
        reason = "an object of no bytes has no blocks"
    )]
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
        // A panic cannot leave the counters inconsistent.
        with(&mut self.0.blocks.lock().unwrap_or_else(PoisonError::into_inner))
    }

    /// Records a read of this many bytes of a block with this payload, and returns the state before it.
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

    fn object() -> CachedObject {
        let id = ObjectId::of("a", "b", None, 100);
        CachedObject::new(("a", "b"), id, 100, None, &Arc::default())
    }

    #[test]
    fn a_block_counts_as_read_after_all_its_bytes() {
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
