//! The thread that reads a stream: it answers pings while the trainer computes,
//! fills pooled buffers, checks what comes, and connects again when it must.

use std::hash::{BuildHasher, Hasher, RandomState};
use std::sync::Arc;
use std::time::{Duration, Instant};

use forebay_wire::{Batch, Buffer, BufferPool, FrameWriter, Layout, Message, stream, wire};

use crate::connection::{Connection, broken, dial, remote};
use crate::error::{Error, Result};
use crate::lanes;
use crate::options::{ClientOptions, OpenOptions};
use crate::queue::{Item, Queue};
use crate::sequence::{Disorder, Sequence};
use crate::slots::Slots;
use crate::url::Url;

/// First and longest wait between two attempts to connect again.
const BACK_OFF: (Duration, Duration) = (Duration::from_millis(50), Duration::from_secs(2));

/// What stays the same over all connections of a stream.
pub(crate) struct Terms {
    pub(crate) url: Url,
    pub(crate) options: ClientOptions,
    pub(crate) opened: wire::Opened,
    pub(crate) fingerprint: String,
    /// Number of the epoch after the last one; `None`: there is no last one.
    pub(crate) until: Option<u64>,
    pub(crate) budget: u64,
    pub(crate) layout: Layout,
    pub(crate) pool: BufferPool,
}

impl Terms {
    pub(crate) fn checksum(options: &ClientOptions, connection: &Connection) -> bool {
        options
            .payload_checksum
            .unwrap_or(!connection.socket.is_same_host() && !connection.socket.is_tls())
    }
}

pub(crate) struct Receiver {
    terms: Arc<Terms>,
    queue: Arc<Queue>,
    sequence: Sequence,
    trouble: Trouble,
    /// Of the present connection.
    slots: Arc<Slots>,
}

/// What went wrong since the last batch arrived.
struct Trouble {
    since: Option<Instant>,
    attempts: u32,
    back_off: Duration,
}

impl Trouble {
    const NONE: Trouble = Trouble {
        since: None,
        attempts: 0,
        back_off: BACK_OFF.0,
    };
}

impl Receiver {
    pub(crate) fn new(
        terms: Arc<Terms>,
        queue: Arc<Queue>,
        sequence: Sequence,
        slots: Arc<Slots>,
    ) -> Self {
        Receiver {
            slots,
            terms,
            queue,
            sequence,
            trouble: Trouble::NONE,
        }
    }

    /// Receives to the end of the stream.
    pub(crate) fn run(mut self, connection: Connection) {
        let mut connection = connection;
        loop {
            let before = self.place();
            let failed = match self.receive(&mut connection) {
                Ok(()) => {
                    self.queue.send(&wire::Close {}.into());
                    self.queue.disconnected();
                    return self.queue.close(Ok(()));
                }
                Err(e) => e,
            };
            self.queue.disconnected();
            if self.place() != before {
                self.trouble = Trouble::NONE;
            }
            let lost = std::mem::take(&mut connection.server);
            match self.reconnect(failed, &lost) {
                Ok(next) => connection = next,
                Err(e) => return self.queue.close(Err(e)),
            }
        }
    }

    fn place(&self) -> (u64, u64) {
        (self.sequence.epoch, self.sequence.position)
    }

