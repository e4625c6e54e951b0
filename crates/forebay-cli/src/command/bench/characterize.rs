//! `forebay bench characterize` and `forebay bench compare`.

use std::io::{BufRead, IsTerminal, Write};
use std::path::PathBuf;
use std::time::Duration;

use clap::Args;
use forebay_bench::cold::Cold;
use forebay_bench::experiment::{
    CATALOG, CharacterizeObserver, CharacterizeOptions, Experiment, characterize,
};
use forebay_bench::report::{
    ExperimentReport, FigureClass, Judgment, LabReport, REPORT_FILE, Verdict, compare,
};
use forebay_store::free_bytes;
use serde_json::json;

use super::figure;
use crate::console::Console;
use crate::failure::{Failure, Outcome};
use crate::input::show;
use crate::paint::printable;
use crate::progress::Bar;
use crate::quantity::{self, parse_duration, parse_size};
use crate::table::{Align, Table};

/// With --full: the images and the rounds of the published experiments.
const FULL_IMAGES: u64 = 16_384;
const FULL_TIME: Duration = Duration::from_secs(10);
const FULL_SIZE: u64 = 5_000_000_000;

#[derive(Debug, Args)]
pub(super) struct Characterize {
    /// Directories on the storages to test; what is written there is removed at the end
    #[arg(required_unless_present = "list")]
    media: Vec<PathBuf>,
    /// Experiments of the catalog, such as E4,E6 [default: those that --list marks]
    #[arg(long, value_name = "NAME,...", value_delimiter = ',')]
    experiment: Vec<String>,
    /// Print the catalog
    #[arg(long)]
    list: bool,
    /// Images that are generated on each medium [default: 4096, with --full 16384]
    #[arg(long, value_name = "N")]
    files: Option<u64>,
    /// Size of the file that storage ceilings are measured with [default: 1 GB, with --full 5 GB]
    #[arg(long, value_name = "SIZE", value_parser = parse_size)]
    size: Option<u64>,
    /// Longest time of a run [default: 1.5s, with --full 10s]
    #[arg(long, value_name = "TIME", value_parser = parse_duration)]
    run_time: Option<Duration>,
    /// The sizes and times of the published experiments: about an hour for a medium
    #[arg(long)]
    full: bool,
    /// How the page cache is emptied before each run: auto, root, advise, direct or off
    #[arg(long, value_name = "WAY", default_value = "auto")]
    cold: Cold,
    /// Numbers of reading and decoding threads
    #[arg(
        long,
        value_name = "N,...",
        value_delimiter = ',',
        default_value = "1,2,4,8"
    )]
    threads: Vec<usize>,
    /// Images of a batch
    #[arg(long, value_name = "N", default_value_t = 64)]
    batch_size: u64,
    /// Numbers of batches that are made ahead
    #[arg(
        long,
        value_name = "N,...",
        value_delimiter = ',',
        default_value = "0,1"
    )]
    prefetch: Vec<u64>,
    /// Times of a training step, which a consumer sleeps
    #[arg(
        long,
        value_name = "TIME,...",
        value_delimiter = ',',
        value_parser = parse_duration,
        default_value = "0s,20ms,100ms,400ms"
    )]
    step: Vec<Duration>,
    /// Write report.json, report.md, report.html and the plots into this directory
    #[arg(long, value_name = "DIR")]
    report: Option<PathBuf>,
    /// Do not ask before writing
    #[arg(long)]
    yes: bool,
}

#[derive(Debug, Args)]
pub(super) struct Compare {
    /// The directory of a report, or its report.json
    before: PathBuf,
    /// Another report
    after: PathBuf,
}

/// Shows the runs on the progress line.
struct Watcher<'a> {
    console: &'a Console,
    bar: Bar,
}

impl CharacterizeObserver for Watcher<'_> {
    fn begins(&self, experiment: &Experiment) {
        self.console
            .note(format!("{} {}", experiment.id, experiment.title));
    }

    fn runs(&self, medium: &str, name: &str, round: usize) {
        self.bar
            .also(Some(format!("{medium}: {name}, round {round}")));
    }

    fn is_interrupted(&self) -> bool {
        self.console.interrupt().is_asked()
    }
}

