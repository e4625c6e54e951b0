//! Activity of a server in each of the last seconds, for current rates and for charts.
//!
//! This module does no IO and reads no clock: the caller supplies snapshots and the time.

use std::collections::{BTreeMap, HashMap, VecDeque};
use std::time::{Duration, Instant};

use forebay_loader::MachineCpu;
use forebay_wire::wire;

use forebay_server::counters::take_levels;
use forebay_server::snapshot::{NameTotals, Snapshot};

/// Time between snapshots.
pub(crate) const TICK: Duration = Duration::from_secs(1);
/// Ticks that are kept.
const KEPT: usize = 300;
/// Ticks over which current rates are averaged: batches arrive in bursts, and a rate should not
/// jump with each.
const WINDOW: usize = 10;
/// Ticks per point of a chart line.
const TICKS_A_POINT: usize = 2;
/// Maximum number of points of a chart line.
pub(crate) const POINTS: usize = KEPT / TICKS_A_POINT;
/// Maximum number of ranks that are tracked; clients can open any number of them.
const MOST_RANKS: usize = 1024;

/// Work done in one or several ticks.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(crate) struct Activity {
    pub(crate) images: u64,
    pub(crate) batches: u64,
    pub(crate) payload_bytes: u64,
    pub(crate) read_bytes: u64,
}

impl Activity {
    fn of_totals(totals: &NameTotals) -> Activity {
        Activity {
            images: totals.images,
            batches: totals.batches,
            payload_bytes: totals.payload_bytes,
            read_bytes: totals.bytes_read,
        }
    }

    fn of_stream(stats: &wire::Stats) -> Activity {
        Activity {
            images: stats.images,
            batches: stats.batches,
            payload_bytes: stats.payload_bytes,
            read_bytes: stats.bytes_read,
        }
    }

    fn since(self, earlier: Activity) -> Activity {
        Activity {
            images: self.images.saturating_sub(earlier.images),
            batches: self.batches.saturating_sub(earlier.batches),
            payload_bytes: self.payload_bytes.saturating_sub(earlier.payload_bytes),
            read_bytes: self.read_bytes.saturating_sub(earlier.read_bytes),
        }
    }

    fn plus(self, other: Activity) -> Activity {
        Activity {
            images: self.images + other.images,
            batches: self.batches + other.batches,
            payload_bytes: self.payload_bytes + other.payload_bytes,
            read_bytes: self.read_bytes + other.read_bytes,
        }
    }
}

/// Work done in each tick, the latest last.
#[derive(Debug, Default)]
struct Series(VecDeque<Activity>);

impl Series {
    fn push(&mut self, did: Activity) {
        if self.0.len() == KEPT {
            self.0.pop_front();
        }
        self.0.push_back(did);
    }

    /// Whether all kept ticks are empty.
    fn is_silent(&self) -> bool {
        self.0.len() == KEPT && self.0.iter().all(|did| *did == Activity::default())
    }
}

/// State at the end of a tick.
#[derive(Debug)]
struct Point {
    at: Instant,
    cpu_s: f64,
    machine: MachineCpu,
    totals: BTreeMap<String, NameTotals>,
    /// By connection: work done, and the seconds during which its trainer was fed and starved.
    streams: HashMap<u64, (Activity, [f64; 2])>,
}

/// Activity of a server in the last minutes.
#[derive(Debug, Default)]
pub(crate) struct History {
    /// Number of ticks so far.
    count: u64,
    /// Duration of each tick, and CPU seconds used in it.
    seconds: VecDeque<(f64, f64)>,
    all: Series,
    names: BTreeMap<String, Series>,
    ranks: BTreeMap<(String, u64), Series>,
    /// Points at the start of the window and at the end of each of its ticks.
    window: VecDeque<Point>,
}

/// Selects the quantity of a chart line.
pub(crate) type Measure = fn(&Activity) -> u64;

