//! `forebay cache`: shows, fills and clears the local cache of data from stores.

mod fetch;
mod pieces;

use std::path::Path;

use clap::Args as ClapArgs;
use forebay_cache as cache;
use serde::Serialize;

use crate::console::Console;
use crate::failure::{Failure, Outcome};
use crate::input::show;
use crate::paint::printable;
use crate::quantity;
use crate::table::{Align, Table};

/// Show what a local cache of data from stores holds, fetch a dataset into it, or clear it
#[derive(Debug, ClapArgs)]
#[command(after_help = "\
A cache is a directory, named by --cache-dir or FOREBAY_CACHE_DIR, that any number of processes of
one host share. Blocks are checked when they are read: it may be cleared at any time.

Examples:
  forebay cache --cache-dir /nvme/forebay                           what is in it
  forebay cache s3://bucket/imagenet --cache-dir /nvme/forebay      fetch a dataset before a training
  forebay cache s3://bucket/imagenet --split train --epoch 0 --cache-dir /nvme/forebay    what epoch 0 needs first, first
  forebay cache --clear --cache-dir /nvme/forebay                   remove what is in it
  forebay cache --clear s3://bucket/imagenet --cache-dir /nvme/forebay")]
pub(crate) struct Args {
    /// A dataset in a store, to fetch as far as there is room; with --clear: remove only what is kept of it
    #[arg(value_name = "LOCATION")]
    location: Option<String>,

    /// Remove what is in the cache, and nothing else
    #[arg(long)]
    clear: bool,

    /// With --clear: say what would be removed, remove nothing
    #[arg(short = 'n', long, requires = "clear")]
    dry_run: bool,

    #[command(flatten)]
    fetch: fetch::FetchArgs,
}

pub(crate) fn run(args: Args, console: &Console) -> Result<Outcome, Failure> {
    let Some(dir) = &args.fetch.cache.cache_dir else {
        return Err(Failure::usage("no cache is named")
            .hint("say which: --cache-dir DIR, or FOREBAY_CACHE_DIR"));
    };
    match &args.location {
        location if args.clear => clear(dir, location.as_deref(), args.dry_run, console),
        Some(location) => fetch::run(location, &args.fetch, console),
        None => status(dir, console),
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
    let held = match contents.blocks {
        0 => "empty".to_owned(),
        blocks => format!(
            "{} in {} of {}",
            quantity::bytes(contents.used_bytes),
            quantity::counted(blocks, "block", "blocks"),
            quantity::binary(u64::from(contents.block_bytes)),
        ),
    };
    console.line(format!(
        "  {held}; {} free on its file system; {}",
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
        console.table(&table);
    }
    console.event(
        "summary",
        &Status {
            command: "cache",
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
    console.line(match cleared.blocks {
        0 => format!("Nothing to remove from {}", show(dir)),
        blocks => format!(
            "{} {} of {} from {}",
            if dry_run { "Would remove" } else { "Removed" },
            quantity::bytes(cleared.bytes),
            quantity::counted(blocks, "block", "blocks"),
            show(dir)
        ),
    });
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
            command: "cache",
            exit_code: 0,
            dir: show(dir),
            dry_run,
            cleared,
        },
    );
    Ok(Outcome::Done)
}
