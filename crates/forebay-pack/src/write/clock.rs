//! Measures whether files are slow to open and to read.

use std::cell::Cell;
use std::time::{Duration, Instant};

/// A file that takes longer than this was not read from the page cache, but from a disk or a network.
const SLOW_FILE: Duration = Duration::from_micros(100);
/// Number of files after which it is decided whether files are slow.
const DECIDE_FILES: u32 = 32;

/// Measures the time for opening and reading files.
#[derive(Debug)]
pub(super) struct Clock {
    files: Cell<u32>,
    time: Cell<Duration>,
    /// Start of the current group of files, and the time that the thread had run or been queued for a core by then.
    began: Cell<Instant>,
    busy: Cell<Duration>,
}

impl Clock {
    /// Creates the clock for the calling thread.
    pub(super) fn of_this_thread() -> Self {
        Self {
            files: Cell::new(0),
            time: Cell::default(),
            began: Cell::new(Instant::now()),
            busy: Cell::new(busy_time()),
        }
    }

    pub(super) fn begin() -> Instant {
        Instant::now()
    }

    /// Adds the time since `begin`.
    pub(super) fn end(&self, begin: Instant) {
        self.time.set(self.time.get() + begin.elapsed());
    }

    /// Ends a file. Returns true after each group of files that was slow because the thread waited for files. Time in which
    /// the thread was queued for a core does not count, since more threads would not help.
    pub(super) fn file_done(&self) -> bool {
        self.files.set(self.files.get() + 1);
        if self.files.get() < DECIDE_FILES {
            return false;
        }
        let now = busy_time();
        let busy = now.saturating_sub(self.busy.replace(now));
        self.files.set(0);
        let began = self.began.replace(Instant::now());
        // Waiting time is the time in which the thread neither ran nor was queued, but at most the time for opening and reading
        // files: encoding and writing may also wait.
        let waited = began.elapsed().saturating_sub(busy);
        waited.min(self.time.replace(Duration::ZERO)) > SLOW_FILE * DECIDE_FILES
    }
}

/// Returns the time that this thread has run or been queued for a core; zero if the system does not report it.
fn busy_time() -> Duration {
    let text = std::fs::read_to_string("/proc/thread-self/schedstat").unwrap_or_default();
    let nanos = text
        .split_ascii_whitespace()
        .take(2)
        .map_while(|n| n.parse::<u64>().ok());
    Duration::from_nanos(nanos.sum())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn waits_for_files_are_measured_apart_from_the_work() {
        let clock = Clock::of_this_thread();
        let mut slow = false;
        for _ in 0..DECIDE_FILES {
            let begin = Clock::begin();
            std::thread::sleep(Duration::from_millis(2));
            clock.end(begin);
            let begin = Instant::now();
            while begin.elapsed() < Duration::from_millis(3) {
                std::hint::spin_loop();
            }
            slow = clock.file_done();
        }
        assert!(slow);
    }

    #[test]
    fn slow_files_are_noticed() {
        let clock = Clock::of_this_thread();
        for slow in [true, false, true] {
            for file in 1..=DECIDE_FILES {
                // The time is far above the limit for slow files, or below it. The start is moved into the past accordingly.
                let time = if slow { SLOW_FILE * 10 } else { SLOW_FILE / 2 };
                clock.time.set(clock.time.get() + time);
                let began = clock.began.get();
                clock.began.set(began.checked_sub(time).unwrap_or(began));
                assert_eq!(clock.file_done(), slow && file == DECIDE_FILES);
            }
        }
    }
}
