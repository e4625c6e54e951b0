//! `forebay stage`: what waits on the fast disk, and bringing it where it belongs.

mod checkpoints;

use std::path::PathBuf;
use std::time::Duration;

use clap::{Args as ClapArgs, Subcommand};
use forebay_store::checkpoint::default_area;
use serde::Serialize;

use crate::console::Console;
use crate::failure::{Failure, Outcome};
use crate::input::show;
use crate::quantity::{self, parse_duration, parse_size};
use crate::store_args::StoreArgs;
use checkpoints::Checkpoints;

/// Look at a staging area, and bring what is in it where it belongs
#[derive(Debug, ClapArgs)]
#[command(after_help = "\
Checkpoints and packed shards are safe in the staging area, a directory on a fast local disk, before
they are where they belong. What a process that was killed left there is never lost: the next one
takes it up, and so do these commands.

Examples:
  forebay stage status
  forebay stage recover --staging /nvme/stage      what no process takes care of any more
  forebay stage drain                              and wait for what running processes drain")]
pub(crate) struct Args {
    #[command(subcommand)]
    what: What,

    /// The staging area [default: ~/.cache/forebay/stage]
    #[arg(long, value_name = "DIR", global = true)]
    staging: Option<PathBuf>,
}

#[derive(Debug, Subcommand)]
enum What {
    /// What is in the area: how large, how old, where it goes, and why it is not there
    Status,
    /// Take up what is left, and wait until everything is where it belongs
    Drain(Bring),
    /// Take up what processes that are gone have left
    Recover(Bring),
}

#[derive(Debug, ClapArgs)]
struct Bring {
    #[command(flatten)]
    store: StoreArgs,

    /// Bytes a second that are sent at most
    #[arg(long, value_name = "SIZE", value_parser = parse_size)]
    bandwidth: Option<u64>,

    /// Give up after failing for so long; what is not there stays staged
    #[arg(long, value_name = "TIME", default_value = "5m", value_parser = parse_duration)]
    patience: Duration,
}

pub(crate) fn run(args: Args, console: &Console) -> Result<Outcome, Failure> {
    let area = match args.staging {
        Some(dir) => std::path::absolute(&dir)
            .map_err(|error| Failure::new(format!("cannot find {}: {error}", show(&dir))))?,
        None => default_area()?,
    };
    match args.what {
        What::Status => status(&area, console),
        What::Drain(bring) => drain(&area, &bring, true, console),
        What::Recover(bring) => drain(&area, &bring, false, console),
    }
}

#[derive(Serialize)]
struct Summary {
    command: &'static str,
    exit_code: i32,
    staging: String,
    /// What is not where it belongs.
    left: u64,
    left_bytes: u64,
    /// What was brought there by this command.
    drained: u64,
    drained_bytes: u64,
    free_bytes: u64,
}

fn status(area: &std::path::Path, console: &Console) -> Result<Outcome, Failure> {
    let checkpoints = Checkpoints::look(area)?;
    checkpoints.print(console);
    let (left, left_bytes) = checkpoints.left();
    let free_bytes = forebay_store::free_bytes(area)?;
    if left == 0 {
        console.line(format!("Nothing in {} waits to be drained", show(area)));
    } else {
        console.line(format!(
            "{} in {}, {}, not yet where they belong; its disk has {} free",
            quantity::counted(left, "checkpoint", "checkpoints"),
            show(area),
            quantity::bytes(left_bytes),
            quantity::bytes(free_bytes),
        ));
    }
    console.event(
        "summary",
        &Summary {
            command: "stage status",
            exit_code: 0,
            staging: area.display().to_string(),
            left,
            left_bytes,
            drained: 0,
            drained_bytes: 0,
            free_bytes,
        },
    );
    Ok(Outcome::Done)
}

fn drain(area: &std::path::Path, bring: &Bring, waits: bool, console: &Console) -> Result<Outcome, Failure> {
    let options = bring.store.options();
    let drained = checkpoints::bring(area, &options, bring.bandwidth, bring.patience, waits, console)?;
    console.line(format!(
        "Drained {} of {} from {}",
        quantity::counted(drained.count, "checkpoint", "checkpoints"),
        quantity::bytes(drained.bytes),
        show(area),
    ));
    let (left, left_bytes) = Checkpoints::look(area)?.left();
    let failed = drained.failure;
    console.event(
        "summary",
        &Summary {
            command: if waits { "stage drain" } else { "stage recover" },
            exit_code: i32::from(failed.is_some()),
            staging: area.display().to_string(),
            left,
            left_bytes,
            drained: drained.count,
            drained_bytes: drained.bytes,
            free_bytes: forebay_store::free_bytes(area)?,
        },
    );
    match failed {
        Some(failure) => Err(failure),
        None => Ok(Outcome::Done),
    }
}
