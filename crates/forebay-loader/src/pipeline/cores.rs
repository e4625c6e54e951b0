//! The CPU cores, shared by the loaders of a process.
//!
//! A loader without an explicit number of threads has a decode thread per core. Several loaders,
//! such as one for training and one for validation, or the streams of a server, would then have
//! several times as many threads as cores. So their threads acquire a *seat*, a permit of a
//! semaphore with one per core, before they work. Uncontended seats are free: a thread keeps its
//! seat from one sample to the next until another thread waits.
//!
//! Seats are assigned by the tree of [`Share`]s (see [`crate::fair`]), in which each loader has its
//! own part. The cost is time in a seat, not samples, so large images get no more CPU time than
//! small ones. Within a loader, the thread that has waited longest is next. Idle time is not saved
//! up, and time used without contention is not charged.

use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread::Thread;
use std::time::{Duration, Instant};

use crate::fair::{FairQueue, Share};

/// Expected cost of a loader's first sample.
const FIRST_GUESS: Duration = Duration::from_millis(1);
/// Seats, and the threads that wait for one.
pub(super) struct Cores {
    seats: Mutex<Seats>,
    /// Number of waiting threads, readable without the lock.
    wanted: AtomicUsize,
}

/// Assignment of seats; uses neither threads nor clocks.
struct Seats {
    free: usize,
    waiting: FairQueue<Arc<Waiter>>,
}

/// A thread that waits for a seat.
struct Waiter {
    thread: Thread,
    /// Expected duration of its work in seconds, charged to its loader in advance.
    expected: f64,
    seated: AtomicBool,
}

impl Waiter {
    /// A waiter for the current thread.
    fn new(expected: f64) -> Arc<Self> {
        Arc::new(Waiter {
            thread: std::thread::current(),
            expected,
            seated: AtomicBool::new(false),
        })
    }
}

/// A thread's use of a seat.
struct Held {
    /// Seconds charged to its loader in advance.
    expected: f64,
    /// Time in the seat while other threads waited.
    took: Option<Duration>,
}

/// Returns the cores of this process. A forked process gets new ones, because the threads that hold
/// the seats do not exist in it.
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

impl Seats {
    fn new(count: usize) -> Self {
        Seats {
            free: count.max(1),
            waiting: FairQueue::default(),
        }
    }

    /// Assigns a seat to the next waiter; `None` if there is no seat or no waiter.
    fn seat_one(&mut self) -> Option<Arc<Waiter>> {
        if self.free == 0 {
            return None;
        }
        let waiter = self.waiting.pop(|waiter| waiter.expected)?;
        self.free -= 1;
        Some(waiter)
    }

    /// Replaces the expected cost of a piece of work by the actual one.
    fn settle(&mut self, share: &Share, held: &Held) {
        // Without contention nothing is charged.
        let seconds = held.took.map_or(0.0, |took| took.as_secs_f64());
        self.waiting.adjust(share, seconds - held.expected);
    }
}

impl Cores {
    fn new(count: usize) -> Self {
        Cores {
            seats: Mutex::new(Seats::new(count)),
            wanted: AtomicUsize::new(0),
        }
    }

    fn lock(&self) -> MutexGuard<'_, Seats> {
        self.seats.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Assigns free seats and wakes their threads.
    fn dispatch(&self, mut seats: MutexGuard<'_, Seats>) {
        let mut seated = Vec::new();
        while let Some(waiter) = seats.seat_one() {
            seated.push(waiter);
        }
        self.wanted.store(seats.waiting.len(), Ordering::Relaxed);
        drop(seats);
        for waiter in seated {
            waiter.seated.store(true, Ordering::Release);
            waiter.thread.unpark();
        }
    }

    /// Waits for a seat, for work with an expected duration in seconds. A thread that holds a seat
    /// returns it and queues again.
    fn acquire(&self, share: &Share, held: Option<Held>, expected: f64) {
        let waiter = Waiter::new(expected);
        let mut seats = self.lock();
        if let Some(held) = held {
            seats.settle(share, &held);
            seats.free += 1;
        }
        seats.waiting.push(share, Arc::clone(&waiter));
        self.dispatch(seats);
        while !waiter.seated.load(Ordering::Acquire) {
            std::thread::park();
        }
    }

    fn release(&self, share: &Share, held: &Held) {
        let mut seats = self.lock();
        seats.settle(share, held);
        seats.free += 1;
        self.dispatch(seats);
    }

    fn is_wanted(&self) -> bool {
        self.wanted.load(Ordering::Relaxed) > 0
    }

