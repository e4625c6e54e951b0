//! The cores that the loaders of a process share.
//!
//! A loader whose number of threads was left to Forebay has a decode thread for each core. Several of them, say one for
//! training and one for validation, or the streams of a server, would have several times as many as there are cores. So their
//! threads take a *seat* before they work: there is one for each core, and whoever waits longest gets the next one, sample by
//! sample. A thread keeps its seat from one sample to the next as long as nobody waits.

use std::collections::VecDeque;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};

/// Seats, and those who wait for one.
pub(super) struct Cores {
    seats: Mutex<Seats>,
    changed: Condvar,
    /// As `Seats::waiting` says, for a look without the lock.
    wanted: AtomicUsize,
}

struct Seats {
    free: usize,
    next_ticket: u64,
    /// Tickets in the order in which they get seats.
    waiting: VecDeque<u64>,
}

/// The cores of this process, which those that it is forked into do not share: the threads that have
/// their seats do not come along.
pub(super) fn of_this_process() -> Arc<Cores> {
    static SHARED: Mutex<Option<(u32, Arc<Cores>)>> = Mutex::new(None);
    let process = std::process::id();
    let mut shared = SHARED.lock().unwrap_or_else(PoisonError::into_inner);
    match &*shared {
        Some((of, cores)) if *of == process => Arc::clone(cores),
        _ => {
            let cores = Arc::new(Cores::new(crate::options::usable_cores()));
            *shared = Some((process, Arc::clone(&cores)));
            cores
        }
    }
}

impl Cores {
    fn new(count: usize) -> Self {
        Cores {
            seats: Mutex::new(Seats {
                free: count.max(1),
                next_ticket: 0,
                waiting: VecDeque::new(),
            }),
            changed: Condvar::new(),
            wanted: AtomicUsize::new(0),
        }
    }

    fn lock(&self) -> MutexGuard<'_, Seats> {
        self.seats.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn acquire(&self) {
        let mut seats = self.lock();
        let ticket = seats.next_ticket;
        seats.next_ticket += 1;
        seats.waiting.push_back(ticket);
        self.wanted.store(seats.waiting.len(), Ordering::Relaxed);
        while seats.free == 0 || seats.waiting.front() != Some(&ticket) {
            seats = self
                .changed
                .wait(seats)
                .unwrap_or_else(PoisonError::into_inner);
        }
        seats.waiting.pop_front();
        seats.free -= 1;
        self.wanted.store(seats.waiting.len(), Ordering::Relaxed);
        if seats.free > 0 && !seats.waiting.is_empty() {
            self.changed.notify_all();
        }
    }

    fn release(&self) {
        let mut seats = self.lock();
        seats.free += 1;
        if !seats.waiting.is_empty() {
            self.changed.notify_all();
        }
    }
}

/// A thread's claim to a core; without `cores` it has one of its own.
pub(super) struct Seat {
    cores: Option<Arc<Cores>>,
    taken: bool,
}

impl Seat {
    pub(super) fn new(cores: Option<Arc<Cores>>) -> Self {
        Seat {
            cores,
            taken: false,
        }
    }

    /// Waits for a core, for one piece of work. Keeps the one it has, unless somebody waits.
    pub(super) fn take(&mut self) {
        let Some(cores) = &self.cores else { return };
        if self.taken {
            if cores.wanted.load(Ordering::Relaxed) == 0 {
                return;
            }
            cores.release();
        }
        cores.acquire();
        self.taken = true;
    }

    /// Gives the core back.
    pub(super) fn leave(&mut self) {
        if let Some(cores) = &self.cores
            && std::mem::take(&mut self.taken)
        {
            cores.release();
        }
    }
}

impl Drop for Seat {
    fn drop(&mut self) {
        self.leave();
    }
}

#[cfg(test)]
mod tests {
    use std::sync::mpsc;

    use super::*;

    #[test]
    fn no_more_work_at_once_than_there_are_cores() {
        let cores = Arc::new(Cores::new(3));
        let (now, most) = (AtomicUsize::new(0), AtomicUsize::new(0));
        std::thread::scope(|scope| {
            for _ in 0..8 {
                scope.spawn(|| {
                    let mut seat = Seat::new(Some(Arc::clone(&cores)));
                    for round in 0..200 {
                        seat.take();
                        most.fetch_max(now.fetch_add(1, Ordering::SeqCst) + 1, Ordering::SeqCst);
                        std::thread::yield_now();
                        now.fetch_sub(1, Ordering::SeqCst);
                        if round % 7 == 0 {
                            seat.leave();
                        }
                    }
                });
            }
        });
        assert!(most.load(Ordering::SeqCst) <= 3);
        assert_eq!(cores.lock().free, 3, "all seats came back");
    }

    #[test]
    fn seats_go_to_those_who_wait_longest() {
        let cores = Arc::new(Cores::new(1));
        let mut mine = Seat::new(Some(Arc::clone(&cores)));
        mine.take();
        let (tell, told) = mpsc::channel();
        std::thread::scope(|scope| {
            for name in 0..4 {
                let tell = tell.clone();
                let cores = &cores;
                scope.spawn(move || {
                    let mut seat = Seat::new(Some(Arc::clone(cores)));
                    seat.take();
                    tell.send(name).unwrap();
                });
                while cores.lock().waiting.len() <= name {
                    std::thread::yield_now();
                }
            }
            // Somebody waits, so going on means to queue up behind them.
            mine.take();
            tell.send(9).unwrap();
        });
        assert_eq!(told.try_iter().collect::<Vec<_>>(), [0, 1, 2, 3, 9]);
    }

    #[test]
    fn one_process_has_one_set_of_cores() {
        assert!(Arc::ptr_eq(&of_this_process(), &of_this_process()));
        // Whoever named a number of threads has cores of his own.
        Seat::new(None).take();
    }
}
