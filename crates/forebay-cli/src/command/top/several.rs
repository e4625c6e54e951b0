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
        let mut columns = vec![
            ("server", Align::Left),
            ("state", Align::Left),
            ("images/s", Align::Right),
            ("streams", Align::Right),
            ("waits", Align::Right),
            ("cache", Align::Right),
            ("limit", Align::Left),
        ];
        if self.is_wide() {
            columns.push(("", Align::Left));
        }
        let mut table = Table::new(&columns);
        for server in servers {
            table.row(self.row(server));
        }
        lines.extend(table.lines(self.paint));
        lines.push(String::new());
        for (since, failure) in servers.iter().filter_map(|server| server.silent.as_ref()) {
            let silent = quantity::eta(since.elapsed());
            let text = format!("no answer for {silent}: {}", failure.message());
            lines.push(self.paint.red(printable(&text)));
        }
        let hint = format!("one server alone: forebay top {}", servers[0].name);
        lines.push(self.paint.dim(printable(&hint)));
        lines.into_iter().map(|line| self.cut(&line)).collect()
    }

    fn row(&self, server: &Server) -> Vec<String> {
        let paint = self.paint;
        let mut name = printable(&server.name);
        // Names of one cluster differ at their start.
        let others = if self.is_wide() { 67 } else { 57 };
        let most = self.columns.saturating_sub(others).max(1);
        if let Some((end, _)) = name.char_indices().nth(most) {
            name.truncate(end);
            name.pop();
            name.push('…');
        }
        let Some(report) = server.report() else {
            return vec![name, paint.red("no answer")];
        };
        let state = match report.state.as_str() {
            "serving" => paint.green("serving"),
            other => paint.yellow(printable(other)),
        };
        let history = &report.history;
        let percent = |part: f64| format!("{:.0} %", part * 100.0);
        let limit = printable(&report.bottleneck.bound);
        let points = usize::try_from(history.points).unwrap_or(0);
        let mut row = vec![
            name,
            state,
            rate(report.now.images_per_s),
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
        ];
        if self.is_wide() {
            row.push(paint.cyan(spark(&history.images_per_s, points, SHORT_LINE)));
        }
        row
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
            "is the slowest of 3 servers:\ndecode-bound: why; no answer from data-2:7071",
            "images      2,000/s",
            "  server                   state      images/s  streams  waits  cache  limit",
            "  data-0:7071              serving       1,000        1   25 %      -  trainer",
            "  data-1.data.training.s…  serving       1,000        1   25 %      -  decode",
            "  data-2:7071              no answer",
            "no answer for 1s: cannot ask data-2:7071: \\u{1b}[2J refused",
            "one server alone: forebay top data-0:7071",
        ] {
            assert!(text.contains(part), "no {part:?} in\n{text}");
        }
        let wide = lines(100, false, &servers).join("\n");
        assert!(wide.contains("trainer        ▅█"), "{wide}");
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
