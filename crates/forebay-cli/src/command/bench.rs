//! `forebay bench`: measures packing, reading, loading and streaming of a dataset on this machine.

pub(crate) mod cold_args;
pub(crate) mod epoch_args;
mod explain;
mod files;
mod loader;
mod storage;
mod stream;
pub(crate) mod trainer;

use std::collections::BTreeSet;

use clap::{Args as ClapArgs, Subcommand};
use forebay_bench::{BenchReport, Row};

pub(super) use explain::prices;

use crate::console::Console;
use crate::failure::{Failure, Outcome};
use crate::table::{Align, Table};

/// Measure packing, reading, decoding and streaming on this machine
///
/// Alternatives run in turn, after a round that does not count, and are compared by their medians:
/// machines drift, so only figures of one run of one command belong together.
#[derive(Debug, ClapArgs)]
#[command(after_help = "\
Examples:
  forebay bench pack photos/ --scratch /tmp
  forebay bench read shards/ shards-indexed/
  forebay bench loader shards/ --threads 1,2
  forebay bench loader shards/ --transform train,keep-encoded -o dtype=float16 -o dct_scaling=true
  forebay bench read shards/ --cold auto
  forebay bench storage shards/ s3://bucket/shards --files photos/ --cold auto
  forebay bench explain shards/ --cold auto --consumer step:180ms
  forebay bench stream shards/
  forebay bench loader \"synthetic://imagenet?records=20000\"        no storage at all")]
pub(crate) struct Args {
    #[command(subcommand)]
    what: What,

    /// Counted runs of each alternative
    #[arg(long, value_name = "N", default_value_t = 5, global = true)]
    runs: usize,
}

#[derive(Debug, Subcommand)]
enum What {
    /// Packing a directory, beside `cat` of the same files into one
    Pack(files::Pack),
    /// Records in order and at random, checksums verified, beside plain reads of the files
    Read(files::Read),
    /// Decoded batches in process, by number of threads, and what limits more threads
    Loader(loader::LoaderArgs),
    /// The reads of an epoch without the loader, as records and as single files, beside the loader
    ///
    /// Tells what the storage can give to these reads, and how much of it the loader reaches.
    Storage(Box<storage::Storage>),
    /// Rates of each stage of loading, the bottleneck, and the predicted gains of remedies
    ///
    /// Storage, memory, checksums, decoding, hand-over and consumer, one after another on the same reads. Each gain is predicted from
    /// these figures, with its interval: docs/measuring.md tells how.
    Explain(Box<explain::Explain>),
    /// Decoded batches from a server on this machine, beside the loader in process
    Stream(stream::Stream),
}

/// A benchmark with its arguments, ready to run.
trait Experiment {
    /// Runs the benchmark. Each alternative is measured `runs` times, not counting warm-up runs.
    fn measure(self, runs: usize, console: &Console) -> Result<Vec<BenchReport>, Failure>;
}

impl From<forebay_bench::Error> for Failure {
    fn from(error: forebay_bench::Error) -> Self {
        Self::from_error(error.as_ref())
    }
}

pub(crate) fn run(args: Args, console: &Console) -> Result<Outcome, Failure> {
    let runs = args.runs;
    let reports = match args.what {
        What::Explain(args) => {
            return args
                .run(runs, console)
                .map_err(|failure| asked(failure, console));
        }
        What::Pack(args) => args.measure(runs, console),
        What::Read(args) => args.measure(runs, console),
        What::Loader(args) => args.measure(runs, console),
        What::Storage(args) => args.measure(runs, console),
        What::Stream(args) => args.measure(runs, console),
    };
    let reports = reports.map_err(|failure| asked(failure, console))?;
    for (i, report) in reports.iter().enumerate() {
        if i > 0 {
            console.blank();
        }
        print_report(report, console);
        console.event("bench", report);
    }
    Ok(Outcome::Done)
}

/// Returns the failure to report. After Ctrl-C, this is the interruption instead of the error that it caused.
fn asked(failure: Failure, console: &Console) -> Failure {
    match console.interrupt().is_asked() {
        true => Failure::interrupted("nothing of it is kept"),
        false => failure,
    }
}

/// Returns the command line as typed, from `bench` on, for the report.
fn command(console: &Console) -> String {
    let typed = std::env::args().skip_while(|arg| arg != "bench");
    let words: Vec<String> = typed.collect();
    format!("{} {}", console.program(), words.join(" "))
}

