//! The CPU cores, shared by the loaders of a process.
//!
//! A loader without an explicit number of threads has a decode thread per core. Several loaders,
//! such as one for training and one for validation, or the streams of a server, would then have
//! several times as many threads as cores. So their threads acquire a *permit* before they work, from a semaphore with
//! one permit per core. Uncontended permits are free: a thread keeps its permit from one sample to the next until another
//! thread waits.
//!
//! Permits are assigned by the tree of [`FairShare`]s (see [`crate::fair`]), in which each loader has its
//! own part. The cost is time in a permit, not samples, so large images get no more CPU time than
//! small ones. Within a loader, the thread that has waited longest is next. Idle time is not saved
//! up, and time used without contention is not charged.

use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread::Thread;
use std::time::{Duration, Instant};

use crate::fair::{FairQueue, FairShare};

/// Expected duration of a loader's first sample.
const FIRST_GUESS: Duration = Duration::from_millis(1);
/// Permits, and the threads that wait for one.
pub(super) struct Cores {
    permits: Mutex<Permits>,
    /// Number of waiting threads, readable without the lock.
    wanted: AtomicUsize,
}

/// Assignment of permits; uses neither threads nor clocks.
struct Permits {
    free: usize,
    waiting: FairQueue<Arc<Waiter>>,
}

/// A thread that waits for a permit.
struct Waiter {
    thread: Thread,
    /// Expected duration of its work in seconds, charged to its loader in advance.
    expected: f64,
    granted: AtomicBool,
}

impl Waiter {
    /// Creates a waiter for the current thread.
    fn new(expected: f64) -> Arc<Self> {
        Arc::new(Waiter {
            thread: std::thread::current(),
            expected,
            granted: AtomicBool::new(false),
        })
    }
}

/// A thread's use of a permit.
struct PermitUse {
    /// Seconds charged to its loader in advance.
    expected: f64,
    /// Time in the permit while other threads waited.
    took: Option<Duration>,
}

/// Returns the cores of this process. A forked process gets new ones, because the threads that hold
/// the permits do not exist in it.
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

impl Permits {
    fn new(count: usize) -> Self {
        Permits {
            free: count.max(1),
            waiting: FairQueue::default(),
        }
    }

    /// Assigns a permit to the next waiter; `None` if there is no permit or no waiter.
    fn seat_one(&mut self) -> Option<Arc<Waiter>> {
        if self.free == 0 {
            return None;
        }
        let waiter = self.waiting.pop(|waiter| waiter.expected)?;
        self.free -= 1;
        Some(waiter)
    }

    /// Replaces the expected cost of a piece of work by the actual one.
    fn settle(&mut self, share: &FairShare, held: &PermitUse) {
        // Without contention nothing is charged.
        let seconds = held.took.map_or(0.0, |took| took.as_secs_f64());
        self.waiting.adjust(share, seconds - held.expected);
    }
}

impl Cores {
    fn new(count: usize) -> Self {
        Cores {
            permits: Mutex::new(Permits::new(count)),
            wanted: AtomicUsize::new(0),
        }
    }

    fn lock(&self) -> MutexGuard<'_, Permits> {
        self.permits.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Assigns free permits and wakes their threads.
    fn dispatch(&self, mut permits: MutexGuard<'_, Permits>) {
        let mut granted = Vec::new();
        while let Some(waiter) = permits.seat_one() {
            granted.push(waiter);
        }
        self.wanted.store(permits.waiting.len(), Ordering::Relaxed);
        drop(permits);
        for waiter in granted {
            waiter.granted.store(true, Ordering::Release);
            waiter.thread.unpark();
        }
    }

