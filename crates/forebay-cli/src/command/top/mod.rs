//! `forebay top`: shows the activity of servers in a terminal, from the same reports as their dashboards.

mod fetch;
mod screen;
mod several;
mod total;
mod view;
mod watch;

use std::io::IsTerminal;
use std::net::SocketAddr;
use std::time::Duration;

use clap::Args as ClapArgs;
use forebay_monitor::Overview;
use serde_json::json;

use crate::console::Console;
use crate::failure::{Failure, Outcome};
use fetch::Target;
use screen::Screen;
use total::{Status, total};
use view::View;
use watch::Watch;

/// Show rates, stages, ranks and the bottleneck of servers
#[derive(Debug, ClapArgs)]
#[command(after_help = "\
Shows what the server's dashboard shows, and is refreshed in place until Ctrl-C. If stdout is not a
terminal, one report is printed. The server needs --admin-listen.

With several servers: their total, the server that limits the trainers, and a row for each server.
`waits` is the longest wait of a rank, as a fraction of its time. A server that does not answer is
marked, not counted and asked again; the command fails if none answers. With --json the total has
the format of one server, and `servers` has each server's report.

--listen serves a page with the same for a browser, which asks this command alone.

Examples:
  forebay top                                  the server on 127.0.0.1:7071
  forebay top data-1:7071 data-2:7071          two servers of a job
  forebay top dns://feed.training.svc:7071     each address that the name has at the start
  forebay top data-2:7071                      stages and ranks of one of them
  forebay top data-1:7071 data-2:7071 --listen 127.0.0.1:8080    in a browser
  forebay top --once
  forebay top --json | jq .now.images_per_s    a report a second")]
pub(crate) struct Args {
    /// --admin-listen of each server: an address, or the URL of its dashboard
    #[arg(value_name = "HOST:PORT|URL", default_value = "127.0.0.1:7071")]
    servers: Vec<String>,

    /// Print one report and exit
    #[arg(long)]
    once: bool,

    /// Show the servers in a page on this address instead; others than loopback ask for the token that the printed address has
    #[arg(long, value_name = "ADDR:PORT", conflicts_with = "once")]
    listen: Option<SocketAddr>,
}

/// Columns of a terminal that does not report its size.
const COLUMNS: usize = 80;
/// Maximum width of a line, even in a wider window.
const WIDEST: usize = 120;
/// Time between two reports.
const INTERVAL: Duration = Duration::from_secs(1);

pub(crate) fn run(args: Args, console: &Console) -> Result<Outcome, Failure> {
    let mut watch = Watch::of(Target::parse_all(&args.servers)?);
    let interrupt = console.interrupt().answer();
    // The command ends with an error if no server answers at first. On a terminal, later errors are retried.
    watch.round(None);
    if let Some(failure) = watch.failure() {
        return Err(failure);
    }
    if let Some(address) = args.listen {
        let report = |watch: &Watch| {
            let total = total(&watch.servers);
            json!(Status::new(&total, &watch.servers)).to_string()
        };
        let page = Overview::start(address, report(&watch))?;
        console.line(page.url());
        console.event("watching", &json!({"url": page.url()}));
        console.note("Ctrl-C ends the page.");
        while !interrupt.wait_for(INTERVAL) {
            watch.round(Some(INTERVAL));
            page.show(report(&watch));
        }
        return Ok(ended(console));
    }
    let terminal = std::io::stdout().is_terminal() && !console.is_json();
    let repeats = !args.once && (terminal || console.is_json());
    let several = watch.servers.len() > 1;
    let limit = (several || terminal).then_some(INTERVAL);
    let mut screen = (repeats && terminal).then(Screen::open);
    loop {
        let (columns, rows) = match &screen {
            Some(screen) => screen.size(),
            None => (COLUMNS, usize::MAX),
        };
        let view = View {
            columns: columns.min(WIDEST),
            paint: console.paint(),
        };
        let lines = match &watch.servers[..] {
            [server] => {
                let Some(report) = &server.last else { break };
                console.event("status", report);
                view.lines(server, report)
            }
            servers => {
                let total = total(servers);
                console.event("status", &Status::new(&total, servers));
                view.servers(&total, servers)
            }
        };
        match &mut screen {
            Some(screen) => screen.draw(lines, rows),
            None => lines.iter().for_each(|line| console.line(line)),
        }
        if !repeats || interrupt.wait_for(INTERVAL) || console.is_cut_off() {
            break;
        }
        watch.round(limit);
        // On a terminal the requests are repeated until Ctrl-C, since servers may be restarted.
        if !terminal && let Some(failure) = watch.failure() {
            return Err(failure);
        }
        if screen.is_none() {
            console.blank();
        }
    }
    drop(screen);
    Ok(ended(console))
}

fn ended(console: &Console) -> Outcome {
    console.event("summary", &json!({"command": "top", "exit_code": 0}));
    Outcome::Done
}
