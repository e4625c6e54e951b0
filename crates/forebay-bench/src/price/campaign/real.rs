//! Loaders of this machine, with one resource throttled at a time.
//!
//! `cargo test --release -p forebay-bench --lib price::campaign -- --ignored --nocapture`, on a machine without other work.

use std::io::{Read, Write};
use std::net::{Ipv4Addr, SocketAddr, TcpListener, TcpStream};
use std::process::{Child, Command, Stdio};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread;
use std::time::{Duration, Instant};

use forebay_client::{Batch, Stream, Transport};
use forebay_image::{TrainTransform, Transform};
use forebay_loader::{Loader, Options, RankPace, Stats, Straggler};
use forebay_server::{ServerHandle, counters};
use forebay_synthetic::Recipe;

use super::Outcome;
use crate::Result;
use crate::price::{Cores, Gain, StageTimes};
use crate::random::Random;
use crate::stream;

const BATCH: u64 = 16;
/// Counted time of a run.
const RUN: Duration = Duration::from_secs(2);
/// Time before it, which fills queues.
const WARM_UP: Duration = Duration::from_secs(1);

/// A run with one thing slow.
#[derive(Debug, Clone, Copy, PartialEq)]
enum Throttle {
    Bandwidth { bytes_per_s: f64 },
    Latency { seconds: f64 },
    Network { bytes_per_s: f64 },
    Decode,
    Step { seconds: f64 },
    Print { bytes: usize },
    Lock { seconds: f64 },
    Neighbors { count: usize },
}

impl Throttle {
    /// The bottleneck that it makes.
    fn bound(self) -> &'static str {
        match self {
            Throttle::Bandwidth { .. } | Throttle::Latency { .. } => "storage",
            Throttle::Network { .. } => "network",
            Throttle::Decode => "decode",
            Throttle::Step { .. } | Throttle::Print { .. } => "trainer",
            Throttle::Lock { .. } => "handover",
            Throttle::Neighbors { .. } => "neighbor",
        }
    }

    fn url(self) -> String {
        let rest = match self {
            Throttle::Bandwidth { bytes_per_s } => format!("&bandwidth={:.0}KB", bytes_per_s / 1e3),
            Throttle::Latency { seconds } => format!("&latency={:.0}us", seconds * 1e6),
            _ => String::new(),
        };
        format!("synthetic://imagenet?records=100000&pictures=8{rest}")
    }
}

/// Processes that take cores, until they are dropped.
struct Neighbors(Vec<Child>);

impl Neighbors {
    fn new(count: usize) -> Result<Self> {
        // A killed parent cannot end them: each looks for it now and then.
        const BUSY: &str = r#"while kill -0 "$1" 2>/dev/null; do i=0; while [ $i -lt 10000 ]; do i=$((i+1)); done; done"#;
        let parent = std::process::id().to_string();
        let one = || {
            Command::new("sh")
                .args(["-c", BUSY, "sh", &parent])
                .stdin(Stdio::null())
                .spawn()
        };
        Ok(Self(
            (0..count).map(|_| one()).collect::<std::io::Result<_>>()?,
        ))
    }
}

impl Drop for Neighbors {
    fn drop(&mut self) {
        for child in &mut self.0 {
            // A child that ended already needs no end.
            let _ = child.kill();
            let _ = child.wait();
        }
    }
}

/// Batches of a loader in this process, or of a server behind a slow network.
enum Batches {
    Here(Box<Loader>),
    Served {
        stream: Box<Stream>,
        opened: Instant,
        server: Option<ServerHandle>,
    },
}

impl Batches {
    fn open(throttle: Throttle, threads: usize) -> Result<Self> {
        let mut options = Options::new(BATCH, Transform::Train(TrainTransform::new(224)));
        options.threads = threads;
        // Reads are of up to 4 MiB: many at once would arrive together, seconds later.
        options.readers = 2;
        // A slow storage would not fill the windows of more of them within the warm-up.
        options.virtual_ranks = 1;
        let dataset = Recipe::parse(&throttle.url())?.open()?;
        let Throttle::Network { bytes_per_s } = throttle else {
            let loader = Loader::new(dataset.split("train")?, options)?;
            return Ok(Self::Here(Box::new(loader)));
        };
        let (server, url) =
            stream::serve(|server| Ok(server.add_dataset(stream::NAME, &dataset)?))?;
        let relay = relay(server.addr(), bytes_per_s)?;
        let url = url.replace(&server.addr().to_string(), &relay.to_string());
        let stream = stream::connect(&url, &options, "train", Transport::Tcp)?;
        Ok(Self::Served {
            stream: Box::new(stream),
            opened: Instant::now(),
            server: Some(server),
        })
    }

