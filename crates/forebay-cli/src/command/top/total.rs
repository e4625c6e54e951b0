//! Adds the reports of several servers to one, and finds the server that holds the trainers back.

use forebay_monitor::report::{BottleneckReport, FORMAT, Lines, Rank, Report};
use serde::Serialize;

use super::watch::Server;
use crate::quantity::counted;

/// A rank that waits for less than this fraction of its time is not held back by a server without a verdict.
const HARDLY_WAITS: f64 = 0.05;

/// Several servers for a program: their total in the format of one report, and the report of each.
#[derive(Serialize)]
pub(super) struct Status<'a> {
    #[serde(flatten)]
    total: &'a Report,
    servers: Vec<ServerStatus<'a>>,
}

#[derive(Serialize)]
struct ServerStatus<'a> {
    server: &'a str,
    /// Its own page.
    url: String,
    error: Option<&'a str>,
    /// Seconds without an answer.
    silent_s: Option<u64>,
    /// The longest wait of a rank, as a fraction of its time.
    waits: Option<f64>,
    report: Option<&'a Report>,
}

impl<'a> Status<'a> {
    pub(super) fn new(total: &'a Report, servers: &'a [Server]) -> Status<'a> {
        let servers = servers.iter().map(|server| ServerStatus {
            server: &server.name,
            url: format!("http://{}/", server.name),
            error: server.silent.as_ref().map(|(_, failure)| failure.message()),
            silent_s: server
                .silent
                .as_ref()
                .map(|(since, _)| since.elapsed().as_secs()),
            waits: server.report().map(longest_wait),
            report: server.report(),
        });
        Status {
            total,
            servers: servers.collect(),
        }
    }
}

macro_rules! add {
    ($sum:expr, $one:expr; $($field:ident),+) => {
        $($sum.$field += $one.$field;)+
    };
}

/// Adds up the servers that answer. Lists of the report stay empty, since they belong to one server.
pub(super) fn total(servers: &[Server]) -> Report {
    let mut total = Report {
        format: FORMAT,
        ..Report::default()
    };
    let mut versions: Vec<&str> = Vec::new();
    let mut serving = 0;
    for report in servers.iter().filter_map(Server::report) {
        total.time_s = total.time_s.max(report.time_s);
        total.started_s = total.started_s.max(report.started_s);
        total.window_s = total.window_s.max(report.window_s);
        serving += u64::from(report.state == "serving");
        if !versions.contains(&report.version.as_str()) {
            versions.push(&report.version);
        }
        add!(total.now, report.now; images_per_s, batches_per_s, payload_bytes_per_s, read_bytes_per_s);
        add!(total.totals, report.totals; streams, images, batches, payload_bytes, read_bytes, failed_samples, failed_streams);
        add!(total.process, report.process; cpu_cores, cores, resident_bytes, threads, open_files, max_files);
        add!(total.connections, report.connections; open, streams, limit, accepted, refused, unauthorized, failed);
        add_lines(&mut total.history, &report.history);
    }
    total.version = versions.join(", ");
    total.state = match servers.len() as u64 {
        all if all == serving => "serving".to_owned(),
        all => format!("{serving} of {all} serving"),
    };
    total.bottleneck = bottleneck(servers);
    total
}

fn add_lines(sum: &mut Lines, one: &Lines) {
    sum.step_s = sum.step_s.max(one.step_s);
    sum.points = sum.points.max(one.points);
    // The latest value is the last one.
    let add = |sum: &mut Vec<f64>, one: &[f64]| {
        let missing = one.len().saturating_sub(sum.len());
        sum.splice(..0, std::iter::repeat_n(0.0, missing));
        for (sum, one) in sum.iter_mut().rev().zip(one.iter().rev()) {
            *sum += one;
        }
    };
    add(&mut sum.images_per_s, &one.images_per_s);
    add(&mut sum.payload_bytes_per_s, &one.payload_bytes_per_s);
    add(&mut sum.read_bytes_per_s, &one.read_bytes_per_s);
    add(&mut sum.cpu_cores, &one.cpu_cores);
}

