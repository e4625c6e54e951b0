//! Formats several servers: their total, and a row for each.

use forebay_monitor::report::Report;

use super::total::longest_wait;
use super::view::{SHORT_LINE, View, rate, spark};
use super::watch::Server;
use crate::paint::printable;
use crate::quantity::{self, count, counted};
use crate::table::{Align, Table};

impl View {
    pub(super) fn servers(&self, total: &Report, servers: &[Server]) -> Vec<String> {
        let all = counted(servers.len() as u64, "server", "servers");
        let mut lines = self.head(&all, None, total);
        lines.extend(self.overview(total));
        lines.push(String::new());
        let mut table = Table::new(&[
            ("server", Align::Left),
            ("state", Align::Left),
            ("images/s", Align::Right),
            ("", Align::Left),
            ("streams", Align::Right),
            ("waits", Align::Right),
            ("cache", Align::Right),
            ("limit", Align::Left),
        ]);
        for server in servers {
            table.row(self.row(server));
        }
        lines.extend(table.lines(self.paint));
        lines.push(String::new());
        for (_, failure) in servers.iter().filter_map(|server| server.silent.as_ref()) {
            lines.push(self.paint.red(printable(failure.message())));
        }
        let hint = format!("one server alone: forebay top {}", servers[0].name);
        lines.push(self.paint.dim(printable(&hint)));
        lines.into_iter().map(|line| self.cut(&line)).collect()
    }

    fn row(&self, server: &Server) -> Vec<String> {
        let paint = self.paint;
        let mut name = printable(&server.name);
        // Names of one cluster differ at their start.
        let most = (self.columns / 3).max(1);
        if let Some((end, _)) = name.char_indices().nth(most) {
            name.truncate(end);
            name.pop();
            name.push('…');
        }
        let Some(report) = server.report() else {
            let silent = server.silent.as_ref().map(|(since, _)| since.elapsed());
            let silent = quantity::eta(silent.unwrap_or_default());
            return vec![name, paint.red(format!("no answer {silent}"))];
        };
        let state = match report.state.as_str() {
            "serving" => paint.green("serving"),
            other => paint.yellow(printable(other)),
        };
        let history = &report.history;
        let percent = |part: f64| format!("{:.0} %", part * 100.0);
        let limit = printable(&report.bottleneck.bound);
        vec![
            name,
            state,
            rate(report.now.images_per_s),
            paint.cyan(spark(
                &history.images_per_s,
                usize::try_from(history.points).unwrap_or(0),
                SHORT_LINE,
            )),
            count(report.connections.streams),
            percent(longest_wait(report)),
            match &report.cache {
                Some(cache) => percent(cache.hit_rate),
                None => "-".to_owned(),
            },
            match limit.as_str() {
                "trainer" => paint.green(limit),
                "idle" | "unknown" => paint.dim(limit),
                _ => paint.yellow(limit),
            },
        ]
    }
}

#[cfg(test)]
mod tests {
    use super::super::total::{tests::server, total};
    use super::*;
    use crate::failure::Failure;
    use crate::paint::Paint;
    use crate::table::width;

    fn lines(columns: usize, on: bool, servers: &[Server]) -> Vec<String> {
        let paint = Paint::new(on);
        View { columns, paint }.servers(&total(servers), servers)
    }

    #[test]
    fn each_server_has_a_row() {
        let long = "data-1.data.training.svc.cluster.local:7071";
        let mut servers = ["data-0:7071", long, "data-2:7071"]
            .map(|name| server(name, if name == long { "decode" } else { "trainer" }, 0.25));
        servers[2].take(Err(Failure::new("cannot ask data-2:7071: \x1b[2J refused")));
        let text = lines(80, false, &servers).join("\n");
        for part in [
            "forebay on 3 servers  2 of 3 serving",
            "is the slowest of 3 servers: decode-bound: why; no answer from\ndata-2:7071",
            "images       2,000/s",
            "  server                      state         images/s            streams  waits  cache  limit",
            "  data-0:7071                 serving          1,000       ▅█         1   25 %      -  trainer",
            "  data-1.data.training.svc.c…  serving",
            "  data-2:7071                 no answer 1s",
            "cannot ask data-2:7071: \\u{1b}[2J refused",
            "one server alone: forebay top data-0:7071",
        ] {
            assert!(text.contains(part), "no {part:?} in\n{text}");
        }
    }

    #[test]
    fn lines_of_servers_fit_any_width_and_end_their_colors() {
        let mut servers =
            [("a", 0.1), ("b", 0.2)].map(|(name, waits)| server(name, "storage", waits));
        servers[0].take(Err(Failure::new("gone ".repeat(50))));
        for columns in [1, 20, 40, 80, 200] {
            for line in lines(columns, true, &servers) {
                assert!(width(&line) <= columns, "{columns}: {line}");
                assert_eq!(line.matches("\x1b[").count() % 2, 0, "{line:?}");
            }
        }
    }
}
