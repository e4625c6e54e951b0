//! Measures transports with batches that cost nothing to make, and compares them with bare TCP and copies in memory.

use std::cell::{Cell, RefCell};
use std::collections::BTreeMap;
use std::io::{Read, Write};
use std::net::{Ipv4Addr, TcpListener, TcpStream};
use std::sync::Arc;
use std::time::{Duration, Instant};

use clap::Args;
use forebay_client::{Batch, Client, ClientOptions, Transport};
use forebay_image::{TrainTransform, Transform};
use forebay_loader::Options;
use forebay_server::{Pixels, Synthetic};

use crate::measure::{
    Alternative, BenchReport, Measurement, Threads, median, quantile, side_by_side,
};
use crate::stream::{BATCH, NAME, SIDE, serve};
use crate::{Error, Result};

const GB: f64 = 1e9;
/// Bytes of a batch of 256 RGB images of 224 x 224: 38.5 MB.
const BATCH_BYTES: usize = BATCH as usize * (SIDE * SIDE * 3) as usize;
/// Prefixes of the names of server threads.
const SERVER_THREADS: &[&str] = &["forebay-conn", "forebay-send", "forebay-accept"];
/// Prefixes of the names of client threads, without the thread that takes batches.
const CLIENT_THREADS: &[&str] = &["forebay-receive"];

/// Options of [`transport`].
#[derive(Debug, Args)]
pub struct TransportOptions {
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
}

/// Measures each transport, a bare TCP connection and copies in memory. Trainers take batches without reading them.
///
/// # Errors
/// A socket cannot be opened.
pub fn transport(options: &TransportOptions, runs: usize) -> Result<BenchReport> {
    let (batches, ranks) = (options.batches.max(1), options.ranks.max(1));
    let (server, url) = serve(|server| {
        let source = Synthetic::new(u64::MAX >> 20, Pixels::Arbitrary);
        Ok(server.add_source(NAME, Arc::new(source))?)
    })?;
    let url = url.as_str();
    let ways = ways(options);
    let sides = RefCell::new(BTreeMap::new());
    let mut alternatives = Vec::new();
    alternatives.push(Alternative::here(
        "bare TCP on loopback, writes of 1 MiB, reads of 128 KiB",
        "GB/s",
        move || bare_tcp(batches),
    ));
    for &way in &ways {
        let name = name(way, ranks);
        let sides = &sides;
        alternatives.push(Alternative::here(name.clone(), "GB/s", move || {
            let (sample, used) = run(url, way, ranks, batches)?;
            sides
                .borrow_mut()
                .entry(name.clone())
                .or_insert_with(Vec::new)
                .push(used.map(|seconds| seconds / sample.amount));
            Ok(sample)
        }));
    }
    let source = vec![1u8; BATCH_BYTES];
    let mut target = vec![0u8; BATCH_BYTES];
    alternatives.push(Alternative::here("memcpy, one thread", "GB/s", move || {
        Measurement::time(|| {
            for _ in 0..batches {
                target.copy_from_slice(std::hint::black_box(&source));
                std::hint::black_box(&mut target);
            }
            Ok(gigabytes(batches))
        })
    }));
    let mut report = side_by_side(
        format!("Moving {batches} batches of 38.5 MB on this machine; CPU of both sides"),
        runs,
        alternatives,
    )?;
    for row in &mut report.rows {
        if let Some(used) = sides.borrow().get(&row.name) {
            let of = |side: usize| {
                // The first round does not count.
                median(
                    &used
                        .iter()
                        .skip(1)
                        .map(|used| used[side])
                        .collect::<Vec<_>>(),
                )
            };
            let (server, client) = (of(0), of(1));
            row.extra.insert("server_cpu_s_each", server);
            row.extra.insert("client_cpu_s_each", client);
            let note = format!(
                "{}: server {server:.4}, client {client:.4} CPU seconds a GB",
                row.name
            );
            report.notes.push(note);
        }
    }
    for &way in &ways {
        add_latencies(&mut report, &name(way, ranks), url, way, batches.min(2000))?;
    }
    server.shutdown();
    Ok(report)
}

