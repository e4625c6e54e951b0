//! The commands. To add one, write a module with `Args` and `run`, and add it to `commands!` below.

mod advise;
pub(crate) mod bench;
mod cache;
mod cat;
mod checkpoint;
mod completions;
mod convert;
mod copying;
mod cp;
mod doctor;
mod export;
pub(crate) mod foreign_args;
mod images;
mod index;
mod inspect;
mod loader_option_args;
mod ls;
mod pack;
mod quickstart;
mod record_files;
pub(crate) mod record_source;
mod repair;
mod rm;
mod seek_points;
mod serve;
mod stage;
mod top;
mod verify;
mod view;

use clap::Subcommand;

use crate::console::Console;
use crate::failure::{Failure, Outcome};

macro_rules! commands {
    ($($variant:ident => $module:ident,)+) => {
        /// A command with its arguments. What each does is said in its file.
        #[derive(Debug, Subcommand)]
        pub(crate) enum Command {
            // The help text is the doc comment of each `Args`. A doc comment here would replace it: the lint that misses one is off.
            $(#[allow(missing_docs)] $variant(Box<$module::Args>),)+
        }

        impl Command {
            /// Runs the command.
            pub(crate) fn run(self, console: &Console) -> Result<Outcome, Failure> {
                match self {
                    $(Self::$variant(args) => $module::run(*args, console),)+
                }
            }
        }
    };
}

impl Command {
    /// Returns whether everything on stderr must be JSON objects, one per line.
    pub(crate) fn logs_json(&self) -> bool {
        matches!(self, Command::Serve(args) if args.logs_json())
    }

    /// Returns whether the results are only a report of what was written, which `-q` hides.
    pub(crate) fn ends_with_report(&self) -> bool {
        match self {
            Command::Pack(args) => !args.dry_run,
            Command::Cp(args) => !args.how.dry_run,
            Command::Convert(_) | Command::Repair(_) | Command::Export(_) | Command::Index(_) => {
                true
            }
            _ => false,
        }
    }
}

// `forebay --help` lists the commands in this order.
commands! {
    Quickstart => quickstart,
    Pack => pack,
    Inspect => inspect,
    View => view,
    Verify => verify,
    Cat => cat,
    Convert => convert,
    Repair => repair,
    Export => export,
    Index => index,
    Ls => ls,
    Cp => cp,
    Rm => rm,
    Serve => serve,
    Top => top,
    Stage => stage,
    Cache => cache,
    Doctor => doctor,
    Advise => advise,
    Bench => bench,
    Completions => completions,
}
