//! `forebay bench`: what this machine does with this data.

mod loader;
mod size_cluster;

use std::num::NonZeroUsize;
use std::path::PathBuf;
use std::time::Duration;

use clap::{Args as ClapArgs, Subcommand};
use forebay_bench::{
    ClientsOptions, EpochOptions, FailoverOptions, PackBenchOptions, Report, Row, Serving,
    SharingOptions, StoreBenchOptions, TransportOptions,
};
use forebay_cache::ReadOptions;
use forebay_client::Transport;
use forebay_store::{Cancel, Location};
use loader::LoaderArgs;

use crate::cache_args::CacheArgs;
use crate::console::Console;
use crate::failure::{Failure, Outcome};
use crate::quantity::{parse_duration, parse_size};
use crate::store_args::StoreArgs;
use crate::table::{Align, Table};

/// Measure packing, reading, decoding and streaming on this machine
///
/// Alternatives run in turn, after a round that does not count, and are compared by their medians:
/// machines drift, so only figures of one run of one command belong together.
#[derive(Debug, ClapArgs)]
#[command(after_help = "\
Examples:
  forebay bench pack photos/ --scratch /tmp
  forebay bench read shards/ shards-indexed/
  forebay bench loader shards/ --threads 1,2
  forebay bench loader shards/ --transform train,raw --dtype float16 --dct-scaling
  forebay bench epoch shards/ s3://bucket/shards
  forebay bench epoch shards/ s3://bucket/shards --cache-dir /nvme/forebay
  forebay bench stream shards/
  forebay bench transport
  forebay bench failover shards/ --runs 20
  forebay bench fairness shards/ --active 4 --slow 500
  forebay bench clients shards/ --idle 1000 --active 64
  forebay bench store s3://bucket/scratch --size 1GiB --jobs 16
  forebay bench start --scratch /tmp/million
  forebay bench loader \"synthetic://imagenet?records=20000\"        no storage at all
  forebay bench size-cluster --gpus 1000 --servers 100")]
pub(crate) struct Args {
    #[command(subcommand)]
    what: What,

    /// Counted runs of each alternative
    #[arg(long, value_name = "N", default_value_t = 5, global = true)]
    runs: usize,
}

