//! Reading image files ahead of time where the disk is slow.

use super::source::Opened;
use crate::open_files::AHEAD_FILES;
use forebay_formats::Reason;
use forebay_formats::images::Refusal;
use std::cell::Cell;
use std::collections::VecDeque;
use std::time::{Duration, Instant};

/// A file that takes this long comes from a disk or a network, not from the page cache.
pub(super) const SLOW_FILE: Duration = Duration::from_micros(100);
/// So many files decide whether they are slow.
const DECIDE_FILES: u32 = 32;

/// How long files take to open and to read.
#[derive(Debug)]
pub(super) struct Clock {
    files: Cell<u32>,
    time: Cell<Duration>,
    /// When the first of these files began, and the time that the thread had been on a core or queued for one by then.
    began: Cell<Instant>,
    busy: Cell<Duration>,
}

impl Clock {
    /// For the thread that calls it.
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

    /// Counts the time since `begin`.
    pub(super) fn end(&self, begin: Instant) {
        self.time.set(self.time.get() + begin.elapsed());
    }

    /// Ends a file. Tells each time that enough files were slow: not because the thread had to share its core with
    /// others, where more threads would not help, but because it waited.
    pub(super) fn file_done(&self) -> bool {
        self.files.set(self.files.get() + 1);
        if self.files.get() < DECIDE_FILES {
            return false;
        }
        let now = busy_time();
        let busy = now.saturating_sub(self.busy.replace(now));
        self.files.set(0);
        let began = self.began.replace(Instant::now());
        // It waited while it was not busy, but for files no longer than it took to open and to read them: what it
        // makes of them and writes may be most of the work.
        let waited = began.elapsed().saturating_sub(busy);
        waited.min(self.time.replace(Duration::ZERO)) > SLOW_FILE * DECIDE_FILES
    }
}

/// How long this thread has been on a core or queued for one; zero where the system does not say.
fn busy_time() -> Duration {
    let text = std::fs::read_to_string("/proc/thread-self/schedstat").unwrap_or_default();
    let nanos = text
        .split_ascii_whitespace()
        .take(2)
        .map_while(|n| n.parse::<u64>().ok());
    Duration::from_nanos(nanos.sum())
}

/// Opens entries some way ahead of their reading and tells the kernel that they will be needed. What comes from the
/// page cache gains nothing by that, so it is done only once files were slow.
#[derive(Debug, Default)]
pub(super) struct ReadAhead<'a> {
    open: VecDeque<Result<Opened<'a>, Refusal>>,
    ahead: bool,
}

impl<'a> ReadAhead<'a> {
    /// Looks ahead from here on: it hides the slowness that it is there for, so there is no way back.
    pub(super) fn begin(&mut self) {
        self.ahead = true;
    }

    /// Opens the next file and, if it pays, some more. `next` opens the file after the last one it opened; none
    /// if there is none now. One file is taken each time, in that order.
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
    fn waiting_for_files_is_seen_however_much_is_made_of_them() {
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
    fn ahead_or_not_each_file_comes_once_and_in_order() {
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
                // Far above what counts as slow, or below. What was waited for lies in the past as well.
                let time = if slow { SLOW_FILE * 10 } else { SLOW_FILE / 2 };
                clock.time.set(clock.time.get() + time);
                let began = clock.began.get();
                clock.began.set(began.checked_sub(time).unwrap_or(began));
                assert_eq!(clock.file_done(), slow && file == DECIDE_FILES);
            }
        }
    }
}
