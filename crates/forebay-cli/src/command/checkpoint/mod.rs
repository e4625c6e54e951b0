//! `forebay checkpoint`: lists, verifies, downloads and removes checkpoints.

use std::ffi::OsString;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};

use clap::{Args as ClapArgs, Subcommand};
use forebay_checkpoint::{self as checkpoint, Checkpoint, default_area};
use forebay_store::{Cancel, Location};
use serde::Serialize;

use crate::console::Console;
use crate::failure::{Failure, Outcome};
use crate::input::show;
use crate::quantity;
use crate::store_args::StoreArgs;
use crate::table::{Align, Table};

/// List, verify, download and remove checkpoints
#[derive(Debug, ClapArgs)]
#[command(after_help = "\
Examples:
  forebay checkpoint ls s3://bucket/run
  forebay checkpoint verify s3://bucket/run/step-1000
  forebay checkpoint get s3://bucket/run/step-1000 step-1000/
  forebay checkpoint rm s3://bucket/run/step-1000")]
pub(crate) struct Args {
    #[command(subcommand)]
    what: What,
}

#[derive(Debug, Subcommand)]
enum What {
    /// List the complete checkpoints of a run, and those that this machine is uploading
    Ls {
        /// The directory or prefix that holds them
        #[arg(value_name = "RUN")]
        location: OsString,
        #[command(flatten)]
        rest: Rest,
    },
    /// Compare every file of a checkpoint with its checksum
    Verify {
        /// The checkpoint
        #[arg(value_name = "CHECKPOINT")]
        location: OsString,
        #[command(flatten)]
        rest: Rest,
    },
    /// Download the files of a checkpoint into a directory, and compare them with their checksums
    Get {
        /// The checkpoint
        #[arg(value_name = "CHECKPOINT")]
        location: OsString,

        /// The directory to write; of several ranks, each one's files go to rank-N below it
        #[arg(value_name = "DIR")]
        directory: PathBuf,

        /// Only the files of this rank, directly into DIR
        #[arg(long, value_name = "N")]
        rank: Option<u32>,

        #[command(flatten)]
        rest: Rest,
    },
    /// Remove complete checkpoints. Pinned ones, and those that a process reads or still has to upload, are refused
    Rm {
        /// The checkpoints
        #[arg(value_name = "CHECKPOINT", required = true)]
        locations: Vec<OsString>,
        #[command(flatten)]
        rest: Rest,
    },
}

#[derive(Debug, ClapArgs)]
struct Rest {
    #[command(flatten)]
    store: StoreArgs,

    /// The staging area [default: ~/.cache/forebay/stage]
    #[arg(long, value_name = "DIR")]
    staging: Option<PathBuf>,
}

impl Rest {
    /// The area, if there may be one.
    fn area(&self) -> Option<PathBuf> {
        self.staging.clone().or_else(|| default_area().ok())
    }
}

pub(crate) fn run(args: Args, console: &Console) -> Result<Outcome, Failure> {
    match args.what {
        What::Ls { location, rest } => ls(&Location::parse(location)?, &rest, console),
        What::Verify { location, rest } => verify(&Location::parse(location)?, &rest, console),
        What::Get {
            location,
            directory,
            rank,
            rest,
        } => get(
            &Location::parse(location)?,
            &directory,
            rank,
            &rest,
            console,
        ),
        What::Rm { locations, rest } => rm(&locations, &rest, console),
    }
}

#[derive(Serialize)]
struct Row<'a> {
    location: &'a str,
    step: Option<u64>,
    bytes: u64,
    world_size: u32,
    stored: bool,
    staged: bool,
    pinned: bool,
    error: Option<&'a str>,
}

fn ls(run: &Location, rest: &Rest, console: &Console) -> Result<Outcome, Failure> {
    let found = checkpoint::list(run, &rest.store.options(), rest.area().as_deref())?;
    let mut table = Table::new(&[
        ("checkpoint", Align::Left),
        ("size", Align::Right),
        ("", Align::Left),
    ]);
    for one in &found {
        let (bytes, world_size, error) = match &one.manifest {
            Ok(manifest) => (manifest.bytes(), manifest.world_size(), None),
            Err(why) => (0, 0, Some(why.as_str())),
        };
        let mut notes = Vec::new();
        if !one.is_stored {
            notes.push("on its way".to_owned());
        }
        if one.is_pinned {
            notes.push("pinned".to_owned());
        }
        if world_size > 1 {
            notes.push(format!("{world_size} ranks"));
        }
        notes.extend(error.map(|why| format!("damaged: {why}")));
        table.row([one.name.clone(), quantity::bytes(bytes), notes.join(", ")]);
        console.event(
            "checkpoint",
            &Row {
                location: &one.location,
                step: one.step,
                bytes,
                world_size,
                stored: one.is_stored,
                staged: one.is_staged,
                pinned: one.is_pinned,
                error,
            },
        );
    }
    if found.is_empty() {
        console.note(format!("no complete checkpoint in {run}"));
    } else {
        table
            .lines(console.paint())
            .iter()
            .for_each(|line| console.line(line));
    }
    #[derive(Serialize)]
    struct Summary {
        command: &'static str,
        exit_code: i32,
        checkpoints: usize,
    }
    let summary = Summary {
        command: "checkpoint ls",
        exit_code: 0,
        checkpoints: found.len(),
    };
    console.event("summary", &summary);
    Ok(Outcome::Done)
}