    fn next(&mut self) -> Result<Option<Batch>> {
        Ok(match self {
            Self::Here(loader) => loader.next_batch()?,
            Self::Served { stream, .. } => stream.next_batch()?,
        })
    }

    fn stats(&self) -> Result<Stats> {
        Ok(match self {
            Self::Here(loader) => loader.stats(),
            Self::Served { stream, opened, .. } => {
                let client = stream.stats();
                let server = stream.server_stats(Duration::from_secs(2));
                let server = server.ok_or("the server tells no counters")?;
                let mut stats =
                    counters::from_wire(&server, client.starved, opened.elapsed(), true);
                stats.receive_cpu_s = client.receiving_cpu.as_secs_f64();
                stats
            }
        })
    }
}

impl Drop for Batches {
    fn drop(&mut self) {
        if let Self::Served { server, .. } = self
            && let Some(server) = server.take()
        {
            server.shutdown();
        }
    }
}

/// A way to a server that carries so many bytes a second to the client. It ends with its connections.
fn relay(to: SocketAddr, bytes_per_s: f64) -> Result<SocketAddr> {
    let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0))?;
    let at = listener.local_addr()?;
    thread::spawn(move || {
        while let Ok((client, _)) = listener.accept() {
            let Ok(server) = TcpStream::connect(to) else {
                return;
            };
            let (Ok(from_client), Ok(to_server)) = (client.try_clone(), server.try_clone()) else {
                return;
            };
            thread::spawn(move || forward(from_client, to_server, f64::INFINITY));
            thread::spawn(move || forward(server, client, bytes_per_s));
        }
    });
    Ok(at)
}

/// Copies bytes until one side ends.
fn forward(mut from: TcpStream, mut to: TcpStream, bytes_per_s: f64) {
    let mut piece = vec![0; 64 << 10];
    let mut free = Instant::now();
    while let Ok(length) = from.read(&mut piece)
        && length > 0
        && to.write_all(&piece[..length]).is_ok()
    {
        // A pause does not let more bytes pass after it.
        free = free.max(Instant::now()) + Duration::from_secs_f64(length as f64 / bytes_per_s);
        thread::sleep(free.saturating_duration_since(Instant::now()));
    }
    // The other side sees the end too; it may have ended before.
    let _ = to.shutdown(std::net::Shutdown::Write);
}

/// Another thread that holds what the training loop needs, until it is dropped.
struct Holder {
    over: Arc<AtomicBool>,
    thread: Option<thread::JoinHandle<()>>,
}

impl Holder {
    fn new(lock: &Arc<Mutex<()>>, seconds: f64) -> Self {
        let (lock, over) = (Arc::clone(lock), Arc::new(AtomicBool::new(false)));
        let ended = Arc::clone(&over);
        let thread = thread::spawn(move || {
            while !ended.load(Ordering::Relaxed) {
                let held = lock.lock().unwrap_or_else(PoisonError::into_inner);
                thread::sleep(Duration::from_secs_f64(seconds));
                drop(held);
                // Others get it now.
                thread::sleep(Duration::from_micros(50));
            }
        });
        Self {
            over,
            thread: Some(thread),
        }
    }
}

impl Drop for Holder {
    fn drop(&mut self) {
        self.over.store(true, Ordering::Relaxed);
        if let Some(thread) = self.thread.take() {
            // It has nothing to report.
            let _ = thread.join();
        }
    }
}

