//! `forebay stage`: lists and uploads the checkpoints and packed files of a staging area.

mod checkpoints;
mod files;

use std::path::{Path, PathBuf};
use std::time::Duration;

use clap::Args as ClapArgs;
use forebay_staging::checkpoint::default_area;
use serde::Serialize;

use crate::console::Console;
use crate::failure::{Failure, Outcome};
use crate::input::show;
use crate::quantity::{self, parse_size};
use crate::store_args::StoreArgs;
use checkpoints::Checkpoints;
use files::Files;

/// Time of failing uploads after which a drain ends.
const PATIENCE: Duration = Duration::from_secs(300);

/// List or upload what a staging area holds: checkpoints and packed shards
#[derive(Debug, ClapArgs)]
#[command(after_help = "\
The staging area is a directory on a fast local disk, where checkpoints and packed shards wait for
their upload. Those of a process that was killed stay there, and the next process with the same
staging area uploads them. --drain does so without a training. Where uploads fail for 5 minutes, it
ends, and the rest stays staged.

Examples:
  forebay stage
  forebay stage --drain --staging /nvme/stage")]
pub(crate) struct Args {
    /// The staging area [default: ~/.cache/forebay/stage]
    #[arg(long, value_name = "DIR")]
    staging: Option<PathBuf>,

    /// Upload what ended processes left, and wait for the uploads of running ones
    #[arg(long)]
    drain: bool,

    /// With --drain: maximum bytes per second of all uploads
    #[arg(long, value_name = "SIZE", value_parser = parse_size, requires = "drain")]
    bandwidth: Option<u64>,

    #[command(flatten)]
    store: StoreArgs,
}

pub(crate) fn run(args: Args, console: &Console) -> Result<Outcome, Failure> {
    let area = match &args.staging {
        Some(dir) => std::path::absolute(dir)
            .map_err(|error| Failure::new(format!("cannot find {}: {error}", show(dir))))?,
        None => default_area()?,
    };
    match args.drain {
        false => status(&area, console),
        true => drain(&area, &args, console),
    }
}

#[derive(Serialize)]
struct Summary {
    command: &'static str,
    exit_code: i32,
    staging: String,
    /// Checkpoints that are not uploaded.
    left: u64,
    left_bytes: u64,
    /// Packed files that are not uploaded.
    left_files: u64,
    left_file_bytes: u64,
    /// Checkpoints that this command uploaded.
    drained: u64,
    drained_bytes: u64,
    /// Packed files that this command uploaded.
    drained_files: u64,
    drained_file_bytes: u64,
    free_bytes: u64,
}

impl Summary {
    /// Returns a summary of the current contents of the area. The `drained` fields are 0.
    fn of(area: &Path) -> Result<Self, Failure> {
        let (left, left_bytes) = Checkpoints::look(area)?.left();
        let (left_files, left_file_bytes) = Files::look(area)?.left();
        Ok(Self {
            command: "stage",
            exit_code: 0,
            staging: area.display().to_string(),
            left,
            left_bytes,
            left_files,
            left_file_bytes,
            drained: 0,
            drained_bytes: 0,
            drained_files: 0,
            drained_file_bytes: 0,
            free_bytes: forebay_store::free_bytes(area)?,
        })
    }
}

/// Formats both counts, such as "2 checkpoints and 1 packed file". A count of 0 is left out.
fn both(checkpoints: u64, files: u64) -> String {
    let checkpoints_text = quantity::counted(checkpoints, "checkpoint", "checkpoints");
    let files_text = quantity::counted(files, "packed file", "packed files");
    match (checkpoints, files) {
        (_, 0) => checkpoints_text,
        (0, _) => files_text,
        _ => format!("{checkpoints_text} and {files_text}"),
    }
}

fn status(area: &Path, console: &Console) -> Result<Outcome, Failure> {
    Checkpoints::look(area)?.print(console);
    Files::look(area)?.print(console);
    let summary = Summary::of(area)?;
    if summary.left + summary.left_files == 0 {
        console.line(format!("Nothing in {} waits to be drained", show(area)));
    } else {
        console.line(format!(
            "{} in {}, {}, not uploaded yet; its disk has {} free",
            both(summary.left, summary.left_files),
            show(area),
            quantity::bytes(summary.left_bytes + summary.left_file_bytes),
            quantity::bytes(summary.free_bytes),
        ));
    }
    console.event("summary", &summary);
    Ok(Outcome::Done)
}

fn drain(area: &Path, args: &Args, console: &Console) -> Result<Outcome, Failure> {
    let options = args.store.options();
    let files = files::recover(area, &options, args.bandwidth, console);
    if let Err(failure) = &files
        && failure.is_interruption()
    {
        return files.map(|_| Outcome::Done);
    }
    let drained = checkpoints::bring(area, &options, args.bandwidth, console)?;
    let (count, bytes, failed) = match files {
        Ok((count, bytes)) => (count, bytes, drained.failure),
        Err(failure) => (0, 0, Some(failure)),
    };
    console.line(format!(
        "Drained {} of {} from {}",
        both(drained.count, count),
        quantity::bytes(drained.bytes + bytes),
        show(area),
    ));
    let summary = Summary {
        exit_code: i32::from(failed.is_some()),
        drained: drained.count,
        drained_bytes: drained.bytes,
        drained_files: count,
        drained_file_bytes: bytes,
        ..Summary::of(area)?
    };
    console.event("summary", &summary);
    match failed {
        Some(failure) => Err(failure),
        None => Ok(Outcome::Done),
    }
}
