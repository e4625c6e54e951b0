//! Memory for stored bytes.
//!
//! If one thread allocates blocks of a few megabytes in varying sizes and another one frees them,
//! the allocator's heap becomes fragmented: a process that read shards for hours held twice the
//! memory that it used. So large blocks are separate mappings, which return to the system as a
//! whole.

use std::fmt;
use std::ops::{Deref, DerefMut};

#[cfg(all(feature = "mmap", target_os = "linux"))]
use memmap2::Advice;
#[cfg(feature = "mmap")]
use memmap2::{MmapMut, MmapOptions};

/// Minimum size in bytes of a buffer that is a separate mapping.
#[cfg(feature = "mmap")]
const PAGES_FROM: usize = 512 << 10;
/// Sizes of mappings are rounded up to a multiple of the next power of two divided by this, so that
/// blocks of similar sizes can reuse each other's mapping.
#[cfg(feature = "mmap")]
const STEPS: usize = 8;

/// Mappings of at least this size use huge pages.
#[cfg(all(feature = "mmap", target_os = "linux"))]
const HUGE_PAGE: usize = 2 << 20;

/// A byte buffer that grows and never shrinks.
pub(crate) enum Memory {
    Heap(Vec<u8>),
    #[cfg(feature = "mmap")]
    Pages(MmapMut),
}

impl Memory {
    /// Ensures space for at least `len` bytes. The content is lost if the buffer has to grow.
    pub(crate) fn reserve(&mut self, len: usize) {
        if self.len() >= len {
            return;
        }
        // The old buffer is freed first, so that both never exist together.
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
        let pages = MmapOptions::new().len(size).map_anon().ok()?;
        // All pages are written next, and a fault for each page costs more than the read itself. Kernels
        // without support for the advice map pages when they are first written.
        #[cfg(target_os = "linux")]
        {
            if size >= HUGE_PAGE {
                let _ = pages.advise(Advice::HugePage);
            }
            let _ = pages.advise_range(Advice::PopulateWrite, 0, len);
        }
        Some(Self::Pages(pages))
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

#[cfg(test)]
#[cfg(feature = "mmap")]
mod tests {
    use super::*;

    #[test]
    fn buffers_grow_and_never_shrink() {
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
