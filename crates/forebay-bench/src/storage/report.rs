//! The result of a run of reads or writes.

use std::time::Duration;

use serde::Serialize;

/// Throughput and latencies of a run.
#[derive(Debug, Clone, Default, Serialize)]
pub struct RunReport {
    /// Number of bytes read or written.
    pub bytes: u64,
    /// Number of reads or writes.
    pub operations: u64,
    /// Duration in seconds.
    pub seconds: f64,
    /// Queue depth: the number of operations in flight.
    pub depth: usize,
    /// Latency of each operation in seconds, in ascending order.
    #[serde(skip)]
    pub latencies: Vec<f32>,
    /// Bytes of the operations that ended in each interval. The last interval may be shorter than [`Self::interval_s`].
    #[serde(skip)]
    pub intervals: Vec<u64>,
    /// Length of an interval in seconds.
    pub interval_s: f64,
}

/// The measured operations of one worker thread.
#[derive(Debug, Default)]
pub(super) struct Worker {
    bytes: u64,
    latencies: Vec<f32>,
    intervals: Vec<u64>,
}

impl Worker {
    /// Records an operation that took `took` and ended `since` after the start of the run.
    pub(super) fn done(&mut self, bytes: u64, took: Duration, since: Duration, interval: Duration) {
        self.bytes += bytes;
        self.latencies.push(took.as_secs_f32());
        let at = (since.as_nanos() / interval.as_nanos().max(1)) as usize;
        if self.intervals.len() <= at {
            self.intervals.resize(at + 1, 0);
        }
        self.intervals[at] += bytes;
    }

    pub(super) fn has_done_any(&self) -> bool {
        !self.latencies.is_empty()
    }
}

impl RunReport {
    pub(super) fn new(workers: Vec<Worker>, took: Duration, interval: Duration) -> Self {
        let mut report = Self {
            seconds: took.as_secs_f64(),
            depth: workers.len(),
            interval_s: interval.as_secs_f64(),
            ..Self::default()
        };
        for worker in workers {
            report.bytes += worker.bytes;
            report.latencies.extend(worker.latencies);
            if report.intervals.len() < worker.intervals.len() {
                report.intervals.resize(worker.intervals.len(), 0);
            }
            for (all, own) in report.intervals.iter_mut().zip(worker.intervals) {
                *all += own;
            }
        }
        report.operations = report.latencies.len() as u64;
        report.latencies.sort_by(f32::total_cmp);
        report
    }

    /// Returns the throughput in MB/s (10^6 bytes per second).
    pub fn mb_per_s(&self) -> f64 {
        self.bytes as f64 / 1e6 / self.seconds.max(1e-9)
    }

    /// Returns the number of operations per second.
    pub fn reads_per_s(&self) -> f64 {
        self.operations as f64 / self.seconds.max(1e-9)
    }

    /// Returns a quantile of the latencies in seconds: `part` is 0.5 for the median, 0.99 for p99, 1 for the maximum.
    pub fn latency(&self, part: f64) -> f64 {
        let last = self.latencies.len().saturating_sub(1);
        // Nearest-rank method.
        let rank = (self.latencies.len() as f64 * part).ceil() as usize;
        let at = rank.saturating_sub(1).min(last);
        self.latencies
            .get(at)
            .map_or(0.0, |&latency| f64::from(latency))
    }

    /// Returns the throughput of each complete interval in MB/s.
    pub fn interval_rates(&self) -> Vec<f64> {
        let whole = (self.seconds / self.interval_s.max(1e-9)) as usize;
        let rates = self.intervals.iter().take(whole);
        rates
            .map(|&bytes| bytes as f64 / 1e6 / self.interval_s)
            .collect()
    }

    /// Returns whether the last third of the intervals was more than 20 % slower than the first third: burst credits ran out, or
    /// the SLC cache of an SSD was full. `None` for fewer than nine intervals.
    pub fn slowed_down(&self) -> Option<bool> {
        let rates = self.interval_rates();
        let third = rates.len() / 3;
        if third < 3 {
            return None;
        }
        let mean = |rates: &[f64]| rates.iter().sum::<f64>() / rates.len() as f64;
        Some(mean(&rates[rates.len() - third..]) < 0.8 * mean(&rates[..third]))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn workers_are_merged_into_one_report() {
        let interval = Duration::from_millis(100);
        let mut workers: Vec<Worker> = (0..4).map(|_| Worker::default()).collect();
        for number in 0..1000u32 {
            let worker = &mut workers[number as usize % 4];
            let since = Duration::from_millis(u64::from(number));
            worker.done(
                1000,
                Duration::from_micros(u64::from(number) + 1),
                since,
                interval,
            );
        }
        let report = RunReport::new(workers, Duration::from_secs(1), interval);
        assert_eq!(
            (report.bytes, report.operations, report.depth),
            (1_000_000, 1000, 4)
        );
        assert_eq!((report.mb_per_s(), report.reads_per_s()), (1.0, 1000.0));
        let near = |part: f64, micros: f64| (report.latency(part) * 1e6 - micros).abs() < 0.01;
        assert!(near(0.5, 500.0) && near(0.99, 990.0) && near(0.999, 999.0) && near(1.0, 1000.0));
        assert_eq!(report.interval_rates(), [1.0; 10]);
        assert_eq!(report.slowed_down(), Some(false));
        assert_eq!(RunReport::default().latency(0.5), 0.0);
    }

    #[test]
    fn a_slow_last_third_is_marked() {
        let mut worker = Worker::default();
        let interval = Duration::from_millis(100);
        for number in 0..30u64 {
            let bytes = if number < 15 { 100 } else { 79 };
            let since = interval * number as u32;
            worker.done(bytes, interval, since, interval);
        }
        let report = RunReport::new(vec![worker], interval * 30, interval);
        assert_eq!(report.slowed_down(), Some(true));
        assert_eq!(RunReport::default().slowed_down(), None);
    }
}
