//! What a server did and does, as Prometheus reads it. The names of metrics and labels stay as they are.

use std::collections::BTreeMap;
use std::fmt::Write;

use forebay_wire::wire;

use crate::stats::ServerStats;

/// What the streams of one name did, those that ended and those that go on.
#[derive(Debug, Clone, Default)]
pub(crate) struct Totals {
    pub(crate) streams: u64,
    pub(crate) batches: u64,
    pub(crate) images: u64,
    pub(crate) payload_bytes: u64,
    pub(crate) bytes_read: u64,
    pub(crate) failed: u64,
    /// Busy, starved and blocked seconds of each stage.
    pub(crate) stages: BTreeMap<String, [f64; 3]>,
}

impl Totals {
    /// Adds a stream.
    pub(crate) fn add(&mut self, stats: &wire::Stats) {
        self.streams += 1;
        self.batches += stats.batches;
        self.images += stats.images;
        self.payload_bytes += stats.payload_bytes;
        self.bytes_read += stats.bytes_read;
        self.failed += stats.failed;
        for stage in &stats.stages {
            let times = self.stages.entry(stage.name.clone()).or_default();
            for (time, more) in
                times
                    .iter_mut()
                    .zip([stage.busy_s, stage.starved_s, stage.blocked_s])
            {
                *time += more;
            }
        }
    }
}

/// A stream that is open.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(crate) struct Live {
    pub(crate) name: String,
    pub(crate) is_job: bool,
    pub(crate) rank: u64,
    /// Batches of all epochs before the next one.
    pub(crate) step: u64,
    /// What its client has room for.
    pub(crate) credit_bytes: u64,
}

/// Writes everything. `totals` has those of open streams, too.
pub(crate) fn render(
    server: &ServerStats,
    ready: bool,
    totals: &BTreeMap<String, Totals>,
    live: &[Live],
) -> String {
    let mut page = Page(String::new());
    let version = [("version", env!("CARGO_PKG_VERSION"))];
    page.family("forebay_server_info", "gauge", "The server itself.");
    page.line("forebay_server_info", &version, 1);
    let numbers = [
        (
            "forebay_ready",
            "gauge",
            "1 while new clients are taken.",
            u64::from(ready),
        ),
        (
            "forebay_connections",
            "gauge",
            "Connections open now.",
            server.connections,
        ),
        (
            "forebay_connections_accepted_total",
            "counter",
            "Connections taken.",
            server.accepted,
        ),
        (
            "forebay_connections_refused_total",
            "counter",
            "Connections turned away because of a limit.",
            server.refused,
        ),
        (
            "forebay_connections_unauthorized_total",
            "counter",
            "Clients without a token that lets them in.",
            server.unauthorized,
        ),
        (
            "forebay_connections_failed_total",
            "counter",
            "Connections that ended otherwise than by their client's wish.",
            server.failed,
        ),
        (
            "forebay_streams_handed_over_total",
            "counter",
            "Streams that went on elsewhere when the server was to stop.",
            server.handed_over,
        ),
        (
            "forebay_accept_errors_total",
            "counter",
            "Times the system gave no further connection.",
            server.accept_errors,
        ),
    ];
    for (name, kind, help, value) in numbers {
        page.family(name, kind, help);
        page.line(name, &[], value);
    }
    type Count = fn(&Totals) -> u64;
    let counts: [(&str, &str, Count); 6] = [
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
        page.family(family, "counter", help);
        for (name, totals) in totals {
            page.line(family, &[("name", name)], count(totals));
        }
    }
    const STAGES: &str = "forebay_stage_seconds_total";
    page.family(
        STAGES,
        "counter",
        "Time of each stage: busy, starved (waiting for input), blocked (waiting for room).",
    );
    for (name, totals) in totals {
        for (stage, times) in &totals.stages {
            for (state, time) in ["busy", "starved", "blocked"].iter().zip(times) {
                let labels = [("name", name.as_str()), ("stage", stage), ("state", state)];
                page.line(STAGES, &labels, time);
            }
        }
    }
    let mut open: BTreeMap<&str, (u64, u64)> =
        totals.keys().map(|name| (name.as_str(), (0, 0))).collect();
    let mut steps: BTreeMap<&str, BTreeMap<u64, u64>> = BTreeMap::new();
    for stream in live {
        let (streams, credit) = open.entry(&stream.name).or_default();
        *streams += 1;
        *credit = credit.saturating_add(stream.credit_bytes);
        if stream.is_job {
            // A rank that connects again may be there twice for a moment.
            let ranks = steps.entry(&stream.name).or_default();
            let step = ranks.entry(stream.rank).or_default();
            *step = stream.step.max(*step);
        }
    }
    page.family("forebay_streams", "gauge", "Streams open now.");
    for (name, (streams, _)) in &open {
        page.line("forebay_streams", &[("name", name)], streams);
    }
    page.family(
        "forebay_credit_bytes",
        "gauge",
        "Bytes that clients have room for: 0 where they are slower than the server.",
    );
    for (name, (_, credit)) in &open {
        page.line("forebay_credit_bytes", &[("name", name)], credit);
    }
    page.family(
        "forebay_job_step",
        "gauge",
        "Batches that a rank was sent since epoch 0.",
    );
    each_rank(&steps, |name, rank, step, _| {
        page.line("forebay_job_step", &[("name", name), ("rank", rank)], step);
    });
    page.family(
        "forebay_job_lag_batches",
        "gauge",
        "Batches that a rank is behind the first one of its job.",
    );
    each_rank(&steps, |name, rank, step, first| {
        let labels = [("name", name), ("rank", rank)];
        page.line("forebay_job_lag_batches", &labels, first - step);
    });
    page.0
}

