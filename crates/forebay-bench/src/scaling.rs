//! Explains how the rate of the loader grows with its decode threads.
//!
//! A thread decodes `on a core / CPU time of an image` images per second, so its rate changes only if one of the two does: the
//! time on a core is lost to waits, and the CPU time of an image rises where threads share a core, caches or memory. Small loops
//! of arithmetic and of reads from memory on the same numbers of threads show what this machine gives to any program.

use std::collections::BTreeSet;
use std::fs;
use std::hint::black_box;
use std::sync::Barrier;
use std::time::Instant;

use forebay_loader::Stats;

/// An efficiency from here on needs no explanation.
const GOOD: f64 = 0.95;

/// One number of threads.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct Point {
    pub(crate) threads: usize,
    /// Median rate.
    pub(crate) images_per_s: f64,
    /// Counters of the last run.
    pub(crate) stats: Stats,
    pub(crate) machine: Machine,
}

/// The rate of each thread beside that of one thread alone, 0 to 1.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(crate) struct Machine {
    arithmetic: f64,
    memory: f64,
}

/// The time of a decode thread as fractions, and the CPU time of an image.
struct Times {
    on_core: f64,
    starved: f64,
    blocked: f64,
    /// Ready to run without a core.
    no_core: f64,
    /// At work, neither on a core nor ready to run: waits for a lock or for a page of memory.
    held: f64,
    cpu_us: f64,
}

impl Point {
    fn times(&self) -> Times {
        let stats = &self.stats;
        let all = (self.threads as f64 * stats.wall_s).max(f64::MIN_POSITIVE);
        let busy = stats.decode.busy_s + stats.transform.busy_s;
        Times {
            on_core: stats.decode_cpu_s / all,
            starved: stats.decode.starved_s / all,
            blocked: stats.decode.blocked_s / all,
            no_core: stats.decode_delay_s / all,
            held: (busy - stats.decode_cpu_s - stats.decode_delay_s).max(0.0) / all,
            cpu_us: 1e6 * stats.decode_cpu_s / stats.images.max(1) as f64,
        }
    }

    /// Returns the rate of a thread divided by that of a thread of `first`.
    pub(crate) fn efficiency(&self, first: &Point) -> f64 {
        let each = |point: &Point| point.images_per_s / point.threads.max(1) as f64;
        each(self) / each(first).max(f64::MIN_POSITIVE)
    }

    /// Returns the largest loss of a thread's rate since `first`, in words.
    fn loss(&self, first: &Point, cores: Option<usize>) -> String {
        let (now, then) = (self.times(), first.times());
        let dearer = 1.0 - then.cpu_us / now.cpu_us.max(f64::MIN_POSITIVE);
        let waits = [
            (now.starved - then.starved, "waits for records"),
            (
                now.blocked - then.blocked,
                "waits for the consumer, or for memory for batches",
            ),
            (
                now.no_core - then.no_core,
                "waits for a core that other threads use",
            ),
            (now.held - then.held, "waits for locks or pages of memory"),
        ];
        let (lost, wait) = waits
            .into_iter()
            .max_by(|a, b| a.0.total_cmp(&b.0))
            .unwrap_or((0.0, ""));
        let percent = |part: f64| format!("{:.0} %", 100.0 * part);
        if lost <= 0.0 && dearer <= 0.0 {
            return "no counter shows why: the runs differ".to_owned();
        }
        if lost >= dearer {
            return format!(
                "a thread spends {} more of its time in {wait}",
                percent(lost)
            );
        }
        let dearer = format!(
            "the CPU time of an image is {} higher: ",
            percent(now.cpu_us / then.cpu_us - 1.0)
        );
        let Machine { arithmetic, memory } = self.machine;
        let reason = match cores {
            Some(cores) if self.threads > cores => {
                format!("{} threads share {cores} physical cores", self.threads)
            }
            // Arithmetic shares nothing but the clock frequency and what the hypervisor gives.
            _ if 1.0 - arithmetic >= 0.5 * (1.0 - then.cpu_us / now.cpu_us) => format!(
                "mere arithmetic loses {} too, so the clock frequency or the hypervisor limits",
                percent(1.0 - arithmetic)
            ),
            _ => format!(
                "caches or memory, as mere arithmetic keeps {}; reads from memory alone keep {}",
                percent(arithmetic),
                percent(memory)
            ),
        };
        dearer + &reason
    }
}

