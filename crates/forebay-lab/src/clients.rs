//! Measures one server with many clients: the cost of idle clients, the waits of active ones, and whether a slow client slows
//! the others.

use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use clap::Args;
use forebay_cli::frontend::quantity::parse_duration;
use forebay_client::{Client, ClientOptions, Polled, Stream, Transport};

use crate::fleet::{Served, ServedArgs};
use crate::measure::{BenchReport, Row, median, quantile};
use crate::{Error, Result};

/// Options of [`clients`].
#[derive(Debug, Args)]
pub struct ClientsOptions {
    #[command(flatten)]
    served: ServedArgs,
    /// Clients that are connected and want nothing
    #[arg(long, value_name = "N", default_value_t = 1000)]
    idle: usize,
    /// Clients that take batches as fast as they come
    #[arg(long, value_name = "N", default_value_t = 64)]
    active: usize,
    /// Trainings that the ranks belong to: each decodes and holds its own batches
    #[arg(long, value_name = "N", default_value_t = 1)]
    trainings: usize,
    /// Duration of each part
    #[arg(long, value_name = "TIME", value_parser = parse_duration, default_value = "10s")]
    duration: Duration,
}

/// Options of [`fairness`].
#[derive(Debug, Args)]
pub struct FairnessOptions {
    #[command(flatten)]
    served: ServedArgs,
    /// Trainers; one of them is the slow one
    #[arg(long, value_name = "N", default_value_t = 4)]
    active: usize,
    /// How long the slow one works on a batch
    #[arg(long, value_name = "TIME", value_parser = parse_duration, default_value = "500ms")]
    slow: Duration,
    /// Duration of each part
    #[arg(long, value_name = "TIME", value_parser = parse_duration, default_value = "10s")]
    duration: Duration,
}

struct BenchServer<'a> {
    served: &'a ServedArgs,
    server: Served,
    url: String,
    split: String,
}

impl<'a> BenchServer<'a> {
    fn start(served: &'a ServedArgs, clients: usize) -> Result<Self> {
        let most = (clients + 16).to_string();
        let server = served.start(&["--max-connections", &most])?;
        let url = format!("forebay://{}/{}", server.address, server.name);
        let split = served.split_of(&Client::connect(&url, ClientOptions::default())?);
        Ok(BenchServer {
            served,
            server,
            url,
            split,
        })
    }

    /// Opens `count` streams, which are the ranks of `trainings` trainings of the same world size.
    fn ranks(&self, count: usize, trainings: usize) -> Result<Vec<Stream>> {
        let (count, trainings) = (count as u64, trainings.max(1) as u64);
        if count % trainings != 0 {
            let text =
                format!("{count} clients cannot be the ranks of {trainings} trainings alike");
            return Err(Error::from(text));
        }
        (0..count)
            .map(|number| {
                let client = ClientOptions {
                    transport: self.served.transport,
                    ..ClientOptions::default()
                };
                let mut spec = self.served.batches();
                // Trainings with the same seed would share decoded batches.
                spec.seed = number % trainings;
                (spec.rank, spec.world_size) = (number / trainings, count / trainings);
                let client = Client::connect(&self.url, client)?;
                Ok(client.open(spec.to_schema().with_split(&self.split))?)
            })
            .collect()
    }
}

/// Batches that one trainer received, and how long it waited for each.
struct Took {
    batches: u64,
    waits_ms: Vec<f64>,
}

/// Takes batches until `over` is set, and sleeps for `pause` after each.
fn train(stream: &mut Stream, over: &AtomicBool, pause: Duration) -> Result<Took> {
    let mut took = Took {
        batches: 0,
        waits_ms: Vec::new(),
    };
    let mut began = Instant::now();
    while !over.load(Ordering::Relaxed) {
        match stream.poll_batch(Duration::from_millis(100))? {
            Polled::Batch(_) => {
                took.batches += 1;
                took.waits_ms.push(began.elapsed().as_secs_f64() * 1e3);
                if !pause.is_zero() {
                    thread::sleep(pause);
                }
                began = Instant::now();
            }
            Polled::EpochEnd => {}
            Polled::Pending => {}
        }
    }
    Ok(took)
}

/// Runs all streams at the same time for `time`. `pause` returns the sleep after each batch by the number of the stream.
fn together(
    streams: &mut [Stream],
    time: Duration,
    pause: impl Fn(usize) -> Duration + Sync,
) -> Result<Vec<Took>> {
    let over = AtomicBool::new(false);
    let (over, pause) = (&over, &pause);
    thread::scope(|scope| {
        let trainers: Vec<_> = streams
            .iter_mut()
            .enumerate()
            .map(|(i, stream)| {
                thread::Builder::new()
                    .name("bench-rank".to_owned())
                    .spawn_scoped(scope, move || train(stream, over, pause(i)))
            })
            .collect::<std::io::Result<_>>()?;
        thread::sleep(time);
        over.store(true, Ordering::Relaxed);
        trainers
            .into_iter()
            .map(|trainer| {
                trainer
                    .join()
                    .map_err(|_| Error::from("a trainer panicked"))?
            })
            .collect()
    })
}

