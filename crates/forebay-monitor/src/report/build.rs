//! Builds a [`Report`] from a snapshot and the history.

use std::collections::BTreeMap;
use std::time::SystemTime;

use forebay_loader::RankPace;

use super::bottleneck::{Window, idle, judge};
use super::{
    BottleneckReport, CacheReport, Connections, Counts, EventReport, FORMAT, Lines, ProcessReport,
    QueueReport, Rank, Rates, Report, Served, StageReport, StoreReport, TierReport,
};
use crate::environment::Environment;
use crate::history::{Activity, History, per_s};
use crate::process::unix_s;
use forebay_server::JournalEntry;
use forebay_server::snapshot::{NameTotals, OpenStream, Snapshot};

/// Maximum number of listed ranks of a name.
const MOST_RANKS: usize = 256;
/// Maximum number of ranks of a name with a chart line.
const MOST_LINES: usize = 64;

/// Inputs of a report.
pub(crate) struct ReportBuilder<'a> {
    pub(crate) snapshot: &'a Snapshot,
    pub(crate) environment: &'a Environment,
    pub(crate) history: &'a History,
    pub(crate) events: &'a [JournalEntry],
    pub(crate) images: bool,
    /// Number of cores that the process may use.
    pub(crate) cores: u64,
    /// Start time, used if the system does not report that of the process.
    pub(crate) started: SystemTime,
    pub(crate) now: SystemTime,
}