impl History {
    /// Records the end of a tick.
    pub(crate) fn record(&mut self, at: Instant, snapshot: &Snapshot, cpu_s: f64) {
        let point = Point {
            at,
            cpu_s,
            machine: snapshot.machine,
            totals: snapshot.totals.clone(),
            streams: snapshot
                .streams
                .iter()
                .map(|stream| {
                    let did = Activity::of_stream(&stream.stats);
                    let all: f64 = send(&stream.stats).iter().sum();
                    let starved = stream.starved_s.min(all);
                    (stream.connection, (did, [all - starved, starved]))
                })
                .collect(),
        };
        if let Some(before) = self.window.back() {
            let mut all = Activity::default();
            let mut names = BTreeMap::new();
            for (name, totals) in &point.totals {
                let then = before.totals.get(name).map(Activity::of_totals);
                let did = Activity::of_totals(totals).since(then.unwrap_or_default());
                all = all.plus(did);
                names.insert(name.clone(), did);
            }
            let mut ranks: BTreeMap<(String, u64), Activity> = BTreeMap::new();
            for stream in &snapshot.streams {
                let then = before.streams.get(&stream.connection).map(|(did, _)| *did);
                let did = Activity::of_stream(&stream.stats).since(then.unwrap_or_default());
                let rank = (stream.live.name.clone(), stream.live.rank);
                if self.ranks.len() + ranks.len() < MOST_RANKS || self.ranks.contains_key(&rank) {
                    let of_rank = ranks.entry(rank).or_default();
                    *of_rank = of_rank.plus(did);
                }
            }
            if self.seconds.len() == KEPT {
                self.seconds.pop_front();
            }
            let seconds = at.saturating_duration_since(before.at).as_secs_f64();
            let cpu_s = (cpu_s - before.cpu_s).max(0.0);
            self.seconds.push_back((seconds, cpu_s));
            self.count += 1;
            self.all.push(all);
            advance(&mut self.names, names);
            advance(&mut self.ranks, ranks);
        }
        if self.window.len() > WINDOW {
            self.window.pop_front();
        }
        self.window.push_back(point);
    }

    /// Seconds over which current rates are averaged.
    pub(crate) fn window_s(&self) -> f64 {
        self.last().map(|(seconds, _)| seconds).sum()
    }

    fn last(&self) -> impl Iterator<Item = (f64, f64)> {
        self.seconds.iter().rev().take(WINDOW).copied()
    }

    /// CPU cores in use now.
    pub(crate) fn cores(&self) -> f64 {
        per_s(self.last().map(|(_, cpu_s)| cpu_s).sum(), self.window_s())
    }

    /// Work done in the window by all streams.
    pub(crate) fn all_now(&self) -> Activity {
        self.now(Some(&self.all))
    }

    pub(crate) fn name_now(&self, name: &str) -> Activity {
        self.now(self.names.get(name))
    }

    pub(crate) fn rank_now(&self, name: &str, rank: u64) -> Activity {
        self.now(self.ranks.get(&(name.to_owned(), rank)))
    }

    fn now(&self, series: Option<&Series>) -> Activity {
        let Some(series) = series else {
            return Activity::default();
        };
        let last = series.0.iter().rev().take(WINDOW);
        last.fold(Activity::default(), |sum, did| sum.plus(*did))
    }

    /// Busy, starved and blocked seconds of each stage of a name in the window.
    pub(crate) fn stages(&self, name: &str) -> BTreeMap<String, [f64; 3]> {
        let (Some(first), Some(last)) = (self.window.front(), self.window.back()) else {
            return BTreeMap::new();
        };
        let Some(now) = last.totals.get(name) else {
            return BTreeMap::new();
        };
        let then = first.totals.get(name);
        let stages = now.stages.iter().map(|(stage, times)| {
            let before = then.and_then(|then| then.stages.get(stage));
            (stage.clone(), between(before, times))
        });
        stages.collect()
    }

    /// CPU seconds in the window: of decode threads of a name, and of all threads of the process;
    /// and seconds that the decode threads had no core.
    pub(crate) fn cpu_s(&self, name: &str) -> [f64; 3] {
        let (Some(first), Some(last)) = (self.window.front(), self.window.back()) else {
            return [0.0; 3];
        };
        let of = |point: &Point| {
            let totals = point.totals.get(name);
            [
                totals.map_or(0.0, |totals| totals.decode_cpu_s),
                point.cpu_s,
                totals.map_or(0.0, |totals| totals.decode_delay_s),
            ]
        };
        between(Some(&of(first)), &of(last))
    }

    /// CPU time of the machine in the window.
    pub(crate) fn machine(&self) -> MachineCpu {
        match (self.window.front(), self.window.back()) {
            (Some(first), Some(last)) => last.machine.since(&first.machine),
            _ => MachineCpu::default(),
        }
    }