/// Prints the table of a report, and its notes.
pub fn print_report(report: &BenchReport, console: &Console) {
    console.heading(&report.title);
    let mut columns = vec![
        ("", Align::Left),
        ("median", Align::Right),
        ("", Align::Left),
        ("lowest", Align::Right),
        ("highest", Align::Right),
        ("to the first", Align::Right),
        ("CPU each", Align::Right),
        ("peak RSS", Align::Right),
    ];
    let with_caches = report.rows.iter().any(|row| row.cache.is_some());
    if with_caches {
        columns.extend([("cold share", Align::Right), ("cache", Align::Left)]);
    }
    let mut table = Table::new(&columns);
    for (i, row) in report.rows.iter().enumerate() {
        let extreme = |pick: fn(f64, f64) -> f64| {
            let found = row.rates.iter().copied().reduce(pick);
            figure(found.unwrap_or(row.median))
        };
        let mut cells = vec![
            row.name.clone(),
            figure(row.median),
            row.unit.to_owned(),
            extreme(f64::min),
            extreme(f64::max),
            report
                .ratio(i)
                .map_or_else(String::new, |ratio| format!("{ratio:.2}x")),
            cpu(row),
            row.peak_rss_mib
                .map_or_else(String::new, |mib| format!("{mib:.0} MiB")),
        ];
        if with_caches {
            cells.extend(caches(row));
        }
        table.row(cells);
    }
    console.table(&table);
    for note in &report.notes {
        console.line(format!("  {note}"));
    }
    let proofs: BTreeSet<&str> = report
        .rows
        .iter()
        .flat_map(|row| &row.cache)
        .map(|cache| &*cache.proof)
        .collect();
    for proof in proofs {
        console.line(format!("  cache: {proof}"));
    }
}

/// Returns the table cells of the cold share and of the cache state. [`print_report`] prints the proof below the table.
fn caches(row: &Row) -> [String; 2] {
    let Some(cache) = &row.cache else {
        return [String::new(), String::new()];
    };
    let share = cache
        .cold_share
        .map_or_else(String::new, |share| format!("{share:.2}"));
    let word = cache.cache.split(':').next().unwrap_or_default();
    [share, word.to_owned()]
}

/// Returns the CPU time per counted unit, such as "1.20 ms/image"; empty if the unit of the row is not a rate.
fn cpu(row: &Row) -> String {
    match (row.cpu_seconds_each, row.unit.strip_suffix("/s")) {
        (Some(seconds), Some(thing)) => {
            let one = thing.strip_suffix('s').unwrap_or(thing);
            let time = if seconds >= 0.1 {
                format!("{seconds:.2} s")
            } else if seconds >= 1e-4 {
                format!("{:.2} ms", seconds * 1e3)
            } else {
                format!("{:.1} µs", seconds * 1e6)
            };
            format!(
                "{time}/{}",
                if thing.ends_with("ches") {
                    "batch"
                } else {
                    one
                }
            )
        }
        _ => String::new(),
    }
}

/// Formats a number with at least three digits: no decimals from 100 on, one from 10 on, else two.
pub fn figure(value: f64) -> String {
    match value {
        v if v >= 100.0 => format!("{v:.0}"),
        v if v >= 10.0 => format!("{v:.1}"),
        v => format!("{v:.2}"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn row(unit: &'static str, cpu_seconds_each: f64) -> Row {
        Row {
            name: String::new(),
            unit,
            rates: vec![1.0],
            median: 1.0,
            cpu_seconds_each: Some(cpu_seconds_each),
            peak_rss_mib: None,
            cache: None,
            extra: std::collections::BTreeMap::new(),
        }
    }

    #[test]
    fn cpu_time_is_given_per_unit() {
        assert_eq!(cpu(&row("GB/s", 0.41)), "0.41 s/GB");
        assert_eq!(cpu(&row("images/s", 0.0012)), "1.20 ms/image");
        assert_eq!(cpu(&row("batches/s", 0.5)), "0.50 s/batch");
        assert_eq!(cpu(&row("records/s", 0.000_012)), "12.0 µs/record");
        assert_eq!(cpu(&row("ms", 0.4)), "");
    }

    #[test]
    fn figures_have_three_digits() {
        assert_eq!(figure(1234.5), "1234");
        assert_eq!(figure(12.34), "12.3");
        assert_eq!(figure(1.234), "1.23");
    }
}
