//! A stream of batches: the public interface.

use std::sync::Arc;
use std::time::{Duration, Instant};

use forebay_batch::digest::{Digests, EpochDigest};
use forebay_options::{LoaderOptions, StreamInfo};
use forebay_wire::{Batch, BufferPool, Layout, wire};

use crate::error::{Error, Result};
use crate::gather::gather;
use crate::options::Via;
use crate::queue::{Item, Queue, ServerUse, StreamStats};
use crate::sequence::Place;
use crate::server_stream::ServerStream;

/// Batches from a server: each one once, in order, across reconnects and migrations.
///
/// A thread receives ahead, up to the credit of the options. The credit of a batch returns to the
/// server when the batch is *taken* here. So a caller that keeps many batches uses its own memory
/// and cannot stall the stream.
pub struct Stream {
    /// One stream, or one per server if batches are striped.
    streams: Vec<ServerStream>,
    /// Slices of the next batch that have been taken, while others are outstanding.
    taken: Vec<Option<Item>>,
    /// Parameters of the stream of whole batches.
    info: StreamInfo,
    pool: BufferPool,
    /// Position of the next batch to return.
    epoch: u64,
    position: u64,
    global_size: u64,
    digests: Digests,
}

/// Result of [`Stream::poll_batch`].
#[derive(Debug)]
// A box for each batch would be one more allocation, to save moving 200 bytes.
#[expect(clippy::large_enum_variant)]
pub enum Polled {
    /// The next batch.
    Batch(Batch),
    /// The end of an epoch or of the stream.
    EpochEnd,
    /// No batch yet.
    Pending,
}

impl Stream {
    /// Creates a stream from streams that are all at `place`.
    pub(crate) fn new(
        streams: Vec<ServerStream>,
        info: StreamInfo,
        pool: BufferPool,
        place: Place,
    ) -> Self {
        let global_size = info.global_batch_size();
        let (epoch, position) = place;
        Stream {
            taken: streams.iter().map(|_| None).collect(),
            streams,
            info,
            pool,
            epoch,
            position,
            global_size,
            digests: Digests::begin(epoch, position),
        }
    }

    /// The first stream; there is always one.
    fn first(&self) -> &ServerStream {
        &self.streams[0]
    }

    /// The first stream whose slice is outstanding.
    fn waits_for(&self) -> &ServerStream {
        let next = self.taken.iter().position(Option::is_none);
        self.streams.get(next.unwrap_or(0)).unwrap_or(self.first())
    }

    /// Returns the next batch; `None` at the end of an epoch, after which the next epoch begins, or
    /// the stream ends after the last epoch.
    ///
    /// # Errors
    ///
    /// [`Error::Waited`] after `batch_timeout`, or [`Error::Away`] if the server is lost by then, after
    /// which the call can be repeated; [`Error::Interrupted`]. All other errors are final and come after all received batches.
    pub fn next_batch(&mut self) -> Result<Option<Batch>> {
        let timeout = self.first().config.options.batch_timeout;
        let began = Instant::now();
        match self.poll_batch(timeout)? {
            Polled::Batch(batch) => Ok(Some(batch)),
            Polled::EpochEnd => Ok(None),
            Polled::Pending => {
                let state = self.waits_for().queue.state();
                if let Some(away) = state.away() {
                    return Err(away);
                }
                Err(Error::Waited {
                    server: state.server.clone(),
                    what: format!(
                        "the batch at epoch {}, position {}",
                        self.epoch, self.position
                    ),
                    waited: began.elapsed(),
                    last_sign: state.last_sign.map(|at| at.elapsed()),
                })
            }
        }
    }

    /// Returns the next batch if it arrives within `wait`, for callers with other tasks, such as
    /// handling signals.
    ///
    /// # Errors
    ///
    /// As [`Stream::next_batch`], except for the timeout.
    pub fn poll_batch(&mut self, wait: Duration) -> Result<Polled> {
        let item = match self.pop(wait) {
            Ok(item) => item,
            Err(None) => return Ok(Polled::Pending),
            Err(Some(e)) => return Err(e),
        };
        match item {
            Some(Item::Batch(batch)) => {
                self.position = self.info.samples.min(batch.position + self.global_size);
                self.digests.add(&batch, self.position);
                Ok(Polled::Batch(batch))
            }
            Some(Item::EpochEnd(epoch)) => {
                self.epoch = epoch + 1;
                self.position = 0;
                self.digests.end();
                Ok(Polled::EpochEnd)
            }
            None => Ok(Polled::EpochEnd),
        }
    }