    fn join(&self, share: &Share) {
        self.lock().waiting.join(share);
    }

    fn leave(&self, share: &Share) {
        self.lock().waiting.leave(share);
    }
}

/// A loader's access to the cores.
pub(super) struct Place {
    cores: Arc<Cores>,
    /// The loader's own share.
    share: Share,
    /// Expected seconds per piece of work, as the bits of a float.
    expected: AtomicU64,
}

impl Place {
    /// Registers a loader of this process, with a part of this share.
    pub(super) fn new(share: Option<&Share>) -> Self {
        Place::among(
            of_this_process(),
            share.map_or_else(Share::default, Share::part),
        )
    }

    fn among(cores: Arc<Cores>, share: Share) -> Self {
        cores.join(&share);
        Place {
            cores,
            share,
            expected: AtomicU64::new(FIRST_GUESS.as_secs_f64().to_bits()),
        }
    }

    fn expected(&self) -> f64 {
        f64::from_bits(self.expected.load(Ordering::Relaxed))
    }

    /// Updates the expected duration with the actual one. Concurrent updates may be lost, which is
    /// fine for an estimate.
    fn learn(&self, took: Option<Duration>) {
        if let Some(took) = took {
            let expected = self.expected();
            let better = expected + (took.as_secs_f64() - expected) / 8.0;
            self.expected.store(better.to_bits(), Ordering::Relaxed);
        }
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        self.cores.leave(&self.share);
    }
}

/// A thread's permit for a core; without a place it always has one.
pub(super) struct Seat<'a> {
    place: Option<&'a Place>,
    /// Start of the work in the seat, and the seconds charged for it.
    taken: Option<(Instant, f64)>,
}

impl<'a> Seat<'a> {
    pub(super) fn new(place: Option<&'a Place>) -> Self {
        Seat { place, taken: None }
    }

    /// Waits for a core, for one piece of work. Keeps the current one unless another thread waits.
    pub(super) fn take(&mut self) {
        let Some(place) = self.place else { return };
        let expected = match self.taken.take() {
            // Work without contention is not charged.
            Some((_, expected)) if !place.cores.is_wanted() => expected,
            taken => {
                let held = taken.map(|(since, expected)| Held {
                    expected,
                    took: Some(since.elapsed()),
                });
                place.learn(held.as_ref().and_then(|held| held.took));
                let expected = place.expected();
                place.cores.acquire(&place.share, held, expected);
                expected
            }
        };
        self.taken = Some((Instant::now(), expected));
    }

    /// Returns the core.
    pub(super) fn leave(&mut self) {
        if let (Some(place), Some((since, expected))) = (self.place, self.taken.take()) {
            let took = place.cores.is_wanted().then(|| since.elapsed());
            place.learn(took);
            place.cores.release(&place.share, &Held { expected, took });
        }
    }
}

impl Drop for Seat<'_> {
    fn drop(&mut self) {
        self.leave();
    }
}

#[cfg(test)]
mod tests {
    use std::sync::mpsc;

    use super::*;

    fn place(cores: &Arc<Cores>) -> Place {
        Place::among(Arc::clone(cores), Share::default())
    }

    fn waiting(cores: &Cores) -> usize {
        cores.lock().waiting.len()
    }