/// A run, with its counters and images per second after the queues were filled.
fn run(throttle: Throttle, threads: usize) -> Result<(Stats, f64)> {
    let neighbors = match throttle {
        Throttle::Neighbors { count } => count,
        _ => 0,
    };
    let _neighbors = Neighbors::new(neighbors)?;
    let mut batches = Batches::open(throttle, threads)?;
    let interpreter = Arc::new(Mutex::new(()));
    let _holder = match throttle {
        Throttle::Lock { seconds } => Some(Holder::new(&interpreter, seconds)),
        _ => None,
    };
    let (mut handover, mut images) = (Duration::ZERO, 0u64);
    let mut begun: Option<(Instant, Stats)> = None;
    let begin = Instant::now();
    let mut sink = Vec::new();
    // A slow source may take longer than the warm-up for its first batch.
    while begun.as_ref().is_none_or(|(from, _)| from.elapsed() < RUN) {
        if begun.is_none() && begin.elapsed() > WARM_UP {
            begun = Some((Instant::now(), batches.stats()?));
            (handover, images) = (Duration::ZERO, 0);
        }
        let Some(batch) = batches.next()? else {
            continue;
        };
        images += batch.samples.len() as u64;
        match throttle {
            Throttle::Step { seconds } => thread::sleep(Duration::from_secs_f64(seconds)),
            Throttle::Print { bytes } => {
                sink.clear();
                for byte in batch.payload.iter().take(bytes) {
                    write!(sink, "{byte}, ")?;
                }
            }
            Throttle::Lock { .. } => {
                let asked = Instant::now();
                drop(interpreter.lock().unwrap_or_else(PoisonError::into_inner));
                handover += asked.elapsed();
            }
            _ => {}
        }
    }
    let (from, before) = begun.ok_or("no time passed")?;
    let seconds = from.elapsed().as_secs_f64();
    let mut stats = batches.stats()?.since(&before);
    stats.handover_s = handover.as_secs_f64();
    Ok((stats, images as f64 / seconds))
}

fn cores() -> usize {
    thread::available_parallelism().map_or(1, usize::from)
}

/// Images per second of this machine without a throttle.
fn unthrottled() -> Result<f64> {
    Ok(run(Throttle::Decode, 0)?.1)
}

/// A throttle to a part of what the machine decodes, by number.
fn throttle(number: u64, rate: f64, random: &mut Random) -> Throttle {
    let part = 0.1 + random.below(500) as f64 / 1e3;
    let (image_bytes, batch_s) = (115_000.0, BATCH as f64 / (part * rate));
    match number % 8 {
        0 => Throttle::Bandwidth {
            bytes_per_s: part * rate * image_bytes,
        },
        1 => Throttle::Latency {
            // Two reads of 4 MiB at a time.
            seconds: 2.0 * 4.2e6 / (part * rate * image_bytes),
        },
        2 => Throttle::Decode,
        3 => Throttle::Step { seconds: batch_s },
        4 => Throttle::Print {
            bytes: (batch_s * 4e7) as usize,
        },
        5 => Throttle::Lock {
            seconds: 2.0 * batch_s,
        },
        6 => Throttle::Network {
            bytes_per_s: part * rate * f64::from(3 * 224 * 224),
        },
        _ => Throttle::Neighbors { count: 2 * cores() },
    }
}

fn times(stats: &Stats, throttle: Throttle) -> (StageTimes, Cores) {
    let images = stats.images.max(1) as f64;
    let work = stats.decode.busy_s + stats.transform.busy_s;
    let decode_cpu_s = stats.decode_cpu_s / images;
    let transform = stats.transform.busy_s / work.max(f64::MIN_POSITIVE);
    let (image_bytes, cores) = (stats.bytes_read as f64 / images, cores() as f64);
    let times = StageTimes {
        storage_s: match throttle {
            Throttle::Bandwidth { bytes_per_s } => image_bytes / bytes_per_s,
            _ => 0.0,
        },
        fetch_cpu_s: (stats.process_cpu_s - stats.decode_cpu_s).max(0.0) / images,
        decode_cpu_s: decode_cpu_s * (1.0 - transform),
        transform_cpu_s: decode_cpu_s * transform,
        handover_cpu_s: 0.0,
        consumer_s: match throttle {
            Throttle::Step { seconds } => seconds / BATCH as f64,
            _ => 0.0,
        },
    };
    (
        times,
        Cores {
            cores,
            threads: stats.decode.threads as f64,
        },
    )
}

