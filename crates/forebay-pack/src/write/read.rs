//! Opens and prefetches image files in advance if the disk is slow.

use super::source::Opened;
use crate::open_files::AHEAD_FILES;
use forebay_formats::Reason;
use forebay_formats::images::Refusal;
use std::cell::Cell;
use std::collections::VecDeque;
use std::time::{Duration, Instant};

/// A file that takes longer than this was not read from the page cache, but from a disk or a network.
pub(super) const SLOW_FILE: Duration = Duration::from_micros(100);
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

/// Opens entries before they are read, and tells the kernel that they will be needed. Files in the
/// page cache do not benefit from this, so it begins only after files were slow.
#[derive(Debug, Default)]
pub(super) struct ReadAhead<'a> {
    open: VecDeque<Result<Opened<'a>, Refusal>>,
    ahead: bool,
}

impl<'a> ReadAhead<'a> {
    /// Begins to open files in advance. This cannot be undone, because it hides the slowness that is its condition.
    pub(super) fn begin(&mut self) {
        self.ahead = true;
    }

    /// Returns the next file, and opens further files in advance if enabled. `next` opens the file after the last opened one,
    /// or returns `None` if there is none now. Each call returns one file, in the order of opening.
    pub(super) fn take(
        &mut self,
        mut next: impl FnMut() -> Option<Result<Opened<'a>, Refusal>>,
    ) -> Result<Opened<'a>, Refusal> {
        if self.ahead {
            while self.open.len() < AHEAD_FILES {
                let Some(file) = next() else { break };
                if let Ok(entry) = &file {
                    entry.will_need();
                }
                self.open.push_back(file);
            }
        }
        match self.open.pop_front().or_else(next) {
            Some(file) => file,
            None => Err((Reason::Vanished, "there is no further file".into())),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use forebay_formats::images::OpenFile;

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
    fn each_file_is_returned_once_and_in_order() {
        let dir = tempfile::tempdir().unwrap();
        std::fs::write(dir.path().join("file"), b"x").unwrap();
        let gone = |_| (Reason::Vanished, String::new());
        for ahead in [false, true] {
            let mut reader = ReadAhead {
                ahead,
                ..ReadAhead::default()
            };
            let mut names = (0..40).map(|n| if n % 3 == 0 { "missing" } else { "file" });
            let mut next = || {
                let name = names.next()?;
                let file = std::fs::File::open(dir.path().join(name)).map_err(gone);
                Some(file.map(|file| Opened::from(OpenFile::from(file))))
            };
            for number in 0..40 {
                assert_eq!(reader.take(&mut next).is_err(), number % 3 == 0, "{number}");
            }
            assert!(reader.take(&mut next).is_err());
        }
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
