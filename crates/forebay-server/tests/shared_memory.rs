//! Batches in shared memory: when it is used, and that neither side can harm the other through it.
#![cfg(target_os = "linux")]

#[path = "it/support/mod.rs"]
mod support;

use std::net::SocketAddr;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Instant;

use forebay_client::{Batch, Client, ClientOptions, Error, Stream, Transport, Via};
use forebay_server::{
    BatchSource, Description, Failure, Pixels, ServerOptions, StreamRequest, StreamSource,
    Synthetic,
};
use forebay_wire::wire::error::Kind;
use forebay_wire::{
    BufferPool, FrameLimits, FrameReader, FrameWriter, LocalSocket, Message, Socket, wire,
};
use support::{
    BATCH_BYTES, LONG, Log, connect, epochs, hello, options, over, plain, spec, start, url,
};

fn check(batch: &Batch) {
    for (i, &sample) in batch.samples.iter().enumerate() {
        let image = batch.image(i).unwrap();
        let right = |(j, &byte): (usize, &u8)| byte == Synthetic::pixel(sample, j);
        assert!(image.iter().enumerate().all(right), "sample {sample}");
    }
}

fn whole_epoch(stream: &mut Stream) {
    let mut batches = 0;
    while let Some(batch) = stream.next_batch().unwrap() {
        check(&batch);
        batches += 1;
    }
    assert_eq!(batches, 12);
}

/// Serializes the tests that measure the whole process with those that would disturb them.
fn alone() -> MutexGuard<'static, ()> {
    static TURN: Mutex<()> = Mutex::new(());
    TURN.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Counts mappings of batch memory and open files of this process.
fn traces() -> (usize, usize) {
    let maps = std::fs::read_to_string("/proc/self/maps").unwrap();
    let files = std::fs::read_dir("/proc/self/fd").unwrap().count();
    (maps.matches("forebay-batch").count(), files)
}

#[test]
fn the_best_transport_is_picked_and_told() {
    let _turn = alone();
    let (server, log) = plain();
    for (transport, via) in [
        (Transport::Auto, Via::Shm),
        (Transport::Shm, Via::Shm),
        (Transport::Tcp, Via::Tcp),
    ] {
        let mut stream = connect(server.addr(), transport).open(epochs(1)).unwrap();
        assert_eq!(stream.via(), via);
        whole_epoch(&mut stream);
        let shared = if via == Via::Shm { 12 } else { 0 };
        assert_eq!(stream.stats().shared, shared);
    }
    log.wait_for(&format!("from process {}", std::process::id()));
    let log = Log::default();
    let without = ServerOptions {
        shared_memory_bytes: 0,
        ..options(&log)
    };
    let server = start(without, Synthetic::new(100, Pixels::Pattern));
    let mut stream = connect(server.addr(), Transport::Auto)
        .open(epochs(1))
        .unwrap();
    assert_eq!(stream.via(), Via::Tcp);
    whole_epoch(&mut stream);
    let Err(e) = Client::connect(&url(server.addr()), over(Transport::Shm)) else {
        panic!("there is none");
    };
    assert!(matches!(e, Error::NotLocal { .. }), "{e}");
    assert!(e.to_string().contains("the server offers none"), "{e}");
}

#[test]
fn a_client_that_keeps_all_slots_blocks_no_other() {
    let _turn = alone();
    let (server, _) = plain();
    let mut greedy = connect(server.addr(), Transport::Shm)
        .open(epochs(0))
        .unwrap();
    let mut kept = Vec::new();
    while kept.len() < 60 {
        kept.extend(greedy.next_batch().unwrap());
    }
    let shared = greedy.stats().shared;
    assert!((1..60).contains(&shared), "{shared} of 60 in slots");
    let mut other = connect(server.addr(), Transport::Shm)
        .open(epochs(1))
        .unwrap();
    whole_epoch(&mut other);
    assert_eq!(other.stats().shared, 12);
    // No slot was reused while its batch was held.
    kept.iter().for_each(check);
    drop(kept);
    let before = greedy.stats();
    while greedy.stats().batches < before.batches + 24 {
        if let Some(batch) = greedy.next_batch().unwrap() {
            check(&batch);
        }
    }
    assert!(greedy.stats().shared > before.shared, "slots came back");
}

/// A source that tells the pool of its stream, which other streams with the same options go on
/// using after that stream has ended.
struct PoolSource(Synthetic, Arc<Mutex<Option<BufferPool>>>);

impl StreamSource for PoolSource {
    fn describe(&self) -> Description {
        self.0.describe()
    }

    fn open(&self, request: &StreamRequest<'_>) -> Result<Box<dyn BatchSource>, Failure> {
        self.1.lock().unwrap().clone_from(&request.pool);
        self.0.open(request)
    }
}

#[test]
fn batches_of_an_ended_stream_are_not_overwritten() {
    let _turn = alone();
    let pool = Arc::default();
    let source = PoolSource(Synthetic::new(100, Pixels::Pattern), Arc::clone(&pool));
    let server = start(options(&Log::default()), source);
    let mut stream = connect(server.addr(), Transport::Shm)
        .open(epochs(0))
        .unwrap();
    let mut next = || stream.next_batch().unwrap().unwrap();
    let kept: Vec<Batch> = (0..6).map(|_| next()).collect();
    drop(stream);
    // Waits for the end of the connection.
    drop(server);
    let pool = pool.lock().unwrap().take().unwrap();
    let mut filled: Vec<_> = (0..20).map(|_| pool.take(BATCH_BYTES as usize)).collect();
    assert!(filled.iter().any(|buffer| buffer.slot().is_some()));
    filled.iter_mut().for_each(|buffer| buffer.fill(0));
    kept.iter().for_each(check);
}

