//! Runs a command line from arguments to exit code: parses, runs and reports.

use std::ffi::{OsStr, OsString};
use std::sync::atomic::AtomicBool;
use std::sync::{Arc, OnceLock};

use clap::{CommandFactory, FromArgMatches, Parser};

use crate::args::{GlobalArgs, colour_before_parsing, unknown_variables, with_environment};
use crate::command::Command;
use crate::console::Console;
use crate::failure::{Failure, Outcome, exit_code};

const ABOUT: &str =
    "Packs directories of training samples into shards and feeds decoded batches to trainers";

const AFTER_HELP: &str = "\
Examples:
  forebay quickstart                               pack, verify and load a few example images
  forebay pack photos/ shards/                     a directory of images becomes shards
  forebay inspect shards/                          what is inside
  forebay verify shards/                           is every byte as it was written
  forebay serve shards/                            decoded batches for trainers

Exit codes: 0 done, 1 failed, 2 usage, 3 done but some inputs were unreadable, 130 interrupted.
Environment variables: FOREBAY_JOBS, FOREBAY_CACHE_DIR and others; docs/environment.md lists them. Flags take precedence.";

/// The command line, parsed.
#[derive(Debug, Parser)]
#[command(
    name = "forebay",
    version,
    about = ABOUT,
    after_help = AFTER_HELP,
    subcommand_required = true,
    arg_required_else_help = true,
    max_term_width = 100
)]
pub(crate) struct Cli {
    #[command(flatten)]
    global: GlobalArgs,

    #[command(subcommand)]
    command: Command,
}

/// Returns the whole clap command, for completions, manual pages and other frontends.
pub fn command() -> clap::Command {
    // Built once, because the names of variables are leaked to become 'static.
    static COMMAND: OnceLock<clap::Command> = OnceLock::new();
    COMMAND
        .get_or_init(|| with_environment(Cli::command()))
        .clone()
}

/// Runs the command line `args`, which starts with the program name. Returns the exit code: 0 done, 1 failed, 2 usage, 3 done
/// but some inputs were unreadable, 130 interrupted.
///
/// Never panics on its input. Never exits the process, except at a second interrupt while the command still handles the first
/// one.
pub fn main_from(args: impl IntoIterator<Item = OsString>) -> i32 {
    forebay_options::name_options_as_flags();
    let args: Vec<OsString> = args.into_iter().collect();
    let cli = match parse(&args) {
        Ok(cli) => cli,
        Err(error) => {
            // A closed pipe, as in `--help | head`, is not an error.
            let _ = error.print();
            return error.exit_code();
        }
    };

    let program = args
        .first()
        .map_or(OsStr::new("forebay"), OsString::as_os_str);
    let mut console = Console::new(&cli.global, program);
    if cli.command.ends_with_report() {
        console.results_are_a_report();
    }
    if cli.command.logs_json() {
        console.log_as_json();
    }
    let names: Vec<String> = std::env::vars_os()
        .filter_map(|(name, _)| name.into_string().ok())
        .collect();
    for warning in unknown_variables(names.iter().map(String::as_str), &command) {
        console.warning(warning);
    }
    conclude(&console, |console| cli.command.run(console))
}

/// Runs the command line `args`, which starts with the program name, for a program: prints nothing, and passes the events of
/// `--json` to `events`, each a line of JSON, with warnings (`warning`), errors (`error`) and progress (`bar`) among them.
/// Setting `stop` stops the command as Ctrl-C does. Returns the exit code, as [`main_from`].
pub fn run_with_events(
    args: &[OsString],
    events: impl Fn(String) + Send + Sync + 'static,
    stop: Arc<AtomicBool>,
) -> i32 {
    let program = args
        .first()
        .map_or(OsStr::new("forebay"), OsString::as_os_str);
    let console = Console::of_events(program, Arc::new(events), stop);
    match parse(args) {
        Ok(cli) => report(&console, cli.command.run(&console)),
        Err(error) => {
            // The first paragraph says what is wrong, without the usage of the command line.
            let text = error.to_string();
            let what = text.split("\n\n").next().unwrap_or_default();
            let what = what.trim_start_matches("error: ").replace('\n', " ");
            report(&console, Err(Failure::usage(what)))
        }
    }
}

/// Runs a command, reports its failure, and returns the exit code.
pub fn conclude(console: &Console, run: impl FnOnce(&Console) -> Result<Outcome, Failure>) -> i32 {
    let log = console.clone();
    forebay_store::on_long_wait(move |line| log.warning(line));
    report(console, run(console))
}

/// Reports the failure of a command, and returns the exit code.
fn report(console: &Console, result: Result<Outcome, Failure>) -> i32 {
    console.clear_progress();
    if let Err(failure) = &result {
        console.failure(failure);
    }
    let code = exit_code(&result);
    match console.finish() {
        Ok(()) => code,
        Err(failure) => {
            console.failure(&failure);
            if code == 0 { failure.exit_code() } else { code }
        }
    }
}

pub(crate) fn parse(args: &[OsString]) -> Result<Cli, clap::Error> {
    let mut parser = command().color(colour_before_parsing(args));
    let matches = parser.try_get_matches_from_mut(args)?;
    Cli::from_arg_matches(&matches)
}
