//! Commands of `forebay-lab`, and their dispatch.

mod characterize;
mod size_cluster;

use std::ffi::{OsStr, OsString};

use clap::{CommandFactory, FromArgMatches, Parser, Subcommand};
use forebay_cli::frontend::{
    Console, EpochArgs, Failure, GlobalArgs, Outcome, conclude, print_report, with_environment,
};
use forebay_store::{Cancel, Location};

use crate::clients::{ClientsOptions, FairnessOptions, clients, fairness};
use crate::epoch::epoch;
use crate::failover::{FailoverOptions, failover};
use crate::sharing::{SharingOptions, sharing};
use crate::simulate::ClusterPlan;
use crate::start::{StartOptions, start};
use crate::store::{StoreBenchOptions, store};
use crate::transport::{TransportOptions, transport};

/// The command of `forebay` that experiments start servers with.
const SERVE: &str = "serve";

/// Experiments with Forebay, storages and formats, and a simulation of clusters
///
/// Alternatives run in turn, after a round that does not count, and are compared by their medians:
/// machines drift, so only figures of one run of one command belong together.
#[derive(Debug, Parser)]
#[command(
    name = "forebay-lab",
    version,
    subcommand_required = true,
    arg_required_else_help = true,
    max_term_width = 100,
    after_help = "\
Examples:
  forebay-lab epoch shards/ s3://bucket/shards
  forebay-lab epoch shards/ s3://bucket/shards --cache-dir /nvme/forebay
  forebay-lab transport
  forebay-lab failover shards/ --runs 20
  forebay-lab fairness shards/ --active 4 --slow 500ms
  forebay-lab clients shards/ --idle 1000 --active 64
  forebay-lab store s3://bucket/scratch --size 1GiB --jobs 16
  forebay-lab start --scratch /tmp/million
  forebay-lab size-cluster --gpus 1000 --servers 100
  forebay-lab characterize /mnt/nvme /mnt/shared --report io/
  forebay-lab characterize /mnt/nvme --experiment E20,E21,E24 --report formats/
  forebay-lab compare io-before/ io/"
)]
struct Cli {
    #[command(flatten)]
    global: GlobalArgs,

    #[command(subcommand)]
    what: What,

    /// Counted runs of each alternative
    #[arg(long, value_name = "N", default_value_t = 5, global = true)]
    runs: usize,
}

#[derive(Debug, Subcommand)]
enum What {
    /// An epoch of the same dataset from several places, such as a directory and a store
    Epoch(EpochArgs),
    /// Several trainers of one server on this machine: each with batches of its own, and all with the same, which are decoded once
    ///
    /// Tells the CPU time of both sides and how long a batch takes.
    Sharing(SharingOptions),
    /// Batches that cost nothing to make, from a server on this machine, beside a bare connection
    ///
    /// Tells the CPU time of both sides and how long handing over takes.
    Transport(TransportOptions),
    /// Time that a trainer waits after its server is killed, and after its server is stopped
    ///
    /// Two servers on this machine; --runs says how often each happens. Tells the longest wait for a batch after it,
    /// beside the longest while nothing happens.
    Failover(FailoverOptions),
    /// Throughput of each trainer of a server while one of them is slow
    Fairness(FairnessOptions),
    /// Memory and processor time of a server with many clients, and how long those that are busy wait for batches
    ///
    /// Each client is an open file on both sides: see `ulimit -n`.
    Clients(ClientsOptions),
    /// Uploads, downloads and small reads of a place for objects; what is put there is removed
    Store(StoreBenchOptions),
    /// Estimates how many GPUs a number of servers feeds, and the first bottleneck
    ///
    /// Measures nothing: arithmetic, and batches moved through queues one by one. The same options give the same figures on
    /// every machine. docs/scale.md shows how to read them.
    SizeCluster(Box<ClusterPlan>),
    /// From nothing to the first batch of a large dataset of tiny images
    Start(StartOptions),
    /// Published experiments of deep-learning I/O on any storage, beside the published figures
    ///
    /// Storage ceilings, threads with and without decoding, prefetch, files against records, formats side by side. Each figure has its cold share: the
    /// part of its bytes that came from the storage and not from the page cache. docs/characterize.md shows a whole report.
    Characterize(Box<characterize::Characterize>),
    /// Differences between two reports of `characterize`: of settings, and of figures beyond their spread
    Compare(characterize::Compare),
}

