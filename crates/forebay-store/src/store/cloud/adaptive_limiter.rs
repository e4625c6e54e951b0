//! The rate of requests to one bucket, by all stores of this process together.
//!
//! Four things are shared, because a store that is overloaded is so for everybody: how many requests are in flight (as many as
//! it bears: one more for each round that went well, fewer at once when it asks to slow down), until when it asked to be left
//! alone, how many tries may be repeated (a bucket of tokens, so that an outage is not answered with a storm), and how long
//! reads usually take (so that a late one can be asked for a second time).

use crate::store::Traffic;
use crate::store::options::without_secrets;
use std::collections::HashMap;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, Weak};
use std::time::{Duration, Instant};
use tokio::sync::Notify;

/// The factor of the limit after a request to slow down.
const CUT: f64 = 0.6;
/// Requests that were in flight together complain together: that counts once.
const CUT_ONCE_IN: Duration = Duration::from_millis(500);
/// A store is not left alone for longer than this, whatever it asks for.
const LONGEST_PAUSE: Duration = Duration::from_secs(60);
/// Repeated tries that may begin at once, and that may begin each second in the long run.
const RETRY_TOKENS: f64 = 50.0;
const RETRY_TOKENS_A_SECOND: f64 = 5.0;
/// Tokens that a success adds: enough for a store of which every fifth answer fails.
const RETRY_TOKENS_A_SUCCESS: f64 = 0.5;
/// A long wait is said once in this time: all operations of a bucket meet the same outage.
const SAY_ONCE_IN: Duration = Duration::from_secs(60);
/// Reads that are looked back at, and how many of them there must be to tell what is late.
const LOOK_BACK: usize = 64;
const LOOK_BACK_LEAST: usize = 16;
/// Reads asked for twice: at most this share.
const HEDGE_SHARE: f64 = 0.05;
const HEDGE_TOKENS: f64 = 8.0;
const HEDGE_SOONEST: Duration = Duration::from_millis(50);

#[derive(Debug)]
pub(super) struct AdaptiveLimiter {
    state: Mutex<State>,
    room: Notify,
    /// Whether it has been seen that the store refuses to replace an object where a put says so.
    pub(super) heeds_if_absent: AtomicBool,
    /// Whether it has been seen that the store refuses to replace another object than the one that a put names.
    pub(super) heeds_if_match: AtomicBool,
    counts: Counts,
}

/// Counters for [`Traffic`] alone.
#[derive(Debug, Default)]
struct Counts {
    requests: AtomicU64,
    retries: AtomicU64,
    throttles: AtomicU64,
    hedges: AtomicU64,
    failures: AtomicU64,
    read_bytes: AtomicU64,
    reads: AtomicU64,
    first_byte_ns: AtomicU64,
}

fn count(counter: &AtomicU64, more: u64) {
    counter.fetch_add(more, Ordering::Relaxed);
}

/// The traffic of every bucket that is open in this process.
pub(in crate::store) fn traffic() -> Vec<Traffic> {
    let paces = LIMITERS
        .lock()
        .unwrap_or_else(|poisoned| poisoned.into_inner());
    let process = format!("{} ", std::process::id());
    let open = paces.iter().flatten().filter_map(|(url, pace)| {
        let url = url.strip_prefix(&process)?;
        let store = url.split(' ').next().unwrap_or_default();
        Some(pace.upgrade()?.traffic(without_secrets(store)))
    });
    open.collect()
}

#[derive(Debug)]
struct State {
    max: f64,
    limit: f64,
    in_flight: usize,
    cut_at: Option<Instant>,
    paused_until: Option<Instant>,
    contacted: bool,
    /// Whether nothing came back from the last request that failed.
    away: bool,
    retry_tokens: f64,
    refilled: Instant,
    /// Seconds that reads took, the oldest overwritten first.
    reads: Vec<f32>,
    next_read: usize,
    hedge_tokens: f64,
    /// When a long wait was said last.
    said: Option<Instant>,
}

