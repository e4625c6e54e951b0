//! The tier in memory: for blocks that do not fit into the directory, or for caches without a directory.
//!
//! A block is in one tier only. Blocks that were just read from or written to the directory are in the page cache, for all
//! processes; a second copy here would only waste memory.

use std::collections::{BTreeSet, HashMap};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use super::flight::Key;
use super::object_id::{ObjectId, Reads};
use super::stats::Counters;

/// Overhead of a block: its entries in the maps.
const ENTRY_BYTES: u64 = 256;

pub(super) fn cost(payload: u64) -> u64 {
    payload + ENTRY_BYTES
}

#[derive(Debug)]
pub(super) struct Memory {
    pub(super) limit: u64,
    held: Mutex<Blocks>,
    counters: Arc<Counters>,
}

#[derive(Debug, Default)]
struct Blocks {
    blocks: HashMap<Key, (Arc<Vec<u8>>, u64)>,
    /// The keys of all blocks, ordered by the time of their last use.
    by_use: BTreeSet<(u64, Key)>,
    /// Bytes of the blocks and of reservations.
    used: u64,
    /// The number of closed objects at the last search that found no block of a closed object.
    closings: u64,
}

/// Reserved bytes for a block, released on drop.
#[derive(Debug)]
pub(super) struct Reservation<'a> {
    memory: &'a Memory,
    key: Key,
    bytes: u64,
}

/// Input of evictions: which objects are open, how many were closed so far, and which blocks are pinned.
pub(super) struct Standing<'a> {
    pub(super) is_open: &'a dyn Fn(ObjectId) -> bool,
    pub(super) closings: u64,
    pub(super) is_pinned: &'a dyn Fn(ObjectId, u64) -> bool,
}

impl Memory {
    pub(super) fn new(limit: u64, counters: &Arc<Counters>) -> Self {
        Self {
            limit,
            held: Mutex::default(),
            counters: Arc::clone(counters),
        }
    }

    fn lock(&self) -> MutexGuard<'_, Blocks> {
        self.held.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(super) fn used(&self) -> u64 {
        self.lock().used
    }

    pub(super) fn has(&self, key: Key) -> bool {
        self.limit > 0 && self.lock().blocks.contains_key(&key)
    }

    /// Returns the block and marks it as used at `now`.
    pub(super) fn get(&self, key: Key, now: u64) -> Option<Arc<Vec<u8>>> {
        if self.limit == 0 {
            return None;
        }
        let held = &mut *self.lock();
        let (bytes, used_at) = held.blocks.get_mut(&key)?;
        held.by_use.remove(&(*used_at, key));
        *used_at = now.max(*used_at);
        held.by_use.insert((*used_at, key));
        Some(Arc::clone(bytes))
    }

    /// Reserves bytes for a block of this length, and evicts blocks if necessary. `None` if not enough blocks may be evicted.
    pub(super) fn reserve(
        &self,
        key: Key,
        payload: u64,
        reads: Reads,
        standing: &Standing<'_>,
    ) -> Option<Reservation<'_>> {
        let bytes = cost(payload);
        if bytes > self.limit {
            return None;
        }
        let mut held = self.lock();
        while held.used + bytes > self.limit {
            let victim = held.victim(reads, standing)?;
            let freed = held.remove(victim);
            self.counters.memory.evictions.add(1);
            self.counters.memory.evicted_bytes.add(freed);
        }
        held.used += bytes;
        Some(Reservation {
            memory: self,
            key,
            bytes,
        })
    }
}

impl Blocks {
    fn victim(&mut self, reads: Reads, standing: &Standing<'_>) -> Option<(u64, Key)> {
        if self.closings != standing.closings {
            let unused = self
                .by_use
                .iter()
                .find(|(_, key)| !(standing.is_open)(key.0));
            if unused.is_some() {
                return unused.copied();
            }
            self.closings = standing.closings;
        }
        // As in the directory: only blocks that were last used before the last two reads of the new block.
        let colder = self.by_use.range(..(reads.before_last, LEAST));
        let mut free = colder.filter(|(_, (id, number))| !(standing.is_pinned)(*id, *number));
        free.next().copied()
    }

    fn remove(&mut self, entry: (u64, Key)) -> u64 {
        self.by_use.remove(&entry);
        let Some((bytes, _)) = self.blocks.remove(&entry.1) else {
            return 0;
        };
        self.used -= cost(bytes.len() as u64);
        bytes.len() as u64
    }
}

/// The smallest key.
const LEAST: Key = (ObjectId::LEAST, 0);

impl Reservation<'_> {
    pub(super) fn store(mut self, payload: &[u8], now: u64) {
        let mut held = self.memory.lock();
        let bytes = cost(payload.len() as u64);
        debug_assert_eq!(bytes, self.bytes);
        held.blocks
            .insert(self.key, (Arc::new(payload.to_vec()), now));
        held.by_use.insert((now, self.key));
        // The bytes belong to the block from now on.
        self.bytes = 0;
    }
}

impl Drop for Reservation<'_> {
    fn drop(&mut self) {
        if self.bytes > 0 {
            self.memory.lock().used -= self.bytes;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn key(number: u64) -> Key {
        (ObjectId::of("a", "b", None, 1), number)
    }

    fn reads(before_last: u64) -> Reads {
        Reads {
            last: u64::MAX,
            before_last,
        }
    }

    fn open<'a>() -> Standing<'a> {
        Standing {
            is_open: &|_| true,
            closings: 0,
            is_pinned: &|_, _| false,
        }
    }

    fn full() -> Memory {
        let memory = Memory::new(2 * cost(100), &Arc::default());
        for number in 0..2 {
            let room = memory.reserve(key(number), 100, reads(0), &open()).unwrap();
            room.store(&[number as u8; 100], 10 + number);
        }
        memory
    }

    #[test]
    fn cached_blocks_are_not_evicted() {
        let memory = full();
        assert!(memory.reserve(key(2), 100, reads(0), &open()).is_none());
        assert!(memory.reserve(key(2), 100, reads(10), &open()).is_none());
        assert_eq!(memory.get(key(1), 12).unwrap()[0], 1);
        assert_eq!(memory.used(), memory.limit);
    }

    #[test]
    fn less_read_blocks_are_evicted_unless_pinned() {
        let memory = full();
        memory.get(key(0), 20);
        // Block 1 was last used at 11, before the new block's read before last at 15.
        let pinned = Standing {
            is_pinned: &|_, number| number == 1,
            ..open()
        };
        assert!(memory.reserve(key(2), 100, reads(15), &pinned).is_none());
        let room = memory.reserve(key(2), 100, reads(15), &open()).unwrap();
        assert!(memory.has(key(0)) && !memory.has(key(1)));
        drop(room);
        assert_eq!(
            memory.used(),
            cost(100),
            "what was not stored is given back"
        );
    }

    #[test]
    fn blocks_of_closed_objects_are_evicted_at_once() {
        let memory = full();
        let closed = Standing {
            is_open: &|_| false,
            closings: 1,
            ..open()
        };
        memory
            .reserve(key(2), 100, reads(0), &closed)
            .unwrap()
            .store(&[2; 100], 30);
        assert!(!memory.has(key(0)) && memory.has(key(1)) && memory.has(key(2)));
        assert!(
            memory.reserve(key(3), 1000, reads(0), &closed).is_none(),
            "larger than all"
        );
    }
}
