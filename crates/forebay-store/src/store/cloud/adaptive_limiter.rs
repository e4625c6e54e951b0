//! Limits the requests of this process to one bucket, over all of its stores.
//!
//! The stores of one bucket share four things, because an overloaded bucket affects all of them: the limit of requests in
//! flight (additive increase while requests succeed, multiplicative decrease when the bucket asks to slow down), the end of a
//! requested pause (`Retry-After`), a token bucket of retries (so that an outage does not cause a retry storm), and the
//! usual latency of reads (so that a late read can be hedged with a second request).

use super::exchange_log::Billed;
use crate::Tariff;
use crate::store::Traffic;
use crate::store::options::without_secrets;
use std::collections::HashMap;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, Weak};
use std::time::{Duration, Instant};
use tokio::sync::Notify;

/// The factor applied to the limit when the store asks to slow down.
const CUT: f64 = 0.6;
/// Throttling responses to requests in flight at the same time arrive together, so the limit is cut once in this time.
const CUT_ONCE_IN: Duration = Duration::from_millis(500);
/// The longest pause that is granted to a store that is overloaded.
pub(super) const LONGEST_PAUSE: Duration = Duration::from_secs(60);
/// The longest pause that is granted to a store that limits requests: twice the window of the Hugging Face Hub.
pub(super) const LONGEST_LIMIT: Duration = Duration::from_secs(600);
/// The capacity of the token bucket of retries, and the tokens that are added each second.
const RETRY_TOKENS: f64 = 50.0;
const RETRY_TOKENS_A_SECOND: f64 = 5.0;
/// Tokens that each success adds: enough for a store at which every fifth request fails.
const RETRY_TOKENS_A_SUCCESS: f64 = 0.5;
/// A long wait is reported at most once in this time, since an outage affects all operations of a bucket.
const SAY_ONCE_IN: Duration = Duration::from_secs(60);
/// The number of recent reads whose latency is kept, and how many there must be before reads are hedged.
const LOOK_BACK: usize = 64;
const LOOK_BACK_LEAST: usize = 16;
/// The largest share of reads that may be hedged in the long run.
const HEDGE_SHARE: f64 = 0.05;
const HEDGE_TOKENS: f64 = 8.0;
const HEDGE_SOONEST: Duration = Duration::from_millis(50);

#[derive(Debug)]
pub(super) struct AdaptiveLimiter {
    state: Mutex<State>,
    room: Notify,
    /// Whether a probe has shown that the store honors [`Put::IfAbsent`](crate::Put::IfAbsent).
    pub(super) heeds_if_absent: AtomicBool,
    /// Whether a probe has shown that the store honors [`Put::IfMatch`](crate::Put::IfMatch).
    pub(super) heeds_if_match: AtomicBool,
    counts: Counts,
    billed: Arc<Billed>,
    tariff: Arc<Tariff>,
}

/// Counters that are used for [`Traffic`] only.
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

impl Traffic {
    /// The traffic of every bucket that is open in this process, by name.
    #[must_use]
    pub fn of_this_process() -> Vec<Traffic> {
        let mut all = traffic();
        all.sort_by(|a, b| a.store.cmp(&b.store));
        // Buckets of the same name at different endpoints are added up.
        all.dedup_by(|more, all| {
            let same = more.store == all.store;
            if same {
                all.add(more);
            }
            same
        });
        all
    }
}

