//! `Limiter`: a bandwidth that several transfers share.
//!
//! Two counters: what was booked, and what the rate has served since. A transfer may go on once the served bytes have
//! caught up with its booking. So the order of bookings is the order of service, and a rate that changes while
//! transfers wait is felt by them at once.

use crate::{BandwidthShare, Cancel};
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::{Duration, Instant};

/// A waiter looks again this often at least, to see a changed rate or a raised flag.
const LOOK: Duration = Duration::from_millis(50);
/// One that yields to reads looks this often whether it is its turn.
const YIELD: Duration = Duration::from_millis(5);
/// The burst after a pause, in seconds of the rate.
const BURST_SECONDS: f64 = 0.1;

/// Bytes a second that all holders of a clone share.
///
/// ```
/// use forebay_store::{Cancel, Limiter};
/// let limiter = Limiter::new(Some(100 << 20));
/// assert!(limiter.take(4096, &Cancel::new()));
/// limiter.set_rate(None);
/// assert_eq!(limiter.rate(), None);
/// ```
#[derive(Debug, Clone)]
pub struct Limiter {
    account: Arc<Mutex<Account>>,
    /// Whose reads come first.
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
    /// A limiter of this many bytes a second; none does not limit. A rate of 0 lets nothing through until it is changed.
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

    /// As [`new`](Self::new), for transfers that no caller waits for: they get their share of what is read, and no more.
    pub fn yielding(bytes_per_second: Option<u64>, share: &'static BandwidthShare) -> Self {
        Self {
            share: Some(share),
            ..Self::new(bytes_per_second)
        }
    }

    /// Changes the rate, also for those who wait.
    pub fn set_rate(&self, bytes_per_second: Option<u64>) {
        let mut account = self.account();
        account.catch_up();
        account.rate = bytes_per_second;
    }

    /// The rate in bytes a second.
    pub fn rate(&self) -> Option<u64> {
        self.account().rate
    }

    /// Waits until `bytes` more may go. False if `cancel` was raised meanwhile.
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

    /// As [`take`](Self::take), for the tasks of this crate.
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
        // Two counters cannot be left half done by a panic.
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
            // Time without transfers is not saved up.
            Some(rate) => (self.served + rate as f64 * passed).min(self.booked),
            None => self.booked,
        };
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bytes_take_the_time_that_the_rate_says() {
        let limiter = Limiter::new(Some(1 << 20));
        let started = Instant::now();
        for _ in 0..4 {
            assert!(limiter.take(128 << 10, &Cancel::new()));
        }
        // Half a MiB at 1 MiB/s, less the burst. Slower machines only wait longer.
        assert!(started.elapsed() >= Duration::from_millis(390));
    }

    #[test]
    fn a_changed_rate_and_a_raised_flag_free_those_who_wait() {
        let limiter = Limiter::new(Some(0));
        let cancel = Cancel::new();
        std::thread::scope(|scope| {
            let waiting = scope.spawn(|| limiter.take(1 << 40, &Cancel::new()));
            limiter.set_rate(None);
            assert!(waiting.join().unwrap());
            limiter.set_rate(Some(0));
            let waiting = scope.spawn(|| limiter.take(1 << 40, &cancel));
            cancel.cancel();
            assert!(!waiting.join().unwrap());
        });
    }
}