#[test]
fn memory_is_bounded_by_the_options_of_the_server() {
    let _turn = alone();
    let log = Log::default();
    let little = ServerOptions {
        shared_memory_bytes: 2 * 4096,
        ..options(&log)
    };
    let server = start(little, Synthetic::new(100, Pixels::Pattern));
    let mut stream = connect(server.addr(), Transport::Shm)
        .open(epochs(0))
        .unwrap();
    let kept: Vec<Batch> = (0..10)
        .map(|_| stream.next_batch().unwrap().unwrap())
        .collect();
    kept.iter().for_each(check);
    assert_eq!(traces().0, 2 * 2, "two slots, each mapped on both sides");
}

#[test]
fn batches_outlive_their_stream_and_server() {
    let _turn = alone();
    let (server, _) = plain();
    let before = traces();
    let mut stream = connect(server.addr(), Transport::Shm)
        .open(epochs(0))
        .unwrap();
    let mut kept: Vec<Batch> = (0..6)
        .map(|_| stream.next_batch().unwrap().unwrap())
        .collect();
    drop(server);
    kept.iter().for_each(check);
    drop(stream);
    kept.iter().for_each(check);
    // The memory is writable.
    kept[0].payload.fill(3);
    assert!(kept[0].payload.iter().all(|&byte| byte == 3));
    drop(kept);
    let began = Instant::now();
    // Files of a joined thread may remain visible for a moment.
    while traces().0 > before.0 || traces().1 >= before.1 {
        assert!(began.elapsed() < LONG, "{:?} is not {before:?}", traces());
    }
}

#[test]
fn payload_checksums_of_shared_memory_can_be_asked_for() {
    let _turn = alone();
    let (server, _) = plain();
    let options = ClientOptions {
        payload_checksum: Some(true),
        ..over(Transport::Shm)
    };
    let client = Client::connect(&url(server.addr()), options).unwrap();
    whole_epoch(&mut client.open(epochs(1)).unwrap());
}

/// A client of the local socket that sends arbitrary messages.
fn raw_local(
    addr: SocketAddr,
    change: fn(&mut wire::Hello),
) -> (FrameReader<Socket>, FrameWriter<Socket>) {
    let mut raw = support::Raw::connect(addr);
    let asks = wire::Hello {
        local: true,
        ..hello()
    };
    raw.send(asks.clone());
    let Message::Welcome(welcome) = raw.read() else {
        panic!("no Welcome");
    };
    let offered = welcome.local.expect("on this host there is shared memory");
    let socket = Socket::from(LocalSocket::connect(&offered.name, LONG).unwrap());
    socket.set_timeouts(LONG, LONG).unwrap();
    let mut writer = FrameWriter::new(socket.clone());
    let mut greeting = wire::Hello {
        local_key: offered.key,
        ..asks
    };
    change(&mut greeting);
    writer.write(&greeting.into(), &[]).unwrap();
    let limits = FrameLimits::from_server(1 << 30);
    (FrameReader::new(socket, limits), writer)
}

/// Reads the server's final message.
fn last_word(reader: &mut FrameReader<Socket>) -> (Kind, String) {
    loop {
        if let (Message::Error(error), _) = reader.read().unwrap() {
            return (error.kind(), error.message);
        }
    }
}

#[test]
fn invalid_keys_and_releases_end_the_connection() {
    let _turn = alone();
    let (server, _) = plain();
    // A client that the server did not refer to the local socket: without a key, and with a wrong
    // key.
    for change in [
        (|hello| hello.local_key.clear()) as fn(&mut wire::Hello),
        |hello| hello.local_key = vec![0; 16].into(),
    ] {
        let (mut reader, _writer) = raw_local(server.addr(), change);
        let (kind, message) = last_word(&mut reader);
        assert_eq!(kind, Kind::Protocol);
        assert!(
            message.contains("for clients that the server itself sent"),
            "{message}"
        );
    }
    let (mut reader, mut writer) = raw_local(server.addr(), |_| ());
    assert!(matches!(reader.read().unwrap().0, Message::Welcome(w) if w.local.is_none()));
    let open = wire::Open {
        spec: Some(support::sent(&spec().encode().json)),
        credit_bytes: 2 * BATCH_BYTES,
        ..wire::Open::default()
    };
    writer.write(&open.into(), &[]).unwrap();
    assert!(matches!(reader.read().unwrap().0, Message::Opened(_)));
    let mut slots = Vec::new();
    while slots.len() < 2 {
        if let (Message::Batch(batch), 0) = reader.read().unwrap() {
            let shared = batch.shared.unwrap();
            assert_eq!((shared.bytes, shared.capacity), (BATCH_BYTES, 4096));
            assert!(reader.get_ref().take_file().is_some());
            slots.push(shared.slot);
        }
    }
    let release = |slot| wire::Credit {
        released: vec![slot],
        ..wire::Credit::default()
    };
    writer.write(&release(slots[0]).into(), &[]).unwrap();
    writer.write(&release(slots[0]).into(), &[]).unwrap();
    let (kind, message) = last_word(&mut reader);
    assert_eq!(kind, Kind::Protocol);
    assert!(
        message.contains("was released, but the client does not hold it"),
        "{message}"
    );
}
