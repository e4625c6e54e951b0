//! `forebay serve`: a dataset, decoded, for trainers on the network.

use std::net::SocketAddr;
use std::num::NonZeroUsize;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use clap::Args as ClapArgs;
use forebay_image::Limits;
use forebay_server::{Event, Server, ServerOptions};
use forebay_store::ReadOptions;
use serde::Serialize;

use crate::cache_args::CacheArgs;
use crate::console::Console;
use crate::failure::{Failure, Outcome};
use crate::input::{Input, show};
use crate::quantity::{self, parse_duration, parse_size};
use crate::store_args::StoreArgs;

/// Serve decoded batches of a dataset to trainers
#[derive(Debug, ClapArgs)]
#[command(after_help = "\
Prints the URL that trainers use and runs until Ctrl-C. One server feeds any number of
trainers; each asks for its own batch size, transform, seed and rank.

Examples:
  forebay serve shards/
  forebay serve s3://bucket/shards
  forebay serve shards/ --name imagenet --listen 127.0.0.1:0     any free port
  python3 -c 'import forebay; loader = forebay.Loader(\"forebay://127.0.0.1:7070/shards\", split=\"train\")'")]
pub(crate) struct Args {
    /// The dataset: the directory or URL that holds forebay.json
    #[arg(value_name = "DATASET")]
    dataset: PathBuf,

    /// Name in the URL [default: the directory's name]
    #[arg(long, value_name = "NAME")]
    name: Option<String>,

    /// Address and port to listen on; port 0 takes any free one
    #[arg(long, value_name = "ADDR:PORT", default_value = "127.0.0.1:7070")]
    listen: SocketAddr,

    /// Threads that decode for one stream [default: what the machine allows]
    #[arg(long, value_name = "N", help_heading = "Limits")]
    threads: Option<NonZeroUsize>,

    /// Memory for one stream's records and batches [default: 1GiB]
    #[arg(long, value_name = "SIZE", value_parser = parse_size, help_heading = "Limits")]
    memory: Option<u64>,

    /// Memory of one stream that a trainer on this host shares, so that nothing is copied
    #[arg(long, value_name = "SIZE", default_value = "1GiB", value_parser = parse_size, help_heading = "Limits")]
    shared_memory: u64,

    /// Share no memory: trainers on this host use TCP as well
    #[arg(long, conflicts_with = "shared_memory", help_heading = "Limits")]
    no_shared_memory: bool,

    /// Largest image that is decoded, in pixels
    #[arg(long, value_name = "N", default_value_t = Limits::default().max_pixels, help_heading = "Limits")]
    max_pixels: u64,

    /// Largest image when decoded, what the decoder needs beside it included
    #[arg(long, value_name = "SIZE", default_value = "256MiB", value_parser = parse_size, help_heading = "Limits")]
    max_image_bytes: u64,

    /// Trainers at the same time; a further one is told that the server is busy
    #[arg(long, value_name = "N", default_value_t = 1024, help_heading = "Limits")]
    max_connections: usize,

    /// How long Ctrl-C lets batches arrive that are being sent
    #[arg(long, value_name = "TIME", default_value = "10s", value_parser = parse_duration, help_heading = "Limits")]
    drain_timeout: Duration,

    /// Allow an address that other machines reach: there is no encryption and no password
    #[arg(long)]
    insecure: bool,

    #[command(flatten)]
    cache: CacheArgs,

    #[command(flatten)]
    store: StoreArgs,
}

/// What connections do, on stderr or as events.
fn log(console: &Console) -> impl Fn(&Event<'_>) + Send + Sync + use<> {
    let console = console.clone();
    move |event: &Event<'_>| {
        match event {
            // The URL says it better.
            Event::Listening { .. } => {}
            Event::Closed { clean: false, .. }
            | Event::Refused { .. }
            | Event::AcceptFailed { .. } => console.warning(event.to_string()),
            Event::EpochEnd { .. } => console.detail(event.to_string()),
            _ => console.note(event.to_string()),
        }
        console.event("log", &Line { message: event.to_string() });
    }
}

#[derive(Serialize)]
struct Line {
    message: String,
}

