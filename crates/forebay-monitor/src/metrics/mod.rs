//! Metrics of a server in the Prometheus text format. Names of metrics and labels are stable.

mod exposition;

use std::collections::BTreeMap;

use forebay_cache::TierStats;
use forebay_loader::{Queues, READ_BOUNDS_S};
use forebay_store::Traffic;

use crate::environment::Environment;
use crate::process::Process;
use exposition::Page;
use forebay_server::snapshot::{NameTotals, Snapshot};

/// Renders all metrics.
pub(crate) fn render(snapshot: &Snapshot, environment: &Environment) -> String {
    let mut page = Page(String::new());
    server(&mut page, snapshot);
    streams(&mut page, snapshot);
    ranks(&mut page, snapshot);
    cache(&mut page, environment);
    stores(&mut page, &environment.stores);
    if let Some(process) = &environment.process {
        self::process(&mut page, process);
    }
    page.0
}

fn server(page: &mut Page, snapshot: &Snapshot) {
    let version = ("version", env!("CARGO_PKG_VERSION"));
    let mut info = page.gauge("forebay_server_info", "The server itself.");
    info.line(&[version], 1);
    let mut build = page.gauge("forebay_build_info", "What the server was built as.");
    let (os, arch) = (std::env::consts::OS, std::env::consts::ARCH);
    build.line(&[version, ("os", os), ("arch", arch)], 1);
    page.gauge("forebay_ready", "1 while new clients are taken.")
        .is(u64::from(snapshot.ready));
    let stats = &snapshot.server;
    page.gauge("forebay_connections", "Connections open now.")
        .is(stats.connections);
    page.gauge("forebay_connections_limit", "Connections that may be open.")
        .is(snapshot.max_connections);
    for (name, help, value) in [
        (
            "forebay_connections_accepted_total",
            "Connections taken.",
            stats.accepted,
        ),
        (
            "forebay_connections_refused_total",
            "Connections rejected because of a limit.",
            stats.refused,
        ),
        (
            "forebay_connections_unauthorized_total",
            "Clients rejected because of a missing or invalid token.",
            stats.unauthorized,
        ),
        (
            "forebay_connections_failed_total",
            "Connections that did not end by their client's choice.",
            stats.failed,
        ),
        (
            "forebay_streams_handed_over_total",
            "Streams that migrated to another server when this one stopped.",
            stats.handed_over,
        ),
        (
            "forebay_accept_errors_total",
            "Failures of the system to accept a connection.",
            stats.accept_errors,
        ),
    ] {
        page.counter(name, help).is(value);
    }
}

