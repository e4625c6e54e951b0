//! `forebay serve`: streams decoded batches of datasets to trainers on this machine and on the network.
//!
//! Precedence of options: flags, environment, CONFIG.toml, defaults. [`decide`] combines them, [`config`] has the keys of the
//! file, [`job`] the jobs, [`log`] the log.

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

use clap::Args as ClapArgs;
use forebay_monitor::{Admin, Health};
use forebay_server::{Server, ServerHandle};
use serde::Deserialize;
use serde_json::{Value, json};
use signal_hook::SigId;
use signal_hook::consts::SIGHUP;
use signal_hook::low_level::{pipe, unregister};

use crate::cache_args::CacheArgs;
use crate::console::Console;
use crate::failure::{Failure, Outcome};
use crate::quantity::{self, parse_size};
use crate::store_args::StoreArgs;
use decide::Decided;
use entry::Entry;
use job_args::JobArgs;

/// Serve decoded batches of datasets to trainers
#[derive(Debug, ClapArgs)]
#[command(after_help = "\
Prints the URLs for trainers and runs until Ctrl-C. One server feeds any number of trainers. A
trainer of a dataset chooses batch size, transform, seed and rank; a trainer of a job chooses the
rank, and the server everything else. --job defines one job, CONFIG.toml any number of jobs, and
further limits: docs/serving.md.

Examples:
  forebay serve shards/
  forebay serve s3://bucket/shards
  forebay serve shards/ --name imagenet --listen 127.0.0.1:0     any free port
  forebay serve shards/ --job resnet50 -o batch_size=256 -o world_size=8 -o transform=train
  forebay serve \"synthetic://imagenet?records=1000000\"          no storage at all
  forebay serve CONFIG.toml --dry-run                            check everything and exit
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

    /// Address of a dashboard, health, readiness and metrics over HTTP: /, /healthz, /readyz, /metrics. Everyone who can
    /// connect sees datasets, rates and clients [default: none]
    #[arg(long, value_name = "ADDR:PORT")]
    admin_listen: Option<SocketAddr>,

    /// Check and print everything that would be served, and exit
    #[arg(short = 'n', long)]
    dry_run: bool,

    /// Certificate chain in PEM; read again when the file changes
    #[arg(long, value_name = "FILE", help_heading = "Security")]
    tls_cert: Option<PathBuf>,

    /// Private key of the certificate in PEM
    #[arg(long, value_name = "FILE", help_heading = "Security")]
    tls_key: Option<PathBuf>,

    /// Authorities in PEM that must have signed the certificates of trainers
    #[arg(long, value_name = "FILE", help_heading = "Security")]
    tls_client_ca: Option<PathBuf>,

    /// File of tokens, of which a trainer needs one: a token a line, then a space and the dataset and job names it is for,
    /// if not all. Read again when the file changes. FOREBAY_TOKEN in the environment is a token for all names
    #[arg(long, value_name = "FILE", help_heading = "Security")]
    token_file: Option<PathBuf>,

    /// Allow other machines to connect without TLS or without tokens
    #[arg(long, help_heading = "Security")]
    insecure: bool,

    /// Maximum decoding threads of one stream. All streams share the cores by the weights in CONFIG.toml [default: number of
    /// cores]
    #[arg(long, value_name = "N", help_heading = "Limits")]
    threads: Option<NonZeroUsize>,

    /// Memory for one stream's records and batches [default: 1GiB]
    #[arg(long, value_name = "SIZE", value_parser = parse_size, help_heading = "Limits")]
    memory: Option<u64>,

    /// Memory that one stream shares with a trainer on this host, so that batches are not copied; with 0 trainers on this host
    /// use TCP as well [default: 1GiB]
    #[arg(long, value_name = "SIZE", value_parser = size_or_none, help_heading = "Limits")]
    shared_memory: Option<u64>,

    /// Maximum number of connections; further ones get the error that the server is busy [default: 1024]
    #[arg(long, value_name = "N", help_heading = "Limits")]
    max_connections: Option<usize>,

    /// Maximum bytes per second sent to other machines, shared by datasets and jobs by their weights [default: no limit]
    #[arg(long, value_name = "SIZE", value_parser = parse_size, help_heading = "Limits")]
    bandwidth: Option<u64>,

    /// Format of the log on stderr: text or json [default: text]
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
    let dry_run = args.dry_run;
    let decided = Decided::new(args, console)?;
    for warning in decided.warnings() {
        console.warning(warning);
    }
    crate::share_seek_points();
    let observer = log::printer(console, decided.log_format);
    let (server, entries) = decided.server(observer)?;
    if dry_run {
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
    console.event("serving", &serving(&entries, scheme, address));

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
        console.event("admin", &json!({"address": address}));
    }
    let health = match decided.health_listen {
        Some(address) => Some(Health::start(address, handle.status())?),
        None => None,
    };
    if let Some(health) = &health {
        console.note(format!("Health: http://{}/healthz", health.addr()));
        let address = health.addr().to_string();
        console.event("health", &json!({"address": address}));
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
        &json!({
            "command": "serve",
            "exit_code": 0,
            "connections": stats.accepted,
            "refused": stats.refused,
            "unauthorized": stats.unauthorized,
            "failed": stats.failed,
            "streams": stats.streams,
            "batches": stats.batches,
            "images": stats.images,
            "payload_bytes": stats.payload_bytes,
        }),
    );
    Ok(Outcome::Done)
}

/// Prints the datasets, jobs and settings, for `--dry-run`.
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
    console.event("serving", &serving(entries, scheme, address));
    console.event(
        "summary",
        &json!({
            "command": "serve",
            "exit_code": 0,
            "dry_run": true,
        }),
    );
    Ok(Outcome::Done)
}

/// Reloads certificates and tokens on SIGHUP, in a thread.
struct OnHangup {
    id: SigId,
    /// Receiving end of a socket pair to which the signal handler writes. Shutting it down ends the thread.
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
            // The thread returns nothing, and `reload` logs its errors.
            let _ = thread.join();
        }
    }
}

/// Returns the payload of the event `serving`.
fn serving(entries: &[Entry], scheme: &str, address: SocketAddr) -> Value {
    let served = entries.iter().map(|entry| {
        json!({
            "name": entry.name,
            "url": entry.url(scheme, address),
            "dataset": entry.dataset,
            "job": entry.job.is_some(),
            "splits": entry.splits,
        })
    });
    let first = entries.first();
    json!({
        "url": first.map(|entry| entry.url(scheme, address)).unwrap_or_default(),
        "address": address.to_string(),
        "splits": first.map_or(&[][..], |entry| &entry.splits),
        "served": served.collect::<Vec<_>>(),
    })
}