impl ReportBuilder<'_> {
    pub(crate) fn report(&self) -> Report {
        let (snapshot, history) = (self.snapshot, self.history);
        let served: Vec<Served> = snapshot
            .totals
            .iter()
            .map(|(name, totals)| self.served(name, totals))
            .collect();
        let process = self.environment.process.unwrap_or_default();
        let started_s = match process.started_s {
            0.0 => unix_s(self.started),
            started_s => started_s,
        };
        let all = snapshot
            .totals
            .values()
            .map(counts)
            .fold(Counts::default(), add_counts);
        Report {
            format: FORMAT,
            time_s: round(unix_s(self.now)),
            started_s: round(started_s),
            version: env!("CARGO_PKG_VERSION").to_owned(),
            state: match snapshot.ready {
                true => "serving",
                false => "stopping",
            }
            .to_owned(),
            images: self.images,
            window_s: round(history.window_s()),
            bottleneck: headline(&served),
            now: self.rates(history.all_now()),
            totals: all,
            history: Lines {
                step_s: history.step_s(),
                points: crate::history::POINTS as u64,
                images_per_s: rounded(history.all_line(|did| did.images)),
                payload_bytes_per_s: rounded(history.all_line(|did| did.payload_bytes)),
                read_bytes_per_s: rounded(history.all_line(|did| did.read_bytes)),
                cpu_cores: history.cores_line().into_iter().map(round).collect(),
            },
            process: ProcessReport {
                cpu_cores: round(history.cores()),
                cores: self.cores,
                resident_bytes: process.resident_bytes,
                threads: process.threads,
                open_files: process.open_files,
                max_files: process.max_files,
            },
            connections: Connections {
                open: snapshot.server.connections,
                streams: snapshot.streams.len() as u64,
                limit: snapshot.max_connections,
                accepted: snapshot.server.accepted,
                refused: snapshot.server.refused,
                unauthorized: snapshot.server.unauthorized,
                failed: snapshot.server.failed,
            },
            served,
            cache: self.cache(),
            stores: self.stores(unix_s(self.now) - started_s),
            events: self.events.iter().map(event).collect(),
        }
    }

    fn rates(&self, did: Activity) -> Rates {
        let seconds = self.history.window_s();
        let rate = |amount: u64| round(per_s(amount as f64, seconds));
        Rates {
            images_per_s: rate(did.images),
            batches_per_s: rate(did.batches),
            payload_bytes_per_s: rate(did.payload_bytes),
            read_bytes_per_s: rate(did.read_bytes),
        }
    }

    fn served(&self, name: &str, totals: &NameTotals) -> Served {
        let history = self.history;
        let mut streams: Vec<&OpenStream> = self
            .snapshot
            .streams
            .iter()
            .filter(|stream| stream.live.name == name)
            .collect();
        streams.sort_by_key(|stream| (stream.live.rank, stream.connection));
        let mut threads: BTreeMap<String, u64> = BTreeMap::new();
        for stage in streams.iter().flat_map(|stream| &stream.stats.stages) {
            *threads.entry(stage.name.clone()).or_default() += u64::from(stage.threads);
        }
        let all_threads = threads.clone();
        for (stage, threads) in &mut threads {
            // Streams share the cores, so the sum of their threads is not parallelism.
            if matches!(stage.as_str(), "decode" | "transform") {
                *threads = (*threads).min(self.cores.max(1));
            }
        }
        let stages = history.stages(name);
        let did = history.name_now(name);
        let trainers = streams
            .iter()
            .filter_map(|stream| history.fed_and_starved(stream.connection))
            .fold([0.0; 2], |sum, times| {
                [sum[0] + times[0], sum[1] + times[1]]
            });
        let dataset = self.snapshot.served.get(name).cloned().flatten();
        // The ranks of a job advance together, so the slowest one holds up the others.
        let is_job = dataset.is_some() || streams.iter().any(|stream| stream.live.is_job);
        let bottleneck = judge(&Window {
            seconds: history.window_s(),
            streams: streams.len() as u64,
            over_network: streams.iter().any(|stream| stream.transport != "shm"),
            did,
            trainers,
            stages: &stages,
            threads: &all_threads,
            levels: history.levels(name),
            cores: self.cores,
            cpu_s: history.cpu_s(name),
            machine: history.machine(),
            ranks: match is_job {
                true => streams
                    .iter()
                    .filter_map(|stream| self.pace(stream))
                    .collect(),
                false => Vec::new(),
            },
        });
        let first = streams.iter().map(|stream| stream.live.step).max();
        let first = first.filter(|_| is_job);
        let shown = streams.iter().enumerate().take(MOST_RANKS);
        let ranks = shown
            .map(|(number, stream)| self.rank(name, stream, first, number < MOST_LINES))
            .collect();
        let mut failures: Vec<String> = Vec::new();
        for failure in streams.iter().flat_map(|stream| &stream.stats.failures) {
            if !failures.contains(failure) {
                failures.push(failure.clone());
            }
        }
        let surplus = failures.len().saturating_sub(8);
        failures.drain(..surplus);
        Served {
            name: name.to_owned(),
            kind: if is_job { "job" } else { "dataset" }.to_owned(),
            dataset,
            now: self.rates(did),
            totals: counts(totals),
            bottleneck,
            stages: stage_reports(&stages, &threads),
            queues: queues(&streams),
            history: rounded(history.name_line(name, |did| did.images)),
            ranks,
            more_ranks: streams.len().saturating_sub(MOST_RANKS) as u64,
            failures,
        }
    }

    /// Returns the activity of a rank in the window.
    fn pace(&self, stream: &OpenStream) -> Option<RankPace> {
        let [fed, starved] = self.history.fed_and_starved(stream.connection)?;
        let did = self.history.connection_now(stream.connection);
        Some(RankPace {
            rank: stream.live.rank,
            seconds: fed + starved,
            images: did.images,
            batches: did.batches,
            waits: per_s(starved, fed + starved),
        })
    }

    /// Describes a stream. `first` is the step of the job's most advanced rank.
    fn rank(&self, name: &str, stream: &OpenStream, first: Option<u64>, has_line: bool) -> Rank {
        let live = &stream.live;
        let per_epoch = live.per_epoch.max(1);
        let [fed, starved] = self
            .history
            .fed_and_starved(stream.connection)
            .unwrap_or_default();
        Rank {
            rank: live.rank,
            world_size: live.world_size,
            connection: stream.connection,
            peer: stream.peer.to_string(),
            transport: stream.transport.to_owned(),
            connections: stream.connections,
            split: live.split.clone(),
            batch_size: live.batch_size,
            epoch: live.step / per_epoch,
            step: live.step % per_epoch,
            steps: live.per_epoch,
            lag_batches: first.map_or(0, |first| first - live.step),
            images_per_s: self
                .rates(self.history.rank_now(name, live.rank))
                .images_per_s,
            waits: round(per_s(starved, fed + starved)),
            ready_batches: stream.queues.ready_batches,
            history: match has_line {
                true => rounded(self.history.rank_line(name, live.rank, |did| did.images)),
                false => Vec::new(),
            },
        }
    }

    fn cache(&self) -> Option<CacheReport> {
        let stats = self.environment.cache.as_ref()?;
        let tiers = [("memory", &stats.memory), ("disk", &stats.disk)];
        let tiers = tiers.into_iter().filter(|(_, tier)| tier.limit_bytes > 0);
        Some(CacheReport {
            hit_rate: round(stats.hit_rate()),
            hits: stats.hits(),
            misses: stats.misses,
            hit_bytes: stats.memory.hit_bytes + stats.disk.hit_bytes,
            miss_bytes: stats.miss_bytes,
            fetched_bytes: stats.fetched_bytes,
            tiers: tiers
                .map(|(name, tier)| TierReport {
                    tier: name.to_owned(),
                    used_bytes: tier.used_bytes,
                    limit_bytes: tier.limit_bytes,
                    hits: tier.hits,
                    evictions: tier.evictions,
                    damaged: tier.damaged,
                })
                .collect(),
            warnings: stats.warnings.clone(),
        })
    }

    /// The stores of a server that started `seconds` ago.
    fn stores(&self, seconds: f64) -> Vec<StoreReport> {
        let per_hour = |nano: u64| nano as f64 / 1e9 * 3600.0 / seconds.max(1.0);
        let stores = self.environment.stores.iter();
        let report = stores.map(|traffic| StoreReport {
            store: traffic.store.clone(),
            requests: traffic.requests,
            retries: traffic.retries,
            throttles: traffic.throttles,
            hedges: traffic.hedges,
            failures: traffic.failures,
            read_bytes: traffic.read_bytes,
            region_dollars_per_hour: per_hour(traffic.cost.in_region),
            internet_dollars_per_hour: per_hour(traffic.cost.over_internet),
            price: traffic.price(),
            in_flight: traffic.in_flight,
            limit: traffic.limit,
            first_byte_p50_s: round(traffic.usual_s.map_or(0.0, |usual| usual.0)),
            first_byte_p95_s: round(traffic.usual_s.map_or(0.0, |usual| usual.1)),
        });
        report.collect()
    }
}

