//! `forebay cache`: what is kept of stores on this machine.

mod pieces;
mod warm;

use std::path::{Path, PathBuf};

use clap::{Args as ClapArgs, Subcommand};
use forebay_cache as cache;
use serde::Serialize;

use crate::console::Console;
use crate::failure::{Failure, Outcome};
use crate::input::show;
use crate::paint::printable;
use crate::quantity;
use crate::table::{Align, Table};

/// Show, clear or fill the local cache of data from stores
#[derive(Debug, ClapArgs)]
#[command(after_help = "\
A cache is a directory, named by --cache-dir or FOREBAY_CACHE_DIR, that any number of processes of
one host share. Blocks are checked when they are read: it may be cleared at any time.

Examples:
  forebay cache status --cache-dir /nvme/forebay
  forebay cache warm s3://bucket/imagenet --split train --cache-dir /nvme/forebay
  forebay cache warm s3://bucket/imagenet --split train --epoch 0 --cache-dir /nvme/forebay    what epoch 0 needs first, first
  forebay cache clear --cache-dir /nvme/forebay --location s3://bucket/imagenet")]
pub(crate) struct Args {
    #[command(subcommand)]
    what: What,
}

#[derive(Debug, Subcommand)]
enum What {
    /// Show the size of the cache and the processes that use it
    Status {
        #[command(flatten)]
        place: Place,
    },
    /// Remove what is in it, and nothing else
    Clear {
        #[command(flatten)]
        place: Place,
        /// Only what is kept of this location
        #[arg(long, value_name = "URL")]
        location: Option<String>,
        /// Say what would be removed, remove nothing
        #[arg(short = 'n', long)]
        dry_run: bool,
    },
    /// Fetch a dataset into the cache before a training, as far as there is room
    Warm(Box<warm::Args>),
}

#[derive(Debug, ClapArgs)]
struct Place {
    /// The cache
    #[arg(long, value_name = "DIR")]
    cache_dir: PathBuf,
}

pub(crate) fn run(args: Args, console: &Console) -> Result<Outcome, Failure> {
    match args.what {
        What::Status { place } => status(&place.cache_dir, console),
        What::Clear {
            place,
            location,
            dry_run,
        } => clear(&place.cache_dir, location.as_deref(), dry_run, console),
        What::Warm(args) => warm::run(&args, console),
    }
}

#[derive(Serialize)]
struct Status {
    command: &'static str,
    exit_code: i32,
    dir: String,
    free_bytes: u64,
    #[serde(flatten)]
    contents: cache::CacheContents,
}

fn status(dir: &Path, console: &Console) -> Result<Outcome, Failure> {
    let contents = cache::contents(dir)?;
    let free_bytes = forebay_store::free_bytes(dir)?;
    console.heading(show(dir));
    console.line(format!(
        "  {} in {} of {}; {} free on its file system; {}",
        quantity::bytes(contents.used_bytes),
        quantity::counted(contents.blocks, "block", "blocks"),
        quantity::binary(u64::from(contents.block_bytes)),
        quantity::bytes(free_bytes),
        match contents.users {
            0 => "not in use".to_owned(),
            n => format!("in use by {}", quantity::counted(n, "process", "processes")),
        },
    ));
    if !contents.locations.is_empty() {
        let mut table = Table::new(&[
            ("location", Align::Left),
            ("objects", Align::Right),
            ("size", Align::Right),
            ("", Align::Left),
        ]);
        for at in &contents.locations {
            table.row([
                if at.location.is_empty() {
                    "(damaged)".to_owned()
                } else {
                    printable(&at.location)
                },
                quantity::count(at.objects),
                quantity::bytes(at.bytes),
                if at.in_use {
                    "in use".to_owned()
                } else {
                    String::new()
                },
            ]);
        }
        for line in table.lines(console.paint()) {
            console.line(line);
        }
    }
    console.event(
        "summary",
        &Status {
            command: "cache status",
            exit_code: 0,
            dir: show(dir),
            free_bytes,
            contents,
        },
    );
    Ok(Outcome::Done)
}

#[derive(Serialize)]
struct Clear {
    command: &'static str,
    exit_code: i32,
    dir: String,
    dry_run: bool,
    #[serde(flatten)]
    cleared: cache::Cleared,
}

fn clear(
    dir: &Path,
    location: Option<&str>,
    dry_run: bool,
    console: &Console,
) -> Result<Outcome, Failure> {
    let cleared = cache::clear(dir, location, dry_run)?;
    console.line(format!(
        "{} {} of {} from {}",
        if dry_run { "Would remove" } else { "Removed" },
        quantity::bytes(cleared.bytes),
        quantity::counted(cleared.blocks, "block", "blocks"),
        show(dir)
    ));
    if cleared.users > 0 {
        console.note(format!(
            "{} it: what they read is kept again",
            match cleared.users {
                1 => "1 process uses".to_owned(),
                n => format!("{} processes use", quantity::count(n)),
            }
        ));
    }
    for left in &cleared.left {
        console.warning(format!("{} is not of the cache, and stays", show(left)));
    }
    console.event(
        "summary",
        &Clear {
            command: "cache clear",
            exit_code: 0,
            dir: show(dir),
            dry_run,
            cleared,
        },
    );
    Ok(Outcome::Done)
}