    /// Reads one connection to the end of the stream.
    fn receive(&mut self, connection: &mut Connection) -> Result<()> {
        let Terms {
            layout,
            pool,
            until,
            ..
        } = &*Arc::clone(&self.terms);
        let server = connection.server.clone();
        let silence = connection.silence;
        let raw = self.sequence.is_raw();
        let fail = |what: String, e| broken(&server, &what, silence, e);
        let disorder = |d: Disorder| Error::Disorder {
            server: server.clone(),
            what: d.what,
            expected: d.expected,
            found: d.found,
        };
        loop {
            if until.is_some_and(|until| self.sequence.epoch >= until) {
                return Ok(());
            }
            let (message, payload_len) = connection
                .reader
                .read()
                .map_err(|e| fail(self.sequence.next(), e))?;
            self.queue
                .note(|state| state.last_sign = Some(Instant::now()));
            match message {
                Message::Batch(mut header) => {
                    let shared = header.shared.take();
                    let lanes = connection.lanes.len();
                    let payload_len = payload_len_of(&header, shared.as_ref(), payload_len, lanes)
                        .map_err(disorder)?;
                    let limit = self.terms.options.max_batch_bytes;
                    if payload_len > limit {
                        return Err(Error::Protocol {
                            server,
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
                        .map_err(disorder)?;
                    let digest = header.digest;
                    if !self.queue.expect(payload_len, raw) {
                        return Err(disorder(Disorder {
                            what: "credit",
                            expected: "no more than was granted".to_owned(),
                            found: format!("a batch of {payload_len} bytes beyond it"),
                        }));
                    }
                    let began = Instant::now();
                    let images = match &shared {
                        Some(shared) => find_payload(&self.slots, shared, connection, &header),
                        None => read_payload(connection, &header, payload_len, pool),
                    };
                    let batch = images
                        .and_then(|images| {
                            Batch::from_wire(header, *layout, images).map_err(Unread::Wire)
                        })
                        .map_err(|e| match e {
                            Unread::Wire(e) => fail(next, e),
                            Unread::Memory(source) => Error::Memory {
                                bytes: payload_len,
                                source,
                            },
                            Unread::Shared(d) => disorder(d),
                        })?;
                    self.sequence.advance(digest);
                    self.queue.note(|state| {
                        state.stats.batches += 1;
                        state.stats.shared += u64::from(shared.is_some());
                        state.stats.payload_bytes += payload_len;
                        state.stats.receiving += began.elapsed();
                    });
                    self.queue.push(Item::Batch(batch));
                }
                Message::EpochEnd(end) => {
                    self.sequence.epoch_end(&end).map_err(disorder)?;
                    self.queue.push(Item::EpochEnd(end.epoch));
                }
                Message::Ping(ping) if !ping.answer => {
                    let pong = wire::Ping {
                        answer: true,
                        ..ping
                    };
                    self.queue.send(&pong.into());
                }
                Message::Ping(_) => {}
                Message::Stats(stats) => self.queue.note(|state| state.server_stats = Some(stats)),
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

    /// Connects again and opens the stream where it was, for as long as the
    /// options allow. A connection that brings no batch does not count as success.
    fn reconnect(&mut self, failed: Error, lost: &str) -> Result<Connection> {
        // The server that was lost comes first, as it may only have been restarted;
        // one that hangs comes last.
        let servers = self.terms.url.servers();
        let index = servers.iter().position(|s| s.to_string() == lost);
        let first = index.unwrap_or(0) + usize::from(matches!(failed, Error::Silent { .. }));
        let limit = self.terms.options.reconnect_for;
        let mut last = failed;
        loop {
            let since = *self.trouble.since.get_or_insert_with(Instant::now);
            if self.queue.is_interrupted() {
                return Err(Error::Interrupted);
            }
            if !last.is_passing() || limit.is_zero() {
                return Err(last);
            }
            // The first attempt comes at once: a batch came over the connection before.
            let wait = match self.trouble.attempts {
                0 => Duration::ZERO,
                _ => jittered(self.trouble.back_off),
            };
            if since.elapsed() + wait > limit {
                return Err(Error::GaveUp {
                    attempts: self.trouble.attempts,
                    elapsed: since.elapsed(),
                    last: Box::new(last),
                });
            }
            if self.queue.pause(wait) {
                return Err(Error::Interrupted);
            }
            if self.trouble.attempts > 0 {
                self.trouble.back_off = (self.trouble.back_off * 2).min(BACK_OFF.1);
            }
            self.trouble.attempts += 1;
            match self.attempt(first + self.trouble.attempts as usize - 1) {
                Ok(connection) => {
                    self.queue.note(|state| state.stats.reconnects += 1);
                    return Ok(connection);
                }
                Err(e) => last = e,
            }
        }
    }

    fn attempt(&mut self, first: usize) -> Result<Connection> {
        let terms = &*self.terms;
        let queue = &self.queue;
        queue.note(|state| state.dialling = true);
        let dialled = dial(&terms.url, &terms.options, first, &|socket| {
            queue.adopt(socket)
        });
        queue.note(|state| state.dialling = false);
        let mut connection = dialled?;
        let open = OpenOptions {
            spec: terms.opened.spec.clone().unwrap_or_default(),
            epoch: self.sequence.epoch,
            position: self.sequence.position,
            epochs: terms.until.map_or(0, |until| until - self.sequence.epoch),
            fingerprint: Some(terms.fingerprint.clone()),
            // The spec is complete.
            given: Vec::new(),
        };
        let checksum = Terms::checksum(&terms.options, &connection);
        let opened = connection.open(&open, checksum, &terms.url, &terms.options)?;
        if opened != terms.opened {
            return Err(Error::Disorder {
                server: connection.server.clone(),
                what: "the opened stream",
                expected: format!("{:?}", terms.opened),
                found: format!("{opened:?}"),
            });
        }
        self.sequence.reconnected();
        self.slots = connect(&self.queue, &connection, terms)?;
        Ok(connection)
    }
}

/// Makes an opened connection the one the stream comes from, and grants it all
/// the room there is. Gives the place for the memory it may share.
pub(crate) fn connect(
    queue: &Arc<Queue>,
    connection: &Connection,
    terms: &Terms,
) -> Result<Arc<Slots>> {
    let server = &connection.server;
    connection
        .socket
        .set_read_timeout(connection.silence)
        .map_err(|source| Error::Connect {
            server: server.clone(),
            source,
        })?;
    let writer = FrameWriter::new(connection.socket.clone());
    let lanes = connection.lanes.iter().map(|lane| lane.socket.clone());
    let number = queue
        .connected(server, writer, lanes.collect(), terms.budget)
        .map_err(|e| broken(server, "the first batch", connection.silence, e))?;
    Ok(Slots::new(terms.options.max_batch_bytes, queue, number))
}

/// Bytes of a batch's payload, wherever it is; `framed` of them follow its header.
fn payload_len_of(
    header: &wire::Batch,
    shared: Option<&wire::SharedPayload>,
    framed: u64,
    lanes: usize,
) -> Result<u64, Disorder> {
    let bad = |expected: String, found: String| Disorder {
        what: "payload",
        expected,
        found,
    };
    match shared {
        Some(shared) if framed == 0 && header.parts.is_empty() => Ok(shared.bytes),
        Some(_) => {
            let expected = "one, in shared memory or in the frame".to_owned();
            Err(bad(expected, "both".to_owned()))
        }
        None if header.parts.is_empty() => Ok(framed),
        None => lanes::total(&header.parts, framed, lanes).ok_or_else(|| {
            let most = lanes + 1;
            let expected = format!("at most {most} parts, the first of {framed} bytes");
            let found = header.parts.get(..header.parts.len().min(20));
            bad(expected, format!("{:?}", found.unwrap_or_default()))
        }),
    }
}

enum Unread {
    Wire(forebay_wire::Error),
    Memory(std::io::Error),
    Shared(Disorder),
}

/// The payload in shared memory. Nothing travelled, so nothing changed on the way, and no checksum is asked for by
/// itself; one that comes is held against the memory as it is now.
fn find_payload(
    slots: &Arc<Slots>,
    shared: &wire::SharedPayload,
    connection: &Connection,
    header: &wire::Batch,
) -> Result<Buffer, Unread> {
    let images = slots
        .payload(shared, &connection.socket)
        .map_err(|impossible| {
            Unread::Shared(Disorder {
                what: "shared memory",
                expected: impossible.expected,
                found: impossible.found,
            })
        })?;
    stream::check_payload(&images, header.payload_crc32c).map_err(Unread::Wire)?;
    Ok(images)
}

fn read_payload(
    connection: &mut Connection,
    header: &wire::Batch,
    payload_len: u64,
    pool: &BufferPool,
) -> Result<Buffer, Unread> {
    let len = usize::try_from(payload_len)
        .map_err(|_| Unread::Memory(std::io::ErrorKind::OutOfMemory.into()))?;
    let mut images = pool.try_take(len).map_err(Unread::Memory)?;
    let Connection { reader, lanes, .. } = connection;
    let read = if header.parts.is_empty() {
        reader.read_payload(&mut images, header.payload_crc32c)
    } else {
        lanes::read(reader, lanes, header, &mut images)
    };
    read.map_err(Unread::Wire)?;
    Ok(images)
}

/// Between half of `time` and all of it, so that clients that lost one server
/// do not come back all at once.
fn jittered(time: Duration) -> Duration {
    let random = RandomState::new().build_hasher().finish();
    let part = 0.5 + (random >> 11) as f64 / (1u64 << 54) as f64;
    time.mul_f64(part)
}