    /// Takes the next item of all streams. `Ok(None)` after the last epoch, `Err(None)` after `wait`.
    fn pop(&mut self, wait: Duration) -> Result<Option<Item>, Option<Error>> {
        if let [stream] = &self.streams[..] {
            return stream.queue.pop(wait);
        }
        let began = Instant::now();
        let mut over = 0;
        for (stream, taken) in self.streams.iter().zip(&mut self.taken) {
            if taken.is_none() {
                let left = wait.saturating_sub(began.elapsed());
                *taken = stream.queue.pop(left)?;
                over += usize::from(taken.is_none());
            }
        }
        if over == self.streams.len() {
            return Ok(None);
        }
        let (mut batches, mut ends) = (Vec::new(), Vec::new());
        for item in self.taken.iter_mut().filter_map(Option::take) {
            match item {
                Item::Batch(batch) => batches.push(batch),
                Item::EpochEnd(epoch) => ends.push(epoch),
            }
        }
        if let (0, Some(&epoch)) = (batches.len(), ends.first()) {
            return Ok(Some(Item::EpochEnd(epoch)));
        }
        let bytes: usize = batches.iter().map(|batch| batch.payload.len()).sum();
        let gathered = match batches.len() == self.streams.len() {
            true => gather(&batches, &self.pool),
            false => Ok(None),
        };
        match gathered {
            Ok(Some(batch)) => Ok(Some(Item::Batch(batch))),
            // Unreachable: each slice was validated against the sequence.
            Ok(None) => Err(Some(Error::Sequence {
                server: self.first().queue.state().server.clone(),
                what: "the parts of a batch",
                expected: format!("{} at position {}", self.streams.len(), self.position),
                found: format!("{} batches and {} ends", batches.len(), ends.len()),
            })),
            Err(source) => Err(Some(Error::Memory {
                bytes: bytes as u64,
                source,
            })),
        }
    }

    /// Returns epoch and position after the returned batches. Together with the fingerprint and the
    /// spec, this suffices to resume.
    #[must_use]
    pub fn position(&self) -> (u64, u64) {
        (self.epoch, self.position)
    }

    /// Returns the digest of the epoch of the last batch, for comparison across ranks and runs. It
    /// is partial if the epoch began elsewhere, or was left by [`Stream::seek`].
    #[must_use]
    pub fn epoch_digest(&self) -> EpochDigest {
        self.digests.latest()
    }

    /// Returns the stream's parameters, with every default filled in.
    #[must_use]
    pub fn info(&self) -> &StreamInfo {
        &self.info
    }

    /// The options with every default filled in.
    #[must_use]
    pub fn options(&self) -> &LoaderOptions {
        &self.info.options
    }

    /// Returns the fingerprint of the dataset.
    #[must_use]
    pub fn fingerprint(&self) -> &str {
        &self.first().config.fingerprint
    }

    /// Returns the number of batches in a whole epoch.
    #[must_use]
    pub fn batches_per_epoch(&self) -> u64 {
        self.info.batches_per_epoch
    }

    /// Returns the order of the axes of the batches.
    #[must_use]
    pub fn layout(&self) -> Layout {
        self.first().config.layout
    }

    /// Returns the pool that allocates the batches.
    #[must_use]
    pub fn pool(&self) -> &BufferPool {
        &self.pool
    }

    /// Returns the current server; several, separated by commas, if batches are striped.
    #[must_use]
    pub fn server(&self) -> String {
        self.interrupter().server()
    }

    /// Returns the current transport; a reconnect may change it.
    #[must_use]
    pub fn via(&self) -> Via {
        self.first().queue.state().via
    }

    /// Returns the counters, summed over all servers of a striped stream.
    #[must_use]
    pub fn stats(&self) -> StreamStats {
        self.interrupter().stats()
    }

    /// Returns the servers that sent batches, in the order of their first batch.
    #[must_use]
    pub fn servers(&self) -> Vec<ServerUse> {
        self.interrupter().servers()
    }

    /// Requests the server's statistics; `None` if it does not answer within `wait`. For a striped
    /// stream, those of the first server.
    #[must_use]
    pub fn server_stats(&self, wait: Duration) -> Option<wire::Stats> {
        self.first().queue.ask_stats(wait)
    }

