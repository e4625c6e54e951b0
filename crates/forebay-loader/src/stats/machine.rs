//! CPU time of the machine and of the control group, to find out what uses the cores that decode threads lack.

use std::fmt;
use std::fs;
use std::path::Path;
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

use super::Stats;

/// CPU seconds since the system or the group started. Values that the system does not report are 0.
#[derive(Debug, Clone, Copy, PartialEq, Default)]
pub struct MachineCpu {
    /// CPU time of all processes of the machine, including this one.
    pub busy_s: f64,
    /// CPU time that the hypervisor gave to other machines while threads here were runnable (steal).
    pub stolen_s: f64,
    /// CPU time that the limit of this process's control group withheld from its threads.
    pub throttled_s: f64,
}

/// Reading `/proc/stat` takes a millisecond on a machine with many cores, and each stream of a server reads it.
const FRESH: Duration = Duration::from_millis(50);

impl MachineCpu {
    /// Reads the counters, at most twenty times a second.
    #[must_use]
    pub fn read() -> MachineCpu {
        static LAST: Mutex<Option<(Instant, MachineCpu)>> = Mutex::new(None);
        let mut last = LAST.lock().unwrap_or_else(PoisonError::into_inner);
        match *last {
            Some((at, cpu)) if at.elapsed() < FRESH => cpu,
            _ => {
                let cpu = MachineCpu::now();
                *last = Some((Instant::now(), cpu));
                cpu
            }
        }
    }

    fn now() -> MachineCpu {
        let text = |path: &Path| fs::read_to_string(path).unwrap_or_default();
        let ticks = rustix::param::clock_ticks_per_second().max(1) as f64;
        let (busy_s, stolen_s) = machine(&text(Path::new("/proc/stat")), ticks);
        let groups = text(Path::new("/proc/self/cgroup"));
        let throttled = group_files(&groups)
            .iter()
            .find_map(|file| throttled(&text(Path::new(file))));
        MachineCpu {
            busy_s,
            stolen_s,
            throttled_s: throttled.unwrap_or(0.0),
        }
    }

    /// Returns the difference to an earlier reading.
    #[must_use]
    pub fn since(&self, earlier: &MachineCpu) -> MachineCpu {
        MachineCpu {
            busy_s: (self.busy_s - earlier.busy_s).max(0.0),
            stolen_s: (self.stolen_s - earlier.stolen_s).max(0.0),
            throttled_s: (self.throttled_s - earlier.throttled_s).max(0.0),
        }
    }
}

/// Decode threads that got a smaller fraction of the cores that they could have used were limited from
/// outside.
const CORES_GOT: f64 = 0.75;
/// A process that used a larger fraction of the cores was limited by its own use.
const CORES_USED: f64 = 0.85;
/// Minimum fraction of the missing cores that must have been taken to name the taker.
const MOST: f64 = 0.5;

/// Cores that decode threads could not use.
#[derive(Debug, Clone, Copy, PartialEq)]
#[non_exhaustive]
pub struct CoresElsewhere {
    /// Average number of cores that decode threads got.
    pub got: f64,
    /// Number of cores that they could have used: they had enough work for this many at any time.
    pub wanted: f64,
    /// The user of most of the missing cores, and their number, if the system's counters show it.
    pub taker: Option<(CpuTaker, f64)>,
}

/// Users of the cores that decode threads lack.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub enum CpuTaker {
    /// Other processes of this machine.
    Processes,
    /// Other machines of the same hypervisor.
    Hypervisor,
    /// The CPU limit of this process's control group.
    Limit,
}

impl CoresElsewhere {
    pub(super) fn of(stats: &Stats, decode_work_s: f64) -> Option<CoresElsewhere> {
        if stats.cores == 0 || stats.wall_s <= 0.0 || stats.decode_cpu_s <= 0.0 {
            return None;
        }
        let cores = stats.cores as f64;
        let wanted = (decode_work_s / stats.wall_s).min(cores);
        let got = stats.decode_cpu_s / stats.wall_s;
        let process = stats.process_cpu_s / stats.wall_s;
        let machine = &stats.machine;
        // Threads that sleep do not lack a core.
        let delay = (stats.decode_delay_s + machine.stolen_s) / stats.wall_s;
        let is_delayed = stats.decode_delay_s == 0.0 || delay >= MOST * (wanted - got);
        let is_kept = got < CORES_GOT * wanted && process < CORES_USED * cores && is_delayed;
        let takers = [
            (CpuTaker::Processes, machine.busy_s - stats.process_cpu_s),
            (CpuTaker::Hypervisor, machine.stolen_s),
            (CpuTaker::Limit, machine.throttled_s),
        ];
        let taker = takers
            .map(|(taker, seconds)| (taker, seconds / stats.wall_s))
            .into_iter()
            .max_by(|a, b| a.1.total_cmp(&b.1))
            .filter(|&(_, cores)| cores.is_finite() && cores >= MOST * (wanted - got));
        is_kept.then_some(CoresElsewhere { got, wanted, taker })
    }
}

