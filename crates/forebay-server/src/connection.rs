//! One client connection: the handshake, and the thread that receives its messages.

use std::io::{ErrorKind, Write};
use std::net::Shutdown;
use std::ops::ControlFlow;
use std::sync::Arc;
use std::thread;
use std::time::{Duration, Instant};

use forebay_options::LoaderOptions;
use forebay_wire::frame::{self, PROTOCOL_VERSIONS};
use forebay_wire::transport::tls::{ServerConfig, ServerConnection};
use forebay_wire::wire::{self, error::Kind};
use forebay_wire::{
    Error as WireError, Foreign, FrameLimits, FrameReader, FrameWriter, Message, Socket,
};

use crate::deadline_reader::DeadlineReader;
use crate::job::Served;
use crate::link::{Ending, Link, Stop};
use crate::observer::Event;
use crate::session::{self, printable};
use crate::shared::Shared;
use crate::source::Failure;
use crate::wire_options;

/// Size limit of messages before the handshake is complete.
const HELLO_BYTES: u32 = 16 << 10;
/// How long a client may take to close after it was told that the connection ends.
const LINGER: Duration = Duration::from_secs(2);

/// Serves one client until the connection ends.
pub(crate) fn serve(server: &Shared, link: &Link) -> Ending {
    let options = &server.options;
    let tick = options.heartbeat / 2;
    // Reads wait in `poll`; this timeout applies to a message that arrives in pieces.
    if let Err(e) = link.socket.set_timeouts(tick, options.stall_timeout) {
        return Ending::failed(format!("lost the connection: {e}"));
    }
    let deadline_reader = DeadlineReader::new(
        link.socket.clone(),
        server.stop_signal(),
        tick,
        options.handshake_timeout,
    );
    let limits = FrameLimits {
        header_bytes: HELLO_BYTES,
        ..FrameLimits::from_client()
    };
    let mut deadline_reader = deadline_reader;
    let greeted = shake_hands(server, link, &mut deadline_reader);
    let mut reader = FrameReader::new(deadline_reader, limits);
    let ending = match greeted.and_then(|()| handshake(server, link, &mut reader)) {
        Ok(Greeted::Stream(name, served)) => {
            reader.set_limits(FrameLimits::from_client());
            let ending = listen(server, link, &mut reader, &name, &served);
            link.end_lanes();
            ending
        }
        Ok(Greeted::Lane) => carry(link, &mut reader),
        Err(ending) => ending,
    };
    // The first recorded ending is the cause; later ones follow from it.
    link.end(ending.clone());
    link.stop(Stop::Gone);
    link.socket.shutdown(Shutdown::Write);
    reader.into_inner().linger(LINGER);
    link.ending().unwrap_or(ending)
}

/// Performs the TLS handshake, if this server uses TLS.
fn shake_hands(
    server: &Shared,
    link: &Link,
    deadline_reader: &mut DeadlineReader<'_>,
) -> Result<(), Ending> {
    let Err(e) = deadline_reader.shake_hands() else {
        return Ok(());
    };
    let first = link.socket.first_bytes();
    if let Some(Foreign::HttpRequest) = first.and_then(Foreign::of) {
        return Err(answer_http(link));
    }
    if first == Some(frame::MAGIC) {
        // The client speaks the plain protocol, so the error can be a frame of it.
        let text = "this server speaks TLS: use forebays:// instead of forebay://";
        let error = wire::Error {
            kind: Kind::Protocol.into(),
            message: text.to_owned(),
        };
        if let Some(socket) = link.socket.tcp() {
            let _ = FrameWriter::new(socket.without_tls()).write(&error.into(), &[]);
        }
        return Err(Ending::failed("was refused: it speaks no TLS"));
    }
    Err(Ending::failed(match e.kind() {
        _ if deadline_reader.stopping() => "left while the server stops".to_owned(),
        ErrorKind::TimedOut => format!(
            "was refused: no handshake of TLS within {:?}",
            server.options.handshake_timeout
        ),
        ErrorKind::InvalidData => format!("was refused: the handshake of TLS failed: {e}"),
        _ => format!("left before the handshake of TLS was done: {e}"),
    }))
}