#[derive(Debug, Subcommand)]
enum What {
    /// Packing a directory, beside `cat` of the same files into one
    Pack {
        /// A directory of images
        source: PathBuf,
        /// Directory to write to; the command removes its files
        #[arg(long, value_name = "DIR")]
        scratch: PathBuf,
        /// Threads that read and write [default: what the machine allows]
        #[arg(long, value_name = "N")]
        jobs: Option<usize>,
    },
    /// Records in order and at random, checksums verified, beside plain reads of the files
    Read {
        /// Datasets to compare
        #[arg(required = true, value_name = "DATASET")]
        datasets: Vec<PathBuf>,
        /// Split [default: the first]
        #[arg(long, value_name = "NAME")]
        split: Option<String>,
    },
    /// Decoded batches in process, by number of threads
    Loader(LoaderArgs),
    /// An epoch of the same dataset from several places, such as a directory and a store
    Epoch {
        /// Locations of the dataset; the others are compared with the first
        #[arg(required = true, value_name = "DATASET")]
        datasets: Vec<PathBuf>,
        /// Split [default: the first]
        #[arg(long, value_name = "NAME")]
        split: Option<String>,
        /// Decoding threads [default: what the machine allows]
        #[arg(long, value_name = "N", default_value_t = 0, hide_default_value = true)]
        threads: usize,
        /// Samples a batch
        #[arg(long, value_name = "N", default_value_t = 64)]
        batch_size: u64,
        #[command(flatten)]
        cache: CacheArgs,
        #[command(flatten)]
        store: StoreArgs,
    },
    /// Decoded batches from a server on this machine, beside the loader in process
    Stream {
        /// A dataset
        dataset: PathBuf,
        /// Split [default: the first]
        #[arg(long, value_name = "NAME")]
        split: Option<String>,
        /// Decoding threads
        #[arg(long, value_name = "N", default_value_t = 2)]
        threads: usize,
        /// How batches come: shm, tcp, or auto for what trainers do by themselves
        #[arg(
            long,
            value_name = "NAME,...",
            value_delimiter = ',',
            default_value = "shm,tcp"
        )]
        transport: Vec<Transport>,
        /// Seconds a run takes
        #[arg(long, value_name = "S", default_value_t = 5.0)]
        seconds: f64,
    },
    /// Several trainers of one server on this machine: each with batches of its own, and all with the same, which are decoded once
    ///
    /// Tells the CPU time of both sides and how long a batch takes.
    Sharing {
        /// A dataset
        dataset: PathBuf,
        /// Split [default: the first]
        #[arg(long, value_name = "NAME")]
        split: Option<String>,
        /// Trainers
        #[arg(long, value_name = "N", default_value_t = 4)]
        trainers: usize,
        /// How long one takes for each batch, where one is slow
        #[arg(long, value_name = "TIME", value_parser = parse_duration, default_value = "1s")]
        slow: Duration,
        /// Samples a batch
        #[arg(long, value_name = "N", default_value_t = 64)]
        batch_size: u64,
        /// How batches come: shm, tcp, or auto for what trainers do by themselves
        #[arg(long, value_name = "NAME", default_value = "tcp")]
        transport: Transport,
        /// Seconds a run takes
        #[arg(long, value_name = "S", default_value_t = 5.0)]
        seconds: f64,
    },
    /// Batches that cost nothing to make, from a server on this machine, beside a bare connection
    ///
    /// Tells the CPU time of both sides and how long handing over takes; beside iperf3 where it is installed.
    Transport {
        /// Batches of 38.5 MB a run
        #[arg(long, value_name = "N", default_value_t = 100)]
        batches: u64,
        /// How batches come: shm, tcp, or auto for what trainers do by themselves
        #[arg(
            long,
            value_name = "NAME,...",
            value_delimiter = ',',
            default_value = "shm,tcp"
        )]
        transport: Vec<Transport>,
        /// Numbers of TCP connections that a batch comes over at once, to compare
        #[arg(
            long,
            value_name = "N,...",
            value_delimiter = ',',
            default_value = "1,2"
        )]
        connections: Vec<usize>,
        /// Trainers at the same time, which share the batches
        #[arg(long, value_name = "N", default_value_t = 1)]
        ranks: u64,
    },
    /// Time that a trainer waits after its server is killed, and after its server is stopped
    ///
    /// Two servers on this machine; --runs says how often each happens. Tells the longest wait for a batch after it,
    /// beside the longest while nothing happens.
    Failover {
        #[command(flatten)]
        served: ServedArgs,
        /// Milliseconds that the trainer works on a batch
        #[arg(long, value_name = "MS", default_value_t = 0)]
        step: u64,
    },
    /// Throughput of each trainer of a server while one of them is slow
    Fairness {
        #[command(flatten)]
        served: ServedArgs,
        /// Trainers; one of them is the slow one
        #[arg(long, value_name = "N", default_value_t = 4)]
        active: usize,
        /// Milliseconds that the slow one works on a batch
        #[arg(long, value_name = "MS", default_value_t = 500)]
        slow: u64,
        /// Seconds each part takes
        #[arg(long, value_name = "S", default_value_t = 10.0)]
        seconds: f64,
    },
    /// Memory and processor time of a server with many clients, and how long those that are busy wait for batches
    ///
    /// Each client is an open file on both sides: see `ulimit -n`.
    Clients {
        #[command(flatten)]
        served: ServedArgs,
        /// Clients that are connected and want nothing
        #[arg(long, value_name = "N", default_value_t = 1000)]
        idle: usize,
        /// Clients that take batches as fast as they come
        #[arg(long, value_name = "N", default_value_t = 64)]
        active: usize,
        /// Trainings that those are the ranks of: each decodes, and holds, what is its own
        #[arg(long, value_name = "N", default_value_t = 1)]
        trainings: usize,
        /// Seconds each part takes
        #[arg(long, value_name = "S", default_value_t = 10.0)]
        seconds: f64,
    },
    /// Uploads, downloads and small reads of a place for objects; what is put there is removed
    Store {
        /// A prefix of a bucket, or a directory, that can be written to
        location: PathBuf,
        /// Bytes of the object that is sent and fetched
        #[arg(long, value_name = "SIZE", value_parser = parse_size, default_value = "256MiB")]
        size: u64,
        /// Number of concurrent requests
        #[arg(short, long, value_name = "N", default_value = "8")]
        jobs: NonZeroUsize,
        /// Small reads in each run
        #[arg(long, value_name = "N", default_value_t = 200)]
        reads: u64,
        /// Bytes of a small read
        #[arg(long, value_name = "SIZE", value_parser = parse_size, default_value = "64KiB")]
        read_size: u64,
        /// Directory of the local file [default: the system's temporary directory]
        #[arg(long, value_name = "DIR")]
        scratch: Option<PathBuf>,
        #[command(flatten)]
        store: StoreArgs,
    },
    /// A cluster on paper: how many GPUs so many servers feed, and what gives out first
    ///
    /// Measures nothing: arithmetic, and batches moved through queues one by one. The same options give the same figures on
    /// every machine. docs/scale.md shows how to read them.
    SizeCluster(Box<size_cluster::Args>),
    /// From nothing to the first batch of a large dataset of tiny images
    Start {
        /// Directory of the generated dataset, which later runs use again
        #[arg(long, value_name = "DIR")]
        scratch: PathBuf,
        /// Records of the dataset
        #[arg(long, value_name = "N", default_value_t = 1_000_000)]
        records: u64,
    },
}

