//! Formats a report as lines of text, which depend only on the report and the [`View`].

use std::time::Duration;

use ::console::truncate_str;
use forebay_monitor::report::{Rank, Report, Served, StageReport};

use super::watch::Server;
use crate::paint::{Paint, printable};
use crate::quantity::{self, bytes, count, counted};
use crate::table::{Align, Table, width, wrap};

/// Widths in characters: of the sparklines of the server and of a rank, and of a bar.
const LINE: usize = 24;
pub(super) const SHORT_LINE: usize = 8;
const BAR: usize = 28;
const EVENTS: usize = 6;
const LEVELS: [char; 8] = ['▁', '▂', '▃', '▄', '▅', '▆', '▇', '█'];

/// Parameters of the output.
pub(super) struct View {
    pub(super) columns: usize,
    pub(super) paint: Paint,
}

impl View {
    /// Formats the last report of a server.
    pub(super) fn lines(&self, server: &Server, report: &Report) -> Vec<String> {
        let silent = server.silent.as_ref().map(|(since, _)| since.elapsed());
        let mut lines = self.head(&server.name, silent, report);
        lines.extend(self.overview(report));
        let (busy, quiet): (Vec<&Served>, Vec<&Served>) = report
            .served
            .iter()
            .partition(|served| !served.ranks.is_empty());
        for served in &busy {
            lines.push(String::new());
            lines.extend(self.served(served, busy.len() > 1));
        }
        if !quiet.is_empty() {
            lines.push(String::new());
        }
        for served in quiet {
            let sent = match served.totals.images {
                0 => "no trainer so far".to_owned(),
                images => format!(
                    "no trainer now, {} sent",
                    counted(images, "image", "images")
                ),
            };
            let name = self.paint.bold(printable(&served.name));
            lines.push(format!("{name}  {}, {sent}", kind(served)));
        }
        lines.extend(self.storage(report));
        lines.extend(self.events(report));
        lines.into_iter().map(|line| self.cut(&line)).collect()
    }

    /// Formats the state and the bottleneck. `silent` is the time since a server no longer answers.
    pub(super) fn head(
        &self,
        target: &str,
        silent: Option<Duration>,
        report: &Report,
    ) -> Vec<String> {
        let paint = self.paint;
        let up = Duration::try_from_secs_f64(report.time_s - report.started_s).unwrap_or_default();
        let state = match (silent, report.state.as_str()) {
            (Some(silent), _) => {
                let lost = quantity::eta(silent);
                paint.red(format!("connection lost {lost} ago, asking again"))
            }
            (None, "serving") => paint.green("serving"),
            (None, other) => paint.yellow(printable(other)),
        };
        let left = format!(
            "{} on {}  {state}",
            paint.bold("forebay"),
            printable(target)
        );
        let right = format!("up {}  {}", quantity::eta(up), printable(&report.version));
        let gap = self.columns.saturating_sub(width(&left) + width(&right));
        let mut lines = match gap {
            0..2 => vec![left],
            gap => vec![format!("{left}{}{}", " ".repeat(gap), paint.dim(right))],
        };
        let bottleneck = printable(&report.bottleneck.text);
        for line in wrap(&bottleneck, self.columns) {
            lines.push(match report.bottleneck.bound.as_str() {
                "trainer" => paint.green(line),
                "idle" | "unknown" => paint.dim(line),
                _ => paint.yellow(line),
            });
        }
        lines.push(String::new());
        lines
    }

    pub(super) fn overview(&self, report: &Report) -> Vec<String> {
        let (now, process) = (&report.now, &report.process);
        let points = usize::try_from(report.history.points).unwrap_or(0);
        let line = |values: &[f64]| self.paint.cyan(spark(values, points, LINE));
        let connections = &report.connections;
        let cores = match process.cores {
            0 => format!("{:.1} cores", process.cpu_cores),
            cores => format!("{:.1} of {cores} cores", process.cpu_cores),
        };
        let streams = format!(
            "{} of {}, {}",
            count(connections.open),
            count(connections.limit),
            counted(connections.streams, "stream", "streams")
        );
        [
            (
                "images",
                format!("{}/s", rate(now.images_per_s)),
                line(&report.history.images_per_s),
                "cpu",
                cores,
            ),
            (
                "sent",
                format!("{}/s", bytes(now.payload_bytes_per_s as u64)),
                line(&report.history.payload_bytes_per_s),
                "memory",
                bytes(process.resident_bytes),
            ),
            (
                "read",
                format!("{}/s", bytes(now.read_bytes_per_s as u64)),
                line(&report.history.read_bytes_per_s),
                "open",
                streams,
            ),
        ]
        .into_iter()
        .map(|(name, value, line, other, what)| {
            let (name, other) = (
                self.paint.dim(format!("{name:<7}")),
                self.paint.dim(format!("{other:<7}")),
            );
            format!("{name}{value:>12}  {line}   {other}{what}")
        })
        .collect()
    }