/// Answers an HTTP client with an HTTP error that names this protocol.
fn answer_http(link: &Link) -> Ending {
    const TEXT: &str = "This is the address of a forebay server for trainers, which speaks no HTTP.\n\
        Trainers connect with forebay://HOST:PORT/NAME, or forebays:// where the server has TLS.\n\
        The dashboard and metrics have another address, which the server prints when it starts.\n";
    if let Some(socket) = link.socket.tcp() {
        let answer = format!(
            "HTTP/1.0 400 Bad Request\r\nContent-Type: text/plain\r\nContent-Length: {}\r\nConnection: close\r\n\r\n{TEXT}",
            TEXT.len()
        );
        // The client may be gone already, which is fine.
        let _ = socket.without_tls().write_all(answer.as_bytes());
    }
    Ending::failed("was refused: it speaks HTTP, and trainers connect with forebay://")
}

/// Rejects a client because of a connection limit, after reading its first message.
pub(crate) fn refuse(server: &Shared, link: &Link, why: String) {
    let options = &server.options;
    let tick = options.heartbeat / 2;
    if link.socket.set_timeouts(tick, tick).is_err() {
        return;
    }
    let limit = options.handshake_timeout.min(LINGER);
    let mut deadline_reader =
        DeadlineReader::new(link.socket.clone(), server.stop_signal(), tick, limit);
    if deadline_reader.shake_hands().is_err() {
        return;
    }
    link.send_last(Kind::Busy, why);
    deadline_reader.linger(limit);
}

/// The purpose of a connection.
enum Greeted {
    /// A stream of the named dataset or job.
    Stream(String, Served),
    /// Carries batch slices of another connection's stream.
    Lane,
}

fn handshake(
    server: &Shared,
    link: &Link,
    reader: &mut FrameReader<DeadlineReader<'_>>,
) -> Result<Greeted, Ending> {
    let refuse = |failure: Failure| {
        link.send_last(failure.kind, &failure.message);
        Ending::failed(format!("was refused: {failure}"))
    };
    let message = loop {
        match reader.read() {
            Ok((message, _)) => break message,
            Err(e) if e.is_timeout() => {
                if reader.get_ref().overdue() {
                    let limit = server.options.handshake_timeout;
                    let text = format!("no complete Hello within {limit:?}");
                    return Err(refuse(Failure::new(Kind::Timeout, text)));
                }
                if reader.get_ref().stopping() {
                    let text = "the server is stopping";
                    return Err(refuse(Failure::new(Kind::Shutdown, text)));
                }
            }
            Err(e) if e.is_disconnect() => {
                return Err(Ending::failed(format!("left before its Hello: {e}")));
            }
            Err(e) if e.foreign() == Some(Foreign::HttpRequest) => return Err(answer_http(link)),
            Err(e) => return Err(refuse(Failure::new(Kind::Protocol, e))),
        }
    };
    let Message::Hello(hello) = message else {
        let text = format!("expected Hello first, found {}", message.kind());
        return Err(refuse(Failure::new(Kind::Protocol, text)));
    };
    // Authentication comes first: no other field of the message is read before.
    let scope = server
        .admit(&hello.token)
        .map_err(|why| refuse(Failure::new(Kind::Unauthorized, why)))?;
    let version = agree(&hello).map_err(refuse)?;
    if link.socket.local().is_some() && !server.is_local_key(&hello.local_key) {
        let text = "this address is for clients that the server itself sent here";
        return Err(refuse(Failure::new(Kind::Protocol, text)));
    }
    if !scope.has(&hello.dataset) {
        server.counters.count(|stats| stats.unauthorized += 1);
        let text = format!(
            "the token is not for {:?}, but for {}",
            printable(&hello.dataset),
            server.names(&scope)
        );
        return Err(refuse(Failure::new(Kind::Unauthorized, text)));
    }
    let Some(served) = server.served(&hello.dataset) else {
        let text = format!(
            "no dataset or job {:?} here; there is {}",
            printable(&hello.dataset),
            server.names(&scope)
        );
        return Err(refuse(Failure::new(Kind::NotFound, text)));
    };
    let description = served.source.describe();
    let welcome = wire::Welcome {
        version,
        server: server_name(),
        fingerprint: description.fingerprint,
        sample_fingerprint: description.sample_fingerprint.unwrap_or_default(),
        splits: description.splits,
        label_base: description.label_base,
        local: server.local_socket(&hello, &link.socket),
        heartbeat_ms: u32::try_from(server.options.heartbeat.as_millis()).unwrap_or(u32::MAX),
        job: served.job.as_ref().map(|job| job.to_wire()),
    };
    if !hello.join.is_empty() {
        // Registered before the answer: a client grants credit once all of its connections are
        // welcomed.
        server
            .join(&hello.join, link)
            .map_err(|why| refuse(Failure::new(Kind::Invalid, why)))?;
    }
    link.welcomed();
    link.set_process(&hello.process);
    if hello.hands_over {
        link.set_hands_over();
    }
    // Reported before the answer, so that observers know of the client before it can act.
    server.tell(&Event::Welcomed {
        connection: link.id,
        peer: link.peer,
        client: &printable(&hello.client),
        dataset: &hello.dataset,
    });
    link.send(&welcome.into(), &[])
        .map_err(|e| Ending::failed(format!("lost the connection: {e}")))?;
    next_message(server, reader);
    Ok(match hello.join.is_empty() {
        true => Greeted::Stream(hello.dataset, served),
        false => Greeted::Lane,
    })
}

