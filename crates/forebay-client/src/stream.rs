//! A stream of batches, as its user sees it.

use std::sync::Arc;
use std::time::{Duration, Instant};

use forebay_batch::digest::{Digests, EpochDigest};
use forebay_options::{LoaderOptions, StreamInfo};
use forebay_wire::{Batch, BufferPool, Layout, wire};

use crate::error::{Error, Result};
use crate::feed::Feed;
use crate::gather::gather;
use crate::options::Via;
use crate::queue::{Item, Queue, ServerUse, StreamStats};
use crate::sequence::Place;

/// Batches from a server: each one once, in order, whatever happens to the
/// connection meanwhile.
///
/// A thread receives ahead, up to the credit of the options, and a batch's bytes
/// are granted to the server again when the batch is *taken* here. So a
/// caller that keeps many batches uses memory of its own, not the server's
/// patience, and cannot lock itself out.
pub struct Stream {
    /// One, or one for each server that the batches come from at once.
    feeds: Vec<Feed>,
    /// What was taken of the next batch, where others are still waited for.
    taken: Vec<Option<Item>>,
    /// The stream of whole batches.
    info: StreamInfo,
    pool: BufferPool,
    /// Where the next batch begins, by what was handed out.
    epoch: u64,
    position: u64,
    global_size: u64,
    digests: Digests,
}

/// What [`Stream::poll_batch`] found.
#[derive(Debug)]
pub enum Polled {
    /// The next batch.
    Batch(Batch),
    /// The end of an epoch, or of the stream.
    EpochEnd,
    /// Nothing yet.
    Pending,
}

impl Stream {
    /// Of parts that are all at `place`.
    pub(crate) fn new(feeds: Vec<Feed>, info: StreamInfo, pool: BufferPool, place: Place) -> Self {
        let global_size = info.global_batch_size();
        let (epoch, position) = place;
        Stream {
            taken: feeds.iter().map(|_| None).collect(),
            feeds,
            info,
            pool,
            epoch,
            position,
            global_size,
            digests: Digests::begin(epoch, position),
        }
    }

    /// The first feed, of which there always is one.
    fn first(&self) -> &Feed {
        &self.feeds[0]
    }

    /// The one that is waited for.
    fn waits_for(&self) -> &Feed {
        let next = self.taken.iter().position(Option::is_none);
        self.feeds.get(next.unwrap_or(0)).unwrap_or(self.first())
    }