    /// Work done in the window over a connection.
    pub(crate) fn connection_now(&self, connection: u64) -> Activity {
        let of = |point: Option<&Point>| Some(point?.streams.get(&connection)?.0);
        let then = of(self.window.front()).unwrap_or_default();
        of(self.window.back()).unwrap_or_default().since(then)
    }

    /// Storage throughput of the streams of a name in the window, by number of concurrent reads of
    /// a stream.
    pub(crate) fn levels(&self, name: &str) -> Vec<wire::ReadLevel> {
        let of = |point: Option<&Point>| {
            let totals = point.and_then(|point| point.totals.get(name));
            totals.map_or_else(Vec::new, |totals| totals.levels.clone())
        };
        let mut levels = of(self.window.back());
        take_levels(&mut levels, &of(self.window.front()));
        levels
    }

    /// Seconds in the window during which the trainer of a connection had batches, and had none.
    pub(crate) fn fed_and_starved(&self, connection: u64) -> Option<[f64; 2]> {
        let (_, now) = self.window.back()?.streams.get(&connection)?;
        let then = self.window.front()?.streams.get(&connection);
        Some(between(then.map(|(_, times)| times), now))
    }

    /// Seconds between two points of a chart line.
    pub(crate) fn step_s(&self) -> f64 {
        TICKS_A_POINT as f64 * TICK.as_secs_f64()
    }

    /// The chart line over all streams: a rate for each point, the latest last. It does not change
    /// until the next point is complete.
    pub(crate) fn all_line(&self, measure: Measure) -> Vec<f64> {
        self.line(Some(&self.all), measure)
    }

    pub(crate) fn name_line(&self, name: &str, measure: Measure) -> Vec<f64> {
        self.line(self.names.get(name), measure)
    }

    pub(crate) fn rank_line(&self, name: &str, rank: u64, measure: Measure) -> Vec<f64> {
        self.line(self.ranks.get(&(name.to_owned(), rank)), measure)
    }

    /// The chart line of CPU cores in use.
    pub(crate) fn cores_line(&self) -> Vec<f64> {
        let ticks = self
            .seconds
            .iter()
            .map(|&(seconds, cpu_s)| (cpu_s, seconds));
        self.points(ticks.collect())
    }

    fn line(&self, series: Option<&Series>, measure: Measure) -> Vec<f64> {
        let Some(series) = series else {
            return Vec::new();
        };
        let skipped = self.seconds.len() - series.0.len().min(self.seconds.len());
        let ticks = series.0.iter().zip(self.seconds.iter().skip(skipped));
        self.points(
            ticks
                .map(|(did, &(seconds, _))| (measure(did) as f64, seconds))
                .collect(),
        )
    }

    /// Rates of the complete points, from amounts and seconds of ticks, the latest last. Each point
    /// averages over the previous one too, which smooths bursts.
    fn points(&self, ticks: Vec<(f64, f64)>) -> Vec<f64> {
        let begun = usize::try_from(self.count % TICKS_A_POINT as u64).unwrap_or(0);
        let complete = &ticks[..ticks.len() - begun.min(ticks.len())];
        let points: Vec<(f64, f64)> = complete
            .rchunks_exact(TICKS_A_POINT)
            .map(|point| point.iter().fold((0.0, 0.0), |a, b| (a.0 + b.0, a.1 + b.1)))
            .collect();
        let mut line: Vec<f64> = (0..points.len())
            .map(|i| {
                let before = points.get(i + 1).copied().unwrap_or((0.0, 0.0));
                per_s(points[i].0 + before.0, points[i].1 + before.1)
            })
            .collect();
        line.reverse();
        line
    }
}

/// Amount per second; 0 if no time has passed.
pub(crate) fn per_s(amount: f64, seconds: f64) -> f64 {
    if seconds > 0.0 { amount / seconds } else { 0.0 }
}

fn between<const N: usize>(then: Option<&[f64; N]>, now: &[f64; N]) -> [f64; N] {
    let then = then.copied().unwrap_or([0.0; N]);
    std::array::from_fn(|i| (now[i] - then[i]).max(0.0))
}

fn send(stats: &wire::Stats) -> [f64; 3] {
    let stage = stats.stages.iter().find(|stage| stage.name == "send");
    stage.map_or([0.0; 3], |s| [s.busy_s, s.starved_s, s.blocked_s])
}