/// Returns the clap command of the program.
pub fn command() -> clap::Command {
    with_environment(Cli::command())
}

/// Runs the command line `args`, which starts with the program name, and returns the exit code. Exit codes are those of
/// `forebay`.
///
/// Experiments that need server processes start this program with `serve`, which runs the command `serve` of `forebay`.
pub fn main_from(args: impl IntoIterator<Item = OsString>) -> i32 {
    let args: Vec<OsString> = args.into_iter().collect();
    if args.get(1).is_some_and(|first| first == SERVE) {
        return forebay_cli::main_from(args);
    }
    forebay_cli::frontend::name_options_as_flags();
    let parsed = command()
        .try_get_matches_from(&args)
        .and_then(|matches| Cli::from_arg_matches(&matches));
    let cli = match parsed {
        Ok(cli) => cli,
        Err(error) => {
            // A closed pipe, as in `--help | head`, is not an error.
            let _ = error.print();
            return error.exit_code();
        }
    };
    let program = args.first().map_or(OsStr::new("forebay-lab"), |name| name);
    conclude(&Console::new(&cli.global, program), |console| {
        run(cli.what, cli.runs, console)
    })
}

fn run(what: What, runs: usize, console: &Console) -> Result<Outcome, Failure> {
    let report = match what {
        What::SizeCluster(plan) => return size_cluster::run(&plan, console),
        What::Characterize(args) => return args.run(runs, console),
        What::Compare(args) => return args.run(console),
        What::Epoch(args) => {
            let (places, read) = args.places(console)?;
            epoch(&places, read, &args, runs)
        }
        What::Sharing(options) => sharing(&options, runs),
        What::Transport(options) => transport(&options, runs),
        What::Failover(options) => failover(&options, runs),
        What::Fairness(options) => fairness(&options),
        What::Clients(options) => clients(&options),
        What::Store(mut options) => {
            // An interrupted run still has to remove its objects.
            options.cancel = Cancel::from_flag(console.interrupt().answer().flag());
            store(&Location::parse(&options.location)?, &options, runs)
        }
        What::Start(options) => start(&options, runs),
    };
    let report = report.map_err(|error| match console.interrupt().is_asked() {
        true => Failure::interrupted("nothing of it is kept"),
        false => Failure::from(error),
    })?;
    print_report(&report, console);
    console.event("bench", &report);
    Ok(Outcome::Done)
}

/// Returns the command line as the user typed it.
fn typed(console: &Console) -> String {
    let words = std::env::args().skip(1);
    std::iter::once(console.program().to_owned())
        .chain(words)
        .collect::<Vec<_>>()
        .join(" ")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_command_line_is_consistent_and_documented() {
        command().debug_assert();
        for sub in command().get_subcommands() {
            for arg in sub.get_arguments() {
                let (name, arg_name) = (sub.get_name(), arg.get_id());
                assert!(arg.get_help().is_some(), "{name}: {arg_name}");
            }
        }
    }

    #[test]
    fn examples_of_help_and_documents_are_valid() {
        let root = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("../../docs");
        let pages = [
            "characterize.md",
            "measuring.md",
            "scale.md",
            "serving.md",
            "storage.md",
        ];
        let mut texts: Vec<String> = pages
            .iter()
            .map(|page| std::fs::read_to_string(root.join(page)).unwrap())
            .collect();
        texts.push(command().get_after_help().unwrap().to_string());
        let mut checked = 0;
        for line in texts.iter().flat_map(|text| text.lines()) {
            let line = line.trim_start().trim_start_matches("$ ");
            if line.starts_with("forebay-lab ") {
                let parsed = command().try_get_matches_from(line.split_whitespace());
                assert!(parsed.is_ok(), "{line}: {}", parsed.unwrap_err());
                checked += 1;
            }
        }
        assert!(checked > 20, "{checked}");
    }
}
