//! One batch buffer, written by several threads concurrently.
//!
//! A [`BatchBuffer`] owns the buffer while its [`Slot`]s, one per sample, exist. Each slot gives its
//! thread access to the bytes of its own sample only. When all slots are dropped, the whole buffer
//! can be taken back.

// Threads write disjoint parts of one buffer; the borrow checker can verify that only within one
// scope.
#![expect(unsafe_code)]

use std::ptr::NonNull;
use std::sync::Arc;

use forebay_batch::Buffer;

/// A buffer that is being filled.
pub(super) struct BatchBuffer {
    /// Only moved, never read or written, while slots exist.
    buffer: Buffer,
    /// First byte of `buffer`'s memory. It does not move with `buffer`, because the memory is a
    /// mapping.
    base: NonNull<u8>,
    slot_bytes: usize,
}

// SAFETY: `base` points into memory that `buffer`, which is Send, owns.
unsafe impl Send for BatchBuffer {}
// SAFETY: a shared BatchBuffer only allows access through slots, to disjoint bytes.
unsafe impl Sync for BatchBuffer {}

/// The memory of one sample. Not `Clone`, so its owner is the only writer.
pub(super) struct Slot {
    buffer: Arc<BatchBuffer>,
    index: usize,
}

impl BatchBuffer {
    /// Divides the first `slots * slot_bytes` bytes of a buffer into slots, in order. Returns `None` if the buffer is
    /// shorter.
    pub(super) fn cut(
        mut buffer: Buffer,
        slots: usize,
        slot_bytes: usize,
    ) -> Option<(Arc<BatchBuffer>, Vec<Slot>)> {
        if slots.checked_mul(slot_bytes)? > buffer.len() {
            return None;
        }
        let base = NonNull::new(buffer.as_mut_ptr())?;
        let buffer = Arc::new(BatchBuffer {
            buffer,
            base,
            slot_bytes,
        });
        let slots = (0..slots).map(|index| Slot {
            buffer: Arc::clone(&buffer),
            index,
        });
        let slots = slots.collect();
        Some((buffer, slots))
    }

    /// Returns the buffer once all slots are dropped.
    pub(super) fn whole(buffer: Arc<BatchBuffer>) -> Option<Buffer> {
        Arc::into_inner(buffer).map(|buffer| buffer.buffer)
    }
}

impl Slot {
    /// Returns the bytes of this sample.
    pub(super) fn bytes(&mut self) -> &mut [u8] {
        let bytes = self.buffer.slot_bytes;
        // SAFETY: `cut` created one slot for each index below `slots` and checked that the buffer
        // has at least `slots * bytes` bytes, so the range is inside the buffer and no other slot has it.
        // Slots are not Clone, and `&mut self` excludes a second use of this one. The slot's Arc
        // keeps the buffer alive; other access to it goes through `whole`, which needs the last
        // reference.
        unsafe {
            std::slice::from_raw_parts_mut(self.buffer.base.as_ptr().add(self.index * bytes), bytes)
        }
    }
}

#[cfg(test)]
mod tests {
    use forebay_batch::BufferPool;

    use super::*;

    #[test]
    fn slots_are_disjoint_and_the_buffer_comes_back_whole() {
        let pool = BufferPool::new(1 << 20);
        let (buffer, slots) = BatchBuffer::cut(pool.take(64 * 100), 64, 100).unwrap();
        std::thread::scope(|scope| {
            for (i, mut slot) in slots.into_iter().enumerate() {
                scope.spawn(move || slot.bytes().fill(i as u8));
            }
        });
        let buffer = BatchBuffer::whole(buffer).unwrap();
        for (i, part) in buffer.chunks(100).enumerate() {
            assert!(part.iter().all(|&byte| byte == i as u8));
        }
    }

    #[test]
    fn the_buffer_is_kept_while_a_slot_exists() {
        let pool = BufferPool::new(1 << 20);
        let (buffer, mut slots) = BatchBuffer::cut(pool.take(8), 2, 4).unwrap();
        let last = slots.pop();
        drop(slots);
        let again = Arc::clone(&buffer);
        assert!(BatchBuffer::whole(buffer).is_none());
        drop(last);
        assert!(BatchBuffer::whole(again).is_some());
        assert!(BatchBuffer::cut(pool.take(7), 2, 4).is_none());
        assert!(BatchBuffer::cut(pool.take(9), 2, 4).is_some());
        assert!(BatchBuffer::cut(pool.take(9), usize::MAX, 4).is_none());
    }
}
