//! `forebay serve`: datasets, decoded, for trainers on this machine and on the network.
//!
//! Owns the options: flags, then the environment, then CONFIG.toml, then defaults. Decisions are in
//! [`decide`], the file's keys are in [`config`], jobs in [`job`], the log in [`log`].

mod config;
mod decide;
mod entry;
mod job;
mod job_args;
mod log;

use std::io::Read;
use std::net::{Shutdown, SocketAddr};
use std::num::NonZeroUsize;
use std::os::unix::net::UnixStream;
use std::path::PathBuf;
use std::time::Duration;

use clap::Args as ClapArgs;
use forebay_server::{Admin, Health, Server, ServerHandle};
use serde::{Deserialize, Serialize};
use signal_hook::SigId;
use signal_hook::consts::SIGHUP;
use signal_hook::low_level::{pipe, unregister};

use crate::cache_args::CacheArgs;
use crate::console::Console;
use crate::failure::{Failure, Outcome};
use crate::quantity::{self, parse_duration, parse_size};
use crate::store_args::StoreArgs;
use decide::Decided;
use entry::{Entry, SplitEvent};
use job_args::JobArgs;

/// Serve decoded batches of datasets to trainers
#[derive(Debug, ClapArgs)]
#[command(after_help = "\
Prints the URLs that trainers use and runs until Ctrl-C. One server feeds any number of
trainers. Of a dataset, each asks for its own batch size, transform, seed and rank; of a job,
the server decides about all but the rank. --job makes one, CONFIG.toml as many as there
are: docs/serving.md.

Examples:
  forebay serve shards/
  forebay serve s3://bucket/shards
  forebay serve shards/ --name imagenet --listen 127.0.0.1:0     any free port
  forebay serve shards/ --job resnet50 -o batch_size=256 -o world_size=8 -o transform=train
  forebay serve \"synthetic://imagenet?records=1000000\"          no storage at all
  forebay serve CONFIG.toml --check                              is all of it in order
  forebay serve shards/ --listen 0.0.0.0:7070 --tls-cert cert.pem --tls-key key.pem --token-file tokens
  python3 -c 'import forebay; loader = forebay.Loader(\"forebay://127.0.0.1:7070/shards\", split=\"train\")'")]
pub(crate) struct Args {
    /// Datasets (the directories or URLs that hold forebay.json), or one CONFIG.toml
    #[arg(value_name = "DATASET|CONFIG.toml", required = true)]
    sources: Vec<PathBuf>,

    /// Name of the dataset in the URL [default: the directory's name]
    #[arg(long, value_name = "NAME")]
    name: Option<String>,

    /// Address and port to listen on; port 0 takes any free one [default: 127.0.0.1:7070]
    #[arg(long, value_name = "ADDR:PORT")]
    listen: Option<SocketAddr>,

    /// Serves a dashboard, health, readiness and metrics over HTTP on this address: /, /healthz, /readyz, /metrics. They
    /// show datasets, rates and clients to everyone who can connect [default: none]
    #[arg(long, value_name = "ADDR:PORT")]
    admin_listen: Option<SocketAddr>,

    /// Health and readiness alone over HTTP on this address: /healthz, /readyz. For probes, which then do not depend on the load
    /// of --admin-listen [default: none]
    #[arg(long, value_name = "ADDR:PORT")]
    health_listen: Option<SocketAddr>,

    /// Show small previews of samples on the dashboard [default: only on addresses that this machine alone reaches]
    #[arg(long, value_name = "true|false", num_args = 0..=1, require_equals = true, default_missing_value = "true")]
    admin_images: Option<bool>,

    /// Look at everything that would be served, print it, and end
    #[arg(long)]
    check: bool,

    /// Certificate, in PEM, with those between it and its authority; read again when it changes
    #[arg(long, value_name = "FILE", help_heading = "Security")]
    tls_cert: Option<PathBuf>,

    /// Key of the certificate, in PEM
    #[arg(long, value_name = "FILE", help_heading = "Security")]
    tls_key: Option<PathBuf>,

    /// Ask trainers for certificates that one of these authorities signed, in PEM
    #[arg(long, value_name = "FILE", help_heading = "Security")]
    tls_client_ca: Option<PathBuf>,

    /// Let in who has one of these tokens: one a line, and after a space the names it is for. Read
    /// again when it changes. FOREBAY_TOKEN in the environment is one token for everything
    #[arg(long, value_name = "FILE", help_heading = "Security")]
    token_file: Option<PathBuf>,

    /// Allow an address that other machines reach without TLS, or without tokens
    #[arg(long, help_heading = "Security")]
    insecure: bool,

