//! Throughput of storage by number of concurrent reads.
//!
//! The busy time of readers does not show how much more storage could deliver: four of them may
//! wait for one saturated disk, or for a network on which a fifth read would take no longer. The
//! throughput with one, two and three concurrent reads shows it.

use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

/// Minimum fraction of the total reading time that a measured rate must cover.
const EVIDENCE: f64 = 0.05;
/// Minimum factor by which a rate must exceed the rate with fewer reads to count as higher.
const GROWTH: f64 = 1.15;

/// The time during which a given number of reads was in progress, and the bytes read meanwhile.
#[derive(Debug, Clone, Copy, PartialEq, Default)]
pub struct ReadLevel {
    /// Seconds.
    pub seconds: f64,
    /// Bytes.
    pub bytes: f64,
}

/// The best observed throughput.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(super) struct Best {
    pub(super) bytes_per_s: f64,
    /// Whether throughput still grew with each further read and there are idle readers, so that
    /// this is a lower bound.
    pub(super) is_least: bool,
}

/// Counts reads. Readers report their begin and end.
#[derive(Debug)]
pub(crate) struct Levels(Mutex<Ledger>);

#[derive(Debug)]
struct Ledger {
    under_way: usize,
    since: Instant,
    /// Index 0 is for one read at a time.
    levels: Vec<ReadLevel>,
}

/// A read in progress.
#[derive(Debug)]
pub(crate) struct ReadStart {
    at: Instant,
    /// Time spent in each level up to the start of the read.
    seconds: Vec<f64>,
}

impl Levels {
    pub(crate) fn new(readers: usize) -> Self {
        Levels(Mutex::new(Ledger {
            under_way: 0,
            since: Instant::now(),
            levels: vec![ReadLevel::default(); readers],
        }))
    }

    fn ledger<T>(&self, with: impl FnOnce(&mut Ledger) -> T) -> T {
        // The sums are valid after a panic.
        with(&mut self.0.lock().unwrap_or_else(PoisonError::into_inner))
    }

    pub(crate) fn begin(&self) -> ReadStart {
        self.ledger(|ledger| {
            let at = ledger.charge();
            ledger.under_way += 1;
            let seconds = ledger.levels.iter().map(|level| level.seconds).collect();
            ReadStart { at, seconds }
        })
    }

    /// Records that the read returned `bytes`, and returns its duration. The bytes are assumed to
    /// have arrived evenly.
    pub(crate) fn end(&self, begun: &ReadStart, bytes: u64) -> Duration {
        self.ledger(|ledger| {
            let time = ledger.charge().duration_since(begun.at);
            let took = time.as_secs_f64();
            ledger.under_way = ledger.under_way.saturating_sub(1);
            for (level, before) in ledger.levels.iter_mut().zip(&begun.seconds) {
                let part = (level.seconds - before) / took.max(f64::MIN_POSITIVE);
                level.bytes += bytes as f64 * part.min(1.0);
            }
            time
        })
    }

    pub(crate) fn read(&self) -> Vec<ReadLevel> {
        self.ledger(|ledger| {
            ledger.charge();
            ledger.levels.clone()
        })
    }
}

impl Ledger {
    /// Adds the time up to now.
    fn charge(&mut self) -> Instant {
        let now = Instant::now();
        let time = now - self.since;
        self.since = now;
        let last = self.levels.len();
        let level = self.under_way.min(last).checked_sub(1);
        if let Some(level) = level.and_then(|level| self.levels.get_mut(level)) {
            level.seconds += time.as_secs_f64();
        }
        now
    }
}