/// Adds the waits of one client for a batch to a row.
fn add_latencies(
    report: &mut BenchReport,
    name: &str,
    url: &str,
    way: Way,
    count: u64,
) -> Result<()> {
    for (what, key, micros) in [
        (
            "that is there already",
            ["ready_us_p50", "ready_us_p99"],
            ready(url, way, count)?,
        ),
        (
            "that the server is asked for, one at a time",
            ["handover_us_p50", "handover_us_p99"],
            handovers(url, way, count)?,
        ),
    ] {
        let [p50, p99] = [0.5, 0.99].map(|part| quantile(&micros, part));
        report.notes.push(format!(
            "{name}: from asking for a batch {what}, to having it: p50 {p50:.0} µs, p99 {p99:.0} µs"
        ));
        for row in report.rows.iter_mut().filter(|row| row.name == name) {
            row.extra.insert(key[0], p50);
            row.extra.insert(key[1], p99);
        }
    }
    Ok(())
}

/// A transport and a number of connections.
type Way = (Transport, usize);

/// Returns the transports to measure, in order. Only TCP is measured with several numbers of connections.
fn ways(options: &TransportOptions) -> Vec<Way> {
    let of = |&transport: &Transport| match transport {
        Transport::Tcp => options
            .connections
            .iter()
            .map(|&n| (transport, n))
            .collect(),
        _ => vec![(transport, 1)],
    };
    options.transport.iter().flat_map(of).collect()
}

fn client((transport, connections): Way) -> ClientOptions {
    ClientOptions {
        transport,
        connections,
        ..ClientOptions::default()
    }
}

fn name((transport, connections): Way, ranks: u64) -> String {
    let how = match (transport, connections) {
        (Transport::Auto, _) => "as they choose".to_owned(),
        (Transport::Shm, _) => "through shared memory".to_owned(),
        (Transport::Tcp, 1) => "over TCP".to_owned(),
        (Transport::Tcp, n) => format!("over {n} TCP connections"),
    };
    match ranks {
        1 => format!("forebay server to client {how}"),
        ranks => format!("forebay server to {ranks} clients {how}"),
    }
}

fn gigabytes(batches: u64) -> f64 {
    batches as f64 * BATCH_BYTES as f64 / GB
}

/// Opens the stream of one rank and takes its first batch.
fn open(
    url: &str,
    client: ClientOptions,
    (rank, ranks): (u64, u64),
) -> Result<forebay_client::Stream> {
    let mut options = Options::new(BATCH, Transform::Train(TrainTransform::new(SIDE)));
    (options.rank, options.world_size) = (rank, ranks);
    let client = Client::connect(url, client)?;
    let mut stream = client.open(options.to_schema().with_split("train"))?;
    take(&mut stream)?;
    Ok(stream)
}

fn take(stream: &mut forebay_client::Stream) -> Result<Batch> {
    Ok(stream.next_batch()?.ok_or("the synthetic epoch ended")?)
}

/// Moves batches to all ranks. Returns the measurement, and the CPU seconds of server and clients.
fn run(url: &str, way: Way, ranks: u64, batches: u64) -> Result<(Measurement, [f64; 2])> {
    let mut streams = (0..ranks)
        .map(|rank| open(url, client(way), (rank, ranks)))
        .collect::<Result<Vec<_>>>()?;
    let each = batches.div_ceil(ranks);
    let takers_cpu = Cell::new(0.0);
    let before = used();
    let sample = Measurement::time(|| {
        std::thread::scope(|scope| {
            let takers: Vec<_> = streams
                .iter_mut()
                .map(|stream| {
                    let taking = move || -> Result<f64> {
                        for _ in 0..each {
                            take(stream)?;
                        }
                        // Returned here, because the CPU time of a thread is lost when it ends.
                        Ok(Threads::own_cpu_seconds())
                    };
                    std::thread::Builder::new()
                        .name("bench-rank".to_owned())
                        .spawn_scoped(scope, taking)
                })
                .collect::<std::io::Result<_>>()?;
            for taker in takers {
                let seconds = taker.join().map_err(|_| Error::from("a rank panicked"))??;
                takers_cpu.set(takers_cpu.get() + seconds);
            }
            Ok(gigabytes(each * ranks))
        })
    })?;
    let after = used();
    // Threads that ended in between are missing in the second value, so the difference may be negative.
    let used = [
        (after[0] - before[0]).max(0.0),
        (after[1] - before[1] + takers_cpu.get()).max(0.0),
    ];
    Ok((sample, used))
}

