//! `Limiter`: a bandwidth that several transfers share.
//!
//! Two counters: the bytes that transfers have booked, and the bytes that the rate has served. A transfer proceeds once the
//! served bytes reach its booking. Transfers are therefore served in the order of their bookings.

use crate::{BandwidthShare, Cancel};
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::{Duration, Instant};

/// The longest sleep of a waiter before it checks for a cancellation.
const LOOK: Duration = Duration::from_millis(50);
/// How often a transfer that yields to reads checks whether it may proceed.
const YIELD: Duration = Duration::from_millis(5);
/// The size of a burst after a pause, as seconds at the current rate.
const BURST_SECONDS: f64 = 0.1;

/// A limit in bytes per second, shared by all clones.
///
/// ```
/// use forebay_store::{Cancel, Limiter};
/// let limiter = Limiter::new(Some(100 << 20));
/// assert!(limiter.take(4096, &Cancel::new()));
/// ```
#[derive(Debug, Clone)]
pub struct Limiter {
    account: Arc<Mutex<Account>>,
    /// If set, transfers yield to the reads of this share.
    share: Option<&'static BandwidthShare>,
}

#[derive(Debug)]
struct Account {
    rate: Option<u64>,
    booked: f64,
    served: f64,
    at: Instant,
}

impl Limiter {
    /// A limiter of this many bytes per second; `None` means no limit. A rate of 0 blocks all transfers.
    pub fn new(bytes_per_second: Option<u64>) -> Self {
        let account = Account {
            rate: bytes_per_second,
            booked: 0.0,
            served: 0.0,
            at: Instant::now(),
        };
        Self {
            account: Arc::new(Mutex::new(account)),
            share: None,
        }
    }

    /// As [`new`](Self::new), for background transfers: while reads are in flight, they get only their part of `share`.
    pub fn yielding(bytes_per_second: Option<u64>, share: &'static BandwidthShare) -> Self {
        Self {
            share: Some(share),
            ..Self::new(bytes_per_second)
        }
    }

    /// Waits until `bytes` more may be transferred. Returns false if `cancel` was raised meanwhile.
    pub fn take(&self, bytes: u64, cancel: &Cancel) -> bool {
        let ticket = self.book(bytes);
        loop {
            if cancel.is_cancelled() {
                return false;
            }
            match self.wait_for(ticket) {
                None => break,
                Some(wait) => std::thread::sleep(wait),
            }
        }
        let began = Instant::now();
        while !self.admits(bytes, began) {
            if cancel.is_cancelled() {
                return false;
            }
            std::thread::sleep(YIELD);
        }
        true
    }

    fn admits(&self, bytes: u64, began: Instant) -> bool {
        self.share
            .is_none_or(|share| share.admits(bytes, began.elapsed()))
    }

    /// As [`take`](Self::take), for asynchronous tasks; dropping the future cancels the wait.
    pub(crate) async fn wait(&self, bytes: u64) {
        let ticket = self.book(bytes);
        while let Some(wait) = self.wait_for(ticket) {
            tokio::time::sleep(wait).await;
        }
        let began = Instant::now();
        while !self.admits(bytes, began) {
            tokio::time::sleep(YIELD).await;
        }
    }

    fn book(&self, bytes: u64) -> f64 {
        let mut account = self.account();
        account.catch_up();
        account.booked += bytes as f64;
        account.booked
    }

    fn wait_for(&self, ticket: f64) -> Option<Duration> {
        let mut account = self.account();
        account.catch_up();
        let rate = account.rate? as f64;
        let missing = ticket - account.served - rate * BURST_SECONDS;
        if missing <= 0.0 {
            return None;
        }
        let wait = Duration::try_from_secs_f64(missing / rate).unwrap_or(LOOK);
        Some(wait.clamp(Duration::from_millis(1), LOOK))
    }

    fn account(&self) -> MutexGuard<'_, Account> {
        // A panic cannot leave the two counters inconsistent.
        self.account
            .lock()
            .unwrap_or_else(|poisoned| poisoned.into_inner())
    }
}

impl Account {
    fn catch_up(&mut self) {
        let now = Instant::now();
        let passed = now.duration_since(self.at).as_secs_f64();
        self.at = now;
        self.served = match self.rate {
            // Time without transfers does not accumulate.
            Some(rate) => (self.served + rate as f64 * passed).min(self.booked),
            None => self.booked,
        };
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn take_waits_as_long_as_the_rate_requires() {
        let limiter = Limiter::new(Some(1 << 20));
        let started = Instant::now();
        for _ in 0..4 {
            assert!(limiter.take(128 << 10, &Cancel::new()));
        }
        // 0.5 MiB at 1 MiB/s takes 0.5 s, less the burst of 0.1 s. Slower machines only wait longer.
        assert!(started.elapsed() >= Duration::from_millis(390));
    }

    #[test]
    fn waiters_notice_a_cancellation() {
        let limiter = Limiter::new(Some(0));
        let cancel = Cancel::new();
        std::thread::scope(|scope| {
            let waiting = scope.spawn(|| limiter.take(1 << 40, &cancel));
            cancel.cancel();
            assert!(!waiting.join().unwrap());
        });
    }
}
