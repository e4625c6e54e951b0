//! Returns freed memory from the allocator to the system when loaders end.
//!
//! glibc keeps freed memory in the arenas of the threads that allocated it. Loaders have their own
//! threads, so after many large loaders, arenas that no thread uses any more may hold a gigabyte.
//! It is returned to the system shortly after a loader has ended, once for all loaders that end
//! together. The free end of each arena stays (0 to 76 MB in all after 24 large streams): glibc shortens
//! it only when a thread frees memory beside it. Other allocators return memory themselves.
//!
//! The alternatives cost performance: with fewer arenas, decode threads contend for them, and with
//! a lower mmap threshold the kernel zeroes pages for each image.

#[cfg(all(target_os = "linux", target_env = "gnu"))]
mod glibc {
    #![expect(unsafe_code)] // one call of the C library

    use std::ffi::c_int;
    use std::sync::atomic::{AtomicU32, Ordering};
    use std::thread;
    use std::time::Duration;

    unsafe extern "C" {
        fn malloc_trim(pad: usize) -> c_int;
    }

    /// Delay of a trim, which then covers all loaders that end in the meantime.
    const DELAY: Duration = Duration::from_millis(500);

    /// Id of the process that has a pending trim thread; it differs after a fork, where that thread does not exist.
    static PENDING: AtomicU32 = AtomicU32::new(0);

    pub(super) fn soon() {
        let process = std::process::id();
        if PENDING.swap(process, Ordering::AcqRel) == process {
            return;
        }
        let trim = || {
            thread::sleep(DELAY);
            // Loaders that end from here on need another trim.
            PENDING.store(0, Ordering::Release);
            // SAFETY: malloc_trim may be called at any time from any thread.
            unsafe { malloc_trim(0) };
        };
        let name = "forebay-trim".to_owned();
        if thread::Builder::new().name(name).spawn(trim).is_err() {
            // The next loader that ends tries again.
            PENDING.store(0, Ordering::Release);
        }
    }
}

/// Schedules a trim when it is dropped.
pub(crate) struct Soon;

impl Drop for Soon {
    fn drop(&mut self) {
        #[cfg(all(target_os = "linux", target_env = "gnu"))]
        glibc::soon();
    }
}
