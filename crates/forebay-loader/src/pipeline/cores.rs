//! The cores that the loaders of a process share.
//!
//! A loader whose number of threads was left to Forebay has a decode thread for each core. Several of them, say one for
//! training and one for validation, or the streams of a server, would have several times as many as there are cores. So their
//! threads take a *seat* before they work: there is one for each core. A thread keeps its seat from one sample to the next as
//! long as nobody waits.
//!
//! Seats go to loaders by the tree of their [`Share`]s (see [`crate::fair`]), each loader with a part of its own: time in a seat counts,
//! not samples, so that large pictures get no more of the cores than small ones. Within a loader, the thread that waits longest is
//! next. What a loader did not use while it had nothing to do is not saved up, and what it used while nobody waited is not held
//! against it.

use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread::Thread;
use std::time::{Duration, Instant};

use crate::fair::{FairQueue, Share};

/// What a piece of work costs until its loader has done one: a usual sample.
const FIRST_GUESS: Duration = Duration::from_millis(1);
/// Seats, and those who wait for one.
pub(super) struct Cores {
    seats: Mutex<Seats>,
    /// How many wait, for a look without the lock.
    wanted: AtomicUsize,
}

/// Who sits and who waits; knows neither threads nor clocks.
struct Seats {
    free: usize,
    waiting: FairQueue<Arc<Waiter>>,
}

/// A thread that waits for a seat.
struct Waiter {
    thread: Thread,
    /// Seconds that the piece of work is expected to take, which its loader is charged with.
    expected: f64,
    seated: AtomicBool,
}

impl Waiter {
    /// This thread.
    fn new(expected: f64) -> Arc<Self> {
        Arc::new(Waiter {
            thread: std::thread::current(),
            expected,
            seated: AtomicBool::new(false),
        })
    }
}

/// What a thread had of the cores.
struct Held {
    /// What its loader was charged with in advance, in seconds.
    expected: f64,
    /// How long it had its seat while others waited.
    took: Option<Duration>,
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

impl Seats {
    fn new(count: usize) -> Self {
        Seats {
            free: count.max(1),
            waiting: FairQueue::default(),
        }
    }

    /// Gives a seat to whom it belongs; none if there is no seat, or nobody waits.
    fn seat_one(&mut self) -> Option<Arc<Waiter>> {
        if self.free == 0 {
            return None;
        }
        let waiter = self.waiting.pop(|waiter| waiter.expected)?;
        self.free -= 1;
        Some(waiter)
    }

    /// Puts right what a piece of work was expected to take.
    fn settle(&mut self, share: &Share, held: &Held) {
        // Without others nothing is counted.
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

    /// Seats those whose turn it is, and wakes them.
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

    /// Waits for a seat, for work that is expected to take so many seconds. Who has one goes to the end of the queue with it.
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

/// The cores as a loader has them.
pub(super) struct Place {
    cores: Arc<Cores>,
    /// The loader's own.
    share: Share,
    /// Seconds that a piece of work takes, as the bits of a number.
    expected: AtomicU64,
}

impl Place {
    /// Among the loaders of this process, with a part of this share.
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

    /// What a piece of work took goes into what the next one is expected to take. Threads may lose each other's: it is a guess.
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

/// A thread's claim to a core; without a place it has one of its own.
pub(super) struct Seat<'a> {
    place: Option<&'a Place>,
    /// Since when it works in its seat, and what was charged for it.
    taken: Option<(Instant, f64)>,
}

impl<'a> Seat<'a> {
    pub(super) fn new(place: Option<&'a Place>) -> Self {
        Seat { place, taken: None }
    }

    /// Waits for a core, for one piece of work. Keeps the one it has, unless somebody waits.
    pub(super) fn take(&mut self) {
        let Some(place) = self.place else { return };
        let expected = match self.taken.take() {
            // What is done while nobody waits costs nothing.
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

    /// Gives the core back.
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
            // Somebody waits, so going on means to queue up behind them.
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

    /// How often each of these shares gets a seat, if all of them always want one and have pieces of work of so many
    /// milliseconds.
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
        // Who sits: whose, and when its work is done.
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
        // Large pictures do not change that.
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
        // Work that takes four times as long comes a quarter as often.
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
        // Whoever named a number of threads has cores of his own.
        Seat::new(None).take();
    }
}
