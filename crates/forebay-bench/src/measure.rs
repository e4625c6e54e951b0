//! Runs alternatives in turn and records their results.
//!
//! The caller defines the work; this module defines the order of runs, medians and memory figures. Machines drift, so
//! alternatives take turns (A B C, A B C, ...) and are compared by their medians in the same report, never by figures of two
//! reports.

use std::collections::BTreeMap;
use std::path::Path;
use std::time::Instant;

use serde::Serialize;

use crate::Result;
use crate::cold::{Evictor, Footprint, Prober, Proof, Watch, summary};

/// The result of one run of one alternative.
#[derive(Debug, Clone, Copy)]
pub struct Measurement {
    /// Amount of work done, in the row's unit without "/s".
    pub amount: f64,
    /// Duration in seconds.
    pub seconds: f64,
}

impl Measurement {
    /// Measures the duration of `work`, which returns the amount that it did.
    ///
    /// # Errors
    /// The error of `work`.
    pub fn time(work: impl FnOnce() -> Result<f64>) -> Result<Measurement> {
        let start = Instant::now();
        let amount = work()?;
        Ok(Measurement {
            amount,
            seconds: start.elapsed().as_secs_f64(),
        })
    }
}

/// Results of one alternative.
#[derive(Debug, Clone, Serialize)]
pub struct Row {
    /// The name of the measurement.
    pub name: String,
    /// Unit of the rates, such as `MB/s`; 1 MB is 10^6 bytes.
    pub unit: &'static str,
    /// Rate of each run, in order.
    pub rates: Vec<f64>,
    /// Median of `rates`.
    pub median: f64,
    /// Median CPU seconds (user and system, all threads of this process) per unit of amount; absent if the work ran in another
    /// process.
    pub cpu_seconds_each: Option<f64>,
    /// Peak resident memory of this process during the runs, in MiB; absent if the work ran in another process or the system
    /// does not report it.
    pub peak_rss_mib: Option<f64>,
    /// Cache state of the warmest counted run; absent if caches do not matter.
    #[serde(flatten)]
    pub cache: Option<CacheState>,
    /// Further figures, by name.
    #[serde(flatten)]
    pub extra: BTreeMap<&'static str, f64>,
}

impl Row {
    /// Creates a row with rates, without figures of this process.
    pub fn new(name: impl Into<String>, unit: &'static str, rates: Vec<f64>) -> Row {
        Row {
            name: name.into(),
            unit,
            median: median(&rates),
            rates,
            cpu_seconds_each: None,
            peak_rss_mib: None,
            cache: None,
            extra: BTreeMap::new(),
        }
    }
}

/// The state of the caches for a row.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct CacheState {
    /// Fraction of the bytes that came from the storage; `None` if it is unknown.
    pub cold_share: Option<f64>,
    /// `cold`, `part cold (0.43)`, `warm`, `unknown: why`.
    pub cache: String,
    /// How the state was measured.
    pub proof: String,
}

impl From<&Proof> for CacheState {
    fn from(proof: &Proof) -> Self {
        Self {
            cold_share: proof.cold_share,
            cache: proof.word(),
            proof: proof.line(),
        }
    }
}

/// The bytes that a run delivered.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Delivered {
    /// All delivered bytes.
    pub bytes: u64,
    /// Bytes that came over the network; `None` if they are not counted.
    pub fetched: Option<u64>,
}

impl Delivered {
    /// Creates a count of bytes from local files.
    pub fn local(bytes: u64) -> Self {
        Self {
            bytes,
            fetched: None,
        }
    }
}

/// A table of alternatives that ran side by side.
#[derive(Debug, Clone, Serialize)]
pub struct BenchReport {
    /// The subject of the measurement.
    pub title: String,
    /// The alternatives; the first one is the baseline.
    pub rows: Vec<Row>,
    /// Notes that a reader needs to judge the figures.
    pub notes: Vec<String>,
}

impl BenchReport {
    /// Returns a row's median divided by the first row's; `None` for the first row and for other units.
    pub fn ratio(&self, row: usize) -> Option<f64> {
        let (first, this) = (self.rows.first()?, self.rows.get(row)?);
        (row > 0 && first.unit == this.unit && first.median > 0.0)
            .then(|| this.median / first.median)
    }
}