/// Starts the timeout of the next message at its first byte, which may have arrived with the last
/// message.
fn next_message(server: &Shared, reader: &mut FrameReader<DeadlineReader<'_>>) {
    let has_begun = reader.is_mid_frame();
    let limit = server.options.idle_timeout;
    reader.get_mut().next_message(limit, has_begun);
}

/// Waits for the end of a connection that carries batch slices. The session of the main connection
/// sends them, and also ends this connection.
fn carry(link: &Link, reader: &mut FrameReader<DeadlineReader<'_>>) -> Ending {
    loop {
        match reader.read() {
            Ok((Message::Close(_), _)) | Err(WireError::Closed) => {
                return Ending::clean("carried its slices");
            }
            Ok((other, _)) => {
                let text = format!("unexpected message {}", other.kind());
                link.send_last(Kind::Protocol, &text);
                return Ending::failed(format!("was disconnected: {text}"));
            }
            Err(e) if e.is_timeout() && !reader.get_ref().overdue() => {}
            // The main connection reports how the stream ended.
            Err(e) if e.is_disconnect() => return Ending::clean("carried its slices"),
            Err(e) => {
                link.send_last(Kind::Protocol, e.to_string());
                return Ending::failed(format!("was disconnected: {e}"));
            }
        }
    }
}

fn agree(hello: &wire::Hello) -> Result<u32, Failure> {
    let (low, high) = (*PROTOCOL_VERSIONS.start(), *PROTOCOL_VERSIONS.end());
    let version = hello.version_max.min(high);
    if version < hello.version_min.max(low) {
        return Err(Failure::new(
            Kind::Version,
            format!(
                "no common protocol version: the client speaks {} to {}, the server {low} to {high}; \
                 update the older of the two",
                hello.version_min, hello.version_max
            ),
        ));
    }
    Ok(version)
}

pub(crate) fn server_name() -> String {
    concat!("forebay/", env!("CARGO_PKG_VERSION")).to_owned()
}