/// Servers of a measurement, processes of their own.
#[derive(Debug, ClapArgs)]
struct ServedArgs {
    /// A dataset, as `serve` takes it
    source: PathBuf,
    /// Split [default: the first]
    #[arg(long, value_name = "NAME")]
    split: Option<String>,
    /// Samples a batch
    #[arg(long, value_name = "N", default_value_t = 64)]
    batch_size: u64,
    /// Rows and columns of the pictures
    #[arg(long, value_name = "PIXELS", default_value_t = 224)]
    side: u32,
    /// How batches come: shm, tcp, or auto for what trainers do by themselves
    #[arg(long, value_name = "NAME", default_value = "tcp")]
    transport: Transport,
}

impl ServedArgs {
    fn serving(&self) -> Result<Serving, Failure> {
        let program = std::env::current_exe().map_err(|error| {
            Failure::new(format!(
                "cannot find this program to start servers with: {error}"
            ))
        })?;
        Ok(Serving {
            program,
            source: self.source.clone(),
            arguments: Vec::new(),
        })
    }

    fn clients(
        self,
        (idle, active, trainings): (usize, usize, usize),
        seconds: f64,
        slow: u64,
    ) -> Result<ClientsOptions, Failure> {
        Ok(ClientsOptions {
            serving: self.serving()?,
            split: self.split,
            idle,
            active,
            trainings,
            batch_size: self.batch_size,
            side: self.side,
            transport: self.transport,
            time: seconds_of(seconds)?,
            slow: Duration::from_millis(slow),
        })
    }
}

fn seconds_of(seconds: f64) -> Result<Duration, Failure> {
    Duration::try_from_secs_f64(seconds)
        .map_err(|_| Failure::usage(format!("--seconds {seconds} is no time")))
}

pub(crate) fn run(args: Args, console: &Console) -> Result<Outcome, Failure> {
    let runs = args.runs;
    let reports = match args.what {
        What::SizeCluster(args) => return size_cluster::run(&args, console),
        What::Pack {
            source,
            scratch,
            jobs,
        } => {
            let options = PackBenchOptions {
                scratch,
                jobs,
                runs,
            };
            forebay_bench::pack(&source, &options).map(|report| vec![report])
        }
        What::Read { datasets, split } => {
            let roots: Vec<_> = datasets.iter().map(PathBuf::as_path).collect();
            forebay_bench::read(&roots, split.as_deref(), runs)
        }
        What::Loader(args) => {
            let dataset = args.dataset.clone();
            forebay_bench::load(&dataset, &args.options(runs)?).map(|report| vec![report])
        }
        What::Epoch {
            datasets,
            split,
            threads,
            batch_size,
            cache,
            store,
        } => {
            let places: Vec<Location> = datasets
                .iter()
                .map(Location::parse)
                .collect::<Result<_, _>>()?;
            let options = EpochOptions {
                split,
                batch_size,
                threads,
                read: ReadOptions::new(store.options())
                    .with_cache(cache.open_for(&datasets, console)?),
                runs,
            };
            forebay_bench::epoch(&places, &options).map(|report| vec![report])
        }
        What::Stream {
            dataset,
            split,
            threads,
            transport,
            seconds,
        } => {
            let split = split.as_deref();
            forebay_bench::stream(&dataset, split, threads, &transport, seconds, runs)
                .map(|report| vec![report])
        }
        What::Sharing {
            dataset,
            split,
            trainers,
            slow,
            batch_size,
            transport,
            seconds,
        } => {
            let options = SharingOptions {
                split,
                trainers,
                slow,
                batch_size,
                transport,
                seconds,
                runs,
            };
            forebay_bench::sharing(&dataset, &options).map(|report| vec![report])
        }
        What::Transport {
            batches,
            transport,
            connections,
            ranks,
        } => {
            let options = TransportOptions {
                batches,
                ranks,
                transports: transport,
                connections,
                runs,
            };
            forebay_bench::transport(&options).map(|report| vec![report])
        }
        What::Failover { served, step } => {
            let options = FailoverOptions {
                serving: served.serving()?,
                split: served.split,
                batch_size: served.batch_size,
                side: served.side,
                transport: served.transport,
                step: Duration::from_millis(step),
                rounds: runs,
            };
            forebay_bench::failover(&options).map(|report| vec![report])
        }
        What::Fairness {
            served,
            active,
            slow,
            seconds,
        } => {
            let options = served.clients((0, active, active), seconds, slow)?;
            forebay_bench::fairness(&options).map(|report| vec![report])
        }
        What::Clients {
            served,
            idle,
            active,
            trainings,
            seconds,
        } => {
            let options = served.clients((idle, active, trainings), seconds, 0)?;
            forebay_bench::clients(&options).map(|report| vec![report])
        }
        What::Store {
            location,
            size,
            jobs,
            reads,
            read_size,
            scratch,
            store,
        } => {
            let options = StoreBenchOptions {
                store: store.options(),
                bytes: size,
                parallel: jobs.get(),
                reads,
                read_bytes: read_size,
                scratch,
                runs,
                // An interrupted run still has to remove its objects.
                cancel: Cancel::from_flag(console.interrupt().answer().flag()),
            };
            forebay_bench::store(&Location::parse(location)?, &options).map(|report| vec![report])
        }
        What::Start { scratch, records } => {
            forebay_bench::start(&scratch, records, runs).map(|report| vec![report])
        }
    };
    let reports = reports.map_err(|error| {
        if console.interrupt().is_asked() {
            return Failure::interrupted("nothing of it is kept");
        }
        Failure::from_error(error.as_ref())
    })?;
    for (i, report) in reports.iter().enumerate() {
        if i > 0 {
            console.blank();
        }
        print(report, console);
        console.event("bench", report);
    }
    Ok(Outcome::Done)
}

