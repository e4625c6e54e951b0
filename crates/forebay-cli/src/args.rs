//! The options that every command has, and the environment variables that set options.

use std::ffi::{OsStr, OsString};

use clap::builder::FalseyValueParser;
use clap::{Arg, ArgAction, Args, ColorChoice};

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
pub struct GlobalArgs {
    /// Print one JSON object a line on stdout, the last one a summary
    #[arg(long, global = true)]
    pub(crate) json: bool,

    /// Print less: once hides notes, progress and reports of what was written, twice warnings too
    #[arg(short, long, global = true, action = ArgAction::Count)]
    pub(crate) quiet: u8,

    /// Print more
    #[arg(short, long, global = true, action = ArgAction::Count)]
    pub(crate) verbose: u8,

    /// When to use colours
    #[arg(
        long,
        global = true,
        value_name = "WHEN",
        default_value = "auto",
        hide_possible_values = true,
        help = "Colors: auto, always or never"
    )]
    pub(crate) color: Colour,

    /// No progress bars, even on a terminal
    #[arg(long, global = true)]
    pub(crate) no_progress: bool,
}

/// Long flags of options that an environment variable can set. Each has the same meaning in every command, and none changes
/// what is written or deleted.
const OPTION_VARIABLES: [&str; 8] = [
    "cache-bytes",
    "cache-dir",
    "cache-memory",
    "color",
    "jobs",
    "no-progress",
    "staging",
    "staging-bytes",
];

/// Variables that the libraries read.
const LIBRARY_VARIABLES: [&str; 9] = [
    "FOREBAY_PRICES",
    "FOREBAY_SEEK_POINTS",
    "FOREBAY_SIMD",
    "FOREBAY_TLS_CA",
    "FOREBAY_TLS_CLIENT_CERT",
    "FOREBAY_TLS_CLIENT_KEY",
    "FOREBAY_TOKEN",
    "FOREBAY_TOKEN_FILE",
    "FOREBAY_TRANSPORT",
];

const PREFIX: &str = "FOREBAY_";

fn variable(long: &str) -> String {
    format!("{PREFIX}{}", long.replace('-', "_").to_uppercase())
}

/// Returns the names of all environment variables that Forebay reads.
pub(crate) fn variables() -> Vec<String> {
    let mut names: Vec<String> = OPTION_VARIABLES.map(variable).into();
    names.extend(LIBRARY_VARIABLES.map(str::to_owned));
    names.sort();
    names
}

/// Adds a variable `FOREBAY_...` to each option of `OPTION_VARIABLES`. A switch is on for `1`, `true` or `yes`, and off for
/// `0`, `false`, `no` or an empty value.
pub fn with_environment(command: clap::Command) -> clap::Command {
    let command = command.mut_args(|arg: Arg| {
        let Some(&long) = OPTION_VARIABLES
            .iter()
            .find(|&&long| arg.get_long() == Some(long))
        else {
            return arg;
        };
        let name: &'static str = Box::leak(variable(long).into_boxed_str());
        let is_switch = matches!(arg.get_action(), ArgAction::SetTrue);
        let arg = arg.env(name).hide_env(true);
        if is_switch {
            arg.value_parser(FalseyValueParser::new())
        } else {
            arg
        }
    });
    command.mut_subcommands(with_environment)
}

/// Returns warnings about variables with our prefix that nothing reads. `FOREBAY_TEST_...` belongs to test suites.
pub(crate) fn unknown_variables<'a>(
    names: impl IntoIterator<Item = &'a str>,
    command: &dyn Fn() -> clap::Command,
) -> Vec<String> {
    let known = variables();
    let mut warnings: Vec<String> = names
        .into_iter()
        .filter(|name| name.starts_with(PREFIX) && !name.starts_with("FOREBAY_TEST_"))
        .filter(|name| !known.iter().any(|known| known == name))
        .map(|name| {
            let long = name[PREFIX.len()..].to_lowercase().replace('_', "-");
            let hint = if has_option(&command(), &long) {
                format!("give --{long} on the command line")
            } else {
                format!("the variables are {}", known.join(", "))
            };
            format!("environment variable {name} is not read; {hint}")
        })
        .collect();
    warnings.sort();
    warnings
}

fn has_option(command: &clap::Command, long: &str) -> bool {
    command
        .get_arguments()
        .any(|arg| arg.get_long() == Some(long))
        || command.get_subcommands().any(|sub| has_option(sub, long))
}