/// Returns the options of the stream that a client opens, with those of the job filled in.
fn accept(served: &Served, name: &str, open: &mut wire::Open) -> Result<LoaderOptions, Failure> {
    let invalid = |text: String| Failure::new(Kind::Invalid, text);
    let spec = open.spec.take();
    let spec = spec.ok_or_else(|| invalid("Open has no spec".to_owned()))?;
    let mut options = wire_options::read(spec)?;
    if let Some(job) = &served.job {
        options = job.join(name, options)?;
    }
    Ok(options)
}

/// Handles an error of reading messages: records how the connection ended, or returns the failure to send if the client can
/// still be reached.
fn broken(link: &Link, error: WireError, streams: bool) -> Option<Failure> {
    match error {
        WireError::Closed => link.end(match link.take_send_error() {
            Some(e) => Ending::failed(format!("lost the connection: {e}")),
            None if streams => Ending::failed("closed the connection without a Close message"),
            None => Ending::clean("closed the connection"),
        }),
        e if e.is_disconnect() => link.end(Ending::failed(format!("lost the connection: {e}"))),
        e => return Some(Failure::new(Kind::Protocol, e)),
    }
    None
}

/// Progress of an orderly end of a connection.
#[derive(Default)]
struct Progress {
    /// When the wait for the client began, after the final message was sent to it.
    told: Option<Instant>,
    /// Whether the client was asked to migrate to another server.
    leaving: bool,
}

impl Progress {
    /// Checks a connection that has been silent for a tick; breaks with the failure to report, if
    /// any.
    fn wait(
        &mut self,
        server: &Shared,
        link: &Link,
        reader: &FrameReader<DeadlineReader<'_>>,
        streams: bool,
    ) -> ControlFlow<Option<Failure>> {
        let fail = |kind, text: String| ControlFlow::Break(Some(Failure::new(kind, text)));
        if link.ending().is_some() && self.told.get_or_insert_with(Instant::now).elapsed() > LINGER
        {
            return ControlFlow::Break(None);
        }
        if reader.get_ref().stopping() && !self.leaving {
            self.leaving =
                streams && link.hands_over() && link.leave(server.serves_until()).is_ok();
            if !self.leaving {
                link.stop(Stop::Shutdown);
                return fail(Kind::Shutdown, "the server is stopping".to_owned());
            }
        }
        let limit = server.options.idle_timeout;
        if reader.get_ref().overdue() {
            let text = format!("a message was not complete within {limit:?}");
            return fail(Kind::Timeout, text);
        }
        if link.unanswered_for() > limit {
            return fail(Kind::Timeout, format!("no message for {limit:?}"));
        }
        if let Err(e) = link.heartbeat(server.options.heartbeat / 2) {
            link.end(Ending::failed(format!("lost the connection: {e}")));
            return ControlFlow::Break(None);
        }
        ControlFlow::Continue(())
    }

    /// Handles every message except the first `Open`; breaks with the failure to report, if any.
    fn answer(
        &self,
        server: &Shared,
        link: &Link,
        message: Message,
    ) -> ControlFlow<Option<Failure>> {
        let fail = |text: String| ControlFlow::Break(Some(Failure::new(Kind::Protocol, text)));
        let send = |message: Message| match link.send(&message, &[]) {
            Ok(()) => ControlFlow::Continue(()),
            Err(_) => ControlFlow::Break(None),
        };
        match message {
            Message::Open(_) => fail("a second Open; a connection has one stream".to_owned()),
            Message::Credit(credit) => {
                let mut unknown = credit.released.iter().filter(|&&slot| !link.release(slot));
                if let Some(slot) = unknown.next() {
                    return fail(format!(
                        "slot {slot} was released, but the client does not hold it"
                    ));
                }
                if credit.bytes > 0 {
                    link.waited(credit.waited_us);
                }
                link.grant(credit.bytes);
                ControlFlow::Continue(())
            }
            Message::Ping(ping) if ping.answer => ControlFlow::Continue(()),
            Message::Ping(ping) => send(
                wire::Ping {
                    answer: true,
                    ..ping
                }
                .into(),
            ),
            Message::StatsRequest(_) => send(link.stats_message().into()),
            Message::Close(_) => {
                if self.leaving {
                    server.counters.count(|stats| stats.handed_over += 1);
                }
                link.end(Ending::clean(match self.leaving {
                    true => "migrated to another server",
                    false => "is done",
                }));
                link.socket.shutdown(Shutdown::Both);
                ControlFlow::Break(None)
            }
            Message::Error(error) => {
                let text = format!("gave up: {}", printable(&error.message));
                link.end(Ending::failed(text));
                link.socket.shutdown(Shutdown::Both);
                ControlFlow::Break(None)
            }
            other => fail(format!("unexpected message {}", other.kind())),
        }
    }
}