/// Returns the longest wait among the ranks of the busiest name, which the server's bottleneck describes: ranks that
/// synchronize after each step all wait for this one.
pub(super) fn longest_wait(report: &Report) -> f64 {
    let active = report.served.iter().filter(|one| !one.ranks.is_empty());
    // Of equal ones the first, as in the server's own report.
    let rates = active.rev();
    let busiest = rates.max_by(|a, b| a.now.images_per_s.total_cmp(&b.now.images_per_s));
    let ranks: &[Rank] = busiest.map_or(&[], |served| &served.ranks);
    ranks.iter().map(|rank| rank.waits).fold(0.0, f64::max)
}

/// Returns the bottleneck of the server whose trainers wait longest, among those that limit their trainers.
fn bottleneck(servers: &[Server]) -> BottleneckReport {
    let answering = servers.iter().filter_map(|server| {
        let report = server.report()?;
        Some((server, &report.bottleneck, longest_wait(report)))
    });
    let order = |bound: &str, wait: f64| match bound {
        "idle" => 0,
        "unknown" if wait < HARDLY_WAITS => 1,
        "trainer" => 2,
        _ => 3,
    };
    let slowest = answering.max_by(|(_, a, a_waits), (_, b, b_waits)| {
        let (a, b) = (order(&a.bound, *a_waits), order(&b.bound, *b_waits));
        a.cmp(&b).then(a_waits.total_cmp(b_waits))
    });
    let all = counted(servers.len() as u64, "server", "servers");
    let silent: Vec<&str> = servers
        .iter()
        .filter(|server| server.silent.is_some())
        .map(|server| server.name.as_str())
        .collect();
    let Some((server, found, wait)) = slowest else {
        return BottleneckReport {
            bound: "unknown".to_owned(),
            heading: "No server answers".to_owned(),
            text: format!("none of {all} answers"),
        };
    };
    let mut text = match found.bound.as_str() {
        "trainer" => format!(
            "trainer-bound: no server holds the trainers back; the longest wait of a rank is {:.0} % of its time, at {}",
            wait * 100.0,
            server.name
        ),
        "idle" => format!("idle: no trainer is connected to any of {all}"),
        "unknown" => format!("{}: {}", server.name, found.text),
        _ => format!("{} is the slowest of {all}: {}", server.name, found.text),
    };
    if !silent.is_empty() {
        text += &format!("; no answer from {}", silent.join(", "));
    }
    BottleneckReport {
        text,
        ..found.clone()
    }
}

#[cfg(test)]
pub(super) mod tests {
    use super::*;
    use crate::failure::Failure;
    use forebay_monitor::report::{Connections, Rates, Served};

    /// A server with one stream, whose trainer waits for a fraction of its time.
    pub(in super::super) fn server(name: &str, bound: &str, waits: f64) -> Server {
        let now = Rates {
            images_per_s: 1000.0,
            ..Rates::default()
        };
        let rank = Rank {
            waits,
            ..Rank::default()
        };
        let mut server = Server::new(name.to_owned());
        server.take(Ok(Report {
            format: 1,
            time_s: 200.0,
            started_s: 100.0,
            version: "0.1.0".to_owned(),
            state: "serving".to_owned(),
            bottleneck: BottleneckReport {
                bound: bound.to_owned(),
                heading: format!("Heading of {bound}"),
                text: format!("{bound}-bound: why"),
            },
            now,
            history: Lines {
                step_s: 2.0,
                points: 3,
                images_per_s: vec![500.0, 1000.0],
                ..Lines::default()
            },
            connections: Connections {
                streams: 1,
                ..Connections::default()
            },
            served: vec![Served {
                now,
                ranks: vec![rank],
                ..Served::default()
            }],
            ..Report::default()
        }));
        server
    }

