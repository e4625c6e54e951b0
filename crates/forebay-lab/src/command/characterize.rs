//! Commands `forebay-lab characterize` and `forebay-lab compare`.

use std::io::{BufRead, IsTerminal, Write};
use std::path::{Path, PathBuf};
use std::time::Duration;

use clap::Args;
use clap::builder::PossibleValuesParser;
use forebay_bench::Consumer;
use forebay_bench::cold::Cold;
use forebay_bench::report::{ExperimentReport, FigureClass, LabReport, REPORT_FILE};
use forebay_cli::frontend::quantity::{self, parse_duration, parse_size};
use forebay_cli::frontend::{
    Align, Bar, Console, Failure, Outcome, StoreArgs, Table, TrainerArgs, figure, printable, show,
};
use forebay_store::{Location, free_bytes};
use serde_json::json;

use super::typed;
use crate::compare::{Verdict, compare};
use crate::experiment::{
    CATALOG, CharacterizeObserver, CharacterizeOptions, Experiment, characterize, format_names,
};
use crate::throttle::DiskLimits;

/// Maximum of `--ranks`: each rank is a thread with its own batch.
const MOST_RANKS: u64 = 64;
/// Images, run time and file size of `--full`, as in the published experiments.
const FULL_IMAGES: u64 = 16_384;
const FULL_TIME: Duration = Duration::from_secs(10);
const FULL_SIZE: u64 = 5_000_000_000;

#[derive(Debug, Args)]
pub(super) struct Characterize {
    /// Directories on the storages to test, or URLs of stores; what is written there is removed at the end
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
    /// A dataset whose images are used in place of generated ones
    #[arg(long, value_name = "DATASET")]
    data: Option<PathBuf>,
    /// Formats that E20, E21 and E23 compare [default: all]
    #[arg(long, value_name = "NAME,...", value_delimiter = ',', value_parser = PossibleValuesParser::new(format_names()))]
    formats: Vec<String>,
    /// Slow down the disks of the media with a cgroup, such as read=163MB,write=133MB,reads=200 (a second); needs root
    #[arg(long, value_name = "LIMITS", value_parser = parse_limits)]
    limit: Option<DiskLimits>,
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
    /// The stand-in for an accelerator: a preset, step:TIME for each batch, recorded:FILE for recorded step times, or torch:resnet50 for those of a short training
    #[arg(long, value_name = "NAME", default_value = "v100-resnet50-fp16")]
    consumer: String,
    #[command(flatten)]
    trainer: TrainerArgs,
    /// Numbers of accelerators
    #[arg(
        long,
        value_name = "N,...",
        value_delimiter = ',',
        default_value = "1,2,4,8"
    )]
    ranks: Vec<u64>,
    /// Write report.json, report.md, report.html and the plots into this directory
    #[arg(long, value_name = "DIR")]
    report: Option<PathBuf>,
    /// Do not ask before writing
    #[arg(long)]
    yes: bool,
    #[command(flatten)]
    store: StoreArgs,
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
        let is_list = self.list;
        let report_dir = self.report.clone();
        let yes = self.yes;
        let options = self.options(runs, console)?;
        if is_list {
            list(options, console);
            return Ok(Outcome::Done);
        }
        measure(&options, report_dir.as_deref(), yes, console)
    }

    fn options(self, runs: usize, console: &Console) -> Result<CharacterizeOptions, Failure> {
        if self.threads.contains(&0) || self.batch_size == 0 {
            return Err(Failure::usage(
                "--threads and --batch-size must be 1 or more",
            ));
        }
        if !self
            .ranks
            .iter()
            .all(|ranks| (1..=MOST_RANKS).contains(ranks))
        {
            return Err(Failure::usage(format!("--ranks must be 1 to {MOST_RANKS}")));
        }
        let consumer = match self.list {
            true => Consumer::default(),
            false => self
                .trainer
                .consumer(&self.consumer, self.batch_size, console)?,
        };
        let or = |quick, full| if self.full { full } else { quick };
        let (mut media, mut stores) = (Vec::new(), Vec::new());
        for medium in self.media {
            let location = Location::parse(&medium)?;
            match location.is_remote() {
                true => stores.push(location),
                false => media.push(medium),
            }
        }
        let options = CharacterizeOptions {
            media,
            stores,
            store: self.store.options(),
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
            consumer,
            ranks: self.ranks,
            data: self.data,
            limits: self.limit,
            formats: self.formats,
            command: typed(console),
        };
        Ok(options)
    }
}