/// The bottleneck of the name with the highest image rate, prefixed by the name if several are active.
fn headline(served: &[Served]) -> BottleneckReport {
    let mut busy: Vec<&Served> = served
        .iter()
        .filter(|served| !served.ranks.is_empty())
        .collect();
    busy.sort_by(|a, b| b.now.images_per_s.total_cmp(&a.now.images_per_s));
    match &busy[..] {
        [] => idle(),
        [only] => only.bottleneck.clone(),
        [first, ..] => BottleneckReport {
            text: format!("{}: {}", first.name, first.bottleneck.text),
            ..first.bottleneck.clone()
        },
    }
}

fn counts(totals: &NameTotals) -> Counts {
    Counts {
        streams: totals.streams,
        images: totals.images,
        batches: totals.batches,
        payload_bytes: totals.payload_bytes,
        read_bytes: totals.bytes_read,
        failed_samples: totals.failed,
        failed_streams: totals.failures.values().sum(),
    }
}

fn add_counts(a: Counts, b: Counts) -> Counts {
    Counts {
        streams: a.streams + b.streams,
        images: a.images + b.images,
        batches: a.batches + b.batches,
        payload_bytes: a.payload_bytes + b.payload_bytes,
        read_bytes: a.read_bytes + b.read_bytes,
        failed_samples: a.failed_samples + b.failed_samples,
        failed_streams: a.failed_streams + b.failed_streams,
    }
}

