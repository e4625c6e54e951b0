//! Measures decoded batches from a server on this machine: the cost of serving, compared with the loader alone.

use std::cell::Cell;
use std::net::{Ipv4Addr, SocketAddr};
use std::path::Path;
use std::time::{Duration, Instant};

use forebay_client::{Client, ClientOptions, Stream, Transport};
use forebay_image::{TrainTransform, Transform};
use forebay_loader::{Loader, Options};
use forebay_server::{Server, ServerHandle, ServerOptions};

use crate::Result;
use crate::cold::{Cold, Evictor};
use crate::measure::{Alternative, BenchReport, Delivered, Measurement, side_by_side};
use crate::read::{dataset, footprint, split_of};

/// Width and height of the images in a batch, in pixels.
pub const SIDE: u32 = 224;
/// Images per batch.
pub const BATCH: u64 = 256;
/// The name of the served dataset.
pub const NAME: &str = "bench";

/// Measures decoded training batches of a dataset, in process and from a server on this machine over each of `transports`, with
/// the same number of decode threads. `cold` selects how the page cache is emptied.
///
/// # Errors
/// The dataset cannot be read or decoded.
pub fn stream(
    root: &Path,
    split: Option<&str>,
    threads: usize,
    transports: &[Transport],
    duration: Duration,
    cold: Cold,
    runs: usize,
) -> Result<BenchReport> {
    let evictor = Evictor::buffered(cold)?;
    // Bytes that the last run read.
    let read = &Cell::new(0);
    let dataset = dataset(root)?;
    let split = split_of(&dataset, root, split)?;
    let (server, url) = serve(|server| Ok(server.add_dataset(NAME, &dataset)?))?;
    // Both take one batch before the clock starts.
    let in_process = || {
        let mut loader = Loader::new(split.clone(), options(threads))?;
        loader.next_batch()?;
        let took = until(duration, || {
            Ok(loader.next_batch()?.map(|batch| batch.len()))
        });
        read.set(loader.stats().bytes_read);
        took
    };
    let served = |transport| {
        let mut stream = connect(&url, &options(threads), split.name(), transport)?;
        stream.next_batch()?;
        let took = until(duration, || {
            Ok(stream.next_batch()?.map(|batch| batch.len()))
        });
        read.set(bytes_read(&stream));
        took
    };
    let served = &served;
    let mut alternatives = vec![Alternative::here(
        "loader in process",
        "batches/s",
        in_process,
    )];
    for &transport in transports {
        let how = match transport {
            Transport::Auto => "as they choose",
            Transport::Shm => "through shared memory",
            Transport::Tcp => "over loopback TCP",
        };
        let name = format!("from a server, {how}");
        alternatives.push(Alternative::here(name, "batches/s", move || {
            served(transport)
        }));
    }
    let files = footprint(&split);
    let alternatives = alternatives.into_iter().map(|one: Alternative<'_>| {
        one.reading(files.clone(), evictor, |_| Delivered::local(read.get()))
    });
    let alternatives = alternatives.collect();
    let report = side_by_side(
        format!(
            "RandomResizedCrop(224) batches of {BATCH} from {} ({} records), {threads} decoding threads",
            root.display(),
            split.len()
        ),
        runs,
        alternatives,
    );
    server.shutdown();
    report
}

/// Returns the bytes that a server read for a stream; 0 if it does not answer.
pub fn bytes_read(stream: &Stream) -> u64 {
    let stats = stream.server_stats(Duration::from_secs(2));
    stats.map_or(0, |stats| stats.bytes_read)
}

/// Returns options for full batches, including padding, so that all batches have the same size.
fn options(threads: usize) -> Options {
    let mut options = Options::new(BATCH, Transform::Train(TrainTransform::new(SIDE)));
    options.threads = threads;
    options.drop_last = false;
    options
}

fn until(time: Duration, mut next: impl FnMut() -> Result<Option<usize>>) -> Result<Measurement> {
    let start = Instant::now();
    let mut batches = 0u64;
    while start.elapsed() < time {
        batches += u64::from(next()?.is_some());
    }
    Ok(Measurement {
        amount: batches as f64,
        seconds: start.elapsed().as_secs_f64(),
    })
}

/// Starts a server on loopback, and calls `add` to add data. Returns it with the URL of its dataset [`NAME`].
///
/// # Errors
/// The port cannot be opened, or `add` fails.
pub fn serve(add: impl FnOnce(&mut Server) -> Result<()>) -> Result<(ServerHandle, String)> {
    let mut server = Server::bind(ServerOptions {
        listen: SocketAddr::from((Ipv4Addr::LOCALHOST, 0)),
        ..ServerOptions::default()
    })?;
    add(&mut server)?;
    let server = server.spawn()?;
    let url = format!("forebay://{}/{NAME}", server.addr());
    Ok((server, url))
}

/// Opens a stream of a split with these options of the loader.
///
/// # Errors
/// The server cannot be reached, or refuses the options.
pub fn connect(url: &str, options: &Options, split: &str, transport: Transport) -> Result<Stream> {
    let client = ClientOptions {
        transport,
        ..ClientOptions::default()
    };
    let client = Client::connect(url, client)?;
    Ok(client.open(options.to_schema().with_split(split))?)
}
