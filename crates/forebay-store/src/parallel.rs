//! Parallel loops for blocking calls.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Mutex, PoisonError};
use std::thread;

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
pub fn for_each_parallel<I, E: Send>(
    items: I,
    jobs: usize,
    work: impl Fn(I::Item) -> Result<(), E> + Sync,
) -> Result<(), E>
where
    I: IntoIterator<IntoIter: Send>,
{
    for_each_parallel_with(items, jobs, || (), |(), item| work(item))
}

/// As [`for_each_parallel`]; each thread has a `state`, such as a buffer.
///
/// # Errors
/// The first failure of `work`.
pub fn for_each_parallel_with<I, S, E: Send>(
    items: I,
    jobs: usize,
    state: impl Fn() -> S + Sync,
    work: impl Fn(&mut S, I::Item) -> Result<(), E> + Sync,
) -> Result<(), E>
where
    I: IntoIterator<IntoIter: Send>,
{
    let items = items.into_iter();
    let threads = jobs.min(items.size_hint().1.unwrap_or(jobs));
    // `None` after a failure, so that no further item starts.
    let items = Mutex::new(Some(items));
    let failure = Mutex::new(None);
    let run = || {
        let mut own = None;
        loop {
            let next = items
                .lock()
                .unwrap_or_else(PoisonError::into_inner)
                .as_mut()
                .and_then(Iterator::next);
            let Some(item) = next else { return };
            if let Err(error) = work(own.get_or_insert_with(&state), item) {
                *items.lock().unwrap_or_else(PoisonError::into_inner) = None;
                failure
                    .lock()
                    .unwrap_or_else(PoisonError::into_inner)
                    .get_or_insert(error);
            }
        }
    };
    thread::scope(|scope| {
        for _ in 1..threads {
            // If the system cannot start threads, fewer threads do the work.
            if thread::Builder::new().spawn_scoped(scope, run).is_err() {
                break;
            }
        }
        run();
    });
    let failure = failure.into_inner().unwrap_or_else(PoisonError::into_inner);
    failure.map_or(Ok(()), Err)
}

/// As [`for_each_parallel_with`], and returns the results in the order of the items: `None` for each item that was not
/// started before `stopped` returned true.
pub fn map_parallel<T: Sync, S, R: Send>(
    items: &[T],
    jobs: usize,
    stopped: &(dyn Fn() -> bool + Sync),
    state: impl Fn() -> S + Sync,
    work: impl Fn(&mut S, &T) -> R + Sync,
) -> Vec<Option<R>> {
    let mut results: Vec<Option<R>> = items.iter().map(|_| None).collect();
    let slots = items.iter().zip(&mut results);
    let ended = for_each_parallel_with(slots, jobs, state, |state, (item, slot)| {
        if stopped() {
            return Err(());
        }
        *slot = Some(work(state, item));
        Ok(())
    });
    // An item that was not started because of a stop leaves its slot empty.
    let (Ok(()) | Err(())) = ended;
    results
}

/// As [`map_parallel`], for work that can fail: after a failure no further item starts.
///
/// # Errors
/// The first failure in the order of the items.
pub fn try_map_parallel<T: Sync, R: Send, E: Send>(
    items: &[T],
    jobs: usize,
    stopped: &(dyn Fn() -> bool + Sync),
    work: impl Fn(&T) -> Result<R, E> + Sync,
) -> Result<Vec<Option<R>>, E> {
    let has_failed = AtomicBool::new(false);
    let is_over = || stopped() || has_failed.load(Ordering::Relaxed);
    let results = map_parallel(
        items,
        jobs,
        &is_over,
        || (),
        |(), item| {
            let result = work(item);
            has_failed.fetch_or(result.is_err(), Ordering::Relaxed);
            result
        },
    );
    results.into_iter().map(Option::transpose).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::atomic::AtomicUsize;

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

    #[test]
    fn results_keep_the_order_of_items() {
        let items: Vec<u32> = (0..500).collect();
        for jobs in [0, 1, 3, 700] {
            let squares = map_parallel(&items, jobs, &|| false, || (), |(), n| n * n);
            let expected: Vec<_> = items.iter().map(|n| Some(n * n)).collect();
            assert_eq!(squares, expected, "{jobs}");
        }
        assert!(map_parallel(&[0u8; 0], 4, &|| false, || (), |(), _| ()).is_empty());
    }

    #[test]
    fn a_stop_leaves_the_rest_undone() {
        let items = [(); 100];
        for jobs in [1, 4] {
            let begun = AtomicUsize::new(0);
            let stopped = || begun.load(Ordering::SeqCst) >= 10;
            let results = map_parallel(
                &items,
                jobs,
                &stopped,
                || (),
                |(), ()| {
                    begun.fetch_add(1, Ordering::SeqCst);
                },
            );
            let done = results.iter().flatten().count();
            assert!((10..10 + jobs).contains(&done), "{jobs}: {done}");
        }
    }

    #[test]
    fn the_first_error_ends_the_work() {
        for jobs in [1, 4] {
            let begun = AtomicUsize::new(0);
            let result = for_each_parallel(0..1000, jobs, |number| {
                begun.fetch_add(1, Ordering::SeqCst);
                if number == 5 { Err(number) } else { Ok(()) }
            });
            assert_eq!(result, Err(5));
            assert!(begun.into_inner() < 1000);
        }
    }

    #[test]
    fn the_failure_of_the_first_item_is_returned() {
        let items: Vec<usize> = (0..1000).collect();
        for jobs in [1, 4] {
            let work = |n: &usize| if *n % 10 == 9 { Err(*n) } else { Ok(*n) };
            assert_eq!(try_map_parallel(&items, jobs, &|| false, work), Err(9));
            let all: Vec<_> = (0..9).map(Some).collect();
            assert_eq!(
                try_map_parallel(&items[..9], jobs, &|| false, work),
                Ok(all)
            );
            let none = try_map_parallel(&items[..2], jobs, &|| true, work);
            assert_eq!(none, Ok(vec![None, None]));
        }
    }

    #[test]
    fn states_are_created_per_thread() {
        let states = AtomicUsize::new(0);
        let state = || states.fetch_add(1, Ordering::SeqCst);
        let done = for_each_parallel_with(0..1000, 4, state, |_, _| Ok::<_, ()>(()));
        assert_eq!(done, Ok(()));
        assert!(states.into_inner() <= 8);
    }
}
