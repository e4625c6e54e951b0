//! The sending thread of a connection: opens a stream and sends its batches as far as the client's
//! credit allows.

use std::net::Shutdown;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::time::Instant;

use forebay_batch::digest;
use forebay_options::{DEFAULT_BATCH_SIZE, LoaderOptions, StreamInfo};
use forebay_wire::batch::to_header;
use forebay_wire::text::printable_start;
use forebay_wire::wire::{self, error::Kind};
use forebay_wire::{Batch, BufferPool};

use crate::egress::Sender;
use crate::link::{Ending, Link, Stop};
use crate::observer::Event;
use crate::previews::PreviewSampler;
use crate::shared::Shared;
use crate::snapshot::LiveStream;
use crate::source::{BatchSource, Failure, StreamRequest, StreamSource};
use crate::stats::ServerStreamStats;
use crate::wire_options;

/// Maximum number of shared-memory slots per stream: those that the loader fills ahead, those in
/// the client's queue, and a few that the client keeps. A client that keeps more gets batches over
/// the socket meanwhile.
const MOST_SLOTS: usize = 12;
/// Maximum number of samples per batch. Labels and sample numbers of this many always fit into the
/// largest header that clients accept, so the limit holds even for tiny images.
const MOST_SAMPLES: u64 = 1 << 19;
/// Limit of retained buffers for batches that vary in size, in bytes.
const KEPT_BYTES: usize = 128 << 20;

/// Opens and runs the stream that `open` requests; if that fails, sends the error to the client.
pub(crate) fn run(
    server: &Shared,
    link: &Link,
    dataset: &str,
    source: &dyn StreamSource,
    options: &LoaderOptions,
    open: &wire::Open,
) {
    let stream = || Session::open(server, link, dataset, source, options, open)?.stream(open);
    // A panic in a source must not leave the client waiting.
    let ended = catch_unwind(AssertUnwindSafe(stream)).unwrap_or_else(|_| {
        let text = "internal error of the server while making a batch; see its log";
        Err(End::Failure(Failure::new(Kind::Internal, text)))
    });
    let Err(end) = ended else {
        return;
    };
    match end {
        End::Failure(failure) => {
            server.telemetry.stream_failed(dataset, failure.kind);
            link.end(Ending::failed(format!("got an error: {failure}")));
            link.send_last(failure.kind, failure.message);
        }
        End::Stop(Stop::Shutdown) => {
            link.end(Ending::clean("was notified that the server stops"));
            link.send_last(Kind::Shutdown, "the server is stopping");
        }
        End::Stop(Stop::Gone) => {}
        End::Send(e) if e.is_timeout() => {
            let stall = server.options.stall_timeout;
            link.end(Ending::failed(format!("read nothing for {stall:?}")));
            link.socket.shutdown(Shutdown::Both);
        }
        // The client may have sent a Close message before it closed, which the receiving thread still reads.
        End::Send(e) => link.send_failed(e),
    }
}

/// Why a stream ends early.
enum End {
    Failure(Failure),
    Stop(Stop),
    Send(forebay_wire::Error),
}

impl From<forebay_wire::Error> for End {
    fn from(e: forebay_wire::Error) -> Self {
        End::Send(e)
    }
}

impl From<Stop> for End {
    fn from(stop: Stop) -> Self {
        End::Stop(stop)
    }
}

struct Session<'a> {
    server: &'a Shared,
    link: &'a Link,
    source: Box<dyn BatchSource>,
    batch_bytes: u64,
    /// Batches per epoch.
    per_epoch: u64,
    /// Whether batches differ in size; then `batch_bytes` is the usual size.
    varies: bool,
    checksum: bool,
    /// The stream's place in the egress limiter.
    sender: Sender<'a>,
    /// Buffers with slots that the client maps, if shared memory is available.
    pool: Option<BufferPool>,
    stats: ServerStreamStats,
    /// Captures previews of sent batches.
    sampler: PreviewSampler<'a>,
}