impl Characterize {
    pub(super) fn run(self, runs: usize, console: &Console) -> Result<Outcome, Failure> {
        if self.list {
            list(console);
            return Ok(Outcome::Done);
        }
        let report_dir = self.report.clone();
        let yes = self.yes;
        let options = self.options(runs, console)?;
        ask(&options, yes, console)?;
        console.interrupt().answer();
        let watcher = Watcher {
            console,
            bar: console.bar("measuring", None),
        };
        let result = characterize(&options, &watcher);
        drop(watcher);
        let report = match result {
            Err(_) if console.interrupt().is_asked() => {
                return Err(Failure::interrupted("nothing of it is kept"));
            }
            result => result?,
        };
        for experiment in &report.experiments {
            print(experiment, console);
        }
        print_statements(&report, console);
        if let Some(dir) = report_dir {
            report.write(&dir)?;
            let page = dir.join("report.html");
            console.note(format!(
                "report: {}, {}",
                show(&dir.join(REPORT_FILE)),
                show(&page)
            ));
        }
        console.event("report", &report);
        console.event(
            "summary",
            &json!({ "command": "bench characterize", "exit_code": 0 }),
        );
        Ok(Outcome::Done)
    }

    fn options(self, runs: usize, console: &Console) -> Result<CharacterizeOptions, Failure> {
        if self.threads.contains(&0) || self.batch_size == 0 {
            return Err(Failure::usage(
                "--threads and --batch-size must be 1 or more",
            ));
        }
        let or = |quick, full| if self.full { full } else { quick };
        let options = CharacterizeOptions {
            media: self.media,
            experiments: self.experiment,
            files: self.files.unwrap_or(or(4096, FULL_IMAGES)),
            size: self.size.unwrap_or(or(1_000_000_000, FULL_SIZE)),
            runs,
            limit: self.run_time.unwrap_or(match self.full {
                true => FULL_TIME,
                false => Duration::from_millis(1500),
            }),
            cold: self.cold,
            threads: self.threads,
            batch_size: self.batch_size,
            prefetch: self.prefetch,
            steps: self.step,
            command: command(console),
        };
        if options.files < options.batch_size {
            return Err(Failure::usage("--files must be at least a batch"));
        }
        options
            .chosen()
            .map_err(|error| Failure::usage(error.to_string()))?;
        Ok(options)
    }
}

/// The command as it was typed.
fn command(console: &Console) -> String {
    let typed = std::env::args().skip_while(|arg| arg != "bench");
    let words: Vec<String> = typed.collect();
    format!("{} {}", console.program(), words.join(" "))
}

/// Says what will be written and how long it takes, and asks.
fn ask(options: &CharacterizeOptions, yes: bool, console: &Console) -> Result<(), Failure> {
    let needed = options.scratch_bytes();
    for medium in &options.media {
        let free = free_bytes(medium).map_err(|error| Failure::from_error(&error))?;
        if free < needed {
            let (needed, free) = (quantity::bytes(needed), quantity::bytes(free));
            return Err(Failure::new(format!(
                "{needed} are written to {}, which has {free} free",
                show(medium)
            ))
            .hint("--files and --size take less"));
        }
    }
    console.note(format!(
        "up to {} are written to each of {}, and removed at the end; runs take up to {}, making the data comes on top",
        quantity::bytes(needed),
        quantity::counted(options.media.len() as u64, "medium", "media"),
        quantity::duration(options.estimate()?),
    ));
    if yes {
        return Ok(());
    }
    let input = std::io::stdin();
    if !input.is_terminal() {
        return Err(Failure::usage(
            "without a terminal on stdin, --yes is needed",
        ));
    }
    eprint!("Go on? [y/N] ");
    let _ = std::io::stderr().flush();
    let mut answer = String::new();
    let read = input.lock().read_line(&mut answer);
    match read.is_ok() && matches!(answer.trim(), "y" | "Y" | "yes") {
        true => Ok(()),
        false => Err(Failure::new("nothing was measured")),
    }
}

fn list(console: &Console) {
    let mut table = Table::new(&[
        ("", Align::Left),
        ("experiment", Align::Left),
        ("by default", Align::Left),
        ("question", Align::Left),
    ]);
    for experiment in CATALOG {
        table.row([
            experiment.id,
            experiment.title,
            if experiment.is_default { "yes" } else { "" },
            experiment.question,
        ]);
    }
    table
        .lines(console.paint())
        .iter()
        .for_each(|line| console.line(line));
    for experiment in CATALOG {
        console.event(
            "experiment",
            &json!({
                "id": experiment.id,
                "title": experiment.title,
                "question": experiment.question,
                "is_default": experiment.is_default,
            }),
        );
    }
}