/// Writes the metrics of streams, by name.
fn streams(page: &mut Page, snapshot: &Snapshot) {
    type Count = fn(&NameTotals) -> u64;
    let counts: [(&'static str, &str, Count); 6] = [
        ("forebay_streams_total", "Streams opened.", |t| t.streams),
        ("forebay_batches_total", "Batches sent.", |t| t.batches),
        (
            "forebay_samples_total",
            "Samples sent, padding included.",
            |t| t.images,
        ),
        (
            "forebay_payload_bytes_total",
            "Bytes of batches sent.",
            |t| t.payload_bytes,
        ),
        (
            "forebay_storage_read_bytes_total",
            "Bytes read from storage.",
            |t| t.bytes_read,
        ),
        (
            "forebay_samples_failed_total",
            "Samples that could not be read or decoded, and were replaced.",
            |t| t.failed,
        ),
    ];
    for (family, help, count) in counts {
        let mut family = page.counter(family, help);
        for (name, totals) in &snapshot.totals {
            family.line(&[("name", name)], count(totals));
        }
    }
    let mut failures = page.counter(
        "forebay_stream_failures_total",
        "Streams that ended with an error that was sent to the client.",
    );
    for (name, totals) in &snapshot.totals {
        for (kind, count) in &totals.failures {
            let kind = kind.trim_start_matches("KIND_").to_ascii_lowercase();
            failures.line(&[("name", name), ("kind", &kind)], count);
        }
    }
    let mut stages = page.counter(
        "forebay_stage_seconds_total",
        "Time of each stage: busy, starved (waiting for input), blocked (waiting for room).",
    );
    for (name, totals) in &snapshot.totals {
        for (stage, times) in &totals.stages {
            for (state, time) in ["busy", "starved", "blocked"].iter().zip(times) {
                let labels = [("name", name.as_str()), ("stage", stage), ("state", state)];
                stages.line(&labels, time);
            }
        }
    }
    let mut starved = page.counter(
        "forebay_trainer_starved_seconds_total",
        "Time during which trainers waited for batches.",
    );
    for (name, totals) in &snapshot.totals {
        starved.line(&[("name", name)], totals.starved_s);
    }
    let mut reads = page.family(
        "forebay_read_seconds",
        "histogram",
        "Duration of reads of record ranges, from storage or its cache.",
    );
    for (name, totals) in &snapshot.totals {
        let times = &totals.reads;
        reads.histogram(
            &[("name", name)],
            &READ_BOUNDS_S,
            &times.counts,
            times.sum_s,
        );
    }
    let mut open: BTreeMap<&str, Open> = snapshot
        .totals
        .keys()
        .map(|name| (name.as_str(), Open::default()))
        .collect();
    for stream in &snapshot.streams {
        let of_name = open.entry(&stream.live.name).or_default();
        of_name.streams += 1;
        of_name.credit = of_name.credit.saturating_add(stream.live.credit_bytes);
        of_name.queues.push(stream.queues);
    }
    let mut streams = page.gauge("forebay_streams", "Streams open now.");
    for (name, of_name) in &open {
        streams.line(&[("name", name)], of_name.streams);
    }
    let mut credit = page.gauge(
        "forebay_credit_bytes",
        "Unused credit of clients in bytes; 0 if they are slower than the server.",
    );
    for (name, of_name) in &open {
        credit.line(&[("name", name)], of_name.credit);
    }
    queues(page, &open);
}

/// Sums over the open streams of a name.
#[derive(Default)]
struct Open {
    streams: u64,
    credit: u64,
    queues: Vec<Queues>,
}

fn queues(page: &mut Page, open: &BTreeMap<&str, Open>) {
    type Depth = fn(&Queues) -> u64;
    let samples: [(&'static str, Depth); 3] = [
        ("planned", |q| q.planned_samples),
        ("unread", |q| q.unread_samples),
        ("undecoded", |q| q.undecoded_samples),
    ];
    let batches: [(&'static str, Depth); 2] = [
        ("making", |q| q.making_batches),
        ("ready", |q| q.ready_batches),
    ];
    type Depths<'a> = &'a [(&'static str, Depth)];
    let families: [(&'static str, &str, Depths<'_>); 2] = [
        (
            "forebay_queue_samples",
            "Samples waiting for a place in a batch (planned), for their record (unread), or for a decode thread (undecoded).",
            &samples,
        ),
        (
            "forebay_queue_batches",
            "Incomplete batches (making), and batches waiting for their client (ready).",
            &batches,
        ),
    ];
    for (name, help, depths) in families {
        let mut family = page.gauge(name, help);
        for (name, of_name) in open {
            for (queue, depth) in depths {
                let sum: u64 = of_name.queues.iter().map(depth).sum();
                family.line(&[("name", name), ("queue", queue)], sum);
            }
        }
    }
    let mut memory = page.gauge(
        "forebay_memory_bytes",
        "Bytes of records and batches held for open streams.",
    );
    for (name, of_name) in open {
        let sum: u64 = of_name.queues.iter().map(|q| q.memory_bytes).sum();
        memory.line(&[("name", name)], sum);
    }
}

/// Writes the progress of the ranks of each job.
fn ranks(page: &mut Page, snapshot: &Snapshot) {
    let mut steps: BTreeMap<&str, BTreeMap<u64, u64>> = BTreeMap::new();
    for live in snapshot.streams.iter().map(|stream| &stream.live) {
        if live.is_job {
            // A rank that reconnects may appear twice for a moment.
            let ranks = steps.entry(&live.name).or_default();
            let step = ranks.entry(live.rank).or_default();
            *step = live.step.max(*step);
        }
    }
    let mut step = page.gauge(
        "forebay_job_step",
        "Batches sent to a rank since the start of epoch 0.",
    );
    each_rank(&steps, |labels, at, _| step.line(labels, at));
    let mut lag = page.gauge(
        "forebay_job_lag_batches",
        "Batches by which a rank is behind the most advanced one of its job.",
    );
    each_rank(&steps, |labels, at, first| lag.line(labels, first - at));
}

/// Calls `each` with the labels of a rank, its step, and the step of the most advanced rank.
fn each_rank(
    steps: &BTreeMap<&str, BTreeMap<u64, u64>>,
    mut each: impl FnMut(&exposition::Labels<'_>, u64, u64),
) {
    for (name, ranks) in steps {
        let first = ranks.values().copied().max().unwrap_or(0);
        for (rank, &step) in ranks {
            let labels = [("name", *name), ("rank", &rank.to_string())];
            each(&labels, step, first);
        }
    }
}

fn cache(page: &mut Page, environment: &Environment) {
    type Count = fn(&TierStats) -> u64;
    let counters: [(&'static str, &str, Count); 6] = [
        (
            "forebay_cache_hits_total",
            "Blocks that were found in the cache.",
            |t| t.hits,
        ),
        (
            "forebay_cache_hit_bytes_total",
            "Bytes that readers got from the cache.",
            |t| t.hit_bytes,
        ),
        (
            "forebay_cache_stored_bytes_total",
            "Bytes that were stored in the cache.",
            |t| t.stored_bytes,
        ),
        (
            "forebay_cache_evictions_total",
            "Blocks evicted to make room for others.",
            |t| t.evictions,
        ),
        (
            "forebay_cache_evicted_bytes_total",
            "Bytes of evicted blocks.",
            |t| t.evicted_bytes,
        ),
        (
            "forebay_cache_damaged_total",
            "Blocks that failed their checksum and were fetched again.",
            |t| t.damaged,
        ),
    ];
    let gauges: [(&'static str, &str, Count); 2] = [
        ("forebay_cache_bytes", "Bytes taken by the cache.", |t| {
            t.used_bytes
        }),
        (
            "forebay_cache_limit_bytes",
            "Capacity of the cache in bytes.",
            |t| t.limit_bytes,
        ),
    ];
    let stats = environment.cache.as_ref();
    // A tier that is not configured has no lines.
    let tiers: Vec<(&str, &TierStats)> = stats
        .into_iter()
        .flat_map(|stats| [("memory", &stats.memory), ("disk", &stats.disk)])
        .filter(|(_, tier)| tier.limit_bytes > 0)
        .collect();
    let counters = counters.map(|(name, help, count)| (name, "counter", help, count));
    let gauges = gauges.map(|(name, help, count)| (name, "gauge", help, count));
    for (name, kind, help, count) in counters.into_iter().chain(gauges) {
        let mut family = page.family(name, kind, help);
        for (tier, stats) in &tiers {
            family.line(&[("tier", tier)], count(stats));
        }
    }
    for (name, help, value) in [
        (
            "forebay_cache_misses_total",
            "Blocks that were in no tier of the cache.",
            stats.map(|s| s.misses),
        ),
        (
            "forebay_cache_miss_bytes_total",
            "Requested bytes that were not in the cache.",
            stats.map(|s| s.miss_bytes),
        ),
        (
            "forebay_cache_fetched_bytes_total",
            "Bytes that the cache fetched from the store.",
            stats.map(|s| s.fetched_bytes),
        ),
        (
            "forebay_cache_around_bytes_total",
            "Fetched bytes that were not stored, for lack of room.",
            stats.map(|s| s.around_bytes),
        ),
        (
            "forebay_cache_waits_total",
            "Times a reader waited for a block that another reader fetched.",
            stats.map(|s| s.waited),
        ),
    ] {
        let mut family = page.counter(name, help);
        if let Some(value) = value {
            family.line(&[], value);
        }
    }
}

fn stores(page: &mut Page, stores: &[Traffic]) {
    type Count = fn(&Traffic) -> u64;
    let families: [(&'static str, &str, &str, Count); 8] = [
        (
            "forebay_store_requests_total",
            "counter",
            "Requests to a store, including retries.",
            |t| t.requests,
        ),
        (
            "forebay_store_retries_total",
            "counter",
            "Retried requests.",
            |t| t.retries,
        ),
        (
            "forebay_store_throttles_total",
            "counter",
            "Responses that asked to slow down.",
            |t| t.throttles,
        ),
        (
            "forebay_store_hedges_total",
            "counter",
            "Hedged reads: duplicates of slow reads.",
            |t| t.hedges,
        ),
        (
            "forebay_store_failures_total",
            "counter",
            "Operations that failed after all retries.",
            |t| t.failures,
        ),
        (
            "forebay_store_read_bytes_total",
            "counter",
            "Bytes that were read in ranges.",
            |t| t.read_bytes,
        ),
        (
            "forebay_store_requests_in_flight",
            "gauge",
            "Requests under way.",
            |t| t.in_flight,
        ),
        (
            "forebay_store_requests_limit",
            "gauge",
            "Limit of concurrent requests; lower after a store asked to slow down.",
            |t| t.limit,
        ),
    ];
    for (name, kind, help, count) in families {
        let mut family = page.family(name, kind, help);
        for traffic in stores {
            family.line(&[("store", &traffic.store)], count(traffic));
        }
    }
    let mut first_byte = page.family(
        "forebay_store_first_byte_seconds",
        "summary",
        "Time to the first byte of a range; quantiles are over recent reads.",
    );
    for traffic in stores {
        let store = ("store", traffic.store.as_str());
        if let Some((half, most)) = traffic.usual_s {
            first_byte.line(&[store, ("quantile", "0.5")], half);
            first_byte.line(&[store, ("quantile", "0.95")], most);
        }
        first_byte.suffixed("_sum", &[store], traffic.first_byte_s);
        first_byte.suffixed("_count", &[store], traffic.reads);
    }
}

/// Writes process metrics under the names that Prometheus client libraries use.
fn process(page: &mut Page, process: &Process) {
    page.counter(
        "process_cpu_seconds_total",
        "User and system CPU time of the process in seconds.",
    )
    .is(process.cpu_s);
    for (name, help, value) in [
        (
            "process_resident_memory_bytes",
            "Resident memory of the process, shared memory included.",
            process.resident_bytes,
        ),
        (
            "process_virtual_memory_bytes",
            "Virtual memory of the process.",
            process.virtual_bytes,
        ),
        (
            "process_open_fds",
            "Open file descriptors.",
            process.open_files,
        ),
        (
            "process_max_fds",
            "Limit of open file descriptors.",
            process.max_files,
        ),
        (
            "process_threads",
            "Threads of the process.",
            process.threads,
        ),
    ] {
        page.gauge(name, help).is(value);
    }
    page.gauge(
        "process_start_time_seconds",
        "Start time of the process, in seconds since 1970.",
    )
    .is(process.started_s);
}

#[cfg(test)]
mod tests {
    use super::*;
    use forebay_server::snapshot::{LiveStream, OpenStream};
    use forebay_wire::{Peer, wire};

    #[test]
    fn the_page_has_all_metrics_and_the_lag_of_ranks() {
        let mut totals = NameTotals::default();
        let stage = wire::Stage {
            name: "decode".to_owned(),
            busy_s: 1.5,
            ..wire::Stage::default()
        };
        let stats = wire::Stats {
            batches: 3,
            payload_bytes: 300,
            stages: vec![stage],
            ..wire::Stats::default()
        };
        let mut reads = forebay_loader::ReadTimes::default();
        reads.counts[2] = 4;
        reads.sum_s = 0.5;
        totals.add(&stats, &reads);
        totals.add(&stats, &reads);
        totals.failures.insert("KIND_IMAGE", 2);
        totals.starved_s = 1.5;
        let stream = |rank, step| OpenStream {
            connection: rank,
            peer: Peer::Process(7),
            transport: "shm",
            connections: 1,
            live: LiveStream {
                name: "resnet".to_owned(),
                is_job: true,
                rank,
                step,
                credit_bytes: 10,
                ..LiveStream::default()
            },
            stats: wire::Stats::default(),
            counted: wire::Stats::default(),
            starved_s: 0.0,
            queues: {
                let mut queues = Queues::default();
                (queues.unread_samples, queues.ready_batches) = (5, 2);
                queues
            },
            reads: forebay_loader::ReadTimes::default(),
        };
        let snapshot = Snapshot {
            ready: true,
            totals: [("resnet".to_owned(), totals)].into(),
            streams: vec![stream(0, 7), stream(1, 4), stream(1, 5)],
            ..Snapshot::default()
        };
        let mut environment = Environment::default();
        let mut cache = forebay_cache::CacheStats::default();
        cache.disk.hits = 9;
        cache.disk.limit_bytes = 100;
        cache.misses = 3;
        environment.cache = Some(cache);
        let mut traffic = Traffic::default();
        traffic.store = "s3://a\"b".to_owned();
        traffic.usual_s = Some((0.25, 0.5));
        environment.stores.push(traffic);
        let page = render(&snapshot, &environment);
        for line in [
            "forebay_ready 1",
            "forebay_batches_total{name=\"resnet\"} 6",
            "forebay_payload_bytes_total{name=\"resnet\"} 600",
            "forebay_stage_seconds_total{name=\"resnet\",stage=\"decode\",state=\"busy\"} 3",
            "forebay_stream_failures_total{name=\"resnet\",kind=\"image\"} 2",
            "forebay_trainer_starved_seconds_total{name=\"resnet\"} 1.5",
            "forebay_streams{name=\"resnet\"} 3",
            "forebay_credit_bytes{name=\"resnet\"} 30",
            "forebay_queue_samples{name=\"resnet\",queue=\"unread\"} 15",
            "forebay_queue_batches{name=\"resnet\",queue=\"ready\"} 6",
            "forebay_job_step{name=\"resnet\",rank=\"0\"} 7",
            "forebay_job_lag_batches{name=\"resnet\",rank=\"0\"} 0",
            "forebay_job_lag_batches{name=\"resnet\",rank=\"1\"} 2",
            "forebay_read_seconds_bucket{name=\"resnet\",le=\"0.001\"} 0",
            "forebay_read_seconds_bucket{name=\"resnet\",le=\"0.0025\"} 8",
            "forebay_read_seconds_bucket{name=\"resnet\",le=\"+Inf\"} 8",
            "forebay_read_seconds_sum{name=\"resnet\"} 1",
            "forebay_read_seconds_count{name=\"resnet\"} 8",
            "forebay_cache_hits_total{tier=\"disk\"} 9",
            "forebay_cache_misses_total 3",
            "forebay_store_requests_total{store=\"s3://a\\\"b\"} 0",
            "forebay_store_first_byte_seconds{store=\"s3://a\\\"b\",quantile=\"0.95\"} 0.5",
        ] {
            assert!(page.lines().any(|found| found == line), "{line} in\n{page}");
        }
        assert!(!page.contains("tier=\"memory\""), "there is none:\n{page}");
    }
}