/// Receives the client's messages until the connection ends.
fn listen(
    server: &Shared,
    link: &Link,
    reader: &mut FrameReader<DeadlineReader<'_>>,
    name: &str,
    served: &Served,
) -> Ending {
    thread::scope(|scope| {
        let mut session: Option<thread::ScopedJoinHandle<'_, ()>> = None;
        let mut progress = Progress::default();
        let failure = loop {
            let read = reader.read();
            let streams = session.as_ref().is_some_and(|s| !s.is_finished());
            let message = match read {
                Ok((message, _)) => message,
                Err(e) if e.is_timeout() => match progress.wait(server, link, reader, streams) {
                    ControlFlow::Continue(()) => continue,
                    ControlFlow::Break(failure) => break failure,
                },
                Err(e) => break broken(link, e, streams),
            };
            next_message(server, reader);
            link.heard();
            let next = match message {
                Message::Open(mut open) if session.is_none() => {
                    let options = match accept(served, name, &mut open) {
                        Ok(options) => options,
                        Err(failure) => break Some(failure),
                    };
                    let source = served.source.as_ref();
                    let run = move || session::run(server, link, name, source, &options, &open);
                    let thread = thread::Builder::new().name(format!("forebay-send-{}", link.id));
                    match thread.spawn_scoped(scope, run) {
                        Ok(handle) => {
                            session = Some(handle);
                            continue;
                        }
                        Err(e) => {
                            let text = format!("the server cannot start another thread: {e}");
                            ControlFlow::Break(Some(Failure::new(Kind::Busy, text)))
                        }
                    }
                }
                message => progress.answer(server, link, message),
            };
            if let ControlFlow::Break(failure) = next {
                break failure;
            }
        };
        let Some(failure) = failure else {
            link.stop(Stop::Gone);
            link.socket.shutdown(Shutdown::Both);
            return Ending::failed("lost the connection");
        };
        if failure.kind != Kind::Shutdown {
            link.end(Ending::failed(format!("was disconnected: {failure}")));
            link.stop(Stop::Gone);
        }
        if failure.kind == Kind::Timeout {
            // A client that does not answer does not read either: shut down, so that a blocked send
            // of a batch returns.
            link.socket.shutdown(Shutdown::Both);
        }
        // Waits for the frame that is being sent. A session that stops because of a shutdown sends
        // its own final message; then this one is dropped.
        if let Some(session) = session
            && session.join().is_err()
        {
            link.end(Ending::failed("was disconnected by a bug of the server"));
        }
        link.send_last(failure.kind, &failure.message);
        Ending::clean(format!("got an error: {failure}"))
    })
}

/// Creates the link of a connection that was just accepted.
pub(crate) fn link(
    id: u64,
    socket: Socket,
    tls: Option<Arc<ServerConfig>>,
) -> std::io::Result<Link> {
    let socket = match (socket, tls) {
        // Traffic that stays on this machine is not encrypted.
        (Socket::Tcp(socket), Some(config)) => {
            let tls = ServerConnection::new(config).map_err(std::io::Error::other)?;
            socket.with_tls(tls).into()
        }
        (socket, _) => socket,
    };
    Ok(Link::new(id, socket.peer()?, socket))
}
