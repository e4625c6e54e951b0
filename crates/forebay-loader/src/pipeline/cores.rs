//! The cores that the loaders of a process share.
//!
//! A loader whose number of threads was left to Forebay has a decode thread for each core. Several of them, say one for
//! training and one for validation, or the streams of a server, would have several times as many as there are cores. So their
//! threads take a *seat* before they work: there is one for each core. A thread keeps its seat from one sample to the next as
//! long as nobody waits.
//!
//! Loaders belong to *parties*: those that were given the same [`Share`] to one, every other loader is one of its own. Who
//! waits gets the next seat by how much its party had of the cores so far, for its weight: time in a seat counts, not samples,
//! so that one who decodes large pictures gets no more than one who decodes small ones. Within a party, whoever waits longest
//! is next. What a party did not use while it had nothing to do is not saved up, and what it used while nobody waited is not
//! held against it. (Start-time fair queueing: Goyal, Vin, Cheng, 1996.)

use std::collections::VecDeque;
use std::fmt;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread::Thread;
use std::time::{Duration, Instant};

/// What a piece of work costs until its party has done one: a usual sample.
const FIRST_GUESS: Duration = Duration::from_millis(1);
/// The largest weight, and one over the smallest.
const MOST_WEIGHT: f64 = 1e4;

/// A part of the cores that loaders have together, beside those with other shares.
///
/// A clone is the same share. Of a server's jobs each has one, however many ranks it has.
///
/// ```
/// use forebay_loader::Share;
///
/// let (production, trial) = (Share::new(4.0), Share::new(1.0));
/// assert_eq!((production.weight(), trial.weight()), (4.0, 1.0));
/// assert_ne!(production, Share::new(4.0), "loaders share a share, not a number");
/// ```
#[derive(Clone)]
pub struct Share(Arc<Party>);

/// What seats are given by.
struct Party {
    weight: f64,
}

impl Share {
    /// A share of this weight beside others: twice the weight is twice the time on the cores, where there are too few. Weights
    /// beyond 0.0001 to 10,000, and what is no number, are brought within.
    #[must_use]
    pub fn new(weight: f64) -> Self {
        let weight = if weight.is_nan() { 1.0 } else { weight };
        let weight = weight.clamp(1.0 / MOST_WEIGHT, MOST_WEIGHT);
        Share(Arc::new(Party { weight }))
    }

    /// Its weight.
    #[must_use]
    pub fn weight(&self) -> f64 {
        self.0.weight
    }

    /// Tells shares apart while they live.
    fn id(&self) -> usize {
        Arc::as_ptr(&self.0) as usize
    }
}

impl Default for Share {
    /// Of weight 1.
    fn default() -> Self {
        Share::new(1.0)
    }
}

impl PartialEq for Share {
    /// Whether it is the same one.
    fn eq(&self, other: &Self) -> bool {
        Arc::ptr_eq(&self.0, &other.0)
    }
}

impl fmt::Debug for Share {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Share").field(&self.0.weight).finish()
    }
}

/// Seats, and those who wait for one.
pub(super) struct Cores {
    seats: Mutex<Seats>,
    /// How many wait, for a look without the lock.
    wanted: AtomicUsize,
}

/// Who sits and who waits; knows neither threads nor clocks.
struct Seats {
    free: usize,
    /// Of the piece of work that was begun last: where those begin who had nothing to do before.
    now: f64,
    parties: Vec<Account>,
}

/// What a party had.
struct Account {
    share: Share,
    /// Loaders of the party.
    members: usize,
    /// Seconds in seats over weight: work that was begun counts with what it is expected to take.
    used: f64,
    /// Seconds that a piece of work takes.
    expected: f64,
    waiting: VecDeque<Arc<Waiter>>,
}

/// A thread that waits for a seat.
struct Waiter {
    thread: Thread,
    /// What the piece of work is expected to take, which its party has been charged with.
    expected: AtomicU64,
    seated: AtomicBool,
}

impl Waiter {
    /// This thread.
    fn new() -> Arc<Self> {
        Arc::new(Waiter {
            thread: std::thread::current(),
            expected: AtomicU64::new(0),
            seated: AtomicBool::new(false),
        })
    }

    fn expected(&self) -> f64 {
        f64::from_bits(self.expected.load(Ordering::Relaxed))
    }
}

