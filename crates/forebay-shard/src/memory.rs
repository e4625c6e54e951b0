//! Memory that stored bytes are read into.
//!
//! Blocks of a few megabytes that one thread allocates and another one frees, each of another size, leave an allocator's heap full of
//! holes: a process that read shards for hours held twice what it used. So large ones are pages of their own, which go
//! back to the system whole.

use std::fmt;
use std::ops::{Deref, DerefMut};

#[cfg(feature = "mmap")]
use memmap2::{MmapMut, MmapOptions};

/// From here on memory is pages of its own.
#[cfg(feature = "mmap")]
const PAGES_FROM: usize = 512 << 10;
/// Sizes of pages are rounded up to this part of the next power of two, so that blocks of about one size can take each other's
/// place.
#[cfg(feature = "mmap")]
const STEPS: usize = 8;

/// Bytes that grow and never shrink.
pub(crate) enum Memory {
    Heap(Vec<u8>),
    #[cfg(feature = "mmap")]
    Pages(MmapMut),
}

impl Memory {
    /// Makes room for at least `len` bytes. What was there is gone if there was not room already.
    pub(crate) fn reserve(&mut self, len: usize) {
        if self.len() >= len {
            return;
        }
        // The old one first: both together are never needed.
        *self = Self::default();
        *self = Self::new(len);
    }

    fn new(len: usize) -> Self {
        #[cfg(feature = "mmap")]
        if let Some(pages) = Self::pages(len) {
            return pages;
        }
        Self::Heap(vec![0; len])
    }

    #[cfg(feature = "mmap")]
    fn pages(len: usize) -> Option<Self> {
        if len < PAGES_FROM {
            return None;
        }
        let step = len.checked_next_power_of_two()? / STEPS;
        let size = len.checked_next_multiple_of(step)?;
        MmapOptions::new()
            .len(size)
            .map_anon()
            .ok()
            .map(Self::Pages)
    }
}

impl Default for Memory {
    fn default() -> Self {
        Self::Heap(Vec::new())
    }
}

impl fmt::Debug for Memory {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} bytes", self.len())
    }
}

impl Deref for Memory {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        match self {
            Self::Heap(bytes) => bytes,
            #[cfg(feature = "mmap")]
            Self::Pages(pages) => pages,
        }
    }
}

impl DerefMut for Memory {
    fn deref_mut(&mut self) -> &mut [u8] {
        match self {
            Self::Heap(bytes) => bytes,
            #[cfg(feature = "mmap")]
            Self::Pages(pages) => pages,
        }
    }
}

#[cfg(all(test, feature = "mmap"))]
mod tests {
    use super::*;

    #[test]
    fn it_grows_and_never_shrinks() {
        let mut memory = Memory::default();
        assert!(memory.is_empty());
        let mut before = 0;
        for len in [1, 100, 99, PAGES_FROM - 1, PAGES_FROM, 7, PAGES_FROM + 1] {
            memory.reserve(len);
            assert!(memory.len() >= len.max(before), "{len}");
            let is_large = matches!(memory, Memory::Pages(_));
            assert_eq!(is_large, memory.len() >= PAGES_FROM, "{len}");
            if memory.len() > before {
                assert!(memory.iter().all(|&byte| byte == 0), "{len}");
            }
            memory.fill(7);
            before = memory.len();
        }
        assert_eq!(before, PAGES_FROM / STEPS * (STEPS + 2));
    }
}