/// An alternative to run: its name, its unit, and whether it runs in this process.
pub struct Alternative<'a> {
    name: String,
    unit: &'static str,
    in_process: bool,
    run: Box<dyn FnMut() -> Result<Measurement> + 'a>,
    reads: Option<Reads<'a>>,
}

/// The bytes that an alternative reads, and how their caches are handled.
struct Reads<'a> {
    footprint: Footprint,
    evictor: Evictor,
    delivered: Box<dyn Fn(&Measurement) -> Delivered + 'a>,
    prober: Prober,
    proofs: Vec<Proof>,
}

impl<'a> Alternative<'a> {
    /// Creates an alternative that runs in this process, whose memory and CPU time are reported.
    pub fn here(
        name: impl Into<String>,
        unit: &'static str,
        run: impl FnMut() -> Result<Measurement> + 'a,
    ) -> Self {
        Alternative {
            name: name.into(),
            unit,
            in_process: true,
            run: Box::new(run),
            reads: None,
        }
    }

    /// Creates an alternative that runs in another process.
    pub fn elsewhere(
        name: impl Into<String>,
        unit: &'static str,
        run: impl FnMut() -> Result<Measurement> + 'a,
    ) -> Self {
        Alternative {
            in_process: false,
            ..Alternative::here(name, unit, run)
        }
    }

    /// Empties the caches of these bytes before each run, and reports the part of them that came from the storage. `delivered`
    /// returns how many bytes a run delivered.
    #[must_use]
    pub fn reading(
        mut self,
        footprint: Footprint,
        evictor: Evictor,
        delivered: impl Fn(&Measurement) -> Delivered + 'a,
    ) -> Self {
        self.reads = Some(Reads {
            footprint,
            evictor,
            delivered: Box::new(delivered),
            prober: Prober::default(),
            proofs: Vec::new(),
        });
        self
    }

    /// Runs the alternative once. Checking the caches before and after does not count as its CPU time.
    fn run(&mut self) -> Result<Run> {
        let watch = match &mut self.reads {
            Some(reads) => {
                reads.evictor.evict(&reads.footprint)?;
                let (files, way) = (&reads.footprint, reads.evictor.way());
                Some(Watch::begin_with(files, way, &mut reads.prober))
            }
            None => None,
        };
        reset_peak_rss();
        let before = cpu_seconds();
        let sample = (self.run)()?;
        let cpu_seconds = cpu_seconds() - before;
        let peak_rss_mib = peak_rss_mib();
        let proof = watch.zip(self.reads.as_ref()).map(|(watch, reads)| {
            let delivered = (reads.delivered)(&sample);
            watch.end(delivered.bytes, delivered.fetched)
        });
        Ok(Run {
            sample,
            cpu_seconds,
            peak_rss_mib,
            proof,
        })
    }
}

/// One run of an alternative.
struct Run {
    sample: Measurement,
    cpu_seconds: f64,
    peak_rss_mib: Option<f64>,
    proof: Option<Proof>,
}

/// Runs the alternatives in turn, `runs` times, after one discarded round.
///
/// # Errors
/// The first error of an alternative, which ends the measurement.
pub fn side_by_side(
    title: impl Into<String>,
    runs: usize,
    mut alternatives: Vec<Alternative<'_>>,
) -> Result<BenchReport> {
    let mut rows: Vec<Row> = alternatives
        .iter()
        .map(|alternative| Row::new(&alternative.name, alternative.unit, Vec::new()))
        .collect();
    let mut cpu: Vec<Vec<f64>> = vec![Vec::new(); rows.len()];
    for round in 0..=runs.max(1) {
        for ((alternative, row), cpu) in alternatives.iter_mut().zip(&mut rows).zip(&mut cpu) {
            let run = alternative.run()?;
            if alternative.in_process
                && let Some(peak) = run.peak_rss_mib
            {
                row.peak_rss_mib = Some(row.peak_rss_mib.unwrap_or(0.0).max(peak));
            }
            if round > 0 {
                if let Some(reads) = &mut alternative.reads {
                    reads.proofs.extend(run.proof);
                }
                row.rates
                    .push(run.sample.amount / run.sample.seconds.max(1e-9));
                if alternative.in_process {
                    cpu.push(run.cpu_seconds / run.sample.amount.max(1e-9));
                }
            }
        }
    }
    for (row, alternative) in rows.iter_mut().zip(&alternatives) {
        let proofs = alternative.reads.as_ref().map(|reads| &reads.proofs[..]);
        row.cache = summary(proofs.unwrap_or_default()).map(CacheState::from);
    }
    for (row, cpu) in rows.iter_mut().zip(&mut cpu) {
        row.median = median(&row.rates);
        row.cpu_seconds_each = (!cpu.is_empty()).then(|| median(cpu));
    }
    Ok(BenchReport {
        title: title.into(),
        rows,
        notes: Vec::new(),
    })
}

