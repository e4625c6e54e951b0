//! The time of a thread by activity.

use std::fs::File;
use std::os::unix::fs::FileExt;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

use rustix::time::{ClockId, clock_gettime};

/// Total CPU time of several threads, and the time that they waited for a core.
#[derive(Debug, Default)]
pub(crate) struct CpuTime {
    used_ns: AtomicU64,
    delayed_ns: AtomicU64,
}

/// The time of one thread that is already counted in [`CpuTime`].
pub(crate) struct ThreadTime {
    used: Duration,
    delayed_ns: u64,
    /// `/proc/thread-self/schedstat`; `None` on systems without it.
    schedstat: Option<File>,
}

impl ThreadTime {
    /// Starts to count the time of the calling thread.
    pub(crate) fn of_this_thread() -> Self {
        ThreadTime {
            used: Duration::ZERO,
            delayed_ns: 0,
            schedstat: File::open("/proc/thread-self/schedstat").ok(),
        }
    }

    /// Returns the time in nanoseconds that the thread was ready to run without a core; 0 if unknown.
    fn delay(&self) -> u64 {
        let mut text = [0; 64];
        let read = self
            .schedstat
            .as_ref()
            .map(|file| file.read_at(&mut text, 0));
        let Some(Ok(len)) = read else {
            return 0;
        };
        // Fields: time on a core, time in a run queue, number of time slices.
        let text = std::str::from_utf8(&text[..len]).unwrap_or_default();
        let field = text.split_ascii_whitespace().nth(1);
        field.and_then(|field| field.parse().ok()).unwrap_or(0)
    }
}

impl CpuTime {
    /// Adds the time of the calling thread since the last call, and stores it in `noted`.
    pub(crate) fn note(&self, noted: &mut ThreadTime) {
        let now = cpu_time(ClockId::ThreadCPUTime);
        let more = now.saturating_sub(noted.used);
        noted.used = now;
        let nanoseconds = u64::try_from(more.as_nanos()).unwrap_or(u64::MAX);
        self.used_ns.fetch_add(nanoseconds, Ordering::Relaxed);
        let delay = noted.delay();
        let more = delay.saturating_sub(noted.delayed_ns);
        noted.delayed_ns = delay;
        self.delayed_ns.fetch_add(more, Ordering::Relaxed);
    }

    pub(crate) fn read(&self) -> Duration {
        Duration::from_nanos(self.used_ns.load(Ordering::Relaxed))
    }

    /// Returns the time that the threads were ready to run without a core; zero if unknown.
    pub(crate) fn delay(&self) -> Duration {
        Duration::from_nanos(self.delayed_ns.load(Ordering::Relaxed))
    }
}

/// Returns the CPU time of all threads of this process.
pub(crate) fn process_cpu_time() -> Duration {
    cpu_time(ClockId::ProcessCPUTime)
}

fn cpu_time(clock: ClockId) -> Duration {
    Duration::try_from(clock_gettime(clock)).unwrap_or_default()
}

/// Activity of a thread.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Activity {
    /// Working.
    Busy,
    /// Waiting for input.
    Starved,
    /// Waiting for room for its output.
    Blocked,
}

/// Time by activity.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(crate) struct Times {
    pub(crate) busy: Duration,
    pub(crate) starved: Duration,
    pub(crate) blocked: Duration,
}

impl Times {
    pub(crate) fn add(&mut self, other: Times) {
        self.busy += other.busy;
        self.starved += other.starved;
        self.blocked += other.blocked;
    }

    fn charge(&mut self, activity: Activity, time: Duration) {
        match activity {
            Activity::Busy => self.busy += time,
            Activity::Starved => self.starved += time,
            Activity::Blocked => self.blocked += time,
        }
    }
}

/// The clock of one thread. That thread writes it, and any thread can read it at any moment; the
/// current activity counts up to the time of the read.
#[derive(Debug)]
pub(crate) struct Clock(Mutex<Ledger>);

#[derive(Debug)]
struct Ledger {
    times: Times,
    now: Activity,
    since: Instant,
}

impl Clock {
    pub(crate) fn new(now: Activity) -> Self {
        Clock(Mutex::new(Ledger {
            times: Times::default(),
            now,
            since: Instant::now(),
        }))
    }

    /// Switches to `activity`.
    pub(crate) fn switch(&self, activity: Activity) {
        let mut ledger = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        if ledger.now == activity {
            return;
        }
        let at = Instant::now();
        let time = at - ledger.since;
        let before = ledger.now;
        ledger.times.charge(before, time);
        ledger.now = activity;
        ledger.since = at;
    }

    /// Returns the times up to now.
    pub(crate) fn read(&self) -> Times {
        let ledger = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let mut times = ledger.times;
        times.charge(ledger.now, ledger.since.elapsed());
        times
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sleeping_threads_use_no_cpu_time() {
        let (cpu, mut noted) = (CpuTime::default(), ThreadTime::of_this_thread());
        cpu.note(&mut noted);
        let before = cpu.read();
        std::thread::park_timeout(Duration::from_millis(30));
        cpu.note(&mut noted);
        let idle = cpu.read() - before;
        while cpu.read() < before + idle + Duration::from_millis(5) {
            cpu.note(&mut noted);
        }
        assert!(idle < Duration::from_millis(30), "{idle:?}");
        assert!(process_cpu_time() >= cpu.read());
        // Sleeping does not count as waiting for a core, whatever else runs here.
        assert!(cpu.delay() < Duration::from_secs(60));
    }

    #[test]
    fn all_time_is_accounted_for() {
        let begin = Instant::now();
        let clock = Clock::new(Activity::Starved);
        for activity in [Activity::Busy, Activity::Blocked, Activity::Busy] {
            clock.switch(activity);
            let until = Instant::now() + Duration::from_millis(2);
            while Instant::now() < until {}
        }
        let times = clock.read();
        let sum = times.busy + times.starved + times.blocked;
        assert!(sum <= begin.elapsed() && sum >= Duration::from_millis(6));
        assert!(
            times.busy >= Duration::from_millis(4),
            "what goes on counts"
        );
        assert!(times.blocked >= Duration::from_millis(2));
    }
}