impl fmt::Display for CoresElsewhere {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "decode threads got {:.1} of {:.1} cores: ",
            self.got, self.wanted
        )?;
        match self.taker {
            Some((CpuTaker::Processes, cores)) => write!(
                f,
                "other processes of this machine used {cores:.1}; stop them, or decode on another machine with forebay serve"
            ),
            Some((CpuTaker::Hypervisor, cores)) => write!(
                f,
                "the hypervisor gave {cores:.1} to other machines; move to a machine with cores of its own, or decode on another \
                 machine with forebay serve"
            ),
            Some((CpuTaker::Limit, cores)) => write!(
                f,
                "the CPU limit of the container took {cores:.1}; raise it, or decode on another machine with forebay serve"
            ),
            None => write!(
                f,
                "other processes use the CPU, or a CPU limit applies; stop those processes, raise the limit, or decode on another \
                 machine with forebay serve"
            ),
        }
    }
}

/// Parses the first line of `/proc/stat` (see proc(5)): seconds of work and stolen seconds.
fn machine(stat: &str, ticks_per_s: f64) -> (f64, f64) {
    let line = stat.lines().find_map(|line| line.strip_prefix("cpu "));
    let fields: Vec<f64> = line
        .unwrap_or_default()
        .split_ascii_whitespace()
        .map_while(|field| Some(field.parse::<u64>().ok()? as f64 / ticks_per_s))
        .collect();
    let field = |at: usize| fields.get(at).copied().unwrap_or(0.0);
    // user, nice, system, idle, iowait, irq, softirq, steal; guests are part of user.
    (
        field(0) + field(1) + field(2) + field(5) + field(6),
        field(7),
    )
}

/// Returns the files that may count throttling: of the process's group, then of the root of the mount, which is
/// the group of a container.
fn group_files(groups: &str) -> Vec<String> {
    let mut files = Vec::new();
    for line in groups.lines() {
        let mut parts = line.splitn(3, ':').skip(1);
        let (Some(controllers), Some(path)) = (parts.next(), parts.next()) else {
            continue;
        };
        let root = match controllers {
            "" => "/sys/fs/cgroup",
            all if all.split(',').any(|one| one == "cpu") => "/sys/fs/cgroup/cpu",
            _ => continue,
        };
        let path = path.trim_end_matches('/');
        files.push(format!("{root}{path}/cpu.stat"));
        files.push(format!("{root}/cpu.stat"));
    }
    files
}

/// Parses `cpu.stat`, of version 2 or 1.
fn throttled(stat: &str) -> Option<f64> {
    stat.lines().find_map(|line| {
        let (name, value) = line.split_once(' ')?;
        let per_s = match name {
            "throttled_usec" => 1e6,
            "throttled_time" => 1e9,
            _ => return None,
        };
        Some(value.trim().parse::<u64>().ok()? as f64 / per_s)
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_of_the_kernel_are_read() {
        let stat = "cpu  100 20 30 9000 70 1 2 40 5 0\ncpu0 1 1 1 1 1 1 1 1 1 1\n";
        assert_eq!(machine(stat, 100.0), (1.53, 0.4));
        assert_eq!(machine("cpu  100 x", 100.0), (1.0, 0.0));
        assert_eq!(machine("", 100.0), (0.0, 0.0));
        assert_eq!(
            throttled("nr_periods 4\nthrottled_usec 2500000\n"),
            Some(2.5)
        );
        assert_eq!(throttled("throttled_time 2500000000\n"), Some(2.5));
        assert_eq!(throttled("usage_usec 1\n"), None);
        assert_eq!(throttled("throttled_usec -1\n"), None);
    }

    #[test]
    fn groups_of_both_versions_are_found() {
        assert_eq!(
            group_files("0::/a/b\n"),
            ["/sys/fs/cgroup/a/b/cpu.stat", "/sys/fs/cgroup/cpu.stat"]
        );
        assert_eq!(
            group_files("3:cpuset:/x\n2:cpu,cpuacct:/\n"),
            ["/sys/fs/cgroup/cpu/cpu.stat", "/sys/fs/cgroup/cpu/cpu.stat"]
        );
        assert!(group_files("odd\n1:memory:/\n").is_empty());
    }

    #[test]
    #[cfg(target_os = "linux")]
    fn the_machine_counters_include_this_process() {
        let before = MachineCpu::now();
        let own = super::super::process_cpu_time();
        while super::super::process_cpu_time() < own + Duration::from_millis(60) {}
        let did = MachineCpu::now().since(&before);
        // One tick is 10 ms. A sandbox may report zeros.
        assert!(before.busy_s == 0.0 || did.busy_s >= 0.03, "{did:?}");
    }
}
