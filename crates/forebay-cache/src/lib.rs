//! A local cache of objects that live far away: memory, then a directory on a fast disk.
//!
//! Independent of where the bytes come from: the reader passes a function that fetches a range. What is missing is fetched by blocks, each
//! once, however many threads and processes want it; what exists is checked and handed out. The cache never makes a read fail: a block that
//! is damaged is fetched again, and without room, without locks, without file descriptors, reads go around it, with one warning.
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
//! # What is kept
//!
//! Training reads all of a dataset once an epoch, in an order that is new each time. When the cache is smaller than the dataset, evicting what was used longest
//! ago throws out just what the next epoch begins with. So a block that is in **stays**, and what does not fit is read around the cache, exactly the bytes
//! that are wanted: the hit rate is then the part of the dataset that fits. Nothing is better, not even with all orders known: an epoch reads each block once, so
//! only what is in at its beginning can hit (`examples/cache_policies.rs` has the figures). Room is made only by
//!
//! 1. blocks of objects that no process has open, the one that was used longest ago first;
//! 2. blocks that were not used while the newcomer was read twice. In an epoch everything is read once, so these are not part of what is being read over and
//!    over;
//!
//! and never by a block that a reader said it [will need](Cache::will_need).
//!
//! | module | what it holds |
//! | --- | --- |
//! | `block` | the bytes of a block file |
//! | `disk` | the tier in a directory |
//! | `memory` | the tier in memory |
//! | `flight` | threads that want the same block |
//! | `object` | what a block belongs to, and when it was read |
//! | `run` | neighbouring blocks that are fetched at once |
//! | `stats`, `notices` | what happened |

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
    shard_storage,
};
pub use stats::{CacheStats, TierStats};

/// Block size where nothing else is said: object stores give most of their bandwidth from 4 MiB a request on, and a directory of 1 TB then has a quarter of a
/// million files.
pub const BLOCK_BYTES: u32 = 4 << 20;

/// Blocks that a cache without a directory must hold at least.
const MIN_MEMORY_BLOCKS: u64 = 16;

/// A read of a smaller part of a block, the first one in this process, fetches that part only: the first records of an epoch lie in as many blocks, and a
/// trainer should not wait for all of these.
const SMALL_PART: u64 = 4;

/// Fetches the bytes of a range of an object into a buffer of its length.
pub type Fetch<'a> = dyn Fn(Range<u64>, &mut [u8]) -> Result<()> + 'a;

/// The directory and the limits of a cache.
#[derive(Clone)]
pub struct CacheOptions {
    /// A directory of its own, made if it is not there. Best on a local NVMe disk; it may be shared by the processes of one host.
    pub dir: Option<PathBuf>,
    /// Bytes in the directory, all counted. Left open: what exists and 80 % of what is free.
    pub disk_bytes: Option<u64>,
    /// Bytes in this process's memory. 0 for none.
    pub memory_bytes: u64,
    /// Bytes of a block: a power of two from 4 KiB to 16 MiB. A directory that is a cache already keeps its own.
    pub block_bytes: u32,
    /// Told what is not as it should be, each kind of thing once. All of it is in [`CacheStats::warnings`] as well.
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

/// A cache. Threads share it by reference; processes share a directory by each opening it.
#[derive(Debug)]
pub struct Cache {
    block_bytes: u64,
    disk: Option<Disk>,
    memory: Memory,
    flights: Flights,
    objects: Mutex<HashMap<ObjectId, Weak<object::Inner>>>,
    /// How often an object was closed.
    closings: Arc<AtomicU64>,
    /// Buffers that were used for fetching, to be used again.
    buffers: Mutex<Vec<Vec<u8>>>,
    counters: Arc<Counters>,
    notices: Arc<Notices>,
}

/// The result of [`Cache::fill`], in bytes of the range.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
#[non_exhaustive]
pub struct Filled {
    /// Were there already.
    pub present_bytes: u64,
    /// Were fetched and stored.
    pub fetched_bytes: u64,
    /// Found no room.
    pub refused_bytes: u64,
}

impl Cache {
    /// Opens a cache.
    ///
    /// # Errors
    /// [`Error::CacheTooSmall`] names what is needed; [`Error::NotACache`] for a directory with other things in it, which stays as it is; and what the system says
    /// where the directory cannot be made, locked or listed.
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

    /// The object whose bytes are these: `key` at `location`, of `len` bytes, and `version` what tells them from others that have been or will be of that name (an
    /// ETag, or when it was changed). Neither text may hold a secret: both are written into the cache's files.
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
        // Those that were closed go when there are as many of them as of others.
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

    /// Fills `buf` with the object's bytes from `offset` on, with `fetch` where they are not in the cache. `fetch` may be asked for more than is
    /// wanted, up to whole blocks; several threads and processes that want one block get it from one fetch.
    ///
    /// # Errors
    /// Those of `fetch`, and a range that is not within the object. Nothing that is the matter with the cache itself.
    pub fn read_at(
        &self,
        object: &CachedObject,
        offset: u64,
        buf: &mut [u8],
        fetch: &Fetch<'_>,
    ) -> Result<()> {
        self.read_counted(object, offset, buf, fetch).0
    }

    /// As [`read_at`](Self::read_at), and tells what of it was in the cache.
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

    /// Has the blocks of a range stored, as far as there is room: what reading it would do, without the bytes.
    ///
    /// # Errors
    /// Those of `fetch`. What lies beyond the object is left out.
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

    /// Says that a range will be read soon: its blocks do not make room for others until [`done_with`](Self::done_with) is said as often, or the
    /// object is closed.
    pub fn will_need(&self, object: &CachedObject, range: Range<u64>) {
        let now = now();
        for number in self.blocks(object, &range) {
            object.pin(number);
            if let (Some(disk), Some(wanted)) = (&self.disk, self.wanted(object, number)) {
                disk.will_need(&wanted, now);
            }
        }
    }

    /// Says that a range for which [`will_need`](Self::will_need) was said has been read.
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

    /// A block of an object; none beyond its end.
    fn wanted(&self, object: &CachedObject, number: u64) -> Option<Wanted> {
        // Block sizes are u32.
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
        /// As many as threads usually fetch at once.
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
