//! Batches through loopback: what the transport can do, and what it costs beside the loader alone.

use std::io::{Read, Write};
use std::net::{Ipv4Addr, SocketAddr, TcpListener, TcpStream};
use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, Instant};

use forebay_client::{Client, ClientOptions, Stream};
use forebay_image::{TrainTransform, Transform};
use forebay_loader::{Loader, Options};
use forebay_server::{Pixels, Server, ServerHandle, ServerOptions, Synthetic};
use forebay_shard::Dataset;

use crate::measure::{Alternative, Report, Sample, side_by_side};
use crate::read::open;
use crate::{Error, Result};

const GB: f64 = 1e9;
const SIDE: u32 = 224;
const BATCH: u64 = 256;
/// Bytes of a batch of 256 RGB images of 224 x 224: 38.5 MB.
const BATCH_BYTES: usize = BATCH as usize * (SIDE * SIDE * 3) as usize;
const NAME: &str = "bench";

/// The transport alone: batches of 38.5 MB that cost nothing to make, beside copying memory and
/// beside a bare TCP connection. `batches` is how many each run moves.
///
/// # Errors
/// Sockets that cannot be opened.
pub fn transport(batches: u64, runs: usize) -> Result<Report> {
    let source = vec![1u8; BATCH_BYTES];
    let mut target = vec![0u8; BATCH_BYTES];
    let copy = move || {
        Sample::time(|| {
            for _ in 0..batches {
                target.copy_from_slice(std::hint::black_box(&source));
                std::hint::black_box(&mut target);
            }
            Ok(gigabytes(batches))
        })
    };
    let (server, url) = serve(|server| {
        let source = Synthetic::new(u64::MAX >> 20, Pixels::Arbitrary);
        Ok(server.add_source(NAME, Arc::new(source))?)
    })?;
    let framed = || {
        let mut stream = connect(&url, &options(1), "train")?;
        stream.next_batch()?;
        Sample::time(|| {
            for _ in 0..batches {
                stream.next_batch()?.ok_or("the synthetic epoch ended")?;
            }
            Ok(gigabytes(batches))
        })
    };
    let report = side_by_side(
        format!("Moving {batches} batches of 38.5 MB on this machine; CPU of both sides"),
        runs,
        vec![
            Alternative::here(
                "bare TCP on loopback, 1 MiB writes, one buffer",
                "GB/s",
                || bare_tcp(batches),
            ),
            Alternative::here("forebay server to client over TCP", "GB/s", framed),
            Alternative::here("memcpy, one thread", "GB/s", copy),
        ],
    );
    server.shutdown();
    report
}

/// Decoded training batches of a dataset, in process and through a server on loopback, with the
/// same number of decoding threads.
///
/// # Errors
/// A dataset that cannot be read or decoded.
pub fn stream(
    root: &Path,
    split: Option<&str>,
    threads: usize,
    seconds: f64,
    runs: usize,
) -> Result<Report> {
    let split = open(root, split)?;
    let (server, url) = serve(|server| Ok(server.add_dataset(NAME, &Dataset::open(root)?)?))?;
    let time = Duration::from_secs_f64(seconds);
    // Both take one batch before the clock starts.
    let in_process = || {
        let mut loader = Loader::new(split.clone(), options(threads))?;
        loader.next_batch()?;
        until(time, || Ok(loader.next_batch()?.map(|batch| batch.len())))
    };
    let loopback = || {
        let mut stream = connect(&url, &options(threads), split.name())?;
        stream.next_batch()?;
        until(time, || Ok(stream.next_batch()?.map(|batch| batch.len())))
    };
    let report = side_by_side(
        format!(
            "RandomResizedCrop(224) batches of {BATCH} from {} ({} records), {threads} decoding threads",
            root.display(),
            split.len()
        ),
        runs,
        vec![
            Alternative::here("loader in process", "batches/s", in_process),
            Alternative::here("through a server on loopback", "batches/s", loopback),
        ],
    );
    server.shutdown();
    report
}

fn gigabytes(batches: u64) -> f64 {
    batches as f64 * BATCH_BYTES as f64 / GB
}

/// Full batches, padding included, so that every batch is the same work to move.
fn options(threads: usize) -> Options {
    let mut options = Options::new(BATCH, Transform::Train(TrainTransform::new(SIDE)));
    options.threads = threads;
    options.keep_last = true;
    options
}

fn until(time: Duration, mut next: impl FnMut() -> Result<Option<usize>>) -> Result<Sample> {
    let start = Instant::now();
    let mut batches = 0u64;
    while start.elapsed() < time {
        batches += u64::from(next()?.is_some());
    }
    Ok(Sample {
        amount: batches as f64,
        seconds: start.elapsed().as_secs_f64(),
    })
}

fn serve(add: impl FnOnce(&mut Server) -> Result<()>) -> Result<(ServerHandle, String)> {
    let mut server = Server::bind(ServerOptions {
        listen: SocketAddr::from((Ipv4Addr::LOCALHOST, 0)),
        ..ServerOptions::default()
    })?;
    add(&mut server)?;
    let server = server.spawn()?;
    let url = format!("forebay://{}/{NAME}", server.addr());
    Ok((server, url))
}

fn connect(url: &str, options: &Options, split: &str) -> Result<Stream> {
    let client = Client::connect(url, ClientOptions::default())?;
    Ok(client.open(options.to_spec(split))?)
}

/// What the system itself can move: one connection, the same buffer again and again.
fn bare_tcp(batches: u64) -> Result<Sample> {
    let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0))?;
    let address = listener.local_addr()?;
    std::thread::scope(|scope| {
        let sender = scope.spawn(move || -> std::io::Result<()> {
            let (mut socket, _) = listener.accept()?;
            let chunk = vec![1u8; 1 << 20];
            let mut left = BATCH_BYTES as u64 * batches;
            while left > 0 {
                let n = left.min(chunk.len() as u64) as usize;
                socket.write_all(&chunk[..n])?;
                left -= n as u64;
            }
            Ok(())
        });
        let mut socket = TcpStream::connect(address)?;
        let mut buffer = vec![1u8; BATCH_BYTES];
        let sample = Sample::time(|| {
            for _ in 0..batches {
                socket.read_exact(&mut buffer)?;
            }
            Ok(gigabytes(batches))
        });
        sender
            .join()
            .map_err(|_| Error::from("the sender panicked"))??;
        sample
    })
}