/// Returns the middle value, or the mean of the two middle ones for an even count; 0 without values.
pub fn median(values: &[f64]) -> f64 {
    let mut sorted = values.to_vec();
    sorted.sort_by(f64::total_cmp);
    match sorted.len() {
        0 => 0.0,
        n if n % 2 == 1 => sorted[n / 2],
        n => (sorted[n / 2 - 1] + sorted[n / 2]) / 2.0,
    }
}

/// Returns the quantile `part` of the values; 0 without values.
pub fn quantile(values: &[f64], part: f64) -> f64 {
    let mut sorted = values.to_vec();
    sorted.sort_by(f64::total_cmp);
    let index = (sorted.len().saturating_sub(1) as f64 * part).round() as usize;
    sorted.get(index).copied().unwrap_or(0.0)
}

/// Returns the peak resident memory in MiB since the last [`reset_peak_rss`], or since the start if the system cannot reset it.
pub(crate) fn peak_rss_mib() -> Option<f64> {
    memory_mib("self", "VmHWM:")
}

/// Returns an amount of memory of a process, named by its number or `self`, in MiB. `field` is a line of /proc/PID/status.
pub fn memory_mib(process: &str, field: &str) -> Option<f64> {
    let status = std::fs::read_to_string(format!("/proc/{process}/status")).ok()?;
    let line = status.lines().find(|line| line.starts_with(field))?;
    let kib: f64 = line.split_whitespace().nth(1)?.parse().ok()?;
    Some(kib / 1024.0)
}

/// Starts a new peak for [`peak_rss_mib`].
pub(crate) fn reset_peak_rss() {
    // Not every kernel or sandbox allows the reset. Without it, the peak is that of the whole process.
    let _ = std::fs::write("/proc/self/clear_refs", "5");
}

/// Returns the CPU seconds of this process so far, user and system, of all threads; 0 if the system does not report them.
pub fn cpu_seconds() -> f64 {
    cpu_seconds_of("self")
}

/// Returns the CPU seconds of a process, named by its number or `self`; 0 if the system does not report them.
pub fn cpu_seconds_of(process: &str) -> f64 {
    let ticks_per_second = rustix::param::clock_ticks_per_second() as f64;
    let read = || -> Option<f64> {
        let stat = std::fs::read_to_string(format!("/proc/{process}/stat")).ok()?;
        // The name in parentheses may contain spaces; fields are counted after it.
        let mut fields = stat.rsplit_once(')')?.1.split_whitespace().skip(11);
        let user: f64 = fields.next()?.parse().ok()?;
        let system: f64 = fields.next()?.parse().ok()?;
        Some((user + system) / ticks_per_second)
    };
    read().unwrap_or(0.0)
}

/// CPU time of each live thread of this process, by the thread's name.
pub struct Threads(Vec<(String, f64)>);

impl Threads {
    /// Returns the current times; empty if the system does not report them.
    pub fn now() -> Threads {
        let tasks = std::fs::read_dir("/proc/self/task").into_iter().flatten();
        let threads = tasks.flatten().filter_map(|task| {
            let name = std::fs::read_to_string(task.path().join("comm")).ok()?;
            Some((name, on_cpu(&task.path().join("schedstat"))?))
        });
        Threads(threads.collect())
    }

    /// Returns the CPU seconds of all threads whose names start with one of `names`.
    pub fn cpu_seconds(&self, names: &[&str]) -> f64 {
        let wanted = |name: &str| names.iter().any(|start| name.starts_with(start));
        let seconds = self.0.iter().filter(|(name, _)| wanted(name));
        seconds.map(|(_, seconds)| seconds).sum()
    }

