//! Resource usage of this process, as the operating system reports it.

use std::time::{Duration, SystemTime, UNIX_EPOCH};

/// Resource usage of this process. Values that the system does not report are zero.
#[derive(Debug, Clone, Copy, PartialEq, Default)]
pub(crate) struct Process {
    /// CPU time in seconds, user and system.
    pub(crate) cpu_s: f64,
    pub(crate) resident_bytes: u64,
    pub(crate) virtual_bytes: u64,
    pub(crate) threads: u64,
    pub(crate) open_files: u64,
    pub(crate) max_files: u64,
    /// Seconds since 1970.
    pub(crate) started_s: f64,
}

impl Process {
    /// Reads the current values; `None` on systems without `/proc`.
    pub(crate) fn read() -> Option<Process> {
        let stat = std::fs::read_to_string("/proc/self/stat").ok()?;
        let tick_s = 1.0 / rustix::param::clock_ticks_per_second().max(1) as f64;
        let mut process = parse(&stat, tick_s, rustix::param::page_size() as u64)?;
        let boot = std::fs::read_to_string("/proc/stat").ok().and_then(|stat| {
            let line = stat.lines().find_map(|line| line.strip_prefix("btime "))?;
            line.trim().parse::<f64>().ok()
        });
        process.started_s += boot.unwrap_or(0.0);
        // Listing the directory opens one descriptor itself.
        let open = std::fs::read_dir("/proc/self/fd").map(|dir| dir.count() as u64);
        process.open_files = open.unwrap_or(0).saturating_sub(1);
        let limit = rustix::process::getrlimit(rustix::process::Resource::Nofile);
        process.max_files = limit.current.unwrap_or(u64::MAX);
        Some(process)
    }
}

/// Parses `/proc/PID/stat` (see proc(5)). `started_s` is relative to the system's boot.
fn parse(stat: &str, tick_s: f64, page_bytes: u64) -> Option<Process> {
    // The process name before this may contain spaces and parentheses.
    let rest = stat.get(stat.rfind(')')? + 1..)?;
    let fields: Vec<&str> = rest.split_ascii_whitespace().collect();
    let number = |field: usize| fields.get(field - 3)?.parse::<u64>().ok();
    Some(Process {
        cpu_s: (number(14)? + number(15)?) as f64 * tick_s,
        threads: number(20)?,
        started_s: number(22)? as f64 * tick_s,
        virtual_bytes: number(23)?,
        resident_bytes: number(24)?.saturating_mul(page_bytes),
        ..Process::default()
    })
}

/// Seconds since 1970.
pub(crate) fn unix_s(time: SystemTime) -> f64 {
    let since = time.duration_since(UNIX_EPOCH);
    since.unwrap_or(Duration::ZERO).as_secs_f64()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_do_not_shift_the_fields() {
        let stat = "77 (a) b (c) S 1 77 77 0 -1 4194560 9 0 0 0 250 50 0 0 20 0 12 0 1000 4096000 300 18446744073709551615";
        let process = parse(stat, 0.01, 4096).unwrap();
        assert_eq!((process.cpu_s, process.threads), (3.0, 12));
        assert_eq!(
            (process.virtual_bytes, process.resident_bytes),
            (4_096_000, 300 * 4096)
        );
        assert_eq!(process.started_s, 10.0);
        assert_eq!(parse("77 (a) S 1", 0.01, 4096), None);
        assert_eq!(parse("", 0.01, 4096), None);
    }

    #[test]
    #[cfg(target_os = "linux")]
    fn this_process_is_known() {
        let process = Process::read().unwrap();
        assert!(process.resident_bytes > 0 && process.threads > 0 && process.open_files > 2);
        assert!(process.max_files >= process.open_files);
        let age = unix_s(SystemTime::now()) - process.started_s;
        assert!((-5.0..1e6).contains(&age), "{age}");
    }
}