    /// The next batch; `None` at the end of an epoch, after which the next epoch
    /// begins, or nothing more if that was the last one asked for.
    ///
    /// # Errors
    ///
    /// [`Error::Waited`] after the options' `batch_timeout`, after which one may ask again;
    /// [`Error::Interrupted`]; everything else is final and comes after all batches that
    /// had arrived.
    pub fn next_batch(&mut self) -> Result<Option<Batch>> {
        let timeout = self.first().terms.options.batch_timeout;
        let began = Instant::now();
        match self.poll_batch(timeout)? {
            Polled::Batch(batch) => Ok(Some(batch)),
            Polled::EpochEnd => Ok(None),
            Polled::Pending => {
                let state = self.waits_for().queue.state();
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

    /// The next batch if it comes within `wait`, for callers with other things
    /// to look after, such as signals.
    ///
    /// # Errors
    ///
    /// As [`Stream::next_batch`], but for the deadline.
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

    /// What comes next, of all feeds; `Ok(None)` after the last epoch, `Err(None)` when `wait` is over.
    fn pop(&mut self, wait: Duration) -> Result<Option<Item>, Option<Error>> {
        if let [feed] = &self.feeds[..] {
            return feed.queue.pop(wait);
        }
        let began = Instant::now();
        let mut over = 0;
        for (feed, taken) in self.feeds.iter().zip(&mut self.taken) {
            if taken.is_none() {
                let left = wait.saturating_sub(began.elapsed());
                *taken = feed.queue.pop(left)?;
                over += usize::from(taken.is_none());
            }
        }
        if over == self.feeds.len() {
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
        let bytes: usize = batches.iter().map(|batch| batch.images.len()).sum();
        let gathered = match batches.len() == self.feeds.len() {
            true => gather(&batches, &self.pool),
            false => Ok(None),
        };
        match gathered {
            Ok(Some(batch)) => Ok(Some(Item::Batch(batch))),
            // Each part was held against what must come next, so this cannot be.
            Ok(None) => Err(Some(Error::Disorder {
                server: self.first().queue.state().server.clone(),
                what: "the parts of a batch",
                expected: format!("{} at position {}", self.feeds.len(), self.position),
                found: format!("{} batches and {} ends", batches.len(), ends.len()),
            })),
            Err(source) => Err(Some(Error::Memory {
                bytes: bytes as u64,
                source,
            })),
        }
    }

    /// Epoch and position after the batches that were handed out: with the
    /// fingerprint and the spec, all that is needed to go on from here.
    #[must_use]
    pub fn position(&self) -> (u64, u64) {
        (self.epoch, self.position)
    }

    /// What was handed out of the epoch of the last batch, for ranks and runs to compare. An epoch that began elsewhere,
    /// or was left by [`Stream::seek`], has a part.
    #[must_use]
    pub fn epoch_digest(&self) -> EpochDigest {
        self.digests.latest()
    }

    /// The stream as the server opened it, every default filled in.
    #[must_use]
    pub fn info(&self) -> &StreamInfo {
        &self.info
    }

    /// The options with every default filled in.
    #[must_use]
    pub fn options(&self) -> &LoaderOptions {
        &self.info.options
    }

    /// Fingerprint of the dataset.
    #[must_use]
    pub fn fingerprint(&self) -> &str {
        &self.first().terms.fingerprint
    }

    /// Batches of a whole epoch.
    #[must_use]
    pub fn batches_per_epoch(&self) -> u64 {
        self.info.batches_per_epoch
    }

    /// Order of the axes of the batches.
    #[must_use]
    pub fn layout(&self) -> Layout {
        self.first().terms.layout
    }

    /// The pool of the batches' memory.
    #[must_use]
    pub fn pool(&self) -> &BufferPool {
        &self.pool
    }

    /// The server that the stream comes from now; several, separated by commas, where it comes from several at once.
    #[must_use]
    pub fn server(&self) -> String {
        self.interrupter().server()
    }

    /// How batches come now; another connection may bring them another way.
    #[must_use]
    pub fn via(&self) -> Via {
        self.first().queue.state().via
    }

    /// What arrived so far, and what it took; of all servers that it comes from at once together.
    #[must_use]
    pub fn stats(&self) -> StreamStats {
        self.interrupter().stats()
    }

    /// The servers that batches came from, in the order of their first ones.
    #[must_use]
    pub fn servers(&self) -> Vec<ServerUse> {
        self.interrupter().servers()
    }

    /// Where the server's time went, asked now; `None` if it does not say within `wait`. Of several at once, the first.
    #[must_use]
    pub fn server_stats(&self, wait: Duration) -> Option<wire::Stats> {
        self.first().queue.ask_stats(wait)
    }

    /// A handle that interrupts this stream from another thread.
    #[must_use]
    pub fn interrupter(&self) -> Interrupter {
        Interrupter {
            queues: self
                .feeds
                .iter()
                .map(|feed| Arc::clone(&feed.queue))
                .collect(),
        }
    }

    /// Goes on from another place: batches from `(epoch, position)` on, over a new
    /// connection. What had arrived is thrown away, and handles from before belong to
    /// what was before.
    ///
    /// # Errors
    ///
    /// As [`Client::open`](crate::Client::open); the stream is over then.
    pub fn seek(&mut self, epoch: u64, position: u64) -> Result<()> {
        let until = self.first().terms.until;
        for feed in &mut self.feeds {
            feed.finish();
        }
        if let Some(until) = until.filter(|&until| epoch >= until) {
            return Err(Error::Option {
                name: "epoch",
                expected: format!("less than {until}, where the stream ends"),
                found: epoch.to_string(),
            });
        }
        for (feed, taken) in self.feeds.iter_mut().zip(&mut self.taken) {
            *taken = None;
            feed.seek((epoch, position))?;
        }
        (self.epoch, self.position) = (epoch, position);
        self.digests.seek(epoch, position);
        Ok(())
    }
}

impl Drop for Stream {
    fn drop(&mut self) {
        // All of them are told before any of them is waited for.
        for feed in &self.feeds {
            feed.queue.try_send(&wire::Close {}.into());
            feed.queue.interrupt();
        }
    }
}

/// Interrupts a [`Stream`] from another thread, or looks at its counters.
#[derive(Clone)]
pub struct Interrupter {
    queues: Vec<Arc<Queue>>,
}

impl Interrupter {
    /// Makes a waiting `next_batch`, and every later one, return
    /// [`Error::Interrupted`] at once, and ends the connection.
    pub fn interrupt(&self) {
        for queue in &self.queues {
            queue.interrupt();
        }
    }

    /// As [`Stream::stats`].
    #[must_use]
    pub fn stats(&self) -> StreamStats {
        let mut queues = self.queues.iter().map(|queue| queue.state().stats);
        let first = queues.next().unwrap_or_default();
        queues.fold(first, |sum, stats| StreamStats {
            batches: sum.batches.min(stats.batches),
            shared: sum.shared.min(stats.shared),
            payload_bytes: sum.payload_bytes + stats.payload_bytes,
            receiving: sum.receiving + stats.receiving,
            starved: sum.starved + stats.starved,
            reconnects: sum.reconnects + stats.reconnects,
            handovers: sum.handovers + stats.handovers,
            retries: sum.retries + stats.retries,
            longest_gap: sum.longest_gap.max(stats.longest_gap),
        })
    }

    /// As [`Stream::via`].
    #[must_use]
    pub fn via(&self) -> Via {
        self.queues
            .first()
            .map_or(Via::Tcp, |queue| queue.state().via)
    }

    /// As [`Stream::server`].
    #[must_use]
    pub fn server(&self) -> String {
        let servers: Vec<String> = self
            .queues
            .iter()
            .map(|queue| queue.state().server.clone())
            .collect();
        servers.join(",")
    }

    /// As [`Stream::servers`].
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

    /// As [`Stream::server_stats`], while another thread has the stream.
    #[must_use]
    pub fn server_stats(&self, wait: Duration) -> Option<wire::Stats> {
        self.queues.first()?.ask_stats(wait)
    }
}
