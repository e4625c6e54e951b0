//! The time of a thread by activity.

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

use rustix::time::{ClockId, clock_gettime};

/// CPU time of several threads together.
#[derive(Debug, Default)]
pub(crate) struct CpuTime(AtomicU64);

impl CpuTime {
    /// Adds the CPU time of this thread since the last call, which `noted` stores.
    pub(crate) fn note(&self, noted: &mut Duration) {
        let now = cpu_time(ClockId::ThreadCPUTime);
        let more = now.saturating_sub(*noted);
        *noted = now;
        let nanoseconds = u64::try_from(more.as_nanos()).unwrap_or(u64::MAX);
        self.0.fetch_add(nanoseconds, Ordering::Relaxed);
    }

    pub(crate) fn read(&self) -> Duration {
        Duration::from_nanos(self.0.load(Ordering::Relaxed))
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

    /// Returns all time so far.
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
    fn threads_without_work_take_no_core() {
        let (cpu, mut noted) = (CpuTime::default(), Duration::ZERO);
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