    #[test]
    fn servers_add_up_and_those_without_answer_do_not_count() {
        let mut servers = ["a", "b", "c"].map(|name| server(name, "trainer", 0.0));
        let young = servers[1].last.as_mut().unwrap();
        young.history.images_per_s = vec![7.0];
        young.version = "0.2.0".to_owned();
        let whole = total(&servers);
        assert_eq!((whole.format, whole.state.as_str()), (1, "serving"));
        assert_eq!(whole.now.images_per_s, 3000.0);
        assert_eq!(whole.history.images_per_s, [1000.0, 2007.0]);
        assert_eq!(whole.connections.streams, 3);
        assert_eq!(whole.version, "0.1.0, 0.2.0");

        servers[2].take(Err(Failure::new("cannot ask c: gone")));
        let part = total(&servers);
        assert_eq!(part.state, "2 of 3 serving");
        assert_eq!(part.now.images_per_s, 2000.0);
        assert!(part.bottleneck.text.ends_with("; no answer from c"));
        let json = serde_json::to_value(Status::new(&part, &servers)).unwrap();
        assert_eq!(json["now"]["images_per_s"], 2000.0);
        assert_eq!(json["servers"][0]["report"]["version"], "0.1.0");
        assert_eq!(json["servers"][2]["error"], "cannot ask c: gone");
        assert!(json["servers"][2]["report"].is_null());
        assert!(servers[2].last.is_some(), "a page of its own keeps it");

        for server in &mut servers {
            server.take(Err(Failure::new("gone")));
        }
        let none = total(&servers).bottleneck;
        assert_eq!(none.text, "none of 3 servers answers");
    }

    #[test]
    fn the_server_that_holds_the_trainers_back_is_named() {
        let judge = |servers: &[(&str, f64)]| {
            let names = ["a", "b", "c"];
            let servers = names.iter().zip(servers);
            let servers: Vec<Server> = servers
                .map(|(name, (bound, waits))| server(name, bound, *waits))
                .collect();
            bottleneck(&servers)
        };
        let found = judge(&[("trainer", 0.01), ("decode", 0.5), ("storage", 0.3)]);
        assert_eq!(
            (&*found.bound, &*found.heading),
            ("decode", "Heading of decode")
        );
        assert_eq!(
            found.text,
            "b is the slowest of 3 servers: decode-bound: why"
        );
        for (servers, bound, text) in [
            // A limit counts, not the wait of a trainer that has just begun.
            (
                &[("trainer", 0.9), ("network", 0.2)][..],
                "network",
                "b is the slowest",
            ),
            (
                &[("idle", 0.0), ("trainer", 0.04), ("unknown", 0.0)],
                "trainer",
                "trainer-bound: no server holds the trainers back; the longest wait of a rank is 4 % of its time, at b",
            ),
            // No batch is finished at all, and trainers wait.
            (&[("unknown", 1.0), ("decode", 0.4)], "unknown", "a: "),
            (&[("idle", 0.0), ("unknown", 0.0)], "unknown", "b: "),
            (
                &[("idle", 0.0), ("idle", 0.0)],
                "idle",
                "idle: no trainer is connected to any of 2 servers",
            ),
        ] {
            let found = judge(servers);
            assert_eq!(found.bound, bound, "{}", found.text);
            assert!(found.text.starts_with(text), "{}", found.text);
        }
    }

    #[test]
    fn the_longest_wait_is_that_of_the_busiest_name() {
        let mut server = server("a", "decode", 0.2);
        let report = server.last.as_mut().unwrap();
        let mut quiet = report.served[0].clone();
        quiet.now.images_per_s = 1.0;
        quiet.ranks[0].waits = 0.9;
        report.served.push(quiet);
        report.served[0].ranks.push(Rank {
            waits: 0.3,
            ..Rank::default()
        });
        assert_eq!(longest_wait(report), 0.3);
        assert_eq!(longest_wait(&Report::default()), 0.0);
    }
}