/// Appends a tick to each series; series without an entry get an empty tick.
fn advance<K: Ord>(all: &mut BTreeMap<K, Series>, mut did: BTreeMap<K, Activity>) {
    for (key, series) in all.iter_mut() {
        series.push(did.remove(key).unwrap_or_default());
    }
    all.retain(|_, series| !series.is_silent());
    for (key, did) in did {
        all.entry(key).or_default().push(did);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use forebay_loader::{Queues, ReadTimes};
    use forebay_server::snapshot::{LiveStream, OpenStream};
    use forebay_wire::Peer;

    /// A server that sent `batches` batches of ten images to its only stream.
    fn snapshot(connection: u64, batches: u64) -> Snapshot {
        let stats = wire::Stats {
            images: 10 * batches,
            batches,
            payload_bytes: 1000 * batches,
            stages: vec![wire::Stage {
                name: "send".to_owned(),
                busy_s: batches as f64 * 0.25,
                blocked_s: batches as f64 * 0.75,
                ..wire::Stage::default()
            }],
            ..wire::Stats::default()
        };
        let mut totals = NameTotals::default();
        totals.add(&stats, &ReadTimes::default());
        Snapshot {
            totals: [("a".to_owned(), totals)].into(),
            streams: vec![OpenStream {
                connection,
                peer: Peer::Process(1),
                transport: "shm",
                connections: 1,
                live: LiveStream {
                    name: "a".to_owned(),
                    rank: 3,
                    ..LiveStream::default()
                },
                stats,
                counted: wire::Stats::default(),
                starved_s: batches as f64 * 0.25,
                queues: Queues::default(),
                reads: ReadTimes::default(),
            }],
            ..Snapshot::default()
        }
    }

    #[test]
    fn rates_are_those_of_the_last_seconds() {
        let begin = Instant::now();
        let mut history = History::default();
        for second in 0..=20u64 {
            // One batch a second, then three.
            let batches = second.min(10) + 3 * second.saturating_sub(10);
            let at = begin + Duration::from_secs(second);
            history.record(at, &snapshot(1, 100 + batches), 2.0 * second as f64);
        }
        assert_eq!(history.window_s(), 10.0);
        let now = history.all_now();
        assert_eq!(
            (now.batches, now.images, now.payload_bytes),
            (30, 300, 30_000)
        );
        assert_eq!(history.name_now("a"), now);
        assert_eq!(history.rank_now("a", 3), now);
        assert_eq!(history.rank_now("a", 4), Activity::default());
        assert_eq!(history.cores(), 2.0);
        assert_eq!(history.stages("a")["send"], [7.5, 0.0, 22.5]);
        assert_eq!(history.fed_and_starved(1), Some([22.5, 7.5]));
        assert_eq!(history.fed_and_starved(2), None);
        let line = history.all_line(|did| did.images);
        assert_eq!(
            line,
            [10.0, 10.0, 10.0, 10.0, 10.0, 20.0, 30.0, 30.0, 30.0, 30.0]
        );
        assert_eq!(history.rank_line("a", 3, |did| did.images), line);
        assert_eq!(history.cores_line(), [2.0; 10]);
        // The line does not change in the middle of a point.
        history.record(begin + Duration::from_secs(21), &snapshot(1, 999), 42.0);
        assert_eq!(history.all_line(|did| did.images), line);
        assert_eq!(history.cores_line().len(), 10);
    }

    #[test]
    fn memory_is_bounded_and_ended_ranks_are_dropped() {
        let begin = Instant::now();
        let mut history = History::default();
        for second in 0..=1000u64 {
            let at = begin + Duration::from_secs(second);
            history.record(at, &snapshot(1, second), 0.0);
        }
        assert_eq!(
            history.all_line(|did| did.batches),
            [1.0; KEPT / TICKS_A_POINT]
        );
        // After a reconnect of the same rank, its work continues where the old connection ended.
        history.record(begin + Duration::from_secs(1001), &snapshot(2, 5), 0.0);
        assert_eq!(
            history.ranks[&("a".to_owned(), 3)]
                .0
                .back()
                .unwrap()
                .batches,
            5
        );
        for second in 1002..1400u64 {
            let at = begin + Duration::from_secs(second);
            history.record(at, &Snapshot::default(), 0.0);
        }
        assert!(history.names.is_empty() && history.ranks.is_empty());
        assert!(history.seconds.len() == KEPT && history.window.len() == WINDOW + 1);
    }
}
