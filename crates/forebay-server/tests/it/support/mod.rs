//! Test support: servers with short timeouts, raw clients, and faulty sources.
#![allow(dead_code, unreachable_pub)] // Several test binaries include this file; each uses a part of it.

use std::net::{SocketAddr, TcpStream};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Condvar, Mutex};
use std::time::Duration;

use forebay_client::{Client, ClientOptions, LoaderOptions, StreamInfo, StreamOptions, Transport};
use forebay_server::{
    BatchSource, Description, Event, Failure, Pixels, Server, ServerHandle, ServerOptions,
    StreamMonitor, StreamRequest, StreamSource, Synthetic,
};
use forebay_wire::wire::error::Kind;
use forebay_wire::{Batch, FrameLimits, FrameReader, FrameWriter, Message, TcpSocket, wire};

/// Longer than any step of a test, so a test that reaches it fails.
pub const LONG: Duration = Duration::from_secs(30);

/// Records events, and lets tests wait for them.
#[derive(Clone, Default)]
pub struct Log(Arc<(Mutex<Vec<String>>, Condvar)>);

impl Log {
    pub fn observe(&self) -> Arc<dyn forebay_server::ServerObserver> {
        let log = self.clone();
        Arc::new(move |event: &Event<'_>| {
            log.0.0.lock().unwrap().push(event.to_string());
            log.0.1.notify_all();
        })
    }

    /// Waits for an event that contains `part`, and returns it.
    pub fn wait_for(&self, part: &str) -> String {
        let events = self.0.0.lock().unwrap();
        let has = |events: &mut Vec<String>| !events.iter().any(|e| e.contains(part));
        let (events, late) = self.0.1.wait_timeout_while(events, LONG, has).unwrap();
        assert!(!late.timed_out(), "no event has {part:?}: {events:#?}");
        events.iter().find(|e| e.contains(part)).unwrap().clone()
    }

    pub fn all(&self) -> Vec<String> {
        self.0.0.lock().unwrap().clone()
    }
}

pub fn options(log: &Log) -> ServerOptions {
    ServerOptions {
        listen: "127.0.0.1:0".parse().unwrap(),
        observer: log.observe(),
        ..ServerOptions::default()
    }
}

pub fn start(options: ServerOptions, source: impl StreamSource + 'static) -> ServerHandle {
    let mut server = Server::bind(options).unwrap();
    server.add_source("set", Arc::new(source)).unwrap();
    server.spawn().unwrap()
}

/// A server of 100 samples with default timeouts.
pub fn plain() -> (ServerHandle, Log) {
    let log = Log::default();
    (
        start(options(&log), Synthetic::new(100, Pixels::Pattern)),
        log,
    )
}

pub fn url(addr: SocketAddr) -> String {
    format!("forebay://{addr}/set")
}