    fn served(&self, served: &Served, with_bottleneck: bool) -> Vec<String> {
        let paint = self.paint;
        let now = &served.now;
        let mut lines = vec![format!(
            "{}  {}  {} images/s, {} batches/s, {}/s",
            paint.bold(printable(&served.name)),
            kind(served),
            rate(now.images_per_s),
            rate(now.batches_per_s),
            bytes(now.payload_bytes_per_s as u64),
        )];
        if with_bottleneck {
            let text = printable(&served.bottleneck.text);
            let indented = wrap(&text, self.columns.saturating_sub(2)).into_iter();
            lines.extend(indented.map(|line| paint.dim(format!("  {line}"))));
        }
        for (stage, name) in [("fetch", "read"), ("decode", "decode"), ("send", "send")] {
            if let Some(found) = served.stages.iter().find(|found| found.name == stage) {
                lines.push(self.stage(name, found, &served.stages));
            }
        }
        lines.extend(self.ranks(served));
        if served.totals.failed_samples > 0 {
            let samples = counted(served.totals.failed_samples, "sample", "samples");
            lines.push(paint.red(format!(
                "  {samples} could not be read or decoded, and replaced"
            )));
            if let Some(last) = served.failures.last() {
                lines.push(format!("  the last one: {}", printable(last)));
            }
        }
        lines
    }

    fn stage(&self, name: &str, stage: &StageReport, all: &[StageReport]) -> String {
        let transform = all
            .iter()
            .find(|other| stage.name == "decode" && other.name == "transform");
        let busy = stage.busy + transform.map_or(0.0, |transform| transform.busy);
        let cells = |part: f64| (part.clamp(0.0, 1.0) * BAR as f64).round() as usize;
        let (worked, starved) = (cells(busy), cells(busy + stage.starved));
        let end = cells(busy + stage.starved + stage.blocked);
        let run = |c: &str, from: usize, to: usize| c.repeat(to.saturating_sub(from));
        let bar = format!(
            "{}{}{}{}",
            self.paint.cyan(run("█", 0, worked)),
            self.paint.yellow(run("▒", worked, starved)),
            self.paint.dim(run("░", starved, end)),
            run(" ", end.max(worked), BAR),
        );
        let percent = |part: f64| format!("{:>3.0} %", part.clamp(0.0, 1.0) * 100.0);
        format!(
            "  {name:<6} {bar}  busy {}  starved {}  blocked {}",
            percent(busy),
            percent(stage.starved),
            percent(stage.blocked)
        )
    }

    /// Whether tables have room for a further column.
    pub(super) fn is_wide(&self) -> bool {
        self.columns >= 100
    }

    fn ranks(&self, served: &Served) -> Vec<String> {
        let mut columns = vec![
            ("rank", Align::Right),
            ("epoch", Align::Right),
            ("step", Align::Right),
            ("behind", Align::Right),
            ("images/s", Align::Right),
            ("", Align::Left),
            ("waits", Align::Right),
            ("via", Align::Left),
        ];
        if self.is_wide() {
            columns.push(("from", Align::Left));
        }
        let mut table = Table::new(&columns);
        for rank in &served.ranks {
            table.row(self.rank(rank));
        }
        let mut lines = table.lines(self.paint);
        if served.more_ranks > 0 {
            lines.push(format!("  and {} more", count(served.more_ranks)));
        }
        lines
    }

    fn rank(&self, rank: &Rank) -> Vec<String> {
        let waits = format!("{:.0} %", rank.waits * 100.0);
        let behind = match rank.lag_batches {
            0 => "-".to_owned(),
            lag => count(lag),
        };
        let several = match rank.connections {
            0 | 1 => String::new(),
            n => format!(" x{n}"),
        };
        vec![
            rank.rank.to_string(),
            rank.epoch.to_string(),
            format!("{}/{}", rank.step, rank.steps),
            if rank.lag_batches > 8 {
                self.paint.yellow(behind)
            } else {
                behind
            },
            rate(rank.images_per_s),
            self.paint
                .cyan(spark(&rank.history, rank.history.len(), SHORT_LINE)),
            if rank.waits >= 0.05 {
                self.paint.yellow(waits)
            } else {
                waits
            },
            printable(&rank.transport) + &several,
            printable(&rank.peer),
        ]
    }