fn stage_reports(
    stages: &BTreeMap<String, [f64; 3]>,
    threads: &BTreeMap<String, u64>,
) -> Vec<StageReport> {
    let times = |name: &str| stages.get(name).copied().unwrap_or_default();
    let shared: f64 = times("decode").iter().chain(&times("transform")).sum();
    ["fetch", "decode", "transform", "send"]
        .into_iter()
        .filter(|name| stages.contains_key(*name))
        .map(|name| {
            let [busy, starved, blocked] = times(name);
            let all = match name {
                "decode" | "transform" => shared,
                _ => busy + starved + blocked,
            };
            StageReport {
                name: name.to_owned(),
                threads: threads.get(name).copied().unwrap_or(0),
                busy: round(per_s(busy, all)),
                starved: round(per_s(starved, all)),
                blocked: round(per_s(blocked, all)),
            }
        })
        .collect()
}

fn queues(streams: &[&OpenStream]) -> QueueReport {
    let mut sum = QueueReport::default();
    for queues in streams.iter().map(|stream| stream.queues) {
        sum.planned_samples += queues.planned_samples;
        sum.unread_samples += queues.unread_samples;
        sum.undecoded_samples += queues.undecoded_samples;
        sum.making_batches += queues.making_batches;
        sum.ready_batches += queues.ready_batches;
        sum.memory_bytes += queues.memory_bytes;
    }
    sum
}

fn event(entry: &JournalEntry) -> EventReport {
    EventReport {
        number: entry.number,
        time_s: round(unix_s(entry.at)),
        trouble: entry.is_trouble,
        text: entry.text.clone(),
    }
}

/// Rounds to three decimals, and replaces values that JSON cannot represent.
fn round(value: f64) -> f64 {
    match value.is_finite() {
        true => (value * 1000.0).round() / 1000.0,
        false => 0.0,
    }
}

