//! A stream of batches, as its user sees it.

use std::sync::Arc;
use std::thread;
use std::time::{Duration, Instant};

use forebay_wire::{Batch, BufferPool, Layout, wire};

use crate::connection::{Connection, dial};
use crate::error::{Error, Result};
use crate::options::{OpenOptions, Via};
use crate::queue::{Item, Queue, StreamStats};
use crate::receiver::{Receiver, Terms, connect};
use crate::sequence::{Sequence, samples};

/// Batches from a server: each one once, in order, whatever happens to the
/// connection meanwhile.
///
/// A thread receives ahead, up to the credit of the options, and a batch's bytes
/// are granted to the server again when the batch is *taken* here. So a
/// caller that keeps many batches uses memory of its own, not the server's
/// patience, and cannot lock itself out.
pub struct Stream {
    terms: Arc<Terms>,
    queue: Arc<Queue>,
    thread: Option<thread::JoinHandle<()>>,
    /// Where the next batch begins, by what was handed out.
    epoch: u64,
    position: u64,
    global_size: u64,
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
    pub(crate) fn start(
        terms: Arc<Terms>,
        queue: Arc<Queue>,
        sequence: Sequence,
        connection: Connection,
    ) -> Result<Stream> {
        let (epoch, position) = (sequence.epoch, sequence.position);
        let global_size = sequence.global_size();
        let slots = connect(&queue, &connection, &terms)?;
        let receiver = Receiver::new(Arc::clone(&terms), Arc::clone(&queue), sequence, slots);
        let thread = thread::Builder::new()
            .name("forebay-receive".to_owned())
            .spawn(move || receiver.run(connection))
            .map_err(Error::Thread)?;
        Ok(Stream {
            terms,
            queue,
            thread: Some(thread),
            epoch,
            position,
            global_size,
        })
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
        let timeout = self.terms.options.batch_timeout;
        let began = Instant::now();
        match self.poll_batch(timeout)? {
            Polled::Batch(batch) => Ok(Some(batch)),
            Polled::EpochEnd => Ok(None),
            Polled::Pending => {
                let state = self.queue.state();
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
        match self.queue.pop(wait) {
            Ok(Some(Item::Batch(batch))) => {
                self.position = samples(&self.terms.opened).min(batch.position + self.global_size);
                Ok(Polled::Batch(batch))
            }
            Ok(Some(Item::EpochEnd(epoch))) => {
                self.epoch = epoch + 1;
                self.position = 0;
                Ok(Polled::EpochEnd)
            }
            Ok(None) => Ok(Polled::EpochEnd),
            Err(None) => Ok(Polled::Pending),
            Err(Some(e)) => Err(e),
        }
    }

    /// Epoch and position after the batches that were handed out: with the
    /// fingerprint and the spec, all that is needed to go on from here.
    #[must_use]
    pub fn position(&self) -> (u64, u64) {
        (self.epoch, self.position)
    }

    /// The stream as the server opened it, every default filled in.
    #[must_use]
    pub fn opened(&self) -> &wire::Opened {
        &self.terms.opened
    }

    /// The spec with every default filled in.
    #[must_use]
    pub fn spec(&self) -> wire::StreamSpec {
        self.terms.opened.spec.clone().unwrap_or_default()
    }

    /// Fingerprint of the dataset.
    #[must_use]
    pub fn fingerprint(&self) -> &str {
        &self.terms.fingerprint
    }

    /// Batches of a whole epoch.
    #[must_use]
    pub fn batches_per_epoch(&self) -> u64 {
        self.terms.opened.batches_per_epoch
    }

    /// Order of the axes of the batches.
    #[must_use]
    pub fn layout(&self) -> Layout {
        self.terms.layout
    }

    /// The pool of the batches' memory.
    #[must_use]
    pub fn pool(&self) -> &BufferPool {
        &self.terms.pool
    }

    /// The server that the stream comes from now.
    #[must_use]
    pub fn server(&self) -> String {
        self.queue.state().server.clone()
    }

    /// How batches come now; another connection may bring them another way.
    #[must_use]
    pub fn via(&self) -> Via {
        self.queue.state().via
    }

    /// What arrived so far, and what it took.
    #[must_use]
    pub fn stats(&self) -> StreamStats {
        self.queue.state().stats
    }

    /// Where the server's time went, asked now; `None` if it does not say within `wait`.
    #[must_use]
    pub fn server_stats(&self, wait: Duration) -> Option<wire::Stats> {
        self.queue.ask_stats(wait)
    }

    /// A handle that interrupts this stream from another thread.
    #[must_use]
    pub fn interrupter(&self) -> Interrupter {
        Interrupter {
            queue: Arc::clone(&self.queue),
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
        self.finish();
        let old = &*self.terms;
        let open = OpenOptions {
            spec: self.spec(),
            epoch,
            position,
            epochs: match old.until {
                Some(until) if epoch >= until => {
                    return Err(Error::Option {
                        name: "epoch",
                        expected: format!("less than {until}, where the stream ends"),
                        found: epoch.to_string(),
                    });
                }
                Some(until) => until - epoch,
                None => 0,
            },
            fingerprint: Some(old.fingerprint.clone()),
            // The spec is complete.
            given: Vec::new(),
        };
        let mut connection = dial(&old.url, &old.options, 0, &|_| Ok(()))?;
        let checksum = Terms::checksum(&old.options, &connection);
        let opened = connection.open(&open, checksum, &old.url, &old.options)?;
        let disorder = |what, expected, found| Error::Disorder {
            server: connection.server.clone(),
            what,
            expected,
            found,
        };
        if opened != old.opened {
            let (expected, found) = (format!("{:?}", old.opened), format!("{opened:?}"));
            return Err(disorder("the opened stream", expected, found));
        }
        let sequence = Sequence::new(&opened, epoch, position)
            .map_err(|d| disorder(d.what, d.expected, d.found))?;
        let queue = Queue::new(connection.server.clone());
        queue.adopt(&connection.socket)?;
        *self = Stream::start(
            Arc::clone(&self.terms),
            Arc::new(queue),
            sequence,
            connection,
        )?;
        Ok(())
    }

    fn finish(&mut self) {
        self.queue.try_send(&wire::Close {}.into());
        self.queue.interrupt();
        if let Some(thread) = self.thread.take()
            && !self.queue.state().dialling
        {
            // It is on its way out. One that is dialling ends at its timeout, alone.
            let _ = thread.join();
        }
    }
}

impl Drop for Stream {
    fn drop(&mut self) {
        self.finish();
    }
}

/// Interrupts a [`Stream`] from another thread, or looks at its counters.
#[derive(Clone)]
pub struct Interrupter {
    queue: Arc<Queue>,
}

impl Interrupter {
    /// Makes a waiting `next_batch`, and every later one, return
    /// [`Error::Interrupted`] at once, and ends the connection.
    pub fn interrupt(&self) {
        self.queue.interrupt();
    }

    /// As [`Stream::stats`].
    #[must_use]
    pub fn stats(&self) -> StreamStats {
        self.queue.state().stats
    }

    /// As [`Stream::via`].
    #[must_use]
    pub fn via(&self) -> Via {
        self.queue.state().via
    }

    /// As [`Stream::server_stats`], while another thread has the stream.
    #[must_use]
    pub fn server_stats(&self, wait: Duration) -> Option<wire::Stats> {
        self.queue.ask_stats(wait)
    }
}