impl State {
    fn refill(&mut self) {
        let now = Instant::now();
        let passed = now.duration_since(self.refilled).as_secs_f64();
        self.refilled = now;
        self.retry_tokens = (self.retry_tokens + passed * RETRY_TOKENS_A_SECOND).min(RETRY_TOKENS);
    }
}

/// The paces of this process's buckets, by their URL.
static LIMITERS: Mutex<Option<HashMap<String, Weak<AdaptiveLimiter>>>> = Mutex::new(None);

impl AdaptiveLimiter {
    /// The pace of the bucket that `url` names, shared with other stores of it. The largest `max` counts.
    pub(super) fn shared(url: &str, max: usize) -> Arc<Self> {
        let mut paces = LIMITERS
            .lock()
            .unwrap_or_else(|poisoned| poisoned.into_inner());
        let paces = paces.get_or_insert_default();
        // Keyed by process as well: a child's requests in flight are not its parent's.
        let url = format!("{} {url}", std::process::id());
        if let Some(pace) = paces.get(&url).and_then(Weak::upgrade) {
            let mut state = pace.state();
            if max as f64 > state.max {
                state.max = max as f64;
                state.limit = state.max;
            }
            drop(state);
            return pace;
        }
        paces.retain(|_, pace| pace.strong_count() > 0);
        let pace = Arc::new(Self::new(max));
        paces.insert(url, Arc::downgrade(&pace));
        pace
    }

    fn new(max: usize) -> Self {
        let max = max.max(1) as f64;
        Self {
            state: Mutex::new(State {
                max,
                limit: max,
                in_flight: 0,
                cut_at: None,
                paused_until: None,
                contacted: false,
                away: false,
                retry_tokens: RETRY_TOKENS,
                refilled: Instant::now(),
                reads: Vec::new(),
                next_read: 0,
                hedge_tokens: 1.0,
                said: None,
            }),
            room: Notify::new(),
            heeds_if_absent: AtomicBool::new(false),
            heeds_if_match: AtomicBool::new(false),
            counts: Counts::default(),
        }
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state
            .lock()
            .unwrap_or_else(|poisoned| poisoned.into_inner())
    }

    /// Waits for room for one more request.
    pub(super) async fn enter(self: &Arc<Self>) -> Permit {
        loop {
            let freed = self.room.notified();
            let pause = {
                let mut state = self.state();
                let now = Instant::now();
                match state.paused_until {
                    Some(until) if until > now => Some(until - now),
                    _ => {
                        if (state.in_flight as f64) < state.limit.floor().max(1.0) {
                            state.in_flight += 1;
                            count(&self.counts.requests, 1);
                            if (state.in_flight as f64) < state.limit.floor() {
                                // Two who left while no caller waited yet leave one notice: it is passed on.
                                self.room.notify_one();
                            }
                            return Permit(Arc::clone(self));
                        }
                        None
                    }
                }
            };
            match pause {
                Some(pause) => tokio::time::sleep(pause).await,
                None => freed.await,
            }
        }
    }

    /// A try is about to be repeated.
    pub(super) fn repeats(&self) {
        count(&self.counts.retries, 1);
    }

    /// An operation was given up.
    pub(super) fn gave_up(&self) {
        count(&self.counts.failures, 1);
    }

    /// So many bytes of a range were read.
    pub(super) fn read(&self, bytes: u64) {
        count(&self.counts.read_bytes, bytes);
    }