/// Measures memory and CPU time of a server with idle clients, then with active ones in addition, and how long the active ones
/// wait for batches.
///
/// # Errors
/// The server does not start, or the process reaches its limit of open files.
pub fn clients(options: &ClientsOptions) -> Result<BenchReport> {
    let place = BenchServer::start(&options.served, options.idle + options.active)?;
    let server = &place.server;
    let cpu_of = |time: Duration| -> f64 {
        let before = server.cpu_seconds();
        thread::sleep(time);
        (server.cpu_seconds() - before) / time.as_secs_f64()
    };
    let mut rows = vec![Row::new(
        "server alone: memory",
        "MiB",
        vec![server.rss_mib()],
    )];
    // Idle clients send nothing after the handshake. They use TCP with any `transport` option, so that each has one connection.
    let quiet = ClientOptions {
        transport: Transport::Tcp,
        ..ClientOptions::default()
    };
    let idle = (0..options.idle)
        .map(|_| Ok(Client::connect(&place.url, quiet.clone())?))
        .collect::<Result<Vec<Client>>>()?;
    let name = format!("{} idle clients", options.idle);
    // The server disconnects clients that leave a ping unanswered for 30 seconds; the measurement ends before.
    let idle_cpu = cpu_of(options.duration.min(Duration::from_secs(20)));
    rows.push(Row::new(
        format!("{name}: memory"),
        "MiB",
        vec![server.rss_mib()],
    ));
    rows.push(Row::new(
        format!("{name}: processor"),
        "cores",
        vec![idle_cpu],
    ));
    let mut streams = place.ranks(options.active, options.trainings)?;
    // Not measured: fills caches and buffers.
    together(&mut streams, options.duration / 2, |_| Duration::ZERO)?;
    let before = server.cpu_seconds();
    let began = Instant::now();
    let took = together(&mut streams, options.duration, |_| Duration::ZERO)?;
    let seconds = began.elapsed().as_secs_f64();
    let busy_cpu = (server.cpu_seconds() - before) / seconds;
    let name = format!("and {} active ones", options.active);
    rows.push(Row::new(
        format!("{name}: memory"),
        "MiB",
        vec![server.rss_mib()],
    ));
    rows.push(Row::new(
        format!("{name}: processor"),
        "cores",
        vec![busy_cpu],
    ));
    let batches: u64 = took.iter().map(|took| took.batches).sum();
    let rate = batches as f64 / seconds;
    rows.push(Row::new(
        format!("{name}: together"),
        "batches/s",
        vec![rate],
    ));
    let waits: Vec<f64> = took.iter().flat_map(|took| took.waits_ms.clone()).collect();
    let mut wait = Row::new(
        format!("{name}: wait for a batch"),
        "ms",
        vec![quantile(&waits, 0.5)],
    );
    wait.extra.insert("p50", quantile(&waits, 0.5));
    wait.extra.insert("p99", quantile(&waits, 0.99));
    wait.extra.insert("max", quantile(&waits, 1.0));
    rows.push(wait);
    let notes = vec![format!(
        "Wait for a batch: p50 {:.1} ms, p99 {:.1} ms, longest {:.1} ms, of {} batches of {}",
        quantile(&waits, 0.5),
        quantile(&waits, 0.99),
        quantile(&waits, 1.0),
        waits.len(),
        options.served.batch_size
    )];
    drop(idle);
    Ok(BenchReport {
        title: format!(
            "One server, {} idle and {} active clients, ranks of {}, by {}",
            options.idle,
            options.active,
            match options.trainings {
                0 | 1 => "one training".to_owned(),
                many => format!("{many} trainings"),
            },
            options.served.transport
        ),
        rows,
        notes,
    })
}

/// Measures the throughput of trainers on one server: all alike, then with a slow one, and then the others without it.
///
/// # Errors
/// The server does not start.
pub fn fairness(options: &FairnessOptions) -> Result<BenchReport> {
    let count = options.active.max(2);
    let place = BenchServer::start(&options.served, count)?;
    let mut streams = place.ranks(count, count)?;
    // Not measured: fills caches, so that all parts start warm.
    together(&mut streams, options.duration / 4, |_| Duration::ZERO)?;
    let rates = |took: &[Took], seconds: f64| -> Vec<f64> {
        let rate = |took: &Took| took.batches as f64 / seconds;
        took.iter().map(rate).collect()
    };
    let measure = |streams: &mut [Stream], slow: Duration| -> Result<Vec<f64>> {
        let began = Instant::now();
        let pause = |i: usize| if i == 0 { slow } else { Duration::ZERO };
        let took = together(streams, options.duration, pause)?;
        Ok(rates(&took, began.elapsed().as_secs_f64()))
    };
    let even = measure(&mut streams, Duration::ZERO)?;
    let slow = measure(&mut streams, options.slow)?;
    let without = measure(&mut streams[1..], Duration::ZERO)?;
    let spread = |rates: &[f64]| quantile(rates, 1.0) / quantile(rates, 0.0).max(1e-9);
    let notes = vec![
        format!(
            "With all alike the quickest gets {:.2} times what the slowest gets",
            spread(&even)
        ),
        format!(
            "Beside a trainer that works {:?} on each batch the others get {:.2} times what they get without it",
            options.slow,
            median(&slow[1..]) / median(&without).max(1e-9)
        ),
    ];
    Ok(BenchReport {
        title: format!(
            "{count} trainers of one server, by {}",
            options.served.transport
        ),
        rows: vec![
            Row::new(format!("{count} alike, each"), "batches/s", even),
            Row::new(
                format!("one slow: the {} others, each", count - 1),
                "batches/s",
                slow[1..].to_vec(),
            ),
            Row::new("one slow: the slow one", "batches/s", vec![slow[0]]),
            Row::new(
                format!("the {} others alone, each", count - 1),
                "batches/s",
                without,
            ),
        ],
        notes,
    })
}
