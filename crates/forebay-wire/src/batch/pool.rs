//! Pooled memory for batches.
//!
//! Filling fresh pages costs several times as much as filling pages that were
//! written before (the kernel zeroes and maps each at the first touch), so the
//! memory of a batch is kept and handed out again. Buffers are anonymous maps,
//! hence page aligned, and go back to their pool when dropped, on any thread.
//! The pool bounds what it keeps unused, not what is in use: budgets and credits
//! bound that, and their owners are elsewhere.

use std::collections::BTreeMap;
use std::fmt;
use std::io;
use std::ops::{Deref, DerefMut};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

#[cfg(target_os = "linux")]
use memmap2::Advice;
use memmap2::MmapMut;

/// Granularity of capacities. Also the alignment every buffer has.
const PAGE: usize = 4096;
/// From this size on a buffer asks for huge pages and is a multiple of one.
const HUGE_PAGE: usize = 2 << 20;

/// Hands out page-aligned [`Buffer`]s and keeps those that come back.
///
/// A clone is another handle to the same pool.
///
/// ```
/// let pool = forebay_wire::BufferPool::new(64 << 20);
/// let mut buffer = pool.take(150_528);
/// buffer[0] = 7;
/// let address = buffer.as_ptr();
/// drop(buffer);
/// assert_eq!(pool.take(150_528).as_ptr(), address, "the same memory again");
/// ```
#[derive(Clone)]
pub struct BufferPool {
    shared: Arc<Shared>,
}

struct Shared {
    max_free_bytes: usize,
    state: Mutex<State>,
}

#[derive(Default)]
struct State {
    /// Free maps by capacity.
    free: BTreeMap<usize, Class>,
    clock: u64,
    stats: PoolStats,
}

struct Class {
    maps: Vec<MmapMut>,
    /// When a buffer of this capacity was last wanted or returned.
    used: u64,
}

/// What a [`BufferPool`] holds and did.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct PoolStats {
    /// Bytes kept for later.
    pub free_bytes: usize,
    /// Bytes of buffers that are out.
    pub used_bytes: usize,
    /// Buffers handed out.
    pub taken: u64,
    /// Of those, how many needed fresh memory.
    pub mapped: u64,
}

impl BufferPool {
    /// A pool that keeps at most `max_free_bytes` of returned buffers; what comes
    /// back beyond that is given back to the system.
    #[must_use]
    pub fn new(max_free_bytes: usize) -> Self {
        BufferPool {
            shared: Arc::new(Shared {
                max_free_bytes,
                state: Mutex::default(),
            }),
        }
    }

    /// A buffer of `len` bytes. Its content is arbitrary: zeroes, or what the
    /// last user left.
    ///
    /// # Panics
    ///
    /// When the system has no memory left, as every allocation does. Use
    /// [`BufferPool::try_take`] for a length that somebody else chose.
    #[must_use]
    pub fn take(&self, len: usize) -> Buffer {
        self.try_take(len)
            .unwrap_or_else(|e| panic!("no memory for a buffer of {len} bytes: {e}"))
    }

    /// A buffer of `len` bytes as [`BufferPool::take`] gives it, or the system's
    /// refusal.
    ///
    /// # Errors
    ///
    /// What `mmap` answers, usually that there is no memory.
    pub fn try_take(&self, len: usize) -> io::Result<Buffer> {
        if len == 0 {
            return Ok(Buffer {
                map: None,
                len,
                home: None,
            });
        }
        let capacity = capacity_for(len).ok_or(io::ErrorKind::OutOfMemory)?;
        let kept = {
            let mut state = self.shared.lock();
            state.stats.taken += 1;
            let kept = state.take(capacity);
            state.stats.mapped += u64::from(kept.is_none());
            state.stats.used_bytes += kept.as_ref().map_or(capacity, |map| map.len());
            kept
        };
        let map = match kept {
            Some(map) => map,
            None => fresh(capacity).inspect_err(|_| {
                self.shared.lock().stats.used_bytes -= capacity;
            })?,
        };
        Ok(Buffer {
            map: Some(map),
            len,
            home: Some(Arc::clone(&self.shared)),
        })
    }

    /// What the pool holds and did so far.
    #[must_use]
    pub fn stats(&self) -> PoolStats {
        self.shared.lock().stats
    }
}

impl fmt::Debug for BufferPool {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("BufferPool")
            .field("max_free_bytes", &self.shared.max_free_bytes)
            .field("stats", &self.stats())
            .finish()
    }
}

impl Shared {
    fn lock(&self) -> MutexGuard<'_, State> {
        // Nothing under this lock panics half-way; a poisoned pool is still whole.
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn put(&self, map: MmapMut) {
        // Declared before the guard, so that maps given up are unmapped after
        // the lock is free: unmapping tens of MB takes milliseconds.
        let mut given_up: Vec<MmapMut> = Vec::new();
        let mut state = self.lock();
        state.stats.used_bytes -= map.len();
        if map.len() > self.max_free_bytes {
            given_up.push(map);
            return;
        }
        state.clock += 1;
        let now = state.clock;
        let capacity = map.len();
        while state.stats.free_bytes + capacity > self.max_free_bytes {
            match state.give_up_stale(capacity) {
                Some(stale) => given_up.push(stale),
                None => {
                    given_up.push(map);
                    return;
                }
            }
        }
        state.stats.free_bytes += capacity;
        let class = state.free.entry(capacity).or_insert(Class {
            maps: Vec::new(),
            used: now,
        });
        class.used = now;
        class.maps.push(map);
    }
}

