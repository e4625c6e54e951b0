//! The shared memory of one stream, on the side that fills it.
//!
//! Owns how many slots there are and which are free. A slot that is in a batch, at the decoders or at the client, is
//! out: its [`Buffer`](super::Buffer) brings it back when it is dropped. When all are out nobody waits: batches are
//! then made in memory of the process itself and travel as bytes.

use std::sync::{Mutex, MutexGuard, PoisonError};

use super::shared::SharedMemory;

/// Slots of one stream.
pub(super) struct Slots {
    most: usize,
    most_bytes: usize,
    state: Mutex<State>,
}

#[derive(Default)]
struct State {
    free: Vec<SharedMemory>,
    /// Slots there are, those that are out included.
    count: usize,
    bytes: usize,
    next_id: u32,
    /// Slots that were given up and that the client may know.
    gone: Vec<u32>,
}

impl Slots {
    /// At most `most` slots, of `most_bytes` together.
    pub(super) fn new(most: usize, most_bytes: usize) -> Self {
        Slots {
            most,
            most_bytes,
            state: Mutex::default(),
        }
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        // Nothing under this lock panics half-way.
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// A slot for `capacity` bytes, if one is free or there may be another one.
    pub(super) fn take(&self, capacity: usize) -> Option<SharedMemory> {
        // Declared before the guard: unmapping tens of MB takes milliseconds.
        let mut given_up = Vec::new();
        let mut state = self.lock();
        // The smallest that fits without wasting more than a quarter.
        let fits = capacity..=capacity.saturating_add(capacity / 4);
        let found = (0..state.free.len())
            .filter(|&i| fits.contains(&state.free[i].capacity()))
            .min_by_key(|&i| state.free[i].capacity());
        if let Some(found) = found {
            return Some(state.free.swap_remove(found));
        }
        // Slots of other sizes make room: those that are out cannot.
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
            // The process' own memory may still do.
            let mut state = self.lock();
            state.count -= 1;
            state.bytes -= capacity;
        }
        made
    }

    /// A slot that is not used any more.
    pub(super) fn put(&self, memory: SharedMemory) {
        self.lock().free.push(memory);
    }

    /// Slots that were given up since this was asked last.
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

#[cfg(all(test, target_os = "linux"))]
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
    fn other_sizes_make_room_and_the_client_is_told_of_those_it_knows() {
        let slots = Slots::new(3, 5 * 4096);
        let (mut a, b) = (slots.take(4096).unwrap(), slots.take(4096).unwrap());
        a.take_file().unwrap();
        slots.put(a);
        slots.put(b);
        let large = slots.take(4 * 4096).unwrap();
        assert_eq!((large.id(), slots.take_gone()), (2, vec![0]));
        // The other small one is still there, and nothing larger fits beside it.
        assert_eq!(slots.take(4096).unwrap().id(), 1);
        assert!(slots.take(8 * 4096).is_none());
        assert!(slots.take(usize::MAX).is_none());
    }
}