/// What a thread had of the cores.
struct Held {
    /// What its party was charged with in advance, in seconds.
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
            now: 0.0,
            parties: Vec::new(),
        }
    }

    fn party(&mut self, share: &Share) -> &mut Account {
        let at = self.parties.iter().position(|party| party.share == *share);
        let at = at.unwrap_or_else(|| {
            self.parties.push(Account {
                share: share.clone(),
                members: 0,
                used: self.now,
                expected: FIRST_GUESS.as_secs_f64(),
                waiting: VecDeque::new(),
            });
            self.parties.len() - 1
        });
        &mut self.parties[at]
    }

    fn wait(&mut self, share: &Share, waiter: Arc<Waiter>) {
        let now = self.now;
        let party = self.party(share);
        if party.waiting.is_empty() {
            // What it did not use before is gone.
            party.used = party.used.max(now);
        }
        party.waiting.push_back(waiter);
    }

    /// Gives a seat to whom it belongs; none if there is no seat, or nobody waits.
    fn seat_one(&mut self) -> Option<Arc<Waiter>> {
        if self.free == 0 {
            return None;
        }
        let waiting = self.parties.iter_mut().filter(|p| !p.waiting.is_empty());
        // The first one of those that are even: parties are in the order in which they came.
        let party = waiting.reduce(|a, b| if b.used < a.used { b } else { a })?;
        self.now = self.now.max(party.used);
        party.used += party.expected / party.share.weight();
        let waiter = party.waiting.pop_front()?;
        let expected = party.expected.to_bits();
        waiter.expected.store(expected, Ordering::Relaxed);
        self.free -= 1;
        Some(waiter)
    }

    /// Puts right what a piece of work was expected to take.
    fn settle(&mut self, share: &Share, held: &Held) {
        let party = self.party(share);
        // Without others nothing is counted.
        let seconds = held.took.map_or(0.0, |took| took.as_secs_f64());
        party.used += (seconds - held.expected) / party.share.weight();
        if held.took.is_some() {
            party.expected += (seconds - party.expected) / 8.0;
        }
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
        let waiting = seats.parties.iter().map(|party| party.waiting.len());
        self.wanted.store(waiting.sum(), Ordering::Relaxed);
        drop(seats);
        for waiter in seated {
            waiter.seated.store(true, Ordering::Release);
            waiter.thread.unpark();
        }
    }

    /// Waits for a seat, and gives what was charged for it in advance. Who has one goes to the end of the queue with it.
    fn acquire(&self, share: &Share, held: Option<Held>) -> f64 {
        let waiter = Waiter::new();
        let mut seats = self.lock();
        if let Some(held) = held {
            seats.settle(share, &held);
            seats.free += 1;
        }
        seats.wait(share, Arc::clone(&waiter));
        self.dispatch(seats);
        while !waiter.seated.load(Ordering::Acquire) {
            std::thread::park();
        }
        waiter.expected()
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
        self.lock().party(share).members += 1;
    }

    fn leave(&self, share: &Share) {
        let mut seats = self.lock();
        let party = seats.party(share);
        party.members -= 1;
        if party.members == 0 {
            let id = share.id();
            seats.parties.retain(|party| party.share.id() != id);
        }
    }
}

/// The cores as a loader has them.
pub(super) struct Place {
    cores: Arc<Cores>,
    share: Share,
}

impl Place {
    /// Among the loaders of this process.
    pub(super) fn new(share: Option<Share>) -> Self {
        Place::among(of_this_process(), share.unwrap_or_default())
    }

    fn among(cores: Arc<Cores>, share: Share) -> Self {
        cores.join(&share);
        Place { cores, share }
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
                place.cores.acquire(&place.share, held)
            }
        };
        self.taken = Some((Instant::now(), expected));
    }

    /// Gives the core back.
    pub(super) fn leave(&mut self) {
        if let (Some(place), Some((since, expected))) = (self.place, self.taken.take()) {
            let took = place.cores.is_wanted().then(|| since.elapsed());
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
        let seats = cores.lock();
        seats.parties.iter().map(|party| party.waiting.len()).sum()
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
        assert!(seats.parties.is_empty(), "and all parties left");
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
            expected: seated.expected(),
            took: Some(Duration::from_millis(milliseconds)),
        }
    }

    /// How often each of these parties gets a seat, if all of them always want one. Each has a weight, and pieces of work of
    /// so many milliseconds.
    fn seatings(parties: &[(f64, u64)], seats: usize, rounds: usize) -> Vec<usize> {
        let mut state = Seats::new(seats);
        let shares: Vec<Share> = parties.iter().map(|p| Share::new(p.0)).collect();
        let mut counts = vec![0; parties.len()];
        // Who sits: the party, and when its work is done.
        let mut sitting: Vec<(usize, u64, Arc<Waiter>)> = Vec::new();
        let mut clock = 0;
        for share in &shares {
            for _ in 0..seats {
                state.wait(share, Waiter::new());
            }
        }
        for _ in 0..rounds {
            loop {
                let before: Vec<usize> = state.parties.iter().map(|p| p.waiting.len()).collect();
                let Some(seated) = state.seat_one() else {
                    break;
                };
                let after = state.parties.iter().map(|p| p.waiting.len());
                let who = before.iter().zip(after).position(|(b, a)| *b != a).unwrap();
                counts[who] += 1;
                sitting.push((who, clock + parties[who].1, seated));
            }
            let done = (0..sitting.len()).min_by_key(|&i| sitting[i].1).unwrap();
            let (who, at, seated) = sitting.swap_remove(done);
            clock = at;
            state.settle(&shares[who], &held(&seated, parties[who].1));
            state.free += 1;
            state.wait(&shares[who], Waiter::new());
        }
        counts
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
    fn whoever_comes_late_has_nothing_saved_up() {
        let mut seats = Seats::new(1);
        let (early, late) = (Share::default(), Share::default());
        let turn = |seats: &mut Seats, both: bool| {
            seats.wait(&early, Waiter::new());
            if both {
                seats.wait(&late, Waiter::new());
            }
            let mut counts = [0, 0];
            for _ in 0..10 {
                let before = seats.party(&late).waiting.len();
                let seated = seats.seat_one().unwrap();
                let who = usize::from(seats.party(&late).waiting.len() < before);
                counts[who] += 1;
                let share = [&early, &late][who];
                seats.settle(share, &held(&seated, 1));
                seats.free += 1;
                seats.wait(share, Waiter::new());
            }
            counts
        };
        assert_eq!(turn(&mut seats, false), [10, 0]);
        let counts = turn(&mut seats, true);
        assert!(counts[1] <= 6 && counts[0] >= 4, "{counts:?}");
    }

    #[test]
    fn weights_are_brought_within_reason() {
        assert_eq!(Share::new(f64::NAN).weight(), 1.0);
        assert_eq!(Share::new(-3.0).weight(), 1e-4);
        assert_eq!(Share::new(f64::INFINITY).weight(), 1e4);
    }

    #[test]
    fn one_process_has_one_set_of_cores() {
        assert!(Arc::ptr_eq(&of_this_process(), &of_this_process()));
        // Whoever named a number of threads has cores of his own.
        Seat::new(None).take();
    }
}