    #[test]
    fn no_more_work_at_once_than_there_are_cores() {
        let cores = Arc::new(Cores::new(3));
        let (now, most) = (AtomicUsize::new(0), AtomicUsize::new(0));
        std::thread::scope(|scope| {
            for weight in 0..8 {
                let (cores, now, most) = (&cores, &now, &most);
                scope.spawn(move || {
                    let place = Place::among(Arc::clone(cores), Share::new(f64::from(weight)));
                    let mut seat = Seat::new(Some(&place));
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
        let seats = cores.lock();
        assert_eq!(seats.free, 3, "all seats came back");
        assert!(seats.waiting.is_forgotten(), "and all parties left");
    }

    #[test]
    fn within_a_party_seats_go_to_those_who_wait_longest() {
        let cores = Arc::new(Cores::new(1));
        let place = place(&cores);
        let mut mine = Seat::new(Some(&place));
        mine.take();
        let (tell, told) = mpsc::channel();
        std::thread::scope(|scope| {
            for name in 0..4 {
                let tell = tell.clone();
                let place = &place;
                scope.spawn(move || {
                    let mut seat = Seat::new(Some(place));
                    seat.take();
                    tell.send(name).unwrap();
                });
                while waiting(&cores) <= name {
                    std::thread::yield_now();
                }
            }
            // Another thread waits, so this one queues behind it.
            mine.take();
            tell.send(9).unwrap();
        });
        assert_eq!(told.try_iter().collect::<Vec<_>>(), [0, 1, 2, 3, 9]);
    }

    fn held(seated: &Waiter, milliseconds: u64) -> Held {
        Held {
            expected: seated.expected,
            took: Some(Duration::from_millis(milliseconds)),
        }
    }

    /// How often each of these shares gets a seat if all of them always want one, with pieces of
    /// work of this many milliseconds.
    fn seatings_of(
        shares: &[Share],
        milliseconds: &[u64],
        seats: usize,
        rounds: usize,
    ) -> Vec<usize> {
        let cores = Arc::new(Cores::new(seats));
        let places: Vec<Place> = shares
            .iter()
            .map(|share| Place::among(Arc::clone(&cores), share.clone()))
            .collect();
        let mut state = cores.lock();
        let mut counts = vec![0; places.len()];
        let mut waiters: Vec<(Arc<Waiter>, usize)> = Vec::new();
        // Occupied seats: share, end of the work, and waiter.
        let mut sitting: Vec<(usize, u64, Arc<Waiter>)> = Vec::new();
        let mut clock = 0;
        let queue = |state: &mut Seats, waiters: &mut Vec<(Arc<Waiter>, usize)>, who: usize| {
            let waiter = Waiter::new(places[who].expected());
            waiters.push((Arc::clone(&waiter), who));
            state.waiting.push(&places[who].share, waiter);
        };
        for who in 0..places.len() {
            for _ in 0..seats {
                queue(&mut state, &mut waiters, who);
            }
        }
        for _ in 0..rounds {
            while let Some(seated) = state.seat_one() {
                let at = waiters
                    .iter()
                    .position(|(waiter, _)| Arc::ptr_eq(waiter, &seated));
                let (_, who) = waiters.swap_remove(at.unwrap());
                counts[who] += 1;
                sitting.push((who, clock + milliseconds[who], seated));
            }
            let done = (0..sitting.len()).min_by_key(|&i| sitting[i].1).unwrap();
            let (who, at, seated) = sitting.swap_remove(done);
            clock = at;
            let held = held(&seated, milliseconds[who]);
            places[who].learn(held.took);
            state.settle(&places[who].share, &held);
            state.free += 1;
            queue(&mut state, &mut waiters, who);
        }
        drop(state);
        counts
    }

    fn seatings(parties: &[(f64, u64)], seats: usize, rounds: usize) -> Vec<usize> {
        let shares: Vec<Share> = parties.iter().map(|p| Share::new(p.0)).collect();
        let milliseconds: Vec<u64> = parties.iter().map(|p| p.1).collect();
        seatings_of(&shares, &milliseconds, seats, rounds)
    }

    #[test]
    fn a_client_of_many_streams_has_no_more_than_one_of_few() {
        let name = Share::default();
        let greedy = name.part_of("greedy");
        let mut shares: Vec<Share> = (0..60).map(|_| greedy.part()).collect();
        shares.push(name.part_of("good").part());
        let counts = seatings_of(&shares, &[1; 61], 2, 8000);
        assert!((3900..4100).contains(&counts[60]), "{counts:?}");
        // Large images do not change that.
        let mut milliseconds = [20; 61];
        milliseconds[60] = 1;
        let counts = seatings_of(&shares, &milliseconds, 2, 8000);
        let greedy: usize = counts[..60].iter().sum();
        let ratio = counts[60] as f64 / (20.0 * greedy as f64);
        assert!((0.9..1.1).contains(&ratio), "{ratio}: {counts:?}");
    }

    #[test]
    fn weights_are_shares_of_the_time() {
        let counts = seatings(&[(1.0, 1), (3.0, 1)], 1, 4000);
        assert!((2900..3100).contains(&counts[1]), "{counts:?}");
        // Work that takes four times as long is scheduled a quarter as often.
        let counts = seatings(&[(1.0, 4), (1.0, 1)], 1, 5000);
        assert!((3900..4100).contains(&counts[1]), "{counts:?}");
        // On several cores at once.
        let counts = seatings(&[(1.0, 1), (2.0, 1), (5.0, 1)], 4, 8000);
        assert!((900..1100).contains(&counts[0]), "{counts:?}");
        assert!((4800..5200).contains(&counts[2]), "{counts:?}");
    }

    #[test]
    fn one_process_has_one_set_of_cores() {
        assert!(Arc::ptr_eq(&of_this_process(), &of_this_process()));
        // A loader with an explicit number of threads does not share cores.
        Seat::new(None).take();
    }
}