    /// Waits for a permit, for work with an expected duration in seconds. A thread that holds a permit
    /// returns it and queues again.
    fn acquire(&self, share: &FairShare, held: Option<PermitUse>, expected: f64) {
        let waiter = Waiter::new(expected);
        let mut permits = self.lock();
        if let Some(held) = held {
            permits.settle(share, &held);
            permits.free += 1;
        }
        permits.waiting.push(share, Arc::clone(&waiter));
        self.dispatch(permits);
        while !waiter.granted.load(Ordering::Acquire) {
            std::thread::park();
        }
    }

    fn release(&self, share: &FairShare, held: &PermitUse) {
        let mut permits = self.lock();
        permits.settle(share, held);
        permits.free += 1;
        self.dispatch(permits);
    }

    fn is_wanted(&self) -> bool {
        self.wanted.load(Ordering::Relaxed) > 0
    }

    fn join(&self, share: &FairShare) {
        self.lock().waiting.join(share);
    }

    fn leave(&self, share: &FairShare) {
        self.lock().waiting.leave(share);
    }
}

/// A loader's access to the cores.
pub(super) struct CpuShares {
    cores: Arc<Cores>,
    /// The loader's own share.
    share: FairShare,
    /// Expected seconds per piece of work, as the bits of a float.
    expected: AtomicU64,
}

impl CpuShares {
    /// Registers a loader of this process, with a new part of `share`; `None` creates a new share.
    pub(super) fn new(share: Option<&FairShare>) -> Self {
        CpuShares::among(
            of_this_process(),
            share.map_or_else(FairShare::default, FairShare::part),
        )
    }

