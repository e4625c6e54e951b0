//! A local block cache of remote objects, with a tier in a directory on a fast disk and a tier in memory.
//!
//! The cache does not depend on the kind of store: the reader passes a function that fetches a range. Missing bytes are fetched
//! in blocks, each block once for all threads and processes; cached blocks are verified when they are read. The cache never
//! makes a read fail: a damaged block is fetched again, and if the cache has no room, locks or file descriptors, reads bypass
//! it and a warning is reported once.
//!
//! ```
//! use forebay_cache::{Cache, CacheOptions};
//!
//! let dir = tempfile::tempdir()?;
//! let cache = Cache::open(&CacheOptions {
//!     dir: Some(dir.path().join("cache")),
//!     ..CacheOptions::default()
//! })?;
//! let object = cache.object("s3://bucket/imagenet", "train-00000", Some("\"etag\""), 1 << 20);
//! let mut buf = [0; 100];
//! cache.fill(&object, 0..1 << 20, &|_range, out| {
//!     out.fill(7); // a ranged request to the store
//!     Ok(())
//! })?;
//! cache.read_at(&object, 500, &mut buf, &|_, _| unreachable!("it is in the cache"))?;
//! assert_eq!(buf, [7; 100]);
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```
//!
//! # Evictions
//!
//! Training reads each record of a dataset once per epoch, in a new order each time. If the cache is smaller than the dataset,
//! an LRU policy evicts blocks that the next epoch needs. So a cached block **stays**, and reads of other blocks bypass the
//! cache and fetch exactly the requested bytes: the hit rate equals the part of the dataset that fits. No policy is better, even
//! if it knows all future orders: an epoch reads each block once, so only blocks that are cached at its beginning can hit
//! (`examples/cache_policies.rs` has the figures). Only these blocks are evicted for a new block:
//!
//! 1. blocks of objects that no process has open, the least recently used first;
//! 2. blocks that were last used before the last two reads of the new block. An epoch reads each block once, so such a block is
//!    not part of the data that is read in every epoch.
//!
//! A block for which a reader called [`will_need`](Cache::will_need) is not evicted.
//!
//! | module | content |
//! | --- | --- |
//! | `block` | the format of block files |
//! | `disk` | the tier in a directory |
//! | `memory` | the tier in memory |
//! | `flight` | one fetch per block for all threads |
//! | `object` | cached objects, and when their blocks were read |
//! | `run` | reads, and fetches of adjacent blocks in one request |
//! | `stats`, `notices` | counters and warnings |

mod block;
mod disk;
mod flight;
mod memory;
mod notices;
mod object;
mod object_id;
mod remote;
mod run;
mod stats;
#[cfg(test)]
mod tests;

use std::collections::HashMap;
use std::fmt;
use std::ops::Range;
use std::path::PathBuf;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};
use std::time::{SystemTime, UNIX_EPOCH};

use disk::{Disk, Wanted};
use flight::Flights;
use forebay_shard::CacheHits;
use forebay_store::{Error, Result};
use memory::Memory;
use notices::Notices;
use stats::Counters;

#[cfg(any(test, feature = "fuzzing"))]
#[doc(hidden)]
pub use block::fuzz as fuzz_block;
pub use disk::{CacheContents, CachedLocation, Cleared, clear, contents};
pub use notices::CacheObserver;
pub use object::CachedObject;
pub use object_id::ObjectId;
pub use remote::{
    LocalStorage, ReadError, ReadOptions, RemoteStorage, open_dataset, open_shard, read_storage,
    reads_store, shard_storage, store_of,
};
pub use stats::{CacheStats, TierStats};

/// The default block size: object stores reach most of their bandwidth with requests of 4 MiB, and a directory of 1 TB then has
/// a quarter of a million files.
pub const BLOCK_BYTES: u32 = 4 << 20;

/// Minimum number of blocks that a cache without a directory must hold.
const MIN_MEMORY_BLOCKS: u64 = 16;

/// The first read of a block in this process fetches only the requested part if it is less than 1/4 of the block: the first
/// records of an epoch lie in as many blocks, and a trainer should not wait until all of these are fetched.
const SMALL_PART: u64 = 4;

/// A function that fetches a range of an object into a buffer of the same length.
pub type Fetch<'a> = dyn Fn(Range<u64>, &mut [u8]) -> Result<()> + 'a;

/// The directory and the limits of a cache.
#[derive(Clone)]
pub struct CacheOptions {
    /// The cache directory, created if necessary. Best on a local NVMe disk; the processes of one host may share it.
    pub dir: Option<PathBuf>,
    /// Limit of the directory in bytes, metadata included. `None`: the bytes in use, plus 80 % of the free space.
    pub disk_bytes: Option<u64>,
    /// Limit of the tier in this process's memory in bytes; 0 disables it.
    pub memory_bytes: u64,
    /// Bytes of a block: a power of two from 4 KiB to 16 MiB. An existing cache directory keeps its block size.
    pub block_bytes: u32,
    /// Receives warnings, each kind once. [`CacheStats::warnings`] contains them as well.
    pub on_warning: Option<CacheObserver>,
}

impl Default for CacheOptions {
    fn default() -> Self {
        Self {
            dir: None,
            disk_bytes: None,
            memory_bytes: 0,
            block_bytes: BLOCK_BYTES,
            on_warning: None,
        }
    }
}

impl fmt::Debug for CacheOptions {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("CacheOptions")
            .field("dir", &self.dir)
            .field("disk_bytes", &self.disk_bytes)
            .field("memory_bytes", &self.memory_bytes)
            .field("block_bytes", &self.block_bytes)
            .finish_non_exhaustive()
    }
}

/// A cache. Threads share it by reference; processes share a directory if each of them opens it.
#[derive(Debug)]
pub struct Cache {
    block_bytes: u64,
    disk: Option<Disk>,
    memory: Memory,
    flights: Flights,
    objects: Mutex<HashMap<ObjectId, Weak<object::Inner>>>,
    /// The number of objects that were closed so far.
    closings: Arc<AtomicU64>,
    /// Free buffers for fetches, for reuse.
    buffers: Mutex<Vec<Vec<u8>>>,
    counters: Arc<Counters>,
    notices: Arc<Notices>,
}

/// The result of [`Cache::fill`], in bytes of the range.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
#[non_exhaustive]
pub struct Filled {
    /// Bytes that were cached already.
    pub present_bytes: u64,
    /// Bytes that were fetched and stored.
    pub fetched_bytes: u64,
    /// Bytes that could not be stored.
    pub refused_bytes: u64,
}

impl Cache {
    /// Opens a cache.
    ///
    /// # Errors
    /// [`Error::CacheTooSmall`] with the bytes that are needed; [`Error::NotACache`] for a directory with other files, which is
    /// left unchanged; [`Error::Io`] if the directory cannot be created, locked or listed.
    pub fn open(options: &CacheOptions) -> Result<Self> {
        if !block::is_block_size(options.block_bytes) {
            return Err(Error::io(
                options.dir.clone().unwrap_or_default(),
                "open a cache with blocks of a wrong size in",
                std::io::Error::new(
                    std::io::ErrorKind::InvalidInput,
                    format!(
                        "{} bytes: a power of two from 4 KiB to 16 MiB",
                        options.block_bytes
                    ),
                ),
            ));
        }
        let counters = Arc::<Counters>::default();
        let notices = Arc::new(Notices::new(options.on_warning.clone()));
        let disk = options.dir.as_deref().map(|dir| {
            Disk::open(
                dir,
                options.block_bytes,
                options.disk_bytes,
                &counters,
                &notices,
            )
        });
        let disk = disk.transpose()?;
        let block_bytes = u64::from(
            disk.as_ref()
                .map_or(options.block_bytes, |disk| disk.block_bytes),
        );
        let need = memory::cost(block_bytes).saturating_mul(MIN_MEMORY_BLOCKS);
        if disk.is_none() && options.memory_bytes < need {
            return Err(Error::CacheTooSmall {
                place: "memory".to_owned(),
                have_bytes: options.memory_bytes,
                need_bytes: need,
                why: "that is what it may hold",
            });
        }
        Ok(Self {
            block_bytes,
            disk,
            memory: Memory::new(options.memory_bytes, &counters),
            flights: Flights::default(),
            objects: Mutex::default(),
            closings: Arc::default(),
            buffers: Mutex::default(),
            counters,
            notices,
        })
    }

    /// Opens the object `key` at `location` with `len` bytes. `version` (an ETag or a modification time) distinguishes it from
    /// earlier and later objects of that name. No text may contain a secret: `location` and `key` are written to disk.
    pub fn object(
        &self,
        location: &str,
        key: &str,
        version: Option<&str>,
        len: u64,
    ) -> CachedObject {
        let id = ObjectId::of(location, key, version, len);
        let mut objects = self.registry();
        if let Some(open) = objects.get(&id).and_then(Weak::upgrade) {
            return CachedObject(open);
        }
        // Before the map would grow, entries of closed objects are removed.
        if objects.len() == objects.capacity() {
            objects.retain(|_, object| object.strong_count() > 0);
        }
        let live = self.disk.as_ref().map(|disk| &disk.live);
        let object = CachedObject::new((location, key), id, len, live, &self.closings);
        objects.insert(id, Arc::downgrade(&object.0));
        object
    }

    fn registry(&self) -> MutexGuard<'_, HashMap<ObjectId, Weak<object::Inner>>> {
        self.objects.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn is_open(&self, id: ObjectId) -> bool {
        self.registry()
            .get(&id)
            .is_some_and(|object| object.strong_count() > 0)
    }

    fn is_pinned(&self, id: ObjectId, number: u64) -> bool {
        let object = self.registry().get(&id).and_then(Weak::upgrade);
        object.is_some_and(|object| CachedObject(object).is_pinned(number))
    }

    /// Fills `buf` with the object's bytes from `offset` on. Bytes that are not cached are read with `fetch`, which may be called
    /// with a larger range, up to whole blocks. Threads and processes that read the same block share one fetch.
    ///
    /// # Errors
    /// Errors of `fetch`, and a range beyond the object's end. Problems of the cache itself are never errors.
    pub fn read_at(
        &self,
        object: &CachedObject,
        offset: u64,
        buf: &mut [u8],
        fetch: &Fetch<'_>,
    ) -> Result<()> {
        self.read_counted(object, offset, buf, fetch).0
    }

    /// As [`read_at`](Self::read_at), and also returns the hits and misses.
    pub(crate) fn read_counted(
        &self,
        object: &CachedObject,
        offset: u64,
        buf: &mut [u8],
        fetch: &Fetch<'_>,
    ) -> (Result<()>, CacheHits) {
        let end = offset
            .checked_add(buf.len() as u64)
            .filter(|end| *end <= object.len());
        let Some(end) = end else {
            let problem = format!(
                "{} bytes from byte {offset} on, of an object that has {}",
                buf.len(),
                object.len()
            );
            let error = Error::io(
                &object.0.key,
                "read",
                std::io::Error::new(std::io::ErrorKind::UnexpectedEof, problem),
            );
            return (Err(error), CacheHits::default());
        };
        run::read(self, object, offset..end, buf, fetch)
    }

    /// Stores the blocks of a range, as far as there is room, without returning bytes. The range is cut at the object's end.
    ///
    /// # Errors
    /// Errors of `fetch`.
    pub fn fill(
        &self,
        object: &CachedObject,
        range: Range<u64>,
        fetch: &Fetch<'_>,
    ) -> Result<Filled> {
        run::fill(
            self,
            object,
            range.start..range.end.min(object.len()),
            fetch,
        )
    }

    /// Announces that a range will be read soon: its blocks are not evicted until [`done_with`](Self::done_with) has been called
    /// as often, or the object is closed.
    pub fn will_need(&self, object: &CachedObject, range: Range<u64>) {
        let now = now();
        for number in self.blocks(object, &range) {
            object.pin(number);
            if let (Some(disk), Some(wanted)) = (&self.disk, self.wanted(object, number)) {
                disk.will_need(&wanted, now);
            }
        }
    }

    /// Undoes a call of [`will_need`](Self::will_need) after the range has been read.
    pub fn done_with(&self, object: &CachedObject, range: Range<u64>) {
        for number in self.blocks(object, &range) {
            object.unpin(number);
        }
    }

    /// The numbers of the blocks that a range touches.
    fn blocks(&self, object: &CachedObject, range: &Range<u64>) -> Range<u64> {
        let end = range.end.min(object.len());
        if range.start >= end {
            return 0..0;
        }
        range.start / self.block_bytes..end.div_ceil(self.block_bytes)
    }

    /// A block of an object; `None` beyond the object's end.
    fn wanted(&self, object: &CachedObject, number: u64) -> Option<Wanted> {
        // Block sizes fit into u32.
        let payload_len = block::payload_len(object.len(), number, self.block_bytes as u32)?;
        Some(Wanted {
            id: object.id(),
            number,
            payload_len,
            reads: object_id::Reads::default(),
        })
    }

    /// Bytes of a block.
    #[must_use]
    pub fn block_bytes(&self) -> u64 {
        self.block_bytes
    }

    /// Returns the counters since the cache was opened.
    #[must_use]
    pub fn stats(&self) -> CacheStats {
        let disk = self
            .disk
            .as_ref()
            .map_or((0, 0), |disk| (disk.used(), disk.limit));
        let memory = (self.memory.used(), self.memory.limit);
        CacheStats {
            warnings: self.notices.all(),
            ..self.counters.stats(memory, disk)
        }
    }

    fn buffer(&self, len: usize) -> Vec<u8> {
        let mut buffers = self.buffers.lock().unwrap_or_else(PoisonError::into_inner);
        let mut buffer = buffers.pop().unwrap_or_default();
        drop(buffers);
        buffer.resize(len, 0);
        buffer
    }

    fn give_back(&self, buffer: Vec<u8>) {
        /// About as many as threads that fetch at once.
        const MOST_BUFFERS: usize = 4;
        let mut buffers = self.buffers.lock().unwrap_or_else(PoisonError::into_inner);
        if buffers.len() < MOST_BUFFERS {
            buffers.push(buffer);
        }
    }

    fn closings(&self) -> u64 {
        self.closings.load(Ordering::Relaxed)
    }
}

/// Nanoseconds since 1970.
fn now() -> u64 {
    let since = SystemTime::now().duration_since(UNIX_EPOCH);
    since.map_or(0, |since| {
        u64::try_from(since.as_nanos()).unwrap_or(u64::MAX)
    })
}