fn used() -> [f64; 2] {
    let threads = Threads::now();
    [
        threads.cpu_seconds(SERVER_THREADS),
        threads.cpu_seconds(CLIENT_THREADS),
    ]
}

/// Returns the microseconds that taking a batch takes if it arrived before, as it does for a trainer that is slower than its
/// batches.
fn ready(url: &str, way: Way, count: u64) -> Result<Vec<f64>> {
    let mut stream = open(url, client(way), (0, 1))?;
    waits(&mut stream, count, |stream, taken| {
        let began = Instant::now();
        // If the stream has failed, taking the next batch returns the error.
        while stream.stats().batches <= taken && began.elapsed() < Duration::from_secs(10) {
            std::thread::sleep(Duration::from_millis(1));
        }
    })
}

/// Returns the microseconds of round trips: with credit for one batch, the server makes none before it is requested.
fn handovers(url: &str, way: Way, count: u64) -> Result<Vec<f64>> {
    let client = ClientOptions {
        credit_bytes: Some(BATCH_BYTES as u64),
        ..client(way)
    };
    let mut stream = open(url, client, (0, 1))?;
    waits(&mut stream, count, |_, _| {})
}

/// Takes `count` batches, each after a call of `prepare` with the number of batches taken so far, and returns the microseconds
/// of each. Earlier batches are discarded, as the first ones of a stream arrive in newly allocated memory.
fn waits(
    stream: &mut forebay_client::Stream,
    count: u64,
    prepare: impl Fn(&forebay_client::Stream, u64),
) -> Result<Vec<f64>> {
    let first = count / 10;
    let mut micros = Vec::new();
    for i in 0..first + count {
        // Opening the stream took one batch.
        prepare(stream, i + 1);
        let began = Instant::now();
        let _batch = take(stream)?;
        if i >= first {
            micros.push(began.elapsed().as_secs_f64() * 1e6);
        }
    }
    Ok(micros)
}

/// Measures the throughput of one bare TCP connection that sends the same buffer repeatedly.
fn bare_tcp(batches: u64) -> Result<Measurement> {
    let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0))?;
    let address = listener.local_addr()?;
    std::thread::scope(|scope| {
        let sender = scope.spawn(move || -> std::io::Result<()> {
            let (mut socket, _) = listener.accept()?;
            let chunk = vec![1u8; 1 << 20];
            for _ in 0..batches {
                for sent in (0..BATCH_BYTES).step_by(chunk.len()) {
                    socket.write_all(&chunk[..chunk.len().min(BATCH_BYTES - sent)])?;
                }
            }
            Ok(())
        });
        let mut socket = TcpStream::connect(address)?;
        let mut buffer = vec![1u8; BATCH_BYTES];
        let sample = Measurement::time(|| {
            for _ in 0..batches {
                for piece in buffer.chunks_mut(128 << 10) {
                    socket.read_exact(piece)?;
                }
            }
            Ok(gigabytes(batches))
        });
        sender
            .join()
            .map_err(|_| Error::from("the sender panicked"))??;
        sample
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn cpu_of_both_sides_and_batch_times_are_reported() {
        let options = TransportOptions {
            batches: 2,
            ranks: 2,
            transport: vec![Transport::Auto, Transport::Tcp],
            connections: vec![1, 2],
        };
        let report = transport(&options, 1).unwrap();
        for way in ways(&options) {
            let name = name(way, 2);
            let row = report.rows.iter().find(|row| row.name == name).unwrap();
            assert!(row.median > 0.0);
            assert!(row.extra["server_cpu_s_each"] >= 0.0);
            assert!(row.extra["client_cpu_s_each"] >= 0.0);
            assert!(row.extra["ready_us_p50"] <= row.extra["ready_us_p99"]);
            assert!(row.extra["handover_us_p50"] <= row.extra["handover_us_p99"]);
        }
    }
}
