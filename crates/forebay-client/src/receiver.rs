//! The receiving thread of a stream: answers pings while the trainer computes, fills pooled
//! buffers, validates messages, migrates to other servers, and reconnects.

use std::sync::Arc;
use std::time::{Duration, Instant};

use forebay_wire::batch::from_header;
use forebay_wire::{FrameWriter, Message, wire};
use rustix::time::{ClockId, clock_gettime};

use crate::RemoteKind;
use crate::back_off::{Failures, jittered};
use crate::connection::{Connection, broken, remote};
use crate::error::{Error, Result};
use crate::migration::{self, Why};
use crate::payload::{self, Unread};
use crate::queue::{Queue, Received};
use crate::remote::escaped;
use crate::sequence::{Sequence, SequenceError};
use crate::slots::Slots;
use crate::stream_config::StreamConfig;

/// Interval between searches for another server when the current one stops.
const LOOK_AGAIN: Duration = Duration::from_millis(250);
/// Maximum interval between checks whether the assigned server is available again, as a multiple of `look_every`.
const MOST_LOOKS: u32 = 8;
/// How long a batch may be delayed by a migration. After that the current server continues.
pub(crate) const HOLD_UP: Duration = Duration::from_secs(5);

pub(crate) struct Receiver {
    pub(crate) config: Arc<StreamConfig>,
    pub(crate) queue: Arc<Queue>,
    pub(crate) sequence: Sequence,
    pub(crate) failures: Failures,
    /// When the connection was lost, until the next batch arrives.
    pub(crate) lost_at: Option<Instant>,
    /// Shared memory of the current connection.
    slots: Arc<Slots>,
    /// Whether the current server announced that it stops.
    leaving: bool,
    /// When to search for another server; `None` if there is no reason to.
    next_look: Option<Instant>,
    /// Searches since the connection was made.
    looks: u32,
    /// CPU time of this thread up to the last batch.
    cpu: Duration,
}

impl Receiver {
    pub(crate) fn new(
        config: Arc<StreamConfig>,
        queue: Arc<Queue>,
        sequence: Sequence,
        slots: Arc<Slots>,
    ) -> Self {
        Receiver {
            slots,
            config,
            queue,
            sequence,
            failures: Failures::NONE,
            lost_at: None,
            leaving: false,
            next_look: None,
            looks: 0,
            cpu: Duration::ZERO,
        }
    }

    /// Receives until the stream ends.
    pub(crate) fn run(mut self, connection: Connection) {
        let mut connection = connection;
        self.schedule(&connection);
        loop {
            let before = self.sequence.place();
            let received = self.receive(&mut connection);
            if received.is_ok() {
                self.queue.send(&wire::Close {}.into());
            }
            self.queue.disconnected();
            if self.sequence.place() != before {
                self.failures = Failures::NONE;
            }
            let mut lost = std::mem::take(&mut connection.server);
            let next = match received {
                Ok(None) => return self.queue.close(Ok(())),
                Ok(Some(next)) => {
                    let server = next.server.clone();
                    let taken = self.take_over(next);
                    if taken.is_ok() {
                        self.queue.count(|stats| stats.handovers += 1);
                    } else {
                        lost = server;
                    }
                    taken
                }
                Err(e) => Err(e),
            };
            let next = next.or_else(|e| self.reconnect(e, &lost));
            match next {
                Ok(next) => connection = next,
                Err(e) => return self.queue.close(Err(e)),
            }
        }
    }

    /// Switches to a connection whose stream is open at the current position.
    pub(crate) fn take_over(&mut self, connection: Connection) -> Result<Connection> {
        self.queue.adopt(&connection.socket)?;
        self.sequence.reconnected();
        self.slots = connect(&self.queue, &connection, &self.config)?;
        self.schedule(&connection);
        Ok(connection)
    }

    /// Schedules the first search for another server on a new connection, if there is a reason.
    fn schedule(&mut self, connection: &Connection) {
        (self.leaving, self.looks, self.next_look) = (false, 0, None);
        let (resolver, every) = (&self.config.resolver, self.config.options.look_every);
        let stays = || {
            let Ok(servers) = resolver.last() else {
                return true;
            };
            let home = self.config.home(&servers);
            home.is_none_or(|home| home.to_string() == connection.server)
        };
        if !every.is_zero() && (resolver.may_change() || !stays()) {
            self.next_look = Some(Instant::now() + jittered(every));
        }
    }

    /// Does the work due between two messages: starts searches, and returns an offered connection when it is time to switch.
    fn look_around(&mut self, server: &str) -> Result<Option<Connection>> {
        if let Some(next) = self.queue.take_offer(self.sequence.place(), HOLD_UP) {
            return Ok(Some(next));
        }
        if self.queue.is_nowhere() {
            self.queue.send(&wire::Close {}.into());
            return Err(Error::Remote {
                server: server.to_owned(),
                kind: RemoteKind::Shutdown,
                message: "the server is stopping, and there is no other".to_owned(),
            });
        }
        if self.next_look.is_some_and(|at| at <= Instant::now()) {
            let why = if self.leaving {
                Why::Leaving
            } else {
                Why::Home
            };
            migration::start(why, &self.config, &self.queue, &self.sequence);
            self.looks = (self.looks + 1).min(MOST_LOOKS);
            let every = self.config.options.look_every;
            let wait = match why {
                Why::Leaving => LOOK_AGAIN,
                // With a fixed list, the only reason is that the home server is down: retry at
                // growing intervals.
                Why::Home if self.config.resolver.may_change() => every,
                Why::Home => every * self.looks,
            };
            self.next_look = Some(Instant::now() + jittered(wait));
        }
        Ok(None)
    }

