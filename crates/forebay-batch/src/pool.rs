//! Pooled memory for batches.
//!
//! Filling fresh pages costs several times as much as filling pages that were written before,
//! because the kernel zeroes and maps each page at its first use. So the memory of batches is kept
//! and reused. Buffers are anonymous mappings, hence page aligned, and return to their pool when
//! dropped, on any thread. The pool bounds its unused memory only; budgets and credits elsewhere
//! bound the memory in use. A pool [with slots](BufferPool::with_slots) returns memory that
//! another process can map, as long as slots are free.

use std::collections::BTreeMap;
use std::fmt;
use std::io;
use std::ops::{Deref, DerefMut};
use std::os::fd::OwnedFd;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

#[cfg(target_os = "linux")]
use memmap2::Advice;
use memmap2::MmapMut;

use super::registry::{HostRegistry, Registration};
use super::shared::SharedMemory;
use super::slots::Slots;

/// Granularity of capacities, and the alignment of every buffer.
const PAGE: usize = 4096;
/// Buffers of at least this size use huge pages and are a multiple of this size.
const HUGE_PAGE: usize = 2 << 20;

/// Allocates page-aligned [`Buffer`]s and reuses those that are dropped.
///
/// A clone is another handle to the same pool.
///
/// ```
/// let pool = forebay_batch::BufferPool::new(64 << 20);
/// let mut buffer = pool.take(150_528);
/// buffer[0] = 7;
/// let address = buffer.as_ptr();
/// drop(buffer);
/// assert_eq!(pool.take(150_528).as_ptr(), address, "the same memory again");
/// ```
#[derive(Clone)]
pub struct BufferPool {
    shared: Arc<Shared>,
    slots: Option<Arc<Slots>>,
}

struct Shared {
    max_free_bytes: usize,
    registry: Option<HostRegistry>,
    state: Mutex<State>,
}

/// Memory of the system. Fields drop in order: it is unregistered, then unmapped.
struct Mapping {
    _registration: Option<Registration>,
    map: MmapMut,
}

impl Mapping {
    fn len(&self) -> usize {
        self.map.len()
    }
}

#[derive(Default)]
struct State {
    /// Free mappings by capacity.
    free: BTreeMap<usize, Class>,
    clock: u64,
    stats: PoolStats,
}

struct Class {
    maps: Vec<Mapping>,
    /// When a buffer of this capacity was last requested or returned.
    used: u64,
}

/// Statistics of a [`BufferPool`].
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct PoolStats {
    /// Bytes kept for reuse.
    pub free_bytes: usize,
    /// Bytes of buffers in use.
    pub used_bytes: usize,
    /// Buffers allocated.
    pub taken: u64,
    /// Buffers among these that needed a new mapping.
    pub mapped: u64,
}

impl BufferPool {
    /// Creates a pool that keeps at most `max_free_bytes` of returned buffers; the system gets the
    /// rest back.
    #[must_use]
    pub fn new(max_free_bytes: usize) -> Self {
        BufferPool {
            shared: Arc::new(Shared {
                max_free_bytes,
                registry: None,
                state: Mutex::default(),
            }),
            slots: None,
        }
    }

    /// Returns a new pool like this one that registers its memory for a device. Slots are memory of
    /// another process's batches, which that process registers.
    #[must_use]
    pub fn with_registry(self, registry: Option<HostRegistry>) -> Self {
        BufferPool {
            shared: Arc::new(Shared {
                max_free_bytes: self.shared.max_free_bytes,
                registry,
                state: Mutex::default(),
            }),
            slots: self.slots,
        }
    }

    /// Creates a pool whose buffers are in memory that another process can map: up to `slots`
    /// buffers with `slot_bytes` bytes in total. While all slots are in use, or if the system does
    /// not support such memory, it works as [`BufferPool::new`].
    #[must_use]
    pub fn with_slots(slots: usize, slot_bytes: usize, max_free_bytes: usize) -> Self {
        BufferPool {
            slots: Some(Arc::new(Slots::new(slots, slot_bytes))),
            ..BufferPool::new(max_free_bytes)
        }
    }

    /// Returns the numbers of the [slots](Buffer::slot) that were freed since the last call. They
    /// are not reused.
    #[must_use]
    pub fn take_gone(&self) -> Vec<u32> {
        self.slots
            .as_ref()
            .map_or_else(Vec::new, |slots| slots.take_gone())
    }

    /// Returns a buffer of `len` bytes with arbitrary content: zeros, or the data of an earlier
    /// buffer.
    ///
    /// # Panics
    ///
    /// If the system is out of memory, as for every allocation. Use [`BufferPool::try_take`] for a
    /// length from untrusted input.
    #[must_use]
    pub fn take(&self, len: usize) -> Buffer {
        self.try_take(len)
            .unwrap_or_else(|e| panic!("no memory for a buffer of {len} bytes: {e}"))
    }