/// Returns the color choice before parsing, so that usage errors and help follow it too.
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
    fn every_option_has_help() {
        each_option(&crate::command(), &mut |command, arg| {
            let name = arg.get_id();
            assert!(
                arg.get_help().is_some(),
                "{command}: {name} is not documented"
            );
        });
    }

    #[test]
    fn only_listed_options_have_a_variable() {
        let mut found = std::collections::BTreeSet::new();
        each_option(&crate::command(), &mut |_, arg| {
            if let Some(name) = arg.get_env() {
                let name = name.to_str().unwrap().to_owned();
                assert_eq!(name, variable(arg.get_long().unwrap()));
                found.insert(name);
            }
        });
        let listed: std::collections::BTreeSet<String> =
            OPTION_VARIABLES.map(variable).into_iter().collect();
        assert_eq!(found, listed);
    }

    #[test]
    fn the_document_lists_every_variable() {
        let page = include_str!("../../../docs/environment.md");
        let documented: Vec<&str> = page
            .lines()
            .filter_map(|line| line.strip_prefix("| `FOREBAY_")?.split('`').next())
            .collect();
        let known = variables();
        let expected: Vec<&str> = known.iter().map(|name| &name[PREFIX.len()..]).collect();
        assert_eq!(documented, expected);
    }

    #[test]
    fn unknown_variables_are_named() {
        let warnings = unknown_variables(
            [
                "FOREBAY_SEED",
                "FOREBAY_JBOS",
                "FOREBAY_JOBS",
                "FOREBAY_TEST_KILLS",
                "PATH",
            ],
            &crate::command,
        );
        assert_eq!(warnings.len(), 2, "{warnings:?}");
        assert!(
            warnings[0].contains("FOREBAY_JBOS is not read; the variables are FOREBAY_CACHE_BYTES")
        );
        assert!(warnings[1].contains("FOREBAY_SEED is not read; give --seed on the command line"));
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

    /// Splits a command into words, as a shell does. Stops at a comment, a pipe, a redirection or the next command.
    fn words(line: &str) -> Vec<String> {
        let mut words = Vec::new();
        let mut word: Option<String> = None;
        let mut quote = None;
        for c in line.chars() {
            match (quote, c) {
                (Some(open), _) if c == open => quote = None,
                (Some(_), _) => word.get_or_insert_default().push(c),
                (None, '\'' | '"') => {
                    quote = Some(c);
                    word.get_or_insert_default();
                }
                (None, '|' | ';' | '>' | '&' | '#') if word.is_none() => break,
                (None, _) if c.is_whitespace() => words.extend(word.take()),
                (None, _) => word.get_or_insert_default().push(c),
            }
        }
        words.extend(word);
        words
    }

    /// Returns the error of an invalid command.
    fn refused(line: &str, found_in: &str) -> Option<String> {
        use clap::error::ErrorKind::{DisplayHelp, DisplayVersion};
        let error = crate::command().try_get_matches_from(words(line)).err()?;
        let shows = [DisplayHelp, DisplayVersion].contains(&error.kind());
        (!shows).then(|| format!("{found_in}: {line}\n{error}"))
    }

    #[test]
    fn examples_of_help_texts_are_valid() {
        fn check(command: &clap::Command, found: &mut Vec<String>) {
            let help = command.get_after_help().map(ToString::to_string);
            let lines = help.as_deref().unwrap_or_default().lines();
            for line in lines.filter(|line| line.starts_with("  forebay ")) {
                // A remark follows the command after two spaces or more.
                let example = line.trim_start().split("  ").next().unwrap_or_default();
                found.extend(refused(example, command.get_name()));
            }
            let commands = command.get_subcommands();
            commands.for_each(|command| check(command, found));
        }
        let mut found = Vec::new();
        check(&crate::command(), &mut found);
        assert!(found.is_empty(), "{}", found.join("\n"));
    }

    #[test]
    fn commands_of_documents_are_valid() {
        let root = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("../..");
        let mut pages = vec![root.join("README.md")];
        for dir in ["docs", "docs/migration"] {
            let entries = std::fs::read_dir(root.join(dir)).unwrap();
            let paths = entries.map(|entry| entry.unwrap().path());
            pages.extend(paths.filter(|path| path.extension().is_some_and(|e| e == "md")));
        }
        let (mut checked, mut found) = (0, Vec::new());
        for page in pages {
            let text = std::fs::read_to_string(&page).unwrap().replace("\\\n", " ");
            let mut is_fenced = false;
            for line in text.lines() {
                is_fenced ^= line.starts_with("```");
                let code = line.strip_prefix("    ").filter(|_| !is_fenced);
                let code = code.or_else(|| is_fenced.then_some(line));
                let code = code.map(|code| code.trim_start_matches("$ "));
                if let Some(code) = code.filter(|code| code.starts_with("forebay ")) {
                    found.extend(refused(code, &page.display().to_string()));
                    checked += 1;
                }
            }
        }
        assert!(found.is_empty(), "{}", found.join("\n"));
        assert!(checked > 50, "{checked} commands");
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
