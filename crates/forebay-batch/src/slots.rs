//! The shared memory of one stream, on the side that fills it.
//!
//! Tracks how many slots exist and which are free. A slot is in use while its batch is being
//! decoded, sent, or used by the client; its [`Buffer`](super::Buffer) returns it when dropped. If
//! all slots are in use, callers do not wait: batches are then allocated in private memory and
//! sent as bytes.

use std::sync::{Mutex, MutexGuard, PoisonError};

use super::shared::SharedMemory;

/// The slots of one stream.
pub(super) struct Slots {
    most: usize,
    most_bytes: usize,
    state: Mutex<State>,
}

#[derive(Default)]
struct State {
    free: Vec<SharedMemory>,
    /// Number of slots, including those in use.
    count: usize,
    bytes: usize,
    next_id: u32,
    /// Freed slots that the client may still have mapped.
    gone: Vec<u32>,
}

impl Slots {
    /// Creates a set of at most `most` slots with `most_bytes` bytes in total.
    pub(super) fn new(most: usize, most_bytes: usize) -> Self {
        Slots {
            most,
            most_bytes,
            state: Mutex::default(),
        }
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        // No code panics half-way through an update, so the state is valid.
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Takes a slot for `capacity` bytes, if one is free or can be created.
    pub(super) fn take(&self, capacity: usize) -> Option<SharedMemory> {
        // Declared before the guard: unmapping tens of MB takes milliseconds.
        let mut given_up = Vec::new();
        let mut state = self.lock();
        // The smallest slot that fits and leaves at most a quarter unused.
        let fits = capacity..=capacity.saturating_add(capacity / 4);
        let found = (0..state.free.len())
            .filter(|&i| fits.contains(&state.free[i].capacity()))
            .min_by_key(|&i| state.free[i].capacity());
        if let Some(found) = found {
            return Some(state.free.swap_remove(found));
        }
        // Frees slots of other sizes to make room. Slots in use are not freed.
        while !state.has_room(self, capacity) {
            let oldest = (!state.free.is_empty()).then(|| state.free.remove(0))?;
            state.count -= 1;
            state.bytes -= oldest.capacity();
            if !oldest.is_new() {
                state.gone.push(oldest.id());
            }
            given_up.push(oldest);
        }
        state.count += 1;
        state.bytes += capacity;
        let id = state.next_id;
        state.next_id += 1;
        drop(state);
        let made = SharedMemory::create(id, capacity).ok();
        if made.is_none() {
            // The system has no more shared memory; private memory may still be available.
            let mut state = self.lock();
            state.count -= 1;
            state.bytes -= capacity;
        }
        made
    }

    /// Returns a slot to the free ones.
    pub(super) fn put(&self, memory: SharedMemory) {
        self.lock().free.push(memory);
    }

    /// Frees a slot that the client may keep in use. No other slot takes its place.
    pub(super) fn retire(&self, memory: SharedMemory) {
        self.lock().bytes -= memory.capacity();
    }

    /// Returns the numbers of the slots that were freed since the last call and that the client
    /// may have mapped.
    pub(super) fn take_gone(&self) -> Vec<u32> {
        std::mem::take(&mut self.lock().gone)
    }
}

impl State {
    fn has_room(&self, slots: &Slots, capacity: usize) -> bool {
        let bytes = self.bytes.checked_add(capacity);
        self.count < slots.most && bytes.is_some_and(|bytes| bytes <= slots.most_bytes)
    }
}

#[cfg(test)]
#[cfg(target_os = "linux")]
mod tests {
    use super::*;

    #[test]
    fn slots_are_used_again_and_bounded_by_number() {
        let slots = Slots::new(2, 1 << 30);
        let (a, b) = (slots.take(4096).unwrap(), slots.take(4096).unwrap());
        assert_eq!((a.id(), b.id()), (0, 1));
        assert!(slots.take(4096).is_none());
        slots.put(b);
        assert_eq!(slots.take(4096).unwrap().id(), 1);
        drop(a);
        assert!(slots.take_gone().is_empty());
    }

    #[test]
    fn retired_slots_are_not_used_again() {
        let slots = Slots::new(2, 1 << 30);
        let (a, b) = (slots.take(4096).unwrap(), slots.take(4096).unwrap());
        slots.retire(a);
        slots.put(b);
        let again = slots.take(4096).unwrap();
        assert_eq!(again.id(), 1);
        assert!(slots.take(4096).is_none());
    }

    #[test]
    fn other_sizes_make_room_and_known_slots_are_reported() {
        let slots = Slots::new(3, 5 * 4096);
        let (mut a, b) = (slots.take(4096).unwrap(), slots.take(4096).unwrap());
        a.take_file().unwrap();
        slots.put(a);
        slots.put(b);
        let large = slots.take(4 * 4096).unwrap();
        assert_eq!((large.id(), slots.take_gone()), (2, vec![0]));
        // The other small slot still exists, and no larger one fits in addition.
        assert_eq!(slots.take(4096).unwrap().id(), 1);
        assert!(slots.take(8 * 4096).is_none());
        assert!(slots.take(usize::MAX).is_none());
    }
}