    fn traffic(&self, store: String) -> Traffic {
        let get = |counter: &AtomicU64| counter.load(Ordering::Relaxed);
        let counts = &self.counts;
        let state = self.state();
        let (in_flight, limit) = (state.in_flight as u64, state.limit.floor().max(1.0) as u64);
        let mut reads = state.reads.clone();
        drop(state);
        reads.sort_by(f32::total_cmp);
        let at = |part: usize| reads.get(reads.len() * part / 20).copied().map(f64::from);
        Traffic {
            store,
            requests: get(&counts.requests),
            retries: get(&counts.retries),
            throttles: get(&counts.throttles),
            hedges: get(&counts.hedges),
            failures: get(&counts.failures),
            read_bytes: get(&counts.read_bytes),
            reads: get(&counts.reads),
            first_byte_s: get(&counts.first_byte_ns) as f64 / 1e9,
            usual_s: at(10).zip(at(19)),
            in_flight,
            limit,
        }
    }

    /// A request went well.
    pub(super) fn succeeded(&self) {
        let mut state = self.state();
        state.contacted = true;
        state.away = false;
        state.limit = (state.limit + 1.0 / state.limit.max(1.0)).min(state.max);
        state.retry_tokens = (state.retry_tokens + RETRY_TOKENS_A_SUCCESS).min(RETRY_TOKENS);
        drop(state);
        self.room.notify_one();
    }

    /// The store answered, though not with what was asked for.
    pub(super) fn answered(&self) {
        let mut state = self.state();
        state.contacted = true;
        state.away = false;
    }

    /// A request failed without any answer.
    pub(super) fn unanswered(&self) {
        self.state().away = true;
    }

    /// Whether the store did not answer when it was asked last.
    pub(super) fn is_away(&self) -> bool {
        self.state().away
    }

    /// The store asks to slow down, and perhaps for how long it wants to be left alone.
    pub(super) fn slow_down(&self, pause: Option<Duration>) {
        count(&self.counts.throttles, 1);
        let now = Instant::now();
        let mut state = self.state();
        if state
            .cut_at
            .is_none_or(|at| now.duration_since(at) > CUT_ONCE_IN)
        {
            state.limit = (state.limit * CUT).max(1.0);
            state.cut_at = Some(now);
        }
        if let Some(pause) = pause {
            let until = now + pause.min(LONGEST_PAUSE);
            state.paused_until = state.paused_until.max(Some(until));
        }
    }

    /// Whether the store has ever answered in this process.
    pub(super) fn contacted(&self) -> bool {
        self.state().contacted
    }

    /// Takes a token for one more try, and returns how long to wait for it.
    pub(super) fn retry(&self) -> Duration {
        let mut state = self.state();
        state.refill();
        state.retry_tokens -= 1.0;
        Duration::from_secs_f64((-state.retry_tokens / RETRY_TOKENS_A_SECOND).max(0.0))
    }

    /// Whether a token is there for a try that probably changes nothing.
    pub(super) fn can_spare_retry(&self) -> bool {
        let mut state = self.state();
        state.refill();
        state.retry_tokens >= 1.0
    }

    /// Whether a long wait may be said now, which is counted.
    pub(super) fn may_say(&self) -> bool {
        let mut state = self.state();
        let now = Instant::now();
        let may = state
            .said
            .is_none_or(|said| now.duration_since(said) > SAY_ONCE_IN);
        if may {
            state.said = Some(now);
        }
        may
    }

    /// A read took so long, from asking to the first bytes.
    pub(super) fn read_took(&self, time: Duration) {
        count(&self.counts.reads, 1);
        let ns = u64::try_from(time.as_nanos()).unwrap_or(u64::MAX);
        count(&self.counts.first_byte_ns, ns);
        let mut state = self.state();
        let at = state.next_read;
        match state.reads.get_mut(at) {
            Some(slot) => *slot = time.as_secs_f32(),
            None => state.reads.push(time.as_secs_f32()),
        }
        state.next_read = (at + 1) % LOOK_BACK;
        state.hedge_tokens = (state.hedge_tokens + HEDGE_SHARE).min(HEDGE_TOKENS);
    }

