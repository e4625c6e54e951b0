//! Streams one epoch of decoded batches from a server in this process to a client.

use std::net::{Ipv4Addr, SocketAddr};
use std::time::{Duration, Instant};

use forebay_batch::FLAG_PADDING;
use forebay_client::{Batch, Client, ClientOptions, Polled, RemoteStats, Stream};
use forebay_image::{TrainTransform, Transform};
use forebay_loader::Options;
use forebay_server::{Server, ServerOptions};
use forebay_shard::Dataset;

use super::place::OutputDir;
use super::report::{StageFigures, StreamFigures};
use super::stopped;
use crate::command::inspect::sheet;
use crate::console::Console;
use crate::contents::class_title;
use crate::failure::Failure;
use crate::interrupt::Interrupt;

/// Name of the dataset in the server's URL.
const NAME: &str = "quickstart";

/// Side of the decoded images in pixels: the input size of most ImageNet models.
const SIDE: u32 = 224;

/// Maximum batch size. Small splits get smaller batches, so that an epoch has at least [`LEAST_BATCHES`] batches.
const BATCH_SIZE: u64 = 64;
const LEAST_BATCHES: u64 = 3;

/// Interval of checks for Ctrl-C while waiting for a batch.
const LOOK: Duration = Duration::from_millis(100);

/// Timeout of the request for the server's stage times.
const STATS_WAIT: Duration = Duration::from_secs(5);

/// Serves the TFRecords on any free port, streams one epoch of their largest split, and stops. Writes the first batch as a
/// contact sheet.
pub(super) fn one_epoch(
    place: &OutputDir,
    interrupt: &Interrupt,
    console: &Console,
) -> Result<StreamFigures, Failure> {
    let dataset = Dataset::open(place.tfrecord())?;
    let split = dataset
        .manifest()
        .splits
        .iter()
        .max_by_key(|split| split.records)
        .ok_or_else(|| Failure::new("the dataset has no splits"))?
        .clone();
    let threads = std::thread::available_parallelism().map_or(1, usize::from);

    let mut server = Server::bind(ServerOptions {
        listen: SocketAddr::from((Ipv4Addr::LOCALHOST, 0)),
        stream_threads: Some(threads),
        ..ServerOptions::default()
    })?;
    server.add_dataset(NAME, &dataset)?;
    let server = server.spawn()?;
    let url = format!("forebay://{}/{NAME}", server.addr());

    let mut options = Options::new(
        batch_size(split.records),
        Transform::Train(TrainTransform::new(SIDE)),
    );
    options.drop_last = false;
    let started = Instant::now();
    let client = Client::connect(
        &url,
        ClientOptions {
            name: concat!("forebay quickstart ", env!("CARGO_PKG_VERSION")).to_owned(),
            // The server runs in this process, so reconnecting to it after a failure is useless.
            reconnect_for: Duration::ZERO,
            ..ClientOptions::default()
        },
    )?;
    // The stream is endless, as for a trainer, since the server reports stage times only of open streams. Only the first epoch
    // is read.
    let mut stream = client.open(options.to_schema().with_split(&split.name))?;
    let mut figures = StreamFigures {
        url,
        split: split.name.clone(),
        batch_size: options.batch_size,
        side: SIDE,
        batches: 0,
        images: 0,
        padding: 0,
        payload_bytes: 0,
        elapsed: Duration::ZERO,
        first_batch_after: Duration::ZERO,
        threads,
        decoded: 0,
        stages: Vec::new(),
    };
    let mut picture = None;
    let bar = console.bar("streaming", Some(stream.batches_per_epoch()));
    let expected = stream.batches_per_epoch();
    while figures.batches < expected {
        let Some(batch) = next_batch(&mut stream, interrupt)? else {
            break;
        };
        if figures.batches == 0 {
            figures.first_batch_after = started.elapsed();
        }
        figures.batches += 1;
        figures.elapsed = started.elapsed();
        let padding = batch
            .flags
            .iter()
            .filter(|flag| **flag == FLAG_PADDING)
            .count() as u64;
        figures.padding += padding;
        figures.images += batch.len() as u64 - padding;
        figures.payload_bytes += batch.payload.len() as u64;
        bar.update(figures.batches, figures.images, "images", 0);
        if picture.is_none() {
            picture = Some(batch);
        }
    }
    let stats = stream.server_stats(STATS_WAIT);
    if next_batch(&mut stream, interrupt)?.is_some() || figures.batches != expected {
        return Err(Failure::new(format!(
            "the epoch had {} batches, not the {expected} that the server announced",
            figures.batches
        )));
    }
    drop(bar);
    drop(stream);
    server.shutdown();
    let stats = stats.unwrap_or_default();
    figures.decoded = stats.decoded;
    figures.stages = stages(&stats);
    let picture = picture.ok_or_else(|| Failure::new("the epoch had no batch"))?;
    write_contact_sheet(place, &dataset, &picture)?;
    Ok(figures)
}

/// Returns the largest power of two up to [`BATCH_SIZE`] that gives at least [`LEAST_BATCHES`] full batches, or 1.
fn batch_size(records: u64) -> u64 {
    let most = (records / LEAST_BATCHES).clamp(1, BATCH_SIZE);
    1 << most.ilog2()
}

fn next_batch(stream: &mut Stream, interrupt: &Interrupt) -> Result<Option<Batch>, Failure> {
    let deadline = Instant::now() + ClientOptions::default().batch_timeout;
    while !interrupt.is_asked() {
        match stream.poll_batch(LOOK)? {
            Polled::Batch(batch) => return Ok(Some(batch)),
            Polled::EpochEnd => return Ok(None),
            Polled::Pending if Instant::now() < deadline => {}
            Polled::Pending => {
                return Err(Failure::new(
                    "the server is there but sent no batch for two minutes",
                ));
            }
        }
    }
    Err(stopped())
}

/// Returns the stages in the order in which a sample passes them, without "trainer": here, the server that sends the batches
/// is the consumer of the loader.
fn stages(stats: &RemoteStats) -> Vec<StageFigures> {
    stats
        .stages
        .iter()
        .filter(|stage| stage.name != "trainer")
        .map(|stage| StageFigures {
            name: stage.name.clone(),
            busy_s: stage.busy_s,
            starved_s: stage.starved_s,
            blocked_s: stage.blocked_s,
        })
        .collect()
}

/// Writes a contact sheet of the images of a batch, each with its class as the caption.
fn write_contact_sheet(place: &OutputDir, dataset: &Dataset, batch: &Batch) -> Result<(), Failure> {
    let samples = batch
        .flags
        .iter()
        .take_while(|flag| **flag != FLAG_PADDING)
        .count()
        .max(1);
    let side = batch.shape[1];
    let pixels = &batch.payload[..(samples * 3 * side * side).min(batch.payload.len())];
    let captions: Vec<String> = batch
        .labels
        .iter()
        .take(samples)
        .map(|label| class_title(dataset, *label))
        .collect();
    sheet::save(&place.contact_sheet(), pixels, side as u32, &captions)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn small_splits_get_small_batches() {
        for (records, size) in [
            (1, 1),
            (2, 1),
            (12, 4),
            (48, 16),
            (192, 64),
            (1_281_167, 64),
        ] {
            assert_eq!(batch_size(records), size, "{records}");
        }
    }
}