/// Calls `each` with the job, the rank, its step and the step of the rank that is first.
fn each_rank(
    steps: &BTreeMap<&str, BTreeMap<u64, u64>>,
    mut each: impl FnMut(&str, &str, u64, u64),
) {
    for (name, ranks) in steps {
        let first = ranks.values().copied().max().unwrap_or(0);
        for (rank, &step) in ranks {
            each(name, &rank.to_string(), step, first);
        }
    }
}

struct Page(String);

impl Page {
    fn family(&mut self, name: &str, kind: &str, help: &str) {
        // Writing to a string does not fail.
        let _ = writeln!(self.0, "# HELP {name} {help}\n# TYPE {name} {kind}");
    }

    fn line(&mut self, name: &str, labels: &[(&str, &str)], value: impl std::fmt::Display) {
        self.0.push_str(name);
        for (i, (label, text)) in labels.iter().enumerate() {
            let gap = if i == 0 { '{' } else { ',' };
            let text = text
                .replace('\\', "\\\\")
                .replace('"', "\\\"")
                .replace('\n', "\\n");
            let _ = write!(self.0, "{gap}{label}=\"{text}\"");
        }
        if !labels.is_empty() {
            self.0.push('}');
        }
        let _ = writeln!(self.0, " {value}");
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_page_has_every_name_and_how_far_ranks_are_behind() {
        let mut totals = Totals::default();
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
        totals.add(&stats);
        totals.add(&stats);
        let totals = [("resnet".to_owned(), totals)].into();
        let live = |rank, step| Live {
            name: "resnet".to_owned(),
            is_job: true,
            rank,
            step,
            credit_bytes: 10,
        };
        let page = render(
            &ServerStats::default(),
            true,
            &totals,
            &[live(0, 7), live(1, 4), live(1, 5)],
        );
        for line in [
            "forebay_ready 1",
            "forebay_batches_total{name=\"resnet\"} 6",
            "forebay_payload_bytes_total{name=\"resnet\"} 600",
            "forebay_stage_seconds_total{name=\"resnet\",stage=\"decode\",state=\"busy\"} 3",
            "forebay_streams{name=\"resnet\"} 3",
            "forebay_credit_bytes{name=\"resnet\"} 30",
            "forebay_job_step{name=\"resnet\",rank=\"0\"} 7",
            "forebay_job_lag_batches{name=\"resnet\",rank=\"0\"} 0",
            "forebay_job_lag_batches{name=\"resnet\",rank=\"1\"} 2",
        ] {
            assert!(page.lines().any(|found| found == line), "{line} in\n{page}");
        }
        let families = page.lines().filter(|line| line.starts_with("# TYPE "));
        let mut names: Vec<_> = families.collect();
        let count = names.len();
        names.dedup();
        assert_eq!(names.len(), count);
    }
}
