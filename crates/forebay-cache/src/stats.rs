//! Counters of a cache.

use std::sync::atomic::{AtomicU64, Ordering};

/// A number that only grows.
#[derive(Debug, Default)]
pub(super) struct Counter(AtomicU64);

impl Counter {
    pub(super) fn add(&self, more: u64) {
        self.0.fetch_add(more, Ordering::Relaxed);
    }

    fn get(&self) -> u64 {
        self.0.load(Ordering::Relaxed)
    }
}

#[derive(Debug, Default)]
pub(super) struct TierCounters {
    pub(super) hits: Counter,
    pub(super) hit_bytes: Counter,
    pub(super) stored: Counter,
    pub(super) stored_bytes: Counter,
    pub(super) evictions: Counter,
    pub(super) evicted_bytes: Counter,
    pub(super) damaged: Counter,
}

#[derive(Debug, Default)]
pub(super) struct Counters {
    pub(super) memory: TierCounters,
    pub(super) disk: TierCounters,
    pub(super) misses: Counter,
    pub(super) miss_bytes: Counter,
    pub(super) fetches: Counter,
    pub(super) fetched_bytes: Counter,
    pub(super) around_bytes: Counter,
    pub(super) waited: Counter,
}

/// Counters of one tier, since its cache was opened in this process.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, serde::Serialize)]
#[non_exhaustive]
pub struct TierStats {
    /// Blocks that were found here; one that is read in three parts counts three times.
    pub hits: u64,
    /// Bytes that readers got from here.
    pub hit_bytes: u64,
    /// Blocks that were stored here.
    pub stored: u64,
    /// Their bytes.
    pub stored_bytes: u64,
    /// Blocks that made room.
    pub evictions: u64,
    /// Their bytes.
    pub evicted_bytes: u64,
    /// Blocks that were not what had been stored: dropped, and fetched again.
    pub damaged: u64,
    /// Bytes that are taken now, index and metadata included; in a directory, by all processes.
    pub used_bytes: u64,
    /// Bytes that may be taken; 0 for a tier that there is not.
    pub limit_bytes: u64,
}

/// Counters of a cache, since it was opened in this process.
#[derive(Debug, Clone, PartialEq, Eq, Default, serde::Serialize)]
#[non_exhaustive]
pub struct CacheStats {
    /// The tier in memory.
    pub memory: TierStats,
    /// The tier in a directory.
    pub disk: TierStats,
    /// Blocks that were in no tier, counted as hits are.
    pub misses: u64,
    /// Bytes of them that readers wanted.
    pub miss_bytes: u64,
    /// Fetches from the store.
    pub fetches: u64,
    /// Bytes that were fetched: more than were wanted where whole blocks were filled.
    pub fetched_bytes: u64,
    /// Bytes of these that were not stored: no room, or too small a part of a block.
    pub around_bytes: u64,
    /// Times that a reader waited for another reader's fill instead of fetching the block a second time.
    pub waited: u64,
    /// Warnings, each kind once.
    pub warnings: Vec<String>,
}

impl CacheStats {
    /// Blocks found in any tier.
    #[must_use]
    pub fn hits(&self) -> u64 {
        self.memory.hits + self.disk.hits
    }

    /// The part of the bytes that readers wanted which came from the cache, 0 to 1; 0 before the first read.
    #[must_use]
    pub fn hit_rate(&self) -> f64 {
        let hit = self.memory.hit_bytes + self.disk.hit_bytes;
        hit as f64 / (hit + self.miss_bytes).max(1) as f64
    }
}

impl TierCounters {
    fn stats(&self, used_bytes: u64, limit_bytes: u64) -> TierStats {
        TierStats {
            hits: self.hits.get(),
            hit_bytes: self.hit_bytes.get(),
            stored: self.stored.get(),
            stored_bytes: self.stored_bytes.get(),
            evictions: self.evictions.get(),
            evicted_bytes: self.evicted_bytes.get(),
            damaged: self.damaged.get(),
            used_bytes,
            limit_bytes,
        }
    }

    pub(super) fn hit(&self, bytes: usize) {
        self.hits.add(1);
        self.hit_bytes.add(bytes as u64);
    }

    pub(super) fn store(&self, bytes: usize) {
        self.stored.add(1);
        self.stored_bytes.add(bytes as u64);
    }
}

impl Counters {
    /// The numbers now; of each tier what it uses and may use.
    pub(super) fn stats(&self, memory: (u64, u64), disk: (u64, u64)) -> CacheStats {
        CacheStats {
            memory: self.memory.stats(memory.0, memory.1),
            disk: self.disk.stats(disk.0, disk.1),
            misses: self.misses.get(),
            miss_bytes: self.miss_bytes.get(),
            fetches: self.fetches.get(),
            fetched_bytes: self.fetched_bytes.get(),
            around_bytes: self.around_bytes.get(),
            waited: self.waited.get(),
            warnings: Vec::new(),
        }
    }
}