/// Batches of 8 images of 8x8 pixels: 1,536 bytes.
pub fn spec() -> LoaderOptions {
    given(r#"{"batch_size": 8, "world_size": 1, "transform": {"kind": "train", "size": 8}}"#)
}

/// Options from JSON.
pub fn given(json: &str) -> LoaderOptions {
    serde_json::from_str(json).unwrap()
}

/// Options as a client sends them.
pub fn sent(json: &str) -> wire::StreamSpec {
    wire::StreamSpec {
        options: json.to_owned(),
        ..Default::default()
    }
}

pub const BATCH_BYTES: u64 = 8 * 8 * 8 * 3;

/// Client options that fix the transport.
pub fn over(transport: Transport) -> ClientOptions {
    ClientOptions {
        transport,
        ..ClientOptions::default()
    }
}

pub fn connect(addr: SocketAddr, transport: Transport) -> Client {
    Client::connect(&url(addr), over(transport)).unwrap()
}

/// Defines one test per transport from each function that takes a [`Transport`].
#[macro_export]
macro_rules! over_each_transport {
    ($($name:ident,)*) => {
        mod tcp {
            $(#[test] fn $name() { super::$name(forebay_client::Transport::Tcp); })*
        }

        #[cfg(target_os = "linux")]
        mod shm {
            $(#[test] fn $name() { super::$name(forebay_client::Transport::Shm); })*
        }
    };
}

pub fn epochs(n: u64) -> StreamOptions {
    StreamOptions {
        epochs: n,
        ..StreamOptions::from(spec())
    }
}

/// A client that sends arbitrary messages.
pub struct Raw {
    pub socket: TcpSocket,
    pub reader: FrameReader<TcpSocket>,
    pub writer: FrameWriter<TcpSocket>,
}

impl Raw {
    pub fn connect(addr: SocketAddr) -> Raw {
        let socket = TcpSocket::new(TcpStream::connect(addr).unwrap()).unwrap();
        socket.set_timeouts(LONG, LONG).unwrap();
        Raw {
            reader: FrameReader::new(socket.clone(), FrameLimits::from_server(1 << 30)),
            writer: FrameWriter::new(socket.clone()),
            socket,
        }
    }

    pub fn welcomed(addr: SocketAddr) -> Raw {
        let mut raw = Raw::connect(addr);
        raw.send(hello());
        assert!(matches!(raw.read(), Message::Welcome(_)));
        raw
    }

    pub fn opened(addr: SocketAddr, credit_bytes: u64) -> Raw {
        let mut raw = Raw::welcomed(addr);
        raw.send(wire::Open {
            spec: Some(sent(&spec().encode().json)),
            credit_bytes,
            ..Default::default()
        });
        assert!(matches!(raw.read(), Message::Opened(_)));
        raw
    }

    pub fn send(&mut self, message: impl Into<Message>) {
        self.writer.write(&message.into(), &[]).unwrap();
    }

    /// Reads the next message; payloads are discarded.
    pub fn next(&mut self) -> forebay_wire::Result<Message> {
        let (message, len) = self.reader.read()?;
        self.reader.read_payload(&mut vec![0; len as usize], None)?;
        Ok(message)
    }

    /// Reads the next message other than a ping; pings stay unanswered.
    pub fn read(&mut self) -> Message {
        loop {
            match self.next().unwrap() {
                Message::Ping(ping) if !ping.answer => {}
                message => return message,
            }
        }
    }

    /// Reads up to the server's final message and the end of the connection.
    pub fn last_word(&mut self) -> (Kind, String) {
        loop {
            if let Message::Error(error) = self.next().unwrap() {
                let e = self.next().unwrap_err();
                assert!(e.is_disconnect(), "{e}");
                return (error.kind(), error.message);
            }
        }
    }
}

pub fn hello() -> wire::Hello {
    wire::Hello {
        version_min: 2,
        version_max: 2,
        client: "test".to_owned(),
        dataset: "set".to_owned(),
        ..Default::default()
    }
}

/// Called by a [`Wrapped`] source before each batch.
pub type Before = dyn Fn(u64) -> Result<(), Failure> + Send + Sync;

/// A synthetic source with a hook.
pub struct Wrapped {
    pub inner: Synthetic,
    pub before: Arc<Before>,
    pub gate: Gate,
}

/// Batches wait here until the gate is opened or their stream is cancelled.
#[derive(Clone, Default)]
pub struct Gate(Arc<(Mutex<bool>, Condvar)>);

impl Gate {
    pub fn closed() -> Gate {
        let gate = Gate::default();
        *gate.0.0.lock().unwrap() = true;
        gate
    }

    pub fn open(&self) {
        *self.0.0.lock().unwrap() = false;
        self.0.1.notify_all();
    }
}

/// One stream's view of a gate.
struct Passage {
    gate: Gate,
    cancelled: AtomicBool,
}

impl Passage {
    fn pass(&self) -> Result<(), Failure> {
        let cancelled = || self.cancelled.load(Ordering::SeqCst);
        let closed = self.gate.0.0.lock().unwrap();
        let wait = |closed: &mut bool| *closed && !cancelled();
        drop(self.gate.0.1.wait_while(closed, wait).unwrap());
        if cancelled() {
            return Err(Failure::new(Kind::Shutdown, "cancelled"));
        }
        Ok(())
    }
}

impl StreamMonitor for Passage {
    fn cancel(&self) {
        let closed = self.gate.0.0.lock().unwrap();
        self.cancelled.store(true, Ordering::SeqCst);
        drop(closed);
        self.gate.0.1.notify_all();
    }

    fn stats(&self) -> wire::Stats {
        wire::Stats {
            bytes_read: 42,
            ..Default::default()
        }
    }
}

impl StreamSource for Wrapped {
    fn describe(&self) -> Description {
        self.inner.describe()
    }

    fn open(&self, request: &StreamRequest<'_>) -> Result<Box<dyn BatchSource>, Failure> {
        Ok(Box::new(WrappedBatches {
            inner: self.inner.open(request)?,
            before: Arc::clone(&self.before),
            passage: Arc::new(Passage {
                gate: self.gate.clone(),
                cancelled: AtomicBool::new(false),
            }),
            made: 0,
        }))
    }
}

struct WrappedBatches {
    inner: Box<dyn BatchSource>,
    before: Arc<Before>,
    passage: Arc<Passage>,
    made: u64,
}

impl BatchSource for WrappedBatches {
    fn info(&self) -> StreamInfo {
        self.inner.info()
    }

    fn next_batch(&mut self) -> Result<Option<Batch>, Failure> {
        self.passage.pass()?;
        (self.before)(self.made)?;
        self.made += 1;
        self.inner.next_batch()
    }

    fn monitor(&self) -> Arc<dyn StreamMonitor> {
        Arc::clone(&self.passage) as Arc<dyn StreamMonitor>
    }
}

/// Resident memory of this process.
pub fn resident_bytes() -> u64 {
    let status = std::fs::read_to_string("/proc/self/status").unwrap();
    let line = status.lines().find(|line| line.starts_with("VmRSS:"));
    let kib = line.and_then(|line| line.split_whitespace().nth(1));
    kib.unwrap().parse::<u64>().unwrap() << 10
}