/// The dataset's name in a URL: what was asked for, or the directory's own name.
fn decide_name(named: Option<&str>, root: &Path) -> Result<String, Failure> {
    if let Some(name) = named {
        return Ok(name.to_owned());
    }
    // `.` and `..` have a name as well.
    let real = root.canonicalize().unwrap_or_else(|_| root.to_owned());
    let name: String = real
        .file_name()
        .map(|name| name.to_string_lossy().into_owned())
        .unwrap_or_default()
        .chars()
        .map(|c| if c.is_ascii_alphanumeric() || ".-_".contains(c) { c } else { '-' })
        .collect();
    if name.is_empty() {
        Err(Failure::usage(format!("{} has no name", show(root)))
            .hint("give the dataset one with --name NAME"))
    } else {
        Ok(name)
    }
}

pub(crate) fn run(args: Args, console: &Console) -> Result<Outcome, Failure> {
    if !args.listen.ip().is_loopback() && !args.insecure {
        return Err(Failure::usage(format!(
            "{} can be reached by other machines, and there is no encryption and no password",
            args.listen
        ))
        .hint("on a network that you trust add --insecure; else listen on 127.0.0.1"));
    }
    let cache = args.cache.open_for([&args.dataset], console)?;
    let options = ReadOptions::new(args.store.options()).with_cache(cache);
    let dataset = Input::dataset_with(&args.dataset, &options)?;
    let name = decide_name(args.name.as_deref(), dataset.path())?;
    let dataset = dataset.open_dataset()?;
    let splits: Vec<SplitEvent> = dataset
        .manifest()
        .splits
        .iter()
        .map(|split| SplitEvent {
            name: split.name.clone(),
            records: split.records,
        })
        .collect();

    let mut server = Server::bind(ServerOptions {
        listen: args.listen,
        allow_remote: args.insecure,
        max_connections: args.max_connections,
        image_limits: Limits {
            max_pixels: args.max_pixels,
            max_decoded_bytes: args.max_image_bytes,
            ..Limits::default()
        },
        drain_timeout: args.drain_timeout,
        stream_memory_bytes: args.memory,
        shared_memory_bytes: if args.no_shared_memory { 0 } else { args.shared_memory },
        stream_threads: args.threads.map(NonZeroUsize::get),
        observer: Arc::new(log(console)),
        ..ServerOptions::default()
    })?;
    server.add_dataset(&name, &dataset)?;
    let address = server.local_addr();
    let url = format!("forebay://{address}/{name}");
    if !address.ip().is_loopback() {
        console.warning(format!(
            "anybody who reaches {address} can read this dataset: no encryption, no password"
        ));
    }
    let interrupt = console.interrupt().answer();
    console.line(&url);
    for split in &splits {
        console.note(format!(
            "{}: {}",
            split.name,
            quantity::counted(split.records, "record", "records")
        ));
    }
    if let Some(split) = splits.first() {
        console.note(format!(
            "In Python: forebay.Loader({url:?}, split={:?}, batch_size=256)",
            split.name
        ));
    }
    console.note("Ctrl-C stops the server once what is being sent has arrived; twice stops it at once.");
    console.event("serving", &Serving { url: &url, address: address.to_string(), splits: &splits });

    let handle = server.spawn()?;
    interrupt.wait();
    let stats = handle.shutdown();
    console.line(format!(
        "Served {} in {} to {}",
        quantity::counted(stats.images, "image", "images"),
        quantity::counted(stats.batches, "batch", "batches"),
        quantity::counted(stats.streams, "stream", "streams"),
    ));
    console.event(
        "summary",
        &Summary {
            command: "serve",
            exit_code: 0,
            connections: stats.accepted,
            refused: stats.refused,
            failed: stats.failed,
            streams: stats.streams,
            batches: stats.batches,
            images: stats.images,
            payload_bytes: stats.payload_bytes,
        },
    );
    Ok(Outcome::Done)
}

#[derive(Serialize)]
struct Serving<'a> {
    url: &'a str,
    address: String,
    splits: &'a [SplitEvent],
}

#[derive(Serialize)]
struct SplitEvent {
    name: String,
    records: u64,
}

#[derive(Serialize)]
struct Summary {
    command: &'static str,
    exit_code: i32,
    connections: u64,
    refused: u64,
    failed: u64,
    streams: u64,
    batches: u64,
    images: u64,
    payload_bytes: u64,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_fit_for_a_url() {
        let dir = tempfile::tempdir().unwrap();
        let root = dir.path().join("my shards!");
        std::fs::create_dir(&root).unwrap();
        assert_eq!(decide_name(None, &root).unwrap(), "my-shards-");
        assert_eq!(decide_name(Some("x"), &root).unwrap(), "x");
        assert!(decide_name(None, Path::new("/")).is_err());
    }
}