    /// Threads that decode for one stream, at most. Not a reservation: all streams share the cores that there are, each
    /// dataset or job by its weight in CONFIG.toml [default: one a core]
    #[arg(long, value_name = "N", help_heading = "Limits")]
    threads: Option<NonZeroUsize>,

    /// Memory for one stream's records and batches [default: 1GiB]
    #[arg(long, value_name = "SIZE", value_parser = parse_size, help_heading = "Limits")]
    memory: Option<u64>,

    /// The same for all streams together; one that does not fit holds less, or gets the error that the server is busy
    /// [default: half of what this machine or container has]
    #[arg(long, value_name = "SIZE", value_parser = parse_size, help_heading = "Limits")]
    total_memory: Option<u64>,

    /// Memory that one stream shares with a trainer on this host, so that batches are not copied; with 0 trainers on this host
    /// use TCP as well [default: 1GiB]
    #[arg(long, value_name = "SIZE", value_parser = size_or_none, help_heading = "Limits")]
    shared_memory: Option<u64>,

    /// Largest image that is decoded, in pixels [default: 67108864]
    #[arg(long, value_name = "N", help_heading = "Limits")]
    max_pixels: Option<u64>,

    /// Largest image when decoded, what the decoder needs beside it included [default: 256MiB]
    #[arg(long, value_name = "SIZE", value_parser = parse_size, help_heading = "Limits")]
    max_image_bytes: Option<u64>,

    /// Largest batch [default: 1GiB]
    #[arg(long, value_name = "SIZE", value_parser = parse_size, help_heading = "Limits")]
    max_batch_bytes: Option<u64>,

    /// Trainers at the same time; a further one gets the error that the server is busy [default: 1024]
    #[arg(long, value_name = "N", help_heading = "Limits")]
    max_connections: Option<usize>,

    /// The same for one address; 0 is no limit of its own [default: 256 for other machines]
    #[arg(long, value_name = "N", help_heading = "Limits")]
    max_connections_per_address: Option<usize>,

    /// Bytes a second that are sent to trainers elsewhere, all together; names share them by their
    /// weights [default: no limit]
    #[arg(long, value_name = "SIZE", value_parser = parse_size, help_heading = "Limits")]
    bandwidth: Option<u64>,

    /// Memory for batches that streams with the same options have in common, of all of them together
    /// [default: 1GiB]
    #[arg(long, value_name = "SIZE", value_parser = parse_size, help_heading = "Limits")]
    shared_batches: Option<u64>,

    /// Time for the handshake of a connection [default: 5s]
    #[arg(long, value_name = "TIME", value_parser = parse_duration, help_heading = "Limits")]
    handshake_timeout: Option<Duration>,

    /// How long Ctrl-C lets batches arrive that are being sent [default: 10s]
    #[arg(long, value_name = "TIME", value_parser = parse_duration, help_heading = "Limits")]
    drain_timeout: Option<Duration>,

    /// How events are written to stderr: text or json [default: text]
    #[arg(long, value_name = "FORMAT", hide_possible_values = true)]
    log_format: Option<LogFormat>,

    #[command(flatten)]
    job: Box<JobArgs>,

    #[command(flatten)]
    cache: CacheArgs,

    #[command(flatten)]
    store: StoreArgs,
}

/// How the log is written.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, clap::ValueEnum, Deserialize)]
#[serde(rename_all = "lowercase")]
pub(crate) enum LogFormat {
    /// Lines for people
    #[default]
    Text,
    /// One object a line
    Json,
}

/// Parses a size that may be 0.
fn size_or_none(text: &str) -> Result<u64, String> {
    match text {
        "0" => Ok(0),
        text => parse_size(text),
    }
}