/// Returns the table of one transform's points, and what limits those below [`GOOD`]. The first point is the reference.
pub(crate) fn lines(name: &str, points: &[Point], cores: Option<usize>) -> Vec<String> {
    let Some((first, others)) = points
        .split_first()
        .filter(|(_, others)| !others.is_empty())
    else {
        return Vec::new();
    };
    let known = cores.map_or_else(String::new, |cores| format!(", {cores} physical cores"));
    let mut lines = vec![
        format!("{name}: rate of a thread{known}"),
        "    threads  efficiency  on a core  no input  no room  no core  held  CPU us/image  arithmetic  memory reads".to_owned(),
    ];
    for point in points {
        let times = point.times();
        let percent = |part: f64| format!("{:.0}%", 100.0 * part);
        lines.push(format!(
            "    {:>7}  {:>10.2}  {:>9}  {:>8}  {:>7}  {:>7}  {:>4}  {:>12.0}  {:>10.2}  {:>12.2}",
            point.threads,
            point.efficiency(first),
            percent(times.on_core),
            percent(times.starved),
            percent(times.blocked),
            percent(times.no_core),
            percent(times.held),
            times.cpu_us,
            point.machine.arithmetic,
            point.machine.memory,
        ));
    }
    for point in others.iter().filter(|point| point.efficiency(first) < GOOD) {
        lines.push(format!(
            "    {} threads: {}",
            point.threads,
            point.loss(first, cores)
        ));
    }
    lines
}

/// Returns the number of physical cores that this process may use; `None` if the system does not say.
pub(crate) fn physical_cores() -> Option<usize> {
    let status = fs::read_to_string("/proc/self/status").ok()?;
    let list = status
        .lines()
        .find_map(|line| line.strip_prefix("Cpus_allowed_list:"))?;
    let mut cores = BTreeSet::new();
    for range in list.trim().split(',') {
        let (first, last) = range.split_once('-').unwrap_or((range, range));
        for cpu in first.parse::<usize>().ok()?..=last.parse().ok()? {
            let siblings = format!("/sys/devices/system/cpu/cpu{cpu}/topology/core_cpus_list");
            cores.insert(fs::read_to_string(siblings).ok()?);
        }
    }
    Some(cores.len())
}

/// Bytes that a thread reads from memory: more than its share of most last-level caches.
const READ: usize = 64 << 20;
/// Bytes that all threads may read together.
const READ_BY_ALL: usize = 1 << 30;

/// Measures what the machine gives to each of these numbers of threads.
pub(crate) fn machine(threads: &[usize]) -> Vec<Machine> {
    let most = threads.iter().copied().max().unwrap_or(1).max(1);
    let words = (READ_BY_ALL / most).min(READ) / size_of::<u64>();
    let memory: Vec<Vec<u64>> = (0..most).map(|_| vec![1; words]).collect();
    let alone = [
        pace(1, |_| arithmetic()),
        pace(1, |thread| read(&memory[thread])),
    ];
    let one = |&threads: &usize| Machine {
        arithmetic: pace(threads, |_| arithmetic()) / alone[0],
        memory: pace(threads, |thread| read(&memory[thread])) / alone[1],
    };
    threads.iter().map(one).collect()
}