    fn storage(&self, report: &Report) -> Vec<String> {
        let mut lines = Vec::new();
        if let Some(cache) = &report.cache {
            let tiers = cache.tiers.iter().map(|tier| {
                format!(
                    "{} {} of {}",
                    printable(&tier.tier),
                    bytes(tier.used_bytes),
                    bytes(tier.limit_bytes)
                )
            });
            let parts: Vec<String> = [format!("{:.0} % from it", cache.hit_rate * 100.0)]
                .into_iter()
                .chain(tiers)
                .collect();
            lines.push(format!(
                "{}  {}",
                self.paint.bold("cache"),
                parts.join(", ")
            ));
        }
        for store in &report.stores {
            lines.push(format!(
                "{}  {} read, first byte {:.0}/{:.0} ms, {} retried, {} throttled, {} twice",
                self.paint.bold(printable(&store.store)),
                bytes(store.read_bytes),
                store.first_byte_p50_s * 1000.0,
                store.first_byte_p95_s * 1000.0,
                count(store.retries),
                count(store.throttles),
                count(store.hedges),
            ));
            // Older servers report no price.
            if !store.price.is_empty() {
                let cost = format!(
                    "cost ${:.4}/h in the region, ${:.4}/h over the internet; so far {}",
                    store.region_dollars_per_hour,
                    store.internet_dollars_per_hour,
                    printable(&store.price),
                );
                let indented = wrap(&cost, self.columns.saturating_sub(2)).into_iter();
                lines.extend(indented.map(|line| format!("  {line}")));
            }
        }
        if !lines.is_empty() {
            lines.insert(0, String::new());
        }
        lines
    }

    fn events(&self, report: &Report) -> Vec<String> {
        let mut lines = Vec::new();
        for event in report.events.iter().take(EVENTS) {
            let age = Duration::try_from_secs_f64(report.time_s - event.time_s).unwrap_or_default();
            let age = self.paint.dim(format!("{:>8} ago", quantity::eta(age)));
            let text = printable(&event.text);
            let text = if event.trouble {
                self.paint.red(text)
            } else {
                text
            };
            lines.push(format!("{age}  {text}"));
        }
        if !lines.is_empty() {
            lines.insert(0, String::new());
        }
        lines
    }

    /// Truncates a line to the width of the view, without counting color codes. All color codes are kept, so that colors end.
    pub(super) fn cut(&self, line: &str) -> String {
        truncate_str(line, self.columns, "…").into_owned()
    }
}

fn kind(served: &Served) -> String {
    match &served.dataset {
        Some(dataset) => format!("job of {}", printable(dataset)),
        None => printable(&served.kind),
    }
}

pub(super) fn rate(value: f64) -> String {
    match value {
        0.0 => "0".to_owned(),
        value => quantity::rate((value * 1000.0) as u64, Duration::from_secs(1000)),
    }
}