impl State {
    /// The smallest free map that fits without wasting more than a quarter.
    fn take(&mut self, capacity: usize) -> Option<MmapMut> {
        self.clock += 1;
        let (&size, class) = self
            .free
            .range_mut(capacity..=capacity.saturating_add(capacity / 4))
            .next()?;
        class.used = self.clock;
        let map = class.maps.pop()?;
        if class.maps.is_empty() {
            self.free.remove(&size);
        }
        self.stats.free_bytes -= size;
        Some(map)
    }

    /// A map of the size that nobody wanted for the longest time, other than `keep`.
    fn give_up_stale(&mut self, keep: usize) -> Option<MmapMut> {
        let (&size, _) = self
            .free
            .iter()
            .filter(|&(&size, _)| size != keep)
            .min_by_key(|(_, class)| class.used)?;
        let class = self.free.get_mut(&size)?;
        let map = class.maps.pop()?;
        if class.maps.is_empty() {
            self.free.remove(&size);
        }
        self.stats.free_bytes -= size;
        Some(map)
    }
}

fn capacity_for(len: usize) -> Option<usize> {
    let unit = if len >= HUGE_PAGE { HUGE_PAGE } else { PAGE };
    len.checked_next_multiple_of(unit)
}

/// Fresh memory with its pages already there. Advice is only advice: a kernel
/// that does not know it maps the pages when they are first written.
fn fresh(capacity: usize) -> io::Result<MmapMut> {
    let map = MmapMut::map_anon(capacity)?;
    #[cfg(target_os = "linux")]
    {
        if capacity >= HUGE_PAGE {
            let _ = map.advise(Advice::HugePage);
        }
        let _ = map.advise(Advice::PopulateWrite);
    }
    Ok(map)
}

/// Page-aligned bytes that return to their [`BufferPool`] when dropped.
///
/// Dropping takes one short lock and may happen on any thread.
pub struct Buffer {
    /// `None` only for the empty buffer, and within `drop`.
    map: Option<MmapMut>,
    len: usize,
    home: Option<Arc<Shared>>,
}

impl Buffer {
    /// Makes the buffer shorter; a `len` that is not shorter changes nothing.
    pub fn truncate(&mut self, len: usize) {
        self.len = self.len.min(len);
    }
}

impl Deref for Buffer {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        match &self.map {
            Some(map) => &map[..self.len],
            None => &[],
        }
    }
}

impl DerefMut for Buffer {
    fn deref_mut(&mut self) -> &mut [u8] {
        match &mut self.map {
            Some(map) => &mut map[..self.len],
            None => &mut [],
        }
    }
}

impl AsRef<[u8]> for Buffer {
    fn as_ref(&self) -> &[u8] {
        self
    }
}

impl Drop for Buffer {
    fn drop(&mut self) {
        if let (Some(map), Some(home)) = (self.map.take(), self.home.take()) {
            home.put(map);
        }
    }
}

impl fmt::Debug for Buffer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Buffer({} bytes)", self.len)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn buffers_are_page_aligned_of_the_asked_length_and_come_back() {
        let pool = BufferPool::new(64 << 20);
        for len in [0, 1, 4095, 4096, 4097, 150_528, HUGE_PAGE, HUGE_PAGE + 1] {
            let mut buffer = pool.take(len);
            assert_eq!(buffer.len(), len);
            buffer.fill(1);
            if len > 0 {
                assert_eq!(buffer.as_ptr() as usize % PAGE, 0, "{len}");
            }
        }
        let stats = pool.stats();
        assert_eq!(stats.used_bytes, 0);
        assert_eq!(
            (stats.taken, stats.mapped),
            (7, 5),
            "1, 4095 and 4096 share one page"
        );
    }

    #[test]
    fn what_is_kept_is_bounded_and_stale_sizes_go_first() {
        let pool = BufferPool::new(3 * PAGE);
        let many: Vec<Buffer> = (0..10).map(|_| pool.take(PAGE)).collect();
        assert_eq!(pool.stats().used_bytes, 10 * PAGE);
        drop(many);
        assert_eq!(pool.stats().free_bytes, 3 * PAGE);
        drop(pool.take(2 * PAGE));
        assert_eq!(pool.stats().free_bytes, 3 * PAGE);
        let mapped = pool.stats().mapped;
        drop(pool.take(2 * PAGE));
        assert_eq!(pool.stats().mapped, mapped, "the newer size was kept");
        drop(pool.take(10 * PAGE));
        assert_eq!(pool.stats().used_bytes, 0);
        assert_eq!(pool.stats().free_bytes, 3 * PAGE);
    }

    #[test]
    fn a_much_larger_buffer_is_not_wasted_on_a_small_wish() {
        let pool = BufferPool::new(64 * PAGE);
        drop(pool.take(32 * PAGE));
        drop(pool.take(PAGE));
        assert_eq!(pool.stats().mapped, 2);
        drop(pool.take(30 * PAGE));
        assert_eq!(pool.stats().mapped, 2);
    }

    #[test]
    fn an_impossible_length_is_an_error() {
        let pool = BufferPool::new(0);
        assert!(pool.try_take(usize::MAX).is_err());
        assert!(pool.try_take(usize::MAX / 2).is_err());
        assert_eq!(pool.stats().used_bytes, 0);
    }

    #[test]
    fn buffers_outlive_the_pool_and_cross_threads() {
        let pool = BufferPool::new(1 << 20);
        let buffers: Vec<Buffer> = (0..8).map(|_| pool.take(PAGE)).collect();
        std::thread::scope(|scope| {
            for buffer in buffers {
                scope.spawn(move || drop(buffer));
            }
        });
        assert_eq!(pool.stats().free_bytes, 8 * PAGE);
        let last = pool.take(5);
        drop(pool);
        assert_eq!(last.len(), 5);
    }
}