/// The measured figures of an experiment; the report has the published ones as well.
fn print(experiment: &ExperimentReport, console: &Console) {
    console.blank();
    console.heading(format!("{} {}", experiment.id, experiment.title));
    if !experiment.reason.is_empty() {
        console.line(format!("  not run: {}", printable(&experiment.reason)));
    }
    let mut table = Table::new(&[
        ("medium", Align::Left),
        ("", Align::Left),
        ("median", Align::Right),
        ("", Align::Left),
        ("lowest", Align::Right),
        ("highest", Align::Right),
        ("cold share", Align::Right),
    ]);
    let own = experiment
        .figures
        .iter()
        .filter(|figure| figure.class != FigureClass::Published);
    for row in own {
        table.row([
            printable(&row.medium),
            row.name.clone(),
            figure(row.value),
            row.unit.clone(),
            figure(row.lowest()),
            figure(row.highest()),
            row.cold_share
                .map_or_else(String::new, |share| format!("{share:.2}")),
        ]);
    }
    table
        .lines(console.paint())
        .iter()
        .for_each(|line| console.line(line));
    let mut reasons: Vec<&str> = experiment
        .figures
        .iter()
        .filter(|figure| figure.class != FigureClass::Published && figure.cold_share.is_none())
        .map(|figure| figure.proof.as_str())
        .filter(|proof| !proof.is_empty())
        .collect();
    reasons.dedup();
    reasons
        .iter()
        .for_each(|reason| console.line(format!("  cold share {}", printable(reason))));
    experiment
        .notes
        .iter()
        .for_each(|note| console.line(format!("  {}", printable(note))));
}

fn print_statements(report: &LabReport, console: &Console) {
    console.blank();
    console.heading("Published statements");
    let tested = |finding| {
        let all = report.statements.iter();
        all.filter(move |statement| (statement.finding == Judgment::NotTested) == finding)
    };
    for statement in tested(false) {
        let words = statement.finding.words();
        console.line(format!(
            "  {} {words}: {}",
            statement.id, statement.statement
        ));
        console.line(
            console
                .paint()
                .dim(format!("      {}", printable(&statement.why))),
        );
    }
    let rest: Vec<&str> = tested(true)
        .map(|statement| statement.id.as_str())
        .collect();
    console.line(
        console
            .paint()
            .dim(format!("  not tested: {}", rest.join(", "))),
    );
}

impl Compare {
    pub(super) fn run(self, console: &Console) -> Result<Outcome, Failure> {
        let changes = compare(
            &LabReport::read(&self.before)?,
            &LabReport::read(&self.after)?,
        );
        console.heading("Settings");
        if changes.settings.is_empty() {
            console.line("  the same");
        }
        for setting in &changes.settings {
            let value = |value: &Option<String>| {
                value
                    .as_deref()
                    .map_or_else(|| "none".to_owned(), printable)
            };
            let (before, after) = (value(&setting.before), value(&setting.after));
            console.line(format!(
                "  {}: {before} -> {after}",
                printable(&setting.name)
            ));
        }
        console.blank();
        console.heading("Figures");
        let mut table = Table::new(&[
            ("", Align::Left),
            ("medium", Align::Left),
            ("", Align::Left),
            ("before", Align::Right),
            ("after", Align::Right),
            ("", Align::Left),
            ("", Align::Right),
            ("", Align::Left),
        ]);
        for change in &changes.figures {
            let ratio = change
                .before
                .zip(change.after)
                .filter(|(before, _)| *before > 0.0);
            table.row([
                change.experiment.clone(),
                printable(&change.medium),
                printable(&change.name),
                change.before.map_or_else(String::new, figure),
                change.after.map_or_else(String::new, figure),
                change.unit.clone(),
                ratio.map_or_else(String::new, |(before, after)| {
                    format!("{:.2}x", after / before)
                }),
                match change.verdict {
                    Verdict::Better => "better",
                    Verdict::Worse => "worse",
                    Verdict::WithinNoise => "within the spread",
                    Verdict::Missing => "in one report only",
                }
                .to_owned(),
            ]);
        }
        table
            .lines(console.paint())
            .iter()
            .for_each(|line| console.line(line));
        console.event("comparison", &changes);
        console.event(
            "summary",
            &json!({ "command": "bench compare", "exit_code": 0 }),
        );
        Ok(Outcome::Done)
    }
}