/// Returns a sparkline of the last values, with the latest at the right. `points` values fill all `characters`; each character
/// shows the mean of its values.
pub(super) fn spark(values: &[f64], points: usize, characters: usize) -> String {
    let a_character = points.max(1).div_ceil(characters);
    let means: Vec<f64> = values
        .rchunks(a_character)
        .take(characters)
        .map(|values| values.iter().sum::<f64>() / values.len() as f64)
        .collect();
    let top = means.iter().copied().fold(0.0, f64::max);
    let level = |value: f64| {
        let at = if top > 0.0 { value / top * 7.0 } else { 0.0 };
        LEVELS[(at.round() as usize).min(7)]
    };
    let missing = std::iter::repeat_n(' ', characters - means.len());
    missing
        .chain(means.iter().rev().map(|&value| level(value)))
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::failure::Failure;
    use forebay_monitor::report::{BottleneckReport, EventReport, Lines, Rates, StoreReport};

    fn report() -> Report {
        let stage = |name: &str, busy, starved, blocked| StageReport {
            name: name.to_owned(),
            threads: 8,
            busy,
            starved,
            blocked,
        };
        let rank = |rank: u64| Rank {
            rank,
            world_size: 2,
            transport: "shm".to_owned(),
            peer: "process 4711".to_owned(),
            epoch: 3,
            step: 1203 - 11 * rank,
            steps: 5004,
            lag_batches: 11 * rank,
            images_per_s: 6172.4,
            waits: 0.02 + 0.5 * rank as f64,
            history: vec![1.0, 2.0, 3.0, 4.0],
            ..Rank::default()
        };
        let now = Rates {
            images_per_s: 12_344.8,
            batches_per_s: 48.2,
            payload_bytes_per_s: 1.86e9,
            read_bytes_per_s: 1.12e8,
        };
        Report {
            format: 1,
            time_s: 7900.0,
            started_s: 100.0,
            version: "0.1.0".to_owned(),
            state: "serving".to_owned(),
            bottleneck: BottleneckReport {
                bound: "decode".to_owned(),
                heading: "Decoding is the limit".to_owned(),
                text: "decode-bound: 8 threads busy 97 %, the trainer waited 52 % of its time; storage could give 20.0x; add threads, or pack smaller images: `forebay pack --resize-short`".to_owned(),
            },
            now,
            history: Lines {
                step_s: 2.0,
                points: 150,
                images_per_s: (0..150).map(f64::from).collect(),
                ..Lines::default()
            },
            served: vec![
                Served {
                    name: "imagenet".to_owned(),
                    kind: "dataset".to_owned(),
                    ..Served::default()
                },
                Served {
                    name: "resnet50".to_owned(),
                    kind: "job".to_owned(),
                    dataset: Some("imagenet".to_owned()),
                    now,
                    stages: vec![
                        stage("fetch", 0.05, 0.0, 0.95),
                        stage("decode", 0.62, 0.02, 0.01),
                        stage("transform", 0.35, 0.0, 0.0),
                        stage("send", 0.1, 0.9, 0.0),
                    ],
                    ranks: vec![rank(0), rank(1)],
                    ..Served::default()
                },
            ],
            stores: vec![StoreReport {
                store: "s3://bucket".to_owned(),
                region_dollars_per_hour: 0.0125,
                internet_dollars_per_hour: 12.5,
                price: "$0.0250 in the region, $25.00 over the internet (estimated from list prices of Amazon S3 as of 2025-06-01)".to_owned(),
                ..StoreReport::default()
            }],
            events: vec![EventReport {
                number: 9,
                time_s: 7895.0,
                trouble: true,
                text: format!("connection 3: \x1b[2J vanished {}", "x".repeat(100)),
            }],
            ..Report::default()
        }
    }

    fn lines(columns: usize, on: bool, report: &Report, failure: Option<&str>) -> Vec<String> {
        let mut server = Server::new("127.0.0.1:7071".to_owned());
        if let Some(failure) = failure {
            server.take(Err(Failure::new(failure)));
        }
        let paint = Paint::new(on);
        View { columns, paint }.lines(&server, report)
    }

    #[test]
    fn a_report_fits_into_80_columns() {
        let narrow = lines(80, false, &report(), None);
        for line in &narrow {
            assert!(width(line) <= 80, "{line}");
            assert!(!line.contains('\x1b'), "{line}");
        }
        let text = narrow.join("\n");
        for part in [
            "forebay on 127.0.0.1:7071  serving",
            "up 2h 10m  0.1.0",
            "decode-bound: 8 threads busy 97 %",
            "12,345/s",
            "▁▁▂▂▂▃▃▃▄▄▄▅▅▅▆▆▆▇▇▇██",
            "resnet50  job of imagenet  12,345 images/s, 48.2 batches/s, 1.86 GB/s",
            "busy  97 %  starved   2 %  blocked   1 %",
            "1203/5004",
            "cost $0.0125/h in the region, $12.5000/h over the internet; so far $0.0250",
            "as of 2025-06-01)",
            "imagenet  dataset, no trainer so far",
            "5s ago  connection 3: \\u{1b}[2J vanished",
        ] {
            assert!(text.contains(part), "no {part:?} in\n{text}");
        }
        assert!(!text.contains("process 4711"), "for wider windows:\n{text}");
        let wide = lines(120, false, &report(), None);
        assert!(wide.join("\n").contains("process 4711"));
    }

    #[test]
    fn lines_fit_any_width_and_end_their_colors() {
        for columns in [1, 20, 40, 80, 100, 200] {
            for line in lines(columns, true, &report(), Some("gone")) {
                assert!(width(&line) <= columns, "{columns}: {line}");
                assert_eq!(line.matches("\x1b[").count() % 2, 0, "{line:?}");
            }
        }
        let empty = lines(80, false, &Report::default(), None);
        assert!(empty[0].starts_with("forebay on"), "{empty:?}");
    }

    #[test]
    fn sparklines_end_at_the_right() {
        assert_eq!(spark(&[0.0, 7.0], 8, 8), "      ▁█");
        assert_eq!(spark(&[], 8, 4), "    ");
        assert_eq!(spark(&[0.0; 8], 8, 4), "▁▁▁▁");
        let rising: Vec<f64> = (0..150).map(f64::from).collect();
        let line = spark(&rising, 150, LINE);
        assert_eq!(line.chars().count(), LINE);
        assert!(line.ends_with('█'), "{line}");
    }
}