    fn among(cores: Arc<Cores>, share: FairShare) -> Self {
        cores.join(&share);
        CpuShares {
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

impl Drop for CpuShares {
    fn drop(&mut self) {
        self.cores.leave(&self.share);
    }
}

/// A thread's permit for a core. Without `CpuShares`, threads need no permits.
pub(super) struct CpuPermit<'a> {
    place: Option<&'a CpuShares>,
    /// Start of the work in the permit, and the seconds charged for it.
    taken: Option<(Instant, f64)>,
}

impl<'a> CpuPermit<'a> {
    pub(super) fn new(place: Option<&'a CpuShares>) -> Self {
        CpuPermit { place, taken: None }
    }

    /// Acquires a permit for one piece of work. The thread keeps the permit that it has unless another thread waits.
    pub(super) fn take(&mut self) {
        let Some(place) = self.place else { return };
        let expected = match self.taken.take() {
            // Work without contention is not charged.
            Some((_, expected)) if !place.cores.is_wanted() => expected,
            taken => {
                let held = taken.map(|(since, expected)| PermitUse {
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

    /// Releases the permit.
    pub(super) fn leave(&mut self) {
        if let (Some(place), Some((since, expected))) = (self.place, self.taken.take()) {
            let took = place.cores.is_wanted().then(|| since.elapsed());
            place.learn(took);
            place
                .cores
                .release(&place.share, &PermitUse { expected, took });
        }
    }
}

impl Drop for CpuPermit<'_> {
    fn drop(&mut self) {
        self.leave();
    }
}

#[cfg(test)]
mod tests {
    use std::sync::mpsc;

    use super::*;

    fn place(cores: &Arc<Cores>) -> CpuShares {
        CpuShares::among(Arc::clone(cores), FairShare::default())
    }

    fn waiting(cores: &Cores) -> usize {
        cores.lock().waiting.len()
    }

    #[test]
    fn concurrent_work_is_limited_to_the_cores() {
        let cores = Arc::new(Cores::new(3));
        let (now, most) = (AtomicUsize::new(0), AtomicUsize::new(0));
        std::thread::scope(|scope| {
            for weight in 0..8 {
                let (cores, now, most) = (&cores, &now, &most);
                scope.spawn(move || {
                    let place =
                        CpuShares::among(Arc::clone(cores), FairShare::new(f64::from(weight)));
                    let mut permit = CpuPermit::new(Some(&place));
                    for round in 0..200 {
                        permit.take();
                        most.fetch_max(now.fetch_add(1, Ordering::SeqCst) + 1, Ordering::SeqCst);
                        std::thread::yield_now();
                        now.fetch_sub(1, Ordering::SeqCst);
                        if round % 7 == 0 {
                            permit.leave();
                        }
                    }
                });
            }
        });
        assert!(most.load(Ordering::SeqCst) <= 3);
        let permits = cores.lock();
        assert_eq!(permits.free, 3, "all permits came back");
        assert!(permits.waiting.is_forgotten(), "and all parties left");
    }

    #[test]
    fn permits_of_a_loader_go_to_its_longest_waiting_thread() {
        let cores = Arc::new(Cores::new(1));
        let place = place(&cores);
        let mut mine = CpuPermit::new(Some(&place));
        mine.take();
        let (tell, told) = mpsc::channel();
        std::thread::scope(|scope| {
            for name in 0..4 {
                let tell = tell.clone();
                let place = &place;
                scope.spawn(move || {
                    let mut permit = CpuPermit::new(Some(place));
                    permit.take();
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

    fn held(granted: &Waiter, milliseconds: u64) -> PermitUse {
        PermitUse {
            expected: granted.expected,
            took: Some(Duration::from_millis(milliseconds)),
        }
    }

    /// Returns how often each share gets a permit if all of them always wait for one, and the pieces of work of
    /// each share take the given number of milliseconds.
    fn seatings_of(
        shares: &[FairShare],
        milliseconds: &[u64],
        permits: usize,
        rounds: usize,
    ) -> Vec<usize> {
        let cores = Arc::new(Cores::new(permits));
        let places: Vec<CpuShares> = shares
            .iter()
            .map(|share| CpuShares::among(Arc::clone(&cores), share.clone()))
            .collect();
        let mut state = cores.lock();
        let mut counts = vec![0; places.len()];
        let mut waiters: Vec<(Arc<Waiter>, usize)> = Vec::new();
        // Occupied permits: share, end of the work, and waiter.
        let mut sitting: Vec<(usize, u64, Arc<Waiter>)> = Vec::new();
        let mut clock = 0;
        let queue = |state: &mut Permits, waiters: &mut Vec<(Arc<Waiter>, usize)>, who: usize| {
            let waiter = Waiter::new(places[who].expected());
            waiters.push((Arc::clone(&waiter), who));
            state.waiting.push(&places[who].share, waiter);
        };
        for who in 0..places.len() {
            for _ in 0..permits {
                queue(&mut state, &mut waiters, who);
            }
        }
        for _ in 0..rounds {
            while let Some(granted) = state.seat_one() {
                let at = waiters
                    .iter()
                    .position(|(waiter, _)| Arc::ptr_eq(waiter, &granted));
                let (_, who) = waiters.swap_remove(at.unwrap());
                counts[who] += 1;
                sitting.push((who, clock + milliseconds[who], granted));
            }
            let done = (0..sitting.len()).min_by_key(|&i| sitting[i].1).unwrap();
            let (who, at, granted) = sitting.swap_remove(done);
            clock = at;
            let held = held(&granted, milliseconds[who]);
            places[who].learn(held.took);
            state.settle(&places[who].share, &held);
            state.free += 1;
            queue(&mut state, &mut waiters, who);
        }
        drop(state);
        counts
    }

    fn seatings(parties: &[(f64, u64)], permits: usize, rounds: usize) -> Vec<usize> {
        let shares: Vec<FairShare> = parties.iter().map(|p| FairShare::new(p.0)).collect();
        let milliseconds: Vec<u64> = parties.iter().map(|p| p.1).collect();
        seatings_of(&shares, &milliseconds, permits, rounds)
    }

    #[test]
    fn many_streams_do_not_increase_the_share_of_a_client() {
        let name = FairShare::default();
        let greedy = name.part_of("greedy");
        let mut shares: Vec<FairShare> = (0..60).map(|_| greedy.part()).collect();
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
        CpuPermit::new(None).take();
    }
}