impl<'a> Session<'a> {
    fn open(
        server: &'a Shared,
        link: &'a Link,
        dataset: &str,
        source: &dyn StreamSource,
        options: &LoaderOptions,
        open: &wire::Open,
    ) -> Result<Session<'a>, End> {
        check_request(dataset, &source.describe().fingerprint, options, open)
            .map_err(End::Failure)?;
        let max_batch_bytes = server.options.max_batch_bytes;
        let share = server.share_of(dataset, link.peer, link.process());
        let pool = link.socket.local().map(|_| {
            let bytes = server.options.shared_memory_bytes;
            let bytes = usize::try_from(bytes).unwrap_or(usize::MAX);
            BufferPool::with_slots(MOST_SLOTS, bytes, KEPT_BYTES)
        });
        let stream = source
            .open(&StreamRequest {
                options,
                epoch: open.epoch,
                position: open.position,
                max_batch_bytes,
                image_limits: server.options.image_limits,
                memory_bytes: server.options.stream_memory_bytes,
                threads: server.options.stream_threads,
                share: Some(share.clone()),
                pool: pool.clone(),
            })
            .map_err(End::Failure)?;
        let info = stream.info();
        check_stream(&info, max_batch_bytes).map_err(End::Failure)?;
        link.watch(stream.monitor());
        server.counters.count(|stats| stats.streams += 1);
        server.tell(&Event::Opened {
            connection: link.id,
            dataset,
            stream: &info,
            epoch: open.epoch,
            position: open.position,
        });
        let per_epoch = info.batches_per_epoch;
        let global = info.global_batch_size().max(1);
        let first = step(per_epoch, open.epoch, open.position / global);
        link.opened(LiveStream::new(
            dataset,
            server.is_job(dataset),
            &info,
            first,
        ));
        let titles = source.describe().class_titles;
        let sampler = PreviewSampler::new(&server.telemetry.previews, dataset, &info, titles);
        let batch_bytes = info.batch_bytes;
        let varies = info.options.varies();
        let opened = wire::Opened {
            join: match open.connections {
                0 | 1 => Vec::new().into(),
                _ => server.offer_join(link).into(),
            },
            ..wire_options::opened(&info)
        };
        link.send(&opened.into(), &[])?;
        link.grant(open.credit_bytes);
        Ok(Session {
            server,
            link,
            source: stream,
            batch_bytes,
            per_epoch,
            varies,
            checksum: open.payload_checksum,
            sender: server.limits.egress.sender(&share),
            pool,
            stats: ServerStreamStats::default(),
            sampler,
        })
    }

    fn stream(&mut self, open: &wire::Open) -> Result<(), End> {
        let mut end = wire::EpochEnd {
            epoch: open.epoch,
            ..Default::default()
        };
        let mut epochs = 0;
        loop {
            // Credit comes first, then the batch: for a client that does not read, nothing
            // accumulates here beyond the pipeline's own budget.
            let began = Instant::now();
            self.link.spend(self.needed())?;
            self.stats.blocked += began.elapsed();
            let began = Instant::now();
            let batch = self.source.next_batch();
            self.stats.starved += began.elapsed();
            if let Some(stop) = self.link.stopped() {
                return Err(End::Stop(stop));
            }
            match batch.map_err(End::Failure)? {
                Some(batch) => {
                    end.batches += 1;
                    end.digest = digest::fold(end.digest, batch.digest);
                    self.send(batch)?;
                }
                None => {
                    self.link.grant(self.needed());
                    self.link.send(&end.into(), &[])?;
                    self.server.tell(&Event::EpochEnd {
                        connection: self.link.id,
                        epoch: end.epoch,
                        batches: end.batches,
                    });
                    epochs += 1;
                    if epochs == open.epochs {
                        return Ok(());
                    }
                    end = wire::EpochEnd {
                        epoch: end.epoch + 1,
                        ..Default::default()
                    };
                }
            }
            self.link.set_stats(self.stats);
        }
    }

    /// The credit needed to start a batch: its size, or any credit if the size is not known in
    /// advance.
    fn needed(&self) -> u64 {
        if self.varies { 1 } else { self.batch_bytes }
    }

    fn send(&mut self, batch: Batch) -> Result<(), End> {
        self.sampler.capture(&batch);
        let began = Instant::now();
        let payload_bytes = batch.payload.len() as u64;
        if self.varies {
            self.link.grant(self.needed());
            self.link.charge(payload_bytes);
        } else if payload_bytes != self.batch_bytes {
            // The credit was granted for another size; no source in this code base does this.
            return Err(End::Failure(Failure::new(
                Kind::Internal,
                format!(
                    "a batch of {payload_bytes} bytes, but {} were announced",
                    self.batch_bytes
                ),
            )));
        }
        let images = batch.len() as u64;
        // Counted before sending, so that a client that has a batch finds it in the counters.
        self.stats.batches += 1;
        self.stats.images += images;
        self.stats.payload_bytes += payload_bytes;
        self.link.set_stats(self.stats);
        match &self.pool {
            Some(pool) if batch.payload.slot().is_some() => {
                let checksum = self.checksum.then(|| crc32c::crc32c(&batch.payload));
                let header = to_header(&batch, checksum);
                self.link
                    .send_shared(header, batch.payload, pool.take_gone())?;
            }
            _ => {
                if self.link.socket.local().is_none() {
                    let over = || self.link.stopped().is_some();
                    self.sender.pass(payload_bytes, over);
                }
                let header = to_header(&batch, None);
                self.link
                    .send_parts(header, &batch.payload, self.checksum)?;
            }
        }
        self.stats.sending += began.elapsed();
        self.link
            .at_step(step(self.per_epoch, batch.epoch, batch.step + 1));
        self.server.counters.count(|stats| {
            stats.batches += 1;
            stats.images += images;
            stats.payload_bytes += payload_bytes;
        });
        Ok(())
    }
}

