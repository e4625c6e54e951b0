//! `forebay top`: shows the activity of a server in a terminal, from the same report as the dashboard.

mod fetch;
mod screen;
mod view;

use std::io::IsTerminal;
use std::time::{Duration, Instant};

use clap::Args as ClapArgs;
use serde::Serialize;

use crate::console::Console;
use crate::failure::{Failure, Outcome};
use crate::quantity;
use fetch::Target;
use screen::Screen;
use view::View;

/// Show rates, stages, ranks and the bottleneck of a server
#[derive(Debug, ClapArgs)]
#[command(after_help = "\
Shows what the server's dashboard shows, and is refreshed in place until Ctrl-C. If stdout is not a
terminal, one report is printed. The server needs --admin-listen.

Examples:
  forebay top                                  the server on 127.0.0.1:7071
  forebay top data-3:7071
  forebay top --once
  forebay top --json | jq .now.images_per_s    a report a second")]
pub(crate) struct Args {
    /// The server's --admin-listen: an address, or the URL of its dashboard
    #[arg(value_name = "HOST:PORT|URL", default_value = "127.0.0.1:7071")]
    server: String,

    /// Print one report and exit
    #[arg(long)]
    once: bool,
}

/// Columns of a terminal that does not report its size.
const COLUMNS: usize = 80;
/// Maximum width of a line, even in a wider window.
const WIDEST: usize = 120;
/// Time between two reports.
const INTERVAL: Duration = Duration::from_secs(1);

pub(crate) fn run(args: Args, console: &Console) -> Result<Outcome, Failure> {
    let target = Target::parse(&args.server)?;
    let interrupt = console.interrupt().answer();
    // An error of the first request ends the command. Later errors on a terminal are retried.
    let mut report = target.report()?;
    let terminal = std::io::stdout().is_terminal() && !console.is_json();
    let repeats = !args.once && (terminal || console.is_json());
    let mut screen = (repeats && terminal).then(Screen::open);
    let mut silent_since: Option<Instant> = None;
    loop {
        console.event("status", &report);
        let (columns, rows) = match &screen {
            Some(screen) => screen.size(),
            None => (COLUMNS, usize::MAX),
        };
        let view = View {
            target: target.to_string(),
            columns: columns.min(WIDEST),
            paint: console.paint(),
            lost: silent_since.map(|since| quantity::eta(since.elapsed())),
        };
        let lines = view.lines(&report);
        match &mut screen {
            Some(screen) => screen.draw(lines, rows),
            None => {
                if silent_since.is_none() {
                    lines.iter().for_each(|line| console.line(line));
                }
            }
        }
        if !repeats || interrupt.wait_for(INTERVAL) || console.is_cut_off() {
            break;
        }
        match target.report() {
            Ok(next) => (report, silent_since) = (next, None),
            // The server may be restarted, so the request is repeated until Ctrl-C.
            Err(_) if terminal => {
                silent_since.get_or_insert_with(Instant::now);
            }
            Err(failure) => return Err(failure),
        }
        if screen.is_none() {
            console.blank();
        }
    }
    drop(screen);
    console.event(
        "summary",
        &Summary {
            command: "top",
            exit_code: 0,
        },
    );
    Ok(Outcome::Done)
}

#[derive(Serialize)]
struct Summary {
    command: &'static str,
    exit_code: i32,
}
