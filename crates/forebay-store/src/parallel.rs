//! A parallel loop for blocking calls.

use std::sync::{Mutex, PoisonError};

/// Calls `work` with each item on at most `jobs` threads, the calling thread included. Items start in order. After a failure
/// no further item starts, and the first failure is returned.
///
/// ```
/// use std::sync::atomic::{AtomicU32, Ordering};
/// let sum = AtomicU32::new(0);
/// let done: Result<(), String> = forebay_store::for_each_parallel(1..=4, 2, |number| {
///     sum.fetch_add(number, Ordering::Relaxed);
///     Ok(())
/// });
/// assert_eq!((done, sum.into_inner()), (Ok(()), 10));
/// ```
pub fn for_each_parallel<T, E: Send>(
    items: impl Iterator<Item = T> + Send,
    jobs: usize,
    work: impl Fn(T) -> Result<(), E> + Sync,
) -> Result<(), E> {
    let threads = jobs.min(items.size_hint().1.unwrap_or(jobs));
    // `None` after a failure, so that no further item starts.
    let items = Mutex::new(Some(items));
    let failure = Mutex::new(None);
    let run = || {
        loop {
            let next = items
                .lock()
                .unwrap_or_else(PoisonError::into_inner)
                .as_mut()
                .and_then(Iterator::next);
            let Some(item) = next else { return };
            if let Err(error) = work(item) {
                *items.lock().unwrap_or_else(PoisonError::into_inner) = None;
                failure
                    .lock()
                    .unwrap_or_else(PoisonError::into_inner)
                    .get_or_insert(error);
            }
        }
    };
    std::thread::scope(|scope| {
        for _ in 1..threads {
            scope.spawn(run);
        }
        run();
    });
    let failure = failure.into_inner().unwrap_or_else(PoisonError::into_inner);
    failure.map_or(Ok(()), Err)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::atomic::{AtomicUsize, Ordering};

    #[test]
    fn no_item_starts_after_a_failure() {
        let begun = AtomicUsize::new(0);
        let done = for_each_parallel(0..1000, 1, |number| {
            begun.fetch_add(1, Ordering::Relaxed);
            if number == 3 { Err(number) } else { Ok(()) }
        });
        assert_eq!((done, begun.into_inner()), (Err(3), 4));
    }

    #[test]
    fn each_item_is_taken_once() {
        let mut seen = vec![0; 100];
        let done: Result<(), ()> = for_each_parallel(seen.iter_mut(), 8, |slot| {
            *slot += 1;
            Ok(())
        });
        assert!(done.is_ok() && seen.iter().all(|times| *times == 1));
    }
}