/// The traffic of every bucket that is open in this process.
fn traffic() -> Vec<Traffic> {
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
    /// Whether the last finished request had no response.
    away: bool,
    retry_tokens: f64,
    refilled: Instant,
    reads: Latencies,
    hedge_tokens: f64,
    /// When a long wait was last reported.
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

/// Latencies of the [`LOOK_BACK`] most recent reads.
#[derive(Debug, Default)]
struct Latencies {
    /// In seconds, a ring buffer.
    recent: Vec<f32>,
    next: usize,
}

impl Latencies {
    fn push(&mut self, time: Duration) {
        match self.recent.get_mut(self.next) {
            Some(slot) => *slot = time.as_secs_f32(),
            None => self.recent.push(time.as_secs_f32()),
        }
        self.next = (self.next + 1) % LOOK_BACK;
    }
}

/// The limiters of this process, by process id and bucket URL.
static LIMITERS: Mutex<Option<HashMap<String, Weak<AdaptiveLimiter>>>> = Mutex::new(None);

impl AdaptiveLimiter {
    /// The limiter of the bucket that `url` names, shared by all of its stores. The largest `max` applies.
    pub(super) fn shared(url: &str, max: usize, tariff: &Arc<Tariff>) -> Arc<Self> {
        let mut paces = LIMITERS
            .lock()
            .unwrap_or_else(|poisoned| poisoned.into_inner());
        let paces = paces.get_or_insert_default();
        // The key contains the process id, because a forked child does not have its parent's requests in flight.
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
        let tariff = Arc::clone(tariff);
        let pace = Arc::new(Self {
            tariff,
            ..Self::new(max)
        });
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
                reads: Latencies::default(),
                hedge_tokens: 1.0,
                said: None,
            }),
            room: Notify::new(),
            heeds_if_absent: AtomicBool::new(false),
            heeds_if_match: AtomicBool::new(false),
            counts: Counts::default(),
            billed: Arc::default(),
            tariff: Arc::default(),
        }
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state
            .lock()
            .unwrap_or_else(|poisoned| poisoned.into_inner())
    }

    /// Waits until one more request may be in flight, and counts in `paused` how long the store had asked to wait.
    pub(super) async fn enter(self: &Arc<Self>, paused: &mut Duration) -> Permit {
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
                                // `Notify` stores one notification only: if two permits were released before anyone waited, this
                                // wakes the next waiter.
                                self.room.notify_one();
                            }
                            return Permit(Arc::clone(self));
                        }
                        None
                    }
                }
            };
            match pause {
                Some(pause) => {
                    tokio::time::sleep(pause).await;
                    *paused += pause;
                }
                None => freed.await,
            }
        }
    }

    /// Counts a retry.
    pub(super) fn repeats(&self) {
        count(&self.counts.retries, 1);
    }

    /// Counts an operation that failed after all retries.
    pub(super) fn gave_up(&self) {
        count(&self.counts.failures, 1);
    }

    /// Counts bytes of a range read.
    pub(super) fn read(&self, bytes: u64) {
        count(&self.counts.read_bytes, bytes);
    }

    pub(super) fn billed(&self) -> &Arc<Billed> {
        &self.billed
    }

    fn traffic(&self, store: String) -> Traffic {
        let get = |counter: &AtomicU64| counter.load(Ordering::Relaxed);
        let counts = &self.counts;
        let usage = self.billed.usage();
        let state = self.state();
        let (in_flight, limit) = (state.in_flight as u64, state.limit.floor().max(1.0) as u64);
        let mut reads = state.reads.recent.clone();
        drop(state);
        reads.sort_by(f32::total_cmp);
        let at = |part: usize| reads.get(reads.len() * part / 20).copied().map(f64::from);
        Traffic {
            store,
            usage,
            cost: self.tariff.cost(&usage),
            tariff: Arc::clone(&self.tariff),
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

    /// Records a successful request: raises the limit and adds retry tokens.
    pub(super) fn succeeded(&self) {
        let mut state = self.state();
        state.contacted = true;
        state.away = false;
        state.limit = (state.limit + 1.0 / state.limit.max(1.0)).min(state.max);
        state.retry_tokens = (state.retry_tokens + RETRY_TOKENS_A_SUCCESS).min(RETRY_TOKENS);
        drop(state);
        self.room.notify_one();
    }

    /// Records an error response: the store is reachable.
    pub(super) fn answered(&self) {
        let mut state = self.state();
        state.contacted = true;
        state.away = false;
    }

    /// Records a request that failed without a response.
    pub(super) fn unanswered(&self) {
        self.state().away = true;
    }

    /// Whether the store seems unreachable: the last finished request had no response.
    pub(super) fn is_away(&self) -> bool {
        self.state().away
    }

    /// Records a throttling response: lowers the limit, and stops requests for `pause` if the store asks for one.
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
            let until = now + pause.min(LONGEST_LIMIT);
            state.paused_until = state.paused_until.max(Some(until));
        }
    }

    /// Whether the store has ever responded to this process.
    pub(super) fn contacted(&self) -> bool {
        self.state().contacted
    }

    /// Takes a token for a retry, and returns how long to wait for it.
    pub(super) fn retry(&self) -> Duration {
        let mut state = self.state();
        state.refill();
        state.retry_tokens -= 1.0;
        Duration::from_secs_f64((-state.retry_tokens / RETRY_TOKENS_A_SECOND).max(0.0))
    }

    /// Whether a token is available for a retry that will probably fail again.
    pub(super) fn can_spare_retry(&self) -> bool {
        let mut state = self.state();
        state.refill();
        state.retry_tokens >= 1.0
    }

    /// Whether a long wait may be reported now. True at most once per [`SAY_ONCE_IN`].
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

    /// Records the latency of a read, from the request to the head of the response.
    pub(super) fn read_took(&self, time: Duration) {
        count(&self.counts.reads, 1);
        let ns = u64::try_from(time.as_nanos()).unwrap_or(u64::MAX);
        count(&self.counts.first_byte_ns, ns);
        let mut state = self.state();
        state.reads.push(time);
        state.hedge_tokens = (state.hedge_tokens + HEDGE_SHARE).min(HEDGE_TOKENS);
    }

    /// The latency after which a read counts as late: twice the 95th percentile. `None` while too few reads are recorded.
    pub(super) fn late_after(&self) -> Option<Duration> {
        let state = self.state();
        if state.reads.recent.len() < LOOK_BACK_LEAST {
            return None;
        }
        let mut reads = state.reads.recent.clone();
        drop(state);
        reads.sort_by(f32::total_cmp);
        let usual = *reads.get(reads.len() * 19 / 20)?;
        Some(Duration::from_secs_f32(usual * 2.0).max(HEDGE_SOONEST))
    }

    /// Whether a late read may be hedged; takes a token if so.
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