/// Returns how often per second each of the threads does the work, all at the same time; the best of three times.
fn pace(threads: usize, work: impl Fn(usize) + Sync) -> f64 {
    let once = |_| {
        let barrier = Barrier::new(threads);
        let timed = |thread| {
            barrier.wait();
            let start = Instant::now();
            work(thread);
            start.elapsed().as_secs_f64()
        };
        std::thread::scope(|scope| {
            let timed = &timed;
            let running: Vec<_> = (0..threads)
                .map(|thread| scope.spawn(move || timed(thread)))
                .collect();
            let times = running.into_iter().filter_map(|thread| thread.join().ok());
            times.sum::<f64>() / threads.max(1) as f64
        })
    };
    let best = (0..3).map(once).fold(f64::INFINITY, f64::min);
    1.0 / best.max(1e-9)
}

fn arithmetic() {
    let mut state = black_box(1u64);
    for _ in 0..20_000_000 {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
    }
    black_box(state);
}

fn read(memory: &[u64]) {
    black_box(
        memory
            .iter()
            .fold(0u64, |sum, word| sum.wrapping_add(*word)),
    );
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A run of one second in which each thread is on a core for this fraction, and decodes an image in so many microseconds.
    fn point(threads: usize, on_core: f64, cpu_us: f64) -> Point {
        let images = threads as f64 * on_core * 1e6 / cpu_us;
        let mut stats = Stats::default();
        stats.wall_s = 1.0;
        stats.images = images as u64;
        stats.decode_cpu_s = on_core * threads as f64;
        stats.decode.busy_s = stats.decode_cpu_s;
        Point {
            threads,
            images_per_s: images,
            stats,
            machine: Machine {
                arithmetic: 1.0,
                memory: 0.5,
            },
        }
    }

    #[test]
    fn the_largest_loss_is_named() {
        let first = point(1, 1.0, 400.0);
        let loss = |point: &Point| point.loss(&first, Some(4));

        let mut waiting = point(4, 0.7, 410.0);
        waiting.stats.decode.starved_s = 0.3 * 4.0;
        assert!(
            loss(&waiting).contains("30 % more of its time in waits for records"),
            "{}",
            loss(&waiting)
        );
        let mut delayed = point(4, 0.7, 410.0);
        delayed.stats.decode_delay_s = 0.25 * 4.0;
        assert!(
            loss(&delayed).contains("a core that other threads use"),
            "{}",
            loss(&delayed)
        );
        let mut locked = point(4, 0.7, 410.0);
        locked.stats.decode.busy_s = 4.0;
        assert!(loss(&locked).contains("locks"), "{}", loss(&locked));

        let shared = point(8, 1.0, 600.0);
        assert!(
            loss(&shared).contains("50 % higher: 8 threads share 4 physical cores"),
            "{}",
            loss(&shared)
        );
        let mut dearer = point(4, 1.0, 500.0);
        assert!(
            loss(&dearer).contains("caches or memory"),
            "{}",
            loss(&dearer)
        );
        dearer.machine.arithmetic = 0.85;
        assert!(
            loss(&dearer).contains("clock frequency"),
            "{}",
            loss(&dearer)
        );
        assert!(loss(&first).contains("no counter"), "{}", loss(&first));
    }

    #[test]
    fn only_low_efficiencies_are_explained() {
        let points = [
            point(1, 1.0, 400.0),
            point(2, 1.0, 410.0),
            point(4, 1.0, 500.0),
        ];
        let lines = lines("train", &points, Some(4));
        assert_eq!(lines.len(), 2 + 3 + 1, "{lines:?}");
        assert!(lines[5].starts_with("    4 threads:"), "{lines:?}");
        assert!(super::lines("train", &points[..1], None).is_empty());
    }

    #[test]
    fn a_machine_gives_some_of_a_lone_thread_to_each() {
        for machine in machine(&[1, 2]) {
            assert!(
                machine.arithmetic > 0.0 && machine.memory > 0.0,
                "{machine:?}"
            );
        }
        assert!(physical_cores().is_none_or(|cores| cores > 0));
    }
}