    /// After how long a read is late: twice what nineteen of twenty take. None while that is not known.
    pub(super) fn late_after(&self) -> Option<Duration> {
        let state = self.state();
        if state.reads.len() < LOOK_BACK_LEAST {
            return None;
        }
        let mut reads = state.reads.clone();
        drop(state);
        reads.sort_by(f32::total_cmp);
        let usual = *reads.get(reads.len() * 19 / 20)?;
        Some(Duration::from_secs_f32(usual * 2.0).max(HEDGE_SOONEST))
    }

    /// Whether a late read may be asked for a second time, which is counted.
    pub(super) fn may_hedge(&self) -> bool {
        let mut state = self.state();
        let may = state.hedge_tokens >= 1.0;
        if may {
            state.hedge_tokens -= 1.0;
            count(&self.counts.hedges, 1);
        }
        may
    }
}

/// Room for one request; dropped when it is done.
#[derive(Debug)]
pub(super) struct Permit(Arc<AdaptiveLimiter>);

impl Drop for Permit {
    fn drop(&mut self) {
        self.0.state().in_flight -= 1;
        self.0.room.notify_one();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn complaints_cut_once_and_successes_give_back() {
        let pace = AdaptiveLimiter::new(10);
        for _ in 0..5 {
            pace.slow_down(None);
        }
        assert_eq!(pace.state().limit, 6.0);
        for _ in 0..1000 {
            pace.succeeded();
        }
        assert_eq!(pace.state().limit, 10.0);
        pace.slow_down(Some(Duration::from_secs(3600)));
        let until = pace.state().paused_until.unwrap();
        assert!(until <= Instant::now() + LONGEST_PAUSE);
    }

    #[test]
    fn tries_are_repeated_slowly_once_the_tokens_are_gone() {
        let pace = AdaptiveLimiter::new(1);
        let waits: Vec<_> = (0..100).map(|_| pace.retry()).collect();
        assert_eq!(waits[0], Duration::ZERO);
        assert!(waits[99] > Duration::from_secs(5), "{:?}", waits[99]);
    }

    #[test]
    fn a_read_is_late_by_what_reads_usually_take() {
        let pace = AdaptiveLimiter::new(1);
        assert_eq!(pace.late_after(), None);
        for _ in 0..200 {
            pace.read_took(Duration::from_millis(100));
        }
        pace.read_took(Duration::from_secs(50));
        assert_eq!(pace.late_after().unwrap().as_millis(), 200);
        let hedges = (0..200).filter(|_| pace.may_hedge()).count();
        assert_eq!(hedges, HEDGE_TOKENS as usize);
    }

    #[test]
    fn traffic_is_counted_by_bucket_and_shows_no_secrets() {
        let pace = AdaptiveLimiter::shared("s3://counted https://key:secret@host", 4);
        pace.slow_down(None);
        pace.repeats();
        pace.read(100);
        for ms in 1..=20 {
            pace.read_took(Duration::from_millis(ms));
        }
        let other = AdaptiveLimiter::shared("s3://counted https://elsewhere", 4);
        other.read(11);
        let all = Traffic::of_this_process();
        let mut found = all.iter().filter(|traffic| traffic.store == "s3://counted");
        let found = (found.next().unwrap(), found.next());
        let (traffic, None) = found else {
            panic!("{found:?}")
        };
        assert_eq!(
            (traffic.throttles, traffic.retries, traffic.hedges),
            (1, 1, 0)
        );
        assert_eq!((traffic.read_bytes, traffic.reads), (111, 20));
        let (half, most) = traffic.usual_s.unwrap();
        assert!((half - 0.011).abs() < 1e-6 && (most - 0.020).abs() < 1e-6);
        assert!(!format!("{all:?}").contains("secret"));
    }

    #[test]
    fn one_bucket_has_one_pace() {
        let a = AdaptiveLimiter::shared("s3://one", 4);
        let b = AdaptiveLimiter::shared("s3://one", 8);
        assert!(Arc::ptr_eq(&a, &b));
        assert_eq!(a.state().max, 8.0);
        assert!(!Arc::ptr_eq(&a, &AdaptiveLimiter::shared("s3://two", 4)));
    }
}