pub(crate) fn run(args: Args, console: &Console) -> Result<Outcome, Failure> {
    let check = args.check;
    let decided = Decided::new(args, console)?;
    for warning in decided.warnings() {
        console.warning(warning);
    }
    let observer = log::printer(console, decided.log_format);
    let (server, entries) = decided.server(observer)?;
    if check {
        return checked(&decided, &server, &entries, console);
    }
    let address = server.local_addr();
    let interrupt = console.interrupt().answer();
    let scheme = decided.scheme();
    for entry in &entries {
        console.line(entry.url(scheme, address));
    }
    for entry in &entries {
        for line in entry.describe() {
            console.note(line);
        }
    }
    if let Some(entry) = entries.first() {
        console.note(format!("In Python: {}", entry.example(scheme, address)));
    }
    console.note(
        "Ctrl-C stops the server once what is being sent has arrived; twice stops it at once.",
    );
    console.event("serving", &Serving::new(&entries, scheme, address));

    let handle = server.spawn()?;
    let _on_hangup = OnHangup::start(&handle)?;
    let admin = match decided.admin_listen {
        Some(address) => {
            let shown = decided.admin_options(address);
            Some(Admin::start(address, handle.status(), shown)?)
        }
        None => None,
    };
    if let Some(admin) = &admin {
        console.note(format!("Dashboard: http://{}/", admin.addr()));
        let address = admin.addr().to_string();
        console.event("admin", &ListenerEvent { address });
    }
    let health = match decided.health_listen {
        Some(address) => Some(Health::start(address, handle.status())?),
        None => None,
    };
    if let Some(health) = &health {
        console.note(format!("Health: http://{}/healthz", health.addr()));
        let address = health.addr().to_string();
        console.event("health", &ListenerEvent { address });
    }
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
            unauthorized: stats.unauthorized,
            failed: stats.failed,
            streams: stats.streams,
            batches: stats.batches,
            images: stats.images,
            payload_bytes: stats.payload_bytes,
        },
    );
    Ok(Outcome::Done)
}

/// Prints what would be served.
fn checked(
    decided: &Decided,
    server: &Server,
    entries: &[Entry],
    console: &Console,
) -> Result<Outcome, Failure> {
    let (scheme, address) = (decided.scheme(), server.local_addr());
    for entry in entries {
        console.line(entry.url(scheme, address));
        for line in entry.describe() {
            console.line(format!("  {line}"));
        }
    }
    for line in decided.describe() {
        console.line(line);
    }
    console.event("serving", &Serving::new(entries, scheme, address));
    console.event(
        "summary",
        &CheckSummary {
            command: "serve",
            exit_code: 0,
            check: true,
        },
    );
    Ok(Outcome::Done)
}

/// Reads certificates and tokens again at SIGHUP.
struct OnHangup {
    id: SigId,
    /// Ends the thread when it is shut down.
    told: UnixStream,
    thread: Option<std::thread::JoinHandle<()>>,
}

impl OnHangup {
    fn start(server: &ServerHandle) -> Result<OnHangup, Failure> {
        let failed = |e: std::io::Error| Failure::new(format!("cannot listen for SIGHUP: {e}"));
        let (told, tells) = UnixStream::pair().map_err(failed)?;
        let mut listening = told.try_clone().map_err(failed)?;
        let id = pipe::register(SIGHUP, tells).map_err(failed)?;
        let reloader = server.reloader();
        let thread = std::thread::Builder::new()
            .name("forebay-reload".to_owned())
            .spawn(move || {
                while listening.read(&mut [0]).is_ok_and(|n| n > 0) {
                    reloader.reload();
                }
            })
            .map_err(failed)?;
        Ok(OnHangup {
            id,
            told,
            thread: Some(thread),
        })
    }
}

impl Drop for OnHangup {
    fn drop(&mut self) {
        unregister(self.id);
        let _ = self.told.shutdown(Shutdown::Both);
        if let Some(thread) = self.thread.take() {
            // It has nothing to say that was not logged.
            let _ = thread.join();
        }
    }
}

#[derive(Serialize)]
struct ListenerEvent {
    address: String,
}

#[derive(Serialize)]
struct Serving {
    url: String,
    address: String,
    splits: Vec<SplitEvent>,
    served: Vec<ServedEvent>,
}

#[derive(Serialize)]
struct ServedEvent {
    name: String,
    url: String,
    dataset: String,
    job: bool,
    splits: Vec<SplitEvent>,
}

impl Serving {
    fn new(entries: &[Entry], scheme: &str, address: SocketAddr) -> Self {
        let first = entries.first();
        Serving {
            url: first
                .map(|entry| entry.url(scheme, address))
                .unwrap_or_default(),
            address: address.to_string(),
            splits: first.map(|entry| entry.splits.clone()).unwrap_or_default(),
            served: entries
                .iter()
                .map(|entry| ServedEvent {
                    name: entry.name.clone(),
                    url: entry.url(scheme, address),
                    dataset: entry.dataset.clone(),
                    job: entry.job.is_some(),
                    splits: entry.splits.clone(),
                })
                .collect(),
        }
    }
}

#[derive(Serialize)]
struct CheckSummary {
    command: &'static str,
    exit_code: i32,
    check: bool,
}

#[derive(Serialize)]
struct Summary {
    command: &'static str,
    exit_code: i32,
    connections: u64,
    refused: u64,
    unauthorized: u64,
    failed: u64,
    streams: u64,
    batches: u64,
    images: u64,
    payload_bytes: u64,
}