fn verify(place: &Location, rest: &Rest, console: &Console) -> Result<Outcome, Failure> {
    let found = Checkpoint::open(
        place,
        &rest.store.options_until(console),
        rest.area().as_deref(),
    )?;
    let bytes = found.manifest().bytes();
    let files: u64 = found
        .manifest()
        .parts
        .iter()
        .map(|part| part.files.len() as u64)
        .sum();
    let bar = console.bar("verifying", Some(bytes));
    let read = AtomicU64::new(0);
    let cancel = Cancel::from_flag(console.interrupt().answer().flag());
    let damage = found.verify(&cancel, &|more| {
        let read = read.fetch_add(more, Ordering::Relaxed) + more;
        bar.update(read, read, "bytes", read);
    });
    drop(bar);
    let damage = match damage {
        Err(checkpoint::Error::Cancelled { .. }) => {
            return Err(Failure::interrupted("nothing damaged was found until then"));
        }
        other => other?,
    };
    for error in &damage {
        console.warning(error.to_string());
    }
    #[derive(Serialize)]
    struct Summary {
        command: &'static str,
        exit_code: i32,
        location: String,
        files: u64,
        bytes: u64,
        damaged: Vec<String>,
    }
    console.event(
        "summary",
        &Summary {
            command: "checkpoint verify",
            exit_code: i32::from(!damage.is_empty()),
            location: found.location(),
            files,
            bytes,
            damaged: damage.iter().map(ToString::to_string).collect(),
        },
    );
    if damage.is_empty() {
        console.line(format!(
            "{}: {} of {}, each as it was saved",
            found.location(),
            quantity::counted(files, "file", "files"),
            quantity::bytes(bytes)
        ));
        return Ok(Outcome::Done);
    }
    Err(Failure::new(format!(
        "{} of {} in {} are damaged",
        quantity::count(damage.len() as u64),
        quantity::counted(files, "file", "files"),
        found.location()
    ))
    .hint("load another checkpoint: `forebay checkpoint ls` lists those of the run"))
}

fn get(
    location: &Location,
    directory: &Path,
    rank: Option<u32>,
    rest: &Rest,
    console: &Console,
) -> Result<Outcome, Failure> {
    let options = rest.store.options_until(console);
    let found = Checkpoint::open(location, &options, rest.area().as_deref())?;
    let manifest = found.manifest();
    let world_size = manifest.world_size();
    if let Some(rank) = rank.filter(|rank| *rank >= world_size) {
        let ranks = quantity::counted(world_size.into(), "rank", "ranks");
        return Err(Failure::usage(format!(
            "--rank {rank}: {} has {ranks}, numbered from 0",
            found.location()
        )));
    }
    let mut files = Vec::new();
    for (number, part) in (0_u32..).zip(&manifest.parts) {
        if rank.is_some_and(|rank| rank != number) {
            continue;
        }
        let below = if rank.is_none() && world_size > 1 {
            directory.join(format!("rank-{number}"))
        } else {
            directory.to_owned()
        };
        files.extend(
            part.files
                .iter()
                .map(|file| (number, file, below.join(&file.name))),
        );
    }
    if let Some((_, _, path)) = files.iter().find(|(_, _, path)| path.exists()) {
        return Err(Failure::new(format!("{} is there already", show(path)))
            .hint("name a directory that does not exist yet"));
    }
    let bytes: u64 = files.iter().map(|(_, file, _)| file.bytes).sum();
    let bar = console.bar("copying", Some(bytes));
    let copied = AtomicU64::new(0);
    let cancel = Cancel::from_flag(console.interrupt().answer().flag());
    for (number, file, path) in &files {
        found.export(*number, file, path, &cancel, &|more| {
            let copied = copied.fetch_add(more, Ordering::Relaxed) + more;
            bar.update(copied, copied, "bytes", copied);
        })?;
    }
    drop(bar);
    #[derive(Serialize)]
    struct Summary {
        command: &'static str,
        exit_code: i32,
        location: String,
        directory: String,
        files: usize,
        bytes: u64,
    }
    console.line(format!(
        "Copied {} of {} into {}",
        quantity::counted(files.len() as u64, "file", "files"),
        quantity::bytes(bytes),
        show(directory)
    ));
    console.event(
        "summary",
        &Summary {
            command: "checkpoint get",
            exit_code: 0,
            location: found.location(),
            directory: directory.display().to_string(),
            files: files.len(),
            bytes,
        },
    );
    Ok(Outcome::Done)
}

fn rm(locations: &[OsString], rest: &Rest, console: &Console) -> Result<Outcome, Failure> {
    let options = rest.store.options_until(console);
    for location in locations {
        let location = Location::parse(location)?;
        checkpoint::remove(&location, &options, rest.area().as_deref())?;
        console.line(format!("Removed {location}"));
    }
    #[derive(Serialize)]
    struct Summary {
        command: &'static str,
        exit_code: i32,
        removed: usize,
    }
    console.event(
        "summary",
        &Summary {
            command: "checkpoint rm",
            exit_code: 0,
            removed: locations.len(),
        },
    );
    Ok(Outcome::Done)
}
