//! A stream of batches: the public interface.

use std::sync::Arc;
use std::time::{Duration, Instant};

use forebay_batch::digest::{Digests, EpochDigest};
use forebay_options::{LoaderOptions, StreamInfo};
use forebay_wire::{Batch, BufferPool, Layout};

use crate::RemoteStats;
use crate::error::{Error, Result};
use crate::options::Via;
use crate::queue::{Item, Queue, ServerUse, StreamStats};
use crate::sequence::Place;
use crate::server_stream::ServerStream;

/// Batches from a server: each one once, in order, across reconnects and migrations.
///
/// A thread receives batches in advance, up to `credit_bytes`. The credit of a batch returns to the server when the caller
/// takes the batch from the stream, so a caller that keeps many batches uses its own memory and cannot stall the stream.
pub struct Stream {
    stream: ServerStream,
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
    /// Creates the public stream of a `ServerStream` at its start position.
    pub(crate) fn new(stream: ServerStream, (epoch, position): Place) -> Self {
        Stream {
            global_size: stream.config.info.global_batch_size(),
            stream,
            epoch,
            position,
            digests: Digests::begin(epoch, position),
        }
    }

    /// Returns the next batch; `None` at the end of an epoch, after which the next epoch begins, or
    /// the stream ends after the last epoch.
    ///
    /// # Errors
    ///
    /// [`Error::Waited`] after `batch_timeout`, or [`Error::Away`] if the server is lost by then, after
    /// which the call can be repeated; [`Error::Interrupted`]. All other errors are final and come after all received batches.
    pub fn next_batch(&mut self) -> Result<Option<Batch>> {
        let timeout = self.stream.config.options.batch_timeout;
        let began = Instant::now();
        match self.poll_batch(timeout)? {
            Polled::Batch(batch) => Ok(Some(batch)),
            Polled::EpochEnd => Ok(None),
            Polled::Pending => {
                let (epoch, position) = self.position();
                let what = format!("the batch at epoch {epoch}, position {position}");
                Err(self.stream.queue.waited(what, began))
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
        let item = match self.stream.queue.pop(wait) {
            Ok(item) => item,
            Err(None) => return Ok(Polled::Pending),
            Err(Some(e)) => return Err(e),
        };
        match item {
            Some(Item::Batch(batch)) => {
                self.position = self
                    .stream
                    .config
                    .info
                    .samples
                    .min(batch.position + self.global_size);
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

    /// Returns epoch and position after the returned batches. Together with the fingerprint and the options, this suffices to
    /// resume.
    #[must_use]
    pub fn position(&self) -> (u64, u64) {
        (self.epoch, self.position)
    }

    /// Returns the digest of the epoch of the last batch, for comparison across ranks and runs. It is partial if this stream
    /// did not deliver the epoch from its start, or left it by [`Stream::seek`].
    #[must_use]
    pub fn epoch_digest(&self) -> EpochDigest {
        self.digests.latest()
    }

    /// Returns the stream's parameters, with every default filled in.
    #[must_use]
    pub fn info(&self) -> &StreamInfo {
        &self.stream.config.info
    }

    /// Returns the options, with every default filled in.
    #[must_use]
    pub fn options(&self) -> &LoaderOptions {
        &self.stream.config.info.options
    }

    /// Returns the fingerprint of the dataset.
    #[must_use]
    pub fn fingerprint(&self) -> &str {
        &self.stream.config.fingerprint
    }

    /// Returns the number of batches in a whole epoch.
    #[must_use]
    pub fn batches_per_epoch(&self) -> u64 {
        self.stream.config.info.batches_per_epoch
    }

    /// Returns the order of the axes of the batches.
    #[must_use]
    pub fn layout(&self) -> Layout {
        self.stream.config.layout
    }

    /// Returns the pool that allocates the batches.
    #[must_use]
    pub fn pool(&self) -> &BufferPool {
        &self.stream.config.pool
    }

    /// Returns the current server.
    #[must_use]
    pub fn server(&self) -> String {
        self.interrupter().server()
    }

    /// Returns the current transport; a reconnect may change it.
    #[must_use]
    pub fn via(&self) -> Via {
        self.stream.queue.via()
    }

    /// Returns the counters.
    #[must_use]
    pub fn stats(&self) -> StreamStats {
        self.interrupter().stats()
    }

    /// Returns the servers that sent batches, in the order of their first batch.
    #[must_use]
    pub fn servers(&self) -> Vec<ServerUse> {
        self.interrupter().servers()
    }

    /// Requests the server's statistics; `None` if it does not answer within `wait`.
    #[must_use]
    pub fn server_stats(&self, wait: Duration) -> Option<RemoteStats> {
        self.stream.queue.ask_stats(wait)
    }

    /// Returns a handle that interrupts this stream from another thread.
    #[must_use]
    pub fn interrupter(&self) -> Interrupter {
        Interrupter {
            queue: Arc::clone(&self.stream.queue),
        }
    }

    /// Continues from `(epoch, position)` over a new connection. Received batches are discarded,
    /// and existing handles stay with the old connection.
    ///
    /// # Errors
    ///
    /// As [`Client::open`](crate::Client::open); the stream has then ended.
    pub fn seek(&mut self, epoch: u64, position: u64) -> Result<()> {
        let until = self.stream.config.until;
        self.stream.finish();
        if let Some(until) = until.filter(|&until| epoch >= until) {
            return Err(Error::Option {
                name: "epoch",
                expected: format!("less than {until}, where the stream ends"),
                found: epoch.to_string(),
            });
        }
        self.stream.seek((epoch, position))?;
        (self.epoch, self.position) = (epoch, position);
        self.digests.seek(epoch, position);
        Ok(())
    }
}

/// Interrupts a [`Stream`] from another thread, or reads its counters.
#[derive(Clone)]
pub struct Interrupter {
    queue: Arc<Queue>,
}

impl Interrupter {
    /// Makes a waiting `next_batch` and every later one return [`Error::Interrupted`] at once, and
    /// closes the connection.
    pub fn interrupt(&self) {
        self.queue.interrupt();
    }

    /// Returns the counters, as [`Stream::stats`].
    #[must_use]
    pub fn stats(&self) -> StreamStats {
        self.queue.stats()
    }

    /// Reports how long the trainer has waited for batches of the stream so far, if it does not call `next_batch` itself:
    /// the server shows it in place of the waits in `next_batch`.
    pub fn report_waits(&self, total: Duration) {
        self.queue.report_waits(total);
    }

    /// Returns an error if the connection is lost and no server has continued the stream yet.
    #[must_use]
    pub fn away(&self) -> Option<Error> {
        self.queue.away()
    }

    /// Returns the transport, as [`Stream::via`].
    #[must_use]
    pub fn via(&self) -> Via {
        self.queue.via()
    }

    /// Returns the server, as [`Stream::server`].
    #[must_use]
    pub fn server(&self) -> String {
        self.queue.server()
    }

    /// Returns the servers, as [`Stream::servers`].
    #[must_use]
    pub fn servers(&self) -> Vec<ServerUse> {
        self.queue.servers()
    }

    /// Requests the server's statistics, as [`Stream::server_stats`], while another thread uses the
    /// stream.
    #[must_use]
    pub fn server_stats(&self, wait: Duration) -> Option<RemoteStats> {
        self.queue.ask_stats(wait)
    }
}
