//! Parallel work on many items, with a separate rayon pool for each call.
//!
//! The pool is separate, so that work that waits for storage does not block other work of the
//! process. Items are started in order, so a source that is read from front to back stays
//! sequential. A slow item does not delay the others.

use rayon::iter::{ParallelBridge, ParallelIterator};
use rayon::{ThreadPool, ThreadPoolBuilder};
use std::io;

/// Runs `work` on each item, `jobs` items at a time, and starts items in order. Each thread has a
/// `state`, such as a buffer.
///
/// # Errors
/// The first error; threads finish their current item and start no further one.
pub fn for_each_parallel<I, S, E>(
    items: I,
    jobs: usize,
    state: impl Fn() -> S + Send + Sync,
    work: impl Fn(&mut S, I::Item) -> Result<(), E> + Send + Sync,
) -> Result<(), E>
where
    I: IntoIterator<IntoIter: Send, Item: Send>,
    E: Send,
{
    let mut items = items.into_iter();
    let jobs = items.size_hint().1.map_or(jobs, |most| jobs.min(most));
    // If the system cannot start threads, this thread does all of the work.
    match (jobs > 1).then(|| pool(jobs)).and_then(Result::ok) {
        Some(pool) => pool.install(|| items.par_bridge().try_for_each_init(state, work)),
        None => {
            let mut state = state();
            items.try_for_each(|item| work(&mut state, item))
        }
    }
}

/// As [`for_each_parallel`], and returns the results in the order of the items: `None` for each
/// item that was not started before `stopped` returned true.
pub fn map_parallel<T: Sync, S, R: Send>(
    items: &[T],
    jobs: usize,
    stopped: &(dyn Fn() -> bool + Sync),
    state: impl Fn() -> S + Send + Sync,
    work: impl Fn(&mut S, &T) -> R + Send + Sync,
) -> Vec<Option<R>> {
    let mut results: Vec<Option<R>> = items.iter().map(|_| None).collect();
    let slots = items.iter().zip(&mut results);
    let ended = for_each_parallel(slots, jobs, state, |state, (item, slot)| {
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

/// Runs all `workers` in parallel, each on its own thread so that they may wait for one another, and `here` on this
/// thread at the same time.
///
/// # Errors
/// If the system cannot start the threads. Then nothing was run.
pub fn run_beside<W: FnOnce() + Send, R>(
    workers: Vec<W>,
    here: impl FnOnce() -> R,
) -> io::Result<R> {
    let pool = pool(workers.len().max(1))?;
    Ok(pool.in_place_scope(|scope| {
        for worker in workers {
            scope.spawn(|_| worker());
        }
        here()
    }))
}

/// A pool of threads that take over parts of the work of other threads.
#[derive(Debug)]
pub struct Helpers(ThreadPool);

impl Helpers {
    /// Starts the threads.
    ///
    /// # Errors
    /// If the system cannot start them.
    pub fn new(threads: usize) -> io::Result<Self> {
        pool(threads.max(1)).map(Self)
    }

    /// Runs `work` on all items on the threads of the pool, and `here` on this thread at the same time. Several threads may
    /// call it concurrently.
    pub fn run_beside<T: Send, R>(
        &self,
        items: &mut [T],
        work: impl Fn(&mut T) + Sync,
        here: impl FnOnce() -> R,
    ) -> R {
        let work = &work;
        self.0.in_place_scope(|scope| {
            for item in items {
                scope.spawn(move |_| work(item));
            }
            here()
        })
    }
}

fn pool(threads: usize) -> io::Result<ThreadPool> {
    let pool = ThreadPoolBuilder::new().num_threads(threads);
    pool.build().map_err(io::Error::other)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::atomic::{AtomicUsize, Ordering};
    use std::sync::{Barrier, Mutex};

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
            let result = for_each_parallel(
                0..1000,
                jobs,
                || (),
                |(), number| {
                    begun.fetch_add(1, Ordering::SeqCst);
                    if number == 5 { Err(number) } else { Ok(()) }
                },
            );
            assert_eq!(result, Err(5));
            assert!(begun.into_inner() < 1000);
        }
    }

    #[test]
    fn states_are_created_per_thread() {
        let states = AtomicUsize::new(0);
        let state = || states.fetch_add(1, Ordering::SeqCst);
        let done = for_each_parallel(0..1000, 4, state, |_, _| Ok::<_, ()>(()));
        assert_eq!(done, Ok(()));
        assert!(states.into_inner() <= 8);
    }

    #[test]
    fn helpers_work_for_several_threads() {
        let helpers = Helpers::new(3).unwrap();
        let helpers = &helpers;
        std::thread::scope(|scope| {
            for first in 0..4u32 {
                scope.spawn(move || {
                    let mut items: Vec<u32> = (first..first + 100).collect();
                    let here = std::thread::current().id();
                    let double = |item: &mut u32| *item *= 2;
                    let found =
                        helpers.run_beside(&mut items, double, || std::thread::current().id());
                    assert_eq!(found, here);
                    let doubled: Vec<u32> = (first..first + 100).map(|item| 2 * item).collect();
                    assert_eq!(items, doubled);
                });
            }
        });
        let mut nothing: [u32; 0] = [];
        assert_eq!(helpers.run_beside(&mut nothing, |_| (), || 5), 5);
    }

    #[test]
    fn workers_that_wait_for_one_another_all_run() {
        let barrier = Barrier::new(9);
        let order = Mutex::new(Vec::new());
        let workers: Vec<_> = (0..8)
            .map(|number| {
                let (barrier, order) = (&barrier, &order);
                move || {
                    barrier.wait();
                    order.lock().unwrap().push(number);
                }
            })
            .collect();
        let here = run_beside(workers, || {
            barrier.wait();
            7
        });
        assert_eq!(here.unwrap(), 7);
        assert_eq!(order.into_inner().unwrap().len(), 8);
    }
}
