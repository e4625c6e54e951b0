//! Requests of a device over time, from `/proc/diskstats`.

use std::fs;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use crate::cold::Mount;
use crate::{Error, Result};

/// Time between two samples of the counters.
const INTERVAL: Duration = Duration::from_millis(100);
const SECTOR: f64 = 512.0;

/// Counters of a device at one time.
#[derive(Debug, Clone, Copy, Default, PartialEq)]
struct Counters {
    reads: u64,
    sectors: u64,
    written_sectors: u64,
    /// Sum of the times of all reads, in milliseconds.
    read_ms: u64,
    /// Sum of the times of all requests in milliseconds, including those in flight.
    queue_ms: u64,
}

/// Requests of a device in one interval.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(super) struct Interval {
    /// End of the interval, in seconds since the start.
    pub(super) at: f64,
    pub(super) mb_per_s: f64,
    pub(super) requests_per_s: f64,
    /// Mean size of a request in KB; 0 without requests.
    pub(super) request_kb: f64,
    /// Mean time of a request in ms; 0 without requests.
    pub(super) wait_ms: f64,
    /// Mean number of requests in flight.
    pub(super) queue: f64,
    pub(super) written_mb_per_s: f64,
}

/// Returns whether the kernel counts requests of the device of a mount.
pub(super) fn is_counted(mount: &Mount) -> bool {
    look(mount.device).is_some()
}

/// Runs `work` and records the requests of the device of a mount meanwhile.
pub(super) fn watched<T>(
    mount: &Mount,
    work: impl FnOnce() -> Result<T>,
) -> Result<(T, Vec<Interval>)> {
    let Some(first) = look(mount.device) else {
        return Err(Error::from(format!(
            "{} on {} has no line in /proc/diskstats: its requests cannot be counted",
            mount.kind, mount.source
        )));
    };
    let ended = AtomicBool::new(false);
    let (begin, device) = (Instant::now(), mount.device);
    thread::scope(|scope| {
        let watcher = scope.spawn(|| {
            let (mut intervals, mut before, mut last) = (Vec::new(), first, 0.0);
            loop {
                let is_over = ended.load(Ordering::Acquire);
                if !is_over {
                    thread::sleep(INTERVAL);
                }
                let at = begin.elapsed().as_secs_f64();
                if let Some(now) = look(device)
                    && at > last
                {
                    intervals.push(between(before, now, last, at));
                    (before, last) = (now, at);
                }
                if is_over {
                    return intervals;
                }
            }
        });
        let done = work();
        ended.store(true, Ordering::Release);
        let intervals = watcher
            .join()
            .map_err(|_| "the thread that reads counters panicked")?;
        Ok((done?, intervals))
    })
}

fn between(before: Counters, now: Counters, from: f64, to: f64) -> Interval {
    let seconds = to - from;
    let reads = now.reads.saturating_sub(before.reads) as f64;
    let bytes = now.sectors.saturating_sub(before.sectors) as f64 * SECTOR;
    let written = now.written_sectors.saturating_sub(before.written_sectors) as f64 * SECTOR;
    let each = |whole: f64| if reads > 0.0 { whole / reads } else { 0.0 };
    Interval {
        at: to,
        mb_per_s: bytes / 1e6 / seconds,
        requests_per_s: reads / seconds,
        request_kb: each(bytes / 1e3),
        wait_ms: each(now.read_ms.saturating_sub(before.read_ms) as f64),
        queue: now.queue_ms.saturating_sub(before.queue_ms) as f64 / 1e3 / seconds,
        written_mb_per_s: written / 1e6 / seconds,
    }
}

fn look(device: (u32, u32)) -> Option<Counters> {
    counters(&fs::read_to_string("/proc/diskstats").ok()?, device)
}

/// Parses the line of a device: major, minor, name, reads, merged, sectors, ms, writes, merged, sectors, ms, in flight, ms, ms
/// of all.
fn counters(text: &str, device: (u32, u32)) -> Option<Counters> {
    text.lines().find_map(|line| {
        let mut fields = line.split_whitespace();
        let mut next = || fields.next();
        let own = (next()?.parse().ok()?, next()?.parse().ok()?) == device;
        let rest: Vec<u64> = fields
            .skip(1)
            .map_while(|field| field.parse().ok())
            .collect();
        (own && rest.len() >= 11).then(|| Counters {
            reads: rest[0],
            sectors: rest[2],
            written_sectors: rest[6],
            read_ms: rest[3],
            queue_ms: rest[10],
        })
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn diskstats_lines_are_parsed() {
        let text = "   8       0 sda 10 2 2048 30 5 0 80 9 0 40 39 0 0 0 0 0 0\n \
                    253       1 vda1 1 2 3 4 5 6 7 8 9 10 11\n  7 0 loop0 1 2\n";
        let sda = counters(text, (8, 0)).unwrap();
        assert_eq!(
            (
                sda.reads,
                sda.sectors,
                sda.written_sectors,
                sda.read_ms,
                sda.queue_ms
            ),
            (10, 2048, 80, 30, 39)
        );
        assert_eq!(counters(text, (253, 1)).unwrap().queue_ms, 11);
        assert_eq!(counters(text, (7, 0)), None, "a line without all fields");
        assert_eq!(counters(text, (9, 9)), None);
    }

    #[test]
    fn intervals_obey_littles_law() {
        let now = Counters {
            reads: 100,
            sectors: 20_000,
            written_sectors: 1000,
            read_ms: 500,
            queue_ms: 500,
        };
        let interval = between(Counters::default(), now, 1.0, 1.5);
        assert_eq!(interval.requests_per_s, 200.0);
        assert_eq!(interval.wait_ms, 5.0);
        assert!((interval.queue - interval.requests_per_s * interval.wait_ms / 1e3).abs() < 1e-9);
        assert!((interval.request_kb - 102.4).abs() < 1e-9);
        assert!((interval.mb_per_s - 20.48).abs() < 1e-9);
        assert!((interval.written_mb_per_s - 1.024).abs() < 1e-9);
    }
}