    /// Returns the CPU seconds of the calling thread so far.
    pub fn own_cpu_seconds() -> f64 {
        on_cpu(Path::new("/proc/thread-self/schedstat")).unwrap_or(0.0)
    }
}

/// Returns the first number of a `schedstat`, the time on a CPU, in seconds.
fn on_cpu(path: &Path) -> Option<f64> {
    let text = std::fs::read_to_string(path).ok()?;
    let nanos: f64 = text.split_whitespace().next()?.parse().ok()?;
    Some(nanos / 1e9)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn medians() {
        assert_eq!(median(&[]), 0.0);
        assert_eq!(median(&[3.0]), 3.0);
        assert_eq!(median(&[9.0, 1.0, 5.0]), 5.0);
        assert_eq!(median(&[4.0, 1.0, 2.0, 9.0]), 3.0);
    }

    #[test]
    fn quantiles() {
        assert_eq!(quantile(&[], 0.5), 0.0);
        assert_eq!(quantile(&[3.0, 1.0, 2.0], 0.5), 2.0);
        assert_eq!(quantile(&[3.0, 1.0, 2.0], 1.0), 3.0);
    }

    #[test]
    fn alternatives_take_turns_after_a_discarded_round() {
        let order = std::cell::RefCell::new(Vec::new());
        let step = |name: &'static str, amount: f64| {
            order.borrow_mut().push(name);
            Ok(Measurement {
                amount,
                seconds: 2.0,
            })
        };
        let report = side_by_side(
            "turns",
            2,
            vec![
                Alternative::here("a", "x/s", || step("a", 10.0)),
                Alternative::elsewhere("b", "x/s", || step("b", 20.0)),
            ],
        )
        .expect("no failure");
        assert_eq!(*order.borrow(), ["a", "b", "a", "b", "a", "b"]);
        assert_eq!(report.rows[0].rates, [5.0, 5.0]);
        assert_eq!(report.ratio(0), None);
        assert_eq!(report.ratio(1), Some(2.0));
        assert!(report.rows[0].cpu_seconds_each.is_some());
        assert_eq!(report.rows[1].peak_rss_mib, None);
    }

    #[test]
    #[cfg(target_os = "linux")]
    fn rows_report_the_state_of_their_caches() {
        use crate::cold::{Cold, FsClass, Mount};

        let dir = tempfile::tempdir().expect("a directory");
        let path = dir.path().join("file");
        std::fs::write(&path, vec![7; 1 << 20]).expect("room");
        let row = |cold| {
            let evictor = Evictor::new(cold).expect("a way for everyone");
            let read = || Measurement::time(|| Ok(std::fs::read(&path)?.len() as f64));
            let delivered = |sample: &Measurement| Delivered::local(sample.amount as u64);
            let footprint = Footprint::files([&path]);
            let reads =
                Alternative::here("file", "B/s", read).reading(footprint, evictor, delivered);
            let plain = Alternative::here("none", "B/s", read);
            let mut report = side_by_side("caches", 2, vec![reads, plain]).expect("no failure");
            assert_eq!(report.rows[1].cache, None);
            report.rows.swap_remove(0).cache.expect("caches matter")
        };
        let warm = row(Cold::Off);
        assert_eq!((warm.cold_share, warm.cache.as_str()), (Some(0.0), "warm"));
        let class = Mount::of(dir.path()).map(|mount| mount.class());
        if matches!(class, Some(FsClass::Disk | FsClass::Overlay)) {
            let cold = row(Cold::Advise);
            assert_eq!((cold.cold_share, cold.cache.as_str()), (Some(1.0), "cold"));
            assert!(cold.proof.contains("--cold advise"), "{}", cold.proof);
        }
    }

    #[test]
    fn memory_and_cpu_time_are_reported() {
        let held = vec![1u8; 32 << 20];
        assert!(peak_rss_mib().expect("Linux tells") > 32.0);
        let start = cpu_seconds();
        while cpu_seconds() < start + 0.02 {
            std::hint::black_box(held.iter().map(|byte| u64::from(*byte)).sum::<u64>());
        }
    }
}
