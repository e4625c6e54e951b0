//! Parallel work on many items.

use std::sync::Mutex;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::thread;

/// Calls `work` with each item on at most `jobs` threads, the calling thread included, and returns the results in the
/// order of the items: `None` for each item that was not started before `stopped` returned true. Items start in order.
pub(crate) fn map_parallel<T: Sync, R: Send>(
    items: &[T],
    jobs: usize,
    stopped: &(dyn Fn() -> bool + Sync),
    work: impl Fn(&T) -> R + Sync,
) -> Vec<Option<R>> {
    let slots: Vec<Mutex<Option<R>>> = items.iter().map(|_| Mutex::new(None)).collect();
    let next = AtomicUsize::new(0);
    let run = || {
        while !stopped() {
            let number = next.fetch_add(1, Ordering::Relaxed);
            let (Some(item), Some(slot)) = (items.get(number), slots.get(number)) else {
                return;
            };
            let result = work(item);
            *slot.lock().unwrap_or_else(|e| e.into_inner()) = Some(result);
        }
    };
    thread::scope(|scope| {
        for _ in 1..jobs.min(items.len()) {
            // If the system cannot start threads, fewer threads do the work.
            if thread::Builder::new().spawn_scoped(scope, run).is_err() {
                break;
            }
        }
        run();
    });
    let results = slots.into_iter();
    results
        .map(|slot| slot.into_inner().unwrap_or_else(|e| e.into_inner()))
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn results_keep_the_order_of_items() {
        let items: Vec<u32> = (0..500).collect();
        for jobs in [0, 1, 3, 700] {
            let squares = map_parallel(&items, jobs, &|| false, |n| n * n);
            let expected: Vec<_> = items.iter().map(|n| Some(n * n)).collect();
            assert_eq!(squares, expected, "{jobs}");
        }
        assert!(map_parallel(&[0u8; 0], 4, &|| false, |_| ()).is_empty());
    }

    #[test]
    fn a_stop_leaves_the_rest_undone() {
        let items = [(); 100];
        for jobs in [1, 4] {
            let begun = AtomicUsize::new(0);
            let stopped = || begun.load(Ordering::SeqCst) >= 10;
            let results = map_parallel(&items, jobs, &stopped, |()| {
                begun.fetch_add(1, Ordering::SeqCst);
            });
            let done = results.iter().flatten().count();
            assert!((10..10 + jobs).contains(&done), "{jobs}: {done}");
        }
    }
}