    /// Returns a buffer of `len` bytes, as [`BufferPool::take`], or the system's error.
    ///
    /// # Errors
    ///
    /// The error of `mmap`, usually out of memory.
    pub fn try_take(&self, len: usize) -> io::Result<Buffer> {
        if len == 0 {
            return Ok(Buffer {
                memory: Memory::None,
                len,
            });
        }
        let capacity = capacity_for(len).ok_or(io::ErrorKind::OutOfMemory)?;
        if let Some(slots) = &self.slots
            && let Some(memory) = slots.take(capacity)
        {
            return Ok(Buffer {
                memory: Memory::Slot(Box::new((memory, Arc::clone(slots)))),
                len,
            });
        }
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
            None => self.shared.fresh(capacity).inspect_err(|_| {
                self.shared.lock().stats.used_bytes -= capacity;
            })?,
        };
        Ok(Buffer {
            memory: Memory::Own(map, Arc::clone(&self.shared)),
            len,
        })
    }

    /// Returns the statistics of the pool.
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
        // No code panics half-way through an update, so the state is valid.
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Maps new memory, and registers it if the pool does.
    fn fresh(&self, capacity: usize) -> io::Result<Mapping> {
        let map = fresh(capacity)?;
        let registry = self.registry.as_ref();
        Ok(Mapping {
            _registration: registry.and_then(|registry| registry.register(&map)),
            map,
        })
    }

    fn put(&self, map: Mapping) {
        // Declared before the guard, so that mappings are removed after the lock is released:
        // unmapping tens of MB takes milliseconds.
        let mut given_up: Vec<Mapping> = Vec::new();
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
    /// Takes the smallest free mapping that fits and leaves at most a quarter unused.
    fn take(&mut self, capacity: usize) -> Option<Mapping> {
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

    /// Takes a mapping of the capacity that has been unused for the longest time, other than
    /// `keep`.
    fn give_up_stale(&mut self, keep: usize) -> Option<Mapping> {
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

/// Maps new memory and populates its pages. The advice is optional: a kernel without support for it
/// maps the pages when they are first written.
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

/// Receives shared memory back that was lent to a [`Buffer`].
pub trait Lender: Send + Sync {
    /// Called with the memory of a dropped buffer, on the thread that dropped it, so it should
    /// return quickly.
    fn give_back(&self, memory: SharedMemory);
}

/// Page-aligned bytes that return to their owner when dropped: to their [`BufferPool`], or to the
/// process that shares them.
///
/// Dropping takes one short lock, sends a small message if the memory is shared, and may happen on
/// any thread.
pub struct Buffer {
    memory: Memory,
    len: usize,
}

/// The memory of a buffer and its owner. Rare variants are boxed, so that batches stay small to
/// move.
enum Memory {
    /// For an empty buffer, and one that is being dropped.
    None,
    Own(Mapping, Arc<Shared>),
    /// Created here, and mapped by another process.
    Slot(Box<(SharedMemory, Arc<Slots>)>),
    /// Created by another process.
    Lent(Box<(SharedMemory, Arc<dyn Lender>)>),
}

impl Buffer {
    /// Wraps the first `len` bytes of memory, which returns to `lender`; `None` if it is shorter.
    #[must_use]
    pub fn lent(memory: SharedMemory, len: usize, lender: Arc<dyn Lender>) -> Option<Buffer> {
        (len <= memory.capacity()).then_some(Buffer {
            memory: Memory::Lent(Box::new((memory, lender))),
            len,
        })
    }

    /// Shortens the buffer; has no effect if `len` is not smaller.
    pub fn truncate(&mut self, len: usize) {
        self.len = self.len.min(len);
    }

    /// Returns number and capacity of the buffer's slot in memory that another process can map, for
    /// pools [with slots](BufferPool::with_slots).
    #[must_use]
    pub fn slot(&self) -> Option<(u32, usize)> {
        match &self.memory {
            Memory::Slot(slot) => Some((slot.0.id(), slot.0.capacity())),
            _ => None,
        }
    }

    /// Drops the buffer without reuse of its slot, because the other process may never release it.
    pub fn retire(mut self) {
        if let Memory::Slot(slot) = std::mem::replace(&mut self.memory, Memory::None) {
            slot.1.retire(slot.0);
        }
    }

    /// Returns the file of the buffer's slot on the first call; the other process needs it only
    /// once.
    pub fn take_slot_file(&mut self) -> Option<OwnedFd> {
        match &mut self.memory {
            Memory::Slot(slot) => slot.0.take_file(),
            _ => None,
        }
    }
}

impl Deref for Buffer {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        match &self.memory {
            Memory::Own(mapping, _) => &mapping.map[..self.len],
            Memory::Slot(slot) => &slot.0.bytes()[..self.len],
            Memory::Lent(lent) => &lent.0.bytes()[..self.len],
            Memory::None => &[],
        }
    }
}

impl DerefMut for Buffer {
    fn deref_mut(&mut self) -> &mut [u8] {
        match &mut self.memory {
            Memory::Own(mapping, _) => &mut mapping.map[..self.len],
            Memory::Slot(slot) => &mut slot.0.bytes_mut()[..self.len],
            Memory::Lent(lent) => &mut lent.0.bytes_mut()[..self.len],
            Memory::None => &mut [],
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
        match std::mem::replace(&mut self.memory, Memory::None) {
            Memory::None => {}
            Memory::Own(map, pool) => pool.put(map),
            Memory::Slot(slot) => slot.1.put(slot.0),
            Memory::Lent(lent) => lent.1.give_back(lent.0),
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
    fn buffers_are_page_aligned_and_reused() {
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
    fn unused_memory_is_bounded_and_stale_sizes_go_first() {
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
    fn small_requests_do_not_use_much_larger_buffers() {
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