fn print(report: &Report, console: &Console) {
    console.heading(&report.title);
    let mut table = Table::new(&[
        ("", Align::Left),
        ("median", Align::Right),
        ("", Align::Left),
        ("lowest", Align::Right),
        ("highest", Align::Right),
        ("to the first", Align::Right),
        ("CPU each", Align::Right),
        ("peak RSS", Align::Right),
    ]);
    for (i, row) in report.rows.iter().enumerate() {
        let extreme = |pick: fn(f64, f64) -> f64| {
            let found = row.rates.iter().copied().reduce(pick);
            figure(found.unwrap_or(row.median))
        };
        table.row([
            row.name.clone(),
            figure(row.median),
            row.unit.to_owned(),
            extreme(f64::min),
            extreme(f64::max),
            report
                .ratio(i)
                .map_or_else(String::new, |ratio| format!("{ratio:.2}x")),
            cpu(row),
            row.peak_rss_mib
                .map_or_else(String::new, |mib| format!("{mib:.0} MiB")),
        ]);
    }
    for line in table.lines(console.paint()) {
        console.line(line);
    }
    for note in &report.notes {
        console.line(format!("  {note}"));
    }
}

/// Processor time for one of what the row counts; none for a row that is a time itself.
fn cpu(row: &Row) -> String {
    match (row.cpu_seconds_each, row.unit.strip_suffix("/s")) {
        (Some(seconds), Some(thing)) => {
            let one = thing.strip_suffix('s').unwrap_or(thing);
            let time = if seconds >= 0.1 {
                format!("{seconds:.2} s")
            } else if seconds >= 1e-4 {
                format!("{:.2} ms", seconds * 1e3)
            } else {
                format!("{:.1} µs", seconds * 1e6)
            };
            format!(
                "{time}/{}",
                if thing.ends_with("ches") {
                    "batch"
                } else {
                    one
                }
            )
        }
        _ => String::new(),
    }
}

/// Three or four digits, whatever the size.
fn figure(value: f64) -> String {
    match value {
        v if v >= 100.0 => format!("{v:.0}"),
        v if v >= 10.0 => format!("{v:.1}"),
        v => format!("{v:.2}"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn row(unit: &'static str, cpu_seconds_each: f64) -> Row {
        Row {
            name: String::new(),
            unit,
            rates: vec![1.0],
            median: 1.0,
            cpu_seconds_each: Some(cpu_seconds_each),
            peak_rss_mib: None,
            extra: std::collections::BTreeMap::new(),
        }
    }

    #[test]
    fn processor_time_is_told_for_one_thing() {
        assert_eq!(cpu(&row("GB/s", 0.41)), "0.41 s/GB");
        assert_eq!(cpu(&row("images/s", 0.0012)), "1.20 ms/image");
        assert_eq!(cpu(&row("batches/s", 0.5)), "0.50 s/batch");
        assert_eq!(cpu(&row("records/s", 0.000_012)), "12.0 µs/record");
        assert_eq!(cpu(&row("ms", 0.4)), "");
    }

    #[test]
    fn figures_have_three_digits() {
        assert_eq!(figure(1234.5), "1234");
        assert_eq!(figure(12.34), "12.3");
        assert_eq!(figure(1.234), "1.23");
    }
}
