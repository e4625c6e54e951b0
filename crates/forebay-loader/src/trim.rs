//! Memory that loaders leave in the allocator when they end.
//!
//! glibc keeps what is freed in the arenas of the threads that asked for it. Loaders have threads of their own, so after many large
//! ones a gigabyte may lie in arenas that no thread uses any more. It goes back to the system a moment after a loader has ended,
//! once for all that end together. Other allocators give it back by themselves.
//!
//! The alternatives cost those that work: fewer arenas make decode threads wait for each other, and a lower limit for pages of their
//! own makes the kernel clear pages for each image.

#[cfg(all(target_os = "linux", target_env = "gnu"))]
mod glibc {
    #![allow(unsafe_code)] // one call of the C library

    use std::ffi::c_int;
    use std::sync::atomic::{AtomicU32, Ordering};
    use std::thread;
    use std::time::Duration;

    unsafe extern "C" {
        fn malloc_trim(pad: usize) -> c_int;
    }

    /// How long others that end may join in.
    const DELAY: Duration = Duration::from_millis(500);

    /// The process with a thread that will trim; a process that was forked from it has none.
    static PENDING: AtomicU32 = AtomicU32::new(0);

    pub(super) fn soon() {
        let process = std::process::id();
        if PENDING.swap(process, Ordering::AcqRel) == process {
            return;
        }
        let trim = || {
            thread::sleep(DELAY);
            // What ends from here on is for another one.
            PENDING.store(0, Ordering::Release);
            // SAFETY: it may be called at any time from any thread.
            unsafe { malloc_trim(0) };
        };
        let name = "forebay-trim".to_owned();
        if thread::Builder::new().name(name).spawn(trim).is_err() {
            // The next one that ends tries again.
            PENDING.store(0, Ordering::Release);
        }
    }
}

/// Makes it happen when it is dropped.
pub(crate) struct Soon;

impl Drop for Soon {
    fn drop(&mut self) {
        #[cfg(all(target_os = "linux", target_env = "gnu"))]
        glibc::soon();
    }
}
