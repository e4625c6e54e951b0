//! Shares of bandwidth: foreground reads go before background transfers.
//!
//! A trainer that reads its data from a store and drains checkpoints into one has a single uplink. Reads announce
//! themselves with [`BandwidthShare::reading`]; each part of a background transfer asks [`BandwidthShare::admits`] first. While nothing is
//! being read, background transfers run freely. While something is, they get their share and no more: for the bytes that
//! reads have moved they are allowed a proportional number, so the rule needs no measure of what the wire can do.
//! A read that hangs must not stop them for ever, so each part waits only so long.
//!
//! Nothing here is locked: reads pay two atomic additions, and a fork finds nothing held.

use std::sync::atomic::{AtomicI64, AtomicU8, AtomicU32, AtomicUsize, Ordering};
use std::time::Duration;

/// The share of background transfers while reads are in flight, in percent.
pub const BACKGROUND_PERCENT: u8 = 20;
/// A part of a background transfer goes on after this long, whatever is read: so that it ends some day.
pub const BACKGROUND_PATIENCE: Duration = Duration::from_secs(1);
/// The largest credit: a few parts, so that a long epoch of reads does not pay for a burst.
const CREDIT_MAX: i64 = 32 << 20;

/// How reads and background transfers share. One for the process: [`BandwidthShare::process`].
#[derive(Debug)]
pub struct BandwidthShare {
    percent: AtomicU8,
    reads: AtomicUsize,
    /// Bytes that background transfers may move; below zero they have moved more.
    credit: AtomicI64,
    /// The process that counts: in a forked child nothing is being read.
    process: AtomicU32,
}

static PROCESS: BandwidthShare = BandwidthShare::new(BACKGROUND_PERCENT);

impl BandwidthShare {
    /// A share of its own, for tests and for those who have several wires.
    pub const fn new(percent: u8) -> Self {
        Self {
            percent: AtomicU8::new(percent),
            reads: AtomicUsize::new(0),
            credit: AtomicI64::new(0),
            process: AtomicU32::new(0),
        }
    }

    /// The share of this process.
    pub fn process() -> &'static Self {
        &PROCESS
    }

    /// Sets the share of background transfers during reads, in percent of all bytes: 0 allows one part each
    /// [`BACKGROUND_PATIENCE`], 100 is no yielding at all.
    pub fn set_percent(&self, percent: u8) {
        self.percent.store(percent.min(100), Ordering::Relaxed);
    }

    /// Says that something is being read that a caller waits for, until the guard is dropped.
    pub fn reading(&self) -> Reading<'_> {
        self.settle();
        self.reads.fetch_add(1, Ordering::Relaxed);
        Reading {
            share: self,
            process: std::process::id(),
        }
    }

    /// Whether something is being read.
    pub fn is_read(&self) -> bool {
        self.settle();
        self.reads.load(Ordering::Relaxed) > 0
    }

    /// Whether a background transfer that has waited for so long may move `bytes` now. If not, ask again soon.
    ///
    /// While something is read it may as long as it has moved less than its share, and after [`BACKGROUND_PATIENCE`].
    pub fn admits(&self, bytes: u64, waited: Duration) -> bool {
        let percent = self.percent.load(Ordering::Relaxed);
        if percent >= 100 {
            return true;
        }
        if !self.is_read() || waited >= BACKGROUND_PATIENCE {
            // What was moved in a pause, or out of turn, is not held against it.
            self.credit.store(0, Ordering::Relaxed);
            return true;
        }
        let bytes = i64::try_from(bytes).unwrap_or(i64::MAX);
        let take = |credit: i64| (credit > 0).then(|| credit.saturating_sub(bytes));
        self.credit
            .fetch_update(Ordering::Relaxed, Ordering::Relaxed, take)
            .is_ok()
    }

    fn moved(&self, bytes: u64) {
        let percent = i64::from(self.percent.load(Ordering::Relaxed));
        if percent >= 100 {
            return;
        }
        let bytes = i64::try_from(bytes).unwrap_or(i64::MAX);
        let earned = bytes.saturating_mul(percent) / (100 - percent);
        let add = |credit: i64| Some(credit.saturating_add(earned).min(CREDIT_MAX));
        let _ = self
            .credit
            .fetch_update(Ordering::Relaxed, Ordering::Relaxed, add);
    }

    /// Forgets what the process before a fork was reading.
    fn settle(&self) {
        let own = std::process::id();
        if self.process.load(Ordering::Relaxed) != own
            && self.process.swap(own, Ordering::Relaxed) != own
        {
            self.reads.store(0, Ordering::Relaxed);
            self.credit.store(0, Ordering::Relaxed);
        }
    }
}

/// A read under way.
#[derive(Debug)]
pub struct Reading<'a> {
    share: &'a BandwidthShare,
    process: u32,
}

impl Reading<'_> {
    /// Says that this many bytes have come.
    pub fn moved(&self, bytes: u64) {
        self.share.moved(bytes);
    }
}

impl Drop for Reading<'_> {
    fn drop(&mut self) {
        // A guard that a fork copied was counted by another process.
        if self.process == self.share.process.load(Ordering::Relaxed) {
            self.share.reads.fetch_sub(1, Ordering::Relaxed);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MIB: u64 = 1 << 20;

    /// How many parts of a MiB may go before one has to wait.
    fn parts(share: &BandwidthShare) -> usize {
        (0..1000)
            .take_while(|_| share.admits(MIB, Duration::ZERO))
            .count()
    }

    #[test]
    fn nothing_waits_while_nothing_is_read() {
        let share = BandwidthShare::new(20);
        assert_eq!(parts(&share), 1000);
        drop(share.reading());
        assert_eq!(parts(&share), 1000);
    }

    #[test]
    fn what_is_read_earns_a_share() {
        let share = BandwidthShare::new(20);
        let read = share.reading();
        assert_eq!(parts(&share), 0, "nothing has been earned");
        // A fifth of all bytes: of 32 MiB that are read, a quarter.
        read.moved(32 * MIB);
        assert_eq!(parts(&share), 8);
        let another = share.reading();
        drop(read);
        assert_eq!(parts(&share), 0, "somebody reads still");
        // The part after the last credit goes into debt, which is paid first.
        another.moved(2 * MIB);
        assert_eq!(parts(&share), 1);
        another.moved(2 * MIB);
        assert_eq!(parts(&share), 0);
        another.moved(u64::MAX);
        assert_eq!(parts(&share), 32, "what is saved up is bounded");
        drop(another);
        assert!(!share.is_read());
        assert_eq!(parts(&share), 1000);
    }

    #[test]
    fn a_read_that_hangs_does_not_stop_it_for_ever() {
        let share = BandwidthShare::new(0);
        let read = share.reading();
        read.moved(u64::MAX);
        assert!(!share.admits(1, Duration::ZERO));
        assert!(share.admits(1, BACKGROUND_PATIENCE));
    }

    #[test]
    fn all_is_no_yielding() {
        let share = BandwidthShare::new(20);
        let _read = share.reading();
        share.set_percent(100);
        assert!(share.admits(u64::MAX, Duration::ZERO));
    }

    #[test]
    fn a_fork_forgets_what_was_read_before() {
        let share = BandwidthShare::new(20);
        let mut read = share.reading();
        // As a forked child finds it.
        read.process = 1;
        share.process.store(1, Ordering::Relaxed);
        assert!(!share.is_read());
        let own = share.reading();
        drop(read);
        assert!(
            share.is_read(),
            "a guard of the parent's counts for nothing"
        );
        drop(own);
        assert!(!share.is_read());
    }
}