/// Runs the experiments, prints the report and writes it to `report_dir`.
fn measure(
    options: &CharacterizeOptions,
    report_dir: Option<&Path>,
    yes: bool,
    console: &Console,
) -> Result<Outcome, Failure> {
    if options.files < options.batch_size {
        return Err(Failure::usage("--files must be at least a batch"));
    }
    options
        .chosen()
        .map_err(|error| Failure::usage(error.to_string()))?;
    ask(options, yes, console)?;
    console.interrupt().answer();
    let watcher = Watcher {
        console,
        bar: console.bar("measuring", None),
    };
    let result = characterize(options, &watcher);
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
    if let Some(dir) = report_dir {
        report.write(dir)?;
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
        &json!({ "command": "characterize", "exit_code": 0 }),
    );
    Ok(Outcome::Done)
}

/// Parses `read=163MB,write=133MB,reads=200`.
fn parse_limits(text: &str) -> Result<DiskLimits, String> {
    let mut limits = DiskLimits::default();
    for part in text.split(',') {
        let (name, value) = part.split_once('=').unwrap_or((part, ""));
        let limit = match name {
            "read" => &mut limits.read,
            "write" => &mut limits.write,
            "reads" => &mut limits.reads,
            "latency" => {
                return Err(
                    "a cgroup cannot add latency: a device of dm-delay below the medium can, and the catalog has a synthetic store with latency".to_owned(),
                );
            }
            _ => {
                return Err(format!(
                    "unknown limit \"{name}\"; expected read, write or reads"
                ));
            }
        };
        let number = match name {
            "reads" => value
                .parse()
                .map_err(|_| format!("invalid number \"{value}\"")),
            _ => parse_size(value),
        }?;
        if number == 0 {
            return Err(format!("{name} must be above 0"));
        }
        *limit = Some(number);
    }
    Ok(limits)
}

/// Prints how much will be written and how long it takes, and asks for confirmation unless `yes` is set. Fails if a medium has
/// too little free space.
fn ask(options: &CharacterizeOptions, yes: bool, console: &Console) -> Result<(), Failure> {
    let needed = options.scratch_bytes()?;
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
        quantity::counted((options.media.len() + options.stores.len()) as u64, "medium", "media"),
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

/// Prints the catalog with the longest time of each experiment on one medium.
fn list(mut options: CharacterizeOptions, console: &Console) {
    options.media.resize(1, PathBuf::new());
    let mut table = Table::new(&[
        ("", Align::Left),
        ("experiment", Align::Left),
        ("by default", Align::Left),
        ("time", Align::Right),
        ("question", Align::Left),
    ]);
    for experiment in CATALOG.iter() {
        table.row([
            experiment.id.to_owned(),
            experiment.title.to_owned(),
            if experiment.is_default { "yes" } else { "" }.to_owned(),
            Some(options.estimate_of(experiment))
                .filter(|time| !time.is_zero())
                .map_or_else(String::new, quantity::duration),
            experiment.question.to_owned(),
        ]);
    }
    table
        .lines(console.paint())
        .iter()
        .for_each(|line| console.line(line));
    for experiment in CATALOG.iter() {
        console.event(
            "experiment",
            &json!({
                "id": experiment.id,
                "title": experiment.title,
                "question": experiment.question,
                "is_default": experiment.is_default,
                "seconds": options.estimate_of(experiment).as_secs_f64(),
            }),
        );
    }
}

/// Prints the measured figures of an experiment. The published ones are in the written report only.
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
        console.event("summary", &json!({ "command": "compare", "exit_code": 0 }));
        Ok(Outcome::Done)
    }
}
