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
    /// Reads of blocks that this tier had; a block that is read in three parts counts three times.
    pub hits: u64,
    /// Bytes that readers got from this tier.
    pub hit_bytes: u64,
    /// Blocks that were stored in this tier.
    pub stored: u64,
    /// Their bytes.
    pub stored_bytes: u64,
    /// Blocks that were evicted.
    pub evictions: u64,
    /// Their bytes.
    pub evicted_bytes: u64,
    /// Damaged blocks, which were removed.
    pub damaged: u64,
    /// Bytes in use now, metadata included. For the directory, by all processes.
    pub used_bytes: u64,
    /// The limit in bytes; 0 if the cache does not have this tier.
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
    /// Reads of blocks that no tier had; a block that is read in three parts counts three times.
    pub misses: u64,
    /// Bytes that readers requested of these blocks.
    pub miss_bytes: u64,
    /// Fetches from the store.
    pub fetches: u64,
    /// Bytes that were fetched, which is more than `miss_bytes` if whole blocks were fetched.
    pub fetched_bytes: u64,
    /// Fetched bytes that were not stored: there was no room, or too small a part of a block was requested.
    pub around_bytes: u64,
    /// How often a reader waited for another reader's fetch instead of fetching the block a second time.
    pub waited: u64,
    /// Warnings, one of each kind.
    pub warnings: Vec<String>,
}

impl CacheStats {
    /// Blocks found in any tier.
    #[must_use]
    pub fn hits(&self) -> u64 {
        self.memory.hits + self.disk.hits
    }

    /// The fraction of the requested bytes that came from the cache, 0 to 1; 0 before the first read.
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
    /// The current counters. `memory` and `disk` are used bytes and limit of each tier.
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
