//! Threads that work beside the calling one, in a rayon pool of their own, so that work that waits for storage does not
//! block other work of the process.

use rayon::{ThreadPool, ThreadPoolBuilder};
use std::io;

/// Runs all `workers` in parallel, each on its own thread so that they may wait for one another, and `here` on this
/// thread at the same time.
///
/// # Errors
/// If the system cannot start the threads. Then nothing was run.
pub(crate) fn run_beside<W: FnOnce() + Send, R>(
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
pub(crate) struct Helpers(ThreadPool);

impl Helpers {
    /// Starts the threads.
    ///
    /// # Errors
    /// If the system cannot start them.
    pub(crate) fn new(threads: usize) -> io::Result<Self> {
        pool(threads.max(1)).map(Self)
    }

    /// Runs `work` on all items on the threads of the pool, and `here` on this thread at the same time. Several threads may
    /// call it concurrently.
    pub(crate) fn run_beside<T: Send, R>(
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
    use std::sync::{Barrier, Mutex};

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
