//! From arguments to an exit code: parse, decide, run, report.

use std::ffi::{OsStr, OsString};
use std::sync::OnceLock;

use clap::error::{ContextKind, ContextValue, ErrorKind};
use clap::{CommandFactory, FromArgMatches};

use crate::args::{Cli, colour_before_parsing, with_environment, without_environment};
use crate::console::Console;
use crate::failure::exit_code;

/// The whole command line as clap sees it, for completions, manual pages and other fronts.
pub fn command() -> clap::Command {
    // Built once: the environment names are leaked to become 'static.
    static COMMAND: OnceLock<clap::Command> = OnceLock::new();
    COMMAND
        .get_or_init(|| with_environment(Cli::command()))
        .clone()
}

/// Runs the command line with the program name first in `args`; returns the exit code:
/// 0 done, 1 failed, 2 usage, 3 done but some inputs were unreadable, 130 interrupted.
///
/// Never panics on its input and never exits the process by itself, except at a second
/// interrupt while the first is still being answered.
pub fn main_from(args: impl IntoIterator<Item = OsString>) -> i32 {
    let args: Vec<OsString> = args.into_iter().collect();
    let cli = match parse(&args) {
        Ok(cli) => cli,
        Err(error) => {
            // A closed pipe behind `--help | head` is nobody's error.
            let _ = error.print();
            return error.exit_code();
        }
    };

    let program = args
        .first()
        .map_or(OsStr::new("forebay"), OsString::as_os_str);
    let console = Console::new(&cli.global, program);
    let result = cli.command.run(&console);
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

/// Parses the arguments. Flags win over the environment: an option that was not given does not
/// get its value from there when one that was given excludes it.
fn parse(args: &[OsString]) -> Result<Cli, clap::Error> {
    let parser = command().color(colour_before_parsing(args));
    let mut matches = parser.clone().try_get_matches_from(args);
    if let Err(error) = &matches
        && error.kind() == ErrorKind::ArgumentConflict
    {
        let is_given = |flag: &str| {
            !flag.starts_with("--")
                || args.iter().any(|arg| {
                    let arg = arg.to_string_lossy();
                    arg.split('=').next() == Some(flag)
                })
        };
        let excluded = excluded(error);
        if excluded.iter().any(|flag| is_given(flag)) {
            let parser = without_environment(parser, &|long| {
                let flag = format!("--{long}");
                excluded.contains(&flag) && !is_given(&flag)
            });
            if let Ok(decided) = parser.try_get_matches_from(args) {
                matches = Ok(decided);
            }
        }
    }
    Cli::from_arg_matches(&matches?)
}

/// The arguments that a conflict is about: flags as `--shards`, others as `[INDEX]`.
fn excluded(error: &clap::Error) -> Vec<String> {
    let texts = error
        .context()
        .flat_map(|(kind, value)| match (kind, value) {
            (ContextKind::InvalidArg | ContextKind::PriorArg, ContextValue::String(text)) => {
                vec![text.clone()]
            }
            (ContextKind::InvalidArg | ContextKind::PriorArg, ContextValue::Strings(texts)) => {
                texts.clone()
            }
            _ => Vec::new(),
        });
    let name = |text: String| text.split_whitespace().next().map(str::to_owned);
    texts.filter_map(name).collect()
}