/// Number of a batch, counted over all epochs.
fn step(per_epoch: u64, epoch: u64, step: u64) -> u64 {
    epoch.saturating_mul(per_epoch).saturating_add(step)
}

/// Sanitizes a client's text for a message: short, without control characters.
pub(crate) fn printable(text: &str) -> String {
    printable_start(text, 80).into_owned()
}

/// Refuses a stream of another dataset, or with batches of too many samples.
fn check_request(
    dataset: &str,
    fingerprint: &str,
    options: &LoaderOptions,
    open: &wire::Open,
) -> Result<(), Failure> {
    if !open.fingerprint.is_empty() && open.fingerprint != fingerprint {
        let message = format!(
            "dataset {dataset} has changed: expected fingerprint {}, found {fingerprint}",
            printable(&open.fingerprint)
        );
        return Err(Failure::new(Kind::Mismatch, message));
    }
    let batch_size = options.batch_size.unwrap_or(DEFAULT_BATCH_SIZE);
    if batch_size > MOST_SAMPLES {
        let message = format!(
            "batches of {batch_size} samples: a server sends at most {MOST_SAMPLES} at once"
        );
        return Err(Failure::new(Kind::Invalid, message));
    }
    Ok(())
}

/// Refuses a stream with batches that are too large, or without any.
fn check_stream(info: &StreamInfo, max_batch_bytes: u64) -> Result<(), Failure> {
    if info.batch_bytes > max_batch_bytes {
        let message = format!(
            "a batch of {} bytes is more than this server's limit of {max_batch_bytes}",
            info.batch_bytes
        );
        return Err(Failure::new(Kind::Invalid, message));
    }
    if info.batches_per_epoch == 0 {
        // Otherwise its empty epochs would end in an endless loop without sending anything.
        let message = format!("{} records are no full batch", info.records);
        return Err(Failure::new(Kind::Invalid, message));
    }
    Ok(())
}
