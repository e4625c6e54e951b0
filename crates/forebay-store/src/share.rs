//! Bandwidth shares: foreground reads take precedence over background transfers.
//!
//! A trainer that reads samples from a store and uploads staged checkpoints uses one network link for both. Each read holds
//! a guard from [`BandwidthShare::reading`]; each part of a background transfer first calls [`BandwidthShare::admits`].
//! While no read is in flight, background transfers are not limited. While reads are in flight, the bytes that reads have
//! moved earn background transfers a proportional number of bytes, so the rule does not depend on the speed of the link.
//! A read that hangs must not block background transfers for ever, so a part waits at most [`BACKGROUND_PATIENCE`].
//!
//! There is no lock here: a read costs two atomic additions, and a forked child cannot inherit a held lock.

use std::sync::atomic::{AtomicI64, AtomicU8, AtomicU32, AtomicUsize, Ordering};
use std::time::Duration;

/// The share of background transfers while reads are in flight, in percent.
pub const BACKGROUND_PERCENT: u8 = 20;
/// The longest wait of one part of a background transfer while reads are in flight, so that the transfer always ends.
pub const BACKGROUND_PATIENCE: Duration = Duration::from_secs(1);
/// The largest credit in bytes: a few parts, so that a long epoch of reads does not earn a long burst.
const CREDIT_MAX: i64 = 32 << 20;

/// How reads and background transfers share the bandwidth. [`BandwidthShare::process`] is the instance of the process.
#[derive(Debug)]
pub struct BandwidthShare {
    percent: AtomicU8,
    reads: AtomicUsize,
    /// Bytes that background transfers may still move; negative after a part that was larger than the credit.
    credit: AtomicI64,
    /// The id of the process that the counters belong to; a forked child resets them.
    process: AtomicU32,
}

static PROCESS: BandwidthShare = BandwidthShare::new(BACKGROUND_PERCENT);

impl BandwidthShare {
    /// A separate share, for tests and for processes with several network links.
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

    /// Sets the share of background transfers during reads, in percent of all bytes: 0 allows one part every
    /// [`BACKGROUND_PATIENCE`], 100 disables yielding.
    pub fn set_percent(&self, percent: u8) {
        self.percent.store(percent.min(100), Ordering::Relaxed);
    }

    /// Counts a foreground read until the guard is dropped.
    pub fn reading(&self) -> Reading<'_> {
        self.settle();
        self.reads.fetch_add(1, Ordering::Relaxed);
        Reading {
            share: self,
            process: std::process::id(),
        }
    }

    /// Whether a foreground read is in flight.
    pub fn is_read(&self) -> bool {
        self.settle();
        self.reads.load(Ordering::Relaxed) > 0
    }

    /// Whether a background transfer that has waited for `waited` may move `bytes` now. If not, call again a few ms later.
    ///
    /// While reads are in flight, a transfer may proceed while it has credit, and in any case after [`BACKGROUND_PATIENCE`].
    pub fn admits(&self, bytes: u64, waited: Duration) -> bool {
        let percent = self.percent.load(Ordering::Relaxed);
        if percent >= 100 {
            return true;
        }
        if !self.is_read() || waited >= BACKGROUND_PATIENCE {
            // Bytes moved while no read was in flight, or after the longest wait, do not count as debt.
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

    /// Resets the counters in a forked child: the reads in flight belong to the parent.
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

/// A guard that counts one foreground read.
#[derive(Debug)]
pub struct Reading<'a> {
    share: &'a BandwidthShare,
    process: u32,
}

impl Reading<'_> {
    /// Adds bytes that the read has received.
    pub fn moved(&self, bytes: u64) {
        self.share.moved(bytes);
    }
}

impl Drop for Reading<'_> {
    fn drop(&mut self) {
        // A guard that a fork copied was counted in the parent process.
        if self.process == self.share.process.load(Ordering::Relaxed) {
            self.share.reads.fetch_sub(1, Ordering::Relaxed);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MIB: u64 = 1 << 20;

    /// The number of 1 MiB parts that are admitted before one has to wait.
    fn parts(share: &BandwidthShare) -> usize {
        (0..1000)
            .take_while(|_| share.admits(MIB, Duration::ZERO))
            .count()
    }

    #[test]
    fn background_is_not_limited_without_reads() {
        let share = BandwidthShare::new(20);
        assert_eq!(parts(&share), 1000);
        drop(share.reading());
        assert_eq!(parts(&share), 1000);
    }

    #[test]
    fn reads_earn_credit_for_background_transfers() {
        let share = BandwidthShare::new(20);
        let read = share.reading();
        assert_eq!(parts(&share), 0, "nothing has been earned");
        // 20 % of all bytes is a quarter of the bytes that are read: 8 MiB for 32 MiB.
        read.moved(32 * MIB);
        assert_eq!(parts(&share), 8);
        let another = share.reading();
        drop(read);
        assert_eq!(parts(&share), 0, "somebody reads still");
        // The last admitted part may exceed the credit; later reads pay that debt first.
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
    fn a_hanging_read_does_not_block_for_ever() {
        let share = BandwidthShare::new(0);
        let read = share.reading();
        read.moved(u64::MAX);
        assert!(!share.admits(1, Duration::ZERO));
        assert!(share.admits(1, BACKGROUND_PATIENCE));
    }

    #[test]
    fn a_share_of_100_percent_never_yields() {
        let share = BandwidthShare::new(20);
        let _read = share.reading();
        share.set_percent(100);
        assert!(share.admits(u64::MAX, Duration::ZERO));
    }

    #[test]
    fn a_forked_child_resets_the_counters() {
        let share = BandwidthShare::new(20);
        let mut read = share.reading();
        // The state that a forked child inherits.
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
