//! Measures one server with many clients: the cost of idle clients, the waits of active ones, and whether a slow client slows
//! the others.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use forebay_client::{Client, ClientOptions, Polled, Stream, Transport};
use forebay_image::{TrainTransform, Transform};
use forebay_loader::Options;

use crate::failover::at;
use crate::fleet::{Served, Serving};
use crate::measure::{BenchReport, Row, median};
use crate::{Error, Result};

/// Options of [`clients`] and [`fairness`].
#[derive(Debug, Clone)]
pub struct ClientsOptions {
    /// Command line of the server.
    pub serving: Serving,
    /// Split; `None` selects the first one.
    pub split: Option<String>,
    /// Clients that are connected and request nothing.
    pub idle: usize,
    /// Clients that fetch batches.
    pub active: usize,
    /// Number of trainings that the active clients are divided among as ranks.
    pub trainings: usize,
    /// Samples per batch.
    pub batch_size: u64,
    /// Width and height of the decoded images, in pixels.
    pub side: u32,
    /// Transport of the batches.
    pub transport: Transport,
    /// Duration of each measured part.
    pub time: Duration,
    /// How long the slow trainer of [`fairness`] works on a batch.
    pub slow: Duration,
}

fn row(name: impl Into<String>, unit: &'static str, rates: Vec<f64>) -> Row {
    Row {
        name: name.into(),
        unit,
        median: median(&rates),
        rates,
        cpu_seconds_each: None,
        peak_rss_mib: None,
        cache: None,
        extra: BTreeMap::new(),
    }
}

struct BenchServer {
    server: Served,
    url: String,
    split: String,
}

impl BenchServer {
    fn start(options: &ClientsOptions) -> Result<BenchServer> {
        let mut serving = options.serving.clone();
        let most = (options.idle + options.active + 16).to_string();
        serving
            .arguments
            .extend(["--max-connections".to_owned(), most]);
        let server = Served::start(&serving, 0)?;
        let url = format!("forebay://{}/{}", server.address, server.name);
        let client = Client::connect(&url, ClientOptions::default())?;
        let first = client.splits().first();
        let split = match &options.split {
            Some(split) => split.clone(),
            None => first.map_or_else(String::new, |split| split.name.clone()),
        };
        Ok(BenchServer { server, url, split })
    }

    /// Opens `count` streams, which are the ranks of `trainings` trainings of the same world size.
    fn ranks(
        &self,
        options: &ClientsOptions,
        count: usize,
        trainings: usize,
    ) -> Result<Vec<Stream>> {
        let (count, trainings) = (count as u64, trainings.max(1) as u64);
        if count % trainings != 0 {
            let text =
                format!("{count} clients cannot be the ranks of {trainings} trainings alike");
            return Err(Error::from(text));
        }
        (0..count)
            .map(|number| {
                let client = ClientOptions {
                    transport: options.transport,
                    ..ClientOptions::default()
                };
                let transform = Transform::Train(TrainTransform::new(options.side));
                let mut spec = Options::new(options.batch_size, transform);
                // Trainings with the same seed would share decoded batches.
                spec.seed = number % trainings;
                (spec.rank, spec.world_size) = (number / trainings, count / trainings);
                spec.drop_last = false;
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
    let place = BenchServer::start(options)?;
    let server = &place.server;
    let cpu_of = |time: Duration| -> f64 {
        let before = server.cpu_seconds();
        thread::sleep(time);
        (server.cpu_seconds() - before) / time.as_secs_f64()
    };
    let mut rows = vec![row("server alone: memory", "MiB", vec![server.rss_mib()])];
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
    let idle_cpu = cpu_of(options.time.min(Duration::from_secs(20)));
    rows.push(row(
        format!("{name}: memory"),
        "MiB",
        vec![server.rss_mib()],
    ));
    rows.push(row(format!("{name}: processor"), "cores", vec![idle_cpu]));
    let mut streams = place.ranks(options, options.active, options.trainings)?;
    // Not measured: fills caches and buffers.
    together(&mut streams, options.time / 2, |_| Duration::ZERO)?;
    let before = server.cpu_seconds();
    let began = Instant::now();
    let took = together(&mut streams, options.time, |_| Duration::ZERO)?;
    let seconds = began.elapsed().as_secs_f64();
    let busy_cpu = (server.cpu_seconds() - before) / seconds;
    let name = format!("and {} active ones", options.active);
    rows.push(row(
        format!("{name}: memory"),
        "MiB",
        vec![server.rss_mib()],
    ));
    rows.push(row(format!("{name}: processor"), "cores", vec![busy_cpu]));
    let batches: u64 = took.iter().map(|took| took.batches).sum();
    let rate = batches as f64 / seconds;
    rows.push(row(format!("{name}: together"), "batches/s", vec![rate]));
    let waits: Vec<f64> = took.iter().flat_map(|took| took.waits_ms.clone()).collect();
    let mut wait = row(
        format!("{name}: wait for a batch"),
        "ms",
        vec![at(&waits, 0.5)],
    );
    wait.extra.insert("p50", at(&waits, 0.5));
    wait.extra.insert("p99", at(&waits, 0.99));
    wait.extra.insert("max", at(&waits, 1.0));
    rows.push(wait);
    let notes = vec![format!(
        "Wait for a batch: p50 {:.1} ms, p99 {:.1} ms, longest {:.1} ms, of {} batches of {}",
        at(&waits, 0.5),
        at(&waits, 0.99),
        at(&waits, 1.0),
        waits.len(),
        options.batch_size
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
            options.transport
        ),
        rows,
        notes,
    })
}

/// Measures the throughput of trainers on one server: all alike, then with a slow one, and then the others without it.
///
/// # Errors
/// The server does not start.
pub fn fairness(options: &ClientsOptions) -> Result<BenchReport> {
    let place = BenchServer::start(options)?;
    let count = options.active.max(2);
    let mut streams = place.ranks(options, count, count)?;
    // Not measured: fills caches, so that all parts start warm.
    together(&mut streams, options.time / 4, |_| Duration::ZERO)?;
    let rates = |took: &[Took], seconds: f64| -> Vec<f64> {
        let rate = |took: &Took| took.batches as f64 / seconds;
        took.iter().map(rate).collect()
    };
    let measure = |streams: &mut [Stream], slow: Duration| -> Result<Vec<f64>> {
        let began = Instant::now();
        let pause = |i: usize| if i == 0 { slow } else { Duration::ZERO };
        let took = together(streams, options.time, pause)?;
        Ok(rates(&took, began.elapsed().as_secs_f64()))
    };
    let even = measure(&mut streams, Duration::ZERO)?;
    let slow = measure(&mut streams, options.slow)?;
    let without = measure(&mut streams[1..], Duration::ZERO)?;
    let spread = |rates: &[f64]| at(rates, 1.0) / at(rates, 0.0).max(1e-9);
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
        title: format!("{count} trainers of one server, by {}", options.transport),
        rows: vec![
            row(format!("{count} alike, each"), "batches/s", even),
            row(
                format!("one slow: the {} others, each", count - 1),
                "batches/s",
                slow[1..].to_vec(),
            ),
            row("one slow: the slow one", "batches/s", vec![slow[0]]),
            row(
                format!("the {} others alone, each", count - 1),
                "batches/s",
                without,
            ),
        ],
        notes,
    })
}
