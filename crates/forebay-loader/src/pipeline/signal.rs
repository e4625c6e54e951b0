//! A wake-up that costs nothing while no thread waits for it.

use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Condvar, MutexGuard, PoisonError};
use std::time::Duration;

/// A condition variable that counts the threads that wait.
///
/// A thread counts from before it releases the mutex until it has it again. So a thread that changes the state under the
/// mutex and sees no waiting thread has none to wake. The mutex orders all accesses to the count.
#[derive(Default)]
pub(super) struct Signal {
    condition: Condvar,
    waiting: AtomicUsize,
}

impl Signal {
    /// Waits for a wake-up; may also return without one.
    pub(super) fn wait<'a, T>(&self, guard: MutexGuard<'a, T>) -> MutexGuard<'a, T> {
        self.waiting.fetch_add(1, Ordering::Relaxed);
        let guard = self.condition.wait(guard);
        self.waiting.fetch_sub(1, Ordering::Relaxed);
        guard.unwrap_or_else(PoisonError::into_inner)
    }

    /// As [`Signal::wait`], for at most `timeout`.
    pub(super) fn wait_for<'a, T>(
        &self,
        guard: MutexGuard<'a, T>,
        timeout: Duration,
    ) -> MutexGuard<'a, T> {
        self.waiting.fetch_add(1, Ordering::Relaxed);
        let result = self.condition.wait_timeout(guard, timeout);
        self.waiting.fetch_sub(1, Ordering::Relaxed);
        result.unwrap_or_else(PoisonError::into_inner).0
    }

    /// Returns whether a thread waits. Exact for callers that hold the mutex.
    pub(super) fn has_waiting(&self) -> bool {
        self.waiting.load(Ordering::Relaxed) > 0
    }

    pub(super) fn wake_one(&self) {
        self.condition.notify_one();
    }

    pub(super) fn wake_all(&self) {
        self.condition.notify_all();
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Mutex;

    use super::*;

    #[test]
    fn a_wait_that_timed_out_no_longer_counts() {
        let (signal, state) = (Signal::default(), Mutex::new(7));
        let guard = signal.wait_for(state.lock().unwrap(), Duration::ZERO);
        assert_eq!(*guard, 7, "the mutex is locked again");
        assert!(!signal.has_waiting());
    }
}