/// Returns the best throughput with any number of concurrent reads. `None` if storage was hardly
/// used.
pub(super) fn best(levels: &[ReadLevel]) -> Option<Best> {
    let all: f64 = levels.iter().map(|level| level.seconds).sum();
    let bytes: f64 = levels.iter().map(|level| level.bytes).sum();
    let mut sum = ReadLevel::default();
    let mut best: Option<Best> = None;
    let mut most_seen = None;
    for (at, level) in levels.iter().enumerate().rev() {
        sum.seconds += level.seconds;
        sum.bytes += level.bytes;
        if sum.seconds < EVIDENCE * all || sum.seconds <= 0.0 || sum.bytes <= 0.0 {
            continue;
        }
        let most_seen = *most_seen.get_or_insert(at);
        let bytes_per_s = sum.bytes / sum.seconds;
        if best.is_none_or(|best| best.bytes_per_s < bytes_per_s) {
            let grows = at == 0 || bytes_per_s > GROWTH * bytes / all;
            best = Some(Best {
                bytes_per_s,
                is_least: at == most_seen && at + 1 < levels.len() && grows,
            });
        }
    }
    best
}

/// Returns the difference between two readings.
pub(super) fn since(now: &[ReadLevel], then: &[ReadLevel]) -> Vec<ReadLevel> {
    let before = then
        .iter()
        .copied()
        .chain(std::iter::repeat(ReadLevel::default()));
    let levels = now.iter().zip(before).map(|(now, then)| ReadLevel {
        seconds: (now.seconds - then.seconds).max(0.0),
        bytes: (now.bytes - then.bytes).max(0.0),
    });
    levels.collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn levels(levels: &[(f64, f64)]) -> Vec<ReadLevel> {
        let levels = levels
            .iter()
            .map(|&(seconds, bytes)| ReadLevel { seconds, bytes });
        levels.collect()
    }

    #[test]
    fn best_throughput_depends_on_concurrent_reads() {
        // A saturated disk, regardless of the number of readers.
        let disk = best(&levels(&[
            (4.0, 400.0),
            (2.0, 200.0),
            (1.0, 101.0),
            (0.0, 0.0),
        ]))
        .unwrap();
        assert!(
            (disk.bytes_per_s - 100.0).abs() < 2.0 && !disk.is_least,
            "{disk:?}"
        );
        // A network, on which each read has its own latency.
        let far = best(&levels(&[
            (4.0, 40.0),
            (2.0, 40.0),
            (1.0, 30.0),
            (1.0, 40.0),
        ]))
        .unwrap();
        assert_eq!((far.bytes_per_s, far.is_least), (40.0, false));
        // The effect of a second reader is unknown.
        let one = best(&levels(&[(4.0, 40.0), (0.0, 0.0)])).unwrap();
        assert_eq!((one.bytes_per_s, one.is_least), (10.0, true));
        // A short outlier is no evidence.
        let lucky = best(&levels(&[(9.9, 99.0), (0.1, 1000.0)])).unwrap();
        assert!((lucky.bytes_per_s - 109.9).abs() < 1e-6, "{lucky:?}");
        // Two readers slowed each other down.
        let worse = best(&levels(&[(5.0, 500.0), (5.0, 100.0), (0.0, 0.0)])).unwrap();
        assert!(!worse.is_least, "{worse:?}");
        assert_eq!(best(&levels(&[(0.0, 0.0); 4])), None);
        assert_eq!(best(&[]), None);
    }

    #[test]
    fn bytes_are_spread_over_the_duration_of_their_read() {
        let levels_seen = Levels::new(2);
        let pause = || std::thread::sleep(Duration::from_millis(3));
        let first = levels_seen.begin();
        pause();
        let second = levels_seen.begin();
        pause();
        levels_seen.end(&first, 1000);
        pause();
        levels_seen.end(&second, 500);
        pause();
        let found = levels_seen.read();
        let bytes: f64 = found.iter().map(|level| level.bytes).sum();
        assert!((bytes - 1500.0).abs() < 1.0, "{found:?}");
        assert!(
            found[0].seconds >= 0.006 && found[1].seconds >= 0.003,
            "{found:?}"
        );
        // Each read was alone for a part of its time, and concurrent with the other one for the rest.
        assert!(found[0].bytes > 1.0 && found[1].bytes > 1.0, "{found:?}");
        let later = levels_seen.read();
        assert_eq!(
            since(&later, &found),
            levels(&[(0.0, 0.0); 2]),
            "no thread reads"
        );
    }
}