    /// Returns a handle that interrupts this stream from another thread.
    #[must_use]
    pub fn interrupter(&self) -> Interrupter {
        Interrupter {
            queues: self
                .streams
                .iter()
                .map(|stream| Arc::clone(&stream.queue))
                .collect(),
        }
    }

    /// Continues from `(epoch, position)` over a new connection. Received batches are discarded,
    /// and existing handles stay with the old connection.
    ///
    /// # Errors
    ///
    /// As [`Client::open`](crate::Client::open); the stream has then ended.
    pub fn seek(&mut self, epoch: u64, position: u64) -> Result<()> {
        let until = self.first().config.until;
        for stream in &mut self.streams {
            stream.finish();
        }
        if let Some(until) = until.filter(|&until| epoch >= until) {
            return Err(Error::Option {
                name: "epoch",
                expected: format!("less than {until}, where the stream ends"),
                found: epoch.to_string(),
            });
        }
        for (stream, taken) in self.streams.iter_mut().zip(&mut self.taken) {
            *taken = None;
            stream.seek((epoch, position))?;
        }
        (self.epoch, self.position) = (epoch, position);
        self.digests.seek(epoch, position);
        Ok(())
    }
}

impl Drop for Stream {
    fn drop(&mut self) {
        // Interrupt all of them before joining any.
        for stream in &self.streams {
            stream.queue.try_send(&wire::Close {}.into());
            stream.queue.interrupt();
        }
    }
}

/// Interrupts a [`Stream`] from another thread, or reads its counters.
#[derive(Clone)]
pub struct Interrupter {
    queues: Vec<Arc<Queue>>,
}

impl Interrupter {
    /// Makes a waiting `next_batch` and every later one return [`Error::Interrupted`] at once, and
    /// closes the connection.
    pub fn interrupt(&self) {
        for queue in &self.queues {
            queue.interrupt();
        }
    }

    /// Returns the counters, as [`Stream::stats`].
    #[must_use]
    pub fn stats(&self) -> StreamStats {
        let mut queues = self.queues.iter().map(|queue| queue.state().stats);
        let first = queues.next().unwrap_or_default();
        queues.fold(first, |sum, stats| StreamStats {
            batches: sum.batches.min(stats.batches),
            shared: sum.shared.min(stats.shared),
            payload_bytes: sum.payload_bytes + stats.payload_bytes,
            receiving: sum.receiving + stats.receiving,
            receiving_cpu: sum.receiving_cpu.max(stats.receiving_cpu),
            starved: sum.starved + stats.starved,
            reconnects: sum.reconnects + stats.reconnects,
            handovers: sum.handovers + stats.handovers,
            retries: sum.retries + stats.retries,
            longest_gap: sum.longest_gap.max(stats.longest_gap),
        })
    }

    /// Returns the error to report while a server is lost that no other replaces yet.
    #[must_use]
    pub fn away(&self) -> Option<Error> {
        self.queues.iter().find_map(|queue| queue.state().away())
    }

    /// Returns the transport, as [`Stream::via`].
    #[must_use]
    pub fn via(&self) -> Via {
        self.queues
            .first()
            .map_or(Via::Tcp, |queue| queue.state().via)
    }

    /// Returns the server, as [`Stream::server`].
    #[must_use]
    pub fn server(&self) -> String {
        let servers: Vec<String> = self
            .queues
            .iter()
            .map(|queue| queue.state().server.clone())
            .collect();
        servers.join(",")
    }

    /// Returns the servers, as [`Stream::servers`].
    #[must_use]
    pub fn servers(&self) -> Vec<ServerUse> {
        let mut all: Vec<ServerUse> = Vec::new();
        for queue in &self.queues {
            for used in &queue.state().uses {
                match all.iter_mut().find(|other| other.server == used.server) {
                    Some(other) => {
                        other.batches += used.batches;
                        other.payload_bytes += used.payload_bytes;
                    }
                    None => all.push(used.clone()),
                }
            }
        }
        all
    }

    /// Requests the server's statistics, as [`Stream::server_stats`], while another thread uses the
    /// stream.
    #[must_use]
    pub fn server_stats(&self, wait: Duration) -> Option<wire::Stats> {
        self.queues.first()?.ask_stats(wait)
    }
}