    /// Reads a connection until the stream ends, or until another connection takes over, which is
    /// returned.
    fn receive(&mut self, connection: &mut Connection) -> Result<Option<Connection>> {
        let server = connection.server.clone();
        loop {
            if self
                .config
                .until
                .is_some_and(|until| self.sequence.epoch() >= until)
            {
                return Ok(None);
            }
            if let Some(next) = self.look_around(&server)? {
                return Ok(Some(next));
            }
            let (message, payload_len) = connection
                .reader
                .read()
                .map_err(|e| broken(&server, &self.sequence.next(), connection.silence, e))?;
            self.queue.heard();
            match message {
                Message::Batch(header) => self.batch(connection, header, payload_len)?,
                Message::EpochEnd(end) => {
                    self.sequence
                        .epoch_end(&end)
                        .map_err(|d| out_of_order(&server, d))?;
                    self.queue.push_end(end.epoch, self.sequence.place());
                }
                Message::Ping(ping) if !ping.answer => {
                    if ping.leaving_ms > 0 && !self.leaving {
                        self.leaving = true;
                        self.next_look = Some(Instant::now());
                    }
                    let pong = wire::Ping {
                        answer: true,
                        ..ping
                    };
                    self.queue.send(&pong.into());
                }
                Message::Ping(_) => {}
                Message::Stats(stats) => self.queue.answer_stats(escaped(stats)),
                Message::Error(error) => return Err(remote(&server, error)),
                other => {
                    let found = other.kind();
                    return Err(Error::Protocol {
                        server,
                        source: forebay_wire::Error::Unexpected {
                            expected: "batches",
                            found,
                        },
                    });
                }
            }
        }
    }

    /// Reads the payload of a batch, validates it and passes it to the trainer.
    fn batch(
        &mut self,
        connection: &mut Connection,
        mut header: wire::Batch,
        payload_len: u64,
    ) -> Result<()> {
        let config = Arc::clone(&self.config);
        let shared = header.shared.take();
        let more = connection.more.len();
        let payload_len = payload::len_of(&header, shared.as_ref(), payload_len, more)
            .map_err(|d| out_of_order(&connection.server, d))?;
        let limit = config.options.max_batch_bytes;
        if payload_len > limit {
            return Err(Error::Protocol {
                server: connection.server.clone(),
                source: forebay_wire::Error::TooLarge {
                    what: "a payload",
                    limit,
                    found: payload_len,
                },
            });
        }
        let next = self.sequence.next();
        self.sequence
            .check(&header, payload_len)
            .map_err(|d| out_of_order(&connection.server, d))?;
        let digest = header.digest;
        let after = self.sequence.ahead(self.sequence.place(), 1);
        if !self
            .queue
            .expect(payload_len, self.sequence.varies(), after)
        {
            let found = SequenceError {
                what: "credit",
                expected: "no more than was granted".to_owned(),
                found: format!("a batch of {payload_len} bytes beyond it"),
            };
            return Err(out_of_order(&connection.server, found));
        }
        let began = Instant::now();
        let images = match &shared {
            Some(shared) => payload::find(&self.slots, shared, connection, &header),
            None => payload::read(connection, &header, payload_len, &config.pool),
        };
        let batch = images
            .and_then(|images| from_header(header, config.layout, images).map_err(Unread::Wire))
            .map_err(|e| match e {
                Unread::Wire(e) => broken(&connection.server, &next, connection.silence, e),
                Unread::Memory(source) => Error::Memory {
                    bytes: payload_len,
                    source,
                },
                Unread::Shared(d) => out_of_order(&connection.server, d),
            })?;
        self.sequence.advance(digest);
        let lost_at = self.lost_at.take();
        let cpu = thread_cpu_time();
        let used = cpu.saturating_sub(std::mem::replace(&mut self.cpu, cpu));
        let received = Received {
            bytes: payload_len,
            shared: shared.is_some(),
            receiving: began.elapsed(),
            cpu: used,
            gap: lost_at.map_or(Duration::ZERO, |at| at.elapsed()),
        };
        self.queue.push_batch(batch, &received);
        Ok(())
    }
}

fn thread_cpu_time() -> Duration {
    Duration::try_from(clock_gettime(ClockId::ThreadCPUTime)).unwrap_or_default()
}

/// The error for a message that does not fit the stream.
pub(crate) fn out_of_order(server: &str, found: SequenceError) -> Error {
    Error::Sequence {
        server: server.to_owned(),
        what: found.what,
        expected: found.expected,
        found: found.found,
    }
}

/// Makes an opened connection the current one and grants it all free space. Returns the registry of
/// its shared memory.
pub(crate) fn connect(
    queue: &Arc<Queue>,
    connection: &Connection,
    config: &StreamConfig,
) -> Result<Arc<Slots>> {
    let server = &connection.server;
    connection
        .socket
        .set_read_timeout(connection.silence)
        .map_err(Error::connecting(server))?;
    let writer = FrameWriter::new(connection.socket.clone());
    let more = connection
        .more
        .iter()
        .map(|connection| connection.socket.clone());
    let number = queue
        .connected(server, writer, more.collect(), config.budget)
        .map_err(|e| broken(server, "the first batch", connection.silence, e))?;
    let limit = config.options.max_batch_bytes;
    let registry = config.options.registry.clone();
    Ok(Slots::new(limit, registry, queue, number))
}