/// Rounds chart values to one decimal.
fn rounded(line: Vec<f64>) -> Vec<f64> {
    let round = |value: f64| (value * 10.0).round() / 10.0;
    line.into_iter().map(round).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use forebay_loader::{Queues, ReadTimes};
    use forebay_server::snapshot::LiveStream;
    use forebay_wire::{Peer, wire};
    use std::time::{Duration, Instant};

    fn snapshot(second: u64) -> Snapshot {
        let stage = |name: &str, [busy_s, starved_s, blocked_s]: [f64; 3], threads| wire::Stage {
            name: name.to_owned(),
            busy_s,
            starved_s,
            blocked_s,
            threads,
        };
        let s = second as f64;
        let stats = wire::Stats {
            images: 512 * second,
            batches: 2 * second,
            payload_bytes: 2000 * second,
            stages: vec![
                stage("fetch", [s, 0.0, 3.0 * s], 4),
                stage("decode", [6.0 * s, 0.0, 0.0], 8),
                stage("transform", [2.0 * s, 0.0, 0.0], 8),
                stage("send", [0.1 * s, 0.9 * s, 0.0], 1),
            ],
            failures: vec!["shard 3 is damaged".to_owned()],
            bytes_read: 1000 * second,
            // Storage delivers the demand in half of the time, with one reader or two.
            reads: vec![
                wire::ReadLevel {
                    seconds: 0.25 * s,
                    bytes: 1000.0 * s,
                },
                wire::ReadLevel::default(),
            ],
            ..wire::Stats::default()
        };
        let stream = |rank: u64| OpenStream {
            connection: 10 + rank,
            peer: Peer::Process(1),
            transport: "shm",
            connections: 1,
            live: LiveStream {
                name: "resnet".to_owned(),
                is_job: true,
                rank,
                world_size: 2,
                per_epoch: 15,
                step: (2 * second).saturating_sub(3 * rank),
                ..LiveStream::default()
            },
            stats: stats.clone(),
            counted: wire::Stats::default(),
            starved_s: if rank == 0 { s } else { 0.0 },
            queues: {
                let mut queues = Queues::default();
                queues.ready_batches = 1;
                queues
            },
            reads: ReadTimes::default(),
        };
        let mut totals = NameTotals::default();
        totals.add(&stats, &ReadTimes::default());
        totals.add(&stats, &ReadTimes::default());
        Snapshot {
            ready: true,
            served: [
                ("imagenet".to_owned(), None),
                ("resnet".to_owned(), Some("imagenet".to_owned())),
            ]
            .into(),
            totals: [
                ("imagenet".to_owned(), NameTotals::default()),
                ("resnet".to_owned(), totals),
            ]
            .into(),
            streams: vec![stream(1), stream(0)],
            ..Snapshot::default()
        }
    }

    #[test]
    fn a_report_is_complete() {
        let begin = Instant::now();
        let mut history = History::default();
        for second in 0..=20 {
            let at = begin + Duration::from_secs(second);
            history.record(at, &snapshot(second), second as f64 * 7.5);
        }
        let mut environment = Environment::default();
        let mut traffic = forebay_store::Traffic::default();
        (traffic.cost.in_region, traffic.cost.over_internet) = (77_000_000, 1_540_000_000);
        environment.stores.push(traffic);
        let builder = ReportBuilder {
            snapshot: &snapshot(20),
            environment: &environment,
            history: &history,
            events: &[],
            images: true,
            cores: 8,
            started: SystemTime::UNIX_EPOCH,
            now: SystemTime::UNIX_EPOCH + Duration::from_secs(77),
        };
        let report = builder.report();
        assert_eq!((report.format, report.time_s), (FORMAT, 77.0));
        let store = &report.stores[0];
        assert!((store.region_dollars_per_hour - 3.6).abs() < 1e-9);
        assert!((store.internet_dollars_per_hour - 72.0).abs() < 1e-9);
        assert_eq!(report.now.images_per_s, 1024.0);
        assert_eq!(report.process.cpu_cores, 7.5);
        assert_eq!(report.bottleneck.bound, "decode");
        assert!(
            report
                .bottleneck
                .text
                .contains("16 threads on 8 cores busy 100 %")
                && report
                    .bottleneck
                    .text
                    .contains("storage could give at least 2.0x"),
            "{}",
            report.bottleneck.text
        );
        let [imagenet, resnet] = &report.served[..] else {
            panic!("{:?}", report.served)
        };
        assert_eq!(
            (imagenet.kind.as_str(), imagenet.bottleneck.bound.as_str()),
            ("dataset", "idle")
        );
        assert_eq!(
            (resnet.kind.as_str(), resnet.dataset.as_deref()),
            ("job", Some("imagenet"))
        );
        let parts: Vec<_> = resnet
            .stages
            .iter()
            .map(|s| (s.name.as_str(), s.busy))
            .collect();
        assert_eq!(
            parts,
            [
                ("fetch", 0.25),
                ("decode", 0.75),
                ("transform", 0.25),
                ("send", 0.1)
            ]
        );
        let [first, second] = &resnet.ranks[..] else {
            panic!("{:?}", resnet.ranks)
        };
        assert_eq!(
            (first.rank, first.epoch, first.step, first.lag_batches),
            (0, 2, 10, 0)
        );
        assert_eq!(
            (second.rank, second.lag_batches, second.connection),
            (1, 3, 11)
        );
        assert_eq!((first.images_per_s, first.waits), (512.0, 1.0));
        assert_eq!(second.waits, 0.0);
        assert_eq!(first.history.len(), 10);
        assert_eq!(resnet.failures, ["shard 3 is damaged"]);
        assert_eq!(resnet.queues.ready_batches, 2);
        // Readers must accept fields that newer servers add.
        let mut json = serde_json::to_value(&report).unwrap();
        json["something_new"] = 1.into();
        assert_eq!(serde_json::from_value::<Report>(json).unwrap(), report);
        assert_eq!(
            serde_json::from_str::<Report>("{}").unwrap(),
            Report::default()
        );
    }
}