/// A remedy for a throttle: it is loosened, or all cores decode instead of one.
fn gains(count: u64, rate: f64, random: &mut Random, outcome: &mut Outcome) -> Result<()> {
    for number in 0..count {
        let part = 0.1 + random.below(300) as f64 / 1e3;
        let factor = 1.5 + random.below(4000) as f64 / 1e3;
        let (before, after, threads) = match number % 3 {
            0 => {
                let bandwidth = |part: f64| Throttle::Bandwidth {
                    bytes_per_s: part * rate * 115_000.0,
                };
                (bandwidth(part), bandwidth(part * factor), [0, 0])
            }
            1 => {
                let step = |part: f64| Throttle::Step {
                    seconds: BATCH as f64 / (part * rate),
                };
                (step(part), step(part * factor), [0, 0])
            }
            _ => (Throttle::Decode, Throttle::Decode, [1, 0]),
        };
        let (mut rounds, mut rates, mut gained) = (Vec::new(), Vec::new(), Vec::new());
        for _ in 0..2 {
            let (stats, without) = run(before, threads[0])?;
            rates.push(without);
            let (now, with_cores) = times(&stats, before);
            // The prediction knows the remedy, and nothing of the run with it.
            let with = times(&stats, after).0;
            let all = Cores {
                cores: with_cores.cores,
                threads: if threads[1] == 0 {
                    with_cores.cores
                } else {
                    with_cores.threads
                },
            };
            rounds.push([(now, with_cores), (with, all)]);
            gained.push(run(after, threads[1])?.1 / without);
        }
        let predicted = Gain::predict(&rounds).with_spread(&rates);
        println!("{before:?}, {after:?}: {predicted:?}, gained {gained:?}");
        outcome.gained(&predicted, crate::measure::median(&gained));
    }
    Ok(())
}

/// Three ranks with loaders of their own, one of which has slow steps in every second job.
fn stragglers(count: u64, rate: f64, random: &mut Random, outcome: &mut Outcome) -> Result<()> {
    for job in 0..count {
        let slow = (job % 2 == 0).then(|| random.below(3));
        let ranks: Vec<_> = (0..3u64)
            .map(|rank| {
                let part = if slow == Some(rank) { 0.06 } else { 0.15 };
                let seconds = BATCH as f64 / (part * rate);
                thread::spawn(move || {
                    let (stats, _) =
                        run(Throttle::Step { seconds }, 0).map_err(|e| e.to_string())?;
                    let waits = stats.trainer.starved_s / stats.wall_s;
                    Ok(RankPace {
                        rank,
                        seconds: stats.wall_s,
                        images: stats.batches * BATCH,
                        batches: stats.batches,
                        waits,
                    })
                })
            })
            .collect();
        let mut paces = Vec::new();
        for rank in ranks {
            let pace: std::result::Result<RankPace, String> =
                rank.join().map_err(|_| "a rank panicked")?;
            paces.push(pace?);
        }
        let found = Straggler::find(&paces).map(|found| found.rank);
        outcome.found(&format!("{slow:?}"), &format!("{found:?}"));
    }
    Ok(())
}

fn bottlenecks(runs: u64, jobs: u64) -> Result<Outcome> {
    let rate = unthrottled()?;
    let mut random = Random::new(7);
    let mut outcome = Outcome::default();
    for number in 0..runs {
        let throttle = throttle(number, rate, &mut random);
        let (stats, _) = run(throttle, 0)?;
        let bottleneck = stats.bottleneck();
        if bottleneck.bound.name() != throttle.bound() {
            println!("{throttle:?}: {bottleneck}");
        }
        outcome.found(throttle.bound(), bottleneck.bound.name());
    }
    stragglers(jobs, rate, &mut random, &mut outcome)?;
    Ok(outcome)
}

#[test]
#[ignore = "takes a quarter of an hour, on a machine without other work, built with optimizations"]
fn bottlenecks_of_200_throttled_runs_are_right() {
    bottlenecks(184, 20).unwrap().check_bottlenecks();
}

#[test]
#[ignore = "takes minutes, on a machine without other work, built with optimizations"]
fn gains_of_throttled_runs_are_predicted() {
    let (rate, mut outcome) = (unthrottled().unwrap(), Outcome::default());
    gains(24, rate, &mut Random::new(8), &mut outcome).unwrap();
    outcome.check_gains();
}