/// The permit of one request in flight, released on drop.
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
    fn throttling_cuts_the_limit_once_and_successes_raise_it() {
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
        let left = until - Instant::now();
        assert!(left <= LONGEST_LIMIT && left > LONGEST_LIMIT / 2);
    }

    #[test]
    fn retries_wait_once_the_tokens_are_used_up() {
        let pace = AdaptiveLimiter::new(1);
        let waits: Vec<_> = (0..100).map(|_| pace.retry()).collect();
        assert_eq!(waits[0], Duration::ZERO);
        assert!(waits[99] > Duration::from_secs(5), "{:?}", waits[99]);
    }

    #[test]
    fn a_read_is_late_after_twice_the_95th_percentile() {
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
        let pace =
            AdaptiveLimiter::shared("s3://counted https://key:secret@host", 4, &Arc::default());
        pace.slow_down(None);
        pace.repeats();
        pace.read(100);
        for ms in 1..=20 {
            pace.read_took(Duration::from_millis(ms));
        }
        let other = AdaptiveLimiter::shared("s3://counted https://elsewhere", 4, &Arc::default());
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
    fn stores_of_one_bucket_share_a_limiter() {
        let a = AdaptiveLimiter::shared("s3://one", 4, &Arc::default());
        let b = AdaptiveLimiter::shared("s3://one", 8, &Arc::default());
        assert!(Arc::ptr_eq(&a, &b));
        assert_eq!(a.state().max, 8.0);
        assert!(!Arc::ptr_eq(
            &a,
            &AdaptiveLimiter::shared("s3://two", 4, &Arc::default())
        ));
    }
}
