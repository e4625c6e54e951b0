//! The options that every command has, and one rule that gives every option its environment name.

use std::ffi::{OsStr, OsString};

use clap::builder::{FalseyValueParser, OsStr as ClapOsStr, Resettable};
use clap::{Arg, ArgAction, Args, ColorChoice, Parser};

use crate::command::Command;

const ABOUT: &str =
    "Packs directories of training samples into shards and feeds decoded batches to trainers";

const AFTER_HELP: &str = "\
Examples:
  forebay quickstart                               the whole journey on a few pictures
  forebay pack photos/ shards/ --format tfrecord   a directory of images becomes shards
  forebay inspect shards/                          what is inside
  forebay verify shards/                           is every byte as it was written
  forebay serve shards/                            decoded batches for trainers

Exit codes: 0 done, 1 failed, 2 usage, 3 done but some inputs were unreadable, 130 interrupted.
Every option has an environment variable: --shard-size is FOREBAY_SHARD_SIZE. Flags win.";

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
    pub(crate) global: GlobalArgs,

    #[command(subcommand)]
    pub(crate) command: Command,
}

/// When to colour what is printed.
#[derive(Debug, Clone, Copy, PartialEq, Eq, clap::ValueEnum)]
pub(crate) enum Colour {
    /// On a terminal, unless NO_COLOR is set
    Auto,
    /// Also into files and pipes
    Always,
    /// Never
    Never,
}

/// Options about output, the same in every command.
#[derive(Debug, Clone, Args)]
#[command(next_help_heading = "Output")]
pub(crate) struct GlobalArgs {
    /// Print one JSON object a line on stdout, the last one a summary
    #[arg(long, global = true)]
    pub(crate) json: bool,

    /// Say less: once hides notes and progress, twice warnings too
    #[arg(short, long, global = true, action = ArgAction::Count)]
    pub(crate) quiet: u8,

    /// Say more
    #[arg(short, long, global = true, action = ArgAction::Count)]
    pub(crate) verbose: u8,

    /// When to use colours
    #[arg(
        long,
        global = true,
        value_name = "WHEN",
        default_value = "auto",
        hide_possible_values = true,
        help = "Colours: auto, always or never"
    )]
    pub(crate) color: Colour,

    /// No progress bars, even on a terminal
    #[arg(long, global = true)]
    pub(crate) no_progress: bool,
}

/// Gives each option of each command its `FOREBAY_...` variable, named after the long flag, and
/// lets a switch be turned on by `1`, `true` or `yes` and off by `0`, `false`, `no` or nothing.
pub(crate) fn with_environment(command: clap::Command) -> clap::Command {
    let command = command.mut_args(|arg: Arg| {
        let Some(long) = arg.get_long() else {
            return arg;
        };
        if matches!(long, "help" | "version") {
            return arg;
        }
        let name = format!("FOREBAY_{}", long.replace('-', "_").to_uppercase());
        let name: &'static str = Box::leak(name.into_boxed_str());
        let switch = matches!(arg.get_action(), ArgAction::SetTrue);
        let arg = arg.env(name).hide_env(true);
        if switch {
            arg.value_parser(FalseyValueParser::new())
        } else {
            arg
        }
    });
    command.mut_subcommands(with_environment)
}

/// Takes the variable away from the options, by long flag, that `which` names.
pub(crate) fn without_environment(
    command: clap::Command,
    which: &dyn Fn(&str) -> bool,
) -> clap::Command {
    let command = command.mut_args(|arg: Arg| match arg.get_long() {
        Some(long) if which(long) => arg.env(Resettable::<ClapOsStr>::Reset),
        _ => arg,
    });
    command.mut_subcommands(|command| without_environment(command, which))
}

/// The colour choice, read before parsing so that usage errors and help follow it as well.
pub(crate) fn colour_before_parsing(args: &[OsString]) -> ColorChoice {
    let mut choice = std::env::var_os("FOREBAY_COLOR");
    let mut args = args.iter().skip(1);
    while let Some(arg) = args.next() {
        if arg == "--" {
            break;
        } else if arg == "--color" {
            choice = args.next().cloned();
        } else if let Some(value) = arg.to_str().and_then(|arg| arg.strip_prefix("--color=")) {
            choice = Some(value.into());
        }
    }
    match choice.as_deref().and_then(OsStr::to_str) {
        Some("always") => ColorChoice::Always,
        Some("never") => ColorChoice::Never,
        _ => ColorChoice::Auto,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn each_option(command: &clap::Command, visit: &mut impl FnMut(&str, &Arg)) {
        for arg in command.get_arguments() {
            visit(command.get_name(), arg);
        }
        for sub in command.get_subcommands() {
            each_option(sub, visit);
        }
    }

    #[test]
    fn the_command_line_is_consistent() {
        crate::command().debug_assert();
    }

    #[test]
    fn every_option_has_an_environment_variable_and_help() {
        each_option(&crate::command(), &mut |command, arg| {
            let name = arg.get_id();
            assert!(
                arg.get_help().is_some(),
                "{command}: {name} is not documented"
            );
            let Some(long) = arg.get_long() else { return };
            let expected = format!("FOREBAY_{}", long.replace('-', "_").to_uppercase());
            assert_eq!(
                arg.get_env(),
                Some(OsStr::new(&expected)),
                "{command} --{long}"
            );
        });
    }

    #[test]
    fn every_command_shows_an_example() {
        for command in crate::command().get_subcommands() {
            let help = command.get_after_help().map(ToString::to_string);
            assert!(
                help.is_some_and(|help| help.contains("forebay ")),
                "{} has no example",
                command.get_name()
            );
        }
    }

    #[test]
    fn colour_is_found_before_parsing() {
        let words = |words: &[&str]| words.iter().map(OsString::from).collect::<Vec<_>>();
        assert_eq!(
            colour_before_parsing(&words(&["forebay", "--color", "never", "x"])),
            ColorChoice::Never
        );
        assert_eq!(
            colour_before_parsing(&words(&["forebay", "--color=always"])),
            ColorChoice::Always
        );
        assert_eq!(
            colour_before_parsing(&words(&["forebay", "--", "--color=always"])),
            ColorChoice::Auto
        );
    }
}
